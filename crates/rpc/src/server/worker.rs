//! The loop of a server's threads.
//!
//! ```text
//!    ┌─► read and parse everything that is ready        by the thread that leads
//!    │   tell the gate, dispatch once
//!    │   hand on the lead
//!    │   run what may start, until 50 µs have passed    each finish dispatches
//!    └── write the answers, one write per connection
//! ```
//!
//! One thread at a time *leads*: it waits for sockets and reads them. To run a handler it hands the
//! lead on, if there is another thread to take it; so with several threads a long handler never keeps
//! requests unread. A single thread reads again after each handler, or after 50 µs of short ones.
//! A finish after which sockets will be read first does not dispatch: what came in meanwhile has its
//! say in who is next.

use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use tidegate_core::{Context, Instant, RequestId, Span};
use tidegate_driver::context::{self, Parent};
use tokio::task::AbortHandle;

use super::core::{Core, Dirty, Job, Took};
use super::half::Input;
use super::reader::Reader;
use super::{Shared, Stage};
use crate::handler::{Answer, Reply, Working};
use crate::wire::Failure;

/// How long handlers run before sockets are read again.
const SLICE: Span = Span::from_micros(50);
/// Longest wait for an event: sweeps are due now and then.
const LONGEST_WAIT: Duration = Duration::from_millis(250);
/// The same while the server stops: peers are parted with, and the grace ends.
const LONGEST_LAST_WAIT: Duration = Duration::from_millis(10);
/// How long answers may take to be written after the grace.
const LAST_WRITES: Span = Span::from_secs(1);

/// Runs until the server has stopped.
pub(super) fn work(shared: &Arc<Shared>) {
    let (mut inputs, mut dirty) = (Vec::new(), Dirty::new());
    while let Some(job) = next(shared, &mut inputs, &mut dirty) {
        if let Some(job) = job {
            run(shared, job, &mut dirty);
        }
        flush(&mut dirty);
    }
    shared.lock().threads -= 1;
    shared.ended.notify_all();
}

/// The next job: by leading, or by waiting for what the leader finds. The outer none is the end.
fn next(shared: &Arc<Shared>, inputs: &mut Vec<Input>, dirty: &mut Dirty) -> Option<Option<Job>> {
    let mut core = shared.lock();
    loop {
        if shared.stage() == Stage::Over {
            return None;
        }
        if !core.led {
            core.led = true;
            let wait = wait(shared, &core);
            drop(core);
            return Some(lead(shared, wait, inputs, dirty));
        }
        // Somebody else reads; what a finish left undone is done here.
        core.dispatch(shared.now(), dirty);
        if core.has_jobs() {
            let job = core.next_job();
            shared.rouse(&core);
            return Some(job);
        }
        if !dirty.is_empty() {
            return Some(None);
        }
        core.idle += 1;
        core = shared.bell.wait(core).unwrap_or_else(PoisonError::into_inner);
        core.idle -= 1;
    }
}

/// How long to wait for sockets: not at all while there is work.
fn wait(shared: &Shared, core: &Core) -> Duration {
    if core.has_jobs() || core.can_start() {
        return Duration::ZERO;
    }
    let longest = if shared.stage() == Stage::Serving { LONGEST_WAIT } else { LONGEST_LAST_WAIT };
    let wakeup = core.gate.next_wakeup();
    wakeup.map_or(longest, |at| Duration::from(at.since(shared.now())).min(longest))
}

/// One pass over the sockets and one step of the gate; then the lead is free for another thread.
fn lead(
    shared: &Arc<Shared>,
    wait: Duration,
    inputs: &mut Vec<Input>,
    dirty: &mut Dirty,
) -> Option<Job> {
    let mut reader = shared.reader();
    let (now, delay) = reader.pass(wait, shared.clock(), inputs);
    // Tasks are stopped after the lock: to drop one takes it.
    let mut tasks = Vec::new();
    let mut core = shared.lock();
    core.gate.on_stage_delay(now, delay);
    for input in inputs.drain(..) {
        match input {
            Input::Request(request) => core.arrive(now, request, dirty),
            Input::Register(caller, conn) => core.register(caller, &conn),
            Input::Report(context) => core.report(now, &context),
            Input::Cancel(conn, call) => {
                let id = conn.lock().finish(call);
                tasks.extend(id.and_then(|id| core.cancel(now, id)));
            }
            Input::Gone(caller, conn) => core.deregister(now, caller, &conn),
            Input::Dead(conn) => {
                let ids = conn.lock().finish_all();
                tasks.extend(ids.into_iter().filter_map(|id| core.cancel(now, id)));
            }
            Input::RoundTrip(span) => core.gate.on_round_trip(now, span),
            Input::Malformed => core.counts.malformed += 1,
            Input::Accepted => core.counts.connections += 1,
        }
    }
    close_down(shared, &mut core, &mut reader, now, dirty, &mut tasks);
    core.dispatch(now, dirty);
    let job = core.next_job();
    core.led = false;
    drop(reader);
    shared.rouse(&core);
    drop(core);
    tasks.iter().for_each(AbortHandle::abort);
    job
}

/// What there is to do about an end that was asked for.
fn close_down(
    shared: &Shared,
    core: &mut Core,
    reader: &mut Reader,
    now: Instant,
    dirty: &mut Dirty,
    tasks: &mut Vec<AbortHandle>,
) {
    match shared.stage() {
        Stage::Serving | Stage::Over => return,
        Stage::Asked => {
            core.gate.drain();
            reader.say_goodbye(now);
            shared.enter(Stage::Draining);
        }
        Stage::Draining => {}
    }
    let late = now >= shared.grace_ends();
    if late {
        tasks.extend(core.give_up(now, dirty));
        flush(dirty);
    }
    let empty = core.gate.running() == 0 && core.gate.waiting() == 0 && !core.has_jobs();
    // What peers sent before they heard the goodbye is read and refused, unless time is up. Who does
    // not take the last answers in time loses them.
    let over = match late {
        false => reader.part(now),
        true => reader.is_clean() || now >= shared.grace_ends() + LAST_WRITES,
    };
    if empty && over {
        reader.close();
        shared.enter(Stage::Over);
    }
}

/// Runs a job and what may start after it, for a slice of time.
fn run(shared: &Arc<Shared>, first: Job, dirty: &mut Dirty) {
    let begun = shared.now();
    let (mut job, mut started) = (first, begun);
    loop {
        let Job { id, request } = job;
        let parent = shared.parent(id, Span::ZERO, started);
        let entered = context::enter_for(request.context, Some(parent));
        let context = request.context;
        let reply = catch_unwind(AssertUnwindSafe(|| shared.handler.call(request)));
        drop(entered);
        let now = shared.now();
        let mut core = match reply {
            Ok(Reply::Later(working)) => {
                let worked = now.since(started);
                spawn(shared, id, Later { context, working, worked, started: now }, dirty);
                shared.lock()
            }
            Ok(Reply::Now(answer)) => {
                let mut core = shared.lock();
                core.finish(now, id, answer, Took::all(now.since(started)), dirty);
                core
            }
            Err(_) => {
                let mut core = shared.lock();
                core.finish(now, id, Err(panicked()), Took::all(now.since(started)), dirty);
                core.counts.panics += 1;
                core
            }
        };
        core.called();
        if now.since(begun) >= SLICE && !core.led {
            return;
        }
        core.dispatch(now, dirty);
        // While somebody else leads, this thread goes on by the outer loop, after writing.
        if now.since(begun) >= SLICE {
            return;
        }
        let Some(next) = core.next_job() else { return };
        (job, started) = (next, now);
    }
}

fn panicked() -> Failure {
    Failure::new(Failure::PANIC, "the handler panicked")
}

/// A request that goes on as a task.
struct Later {
    context: Context,
    working: Working,
    /// What its handler has done before.
    worked: Span,
    started: Instant,
}

fn spawn(shared: &Arc<Shared>, id: RequestId, later: Later, dirty: &mut Dirty) {
    let Later { context, working, worked, started } = later;
    let Some(runtime) = &shared.runtime else {
        let message = "an async handler needs a server started in a tokio runtime";
        let answer = Err(Failure::new(Failure::NO_RUNTIME, message));
        return shared.lock().finish(started, id, answer, Took::all(worked), dirty);
    };
    let mut task = Task { shared: Arc::clone(shared), id: Some(id), started, worked };
    let mut working = Guarded(working);
    let future = async move {
        let answer = poll_fn(|cx| {
            let since = task.shared.now();
            let parent = task.shared.parent(id, task.worked, since);
            let _entered = context::enter_for(context, Some(parent));
            let poll = Pin::new(&mut working).poll(cx);
            task.worked += task.shared.now().since(since);
            poll
        });
        let answer = answer.await;
        task.end(answer);
    };
    let handle = runtime.spawn(future).abort_handle();
    let unwanted = shared.lock().running_as(id, handle);
    unwanted.iter().for_each(AbortHandle::abort);
}

/// A future whose panic is a failure.
struct Guarded(Working);

impl Future for Guarded {
    type Output = Answer;

    fn poll(
        mut self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Answer> {
        let poll = catch_unwind(AssertUnwindSafe(|| self.0.as_mut().poll(cx)));
        poll.unwrap_or_else(|_| std::task::Poll::Ready(Err(panicked())))
    }
}

/// A request that runs as a task. Dropped before its end it is cancelled, and its slot goes on.
struct Task {
    shared: Arc<Shared>,
    /// None once it has ended.
    id: Option<RequestId>,
    started: Instant,
    /// What it has done so far, waiting aside.
    worked: Span,
}

impl Task {
    fn end(&mut self, answer: Answer) {
        let panicked = matches!(&answer, Err(failure) if failure.code == Failure::PANIC);
        let Self { started, worked, .. } = *self;
        self.settle(|core, now, id, dirty| {
            let took = Took { slot: now.since(started), worked };
            core.finish(now, id, answer, took, dirty);
            core.counts.panics += u64::from(panicked);
        });
    }

    /// Tells the gate, and starts what can start then.
    fn settle(&mut self, end: impl FnOnce(&mut Core, Instant, RequestId, &mut Dirty)) {
        let Some(id) = self.id.take() else { return };
        let (shared, now, mut dirty) = (&self.shared, self.shared.now(), Dirty::new());
        let mut core = shared.lock();
        end(&mut core, now, id, &mut dirty);
        core.dispatch(now, &mut dirty);
        shared.rouse(&core);
        drop(core);
        flush(&mut dirty);
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.settle(Core::give_up_task);
    }
}

/// Writes what is to be written, one write per connection.
pub(super) fn flush(dirty: &mut Dirty) {
    for conn in dirty.drain(..) {
        conn.flush();
    }
}

impl Shared {
    /// Whom the calls of a handler are made for.
    fn parent(&self, request: RequestId, worked: Span, since: Instant) -> Parent {
        Parent { gate: self.id, request, worked, since }
    }

    /// Sees to it that somebody takes what is ready, and that somebody leads.
    fn rouse(&self, core: &Core) {
        if core.idle > 0 {
            if !core.led || core.has_jobs() {
                self.bell.notify_one();
            }
        } else if core.led && core.has_jobs() {
            // The leader waits for sockets; it is to look at what is ready.
            self.bounds.wake();
        }
    }
}
