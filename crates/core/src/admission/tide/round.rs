//! A round: what is seen until the cursors are set again.
//!
//! It lasts until enough was offered to be more than noise. But where ranks are shed and the queue stays
//! empty, the service can do more than it could, and waits for the callers: that is not kept back
//! until the round is over. Nor is a storm, which every message makes worse ([`Offered::surges`]).

use super::config::Derived;
#[cfg(doc)]
use super::offered::Offered;
use crate::time::{Instant, Span};

/// What has been seen since the cursors were last set.
#[derive(Clone, Copy, Debug)]
pub(super) struct Round {
    pub(super) began: Instant,
    /// Requests that arrived.
    pub(super) arrived: u32,
    /// Those that were refused, at once or later.
    pub(super) refused: u32,
    /// Messages to callers, and those of them that nobody asked for.
    pub(super) told: u32,
    pub(super) unasked: u32,
    /// Cost that finished.
    pub(super) served: u64,
    /// Time for which slots were held by what finished, in nanoseconds.
    pub(super) held: u64,
    /// Sum of the delay over control periods, in nanoseconds, and how many there were.
    delays: u64,
    periods: u64,
    /// Whether fewer ran for a while than the service can take.
    pub(super) held_back: bool,
    /// Since when nothing waits, looked at once per control period.
    lull: Option<Instant>,
}

/// Requests offered before the cursors are set again, so that a round is more than noise…
pub(super) const REQUESTS: f32 = 128.0;
/// …unless it has lasted for this many of the shortest rounds.
const PATIENCE: f64 = 16.0;
/// Control periods without a request that waits, after which a round ends early if ranks are shed: a
/// queue that is offered what can be served is not empty for two and a half target delays. With
/// fourteen it is, by chance: three hops had 6 % of their work in vain instead of 3.
const LULL: f64 = 20.0;

impl Round {
    pub(super) const fn starting(now: Instant) -> Self {
        Self {
            began: now,
            arrived: 0,
            refused: 0,
            told: 0,
            unasked: 0,
            served: 0,
            held: 0,
            delays: 0,
            periods: 0,
            held_back: false,
            lull: None,
        }
    }

    /// At the end of a control period: whether nothing waits.
    pub(super) fn look(&mut self, now: Instant, empty: bool) {
        self.lull = empty.then(|| self.lull.unwrap_or(now));
    }

    /// The delay was this at the end of so many control periods.
    pub(super) fn add(&mut self, delay: Span, periods: u64) {
        self.delays = self.delays.saturating_add(delay.as_nanos().saturating_mul(periods));
        self.periods += periods;
    }

    /// When it ends: whether `enough` was offered, and whether ranks are shed by `cuts`.
    pub(super) fn ends(&self, derived: &Derived, enough: bool, cuts: bool) -> Instant {
        let lasts = if enough { derived.round } else { derived.round.scale(PATIENCE) };
        let ends = self.began + lasts;
        let lull = self.lull.filter(|_| cuts).map(|since| since + derived.period.scale(LULL));
        lull.map_or(ends, |lull| lull.min(ends))
    }

    /// Mean delay in nanoseconds, of the lull alone if that has ended it.
    pub(super) fn mean_delay(&self, elapsed: Span, derived: &Derived) -> f64 {
        let lull = elapsed < derived.round && self.lull.is_some();
        if lull { 0.0 } else { self.delays as f64 / self.periods.max(1) as f64 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admission::TideConfig;

    #[test]
    fn it_ends_early_when_nothing_has_waited_for_long_and_ranks_are_shed() {
        let derived = TideConfig::default().derive(Span::from_micros(200));
        assert_eq!(derived.period, Span::from_micros(10));
        let at = |micros| Instant::ZERO + Span::from_micros(micros);
        let mut round = Round::starting(at(0));
        let ends = |round: &Round, cuts| round.ends(&derived, true, cuts);
        for (micros, empty) in [(10, true), (20, false), (30, true), (40, true)] {
            round.look(at(micros), empty);
            round.add(Span::from_micros(80), 1);
        }
        assert_eq!((ends(&round, false), ends(&round, true)), (at(500), at(230)));
        let judged = |micros| round.mean_delay(Span::from_micros(micros), &derived);
        assert_eq!((judged(230), judged(500)), (0.0, 80_000.0));
        assert_eq!(round.ends(&derived, false, false), at(8_000), "too little was offered");
        round.look(at(50), false);
        assert_eq!(ends(&round, true), at(500));
    }
}
