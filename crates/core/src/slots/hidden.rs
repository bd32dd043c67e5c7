//! The queue behind the gate, seen through latency.
//!
//! Requests that hold a slot longer than they would in an idle service queue somewhere the gate
//! cannot see. Their *excess* is the smoothed latency less an unloaded baseline. A baseline that is
//! learned again under load drifts upwards until the queue counts as normal, so it is frozen while
//! the gate sheds or is busy, and learns from three things only:
//!
//! 1. finishes of an unloaded gate: nothing waits, nothing was refused, most slots are free;
//! 2. a request that leaves nothing running behind it, also while shedding: a queue cannot have
//!    been long. Without this a service that became slower would be held at its floor for ever;
//! 3. a whole window at a number of slots so small that throughput suffers: where servers idle for
//!    want of slots, nothing queues.

use super::Finish;
use crate::signal::Ewma;
use crate::time::Span;

/// Weight of a finish in the latency: smooth to 9 % with exponential service times.
const LATENCY_GAIN: f64 = 1.0 / 64.0;
/// Least weight of an unloaded finish in the baseline; the first ones count equally.
const BASELINE_GAIN: f64 = 1.0 / 256.0;
/// Unloaded finishes without which there is no baseline yet: it is then known to 18 %.
const BASELINE_LEAST: f64 = 32.0;
/// Weight of a window in which slots were too few.
const STARVED_GAIN: f64 = 0.25;
/// A window faster than the baseline by more than its noise proves the baseline too high.
const FASTER: f64 = 0.8;

/// Latency behind the gate now and unloaded, in nanoseconds.
#[derive(Clone, Debug)]
pub(super) struct Hidden {
    latency: Ewma,
    baseline: f64,
    /// Finishes that the baseline rests on.
    evidence: f64,
}

impl Hidden {
    pub(super) fn new() -> Self {
        Self { latency: Ewma::new(LATENCY_GAIN), baseline: 0.0, evidence: 0.0 }
    }

    /// A request was served while there were `slots`.
    pub(super) fn on_serve(&mut self, finish: &Finish, slots: u32) {
        let latency = finish.service.as_nanos_f64();
        self.latency.add(latency);
        let alone = finish.running == 0;
        let calm = !finish.shedding && finish.running.saturating_mul(2) < slots;
        if finish.waiting == 0 && (alone || calm) {
            self.evidence += 1.0;
            self.baseline += (latency - self.baseline) * (1.0 / self.evidence).max(BASELINE_GAIN);
        }
        if alone && self.known() {
            // Nothing is behind the gate, so nothing queues there.
            self.latency = Ewma::new(LATENCY_GAIN);
            self.latency.add(self.baseline);
        }
    }

    /// A whole saturated window had this mean latency; `starved` if throughput suffered for want
    /// of slots.
    pub(super) fn on_window(&mut self, latency: f64, starved: bool) {
        if !self.known() || latency < FASTER * self.baseline {
            (self.baseline, self.evidence) = (latency, 1.0 / BASELINE_GAIN);
        } else if starved {
            self.baseline += STARVED_GAIN * (latency - self.baseline);
        }
    }

    /// Unloaded latency as a share of `latency`, at most one.
    pub(super) fn unloaded_share(&self, latency: f64) -> f64 {
        if self.known() && latency > self.baseline { self.baseline / latency } else { 1.0 }
    }

    /// How much longer than unloaded requests take now.
    pub(super) fn excess(&self) -> Span {
        match self.latency.get() {
            Some(latency) if self.known() => Span::from_nanos((latency - self.baseline) as u64),
            _ => Span::ZERO,
        }
    }

    fn known(&self) -> bool {
        self.evidence >= BASELINE_LEAST
    }

    /// Panics if the state contradicts itself.
    pub(super) fn invariants(&self) {
        assert!(self.baseline.is_finite() && self.baseline >= 0.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verdict::Outcome;

    fn serve(hidden: &mut Hidden, count: u32, millis: u64, running: u32, shedding: bool) {
        let service = Span::from_millis(millis);
        let waiting = usize::from(running >= 8);
        for _ in 0..count {
            let finish = Finish {
                service,
                outcome: Outcome::Serve,
                running,
                beside: running,
                waiting,
                shedding,
            };
            hidden.on_serve(&finish, 8);
        }
    }

    #[test]
    fn the_baseline_is_that_of_calm_times_and_frozen_under_load() {
        let mut hidden = Hidden::new();
        serve(&mut hidden, 100, 2, 3, false);
        assert_eq!(hidden.excess(), Span::ZERO);
        serve(&mut hidden, 10_000, 6, 8, false);
        serve(&mut hidden, 10_000, 6, 3, true);
        assert!(hidden.excess() >= Span::from_micros(3_999), "{}", hidden.excess());
        serve(&mut hidden, 10_000, 6, 3, false);
        assert!(hidden.excess() <= Span::from_micros(1), "calm again, so this is what it takes");
    }

    #[test]
    fn nothing_queues_behind_a_gate_with_nothing_running() {
        let mut hidden = Hidden::new();
        serve(&mut hidden, 100, 2, 3, false);
        serve(&mut hidden, 1_000, 9, 8, true);
        assert!(hidden.excess() > Span::from_millis(6));
        serve(&mut hidden, 1, 9, 0, true);
        assert_eq!(hidden.excess(), Span::ZERO);
    }

    #[test]
    fn a_window_short_of_slots_shows_the_unloaded_latency() {
        let mut hidden = Hidden::new();
        hidden.on_window(8e6, false);
        hidden.on_window(2e6, false);
        assert_eq!(hidden.unloaded_share(4e6), 0.5);
        // The service has become slower: full windows say nothing, starved ones do.
        hidden.on_window(3e6, false);
        assert_eq!(hidden.unloaded_share(4e6), 0.5);
        for _ in 0..40 {
            hidden.on_window(3e6, true);
        }
        assert!((hidden.unloaded_share(4e6) - 0.75).abs() < 1e-3);
    }
}
