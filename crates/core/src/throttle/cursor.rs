//! DAGOR's client: do not send what the callee would refuse (DAGOR §4.2.4).
//!
//! A refusal at the server still costs it a receive, a parse and a send. But its cursor moves only
//! once per window, so a caller that knows it can give most of those answers itself.
//!
//! 1. Every response, refusals and errors included, carries the callee's cursor.
//! 2. Before sending, the caller compares the request's rank with the cursor it heard last.
//! 3. What is less important is rejected here and reported as shed, so that the callee goes on
//!    knowing what is offered.
//!
//! Where the paper is silent:
//!
//! - Behind one address there may be many gates, and a gate tells each workflow a cursor of its own,
//!   narrowed by the services that workflow calls further down. So cursors are kept by workflow and
//!   gate; as nobody knows which gate a request will meet, the *laxest* of a workflow's gates decides.
//! - A cursor holds for as long as the gate said, and never longer than `max_age`: an idle caller
//!   forgets a strict one.
//! - A caller that rejects everything hears nothing new. So when nothing was sent for `probe`, the
//!   next request goes out whatever its rank, and brings a fresh cursor back.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Throttle, ThrottleConfig};
use crate::config::Problems;
use crate::context::{Context, Workflow};
use crate::feedback::{Feedback, GateId};
use crate::rank::Cursor;
use crate::request::Cx;
use crate::time::{Instant, Span};
use crate::verdict::{Advice, Passage, Reason, Rejection};

/// Cursors remembered; beyond that the one that expires first is forgotten. 64 replicas times four
/// workflows, or as it comes.
const CURSORS: usize = 256;

/// Rejects what is beyond the last cursor heard.
#[derive(Clone, Debug)]
pub struct CursorThrottle {
    config: CursorConfig,
    /// What each gate told each workflow; under no workflow, what it told unasked. At most
    /// [`CURSORS`].
    heard: BTreeMap<(Option<Workflow>, GateId), Heard>,
    /// The last send, or the start: silence is counted from it.
    last_sent: Instant,
}

#[derive(Clone, Copy, Debug)]
struct Heard {
    cursor: Cursor,
    expires: Instant,
}

impl CursorThrottle {
    /// A throttle that has heard nothing and sends everything.
    pub fn new(config: &CursorConfig, now: Instant) -> Self {
        Self { config: config.clone(), heard: BTreeMap::new(), last_sent: now }
    }

    /// The cursor that applies to `workflow`: what its own responses said, else what gates said
    /// unasked, else open.
    fn cursor_of(&self, now: Instant, workflow: Workflow) -> Cursor {
        [Some(workflow), None]
            .into_iter()
            .find_map(|key| self.laxest(now, key))
            .unwrap_or(Cursor::OPEN)
    }

    fn laxest(&self, now: Instant, workflow: Option<Workflow>) -> Option<Cursor> {
        let gates = (workflow, GateId(0))..=(workflow, GateId(u64::MAX));
        self.heard
            .range(gates)
            .filter(|(_, heard)| heard.expires > now)
            .map(|(_, h)| h.cursor)
            .max()
    }

    fn make_room(&mut self, now: Instant) {
        if self.heard.len() < CURSORS {
            return;
        }
        self.heard.retain(|_, heard| heard.expires > now);
        if self.heard.len() >= CURSORS {
            let first = self.heard.iter().min_by_key(|(_, heard)| heard.expires);
            if let Some(key) = first.map(|(key, _)| *key) {
                self.heard.remove(&key);
            }
        }
    }
}

impl Throttle for CursorThrottle {
    fn name(&self) -> &'static str {
        "cursor"
    }

    fn on_submit(&mut self, cx: &mut Cx, context: &Context) -> Passage {
        let cursor = self.cursor_of(cx.now, context.workflow);
        let silent = cx.now.since(self.last_sent) >= self.config.probe;
        if cursor.admits(context.rank) || silent {
            self.last_sent = cx.now;
            return Passage::Send;
        }
        let (measured, limit) = (f64::from(context.rank.key()), f64::from(cursor.ranks()));
        Passage::Reject(Rejection::new(Reason::Rank, measured, limit, Advice::Elsewhere))
    }

    fn on_feedback(&mut self, cx: &mut Cx, feedback: &Feedback) -> bool {
        let Some(cursor) = feedback.last else { return false };
        let before = self.cursor(cx.now);
        let expires = cx.now + feedback.holds.min(self.config.max_age);
        let heard = Heard { cursor, expires };
        if feedback.workflow.is_none() {
            // The gate's own cursor has moved, and with it what it would tell every workflow. What
            // lies further down may be stricter; the next response will say so.
            for (_, known) in self.heard.iter_mut().filter(|((_, gate), _)| *gate == feedback.gate)
            {
                *known = heard;
            }
        }
        let key = (feedback.workflow, feedback.gate);
        if !self.heard.contains_key(&key) {
            self.make_room(cx.now);
        }
        self.heard.insert(key, heard);
        self.cursor(cx.now) > before
    }

    /// The laxest cursor of any workflow: a hint for choosing between replicas.
    fn cursor(&self, now: Instant) -> Cursor {
        let holding = self.heard.values().filter(|heard| heard.expires > now);
        holding.map(|heard| heard.cursor).max().unwrap_or(Cursor::OPEN)
    }

    fn reconfigure(&mut self, config: &ThrottleConfig) -> bool {
        let ThrottleConfig::Cursor(config) = config else { return false };
        self.config = config.clone();
        true
    }

    fn invariants(&self) {
        assert!(self.heard.len() <= CURSORS, "remembered cursors are bounded");
    }

    fn clone_box(&self) -> Box<dyn Throttle> {
        Box::new(self.clone())
    }
}

/// Parameters of the cursor throttle.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CursorConfig {
    /// Longest time a cursor is believed, whatever the gate says of it. Longer rejects more here
    /// instead of there, shorter forgets sooner that the callee was overloaded. Default 1 s, the
    /// longest window of DAGOR §4.2.3, after which the callee has decided anew.
    pub max_age: Span,
    /// Silence after which one request goes out whatever its rank. Shorter notices sooner that the
    /// callee has recovered and costs it one refusal per caller and interval. Default 100 ms:
    /// a tenth of `max_age`.
    pub probe: Span,
}

impl Default for CursorConfig {
    fn default() -> Self {
        Self { max_age: Span::from_secs(1), probe: Span::from_millis(100) }
    }
}

impl CursorConfig {
    /// Notes everything that is wrong with the parameters.
    pub fn validate(&self, problems: &mut Problems) {
        for (field, span) in [("max_age", self.max_age), ("probe", self.probe)] {
            let fine = (Span::from_nanos(1)..=Span::from_secs(3600)).contains(&span);
            problems.check(field, span, fine, "1ns to 1h");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rank::Rank;
    use crate::throttle::testing::Bench;

    const SHOP: Option<Workflow> = Some(Workflow(1));

    fn bench() -> Bench {
        Bench::new(ThrottleConfig::Cursor(CursorConfig::default()))
    }

    fn request(workflow: u16, business: u8) -> Context {
        let rank = Rank::new(business, 9);
        Context { workflow: Workflow(workflow), rank, ..Context::default() }
    }

    fn tell(bench: &mut Bench, workflow: Option<Workflow>, gate: u64, business: u8, holds: Span) {
        let last = Some(Cursor::at(Rank::new(business, 9)));
        let feedback = Feedback { workflow, last, holds, ..Feedback::silent(GateId(gate), 0) };
        bench.hear(&feedback);
    }

    #[test]
    fn ranks_beyond_the_cursor_are_rejected_here() {
        let mut bench = bench();
        assert_eq!(bench.submit(&request(1, 63)), Passage::Send);
        tell(&mut bench, SHOP, 7, 20, Span::MAX);
        assert_eq!(bench.submit(&request(1, 20)), Passage::Send);
        let Passage::Reject(rejection) = bench.submit(&request(1, 21)) else { panic!("sent") };
        assert_eq!((rejection.reason, rejection.advice), (Reason::Rank, Advice::Elsewhere));
        assert!(rejection.measured >= rejection.limit);
        assert_eq!(bench.throttle.cursor(bench.cx.now), Cursor::at(Rank::new(20, 9)));
    }

    #[test]
    fn the_laxest_gate_of_the_workflow_decides() {
        let mut bench = bench();
        tell(&mut bench, SHOP, 1, 20, Span::MAX);
        tell(&mut bench, SHOP, 2, 30, Span::MAX);
        assert_eq!(bench.submit(&request(1, 30)), Passage::Send);
        assert_ne!(bench.submit(&request(1, 31)), Passage::Send);
        // Another workflow may call nothing of what is full further down.
        assert_eq!(bench.submit(&request(2, 63)), Passage::Send);
        // A gate's later word replaces its earlier one.
        tell(&mut bench, SHOP, 2, 10, Span::MAX);
        assert_ne!(bench.submit(&request(1, 30)), Passage::Send);
        // Silence about cursors changes nothing.
        bench.hear(&Feedback { workflow: SHOP, ..Feedback::silent(GateId(1), 0) });
        assert_ne!(bench.submit(&request(1, 30)), Passage::Send);
    }

    #[test]
    fn what_a_gate_says_unasked_is_for_every_workflow() {
        let mut bench = bench();
        tell(&mut bench, SHOP, 1, 20, Span::MAX);
        tell(&mut bench, None, 1, 40, Span::MAX);
        for workflow in [1, 2] {
            assert_eq!(bench.submit(&request(workflow, 40)), Passage::Send);
            assert_ne!(bench.submit(&request(workflow, 41)), Passage::Send);
        }
    }

    /// A cursor has an expiry: an idle caller forgets a strict one.
    #[test]
    fn cursors_age_out() {
        for (holds, lasts) in [(Span::from_millis(5), 5), (Span::MAX, 1_000)] {
            let mut bench = bench();
            tell(&mut bench, SHOP, 1, 20, holds);
            // Sends inside the cursor keep the probe away.
            for millis in 1..=lasts {
                let beyond = bench.submit(&request(1, 21)) == Passage::Send;
                assert!(!beyond, "{millis} ms of {lasts}");
                bench.submit(&request(1, 0));
                bench.pass(Span::from_millis(1));
            }
            assert_eq!(bench.submit(&request(1, 21)), Passage::Send);
        }
    }

    #[test]
    fn silence_is_broken_by_one_probe_per_interval() {
        let mut bench = bench();
        let mut sent = 0;
        for _ in 0..1_000 {
            bench.pass(Span::from_millis(1));
            tell(&mut bench, SHOP, 1, 20, Span::MAX);
            sent += u32::from(bench.submit(&request(1, 63)) == Passage::Send);
        }
        assert_eq!(sent, 10);
    }

    #[test]
    fn a_thousand_gates_fit_in_the_bound_and_the_freshest_stay() {
        let mut bench = bench();
        for gate in 0..1_000 {
            bench.pass(Span::from_nanos(1));
            tell(&mut bench, SHOP, gate, if gate == 999 { 30 } else { 20 }, Span::MAX);
        }
        assert_eq!(bench.throttle.cursor(bench.cx.now), Cursor::at(Rank::new(30, 9)));
    }
}
