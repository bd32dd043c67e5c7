//! `tidegate demo`: a service that can do 200 requests per second, a sidecar before it, more load
//! than it can take, and what comes of it.

mod lane;
mod load;
mod once;
mod service;

use super::{Error, Format};

/// See what overload does to a service, and what policies make of it. Needs nothing, touches
/// nothing but loopback.
#[derive(Debug, clap::Args)]
pub(crate) struct Demo {
    /// Try every policy at three loads for 20 seconds, and print a table.
    #[arg(long)]
    once: bool,
    /// How to answer, with --once.
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

impl Demo {
    pub(crate) fn run(self) -> Result<(), Error> {
        // Ten times the load needs some thousand sockets; where it may not be raised, fewer wait.
        let _ = rlimit::increase_nofile_limit(u64::MAX);
        once::run(self.format)
    }
}
