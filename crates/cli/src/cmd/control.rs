//! `tidegate control [--listen ADDR] [--admin ADDR] [--config FILE] [--store memory|file:PATH]`

use std::net::SocketAddr;
use std::path::PathBuf;

use tidegate_control::{Daemon, File, StartError, Store};

use super::{Error, file};

/// Keep limits that hold over a fleet: sidecars and services lease shares of them and decide locally.
///
/// SIGTERM and SIGINT end it, SIGHUP reads the configuration file again, as does a change of it. Nodes go on
/// without it: their leases run to the end, then each has its safe share.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Control {
    /// Where nodes ask for leases, such as 0.0.0.0:9911.
    #[arg(long, value_name = "ADDR")]
    listen: Option<SocketAddr>,
    /// Where operators look and change agreements.
    #[arg(long, value_name = "ADDR")]
    admin: Option<SocketAddr>,
    /// What outlives a restart: `file:PATH`, or `memory` for nothing.
    #[arg(long, value_name = "memory|file:PATH")]
    store: Option<Store>,
    /// TOML with `[control]` and `[[agreements]]`; flags go before what it says.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

impl Control {
    pub(crate) fn run(self) -> Result<(), Error> {
        let file = self.file().map_err(Error::Input)?;
        let path = self.config.clone().filter(|path| file::is_file(path));
        let source = path.map(|path| {
            let read: Box<dyn Fn() -> Result<File, String> + Send + Sync> =
                Box::new(move || self.file());
            (path, read)
        });
        let daemon = Daemon::bind(&file, source).map_err(|error| match error {
            StartError::Config(_) => Error::Input(error.to_string()),
            StartError::Io(..) => Error::Failed(error.to_string()),
        })?;
        daemon.with_signals().run().map_err(|error| Error::Failed(error.to_string()))
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
        let control = &mut file.control;
        control.listen = self.listen.unwrap_or(control.listen);
        control.admin = self.admin.unwrap_or(control.admin);
        if let Some(store) = &self.store {
            control.store = store.clone();
        }
        // Flags too can be wrong, and are told in the same words.
        File::parse(&file.to_toml()).map_err(|error| error.to_string())
    }
}
