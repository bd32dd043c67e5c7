//! Services of a plan and who calls whom.

use tidegate_core::{Span, Workflow};
use toml::{Table, Value};

use super::reader::{Problems, Reader};
use crate::dist::{Dist, Service};
use crate::node::{CacheSpec, MessageCost};
use crate::topology::{Calls, ServiceSpec, Target, Topology};

pub(super) fn read_topology(root: &mut Reader<'_>, workflows: &[String]) -> Topology {
    let (mut services, mut wanted) = (Vec::new(), Vec::new());
    if root.has("service") == root.has("services") {
        root.note("", "give either one [service] or several [services.NAME]");
    }
    root.table("service", |table| {
        services.push(read_service("service", table, &mut wanted, workflows));
    });
    root.table("services", |tables| {
        tables.each_table(|name, table| {
            services.push(read_service(name, table, &mut wanted, workflows));
        });
    });
    if services.is_empty() {
        services.push(read_service(
            "service",
            &mut Reader::new(&Table::new(), &mut Problems::new("")),
            &mut wanted,
            workflows,
        ));
    }
    let number = |name: &str| services.iter().position(|service| service.name == name);
    let target = |name: &str| {
        let (service, replica) = match name.split_once('/') {
            Some((service, replica)) => (service, Some(replica.parse::<u32>().ok()?)),
            None => (name, None),
        };
        let service = number(service)?;
        let exists = replica.is_none_or(|replica| replica < services[service].replicas);
        exists.then_some(Target { service, replica })
    };
    let mut calls = Vec::new();
    for (service, value) in services.iter().zip(&wanted) {
        calls.push(read_calls(root, &service.name, value, workflows, &target));
    }
    let entry = root.text("entry", "");
    let place = if entry.is_empty() && services.len() == 1 { Some(0) } else { number(&entry) };
    if place.is_none() {
        root.note("entry", &format!("= \"{entry}\" is not one of the services"));
    }
    for (service, calls) in services.iter_mut().zip(calls) {
        (service.calls, service.calls_of) = calls;
    }
    let mut topology = Topology { services, entry: place.unwrap_or(0) };
    if let Some(cycle) = topology.cycle() {
        let names: Vec<&str> = cycle.iter().map(|n| topology.services[*n].name.as_str()).collect();
        root.note(
            &format!("services.{}.calls", names[0]),
            &format!("go round in a circle: {}", names.join(" → ")),
        );
        for service in &mut topology.services {
            (service.calls, service.calls_of) = (Calls::new(), Vec::new());
        }
    }
    topology
}

/// Reads one service; its calls come later, when all names are known.
fn read_service(
    name: &str,
    table: &mut Reader<'_>,
    wanted: &mut Vec<Value>,
    workflows: &[String],
) -> ServiceSpec {
    wanted.push(table.value("calls").unwrap_or_else(|| Value::Array(Vec::new())));
    let cores = table.whole("cores", 1, 1, 65_535);
    let replicas = table.whole("replicas", 1, 1, 10_000) as u32;
    let time = read_time(table);
    let service = |mean: Span| Service { dist: time.dist.clone(), mean };
    let times = spans_of(table, "times", workflows);
    let holds = spans_of(table, "holds", workflows);
    let spec = ServiceSpec {
        name: name.to_owned(),
        replicas,
        cores: cores as u32,
        threads: table.whole("threads", cores, cores, 1 << 20) as u32,
        time_of: times.into_iter().map(|(name, mean)| (name, service(mean))).collect(),
        hold_of: holds.into_iter().map(|(name, mean)| (name, service(mean))).collect(),
        pool: table.whole("pool", 0, 0, 1 << 20) as u32,
        partition_of: read_partitions(table, replicas, workflows),
        blocking: table.flag("blocking", false),
        after_of: spans_of(table, "afters", workflows),
        time: time.clone(),
        cache: read_cache(table),
        after: table.span("after", Span::ZERO),
        messages: read_messages(table),
        sample: table.span("sample", Span::from_millis(10)),
        retry_above: table.flag("retry_above", false),
        calls: Calls::new(),
        calls_of: Vec::new(),
    };
    for (key, span) in [("time", spec.time.mean), ("sample", spec.sample)] {
        if span == Span::ZERO {
            table.note(key, "must be above zero");
        }
    }
    spec
}

/// Number of the workflow called `name`.
fn workflow_of(table: &mut Reader<'_>, name: &str, workflows: &[String]) -> Option<Workflow> {
    let place = workflows.iter().position(|known| known == name);
    if place.is_none() {
        table.note(name, "is not one of the workflows");
    }
    place.map(|place| Workflow(place as u16))
}

/// A table of times by workflow.
pub(super) fn spans_of(
    table: &mut Reader<'_>,
    key: &str,
    workflows: &[String],
) -> Vec<(Workflow, Span)> {
    let mut spans = Vec::new();
    table.table(key, |table| {
        for name in table.keys() {
            let span = table.span(&name, Span::ZERO);
            spans.extend(workflow_of(table, &name, workflows).map(|workflow| (workflow, span)));
        }
    });
    spans
}

/// `{ a = [0, 2] }`: requests of a go to two replicas, the first of which is 0.
fn read_partitions(
    table: &mut Reader<'_>,
    replicas: u32,
    workflows: &[String],
) -> Vec<(Workflow, std::ops::Range<u32>)> {
    let mut partitions = Vec::new();
    table.table("partitions", |table| {
        for name in table.keys() {
            match table.numbers(&name)[..] {
                [first, count] if count >= 1.0 && first + count <= f64::from(replicas) => {
                    let part = first as u32..(first + count) as u32;
                    let workflow = workflow_of(table, &name, workflows);
                    partitions.extend(workflow.map(|workflow| (workflow, part)));
                }
                _ => table.note(
                    &name,
                    &format!("is not allowed: the first replica and how many, of {replicas}"),
                ),
            }
        }
    });
    partitions
}

fn read_time(table: &mut Reader<'_>) -> Service {
    let mean = table.span("time", Span::from_micros(10));
    let kinds = ["exponential", "constant", "bimodal", "lognormal", "pareto", "empirical"];
    let dist = match table.choice("distribution", &kinds) {
        1 => Dist::Constant,
        2 => Dist::Bimodal,
        3 => Dist::Lognormal { sigma: table.number("sigma", 1.0, 0.0, 10.0) },
        4 => Dist::Pareto { shape: table.number("shape", 2.5, 1.001, 1000.0) },
        5 => {
            let samples = table.numbers("samples");
            let sum = samples.iter().sum::<f64>();
            if sum > 0.0 && sum.is_finite() {
                Dist::empirical(&samples)
            } else {
                table.note("samples", "needs at least one number above zero, and a finite sum");
                Dist::Constant
            }
        }
        _ => Dist::Exponential,
    };
    Service { dist, mean }
}

fn read_cache(table: &mut Reader<'_>) -> Option<CacheSpec> {
    let mut cache = None;
    table.table("cache", |table| {
        cache = Some(CacheSpec {
            hit: table.number("hit", 0.9, 0.0, 1.0),
            miss: table.span("miss", Span::from_millis(1)),
            fill: table.number("fill", 1000.0, 1.0, 1e12),
        });
    });
    cache
}

fn read_messages(table: &mut Reader<'_>) -> MessageCost {
    let receive = table.span("receive", Span::ZERO);
    let send = table.span("send", Span::ZERO);
    // Of a send, about two thirds are the system call and the packet, which responses that go
    // together share.
    let response = table.span("response", send.scale(0.3));
    if response > send {
        table.note("response", &format!("= {response} is more than send = {send}"));
    }
    MessageCost { receive, send, response }
}

type CallsOf = Vec<(Workflow, Calls)>;

/// `["a", ["b", "20 c"]]`: first a, then b and twenty times c at the same time; `"c/0"` is the first
/// replica of c; or a table of such lists by workflow.
fn read_calls(
    root: &mut Reader<'_>,
    service: &str,
    value: &Value,
    workflows: &[String],
    target: &impl Fn(&str) -> Option<Target>,
) -> (Calls, CallsOf) {
    let path = format!("services.{service}.calls");
    let Value::Table(by_workflow) = value else {
        return (read_stages(root, &path, value, target), CallsOf::new());
    };
    let mut calls_of = CallsOf::new();
    for (name, value) in by_workflow {
        let stages = read_stages(root, &path, value, target);
        match workflows.iter().position(|known| known == name) {
            Some(place) => calls_of.push((Workflow(place as u16), stages)),
            None => root.note(
                &path,
                &format!("names the workflow \"{name}\", which workload.mix does not"),
            ),
        }
    }
    (Calls::new(), calls_of)
}

fn read_stages(
    root: &mut Reader<'_>,
    path: &str,
    value: &Value,
    target: &impl Fn(&str) -> Option<Target>,
) -> Calls {
    let Value::Array(stages) = value else {
        root.note(path, "is not a list of services");
        return Calls::new();
    };
    let mut calls = Calls::new();
    for stage in stages {
        let one = std::slice::from_ref(stage);
        let names = if let Value::Array(names) = stage { names.as_slice() } else { one };
        let mut callees = Vec::new();
        for name in names {
            // "20 leaf" are twenty calls of the leaf.
            let (times, name_only) = times(name.as_str().unwrap_or(""));
            match target(name_only) {
                Some(callee) => callees.extend(std::iter::repeat_n(callee, times)),
                None => root.note(path, &format!("has {name}, which is not one of the services")),
            }
        }
        if !callees.is_empty() {
            calls.push(callees);
        }
    }
    calls
}

/// `"20 leaf"` is twenty times the leaf.
fn times(text: &str) -> (usize, &str) {
    let parsed = text.split_once(' ').and_then(|(count, name)| Some((count.parse().ok()?, name)));
    parsed.filter(|(count, _)| (1..=100_000).contains(count)).unwrap_or((1, text))
}
