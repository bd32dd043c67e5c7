//! Sending at a rate that somebody granted, or that was configured.
//!
//! Wisp's callees tell each upstream how many requests per second of a workflow it may send (Wisp
//! §4.1); a control plane may do the same. This is the end that keeps to it:
//!
//! 1. A response's grant sets the rate of its workflow's token bucket.
//! 2. A request takes a token of its workflow, or waits for the next one.
//! 3. A grant ages: after as long as the callee said, and never longer than `max_age`, its workflow
//!    falls back to the local rate, or a dead callee would freeze its upstreams.
//!
//! Workflows without a grant share one bucket at the local rate. Rates and depths change without
//! minting tokens, and a new grant starts with none: a callee that flips between granting and
//! silence is sent no more than the larger of the two rates plus one burst.
//!
//! A grant of nothing still lets `floor` requests a second through: with none at all, nothing would
//! ever bring a better grant. Behind an address with several gates the latest grant wins.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Throttle, ThrottleConfig};
use crate::config::Problems;
use crate::context::{Context, Workflow, Workflows};
use crate::event::{Event, Misuse};
use crate::feedback::Feedback;
use crate::limit::{Bucket, Limit};
use crate::request::Cx;
use crate::time::{Instant, Span};
use crate::verdict::Passage;

/// Grants kept: one for each workflow that has a number, one for requests without a workflow, and
/// one given unasked. A grant beyond that is ignored.
const GRANTS: usize = Workflows::LIMIT + 2;

/// Token buckets at granted rates, and one at the local rate.
#[derive(Clone, Debug)]
pub struct Rate {
    config: RateConfig,
    /// Serves workflows without a grant.
    local: Bucket,
    /// By workflow; a grant given unasked, under none, is for all workflows without their own.
    grants: BTreeMap<Option<Workflow>, Grant>,
    /// No grant ends before this moment.
    first_end: Instant,
    /// The first moment at which a request that was told to wait may find a token.
    waiting: Option<Instant>,
}

#[derive(Clone, Debug)]
struct Grant {
    rate: f64,
    bucket: Bucket,
    /// When it has aged out.
    end: Instant,
}

impl Rate {
    /// A throttle at the local rate, with a full bucket.
    pub fn new(config: &RateConfig, now: Instant) -> Self {
        Self {
            config: config.clone(),
            local: Bucket::full(now, Limit::new(config.rate, f64::from(config.burst))),
            grants: BTreeMap::new(),
            first_end: Instant::FAR,
            waiting: None,
        }
    }

    /// The bucket that serves `workflow`, and until when it does.
    fn bucket(&mut self, workflow: Workflow) -> (&mut Bucket, Instant) {
        let own = Some(workflow);
        let key = if self.grants.contains_key(&own) { own } else { None };
        match self.grants.get_mut(&key) {
            Some(grant) => (&mut grant.bucket, grant.end),
            None => (&mut self.local, Instant::FAR),
        }
    }

    /// Requests per second of `workflow` now.
    pub fn rate(&self, workflow: Workflow) -> f64 {
        self.rate_under(Some(workflow))
    }

    fn rate_under(&self, key: Option<Workflow>) -> f64 {
        let grant = self.grants.get(&key).or_else(|| self.grants.get(&None));
        grant.map_or(self.config.rate, |grant| grant.rate)
    }
}

impl Throttle for Rate {
    fn name(&self) -> &'static str {
        "rate"
    }

    fn on_submit(&mut self, cx: &mut Cx, context: &Context) -> Passage {
        let (bucket, end) = self.bucket(context.workflow);
        if bucket.take(cx.now) {
            return Passage::Send;
        }
        // A slow grant may end before its next token comes.
        let due = bucket.due().min(end);
        self.waiting = Some(self.waiting.map_or(due, |waiting| waiting.min(due)));
        Passage::Hold
    }

    fn on_feedback(&mut self, cx: &mut Cx, feedback: &Feedback) -> bool {
        let Some(rate) = feedback.rate else { return false };
        if !rate.is_finite() || rate < 0.0 {
            cx.events.push(cx.now, || Event::Ignore(Misuse::BadValue));
            return false;
        }
        let key = feedback.workflow;
        if !self.grants.contains_key(&key) && self.grants.len() >= GRANTS {
            return false;
        }
        let rate = rate.max(self.config.floor);
        let before = self.rate_under(key);
        let end = cx.now + feedback.holds.min(self.config.max_age);
        if end <= cx.now {
            // Holds for no time: takes back what was granted before.
            return self.grants.remove(&key).is_some();
        }
        let burst = f64::from(self.config.burst);
        let grant = self.grants.entry(key).or_insert_with(|| {
            let bucket = Bucket::empty(cx.now, Limit::new(rate, burst));
            Grant { rate, bucket, end }
        });
        grant.bucket.set_rate(cx.now, rate);
        (grant.rate, grant.end) = (rate, end);
        self.first_end = self.first_end.min(end);
        rate > before
    }

    fn settle(&mut self, cx: &mut Cx) {
        if self.first_end <= cx.now {
            self.grants.retain(|_, grant| grant.end > cx.now);
            let ends = self.grants.values().map(|grant| grant.end);
            self.first_end = ends.min().unwrap_or(Instant::FAR);
        }
        self.local.settle(cx.now);
        self.waiting = self.waiting.filter(|due| *due > cx.now);
    }

    fn next_wakeup(&self) -> Option<Instant> {
        self.waiting
    }

    /// A workflow that waits for its token says nothing about another's.
    fn in_order(&self) -> bool {
        false
    }

    fn reconfigure(&mut self, config: &ThrottleConfig) -> bool {
        let ThrottleConfig::Rate(config) = config else { return false };
        // No time has passed since `settle`, which comes before every change.
        self.local.set_rate(Instant::ZERO, config.rate);
        self.local.set_burst(f64::from(config.burst));
        for grant in self.grants.values_mut() {
            grant.bucket.set_burst(f64::from(config.burst));
        }
        self.config = config.clone();
        true
    }

    fn invariants(&self) {
        assert!(self.grants.len() <= GRANTS, "grants are bounded");
        self.local.invariants();
        for grant in self.grants.values() {
            grant.bucket.invariants();
            assert!(grant.end >= self.first_end, "no grant ends unseen");
        }
    }

    fn clone_box(&self) -> Box<dyn Throttle> {
        Box::new(self.clone())
    }
}

/// Parameters of the rate throttle.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RateConfig {
    /// The local rate: requests per second to one endpoint, of all workflows without a grant.
    /// Default 100 (judgement: a safe share; set what the callee agreed to).
    pub rate: f64,
    /// Requests that may leave at once after a pause. More smooths bursts less. Default 4, the depth
    /// of Breakwater's client buckets.
    pub burst: u32,
    /// Longest time a grant is believed, whatever the callee says of it. Longer keeps to the callee's
    /// word, shorter frees callers of a dead one sooner. Default 1 s: ten of Wisp's periods of 100 ms.
    pub max_age: Span,
    /// Least requests per second a grant stands for, so that a grant of nothing can be replaced by
    /// a better one. Default 1.
    pub floor: f64,
}

impl Default for RateConfig {
    fn default() -> Self {
        Self { rate: 100.0, burst: 4, max_age: Span::from_secs(1), floor: 1.0 }
    }
}

impl RateConfig {
    /// Notes everything that is wrong with the parameters.
    pub fn validate(&self, problems: &mut Problems) {
        problems.range("rate", self.rate, 0.001, 1e9);
        problems.check("burst", self.burst, (1..=1 << 20).contains(&self.burst), "1 to 1048576");
        let max_age = (Span::from_nanos(1)..=Span::from_secs(3600)).contains(&self.max_age);
        problems.check("max_age", self.max_age, max_age, "1ns to 1h");
        problems.range("floor", self.floor, 0.001, 1e9);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::feedback::GateId;
    use crate::throttle::testing::Bench;

    fn bench() -> Bench {
        Bench::new(ThrottleConfig::Rate(RateConfig::default()))
    }

    fn of(workflow: u16) -> Context {
        Context { workflow: Workflow(workflow), ..Context::default() }
    }

    fn grant(bench: &mut Bench, workflow: u16, rate: f64, holds: Span) -> bool {
        let workflow = Some(Workflow(workflow));
        let feedback =
            Feedback { workflow, rate: Some(rate), holds, ..Feedback::silent(GateId(1), 0) };
        bench.hear(&feedback)
    }

    /// Requests of `workflow` sent in `time`, asking at every wake-up.
    fn sent_in(bench: &mut Bench, workflow: u16, time: Span) -> u32 {
        let (end, mut sent) = (bench.cx.now + time, 0);
        loop {
            while bench.submit(&of(workflow)) == Passage::Send {
                sent += 1;
            }
            let at = bench.throttle.next_wakeup().expect("a held request waits for something");
            assert!(at > bench.cx.now, "a wake-up is never now");
            if at > end {
                bench.pass(end.since(bench.cx.now));
                return sent;
            }
            bench.pass(at.since(bench.cx.now));
        }
    }

    #[test]
    fn the_local_rate_after_a_burst() {
        assert_eq!(sent_in(&mut bench(), 0, Span::from_secs(10)), 4 + 1_000);
    }

    #[test]
    fn a_grant_is_kept_to_per_workflow() {
        let mut bench = bench();
        assert!(!grant(&mut bench, 1, 5.0, Span::MAX), "less than before");
        assert!(grant(&mut bench, 2, 500.0, Span::MAX));
        assert_eq!(sent_in(&mut bench, 1, Span::from_millis(800)), 4);
        assert_eq!(bench.submit(&of(2)), Passage::Send);
        assert_eq!(bench.submit(&of(3)), Passage::Send);
    }

    /// Wisp §4.1: a dead callee must not freeze its upstreams.
    #[test]
    fn a_grant_ages_out_to_the_local_rate() {
        for (holds, slow_for) in [(Span::from_millis(300), 300), (Span::MAX, 1_000)] {
            let mut bench = bench();
            grant(&mut bench, 1, 0.0, holds);
            let slow = Span::from_millis(slow_for - 1);
            assert_eq!(sent_in(&mut bench, 1, slow), 0, "the first token takes a second");
            // Held requests are looked at again when the grant ends, and find the local bucket full.
            assert_eq!(sent_in(&mut bench, 1, Span::from_millis(1_001)), 4 + 100);
        }
    }

    #[test]
    fn bad_grants_are_ignored_with_an_event() {
        let mut bench = bench();
        bench.cx.events.keep(true);
        for rate in [f64::NAN, f64::INFINITY, -1.0] {
            assert!(!grant(&mut bench, 1, rate, Span::MAX));
        }
        assert_eq!(bench.cx.events.drain().count(), 3);
        assert_eq!(sent_in(&mut bench, 1, Span::from_secs(1)), 104);
    }

    /// Flipping grants mint nothing.
    #[test]
    fn flipping_grants_mint_nothing() {
        let mut bench = bench();
        let mut sent = 0;
        for n in 0..10_000 {
            grant(&mut bench, 1, [1.0, 1e6, 50.0][n % 3], Span::from_nanos(1));
            sent += u32::from(bench.submit(&of(1)) == Passage::Send);
            bench.pass(Span::from_nanos(1));
            sent += u32::from(bench.submit(&of(1)) == Passage::Send);
        }
        assert_eq!(sent, 4, "the local burst, in ten microseconds");
    }
}
