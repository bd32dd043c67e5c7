//! How unevenly requests arrive: the variance of their number in the time of a target delay, in means. It
//! is taken from one such time to the next, so that more or less demand than before is no burst.
//!
//! Many callers that each call now and then are a Poisson stream, for which it is 1. Callers that send ten
//! requests at once make it 10, and a queue that is as often full and empty as with requests ten
//! times the size. In a shorter time arrivals are uneven because a server reads them between two requests.

use super::config::PERIODS;

/// Arrivals per target delay: their mean, and their variance.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Bursts {
    /// Arrivals and control periods of the present time.
    arrived: u32,
    periods: u64,
    /// Arrivals of the time before; none before the first.
    before: Option<f64>,
    mean: f64,
    variance: f64,
}

/// Weight of one such time: what is known is some 12 % off.
const GAIN: f64 = 1.0 / 128.0;
/// Less than this is as likely chance.
const LEAST: f64 = 1.5;

impl Bursts {
    /// A request arrived.
    pub(super) fn arrive(&mut self) {
        self.arrived += 1;
    }

    /// So many control periods are over; nothing arrived in any but the first of them.
    pub(super) fn pass(&mut self, periods: u64) {
        self.periods += periods;
        let over = self.periods / u64::from(PERIODS);
        if over == 0 {
            return;
        }
        self.periods %= u64::from(PERIODS);
        let arrived = std::mem::take(&mut self.arrived);
        self.add(f64::from(arrived));
        if over > 1 {
            self.add(0.0);
            let fade = (1.0 - GAIN).powi(i32::try_from(over - 2).unwrap_or(i32::MAX));
            (self.mean, self.variance) = (fade * self.mean, fade * self.variance);
        }
    }

    fn add(&mut self, arrived: f64) {
        let Some(before) = self.before.replace(arrived) else {
            self.mean = arrived;
            return;
        };
        // Two that differ by chance differ by twice the variance.
        let squared = (arrived - before).powi(2) / 2.0;
        self.mean += GAIN * (arrived - self.mean);
        self.variance += GAIN * (squared - self.variance);
    }

    /// Variance ÷ mean of the arrivals; 1 if it is not clearly more.
    pub(super) fn dispersion(&self) -> f64 {
        let dispersion = self.variance / self.mean;
        if dispersion > LEAST { dispersion } else { 1.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    /// After times in which a hundred callers each send `size` requests at once, one time in twenty.
    fn after(size: usize) -> f64 {
        let (mut bursts, mut rng) = (Bursts::default(), Rng::new(1));
        for _ in 0..2_000 {
            let senders = (0..100).filter(|_| rng.unit() < 0.05).count();
            (0..senders * size).for_each(|_| bursts.arrive());
            bursts.pass(u64::from(PERIODS));
        }
        bursts.dispersion()
    }

    #[test]
    fn ten_at_once_are_ten_times_as_uneven() {
        assert_eq!(after(1), 1.0);
        assert!((7.0..13.0).contains(&after(10)), "{}", after(10));
    }

    #[test]
    fn more_than_before_is_no_burst() {
        let mut bursts = Bursts::default();
        for arrived in std::iter::repeat_n(10, 300).chain(std::iter::repeat_n(20, 300)) {
            (0..arrived).for_each(|_| bursts.arrive());
            bursts.pass(u64::from(PERIODS));
            assert_eq!(bursts.dispersion(), 1.0);
        }
    }

    #[test]
    fn what_is_read_in_batches_is_even_and_times_without_arrivals_count() {
        assert_eq!(Bursts::default().dispersion(), 1.0, "nothing is known");
        let (mut batches, mut one, mut other) =
            (Bursts::default(), Bursts::default(), Bursts::default());
        for round in 0..1_000u64 {
            (0..10 * (round % 2)).for_each(|_| batches.arrive());
            batches.pass(1);
            (0..8).for_each(|_| one.arrive());
            one.pass(4 * u64::from(PERIODS));
            (0..8).for_each(|_| other.arrive());
            (0..4).for_each(|_| other.pass(u64::from(PERIODS)));
        }
        assert_eq!(batches.dispersion(), 1.0);
        assert!((one.dispersion() - other.dispersion()).abs() < 1e-9);
        assert!(one.dispersion() > 4.0, "eight in one of four: {}", one.dispersion());
    }
}
