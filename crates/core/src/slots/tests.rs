//! Adaptive slots in front of simulated services.

use std::collections::VecDeque;

use super::*;
use crate::gate::GateConfig;
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
    /// Mean excess, in mean service times of one worker.
    excess: f64,
}

impl Bench {
    fn new(service: Service, load: f64, seed: u64) -> Self {
        let slots = SlotsConfig::Adaptive(AdaptiveConfig::default()).build(Instant::ZERO);
        let (waiting, inside) = (0, VecDeque::new());
        Self { slots, service, load, rng: Rng::new(seed), seconds: 0.0, waiting, inside }
    }

    fn saturated(service: Service, seed: u64) -> Self {
        Self::new(service, f64::INFINITY, seed)
    }

    fn run(&mut self, finishes: u32) -> Run {
        let begin = self.seconds;
        let (mut area, mut excess, mut done, mut least) = (0.0, 0.0, 0, u32::MAX);
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
            excess += step * self.slots.excess().as_secs_f64() * self.service.speed;
            if self.rng.unit() * (finish_rate + arrival_rate) < arrival_rate {
                self.waiting += 1;
            } else {
                self.finish();
                done += 1;
            }
        }
        let time = self.seconds - begin;
        Run { rate: f64::from(done) / time, slots: area / time, least, excess: excess / time }
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
            service: Span::from_nanos(nanos(self.seconds - started)),
            outcome: Outcome::Serve,
            running: self.inside.len() as u32,
            waiting: self.waiting,
            shedding: self.load.is_infinite(),
        };
        self.slots.on_finish(Instant::from_nanos(nanos(self.seconds)), finish);
        self.slots.invariants();
    }
}

#[test]
fn explore() {
    for service in [1, 2, 3, 4, 6, 8, 9, 15, 16, 24, 48, 100]
        .map(Service::servers)
        .into_iter()
        .chain([0.2, 0.02, 0.005].map(Service::lock_bound))
    {
        let (best, rate) = service.best();
        for seed in 0..3 {
            let mut bench = Bench::saturated(service, seed);
            let mut line = String::new();
            for part in [10_000, 10_000, 10_000, 20_000, 200_000, 200_000] {
                let run = bench.run(part);
                line += &format!(
                    " [{:.3} s{:.1} e{:.2}]",
                    run.rate / rate,
                    run.slots / f64::from(best),
                    run.excess
                );
            }
            println!("best {best} seed {seed}: {line}");
        }
    }
}
