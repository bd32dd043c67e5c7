//! The daemon's sockets: `POST /v1/lease` for nodes on one port, everything for operators on the other.
//!
//! One thread and one lock: a report costs a microsecond or two, and a thousand nodes with a hundred
//! limits send two hundred thousand of them a second in two thousand messages. What comes in is bounded before it is read:
//! bodies, entries, names, connections, and the time that a client may take.

use std::convert::Infallible;
use std::future::Future;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};
use std::{fmt, fs};

use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tidegate_core::share::wire::{LONGEST_MESSAGE, read_reports, write_answers};
use tidegate_driver::{Clock, Monotonic, unix_time};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::watch;

use crate::admin;
use crate::agreement::{ControlConfig, File};
use crate::book::{Book, Node};
use crate::ledger::{Keeper, Ledger};
use crate::link::NODE_HEADER;

/// Most connections of nodes and operators each.
const MOST_CONNECTIONS: usize = 20_000;
/// Longest time that a message may take to arrive.
const PATIENCE: Duration = Duration::from_secs(5);
/// Time between two looks at the file, and between two rounds of tidying.
const LOOK: Duration = Duration::from_millis(500);
/// Shortest token: 16 characters cannot be tried out over a network.
const SHORTEST_TOKEN: usize = 16;

/// An answer of either port.
pub(crate) type Answer = Response<Full<Bytes>>;

/// A daemon whose sockets are open, and that does not serve yet.
#[derive(Debug)]
pub struct Daemon {
    shared: Arc<Shared>,
    nodes: TcpListener,
    admin: TcpListener,
    runtime: Runtime,
    signals: bool,
}

/// Tells a daemon from anywhere what to do.
#[derive(Clone, Debug)]
pub struct Handle {
    shared: Arc<Shared>,
}

/// Why a daemon does not start.
#[derive(Debug)]
pub enum StartError {
    /// The configuration or the state is wrong.
    Config(String),
    /// The system does not allow it.
    Io(String, io::Error),
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Config(problem) => f.write_str(problem),
            Self::Io(what, error) => write!(f, "{what}: {error}"),
        }
    }
}

impl std::error::Error for StartError {}

/// What all tasks of a daemon share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) state: Mutex<State>,
    clock: Monotonic,
    source: Option<Source>,
    stop: watch::Sender<bool>,
    listen: SocketAddr,
    admin: SocketAddr,
    quiet: bool,
}

/// What is kept.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) book: Book,
    pub(crate) ledger: Ledger,
    keeper: Keeper,
    tokens: Tokens,
    pub(crate) admin_token: Option<String>,
    /// Messages of nodes that were turned away.
    pub(crate) denied: u64,
    pub(crate) malformed: u64,
}

/// What nodes have to show.
#[derive(Clone, Default)]
struct Tokens {
    any: Option<String>,
    nodes: Vec<(String, String)>,
}

impl fmt::Debug for Tokens {
    /// Without the secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tokens").finish_non_exhaustive()
    }
}

/// Where the configuration comes from.
struct Source {
    path: PathBuf,
    read: Box<dyn Fn() -> Result<File, String> + Send + Sync>,
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Source").field("path", &self.path).finish_non_exhaustive()
    }
}

impl Daemon {
    /// Opens the sockets and the state. `source` is a file, and how it is read again when it has changed.
    pub fn bind(
        file: &File,
        source: Option<(PathBuf, Box<dyn Fn() -> Result<File, String> + Send + Sync>)>,
    ) -> Result<Self, StartError> {
        let config = &file.control;
        let (tokens, admin_token) = Tokens::read(config).map_err(StartError::Config)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(io_error("cannot start a runtime"))?;
        let (nodes, admin) = runtime.block_on(async {
            Ok((listen("--listen", config.listen).await?, listen("--admin", config.admin).await?))
        })?;
        let address = |listener: &TcpListener| {
            listener.local_addr().map_err(io_error("cannot learn an address"))
        };
        let (listen, admin_address) = (address(&nodes)?, address(&admin)?);
        let clock = Monotonic::process();
        let (keeper, ledger, forgotten) =
            Keeper::open(&config.store, unix_ms()).map_err(StartError::Config)?;
        let mut book = Book::new(ledger.epoch, clock.now(), forgotten);
        book.agree(clock.now(), &ledger.agreements, &ledger.past);
        let (denied, malformed) = (0, 0);
        let state = State { book, ledger, keeper, tokens, admin_token, denied, malformed };
        let shared = Shared {
            state: Mutex::new(state),
            clock,
            source: source.map(|(path, read)| Source { path, read }),
            stop: watch::Sender::new(false),
            listen,
            admin: admin_address,
            quiet: false,
        };
        shared.take(file).map_err(StartError::Config)?;
        Ok(Self { shared: Arc::new(shared), nodes, admin, runtime, signals: false })
    }

    /// Hears SIGTERM and SIGINT (end) and SIGHUP (read the file again).
    #[must_use]
    pub fn with_signals(mut self) -> Self {
        self.signals = true;
        self
    }

    /// Says nothing to stderr.
    ///
    /// # Panics
    ///
    /// If it was already handed out.
    #[must_use]
    pub fn silent(mut self) -> Self {
        Arc::get_mut(&mut self.shared).expect("nobody else has it yet").quiet = true;
        self
    }

    /// A handle to it.
    pub fn handle(&self) -> Handle {
        Handle { shared: Arc::clone(&self.shared) }
    }

    /// Serves until it is told to end.
    pub fn run(self) -> io::Result<()> {
        let Self { shared, nodes, admin, runtime, signals } = self;
        runtime.block_on(async {
            shared.describe();
            tokio::spawn(serve(Arc::clone(&shared), nodes, for_nodes));
            tokio::spawn(serve(Arc::clone(&shared), admin, admin::answer));
            tokio::spawn(look(Arc::clone(&shared)));
            if signals {
                hear(&shared)?;
            }
            let mut stop = shared.stop.subscribe();
            // Its sender is in `shared`, so this ends only when it is told to.
            let _ = stop.wait_for(|stop| *stop).await;
            shared.log(&"ended: nodes keep their leases to the end, then their safe shares");
            Ok(())
        })
    }
}

impl Handle {
    /// Where nodes connect.
    pub fn listen(&self) -> SocketAddr {
        self.shared.listen
    }

    /// Where operators look.
    pub fn admin(&self) -> SocketAddr {
        self.shared.admin
    }

    /// Ends it.
    pub fn stop(&self) {
        self.shared.stop.send_replace(true);
    }
}

impl Shared {
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn now(&self) -> tidegate_core::Instant {
        self.clock.now()
    }

    pub(crate) fn log(&self, line: &dyn fmt::Display) {
        if !self.quiet {
            // Nobody is left to tell when stderr is closed.
            let _ = writeln!(io::stderr(), "tidegate: {line}");
        }
    }

    /// Makes another ledger durable, and then the one in force.
    pub(crate) fn commit(&self, state: &mut State, next: Ledger) -> Result<(), String> {
        state.keeper.save(&next)?;
        let before = std::mem::replace(&mut state.ledger, next);
        let State { book, ledger, .. } = state;
        book.agree(self.now(), &ledger.agreements, &ledger.past);
        if let Some(change) = ledger.changes.last().filter(|last| last.version > before.version) {
            let (version, who) = (change.version, &change.who);
            change.what.iter().for_each(|what| {
                self.log(&format_args!("version {version} by {who}: {what}"));
            });
        }
        Ok(())
    }

    /// What the file says is taken if it says something else than before; edits made since stay otherwise.
    fn take(&self, file: &File) -> Result<(), String> {
        let (tokens, admin_token) = Tokens::read(&file.control)?;
        let state = &mut *self.lock();
        (state.tokens, state.admin_token) = (tokens, admin_token);
        if state.ledger.seed == file.agreements {
            return Ok(());
        }
        let who = self.source.as_ref().map_or("the start", |_| "the configuration file");
        let changed = state.ledger.changed(file.agreements.clone(), who, unix_ms())?;
        let mut next = changed.unwrap_or_else(|| state.ledger.clone());
        next.seed.clone_from(&file.agreements);
        self.commit(state, next)
    }

    fn reload(&self) {
        let Some(source) = &self.source else { return };
        match (source.read)().and_then(|file| self.take(&file)) {
            Ok(()) => self.log(&"the configuration was read again and is in force"),
            Err(error) => self.log(&format_args!("the old configuration stays: {error}")),
        }
    }

    fn describe(&self) {
        let state = self.lock();
        let (count, version) = (state.ledger.agreements.len(), state.ledger.version);
        self.log(&format_args!(
            "control on http://{} for nodes, admin on http://{}; {count} agreements, version {version}, \
             epoch {}",
            self.listen, self.admin, state.ledger.epoch
        ));
        if state.tokens.is_empty() && !self.listen.ip().is_loopback() {
            self.log(&"whoever reaches the port is taken for a node: set control.token_file");
        }
    }
}

impl Tokens {
    fn read(config: &ControlConfig) -> Result<(Self, Option<String>), String> {
        let token = |path: &String| {
            let text = fs::read_to_string(path)
                .map_err(|error| format!("cannot read the token in {path}: {error}"))?;
            let token = text.trim().to_owned();
            match token.len() {
                SHORTEST_TOKEN.. => Ok(token),
                _ => {
                    Err(format!("the token in {path} is shorter than {SHORTEST_TOKEN} characters"))
                }
            }
        };
        let any = config.token_file.as_ref().map(token).transpose()?;
        let nodes =
            config.nodes.iter().map(|node| Ok((node.name.clone(), token(&node.token_file)?)));
        let nodes = nodes.collect::<Result<Vec<_>, String>>()?;
        let admin = config.admin_token_file.as_ref().map(token).transpose()?;
        Ok((Self { any, nodes }, admin))
    }

    fn is_empty(&self) -> bool {
        self.any.is_none() && self.nodes.is_empty()
    }

    /// Whose word it is, if anybody's.
    fn node<'a>(&self, headers: &'a HeaderMap) -> Option<Node<'a>> {
        let name = headers.get(NODE_HEADER).and_then(|name| name.to_str().ok());
        let name = name.filter(|name| name.len() <= 64).unwrap_or_default();
        if self.is_empty() {
            return Some(Node { name, proven: false });
        }
        let own = self.nodes.iter().find(|(known, _)| known == name);
        if own.is_some_and(|(_, token)| shows(headers, token)) {
            return Some(Node { name, proven: true });
        }
        let any = self.any.as_ref().filter(|_| own.is_none());
        any.filter(|token| shows(headers, token)).map(|_| Node { name, proven: false })
    }
}

/// Whether a request shows `token`; in the same time however much of it is right.
pub(crate) fn shows(headers: &HeaderMap, token: &str) -> bool {
    let given = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok());
    let Some(given) = given.and_then(|value| value.strip_prefix("Bearer ")) else { return false };
    let (own, given) = (token.as_bytes(), given.trim().as_bytes());
    let differ = own.iter().zip(given).fold(0, |differ, (own, given)| differ | (own ^ given));
    own.len() == given.len() && differ == 0
}

async fn listen(flag: &str, address: SocketAddr) -> Result<TcpListener, StartError> {
    let what = format!("cannot listen on {address} ({flag} gives another)");
    TcpListener::bind(address).await.map_err(io_error(&what))
}

/// Answers on `listener` for ever.
async fn serve<F, W>(shared: Arc<Shared>, listener: TcpListener, answer: F)
where
    F: Fn(Arc<Shared>, Request<Incoming>, SocketAddr) -> W + Copy + Send + Sync + 'static,
    W: Future<Output = Answer> + Send + 'static,
{
    let open = Arc::new(AtomicUsize::new(0));
    loop {
        let Ok((stream, peer)) = listener.accept().await else {
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        if open.load(Ordering::Relaxed) >= MOST_CONNECTIONS {
            continue;
        }
        let (shared, open) = (Arc::clone(&shared), Arc::clone(&open));
        open.fetch_add(1, Ordering::Relaxed);
        tokio::spawn(async move {
            let service = service_fn(|request| {
                let shared = Arc::clone(&shared);
                async move { Ok::<_, Infallible>(answer(shared, request, peer).await) }
            });
            let connection = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(Duration::from_secs(60))
                .serve_connection(TokioIo::new(stream), service);
            // How a connection ends is not our business.
            let _ = connection.await;
            open.fetch_sub(1, Ordering::Relaxed);
        });
    }
}

/// What nodes ask.
async fn for_nodes(shared: Arc<Shared>, request: Request<Incoming>, _: SocketAddr) -> Answer {
    if request.uri().path() != "/v1/lease" || request.method() != Method::POST {
        return text(
            StatusCode::NOT_FOUND,
            "nodes POST to /v1/lease; operators have another port\n",
        );
    }
    let (parts, body) = request.into_parts();
    if shared.lock().tokens.node(&parts.headers).is_none() {
        shared.lock().denied += 1;
        let why = "no lease without `authorization: Bearer TOKEN` with this node's token: \
                   it has its safe share\n";
        return text(StatusCode::UNAUTHORIZED, why);
    }
    let body = tokio::time::timeout(PATIENCE, Limited::new(body, LONGEST_MESSAGE).collect());
    let Ok(Ok(body)) = body.await else {
        shared.lock().malformed += 1;
        return text(
            StatusCode::PAYLOAD_TOO_LARGE,
            "a message is too long, or did not come in time\n",
        );
    };
    let reports = match read_reports(&body.to_bytes()) {
        Ok(reports) => reports,
        Err(error) => {
            shared.lock().malformed += 1;
            return text(StatusCode::BAD_REQUEST, format!("{error}\n"));
        }
    };
    let state = &mut *shared.lock();
    let State { book, tokens, .. } = state;
    // It was somebody's word a moment ago; tokens may have changed meanwhile.
    let Some(node) = tokens.node(&parts.headers) else {
        return text(StatusCode::UNAUTHORIZED, "the token has changed\n");
    };
    let answers = book.on_reports(shared.now(), node, &reports);
    with_type(text(StatusCode::OK, write_answers(&answers)), "application/octet-stream")
}

/// Tidies, and reads the file again when it has changed.
async fn look(shared: Arc<Shared>) {
    let path = shared.source.as_ref().map(|source| source.path.clone());
    let stamp = || path.as_ref().and_then(stamp);
    let mut known = stamp();
    let mut last = known;
    loop {
        tokio::time::sleep(LOOK).await;
        {
            let now = shared.now();
            shared.lock().book.tidy(now);
        }
        let now = stamp();
        // Written to its end: nothing has changed for one look.
        if now == last && now != known && now.is_some() {
            known = now;
            shared.reload();
        }
        last = now;
    }
}

/// What tells one state of a file from the next.
fn stamp(path: &PathBuf) -> Option<(SystemTime, u64)> {
    let data = fs::metadata(path).ok()?;
    Some((data.modified().ok()?, data.len()))
}

#[cfg(unix)]
fn hear(shared: &Arc<Shared>) -> io::Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let open = |kind| signal(kind);
    let (mut term, mut int) = (open(SignalKind::terminate())?, open(SignalKind::interrupt())?);
    let mut hup = open(SignalKind::hangup())?;
    let shared = Arc::clone(shared);
    tokio::spawn(async move {
        loop {
            tokio::select! {
                _ = term.recv() => shared.stop.send_replace(true),
                _ = int.recv() => shared.stop.send_replace(true),
                _ = hup.recv() => { shared.reload(); false }
            };
        }
    });
    Ok(())
}

#[cfg(not(unix))]
fn hear(shared: &Arc<Shared>) -> io::Result<()> {
    let shared = Arc::clone(shared);
    tokio::spawn(async move {
        if tokio::signal::ctrl_c().await.is_ok() {
            shared.stop.send_replace(true);
        }
    });
    Ok(())
}

pub(crate) fn text(status: StatusCode, text: impl Into<Bytes>) -> Answer {
    let mut answer = Response::new(Full::new(text.into()));
    *answer.status_mut() = status;
    with_type(answer, "text/plain; charset=utf-8")
}

pub(crate) fn with_type(mut answer: Answer, kind: &'static str) -> Answer {
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    answer
}

/// Milliseconds since 1970 by the wall clock.
pub(crate) fn unix_ms() -> u64 {
    unix_time().as_nanos() / 1_000_000
}

fn io_error(what: &str) -> impl Fn(io::Error) -> StartError + use<> {
    let what = what.to_owned();
    move |error| StartError::Io(what.clone(), error)
}
