//! `tidegate bench rpc`: measures capacity, then every policy at every load.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::ValueEnum;
use tidegate_core::Span;
use tidegate_sim::dist::{Dist, Service};
use tidegate_sim::figures::lab::{Lab, Source, Tuned};
use tidegate_sim::figures::testbed;
use tidegate_sim::plan::{Plan, STANDARD};

use super::super::progress::Progress;
use super::super::{Error, png, print};
use super::child::{self, Process};
use super::closed;
use super::ground::{self, ASSUMED, Ground, broken, payload_of};
use super::interrupt::Interrupt;
use super::open::{Generator, Load};
use super::rows::{self, Row, Run};
use super::serve::{Work, parse_service};
use super::tally::Tally;

/// The native RPC over loopback: every policy at every load, side by side.
#[derive(Debug, clap::Args)]
pub(crate) struct Rpc {
    /// Policies to compare, of the simulator's standard plan; may be given several times.
    #[arg(long = "policy", value_name = "NAME",
          default_values = ["tide", "breakwater", "dagor-aimd", "seda", "codel", "open"])]
    policies: Vec<String>,
    /// How many callers, each with a connection of its own.
    #[arg(long, default_value_t = 100)]
    callers: usize,
    /// What a request does: keep the core busy (exp:100us, constant:10us, bimodal:10us), nothing
    /// (none), or a key-value store (kv; kv:50us with operations that take so much longer).
    #[arg(long, default_value = "exp:100us")]
    service: String,
    /// An answer later than this is worthless. Default: ten times service and round trip.
    #[arg(long)]
    slo: Option<Span>,
    /// Demand ÷ capacity.
    #[arg(long, value_delimiter = ',', default_value = "0.5,0.9,1,1.2,1.5,2,4,10")]
    load: Vec<f64>,
    /// Demand ÷ capacity that changes: each of these for --seconds, in one run with its course.
    #[arg(long, value_delimiter = ',', conflicts_with = "load")]
    shift: Vec<f64>,
    /// Length of a step of that course.
    #[arg(long, default_value = "20ms")]
    step: Span,
    /// Length of each run; the first fifth is not measured.
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// How often to measure everything, in turns; the median is told. Runs that are not valid are left
    /// out of it where others are.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Set a value of the policies otherwise, as in `tidegate sim`; may be given several times.
    #[arg(long = "set", value_name = "PATH=VALUE")]
    sets: Vec<String>,
    /// Leave the baselines' parameters as they are in the standard plan. Otherwise each is tuned in the
    /// simulator for the most goodput at this service, as in the figures, and what was chosen is told.
    #[arg(long)]
    untuned: bool,
    /// Simulate the same too, as policies called `sim tide` and so on; not the key-value store.
    #[arg(long)]
    simulate: bool,
    /// Only a saturating closed loop, no open one: answers per second with so many requests
    /// outstanding on each connection.
    #[arg(long, value_name = "PIPELINE",
          conflicts_with_all = ["load", "shift", "rounds", "simulate", "capacity", "out"])]
    saturate: Option<usize>,
    /// Take this for the capacity instead of measuring it.
    #[arg(long, value_name = "RPS")]
    capacity: Option<f64>,
    /// The seed of all chance.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Cores of the server and of the load.
    #[arg(long, value_delimiter = ',', default_value = "0,1")]
    cores: Vec<usize>,
    /// How to answer: table, or json (one object per run and line).
    #[arg(long, default_value = "table")]
    format: Format,
    /// Write it in both formats, with pictures, into this folder too.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Draw the picture as PNG too (with the feature `png`).
    #[arg(long, requires = "out")]
    png: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    Table,
    Json,
}

/// What every run has in common.
struct Bed<'a> {
    plan: &'a Plan,
    work: Work,
    service: &'a Service,
    ground: &'a Ground,
    core: usize,
}

/// What the runs have in common with nothing measured yet; all else is set.
const PLAN: Source = Source {
    name: "bench-rpc",
    text: "include = \"standard\"\n[service]\ncores = 1\n[workload]\nranks = \"uniform\"\n\
           [caller]\nretry = { attempts = 1 }\n",
};

/// The names of the standard plan's policies.
fn standard() -> Vec<&'static str> {
    let blocks = STANDARD.lines().filter_map(|line| line.strip_prefix("[policies."));
    let mut names: Vec<&str> = blocks.filter_map(|block| block.split('.').next()).collect();
    names.dedup();
    names
}

/// Most steps of a course: each keeps a histogram.
const STEPS: f64 = 10_000.0;

impl Rpc {
    pub(crate) fn run(self) -> Result<(), Error> {
        let (work, service) = parse_service(&self.service)?;
        let [server_core, load_core] = self.cores[..] else {
            return Err(Error::Input("--cores: two, of the server and of the load".to_owned()));
        };
        // What is wrong is told before anything is measured.
        self.check(work)?;
        self.plan(&service, &ASSUMED, &[])?;
        for core in self.cores.iter().filter(|core| !child::has(**core)) {
            eprintln!(
                "tidegate: --cores: there is no core {core} to be had; the scheduler decides"
            );
        }
        child::pin(load_core);
        let progress = Progress::new("bench rpc");
        if let Some(pipeline) = self.saturate {
            return self.saturated(pipeline.max(1), work, &service, server_core, &progress);
        }
        let interrupt = Interrupt::watch();
        progress.say("bench rpc: measures round trip and capacity");
        let ground = self.ground(work, &service, server_core)?;
        let tuned = if self.untuned {
            Vec::new()
        } else {
            progress.say("bench rpc: tunes baselines in the simulator");
            self.tune(&service, &ground)
        };
        let plan = self.plan(&service, &ground, &tuned)?;
        let (plan, service) = (&plan, &service);
        let bed = Bed { plan, work, service, ground: &ground, core: server_core };
        let runs = plan.points.len() * self.rounds as usize;
        let mut rounds: Vec<Vec<Row>> = plan.points.iter().map(|_| Vec::new()).collect();
        let mut rows = Vec::new();
        // Tells a point whose rounds are over.
        let mut finish = |number: usize, rounds: Vec<Row>| {
            let Some(mut row) = Row::median(rounds) else { return Ok(()) };
            let point = &plan.points[number];
            let chosen = tuned.iter().find(|(policy, _)| *policy == point.policy);
            if let Some((_, tuned)) = chosen {
                row.is_tuned(&tuned.note);
            }
            let simulate = || tidegate_sim::run_point(plan, point, self.seed);
            let simulated = self.simulate.then(|| Row::simulated(simulate()));
            progress.wipe();
            for row in [Some(row), simulated].into_iter().flatten() {
                if self.format == Format::Json {
                    print(row.to_json() + "\n")?;
                }
                rows.push(row);
            }
            Ok::<_, Error>(())
        };
        let mut measured = Ok(());
        for run in 0..runs {
            progress.tell(run, runs);
            let (round, number) = (run / plan.points.len(), run % plan.points.len());
            match self.measure(&bed, &plan.points[number], self.seed + round as u64) {
                Ok(row) => rounds[number].push(row),
                Err(error) => measured = Err(error),
            }
            if measured.is_err() || interrupt.is_seen() {
                break;
            }
            if round + 1 == self.rounds as usize {
                finish(number, std::mem::take(&mut rounds[number]))?;
            }
        }
        // What is left after an end before its time.
        for (number, rounds) in rounds.into_iter().enumerate() {
            finish(number, rounds)?;
        }
        drop(progress);
        self.tell(&rows, &ground, &tuned)?;
        if interrupt.is_seen() {
            return Err(Error::Failed("interrupted: not everything was measured".to_owned()));
        }
        measured
    }

    /// Whether what was asked for can be done.
    fn check(&self, work: Work) -> Result<(), Error> {
        let course = self.seconds * self.shift.len() as f64;
        let wrong = if self.callers == 0 || !(self.seconds > 0.0 && self.seconds < 3600.0) {
            "--callers and --seconds must be more than 0"
        } else if self.load.iter().chain(&self.shift).any(|load| !load.is_finite() || *load < 0.0) {
            "--load and --shift: numbers from 0 on"
        } else if self.slo == Some(Span::ZERO) {
            "--slo: must be more than 0"
        } else if self.capacity.is_some_and(|rps| !(rps.is_finite() && rps > 0.0)) {
            "--capacity: must be more than 0"
        } else if self.step == Span::ZERO || course / self.step.as_secs_f64() > STEPS {
            "--step: must be more than 0, and a course has at most 10,000 of them"
        } else if self.simulate && work != Work::Spin {
            "--simulate: the simulator knows services that keep the core busy, no others"
        } else if self.png && !png::AVAILABLE {
            "--png: this binary was built without it; build with --features png"
        } else {
            return Ok(());
        };
        Err(Error::Input(wrong.to_owned()))
    }

    /// Round trip and capacity, and the SLO that follows from them.
    fn ground(&self, work: Work, service: &Service, core: usize) -> Result<Ground, Error> {
        let seconds = Duration::from_secs_f64(self.seconds.clamp(0.5, 3.0));
        let rtt = ground::round_trip(service, core, seconds / 4)?;
        let callers = self.callers.clamp(16, 64);
        let capacity = match self.capacity {
            Some(capacity) => capacity,
            None => ground::capacity(work, service, core, callers, seconds)?,
        };
        let mean = Span::from_nanos((1e9 / capacity) as u64).max(service.mean);
        let slo = self.slo.unwrap_or((mean + rtt).scale(10.0));
        Ok(Ground { capacity, rtt, slo })
    }

    /// The runs, as the simulator's plan of the same: its policies and their parameters. What users
    /// set comes last, and so counts.
    fn plan(
        &self,
        service: &Service,
        ground: &Ground,
        tuned: &[(String, Tuned)],
    ) -> Result<Plan, Error> {
        let mut sets = self.bed(service, ground);
        let loads = match &self.shift[..] {
            [] => self.load.clone(),
            [first, ..] => vec![*first],
        };
        let seconds = self.seconds * self.shift.len().max(1) as f64;
        let mut steps = Vec::new();
        for (number, load) in self.shift.iter().enumerate().skip(1) {
            let at = self.seconds * number as f64;
            steps.push(format!("{{ at = \"{at}s\", load = {load:?} }}"));
        }
        sets.extend([
            format!("duration={seconds}s"),
            format!("warmup={}s", self.warmup()),
            format!("policy={:?}", self.policies),
            format!("load={loads:?}"),
            format!("callers={}", self.callers),
            format!("seed={}", self.seed),
            format!("workload.steps=[{}]", steps.join(", ")),
        ]);
        sets.extend(tuned.iter().flat_map(|(_, tuned)| &tuned.sets).cloned());
        sets.extend(self.sets.iter().cloned());
        Plan::parse(PLAN.name, PLAN.text, &sets, Path::new("")).map_err(|error| {
            let names = standard();
            let unknown = self.policies.iter().find(|name| !names.contains(&name.as_str()));
            Error::Input(match unknown {
                Some(name) => format!("--policy {name}: not one of {}", names.join(", ")),
                None => error.to_string(),
            })
        })
    }

    /// Service, objective and network of that plan, as set.
    fn bed(&self, service: &Service, ground: &Ground) -> Vec<String> {
        let shape = match service.dist {
            Dist::Constant => "constant",
            Dist::Bimodal => "bimodal",
            _ => "exponential",
        };
        // What a request costs beyond its service, half of it to receive and half to answer.
        let mean = 1e9 / ground.capacity;
        let beyond = ((mean - service.mean.as_nanos() as f64) / 2.0).max(0.0) as u64;
        vec![
            format!("slo={}ns", ground.slo.as_nanos()),
            format!("service.time={}ns", service.mean.as_nanos().max(1)),
            format!("service.distribution={shape}"),
            format!("service.receive={beyond}ns"),
            format!("service.send={beyond}ns"),
            format!("service.response={beyond}ns"),
            format!("network.rtt={}ns", ground.rtt.as_nanos()),
            format!("caller.hold_time={}ns", ground.rtt.as_nanos()),
        ]
    }

    /// The best parameters of the baselines, found in the simulator by the rule of the figures
    /// (Breakwater §5.1: each is tuned for the most goodput, per workload).
    fn tune(&self, service: &Service, ground: &Ground) -> Vec<(String, Tuned)> {
        let mut sets = self.bed(service, ground);
        sets.extend(self.sets.iter().cloned());
        let bed = testbed::Bed {
            source: PLAN,
            capacity: ground.capacity,
            callers: u32::try_from(self.callers).unwrap_or(u32::MAX),
            sets: &sets,
            brief: false,
        };
        let lab = Lab::new(false, self.seed, 0, &|_, _| {});
        let of = |policy: &String| Some((policy.clone(), testbed::baseline(&lab, policy, &bed)?));
        self.policies.iter().filter_map(of).collect()
    }

    fn warmup(&self) -> f64 {
        self.seconds / 5.0
    }

    /// One policy at one load.
    fn measure(&self, bed: &Bed<'_>, point: &tidegate_sim::Point, seed: u64) -> Result<Row, Error> {
        let Bed { plan, work, service, ground, core } = *bed;
        let scenario = &point.scenario;
        let server = Process::start(&scenario.gates[0], work, service, core)?;
        let bare = server.memory();
        let each = Span::from_nanos((self.seconds * 1e9) as u64);
        let load_of = |load: f64| load * ground.capacity;
        let load = point.values.iter().find(|(path, _)| path == "load");
        let load = load.and_then(|(_, value)| value.as_float()).unwrap_or(1.0);
        let rates = match &self.shift[..] {
            [] => vec![(Span::ZERO, load_of(load))],
            shift => shift
                .iter()
                .enumerate()
                .map(|(n, load)| (each.scale(n as f64), load_of(*load)))
                .collect(),
        };
        let load = Load {
            callers: self.callers,
            caller: scenario.caller.clone(),
            work,
            service: service.clone(),
            length: each.scale(rates.len() as f64),
            rates,
            seed,
        };
        let mut generator = Generator::connect(server.address, &load).map_err(broken)?;
        let per_connection = server.memory().saturating_sub(bare) / self.callers as u64;
        let begin = generator.now() + Span::from_millis(1);
        let (from, to) =
            (begin + Span::from_nanos((self.warmup() * 1e9) as u64), begin + load.length);
        let step = (!self.shift.is_empty()).then_some(self.step);
        let mut tally = Tally::new(from, to, ground.slo, self.callers).with_series(begin, step);
        let mut usages = vec![server.usage()];
        generator.run(&load, begin, &mut tally, || usages.push(server.usage())).map_err(broken)?;
        let usage = match usages[..] {
            [.., before, after] => after.since(before),
            _ => usages[0].since(usages[0]),
        };
        Ok(Row::measured(Run {
            plan,
            point,
            seed,
            seconds: to.since(from).as_secs_f64(),
            capacity: ground.capacity,
            slo: ground.slo,
            rtt: ground.rtt,
            connections: self.callers,
            per_connection,
            usage,
            tally,
        }))
    }

    /// A closed loop with the policies' gates before the service.
    fn saturated(
        &self,
        pipeline: usize,
        work: Work,
        service: &Service,
        core: usize,
        progress: &Progress,
    ) -> Result<(), Error> {
        let slo = self.slo.unwrap_or(ASSUMED.slo);
        let plan = self.plan(service, &Ground { slo, ..ASSUMED }, &[])?;
        let mut points = plan.points;
        points.dedup_by(|a, b| a.policy == b.policy);
        let runs = points.len();
        for (run, point) in points.into_iter().enumerate() {
            progress.tell(run, runs);
            let server = Process::start(&point.scenario.gates[0], work, service, core)?;
            let seconds = Duration::from_secs_f64(self.seconds);
            let payload = payload_of(work, service.clone());
            let mut before = Span::ZERO;
            let counted = || before = server.usage().cpu;
            let address = server.address;
            let found = closed::run(address, self.callers, pipeline, seconds, payload, counted);
            let found = found.map_err(broken)?;
            let cpu = server.usage().cpu.saturating_sub(before);
            let requests = (found.served + found.refused).max(1) as f64;
            let cpu_us = cpu.as_micros_f64() / requests;
            let busy = cpu.as_secs_f64() / (self.seconds * 0.8);
            let (p50, p99) = (found.latency.quantile(0.5), found.latency.quantile(0.99));
            let (p50, p99) = (p50.as_micros_f64(), p99.as_micros_f64());
            let (policy, rate, refused) = (&point.policy, found.rate, found.refused);
            progress.wipe();
            match self.format {
                Format::Json => print(format_args!(
                    "{{\"policy\":\"{policy}\",\"connections\":{},\"pipeline\":{pipeline},\
                     \"throughput_rps\":{rate:.1},\"refused\":{refused},\"p50_us\":{p50:.3},\
                     \"p99_us\":{p99:.3},\"cpu_server\":{busy:.4},\"cpu_us_per_request\":{cpu_us:.4}}}\n",
                    self.callers
                ))?,
                Format::Table => print(format_args!(
                    "{policy:<12} {} connections × {pipeline}: {rate:.0}/s, p50 {p50:.0} µs, p99 \
                     {p99:.0} µs, server {cpu_us:.3} µs per request, busy {:.0} %, {refused} refused\n",
                    self.callers,
                    100.0 * busy
                ))?,
            }
        }
        Ok(())
    }

    /// The table, and the files.
    fn tell(&self, rows: &[Row], ground: &Ground, tuned: &[(String, Tuned)]) -> Result<(), Error> {
        let mut heading = format!(
            "capacity {:.0}/s, round trip {:.1} µs, SLO {:.0} µs, {} callers, {}\n",
            ground.capacity,
            ground.rtt.as_micros_f64(),
            ground.slo.as_micros_f64(),
            self.callers,
            self.service
        );
        for (_, tuned) in tuned {
            heading += &format!("tuned in the simulator: {}\n", tuned.note);
        }
        let json: String = rows.iter().map(|row| row.to_json() + "\n").collect();
        let table = heading + &rows::table(rows);
        if let Some(folder) = &self.out {
            let title = format!("{} callers, {}", self.callers, self.service);
            let chart = if self.shift.is_empty() {
                rows::chart(rows, &title)
            } else {
                rows::course(rows, &title)
            };
            let written = fs::create_dir_all(folder)
                .and_then(|()| fs::write(folder.join("rpc.json"), &json))
                .and_then(|()| fs::write(folder.join("rpc.txt"), &table))
                .and_then(|()| fs::write(folder.join("rpc.svg"), chart.to_svg()));
            written.map_err(|error| {
                Error::Failed(format!("cannot write to {}: {error}", folder.display()))
            })?;
            if self.png {
                png::convert(&folder.join("rpc.svg")).map_err(Error::Failed)?;
            }
        }
        match self.format {
            // Told already, row by row.
            Format::Json => Ok(()),
            Format::Table => print(table),
        }
    }
}
