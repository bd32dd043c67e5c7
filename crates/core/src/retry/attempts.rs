//! How many arrivals are retries: the histogram that turns "overloaded" into "overloaded; don't
//! retry".
//!
//! When only this replica is overloaded, few arrivals are retries and sending the request elsewhere
//! helps. When many are, the others are overloaded too, and a further attempt only adds load.

/// Counts of first attempts and retries among recent arrivals.
#[derive(Clone, Debug)]
pub struct AttemptHistogram {
    /// Arrivals, and those of them that are second attempts, and third and later.
    total: u32,
    retries: [u32; 2],
    share: f64,
    common: bool,
}

impl AttemptHistogram {
    /// Arrivals after which all counts are halved: recent traffic decides.
    const WINDOW: u32 = 1024;
    /// Arrivals needed before the histogram says anything.
    const FEW: u32 = 64;

    /// Retries are common when they are more than `share` of all arrivals.
    pub fn new(share: f64) -> Self {
        Self { total: 0, retries: [0; 2], share, common: false }
    }

    /// Changes the share.
    pub fn set_share(&mut self, share: f64) {
        self.share = share;
    }

    /// A request arrived.
    pub fn record(&mut self, attempt: u8) {
        self.total += 1;
        if attempt > 0 {
            self.retries[usize::from(attempt > 1)] += 1;
        }
        // Deciding every 64 arrivals keeps the division off the path of the others.
        if self.total.is_multiple_of(Self::FEW) {
            let retries: u32 = self.retries.iter().sum();
            self.common = f64::from(retries) > self.share * f64::from(self.total);
            if self.total >= Self::WINDOW {
                let [first, second, later] = self.counts().map(|count| count / 2);
                (self.total, self.retries) = (first + second + later, [second, later]);
            }
        }
    }

    /// Whether retries are so common that another one is pointless.
    pub fn retries_are_common(&self) -> bool {
        self.common
    }

    /// Recent arrivals by attempt: first, second, third and later.
    pub fn counts(&self) -> [u32; 3] {
        let [second, later] = self.retries;
        [self.total - second - later, second, later]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Worked example: per 1000 first attempts, a reject probability of 0.05 brings 50 + 2 retries,
    /// one of 0.5 brings 500 + 250. The first is no sign of a general overload, the second is.
    #[test]
    fn common_retries_are_noticed() {
        for (second, third, common) in [(50, 2, false), (500, 250, true)] {
            let mut histogram = AttemptHistogram::new(0.1);
            let mut rng = crate::rng::Rng::new(3);
            for _ in 0..20_000 {
                let draw = rng.below(1000 + second + third);
                histogram.record(if draw < second {
                    1
                } else {
                    u8::from(draw < second + third) * 2
                });
            }
            assert_eq!(histogram.retries_are_common(), common, "{:?}", histogram.counts());
        }
    }
}
