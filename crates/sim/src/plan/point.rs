//! One run of a plan, read from its table with the swept values in place.

use std::path::Path;
use std::sync::Arc;

use tidegate_core::context::Workflows;
use tidegate_core::{Instant, Span, Workflow};
use toml::{Table, Value};

use super::policies::{IDEAL, Policy, TOLD, read_policies};
use super::reader::{Problems, Reader};
use super::services::{read_topology, spans_of};
use super::tenants::{BESIDE, read_tenants};
use super::{Point, replay};
use crate::fault::{Fault, FaultKind};
use crate::network::NetworkSpec;
use crate::told::ToldSpec;
use crate::topology::Topology;
use crate::workload::{Arrivals, CostByRank, Profile, Ranks, WorkloadSpec};
use crate::world::Scenario;

/// Why a key is not allowed.
const IN_A_REPLAY: &str = "in a replay: the log says it, and workload.speed how fast";

pub(super) fn read(
    table: &Table,
    values: Vec<(String, Value)>,
    folder: &Path,
    problems: &mut Problems,
) -> Point {
    let mut root = Reader::new(table, problems);
    for key in ["seed", "seeds", "sweep", "include"] {
        root.known(key);
    }
    let policy = root.text("policy", "");
    let mut callers = root.whole("callers", 1, 1, 10_000_000) as u32;
    let mut network = NetworkSpec::default();
    root.table("network", |table| network = read_network(table));
    let mut work = Work::default();
    let by_tenant = root.has("tenants");
    root.table("workload", |table| {
        work = read_workload(table, folder);
        if by_tenant {
            table.refuse_but(&["timeout", "ignoring", "liars"], BESIDE);
        }
        if matches!(work.spec.arrivals, Arrivals::Replay(_)) {
            table.refuse(&["ranks", "cost", "mix", "steps"], IN_A_REPLAY);
        }
    });
    if matches!(work.spec.arrivals, Arrivals::Replay(_)) {
        root.refuse(&["load", "rate", "requests", "warmup_requests"], IN_A_REPLAY);
    }
    let tenants = read_tenants(&mut root, &mut work.names, &mut work.spec);
    if by_tenant {
        root.refuse(&["load", "rate", "callers", "requests", "warmup_requests"], BESIDE);
    }
    if !tenants.is_empty() {
        callers = tenants.iter().map(|tenant| tenant.callers).sum();
    }
    let mut topology = read_topology(&mut root, &work.names);
    if let Arrivals::Replay(log) = &work.spec.arrivals {
        let total: u128 = log.iter().map(|line| u128::from(line.service.as_nanos())).sum();
        let mean = Span::from_nanos((total / log.len().max(1) as u128) as u64);
        if mean == Span::ZERO && !log.is_empty() {
            root.note("workload.log", "needs a mean service time of a nanosecond or more");
        }
        topology.services[topology.entry].time.mean = mean;
    }
    let (slo, load) = (read_slo(&mut root, &topology, network.rtt), read_load(&mut root));
    let mut spec = work.spec;
    let capacity = topology.capacity(&spec.mix);
    let rate = load.rate(capacity);
    spec.profile = Profile::constant(rate);
    for step in &work.steps {
        spec.profile.then(step.at, step.load * capacity, step.over);
    }
    let (warmup, duration) = read_times(&mut root, &spec, rate, slo);
    let faults = read_faults(&mut root, &topology);
    let Policy { gates, caller, deadlines } =
        read_policies(&mut root, &policy, &topology, slo, network.rtt);
    let told = Some(read_told(&mut root)).filter(|_| policy == TOLD);
    let simple =
        tenants.is_empty() && topology.services.len() == 1 && topology.services[0].replicas == 1;
    let open = !matches!(spec.arrivals, Arrivals::Closed { .. } | Arrivals::Replay(_));
    if told.is_some() && !(simple && open) {
        root.note(
            "policy",
            "= \"told\" needs one service of one replica and an open loop of one workload",
        );
    }
    root.finish();
    Point {
        ideal: policy == IDEAL,
        policy,
        values,
        workflows: work.names.clone(),
        scenario: Scenario {
            duration,
            warmup,
            slo,
            callers,
            ignoring: work.ignoring,
            liars: work.liars,
            topology,
            network,
            workload: spec,
            workflows: work.names,
            tenants,
            deadlines,
            gates,
            caller,
            timeout: work.timeout,
            window: None,
            told,
            faults,
            series: None,
        },
    }
}

// === time and load ===

/// How much is offered.
enum Load {
    OfCapacity(f64),
    PerSecond(f64),
}

impl Load {
    fn rate(&self, capacity: f64) -> f64 {
        match self {
            Self::OfCapacity(load) => load * capacity,
            Self::PerSecond(rate) => *rate,
        }
    }
}

/// What is chosen for the yardstick `told`.
fn read_told(root: &mut Reader<'_>) -> ToldSpec {
    let mut spec = ToldSpec { offer: 1.0, room: 0.5, notices: false };
    root.table("told", |table| {
        spec.offer = table.number("offer", spec.offer, 0.0, 100.0);
        spec.room = table.number("room", spec.room, 0.0, 100.0);
        spec.notices = table.flag("notices", spec.notices);
    });
    spec
}

fn read_load(root: &mut Reader<'_>) -> Load {
    if root.has("rate") {
        if root.has("load") {
            root.note("rate", "and load say the same thing twice: give one of them");
        }
        root.known("load");
        return Load::PerSecond(root.number("rate", 1.0, 0.0, 1e12));
    }
    Load::OfCapacity(root.number("load", 1.0, 0.0, 1e6))
}

/// `slo` as it is given, else ten times service and round trip (Breakwater §5.1).
fn read_slo(root: &mut Reader<'_>, topology: &Topology, rtt: Span) -> Span {
    let service = topology.services[topology.entry].time.mean;
    let slo = root.span("slo", (service + rtt).scale(10.0));
    if slo == Span::ZERO {
        root.note("slo", "must be above zero");
    }
    slo
}

/// Warm-up and end: as times, or as numbers of requests offered. A log is measured as long as answers
/// to its last line are worth something.
fn read_times(root: &mut Reader<'_>, spec: &WorkloadSpec, rate: f64, slo: Span) -> (Span, Span) {
    let time_of = |requests: f64| Span::from_nanos((requests / rate * 1e9) as u64);
    let log_ends = match &spec.arrivals {
        Arrivals::Replay(log) => log.last().map(|line| line.at.since(Instant::ZERO)),
        _ => None,
    };
    let (default_warmup, default_end) = match log_ends {
        Some(end) => (Span::ZERO, end + slo),
        None => (Span::from_millis(500), Span::from_millis(1500)),
    };
    let warmup = if root.has("warmup_requests") {
        time_of(root.number("warmup_requests", 0.0, 0.0, 1e12))
    } else {
        root.span("warmup", default_warmup)
    };
    root.known("warmup");
    let duration = if root.has("requests") {
        warmup + time_of(root.number("requests", 1.0, 1.0, 1e12))
    } else {
        root.span("duration", default_end)
    };
    root.known("duration");
    if warmup >= duration {
        root.note("warmup", &format!("= {warmup} is not below duration = {duration}"));
    }
    (warmup, duration)
}

fn read_network(table: &mut Reader<'_>) -> NetworkSpec {
    NetworkSpec {
        rtt: table.span("rtt", Span::ZERO),
        jitter: table.span("jitter", Span::ZERO),
        loss: table.number("loss", 0.0, 0.0, 1.0),
    }
}

// === workload ===

/// A workload whose rate is not known yet.
struct Work {
    spec: WorkloadSpec,
    /// Names of workflows by number.
    names: Vec<String>,
    ignoring: f64,
    liars: f64,
    timeout: Option<Span>,
    steps: Vec<Step>,
}

struct Step {
    at: Instant,
    load: f64,
    over: Span,
}

impl Default for Work {
    fn default() -> Self {
        Self {
            spec: WorkloadSpec {
                arrivals: Arrivals::Poisson,
                profile: Profile::constant(0.0),
                ranks: Ranks::Uniform,
                cost: CostByRank::Independent,
                mix: vec![(Workflow::NONE, 1.0)],
                deadline: None,
                deadline_of: Vec::new(),
            },
            names: vec![String::new()],
            ignoring: 0.0,
            liars: 0.0,
            timeout: None,
            steps: Vec::new(),
        }
    }
}

fn read_workload(table: &mut Reader<'_>, folder: &Path) -> Work {
    let (mut mix, mut names) = read_mix(table);
    let arrivals = read_arrivals(table, folder, &mut mix, &mut names);
    let ranks = match table.choice("ranks", &["uniform", "one", "zipf", "same"]) {
        1 => Ranks::One,
        2 => Ranks::Zipf { exponent: table.number("exponent", 1.0, 0.0, 10.0) },
        3 => Ranks::Same,
        _ => Ranks::Uniform,
    };
    let cost = match table.choice("cost", &["independent", "falling", "rising"]) {
        1 => CostByRank::Falling,
        2 => CostByRank::Rising,
        _ => CostByRank::Independent,
    };
    let mut steps: Vec<Step> = Vec::new();
    table.tables("steps", |step| {
        let at = Instant::ZERO + step.span("at", Span::ZERO);
        let over = step.span("over", Span::ZERO);
        if steps.last().is_some_and(|last| last.at + last.over > at) {
            step.note("at", "is before the step above has ended");
        }
        steps.push(Step { at, load: step.number("load", 1.0, 0.0, 1e6), over });
    });
    Work {
        spec: WorkloadSpec {
            arrivals,
            profile: Profile::constant(0.0),
            ranks,
            cost,
            mix,
            deadline: table.some_span("deadline"),
            deadline_of: spans_of(table, "deadlines", &names),
        },
        names,
        ignoring: table.number("ignoring", 0.0, 0.0, 1.0),
        liars: table.number("liars", 0.0, 0.0, 1.0),
        timeout: table.some_span("timeout"),
        steps,
    }
}

type Mix = Vec<(Workflow, f64)>;

/// Shares of workflows, which sum to one, and their names by number.
fn read_mix(table: &mut Reader<'_>) -> (Mix, Vec<String>) {
    let (mut mix, mut names) = (Mix::new(), vec![String::new()]);
    table.table("mix", |shares| {
        for name in shares.keys() {
            let share = shares.number(&name, 0.0, 0.0, 1e9);
            mix.push((Workflow(names.len() as u16), share));
            names.push(name);
        }
    });
    let total: f64 = mix.iter().map(|(_, share)| share).sum();
    if !mix.is_empty() && total <= 0.0 {
        table.note("mix", "needs at least one share above zero");
    }
    if total <= 0.0 {
        return (vec![(Workflow::NONE, 1.0)], names);
    }
    for (_, share) in &mut mix {
        *share /= total;
    }
    (mix, names)
}

fn read_arrivals(
    table: &mut Reader<'_>,
    folder: &Path,
    mix: &mut Mix,
    names: &mut Vec<String>,
) -> Arrivals {
    match table.choice("arrivals", &["poisson", "periodic", "bursts", "closed", "replay"]) {
        1 => Arrivals::Periodic,
        2 => Arrivals::Bursts { size: table.whole("burst", 10, 1, 1_000_000) as u32 },
        3 => {
            let think = table.span("think", Span::from_millis(1));
            if think == Span::ZERO {
                table.note(
                    "think",
                    "must be above zero, or a rejected request is repeated for ever at once",
                );
            }
            Arrivals::Closed {
                outstanding: table.whole("outstanding", 1, 1, 1_000_000) as u32,
                think,
            }
        }
        4 => read_log(table, folder, mix, names),
        _ => Arrivals::Poisson,
    }
}

fn read_log(
    table: &mut Reader<'_>,
    folder: &Path,
    mix: &mut Mix,
    names: &mut Vec<String>,
) -> Arrivals {
    let speed = table.number("speed", 1.0, 1e-6, 1e6);
    let path = folder.join(table.text("log", ""));
    let mut workflows = Workflows::default();
    let log = replay::read(&path, speed, &mut workflows).unwrap_or_else(|problems| {
        for problem in problems {
            table.note("log", &format!(": {problem}"));
        }
        Vec::new()
    });
    let mut shares = vec![0.0; Workflows::LIMIT + 1];
    for line in &log {
        shares[usize::from(line.workflow.0)] += 1.0 / log.len() as f64;
    }
    let used = (0..).zip(&shares).filter(|(_, share)| **share > 0.0);
    let of_log: Mix = used.map(|(number, share)| (Workflow(number), *share)).collect();
    if !of_log.is_empty() {
        *names = (1..).map_while(|n| workflows.name(Workflow(n)).map(str::to_owned)).collect();
        names.insert(0, String::new());
        *mix = of_log;
    }
    Arrivals::Replay(Arc::from(log))
}

// === faults ===

fn read_faults(root: &mut Reader<'_>, topology: &Topology) -> Vec<Fault> {
    let mut faults = Vec::new();
    root.tables("faults", |table| {
        let kind = table.text("kind", "");
        if ["loss", "jitter"].contains(&kind.as_str()) {
            table.refuse(&["service", "replica"], &format!("for {kind}, which is everywhere"));
        }
        let name = table.text("service", &topology.services[topology.entry].name);
        let service = topology.services.iter().position(|service| service.name == name);
        if service.is_none() {
            table.note("service", &format!("= \"{name}\" is not one of the services"));
        }
        let service = service.unwrap_or(topology.entry);
        let replicas = i64::from(topology.services[service].replicas);
        let replica =
            table.has("replica").then(|| table.whole("replica", 0, 0, replicas - 1) as u32);
        faults.push(Fault {
            at: Instant::ZERO + table.span("at", Span::ZERO),
            lasts: table.span("for", Span::MAX),
            service,
            replica,
            kind: read_fault(table, topology.services[service].cores),
        });
    });
    faults
}

fn read_fault(table: &mut Reader<'_>, cores: u32) -> FaultKind {
    let kinds = [
        "slow",
        "pause",
        "crash",
        "cores",
        "lose-feedback",
        "partition",
        "loss",
        "jitter",
        "cold-cache",
    ];
    match table.choice("kind", &kinds) {
        1 => FaultKind::Pause,
        2 => FaultKind::Crash,
        3 => FaultKind::Cores(table.whole("cores", 1, 1, i64::from(cores)) as u32),
        4 => FaultKind::LoseFeedback(table.number("share", 1.0, 0.0, 1.0)),
        5 => FaultKind::Partition(table.number("share", 1.0, 0.0, 1.0)),
        6 => FaultKind::Loss(table.number("share", 0.1, 0.0, 1.0)),
        8 => FaultKind::ColdCache,
        7 => FaultKind::Jitter(table.span("jitter", Span::from_micros(10))),
        _ => FaultKind::Slow(table.number("factor", 2.0, 0.001, 1e6)),
    }
}
