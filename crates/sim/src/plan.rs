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
//! [policies.open.gate]         # the blocks of the library and the sidecar, as they are
//! [policies.open.caller]
//!
//! [sweep]                      # any other value, each of the list in turn
//! "service.time" = ["1us", "10us"]
//! ```
//!
//! All that is wrong with a plan is told at once, with line numbers.

use std::fmt;

use serde::Deserialize;
use tidegate_core::Span;
use tidegate_core::caller::CallerConfig;
use tidegate_core::gate::GateConfig;
use toml::{Table, Value};

use crate::dist::{Dist, Service};
use crate::node::MessageCost;
use crate::reader::{Problems, Reader};
use crate::workload::{CostByRank, Ranks, WorkloadSpec};
use crate::world::Scenario;

/// An experiment: a grid of runs.
#[derive(Clone, Debug)]
pub struct Plan {
    /// What it is called.
    pub name: String,
    /// The seed of all runs.
    pub seed: u64,
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
    /// Offered ÷ capacity.
    pub load: f64,
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

/// Most runs of one plan: beyond that somebody mistyped a range.
const POINTS: usize = 100_000;

impl Plan {
    /// Reads a plan called `name`, with some values set otherwise: `path=value`, where the value is
    /// TOML, or text if it is none.
    pub fn parse(name: &str, text: &str, sets: &[String]) -> Result<Self, PlanError> {
        let mut problems = Problems::new(text);
        let mut table: Table = match toml::from_str(text) {
            Ok(table) => table,
            Err(error) => return Err(PlanError(vec![error.to_string().trim_end().to_owned()])),
        };
        for set in sets {
            apply(&mut table, set, &mut problems);
        }
        let plan = Self::read(name, &table, &mut problems);
        problems.into_result().map(|()| plan)
    }

    fn read(name: &str, table: &Table, problems: &mut Problems) -> Self {
        let axes = axes(table, problems);
        let seed = match table.get("seed") {
            None => 1,
            Some(Value::Integer(seed)) => *seed as u64,
            Some(_) => {
                problems.note("seed", "is not a whole number");
                1
            }
        };
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
            let point = read_point(&table, values, problems);
            points.push(point);
        }
        Self { name: name.to_owned(), seed, points }
    }
}

/// The swept values: `policy`, then the other top-level ranges, then `[sweep]`.
fn axes(table: &Table, problems: &mut Problems) -> Vec<(String, Vec<Value>)> {
    let mut axes = Vec::new();
    for path in ["policy", "load", "callers"] {
        match table.get(path) {
            Some(Value::Array(values)) => axes.push((path.to_owned(), values.clone())),
            Some(value) => axes.push((path.to_owned(), vec![value.clone()])),
            None if path == "policy" => {
                problems.note(path, "is missing: which of [policies] to run")
            }
            None => {}
        }
    }
    for (path, values) in table.get("sweep").and_then(Value::as_table).into_iter().flatten() {
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
    if let Some(sweep) = table.get_mut("sweep").and_then(Value::as_table_mut) {
        if sweep.contains_key(path) {
            sweep.insert(path.to_owned(), parsed);
            return;
        }
    }
    if let Err(reason) = set(table, path, parsed) {
        problems.note("", &format!("--set {text}: {reason}"));
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
                _ => Err(format!("{first} is not a table")),
            }
        }
    }
}

fn read_point(table: &Table, values: Vec<(String, Value)>, problems: &mut Problems) -> Point {
    let mut root = Reader::new(table, problems);
    root.known("seed");
    root.known("sweep");
    let policy = root.text("policy", "");
    let load = root.number("load", 1.0, 0.0, 1e6);
    let callers = root.whole("callers", 1, 1, 10_000_000) as u32;
    let duration = root.span("duration", Span::from_millis(1500));
    let warmup = root.span("warmup", Span::from_millis(500));
    let slo = root.span("slo", Span::from_micros(200));
    if warmup >= duration {
        root.note("warmup", &format!("= {warmup} is not below duration = {duration}"));
    }
    let (mut cores, mut service, mut messages) = (1, None, None);
    root.table("service", |service_table| {
        cores = service_table.whole("cores", 1, 1, 65_536) as u32;
        service = Some(read_service(service_table));
        messages = Some(read_messages(service_table));
    });
    let mut rtt = Span::ZERO;
    root.table("network", |network| rtt = network.span("rtt", Span::ZERO));
    let mut workload = None;
    root.table("workload", |table| workload = Some(read_workload(table)));
    let (mut gate, mut caller) = (GateConfig::default(), CallerConfig::default());
    root.table("policies", |policies| {
        if !policies.has(&policy) {
            policies.note("", &format!("has no policy \"{policy}\""));
        }
        policies.each_table(|name, block| {
            if name == policy {
                (gate, caller) = read_policy(block, cores);
            } else {
                block.known("gate");
                block.known("caller");
            }
        });
    });
    root.finish();
    let mut scenario = Scenario {
        duration,
        warmup,
        slo,
        callers,
        cores,
        service: service
            .unwrap_or(Service { dist: Dist::Exponential, mean: Span::from_micros(10) }),
        messages: messages.unwrap_or(MessageCost {
            receive: Span::ZERO,
            send: Span::ZERO,
            response: Span::ZERO,
        }),
        rtt,
        workload: workload.unwrap_or(WorkloadSpec {
            rate: 0.0,
            ranks: Ranks::Uniform,
            cost: CostByRank::Independent,
            deadline: None,
        }),
        gate,
        caller,
        series: None,
    };
    scenario.workload.rate = load * scenario.capacity();
    Point { policy, values, load, scenario }
}

fn read_service(table: &mut Reader<'_>) -> Service {
    let mean = table.span("time", Span::from_micros(10));
    let dist = match table.choice(
        "distribution",
        &["exponential", "constant", "bimodal", "lognormal", "pareto", "empirical"],
    ) {
        1 => Dist::Constant,
        2 => Dist::Bimodal,
        3 => Dist::Lognormal { sigma: table.number("sigma", 1.0, 0.0, 10.0) },
        4 => Dist::Pareto { shape: table.number("shape", 2.5, 1.001, 1000.0) },
        5 => {
            let samples = table.numbers("samples");
            if samples.is_empty() || samples.iter().sum::<f64>() <= 0.0 {
                table.note("samples", "needs at least one number above zero");
                Dist::Constant
            } else {
                Dist::empirical(&samples)
            }
        }
        _ => Dist::Exponential,
    };
    Service { dist, mean }
}

fn read_messages(table: &mut Reader<'_>) -> MessageCost {
    let receive = table.span("receive", Span::ZERO);
    let send = table.span("send", Span::ZERO);
    // Of a send of 0.86 µs, about two thirds are the system call and the packet, which responses
    // that go together share.
    let response = table.span("response", send.scale(0.3));
    if response > send {
        table.note("response", &format!("= {response} is more than send = {send}"));
    }
    MessageCost { receive, send, response }
}

fn read_workload(table: &mut Reader<'_>) -> WorkloadSpec {
    let ranks = match table.choice("ranks", &["uniform", "one", "zipf"]) {
        1 => Ranks::One,
        2 => Ranks::Zipf { exponent: table.number("exponent", 1.0, 0.0, 10.0) },
        _ => Ranks::Uniform,
    };
    let cost = match table.choice("cost", &["independent", "falling", "rising"]) {
        1 => CostByRank::Falling,
        2 => CostByRank::Rising,
        _ => CostByRank::Independent,
    };
    let deadline = table.has("deadline").then(|| table.span("deadline", Span::ZERO));
    WorkloadSpec { rate: 0.0, ranks, cost, deadline }
}

/// The two blocks of a policy. A gate that does not say how many slots it has gets one per core.
fn read_policy(block: &mut Reader<'_>, cores: u32) -> (GateConfig, CallerConfig) {
    let mut gate = block.value("gate").unwrap_or_else(|| Value::Table(Table::new()));
    if let Value::Table(gate) = &mut gate {
        let mut slots = Table::new();
        slots.insert("slots".to_owned(), Value::String("fixed".to_owned()));
        slots.insert("count".to_owned(), Value::Integer(i64::from(cores)));
        gate.entry("slots").or_insert(Value::Table(slots));
    }
    let caller = block.value("caller").unwrap_or_else(|| Value::Table(Table::new()));
    let gate = GateConfig::deserialize(gate).unwrap_or_else(|error| {
        block.note("gate", &error.to_string());
        GateConfig::default()
    });
    let caller = CallerConfig::deserialize(caller).unwrap_or_else(|error| {
        block.note("caller", &error.to_string());
        CallerConfig::default()
    });
    for (name, result) in [("gate", gate.check()), ("caller", caller.check())] {
        for problem in result.err().iter().flat_map(|error| error.problems()) {
            let field = format!("{name}.{}", problem.field);
            block.note(&field, &format!("= {} is not allowed: {}", problem.value, problem.allowed));
        }
    }
    (gate, caller)
}
