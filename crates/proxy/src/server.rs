//! Threads, start and end: [`Server`] binds, runs until it is told to end, and lets what is inside
//! finish. [`Handle`] tells it so.

use std::collections::BTreeMap;
use std::io::Read;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};
use std::{fmt, fs, io, thread};

use tidegate_control::Link;
use tidegate_core::admission::{AdmissionConfig, TideConfig};
use tidegate_core::objective::Objective;
use tidegate_core::rng::Rng;
use tidegate_core::slots::SlotsConfig;
use tidegate_core::{Gate, Instant, Span};
use tidegate_driver::{Clock, Monotonic, SharedGate, unix_time};
use tidegate_http::wire::Names;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio_rustls::rustls::ClientConfig;

use crate::admin;
use crate::config::{Egress, File, Percent, ProxyConfig, Trust};
use crate::dashboard::detail::heavy_hitters;
use crate::files;
use crate::health::{self, Peers};
use crate::inflight::InFlight;
use crate::journal::Journals;
use crate::jwt::Jwt;
use crate::leases::{Lease, Leases, node_name};
use crate::listen;
use crate::log::Log;
use crate::machine::{self, Sample};
use crate::metrics::Counters;
use crate::operate::{self, Token};
use crate::outbound;
use crate::outlets::{Outlets, Outward};
use crate::report::{Level, Snapshot};
use crate::sideline::Sideline;
use crate::signals::{Signals, Wish};
use crate::tls::{self, Tls};
use crate::trace::Traces;
use crate::watch::{Line, Watch};
use crate::worker::{Links, Phase, Settings, Tools, Worker};

/// Longest time between two looks at the gate. Its log of events holds 65,536; at four per request
/// that is 800,000 requests per second.
const LOOK: Duration = Duration::from_millis(20);
/// Shortest time between two: the runtime's timer is no finer.
const SHORTEST_LOOK: Duration = Duration::from_millis(1);
/// Time between two looks at the configuration file.
const FILE_LOOK: Duration = Duration::from_millis(500);

/// A sidecar whose sockets are open, and that does not serve yet.
#[derive(Debug)]
pub struct Server {
    shared: Arc<Shared>,
    listeners: Vec<std::net::TcpListener>,
    outward: Vec<Outward>,
    admin: TcpListener,
    runtime: Runtime,
    signals: Option<Signals>,
}

/// Tells a server from anywhere what to do.
#[derive(Clone, Debug)]
pub struct Handle {
    shared: Arc<Shared>,
}

/// Where a reload reads the configuration from, or what is wrong there.
pub struct Source {
    read: Box<dyn Fn() -> Result<File, String> + Send + Sync>,
    /// A file whose changes cause a reload.
    path: Option<PathBuf>,
}

impl Source {
    /// Whatever `read` returns.
    pub fn new(read: impl Fn() -> Result<File, String> + Send + Sync + 'static) -> Self {
        Self { read: Box::new(read), path: None }
    }

    /// The same, read again whenever the file at `path` has changed.
    #[must_use]
    pub fn watching(mut self, path: PathBuf) -> Self {
        self.path = Some(path);
        self
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
    pub(crate) sideline: Arc<Sideline>,
    pub(crate) names: Names,
    clock: Monotonic,
    begun: Instant,
    pub(crate) watch: Watch,
    counters: Arc<Counters>,
    workers: Vec<Arc<Worker>>,
    outlets: Outlets,
    phase: watch::Sender<Phase>,
    pub(crate) file: Mutex<File>,
    /// What an operator has said instead of the file.
    pub(crate) enforce: Mutex<Option<Percent>>,
    pub(crate) token: Mutex<Option<Token>>,
    pub(crate) peers: Peers,
    links: Mutex<Links>,
    sample: Mutex<Sample>,
    /// To the daemon that keeps agreements.
    link: Link,
    log: Log,
    source: Option<Source>,
    listen: SocketAddr,
    admin: SocketAddr,
    /// How many file descriptors there may be, if the system tells.
    files: Option<u64>,
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

/// Tells a gate what its limits ask for: numbers of workflows, and the calendar.
pub(crate) fn inform(gate: &mut Gate, now: Instant, names: &Names) {
    gate.name_workflows(|name| names.number(name));
    gate.on_calendar(now, unix_time());
}

/// Names that rules give stay, however seldom they are used; others are heard.
fn keep_names(file: &File, names: &Names) {
    let named = file.proxy.rules.iter().filter_map(|rule| rule.workflow.as_deref());
    for name in named {
        names.number(name);
    }
}

impl Server {
    /// Opens the sockets. `source` is where a reload reads from; `seed` decides all random choices.
    pub fn bind(file: File, source: Option<Source>, seed: u64) -> Result<Self, StartError> {
        check_upstreams(&file)?;
        let files = files::raise();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(io_error("cannot start a runtime"))?;
        let (listeners, admin) = {
            let _entered = runtime.enter();
            (listen::serving(&file.proxy)?, listen::admin(file.proxy.admin)?)
        };
        let address = |result: io::Result<_>| result.map_err(io_error("cannot learn an address"));
        let listen = address(listeners[0].local_addr())?;
        let admin_address = address(admin.local_addr())?;

        let clock = Monotonic::new();
        let (counters, names) = (Arc::new(Counters::default()), Names::default());
        let mut gate = Gate::new(&file.gate, clock.now(), seed)
            .map_err(|error| StartError::Config(error.to_string()))?;
        inform(&mut gate, clock.now(), &names);
        keep_names(&file, &names);
        let gate = SharedGate::with_clock(gate, clock);
        let mut seeds = Rng::new(seed);
        let secret = secret(&file, &mut seeds)?;
        let token = operate::token(&file)?;
        let enforce = file.proxy.enforce;
        let sideline = Arc::new(Sideline::new(
            &file.gate,
            names.clone(),
            enforce,
            clock.now(),
            seeds.next_u64(),
        ));
        let tls = Tls::new(&file.proxy).map_err(StartError::Config)?;
        let jwt = Jwt::of(&file.proxy).map_err(StartError::Config)?;
        let peers = Peers::default();
        let outbound = outbound::build(&file.caller, clock, seeds.next_u64())
            .map_err(|error| StartError::Config(error.to_string()))?;
        let traces = Traces::new(&file.proxy.traces, file.proxy.log).map_err(StartError::Config)?;
        let told = (names.clone(), counters.rules.clone());
        let journals = Journals::open(&file.proxy, &told, file.proxy.log, clock.now());
        let journals = journals.map_err(StartError::Config)?;
        let links = Links { tls, jwt, outbound, traces, journals };
        let tools = Tools {
            gate: gate.clone(),
            sideline: Arc::clone(&sideline),
            names: names.clone(),
            counters: Arc::clone(&counters),
            peers: peers.clone(),
            exempt: Arc::default(),
            seats: Arc::default(),
            round_trips: Arc::default(),
            inside: (!file.proxy.egress.is_empty()).then(|| Arc::new(InFlight::new(clock, seed))),
            way_out: None,
            threads: listeners.len(),
            secret,
            seed,
        };
        let (outlets, outward) = {
            let _entered = runtime.enter();
            Outlets::open(&file.proxy, &tools, clock, &mut seeds)?
        };
        let workers = listeners.iter().map(|_| {
            let tools = Tools { seed: seeds.next_u64(), ..tools.clone() };
            Worker::new(tools, &file.proxy, &links)
        });
        let leases = Leases {
            gate: gate.clone(),
            sideline: Arc::clone(&sideline),
            names: names.clone(),
            counters: Arc::clone(&counters),
        };
        let shared = Shared {
            link: Link::new(Arc::new(leases), node_name(listen.port())),
            watch: Watch::new(gate.clone(), Arc::clone(&sideline)),
            workers: workers.map(Arc::new).collect(),
            outlets,
            gate,
            sideline,
            names: names.clone(),
            clock,
            begun: clock.now(),
            counters,
            phase: watch::Sender::new(Phase::Open),
            peers,
            links: Mutex::new(links),
            sample: Mutex::new(Sample::default()),
            log: file.proxy.log,
            file: Mutex::new(file),
            enforce: Mutex::new(None),
            token: Mutex::new(token),
            source,
            listen,
            admin: admin_address,
            files,
        };
        Ok(Self { shared: Arc::new(shared), listeners, outward, admin, runtime, signals: None })
    }

    /// Hears SIGTERM and SIGINT (end; the second time at once) and SIGHUP (reload).
    pub fn with_signals(mut self) -> Result<Self, StartError> {
        let signals = {
            let _entered = self.runtime.enter();
            Signals::open().map_err(io_error("cannot hear signals"))?
        };
        self.signals = Some(signals);
        Ok(self)
    }

    /// A handle to it.
    pub fn handle(&self) -> Handle {
        Handle { shared: Arc::clone(&self.shared) }
    }

    /// Serves until it is told to end and everything inside has finished, or time is up.
    pub fn run(self) -> io::Result<()> {
        let Self { shared, listeners, outward, admin, runtime, signals } = self;
        shared.describe().iter().for_each(|line| shared.log(line));
        shared.warn_of_files();
        let threads = listeners
            .into_iter()
            .zip(outward)
            .zip(&shared.workers)
            .enumerate()
            .map(|(n, ((listener, out), worker))| {
                let (worker, phase) = (Arc::clone(worker), shared.phase.subscribe());
                thread::Builder::new()
                    .name(format!("tidegate-{n}"))
                    .spawn(move || worker.run(listener, out, phase))
            })
            .collect::<io::Result<Vec<_>>>();
        let threads = threads.inspect_err(|_| shared.advance(Phase::Over))?;
        runtime.block_on(async {
            tokio::spawn(admin::serve(Arc::clone(&shared), admin));
            tokio::spawn(look(Arc::clone(&shared)));
            tokio::spawn(health::ask(Arc::clone(&shared)));
            tokio::spawn(health::tell_outages(Arc::clone(&shared)));
            tokio::spawn(tls::tell_expiry(Arc::clone(&shared)));
            tokio::spawn(machine::sample(Arc::clone(&shared)));
            tokio::spawn(watch_file(Arc::clone(&shared)));
            tokio::spawn(lease(Arc::clone(&shared)));
            tokio::spawn(shared.link.clone().watch());
            if let Some(signals) = signals {
                tokio::spawn(hear(Arc::clone(&shared), signals));
            }
            shared.wait_for_end(&threads).await;
            shared.link.leave().await;
        });
        for thread in threads {
            thread.join().map_err(|_| io::Error::other("a serving thread panicked"))??;
        }
        shared.links().traces.clone().finish();
        shared.links().journals.clone().finish();
        shared.watch.collect().iter().for_each(|line| shared.log(line));
        shared.log(&format_args!("ended: {} served", shared.watch.metrics().0.served()));
        Ok(())
    }
}

impl Handle {
    /// Where clients connect.
    pub fn listen(&self) -> SocketAddr {
        self.shared.listen
    }

    /// Where the guarded service reaches what it calls, by the name in `proxy.egress`.
    pub fn egress(&self, name: &str) -> Option<SocketAddr> {
        self.shared.outlets.listen(name)
    }

    /// Where operators look.
    pub fn admin(&self) -> SocketAddr {
        self.shared.admin
    }

    /// What `/state` says.
    pub fn state(&self) -> serde_json::Value {
        self.shared.snapshot().json()
    }

    /// Accepts no more, finishes what is inside, then ends. The second time, ends at once.
    pub fn stop(&self) {
        self.shared.stop();
    }

    /// Reads the configuration file again. A file that is wrong changes nothing.
    pub fn reload(&self) -> Result<(), StartError> {
        self.shared.reload().map(drop)
    }
}

impl Shared {
    pub(crate) fn is_draining(&self) -> bool {
        *self.phase.borrow() >= Phase::Draining
    }

    pub(crate) fn file(&self) -> File {
        self.file.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What requests go by.
    pub(crate) fn settings(&self) -> Arc<Settings> {
        self.workers[0].settings()
    }

    /// What rules are called.
    pub(crate) fn titles(&self) -> &Names {
        &self.counters.rules
    }

    pub(crate) fn tls(&self) -> Option<Arc<ClientConfig>> {
        self.links().tls.client.clone()
    }

    /// When the certificate that clients are shown is no longer good, in seconds since 1970.
    pub(crate) fn certificate_until(&self) -> Option<i64> {
        self.links().tls.until
    }

    fn links(&self) -> MutexGuard<'_, Links> {
        self.links.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn snapshot(&self) -> Snapshot<'_> {
        let (metrics, line) = self.watch.metrics();
        line.iter().for_each(|line| self.log(line));
        let now = self.gate.now();
        // Before the rest: the lock is not held twice.
        let lines_lost = self.links().journals.lost();
        Snapshot {
            metrics,
            detail: self.watch.detail(),
            names: &self.names,
            latencies: self.latencies(),
            uptime: now.since(self.begun),
            counters: &self.counters,
            level: self.read(|gate| Level::of(gate, now)),
            heavy: self.read(|gate| heavy_hitters(gate, &self.names)),
            leases: self.read(|gate| Lease::all(gate, now, &self.names)),
            link: self.link.health(),
            enforce: self.sideline.percent(),
            draining: self.is_draining(),
            when_left: self.file().proxy.when_left,
            peers: self.peers.all(),
            egress: self.outlets.report(),
            inside: self.outlets.inside(),
            lines_lost,
            overload: self.watch.overload(),
            certificate_until: self.certificate_until(),
            sample: self.sample.lock().unwrap_or_else(PoisonError::into_inner).clone(),
            now,
        }
    }

    /// The machine was looked at.
    pub(crate) fn sampled(&self, sample: Sample) {
        *self.sample.lock().unwrap_or_else(PoisonError::into_inner) = sample;
    }

    /// The runtimes of the threads that serve; none before all do.
    pub(crate) fn runtimes(&self) -> Option<Vec<tokio::runtime::Handle>> {
        self.workers.iter().map(|worker| worker.runtime().cloned()).collect()
    }

    /// How long upstreams take to answer, as the slowest thread sees it.
    fn latencies(&self) -> BTreeMap<String, Span> {
        let mut all = BTreeMap::<String, Span>::new();
        for worker in &self.workers {
            for upstream in worker.settings().upstreams.list() {
                if let (address, Some(latency)) = upstream.latency() {
                    let known = all.entry(address).or_default();
                    *known = latency.max(*known);
                }
            }
        }
        all
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
        let inside = || self.gate.read(|gate| gate.waiting() + gate.running() as usize);
        let mut left = inside();
        self.log(&format_args!(
            "ending: {} inside, at most {limit:?} to finish; a second signal ends at once",
            requests(left)
        ));
        let end = tokio::time::Instant::now() + limit;
        while threads.iter().any(|thread| !thread.is_finished()) {
            if tokio::time::Instant::now() >= end {
                self.advance(Phase::Over);
            }
            if *self.phase.borrow() < Phase::Over {
                left = inside();
            }
            tokio::time::sleep(LOOK).await;
        }
        if left > 0 && *self.phase.borrow() == Phase::Over {
            self.log(&format_args!("{} did not finish in time", requests(left)));
        }
    }

    /// All of the file takes effect, or nothing. Names what it says otherwise and needs a restart.
    fn reload(&self) -> Result<Vec<&'static str>, StartError> {
        let nothing = || StartError::Config("there is no file to reload".to_owned());
        let result = self
            .source
            .as_ref()
            .ok_or_else(nothing)
            .and_then(|source| (source.read)().map_err(StartError::Config))
            .and_then(|file| self.take(file));
        match &result {
            Ok(_) => self.counters.reloads.add(1),
            Err(_) => self.counters.bad_reloads.add(1),
        }
        result
    }

    fn reload_and_tell(&self) {
        match self.reload() {
            Ok(unchanged) if unchanged.is_empty() => {
                self.log(&"the configuration was read again and is in force");
            }
            Ok(unchanged) => self.log(&format_args!(
                "the configuration was read again and is in force, but for what needs a restart: {}",
                unchanged.join(", ")
            )),
            Err(error) => self.log(&format_args!("the old configuration stays: {error}")),
        }
    }

    fn take(&self, mut file: File) -> Result<Vec<&'static str>, StartError> {
        let mut current = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        let unchanged = keep_opened(&mut file.proxy, &current.proxy);
        check_upstreams(&file)?;
        keep_names(&file, &self.names);
        let token = operate::token(&file)?;
        let tls = Tls::new(&file.proxy).map_err(StartError::Config)?;
        let jwt = Jwt::of(&file.proxy).map_err(StartError::Config)?;
        let outbound = match file.caller == current.caller {
            true => self.links().outbound.clone(),
            false => outbound::build(&file.caller, self.clock, self.clock.now().as_nanos())
                .map_err(|error| StartError::Config(error.to_string()))?,
        };
        let out = self.outlets.prepare(&file.proxy)?;
        let (old, same) = (self.links().traces.clone(), file.proxy.traces == current.proxy.traces);
        let traces = match same {
            true => old.clone(),
            false => Traces::new(&file.proxy.traces, self.log).map_err(StartError::Config)?,
        };
        let written = |proxy: &ProxyConfig| (proxy.access_log.clone(), proxy.record_file.clone());
        let same_files = written(&file.proxy) == written(&current.proxy);
        let old_journals = self.links().journals.clone();
        let journals = match same_files {
            true => old_journals.clone(),
            false => {
                let told = (self.names.clone(), self.titles().clone());
                Journals::open(&file.proxy, &told, self.log, self.clock.now())
                    .map_err(StartError::Config)?
            }
        };
        // The last that can fail; from here on everything is taken.
        self.reconfigure(&file.gate)?;
        self.outlets.reconfigure(&file.proxy, out, self.clock)?;
        let links = Links { tls, jwt, outbound, traces, journals };
        *self.token.lock().unwrap_or_else(PoisonError::into_inner) = token;
        for worker in &self.workers {
            worker.reconfigure(&file.proxy, &links);
        }
        self.peers.keep(|address| file.proxy.addresses().any(|used| used == address));
        *self.links() = links;
        *current = file;
        drop(current);
        if !same {
            thread::spawn(move || old.finish());
        }
        if !same_files {
            // Lines of requests that are still on their way find it closed, and count as lost.
            thread::spawn(move || old_journals.finish());
        }
        self.apply_enforcement();
        Ok(unchanged)
    }

    /// What an operator should know at the start.
    fn describe(&self) -> Vec<String> {
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
        let enforce = match file.proxy.enforce {
            Percent::ALL => String::new(),
            Percent::NONE => "; observes, enforces nothing".to_owned(),
            percent => format!("; enforces {percent}"),
        };
        let (threads, admin) = (self.workers.len(), self.admin);
        let upstreams = upstreams.join(", ");
        let mut lines = vec![
            format!(
                "listening on {} for {upstreams}, {threads} threads, admin on http://{admin}",
                self.listen
            ),
            format!("{objective}; {slots}; trust {}{enforce}", file.proxy.trust),
            format!("users are told apart by {}", Self::users(&file.proxy)),
        ];
        if file.proxy.trust == Trust::Inside && self.listen.ip().is_unspecified() {
            lines.push("trust inside on all addresses: whoever reaches this port says itself how important it is".to_owned());
        }
        lines.extend(self.outlets.describe());
        lines
    }

    /// Says so if there may be fewer files than connections.
    fn warn_of_files(&self) {
        // Each request has one to its client and one to its upstream.
        let wanted = self.file().proxy.connections.most.saturating_mul(2);
        if let Some(files) = self.files.filter(|files| *files < wanted) {
            self.log(&format_args!(
                "the system allows {files} open files, and proxy.connections.most asks for {wanted}: raise the hard limit (ulimit -Hn)"
            ));
        }
    }

    /// By what users are told apart.
    fn users(proxy: &ProxyConfig) -> String {
        let (inside, hops) = (proxy.trust == Trust::Inside, !proxy.edge.trusted.is_empty());
        let header = proxy.user_header.as_ref();
        let told = header.filter(|_| inside || hops).map(|name| match inside {
            true => name.clone(),
            false => format!("{name} of trusted proxies"),
        });
        let certificate = proxy.tls.client_ca_file.as_ref().map(|_| "certificate".to_owned());
        let token = proxy.jwt.as_ref().map(|jwt| format!("token of {}", jwt.issuer));
        let shown = inside || proxy.edge.verified_credentials;
        let credentials = shown.then(|| "verified credentials".to_owned());
        let address = if hops { "address, through trusted proxies" } else { "address" };
        let by = told.into_iter().chain(certificate).chain(token).chain(credentials);
        let by: Vec<String> = by.chain([address.to_owned()]).collect();
        let unused = header.filter(|_| !inside && !hops).map_or_else(String::new, |name| {
            format!(" ({name} is taken of nobody: proxy.edge.trusted names no networks)")
        });
        format!("{}{unused}", by.join(", else "))
    }

    /// A line for the operator.
    pub(crate) fn log(&self, line: &dyn fmt::Display) {
        self.log.line(line);
    }
}

/// Carries the reports of leased limits.
async fn lease(shared: Arc<Shared>) {
    let link = shared.link.clone();
    link.run(|line| shared.log(&line)).await;
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
        shared.sideline.look(shared.gate.now());
        shared.watch.collect().iter().for_each(|line: &Line| shared.log(line));
    }
}

/// Reads the file again when it or a certificate or the keys that it names have changed. What is seen is its time, its length and, as tools write a
/// new file and rename it, which file it is; it is read once nothing has changed for one look.
async fn watch_file(shared: Arc<Shared>) {
    let Some(path) = shared.source.as_ref().and_then(|source| source.path.clone()) else { return };
    let look = || {
        let proxy = shared.file().proxy;
        let (tls, jwks) = (proxy.tls, proxy.jwt.map(|jwt| jwt.jwks_file));
        let files = [tls.cert_file, tls.key_file, tls.client_ca_file, tls.upstream_ca_file, jwks];
        let named = files.into_iter().flatten().filter_map(|path| stamp(Path::new(&path)));
        stamp(&path).map(|own| (own, named.collect::<Vec<_>>()))
    };
    let mut known = look();
    let mut last = known.clone();
    loop {
        tokio::time::sleep(FILE_LOOK).await;
        let now = look();
        if now == last && now != known && now.is_some() {
            shared.reload_and_tell();
            // What it names may be other files now.
            known = look();
        }
        last = now;
    }
}

/// What tells one state of a file from the next; none while it is not there.
fn stamp(path: &Path) -> Option<(SystemTime, u64, u64)> {
    let data = fs::metadata(path).ok()?;
    #[cfg(unix)]
    let which = std::os::unix::fs::MetadataExt::ino(&data);
    #[cfg(not(unix))]
    let which = 0;
    Some((data.modified().ok()?, data.len(), which))
}

async fn hear(shared: Arc<Shared>, mut signals: Signals) {
    loop {
        match signals.next().await {
            Wish::End => shared.stop(),
            Wish::Reload => shared.reload_and_tell(),
        }
    }
}

/// What was opened stays open; names what the file says otherwise.
fn keep_opened(file: &mut ProxyConfig, current: &ProxyConfig) -> Vec<&'static str> {
    let opened = |list: &[Egress]| -> Vec<_> {
        list.iter().map(|egress| (egress.name.clone(), egress.listen)).collect()
    };
    let other_egress = opened(&file.egress) != opened(&current.egress);
    let differ = [
        ("listen", file.listen != current.listen),
        ("admin", file.admin != current.admin),
        ("threads", file.threads != current.threads),
        ("log", file.log != current.log),
        ("secret_file", file.secret_file != current.secret_file),
        ("egress", other_egress),
    ];
    if other_egress {
        file.egress.clone_from(&current.egress);
    }
    file.listen = current.listen;
    file.admin = current.admin;
    file.threads = current.threads;
    file.log = current.log;
    file.secret_file.clone_from(&current.secret_file);
    differ.into_iter().filter_map(|(name, differs)| differs.then_some(name)).collect()
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

/// So many, in words.
fn requests(count: usize) -> String {
    if count == 1 { "1 request".to_owned() } else { format!("{count} requests") }
}

fn io_error(what: &str) -> impl Fn(io::Error) -> StartError + use<> {
    let what = what.to_owned();
    move |error| StartError::Io(what.clone(), error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reload_names_what_needs_a_restart() {
        let current = ProxyConfig::default();
        let listen = SocketAddr::from(([127, 0, 0, 1], 1));
        let wanted = ProxyConfig { listen, threads: 3, batch: true, ..ProxyConfig::default() };
        let mut file = wanted.clone();
        assert_eq!(keep_opened(&mut file, &current), ["listen", "threads"]);
        assert_eq!(file, ProxyConfig { batch: true, ..current.clone() });
        assert!(keep_opened(&mut file, &current).is_empty());
    }
}
