//! One serving thread: its listening socket, its connections, its end.

use std::future::poll_fn;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use std::task::Poll;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tidegate_core::{Instant, Span};
use tidegate_driver::{RoundTrips, SharedCaller, SharedGate};
use tidegate_http::wire::Names;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::runtime::Handle;
use tokio::sync::{mpsc, watch};
use tokio_rustls::rustls::ServerConfig;

use crate::config::{ConnectionsConfig, ProxyConfig, Trust, WhenLeft};
use crate::connection;
use crate::costs::Costs;
use crate::edge::Strangers;
use crate::egress::WayOut;
use crate::entry::Ranks;
use crate::exempt::Exempt;
use crate::files;
use crate::health::Peers;
use crate::inflight::InFlight;
use crate::journal::Journals;
use crate::jwt::Jwt;
use crate::metrics::Counters;
use crate::outlets::Outward;
use crate::places::Bounds;
use crate::seats::{Full, Seat, Seats};
use crate::sideline::Sideline;
use crate::spare;
use crate::tls::Tls;
use crate::trace::Traces;
use crate::upstream::{Upstream, Upstreams};

/// Connections that the kernel holds until they are accepted; it takes its own limit if lower.
const BACKLOG: u32 = 4096;
/// Tasks run between two looks at the sockets, so that requests soon stand in the gate instead of
/// in sockets (docs/driving.md).
const EVENT_INTERVAL: u32 = 32;
/// Silence after which the kernel asks whether a client is still there.
const KEEPALIVE: Duration = Duration::from_secs(60);
/// Pause after an accept that failed: mostly all file descriptors are in use.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Time between two looks for old upstream connections.
const SWEEP: Duration = Duration::from_millis(100);

/// How far the end of the process has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    /// Serves.
    #[default]
    Open,
    /// Accepts no more, and finishes what is inside.
    Draining,
    /// Ends at once.
    Over,
}

/// What a request needs of its thread.
#[derive(Debug)]
pub(crate) struct Worker {
    pub(crate) gate: SharedGate,
    pub(crate) sideline: Arc<Sideline>,
    pub(crate) names: Names,
    pub(crate) counters: Arc<Counters>,
    peers: Peers,
    round_trips: Arc<RoundTrips>,
    pub(crate) exempt: Arc<Exempt>,
    seats: Arc<Seats>,
    /// Whom the calls of the service are for; none if they are its own business.
    pub(crate) inside: Option<Arc<InFlight>>,
    /// The service that is called here; none where clients come in.
    pub(crate) way_out: Option<Arc<WayOut>>,
    settings: RwLock<Arc<Settings>>,
    /// Its runtime, once it runs.
    runtime: OnceLock<Handle>,
    /// How many threads there are.
    threads: usize,
    /// What user ranks are derived from.
    secret: [u8; 16],
    seed: u64,
}

/// What a reload changes.
#[derive(Debug)]
pub(crate) struct Settings {
    pub(crate) trust: Trust,
    pub(crate) ranks: Ranks,
    pub(crate) costs: Costs,
    pub(crate) upstreams: Upstreams,
    /// The throttle before them; none if everything is sent.
    pub(crate) outbound: Option<SharedCaller>,
    pub(crate) traces: Traces,
    pub(crate) journals: Journals,
    /// Whether ids of clients are kept, where calls are told apart by them.
    pub(crate) trusts_ids: bool,
    /// Share of the traces that begin here which are collected.
    pub(crate) sample: f64,
    pub(crate) tls: Option<Arc<ServerConfig>>,
    pub(crate) connections: ConnectionsConfig,
    /// Protocols that a connection may change to.
    pub(crate) upgrades: Vec<String>,
    pub(crate) strangers: Strangers,
    /// Whether connections begin with whose they are.
    pub(crate) proxy_protocol: bool,
    /// Most requests for exempt paths.
    pub(crate) exempt_at_once: u32,
    pub(crate) header_timeout: Span,
    pub(crate) body_timeout: Span,
    pub(crate) when_left: WhenLeft,
    /// For requests without a slot, of each kind.
    pub(crate) places: Bounds,
    /// Of requests that last long.
    pub(crate) long_paths: Vec<String>,
    pace: Pace,
}

impl Settings {
    fn new(
        config: &ProxyConfig,
        Links { tls, jwt, outbound, traces, journals }: &Links,
        before: &[Arc<Upstream>],
        (peers, titles): (&Peers, &Names),
        (threads, secret, seed): (usize, [u8; 16], u64),
        now: Instant,
    ) -> Self {
        let ProxyConfig { trust, header_timeout, body_timeout, .. } = *config;
        Self {
            trust,
            ranks: Ranks::new(config, secret, titles, jwt.clone()),
            costs: Costs::new(config),
            upstreams: Upstreams::new(config, tls.client.clone(), before, peers, (now, seed)),
            outbound: outbound.clone(),
            traces: traces.clone(),
            journals: journals.clone(),
            trusts_ids: trust == Trust::Inside || config.trust_traces,
            sample: config.traces.sample,
            tls: tls.server.clone(),
            connections: config.connections.clone(),
            upgrades: config.upgrades.clone(),
            strangers: Strangers::new(config),
            proxy_protocol: config.edge.proxy_protocol,
            exempt_at_once: config.edge.exempt_at_once,
            header_timeout,
            body_timeout,
            when_left: config.when_left,
            places: Bounds { most: config.long.most, per_address: config.long.per_address },
            long_paths: config.long.paths.clone(),
            pace: Pace::new(config.connections.per_second, threads, now),
        }
    }
}

/// How others are reached.
#[derive(Clone, Debug)]
pub(crate) struct Links {
    pub(crate) tls: Tls,
    /// Who verifies tokens, if somebody does.
    pub(crate) jwt: Option<Arc<Jwt>>,
    pub(crate) outbound: Option<SharedCaller>,
    pub(crate) traces: Traces,
    pub(crate) journals: Journals,
}

/// What a worker is made of.
#[derive(Clone, Debug)]
pub(crate) struct Tools {
    pub(crate) gate: SharedGate,
    pub(crate) sideline: Arc<Sideline>,
    pub(crate) names: Names,
    pub(crate) counters: Arc<Counters>,
    pub(crate) peers: Peers,
    /// What passes the gate.
    pub(crate) exempt: Arc<Exempt>,
    /// Who is connected.
    pub(crate) seats: Arc<Seats>,
    /// How far clients are.
    pub(crate) round_trips: Arc<RoundTrips>,
    pub(crate) inside: Option<Arc<InFlight>>,
    pub(crate) way_out: Option<Arc<WayOut>>,
    pub(crate) threads: usize,
    pub(crate) secret: [u8; 16],
    pub(crate) seed: u64,
}

impl Worker {
    /// One of as many threads as there are `tools` of.
    pub(crate) fn new(tools: Tools, config: &ProxyConfig, links: &Links) -> Self {
        let Tools { gate, sideline, names, counters, peers, round_trips, exempt, seats, .. } =
            tools;
        let Tools { inside, way_out, threads, secret, seed, .. } = tools;
        let now = gate.now();
        let shown = (&peers, &counters.rules);
        let settings = Settings::new(config, links, &[], shown, (threads, secret, seed), now);
        Self {
            gate,
            sideline,
            names,
            counters,
            peers,
            round_trips,
            exempt,
            seats,
            inside,
            way_out,
            settings: RwLock::new(Arc::new(settings)),
            runtime: OnceLock::new(),
            threads,
            secret,
            seed,
        }
    }

    pub(crate) fn settings(&self) -> Arc<Settings> {
        Arc::clone(&self.settings.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// The runtime it serves in; none before it runs.
    pub(crate) fn runtime(&self) -> Option<&Handle> {
        self.runtime.get()
    }

    /// Requests from now on go by `config`; those on their way keep what they have.
    pub(crate) fn reconfigure(&self, config: &ProxyConfig, links: &Links) {
        let (before, now) = (self.settings(), self.gate.now());
        let own = (self.threads, self.secret, self.seed ^ now.as_nanos());
        let (list, shown) = (before.upstreams.list(), (&self.peers, &self.counters.rules));
        let settings = Settings::new(config, links, list, shown, own, now);
        *self.settings.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(settings);
    }

    /// Serves until the phase says otherwise: the body of a thread. What goes `out` is served until no
    /// thread has anything inside that it could be for.
    pub(crate) fn run(
        self: Arc<Self>,
        listener: std::net::TcpListener,
        out: Outward,
        phase: watch::Receiver<Phase>,
    ) -> io::Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .event_interval(EVENT_INTERVAL)
            .on_thread_park(spare::on_idle)
            .build()?;
        let _ = self.runtime.set(runtime.handle().clone());
        runtime.block_on(async move {
            let listener = TcpListener::from_std(listener)?;
            let mut over = phase.clone();
            // What is inside may need its calls to the end.
            let (_open, never) = watch::channel(Phase::Open);
            let out_is_open = !out.workers.is_empty();
            for (worker, listener) in out.workers {
                let _ = worker.runtime.set(Handle::current());
                tokio::spawn(worker.serve(TcpListener::from_std(listener)?, never.clone()));
            }
            let inside = async {
                self.serve(listener, phase).await;
                if out_is_open {
                    out.ends.done().await;
                }
            };
            tokio::select! {
                () = inside => {}
                _ = over.wait_for(|phase| *phase == Phase::Over) => {}
            }
            Ok(())
        })
        // Connections and tunnels that are left end with the runtime.
    }

    async fn serve(self: Arc<Self>, listener: TcpListener, phase: watch::Receiver<Phase>) {
        // Dropped by the last connection that ends.
        let (alive, mut all_gone) = mpsc::channel::<()>(1);
        let mut sweep = tokio::time::interval(SWEEP);
        let mut told = phase.clone();
        loop {
            tokio::select! {
                biased;
                accepted = listener.accept() => match accepted {
                    Ok((stream, peer)) => self.connect(stream, peer.ip(), &phase, &alive),
                    Err(_) => {
                        self.counters.accept_failures.add(1);
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                },
                _ = sweep.tick() => self.sweep(),
                () = reached(&mut told, Phase::Draining) => break,
            }
        }
        // What the kernel has taken in our name is ours to serve.
        while let Some(Ok((stream, peer))) = ready_now(&listener).await {
            self.connect(stream, peer.ip(), &phase, &alive);
        }
        drop((listener, alive));
        loop {
            tokio::select! {
                _ = all_gone.recv() => return,
                _ = sweep.tick() => self.sweep(),
            }
        }
    }

    fn sweep(&self) {
        let (settings, now) = (self.settings(), self.gate.now());
        settings.upstreams.sweep(now);
    }

    /// Notes whose a seat is; false if that one has too many.
    pub(crate) fn name(&self, seat: &Seat, peer: IpAddr, settings: &Settings) -> bool {
        let named = seat.name(peer, settings.connections.per_address);
        match named {
            Ok(instead) => self.counters.reclaimed.add(instead.into()),
            Err(Full) => self.counters.too_many.add(1),
        }
        named.is_ok()
    }

    /// Serves a connection, unless there are too many.
    fn connect(
        self: &Arc<Self>,
        stream: TcpStream,
        peer: IpAddr,
        phase: &watch::Receiver<Phase>,
        alive: &mpsc::Sender<()>,
    ) {
        let counters = &self.counters;
        counters.accepted.add(1);
        let settings = self.settings();
        if files::is_scarce(&stream) {
            return counters.too_many.add(1);
        }
        let Ok((seat, instead)) = self.seats.take(settings.connections.most) else {
            return counters.too_many.add(1);
        };
        counters.reclaimed.add(instead.into());
        // A proxy of ours says later whose it is, or speaks for many; so does the guarded service, which calls others.
        let many = self.way_out.is_some() || settings.strangers.hops.trusts(peer);
        if !many && !self.name(&seat, peer, &settings) {
            return;
        }
        if !settings.pace.allows(self.gate.now()) {
            return counters.too_fast.add(1);
        }
        if self.way_out.is_none() {
            self.round_trips.accepted(&self.gate, &stream);
        }
        // A client that has already gone is found out by the first read.
        let _ = stream.set_nodelay(true);
        let (worker, phase, alive) = (Arc::clone(self), phase.clone(), alive.clone());
        tokio::spawn(async move {
            let _alive = alive;
            let counters = Arc::clone(&worker.counters);
            let _open = counters.connections.hold();
            connection::serve(worker, stream, peer, Arc::new(seat), phase).await;
        });
    }
}

/// Resolves once the phase has come.
async fn reached(told: &mut watch::Receiver<Phase>, wanted: Phase) {
    // The sender outlives every worker; were it gone, this would be the end too.
    let _ = told.wait_for(|phase| *phase >= wanted).await;
}

/// New connections per second, with a second's worth at once.
#[derive(Debug)]
struct Pace {
    /// Time per connection; zero is no limit.
    interval: Span,
    /// When all connections so far would have come at the pace allowed.
    due: Mutex<Instant>,
}

impl Pace {
    fn new(per_second: u32, threads: usize, now: Instant) -> Self {
        // Each thread has its share, and the kernel spreads connections evenly.
        let nanos = 1_000_000_000 * threads.max(1) as u64;
        let interval = nanos.checked_div(u64::from(per_second)).unwrap_or(0);
        Self { interval: Span::from_nanos(interval), due: Mutex::new(now) }
    }

    fn allows(&self, now: Instant) -> bool {
        if self.interval == Span::ZERO {
            return true;
        }
        let mut due = self.due.lock().unwrap_or_else(PoisonError::into_inner);
        let next = due.max(now);
        let early = next.since(now) > Span::from_secs(1);
        if !early {
            *due = next + self.interval;
        }
        !early
    }
}

/// A connection that can be accepted without waiting.
async fn ready_now(listener: &TcpListener) -> Option<io::Result<(TcpStream, SocketAddr)>> {
    poll_fn(|cx| match listener.poll_accept(cx) {
        Poll::Ready(accepted) => Poll::Ready(Some(accepted)),
        Poll::Pending => Poll::Ready(None),
    })
    .await
}

/// A listening socket that others of this process share their address with; the kernel spreads
/// connections over them.
pub(crate) fn listen(address: SocketAddr) -> io::Result<std::net::TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    socket.set_reuseaddr(true)?;
    #[cfg(unix)]
    socket.set_reuseport(true)?;
    // Accepted ones have it from here: who is gone without a word is found out.
    SockRef::from(&socket).set_tcp_keepalive(&TcpKeepalive::new().with_time(KEEPALIVE))?;
    socket.bind(address)?;
    socket.listen(BACKLOG)?.into_std()
}
