//! The gate of a server with everything its ids stand for, behind one lock.
//!
//! [`Core`] is the loop of every driver cut where threads meet: arrivals and finishes come in from
//! any thread, one dispatch follows, and what may start waits in `ready` for a worker to take it.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use tidegate_core::gate::{Action, Gate};
use tidegate_core::{
    Advice, CallerId, Context, Cost, Feedback, Instant, Outcome, Reason, Rejection, RequestId, Span,
};
use tokio::task::AbortHandle;

use super::bounds::Bounds;
use super::conn::Conn;
use super::table::{Entry, Running, Table, Waiting};
use crate::error::full;
use crate::handler::{Answer, Request};
use crate::wire::{self, Failure, Goodbye};

/// What the lock of a server protects.
pub(super) struct Core {
    pub(super) gate: Gate,
    /// What the gate's ids stand for.
    table: Table,
    /// What may start, until a worker takes it.
    ready: VecDeque<(RequestId, bool)>,
    /// Handlers that are being called or are about to be, and most that may: what waits for a worker
    /// does so in the gate, where it counts, however many slots there are.
    calling: u32,
    workers: u32,
    /// Connections of callers, for what is told them unasked.
    callers: HashMap<CallerId, Vec<Arc<Conn>>>,
    bounds: Arc<Bounds>,
    /// Most bytes of an answer.
    payload: usize,
    /// Violations after which a connection is ended.
    strikes: u32,
    /// Threads that have not ended.
    pub(super) threads: usize,
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
    /// Requests given up by their callers, or with their connections, or by the end of the server.
    pub cancelled: u64,
    /// Connections ended because what they sent could not be read.
    pub malformed: u64,
    /// Requests beyond window and free cursor.
    pub violations: u64,
    /// Handlers that panicked.
    pub panics: u64,
}

/// A request that a worker is to run.
pub(super) struct Job {
    pub(super) id: RequestId,
    pub(super) request: Request,
}

/// What a request took.
#[derive(Clone, Copy)]
pub(super) struct Took {
    /// It had its slot for so long.
    pub(super) slot: Span,
    /// And worked itself for so long of that: the rest it waited for others.
    pub(super) worked: Span,
}

impl Took {
    /// Of a handler that runs to completion.
    pub(super) fn all(span: Span) -> Self {
        Self { slot: span, worked: span }
    }
}

/// Connections that somebody must flush.
pub(super) type Dirty = Vec<Arc<Conn>>;

impl Core {
    pub(super) fn new(
        gate: Gate,
        workers: usize,
        payload: usize,
        strikes: u32,
        bounds: Arc<Bounds>,
    ) -> Self {
        Self {
            gate,
            table: Table::default(),
            ready: VecDeque::new(),
            calling: 0,
            workers: u32::try_from(workers).unwrap_or(u32::MAX),
            callers: HashMap::new(),
            bounds,
            payload,
            strikes,
            threads: 0,
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
        if self.violates(now, &request, dirty) {
            return;
        }
        let bytes = request.payload.len();
        let answer = if bytes > 0 && self.bounds.kept() + bytes > self.bounds.held {
            Err(full(self.gate.waiting()))
        } else {
            self.gate.arrive_stamped(now, request.arrived, &request.context)
        };
        // It may have pushed somebody out whose place it has now: tell that one first.
        self.drain(now, dirty);
        match answer {
            Ok(id) => {
                self.bounds.hold(bytes);
                request.conn.lock().begin(request.call, id);
                self.table.wait(id, request);
            }
            Err(rejection) => self.refuse(now, &request, &rejection, dirty),
        }
    }

    /// Refuses a request beyond window and free cursor without asking the gate, and parts with a peer
    /// that keeps sending such.
    fn violates(&mut self, now: Instant, request: &Waiting, dirty: &mut Dirty) -> bool {
        let mut state = request.conn.lock();
        let Some((open, window)) = state.violates(&request.context) else { return false };
        self.counts.violations += 1;
        let parted = state.strike(now) >= self.strikes;
        drop(state);
        let rejection = Rejection::new(Reason::Credit, open.into(), window.into(), Advice::Never);
        // Without feedback: it has been told, and did not listen.
        self.write_refusal(now, request, &rejection, None, dirty);
        if parted {
            request.conn.part(Goodbye::Violation);
        }
        true
    }

    /// Starts what can start, as far as there are workers for it.
    pub(super) fn dispatch(&mut self, now: Instant, dirty: &mut Dirty) {
        loop {
            self.gate.dispatch_at_most(now, self.workers - self.calling);
            if !self.drain(now, dirty) {
                return;
            }
        }
    }

    /// The next request to run.
    pub(super) fn next_job(&mut self) -> Option<Job> {
        let (id, degraded) = self.ready.pop_front()?;
        let Waiting { conn, call, method, context, payload, .. } = self.take_waiting(id);
        self.table.run(Running { id, conn, call, context, task: None, unwanted: false });
        Some(Job { id, request: Request { method, payload, context, degraded } })
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

    /// A request that runs as a task can be stopped by this; now, if it is returned.
    #[must_use = "the task may have to be stopped"]
    pub(super) fn running_as(&mut self, id: RequestId, task: AbortHandle) -> Option<AbortHandle> {
        let running = self.table.running(id)?;
        if running.unwanted {
            return Some(task);
        }
        running.task = Some(task);
        None
    }

    /// A request was served or failed: tells the gate, and writes the answer.
    pub(super) fn finish(
        &mut self,
        now: Instant,
        id: RequestId,
        answer: Answer,
        took: Took,
        dirty: &mut Dirty,
    ) {
        let Some(Running { conn, call, context, .. }) = self.table.take_running(id) else { return };
        let answer = fit(answer, self.payload);
        let outcome = if answer.is_ok() { Outcome::Serve } else { Outcome::Fail };
        self.gate.on_step(now, id, took.worked);
        let done = self.gate.done(id).unwrap_or_default();
        if outcome == Outcome::Serve {
            self.gate.learn_total(id);
        }
        self.gate.finish(now, id, outcome, Cost::from(took.slot.max(Span::from_nanos(1))));
        let mut state = conn.lock();
        if state.finish(call).is_none() {
            // Cancelled meanwhile: nobody wants to hear it.
            self.counts.cancelled += 1;
            return;
        }
        self.counts.answered += 1;
        let feedback = self.feedback(now, &conn, &context);
        let feedback = feedback.map(|feedback| Feedback { progress: done, ..feedback });
        feedback.iter().for_each(|feedback| state.tell(now, feedback));
        let clean = conn.write(&mut state, |out| match &answer {
            Ok(payload) => wire::write_answer(out, call, feedback.as_ref(), payload),
            Err(failure) => wire::write_failure(out, call, failure, feedback.as_ref()),
        });
        drop(state);
        if clean {
            dirty.push(conn);
        }
    }

    /// A task is not to go on, or was dropped before its end: its caller is told, if it still waits.
    pub(super) fn give_up_task(&mut self, now: Instant, id: RequestId, dirty: &mut Dirty) {
        let Some(Running { conn, call, .. }) = self.table.take_running(id) else { return };
        self.counts.cancelled += 1;
        self.gate.cancel(now, id);
        let mut state = conn.lock();
        if state.finish(call).is_none() {
            return;
        }
        let failure = Failure::new(Failure::STOPPED, "the server stopped");
        let clean = conn.write(&mut state, |out| wire::write_failure(out, call, &failure, None));
        drop(state);
        if clean {
            dirty.push(conn);
        }
    }

    /// The answer is not wanted any more. What runs on a worker goes on; what runs as a task is
    /// stopped, which must not happen under the lock: the handle is returned.
    #[must_use = "the task is to be stopped"]
    pub(super) fn cancel(&mut self, now: Instant, id: RequestId) -> Option<AbortHandle> {
        if let Some(running) = self.table.running(id) {
            running.unwanted = true;
            return running.task.take();
        }
        if self.table.waiting(id).is_some() {
            self.take_waiting(id);
            let ready = self.ready.len();
            self.ready.retain(|(ready, _)| *ready != id);
            self.calling -= u32::from(self.ready.len() < ready);
            self.counts.cancelled += 1;
            self.gate.cancel(now, id);
        }
        None
    }

    fn take_waiting(&mut self, id: RequestId) -> Waiting {
        let waiting = self.table.take_waiting(id);
        self.bounds.let_go(waiting.payload.len());
        waiting
    }

    /// A caller tells its demand and sheds.
    pub(super) fn report(&mut self, now: Instant, context: &Context) {
        self.gate.on_report(now, context);
    }

    /// A connection speaks for `caller` from now on.
    pub(super) fn register(&mut self, caller: CallerId, conn: &Arc<Conn>) {
        conn.speak_for(caller);
        self.callers.entry(caller).or_default().push(Arc::clone(conn));
    }

    /// A connection does so no longer. With its last one a caller's credits return to the pool.
    pub(super) fn deregister(&mut self, now: Instant, caller: CallerId, conn: &Arc<Conn>) {
        if conn.caller() == caller {
            conn.speak_for(CallerId::UNKNOWN);
        }
        let Some(conns) = self.callers.get_mut(&caller) else { return };
        conns.retain(|other| !Arc::ptr_eq(other, conn));
        if conns.is_empty() {
            self.callers.remove(&caller);
            self.gate.on_gone(now, caller);
        }
    }

    /// Refuses everything that waits and fails what runs as tasks, which are returned to be stopped:
    /// the time to finish is over.
    pub(super) fn give_up(&mut self, now: Instant, dirty: &mut Dirty) -> Vec<AbortHandle> {
        let mut tasks = Vec::new();
        self.calling -= self.ready.len() as u32;
        self.ready.clear();
        for place in 0..self.table.places() {
            match self.table.at(place) {
                Entry::Free => {}
                Entry::Running(running) => {
                    running.unwanted = true;
                    let (id, task) = (running.id, running.task.take());
                    if task.is_some() {
                        tasks.extend(task);
                        self.give_up_task(now, id, dirty);
                    }
                }
                Entry::Waiting(waiting) => {
                    let Some(id) = waiting.conn.lock().finish(waiting.call) else { continue };
                    self.gate.cancel(now, id);
                    let waiting = self.take_waiting(id);
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
        let feedback = self.feedback(now, &request.conn, &request.context);
        self.write_refusal(now, request, rejection, feedback.as_ref(), dirty);
    }

    fn write_refusal(
        &mut self,
        now: Instant,
        request: &Waiting,
        rejection: &Rejection,
        feedback: Option<&Feedback>,
        dirty: &mut Dirty,
    ) {
        self.counts.refused += 1;
        let (conn, call) = (&request.conn, request.call);
        let mut state = conn.lock();
        feedback.iter().for_each(|feedback| state.tell(now, feedback));
        if conn.write(&mut state, |out| wire::write_refusal(out, call, rejection, feedback)) {
            dirty.push(Arc::clone(conn));
        }
    }

    /// Does what the gate says. True if something was let in and turned away all the same, so that
    /// others can start in its place.
    fn drain(&mut self, now: Instant, dirty: &mut Dirty) -> bool {
        let mut turned_away = false;
        while let Some(action) = self.gate.poll() {
            match action {
                Action::Start { id, degraded } => match self.open_on_a_full_connection(id) {
                    Some(open) => {
                        turned_away = true;
                        self.gate.cancel(now, id);
                        self.turn_away(now, id, &full(open - 1), dirty);
                    }
                    None => {
                        self.calling += 1;
                        self.ready.push_back((id, degraded));
                    }
                },
                Action::Refuse { id, rejection } => self.turn_away(now, id, &rejection, dirty),
                Action::Notify { caller, feedback } => self.notify(now, caller, &feedback, dirty),
            }
        }
        turned_away
    }

    /// Whether the answer could not be sent, for its peer does not even take those there are: how many
    /// requests that has open.
    fn open_on_a_full_connection(&self, id: RequestId) -> Option<usize> {
        let conn = &self.table.waiting(id)?.conn;
        if conn.is_full() {
            // It may have taken some since they were last offered.
            conn.flush();
        }
        conn.is_full().then(|| conn.lock().open())
    }

    /// Refuses what waits.
    fn turn_away(&mut self, now: Instant, id: RequestId, why: &Rejection, dirty: &mut Dirty) {
        let waiting = self.take_waiting(id);
        waiting.conn.lock().finish(waiting.call);
        self.refuse(now, &waiting, why, dirty);
    }

    /// Tells a caller over one of its connections, unless it does not read what it was told before.
    fn notify(&self, now: Instant, caller: CallerId, feedback: &Feedback, dirty: &mut Dirty) {
        let Some(conn) = self.callers.get(&caller).and_then(|conns| conns.last()) else { return };
        if conn.is_full() {
            return;
        }
        let mut state = conn.lock();
        state.tell(now, feedback);
        if conn.write(&mut state, |out| wire::write_feedback(out, feedback)) {
            dirty.push(Arc::clone(conn));
        }
    }

    /// Feedback goes to those who said who they are: others could not use it. Who has left since is no
    /// caller any more, and must not become one by it.
    fn feedback(&mut self, now: Instant, conn: &Conn, context: &Context) -> Option<Feedback> {
        let caller = context.caller;
        (caller != CallerId::UNKNOWN && caller == conn.caller())
            .then(|| self.gate.feedback(now, caller, context.workflow))
    }
}

/// The answer, or a failure in place of one that its caller could not read.
fn fit(answer: Answer, most: usize) -> Answer {
    let answer = answer.and_then(|payload| match payload.len() {
        bytes if bytes <= most => Ok(payload),
        bytes => {
            let message = format!("the answer has {bytes} bytes, {most} are allowed");
            Err(Failure::new(Failure::TOO_LARGE, message))
        }
    });
    answer.map_err(|mut failure| {
        failure.message.truncate(failure.message.floor_char_boundary(most));
        failure
    })
}

#[cfg(test)]
mod tests;
