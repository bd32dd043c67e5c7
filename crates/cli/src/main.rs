//! The `tidegate` command.
//!
//! Answers go to stdout, errors to stderr. Exit codes: 0 all is well, 1 something went wrong, 2 the
//! input was wrong (a flag, a file, a configuration).

#![allow(
    clippy::disallowed_methods,
    reason = "a process reads clocks and files; decisions are made in tidegate-core"
)]

mod cmd;

use std::process::ExitCode;

use clap::{CommandFactory, Parser};

/// Overload control for services: peak goodput under any load, the least important refused first.
#[derive(Debug, Parser)]
#[command(name = "tidegate", version, arg_required_else_help = true)]
struct Args {
    #[command(subcommand)]
    command: cmd::Command,
}

fn main() -> ExitCode {
    match Args::parse().command.run(Args::command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => error.report(),
    }
}
