//! What the caller rejected itself, until it can be reported.
//!
//! A gate adds up reports to know what is offered, so each shed is reported once. But a caller that
//! sheds nearly everything is heard of rarely, and after a storm its report would tell of the storm:
//! a thousand callers doing so look like an overload that is long over. So when sheds have become
//! much rarer since the last report, what is reported is what the present pace would have brought.

use crate::context::Sheds;
use crate::rank::Rank;
use crate::rng::Rng;
use crate::signal::Ewma;
use crate::time::Instant;

/// Sheds since the last report.
#[derive(Clone, Debug)]
pub(super) struct ShedLog {
    sheds: Sheds,
    /// How many of them others made; whoever hands them on has just made them, so no storm is old.
    handed_on: u32,
    /// When the last report left, and when the last shed happened.
    reported: Instant,
    last: Instant,
    /// Recent time between sheds, in nanoseconds.
    gap: Ewma,
}

/// Sheds must have become this much rarer for the storm to count as over. In steady weather a mean
/// over four gaps is off by half now and then, by four hardly ever.
const CALMER: f64 = 4.0;
/// So few are no storm: where one request in ten is shed, one since the last report is ten times the pace.
const FEW: u32 = 4;

impl ShedLog {
    pub(super) fn new(now: Instant) -> Self {
        Self { sheds: Sheds::NONE, handed_on: 0, reported: now, last: now, gap: Ewma::new(0.25) }
    }

    pub(super) fn add(&mut self, now: Instant, rank: Rank, rng: &mut Rng) {
        self.gap.add(now.since(self.last).as_nanos_f64());
        self.last = now;
        self.sheds.merge(Sheds { count: 1, sample: rank }, rng);
    }

    /// Sheds that others made in the callee's name.
    pub(super) fn merge(&mut self, sheds: Sheds, rng: &mut Rng) {
        self.handed_on = self.handed_on.saturating_add(sheds.count);
        self.sheds.merge(sheds, rng);
    }

    /// What to report now.
    pub(super) fn take(&mut self, now: Instant) -> Sheds {
        let mut sheds = std::mem::take(&mut self.sheds);
        let handed_on = std::mem::take(&mut self.handed_on);
        let own = sheds.count.saturating_sub(handed_on);
        let since = now.since(self.reported).as_nanos_f64();
        let gap = self.gap.get().unwrap_or(0.0).max(now.since(self.last).as_nanos_f64());
        if own > FEW && f64::from(own) * gap > CALMER * since {
            sheds.count = handed_on.saturating_add((since / gap) as u32);
        }
        self.reported = now;
        sheds
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Span;

    fn micros(n: u64) -> Instant {
        Instant::ZERO + Span::from_micros(n)
    }

    #[test]
    fn every_shed_is_reported_once() {
        let (mut log, mut rng) = (ShedLog::new(micros(0)), Rng::new(1));
        for n in 1..=100 {
            log.add(micros(10 * n), Rank::LAST, &mut rng);
        }
        assert_eq!(log.take(micros(1_005)).count, 100);
        assert_eq!(log.take(micros(1_006)).count, 0);
    }

    /// One shed in ten requests is ten times the pace of the time since the request before. It was once taken for an old
    /// storm and forgotten, and gates saw a third of what was shed at 1.1 times their capacity.
    #[test]
    fn a_shed_now_and_then_is_reported_too() {
        let (mut log, mut rng) = (ShedLog::new(micros(0)), Rng::new(1));
        let reported = (1..=1_000).map(|n| {
            if n % 10 == 0 {
                log.add(micros(10 * n - 5), Rank::LAST, &mut rng);
            }
            log.take(micros(10 * n)).count
        });
        assert_eq!(reported.sum::<u32>(), 100);
    }

    /// A gate refuses in the name of the service it calls; its caller sheds nothing itself. Those
    /// sheds were once taken for an old storm and forgotten, and the service below, which then knew
    /// nothing of the demand it was spared, opened its cursor far too wide.
    #[test]
    fn what_others_shed_is_handed_on_whole() {
        let (mut log, mut rng) = (ShedLog::new(micros(0)), Rng::new(1));
        log.merge(Sheds { count: 40, sample: Rank::LAST }, &mut rng);
        assert_eq!(log.take(micros(1_000_000)).count, 40);
        log.add(micros(1_000_010), Rank::LAST, &mut rng);
        log.merge(Sheds { count: 7, sample: Rank::LAST }, &mut rng);
        assert_eq!(log.take(micros(2_000_000)).count, 8);
    }

    #[test]
    fn a_storm_that_is_over_is_not_reported_as_one() {
        let (mut log, mut rng) = (ShedLog::new(micros(0)), Rng::new(1));
        for n in 1..=100 {
            log.add(micros(10 * n), Rank::LAST, &mut rng);
        }
        for n in 1..=10 {
            log.add(micros(1_000 + 1_000 * n), Rank::LAST, &mut rng);
        }
        let reported = log.take(micros(11_500)).count;
        assert!((8..=14).contains(&reported), "{reported}");
    }
}
