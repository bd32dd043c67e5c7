//! Runs a plan: `cargo run -p tidegate-sim --example run -- PLAN.toml [--seed N] [--set path=value]…
//! [--series 20ms] [--mean] [--threads N] [--format table|json|csv] [--out DIR]`. Without a format, JSON goes
//! to standard output and the table to standard error.

use std::path::PathBuf;
use std::process::ExitCode;

use tidegate_sim::command::{Format, Options, run, write};

fn main() -> ExitCode {
    match parse(std::env::args().skip(1)).and_then(|args| execute(&args)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

#[derive(Default)]
struct Args {
    options: Options,
    format: Option<Format>,
    out: Option<PathBuf>,
}

fn execute(args: &Args) -> Result<(), String> {
    let reports = run(&args.options, |_, _| {}).map_err(|error| error.to_string())?;
    print!("{}", args.format.unwrap_or(Format::Json).render(&reports));
    if args.format.is_none() {
        eprint!("{}", Format::Table.render(&reports));
    }
    match &args.out {
        Some(folder) => write(folder, &reports).map_err(|error| error.to_string()),
        None => Ok(()),
    }
}

fn parse(mut args: impl Iterator<Item = String>) -> Result<Args, String> {
    let mut parsed = Args::default();
    let options = &mut parsed.options;
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or(format!("{arg} needs a value"));
        match arg.as_str() {
            "--seed" => options.seed = Some(value()?.parse().map_err(|_| "--seed: not a number")?),
            "--set" => options.sets.push(value()?),
            "--series" => options.series = Some(value()?.parse().map_err(|e| format!("{e}"))?),
            "--threads" => {
                options.threads = value()?.parse().map_err(|_| "--threads: not a number")?;
            }
            "--format" => parsed.format = Some(value()?.parse()?),
            "--json" => parsed.format = Some(Format::Json),
            "--table" => parsed.format = Some(Format::Table),
            "--mean" => options.mean = true,
            "--out" => parsed.out = Some(value()?.into()),
            _ if options.plan.as_os_str().is_empty() => options.plan = arg.into(),
            _ => return Err(format!("{arg}: not understood")),
        }
    }
    Ok(parsed)
}
