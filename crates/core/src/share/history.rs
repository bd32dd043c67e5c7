//! What a node knows of its own load: mean rate and largest backlog of the recent past.
//!
//! Shares follow load, so each node has to say what its load is. The paper's form (SRTM §V-D) keeps
//! ten seconds in steps of one: steady, but a shift counts in full only when the ten seconds are
//! over. Ours keeps the same ten seconds in finer steps and forgets what was before a change:
//!
//! 1. what arrivals cost is summed, and the largest backlog kept, per step;
//! 2. the load is the mean rate and the largest backlog over the steps kept;
//! 3. at the end of each step the newest one, two, … few are compared with those before them. If
//!    their mean is off by more than the older steps' own scatter explains, and by more than a given
//!    share, the older ones are forgotten, at the cut with the strongest evidence.
//!
//! *Backlog* is what a bucket would have to hold for nobody to wait: tokens missing from a full one
//! plus messages waiting for a token. Unlike the number that waits it is there before anyone waits.
//! (SRTM's released code reports the message count here.)
//!
//! Both values are absolute, so that a report lost, late or repeated does no harm, and a load says
//! how long a past it is from: the longer, the more exact.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use super::Rate;
use crate::config::Problems;
use crate::time::{Instant, Span};

/// A node's load as it reports it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Mean rate of what arrivals cost: of arrivals, where each costs a token.
    pub rate: Rate,
    /// Largest backlog, in tokens.
    pub backlog: u64,
    /// How long a past both are from.
    pub over: Span,
}

/// Counts of the recent past, in steps.
#[derive(Clone, Debug)]
pub struct History {
    config: HistoryConfig,
    /// Complete steps, oldest first; at most `config.steps()`.
    past: VecDeque<Step>,
    /// The step under way.
    now: Step,
    /// When it began.
    began: Instant,
    /// Whether something was forgotten since the last [`History::shifted`].
    shifted: bool,
}

#[derive(Clone, Copy, Debug, Default)]
struct Step {
    /// Tokens that what arrived would cost, and the sum of each cost's square.
    cost: f64,
    squares: f64,
    backlog: u64,
}

impl History {
    /// No past. Steps that are too fine, or none at all, are as fine as may be.
    pub fn new(now: Instant, mut config: HistoryConfig) -> Self {
        let finest = config.span.as_nanos() / HistoryConfig::MAX_STEPS as u64;
        config.step = config.step.max(Span::from_nanos(finest.max(1)));
        let past = VecDeque::with_capacity(config.steps());
        Self { config, past, now: Step::default(), began: now, shifted: false }
    }

    /// `count` messages have arrived.
    pub fn on_arrival(&mut self, now: Instant, count: u64) {
        self.advance(now);
        self.now.cost += count as f64;
        self.now.squares += count as f64;
    }

    /// A message has arrived that costs so many tokens.
    pub fn on_cost(&mut self, now: Instant, cost: f64) {
        self.advance(now);
        let cost = if cost.is_finite() { cost.clamp(0.0, MOST_COST) } else { 0.0 };
        self.now.cost += cost;
        self.now.squares += cost * cost;
    }

    /// The backlog is `tokens`.
    pub fn on_backlog(&mut self, now: Instant, tokens: u64) {
        self.advance(now);
        self.now.backlog = self.now.backlog.max(tokens);
    }

    /// The load up to `now`; of the step under way alone while there is no other.
    pub fn load(&mut self, now: Instant) -> Load {
        self.advance(now);
        let step_ns = self.config.step.as_nanos();
        let (cost, span_ns) = if self.past.is_empty() {
            (self.now.cost, now.since(self.began).as_nanos())
        } else {
            let cost = self.past.iter().map(|step| step.cost).sum();
            (cost, step_ns.saturating_mul(self.past.len() as u64))
        };
        let per_second = cost * 1e9 / span_ns.max(1) as f64;
        let rate = Rate::per_second(per_second).unwrap_or(Rate::MAX);
        let backlog = self.past.iter().map(|step| step.backlog).fold(self.now.backlog, u64::max);
        Load { rate, backlog, over: Span::from_nanos(span_ns) }
    }

    /// Whether the load has changed since this was last asked.
    pub fn shifted(&mut self, now: Instant) -> bool {
        self.advance(now);
        std::mem::take(&mut self.shifted)
    }

    /// How far it looks back.
    pub fn config(&self) -> &HistoryConfig {
        &self.config
    }

    /// When the step under way is over.
    pub fn next_wakeup(&self) -> Instant {
        self.began + self.config.step
    }

    /// Closes the steps that are over. Those in which nothing was heard were empty.
    fn advance(&mut self, now: Instant) {
        let step_ns = self.config.step.as_nanos();
        let over = now.since(self.began).as_nanos() / step_ns;
        for _ in 0..over.min(self.config.steps() as u64 + 1) {
            let step = std::mem::take(&mut self.now);
            if self.past.len() == self.config.steps() {
                self.past.pop_front();
            }
            self.past.push_back(step);
            self.forget_before_a_change();
        }
        self.began += Span::from_nanos(over.saturating_mul(step_ns));
    }

    /// Step 3 of the module's prose.
    fn forget_before_a_change(&mut self) {
        let newest = self.config.newest as usize;
        if newest == 0 || self.past.len() < 2 * newest {
            return;
        }
        let (older, evidence) = (self.past.len() - newest..self.past.len())
            .map(|older| (older, self.evidence(older)))
            .fold((0, 0.0), |best, next| if next.1 > best.1 { next } else { best });
        if evidence > self.config.errors {
            self.past.drain(..older);
            self.shifted = true;
        }
    }

    /// By how many standard errors the mean changed after the first `older` steps; zero if by too
    /// little to matter.
    fn evidence(&self, older: usize) -> f64 {
        let (before, spread) = mean_and_variance(self.past.iter().take(older));
        let (after, _) = mean_and_variance(self.past.iter().skip(older));
        let squares =
            |steps: usize| self.past.iter().take(steps).map(|step| step.squares).sum::<f64>();
        let change = (after - before).abs();
        if change <= self.config.least * before {
            return 0.0;
        }
        // Arrivals scatter at least as Poisson's do, and with their costs: few equal steps are no proof of
        // calm. Nor are steps in which next to nothing arrived: one message more is always possible.
        let cost: f64 = self.past.iter().map(|step| step.cost).sum();
        let one = if cost > 0.0 { squares(self.past.len()) / cost } else { 1.0 };
        let variance = spread.max(squares(older) / older as f64).max(one * one);
        let newer = self.past.len() - older;
        change / (variance / newer as f64 + variance / older as f64).sqrt()
    }

    /// Panics if the state contradicts itself.
    pub fn invariants(&self) {
        assert!(self.past.len() <= self.config.steps(), "the past is bounded");
    }
}

/// The largest cost that is believed: sums of squares stay finite.
const MOST_COST: f64 = 1e12;

fn mean_and_variance<'a>(steps: impl Iterator<Item = &'a Step>) -> (f64, f64) {
    let (mut count, mut mean, mut squares) = (0.0, 0.0, 0.0);
    for step in steps {
        count += 1.0;
        let off = step.cost - mean;
        mean += off / count;
        squares += off * (step.cost - mean);
    }
    (mean, if count > 1.0 { squares / (count - 1.0) } else { 0.0 })
}

/// How far a node looks back.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HistoryConfig {
    /// How far back, a length of time. More is steadier and slower to follow small changes. Default
    /// 10 s (SRTM §V-D).
    pub span: Span,
    /// How finely, a length of time. Less finds a change sooner and keeps more numbers (at most
    /// [`HistoryConfig::MAX_STEPS`]). Default 100 ms by judgement: a change of half is found in a
    /// few of them from about a hundred messages a second on. The paper has 1 s.
    pub step: Span,
    /// Up to how many of the newest steps are compared with those before; none switches it off, as in the
    /// paper. More finds smaller changes, later. Default 5, half a second.
    pub newest: u32,
    /// How many standard errors of the mean a change must be. More is deafer. Default 5: with ten
    /// comparisons a second a false alarm comes about once in a day.
    pub errors: f64,
    /// How large a change must be, as a share of the mean before. More is deafer. Default 0.2: below
    /// it the new share would not differ enough to be worth forgetting what is known.
    pub least: f64,
}

impl HistoryConfig {
    /// Most steps kept.
    pub const MAX_STEPS: usize = 1_000;

    /// The paper's form: ten seconds in steps of one, changes not looked for.
    pub fn paper() -> Self {
        Self { step: Span::from_secs(1), newest: 0, ..Self::default() }
    }

    /// How many steps are kept.
    pub fn steps(&self) -> usize {
        let steps = self.span.as_nanos() / self.step.as_nanos().max(1);
        usize::try_from(steps).unwrap_or(Self::MAX_STEPS).clamp(1, Self::MAX_STEPS)
    }

    /// Notes what is wrong with it.
    pub fn validate(&self, problems: &mut Problems) {
        let steps = self.span.as_nanos() / self.step.as_nanos().max(1);
        let fine = self.step > Span::ZERO && (1..=Self::MAX_STEPS as u64).contains(&steps);
        problems.check("step", self.step, fine, "1 to 1000 of them in the span");
        problems.check(
            "newest",
            self.newest,
            u64::from(self.newest) * 2 <= steps,
            "at most half of the steps in the span",
        );
        problems.range("errors", self.errors, 0.0, 1e3);
        problems.range("least", self.least, 0.0, 1e3);
    }
}

impl Default for HistoryConfig {
    fn default() -> Self {
        Self {
            span: Span::from_secs(10),
            step: Span::from_millis(100),
            newest: 5,
            errors: 5.0,
            least: 0.2,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::rng::Rng;

    fn at(millis: u64) -> Instant {
        Instant::ZERO + Span::from_millis(millis)
    }

    /// Feeds `rate(ms)` messages per second, spread evenly, and returns the load's rate per 100 ms.
    fn follow(config: HistoryConfig, until_ms: u64, rate: impl Fn(u64) -> f64) -> Vec<f64> {
        let mut history = History::new(Instant::ZERO, config);
        let (mut owed, mut seen) = (0.0, Vec::new());
        for ms in 0..until_ms {
            owed += rate(ms) / 1e3;
            history.on_arrival(at(ms), owed as u64);
            owed -= owed.floor();
            if ms % 100 == 0 {
                seen.push(history.load(at(ms)).rate.as_f64());
            }
            history.invariants();
        }
        seen
    }

    #[test]
    fn the_papers_form_follows_in_ten_seconds_and_ours_in_one() {
        let step = |ms| if ms < 20_000 { 1_000.0 } else { 3_000.0 };
        let arrived = |seen: &[f64]| {
            let there = seen.iter().skip(200).position(|rate| (rate / 3_000.0 - 1.0).abs() < 0.05);
            there.map(|steps| steps as f64 / 10.0)
        };
        let paper = arrived(&follow(HistoryConfig::paper(), 40_000, step)).unwrap();
        let ours = arrived(&follow(HistoryConfig::default(), 40_000, step)).unwrap();
        assert!((9.0..=11.0).contains(&paper), "{paper}");
        assert!(ours <= 1.0, "{ours}");
    }

    #[test]
    fn noise_is_no_change() {
        let mut rng = Rng::new(5);
        let mut history = History::new(Instant::ZERO, HistoryConfig::default());
        for ms in 0..600_000 {
            // Binomial with mean 1, nearly Poisson.
            let arrivals = (0..10).filter(|_| rng.below(10) == 0).count();
            history.on_arrival(at(ms), arrivals as u64);
            assert!(!history.shifted(at(ms)), "at {ms} ms");
        }
        assert_eq!(history.load(at(600_000)).over, Span::from_secs(10));
    }

    #[test]
    fn steps_of_no_length_are_as_fine_as_may_be() {
        let seen = |config: HistoryConfig| follow(config, 3_000, |_| 1_000.0).pop();
        let none = HistoryConfig { step: Span::ZERO, ..HistoryConfig::default() };
        let finest = HistoryConfig { step: Span::from_millis(10), ..none };
        assert_eq!(seen(none), seen(finest));
        assert!(seen(HistoryConfig { span: Span::ZERO, ..none }).is_some(), "and nothing panics");
    }

    #[test]
    fn the_largest_backlog_is_kept_as_long_as_its_step() {
        let mut history = History::new(Instant::ZERO, HistoryConfig::paper());
        history.on_backlog(at(500), 7);
        history.on_backlog(at(600), 3);
        history.on_backlog(at(5_000), 4);
        assert_eq!(history.load(at(10_900)).backlog, 7);
        assert_eq!(history.load(at(11_100)).backlog, 4);
        assert_eq!(history.load(at(90_000)).backlog, 0);
    }

    proptest! {
        /// However seldom it is asked, and however far time jumps.
        #[test]
        fn the_mean_is_that_of_the_steps_kept(
            arrivals in prop::collection::vec((0..3_000u64, 0..50u64), 1..60),
        ) {
            let config = HistoryConfig::paper();
            let mut history = History::new(Instant::ZERO, config);
            let (mut now, mut all) = (0, Vec::new());
            for (step, count) in arrivals {
                now += step;
                history.on_arrival(at(now), count);
                all.push((now / 1_000, count));
                history.invariants();
                let this = now / 1_000;
                let steps = this.min(10);
                let load = history.load(at(now));
                if steps > 0 {
                    let kept = |second: u64| second < this && second + 10 >= this;
                    let sum: u64 = all.iter().filter(|at| kept(at.0)).map(|at| at.1).sum();
                    let mean = sum as f64 / steps as f64;
                    prop_assert!((load.rate.as_f64() - mean).abs() < 1e-5);
                    prop_assert_eq!(load.over, Span::from_secs(steps));
                }
            }
        }
    }

    /// Half as many that cost twice as much are the same load, and no change.
    #[test]
    fn a_load_is_what_arrivals_cost() {
        let mut history = History::new(at(0), HistoryConfig::default());
        for ms in 0..20_000 {
            if ms % 2 == 0 {
                history.on_cost(at(ms), 0.5);
            }
        }
        assert_eq!(history.load(at(20_000)).rate, Rate::per_second(250.0).unwrap());
        assert!(!history.shifted(at(20_000)));
        for ms in 20_000..21_000 {
            history.on_cost(at(ms), 0.5);
        }
        assert!(history.shifted(at(21_000)), "twice as many are");
        for cost in [f64::NAN, f64::INFINITY, -1.0, f64::MAX] {
            history.on_cost(at(21_000), cost);
        }
        assert!(history.load(at(40_000)).rate.as_f64().is_finite());
    }
}
