//! DAGOR (Zhou et al., SoCC 2018): shed by rank, with a cursor moved once per window.
//!
//! The problem: a task makes several calls to an overloaded service and fails with any of them, so
//! shedding at random wastes nearly everything. DAGOR gives every request of a task, and of a user,
//! the same rank, so that gates agree without talking, and tells callers the cursor, so that what
//! would be shed is not even sent.
//!
//! 1. Detect overload by the mean queueing time of a window (§4.1; [`DetectorConfig`]).
//! 2. Count requests by level of (business, user) (§4.2.3).
//! 3. Overloaded: move the cursor so that α less is let in; else so that β more is (Algorithm 1).
//! 4. Refuse what is beyond the cursor, and tell callers the cursor with every answer (§4.2.4).
//!
//! Algorithm 1 as printed is wrong: it shrinks what *came in* by α but compares with counts of what
//! was *let in*, so the second overloaded window opens everything again. Its authors' correction
//! (arXiv version 3; in steps, the comments of the public `dagor-grpc`) is what `levels.rs` does:
//! count all that comes in, move from where the cursor is, close to (1 − α) of what was let in,
//! open until β of what came in is added.
//!
//! Deviations:
//! - Once callers shed by the cursor, the gate would no longer see what opening brings, and one
//!   calm window would open everything. So sheds that callers report are counted.
//! - The most important level that has traffic is never closed.
//! - The cursor ages ([`holds`](DagorConfig::holds)), so an idle caller forgets a strict one.
//!
//! `form = "breakwater-baseline"` is the much simpler cursor that Breakwater's figures call DAGOR
//! (`scalar.rs`).

mod levels;
mod scalar;

use serde::{Deserialize, Serialize};

use super::detector::{Detector, DetectorConfig, LoadSignal};
use super::{Admission, AdmissionConfig, Needs};
use crate::config::Problems;
use crate::context::CallerId;
use crate::event::Event;
use crate::feedback::Feedback;
use crate::meter::Cost;
use crate::rank::Cursor;
use crate::request::{Cx, Request};
use crate::signal::Backlog;
use crate::time::{Instant, Span};
use crate::verdict::{Advice, Outcome, Reason, Rejection, Verdict};
use levels::Levels;
use scalar::Scalar;

/// A cursor over ranks, moved once per window: what is less important is refused.
#[derive(Clone, Debug)]
pub struct Dagor {
    config: DagorConfig,
    /// Says once per window whether there is overload.
    detector: Detector,
    /// Holds the cursor and moves it.
    law: Law,
}

#[derive(Clone, Debug)]
enum Law {
    Corrected(Levels),
    BreakwaterBaseline(Scalar),
}

impl Dagor {
    /// A policy that lets everything in until it knows better.
    pub fn new(config: &DagorConfig, now: Instant) -> Self {
        let law = match config.form {
            DagorForm::Corrected => Law::Corrected(Levels::new()),
            DagorForm::BreakwaterBaseline => Law::BreakwaterBaseline(Scalar::new()),
        };
        Self { config: *config, detector: Detector::new(&config.detector, now), law }
    }

    /// The last rank let in; none when the form has no cursor to tell.
    pub fn cursor(&self) -> Option<Cursor> {
        match &self.law {
            Law::Corrected(levels) => Some(levels.cursor()),
            Law::BreakwaterBaseline(scalar) => scalar.cursor(),
        }
    }

    fn conclude(&mut self, cx: &mut Cx, backlog: &Backlog) {
        let Some(reading) = self.detector.conclude(cx.now, backlog) else { return };
        let DagorConfig { alpha, beta, .. } = self.config;
        let before = self.cursor();
        match &mut self.law {
            Law::Corrected(levels) => levels.conclude(reading.overloaded, alpha, beta),
            Law::BreakwaterBaseline(scalar) => scalar.conclude(reading.overloaded, alpha, beta),
        }
        if let Some(last) = self.cursor().filter(|last| Some(*last) != before) {
            cx.events.push(cx.now, || Event::Cursors { free: last, last });
        }
    }

    fn count(&mut self, request: &Request) -> bool {
        let (rank, sheds) = (request.context.rank, request.context.sheds);
        match &mut self.law {
            Law::Corrected(levels) => {
                levels.on_sheds(sheds.sample, sheds.count);
                levels.on_arrival(rank)
            }
            Law::BreakwaterBaseline(scalar) => scalar.on_arrival(rank),
        }
    }
}

impl Admission for Dagor {
    fn name(&self) -> &'static str {
        "dagor"
    }

    fn needs(&self) -> Needs {
        Needs { ages: true, ..Needs::default() }
    }

    fn on_arrival(&mut self, cx: &mut Cx, backlog: &Backlog, request: &Request) -> Verdict {
        let admitted = self.count(request);
        let verdict = if admitted {
            Verdict::Admit
        } else {
            let measured = f64::from(request.context.rank.key());
            let limit = self.cursor().map_or(0.0, |cursor| f64::from(cursor.ranks()));
            Verdict::Refuse(Rejection::new(Reason::Rank, measured, limit, Advice::Elsewhere))
        };
        self.detector.on_arrival();
        self.conclude(cx, backlog);
        verdict
    }

    fn on_dequeue(
        &mut self,
        cx: &mut Cx,
        _backlog: &Backlog,
        request: &Request,
        _sojourn: Span,
    ) -> Verdict {
        self.detector.on_start(cx.now, request);
        Verdict::Admit
    }

    fn on_finish(
        &mut self,
        cx: &mut Cx,
        _backlog: &Backlog,
        request: &Request,
        outcome: Outcome,
        _cost: Cost,
    ) {
        self.detector.on_finish(cx.now, request, outcome);
    }

    fn settle(&mut self, cx: &mut Cx, backlog: &Backlog) {
        self.conclude(cx, backlog);
    }

    fn next_wakeup(&self) -> Option<Instant> {
        self.detector.next_wakeup()
    }

    fn word_holds(&self) -> Span {
        let window = self.detector.config().window.as_nanos();
        Span::from_nanos(window.saturating_mul(u64::from(self.config.holds)))
    }

    fn feedback(&mut self, _: &mut Cx, _: &Backlog, _: CallerId, out: &mut Feedback) {
        if let Some(cursor) = self.cursor() {
            out.last = Some(cursor);
            out.holds = self.word_holds();
        }
    }

    fn reconfigure(&mut self, config: &AdmissionConfig) -> bool {
        match config {
            AdmissionConfig::Dagor(config) if config.form == self.config.form => {
                self.config = *config;
                self.detector.reconfigure(&config.detector);
                true
            }
            _ => false,
        }
    }

    fn invariants(&self) {
        self.detector.invariants();
        match &self.law {
            Law::Corrected(levels) => levels.invariants(),
            Law::BreakwaterBaseline(scalar) => scalar.invariants(),
        }
    }

    fn clone_box(&self) -> Box<dyn Admission> {
        Box::new(self.clone())
    }
}

/// How the cursor moves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DagorForm {
    /// Over a histogram of all levels, by the corrected Algorithm 1.
    #[default]
    Corrected,
    /// One number over user levels, as Breakwater's authors re-implemented it.
    BreakwaterBaseline,
}

/// Parameters of [`Dagor`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DagorConfig {
    /// How the cursor moves. Default: corrected.
    pub form: DagorForm,
    /// Share of the admitted load given up after an overloaded window, 0 to 1. More sheds sooner
    /// and overshoots more. Default 0.05 (DAGOR §4.2.3).
    pub alpha: f64,
    /// Share of the incoming load let in more after a calm window, 0 to 1. More recovers sooner and
    /// runs into overload more often. Default 0.01 (DAGOR §4.2.3).
    pub beta: f64,
    /// How long callers keep to a cursor they heard of, in windows. Less lets idle callers probe
    /// sooner, more keeps them quiet between answers. Default 5, judgement: a cursor moves by a few
    /// percent in that time.
    pub holds: u32,
    /// When a window counts as overloaded.
    pub detector: DetectorConfig,
}

impl Default for DagorConfig {
    fn default() -> Self {
        Self {
            form: DagorForm::Corrected,
            alpha: 0.05,
            beta: 0.01,
            holds: 5,
            detector: DetectorConfig::default(),
        }
    }
}

impl DagorConfig {
    /// What Breakwater's figures call DAGOR, with its parameters for 10 µs of service.
    pub fn breakwater_baseline() -> Self {
        Self {
            form: DagorForm::BreakwaterBaseline,
            detector: DetectorConfig {
                signal: LoadSignal::Sampled,
                window: Span::from_millis(1),
                threshold: Span::from_micros(65),
                ..DetectorConfig::default()
            },
            ..Self::default()
        }
    }

    /// Notes everything that is wrong with the parameters.
    pub fn validate(&self, problems: &mut Problems) {
        problems.range("alpha", self.alpha, 0.0, 1.0);
        problems.range("beta", self.beta, 0.0, 1.0);
        let holds = self.holds;
        problems.check("holds", holds, (1..=1_000_000).contains(&holds), "1 to 1000000");
        problems.within("detector", |problems| self.detector.validate(problems));
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Bench, at, request};
    use super::*;
    use crate::context::Sheds;
    use crate::feedback::GateId;
    use crate::rank::Rank;

    fn last(bench: &mut Bench, now: Instant) -> Feedback {
        let mut feedback = Feedback::silent(GateId(1), 1);
        bench.tell(now, |policy, cx, backlog| {
            policy.feedback(cx, backlog, CallerId(1), &mut feedback);
        });
        feedback
    }

    fn shed(verdict: Verdict) -> bool {
        matches!(verdict, Verdict::Refuse(Rejection { reason: Reason::Rank, .. }))
    }

    /// Overloaded windows close from the least important end, calm ones open again, and every
    /// answer tells the cursor and how long it holds.
    #[test]
    fn follows_the_load_and_tells_the_cursor() {
        let mut bench = Bench::new(&AdmissionConfig::Dagor(DagorConfig::default()));
        let mut window = |now: Instant, wait: Span| {
            let mut sheds = 0;
            for user in 0..1_000u16 {
                let now = now + Span::from_micros(u64::from(user));
                sheds += u32::from(shed(bench.arrive(now, Rank::new(24, user * 65))));
                bench.dequeue(now, wait);
            }
            (sheds, last(&mut bench, now + Span::from_secs(1)))
        };
        let (mut now, mut closed) = (at(9_000_000), Cursor::OPEN);
        for n in 0..20 {
            let (sheds, feedback) = window(now, Span::from_millis(30));
            assert_eq!(sheds > 0, n > 0, "window {n} shed {sheds}");
            assert!(feedback.last.unwrap() < closed);
            assert_eq!(feedback.holds, Span::from_secs(5));
            (now, closed) = (now + Span::from_secs(1), feedback.last.unwrap());
        }
        assert!(window(now, Span::from_millis(30)).0 > 600);
        for _ in 0..70 {
            now += Span::from_secs(1);
            window(now, Span::from_millis(10));
        }
        assert_eq!(window(now + Span::from_secs(1), Span::from_millis(10)).0, 0);
    }

    #[test]
    fn sheds_reported_by_callers_count_as_offered() {
        let mut bench = Bench::new(&AdmissionConfig::Dagor(DagorConfig::default()));
        for n in 500_000..500_100 {
            bench.arrive(at(n), Rank::new(24, 0));
            bench.arrive(at(n), Rank::new(40, 0));
            bench.dequeue(at(n), Span::from_millis(90));
        }
        let cursor = last(&mut bench, at(1_000_000)).last.unwrap();
        assert!(!cursor.admits(Rank::new(40, 0)) && cursor.admits(Rank::new(24, 0)));
        // A calm window whose only trace of the refused traffic is a report.
        let mut request = request(at(1_000_100));
        request.context.rank = Rank::new(24, 0);
        request.context.sheds = Sheds { count: 100, sample: Rank::new(40, 0) };
        bench.tell(at(1_000_100), |policy, cx, backlog| policy.on_arrival(cx, backlog, &request));
        let cursor = last(&mut bench, at(2_000_000)).last.unwrap();
        assert_eq!(cursor, Cursor::at(Rank::new(40, 511)), "no further than that one level");
    }

    /// Breakwater's code: the window ends after 1 ms, and never with zero requests.
    #[test]
    fn the_breakwater_baseline_starts_at_32_and_holds_while_idle() {
        let mut bench = Bench::new(&AdmissionConfig::Dagor(DagorConfig::breakwater_baseline()));
        let level = |level: u16| Rank::new(24, level << 9);
        assert!(!shed(bench.arrive(at(0), level(32))));
        assert!(shed(bench.arrive(at(0), level(33))));
        assert!(!shed(bench.arrive(at(1_000), level(33))), "33.28 after one calm window");
        assert!(shed(bench.arrive(at(1_001), level(34))));
        let idle = bench.policy.clone();
        let mut idle = Bench::with(idle);
        assert!(!shed(idle.arrive(at(60_000_000), level(34))), "one window, then none");
        assert!(shed(idle.arrive(at(60_000_000), level(35))));
    }

    #[test]
    fn parameters_change_in_place_and_forms_do_not() {
        let mut dagor = Dagor::new(&DagorConfig::default(), Instant::ZERO);
        let changed = DagorConfig { alpha: 0.2, ..DagorConfig::default() };
        assert!(dagor.reconfigure(&AdmissionConfig::Dagor(changed)));
        assert_eq!(dagor.config.alpha, 0.2);
        let other = AdmissionConfig::Dagor(DagorConfig::breakwater_baseline());
        assert!(!dagor.reconfigure(&other));
        assert!(!dagor.reconfigure(&AdmissionConfig::Open));
    }

    #[test]
    fn bad_parameters_are_all_named() {
        let mut config =
            DagorConfig { alpha: 1.5, beta: f64::NAN, holds: 0, ..DagorConfig::default() };
        config.detector.window = Span::ZERO;
        let mut problems = Problems::default();
        AdmissionConfig::Dagor(config).validate(&mut problems);
        let error = problems.into_result().unwrap_err();
        let fields: Vec<_> = error.problems().iter().map(|problem| &*problem.field).collect();
        assert_eq!(fields, ["alpha", "beta", "holds", "detector.window"]);
    }
}
