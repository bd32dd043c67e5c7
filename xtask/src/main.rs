//! The project's chores: `cargo xtask test | tidy | bench | ablate | swarm | peers | fuzz | soak`.

#![allow(clippy::disallowed_methods, reason = "a tool for people: it measures real time")]

mod ablate;
mod bench;
mod deps;
mod fuzz;
mod install;
mod peers;
mod run;
mod soak;
mod spdx;
mod test;
mod tidy;

use std::process::ExitCode;

const USAGE: &str = "\
Usage: cargo xtask COMMAND

  test [--install]         everything a change must pass, in the dev profile; stops at the first
                           failure; --install (or being root) installs missing Debian packages
  tidy                     the house rules that are code, a part of `test`
  bench [--format json] [--install] [FILTER]
                           instructions per operation, counted by callgrind (release profile)
  ablate [--format json] [FILTER]
                           what each part of tide contributes: without it, all else as it is
  swarm [--plans N] [--seed S] [--policy P]… [--threads N] [--format json]
                           policies on plans that nobody has tuned to, beside what is possible (`swarm --help`)
  peers NAME [ROW] [--format json]
                           ours beside others on this machine; NAME is proxy, overload, plain or
                           tiers (rows whose names contain ROW), tasks, http, nats, rpc, graph
  fuzz SECS                property tests on ever more random cases for about SECS seconds
  soak [SECS [BINARY]]     the sidecar at twice its capacity, 600 seconds unless told otherwise: memory
                           and open files must not grow; BINARY instead of a build in the dev profile
  soak nats [SECS]         the messaging gate before three brokers: publishers move every second, brokers are
                           killed; what was published is delivered once and in order, refused, or in doubt
";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let result = match args.as_slice() {
        ["test"] => test::test(false),
        ["test", "--install"] => test::test(true),
        ["tidy"] => tidy::tidy(),
        ["bench", options @ ..] => match bench::Options::parse(options) {
            Some(options) => bench::bench(&options),
            None => return usage(),
        },
        ["ablate", "--format", "json"] => ablate::ablate("", true),
        ["ablate", "--format", "json", filter] => ablate::ablate(filter, true),
        ["ablate"] => ablate::ablate("", false),
        ["ablate", filter] if !filter.starts_with('-') => ablate::ablate(filter, false),
        ["swarm", options @ ..] => swarm(options),
        ["peers", name] => peers::peers(name, "", false),
        ["peers", name, "--format", "json"] => peers::peers(name, "", true),
        ["peers", name @ ("plain" | "tiers"), filter] => peers::peers(name, filter, false),
        ["peers", name @ ("plain" | "tiers"), filter, "--format", "json"] => {
            peers::peers(name, filter, true)
        }
        ["fuzz", secs] => match secs.parse() {
            Ok(secs) => fuzz::fuzz(secs),
            Err(_) => return usage(),
        },
        ["soak"] => soak::soak(600, None),
        ["soak", "nats"] => peers::moves::soak(600),
        ["soak", "nats", secs] => match secs.parse() {
            Ok(secs) => peers::moves::soak(secs),
            Err(_) => return usage(),
        },
        ["soak", secs, binary @ ..] if binary.len() <= 1 => match secs.parse() {
            Ok(secs) => soak::soak(secs, binary.first().copied()),
            Err(_) => return usage(),
        },
        ["--help" | "-h" | "help"] => {
            print!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        _ => return usage(),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("xtask: {message}");
            ExitCode::FAILURE
        }
    }
}

/// The simulator is a program of its own: xtask builds in a moment without it.
fn swarm(options: &[&str]) -> run::Result {
    let mut args = vec!["run", "-q", "-p", "tidegate-sim", "--example", "swarm", "--"];
    args.extend(options);
    run::run(&mut run::cargo(&args))
}

fn usage() -> ExitCode {
    eprint!("{USAGE}");
    ExitCode::from(2)
}
