//! Adaptive slots in front of simulated services.

use std::collections::VecDeque;

use super::*;
use crate::admission::{AdmissionConfig, TideConfig};
use crate::context::Context;
use crate::gate::{Action, Gate, GateConfig};
use crate::meter::Cost;
use crate::objective::Objective;
use crate::request::RequestId;
use crate::rng::Rng;

/// A service whose finishes are memoryless: with n requests inside it ends one at `rate(n)` per
/// second, chosen evenly among the `parallel` oldest.
#[derive(Clone, Copy)]
struct Service {
    parallel: u32,
    /// Finishes per second of one worker alone.
    speed: f64,
    /// Loss by contention for each other request inside.
    contention: f64,
}

impl Service {
    const fn servers(parallel: u32) -> Self {
        Self { parallel, speed: 1_000.0, contention: 0.0 }
    }

    /// Workers that fight over a lock: throughput n ÷ (1 + c·n²) peaks at 1/√c and then falls.
    const fn lock_bound(contention: f64) -> Self {
        Self { parallel: u32::MAX, speed: 1_000.0, contention }
    }

    fn rate(&self, inside: u32) -> f64 {
        let n = f64::from(inside);
        self.speed * f64::from(inside.min(self.parallel)) / (1.0 + self.contention * n * n)
    }

    /// The number of slots with the highest throughput, and that.
    fn best(&self) -> (u32, f64) {
        let rates = (1..=1_024).map(|slots| (slots, self.rate(slots)));
        rates.fold((0, 0.0), |best, next| if next.1 > best.1 * (1.0 + 1e-9) { next } else { best })
    }
}

/// Slots, a queue before them, a service behind them.
struct Bench {
    slots: Box<dyn Slots>,
    service: Service,
    /// Arrivals per second; infinite: something always waits.
    load: f64,
    rng: Rng,
    seconds: f64,
    waiting: usize,
    /// Start of everything inside the service, oldest first.
    inside: VecDeque<f64>,
}

/// What happened in a run.
#[derive(Debug)]
struct Run {
    /// Finishes per second.
    rate: f64,
    /// Time-weighted mean of slots.
    slots: f64,
    least: u32,
}

impl Bench {
    fn new(service: Service, load: f64, seed: u64) -> Self {
        let slots = SlotsConfig::Adaptive(AdaptiveConfig::default()).build(Instant::ZERO);
        let (waiting, inside) = (0, VecDeque::new());
        let rng = Rng::new(seed);
        Self { slots, service, load, rng, seconds: 0.0, waiting, inside }
    }

    fn saturated(service: Service, seed: u64) -> Self {
        Self::new(service, f64::INFINITY, seed)
    }

    fn run(&mut self, finishes: u32) -> Run {
        let begin = self.seconds;
        let (mut area, mut done, mut least) = (0.0, 0, u32::MAX);
        while done < finishes {
            if self.load.is_infinite() {
                self.waiting = 1_000;
            }
            self.start();
            let limit = self.slots.limit();
            least = least.min(limit);
            let finish_rate = self.service.rate(self.inside.len() as u32);
            let arrival_rate = if self.load.is_finite() { self.load } else { 0.0 };
            let step = -(1.0 - self.rng.unit()).ln() / (finish_rate + arrival_rate);
            self.seconds += step;
            area += step * f64::from(limit);
            if self.rng.unit() * (finish_rate + arrival_rate) < arrival_rate {
                self.waiting += 1;
            } else {
                self.finish();
                done += 1;
            }
        }
        let time = self.seconds - begin;
        Run { rate: f64::from(done) / time, slots: area / time, least }
    }

    fn start(&mut self) {
        while self.waiting > 0 && self.inside.len() < self.slots.limit() as usize {
            self.waiting -= 1;
            self.inside.push_back(self.seconds);
        }
    }

    fn finish(&mut self) {
        let served = self.inside.len().min(self.service.parallel as usize);
        let which = self.rng.below(served as u64) as usize;
        let started = self.inside.remove(which).expect("something is inside");
        let nanos = |seconds: f64| (seconds * 1e9) as u64;
        let finish = Finish {
            objective: Span::MAX,
            service: Span::from_nanos(nanos(self.seconds - started)),
            outcome: Outcome::Serve,
            running: self.inside.len() as u32,
            beside: 0,
            waiting: self.waiting,
            late: false,
            crowded: false,
            quiet: false,
            shedding: self.load.is_infinite(),
        };
        let now = Instant::from_nanos(nanos(self.seconds));
        self.slots.on_finish(now, &finish);
        self.slots.invariants();
    }
}

/// Finishes after which the search must have ended.
const SETTLED: u32 = 60_000;

fn check_settles(service: Service, seed: u64, least: f64) {
    let (best, rate) = service.best();
    let mut bench = Bench::saturated(service, seed);
    bench.run(SETTLED);
    let run = bench.run(200_000);
    assert!(run.rate >= least * rate, "best {best}, seed {seed}: {run:?} of {rate}");
    // Half as many again as are at work, and one, as there are no halves of a slot.
    let most = 1.7 * f64::from(best) + 1.0;
    assert!(run.slots < most, "best {best}, seed {seed}: {run:?}");
}

#[test]
fn finds_half_as_many_again_as_there_are_servers() {
    for servers in [1, 2, 3, 4, 6, 8, 9, 15, 16, 24, 48, 100] {
        check_settles(Service::servers(servers), 7, 0.97);
        check_settles(Service::servers(servers), 8, 0.97);
    }
}

/// Such a peak is flat: half as many slots lose a fifth of it, and what is between is hard to tell apart.
#[test]
fn finds_the_peak_of_a_lock_bound_service() {
    for contention in [0.2, 0.02, 0.005] {
        for seed in 0..3 {
            check_settles(Service::lock_bound(contention), seed, 0.9);
        }
    }
}

/// A stall is one long gap: it looks neither like lost capacity nor, when it is over, like more of it.
#[test]
fn a_stall_moves_nothing() {
    for seed in 0..4 {
        let mut bench = Bench::saturated(Service::servers(4), seed);
        bench.run(SETTLED);
        for _ in 0..20 {
            bench.seconds += 0.4;
            let run = bench.run(1_000);
            assert!(run.slots < 9.0, "seed {seed}: {run:?}");
        }
    }
}

#[test]
fn comes_down_when_servers_are_lost_and_up_when_they_return() {
    for seed in 0..3 {
        let mut bench = Bench::saturated(Service::servers(16), seed);
        bench.run(SETTLED);
        for servers in [4, 16, 64, 8] {
            bench.service = Service::servers(servers);
            bench.run(SETTLED);
            let run = bench.run(20_000);
            let k = f64::from(servers);
            assert!((k..1.7 * k + 1.0).contains(&run.slots), "{servers}, seed {seed}: {run:?}");
            assert!(run.rate >= 0.95 * bench.service.best().1, "{servers}, seed {seed}: {run:?}");
        }
    }
}

#[test]
fn a_light_load_keeps_what_it_uses() {
    for (servers, used) in [(100, 2.0), (100, 3.5), (100, 10.0), (16, 4.0), (16, 8.0), (4, 2.0)] {
        let mut bench = Bench::new(Service::servers(servers), used * 1_000.0, 3);
        bench.run(10_000);
        let run = bench.run(200_000);
        assert!(f64::from(run.least) >= used, "{used} of {servers}: {run:?}");
        assert!((run.rate / (used * 1_000.0) - 1.0).abs() < 0.01, "{used} of {servers}: {run:?}");
        assert!(bench.waiting < 10, "{used} of {servers}: {run:?}");
    }
}

#[test]
fn failures_and_cancels_are_no_throughput() {
    let mut slots = Adaptive::new(&AdaptiveConfig::default());
    for n in 0..100_000u64 {
        let outcome = if n.is_multiple_of(2) { Outcome::Fail } else { Outcome::Cancel };
        let service = Span::from_micros(1);
        let (running, beside, waiting, late) = (3, 3, 9, true);
        let finish = Finish {
            objective: Span::MAX,
            service,
            outcome,
            running,
            beside,
            waiting,
            late,
            crowded: false,
            quiet: false,
            shedding: true,
        };
        slots.on_finish(Instant::from_nanos(n * 1_000), &finish);
    }
    assert_eq!(slots.limit(), 1);
}

fn crowd(gate: &mut Gate, now: Instant) {
    for _ in 0..30 {
        let _ = gate.arrive(now, &Context::default());
    }
}

fn dispatch(gate: &mut Gate, now: Instant, inside: &mut VecDeque<RequestId>) {
    gate.dispatch(now);
    while let Some(action) = gate.poll() {
        if let Action::Start { id, .. } = action {
            inside.push_back(id);
        }
    }
}

/// Behind a real gate, with batches and refusals: 4 servers, everything taken 20 at a time.
#[test]
fn a_gate_finds_them_too() {
    let config = GateConfig {
        slots: SlotsConfig::Adaptive(AdaptiveConfig::default()),
        admission: AdmissionConfig::Tide(TideConfig {
            objective: Objective::Given(Span::from_millis(20)),
            ..TideConfig::default()
        }),
        queue_limit: 50,
        ..GateConfig::default()
    };
    let mut gate = Gate::new(&config, Instant::ZERO, 5).expect("valid");
    let (mut rng, mut now, mut inside) = (Rng::new(5), Instant::ZERO, VecDeque::new());
    for finishes in 0..40_000u32 {
        if finishes.is_multiple_of(20) {
            crowd(&mut gate, now);
        }
        dispatch(&mut gate, now, &mut inside);
        if inside.is_empty() {
            // All that waited was too old.
            crowd(&mut gate, now);
            dispatch(&mut gate, now, &mut inside);
        }
        let served = inside.len().min(4) as u64;
        now += Span::from_nanos((-(1.0 - rng.unit()).ln() * 1e6 / served as f64) as u64);
        let id = inside.remove(rng.below(served) as usize).expect("the queue never runs dry");
        gate.finish(now, id, Outcome::Serve, Cost(1));
    }
    gate.invariants();
    assert!((4..=8).contains(&gate.slots()), "{} slots", gate.slots());
}

#[test]
fn reads_back_and_names_bad_parameters() {
    let config = GateConfig {
        slots: SlotsConfig::Adaptive(AdaptiveConfig::default()),
        ..GateConfig::default()
    };
    assert_eq!(GateConfig::from_toml(&config.to_toml()), Ok(config));
    let text = "[slots]\nslots = \"adaptive\"\nstart = 9\nmost = 8\nleast = 0\n";
    let error = GateConfig::from_toml(text).expect_err("two mistakes");
    let fields: Vec<&str> = error.problems().iter().map(|p| p.field.as_str()).collect();
    assert_eq!(fields, ["slots.start", "slots.least"]);
}
