//! What the service can do, as cost per time: what it did while there was pressure.
//!
//! What it did is all of its work: requests with their messages, refusals, messages that nobody asked for. Under pressure that is
//! the same in every round but for a few parts in a thousand, so a service that has lost half of its cores shows it in one round: that is
//! no chance, and is believed at once. What refusals and messages nobody asked for take is not there for requests, and is
//! taken off, as a mean over many rounds: a burst of refusals is over before callers hear of it.
//!
//! Without pressure what it did is a lower bound. While ranks are shed all the same, more is tried. A service that did nearly all
//! it could while hardly anything waited can do more, and that is believed at once. If it did much less, little came:
//! callers were told to send too little, or it is chance. Then more is tried as they hear of it.

use crate::time::Span;

/// What the service was seen to do under pressure.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Capacity {
    /// Cost per nanosecond of all that it did; zero while unknown.
    rate: f64,
    /// By how much a round is off, as a variance in squares of the rate.
    variance: f64,
    /// What of it is lost to refusals and messages nobody asked for.
    lost: f64,
}

/// What a round has shown.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen {
    /// How long it was.
    pub(super) elapsed: Span,
    /// Cost of all that was done.
    pub(super) work: f64,
    /// What of it went into refusals, and into messages that nobody asked for.
    pub(super) lost: f64,
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

/// Weight of a new round.
const GAIN: f64 = 0.2;
/// The least share of it in what is lost, where callers hear rarely. By simulation: with all of it 10,000 callers of 1 µs are
/// refused two fifths more often, as those who were not refused are told to send less.
const HEARD_LEAST: f64 = 0.2;
/// The share of the capacity by which more is lost where a storm begins, by which less is where it ends, and the weight of a round in
/// which it does. By simulation: without the first, 10,000 callers of 1 µs that begin with ten times the capacity are served 15 ms
/// later; without the second, they have 91 to 93 % of it 25 SLOs after demand has grown to 1.4, instead of 97 to 98.
const STORM: f64 = 0.3;
const OVER: f64 = 0.05;
const STORM_GAIN: f64 = 0.5;
/// Square of the standard deviations by which a round did less that is no chance, and the least variance that is believed. By
/// simulation: with 0.02, a round that was under pressure but for its end seems to have lost a tenth of the cores, and one seed of
/// eight with 10,000 callers of 1 µs has 97.8 % of the capacity instead of 98.9.
const SHIFT: f64 = 16.0;
const SURE: f64 = 0.027 * 0.027;
/// Most of it that is lost at once: a service that stalls does nothing for a while, and is well again.
const LOST_MOST: f64 = 0.5;
/// Share of the capacity from which on a service with an empty queue must be able to do more: one that was that busy by chance
/// would have had a queue.
const NEARLY: f64 = 0.95;
/// Share of it up to which nothing more is tried: little came, that is all.
const LITTLE: f64 = 0.75;

impl Capacity {
    /// Cost of requests per nanosecond; zero while unknown.
    pub(super) const fn rate(self) -> f64 {
        (self.rate - self.lost).max(0.0)
    }

    /// Learns from a round.
    pub(super) fn measure(&mut self, seen: &Seen) {
        let nanos = seen.elapsed.as_nanos().max(1) as f64;
        let did = seen.work / nanos;
        let off = seen.lost / nanos - self.lost;
        let storm = off > STORM * self.rate.max(did) || off < -OVER * self.rate;
        self.lost += off * if storm { STORM_GAIN } else { GAIN * seen.heard.max(HEARD_LEAST) };
        if seen.pressed && self.rate > 0.0 {
            self.under_pressure(did, seen);
            return;
        }
        // One server that takes s per request and is idle for 1 − ρ of the time lets a request wait
        // for s · ρ ÷ (1 − ρ) on average, so it could do s ÷ wait more than it did.
        let each = seen.mean_cost / self.rate.max(did).max(1e-9);
        let idle = each / seen.mean_delay.max(1.0);
        if let Some(probe) = seen.probe.filter(|_| did <= self.rate || idle >= 1.0) {
            let idle = idle.min(1.0);
            let share = did / self.rate.max(did).max(1e-9);
            // What was tried must have been heard of before more is tried, or it is far too much when it shows.
            let known = if share >= NEARLY { 1.0 } else { seen.heard };
            let more = (did * (1.0 + idle) - self.rate) * idle.powi(4) * known;
            let tries = ((share - LITTLE) / (1.0 - LITTLE)).max(0.0);
            self.rate += more.max(probe * seen.heard * tries * self.rate);
        }
        // While ranks are shed, a round that did more may have had luck.
        let gain = if seen.probe.is_some() { GAIN } else { 1.0 };
        self.rate += gain * (did - self.rate).max(0.0);
    }

    /// Learns from a round that did all it could. One that did more than chance explains is no such sign: by
    /// simulation, 10,000 callers are then told of more than they may send.
    fn under_pressure(&mut self, did: f64, seen: &Seen) {
        let nanos = seen.elapsed.as_nanos().max(1) as f64;
        let less = 1.0 - did / self.rate;
        // So many requests are served in a round, and their mean is off by that.
        let requests = (self.rate * nanos / seen.mean_cost).max(1.0);
        let chance = self.variance.max(SURE).max(seen.variability / requests);
        self.variance += GAIN * ((less * less).min(SHIFT * chance) - self.variance);
        if less > 0.0 && less * less > SHIFT * chance {
            self.rate *= 1.0 - less.min(LOST_MOST);
        } else {
            self.rate += GAIN * (did - self.rate);
        }
    }

    pub(super) fn invariants(self) {
        assert!(self.rate >= 0.0 && self.rate.is_finite(), "a capacity is a number");
        assert!(self.lost >= 0.0 && self.lost.is_finite(), "so is what is lost");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A round of a microsecond in which requests of cost 10 were served.
    fn seen(work: f64, mean_delay: f64, pressed: bool) -> Seen {
        Seen {
            elapsed: Span::from_micros(1),
            work,
            lost: 0.0,
            mean_cost: 10.0,
            variability: 1.0,
            mean_delay,
            pressed,
            probe: Some(0.01),
            heard: 1.0,
        }
    }

    fn known(rate: f64) -> Capacity {
        Capacity { rate, variance: 0.0, lost: 0.0 }
    }

    #[test]
    fn half_of_the_cores_are_missed_at_once() {
        let after = |work| {
            let mut capacity = known(4.0);
            // Rounds are off by 5 %.
            for round in 0..50 {
                capacity.measure(&seen(if round % 2 == 0 { 3_800.0 } else { 4_200.0 }, 1e3, true));
            }
            capacity.measure(&seen(work, 1e3, true));
            capacity.rate()
        };
        assert!((1.99..2.05).contains(&after(2_000.0)), "half is gone");
        assert!((1.99..2.05).contains(&after(0.0)), "it may only have stalled");
        assert!((3.8..4.0).contains(&after(3_500.0)), "that may be chance");
    }

    #[test]
    fn what_refusals_take_is_taken_off_slowly_unless_it_is_a_storm() {
        let mut capacity = known(4.0);
        let storm = |lost, heard| Seen { lost, heard, ..seen(4_000.0, 1e3, true) };
        capacity.measure(&storm(1_000.0, 0.0));
        assert!((capacity.rate() - 3.96).abs() < 1e-9, "callers hear rarely: {capacity:?}");
        for _ in 0..200 {
            capacity.measure(&storm(1_000.0, 1.0));
        }
        assert!((capacity.rate() - 3.0).abs() < 1e-6, "{capacity:?}");
        let mut over = capacity;
        over.measure(&storm(700.0, 0.0));
        assert!((over.rate() - 3.15).abs() < 1e-6, "its end is believed sooner: {over:?}");
        capacity.measure(&storm(4_000.0, 0.0));
        assert!((capacity.rate() - 1.5).abs() < 1e-6, "half of it at once: {capacity:?}");
        capacity.invariants();
    }

    #[test]
    fn what_is_done_under_pressure_is_what_can_be_done() {
        let mut capacity = known(1.0);
        for _ in 0..100 {
            capacity.measure(&seen(4_000.0, 1e3, true));
        }
        assert!((capacity.rate() - 4.0).abs() < 1e-6);
        for _ in 0..100 {
            capacity.measure(&seen(2_000.0, 1e3, true));
        }
        assert!((capacity.rate() - 2.0).abs() < 1e-6, "a service may become slower");
    }

    #[test]
    fn more_is_tried_while_ranks_are_shed_without_pressure() {
        // Requests take 2.5 ns and wait for a hundred times as long: chance may have it so.
        let after = |work, probe| {
            let mut capacity = known(4.0);
            capacity.measure(&Seen { probe, ..seen(work, 250.0, false) });
            capacity.rate()
        };
        assert!((after(4_000.0, Some(0.01)) - 4.04).abs() < 1e-9);
        assert!((4.01..4.03).contains(&after(3_500.0, Some(0.01))), "less where less was done");
        assert_eq!(after(3_000.0, Some(0.01)), 4.0, "little came");
        assert_eq!(after(4_000.0, None), 4.0, "nobody is shed");
    }

    /// Nothing waits, and nearly all that could be served was: the service has become faster.
    #[test]
    fn an_empty_queue_of_a_busy_service_is_believed_at_once() {
        let mut capacity = known(4.0);
        capacity.measure(&Seen { heard: 0.1, ..seen(3_900.0, 0.0, false) });
        assert!(capacity.rate() > 7.0, "{capacity:?}");
    }

    /// Nothing waits, but little came: that may be chance, or callers were told to send too little.
    #[test]
    fn an_empty_queue_of_which_little_was_asked_is_believed_as_callers_hear_of_it() {
        let after = |heard| {
            let mut capacity = known(4.0);
            capacity.measure(&Seen { heard, ..seen(3_000.0, 0.0, false) });
            capacity.rate()
        };
        assert!((after(1.0) - 6.0).abs() < 1e-9);
        assert!((after(0.1) - 4.2).abs() < 1e-9);
    }

    #[test]
    fn a_round_that_did_more_than_was_thought_is_luck_while_ranks_are_shed() {
        for (probe, rate) in [(Some(0.01), 4.2), (None, 5.0)] {
            let mut capacity = known(4.0);
            capacity.measure(&Seen { probe, ..seen(5_000.0, 200.0, false) });
            assert!((capacity.rate() - rate).abs() < 1e-9, "{capacity:?}");
        }
    }
}
