//! Threads, start and end: [`Server`] binds, runs until it is told to end, and lets what is inside
//! finish. [`Handle`] tells it so.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use std::{fmt, fs, io, thread};

use tidegate_core::admission::{AdmissionConfig, TideConfig};
use tidegate_core::objective::Objective;
use tidegate_core::rng::Rng;
use tidegate_core::slots::SlotsConfig;
use tidegate_core::{Gate, Instant};
use tidegate_driver::{Clock, Monotonic, SharedGate};
use tidegate_http::wire::Names;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::watch;

use crate::admin;
use crate::config::File;
use crate::metrics::Counters;
use crate::report::{Level, Snapshot};
use crate::watch::{Line, Watch};
use crate::worker::{self, Phase, Worker};

/// Longest time between two looks at the gate. Its log of events holds 65,536; at four per request
/// that is 800,000 requests per second.
const LOOK: Duration = Duration::from_millis(20);
/// Shortest time between two: the runtime's timer is no finer.
const SHORTEST_LOOK: Duration = Duration::from_millis(1);

/// A sidecar whose sockets are open, and that does not serve yet.
#[derive(Debug)]
pub struct Server {
    shared: Arc<Shared>,
    listeners: Vec<std::net::TcpListener>,
    admin: TcpListener,
    runtime: Runtime,
    /// Whether signals of the process are heard.
    signals: bool,
}

/// Tells a server from anywhere what to do.
#[derive(Clone, Debug)]
pub struct Handle {
    shared: Arc<Shared>,
}

/// Where a reload reads the configuration from, or what is wrong there.
pub struct Source(Box<dyn Fn() -> Result<File, String> + Send + Sync>);

impl Source {
    /// Whatever `read` returns.
    pub fn new(read: impl Fn() -> Result<File, String> + Send + Sync + 'static) -> Self {
        Self(Box::new(read))
    }
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Source").finish_non_exhaustive()
    }
}

/// What all threads of a sidecar share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) gate: SharedGate,
    clock: Monotonic,
    watch: Watch,
    counters: Arc<Counters>,
    workers: Vec<Arc<Worker>>,
    phase: watch::Sender<Phase>,
    file: Mutex<File>,
    source: Option<Source>,
    listen: SocketAddr,
    admin: SocketAddr,
}

/// Why a sidecar does not start.
#[derive(Debug)]
pub enum StartError {
    /// The configuration is wrong, or lacks something.
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

impl Server {
    /// Opens the sockets. `source` is where a reload reads from; `seed` decides all random choices.
    pub fn bind(file: File, source: Option<Source>, seed: u64) -> Result<Self, StartError> {
        check_upstreams(&file)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(io_error("cannot start a runtime"))?;
        let (listeners, admin) = {
            let _entered = runtime.enter();
            (listen_all(&file)?, listen_admin(file.proxy.admin)?)
        };
        let address = |result: io::Result<_>| result.map_err(io_error("cannot learn an address"));
        let listen = address(listeners[0].local_addr())?;
        let admin_address = address(admin.local_addr())?;

        let clock = Monotonic::new();
        let gate = Gate::new(&file.gate, clock.now(), seed)
            .map_err(|error| StartError::Config(error.to_string()))?;
        let gate = SharedGate::with_clock(gate, clock);
        let (counters, names) = (Arc::new(Counters::default()), Names::default());
        let mut seeds = Rng::new(seed);
        let secret = secret(&file, &mut seeds)?;
        let workers = listeners.iter().map(|_| {
            let (gate, names, counters) = (gate.clone(), names.clone(), Arc::clone(&counters));
            Worker::new(gate, names, counters, &file.proxy, secret, seeds.next_u64())
        });
        let shared = Shared {
            watch: Watch::new(gate.clone(), file.proxy.observe),
            workers: workers.map(Arc::new).collect(),
            gate,
            clock,
            counters,
            phase: watch::Sender::new(Phase::Open),
            file: Mutex::new(file),
            source,
            listen,
            admin: admin_address,
        };
        Ok(Self { shared: Arc::new(shared), listeners, admin, runtime, signals: false })
    }

    /// Hears SIGTERM and SIGINT (end; the second time at once) and SIGHUP (reload).
    #[must_use]
    pub fn with_signals(mut self) -> Self {
        self.signals = true;
        self
    }

    /// A handle to it.
    pub fn handle(&self) -> Handle {
        Handle { shared: Arc::clone(&self.shared) }
    }

    /// Serves until it is told to end and everything inside has finished, or time is up.
    pub fn run(self) -> io::Result<()> {
        let Self { shared, listeners, admin, runtime, signals } = self;
        log(&shared.describe());
        let threads = listeners
            .into_iter()
            .zip(&shared.workers)
            .enumerate()
            .map(|(n, (listener, worker))| {
                let (worker, phase) = (Arc::clone(worker), shared.phase.subscribe());
                thread::Builder::new()
                    .name(format!("tidegate-{n}"))
                    .spawn(move || worker.run(listener, phase))
            })
            .collect::<io::Result<Vec<_>>>();
        let threads = threads.inspect_err(|_| shared.advance(Phase::Over))?;
        runtime.block_on(async {
            tokio::spawn(admin::serve(Arc::clone(&shared), admin));
            tokio::spawn(look(Arc::clone(&shared)));
            if signals {
                tokio::spawn(hear_signals(Arc::clone(&shared)));
            }
            shared.wait_for_end(&threads).await;
        });
        for thread in threads {
            thread.join().map_err(|_| io::Error::other("a serving thread panicked"))??;
        }
        shared.watch.collect().iter().for_each(|line| log(line));
        log(&format_args!("ended: {} served", shared.watch.metrics().0.served()));
        Ok(())
    }
}

impl Handle {
    /// Where clients connect.
    pub fn listen(&self) -> SocketAddr {
        self.shared.listen
    }

    /// Where operators look.
    pub fn admin(&self) -> SocketAddr {
        self.shared.admin
    }

    /// Accepts no more, finishes what is inside, then ends. The second time, ends at once.
    pub fn stop(&self) {
        self.shared.stop();
    }

    /// Reads the configuration file again. A file that is wrong changes nothing.
    pub fn reload(&self) -> Result<(), StartError> {
        self.shared.reload()
    }
}

impl Shared {
    pub(crate) fn is_draining(&self) -> bool {
        *self.phase.borrow() >= Phase::Draining
    }

    pub(crate) fn file(&self) -> File {
        self.file.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn snapshot(&self) -> Snapshot<'_> {
        let (metrics, line) = self.watch.metrics();
        line.iter().for_each(|line| log(line));
        let now = self.gate.now();
        Snapshot {
            metrics,
            counters: &self.counters,
            level: self.gate.read(|gate| Level::of(gate, now)),
            observe: self.file().proxy.observe,
            draining: self.is_draining(),
        }
    }

    fn stop(&self) {
        let next = match *self.phase.borrow() {
            Phase::Open => Phase::Draining,
            Phase::Draining | Phase::Over => Phase::Over,
        };
        self.advance(next);
    }

    /// Phases only go forward.
    fn advance(&self, next: Phase) {
        self.phase.send_if_modified(|phase| {
            let later = next > *phase;
            *phase = next.max(*phase);
            later
        });
    }

    async fn wait_for_end(&self, threads: &[JoinHandle<io::Result<()>>]) {
        let mut phase = self.phase.subscribe();
        // Its sender is in `self`, so this ends only when the phase comes.
        let _ = phase.wait_for(|phase| *phase >= Phase::Draining).await;
        let limit = Duration::from(self.file().proxy.drain_timeout);
        let inside = self.gate.read(|gate| gate.waiting() + gate.running() as usize);
        log(&format_args!("ending: {inside} requests inside, at most {limit:?} to finish"));
        let end = tokio::time::Instant::now() + limit;
        while threads.iter().any(|thread| !thread.is_finished()) {
            if tokio::time::Instant::now() >= end {
                self.advance(Phase::Over);
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// All of the file takes effect, or nothing.
    fn reload(&self) -> Result<(), StartError> {
        let nothing = || StartError::Config("there is no file to reload".to_owned());
        let result = self
            .source
            .as_ref()
            .ok_or_else(nothing)
            .and_then(|source| (source.0)().map_err(StartError::Config))
            .and_then(|file| self.take(file));
        match &result {
            Ok(()) => self.counters.reloads.add(1),
            Err(_) => self.counters.bad_reloads.add(1),
        }
        result
    }

    fn take(&self, mut file: File) -> Result<(), StartError> {
        let mut current = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        // What was opened stays open.
        file.proxy.listen = current.proxy.listen;
        file.proxy.admin = current.proxy.admin;
        file.proxy.threads = current.proxy.threads;
        file.proxy.header_timeout = current.proxy.header_timeout;
        file.proxy.secret_file.clone_from(&current.proxy.secret_file);
        check_upstreams(&file)?;
        self.gate
            .input(|gate, now| gate.reconfigure(now, &file.gate))
            .map_err(|error| StartError::Config(error.to_string()))?;
        self.watch.set_observe(file.proxy.observe).iter().for_each(|line| log(line));
        for worker in &self.workers {
            worker.reconfigure(&file.proxy);
        }
        *current = file;
        Ok(())
    }

    /// What an operator should know at the start.
    fn describe(&self) -> String {
        let file = self.file();
        let upstreams: Vec<String> = file.proxy.upstreams.iter().map(ToString::to_string).collect();
        let objective = match &file.gate.admission {
            AdmissionConfig::Tide(TideConfig { objective: Objective::Learned, .. }) => {
                "objective learned (/state tells it; --objective gives one)".to_owned()
            }
            AdmissionConfig::Tide(TideConfig { objective, .. }) => {
                format!("objective {objective}: an answer later than that is taken as worthless")
            }
            _ => format!("admission {}", self.gate.read(|gate| gate.admission().name())),
        };
        let slots = match &file.gate.slots {
            SlotsConfig::Adaptive(slots) => format!("slots found by trial, from {}", slots.start),
            SlotsConfig::Fixed(slots) => format!("slots {}", slots.count),
        };
        let observe = if file.proxy.observe { "; observes, enforces nothing" } else { "" };
        format!(
            "listening on {} for {}, {} threads, admin on http://{}\n\
             tidegate: {objective}; {slots}; trust {}{observe}",
            self.listen,
            upstreams.join(", "),
            self.workers.len(),
            self.admin,
            file.proxy.trust,
        )
    }
}

/// Keeps the gate's timer and counts its events.
async fn look(shared: Arc<Shared>) {
    loop {
        let until = shared.gate.next_wakeup().and_then(|at: Instant| shared.clock.to_std(at));
        let soonest = std::time::Instant::now() + SHORTEST_LOOK;
        let latest = std::time::Instant::now() + LOOK;
        let at = until.unwrap_or(latest).clamp(soonest, latest);
        tokio::time::sleep_until(at.into()).await;
        shared.gate.dispatch();
        shared.watch.collect().iter().for_each(|line: &Line| log(line));
    }
}

#[cfg(unix)]
async fn hear_signals(shared: Arc<Shared>) {
    use tokio::signal::unix::{SignalKind, signal};
    let streams = (
        signal(SignalKind::terminate()),
        signal(SignalKind::interrupt()),
        signal(SignalKind::hangup()),
    );
    let (Ok(mut terminate), Ok(mut interrupt), Ok(mut hangup)) = streams else {
        return log(&"signals cannot be heard: they end the process at once");
    };
    loop {
        tokio::select! {
            _ = terminate.recv() => shared.stop(),
            _ = interrupt.recv() => shared.stop(),
            _ = hangup.recv() => match shared.reload() {
                Ok(()) => log(&"the configuration was read again and is in force"),
                Err(error) => log(&format_args!("the old configuration stays: {error}")),
            },
        }
    }
}

#[cfg(not(unix))]
async fn hear_signals(shared: Arc<Shared>) {
    while tokio::signal::ctrl_c().await.is_ok() {
        shared.stop();
    }
}

fn check_upstreams(file: &File) -> Result<(), StartError> {
    if file.proxy.upstreams.is_empty() {
        let problem = "no upstream: give --upstream http://host:port, or proxy.upstreams";
        return Err(StartError::Config(problem.to_owned()));
    }
    Ok(())
}

/// The secret of the file, or one of this process's own.
fn secret(file: &File, rng: &mut Rng) -> Result<[u8; 16], StartError> {
    let Some(path) = &file.proxy.secret_file else {
        return Ok((u128::from(rng.next_u64()) << 64 | u128::from(rng.next_u64())).to_le_bytes());
    };
    let read = || {
        let mut secret = [0; 16];
        fs::File::open(path)?.read_exact(&mut secret)?;
        Ok(secret)
    };
    read().map_err(io_error(&format!("cannot read 16 bytes of {path}")))
}

fn listen_all(file: &File) -> Result<Vec<std::net::TcpListener>, StartError> {
    let threads = match file.proxy.threads {
        0 => thread::available_parallelism().map_or(1, usize::from),
        threads => threads,
    };
    let address = file.proxy.listen;
    let cannot = || io_error(&format!("cannot listen on {address}"));
    // Sockets that share an address also share it with another process of ours; ask without
    // sharing first, so that a port in use is an error and not a surprise.
    if address.port() != 0 {
        drop(std::net::TcpListener::bind(address).map_err(cannot())?);
    }
    let first = worker::listen(address).map_err(cannot())?;
    let address = first.local_addr().map_err(cannot())?;
    let mut listeners = vec![first];
    for _ in 1..threads {
        listeners.push(worker::listen(address).map_err(cannot())?);
    }
    Ok(listeners)
}

fn listen_admin(address: SocketAddr) -> Result<TcpListener, StartError> {
    let open = || {
        let listener = std::net::TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        TcpListener::from_std(listener)
    };
    open().map_err(io_error(&format!("cannot listen on {address} for the admin pages")))
}

fn io_error(what: &str) -> impl Fn(io::Error) -> StartError + use<> {
    let what = what.to_owned();
    move |error| StartError::Io(what.clone(), error)
}

/// A line for the operator.
fn log(line: &dyn fmt::Display) {
    // Nobody is left to tell when stderr is closed.
    let _ = writeln!(io::stderr(), "tidegate: {line}");
}
