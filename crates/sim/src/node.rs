//! A server: some cores, and a [`Gate`] that decides which request gets one.
//!
//! A core that is free looks for work in this order, as a server does that polls its network card:
//!
//! 1. **receive** a message, if any waits: costs core time; the gate hears of the arrival at the
//!    end of it. Since it comes before everything else, enough messages leave no time for work:
//!    receive livelock is possible here as it is in life.
//! 2. **send** what the gate wants to be told to callers whose own core has moved on.
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

use std::collections::VecDeque;

use tidegate_core::gate::Action;
use tidegate_core::throttle::Answer;
use tidegate_core::{
    CallerId, Cost, Feedback, Gate, Instant, Outcome, Reason, RequestId, Span, Workflow,
};

use crate::measure::Fact;
use crate::network::{Body, MessageId, Reply};
use crate::world::{Event, Shared};

/// What handling messages costs a core.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MessageCost {
    /// Receiving one message.
    pub receive: Span,
    /// Sending one message with one response, or a refusal, or a notice.
    pub send: Span,
    /// Of which this much is for the response: a message with n of them costs
    /// `send + (n − 1) × response`.
    pub response: Span,
}

/// A server under simulation.
#[derive(Debug)]
pub(crate) struct Node {
    index: u32,
    pub(crate) gate: Gate,
    costs: MessageCost,
    cores: Vec<Work>,
    idle: Vec<u16>,
    /// Messages that nobody has received yet.
    packets: VecDeque<MessageId>,
    /// Requests that have a slot but no core yet.
    ready: VecDeque<RequestId>,
    /// What the gate's requests are, by the place of their id.
    jobs: Vec<Job>,
    /// By client.
    outboxes: Vec<Outbox>,
    /// Clients that are to be sent to as soon as a core is free.
    outgoing: VecDeque<u32>,
    /// Whether the gate has heard of anything since its last dispatch.
    news: bool,
    /// The wake-up that is scheduled.
    armed: Instant,
    /// Last told to the gate.
    stage_delay: Span,
    /// How many times longer everything takes than it should.
    slowness: f64,
}

/// What a core does.
#[derive(Clone, Copy, Debug)]
enum Work {
    Nothing,
    Receive(MessageId),
    Run(RequestId),
    Send { client: u32, replies: u32 },
}

/// A request inside this node.
#[derive(Clone, Copy, Debug)]
struct Job {
    client: u32,
    call: RequestId,
    service: Span,
}

/// Responses to one client that are ready to be sent.
#[derive(Clone, Debug, Default)]
struct Outbox {
    caller: CallerId,
    /// The workflow answered last: feedback is for it.
    workflow: Workflow,
    /// Whether a core sends, or will.
    busy: bool,
    replies: Vec<Reply>,
    notice: Option<Feedback>,
}

impl Node {
    pub(crate) fn new(index: u32, gate: Gate, cores: u32, costs: MessageCost) -> Self {
        let idle = (0..cores).rev().map(|core| u16::try_from(core).expect("at most 65,536 cores"));
        Self {
            index,
            gate,
            costs,
            cores: vec![Work::Nothing; cores as usize],
            idle: idle.collect(),
            packets: VecDeque::new(),
            ready: VecDeque::new(),
            jobs: Vec::new(),
            outboxes: Vec::new(),
            outgoing: VecDeque::new(),
            news: false,
            armed: Instant::FAR,
            stage_delay: Span::ZERO,
            slowness: 1.0,
        }
    }

    // === events ===

    /// Gets the gate's first wake-up scheduled.
    pub(crate) fn start(&mut self, shared: &mut Shared) {
        self.arm(shared);
    }

    /// A message has reached the network card.
    pub(crate) fn deliver(&mut self, shared: &mut Shared, id: MessageId) {
        shared.messages.get_mut(id).arrived = shared.now();
        shared.count(Fact::Received);
        self.packets.push_back(id);
        self.use_idle_core(shared);
    }

    /// The moment the gate asked for has come.
    pub(crate) fn wake(&mut self, shared: &mut Shared) {
        if self.armed != shared.now() {
            return;
        }
        self.armed = Instant::FAR;
        self.news = true;
        self.use_idle_core(shared);
    }

    /// A core has done what it was doing.
    pub(crate) fn core_done(&mut self, shared: &mut Shared, core: u16) {
        let work = std::mem::replace(&mut self.cores[usize::from(core)], Work::Nothing);
        let answered = match work {
            Work::Nothing => unreachable!("an idle core has nothing to end"),
            Work::Receive(id) => self.received(shared, id),
            Work::Run(id) => self.ran(shared, id),
            Work::Send { client, replies } => self.sent(shared, client, replies),
        };
        match answered {
            Some(client) => self.send(shared, core, client),
            None => self.find_work(shared, core),
        }
    }

    /// Requests in the gate, for conservation.
    pub(crate) fn inside(&self) -> u64 {
        u64::from(self.gate.running()) + self.gate.waiting() as u64
    }

    // === what ends; each returns the client to send to at once, if any ===

    fn received(&mut self, shared: &mut Shared, id: MessageId) -> Option<u32> {
        let now = shared.now();
        let message = shared.messages.get(id);
        let (client, arrived, body) = (message.client, message.arrived, message.body);
        shared.messages.free(id);
        self.tell_stage_delay(shared);
        let (call, context, service) = match body {
            Body::Request { call, context, service } => (call, context, service),
            Body::Report { context } => {
                self.gate.on_report(now, &context);
                self.news = true;
                return None;
            }
            Body::Replies { .. } => unreachable!("replies go to clients"),
        };
        shared.count(Fact::Arrived);
        let outbox = self.outbox(client);
        (outbox.caller, outbox.workflow) = (context.caller, context.workflow);
        self.news = true;
        let verdict = self.gate.arrive_stamped(now, arrived, &context);
        // It may have pushed out another, whose place it now has: that one is answered first.
        self.act(shared);
        match verdict {
            Ok(id) => {
                let job = Job { client, call, service };
                if id.index() >= self.jobs.len() {
                    self.jobs.resize(id.index() + 1, job);
                }
                self.jobs[id.index()] = job;
                None
            }
            Err(rejection) => {
                shared.count(dropped(rejection.reason));
                self.post(client, Reply { call, answer: Answer::Refused(rejection) })
            }
        }
    }

    fn ran(&mut self, shared: &mut Shared, id: RequestId) -> Option<u32> {
        let job = self.jobs[id.index()];
        self.gate.finish(shared.now(), id, Outcome::Serve, Cost::from(job.service));
        self.news = true;
        shared.count(Fact::Served);
        self.post(job.client, Reply { call: job.call, answer: Answer::Done(Outcome::Serve) })
    }

    fn sent(&mut self, shared: &mut Shared, client: u32, replies: u32) -> Option<u32> {
        let now = shared.now();
        let outbox = &mut self.outboxes[client as usize];
        let notice = outbox.notice.take();
        let feedback = if replies == 0 {
            notice
        } else {
            Some(self.gate.feedback(now, outbox.caller, outbox.workflow))
        };
        let message = shared.messages.put(client, self.index, Body::Replies { feedback });
        let carried = outbox.replies.drain(..replies as usize);
        shared.messages.get_mut(message).replies.extend(carried);
        shared.count(Fact::Sent);
        shared.launch_to_client(message);
        outbox.busy = !outbox.replies.is_empty() || outbox.notice.is_some();
        outbox.busy.then_some(client)
    }

    // === what begins ===

    fn use_idle_core(&mut self, shared: &mut Shared) {
        if let Some(core) = self.idle.pop() {
            self.find_work(shared, core);
        }
    }

    fn find_work(&mut self, shared: &mut Shared, core: u16) {
        if !self.take_work(shared, core) {
            if !self.news {
                return self.idle.push(core);
            }
            self.dispatch(shared);
            if !self.take_work(shared, core) {
                return self.idle.push(core);
            }
        }
        // What a dispatch started may be enough for others as well.
        while !(self.ready.is_empty() && self.outgoing.is_empty()) {
            let Some(other) = self.idle.pop() else { break };
            self.take_work(shared, other);
        }
    }

    /// Gives `core` something to do; false if there is nothing.
    fn take_work(&mut self, shared: &mut Shared, core: u16) -> bool {
        if let Some(id) = self.packets.pop_front() {
            self.occupy(shared, core, Work::Receive(id), self.costs.receive);
        } else if let Some(client) = self.outgoing.pop_front() {
            self.send(shared, core, client);
        } else if let Some(id) = self.ready.pop_front() {
            self.occupy(shared, core, Work::Run(id), self.jobs[id.index()].service);
        } else {
            return false;
        }
        true
    }

    fn send(&mut self, shared: &mut Shared, core: u16, client: u32) {
        let replies = self.outboxes[client as usize].replies.len() as u32;
        let more = f64::from(replies.saturating_sub(1));
        let cost = self.costs.send + self.costs.response.scale(more);
        self.occupy(shared, core, Work::Send { client, replies }, cost);
    }

    fn occupy(&mut self, shared: &mut Shared, core: u16, work: Work, cost: Span) {
        let cost = if self.slowness == 1.0 { cost } else { cost.scale(self.slowness) };
        self.cores[usize::from(core)] = work;
        let now = shared.now();
        shared.measure.busy(now, now + cost);
        shared.engine.after(cost, Event::Core { node: self.index, core });
    }

    fn dispatch(&mut self, shared: &mut Shared) {
        self.news = false;
        self.gate.dispatch(shared.now());
        self.act(shared);
        self.arm(shared);
    }

    /// Does what the gate wants done.
    fn act(&mut self, shared: &mut Shared) {
        while let Some(action) = self.gate.poll() {
            match action {
                Action::Start { id, degraded: _ } => self.ready.push_back(id),
                Action::Refuse { id, rejection } => {
                    shared.count(dropped(rejection.reason));
                    let Job { client, call, .. } = self.jobs[id.index()];
                    let reply = Reply { call, answer: Answer::Refused(rejection) };
                    let client = self.post(client, reply);
                    self.outgoing.extend(client);
                }
                Action::Notify { caller, feedback } => {
                    let Some(client) = shared.client_of(caller) else { continue };
                    let outbox = self.outbox(client);
                    outbox.notice = Some(feedback);
                    if !std::mem::replace(&mut outbox.busy, true) {
                        self.outgoing.push_back(client);
                    }
                }
            }
        }
    }

    // === helpers ===

    /// Puts a response into the client's outbox. Returns the client unless someone sends already.
    fn post(&mut self, client: u32, reply: Reply) -> Option<u32> {
        let outbox = self.outbox(client);
        outbox.replies.push(reply);
        (!std::mem::replace(&mut outbox.busy, true)).then_some(client)
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
        if let Some(at) = self.gate.next_wakeup().filter(|at| *at < self.armed) {
            self.armed = at.max(shared.now());
            shared.engine.at(self.armed, Event::Gate { node: self.index });
        }
    }
}

fn dropped(reason: Reason) -> Fact {
    if reason == Reason::Expired { Fact::DroppedLate } else { Fact::Dropped }
}
