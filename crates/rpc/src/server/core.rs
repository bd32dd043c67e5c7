//! The gate of a server with everything its ids stand for, behind one lock.
//!
//! [`Core`] is the loop of every driver cut where threads meet: arrivals and finishes come in from
//! any thread, one dispatch follows, and what may start waits in `ready` for a worker to take it.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use tidegate_core::gate::{Action, Gate};
use tidegate_core::{
    Advice, CallerId, Context, Cost, Feedback, Instant, Outcome, Reason, Rejection, RequestId, Span,
};
use tokio::task::AbortHandle;

use super::conn::Conn;
use crate::handler::Request;
use crate::wire::{self, Goodbye};

/// What the lock of a server protects.
pub(super) struct Core {
    pub(super) gate: Gate,
    /// What the gate's ids stand for, by place.
    table: Vec<Entry>,
    /// What may start, until a worker takes it.
    ready: VecDeque<(RequestId, bool)>,
    /// Handlers that are being called or are about to be, and most that may: what waits for a worker
    /// does so in the gate, where it counts, however many slots there are.
    calling: u32,
    workers: u32,
    /// Connections of callers, for what is told them unasked.
    callers: HashMap<CallerId, Vec<Arc<Conn>>>,
    /// Bytes of payload that wait, and most that may.
    held: usize,
    most_held: usize,
    /// Violations after which a connection is ended.
    strikes: u32,
    /// Whether somebody reads sockets, and how many workers wait for work or for that duty.
    pub(super) led: bool,
    pub(super) idle: usize,
    pub(super) counts: Counts,
}

/// What a server has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Connections accepted.
    pub connections: u64,
    /// Requests read.
    pub requests: u64,
    /// Requests answered, failures included.
    pub answered: u64,
    /// Requests refused.
    pub refused: u64,
    /// Requests given up by their callers, or with their connections.
    pub cancelled: u64,
    /// Connections ended because what they sent could not be read.
    pub malformed: u64,
    /// Requests beyond window and free cursor.
    pub violations: u64,
    /// Handlers that panicked.
    pub panics: u64,
}

enum Entry {
    Free,
    Waiting(Waiting),
    /// It runs; as a task it can be told to stop.
    Running(Option<AbortHandle>),
}

/// A request in the gate.
pub(super) struct Waiting {
    pub(super) conn: Arc<Conn>,
    pub(super) call: u64,
    pub(super) method: u32,
    pub(super) context: Context,
    pub(super) payload: Bytes,
    pub(super) arrived: Instant,
}

/// A request that a worker is to run.
pub(super) struct Job {
    pub(super) claim: Claim,
    pub(super) request: Request,
}

/// A request that runs, and whom to answer.
pub(super) struct Claim {
    pub(super) id: RequestId,
    pub(super) conn: Arc<Conn>,
    pub(super) call: u64,
    pub(super) context: Context,
}

/// Connections that somebody must flush.
pub(super) type Dirty = Vec<Arc<Conn>>;

impl Core {
    pub(super) fn new(gate: Gate, workers: u32, most_held: usize, strikes: u32) -> Self {
        Self {
            gate,
            table: Vec::new(),
            ready: VecDeque::new(),
            calling: 0,
            workers,
            callers: HashMap::new(),
            held: 0,
            most_held,
            strikes,
            led: false,
            idle: 0,
            counts: Counts::default(),
        }
    }

    /// A request has arrived: it waits from here on, or its refusal is written.
    pub(super) fn arrive(&mut self, now: Instant, request: Waiting, dirty: &mut Dirty) {
        self.counts.requests += 1;
        if request.conn.is_gone() {
            return;
        }
        if self.violates(&request, dirty) {
            return;
        }
        let bytes = request.payload.len();
        let full = bytes > 0 && self.held + bytes > self.most_held;
        let answer = if full {
            let (held, most) = ((self.held + bytes) as f64, self.most_held as f64);
            Err(Rejection::new(Reason::Full, held, most, Advice::Elsewhere))
        } else {
            self.gate.arrive_stamped(now, request.arrived, &request.context)
        };
        // It may have pushed somebody out whose place it has now: tell that one first.
        self.drain(now, dirty);
        match answer {
            Ok(id) => {
                self.held += bytes;
                request.conn.lock().begin(request.call, id);
                if self.table.len() <= id.index() {
                    self.table.resize_with(id.index() + 1, || Entry::Free);
                }
                self.table[id.index()] = Entry::Waiting(request);
            }
            Err(rejection) => self.refuse(now, &request, &rejection, dirty),
        }
    }

    /// Refuses a request beyond window and free cursor without asking the gate, and parts with a peer
    /// that keeps sending such.
    fn violates(&mut self, request: &Waiting, dirty: &mut Dirty) -> bool {
        let mut state = request.conn.lock();
        let Some((open, window)) = state.violates(&request.context) else { return false };
        self.counts.violations += 1;
        let parted = state.strike() >= self.strikes;
        drop(state);
        let rejection = Rejection::new(Reason::Credit, open.into(), window.into(), Advice::Never);
        // Without feedback: it has been told, and did not listen.
        self.write_refusal(request, &rejection, None, dirty);
        if parted {
            request.conn.lock().write(|out| wire::write_goodbye(out, Goodbye::Violation));
            request.conn.flush();
            request.conn.end();
        }
        true
    }

    /// Starts what can start, as far as there are workers for it.
    pub(super) fn dispatch(&mut self, now: Instant, dirty: &mut Dirty) {
        self.gate.dispatch_at_most(now, self.workers - self.calling);
        self.drain(now, dirty);
    }

    /// The next request to run.
    pub(super) fn next_job(&mut self) -> Option<Job> {
        let (id, degraded) = self.ready.pop_front()?;
        let entry = std::mem::replace(&mut self.table[id.index()], Entry::Running(None));
        let Entry::Waiting(Waiting { conn, call, method, context, payload, .. }) = entry else {
            unreachable!("what is ready has not been started");
        };
        self.held -= payload.len();
        let request = Request { method, payload, context, degraded };
        Some(Job { claim: Claim { id, conn, call, context }, request })
    }

    pub(super) fn has_jobs(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Whether a dispatch would start something.
    pub(super) fn can_start(&self) -> bool {
        let gate = &self.gate;
        gate.backlog().waiting() > 0 && gate.running() < gate.slots() && self.calling < self.workers
    }

    /// A handler has been called, and its worker is free.
    pub(super) fn called(&mut self) {
        self.calling -= 1;
    }

    /// A request that ran as a task can be stopped by this.
    pub(super) fn running_as(&mut self, id: RequestId, task: AbortHandle) {
        if let Some(entry @ Entry::Running(_)) = self.table.get_mut(id.index()) {
            *entry = Entry::Running(Some(task));
        }
    }

    /// A request was served or failed, after running for `took`. What to tell its caller.
    pub(super) fn finish(
        &mut self,
        now: Instant,
        claim: &Claim,
        outcome: Outcome,
        took: Span,
    ) -> Option<Feedback> {
        self.counts.answered += 1;
        self.gate.finish(now, claim.id, outcome, Cost::from(took.max(Span::from_nanos(1))));
        self.table[claim.id.index()] = Entry::Free;
        self.feedback(now, &claim.context)
    }

    /// A task was dropped before its end.
    pub(super) fn drop_running(&mut self, now: Instant, id: RequestId) {
        self.counts.cancelled += 1;
        self.gate.cancel(now, id);
        self.table[id.index()] = Entry::Free;
    }

    /// The answer is not wanted any more. What runs on a worker goes on; what runs as a task is
    /// stopped, which must not happen under the lock: the handle is returned.
    #[must_use = "the task is to be stopped"]
    pub(super) fn cancel(&mut self, now: Instant, id: RequestId) -> Option<AbortHandle> {
        match self.table.get_mut(id.index())? {
            Entry::Running(task) => task.take(),
            entry @ Entry::Waiting(_) => {
                if let Entry::Waiting(waiting) = std::mem::replace(entry, Entry::Free) {
                    self.held -= waiting.payload.len();
                }
                let ready = self.ready.len();
                self.ready.retain(|(ready, _)| *ready != id);
                self.calling -= u32::from(self.ready.len() < ready);
                self.counts.cancelled += 1;
                self.gate.cancel(now, id);
                None
            }
            Entry::Free => None,
        }
    }

    /// A caller tells its demand and sheds.
    pub(super) fn report(&mut self, now: Instant, context: &Context) {
        self.gate.on_report(now, context);
    }

    /// A connection speaks for `caller` from now on.
    pub(super) fn register(&mut self, caller: CallerId, conn: &Arc<Conn>) {
        self.callers.entry(caller).or_default().push(Arc::clone(conn));
    }

    /// A connection does so no longer. With its last one a caller's credits return to the pool.
    pub(super) fn deregister(&mut self, now: Instant, caller: CallerId, conn: &Arc<Conn>) {
        let Some(conns) = self.callers.get_mut(&caller) else { return };
        conns.retain(|other| !Arc::ptr_eq(other, conn));
        if conns.is_empty() {
            self.callers.remove(&caller);
            self.gate.on_gone(now, caller);
        }
    }

    /// Refuses everything that waits, and returns the tasks that are to be stopped: the time to
    /// finish is over.
    pub(super) fn give_up(&mut self, now: Instant, dirty: &mut Dirty) -> Vec<AbortHandle> {
        let mut tasks = Vec::new();
        self.calling -= self.ready.len() as u32;
        self.ready.clear();
        for place in 0..self.table.len() {
            match &mut self.table[place] {
                Entry::Free => {}
                Entry::Running(task) => tasks.extend(task.take()),
                entry @ Entry::Waiting(_) => {
                    let Entry::Waiting(waiting) = std::mem::replace(entry, Entry::Free) else {
                        unreachable!("looked at above");
                    };
                    self.held -= waiting.payload.len();
                    let id = waiting.conn.lock().finish(waiting.call);
                    id.into_iter().for_each(|id| self.gate.cancel(now, id));
                    let rejection = Rejection::new(Reason::Draining, 1.0, 0.0, Advice::Elsewhere);
                    self.refuse(now, &waiting, &rejection, dirty);
                }
            }
        }
        tasks
    }

    /// Writes a refusal.
    pub(super) fn refuse(
        &mut self,
        now: Instant,
        request: &Waiting,
        rejection: &Rejection,
        dirty: &mut Dirty,
    ) {
        let feedback = self.feedback(now, &request.context);
        self.write_refusal(request, rejection, feedback.as_ref(), dirty);
    }

    fn write_refusal(
        &mut self,
        request: &Waiting,
        rejection: &Rejection,
        feedback: Option<&Feedback>,
        dirty: &mut Dirty,
    ) {
        self.counts.refused += 1;
        let mut state = request.conn.lock();
        feedback.iter().for_each(|feedback| state.tell(feedback));
        if state.write(|out| wire::write_refusal(out, request.call, rejection, feedback)) {
            dirty.push(Arc::clone(&request.conn));
        }
    }

    fn drain(&mut self, now: Instant, dirty: &mut Dirty) {
        while let Some(action) = self.gate.poll() {
            match action {
                Action::Start { id, degraded } => {
                    self.calling += 1;
                    self.ready.push_back((id, degraded));
                }
                Action::Refuse { id, rejection } => {
                    let entry = std::mem::replace(&mut self.table[id.index()], Entry::Free);
                    let Entry::Waiting(waiting) = entry else {
                        unreachable!("only what waits is refused");
                    };
                    self.held -= waiting.payload.len();
                    waiting.conn.lock().finish(waiting.call);
                    self.refuse(now, &waiting, &rejection, dirty);
                }
                Action::Notify { caller, feedback } => self.notify(caller, &feedback, dirty),
            }
        }
    }

    /// Tells a caller over one of its connections.
    fn notify(&mut self, caller: CallerId, feedback: &Feedback, dirty: &mut Dirty) {
        let Some(conn) = self.callers.get(&caller).and_then(|conns| conns.last()) else { return };
        let mut state = conn.lock();
        state.tell(feedback);
        if state.write(|out| wire::write_feedback(out, feedback)) {
            dirty.push(Arc::clone(conn));
        }
    }

    /// Feedback goes to those who said who they are: others could not use it.
    fn feedback(&mut self, now: Instant, context: &Context) -> Option<Feedback> {
        (context.caller != CallerId::UNKNOWN)
            .then(|| self.gate.feedback(now, context.caller, context.workflow))
    }
}
