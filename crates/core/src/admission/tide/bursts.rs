//! How unevenly requests arrive: the variance of their number per control period, in means.
//!
//! Many callers that each call now and then are a Poisson stream, for which it is 1. Callers that send ten
//! requests at once make it 10, and a queue that is as often full and empty as with requests ten
//! times the size.

/// Arrivals per control period: their mean, and the mean of their square.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Bursts {
    present: u32,
    mean: f64,
    square: f64,
}

/// Weight of a period: what is known is some 10 % off.
const GAIN: f64 = 1.0 / 256.0;
/// Less than this is as likely chance.
const LEAST: f64 = 1.5;

impl Bursts {
    /// A request arrived.
    pub(super) fn arrive(&mut self) {
        self.present += 1;
    }

    /// A control period is over, and `more` in which nothing arrived.
    pub(super) fn close(&mut self, more: u64) {
        let arrived = f64::from(std::mem::take(&mut self.present));
        let fade = (1.0 - GAIN).powi(i32::try_from(more).unwrap_or(i32::MAX));
        self.mean = fade * (self.mean + GAIN * (arrived - self.mean));
        self.square = fade * (self.square + GAIN * (arrived * arrived - self.square));
    }

    /// Variance ÷ mean of the arrivals per period; 1 if it is not clearly more.
    pub(super) fn dispersion(&self) -> f64 {
        let dispersion = self.square / self.mean - self.mean;
        if dispersion > LEAST { dispersion } else { 1.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    /// After periods in which a hundred callers each send `size` requests at once, one time in twenty.
    fn after(size: usize) -> f64 {
        let (mut bursts, mut rng) = (Bursts::default(), Rng::new(1));
        for _ in 0..2_000 {
            let senders = (0..100).filter(|_| rng.unit() < 0.05).count();
            (0..senders * size).for_each(|_| bursts.arrive());
            bursts.close(0);
        }
        bursts.dispersion()
    }

    #[test]
    fn ten_at_once_are_ten_times_as_uneven() {
        assert_eq!(after(1), 1.0);
        assert!((7.0..13.0).contains(&after(10)), "{}", after(10));
    }

    #[test]
    fn periods_without_arrivals_count_and_nothing_known_is_even() {
        assert_eq!(Bursts::default().dispersion(), 1.0);
        let (mut one, mut other) = (Bursts::default(), Bursts::default());
        for _ in 0..100 {
            (0..8).for_each(|_| one.arrive());
            one.close(3);
            (0..8).for_each(|_| other.arrive());
            (0..4).for_each(|_| other.close(0));
        }
        assert!((one.dispersion() - other.dispersion()).abs() < 1e-9);
        assert!(one.dispersion() > 4.0, "eight in one of four periods: {}", one.dispersion());
    }
}
