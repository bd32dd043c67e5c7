//! `cargo xtask swarm`: policies on plans that nobody has tuned to. See `tidegate_sim::swarm`.

#![allow(clippy::disallowed_methods, reason = "a tool for people: its seed is the time of day")]

use std::fs;
use std::io::{IsTerminal, Write, stderr};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use tidegate_sim::swarm::{Judged, Options, json, run, table};

const USAGE: &str = "\
Usage: cargo xtask swarm [--plans N] [--seed S] [--policy P]… [--threads N] [--format table|json] [--out DIR]

Draws N plans (100) by the seed S (another one every time), simulates every policy P of include = \"standard\" (tide,
breakwater, dagor, codel, seda), and shows how many points of capacity each is below what is possible. The first is
the one in question: its five worst plans are written to DIR (target/swarm), to be replayed with `tidegate sim`.
";

/// Plans that are written.
const WORST: usize = 5;

fn main() -> ExitCode {
    match parse(std::env::args().skip(1)) {
        Ok(Some(args)) => match execute(&args) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("{error}");
                ExitCode::FAILURE
            }
        },
        Ok(None) => {
            print!("{USAGE}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprint!("{error}\n\n{USAGE}");
            ExitCode::from(2)
        }
    }
}

struct Args {
    options: Options,
    as_json: bool,
    out: PathBuf,
}

fn parse(mut args: impl Iterator<Item = String>) -> Result<Option<Args>, String> {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let mut options =
        Options { plans: 100, seed: since.as_secs() % 1_000_000, policies: Vec::new(), threads: 1 };
    let (mut as_json, mut out) = (false, PathBuf::from("target/swarm"));
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or(format!("{arg} needs a value"));
        match arg.as_str() {
            "--plans" => options.plans = number(&arg, &value()?, 1)? as usize,
            "--seed" => options.seed = number(&arg, &value()?, 0)?,
            "--threads" => options.threads = number(&arg, &value()?, 1)? as usize,
            "--policy" => options.policies.push(value()?),
            "--format" => {
                as_json = match value()?.as_str() {
                    "json" => true,
                    "table" => false,
                    other => return Err(format!("--format {other}: table or json")),
                }
            }
            "--out" => out = value()?.into(),
            "--help" | "-h" => return Ok(None),
            _ => return Err(format!("{arg}: not understood")),
        }
    }
    if options.policies.is_empty() {
        options.policies =
            ["tide", "breakwater", "dagor", "codel", "seda"].map(str::to_owned).to_vec();
    }
    Ok(Some(Args { options, as_json, out }))
}

fn number(name: &str, text: &str, least: u64) -> Result<u64, String> {
    let number = text.parse().ok().filter(|number| *number >= least);
    number.ok_or(format!("{name} {text}: a whole number, {least} or more"))
}

fn execute(args: &Args) -> Result<(), String> {
    let (options, shown) = (&args.options, stderr().is_terminal());
    let bar = |done: usize| {
        if shown {
            let full = 40 * done / options.plans;
            let bar = format!("[{}{}]", "#".repeat(full), " ".repeat(40 - full));
            let _ = write!(stderr(), "\r\x1b[Kswarm {bar} {done}/{}", options.plans);
        }
    };
    let plans = run(options, bar).map_err(|error| error.to_string())?;
    if shown {
        let _ = write!(stderr(), "\r\x1b[K");
    }
    let files = write_worst(&args.out, options.seed, &plans)
        .map_err(|error| format!("{}: {error}", args.out.display()))?;
    if args.as_json {
        print!("{}", json(&plans));
        return Ok(());
    }
    let seed = options.seed;
    println!("{} plans, seed {seed}; points of capacity below what is possible\n", plans.len());
    println!("{}", table(&plans));
    println!("Worst of {}:", options.policies[0]);
    for (plan, file) in files {
        let seen: Vec<String> =
            plan.seen.iter().map(|seen| format!("{} {:.1}", seen.policy, seen.regret)).collect();
        println!("  {}: {}", file.display(), seen.join(", "));
    }
    Ok(())
}

/// The plans of which the first policy makes the least.
fn write_worst<'a>(
    folder: &Path,
    seed: u64,
    plans: &'a [Judged],
) -> std::io::Result<Vec<(&'a Judged, PathBuf)>> {
    let mut worst: Vec<&Judged> = plans.iter().collect();
    worst.sort_by(|a, b| b.seen[0].regret.total_cmp(&a.seen[0].regret));
    worst.truncate(WORST);
    fs::create_dir_all(folder)?;
    let write = |plan: &'a Judged| {
        let file = folder.join(format!("{seed}-{}.toml", plan.number));
        fs::write(&file, &plan.drawn.text)?;
        Ok((plan, file))
    };
    worst.into_iter().map(write).collect()
}
