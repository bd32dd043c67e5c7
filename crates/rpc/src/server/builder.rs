//! A server in the making: what may be set, and how it starts.

use std::io;
use std::net::{IpAddr, ToSocketAddrs};
use std::sync::atomic::{AtomicU8, AtomicU64};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use mio::{Poll, Waker};
use socket2::{Domain, Protocol, Socket, Type};
use tidegate_core::Span;
use tidegate_core::gate::{Gate, GateConfig};
use tidegate_core::slots::SlotsConfig;
use tidegate_driver::{Clock, Monotonic, Names, random_seed};
use tokio::runtime::Handle;

use super::bounds::Bounds;
use super::core::Core;
use super::reader::{self, Reader, Settings};
use super::{Inner, RpcGate, Server, Shared, Stage, worker};
use crate::error::StartError;
use crate::handler::Handler;
use crate::wire::{self, Limits};

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
    frame_time: Span,
    out_limit: Option<usize>,
    held: usize,
    connections: usize,
    strikes: u32,
    backlog: i32,
    clock: Box<dyn Clock>,
    stamps: bool,
    open: usize,
    trust: bool,
    gateways: Vec<IpAddr>,
}

impl Default for ServerBuilder {
    fn default() -> Self {
        Self {
            gate: None,
            seed: None,
            workers: 1,
            limits: Limits::default(),
            idle: Span::from_secs(300),
            frame_time: Span::from_secs(10),
            out_limit: None,
            held: 256 << 20,
            connections: 100_000,
            strikes: 1000,
            backlog: 4096,
            clock: Box::new(Monotonic::process()),
            stamps: true,
            open: 4096,
            trust: true,
            gateways: Vec::new(),
        }
    }
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

    /// The largest frames that are read, and the largest payloads that are sent: an answer beyond is a
    /// failure.
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// A connection is ended after so long a silence, be it that its peer does not take its answers.
    /// Default 5 minutes.
    pub fn idle(mut self, idle: Duration) -> Self {
        self.idle = Span::from(idle);
        self
    }

    /// How long a frame may take from its first byte to its last; then its connection is ended, also if
    /// bytes trickle in. More bears slower networks and larger payloads; less keeps beginnings of frames
    /// for a shorter time. Default 10 s: 1 MiB from a peer that sends 100 kB a second.
    pub fn frame_time(mut self, time: Duration) -> Self {
        self.frame_time = Span::from(time);
        self
    }

    /// Bytes of answers and refusals that may wait for a connection that takes none before nothing more
    /// is read from it, and what was read is refused. Default four of the largest payloads, 4 MiB with
    /// default `limits`, and at least 1 MiB: calls that go out together may all have large answers.
    pub fn out_limit(mut self, bytes: usize) -> Self {
        self.out_limit = Some(bytes);
        self
    }

    /// Requests of one connection that may be open before nothing more is read from it. Default 4,096.
    pub fn open(mut self, requests: usize) -> Self {
        self.open = requests.max(1);
        self
    }

    /// Bytes that are kept for others: payloads that wait in the gate, of which more are refused, and
    /// answers that are not taken and beginnings of frames. These may have half: beyond it those
    /// connections are ended whose frames began longest ago, or whose peers have taken none of their
    /// answers for longest. Default 256 MiB.
    pub fn held(mut self, bytes: usize) -> Self {
        self.held = bytes;
        self
    }

    /// Connections at once; more are closed as soon as they are accepted. Default 100,000.
    pub fn connections(mut self, connections: usize) -> Self {
        self.connections = connections;
        self
    }

    /// Requests beyond window and free cursor within a minute after which a connection is ended. Each
    /// is refused without asking the gate. Default 1,000: refusing is cheaper than accepting the
    /// connection that would follow.
    pub fn strikes(mut self, strikes: u32) -> Self {
        self.strikes = strikes.max(1);
        self
    }

    /// Whether callers are services of ours, so that what they say about themselves is believed. Of
    /// others only the deadline is: their requests have no rank and no workflow, and they are not told
    /// how the gate is. Default true.
    pub fn trust(mut self, trust: bool) -> Self {
        self.trust = trust;
        self
    }

    /// Addresses of peers that speak for many others. What they say they shed is believed whatever it is, that of others as
    /// far as they were seen to have the demand. Default: none.
    pub fn gateways(mut self, addresses: impl IntoIterator<Item = IpAddr>) -> Self {
        self.gateways = addresses.into_iter().map(|address| address.to_canonical()).collect();
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
        self.bind_with(address, |_| handler)
    }

    /// The same for a handler that needs the gate before it, say for a client that tells it what
    /// services further down say.
    ///
    /// ```
    /// use tidegate_core::gate::CalleeId;
    /// use tidegate_rpc::{Client, Failure, Server, asynchronous, blocking};
    ///
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let back = Server::builder().bind("127.0.0.1:0", blocking(|request| Ok(request.payload)))?;
    /// let onward = Client::builder().endpoint(back.address());
    /// let front = Server::builder().bind_with("127.0.0.1:0", |gate| {
    ///     let onward = onward.upstream(gate, CalleeId(1)).build().expect("has an endpoint");
    ///     asynchronous(move |request| {
    ///         let call = onward.request(1, request.payload);
    ///         async move { call.send().await.map_err(|error| Failure::new(1, error.to_string())) }
    ///     })
    /// })?;
    /// # drop((front, back));
    /// # Ok(()) }
    /// ```
    pub fn bind_with<H: Handler>(
        self,
        address: impl ToSocketAddrs,
        handler: impl FnOnce(RpcGate) -> H,
    ) -> Result<Server, StartError> {
        let listener = listen(address, self.backlog)?;
        let address = listener.local_addr()?;
        let now = self.clock.now();
        let config = self.gate.unwrap_or_else(|| GateConfig {
            slots: SlotsConfig::fixed(u32::try_from(self.workers).unwrap_or(u32::MAX)),
            ..GateConfig::default()
        });
        let mut gate = Gate::new(&config, now, self.seed.unwrap_or_else(random_seed))?;
        gate.name_workflows(|name| Names::process().number(name));
        let poll = Poll::new()?;
        let waker = Waker::new(poll.registry(), reader::WAKER)?;
        let payload = self.limits.payload.min(wire::LARGEST);
        let out_limit = self.out_limit.unwrap_or_else(|| payload.saturating_mul(4).max(1 << 20));
        let bounds = Arc::new(Bounds::new(out_limit, self.open, self.held, waker));
        let settings = Settings {
            limits: self.limits,
            idle: self.idle,
            frame_time: self.frame_time,
            connections: self.connections,
            stamps: self.stamps,
            trust: self.trust,
            gateways: self.gateways,
        };
        let reader = Reader::new(poll, listener, settings, Arc::clone(&bounds), now)?;
        let id = gate.id();
        let mut core = Core::new(gate, self.workers, payload, self.strikes, Arc::clone(&bounds));
        // One more than handlers, so that somebody reads while all of them are busy; a single one
        // reads between handlers.
        core.threads = if self.workers == 1 { 1 } else { self.workers + 1 };
        let threads = core.threads;
        let inner = Arc::new(Inner { clock: self.clock, core: Mutex::new(core) });
        let handler = handler(RpcGate { inner: Arc::clone(&inner) });
        let shared = Arc::new(Shared {
            inner,
            id,
            handler: Box::new(handler),
            runtime: Handle::try_current().ok(),
            reader: Mutex::new(reader),
            bell: Condvar::new(),
            ended: Condvar::new(),
            bounds,
            stage: AtomicU8::new(Stage::Serving as u8),
            grace_ends: AtomicU64::new(u64::MAX),
        });
        let mut server = Server { shared, address, threads: Vec::new() };
        for number in 0..threads {
            let shared = Arc::clone(&server.shared);
            let thread = std::thread::Builder::new().name(format!("rpc-{number}"));
            match thread.spawn(move || worker::work(&shared)) {
                Ok(thread) => server.threads.push(thread),
                Err(error) => {
                    // Those that run already end with the server.
                    server.shared.lock().threads = number;
                    return Err(error.into());
                }
            }
        }
        Ok(server)
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
