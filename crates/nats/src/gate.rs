//! The process: [`Gate`] opens its sockets and asks its brokers, runs until it is told to end, and lets what waits
//! leave. [`Source`] is where a reload reads from.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use std::{fmt, fs, io, thread};

use tidegate_control::Link;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::oneshot;

use crate::admin::{self, Pages, Token};
use crate::config::{File, NatsConfig};
use crate::probe;
use crate::server::{Ask, Line, Serving};
use crate::signals::{Signals, Wish};
use crate::tls::Tls;
use crate::users;

/// Where a reload reads the configuration from, or what is wrong there.
pub type Source = Box<dyn Fn() -> Result<File, String> + Send + Sync>;

/// A gate whose sockets are open, and that does not serve yet.
#[derive(Debug)]
pub struct Gate {
    serving: Serving,
    listen: SocketAddr,
    admin: TcpListener,
    token: Option<Token>,
    runtime: Runtime,
    signals: Signals,
    log: fn(&str),
    brokers: usize,
}

/// Asks a gate from anywhere, and tells it what to do.
#[derive(Clone, Debug)]
pub struct Handle {
    line: Line,
}

impl Handle {
    /// What `/state` says; nothing once the gate has ended.
    pub fn state(&self) -> Option<serde_json::Value> {
        self.ask(Ask::State)
    }

    /// What `/clients` says.
    pub fn clients(&self) -> Option<serde_json::Value> {
        self.ask(Ask::Clients)
    }

    /// Moves a publisher to another broker.
    pub fn move_publisher(&self, client: u64, broker: usize) -> Result<(), String> {
        let ended = || Err("the gate has ended".to_owned());
        self.ask(|to| Ask::Move(client, broker, to)).unwrap_or_else(ended)
    }

    /// Another configuration from now on.
    pub fn reload(&self, file: File) -> Result<(), String> {
        let ended = || Err("the gate has ended".to_owned());
        self.ask(|to| Ask::Reload(Box::new(file), to)).unwrap_or_else(ended)
    }

    /// Accepts nobody new, lets go what waits, then ends. The second time, ends at once.
    pub fn stop(&self) {
        self.line.ask(Ask::Stop);
    }

    fn ask<T>(&self, ask: impl FnOnce(oneshot::Sender<T>) -> Ask) -> Option<T> {
        let (to, answer) = oneshot::channel();
        if self.line.ask(ask(to)) { answer.blocking_recv().ok() } else { None }
    }
}

/// Why a gate does not start.
#[derive(Debug)]
pub enum StartError {
    /// The configuration is wrong, or lacks something, or no broker is fit.
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

impl Gate {
    /// Asks the brokers who they are, and opens the sockets. Lines for the operator go to `log`.
    pub fn bind(mut file: File, log: fn(&str)) -> Result<Self, StartError> {
        let tls = Tls::new(&file.nats).map_err(StartError::Config)?;
        let users = users::read(&file.nats).map_err(StartError::Config)?;
        let probed = ask_all(&file.nats, &tls)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(io_error("cannot start a runtime".to_owned()))?;
        let listen = std::net::TcpListener::bind(file.nats.listen);
        let listener = listen.map_err(cannot_listen(file.nats.listen, "--listen"))?;
        let admin = runtime.block_on(TcpListener::bind(file.nats.admin));
        let admin = admin.map_err(cannot_listen(file.nats.admin, "--admin"))?;
        let signals = {
            let _entered = runtime.enter();
            Signals::open().map_err(io_error("cannot hear signals".to_owned()))?
        };
        let unknown = || io_error("cannot learn an address".to_owned());
        let listen = listener.local_addr().map_err(unknown())?;
        file.nats.listen = listen;
        file.nats.admin = admin.local_addr().map_err(unknown())?;
        let token = token(&file.nats)?;
        let brokers = file.nats.brokers.len();
        let id = format!("T{:016X}", tidegate_driver::random_seed());
        let serving = Serving::new(file, listener, id, probed, (tls, users), log);
        let serving = serving.map_err(io_error("cannot poll sockets".to_owned()))?;
        Ok(Self { serving, listen, admin, token, runtime, signals, log, brokers })
    }

    /// Where clients connect.
    pub fn listen(&self) -> SocketAddr {
        self.listen
    }

    /// A handle to it.
    pub fn handle(&self) -> Handle {
        Handle { line: self.serving.line() }
    }

    /// Where operators look.
    pub fn admin(&self) -> io::Result<SocketAddr> {
        self.admin.local_addr()
    }

    /// Serves until SIGTERM or SIGINT, the second of which ends it at once; SIGHUP reads the configuration again.
    pub fn run(self, source: Option<Source>) -> io::Result<()> {
        let Self { serving, listen, admin, token, runtime, mut signals, log, brokers } = self;
        let admin_at = admin.local_addr()?;
        log(&format!(
            "serving {listen} before {brokers} brokers; admin pages at http://{admin_at}/"
        ));
        let line = serving.line();
        let leases = serving.leases();
        let shared = !leases.0.is_empty();
        let link = Link::new(Arc::new(leases), format!("nats-{}", listen.port()));
        let (over, ended) = oneshot::channel::<()>();
        let thread = thread::Builder::new().name("tidegate-nats".to_owned()).spawn(move || {
            let result = serving.run();
            // The other thread may have been faster.
            drop(over);
            result
        })?;
        runtime.block_on(async {
            tokio::spawn(admin::serve(Pages::new(line.clone(), token), admin));
            if shared {
                tokio::spawn(link.clone().run(log));
            }
            let mut ended = ended;
            loop {
                tokio::select! {
                    _ = &mut ended => break,
                    wish = signals.next() => match wish {
                        Wish::End => {
                            log("told to end: what waits leaves first");
                            line.ask(Ask::Stop);
                        }
                        Wish::Reload => reload(&line, source.as_ref(), log).await,
                    },
                }
            }
        });
        // What it had is for others at once.
        runtime.block_on(link.leave());
        thread.join().map_err(|_| io::Error::other("the serving thread panicked"))??;
        log("ended");
        Ok(())
    }
}

async fn reload(line: &Line, source: Option<&Source>, log: fn(&str)) {
    let Some(source) = source else { return log("nothing to reload: there is no file") };
    let (to, answer) = oneshot::channel();
    let result = match source() {
        Err(problem) => Err(problem),
        Ok(file) => {
            line.ask(Ask::Reload(Box::new(file), to));
            answer.await.unwrap_or_else(|_| Err("the gate is ending".to_owned()))
        }
    };
    match result {
        Ok(()) => log("reloaded"),
        Err(problem) => log(&format!("not reloaded: {problem}")),
    }
}

/// Asks all brokers at once. One that is there must be fit, and one must be there.
fn ask_all(config: &NatsConfig, tls: &Tls) -> Result<Vec<probe::Found>, StartError> {
    if config.brokers.is_empty() {
        let problem =
            "no broker: give one with --broker nats://host:port, or nats.brokers in the file";
        return Err(StartError::Config(problem.to_owned()));
    }
    let patience = Duration::from(config.broker_timeout);
    let threads: Vec<_> = config
        .brokers
        .iter()
        .cloned()
        .map(|broker| {
            let tls = tls.brokers.clone();
            thread::spawn(move || probe::ask(&broker, tls.as_ref(), patience))
        })
        .collect();
    let failed = |_| Err("asking it failed".to_owned());
    let answers: Vec<_> =
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(failed)).collect();
    let unfit: Vec<String> = config
        .brokers
        .iter()
        .zip(&answers)
        .filter_map(|(at, answer)| {
            let (info, _) = answer.as_ref().ok()?;
            let streams = config.jetstream.as_ref().is_some_and(|streams| streams.broker == *at);
            let lacks = || "nats.jetstream names it, and it has none: start it with -js".to_owned();
            let why = info.unfit(at.is_tls());
            let why = why.or_else(|| (streams && !info.jetstream).then(lacks))?;
            Some(format!("broker {at}: {why}"))
        })
        .collect();
    if !unfit.is_empty() {
        return Err(StartError::Config(unfit.join("\n")));
    }
    if answers.iter().all(Result::is_err) {
        let lines = config.brokers.iter().zip(&answers);
        let lines =
            lines.filter_map(|(at, answer)| Some(format!("\n{at}: {}", answer.as_ref().err()?)));
        return Err(StartError::Config(format!(
            "no broker is reachable{}",
            lines.collect::<String>()
        )));
    }
    Ok(answers)
}

fn token(config: &NatsConfig) -> Result<Option<Token>, StartError> {
    let Some(path) = &config.admin_token_file else { return Ok(None) };
    let text =
        fs::read_to_string(path).map_err(io_error(format!("cannot read the token in {path}")))?;
    let token = Token::new(text.trim());
    token.map(Some).ok_or_else(|| {
        StartError::Config(format!(
            "the token in {path} is shorter than {} characters",
            Token::SHORTEST
        ))
    })
}

fn io_error(what: String) -> impl FnOnce(io::Error) -> StartError {
    move |error| StartError::Io(what, error)
}

fn cannot_listen(address: SocketAddr, flag: &str) -> impl FnOnce(io::Error) -> StartError {
    let flag = flag.to_owned();
    move |error| {
        let hint = match error.kind() {
            io::ErrorKind::AddrInUse => {
                format!(", as something else does, perhaps a broker; {flag} gives another")
            }
            _ => String::new(),
        };
        StartError::Io(format!("cannot listen on {address}{hint}"), error)
    }
}
