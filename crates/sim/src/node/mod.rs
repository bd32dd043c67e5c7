//! A server: some cores, and a [`Gate`] that decides which request gets one.
//!
//! A core that is free looks for work in this order, as a server does that polls its network card:
//!
//! 1. **receive** a message, if any waits: costs core time; the gate hears of the arrival at the
//!    end of it. Since it comes before everything else, enough messages leave no time for work:
//!    receive livelock is possible here as it is in life.
//! 2. **send** what others have left to be sent: refusals of requests that waited, notices, calls.
//! 3. **run** a request that the gate has started.
//! 4. **dispatch** the gate, now that all that was ready has been read, and look again.
//!
//! The core that received a request sends its refusal, and the core that ran it sends its answer.
//! A response to a caller that is being sent to already waits for that send to end and goes with
//! the next one, together with all others that are ready by then: a send costs so much per message
//! and so much per response in it.
//!
//! The time a message has waited to be received is a stage before the gate's queue; the gate is
//! told the age of the oldest.

mod cache;
mod calls;
mod held;
mod trouble;

use std::collections::VecDeque;
use std::rc::Rc;

use tidegate_core::gate::Action;
use tidegate_core::rng::Rng;
use tidegate_core::throttle::Answer;
use tidegate_core::verdict::Advice;
use tidegate_core::{
    CallerId, Context, Cost, Feedback, Gate, GateId, Instant, Outcome, Progress, Reason, Rejection,
    RequestId, Span, Workflow,
};

use crate::client::Client;
use crate::engine::Alarm;
use crate::measure::Fact;
use crate::network::{Body, MessageId, Reply};
use crate::shared::{Event, Shared};
use crate::told::Told;
use crate::topology::ServiceSpec;
use cache::Cache;

pub use cache::CacheSpec;

/// What handling messages costs a core.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MessageCost {
    /// Receiving one message.
    pub receive: Span,
    /// Sending one message with one response, or a refusal, a notice or a call.
    pub send: Span,
    /// Of which this much is for the response: a message with n of them costs
    /// `send + (n − 1) × response`.
    pub response: Span,
}

impl MessageCost {
    /// Messages cost nothing.
    pub const FREE: Self = Self { receive: Span::ZERO, send: Span::ZERO, response: Span::ZERO };
}

/// A server under simulation.
#[derive(Debug)]
pub(crate) struct Node {
    index: u32,
    /// Number of its service.
    service: usize,
    spec: Rc<ServiceSpec>,
    gate: Gate,
    /// One client per service that it calls, numbered from `first_client` on.
    clients: Vec<Client>,
    first_client: u32,
    /// All services, by number, and the chance in how long they take.
    services: Rc<[ServiceSpec]>,
    call_times: Rng,
    holds: Rng,
    cores: Vec<Work>,
    /// Until when each core is busy with its work.
    until: Vec<Instant>,
    /// Core time given out, and how much of it had been used at the last sample.
    given: Span,
    used: Span,
    /// Cores in service that have nothing to do.
    idle: Vec<u16>,
    /// Messages that nobody has received yet.
    packets: VecDeque<MessageId>,
    /// Requests that have a slot but no core yet.
    ready: VecDeque<RequestId>,
    /// What the gate's requests are, by the place of their id.
    jobs: Vec<Job>,
    /// Requests in the gate, and those of them that wait for calls of their own.
    inside: u64,
    paused: u64,
    /// By client.
    outboxes: Vec<Outbox>,
    /// What is to be sent as soon as a core is free.
    outgoing: VecDeque<Out>,
    /// Whether the gate has heard of anything since its last dispatch.
    news: bool,
    alarm: Alarm,
    /// Last told to the gate.
    stage_delay: Span,
    cache: Option<Cache>,
    /// What requests hold beside their thread.
    holding: Option<held::Holding>,
    trouble: trouble::Trouble,
}

/// What a node consists of that a restart replaces.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) gate: Gate,
    pub(crate) clients: Vec<Client>,
}

/// What a core does.
#[derive(Clone, Copy, Debug)]
enum Work {
    Nothing,
    Receive(MessageId),
    Run(RequestId),
    Send { client: u32, replies: u32 },
    Call(MessageId),
}

/// Something to send.
#[derive(Clone, Copy, Debug)]
enum Out {
    /// What is in this client's outbox.
    Replies(u32),
    /// A message of a client of ours.
    Call(MessageId),
}

/// A request inside this node.
#[derive(Clone, Copy, Debug)]
struct Job {
    client: u32,
    life: u16,
    call: RequestId,
    context: Context,
    /// Core time until its present step ends.
    step: Span,
    /// Core time it has had.
    spent: Span,
    /// Time it will hold its thread after its first step.
    hold: Span,
    /// Stages of calls it has begun.
    stage: u16,
    /// Calls of the present stage that have not ended.
    pending: u32,
    /// How a call of its own failed.
    failed: Option<Rejection>,
    broken: bool,
}

/// Responses to one client that are ready to be sent.
#[derive(Clone, Debug, Default)]
struct Outbox {
    caller: CallerId,
    /// Whether a core sends, or will.
    busy: bool,
    replies: Vec<Reply>,
    notice: Option<Feedback>,
}

impl Node {
    pub(crate) fn new(
        index: u32,
        service: usize,
        spec: Rc<ServiceSpec>,
        mut process: Process,
        services: Rc<[ServiceSpec]>,
        rng: &dyn Fn(&str) -> Rng,
    ) -> Self {
        let holding = held::Holding::new(spec.pool, &mut process.gate);
        let cores = u16::try_from(spec.cores).expect("plans have at most 65,535 cores");
        Self {
            index,
            service,
            gate: process.gate,
            first_client: process.clients.first().map_or(0, Client::index),
            clients: process.clients,
            services,
            call_times: rng("calls"),
            holds: rng("holds"),
            cores: vec![Work::Nothing; usize::from(cores)],
            until: vec![Instant::ZERO; usize::from(cores)],
            given: Span::ZERO,
            used: Span::ZERO,
            idle: (0..cores).rev().collect(),
            packets: VecDeque::new(),
            ready: VecDeque::new(),
            jobs: Vec::new(),
            inside: 0,
            paused: 0,
            outboxes: Vec::new(),
            outgoing: VecDeque::new(),
            news: false,
            alarm: Alarm::default(),
            stage_delay: Span::ZERO,
            cache: spec.cache.map(|spec| Cache::warm(spec, rng("cache"))),
            holding,
            trouble: trouble::Trouble::none(cores),
            spec,
        }
    }

    // === events ===

    /// Gets the gate's first wake-up scheduled.
    pub(crate) fn start(&mut self, shared: &mut Shared) {
        self.arm(shared);
        shared.engine.after(self.spec.sample, Event::Sample { node: self.index });
    }

    /// The gate is told how busy the cores were since the last time.
    pub(crate) fn sample(&mut self, shared: &mut Shared) {
        let now = shared.now();
        let ahead: u64 = self.until.iter().map(|until| until.since(now).as_nanos()).sum();
        let used = self.given.saturating_sub(Span::from_nanos(ahead));
        let time = self.spec.sample.as_nanos() as f64 * f64::from(self.spec.cores);
        let utilization = used.saturating_sub(self.used).as_nanos() as f64 / time;
        self.used = used;
        if !self.trouble.is_down() {
            self.note_rates(shared);
            self.report_holding(shared);
            self.gate.on_utilization(now, utilization);
            self.news = true;
        }
        shared.engine.after(self.spec.sample, Event::Sample { node: self.index });
    }

    /// A message has reached the network card.
    pub(crate) fn deliver(&mut self, shared: &mut Shared, id: MessageId) {
        if self.trouble.is_down() {
            return shared.lose(id);
        }
        shared.messages.get_mut(id).arrived = shared.now();
        shared.count(Fact::Received);
        self.packets.push_back(id);
        self.use_idle_core(shared);
    }

    /// The moment the gate asked for has come.
    pub(crate) fn wake(&mut self, shared: &mut Shared) {
        if !self.alarm.rings(shared.now()) {
            return;
        }
        self.news = true;
        self.use_idle_core(shared);
    }

    /// A core has done what it was doing.
    pub(crate) fn core_done(&mut self, shared: &mut Shared, core: u16, life: u16) {
        if life != self.trouble.life() || self.trouble.defers(shared, self.index, core) {
            return;
        }
        let work = std::mem::replace(&mut self.cores[usize::from(core)], Work::Nothing);
        let answered = match work {
            Work::Nothing => unreachable!("an idle core has nothing to end"),
            Work::Receive(id) => self.received(shared, id),
            Work::Run(id) => self.ran(shared, id),
            Work::Send { client, replies } => self.sent(shared, client, replies),
            Work::Call(message) => {
                shared.count(Fact::Sent);
                shared.launch_to_node(message);
                None
            }
        };
        match answered {
            Some(client) => self.send(shared, core, client),
            None => self.find_work(shared, core),
        }
    }

    /// Requests in the gate.
    pub(crate) fn inside(&self) -> u64 {
        if self.trouble.is_down() {
            return 0;
        }
        // Those pushed out by an arrival since the last dispatch have not been told yet.
        let mut gate = self.gate.clone();
        let actions = std::iter::from_fn(|| gate.poll());
        let pushed =
            actions.filter(|action| matches!(action, Action::Refuse { .. })).count() as u64;
        let known =
            u64::from(self.gate.running()) + self.gate.waiting() as u64 + self.paused + pushed;
        assert_eq!(known, self.inside, "the gate and its driver agree on what is inside");
        self.gate.invariants();
        self.inside
    }

    /// Each of the first `clients` hears of how things are, unasked.
    pub(crate) fn tell_all(&mut self, shared: &mut Shared, clients: u32) {
        for client in 0..clients {
            let outbox = self.outbox(client);
            outbox.notice = Some(Feedback::silent(GateId(0), 0));
            if !std::mem::replace(&mut outbox.busy, true) {
                self.outgoing.push_back(Out::Replies(client));
            }
        }
        for _ in 0..self.idle.len() {
            self.use_idle_core(shared);
        }
    }

    // === what ends; each returns the client to send to at once, if any ===

    fn received(&mut self, shared: &mut Shared, id: MessageId) -> Option<u32> {
        let now = shared.now();
        self.tell_stage_delay(shared);
        let message = shared.messages.get(id);
        let (client, arrived) = (message.client, message.arrived);
        match message.body {
            Body::Request { call, context, service, life } => {
                shared.messages.free(id);
                let job = Job {
                    client,
                    life,
                    call,
                    context,
                    step: service,
                    spent: Span::ZERO,
                    hold: self.draw_hold(context.workflow),
                    stage: 0,
                    pending: 0,
                    failed: None,
                    broken: false,
                };
                self.arrived(shared, arrived, job)
            }
            Body::Report { context } => {
                shared.messages.free(id);
                self.gate.on_report(now, &context);
                self.news = true;
                None
            }
            Body::Replies { .. } => {
                self.answered(shared, id);
                None
            }
        }
    }

    fn arrived(&mut self, shared: &mut Shared, arrived: Instant, job: Job) -> Option<u32> {
        let now = shared.now();
        shared.measure.arrived(now, self.service, job.context.attempt);
        let outbox = self.outbox(job.client);
        outbox.caller = job.context.caller;
        self.news = true;
        let full = |told: &Told| self.gate.waiting() >= told.room();
        let entered = match shared.told.as_ref().is_some_and(full) {
            true => Err(Rejection::new(Reason::Full, 1.0, 1.0, Advice::Elsewhere)),
            false => self.gate.arrive_stamped(now, arrived, &job.context),
        };
        match entered {
            Ok(id) => {
                if id.index() >= self.jobs.len() {
                    self.jobs.resize(id.index() + 1, job);
                }
                self.jobs[id.index()] = job;
                self.inside += 1;
                None
            }
            Err(rejection) => {
                shared.count_at(self.service, dropped(rejection.reason));
                self.post(&job, Answer::Refused(rejection), Progress::default())
            }
        }
    }

    fn ran(&mut self, shared: &mut Shared, id: RequestId) -> Option<u32> {
        let job = &mut self.jobs[id.index()];
        job.spent += job.step;
        let (step, hold) = (job.step, job.hold);
        self.gate.on_step(shared.now(), id, step + hold);
        if hold > Span::ZERO {
            self.hold(shared, id, hold);
            return None;
        }
        self.go_on(shared, id)
    }

    /// A request has held what it holds for long enough.
    pub(crate) fn held(&mut self, shared: &mut Shared, id: RequestId, life: u16) {
        if life != self.trouble.life() {
            return;
        }
        self.give_back(shared, id);
        let client = self.go_on(shared, id);
        self.outgoing.extend(client.map(Out::Replies));
        self.use_idle_core(shared);
    }

    /// A step has ended: calls follow, or the end.
    fn go_on(&mut self, shared: &mut Shared, id: RequestId) -> Option<u32> {
        let job = &self.jobs[id.index()];
        let calls = self.spec.calls_for(job.context.workflow).len();
        if usize::from(job.stage) < calls {
            self.begin_calls(shared, id);
            return None;
        }
        self.end(shared, id)
    }

    /// The request has come to its end, good or bad.
    fn end(&mut self, shared: &mut Shared, id: RequestId) -> Option<u32> {
        let job = self.jobs[id.index()];
        let progress = self.gate.done(id).unwrap_or_default();
        if job.failed.is_none() && !job.broken {
            self.gate.learn_total(id);
        }
        // A refusal by somebody further down is an answer all the same, and cost what it cost.
        let outcome = if job.broken { Outcome::Fail } else { Outcome::Serve };
        self.gate.finish(shared.now(), id, outcome, Cost::from(job.spent));
        self.inside -= 1;
        self.news = true;
        let answer = match job.failed {
            Some(rejection) => Answer::Refused(rejection),
            None if job.broken => Answer::Done(Outcome::Fail),
            None => Answer::Done(Outcome::Serve),
        };
        let served = answer == Answer::Done(Outcome::Serve);
        shared.count_at(self.service, if served { Fact::Served } else { Fact::Abandoned });
        shared.measure.worked(shared.engine.now(), self.service, job.spent, served);
        self.post(&job, answer, progress)
    }

    fn sent(&mut self, shared: &mut Shared, client: u32, replies: u32) -> Option<u32> {
        let outbox = &mut self.outboxes[client as usize];
        let notice = outbox.notice.take();
        let mut feedback = if replies == 0 {
            notice
        } else {
            // It is for the workflow of the last response: the one that brings it.
            let workflow = outbox.replies[replies as usize - 1].workflow;
            Some(self.gate.feedback(shared.now(), outbox.caller, workflow))
        };
        if self.trouble.loses_feedback(shared) {
            feedback = None;
        }
        let message = shared.messages.put(client, self.index, Body::Replies { feedback });
        let carried = outbox.replies.drain(..replies as usize);
        shared.messages.get_mut(message).replies.extend(carried);
        outbox.busy = !outbox.replies.is_empty() || outbox.notice.is_some();
        let more = outbox.busy.then_some(client);
        shared.count(Fact::Sent);
        shared.launch_to_client(message);
        more
    }

    // === what begins ===

    fn use_idle_core(&mut self, shared: &mut Shared) {
        if self.trouble.is_paused(shared.now()) {
            return;
        }
        if let Some(core) = self.idle.pop() {
            self.find_work(shared, core);
        }
    }

    fn find_work(&mut self, shared: &mut Shared, core: u16) {
        if self.trouble.parks(core) {
            return;
        }
        if !self.take_work(shared, core) {
            if !self.news {
                return self.idle.push(core);
            }
            self.dispatch(shared);
            if !self.take_work(shared, core) {
                return self.idle.push(core);
            }
        }
        // What there is may be enough for others as well.
        while self.has_work() {
            let Some(other) = self.idle.pop() else { break };
            self.take_work(shared, other);
        }
    }

    fn has_work(&self) -> bool {
        !(self.ready.is_empty() && self.outgoing.is_empty() && self.packets.is_empty())
    }

    /// Gives `core` something to do; false if there is nothing.
    fn take_work(&mut self, shared: &mut Shared, core: u16) -> bool {
        if let Some(id) = self.packets.pop_front() {
            self.occupy(shared, core, Work::Receive(id), self.spec.messages.receive);
        } else if let Some(out) = self.outgoing.pop_front() {
            match out {
                Out::Replies(client) => self.send(shared, core, client),
                Out::Call(id) => self.occupy(shared, core, Work::Call(id), self.spec.messages.send),
            }
        } else if let Some(id) = self.ready.pop_front() {
            let job = &mut self.jobs[id.index()];
            if let (Some(cache), Span::ZERO) = (&mut self.cache, job.spent) {
                job.step += cache.look_up();
            }
            let step = job.step;
            self.occupy(shared, core, Work::Run(id), step);
        } else {
            return false;
        }
        true
    }

    fn send(&mut self, shared: &mut Shared, core: u16, client: u32) {
        let replies = self.outboxes[client as usize].replies.len() as u32;
        let MessageCost { send, response, .. } = self.spec.messages;
        let more = response.as_nanos() * u64::from(replies.saturating_sub(1));
        let cost = send + Span::from_nanos(more);
        self.occupy(shared, core, Work::Send { client, replies }, cost);
    }

    fn occupy(&mut self, shared: &mut Shared, core: u16, work: Work, cost: Span) {
        let cost = self.trouble.stretch(cost);
        self.cores[usize::from(core)] = work;
        let now = shared.now();
        self.given += cost;
        self.until[usize::from(core)] = now + cost;
        shared.measure.busy(self.service, now, now + cost);
        let life = self.trouble.life();
        shared.engine.after(cost, Event::Core { node: self.index, core, life });
    }

    fn dispatch(&mut self, shared: &mut Shared) {
        self.news = false;
        self.gate.dispatch(shared.now());
        while let Some(action) = self.gate.poll() {
            match action {
                Action::Start { id, degraded: _ } => self.ready.push_back(id),
                Action::Refuse { id, rejection } => {
                    shared.count_at(self.service, dropped(rejection.reason));
                    self.inside -= 1;
                    let job = self.jobs[id.index()];
                    let client = self.post(&job, Answer::Refused(rejection), Progress::default());
                    self.outgoing.extend(client.map(Out::Replies));
                }
                Action::Notify { caller, feedback } => {
                    let Some(client) = shared.client_of(caller) else { continue };
                    let outbox = self.outbox(client);
                    outbox.notice = Some(feedback);
                    if !std::mem::replace(&mut outbox.busy, true) {
                        self.outgoing.push_back(Out::Replies(client));
                    }
                }
            }
        }
        self.arm(shared);
    }

    // === helpers ===

    /// Puts a response into the client's outbox. Returns the client unless someone sends already.
    fn post(&mut self, job: &Job, answer: Answer, progress: Progress) -> Option<u32> {
        let outbox = self.outbox(job.client);
        let (call, attempt, life) = (job.call, job.context.attempt, job.life);
        let workflow = job.context.workflow;
        outbox.replies.push(Reply { call, attempt, life, answer, workflow, progress });
        (!std::mem::replace(&mut outbox.busy, true)).then_some(job.client)
    }

    fn draw_hold(&mut self, workflow: Workflow) -> Span {
        match self.spec.hold_for(workflow) {
            Some(hold) => hold.sample(&mut self.holds, 1.0),
            None => Span::ZERO,
        }
    }

    /// Books the rates that the gate announces.
    fn note_rates(&self, shared: &mut Shared) {
        let Some(control) = self.gate.workflows() else { return };
        let now = shared.now();
        for workflow in 0..shared.measure.workflows().len() as u16 {
            if let Some(rate) = control.rate(Workflow(workflow)) {
                let part = rate * self.spec.sample.as_secs_f64();
                shared.measure.announced(now, self.service, Workflow(workflow), part);
            }
        }
    }

    fn outbox(&mut self, client: u32) -> &mut Outbox {
        let client = client as usize;
        if client >= self.outboxes.len() {
            self.outboxes.resize_with(client + 1, Outbox::default);
        }
        &mut self.outboxes[client]
    }

    fn tell_stage_delay(&mut self, shared: &Shared) {
        let now = shared.now();
        let oldest = self.packets.front().map(|id| shared.messages.get(*id).arrived);
        let delay = oldest.map_or(Span::ZERO, |arrived| now.since(arrived));
        if delay != self.stage_delay {
            self.stage_delay = delay;
            self.gate.on_stage_delay(now, delay);
        }
    }

    fn arm(&mut self, shared: &mut Shared) {
        if let Some(at) = self.gate.next_wakeup().map(|at| at.max(shared.now()))
            && self.alarm.set(at)
        {
            shared.engine.at(at, Event::Gate { node: self.index });
        }
    }
}

fn dropped(reason: Reason) -> Fact {
    if reason == Reason::Expired { Fact::DroppedLate } else { Fact::Dropped }
}
