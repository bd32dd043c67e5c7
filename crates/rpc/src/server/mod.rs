//! The server: accept, read, parse, gate, execute, respond.

mod bounds;
mod builder;
mod conn;
mod core;
mod half;
mod reader;
mod table;
mod worker;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use tidegate_core::context::{Sheds, Workflow};
use tidegate_core::gate::{CalleeId, Gate};
use tidegate_core::{Feedback, GateId, Instant, Progress, Span};
use tidegate_driver::Clock;
use tidegate_driver::context::Parent;
use tokio::runtime::Handle;

use self::bounds::Bounds;
use self::core::Core;
use crate::client::{Upstream, upstream};
use crate::handler::Handler;
pub use builder::ServerBuilder;
pub use core::Counts;
use reader::Reader;

/// A server that runs. Dropping it stops it without grace.
#[derive(Debug)]
pub struct Server {
    shared: Arc<Shared>,
    address: SocketAddr,
    threads: Vec<JoinHandle<()>>,
}

impl Server {
    /// A server with defaults.
    pub fn builder() -> ServerBuilder {
        ServerBuilder::default()
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its gate.
    pub fn gate(&self) -> RpcGate {
        RpcGate { inner: Arc::clone(&self.shared.inner) }
    }

    /// What it has done so far.
    pub fn counts(&self) -> Counts {
        self.shared.lock().counts
    }

    /// Stops: accepts nothing new, tells its callers, finishes what it has let in, and refuses what
    /// they sent before they heard of it. After `grace` what still waits is refused, and tasks that
    /// still run are stopped and their callers told. Returns when all is written, at the latest
    /// two seconds after the grace: a handler that runs on then is left alone with its thread.
    ///
    /// It blocks its thread; in async code use [`close`](Self::close), or tasks of this thread are
    /// not finished but stopped.
    pub fn stop(mut self, grace: Duration) {
        self.end(grace);
    }

    /// The same without blocking, from within a tokio runtime.
    pub async fn close(self, grace: Duration) {
        // A panic in there has been reported by std.
        let _ = tokio::task::spawn_blocking(move || self.stop(grace)).await;
    }

    fn end(&mut self, grace: Duration) {
        if self.threads.is_empty() {
            return;
        }
        let shared = &self.shared;
        shared.ask_to_stop(grace);
        let waits = grace.saturating_add(LATEST);
        let ended = shared.ended.wait_timeout_while(shared.lock(), waits, |core| core.threads > 0);
        let left = ended.unwrap_or_else(PoisonError::into_inner).0.threads;
        if left > 0 {
            // A handler does not return; without it nobody may be left to close down.
            shared.enter(Stage::Over);
            shared.reader().close();
        }
        for thread in self.threads.drain(..).filter(|_| left == 0) {
            // A worker catches the panics of handlers; one of its own has been reported by std.
            let _ = thread.join();
        }
    }
}

/// How long after its grace a server has ended at the latest: a second for the last writes, and one for
/// the machine.
const LATEST: Duration = Duration::from_secs(2);

impl Drop for Server {
    fn drop(&mut self) {
        self.end(Duration::ZERO);
    }
}

/// The gate of a server: to look at, to tell things, and to hear of services further down.
#[derive(Clone)]
pub struct RpcGate {
    inner: Arc<Inner>,
}

impl RpcGate {
    /// Looks at the gate.
    pub fn read<R>(&self, look: impl FnOnce(&Gate) -> R) -> R {
        look(&self.inner.lock().gate)
    }

    /// Tells the gate something: utilization, a new configuration.
    pub fn input<R>(&self, input: impl FnOnce(&mut Gate, Instant) -> R) -> R {
        let now = self.inner.clock.now();
        input(&mut self.inner.lock().gate, now)
    }
}

impl std::fmt::Debug for RpcGate {
    /// Without the lock, so that it can be shown from anywhere.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RpcGate").finish_non_exhaustive()
    }
}

impl Upstream for RpcGate {
    fn on_call(&self, callee: CalleeId, workflow: Workflow) -> Sheds {
        self.input(|gate, now| upstream::call(gate, now, callee, workflow))
    }

    fn progress(&self, parent: &Parent) -> Option<Progress> {
        let now = self.inner.clock.now();
        self.read(|gate| parent.progress(gate, now))
    }

    fn on_downstream(
        &self,
        callee: CalleeId,
        workflow: Workflow,
        parent: Option<&Parent>,
        feedback: &Feedback,
    ) {
        self.input(|gate, now| upstream::hear(gate, now, callee, workflow, parent, feedback));
    }
}

/// The gate with all that waits and runs, and the clock it goes by.
struct Inner {
    clock: Box<dyn Clock>,
    core: Mutex<Core>,
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, Core> {
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What all threads of a server have in common.
struct Shared {
    inner: Arc<Inner>,
    /// Who the gate is.
    id: GateId,
    handler: Box<dyn Handler>,
    /// Where async handlers run.
    runtime: Option<Handle>,
    reader: Mutex<Reader>,
    /// Rings for threads that wait for work or for the lead.
    bell: Condvar,
    /// Rings for who waits for the end.
    ended: Condvar,
    bounds: Arc<Bounds>,
    stage: AtomicU8,
    /// When the time to finish is over, in nanoseconds of the clock.
    grace_ends: AtomicU64,
}

/// How far a server is on its way to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Stage {
    Serving,
    /// Somebody wants it to stop.
    Asked,
    /// Nothing new is accepted.
    Draining,
    Over,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Core> {
        self.inner.lock()
    }

    fn clock(&self) -> &dyn Clock {
        &*self.inner.clock
    }

    fn now(&self) -> Instant {
        self.inner.clock.now()
    }

    fn reader(&self) -> MutexGuard<'_, Reader> {
        self.reader.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn stage(&self) -> Stage {
        match self.stage.load(Ordering::Relaxed) {
            0 => Stage::Serving,
            1 => Stage::Asked,
            2 => Stage::Draining,
            _ => Stage::Over,
        }
    }

    fn enter(&self, stage: Stage) {
        self.stage.store(stage as u8, Ordering::Relaxed);
        if stage == Stage::Over {
            self.bell.notify_all();
        }
    }

    fn grace_ends(&self) -> Instant {
        Instant::from_nanos(self.grace_ends.load(Ordering::Relaxed))
    }

    fn ask_to_stop(&self, grace: Duration) {
        let ends = self.now() + Span::from(grace);
        self.grace_ends.store(ends.since(Instant::ZERO).as_nanos(), Ordering::Relaxed);
        if self.stage() == Stage::Serving {
            self.enter(Stage::Asked);
        }
        self.bounds.wake();
    }
}

impl std::fmt::Debug for Shared {
    /// Without the lock, so that a server can be shown from anywhere.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").field("stage", &self.stage()).finish_non_exhaustive()
    }
}
