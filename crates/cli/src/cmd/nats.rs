//! `tidegate nats --listen ADDR --broker URL`

use std::net::SocketAddr;
use std::path::PathBuf;

use tidegate_nats::{Address, File, Gate, Source, StartError};

use super::{Error, file, topics};

/// Run the messaging gate: topics with a rate over several NATS servers, for clients as they are.
///
/// SIGTERM and SIGINT end it when what waits has left, a second one at once; SIGHUP reads the
/// configuration file again.
#[derive(Clone, Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Nats {
    #[command(subcommand)]
    action: Option<topics::Action>,
    /// Where clients connect, such as 0.0.0.0:4222.
    #[arg(long, value_name = "ADDR")]
    listen: Option<SocketAddr>,
    /// A nats-server without a cluster, as nats://host:port; several share all topics.
    #[arg(long = "broker", value_name = "URL")]
    brokers: Vec<Address>,
    /// Where operators look: /metrics, /state, /clients.
    #[arg(long, value_name = "ADDR")]
    admin: Option<SocketAddr>,
    /// File with the token that changes over the admin port need.
    #[arg(long, value_name = "FILE")]
    admin_token_file: Option<String>,
    /// TOML with the block `[nats]`; flags go before what it says.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

impl Nats {
    pub(crate) fn run(self) -> Result<(), Error> {
        if let Some(action) = &self.action {
            return action.run();
        }
        let file = self.file().map_err(Error::Input)?;
        // Each client may need a connection to each broker.
        let _ = rlimit::increase_nofile_limit(u64::MAX);
        let gate = Gate::bind(file, log).map_err(|error| match error {
            StartError::Config(_) => Error::Input(error.to_string()),
            StartError::Io(..) => Error::Failed(error.to_string()),
        })?;
        let path = self.config.clone().filter(|path| file::is_file(path));
        let source = path.map(|_| Box::new(move || self.file()) as Source);
        gate.run(source).map_err(|error| Error::Failed(error.to_string()))
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
        let nats = &mut file.nats;
        nats.listen = self.listen.unwrap_or(nats.listen);
        nats.admin = self.admin.unwrap_or(nats.admin);
        if self.admin_token_file.is_some() {
            nats.admin_token_file.clone_from(&self.admin_token_file);
        }
        if !self.brokers.is_empty() {
            nats.brokers.clone_from(&self.brokers);
        }
        // Flags too can be wrong, and are told in the same words.
        File::parse(&file.to_toml()).map_err(|error| error.to_string())
    }
}

/// A line for the operator. Nobody is left to tell when stderr is closed.
fn log(line: &str) {
    use std::io::Write;
    let _ = writeln!(std::io::stderr(), "tidegate: {line}");
}
