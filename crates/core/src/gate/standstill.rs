//! When nothing ends: requests that hang must not hold the gate shut.
//!
//! A slot is given back when a request ends, and the next starts then. If all that run hang (a call that waits
//! for one of those that wait here, a long poll, a report that takes a minute), nothing ends and nothing starts. So, when
//! all slots are taken, something waits, and nothing has started or ended for long:
//!
//! 1. After one latency objective whoever has waited for longer than is allowed is refused, with nothing that ends to
//!    cause it.
//! 2. After half of one, while there are those who are not too late yet, one more may run if the number of slots adapts, for
//!    as long as the oldest of those that run now does. With each that was given the next takes twice as long: a pause of
//!    five objectives gives three, a minute at 50 ms eleven. So a service that stands still is not filled by it, and when it goes on, the
//!    additional slots are gone with those that stood.

use super::{Gate, State};
use crate::request::RequestId;
use crate::signal::allowed;
use crate::time::{Instant, Span};
use crate::verdict::{Advice, Reason, Rejection};

/// After so many doublings a year has passed.
const MOST: usize = 24;
/// Where the policy has no objective.
const WITHOUT_OBJECTIVE: Span = Span::from_secs(1);
/// After this part of the objective one more may run.
const EARLY: f64 = 0.5;
/// How often to look, in objectives, while nothing ends.
const AGAIN: f64 = 0.25;

/// What hangs, and since when.
#[derive(Clone, Debug, Default)]
pub(super) struct Standstill {
    /// When something last started or ended.
    since: Instant,
    /// When to look again; in the past unless something stands.
    look: Instant,
    /// Requests that run and are not counted.
    hanging: Vec<RequestId>,
}

impl Standstill {
    /// A request has started.
    pub(super) fn on_start(&mut self, now: Instant) {
        self.since = now;
    }

    /// A request has given its slot back.
    pub(super) fn on_free(&mut self, now: Instant, id: RequestId) {
        self.since = now;
        if !self.hanging.is_empty() {
            self.hanging.retain(|hanging| *hanging != id);
        }
    }

    /// Slots in addition to those that the service can use.
    pub(super) fn slots(&self) -> u32 {
        self.hanging.len() as u32
    }
}

impl Gate {
    fn is_full(&self) -> bool {
        self.backlog.waiting() > 0 && self.running >= self.slots()
    }

    fn patience(&self) -> Span {
        self.admission.objective().unwrap_or(WITHOUT_OBJECTIVE)
    }

    /// When to look whether everything stands still.
    pub(super) fn standstill_at(&self) -> Option<Instant> {
        let at = self.standstill.since + self.patience().scale(EARLY);
        self.is_full().then(|| at.max(self.standstill.look).max(self.cx.now))
    }

    /// Looks whether everything stands still; afterwards more may start.
    pub(super) fn look_at_standstill(&mut self, now: Instant) {
        let objective = self.patience();
        let (early, stood) = (objective.scale(EARLY), now.since(self.standstill.since));
        if stood < early || now < self.standstill.look || !self.is_full() {
            return;
        }
        self.standstill.look = now + objective.scale(AGAIN);
        if stood >= objective && self.admission.objective().is_some() {
            self.refuse_the_late(now, objective);
        }
        let given = self.standstill.hanging.len();
        let doubled = early.as_nanos().saturating_mul(1 << given.min(MOST));
        if self.adapts && given < MOST && stood.as_nanos() >= doubled {
            self.let_one_more();
        }
    }

    /// Step 2.
    fn let_one_more(&mut self) {
        let hangs = |id: &RequestId| self.standstill.hanging.contains(id);
        let holds = |state| matches!(state, State::Running | State::Abandoned);
        let running = self.entries.iter().filter(|(id, entry)| holds(entry.state) && !hangs(id));
        if let Some((id, _)) = running.min_by_key(|(_, entry)| entry.started) {
            self.standstill.hanging.push(id);
        }
    }

    /// Step 1.
    fn refuse_the_late(&mut self, now: Instant, objective: Span) {
        let is_late = |entry: &super::Entry| {
            let request = &entry.request;
            entry.state == State::Waiting
                && now.since(request.arrived) >= allowed(request, objective)
        };
        let late: Vec<RequestId> =
            self.entries.iter().filter(|(_, entry)| is_late(entry)).map(|(id, _)| id).collect();
        for id in late {
            let Some(request) = self.take_out(now, id) else { continue };
            let (waited, allowed) = (now.since(request.enqueued), allowed(&request, objective));
            let (measured, limit) = (waited.as_nanos_f64(), allowed.as_nanos_f64());
            let rejection = Rejection::new(Reason::Delay, measured, limit, Advice::Elsewhere);
            self.turn_out(now, id, &request.context, rejection);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admission::{AdmissionConfig, TideConfig};
    use crate::context::Context;
    use crate::gate::{Action, GateConfig};
    use crate::meter::Cost;
    use crate::objective::Objective;
    use crate::slots::{AdaptiveConfig, SlotsConfig};
    use crate::verdict::Outcome;

    fn at(millis: u64) -> Instant {
        Instant::ZERO + Span::from_millis(millis)
    }

    fn gate(slots: SlotsConfig) -> Gate {
        let objective = Objective::Given(Span::from_millis(100));
        let tide = TideConfig { objective, ..TideConfig::default() };
        let admission = AdmissionConfig::Tide(tide);
        Gate::new(&GateConfig { admission, slots, ..GateConfig::default() }, at(0), 1)
            .expect("valid")
    }

    /// Does what is due until then, and nothing else: who started and who was refused.
    fn until(gate: &mut Gate, end: Instant) -> (Vec<RequestId>, Vec<(RequestId, Reason)>) {
        let (mut started, mut refused) = (Vec::new(), Vec::new());
        loop {
            while let Some(action) = gate.poll() {
                match action {
                    Action::Start { id, .. } => started.push(id),
                    Action::Refuse { id, rejection } => refused.push((id, rejection.reason)),
                    Action::Notify { .. } => {}
                }
            }
            gate.invariants();
            let Some(wake) = gate.next_wakeup().filter(|wake| *wake <= end) else { break };
            gate.dispatch(wake);
        }
        (started, refused)
    }

    fn arrive(gate: &mut Gate, now: Instant) -> RequestId {
        let id = gate.arrive(now, &Context::default()).expect("it may wait");
        gate.dispatch(now);
        id
    }

    #[test]
    fn whoever_waits_behind_what_hangs_is_refused_when_it_is_late() {
        let mut gate = gate(SlotsConfig::fixed(1));
        let hangs = arrive(&mut gate, at(0));
        let waits = arrive(&mut gate, at(10));
        assert_eq!(until(&mut gate, at(99)), (vec![hangs], vec![]));
        assert_eq!(until(&mut gate, at(135)), (vec![], vec![(waits, Reason::Delay)]));
        assert_eq!(gate.running(), 1, "a fixed number is a promise");
    }

    #[test]
    fn one_more_may_run_and_then_one_in_twice_the_time() {
        let mut gate = gate(SlotsConfig::Adaptive(AdaptiveConfig::default()));
        arrive(&mut gate, at(0));
        let mut given = Vec::new();
        for millis in (50..2_000).step_by(10) {
            if gate.arrive(at(millis), &Context::default()).is_ok() {
                gate.dispatch(at(millis));
            }
            for _ in until(&mut gate, at(millis)).0.iter().skip(usize::from(millis == 50)) {
                given.push(millis);
            }
        }
        // After 50 ms, 100 ms more, and 200, 400 and 800.
        assert_eq!(given.len(), 5, "{given:?}");
        assert_eq!(gate.slots(), 6);
    }

    #[test]
    fn a_service_that_calls_itself_through_its_gate_goes_on() {
        let mut gate = gate(SlotsConfig::Adaptive(AdaptiveConfig::default()));
        let outer = arrive(&mut gate, at(0));
        let inner = arrive(&mut gate, at(1));
        assert_eq!(until(&mut gate, at(100)).0, [outer, inner], "before it is late");
        gate.finish(at(105), inner, Outcome::Serve, Cost(1));
        gate.finish(at(106), outer, Outcome::Serve, Cost(1));
        assert_eq!((gate.running(), gate.slots()), (0, 1), "and no slot is left of it");
    }

    #[test]
    fn what_hangs_does_not_hold_up_what_comes_after() {
        let mut gate = gate(SlotsConfig::Adaptive(AdaptiveConfig::default()));
        arrive(&mut gate, at(0));
        let second = arrive(&mut gate, at(50));
        assert!(until(&mut gate, at(100)).0.contains(&second));
        for millis in 101..1_000 {
            gate.finish(at(millis), second, Outcome::Serve, Cost(1));
            let next = arrive(&mut gate, at(millis));
            assert_eq!(until(&mut gate, at(millis)).0, [next], "at once, at {millis} ms");
            gate.finish(at(millis), next, Outcome::Serve, Cost(1));
        }
    }
}
