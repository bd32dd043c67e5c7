//! Workflows at a gate: rates that bubble up, the limiter at the door, progress.
//!
//! Everything here does nothing unless the configuration has a block `workflow`, except that progress is
//! kept for whoever reports it.

use super::{CalleeId, Entry, Gate, State};
use crate::context::{Context, Progress, Workflow};
use crate::event::Misuse;
use crate::feedback::Feedback;
use crate::request::{Request, RequestId};
use crate::time::{Instant, Span};
use crate::verdict::Rejection;
use crate::workflow::{RateControl, ResourceId, Room, WorkflowConfig};

impl Gate {
    // === inputs ===

    /// A request that is served here wants to call `callee`, whether or not the call will leave.
    pub fn on_call(&mut self, now: Instant, callee: CalleeId, workflow: Workflow) {
        self.advance(now);
        if let Some(control) = &mut self.control {
            control.on_call(callee, workflow);
        }
    }

    /// A step of a request has taken so much service time: on a core, or holding what it needs.
    pub fn on_step(&mut self, now: Instant, id: RequestId, time: Span) {
        let now = self.advance(now);
        match self.entries.get_mut(id) {
            Some(entry) => entry.done.add_step(time),
            None => self.ignore(now, Misuse::UnknownId),
        }
    }

    /// A call that a request made, one of `parallel` at the same time, was answered with this progress.
    pub fn on_child(&mut self, now: Instant, id: RequestId, child: &Progress, parallel: u32) {
        let now = self.advance(now);
        match self.entries.get_mut(id) {
            Some(entry) => entry.done.add_child(child, parallel),
            None => self.ignore(now, Misuse::UnknownId),
        }
    }

    /// A request is about to be answered in full: if it entered the system here, what it took in all is
    /// learned for those to come.
    pub fn learn_total(&mut self, id: RequestId) {
        if let (Some(control), Some(entry)) = (&mut self.control, self.entries.get(id))
            && entry.is_first_hop
        {
            control.totals.learn(entry.request.context.workflow, &entry.done);
        }
    }

    /// Another resource beside the slots that can be held `capacity` times at once, none without a block
    /// `workflow`.
    pub fn add_resource(&mut self, capacity: f64) -> Option<ResourceId> {
        self.control.as_mut().map(|control| control.add_resource(capacity))
    }

    /// Requests of `workflow` have kept a resource busy for so long since the last report.
    pub fn on_use(&mut self, now: Instant, resource: ResourceId, workflow: Workflow, time: Span) {
        self.advance(now);
        if let Some(control) = &mut self.control {
            control.on_use(resource, workflow, time);
        }
    }

    // === questions ===

    /// How far a request has come: what it came with and what was done here and below.
    pub fn progress(&self, id: RequestId) -> Option<Progress> {
        self.entries.get(id).map(|entry| entry.origin.plus(&entry.done))
    }

    /// What was done for a request here and below: its part of a response.
    pub fn done(&self, id: RequestId) -> Option<Progress> {
        self.entries.get(id).map(|entry| entry.done)
    }

    /// The context of a call made for a request, with its progress.
    pub fn inherit(&self, id: RequestId) -> Option<Context> {
        let entry = self.entries.get(id)?;
        let progress = entry.origin.plus(&entry.done);
        Some(Context { progress, ..entry.request.context.inherit() })
    }

    /// Rates by workflow, if the configuration has a block `workflow`.
    pub fn workflows(&self) -> Option<&RateControl> {
        self.control.as_deref()
    }

    // === inside ===

    /// Ends the control period if it is over.
    pub(super) fn settle_rates(&mut self, now: Instant) {
        let Some(control) = &mut self.control else { return };
        if now < control.period_ends() {
            return;
        }
        let delay = self.backlog.delay(now, crate::signal::DelaySignal::Drain);
        if control.settle(now, self.limit, delay) {
            self.schedule.set_weights(&control.weights());
        }
    }

    /// Asks the limiter. None if the request may go on at once.
    pub(super) fn hold_back(
        &mut self,
        now: Instant,
        request: &Request,
        is_first_hop: bool,
    ) -> Option<Result<RequestId, Rejection>> {
        let control = self.control.as_mut()?;
        match control.limiter.ask(now, &request.context) {
            Room::Pass => None,
            Room::Refuse(rejection) => Some(Err(rejection)),
            Room::Wait => {
                let id = self.entries.insert_with(|id| {
                    let request = Request { id, ..*request };
                    Entry::new(&request, State::Limited, false, is_first_hop, now)
                });
                control.limiter.push(request.context.workflow, id);
                Some(Ok(id))
            }
        }
    }

    /// Lets in whose turn at the limiter has come.
    #[inline(never)] // Few gates have one.
    pub(super) fn release_limited(&mut self, now: Instant) {
        while let Some(id) = self.control.as_mut().and_then(|control| control.limiter.pop(now)) {
            self.let_in_limited(now, id);
        }
    }

    fn let_in_limited(&mut self, now: Instant, id: RequestId) {
        let Some(entry) = self.entries.get_mut(id) else { return };
        entry.request.enqueued = now;
        let request = entry.request;
        match self.ask_policy(now, &request) {
            Ok(degraded) => {
                if let Some(entry) = self.entries.get_mut(id) {
                    entry.state = State::Waiting;
                    (entry.degraded, entry.admitted) = (degraded, now);
                }
                self.wait(now, &request);
            }
            Err(rejection) => {
                if let Some(entry) = self.entries.get_mut(id) {
                    entry.state = State::Refused;
                }
                self.refund(now, &request);
                self.turn_out(now, id, &request.context, rejection);
            }
        }
    }

    /// Another configuration, or none: then whoever is at the limiter may pass.
    pub(super) fn reconfigure_workflows(&mut self, now: Instant, config: Option<&WorkflowConfig>) {
        match (&mut self.control, config) {
            (Some(control), Some(config)) => control.reconfigure(config),
            (None, Some(config)) => {
                let mut control = RateControl::new(config, now);
                for (_, entry) in self.entries.iter().filter(|(_, e)| e.state == State::Running) {
                    control.take_slot(now, entry.request.context.workflow);
                }
                self.control = Some(Box::new(control));
            }
            (control, None) => {
                *control = None;
                let limited = self.entries.iter().filter(|(_, e)| e.state == State::Limited);
                let mut ids: Vec<RequestId> = limited.map(|(id, _)| id).collect();
                ids.sort_unstable();
                for id in ids {
                    self.let_in_limited(now, id);
                }
            }
        }
    }

    /// A downstream process has answered with what it grants.
    pub(super) fn hear_grant(
        &mut self,
        now: Instant,
        callee: CalleeId,
        workflow: Workflow,
        feedback: &Feedback,
    ) {
        // A message that answers several requests has the rate of one workflow.
        if feedback.workflow.is_some_and(|own| own != workflow) {
            return;
        }
        let heard = self
            .control
            .as_mut()
            .is_none_or(|control| control.on_answer(now, callee, workflow, feedback));
        if !heard {
            self.ignore(now, Misuse::BadValue);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admission::AdmissionConfig;
    use crate::context::CallerId;
    use crate::feedback::GateId;
    use crate::gate::{Action, GateConfig};
    use crate::meter::Cost;
    use crate::schedule::ScheduleConfig;
    use crate::slots::SlotsConfig;
    use crate::verdict::{Outcome, Reason};

    const W: Workflow = Workflow(1);

    fn at(millis: u64) -> Instant {
        Instant::ZERO + Span::from_millis(millis)
    }

    fn config(workflow: WorkflowConfig) -> GateConfig {
        GateConfig {
            admission: AdmissionConfig::Open,
            slots: SlotsConfig::fixed(1),
            workflow: Some(workflow),
            ..GateConfig::default()
        }
    }

    fn gate(workflow: WorkflowConfig) -> Gate {
        Gate::new(&config(workflow), Instant::ZERO, 3).unwrap()
    }

    fn from(caller: u64) -> Context {
        Context { workflow: W, caller: CallerId(caller), ..Context::default() }
    }

    /// Serves everything that may start, each request in no time but with the slot busy until `until`.
    fn serve(gate: &mut Gate, now: Instant, until: Instant) -> u32 {
        gate.dispatch(now);
        let mut served = 0;
        while let Some(action) = gate.poll() {
            if let Action::Start { id, .. } = action {
                gate.finish(until, id, Outcome::Serve, Cost(1));
                served += 1;
            }
        }
        served
    }

    /// A slot that is busy all the time, with twice as much offered: the workflow gets a rate, callers
    /// are told their parts, the limiter keeps to it, and what waits there passes in its turn.
    #[test]
    fn overload_becomes_a_rate_for_callers() {
        let mut gate =
            gate(WorkflowConfig { hold: Span::from_millis(100), ..WorkflowConfig::default() });
        let mut refused = 0;
        // 10 ms of service, an arrival every 5 ms.
        for n in 0..2_000 {
            let now = at(5 * n);
            match gate.arrive(now, &from(1 + n % 2)) {
                Ok(_) => {}
                Err(rejection) => {
                    assert_eq!(rejection.reason, Reason::Rate);
                    refused += 1;
                }
            }
            gate.dispatch(now);
            if n % 2 == 0 {
                while let Some(action) = gate.poll() {
                    if let Action::Start { id, .. } = action {
                        gate.finish(now + Span::from_millis(10), id, Outcome::Serve, Cost(1));
                        gate.dispatch(now + Span::from_millis(10));
                        break;
                    }
                }
            }
            gate.invariants();
        }
        let now = at(10_000);
        let rate = gate.workflows().unwrap().rate(W).expect("limited");
        assert!((70.0..100.0).contains(&rate), "{rate}");
        let grants = [1, 2].map(|caller| gate.feedback(now, CallerId(caller), W).rate.unwrap());
        // A line of up to 100 ms stands at the limiter: callers are told up to a tenth less.
        let told = (grants[0] + grants[1]) / rate;
        assert!((0.88..=1.0).contains(&told), "{grants:?} {rate}");
        assert!((grants[0] - grants[1]).abs() < 0.2 * rate);
        assert_eq!(gate.feedback(now, CallerId(1), Workflow(2)).rate, None);
        assert!(refused > 500, "{refused}");
    }

    #[test]
    fn a_downstream_grant_holds_requests_back_at_the_door() {
        let mut gate = gate(WorkflowConfig { burst: 1, ..WorkflowConfig::default() });
        let grant =
            |sequence| Feedback { rate: Some(20.0), ..Feedback::silent(GateId(9), sequence) };
        let mut ids = Vec::new();
        // Each request calls twice; the callee grants 20 calls a second.
        for n in 0..50 {
            let now = at(20 * n);
            ids.extend(gate.arrive(now, &from(1)).ok());
            for call in 0..2 * u64::from(serve(&mut gate, now, now)) {
                gate.on_call(now, CalleeId(4), W);
                gate.on_downstream(now, CalleeId(4), W, &grant(100 * n + call));
            }
        }
        let rate = gate.workflows().unwrap().rate(W).expect("limited by the callee");
        assert!((rate - 10.0).abs() < 1.0, "{rate}");
        // More came than may pass: they wait for their turn, and one of them gives up.
        let id = ids.into_iter().rev().find(|id| gate.request(*id).is_some());
        let (id, waiting) = (id.expect("someone waits"), gate.waiting());
        assert!(gate.next_wakeup().expect("a turn comes") >= at(980));
        gate.cancel(at(981), id);
        assert_eq!(gate.waiting(), waiting - 1);
        gate.invariants();
        // A grant that ages frees the way.
        let _ = gate.arrive(at(3_000), &from(1));
        gate.dispatch(at(3_100));
        assert_eq!(gate.workflows().unwrap().rate(W), None);
    }

    #[test]
    fn taking_the_block_away_frees_whoever_waits() {
        let mut gate = gate(WorkflowConfig { burst: 1, ..WorkflowConfig::default() });
        gate.control.as_mut().unwrap().limiter.set_rate(at(0), W, 1.0);
        for _ in 0..2 {
            gate.arrive(at(0), &from(1)).unwrap();
        }
        gate.dispatch(at(0));
        assert_eq!((gate.waiting(), gate.running()), (1, 1));
        let plain = GateConfig { workflow: None, ..config(WorkflowConfig::default()) };
        gate.reconfigure(at(1), &plain).unwrap();
        assert_eq!(gate.waiting(), 1);
        gate.invariants();
        gate.reconfigure(at(2), &config(WorkflowConfig::default())).unwrap();
        gate.dispatch(at(2));
        gate.invariants();
    }

    #[test]
    fn progress_is_summed_sent_along_and_learned() {
        let mut gate = gate(WorkflowConfig::default());
        let start = |gate: &mut Gate, now| {
            let id = gate.arrive(now, &from(1)).unwrap();
            gate.dispatch(now);
            assert!(matches!(gate.poll(), Some(Action::Start { .. })));
            id
        };
        let id = start(&mut gate, at(0));
        gate.on_step(at(4), id, Span::from_millis(4));
        gate.pause(at(4), id);
        assert_eq!(gate.inherit(id).unwrap().progress.elapsed, Span::from_millis(4));
        let child =
            Progress { elapsed: Span::from_millis(30), work: 30_000, ..Progress::default() };
        gate.on_child(at(50), id, &child, 2);
        gate.on_child(at(60), id, &child, 2);
        assert_eq!(gate.done(id).unwrap().elapsed, Span::from_millis(34));
        gate.learn_total(id);
        gate.finish(at(60), id, Outcome::Serve, Cost(4));
        let next = start(&mut gate, at(100));
        let progress = gate.progress(next).unwrap();
        assert_eq!((progress.total, progress.total_work), (Span::from_millis(34), 64_000));
        assert_eq!(gate.request(next).unwrap().context.progress.remaining(), Span::from_millis(34));
    }

    #[test]
    fn soft_deadlines_are_served_late() {
        for soft_deadlines in [false, true] {
            let mut gate = gate(WorkflowConfig { soft_deadlines, ..WorkflowConfig::default() });
            let late = Context { deadline: at(5), ..from(1) };
            gate.arrive(at(0), &late).unwrap();
            gate.dispatch(at(10));
            let started = matches!(gate.poll(), Some(Action::Start { .. }));
            assert_eq!(started, soft_deadlines);
        }
    }

    /// Turns follow the allocator's shares: twice the weight, twice the turns.
    #[test]
    fn weights_of_turns_come_from_the_allocator() {
        let text = "allocator = { allocator = 'weighted' }\n\
            shares = [{ workflow = 'one', weight = 3.0 }, { workflow = 'two', weight = 1.0 }]";
        let workflow = crate::config::read(text, WorkflowConfig::validate).unwrap();
        let schedule = ScheduleConfig::Drr(crate::schedule::DrrConfig::default());
        let config = GateConfig { schedule, ..config(workflow) };
        let mut gate = Gate::new(&config, Instant::ZERO, 1).unwrap();
        gate.name_workflows(|name| Workflow(if name == "one" { 1 } else { 2 }));
        let mut counts = [0; 3];
        let mut next = 0;
        for n in 0..1_000 {
            let now = at(n);
            for workflow in [1, 2] {
                let context = Context { workflow: Workflow(workflow), ..Context::default() };
                let _ = gate.arrive(now, &context);
            }
            if n >= next {
                gate.dispatch(now);
                while let Some(action) = gate.poll() {
                    if let Action::Start { id, .. } = action {
                        let workflow = gate.request(id).unwrap().context.workflow;
                        counts[usize::from(workflow.0)] += u32::from(n > 300);
                        gate.finish(
                            now + Span::from_millis(4),
                            id,
                            Outcome::Serve,
                            Cost(4_000_000),
                        );
                        next = n + 4;
                    }
                }
            }
        }
        let weights = gate.workflows().unwrap().weights();
        assert_eq!((weights[1], weights[2]), (7_500, 2_500));
        assert!(counts[1] > 2 * counts[2] && counts[2] > 20, "{counts:?}");
    }

    #[test]
    fn bad_grants_are_ignored_with_an_event() {
        let mut gate = gate(WorkflowConfig::default());
        gate.events().keep(true);
        for rate in [f64::NAN, -4.0] {
            let feedback = Feedback { rate: Some(rate), ..Feedback::silent(GateId(1), 1) };
            gate.on_downstream(at(0), CalleeId(1), W, &feedback);
        }
        assert_eq!(gate.events().drain().count(), 2);
    }
}
