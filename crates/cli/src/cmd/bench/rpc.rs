//! `tidegate bench rpc`: measures capacity, then every policy at every load.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::ValueEnum;
use tidegate_core::Span;
use tidegate_core::gate::GateConfig;
use tidegate_core::rng::Rng;
use tidegate_sim::dist::{Dist, Service};
use tidegate_sim::plan::Plan;

use super::super::progress::Progress;
use super::super::{Error, print};
use super::child::{self, Process};
use super::closed;
use super::open::{Generator, Load};
use super::rows::{self, Row, Run};
use super::serve::Work;
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
    #[arg(long, default_value_t = 1)]
    rounds: u32,
    /// Set a value of the policies otherwise, as in `tidegate sim`; may be given several times.
    #[arg(long = "set", value_name = "PATH=VALUE")]
    sets: Vec<String>,
    /// Simulate the same too, as policies called `sim tide` and so on.
    #[arg(long)]
    simulate: bool,
    /// Only a saturating closed loop, no open one: answers per second with so many requests
    /// outstanding on each connection.
    #[arg(long, value_name = "PIPELINE")]
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
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    Table,
    Json,
}

/// What was measured before the runs.
struct Ground {
    capacity: f64,
    rtt: Span,
    slo: Span,
}

/// What every run has in common.
struct Bed<'a> {
    plan: &'a Plan,
    work: Work,
    service: &'a Service,
    ground: &'a Ground,
    core: usize,
}

/// Where nothing is measured before: an SLO that a closed loop does not come near.
const ASSUMED: Ground =
    Ground { capacity: 1e6, rtt: Span::from_micros(20), slo: Span::from_millis(50) };

impl Rpc {
    pub(crate) fn run(self) -> Result<(), Error> {
        let (work, service) = parse_service(&self.service)?;
        let [server_core, load_core] = self.cores[..] else {
            return Err(Error::Input("--cores: two, of the server and of the load".to_owned()));
        };
        if self.callers == 0 || !(self.seconds > 0.0 && self.seconds < 3600.0) {
            return Err(Error::Input("--callers and --seconds must be more than 0".to_owned()));
        }
        // What is wrong is told before anything is measured.
        self.plan(&service, &ASSUMED)?;
        child::pin(load_core);
        let progress = Progress::new("bench rpc");
        if let Some(pipeline) = self.saturate {
            return self.saturated(pipeline.max(1), work, &service, server_core);
        }
        progress.say("bench rpc: measures round trip and capacity");
        let ground = self.ground(work, &service, server_core)?;
        let plan = self.plan(&service, &ground)?;
        let (plan, service) = (&plan, &service);
        let bed = Bed { plan, work, service, ground: &ground, core: server_core };
        let runs = plan.points.len() * self.rounds.max(1) as usize;
        let mut rounds: Vec<Vec<Row>> = plan.points.iter().map(|_| Vec::new()).collect();
        for run in 0..runs {
            progress.tell(run, runs);
            let (round, number) = (run / plan.points.len(), run % plan.points.len());
            let seed = self.seed + round as u64;
            rounds[number].push(self.measure(&bed, &plan.points[number], seed)?);
        }
        let mut rows = Vec::new();
        for (point, rounds) in plan.points.iter().zip(rounds) {
            rows.extend(Row::median(rounds));
            if self.simulate && work == Work::Spin {
                rows.push(Row::simulated(tidegate_sim::run_point(plan, point, self.seed)));
            }
        }
        drop(progress);
        self.tell(&rows, &ground)
    }

    /// Round trip and capacity, both without control.
    fn ground(&self, work: Work, service: &Service, core: usize) -> Result<Ground, Error> {
        let open = GateConfig::from_toml(OPEN).expect("our own");
        let seconds = Duration::from_secs_f64(self.seconds.clamp(0.5, 3.0));
        let server = Process::start(&open, Work::None, service, core)?;
        let idle = closed::run(server.address, 1, 1, seconds / 4, |_| (1, Vec::new()), || ());
        let rtt = idle.map_err(broken)?.latency.quantile(0.5);
        drop(server);
        let capacity = match self.capacity {
            Some(capacity) => capacity,
            None => {
                // The middle of three: what disturbs one of them does not decide.
                let mut rates = [0.0; 3];
                for rate in &mut rates {
                    let server = Process::start(&open, work, service, core)?;
                    let callers = self.callers.clamp(16, 64);
                    let mut drawn = Drawn::default();
                    let mut payload = payload_of(work, service.clone());
                    let payload = |rng: &mut Rng| drawn.note(payload(rng));
                    let found = closed::run(server.address, callers, 1, seconds, payload, || ());
                    let found = found.map_err(broken)?.rate;
                    *rate = if work == Work::Spin { drawn.at(service.mean, found) } else { found };
                }
                rates.sort_by(f64::total_cmp);
                rates[1]
            }
        };
        let mean = Span::from_nanos((1e9 / capacity) as u64).max(service.mean);
        let slo = self.slo.unwrap_or((mean + rtt).scale(10.0));
        Ok(Ground { capacity, rtt, slo })
    }

    /// The runs, as the simulator's plan of the same: its policies and their parameters.
    fn plan(&self, service: &Service, ground: &Ground) -> Result<Plan, Error> {
        let loads = match &self.shift[..] {
            [] => self.load.clone(),
            [first, ..] => vec![*first],
        };
        let shape = match service.dist {
            Dist::Constant => "constant",
            Dist::Bimodal => "bimodal",
            _ => "exponential",
        };
        // What a request costs beyond its service, half of it to receive and half to answer.
        let mean = 1e9 / ground.capacity;
        let beyond = ((mean - service.mean.as_nanos() as f64) / 2.0).max(0.0) as u64;
        let seconds = self.seconds * self.shift.len().max(1) as f64;
        let quoted: Vec<String> = self.policies.iter().map(|name| format!("{name:?}")).collect();
        let mut steps = Vec::new();
        for (number, load) in self.shift.iter().enumerate().skip(1) {
            let at = self.seconds * number as f64;
            steps.push(format!("{{ at = \"{at}s\", load = {load:?} }}"));
        }
        let text = format!(
            "include = \"standard\"\nduration = \"{seconds}s\"\nwarmup = \"{}s\"\nslo = \"{}ns\"\n\
             policy = [{}]\nload = {loads:?}\ncallers = {}\nseed = {}\n\
             [service]\ncores = 1\ntime = \"{}ns\"\ndistribution = \"{shape}\"\n\
             receive = \"{beyond}ns\"\nsend = \"{beyond}ns\"\nresponse = \"{beyond}ns\"\n\
             [network]\nrtt = \"{}ns\"\n[workload]\nranks = \"uniform\"\nsteps = [{}]\n\
             [caller]\nhold_time = \"{}ns\"\nretry = {{ attempts = 1 }}\n",
            self.warmup(),
            ground.slo.as_nanos(),
            quoted.join(", "),
            self.callers,
            self.seed,
            service.mean.as_nanos().max(1),
            ground.rtt.as_nanos(),
            steps.join(", "),
            ground.rtt.as_nanos(),
        );
        Plan::parse("bench-rpc", &text, &self.sets, Path::new(""))
            .map_err(|error| Error::Input(error.to_string()))
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
    ) -> Result<(), Error> {
        let slo = self.slo.unwrap_or(ASSUMED.slo);
        let plan = self.plan(service, &Ground { slo, ..ASSUMED })?;
        let mut points = plan.points;
        points.dedup_by(|a, b| a.policy == b.policy);
        for point in points {
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

    fn tell(&self, rows: &[Row], ground: &Ground) -> Result<(), Error> {
        let heading = format!(
            "capacity {:.0}/s, round trip {:.1} µs, SLO {:.0} µs, {} callers, {}\n",
            ground.capacity,
            ground.rtt.as_micros_f64(),
            ground.slo.as_micros_f64(),
            self.callers,
            self.service
        );
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
        }
        match self.format {
            Format::Json => print(json),
            Format::Table => print(table),
        }
    }
}

/// No control, one at a time.
const OPEN: &str = "admission = { policy = 'open' }\nslots = { slots = 'fixed', count = 1 }";

fn broken(error: io::Error) -> Error {
    Error::Failed(format!("the connection to the server: {error}"))
}

/// What the services drawn for a closed loop take. Chance makes some thousands of them a percent shorter
/// or longer than their mean, which is no matter of capacity.
#[derive(Default)]
struct Drawn {
    nanos: f64,
    count: f64,
}

impl Drawn {
    fn note(&mut self, request: (u32, Vec<u8>)) -> (u32, Vec<u8>) {
        if let Ok(nanos) = request.1[..].try_into() {
            self.nanos += u64::from_le_bytes(nanos) as f64;
            self.count += 1.0;
        }
        request
    }

    /// The rate of one server that was `rate` with these services, had they been as long as their mean.
    fn at(&self, mean: Span, rate: f64) -> f64 {
        1.0 / (1.0 / rate + (mean.as_nanos() as f64 - self.nanos / self.count) / 1e9)
    }
}

/// Requests of the closed loop.
fn payload_of(work: Work, service: Service) -> impl FnMut(&mut Rng) -> (u32, Vec<u8>) {
    move |rng| match work {
        Work::Spin => (1, service.sample(rng, 1.0).as_nanos().to_le_bytes().to_vec()),
        Work::None => (1, Vec::new()),
        Work::Kv => (1, (rng.below(super::serve::KEYS.into()) as u32).to_le_bytes().to_vec()),
    }
}

fn parse_service(text: &str) -> Result<(Work, Service), Error> {
    let wrong = || {
        let allowed = "exp:100us, constant:10us, bimodal:10us, none, kv or kv:50us";
        Error::Input(format!("--service {text}: not one of {allowed}"))
    };
    let nothing = Service { dist: Dist::Constant, mean: Span::ZERO };
    match text {
        "none" => return Ok((Work::None, nothing)),
        "kv" => return Ok((Work::Kv, nothing)),
        _ => {}
    }
    let (shape, mean) = text.split_once(':').ok_or_else(wrong)?;
    let (work, dist) = match shape {
        "exp" | "exponential" => (Work::Spin, Dist::Exponential),
        "constant" => (Work::Spin, Dist::Constant),
        "bimodal" => (Work::Spin, Dist::Bimodal),
        "kv" => (Work::Kv, Dist::Constant),
        _ => return Err(wrong()),
    };
    let mean = mean.parse().map_err(|_| wrong())?;
    Ok((work, Service { dist, mean }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capacity_is_not_a_matter_of_what_was_drawn() {
        let mut drawn = Drawn::default();
        for micros in [80_u64, 100] {
            drawn.note((1, (micros * 1000).to_le_bytes().to_vec()));
        }
        // 90 µs of work and 10 of messages: with 100 µs of work it is 110 in all.
        let rate = drawn.at(Span::from_micros(100), 10_000.0);
        assert!((rate - 1e6 / 110.0).abs() < 1e-6, "{rate}");
    }

    #[test]
    fn services_are_read_or_explained() {
        let (work, service) = parse_service("exp:100us").unwrap();
        assert_eq!((work, service.mean), (Work::Spin, Span::from_micros(100)));
        assert_eq!(parse_service("kv").unwrap().0, Work::Kv);
        let (work, service) = parse_service("kv:50us").unwrap();
        assert_eq!((work, service.mean), (Work::Kv, Span::from_micros(50)));
        for wrong in ["", "exp", "exp:fast", "uniform:1us"] {
            assert!(parse_service(wrong).is_err(), "{wrong}");
        }
    }
}
