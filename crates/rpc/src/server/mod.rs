//! The server: accept, read, parse, gate, execute, respond.

mod conn;
mod core;
mod reader;
mod worker;

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use mio::{Poll, Waker};
use socket2::{Domain, Protocol, Socket, Type};
use tidegate_core::context::{Sheds, Workflow};
use tidegate_core::gate::{CalleeId, Gate, GateConfig};
use tidegate_core::slots::SlotsConfig;
use tidegate_core::{Feedback, Instant, Span};
use tidegate_driver::{Clock, Monotonic, random_seed};
use tokio::runtime::Handle;

use self::core::Core;
use crate::client::Upstream;
use crate::error::StartError;
use crate::handler::Handler;
use crate::wire::Limits;
pub use core::Counts;
use reader::{Reader, Settings};

/// A server in the making.
///
/// ```
/// use tidegate_core::gate::GateConfig;
/// use tidegate_rpc::{Server, blocking};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// // As many slots as workers, of which there is one.
/// let gate = GateConfig::from_toml(
///     "admission = { policy = 'tide', objective = '1ms' }\nslots = { slots = 'fixed', count = 1 }",
/// )?;
/// let server = Server::builder()
///     .gate(gate)
///     .bind("127.0.0.1:0", blocking(|request| Ok(request.payload)))?;
/// println!("listens at {}", server.address());
/// server.stop(std::time::Duration::from_secs(1));
/// # Ok(()) }
/// ```
#[derive(Debug)]
#[must_use = "a builder does nothing until it is bound"]
pub struct ServerBuilder {
    gate: Option<GateConfig>,
    seed: Option<u64>,
    workers: usize,
    limits: Limits,
    idle: Span,
    out_limit: usize,
    held: usize,
    connections: usize,
    strikes: u32,
    backlog: i32,
    clock: Box<dyn Clock>,
    stamps: bool,
    open: usize,
}

impl ServerBuilder {
    /// The gate before the handler. Its slots bound what runs as a task; what runs to completion is
    /// bounded by the workers too. Default: `tide` with as many slots as there are workers.
    pub fn gate(mut self, config: GateConfig) -> Self {
        self.gate = Some(config);
        self
    }

    /// Decides all random choices of the gate, and its identity. Default: drawn by the operating
    /// system.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// Handlers that run to completion at once, each on a thread of its own. With more than one,
    /// another thread reads sockets while all of them are busy. Default 1.
    pub fn workers(mut self, workers: usize) -> Self {
        self.workers = workers.max(1);
        self
    }

    /// The largest frames that are read.
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// A connection is ended after so long a silence, be it in the middle of a frame or because its
    /// peer does not take its answers. Default 5 minutes.
    pub fn idle(mut self, idle: Duration) -> Self {
        self.idle = Span::from(idle);
        self
    }

    /// Bytes of answers that may wait for a connection before nothing more is read from it. Default
    /// 1 MiB.
    pub fn out_limit(mut self, bytes: usize) -> Self {
        self.out_limit = bytes;
        self
    }

    /// Requests of one connection that may be open before nothing more is read from it. Default 4,096.
    pub fn open(mut self, requests: usize) -> Self {
        self.open = requests.max(1);
        self
    }

    /// Bytes of payload that may wait in the gate; more is refused. Default 256 MiB.
    pub fn held(mut self, bytes: usize) -> Self {
        self.held = bytes;
        self
    }

    /// Connections at once; more are closed as soon as they are accepted. Default 100,000.
    pub fn connections(mut self, connections: usize) -> Self {
        self.connections = connections;
        self
    }

    /// Requests beyond window and free cursor after which a connection is ended. Each is refused
    /// without asking the gate. Default 1,000.
    pub fn strikes(mut self, strikes: u32) -> Self {
        self.strikes = strikes.max(1);
        self
    }

    /// The clock that its process uses. Default: the machine's monotonic clock.
    pub fn clock(mut self, clock: impl Clock + 'static) -> Self {
        self.clock = Box::new(clock);
        self
    }

    /// Whether the kernel is asked when it received what is read, so that the time before counts too.
    /// Default true; where the kernel has no such stamps it makes no difference.
    pub fn stamps(mut self, stamps: bool) -> Self {
        self.stamps = stamps;
        self
    }

    /// Listens at `address` and serves with `handler` from now on. Async handlers need a tokio
    /// runtime around this call.
    pub fn bind(
        self,
        address: impl ToSocketAddrs,
        handler: impl Handler,
    ) -> Result<Server, StartError> {
        let listener = listen(address, self.backlog)?;
        let address = listener.local_addr()?;
        let now = self.clock.now();
        let workers = u32::try_from(self.workers).unwrap_or(u32::MAX);
        let config = self.gate.unwrap_or_else(|| GateConfig {
            slots: SlotsConfig::fixed(workers),
            ..GateConfig::default()
        });
        let gate = Gate::new(&config, now, self.seed.unwrap_or_else(random_seed))?;
        let poll = Poll::new()?;
        let waker = Waker::new(poll.registry(), reader::WAKER)?;
        let settings = Settings {
            limits: self.limits,
            idle: self.idle,
            out_limit: self.out_limit,
            connections: self.connections,
            stamps: self.stamps,
            open: self.open,
        };
        let reader = Reader::new(poll, listener, settings, now)?;
        let shared = Arc::new(Shared {
            clock: self.clock,
            handler: Box::new(handler),
            runtime: Handle::try_current().ok(),
            core: Mutex::new(Core::new(gate, workers, self.held, self.strikes)),
            reader: Mutex::new(reader),
            bell: Condvar::new(),
            waker,
            stage: AtomicU8::new(Stage::Serving as u8),
            grace_ends: AtomicU64::new(u64::MAX),
        });
        // One more than handlers, so that somebody reads while all of them are busy; a single one
        // reads between handlers.
        let threads = if self.workers == 1 { 1 } else { self.workers + 1 };
        let threads = (0..threads).map(|number| {
            let shared = Arc::clone(&shared);
            std::thread::Builder::new()
                .name(format!("rpc-{number}"))
                .spawn(move || worker::work(&shared))
        });
        let threads = threads.collect::<io::Result<Vec<_>>>()?;
        Ok(Server { shared, address, threads })
    }
}

fn listen(address: impl ToSocketAddrs, backlog: i32) -> io::Result<mio::net::TcpListener> {
    let mut last = io::Error::new(io::ErrorKind::InvalidInput, "no address");
    for address in address.to_socket_addrs()? {
        let bound = (|| {
            let socket =
                Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
            socket.set_reuse_address(cfg!(unix))?;
            socket.set_nonblocking(true)?;
            socket.bind(&address.into())?;
            socket.listen(backlog)?;
            Ok(mio::net::TcpListener::from_std(socket.into()))
        })();
        match bound {
            Ok(listener) => return Ok(listener),
            Err(error) => last = error,
        }
    }
    Err(last)
}

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
        ServerBuilder {
            gate: None,
            seed: None,
            workers: 1,
            limits: Limits::default(),
            idle: Span::from_secs(300),
            out_limit: 1 << 20,
            held: 256 << 20,
            connections: 100_000,
            strikes: 1000,
            backlog: 4096,
            clock: Box::new(Monotonic::process()),
            stamps: true,
            open: 4096,
        }
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its gate.
    pub fn gate(&self) -> RpcGate {
        RpcGate { shared: Arc::clone(&self.shared) }
    }

    /// What it has done so far.
    pub fn counts(&self) -> Counts {
        self.shared.lock().counts
    }

    /// Stops: accepts nothing new, tells its callers, finishes what it has let in. After `grace` what
    /// still waits is refused, and tasks that still run are stopped and their callers told. Returns
    /// when all is written.
    pub fn stop(mut self, grace: Duration) {
        self.end(grace);
    }

    fn end(&mut self, grace: Duration) {
        self.shared.ask_to_stop(grace);
        for thread in self.threads.drain(..) {
            // A worker catches the panics of handlers; one of its own has been reported by std.
            let _ = thread.join();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end(Duration::ZERO);
    }
}

/// The gate of a server: to look at, to tell things, and to hear of services further down.
#[derive(Clone, Debug)]
pub struct RpcGate {
    shared: Arc<Shared>,
}

impl RpcGate {
    /// Looks at the gate.
    pub fn read<R>(&self, look: impl FnOnce(&Gate) -> R) -> R {
        look(&self.shared.lock().gate)
    }

    /// Tells the gate something: utilization, a new configuration.
    pub fn input<R>(&self, input: impl FnOnce(&mut Gate, Instant) -> R) -> R {
        let now = self.shared.clock.now();
        input(&mut self.shared.lock().gate, now)
    }
}

impl Upstream for RpcGate {
    fn on_downstream(&self, callee: CalleeId, workflow: Workflow, feedback: &Feedback) {
        self.input(|gate, now| gate.on_downstream(now, callee, workflow, feedback));
    }

    fn take_sheds(&self, callee: CalleeId) -> Sheds {
        self.input(|gate, _| gate.take_sheds(callee))
    }
}

/// What all threads of a server have in common.
struct Shared {
    clock: Box<dyn Clock>,
    handler: Box<dyn Handler>,
    /// Where async handlers run.
    runtime: Option<Handle>,
    core: Mutex<Core>,
    reader: Mutex<Reader>,
    /// Rings for threads that wait for work or for the lead.
    bell: Condvar,
    /// Wakes the thread that waits for sockets.
    waker: Waker,
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
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
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
        let ends = self.clock.now() + Span::from(grace);
        self.grace_ends.store(ends.since(Instant::ZERO).as_nanos(), Ordering::Relaxed);
        if self.stage() == Stage::Serving {
            self.enter(Stage::Asked);
        }
        let _ = self.waker.wake();
    }
}

impl std::fmt::Debug for Shared {
    /// Without the lock, so that a server can be shown from anywhere.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").field("stage", &self.stage()).finish_non_exhaustive()
    }
}
