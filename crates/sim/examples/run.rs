//! Runs a plan: `cargo run -p tidegate-sim --example run -- PLAN.toml [--seed N] [--set path=value]…
//! [--series 20ms] [--threads N] [--json | --table]`.
//!
//! JSON lines go to standard output, the table to standard error, unless one of them is chosen.

use std::process::ExitCode;

use tidegate_sim::command::{Options, run};
use tidegate_sim::report::table;

fn main() -> ExitCode {
    match parse(std::env::args().skip(1)).and_then(|(options, json, people)| {
        let reports = run(&options, |_, _| {}).map_err(|error| error.to_string())?;
        if json {
            for report in &reports {
                println!("{}", report.to_json());
            }
        }
        if people {
            eprint!("{}", table(&reports));
        }
        Ok(())
    }) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn parse(mut args: impl Iterator<Item = String>) -> Result<(Options, bool, bool), String> {
    let (mut options, mut json, mut people) = (Options::default(), true, true);
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or(format!("{arg} needs a value"));
        match arg.as_str() {
            "--seed" => options.seed = Some(value()?.parse().map_err(|_| "--seed: not a number")?),
            "--set" => options.sets.push(value()?),
            "--series" => {
                options.series = Some(value()?.parse().map_err(|error| format!("{error}"))?)
            }
            "--threads" => {
                options.threads = value()?.parse().map_err(|_| "--threads: not a number")?
            }
            "--json" => people = false,
            "--table" => json = false,
            _ if options.plan.as_os_str().is_empty() => options.plan = arg.into(),
            _ => return Err(format!("{arg}: not understood")),
        }
    }
    Ok((options, json, people))
}
