//! What the service can do, as cost per time: what it did while there was pressure.
//!
//! Without pressure what it did is a lower bound. While ranks are shed all the same, more is tried: a
//! little, or as much as the short queue and the slots that are free say that there is room for. Where hardly fewer
//! slots were in use than under pressure, the queue is short by chance.
//!
//! A service that has lost half of its cores shows it in one round: that is no chance, and is believed at once. But a service
//! that has to receive and refuse ten times what it can serve does less without having lost anything.

use crate::time::Span;

/// What the service was seen to do under pressure.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Capacity {
    /// Cost per nanosecond that it finished; zero while unknown.
    rate: f64,
    /// By how much a round is off, as a variance in squares of the rate.
    variance: f64,
    /// Slots that were in use.
    full: f64,
}

/// What a round has shown.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen {
    /// How long it was.
    pub(super) elapsed: Span,
    /// Cost that finished.
    pub(super) served: u64,
    /// Cost that could have been served in the time that refusals and messages nobody asked for took.
    pub(super) lost: f64,
    /// Mean number of slots in use.
    pub(super) in_use: f64,
    /// Mean cost of a request, and how much costs differ, in its squares.
    pub(super) mean_cost: f64,
    pub(super) variability: f64,
    /// Mean delay, in nanoseconds.
    pub(super) mean_delay: f64,
    /// Whether that is pressure.
    pub(super) pressed: bool,
    /// The share by which more is tried, if ranks are shed.
    pub(super) probe: Option<f64>,
    /// The share of callers that heard of the round before, 0 to 1.
    pub(super) heard: f64,
}

/// Weight of a new round: rounds of a few hundred requests with exponential costs are off by some
/// 5 %, and the mean of ten of them by 2 %.
const GAIN: f64 = 0.2;
/// Square of the standard deviations by which a round did less that is no chance, and the least variance that is believed.
const SHIFT: f64 = 16.0;
const SURE: f64 = 0.02 * 0.02;
/// Most of it that is lost at once: a service that stalls does nothing for a while, and is well again.
const LOST_MOST: f64 = 0.5;
/// Most that a service is taken to have had time to spare for, in what it did.
const SPARE_MOST: f64 = 8.0;
/// Share of the slots in use under pressure beyond which it is chance that nothing waits. By simulation: without it a
/// stretch of half a round in which little comes makes 10,000 callers send half as much again, several times a
/// second; with 0.65 a service that is suddenly faster is found out later.
const IN_USE: f64 = 0.75;
/// Where fewer are, the service may have become faster: as many are taken to be there, in those in use under pressure. By
/// simulation: with 1, a service that was half as fast has 90 % of its goodput ten SLOs after it is well again,
/// with this 95; with no bound, chance makes 1,000 callers of ten times the capacity send half as much again.
const GROWN: f64 = 1.4;
/// Weight of a round in which more slots were in use than before, and of one under pressure with fewer: where it
/// stalls few finish, and slots that are held seem to be free.
const FILL: f64 = 0.1;
const FADE: f64 = 0.01;

impl Capacity {
    /// Cost per nanosecond; zero while unknown.
    pub(super) const fn rate(self) -> f64 {
        self.rate
    }

    /// Learns from a round. Returns the cost that the service had time to spare for.
    pub(super) fn measure(&mut self, seen: &Seen) -> f64 {
        let nanos = seen.elapsed.as_nanos().max(1) as f64;
        let served = seen.served as f64 / nanos;
        self.fill(seen);
        if seen.pressed && self.rate > 0.0 {
            self.under_pressure(served, seen);
            return 0.0;
        }
        // One server that takes s per request and is idle for 1 − ρ of the time lets a request wait
        // for s · ρ ÷ (1 − ρ) on average, so it could do s ÷ wait more than it did.
        let each = seen.mean_cost / self.rate.max(served).max(1e-9);
        let idle = each / seen.mean_delay.max(1.0);
        let spare = idle.min(SPARE_MOST) * served;
        // Where hardly more than one request waits it is no chance that the queue is short. Else what was
        // tried must have been heard of before more is tried, or it is far too much when it shows.
        let idle = idle.min(1.0);
        let chance = seen.in_use > IN_USE * self.full;
        let tries = seen.probe.filter(|_| idle == 1.0 || served <= self.rate);
        if let Some(probe) = tries {
            let weight = (GAIN * seen.heard).max(idle.powi(4));
            let slots = if chance { self.full } else { GROWN * self.full };
            let room = (slots / seen.in_use.max(1e-9) - 1.0).max(0.0);
            let more = weight * (served * (1.0 + idle.min(room)) - self.rate);
            self.rate += more.max(probe * seen.heard * self.rate);
        }
        // While ranks are shed, a round that did more may have had cheaper luck.
        let gain = if seen.probe.is_some() && chance { GAIN } else { 1.0 };
        self.rate += gain * (served - self.rate).max(0.0);
        // There was never more than all of its time.
        spare.min(self.rate) * nanos
    }

    /// Learns from a round that did all it could. One that did more than chance explains is no such sign: by
    /// simulation, 10,000 callers are then told of more than they may send.
    fn under_pressure(&mut self, served: f64, seen: &Seen) {
        let nanos = seen.elapsed.as_nanos().max(1) as f64;
        let less = 1.0 - (served + seen.lost / nanos) / self.rate;
        // So many requests are served in a round, and their mean is off by that.
        let requests = (self.rate * nanos / seen.mean_cost).max(1.0);
        let chance = self.variance.max(SURE).max(seen.variability / requests);
        self.variance += GAIN * ((less * less).min(SHIFT * chance) - self.variance);
        if less > 0.0 && less * less > SHIFT * chance {
            self.rate *= 1.0 - less.min(LOST_MOST);
        } else {
            self.rate += GAIN * (served - self.rate);
        }
    }

    /// Learns how many slots are in use under pressure: no fewer than without.
    fn fill(&mut self, seen: &Seen) {
        let gain = match (seen.in_use > self.full, seen.pressed) {
            _ if self.full == 0.0 => 1.0,
            (true, _) => FILL,
            (false, true) => FADE,
            (false, false) => 0.0,
        };
        self.full += gain * (seen.in_use - self.full);
    }

    pub(super) fn invariants(self) {
        assert!(self.rate >= 0.0 && self.rate.is_finite(), "a capacity is a number");
        assert!(self.full >= 0.0 && self.full.is_finite(), "so are slots");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A round of a microsecond in which requests of cost 10 were served.
    fn seen(served: u64, mean_delay: f64, pressed: bool) -> Seen {
        Seen {
            elapsed: Span::from_micros(1),
            served,
            lost: 0.0,
            in_use: 5.0,
            mean_cost: 10.0,
            variability: 1.0,
            mean_delay,
            pressed,
            probe: Some(0.01),
            heard: 1.0,
        }
    }

    /// A service with ten slots, all in use under pressure.
    fn known(rate: f64) -> Capacity {
        Capacity { rate, variance: 0.0, full: 10.0 }
    }

    #[test]
    fn half_of_the_cores_are_missed_at_once_unless_refusals_took_them() {
        let after = |served, lost| {
            let mut capacity = known(4.0);
            // Rounds are off by 5 %.
            for round in 0..50 {
                capacity.measure(&seen(if round % 2 == 0 { 3_800 } else { 4_200 }, 1e3, true));
            }
            capacity.measure(&Seen { lost, ..seen(served, 1e3, true) });
            capacity.rate()
        };
        assert!((1.99..2.05).contains(&after(2_000, 0.0)), "half is gone");
        assert!((1.99..2.05).contains(&after(0, 0.0)), "it may only have stalled");
        assert!((3.5..3.7).contains(&after(2_000, 2_000.0)), "it had to refuse");
        assert!((3.8..4.0).contains(&after(3_500, 0.0)), "that may be chance");
    }

    #[test]
    fn what_is_done_under_pressure_is_what_can_be_done() {
        let mut capacity = known(1.0);
        for _ in 0..100 {
            assert_eq!(capacity.measure(&seen(4_000, 1e3, true)), 0.0, "there is none to spare");
        }
        assert!((capacity.rate() - 4.0).abs() < 1e-6);
        for _ in 0..100 {
            capacity.measure(&seen(2_000, 1e3, true));
        }
        assert!((capacity.rate() - 2.0).abs() < 1e-6, "a service may become slower");
    }

    #[test]
    fn more_is_tried_while_ranks_are_shed_without_pressure() {
        let mut capacity = known(4.0);
        // Requests take 2.5 ns and wait for a hundred times as long: chance may have it so.
        capacity.measure(&seen(3_900, 250.0, false));
        assert!((4.03..4.05).contains(&capacity.rate()), "{capacity:?}");
        let mut calm = known(4.0);
        calm.measure(&Seen { probe: None, ..seen(3_900, 250.0, false) });
        assert_eq!(calm.rate(), 4.0);
    }

    /// Nothing waits, and a tenth of what could be served was: the service has become faster, or the
    /// cursor is far too strict.
    #[test]
    fn an_empty_queue_is_believed_at_once() {
        let mut capacity = known(4.0);
        let spare = capacity.measure(&seen(3_900, 0.0, false));
        assert!(capacity.rate() > 7.0, "{capacity:?}");
        assert_eq!(spare, 1e3 * capacity.rate(), "all of its time, at most");
        let mut calmer = known(4.0);
        let spare = calmer.measure(&seen(3_900, 5.0, false));
        assert!(
            (1_900.0..2_000.0).contains(&spare),
            "a request takes half as long as it waits: {spare}"
        );
    }

    /// Nothing waits, but nine of ten slots were in use: chance, and room for a ninth more.
    #[test]
    fn a_queue_that_is_empty_by_chance_is_believed_as_far_as_there_were_slots() {
        let mut capacity = known(4.0);
        capacity.measure(&Seen { in_use: 9.0, ..seen(3_600, 0.0, false) });
        assert!((4.0..4.05).contains(&capacity.rate()), "{capacity:?}");
        // A lucky round is worth a fifth of what it did more; with slots to spare all of it.
        for (in_use, least, most) in [(9.9, 4.18, 4.22), (5.0, 4.99, 5.01)] {
            let mut capacity = known(4.0);
            capacity.measure(&Seen { in_use, ..seen(5_000, 200.0, false) });
            assert!((least..most).contains(&capacity.rate()), "{capacity:?}");
        }
        capacity.invariants();
    }

    #[test]
    fn slots_in_use_are_learned_and_fade_slowly_under_pressure_alone() {
        let mut capacity = Capacity::default();
        let rounds = [(8.0, false, 8.0), (9.0, false, 8.1), (0.0, false, 8.1), (4.0, true, 8.059)];
        for (in_use, pressed, full) in rounds {
            capacity.measure(&Seen { in_use, ..seen(3_000, 1e3, pressed) });
            assert!((capacity.full - full).abs() < 1e-9, "{capacity:?}");
        }
    }
}
