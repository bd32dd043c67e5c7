//! A number of slots that finds itself.
//!
//! The right number is the smallest that keeps the service busy. With fewer it idles; with more,
//! requests queue inside the service, where they cannot be reordered, refused or even seen, and the
//! gate's own queue is empty just when it should tell of an overload. The right number depends on
//! cores, locks, pools and on what those behind the service do, so it is measured:
//!
//! 1. Throughput is measured over *windows* of finishes, and only while every slot is in use and
//!    something waits: at other times it says how much was asked for, not what could be done. The
//!    first finishes after a move are left out.
//! 2. **Double** from a small start, while a window brings over 10 % more than the one before. A slow
//!    service need not fill a window for that: after a second, growth beyond the noise is enough.
//! 3. **Seek** the smallest number within 2 % of the best throughput. Now and then one window is a
//!    *trial* with fewer or more slots; what windows say is kept per number (`curve.rs`), and the
//!    number in force moves when the evidence is beyond noise. Fewer are tried window by window
//!    until it is clear whether they suffice; then trials are rare.
//! 4. When a trial with more slots brings over 10 % more, capacity has come back: double again.
//! 5. Guard (as in Uber's Cinnamon): while numbers of slots and throughput of recent windows vary
//!    against each other, more slots make it slower, and none are added.
//!
//! Latency proposes, throughput disposes: how far down a trial goes is guessed from Little's law
//! (slots × unloaded ÷ present latency are at work, the rest queue), but only measured throughput
//! decides. A limit that follows latency alone (Vegas, gradient) depends on a baseline which drifts;
//! here a wrong baseline costs a useless trial. Nothing is ever refused to learn something.
//!
//! How small is small enough? What waits behind the gate for a twentieth of the objective needs neither
//! order nor refusal, and slots that are always taken cost a quick service more than that. So doubling
//! goes on to as many slots as finish in that time, and they are not given up, unless they make it
//! slower.
//!
//! What queues behind the gate in spite of all this is reported as [`Slots::excess`]
//! (`hidden.rs`).
//!
//! A window is at least ten turns of every slot long, so this loop is at least ten times slower
//! than a pool of credits that reacts within about one service time, and the two do not fight.

use serde::{Deserialize, Serialize};

use super::curve::Curve;
use super::hidden::Hidden;
use super::{Finish, Slots};
use crate::config::Problems;
use crate::time::{Instant, Span};
use crate::verdict::Outcome;

/// Finishes per slot in a window.
const TURNS: u32 = 10;
/// While doubling, a window need not have all its finishes after so much time with all slots in use: a
/// slow service would be kept waiting for minutes. It tells less, and growth has to be clearer.
const PATIENCE: Span = Span::from_secs(1);
/// Time behind the gate that does no harm, as a share of the objective.
const HARMLESS: f64 = 0.05;
/// By how many the finishes without all slots in use may outnumber those with, before a trial is
/// given up: the load is light, and what it uses must be there for it.
const HOLES: u32 = 16;
/// Weight of a window in the covariance: about as many as lie between two trials.
const COVARIANCE_GAIN: f64 = 1.0 / 16.0;
/// Covariance, relative to both means, from which on more slots count as harmful. Noise of 6 % with
/// trials of 25 % stays within ± 0.001.
const HARMFUL: f64 = -0.002;

/// Slots that follow measured throughput.
#[derive(Clone, Debug)]
pub struct Adaptive {
    config: AdaptiveConfig,
    curve: Curve,
    hidden: Hidden,
    covariance: Covariance,
    phase: Phase,
    /// The level in force.
    base: usize,
    /// The level that is tried for one window, if any.
    trial: Option<usize>,
    /// Windows at the base since the last trial.
    rested: u32,
    /// Rare trials so far, which take turns between more and fewer slots.
    trials: u32,
    /// Mean latency in the last window at the base, in nanoseconds, and its finishes per nanosecond.
    base_latency: f64,
    base_rate: f64,
    /// Time that requests may spend behind the gate without harm, in nanoseconds.
    harmless: f64,
    window: Window,
    /// The last finish, if all slots are in use from then on.
    full_since: Option<Instant>,
}

#[derive(Clone, Copy, Debug)]
enum Phase {
    /// Throughput at half the present number, none at first.
    Double(Option<f64>),
    Seek,
}

/// What is measured at one number of slots.
#[derive(Clone, Copy, Debug, Default)]
struct Window {
    /// Finishes still to be left out: they began under another number.
    skip: u32,
    served: u32,
    /// Time with all slots in use.
    time: Span,
    /// Sum of latencies of what was served, in nanoseconds.
    latency: f64,
    /// Finishes at which not all slots were in use.
    holes: u32,
}

impl Adaptive {
    /// Begins at the configured start, knowing nothing.
    pub fn new(config: &AdaptiveConfig) -> Self {
        let AdaptiveConfig { least, most, window, tolerance, .. } = *config;
        let curve = Curve::new(least, most, window, tolerance);
        let base = curve.level_of(config.start);
        Self {
            config: config.clone(),
            curve,
            hidden: Hidden::new(),
            covariance: Covariance::default(),
            phase: Phase::Double(None),
            base,
            trial: None,
            rested: 0,
            trials: 0,
            base_latency: 0.0,
            base_rate: 0.0,
            harmless: 0.0,
            window: Window::default(),
            full_since: None,
        }
    }

    fn level(&self) -> usize {
        self.trial.unwrap_or(self.base)
    }

    /// Adds a finish to the window, if all slots were in use since the one before.
    fn measure(&mut self, now: Instant, finish: &Finish) {
        let slots = self.limit() as usize;
        let wanted = finish.waiting + finish.running as usize;
        let since = self.full_since.filter(|_| wanted + 1 >= slots);
        // What waits takes the free slot at the next dispatch, in the same moment.
        self.full_since = (wanted >= slots).then_some(now);
        let Some(since) = since else {
            self.window.holes += 1;
            return;
        };
        if self.window.skip > 0 {
            self.window.skip -= 1;
            return;
        }
        self.window.time += now.since(since);
        if finish.outcome == Outcome::Serve {
            self.window.served += 1;
            self.window.latency += finish.service.as_nanos_f64();
        }
    }

    /// Whether the window tells enough.
    fn is_complete(&self) -> bool {
        let Window { served, time, .. } = self.window;
        let doubling = matches!(self.phase, Phase::Double(_));
        served >= TURNS * self.limit()
            && (served >= self.config.window || doubling && time >= PATIENCE)
    }

    /// Learns from a window that is complete, and decides what the next one is spent on.
    fn conclude(&mut self) {
        let (level, window) = (self.level(), self.window);
        if window.time == Span::ZERO {
            // A clock that stands still tells nothing.
            return self.begin_window(level);
        }
        let rate = f64::from(window.served) / window.time.as_nanos_f64();
        let latency = window.latency / f64::from(window.served);
        self.curve.record(level, self.base, rate);
        self.covariance.add(f64::from(self.curve.slots(level)), rate);
        self.hidden.on_window(latency, self.curve.starved(level, self.base));
        if level == self.base {
            (self.base_latency, self.base_rate) = (latency, rate);
        }
        match self.phase {
            Phase::Double(last) => self.double(last, rate, window.served),
            Phase::Seek => self.seek(),
        }
        self.begin_window(level);
    }

    /// Begins to measure anew, after a window at `before`.
    fn begin_window(&mut self, before: usize) {
        let moved = self.level() != before;
        let skip = if moved { self.limit().max(self.curve.slots(before)) } else { 0 };
        self.window = Window { skip, ..Window::default() };
    }

    fn double(&mut self, last: Option<f64>, rate: f64, served: u32) {
        // Standard deviation of the ratio of two windows with exponential service times, where they are
        // shorter than asked for.
        let noise = match served < self.config.window {
            true => (2.0 / f64::from(served.max(1))).sqrt(),
            false => 0.0,
        };
        let clear = self.config.growth + noise;
        let grew = last.is_none_or(|last| rate > last * (1.0 + clear));
        let fell = last.is_some_and(|last| rate < last * (1.0 - 2.0 * clear));
        if (grew || self.base < self.least() && !fell) && self.may_raise() {
            self.phase = Phase::Double(Some(rate));
            self.base = self.twice(self.base);
        } else {
            self.phase = Phase::Seek;
            self.base = self.choose();
        }
    }

    fn seek(&mut self) {
        let better = self.choose();
        if better > self.base && self.may_raise() {
            let growth = self.curve.rate(better) / self.curve.rate(self.base) - 1.0;
            self.move_to(better);
            if growth > self.config.growth && self.may_raise() {
                self.phase = Phase::Double(Some(self.curve.rate(better)));
                self.base = self.twice(better);
            }
        } else if better < self.base {
            self.move_to(better);
        } else if self.trial.take().is_some() {
            self.rested = 0;
        } else {
            self.rested += 1;
            self.trial = self.next_trial();
        }
    }

    /// The level to be at: the lowest with nearly the best throughput, but no lower than worth seeking
    /// where that makes the service no slower.
    fn choose(&self) -> usize {
        let level = self.curve.choose(self.base);
        let (least, next) = (self.least(), self.base + 1);
        let no_slower = |more: usize| self.curve.as_good(more, level);
        if level <= self.base
            && next <= least
            && self.curve.known(next, self.base)
            && no_slower(next)
        {
            next
        } else if level < least && no_slower(least.min(self.base)) {
            level.max(least.min(self.base))
        } else {
            level
        }
    }

    /// The lowest level worth seeking: so few slots that nothing is behind the gate for long.
    fn least(&self) -> usize {
        self.curve.level_of((self.base_rate * self.harmless) as u32)
    }

    fn move_to(&mut self, level: usize) {
        (self.base, self.trial, self.rested) = (level, None, 0);
    }

    /// Whether there are more slots to give and nothing speaks against it.
    fn may_raise(&self) -> bool {
        self.base < self.curve.top() && !self.covariance.is_harmful()
    }

    fn twice(&self, level: usize) -> usize {
        self.curve.level_of(self.curve.slots(level).saturating_mul(2))
    }

    /// What the next window should try, none for the number in force.
    fn next_trial(&mut self) -> Option<usize> {
        let fewer = self.fewer();
        let more = self.may_raise().then_some(self.base + 1);
        let unknown = |level: &usize| !self.curve.known(*level, self.base);
        let worth = |level: &usize| *level >= self.least() && unknown(level);
        if let Some(level) = fewer.filter(worth).or(more.filter(unknown)) {
            return Some(level);
        }
        if self.rested < self.config.rest {
            return None;
        }
        self.rested = 0;
        self.trials += 1;
        // Few slots lose much with one less, and trials with more lose nothing.
        let downwards = self.trials.is_multiple_of(2 + 8 / self.limit());
        let trial = if downwards { fewer } else { more };
        trial.inspect(|level| self.curve.age(*level))
    }

    /// The smaller number worth trying: by Little's law as many as are at work, at least half of
    /// the present ones; one step down if that is known to be too few.
    fn fewer(&self) -> Option<usize> {
        let step = self.base.checked_sub(1)?;
        let slots = self.curve.slots(self.base);
        let at_work = f64::from(slots) * self.hidden.unloaded_share(self.base_latency);
        // A touch below, or a number that just suffices would be guessed one too high by noise.
        let guess = (at_work * 0.98).ceil() as u32;
        let level = self.curve.level_of(guess.max(slots / 2)).min(step);
        Some(if self.curve.surely_worse(level, self.base) { step } else { level })
    }
}

impl Slots for Adaptive {
    fn name(&self) -> &'static str {
        "adaptive"
    }

    fn limit(&self) -> u32 {
        self.curve.slots(self.level())
    }

    fn on_finish(&mut self, now: Instant, finish: &Finish, objective: Span) {
        self.harmless = HARMLESS * objective.as_nanos_f64();
        if finish.outcome == Outcome::Serve {
            self.hidden.on_serve(finish, self.limit());
        }
        self.measure(now, finish);
        if self.is_complete() {
            self.conclude();
        } else if self.window.holes > HOLES + self.window.served
            && let Some(level) = self.trial
        {
            self.move_to(self.base);
            self.begin_window(level);
        }
    }

    fn excess(&self) -> Span {
        self.hidden.excess()
    }

    fn invariants(&self) {
        assert!(self.level() <= self.curve.top() && self.limit() >= 1);
        self.curve.invariants();
        self.hidden.invariants();
    }

    fn clone_box(&self) -> Box<dyn Slots> {
        Box::new(self.clone())
    }
}

/// How slots and throughput vary together over recent windows.
#[derive(Clone, Copy, Debug, Default)]
struct Covariance {
    slots: f64,
    rate: f64,
    covariance: f64,
}

impl Covariance {
    fn add(&mut self, slots: f64, rate: f64) {
        if self.rate == 0.0 {
            (self.slots, self.rate) = (slots, rate);
            return;
        }
        let (slots_apart, rate_apart) = (slots - self.slots, rate - self.rate);
        self.slots += COVARIANCE_GAIN * slots_apart;
        self.rate += COVARIANCE_GAIN * rate_apart;
        let now = COVARIANCE_GAIN * slots_apart * rate_apart;
        self.covariance = (1.0 - COVARIANCE_GAIN) * (self.covariance + now);
    }

    /// Whether more slots have meant less throughput.
    ///
    /// Relative to the means, not a correlation: it fades when the number of slots rests, so that more can
    /// be tried again.
    fn is_harmful(&self) -> bool {
        self.covariance < HARMFUL * self.slots * self.rate
    }
}

/// Parameters of [`Adaptive`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AdaptiveConfig {
    /// Slots to begin with. More serves a large service sooner; fewer protects a small one from the
    /// first moment. Default 4: a few cores' worth, five doublings from 128.
    pub start: u32,
    /// Never fewer slots than this. More wastes the search where one would do. Default 1.
    pub least: u32,
    /// Never more slots than this: a bound on what a service can be made to hold at once. Default
    /// 1024, beyond the knee of services that need slots at all.
    pub most: u32,
    /// Finishes in a window, at least; a window also has ten per slot. More is surer and slower.
    /// Default 256: throughput is known to 6 % with exponential service times, enough to tell growth
    /// by doubling from none.
    pub window: u32,
    /// Growth of throughput, as a share, that makes doubling worth while. More stops earlier; less
    /// overshoots on noise. Default 0.1: a service below its knee gains ten times that.
    pub growth: f64,
    /// Share of the best throughput that may be given up for fewer slots. More hides less behind
    /// the gate; less needs more slots for the last bit of throughput. Default 0.02: a little more
    /// than the noise that is left in the means of many windows, 1.5 %.
    pub tolerance: f64,
    /// Windows between two trials once all is known. Fewer notice a change of capacity sooner; more
    /// lose less to trials. Default 16: trials then cost 0.3 to 0.8 % of throughput in front of
    /// simulated servers.
    pub rest: u32,
}

impl Default for AdaptiveConfig {
    fn default() -> Self {
        Self { start: 4, least: 1, most: 1024, window: 256, growth: 0.1, tolerance: 0.02, rest: 16 }
    }
}

impl AdaptiveConfig {
    /// Notes everything that is wrong with the parameters.
    pub fn validate(&self, problems: &mut Problems) {
        let Self { start, least, most, window, rest, .. } = *self;
        problems.check("start", start, (least..=most).contains(&start), "least to most");
        problems.check("least", least, (1..=most).contains(&least), "1 to most");
        problems.check("most", most, (1..=1 << 20).contains(&most), "1 to 1048576");
        problems.check("window", window, (16..=1 << 24).contains(&window), "16 to 16777216");
        problems.range("growth", self.growth, 0.01, 1.0);
        problems.range("tolerance", self.tolerance, 0.001, 0.5);
        problems.check("rest", rest, rest >= 1, "at least 1");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Cinnamon's guard: negative covariance of slots and throughput, no raise.
    #[test]
    fn slots_that_make_it_slower_are_harmful_until_they_are_forgotten() {
        let after = |windows: [(f64, f64); 3]| {
            let mut guard = Covariance::default();
            windows.iter().for_each(|(slots, rate)| guard.add(*slots, *rate));
            guard
        };
        assert!(!after([(4.0, 1.0), (8.0, 1.5), (16.0, 1.6)]).is_harmful());
        assert!(!after([(4.0, 1.5), (5.0, 1.4), (4.0, 1.5)]).is_harmful(), "within noise");
        let mut guard = after([(4.0, 1.5), (8.0, 1.2), (16.0, 0.8)]);
        assert!(guard.is_harmful());
        for _ in 0..100 {
            guard.add(4.0, 1.5);
        }
        assert!(!guard.is_harmful(), "or more would never be tried again");
    }

    #[test]
    fn the_guard_forbids_a_raise_that_throughput_would_allow() {
        let mut slots = Adaptive::new(&AdaptiveConfig::default());
        slots.double(None, 1.0, 256);
        assert_eq!(slots.limit(), 8);
        slots.curve.record(slots.base, slots.base, 2.0);
        slots.covariance = Covariance { slots: 8.0, rate: 1.0, covariance: -1.0 };
        slots.double(Some(1.0), 2.0, 256);
        assert_eq!(slots.limit(), 8);
    }

    /// Only the time in which every slot was in use and something waited counts.
    #[test]
    fn half_empty_houses_are_not_measured() {
        let mut slots = Adaptive::new(&AdaptiveConfig::default());
        for n in 0..10_000u64 {
            let (running, waiting) = if n.is_multiple_of(2) { (3, 0) } else { (1, 1) };
            let service = Span::from_micros(1);
            let outcome = Outcome::Serve;
            let finish =
                Finish { service, outcome, running, beside: running, waiting, shedding: false };
            slots.on_finish(Instant::from_nanos(n * 1_000), &finish, Span::ZERO);
        }
        assert_eq!((slots.limit(), slots.window.served), (4, 0));
    }
}
