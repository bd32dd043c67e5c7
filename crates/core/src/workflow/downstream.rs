//! What downstream processes let in, in terms of our own requests (Wisp §4.1.1, lines 2–5).
//!
//! For each workflow and each service it calls:
//!
//! 1. *Amplification* is calls made per request served here, measured; per process it is that times the
//!    process's part of the answers. Calls are counted when they are wanted, not when they are sent: a
//!    throttle that holds them back must not make requests look cheaper.
//! 2. A process's grant ÷ its amplification is how many of our requests it allows. A process that grants
//!    without a limit allows any number, and so does one whose grant has aged out: a dead downstream must
//!    not freeze its upstreams.
//! 3. The q-quantile over the processes of the service is what the service allows. Services without
//!    calls of late are no constraint.
//! 4. The minimum over services is what all of them allow. (Not one quantile over all processes: one
//!    full service must count however many others there are.)

use std::collections::BTreeMap;

use super::smooth::Smooth;
use crate::context::Workflow;
use crate::feedback::{Feedback, GateId};
use crate::gate::CalleeId;
use crate::time::{Instant, Span};

/// Pairs of workflow and service remembered.
const PATHS: usize = 4096;
/// Processes remembered per pair; beyond that the one that answered longest ago is forgotten.
const PROCESSES: usize = 256;

/// Grants by workflow, service and process.
#[derive(Clone, Debug, Default)]
pub(super) struct Downstream {
    /// Ordered by workflow first, so that one workflow's services are neighbours.
    paths: BTreeMap<(Workflow, CalleeId), Path>,
}

#[derive(Clone, Debug, Default)]
struct Path {
    /// Calls wanted.
    calls: Smooth,
    processes: Vec<Process>,
}

#[derive(Clone, Debug)]
struct Process {
    gate: GateId,
    sequence: u64,
    /// Granted to us, infinity for no limit.
    rate: f64,
    /// The grant holds until then.
    until: Instant,
    answers: Smooth,
    answered: Instant,
}

impl Downstream {
    /// A request of `workflow` wants to call `callee`.
    pub(super) fn on_call(&mut self, callee: CalleeId, workflow: Workflow) {
        if let Some(path) = self.path(callee, workflow) {
            path.calls.add(1.0);
        }
    }

    /// A process of `callee` has answered, with what it grants. Whether that was a rate at all.
    pub(super) fn on_answer(
        &mut self,
        now: Instant,
        callee: CalleeId,
        workflow: Workflow,
        feedback: &Feedback,
        max_age: Span,
    ) -> bool {
        let rate = feedback.rate.unwrap_or(f64::INFINITY);
        if rate.is_nan() || rate < 0.0 {
            return false;
        }
        let Some(path) = self.path(callee, workflow) else { return true };
        let process = path.process(feedback.gate, now);
        process.answers.add(1.0);
        process.answered = now;
        // Responses overtake each other; the highest sequence wins.
        if feedback.sequence >= process.sequence {
            process.sequence = feedback.sequence;
            process.rate = rate;
            process.until = now + feedback.holds.min(max_age);
        }
        true
    }

    /// A period of `seconds` ends, and weighs `gain` in the parts of processes. What was not called for long is
    /// forgotten.
    pub(super) fn close(&mut self, seconds: f64, gain: f64) {
        for path in self.paths.values_mut() {
            path.calls.close(seconds);
            for process in &mut path.processes {
                process.answers.close_by(seconds, gain);
            }
            path.processes.retain(|process| process.answers.rate() > 0.0);
        }
        self.paths.retain(|_, path| path.calls.rate() > 0.0 || !path.processes.is_empty());
    }

    /// Requests of `workflow` per second that all services behind us allow, of which `served` per second
    /// are served here now; infinity if nothing limits them. `q` is asked for the quantile of each.
    pub(super) fn allows(
        &self,
        now: Instant,
        workflow: Workflow,
        served: f64,
        q: impl Fn(CalleeId) -> f64,
    ) -> f64 {
        let callees = (workflow, CalleeId(0))..=(workflow, CalleeId(u32::MAX));
        self.paths
            .range(callees)
            .map(|((_, callee), path)| path.allows(now, served, q(*callee)))
            .fold(f64::INFINITY, f64::min)
    }

    /// Whether requests of `workflow` make calls.
    pub(super) fn is_called_by(&self, workflow: Workflow) -> bool {
        let callees = (workflow, CalleeId(0))..=(workflow, CalleeId(u32::MAX));
        self.paths.range(callees).any(|(_, path)| path.calls.rate() > 0.0)
    }

    fn path(&mut self, callee: CalleeId, workflow: Workflow) -> Option<&mut Path> {
        let key = (workflow, callee);
        if self.paths.len() >= PATHS && !self.paths.contains_key(&key) {
            return None;
        }
        Some(self.paths.entry(key).or_default())
    }
}

impl Path {
    fn process(&mut self, gate: GateId, now: Instant) -> &mut Process {
        if let Some(place) = self.processes.iter().position(|process| process.gate == gate) {
            return &mut self.processes[place];
        }
        if self.processes.len() >= PROCESSES {
            let oldest = (0..PROCESSES).min_by_key(|place| self.processes[*place].answered);
            self.processes.swap_remove(oldest.unwrap_or(0));
        }
        self.processes.push(Process {
            gate,
            sequence: 0,
            rate: f64::INFINITY,
            until: now,
            answers: Smooth::default(),
            answered: now,
        });
        self.processes.last_mut().expect("one was just added")
    }

    fn allows(&self, now: Instant, served: f64, q: f64) -> f64 {
        let answers: f64 = self.processes.iter().map(|process| process.answers.rate()).sum();
        if served <= 0.0 || answers <= 0.0 || self.calls.rate() <= 0.0 {
            return f64::INFINITY;
        }
        let amplification = self.calls.rate() / served;
        let of_process = |process: &Process| {
            let part = process.answers.rate() / answers;
            let rate = if process.until > now { process.rate } else { f64::INFINITY };
            (part > 0.0).then(|| rate / (amplification * part))
        };
        quantile(self.processes.iter().filter_map(of_process).collect(), q)
    }
}

/// The smallest value that a share `q` of all values do not exceed; the least for 0, the greatest for 1.
fn quantile(mut values: Vec<f64>, q: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let rank = (q * values.len() as f64).ceil().max(1.0) as usize;
    values.get(rank.min(values.len()).wrapping_sub(1)).copied().unwrap_or(f64::INFINITY)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const W: Workflow = Workflow(1);
    const AGE: Span = Span::from_secs(1);

    fn grant(gate: u64, rate: Option<f64>) -> Feedback {
        Feedback { rate, ..Feedback::silent(GateId(gate), 1) }
    }

    /// Ten periods of 100 ms in which each request calls `callee` as often as `answers` says of each
    /// process, at ten requests a period.
    fn play(downstream: &mut Downstream, callee: u32, answers: &[(u64, u32, Option<f64>)]) {
        for _ in 0..10 {
            for (gate, calls, rate) in answers {
                for _ in 0..calls * 10 {
                    downstream.on_call(CalleeId(callee), W);
                    let heard = grant(*gate, *rate);
                    assert!(downstream.on_answer(Instant::ZERO, CalleeId(callee), W, &heard, AGE));
                }
            }
        }
    }

    fn allowed(downstream: &mut Downstream, q: f64) -> f64 {
        downstream.close(1.0, 0.05);
        downstream.allows(Instant::ZERO, W, 100.0, |_| q)
    }

    /// Wisp §4.1.2, Figure 3: amplification 4 at e1 and e2, grants of none and of 300.
    #[test]
    fn grants_are_divided_by_amplification_and_the_quantile_is_taken() {
        for (q, expected) in [(0.0, 75.0), (1.0, f64::INFINITY)] {
            let mut downstream = Downstream::default();
            play(&mut downstream, 1, &[(1, 4, None), (2, 4, Some(300.0))]);
            assert_eq!(allowed(&mut downstream, q), expected, "{q}");
        }
    }

    /// A quantile per service, then the minimum: the full service counts although the other has more
    /// processes.
    #[test]
    fn one_full_service_counts() {
        let mut downstream = Downstream::default();
        let free: Vec<(u64, u32, Option<f64>)> = (10..19).map(|gate| (gate, 1, None)).collect();
        play(&mut downstream, 1, &free);
        play(&mut downstream, 2, &[(1, 2, Some(50.0))]);
        assert_eq!(allowed(&mut downstream, 0.5), 25.0);
    }

    #[test]
    fn grants_age_out_and_services_not_called_are_no_constraint() {
        let mut downstream = Downstream::default();
        play(&mut downstream, 1, &[(1, 1, Some(10.0))]);
        assert_eq!(allowed(&mut downstream, 0.5), 10.0);
        let later = Instant::ZERO + AGE;
        assert_eq!(downstream.allows(later, W, 100.0, |_| 0.5), f64::INFINITY);
        assert_eq!(downstream.allows(Instant::ZERO, Workflow(2), 1.0, |_| 0.5), f64::INFINITY);
        assert!(downstream.is_called_by(W));
        for _ in 0..400 {
            downstream.close(1.0, 0.05);
        }
        assert!(!downstream.is_called_by(W) && downstream.paths.is_empty());
    }

    #[test]
    fn bad_rates_are_told_and_overtaken_ones_ignored() {
        let mut downstream = Downstream::default();
        play(&mut downstream, 1, &[(1, 1, Some(40.0))]);
        for rate in [f64::NAN, -1.0] {
            let heard = grant(1, Some(rate));
            assert!(!downstream.on_answer(Instant::ZERO, CalleeId(1), W, &heard, AGE));
        }
        let old = Feedback { sequence: 0, ..grant(1, Some(1.0)) };
        downstream.on_answer(Instant::ZERO, CalleeId(1), W, &old, AGE);
        assert_eq!(allowed(&mut downstream, 0.5), 40.0);
    }

    proptest! {
        #[test]
        fn a_quantile_is_no_less_than_its_share(
            values in prop::collection::vec(0.0..100.0f64, 1..30), q in 0.0..=1.0f64,
        ) {
            let found = quantile(values.clone(), q);
            let below = values.iter().filter(|value| **value <= found).count() as f64;
            let less = values.iter().filter(|value| **value < found).count() as f64;
            let n = values.len() as f64;
            prop_assert!(below >= q * n && (less < q * n || less == 0.0), "{} {} {}", below, less, q * n);
        }
    }
}
