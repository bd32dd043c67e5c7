//! One module per command: its flags as a clap struct, and `run`.

mod admin;
mod bench;
mod check;
mod completions;
mod config;
mod control;
mod demo;
mod enforce;
mod explain;
mod figure;
mod file;
mod import;
mod limit;
mod limits;
#[cfg(feature = "nats")]
mod nats;
mod png;
mod progress;
mod proxy;
mod shadow;
mod sim;
#[cfg(feature = "tui")]
mod top;
#[cfg(feature = "nats")]
mod topics;

use std::fmt;
use std::io::{self, Write};
use std::process::ExitCode;

use clap::{Subcommand, ValueEnum};

/// What the binary can do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// See what overload does to a service, and what policies make of it.
    Demo(demo::Demo),
    /// Measure real overload on this machine.
    Bench(bench::Bench),
    /// Check a configuration file and tell everything that is wrong with it.
    Check(check::Check),
    /// Print configurations.
    Config(config::Config),
    /// Find limits that fit.
    Limit(limit::Limit),
    /// Run the sidecar: a gate before an HTTP service.
    Proxy(Box<proxy::Proxy>),
    /// Keep limits that hold over a fleet.
    Control(control::Control),
    /// See or change the limits of a fleet.
    Limits(limits::Limits),
    /// Run the messaging gate: topics with a rate over several NATS servers.
    #[cfg(feature = "nats")]
    Nats(nats::Nats),
    /// Ask a running sidecar what would happen to a request now, and why.
    Explain(explain::Explain),
    /// See or change for how many requests a running sidecar's refusals are enforced.
    Enforce(enforce::Enforce),
    /// Try another policy beside the live one of a running sidecar.
    Shadow(shadow::Shadow),
    /// Watch running sidecars in the terminal.
    #[cfg(feature = "tui")]
    Top(top::Top),
    /// Make the papers' figures with our policies, and check what they claim.
    Figure(figure::Figure),
    /// Make a record for `sim replay` and `limit size` of an access log.
    Import(import::Import),
    /// Print completions for a shell.
    Completions(completions::Completions),
    /// Write manual pages.
    Man(completions::Man),
    /// Simulate a plan: what would these policies do to my services?
    Sim(sim::Sim),
}

impl Command {
    /// `whole` is the program with all its flags.
    pub(crate) fn run(self, whole: impl Fn() -> clap::Command) -> Result<(), Error> {
        match self {
            Self::Demo(demo) => demo.run(),
            Self::Bench(bench) => bench.run(),
            Self::Check(check) => check.run(),
            Self::Config(config) => config.run(),
            Self::Limit(limit) => limit.run(),
            Self::Proxy(proxy) => proxy.run(),
            Self::Control(control) => control.run(),
            Self::Limits(limits) => limits.run(),
            #[cfg(feature = "nats")]
            Self::Nats(nats) => nats.run(),
            Self::Explain(explain) => explain.run(),
            Self::Enforce(enforce) => enforce.run(),
            Self::Shadow(shadow) => shadow.run(),
            #[cfg(feature = "tui")]
            Self::Top(top) => top.run(),
            Self::Figure(figure) => figure.run(),
            Self::Import(import) => import.run(),
            Self::Completions(completions) => completions.run(whole()),
            Self::Man(man) => man.run(whole()),
            Self::Sim(sim) => sim.run(),
        }
    }
}

/// How answers are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// For people.
    #[default]
    Text,
    /// For programs: one JSON object per line.
    Json,
}

/// Why a command ended early.
#[derive(Debug)]
pub(crate) enum Error {
    /// The input is wrong: exit code 2.
    Input(String),
    /// The input is wrong, and the answer on stdout says so already: exit code 2.
    Told,
    /// Something else went wrong: exit code 1.
    Failed(String),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Input(message) | Self::Failed(message) => f.write_str(message),
            Self::Told => Ok(()),
        }
    }
}

impl Error {
    /// Tells the user, and gives the exit code.
    pub(crate) fn report(self) -> ExitCode {
        let (message, code) = match self {
            Self::Input(message) => (message, 2),
            Self::Told => (String::new(), 2),
            Self::Failed(message) => (message, 1),
        };
        if !message.is_empty() {
            // Nobody is left to tell when stderr is closed.
            let _ = writeln!(io::stderr(), "tidegate: {message}");
        }
        ExitCode::from(code)
    }
}

/// Writes an answer. A reader that has read enough (`| head`) is no error.
pub(crate) fn print(answer: impl fmt::Display) -> Result<(), Error> {
    match write!(io::stdout().lock(), "{answer}") {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Error::Failed(format!("cannot write the answer: {error}")))
        }
        _ => Ok(()),
    }
}
