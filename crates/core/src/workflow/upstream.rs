//! Demand by caller: a rate is handed to callers in proportion to what each wants (Wisp §4.1.1).
//!
//! Demand is averaged over as long as two grants hold, and counts the period that runs. A caller is told its part when
//! it has just sent something. One that sends every few periods would else hear each time of a demand that has
//! nearly faded, and take the little it is told for a bottleneck: on its own side the answer that tells it counts.

use std::collections::BTreeMap;

use super::smooth::Smooth;
use crate::context::{CallerId, Workflow};

/// Pairs of workflow and caller remembered; beyond that newcomers share the entry of the unknown.
/// At 64 bytes each that is a quarter of a megabyte.
const PAIRS: usize = 4096;

/// What each caller wants of each workflow.
#[derive(Clone, Debug)]
pub(super) struct Upstream {
    /// Ordered by workflow first, so that a workflow's callers are neighbours.
    pairs: BTreeMap<(Workflow, CallerId), Demand>,
    /// Sum over callers, the period that runs included.
    totals: BTreeMap<Workflow, f64>,
    period: Period,
}

/// The period that runs.
#[derive(Clone, Copy, Debug)]
struct Period {
    /// How long it is taken to be: as long as the last.
    seconds: f64,
    /// What it weighs in the mean.
    gain: f64,
}

/// What one caller wants: what it sent, and what still waits there. What it sent alone would be what it was
/// granted before.
#[derive(Clone, Copy, Debug, Default)]
struct Demand {
    rate: Smooth,
    /// Waited at the caller when it last said so.
    waiting: u32,
}

impl Demand {
    /// Per second: what it was when the last period ended, or more if it is already more.
    fn now(&self, period: Period) -> f64 {
        let mut rate = self.rate;
        rate.add(f64::from(self.waiting));
        rate.so_far(period.seconds, period.gain).max(self.rate.rate())
    }
}

impl Upstream {
    /// Nobody wants anything yet. Periods take `seconds`, and weigh `gain` in the mean.
    pub(super) fn new(seconds: f64, gain: f64) -> Self {
        let period = Period { seconds, gain };
        Self { pairs: BTreeMap::new(), totals: BTreeMap::new(), period }
    }

    /// A caller has sent a request of `workflow`, and so many wait there.
    pub(super) fn add(&mut self, workflow: Workflow, caller: CallerId, waiting: u32) {
        let mut key = (workflow, caller);
        if self.pairs.len() >= PAIRS && !self.pairs.contains_key(&key) {
            key.1 = CallerId::UNKNOWN;
        }
        let demand = self.pairs.entry(key).or_default();
        let before = demand.now(self.period);
        demand.rate.add(1.0);
        demand.waiting = waiting;
        *self.totals.entry(workflow).or_default() += demand.now(self.period) - before;
    }

    /// A period of `seconds` ends. Who has wanted nothing for long is forgotten.
    pub(super) fn close(&mut self, seconds: f64, gain: f64) {
        self.period = Period { seconds, gain };
        self.totals.clear();
        for ((workflow, _), demand) in &mut self.pairs {
            demand.rate.add(f64::from(std::mem::take(&mut demand.waiting)));
            demand.rate.close_by(seconds, gain);
            *self.totals.entry(*workflow).or_default() += demand.rate.rate();
        }
        self.pairs.retain(|_, demand| demand.rate.rate() > 0.0);
    }

    /// The part of a workflow's rate that is `caller`'s, 0 to 1; at any moment all parts sum to 1. Who has not been
    /// seen for a whole period yet gets the part of an average caller.
    pub(super) fn share(&self, workflow: Workflow, caller: CallerId) -> f64 {
        let total = self.totals.get(&workflow).copied().unwrap_or(0.0);
        let own = self.pairs.get(&(workflow, caller)).filter(|demand| demand.rate.rate() > 0.0);
        if let Some(own) = own
            && total > 0.0
        {
            return (own.now(self.period) / total).min(1.0);
        }
        let callers = (workflow, CallerId(0))..=(workflow, CallerId(u64::MAX));
        1.0 / self.pairs.range(callers).count().max(1) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const W: Workflow = Workflow(1);
    const GAIN: f64 = 0.05;

    fn upstream() -> Upstream {
        Upstream::new(0.1, GAIN)
    }

    #[test]
    fn shares_follow_demand_and_sum_to_one() {
        let mut upstream = upstream();
        for _ in 0..20 {
            // The second sends less, but three times as many wait there.
            for (caller, sent, waiting) in [(1, 20, 0), (2, 15, 45)] {
                (0..sent).for_each(|_| upstream.add(W, CallerId(caller), waiting));
            }
            upstream.close(0.1, GAIN);
        }
        assert!((upstream.share(W, CallerId(1)) - 0.25).abs() < 1e-9);
        assert!((upstream.share(W, CallerId(2)) - 0.75).abs() < 1e-9);
        upstream.add(W, CallerId(3), 0);
        assert!((upstream.share(W, CallerId(3)) - 1.0 / 3.0).abs() < 1e-9, "a newcomer");
    }

    /// Ten callers that send one request every five periods each have a tenth of the demand. One that has just
    /// sent is not told less, and all parts are never more than the whole.
    #[test]
    fn a_caller_that_sends_seldom_is_told_its_part() {
        let mut upstream = upstream();
        for period in 0..100 {
            for caller in (1..=10).filter(|caller| caller % 5 == period % 5) {
                upstream.add(W, CallerId(caller), 0);
                let part = |caller| upstream.share(W, CallerId(caller));
                let (told, all) = (part(caller), (1..=10).map(part).sum::<f64>());
                assert!(period < 50 || (0.1..0.2).contains(&told), "{caller} is told {told}");
                assert!(period < 50 || (all - 1.0).abs() < 1e-9, "{all} in all");
            }
            upstream.close(0.1, GAIN);
        }
    }

    #[test]
    fn the_table_is_bounded() {
        let mut upstream = upstream();
        for caller in 1..10_000 {
            upstream.add(W, CallerId(caller), 0);
        }
        assert!(upstream.pairs.len() <= PAIRS + 1);
        upstream.close(0.1, GAIN);
        let shares: f64 = upstream.pairs.keys().map(|(_, caller)| upstream.share(W, *caller)).sum();
        assert!((shares - 1.0).abs() < 1e-6);
    }
}
