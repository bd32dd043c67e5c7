//! `tidegate proxy --listen ADDR --upstream URL`

use std::net::SocketAddr;
use std::path::PathBuf;

use tidegate_core::admission::AdmissionConfig;
use tidegate_core::objective::Objective;
use tidegate_proxy::{Address, File, Log, Percent, Server, Source, StartError, Trust};

use super::{Error, file};

/// Run the sidecar: a gate before an HTTP service. Whatever load arrives, the service keeps serving
/// at its peak rate, and the least important requests are refused first.
///
/// SIGTERM and SIGINT end it when what is inside has finished, a second one at once; SIGHUP reads
/// the configuration file again.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Proxy {
    /// Where clients connect, such as 0.0.0.0:8080.
    #[arg(long, value_name = "ADDR", value_parser = socket)]
    listen: Option<SocketAddr>,
    /// The service to protect, as http://host:port, or h2c://host:port for gRPC; several are replicas.
    #[arg(long = "upstream", value_name = "URL")]
    upstreams: Vec<Address>,
    /// Where operators look: /metrics, /state, /explain.
    #[arg(long, value_name = "ADDR", value_parser = socket)]
    admin: Option<SocketAddr>,
    /// Whose word about ranks is taken: `edge` takes nobody's, `inside` that of every client.
    #[arg(long, value_name = "edge|inside")]
    trust: Option<Trust>,
    /// The latency objective, such as 50ms: an answer later than this is worth nothing. Or `learned`.
    #[arg(long, value_name = "TIME")]
    objective: Option<Objective>,
    /// Serving threads; 0 is one per core.
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    threads: Option<usize>,
    /// Enforce nothing, and count what would have been refused: --enforce 0%.
    #[arg(long, conflicts_with = "enforce")]
    observe: bool,
    /// Share of requests for which refusals are enforced, such as 10%.
    #[arg(long, value_name = "PERCENT")]
    enforce: Option<Percent>,
    /// File with the token that changes over the admin port need.
    #[arg(long, value_name = "FILE")]
    admin_token_file: Option<String>,
    /// Write all requests to this file, as `tidegate sim replay` and `tidegate limit size` read them.
    #[arg(long, value_name = "FILE")]
    record: Option<String>,
    /// How lines for operators are written.
    #[arg(long, value_name = "text|json|none")]
    log: Option<Log>,
    /// TOML with the blocks `[proxy]` and `[gate]`; flags go before what it says.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

impl Proxy {
    pub(crate) fn run(self) -> Result<(), Error> {
        let file = self.file().map_err(Error::Input)?;
        let path = self.config.clone().filter(|path| file::is_file(path));
        // What is no file, such as a pipe, is there once: whoever read it again would wait for ever.
        let source = path.filter(|path| path.is_file()).map(|path| {
            let file = path.clone();
            let read = move || match file.metadata() {
                Ok(data) if !data.is_file() => Err(format!("{} is no file", file.display())),
                _ => self.file(),
            };
            Source::new(read).watching(path)
        });
        let server = Server::bind(file, source, seed()).and_then(Server::with_signals);
        let server = server.map_err(|error| match error {
            StartError::Config(_) => Error::Input(error.to_string()),
            StartError::Io(..) => Error::Failed(error.to_string()),
        })?;
        server.run().map_err(|error| Error::Failed(error.to_string()))
    }

    /// The file with what flags say put over it, or everything that is wrong with it.
    fn file(&self) -> Result<File, String> {
        let mut file = match &self.config {
            None => File::default(),
            Some(path) => {
                let text = file::text(path).map_err(|error| error.to_string())?;
                let wrong = |error| format!("{} is not valid\n{error}", file::name(path));
                File::parse(&text).map_err(wrong)?
            }
        };
        let proxy = &mut file.proxy;
        proxy.listen = self.listen.unwrap_or(proxy.listen);
        proxy.admin = self.admin.unwrap_or(proxy.admin);
        proxy.trust = self.trust.unwrap_or(proxy.trust);
        proxy.threads = self.threads.unwrap_or(proxy.threads);
        proxy.enforce = self.enforce.unwrap_or(proxy.enforce);
        if self.observe {
            proxy.enforce = Percent::NONE;
        }
        proxy.log = self.log.unwrap_or(proxy.log);
        if self.admin_token_file.is_some() {
            proxy.admin_token_file.clone_from(&self.admin_token_file);
        }
        if self.record.is_some() {
            proxy.record_file.clone_from(&self.record);
        }
        if !self.upstreams.is_empty() {
            proxy.upstreams.clone_from(&self.upstreams);
        }
        if let Some(objective) = self.objective {
            let AdmissionConfig::Tide(tide) = &mut file.gate.admission else {
                let problem = "--objective is for the policy tide, and the file has another";
                return Err(problem.to_owned());
            };
            tide.objective = objective;
        }
        // Flags too can be wrong, and are told in the same words.
        File::parse(&file.to_toml()).map_err(|error| error.to_string())
    }
}

/// An address to listen on.
fn socket(text: &str) -> Result<SocketAddr, String> {
    let port = text.rsplit(':').next().filter(|port| port.parse::<u16>().is_ok()).unwrap_or("8080");
    text.parse().map_err(|_| {
        format!("not an IP address and a port, such as 127.0.0.1:{port}, or 0.0.0.0:{port} for all addresses")
    })
}

/// Different in every process, so that replicas started together do not choose alike.
fn seed() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let nanos = now.map_or(0, |since| since.as_nanos() as u64);
    nanos ^ u64::from(std::process::id()).rotate_left(32)
}
