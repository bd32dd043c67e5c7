//! Plans: experiments written in TOML, each a grid of runs.
//!
//! ```toml
//! duration = "1.5s"            # of simulated time
//! warmup = "0.5s"              # not measured
//! slo = "200us"
//! policy = ["open"]            # which of [policies] to run; one run each
//! load = [0.5, 1.2, 2.0]       # offered ÷ capacity
//! callers = 1000
//!
//! [service]
//! cores = 10
//! time = "10us"                # mean
//! distribution = "exponential"
//! receive = "0.9us"            # core time per message received
//! send = "0.86us"              # core time per message sent
//!
//! [network]
//! rtt = "10us"
//!
//! [policies.open.gate]         # the blocks of the library and the sidecar, as they are;
//! [policies.open.caller]       # times may also be given as "0.4 slo" or "2 rtt"
//!
//! [caller.retry]               # what all policies have unless their own block says otherwise
//! attempts = 1
//!
//! [sweep]                      # any other value, each of the list in turn
//! "service.time" = ["1us", "10us"]
//! ```
//!
//! `include = "my-policies.toml"` adds what that file has beyond the plan, `include = "standard"`
//! the policies in [`STANDARD`]; policies called `ideal` and `told` need no block (see [`crate::ideal`], [`crate::told`]).
//! [`TEMPLATE`] explains every key.
//!
//! All that is wrong with a plan is told at once, with line numbers.

mod point;
mod policies;
mod reader;
mod replay;
mod services;
mod tenants;

use std::fmt;
use std::path::Path;

use toml::{Table, Value};

use crate::world::Scenario;
use reader::Problems;

/// An experiment: a grid of runs.
#[derive(Clone, Debug)]
pub struct Plan {
    /// What it is called.
    pub name: String,
    /// The seed of all runs.
    pub seed: u64,
    /// Every point is run with so many seeds, this one and the following.
    pub seeds: u32,
    /// The runs, in the order in which they are reported.
    pub points: Vec<Point>,
}

/// One run of a plan.
#[derive(Clone, Debug)]
pub struct Point {
    /// The policy's name in the plan.
    pub policy: String,
    /// The swept values, by path.
    pub values: Vec<(String, Value)>,
    /// Names of the workflows, by number.
    pub workflows: Vec<String>,
    /// Whether the run is the yardstick: the best window of a gate that knows everything.
    pub ideal: bool,
    /// Everything else.
    pub scenario: Scenario,
}

/// What is wrong with a plan: never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanError(pub Vec<String>);

impl fmt::Display for PlanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join("\n"))
    }
}

impl std::error::Error for PlanError {}

/// The policies that `include = "standard"` brings.
pub const STANDARD: &str = include_str!("standard.toml");

/// A commented plan to start from.
pub const TEMPLATE: &str = include_str!("template.toml");

/// A plan that replays a log; what it lacks is set by [`Plan::replay`].
const REPLAY: &str = include_str!("replay.toml");

/// Most runs of one plan: beyond that somebody mistyped a range.
const POINTS: usize = 100_000;
const SEEDS: u64 = 100_000;

impl Plan {
    /// Reads a plan called `name`, with some values set otherwise: `path=value`, where the value is
    /// TOML, or text if it is none. Files that the plan names are looked for in `folder`.
    pub fn parse(
        name: &str,
        text: &str,
        sets: &[String],
        folder: &Path,
    ) -> Result<Self, PlanError> {
        let table: Table = match toml::from_str(text) {
            Ok(table) => table,
            Err(error) => return Err(PlanError(vec![error.to_string().trim_end().to_owned()])),
        };
        Self::complete(name, table, Problems::new(text), sets, folder)
    }

    /// A plan that replays `log`, once with each of `policies`. Its problems have no lines, since nobody
    /// has written them.
    pub(crate) fn replay(
        name: &str,
        log: &Path,
        policies: &[String],
        sets: &[String],
    ) -> Result<Self, PlanError> {
        let mut table: Table = toml::from_str(REPLAY).expect("what we ship is right");
        let log = log.to_string_lossy().into_owned();
        set(&mut table, "workload.log", log.into()).expect("workload is a table");
        table.insert("policy".to_owned(), policies.to_vec().into());
        Self::complete(name, table, Problems::default(), sets, Path::new(""))
    }

    fn complete(
        name: &str,
        mut table: Table,
        mut problems: Problems,
        sets: &[String],
        folder: &Path,
    ) -> Result<Self, PlanError> {
        for set in sets {
            apply(&mut table, set, &mut problems);
        }
        include(&mut table, folder, &mut problems);
        let plan = Self::read(name, &table, folder, &mut problems);
        problems.into_result().map(|()| plan)
    }

    fn read(name: &str, table: &Table, folder: &Path, problems: &mut Problems) -> Self {
        let axes = axes(table, problems);
        let seed = whole(table, "seed", 1, problems);
        let seeds = whole(table, "seeds", 1, problems);
        if !(1..=SEEDS).contains(&seeds) {
            problems.note("seeds", &format!("= {seeds} is not allowed: 1 to {SEEDS}"));
        }
        let seeds = seeds.clamp(1, SEEDS) as u32;
        let closed = table.get("workload").and_then(|table| table.get("arrivals"));
        let swept = axes.iter().any(|(path, values)| path == "load" && values.len() > 1);
        if swept && closed.and_then(Value::as_str) == Some("closed") {
            problems
                .note("load", "has no meaning in a closed loop: sweep callers or workload.think");
        }
        let count: usize = axes.iter().map(|(_, values)| values.len()).product();
        if count > POINTS {
            problems.note("", &format!("the plan has {count} runs, at most {POINTS} are allowed"));
        }
        let mut points = Vec::new();
        for number in 0..count.min(POINTS) {
            let values = coordinates(&axes, number);
            let mut table = table.clone();
            for (path, value) in &values {
                if let Err(reason) = set(&mut table, path, value.clone()) {
                    problems.note(path, &reason);
                }
            }
            let point = point::read(&table, values, folder, problems);
            points.push(point);
        }
        Self { name: name.to_owned(), seed, seeds, points }
    }
}

/// A whole number, at least zero, at the top level.
fn whole(table: &Table, key: &str, default: u64, problems: &mut Problems) -> u64 {
    match table.get(key) {
        None => default,
        Some(Value::Integer(number)) if *number >= 0 => *number as u64,
        Some(other) => {
            problems.note(key, &format!("= {other} is not allowed: a whole number, 0 or more"));
            default
        }
    }
}

/// Adds what the files that the plan includes have beyond it.
fn include(table: &mut Table, folder: &Path, problems: &mut Problems) {
    let files = match table.get("include") {
        None => return,
        Some(Value::Array(files)) => files.clone(),
        Some(file) => vec![file.clone()],
    };
    for file in files {
        let Some(name) = file.as_str() else {
            problems.note("include", "is not the name of a file");
            continue;
        };
        let text = match name {
            "standard" => Ok(STANDARD.to_owned()),
            name => std::fs::read_to_string(folder.join(name)).map_err(|error| error.to_string()),
        };
        let parsed = text.and_then(|text| {
            let table = toml::from_str::<Table>(&text).map_err(|error| error.to_string());
            table.map(|table| (text, table))
        });
        match parsed {
            Ok((text, base)) => {
                problems.add_lines(name, &text);
                underlay(table, &base);
            }
            Err(error) => problems.note("include", &format!("{name}: {}", error.trim_end())),
        }
    }
}

/// Keys that choose what the others in their block mean.
const CHOICES: [&str; 4] = ["policy", "throttle", "slots", "order"];

/// Fills in what `table` does not have from `base`, at every depth; but nothing of a block that makes
/// another choice, since its parameters are those of something else.
fn underlay(table: &mut Table, base: &Table) {
    for (key, value) in base {
        match (table.get_mut(key), value) {
            (None, _) => {
                table.insert(key.clone(), value.clone());
            }
            (Some(Value::Table(own)), Value::Table(base)) => {
                if !CHOICES.iter().any(|key| chooses_otherwise(own.get(*key), base.get(*key))) {
                    underlay(own, base);
                }
            }
            (Some(_), _) => {}
        }
    }
}

fn chooses_otherwise(own: Option<&Value>, base: Option<&Value>) -> bool {
    let texts = own.and_then(Value::as_str).zip(base.and_then(Value::as_str));
    texts.is_some_and(|(own, base)| own != base)
}

/// The swept values: `policy`, then the other top-level ranges, then `[sweep]`.
fn axes(table: &Table, problems: &mut Problems) -> Vec<(String, Vec<Value>)> {
    let mut axes = Vec::new();
    for path in ["policy", "load", "callers"] {
        match table.get(path) {
            Some(Value::Array(values)) => axes.push((path.to_owned(), values.clone())),
            Some(value) => axes.push((path.to_owned(), vec![value.clone()])),
            None if path == "policy" => {
                problems.note(path, "is missing: which of [policies] to run");
            }
            None => {}
        }
    }
    let none = Table::new();
    let sweep = match table.get("sweep") {
        None => &none,
        Some(Value::Table(sweep)) => sweep,
        Some(other) => {
            problems.note("sweep", &format!("= {other} is not allowed: a table of lists by path"));
            &none
        }
    };
    for (path, values) in sweep {
        problems.stands_at(path, &format!("sweep.{path}"));
        match values {
            Value::Array(values) => axes.push((path.clone(), values.clone())),
            value => axes.push((path.clone(), vec![value.clone()])),
        }
    }
    for (path, values) in &axes {
        if values.is_empty() {
            problems.note(path, "has no values");
        }
    }
    axes
}

/// The values of run `number`; the last axis moves fastest.
fn coordinates(axes: &[(String, Vec<Value>)], mut number: usize) -> Vec<(String, Value)> {
    let mut values = Vec::new();
    for (path, choices) in axes.iter().rev() {
        values.push((path.clone(), choices[number % choices.len()].clone()));
        number /= choices.len();
    }
    values.reverse();
    values
}

/// Applies one `path=value`.
fn apply(table: &mut Table, text: &str, problems: &mut Problems) {
    let Some((path, value)) = text.split_once('=') else {
        return problems.note("", &format!("--set {text}: write path=value"));
    };
    let (path, value) = (path.trim(), value.trim());
    let parsed = toml::from_str::<Table>(&format!("value = {value}"))
        .ok()
        .and_then(|mut table| table.remove("value"))
        .unwrap_or_else(|| Value::String(value.to_owned()));
    // A value that was swept is no longer.
    if let Some(sweep) = table.get_mut("sweep").and_then(Value::as_table_mut)
        && sweep.contains_key(path)
    {
        sweep.insert(path.to_owned(), parsed);
        return problems.is_set(&format!("sweep.{path}"));
    }
    // Of two ways to say the same thing, that of the command line counts.
    let twin = match path {
        "duration" => "requests",
        "requests" => "duration",
        "warmup" => "warmup_requests",
        "warmup_requests" => "warmup",
        _ => "",
    };
    table.remove(twin);
    match set(table, path, parsed) {
        Ok(()) => problems.is_set(path),
        Err(reason) => problems.note("", &format!("--set {text}: {reason}")),
    }
}

/// Sets the value at a dotted path, making tables on the way.
fn set(table: &mut Table, path: &str, value: Value) -> Result<(), String> {
    match path.split_once('.') {
        None => {
            table.insert(path.to_owned(), value);
            Ok(())
        }
        Some((first, rest)) => {
            match table.entry(first).or_insert_with(|| Value::Table(Table::new())) {
                Value::Table(inner) => set(inner, rest, value),
                // `tenants.0.rate`: of the first of a list.
                Value::Array(list) => {
                    let (place, rest) = rest.split_once('.').unwrap_or((rest, ""));
                    let place = place.parse::<usize>().ok().filter(|place| *place < list.len());
                    match place.map(|place| &mut list[place]) {
                        Some(Value::Table(inner)) if !rest.is_empty() => set(inner, rest, value),
                        _ => Err(format!("{first} is a list: write {first}.NUMBER.KEY")),
                    }
                }
                _ => Err(format!("{first} is not a table")),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names of the keys that a source asks its tables for.
    fn keys(source: &str) -> impl Iterator<Item = String> {
        let source: String = source.split_whitespace().collect();
        let readers = [
            "text",
            "span",
            "some_span",
            "number",
            "numbers",
            "flag",
            "whole",
            "choice",
            "table",
            "tables",
            "value",
            "block",
            "has",
            "known",
        ];
        let asked = readers.map(|reader| format!(".{reader}(\""));
        let name = |rest: &str| rest.split('"').next().unwrap_or_default().to_owned();
        let found = asked.iter().flat_map(|asked| source.split(asked).skip(1).map(name));
        found.collect::<std::collections::BTreeSet<_>>().into_iter()
    }

    #[test]
    fn the_template_explains_every_key() {
        let sources = [
            include_str!("point.rs"),
            include_str!("policies.rs"),
            include_str!("services.rs"),
            include_str!("tenants.rs"),
        ];
        let words: Vec<&str> =
            TEMPLATE.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).collect();
        let all: Vec<String> = sources.into_iter().flat_map(keys).collect();
        assert!(all.len() > 60 && all.iter().any(|key| key == "retry_above"), "{all:?}");
        let missing: Vec<&String> =
            all.iter().filter(|key| !words.contains(&key.as_str())).collect();
        assert_eq!(missing, Vec::<&String>::new());
    }
}
