//! `cargo xtask peers NAME`: ours and others, side by side on this machine, in one run.

mod rpc;

use crate::run::Result;

/// Runs the comparison called `name`.
pub(crate) fn peers(name: &str) -> Result {
    match name {
        "rpc" => rpc::compare(),
        other => Err(format!("no comparison called {other}\nthere is: rpc")),
    }
}
