//! `tidegate bench rpc`: real overload on this machine, server and load on cores of their own.

mod child;
mod closed;
mod ground;
mod interrupt;
mod open;
mod rows;
mod rpc;
mod serve;
mod tally;

use clap::Subcommand;

use super::Error;

/// Measure real overload on this machine.
#[derive(Debug, clap::Args)]
pub(crate) struct Bench {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// The native RPC over loopback: every policy at every load, side by side.
    Rpc(Box<rpc::Rpc>),
    /// The server that `rpc` starts.
    #[command(hide = true)]
    RpcServer(serve::RpcServer),
}

impl Bench {
    pub(crate) fn run(self) -> Result<(), Error> {
        match self.what {
            What::Rpc(rpc) => rpc.run(),
            What::RpcServer(server) => server.run(),
        }
    }
}
