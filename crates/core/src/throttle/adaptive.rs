//! Adaptive throttling ("Handling Overload", Client-Side Throttling): a caller whose requests are
//! being refused refuses some of them itself, by chance.
//!
//! Over the last two minutes the caller counts, for this callee and each criticality,
//!
//! 1. *requests*: attempts of the application, those rejected here included, so that the chance
//!    grows with the excess and not with what is left of it;
//! 2. *accepts*: attempts the callee took on. An application error is an accept; a refusal is not,
//!    and neither is a timeout; a cancelled attempt is taken out of both.
//!
//! and rejects the next one with probability
//!
//! ```text
//! max( 0, (requests − K · accepts) / (requests + 1) )
//! ```
//!
//! so that the callee sees about K requests for each one it accepts.
//!
//! Where we deviate: that formula can lock itself out. Against a callee that accepts a fixed share
//! q of what it sees, with K·q < 1, the caller ends up at 1/(1 − K·q) requests per window: five in
//! two minutes for K = 2 and q = 0.4. Two bounds keep it awake, and each does another thing as
//! well:
//!
//! - the probability has a cap, so that recovery under heavy traffic takes a minute or two: while
//!   nothing but probes gets through, the evidence of recovery grows only with their number;
//! - a probe floor: when a criticality has sent nothing for an interval, its next request is sent.
//!   That makes a *quiet* caller hear of a recovery, for which the cap does nothing.

use serde::{Deserialize, Serialize};

use super::{Answer, Response, Throttle, ThrottleConfig};
use crate::config::Problems;
use crate::context::Context;
use crate::request::Cx;
use crate::signal::Window;
use crate::time::{Instant, Span};
use crate::verdict::{Advice, Outcome, Passage, Reason, Rejection};

/// Kinds of things counted in a window.
const REQUESTS: usize = 0;
const ACCEPTS: usize = 1;

/// Rejects by chance what the callee would probably refuse.
#[derive(Clone, Debug)]
pub struct Adaptive {
    config: AdaptiveConfig,
    /// One history per criticality ("Handling Overload", Criticality).
    classes: [Class; 4],
}

#[derive(Clone, Debug)]
struct Class {
    history: Window<2>,
    /// The last send, or the start.
    last_sent: Instant,
}

impl Class {
    fn new(config: &AdaptiveConfig, now: Instant) -> Self {
        let history = Window::new(now, config.window, config.buckets);
        Self { history, last_sent: now }
    }

    /// The probability of rejecting the next request.
    fn chance(&self, config: &AdaptiveConfig) -> f64 {
        let [requests, accepts] = self.history.sums().map(|count| count as f64);
        ((requests - config.k * accepts) / (requests + 1.0)).clamp(0.0, config.cap)
    }
}

impl Adaptive {
    /// A throttle without history, which sends everything.
    pub fn new(config: &AdaptiveConfig, now: Instant) -> Self {
        let classes = std::array::from_fn(|_| Class::new(config, now));
        Self { config: config.clone(), classes }
    }
}

impl Throttle for Adaptive {
    fn name(&self) -> &'static str {
        "adaptive"
    }

    fn on_submit(&mut self, cx: &mut Cx, context: &Context) -> Passage {
        let class = &mut self.classes[context.rank.criticality().index()];
        class.history.settle(cx.now);
        let chance = class.chance(&self.config);
        class.history.add(cx.now, REQUESTS);
        let draw = cx.rng.unit();
        let silent = cx.now.since(class.last_sent) >= self.config.probe;
        if draw < chance && !silent {
            let rejection = Rejection::new(Reason::Throttle, chance, draw, Advice::Elsewhere);
            return Passage::Reject(rejection);
        }
        class.last_sent = cx.now;
        Passage::Send
    }

    fn on_response(&mut self, cx: &mut Cx, response: &Response) {
        let history = &mut self.classes[response.context.rank.criticality().index()].history;
        match response.answer {
            Answer::Done(Outcome::Serve) => history.add(cx.now, ACCEPTS),
            Answer::Done(Outcome::Cancel) => history.take_back(cx.now - response.latency, REQUESTS),
            Answer::Done(Outcome::Fail) | Answer::Refused(_) => {}
        }
    }

    fn reconfigure(&mut self, config: &ThrottleConfig) -> bool {
        let ThrottleConfig::Adaptive(config) = config else { return false };
        let same_window =
            (config.window, config.buckets) == (self.config.window, self.config.buckets);
        if !same_window {
            // Old counts do not fit new buckets. Beginning anew errs towards sending for a moment;
            // the callee's refusals correct that.
            for class in &mut self.classes {
                let last_sent = class.last_sent;
                *class = Class { last_sent, ..Class::new(config, last_sent) };
            }
        }
        self.config = config.clone();
        true
    }

    fn invariants(&self) {
        for class in &self.classes {
            class.history.invariants();
            assert!((0.0..=self.config.cap).contains(&class.chance(&self.config)));
        }
    }

    fn clone_box(&self) -> Box<dyn Throttle> {
        Box::new(self.clone())
    }
}

/// Parameters of adaptive throttling.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AdaptiveConfig {
    /// Requests sent per accept before the caller begins to hold back. Less spares the callee more
    /// refusals (K − 1 per accept) and holds back more on chance refusals. Default 2; 1.1 where a
    /// refusal costs as much as an answer ("Handling Overload").
    pub k: f64,
    /// How far back requests and accepts are counted. Longer is steadier and slower to forget an
    /// outage. Default two minutes ("Handling Overload").
    pub window: Span,
    /// Parts in which the window slides. More forget more smoothly. Default 24: five seconds each.
    pub buckets: usize,
    /// Highest probability of rejection, 0 to 1. Higher spares a badly overloaded callee more: with
    /// 0.9 it still sees a tenth of the demand, which at 10 times its capacity is all it can do.
    /// Lower recovers sooner. Default 0.9, as in failsafe-go.
    pub cap: f64,
    /// Silence of a criticality after which its next request is sent in any case. Shorter hears
    /// sooner of a recovery, longer costs the callee fewer refusals. Default 100 ms (judgement: ten
    /// requests a second per caller and criticality are little even for a callee that is down).
    pub probe: Span,
}

impl Default for AdaptiveConfig {
    fn default() -> Self {
        Self {
            k: 2.0,
            window: Span::from_secs(120),
            buckets: 24,
            cap: 0.9,
            probe: Span::from_millis(100),
        }
    }
}

impl AdaptiveConfig {
    /// Notes everything that is wrong with the parameters.
    pub fn validate(&self, problems: &mut Problems) {
        problems.range("k", self.k, 1.0, 1000.0);
        let window = (Span::from_millis(1)..=Span::from_secs(86_400)).contains(&self.window);
        problems.check("window", self.window, window, "1ms to 24h");
        problems.check("buckets", self.buckets, (1..=1024).contains(&self.buckets), "1 to 1024");
        problems.range("cap", self.cap, 0.0, 1.0);
        let probe = (Span::from_nanos(1)..=Span::from_secs(3600)).contains(&self.probe);
        problems.check("probe", self.probe, probe, "1ns to 1h");
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::rank::{Criticality, Rank};
    use crate::throttle::testing::{Bench, refused};

    /// The formula as printed: no cap, and no probe for an hour.
    fn printed(k: f64) -> AdaptiveConfig {
        AdaptiveConfig { k, cap: 1.0, probe: Span::from_secs(3600), ..AdaptiveConfig::default() }
    }

    fn bench(config: AdaptiveConfig) -> Bench {
        Bench::new(ThrottleConfig::Adaptive(config))
    }

    fn class_with(config: &AdaptiveConfig, requests: u32, accepts: u32) -> Class {
        let mut class = Class::new(config, Instant::ZERO);
        (0..requests).for_each(|_| class.history.add(Instant::ZERO, REQUESTS));
        (0..accepts).for_each(|_| class.history.add(Instant::ZERO, ACCEPTS));
        class
    }

    /// "Handling Overload", worked example: attempts 10,000, accepts 1,000.
    #[test]
    fn the_printed_formula() {
        for (k, chance, sent) in
            [(2.0, 0.79992, 2000.8), (1.1, 0.88991, 1100.9), (1.5, 0.84992, 1500.9)]
        {
            let config = printed(k);
            let found = class_with(&config, 10_000, 1_000).chance(&config);
            assert!((found - chance).abs() < 1e-5, "K {k}: {found}");
            assert!((10_000.0 * (1.0 - found) - sent).abs() < 0.1, "K {k}");
        }
        // Zero accepts, R attempts: R/(R + 1). Nothing at all: send.
        for requests in [0, 1, 5, 99] {
            let config = printed(2.0);
            let found = class_with(&config, requests, 0).chance(&config);
            assert_eq!(found, f64::from(requests) / f64::from(requests + 1));
        }
        // More accepts than requests in the window, as after a burst: never below zero.
        assert_eq!(class_with(&printed(2.0), 3, 10).chance(&printed(2.0)), 0.0);
        // And the cap.
        let capped = AdaptiveConfig::default();
        assert_eq!(class_with(&capped, 10_000, 0).chance(&capped), 0.9);
    }

    /// Sends what the throttle lets through, at 1,000 attempts a second for `seconds`, to a callee
    /// that accepts up to `room` of them per second and each with chance `q`. Returns
    /// (sent, accepted) of the last window.
    fn drive(config: AdaptiveConfig, seconds: u64, room: u64, q: f64) -> (u64, u64) {
        let window = config.window.as_nanos() / 1_000_000_000;
        let (mut bench, mut sent, mut accepted) = (bench(config), 0, 0);
        for second in 0..seconds {
            let mut left = room;
            for _ in 0..1_000 {
                bench.pass(Span::from_millis(1));
                if bench.submit(&Context::default()) != Passage::Send {
                    continue;
                }
                let accepts = left > 0 && bench.cx.rng.unit() < q;
                left -= u64::from(accepts);
                bench.answer(
                    &Context::default(),
                    Span::ZERO,
                    if accepts { Answer::Done(Outcome::Serve) } else { refused() },
                );
                if second >= seconds - window {
                    (sent, accepted) = (sent + 1, accepted + u64::from(accepts));
                }
            }
        }
        (sent, accepted)
    }

    /// "Handling Overload", Client-Side Throttling: the callee sees K − 1 refusals per accept.
    #[test]
    fn a_full_callee_sees_k_requests_per_accept() {
        for k in [2.0, 1.5, 1.1] {
            let config = AdaptiveConfig { window: Span::from_secs(20), ..printed(k) };
            let (sent, accepted) = drive(config, 200, 100, 1.0);
            let ratio = sent as f64 / accepted as f64;
            assert!((ratio - k).abs() < 0.03, "K {k}: {sent} sent, {accepted} accepted");
        }
    }

    /// Worked example: against a callee that accepts a fixed share q with K·q < 1 the printed
    /// formula locks itself out, down to 1/(1 − K·q) requests a window.
    #[test]
    fn the_printed_formula_locks_itself_out() {
        for (k, q, sent_per_window) in [(2.0, 0.4, 5.0), (2.0, 0.1, 1.25), (1.1, 0.8, 8.33)] {
            // The expectation over 40 windows of 10 s, after as many to settle.
            let config = AdaptiveConfig { window: Span::from_secs(10), ..printed(k) };
            let mut bench = bench(config);
            let (mut sent, runs) = (0, 400);
            for second in 0..2 * runs * 10 {
                for _ in 0..100 {
                    bench.pass(Span::from_millis(10));
                    if bench.submit(&Context::default()) == Passage::Send {
                        sent += u32::from(second >= runs * 10);
                        let accepts = bench.cx.rng.unit() < q;
                        let answer = if accepts { Answer::Done(Outcome::Serve) } else { refused() };
                        bench.answer(&Context::default(), Span::ZERO, answer);
                    }
                }
            }
            let mean = f64::from(sent) / runs as f64;
            // The window forgets up to one bucket in 24 early, and the sample is finite.
            assert!((mean / sent_per_window - 1.0).abs() < 0.25, "K {k}, q {q}: {mean}");
        }
        // With the defaults the same callee is sent a tenth of all attempts.
        let (sent, _) = drive(AdaptiveConfig::default(), 360, u64::MAX, 0.4);
        assert!((11_000..=13_500).contains(&sent), "{sent}");
        // And one that refuses nothing in excess is sent all: K·q ≥ 1.
        let (sent, _) = drive(AdaptiveConfig::default(), 240, u64::MAX, 0.6);
        assert!(sent > 119_000, "{sent}");
    }

    /// What counts as an accept.
    #[test]
    fn timeouts_are_no_accepts_and_cancels_are_nothing() {
        let cases = [
            (Answer::Done(Outcome::Serve), [10, 10]),
            (Answer::Done(Outcome::Fail), [10, 0]),
            (refused(), [10, 0]),
            (Answer::Done(Outcome::Cancel), [0, 0]),
        ];
        for (answer, expected) in cases {
            let mut adaptive = Adaptive::new(&printed(1000.0), Instant::ZERO);
            let mut bench = bench(printed(2.0));
            for _ in 0..10 {
                adaptive.on_submit(&mut bench.cx, &Context::default());
            }
            // Answers come ten seconds, two buckets, later.
            bench.pass(Span::from_secs(10));
            for _ in 0..10 {
                let latency = Span::from_secs(10);
                let response = Response { context: Context::default(), latency, answer };
                adaptive.on_response(&mut bench.cx, &response);
            }
            let class = &adaptive.classes[Criticality::Critical.index()];
            assert_eq!(class.history.sums(), expected, "{answer:?}");
        }
    }

    #[test]
    fn criticalities_have_histories_of_their_own() {
        let mut bench = bench(printed(2.0));
        let of = |criticality| Context {
            rank: Rank::UNRANKED.with_criticality(criticality),
            ..Context::default()
        };
        for _ in 0..10_000 {
            bench.submit(&of(Criticality::Sheddable));
        }
        assert_ne!(bench.submit(&of(Criticality::Sheddable)), Passage::Send);
        assert_eq!(bench.submit(&of(Criticality::CriticalPlus)), Passage::Send);
    }

    proptest! {
        /// From any history, something is sent within one probe interval, even uncapped.
        #[test]
        fn never_locks_out(
            history in prop::collection::vec((0..200_000u64, 0..64u8, any::<bool>()), 0..300),
        ) {
            let probe = Span::from_millis(100);
            let mut bench = bench(AdaptiveConfig { cap: 1.0, ..AdaptiveConfig::default() });
            for (micros, business, accept) in history {
                bench.pass(Span::from_micros(micros));
                let context = Context { rank: Rank::new(business, 0), ..Context::default() };
                if bench.submit(&context) == Passage::Send {
                    let served = Answer::Done(Outcome::Serve);
                    bench.answer(&context, Span::ZERO, if accept { served } else { refused() });
                }
            }
            for criticality in Criticality::ALL {
                let rank = Rank::UNRANKED.with_criticality(criticality);
                let context = Context { rank, ..Context::default() };
                let began = bench.cx.now;
                while bench.submit(&context) != Passage::Send {
                    bench.pass(Span::from_millis(1));
                }
                prop_assert!(bench.cx.now.since(began) <= probe);
            }
        }
    }
}
