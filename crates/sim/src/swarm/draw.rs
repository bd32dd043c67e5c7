//! Plans that nobody has tuned to: drawn from stated distributions.
//!
//! | what | from |
//! |---|---|
//! | service | 5 µs to 30 ms; constant, exponential, bimodal, lognormal (σ 1), Pareto (shape 2.5) |
//! | cores, callers | 1 to 64, 1 to 10,000 |
//! | round trip, SLO | 10 µs to 20 ms; 5 to 50 times service and round trip |
//! | messages | up to a tenth of the service, half to receive and half to send |
//! | load | 0.7, 0.9, 1, 1.2, 2, 4, 10 |
//! | arrivals | half Poisson, a quarter periodic, a quarter bursts of 2 to 50 |
//! | ranks | uniform, Zipf, all of one user, none |
//! | cost | half independent of rank, a quarter falling, a quarter rising |
//! | callers that ignore control | none, three in ten, all |
//! | trouble | none in half; else half as fast or half of the cores for a third of the time, another load for a third, or a machine that is half as fast for 10 to 100 ms, a quarter of the time |
//! | hidden queue | a third: adaptive slots, so that requests queue behind the gate |
//! | patience | a quarter of the callers leave at the SLO, and say so with a deadline |
//! | graph | one in five: two or three services in a row, or one that calls two at once |
//!
//! Ranges over more than a factor of ten are log-uniform, others uniform. What holds more than 3,000 requests within its
//! SLO is drawn again: it would take too long to measure. Measured are 20,000 finishes and 20 SLOs at least, after as
//! long a warm-up and ten requests of every caller.

use std::fmt::Write as _;

use tidegate_core::rng::Rng;

use crate::random::{stream, stream_seed};
use crate::workload::CostByRank;

/// Finishes that are measured at least.
const FINISHES: f64 = 20_000.0;
/// SLOs that are measured at least.
const SLOS: f64 = 20.0;
/// Requests of each caller before.
const OF_EACH: f64 = 10.0;
/// Most requests that a service may do within its SLO.
const WITHIN_SLO: f64 = 3_000.0;

/// A plan of the swarm.
#[derive(Clone, Debug)]
pub struct Drawn {
    /// The plan as a file that can be replayed.
    pub text: String,
    /// Offered load: before and after, and for the middle third.
    pub loads: [f64; 2],
    /// What is left of the capacity for the middle third.
    pub health: f64,
    /// Whether it has three ranks and more.
    pub ranked: bool,
    /// Whether it is a graph of several services.
    pub graph: bool,
    /// Share of the callers that ignore control.
    pub ignoring: f64,
    /// Core time of a request at the entry and of its messages, in seconds, and the cores of the entry.
    pub core_time: f64,
    /// What receiving a request and refusing it takes of that.
    pub messages: f64,
    /// What the most important quarter costs, of all.
    pub first_quarter: f64,
    /// Cores of the entry.
    pub cores: f64,
}

/// The plan `number` of the swarm with this `seed`, comparing these policies.
pub fn draw(seed: u64, number: usize, policies: &[String]) -> Drawn {
    let name = format!("swarm {number}");
    let mut chance = Chance(stream(seed, &name));
    // One in three is too large.
    let mut sizes = Sizes::draw(&mut chance);
    while sizes.capacity() * sizes.slo > WITHIN_SLO {
        sizes = Sizes::draw(&mut chance);
    }
    let run_seed = stream_seed(seed, &name) >> 32;
    sizes.plan(&mut chance, run_seed, policies)
}

/// What a plan is like, times in seconds.
struct Sizes {
    service: f64,
    cores: f64,
    rtt: f64,
    slo: f64,
    messages: f64,
    callers: f64,
    /// Mean core time at further services, in services, and how they are called.
    further: Vec<f64>,
    row: bool,
}

impl Sizes {
    fn draw(chance: &mut Chance) -> Self {
        let (service, rtt) = (chance.log(5e-6, 30e-3), chance.log(10e-6, 20e-3));
        let graph = chance.one_in(5);
        let further = if graph { 1 + usize::from(chance.one_in(2)) } else { 0 };
        let further: Vec<f64> = (0..further).map(|_| chance.log(0.3, 3.0)).collect();
        let all = service * (1.0 + further.iter().sum::<f64>());
        Self {
            service,
            cores: chance.log(1.0, 65.0).floor(),
            rtt,
            slo: (all + rtt * (1.0 + further.len() as f64)) * chance.even(5.0, 50.0),
            messages: service * chance.even(0.0, 0.1),
            callers: chance.log(1.0, 10_001.0).floor(),
            further,
            row: chance.one_in(2),
        }
    }

    /// Calls that the entry makes itself.
    fn calls(&self) -> f64 {
        if self.row { self.further.len().min(1) as f64 } else { self.further.len() as f64 }
    }

    fn core_time(&self) -> f64 {
        self.service + self.messages * (1.0 + self.calls())
    }

    /// Requests per second.
    fn capacity(&self) -> f64 {
        let last = self.further.len().saturating_sub(1);
        let of = |(n, part): (usize, &f64)| {
            let calls = if self.row && n < last { 2.0 } else { 1.0 };
            self.service * part + calls * self.messages
        };
        let fullest = self.further.iter().enumerate().map(of).fold(self.core_time(), f64::max);
        self.cores / fullest
    }

    fn plan(&self, chance: &mut Chance, seed: u64, policies: &[String]) -> Drawn {
        let load: f64 = chance.of(&[0.7, 0.9, 1.0, 1.2, 2.0, 4.0, 10.0]);
        let capacity = self.capacity();
        let lasts = (FINISHES / (capacity * load.min(1.0))).max(SLOS * self.slo);
        let warmup = lasts.max(OF_EACH * self.callers / (load * capacity));
        let share = capacity / self.callers;
        let mut text = String::new();
        let mut say = |line: String| writeln!(text, "{line}").expect("a text grows");
        say("include = \"standard\"".to_owned());
        say(format!("policy = {policies:?}"));
        say(format!("seed = {seed}\nload = {load:?}\ncallers = {:.0}", self.callers));
        say(format!("slo = {}", time(self.slo)));
        say(format!("warmup = {}\nduration = {}", time(warmup), time(warmup + lasts)));
        if !self.further.is_empty() {
            say("entry = \"entry\"".to_owned());
        }
        let shape = chance.of(&["constant", "exponential", "bimodal", "lognormal", "pareto"]);
        let section = if self.further.is_empty() { "service" } else { "services.entry" };
        let entry = if self.row { &["b"][..] } else { &["b", "c"] };
        self.say_service(&mut say, section, shape, 1.0, &entry[..self.calls() as usize]);
        for (n, part) in self.further.iter().enumerate() {
            let section = ["services.b", "services.c"][n];
            let on = self.row && n == 0 && self.further.len() > 1;
            self.say_service(&mut say, section, shape, *part, if on { &["c"] } else { &[] });
        }
        say(format!("[network]\nrtt = {}\n[workload]", time(self.rtt)));
        let arrivals = chance.of(&["poisson", "poisson", "periodic", "bursts"]);
        say(format!("arrivals = {arrivals:?}"));
        if arrivals == "bursts" {
            say(format!("burst = {:.0}", chance.log(2.0, 51.0).floor()));
        }
        let ranks = chance.of(&["uniform", "zipf", "same", "one"]);
        say(format!("ranks = {ranks:?}"));
        let cost = chance.of(&["independent", "independent", "falling", "rising"]);
        // A service behind knows nothing of what its requests cost before it.
        let cost = if self.further.is_empty() { cost } else { "independent" };
        say(format!("cost = {cost:?}"));
        let dear = match cost {
            "falling" => CostByRank::MORE,
            "rising" => CostByRank::LESS,
            _ => 1.0,
        };
        let ignoring = chance.of(&[0.0, 0.3, 1.0]);
        say(format!("ignoring = {ignoring:?}"));
        if chance.one_in(4) {
            say(format!("deadline = {}", time(self.slo)));
        }
        let (begin, third) = (warmup, lasts / 3.0);
        let (from, to) = (begin + third, begin + 2.0 * third);
        let (kind, factor) = (chance.below(8), chance.of(&[0.7, 0.9, 1.0, 1.2, 2.0, 4.0, 10.0]));
        let stepped = if kind == 2 { factor } else { load };
        if kind == 2 {
            let back = format!("{{ at = {}, load = {load:?} }}", time(to));
            say(format!("steps = [{{ at = {}, load = {factor:?} }}, {back}]", time(from)));
        }
        if chance.one_in(3) {
            say("[gate.slots]\nslots = \"adaptive\"".to_owned());
        }
        // Its callers begin near their share: from the few requests per second of its paper none would settle in time.
        say("[policies.seda.caller.throttle]".to_owned());
        let share = share.clamp(5.0, 1e6);
        let (low, high, step) = (0.4 * share, 0.9 * share, 40.0 * share / 850.0);
        say(format!("start_low = {low:?}\nstart_high = {high:?}\nadj_i = {step:?}"));
        say("[caller]\nhold_time = \"0.05 slo\"".to_owned());
        let fault = |what: &str, at: f64, lasts: f64| {
            format!("[[faults]]\n{what}\nat = {}\nfor = {}", time(at), time(lasts))
        };
        let mut health = 1.0;
        match kind {
            0 => {
                health = 0.5;
                say(fault("kind = \"slow\"\nfactor = 2.0", from, third));
            }
            1 if self.cores > 1.0 => {
                let left = (self.cores / 2.0).floor();
                health = left / self.cores;
                say(fault(&format!("kind = \"cores\"\ncores = {left:.0}"), from, third));
            }
            // So short a time says nothing of who is measured for shorter or much longer.
            3 if (1.0..60.0).contains(&(warmup + lasts)) => {
                let mut at = chance.even(0.0, 0.3);
                while at < warmup + lasts {
                    let slow = chance.log(0.01, 0.1);
                    say(fault("kind = \"slow\"\nfactor = 2.0", at, slow));
                    at += slow + 3.0 * chance.log(0.01, 0.1);
                }
            }
            _ => {}
        }
        Drawn {
            text,
            loads: [load, stepped],
            health,
            ranked: ranks == "uniform" || ranks == "zipf",
            graph: !self.further.is_empty(),
            ignoring: (self.callers * ignoring).round() / self.callers,
            core_time: self.core_time(),
            messages: self.messages,
            first_quarter: 0.25 * (self.service * dear + self.messages) / self.core_time(),
            cores: self.cores,
        }
    }

    fn say_service(
        &self,
        say: &mut dyn FnMut(String),
        section: &str,
        shape: &str,
        part: f64,
        calls: &[&str],
    ) {
        let half = time(self.messages / 2.0);
        say(format!(
            "[{section}]\ncores = {:.0}\ntime = {}",
            self.cores,
            time(part * self.service)
        ));
        say(format!("distribution = {shape:?}\nreceive = {half}\nsend = {half}"));
        if !calls.is_empty() {
            say(format!("calls = [{calls:?}]"));
        }
    }
}

/// Seconds as a plan writes them.
fn time(seconds: f64) -> String {
    format!("\"{:.0}ns\"", seconds * 1e9)
}

struct Chance(Rng);

impl Chance {
    fn even(&mut self, least: f64, most: f64) -> f64 {
        least + (most - least) * self.0.unit()
    }

    fn log(&mut self, least: f64, most: f64) -> f64 {
        self.even(least.ln(), most.ln()).exp()
    }

    fn below(&mut self, count: usize) -> usize {
        self.0.below(count as u64) as usize
    }

    fn one_in(&mut self, count: usize) -> bool {
        self.below(count) == 0
    }

    fn of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }
}
