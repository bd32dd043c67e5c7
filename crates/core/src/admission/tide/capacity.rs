//! What the service can do, as cost per time: what it did while there was pressure.
//!
//! Without pressure what it did is a lower bound. While ranks are shed all the same, more is tried: a
//! little, or as much as the short queue says that there is room for.

use crate::time::Span;

/// Cost per nanosecond that the service was seen to finish under pressure; zero while unknown.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Capacity(f64);

/// What a round has shown.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen {
    /// How long it was.
    pub(super) elapsed: Span,
    /// Cost that finished.
    pub(super) served: u64,
    /// Mean cost of a request.
    pub(super) mean_cost: f64,
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
/// Most that a service is taken to have had time to spare for, in what it did.
const SPARE_MOST: f64 = 8.0;

impl Capacity {
    /// Cost per nanosecond; zero while unknown.
    pub(super) const fn rate(self) -> f64 {
        self.0
    }

    /// Learns from a round. Returns the cost that the service had time to spare for.
    pub(super) fn measure(&mut self, seen: &Seen) -> f64 {
        let nanos = seen.elapsed.as_nanos().max(1) as f64;
        let served = seen.served as f64 / nanos;
        if seen.pressed && self.0 > 0.0 {
            self.0 += GAIN * (served - self.0);
            return 0.0;
        }
        // One server that takes s per request and is idle for 1 − ρ of the time lets a request wait
        // for s · ρ ÷ (1 − ρ) on average, so it could do s ÷ wait more than it did.
        let each = seen.mean_cost / self.0.max(served).max(1e-9);
        let idle = each / seen.mean_delay.max(1.0);
        let spare = idle.min(SPARE_MOST) * served;
        // Where hardly more than one request waits it is no chance that the queue is short. Else what was
        // tried must have been heard of before more is tried, or it is far too much when it shows.
        let idle = idle.min(1.0);
        let tries = seen.probe.filter(|_| idle == 1.0 || served <= self.0);
        if let Some(probe) = tries {
            let weight = (GAIN * seen.heard).max(idle.powi(4));
            let more = weight * (served * (1.0 + idle) - self.0);
            self.0 += more.max(probe * seen.heard * self.0);
        }
        self.0 = self.0.max(served);
        // There was never more than all of its time.
        spare.min(self.0) * nanos
    }

    pub(super) fn invariants(self) {
        assert!(self.0 >= 0.0 && self.0.is_finite(), "a capacity is a number");
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
            mean_cost: 10.0,
            mean_delay,
            pressed,
            probe: Some(0.01),
            heard: 1.0,
        }
    }

    #[test]
    fn what_is_done_under_pressure_is_what_can_be_done() {
        let mut capacity = Capacity(1.0);
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
        let mut capacity = Capacity(4.0);
        // Requests take 2.5 ns and wait for a hundred times as long: chance may have it so.
        capacity.measure(&seen(3_900, 250.0, false));
        assert!((4.03..4.05).contains(&capacity.rate()), "{capacity:?}");
        let mut calm = Capacity(4.0);
        calm.measure(&Seen { probe: None, ..seen(3_900, 250.0, false) });
        assert_eq!(calm.rate(), 4.0);
    }

    /// Nothing waits, and a tenth of what could be served was: the service has become faster, or the
    /// cursor is far too strict.
    #[test]
    fn an_empty_queue_is_believed_at_once() {
        let mut capacity = Capacity(4.0);
        let spare = capacity.measure(&seen(3_900, 0.0, false));
        assert!(capacity.rate() > 7.0, "{capacity:?}");
        assert_eq!(spare, 1e3 * capacity.rate(), "all of its time, at most");
        let mut calmer = Capacity(4.0);
        let spare = calmer.measure(&seen(3_900, 5.0, false));
        assert!(
            (1_900.0..2_000.0).contains(&spare),
            "a request takes half as long as it waits: {spare}"
        );
    }
}
