//! [`Gate`]: the server side. Every driver runs it unchanged.
//!
//! **Any number of inputs, then one [`dispatch`](Gate::dispatch), then drain
//! [`poll`](Gate::poll), then wait for an input or for [`next_wakeup`](Gate::next_wakeup).**
//!
//! An arrival is refused at once or joins the schedule; it never starts work. That happens in
//! `dispatch`, after the driver has read everything that was ready, so the queue is here and not in
//! sockets or an executor, and one clock read serves a whole batch.
//!
//! ```text
//!            ┌────────── refuse ──────────┐
//! arrive ────┤                            │
//!            ├─► Waiting ──dispatch──► Running ──finish──► (gone)
//!                   ▲  └─ cancel, expire,  │ │ abandon       ▲
//!                   │     push out  pause │ └─► Abandoned ──┘
//!                   └──────── resume ──── Paused
//! ```
//!
//! With rates by workflow, a request may first wait for its turn at the limiter (`Limited`).

mod abandoned;
mod change;
mod claims;
mod config;
mod door;
mod downstream;
mod leaving;
mod questions;
mod standstill;
mod workflows;

use std::collections::VecDeque;

use crate::admission::Admission;
use crate::config::ConfigError;
use crate::context::{CallerId, Context, Progress, Sheds, Workflow};
use crate::event::{Event, Misuse};
use crate::feedback::{Feedback, GateId};
use crate::levels::RankIndex;
use crate::limit::{Leased, Limits};
use crate::meter::{Cost, CostTable};
use crate::objective::Learner;
use crate::request::{Cx, Request, RequestId};
use crate::retry::AttemptHistogram;
use crate::rng::mix;
use crate::schedule::Scheduler;
use crate::signal::{Backlog, Ewma, allowed};
use crate::slab::Slab;
use crate::slots::{Finish, Slots};
use crate::time::{Instant, Span, float, whole};
use crate::verdict::{Advice, Outcome, Reason, Rejection, Verdict};
use crate::workflow::RateControl;

use abandoned::Abandoned;
pub use abandoned::Gone;
use claims::Claims;
pub use config::GateConfig;
pub use downstream::CalleeId;
use downstream::Downstream;
use leaving::Leaving;
pub use leaving::WhenLeft;
use standstill::Standstill;

/// What is left until the deadline, [`Span::MAX`] if there is none.
fn time_left(now: Instant, context: &Context) -> Span {
    if context.deadline == Instant::FAR { Span::MAX } else { context.deadline.since(now) }
}

/// What a driver must do.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Action {
    /// Run this request's handler, or its next step.
    Start {
        /// Which.
        id: RequestId,
        /// Whether a cheaper answer is asked for.
        degraded: bool,
    },
    /// Answer a request that waited with a refusal; its id has ended.
    Refuse {
        /// Which.
        id: RequestId,
        /// Why.
        rejection: Rejection,
    },
    /// Send this to a caller now, if the driver can; otherwise drop it.
    Notify {
        /// To whom.
        caller: CallerId,
        /// What.
        feedback: Feedback,
    },
}

/// An [`Action`] that waits to be told: small, as most are no more than the name of who starts.
#[derive(Clone, Copy, Debug)]
enum Due {
    Start { id: RequestId, degraded: bool },
    Refuse(RequestId),
    Notify(CallerId),
}

/// Limits, admission, schedule and slots as one state machine.
#[derive(Clone, Debug)]
pub struct Gate {
    id: GateId,
    sequence: u64,
    config: GateConfig,
    /// What policies are lent; its moment is the latest heard of.
    cx: Cx,
    /// Until then neither the policy nor the rates by workflow have a period to conclude.
    next_settle: Instant,
    /// Whether one was concluded since callers last were told what came of it.
    settled: bool,
    entries: Slab<Entry>,
    /// Slots that are taken, be it by abandoned work.
    running: u32,
    abandoned: Abandoned,
    leaving: Leaving,
    standstill: Standstill,
    /// The first stage, if there is any.
    limits: Option<Box<Limits>>,
    schedule: Box<dyn Scheduler>,
    admission: Box<dyn Admission>,
    slots: Box<dyn Slots>,
    /// How many slots there are now, and whether that changes.
    limit: u32,
    adapts: bool,
    backlog: Backlog,
    /// Who waits, by rank; only for policies that push out.
    ranks: Option<RankIndex>,
    /// Newcomers that are not in `ranks` yet: most start at once and never need to be.
    unranked: Vec<RequestId>,
    costs: CostTable,
    /// Mean time a slot is held.
    service: Ewma,
    attempts: AttemptHistogram,
    downstream: Downstream,
    claims: Claims,
    /// Only for policies that want their objective learned.
    objective: Option<Learner>,
    /// Rates by workflow, if configured.
    control: Option<Box<RateControl>>,
    /// What the driver is to be told, and why those are refused of whom it says so, in the same order.
    due: VecDeque<Due>,
    refusals: VecDeque<Rejection>,
    /// Delay of stages that only the driver sees.
    driver_stages: Span,
    utilization: f64,
    /// Whether anything was refused since the last finish.
    shedding: bool,
    draining: bool,
    /// Whether its driver can send callers what nobody asked for.
    notifies: bool,
}

#[derive(Clone, Debug)]
#[repr(C)] // In another order the request is copied twice.
struct Entry {
    request: Request,
    /// When it passed the limiter and the policy.
    admitted: Instant,
    /// When it last got a slot, and how many were executing then.
    started: Instant,
    beside: u32,
    state: State,
    degraded: bool,
    /// Whether it has had a slot.
    begun: bool,
    /// Whether it came without a total: then it entered the system here.
    is_first_hop: bool,
    /// The progress it came with.
    origin: Progress,
    /// What was done for it here and below.
    done: Progress,
}

impl Entry {
    fn new(
        request: &Request,
        state: State,
        degraded: bool,
        is_first_hop: bool,
        now: Instant,
    ) -> Self {
        Self {
            request: *request,
            admitted: now,
            started: now,
            beside: 0,
            state,
            degraded,
            begun: false,
            is_first_hop,
            origin: request.context.progress,
            done: Progress::default(),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Waits for its turn at the limiter.
    Limited,
    Waiting,
    Running,
    Paused,
    /// Its caller has left, and it holds its slot all the same.
    Abandoned,
    /// Its refusal waits in `due`. Only when that is drained may its place be used again, so
    /// that a driver can keep payloads by place.
    Refused,
}

impl Gate {
    /// A gate with nothing in it. `seed` decides all its random choices and its identity.
    pub fn new(config: &GateConfig, now: Instant, seed: u64) -> Result<Self, ConfigError> {
        config.check()?;
        let (admission, slots) = (config.admission.build(now), config.slots.build(now));
        let needs = admission.needs();
        Ok(Self {
            id: GateId(mix(seed ^ 0x6761_7465)),
            sequence: 0,
            config: config.clone(),
            cx: Cx::new(now, seed),
            next_settle: Instant::ZERO,
            settled: false,
            entries: Slab::default(),
            running: 0,
            abandoned: Abandoned::default(),
            leaving: Leaving::default(),
            standstill: Standstill::default(),
            limits: Limits::build(&config.limits, now),
            schedule: config.schedule.build(),
            admission,
            limit: slots.limit(),
            adapts: slots.adapts(),
            slots,
            backlog: Backlog::new(needs.ages),
            ranks: needs.ranks.then(RankIndex::default),
            unranked: Vec::new(),
            costs: CostTable::new(),
            service: Ewma::new(1.0 / 32.0),
            attempts: AttemptHistogram::new(config.retry_share),
            downstream: Downstream::default(),
            claims: Claims::new(now),
            objective: needs.objective.then(Learner::new),
            control: config.workflow.as_ref().map(|own| Box::new(RateControl::new(own, now))),
            due: VecDeque::new(),
            refusals: VecDeque::new(),
            driver_stages: Span::ZERO,
            utilization: 0.0,
            shedding: false,
            draining: false,
            notifies: true,
        })
    }

    // === inputs ===

    /// A request has arrived. It waits from here on, or is refused at once.
    pub fn arrive(&mut self, now: Instant, context: &Context) -> Result<RequestId, Rejection> {
        self.arrive_stamped(now, now, context)
    }

    /// The same for a driver that knows when the request reached the machine.
    pub fn arrive_stamped(
        &mut self,
        now: Instant,
        arrived: Instant,
        context: &Context,
    ) -> Result<RequestId, Rejection> {
        if context.rank.user() == 0 {
            return self.arrive_by_lot(now, arrived, context);
        }
        let now = self.advance(now);
        let believed = self.believe(now, context, true);
        let context = believed.as_ref().unwrap_or(context);
        self.attempts.record(context.attempt);
        if let Some(objective) = &mut self.objective {
            objective.on_arrival(time_left(now, context), self.shedding);
        }
        // What callers refuse on our word is refused, too: without it, slots would see no pressure before callers that obey.
        self.shedding |= context.sheds.count > 0;
        match self.enter(now, arrived.min(now), context) {
            Ok(id) => {
                let Context { rank, workflow, label, .. } = *context;
                self.cx.events.push(now, || Event::Admit { rank, workflow, label });
                Ok(id)
            }
            Err(mut rejection) => {
                self.note_refusal(now, context, false, &mut rejection);
                Err(rejection)
            }
        }
    }

    /// It names no user. Drivers draw before they ask, so that calls made for it have the same lot.
    #[cold]
    fn arrive_by_lot(
        &mut self,
        now: Instant,
        arrived: Instant,
        context: &Context,
    ) -> Result<RequestId, Rejection> {
        let context = context.draw(&mut self.cx.rng);
        self.arrive_stamped(now, arrived, &context)
    }

    /// A request that runs has ended; its slot is free from the next dispatch on.
    pub fn finish(&mut self, now: Instant, id: RequestId, outcome: Outcome, cost: Cost) {
        let now = self.advance(now);
        let Some(entry) = self.entries.get_mut(id) else {
            return self.ignore(now, Misuse::UnknownId);
        };
        let is_abandoned = entry.state == State::Abandoned;
        match entry.state {
            State::Running | State::Abandoned => {
                entry.request.attained += now.since(entry.started);
                let workflow = entry.request.context.workflow;
                self.free_slot(now, id, workflow);
                if is_abandoned {
                    self.clear_abandoned(now, id);
                }
            }
            State::Paused => {}
            State::Limited | State::Waiting | State::Refused => {
                return self.ignore(now, Misuse::WrongState);
            }
        }
        let Some(entry) = self.entries.get(id) else { return };
        let request = &entry.request;
        let held = request.attained;
        if outcome == Outcome::Serve {
            self.service.add(held.as_nanos_f64());
            if !is_abandoned {
                self.leaving.on_answer(now);
            }
        }
        if outcome != Outcome::Cancel {
            self.costs.settle(request.context.workflow, cost);
        }
        if let Some(limits) = &mut self.limits {
            // Who gave up has not told what it cost: the estimate stands.
            let cost = if outcome == Outcome::Cancel { request.cost } else { cost };
            limits.finish(now, id, &request.context, cost);
        }
        if let Some(control) = &mut self.control {
            control.on_finish(request.context.workflow, cost, now.since(entry.admitted));
        }
        let objective = self.admission.objective().unwrap_or(Span::MAX);
        self.admission.on_finish(&mut self.cx, &self.backlog, request, outcome, cost);
        let allowed = allowed(request, objective);
        let late = now.since(request.arrived) >= allowed;
        let finish = Finish {
            service: held,
            outcome,
            objective,
            late,
            crowded: late && held > allowed.scale(0.5),
            running: self.running,
            beside: entry.beside,
            waiting: self.backlog.waiting(),
            quiet: self.slots.is_quiet() && self.standstill.slots() == 0,
            shedding: std::mem::take(&mut self.shedding),
        };
        // What the service did shows what it can do, but nobody was served.
        let outcome = if is_abandoned { Outcome::Cancel } else { outcome };
        self.cx.events.push(now, || {
            let Context { rank, workflow, label, .. } = request.context;
            Event::Finish { rank, workflow, label, outcome, latency: now.since(request.arrived) }
        });
        self.entries.remove(id);
        self.learn(now, &finish);
        if self.adapts {
            self.adapt_slots(now, finish);
        }
        if outcome != Outcome::Cancel {
            self.give_way(now);
        }
    }

    /// The caller has given up: slot, credit and place in the queue are free at once.
    pub fn cancel(&mut self, now: Instant, id: RequestId) {
        let now = self.advance(now);
        match self.entries.get(id).map(|entry| entry.state) {
            None => self.ignore(now, Misuse::UnknownId),
            Some(State::Limited) => {
                if let (Some(control), Some(entry)) = (&mut self.control, self.entries.remove(id)) {
                    control.limiter.remove(entry.request.context.workflow, id);
                    self.refund(now, &entry.request);
                }
            }
            Some(State::Waiting) => {
                self.take_out(now, id);
                self.entries.remove(id);
            }
            Some(State::Refused) => drop(self.entries.remove(id)),
            Some(State::Running | State::Paused | State::Abandoned) => {
                let done = self.done_so_far(now, id);
                self.finish(now, id, Outcome::Cancel, done);
            }
        }
    }

    /// What has been done of a request that was started, judged by the time it had a slot.
    fn done_so_far(&self, now: Instant, id: RequestId) -> Cost {
        let Some(entry) = self.entries.get(id) else { return Cost(0) };
        let Request { attained, cost, .. } = entry.request;
        let since =
            if entry.state == State::Running { now.since(entry.started) } else { Span::ZERO };
        let (held, mean) = ((attained + since).as_nanos_f64(), self.service.get());
        Cost(whole(float(cost.0) * mean.map_or(1.0, |mean| (held / mean.max(1.0)).min(1.0))))
    }

    /// A request waits for a call of its own and gives up its slot meanwhile.
    pub fn pause(&mut self, now: Instant, id: RequestId) {
        let now = self.advance(now);
        match self.entries.get_mut(id) {
            None => self.ignore(now, Misuse::UnknownId),
            Some(entry) if entry.state != State::Running => self.ignore(now, Misuse::WrongState),
            Some(entry) => {
                entry.state = State::Paused;
                let step = now.since(entry.started);
                entry.request.attained += step;
                entry.request.cost =
                    Cost(entry.request.cost.0.saturating_sub(step.as_nanos()).max(1));
                let workflow = entry.request.context.workflow;
                self.free_slot(now, id, workflow);
            }
        }
    }

    /// A slot that a request of `workflow` held is free.
    fn free_slot(&mut self, now: Instant, id: RequestId, workflow: Workflow) {
        self.running -= 1;
        self.standstill.on_free(now, id);
        self.backlog.on_free(self.running);
        if let Some(control) = &mut self.control {
            control.free_slot(now, workflow);
        }
    }

    /// A paused request wants to go on: its next step joins the schedule with its progress. It was
    /// let in once and is not asked again.
    pub fn resume(&mut self, now: Instant, id: RequestId, progress: Progress) {
        let now = self.advance(now);
        let Some(entry) = self.entries.get_mut(id) else {
            return self.ignore(now, Misuse::UnknownId);
        };
        if entry.state != State::Paused {
            return self.ignore(now, Misuse::WrongState);
        }
        entry.state = State::Waiting;
        entry.request.enqueued = now;
        entry.request.context.progress = progress;
        self.schedule.push(now, &entry.request);
        let weight = self.costs.weight(entry.request.cost);
        self.backlog.on_enqueue(now, id.index(), now, weight);
    }

    /// A downstream service has answered a call made for `workflow`. Its cursor goes up the path:
    /// what it would refuse is refused here.
    pub fn on_downstream(
        &mut self,
        now: Instant,
        callee: CalleeId,
        workflow: Workflow,
        feedback: &Feedback,
    ) {
        let now = self.advance(now);
        self.downstream.on_feedback(now, callee, workflow, feedback);
        self.hear_grant(now, callee, workflow, feedback);
    }

    /// What this gate refused in the name of `callee` since the last call, to be reported to it.
    pub fn take_sheds(&mut self, callee: CalleeId) -> Sheds {
        self.downstream.take_sheds(callee)
    }

    /// A caller tells its demand and sheds without sending a request.
    pub fn on_report(&mut self, now: Instant, context: &Context) {
        let now = self.advance(now);
        let believed = self.believe(now, context, false);
        let context = believed.as_ref().unwrap_or(context);
        self.admission.on_report(&mut self.cx, &self.backlog, context);
    }

    /// The machine's utilization as the driver measures it, 1 being full.
    pub fn on_utilization(&mut self, now: Instant, utilization: f64) {
        let now = self.advance(now);
        if !(utilization.is_finite() && utilization >= 0.0) {
            return self.ignore(now, Misuse::BadValue);
        }
        self.utilization = utilization;
        self.admission.on_utilization(&mut self.cx, utilization);
    }

    /// What the calendar says: `unix` has passed since 1970 began, in UTC. Limits by calendar turn
    /// their windows by it.
    pub fn on_calendar(&mut self, now: Instant, unix: Span) {
        let now = self.advance(now);
        if let Some(limits) = &mut self.limits {
            limits.on_calendar(now, unix);
        }
    }

    /// Limits that are parts of agreements over many processes: a driver carries their reports.
    pub fn leased(&mut self) -> impl Iterator<Item = &mut Leased> {
        self.limits.iter_mut().flat_map(|limits| limits.leased_mut())
    }

    /// Tells the numbers of the workflows that the configuration names: `number` gives each its own. Due before
    /// the first arrival and after every change of the configuration.
    pub fn name_workflows(&mut self, mut number: impl FnMut(&str) -> Workflow) {
        if let Some(limits) = &mut self.limits {
            limits.name_workflows(&mut number);
        }
        self.schedule.name_workflows(&mut number);
        if let Some(control) = &mut self.control {
            control.name_workflows(&mut number);
        }
    }

    /// Delay of the stages before this queue (kernel, parser), maximum over parallel queues,
    /// summed over stages.
    pub fn on_stage_delay(&mut self, now: Instant, delay: Span) {
        self.advance(now);
        self.driver_stages = delay;
        self.backlog.set_stages_before(delay);
    }

    /// Whether the driver can send callers messages that answer nothing. Over HTTP nobody can, and what is not sent is
    /// not taken to have been told. Default true.
    pub fn set_notifies(&mut self, notifies: bool) {
        self.notifies = notifies;
    }

    /// How long a message to a caller and back takes, where the driver knows: part of an objective
    /// that is learned.
    pub fn on_round_trip(&mut self, now: Instant, round_trip: Span) {
        self.advance(now);
        if let Some(objective) = &mut self.objective {
            objective.on_round_trip(round_trip);
        }
    }

    /// A caller has closed down or fallen silent: its credits return to the pool.
    pub fn on_gone(&mut self, now: Instant, caller: CallerId) {
        self.advance(now);
        self.admission.on_gone(&mut self.cx, caller);
    }

    /// Refuses everything from now on; what is inside is finished.
    pub fn drain(&mut self) {
        self.draining = true;
    }

    // === the step ===

    /// Starts as much as there are free slots for, and notes whom to tell what has changed. Afterwards
    /// the actions wait in [`poll`](Self::poll).
    pub fn dispatch(&mut self, now: Instant) {
        self.dispatch_at_most(now, u32::MAX);
    }

    /// The same for a driver that can begin with `most` requests now: others wait here, where they
    /// are seen, even if there are slots for them.
    pub fn dispatch_at_most(&mut self, now: Instant, most: u32) {
        let now = self.advance(now);
        if self.control.is_some() {
            self.release_limited(now);
        }
        if self.abandoned.held() > 0 {
            self.expire_abandoned(now);
        }
        if self.backlog.waiting() > 0 {
            self.look_at_standstill(now);
            self.start_at_most(now, most);
        }
        self.backlog.on_dispatch(now, self.running);
        self.rank_newcomers();
        if self.settled {
            self.tell_callers();
        }
    }

    /// The next thing to do, none when all is done.
    pub fn poll(&mut self) -> Option<Action> {
        loop {
            match self.due.pop_front()? {
                Due::Start { id, degraded } => return Some(Action::Start { id, degraded }),
                Due::Refuse(id) => {
                    let rejection = self.refusals.pop_front()?;
                    // Unless it was cancelled before it could be told.
                    if self.entries.remove(id).is_some() {
                        return Some(Action::Refuse { id, rejection });
                    }
                }
                Due::Notify(caller) => {
                    let feedback = self.feedback_now(caller, Workflow::NONE);
                    return Some(Action::Notify { caller, feedback });
                }
            }
        }
    }

    /// When to dispatch even if nothing comes in.
    pub fn next_wakeup(&self) -> Option<Instant> {
        let turn = self.control.as_ref().and_then(|control| {
            // Another period may bring another rate, and an earlier turn.
            control.limiter.due().map(|due| due.min(control.period_ends()).max(self.cx.now))
        });
        let free = self.abandoned_until().map(|until| until.max(self.cx.now));
        let stands = self.standstill_at();
        self.admission.next_wakeup().into_iter().chain(turn).chain(free).chain(stands).min()
    }

    /// What to tell `caller` with a response to a request of `workflow`, be it an answer or a
    /// refusal. Ask once per message written.
    pub fn feedback(&mut self, now: Instant, caller: CallerId, workflow: Workflow) -> Feedback {
        self.advance(now);
        let mut feedback = self.feedback_now(caller, workflow);
        feedback.workflow = Some(workflow);
        if let Some(control) = &self.control
            && let Some(granted) = control.granted(workflow, caller)
        {
            feedback.rate = Some(feedback.rate.map_or(granted, |rate| rate.min(granted)));
            feedback.holds = feedback.holds.min(control.config().max_age);
        }
        feedback
    }

    // === inside ===

    /// Moves time forward, never back, and concludes every period that ended meanwhile.
    #[inline]
    fn advance(&mut self, now: Instant) -> Instant {
        self.cx.now = self.cx.now.max(now);
        if self.cx.now >= self.next_settle {
            self.settle();
        }
        self.cx.now
    }

    /// Every input passes [`advance`](Self::advance), few of them come here.
    #[cold]
    fn settle(&mut self) {
        self.admission.settle(&mut self.cx, &self.backlog);
        self.settled = true;
        self.settle_rates(self.cx.now);
        self.next_settle = self.admission.next_settle();
        self.claims.settle(self.cx.now, self.admission.word_holds());
        if let Some(control) = &self.control {
            self.next_settle = self.next_settle.min(control.period_ends());
        }
    }

    /// What a finish says about the objective, where that is learned.
    fn learn(&mut self, now: Instant, finish: &Finish) {
        let changed = self.objective.as_mut().and_then(|it| it.on_finish(finish, self.limit));
        let Some(objective) = changed else { return };
        self.admission.set_objective(objective);
        self.next_settle = Instant::ZERO;
        self.cx.events.push(now, || Event::Objective { objective });
    }

    /// What a finish says about how many may run at once.
    #[inline(never)] // Most gates have a fixed number.
    fn adapt_slots(&mut self, now: Instant, finish: Finish) {
        self.slots.on_finish(now, &finish);
        self.backlog.set_held_back(self.slots.is_trying());
        let slots = self.slots.limit();
        if slots != self.limit {
            self.limit = slots;
            self.cx.events.push(now, || Event::Slots { slots });
        }
    }

    /// Those who deserve a message after what was settled.
    #[cold]
    fn tell_callers(&mut self) {
        self.settled = false;
        while let Some(caller) = self.admission.poll_notice() {
            // Who will not hear of it is not to be taken to have been told.
            if self.notifies {
                self.due.push_back(Due::Notify(caller));
            }
        }
    }

    /// Apart, as often nothing waits.
    #[inline(never)]
    fn start_at_most(&mut self, now: Instant, most: u32) {
        let limit = self.slots().min(self.running.saturating_add(most));
        while self.backlog.waiting() > 0 && self.running < limit {
            let Some(id) = self.schedule.pop(now) else { break };
            self.start(now, id);
        }
    }

    /// Gives a slot to a request that was taken from the schedule, unless it is too late for it.
    fn start(&mut self, now: Instant, id: RequestId) {
        let Some(entry) = self.entries.get(id) else { return };
        let request = &entry.request;
        let sojourn = now.since(request.enqueued);
        let verdict = if request.context.deadline <= now && !self.config.deadlines_are_soft() {
            let late = now.since(request.context.deadline).as_nanos_f64();
            Verdict::Refuse(Rejection::new(Reason::Expired, late, 0.0, Advice::Never))
        } else if request.attained > Span::ZERO {
            Verdict::Admit
        } else if let Err(rejection) = self.owes(now, &request.context) {
            Verdict::Refuse(rejection)
        } else {
            self.admission.on_dequeue(&mut self.cx, &self.backlog, request, sojourn)
        };
        let Some(entry) = self.entries.get_mut(id) else { return };
        match verdict {
            Verdict::Refuse(rejection) | Verdict::Displace(rejection) => {
                entry.state = State::Refused;
                let request = entry.request;
                self.dequeue(now, id, false);
                self.leave(&request);
                self.refund(now, &request);
                self.turn_out(now, id, &request.context, rejection);
            }
            Verdict::Admit | Verdict::Degrade => {
                entry.degraded |= verdict == Verdict::Degrade;
                entry.state = State::Running;
                (entry.started, entry.beside) = (now, self.running);
                let (degraded, context) = (entry.degraded, &entry.request.context);
                self.cx.events.push(now, || Event::Start { rank: context.rank, sojourn });
                if let Some(control) = &mut self.control {
                    control.take_slot(now, context.workflow);
                    if !entry.begun {
                        control.on_start(context.workflow);
                    }
                }
                entry.begun = true;
                let context = entry.request.context;
                self.note_source(&context);
                self.dequeue(now, id, true);
                self.running += 1;
                self.standstill.on_start(now);
                self.due.push_back(Due::Start { id, degraded });
            }
        }
    }

    fn feedback_now(&mut self, caller: CallerId, workflow: Workflow) -> Feedback {
        let now = self.cx.now;
        self.sequence += 1;
        let mut feedback = Feedback::silent(self.id, self.sequence);
        feedback.utilization = Some(self.busy().max(self.utilization) as f32);
        self.admission.feedback(&mut self.cx, &self.backlog, caller, &mut feedback);
        self.downstream.restrict(now, workflow, &mut feedback);
        feedback
    }

    fn ignore(&mut self, now: Instant, misuse: Misuse) {
        self.cx.events.push(now, || Event::Ignore(misuse));
    }
}
