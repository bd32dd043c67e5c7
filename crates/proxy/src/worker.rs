//! One serving thread: its listening socket, its connections, its end.

use std::future::poll_fn;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::sync::{Arc, PoisonError, RwLock};
use std::task::Poll;
use std::time::Duration;

use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tidegate_core::Span;
use tidegate_driver::SharedGate;
use tidegate_http::wire::Names;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;

use crate::body::Streams;
use crate::config::{ProxyConfig, Trust, Version};
use crate::entry::Ranks;
use crate::forward;
use crate::metrics::Counters;
use crate::sideline::Sideline;
use crate::upstream::Upstreams;

/// Connections that the kernel holds until they are accepted; it takes its own limit if lower.
const BACKLOG: u32 = 4096;
/// Tasks run between two looks at the sockets, so that requests soon stand in the gate instead of
/// in sockets (docs/driving.md).
const EVENT_INTERVAL: u32 = 8;
/// Pause after an accept that failed: mostly all file descriptors are in use.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Time between two looks for streams and for old upstream connections.
const SWEEP: Duration = Duration::from_millis(100);
/// Time for requests that have reached the machine to be read before connections are told to end.
const LAST_CALL: Duration = Duration::from_millis(100);

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
    pub(crate) streams: Streams,
    settings: RwLock<Arc<Settings>>,
    header_timeout: Duration,
    /// What user ranks are derived from.
    secret: [u8; 16],
    seed: u64,
}

/// What a reload changes.
#[derive(Debug)]
pub(crate) struct Settings {
    pub(crate) trust: Trust,
    pub(crate) ranks: Ranks,
    pub(crate) upstreams: Upstreams,
    stream_after: Span,
}

impl Settings {
    fn new(config: &ProxyConfig, upstreams: Upstreams, secret: [u8; 16]) -> Self {
        let ranks = Ranks::new(config, secret);
        let ProxyConfig { trust, stream_after, .. } = *config;
        Self { trust, ranks, upstreams, stream_after }
    }
}

impl Worker {
    pub(crate) fn new(
        gate: SharedGate,
        sideline: Arc<Sideline>,
        names: Names,
        counters: Arc<Counters>,
        config: &ProxyConfig,
        secret: [u8; 16],
        seed: u64,
    ) -> Self {
        let upstreams = Upstreams::new(config, &[], gate.now(), seed);
        let settings = Settings::new(config, upstreams, secret);
        let header_timeout = config.header_timeout.into();
        Self {
            gate,
            sideline,
            names,
            counters,
            streams: Streams::default(),
            settings: RwLock::new(Arc::new(settings)),
            header_timeout,
            secret,
            seed,
        }
    }

    pub(crate) fn settings(&self) -> Arc<Settings> {
        Arc::clone(&self.settings.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Requests from now on go by `config`; those on their way keep what they have.
    pub(crate) fn reconfigure(&self, config: &ProxyConfig) {
        let before = self.settings();
        let now = self.gate.now();
        let seed = self.seed ^ now.as_nanos();
        let upstreams = Upstreams::new(config, before.upstreams.list(), now, seed);
        let settings = Settings::new(config, upstreams, self.secret);
        *self.settings.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(settings);
    }

    /// Serves until the phase says otherwise: the body of a thread.
    pub(crate) fn run(
        self: Arc<Self>,
        listener: std::net::TcpListener,
        phase: watch::Receiver<Phase>,
    ) -> io::Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .event_interval(EVENT_INTERVAL)
            .build()?;
        runtime.block_on(async move {
            let listener = TcpListener::from_std(listener)?;
            let mut over = phase.clone();
            tokio::select! {
                () = self.serve(listener, phase) => {}
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
                _ = told.wait_for(|phase| *phase >= Phase::Draining) => break,
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
        self.streams.sweep(now, settings.stream_after);
    }

    fn connect(
        self: &Arc<Self>,
        stream: TcpStream,
        peer: IpAddr,
        phase: &watch::Receiver<Phase>,
        alive: &mpsc::Sender<()>,
    ) {
        // A client that has already gone is found out by the first read.
        let _ = stream.set_nodelay(true);
        let (worker, mut phase, alive) = (Arc::clone(self), phase.clone(), alive.clone());
        tokio::spawn(async move {
            let _alive = alive;
            let counters = Arc::clone(&worker.counters);
            counters.accepted.add(1);
            let _open = counters.connections.hold();
            let version = tokio::select! {
                biased;
                version = timeout(worker.header_timeout, spoken_on(&stream)) => version,
                () = draining(&mut phase) => return,
            };
            let service = service_fn(|request| forward::serve(Arc::clone(&worker), peer, request));
            let io = TokioIo::new(stream);
            // How a connection ends is the client's business; requests are counted by the gate.
            match version {
                Ok(Ok(Version::One)) => {
                    let connection = http1::Builder::new()
                        .timer(TokioTimer::new())
                        .header_read_timeout(worker.header_timeout)
                        .serve_connection(io, service)
                        .with_upgrades();
                    let mut connection = pin!(connection);
                    tokio::select! {
                        biased;
                        _ = connection.as_mut() => return,
                        () = draining(&mut phase) => connection.as_mut().graceful_shutdown(),
                    }
                    let _ = connection.await;
                }
                Ok(Ok(Version::Two)) => {
                    let connection = http2::Builder::new(TokioExecutor::new())
                        .timer(TokioTimer::new())
                        .serve_connection(io, service);
                    let mut connection = pin!(connection);
                    tokio::select! {
                        biased;
                        _ = connection.as_mut() => return,
                        () = draining(&mut phase) => connection.as_mut().graceful_shutdown(),
                    }
                    let _ = connection.await;
                }
                // Silent for too long, or gone.
                Ok(Err(_)) | Err(_) => {}
            }
        });
    }
}

/// What an HTTP/2 client says first (RFC 9113, 3.4), and no HTTP/1.1 request begins with.
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Pause between two looks at a preface that comes in pieces, which hardly any does.
const PEEK_PAUSE: Duration = Duration::from_millis(1);

/// The version that the client begins with; its bytes stay to be read.
async fn spoken_on(stream: &TcpStream) -> io::Result<Version> {
    let mut begin = [0; PREFACE.len()];
    loop {
        let length = stream.peek(&mut begin).await?;
        if length == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if begin[..length] != PREFACE[..length] {
            return Ok(Version::One);
        }
        if length == PREFACE.len() {
            return Ok(Version::Two);
        }
        tokio::time::sleep(PEEK_PAUSE).await;
    }
}

async fn draining(phase: &mut watch::Receiver<Phase>) {
    // The sender outlives every worker; were it gone, this would be the end too.
    let _ = phase.wait_for(|phase| *phase >= Phase::Draining).await;
    tokio::time::sleep(LAST_CALL).await;
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
    socket.bind(address)?;
    socket.listen(BACKLOG)?.into_std()
}
