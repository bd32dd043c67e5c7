//! Outlier ejection: an endpoint that fails far more often than its like is left out for a while.
//!
//! A replica may be broken without failing every time: a bad disk, a cache that cannot be reached, a
//! version that half works. Circuit breaking does not see it, for answers come between the failures. The
//! others show what is usual:
//!
//! 1. Count answers and failures per endpoint over an interval. **Refusals never count.**
//! 2. At its end, an endpoint with enough answers is an outlier if it failed in at least `share` of
//!    them and `factor` times as often as the median endpoint: what fails everywhere is not the
//!    endpoint's fault.
//! 3. The worst are left out for `pause` times the number of times in a row; at most `most` of all
//!    endpoints at once, so that a fault of our own does not take the service away.
//!
//! Envoy compares with mean and standard deviation, which finds no outlier among fewer than six.

use serde::{Deserialize, Serialize};

use crate::config::Problems;
use crate::throttle::Answer;
use crate::time::{Instant, Span};
use crate::verdict::Outcome;

/// What is counted of one endpoint.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tally {
    served: u32,
    failed: u32,
    /// Left out until then.
    until: Instant,
    /// Intervals in a row in which it was an outlier.
    times: u32,
}

impl Tally {
    /// Whether the endpoint is left out.
    pub(super) fn is_out(&self, now: Instant) -> bool {
        self.until > now
    }

    pub(super) fn on_answer(&mut self, answer: &Answer) {
        match answer {
            Answer::Done(Outcome::Serve) => self.served = self.served.saturating_add(1),
            Answer::Done(Outcome::Fail) => self.failed = self.failed.saturating_add(1),
            Answer::Refused(_) | Answer::Done(Outcome::Cancel) => {}
        }
    }

    /// The share that failed, if there were enough answers.
    fn share(&self, least: u32) -> Option<f64> {
        let all = self.served.saturating_add(self.failed);
        (all >= least.max(1)).then(|| f64::from(self.failed) / f64::from(all))
    }
}

/// Ends an interval: leaves out the outliers among `tallies` and counts anew. Returns how many.
pub(super) fn conclude(now: Instant, tallies: &mut [&mut Tally], config: &EjectionConfig) -> usize {
    let mut shares: Vec<(f64, usize)> = Vec::new();
    for (at, tally) in tallies.iter().enumerate() {
        shares.extend(tally.share(config.least).map(|share| (share, at)));
    }
    shares.sort_by(|one, other| other.0.total_cmp(&one.0).then(one.1.cmp(&other.1)));
    // Of an even number the lower one: of two endpoints, the better is what is usual.
    let median = shares.get(shares.len() / 2).map_or(0.0, |(share, _)| *share);
    let usual = (median * config.factor).max(config.share);
    let out = tallies.iter().filter(|tally| tally.is_out(now)).count();
    let room = ((tallies.len() as f64 * config.most) as usize).saturating_sub(out);
    let outliers: Vec<usize> = shares
        .iter()
        .filter(|(share, at)| *share >= usual && shares.len() > 1 && !tallies[*at].is_out(now))
        .map(|(_, at)| *at)
        .take(room)
        .collect();
    for (at, tally) in tallies.iter_mut().enumerate() {
        if outliers.contains(&at) {
            tally.times = tally.times.saturating_add(1);
            let pause = config.pause.as_nanos().saturating_mul(tally.times.into());
            tally.until = now + Span::from_nanos(pause);
        } else if !tally.is_out(now) {
            tally.times = tally.times.saturating_sub(1);
        }
        (tally.served, tally.failed) = (0, 0);
    }
    outliers.len()
}

/// Parameters of outlier ejection.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EjectionConfig {
    /// The interval over which failures are counted. Default 10 s, as in Envoy.
    pub every: Span,
    /// Answers in an interval without which nothing is said of an endpoint. Default 20: a share of 0.2
    /// is then four failures.
    pub least: u32,
    /// Share of failures below which an endpoint is never an outlier, 0 to 1. Default 0.2, by
    /// judgement.
    pub share: f64,
    /// How many times the median endpoint's share an outlier has. Default 3, by judgement.
    pub factor: f64,
    /// How long an outlier is left out the first time; longer each time in a row. Default 30 s, as in
    /// Envoy.
    pub pause: Span,
    /// Most endpoints that may be left out at once, as a share of all. Default 0.5: the others have to
    /// carry the load.
    pub most: f64,
}

impl Default for EjectionConfig {
    fn default() -> Self {
        Self {
            every: Span::from_secs(10),
            least: 20,
            share: 0.2,
            factor: 3.0,
            pause: Span::from_secs(30),
            most: 0.5,
        }
    }
}

impl EjectionConfig {
    /// Notes everything that is wrong with the parameters.
    pub fn validate(&self, problems: &mut Problems) {
        problems.check("every", self.every, self.every > Span::ZERO, "more than 0s");
        problems.range("share", self.share, 0.01, 1.0);
        problems.range("factor", self.factor, 1.0, 1e6);
        problems.check("pause", self.pause, self.pause > Span::ZERO, "more than 0s");
        problems.range("most", self.most, 0.0, 1.0);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NOW: Instant = Instant::from_nanos(1_000_000_000);

    /// Concludes an interval in which endpoints had so many answers and failures. Who is out?
    fn out(counts: &[(u32, u32)]) -> Vec<usize> {
        let mut tallies: Vec<Tally> = counts
            .iter()
            .map(|(served, failed)| Tally { served: *served, failed: *failed, ..Tally::default() })
            .collect();
        conclude(NOW, &mut tallies.iter_mut().collect::<Vec<_>>(), &EjectionConfig::default());
        (0..tallies.len()).filter(|at| tallies[*at].is_out(NOW)).collect()
    }

    #[test]
    fn who_fails_far_more_often_than_others_is_left_out() {
        assert_eq!(out(&[(100, 0), (70, 30)]), [1]);
        assert_eq!(out(&[(100, 1), (100, 2), (60, 40), (100, 0)]), [2]);
        assert_eq!(out(&[(100, 0), (85, 15)]), [], "below the share");
        assert_eq!(out(&[(100, 0), (3, 9)]), [], "too few answers");
        assert_eq!(out(&[(0, 100)]), [], "nothing to compare with");
        assert_eq!(out(&[(50, 50), (40, 60), (45, 55)]), [], "it fails everywhere");
        assert_eq!(out(&[(100, 0), (0, 90), (0, 100), (100, 0), (100, 0)]), [1, 2]);
    }

    #[test]
    fn it_comes_back_and_stays_out_longer_the_next_time() {
        let config = EjectionConfig::default();
        let (mut good, mut bad) = (Tally::default(), Tally::default());
        let mut interval = |seconds: u64, failed: u32| {
            let now = Instant::ZERO + Span::from_secs(seconds);
            good.served = 100;
            (bad.served, bad.failed) = (100 - failed, failed);
            conclude(now, &mut [&mut good, &mut bad], &config);
            bad.until
        };
        let at = |seconds| Instant::ZERO + Span::from_secs(seconds);
        assert_eq!(interval(10, 90), at(40));
        assert_eq!(interval(20, 90), at(40), "it is out already");
        assert_eq!(interval(40, 90), at(100), "twice in a row");
        assert_eq!(interval(100, 0), at(100));
        assert_eq!(interval(110, 0), at(100));
        assert_eq!(interval(120, 90), at(150), "forgiven meanwhile");
    }

    proptest! {
        /// Whatever is counted, at least half of the endpoints stay.
        #[test]
        fn the_service_is_never_taken_away(counts in prop::collection::vec((0..200u32, 0..200u32), 0..12)) {
            prop_assert!(out(&counts).len() * 2 <= counts.len());
        }
    }
}
