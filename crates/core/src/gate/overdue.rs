//! Those who wait while nothing moves.
//!
//! Whoever waits too long is refused when its turn comes. While all slots are held by requests that do not end, no turn comes,
//! and everybody would wait for as long as they do. So, once nothing was started or has ended for a whole objective,
//! whoever waits for longer than it is allowed to is refused without a turn; and who comes then, when its own time is up.
//! Drivers ask for that now and then ([`Gate::refuse_overdue`]); a service that answers never comes to it.

use super::{Gate, State};
use crate::request::RequestId;
use crate::signal::allowed;
use crate::time::{Instant, Span};
use crate::verdict::{Advice, Reason, Rejection};

/// For how long nothing may move where the policy has no objective.
const WITHOUT_OBJECTIVE: Span = Span::from_secs(1);
/// When something last moved.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Standstill {
    moved: Instant,
}

impl Gate {
    /// A request was started, or has ended.
    pub(super) fn on_move(&mut self, now: Instant) {
        self.standstill.moved = now;
    }

    /// Whether all slots are held and nothing has moved for long.
    fn stands_still(&self, now: Instant) -> bool {
        let patience = self.admission.objective().unwrap_or(WITHOUT_OBJECTIVE);
        let waits = self.backlog.waiting() > 0 && self.running >= self.limit;
        waits && now.since(self.standstill.moved) >= patience
    }

    /// Refuses those whose time is up, if nothing moves: to be asked for a few times per objective, or as often as
    /// the driver looks at the gate anyway.
    pub fn refuse_overdue(&mut self, now: Instant) {
        let now = self.advance(now);
        if !self.stands_still(now) {
            return;
        }
        let objective = self.admission.objective().unwrap_or(Span::MAX);
        let overdue = |gate: &Self, id: RequestId| {
            let entry = gate.entries.get(id).filter(|entry| entry.state == State::Waiting)?;
            let request = &entry.request;
            let deadline = request.context.deadline;
            if deadline <= now && !gate.config.deadlines_are_soft() {
                let late = now.since(deadline).as_nanos_f64();
                return Some(Rejection::new(Reason::Expired, late, 0.0, Advice::Never));
            }
            let (age, limit) = (now.since(request.arrived), allowed(request, objective));
            // What was begun was let in once.
            let begun = request.attained > Span::ZERO;
            let (age, limit) = (age >= limit && !begun).then_some((age, limit))?;
            let (age, limit) = (age.as_nanos_f64(), limit.as_nanos_f64());
            Some(Rejection::new(Reason::Delay, age, limit, Advice::Elsewhere))
        };
        let all: Vec<RequestId> = self.entries.iter().map(|(id, _)| id).collect();
        for id in all {
            let Some(rejection) = overdue(self, id) else { continue };
            if let Some(request) = self.take_out(now, id) {
                self.turn_out(now, id, &request.context, rejection);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::admission::{AdmissionConfig, TideConfig};
    use crate::context::Context;
    use crate::gate::{Action, Gate, GateConfig};
    use crate::objective::Objective;
    use crate::slots::SlotsConfig;
    use crate::time::{Instant, Span};
    use crate::verdict::{Outcome, Reason};

    fn at(millis: u64) -> Instant {
        Instant::ZERO + Span::from_millis(millis)
    }

    fn gate() -> Gate {
        let objective = Objective::Given(Span::from_millis(80));
        let admission = AdmissionConfig::Tide(TideConfig { objective, ..TideConfig::default() });
        let config =
            GateConfig { admission, slots: SlotsConfig::fixed(1), ..GateConfig::default() };
        let mut gate = Gate::new(&config, at(0), 1).unwrap();
        gate.arrive(at(0), &Context::default()).unwrap();
        gate.dispatch(at(0));
        assert!(matches!(gate.poll(), Some(Action::Start { .. })));
        gate
    }

    #[test]
    fn whoever_waits_is_refused_at_its_objective_although_nothing_ends() {
        let mut gate = gate();
        let waits = gate.arrive(at(10), &Context::default()).unwrap();
        for now in [at(50), at(89)] {
            gate.refuse_overdue(now);
            assert!(gate.poll().is_none());
        }
        gate.refuse_overdue(at(90));
        gate.invariants();
        let Some(Action::Refuse { id, rejection }) = gate.poll() else { panic!("it is refused") };
        assert_eq!((id, rejection.reason), (waits, Reason::Delay));
        assert_eq!((gate.running(), gate.waiting()), (1, 0));
    }

    #[test]
    fn a_deadline_that_passes_meanwhile_is_told_and_others_wait_on() {
        let mut gate = gate();
        let hurried = Context { deadline: at(95), ..Context::default() };
        let hurried = gate.arrive(at(30), &hurried).unwrap();
        let patient = gate.arrive(at(40), &Context::default()).unwrap();
        gate.refuse_overdue(at(100));
        let Some(Action::Refuse { id, rejection }) = gate.poll() else { panic!("one is refused") };
        assert_eq!((id, rejection.reason), (hurried, Reason::Expired));
        assert!(gate.poll().is_none() && gate.request(patient).is_some());
    }

    /// Refused when their turns come, as always.
    #[test]
    fn while_something_moves_nobody_is_refused_without_a_turn() {
        let mut gate = gate();
        let mut running = gate.entries.iter().next().expect("one runs").0;
        for n in 1..40 {
            let now = at(20 * n);
            let next = gate.arrive(now, &Context::default()).unwrap();
            gate.finish(now, running, Outcome::Serve, crate::meter::Cost(1));
            gate.dispatch(now);
            assert!(matches!(gate.poll(), Some(Action::Start { id, .. }) if id == next));
            gate.refuse_overdue(now);
            assert!(gate.poll().is_none());
            running = next;
        }
    }
}
