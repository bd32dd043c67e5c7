//! The limiter at the door: lets requests of a workflow in at its rate, and refuses those that would wait
//! for too long (Wisp §4.3, admission control and drop policies).
//!
//! 1. A request takes its turn: the next one may pass 1 ÷ rate after the one before, and up to `burst` may
//!    pass at once after a pause.
//! 2. If it has to wait, the expected wait is what is in line before it ÷ rate.
//! 3. What it can afford is its deadline, less the time since, less how long requests of its workflow take
//!    from here on, on average. If the wait is longer, it is refused here, before it has cost anything.
//! 4. Without a deadline it can afford `hold`.
//!
//! Latency from here on is measured, queues included. It cannot be measured when all are refused for it:
//! for each period in which none of a workflow finished although some were refused, it is halved.

use std::collections::VecDeque;

use super::config::WorkflowConfig;
use crate::context::{Context, Workflow, Workflows};
use crate::request::RequestId;
use crate::signal::Ewma;
use crate::time::{Instant, Span};
use crate::verdict::{Advice, Reason, Rejection};

/// What a request finds at the door.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Room {
    /// It may pass.
    Pass,
    /// It has to wait in line.
    Wait,
    /// It would wait for too long.
    Refuse(Rejection),
}

/// A line per workflow.
#[derive(Clone, Debug)]
pub struct Limiter {
    burst: f64,
    hold: Span,
    hold_limit: usize,
    lines: Vec<Line>,
    /// Requests in all lines.
    waiting: usize,
}

#[derive(Clone, Debug)]
struct Line {
    /// Requests per second, infinity for no limit.
    rate: f64,
    /// Tokens there were at `at`, below zero never.
    tokens: f64,
    at: Instant,
    waiting: VecDeque<RequestId>,
    /// From being let in to the end.
    latency: Ewma,
    /// Whether any finished, and any was refused, in the period that runs.
    finished: bool,
    refused: bool,
}

impl Line {
    fn new() -> Self {
        Self {
            rate: f64::INFINITY,
            tokens: 0.0,
            at: Instant::ZERO,
            waiting: VecDeque::new(),
            latency: Ewma::new(1.0 / 32.0),
            finished: false,
            refused: false,
        }
    }

    fn settle(&mut self, now: Instant, burst: f64) {
        let earned = now.since(self.at).as_secs_f64() * self.rate;
        self.tokens = if earned.is_finite() { (self.tokens + earned).min(burst) } else { burst };
        self.at = self.at.max(now);
    }

    /// Takes a token; to within a nanosecond's worth, since wake-ups are whole nanoseconds.
    fn take(&mut self, now: Instant, burst: f64) -> bool {
        self.settle(now, burst);
        let enough = self.tokens + self.rate * 1e-9 >= 1.0;
        if enough {
            self.tokens = (self.tokens - 1.0).max(0.0);
        }
        enough
    }

    /// When the next token is there.
    fn due(&self) -> Instant {
        let seconds = (1.0 - self.tokens).max(0.0) / self.rate;
        self.at + Span::from_nanos((seconds * 1e9).ceil() as u64)
    }
}

impl Limiter {
    /// Nothing is limited yet.
    pub fn new(config: &WorkflowConfig) -> Self {
        Self {
            burst: f64::from(config.burst),
            hold: config.hold,
            hold_limit: config.hold_limit,
            lines: Vec::new(),
            waiting: 0,
        }
    }

    /// Takes new parameters in place.
    pub fn reconfigure(&mut self, config: &WorkflowConfig) {
        (self.burst, self.hold) = (f64::from(config.burst), config.hold);
        self.hold_limit = config.hold_limit;
    }

    /// From now on requests of `workflow` pass at `rate`. What was earned so far was earned at the old one.
    pub fn set_rate(&mut self, now: Instant, workflow: Workflow, rate: f64) {
        let burst = self.burst;
        let line = self.line(workflow);
        line.settle(now, burst);
        line.rate = rate;
    }

    /// A request comes: may it pass? One that has to wait is put in line by [`Self::push`].
    pub fn ask(&mut self, now: Instant, context: &Context) -> Room {
        let (burst, hold, hold_limit) = (self.burst, self.hold, self.hold_limit);
        let line = self.line(context.workflow);
        if line.rate == f64::INFINITY && line.waiting.is_empty() {
            return Room::Pass;
        }
        if line.waiting.is_empty() && line.take(now, burst) {
            return Room::Pass;
        }
        line.settle(now, burst);
        let before = line.waiting.len();
        let wait = Span::from_nanos((before as f64 / line.rate * 1e9) as u64);
        let left = context.deadline.since(now);
        let later = Span::from_nanos(line.latency.get().unwrap_or(0.0) as u64);
        let (tolerance, reason) = if context.deadline == Instant::FAR {
            (hold, Reason::Rate)
        } else {
            (left.saturating_sub(later), Reason::Infeasible)
        };
        let refusal = if wait > tolerance {
            let (wait, most) = (wait.as_nanos_f64(), tolerance.as_nanos_f64());
            match reason {
                Reason::Infeasible => Rejection::new(reason, wait, most, Advice::Never),
                // Of the rate: what would be needed to pass in time.
                _ => Rejection::new(
                    reason,
                    before as f64 / tolerance.as_secs_f64().max(1e-9),
                    line.rate,
                    Advice::Later(Span::from_nanos(wait as u64)),
                ),
            }
        } else if before >= hold_limit {
            Rejection::new(Reason::Full, before as f64, hold_limit as f64, Advice::Elsewhere)
        } else {
            return Room::Wait;
        };
        line.refused = true;
        Room::Refuse(refusal)
    }

    /// A request waits at the end of its line.
    pub fn push(&mut self, workflow: Workflow, id: RequestId) {
        self.line(workflow).waiting.push_back(id);
        self.waiting += 1;
    }

    /// Takes a request out of its line; false if it is not there.
    pub fn remove(&mut self, workflow: Workflow, id: RequestId) -> bool {
        let line = self.line(workflow);
        let found = line.waiting.iter().position(|waiting| *waiting == id);
        let removed = found.and_then(|place| line.waiting.remove(place)).is_some();
        self.waiting -= usize::from(removed);
        removed
    }

    /// The next request whose turn has come.
    pub fn pop(&mut self, now: Instant) -> Option<RequestId> {
        if self.waiting == 0 {
            return None;
        }
        let burst = self.burst;
        let id = self.lines.iter_mut().find_map(|line| {
            if line.waiting.is_empty() || !line.take(now, burst) {
                return None;
            }
            line.waiting.pop_front()
        })?;
        self.waiting -= 1;
        Some(id)
    }

    /// When the next turn comes, if somebody waits.
    pub fn due(&self) -> Option<Instant> {
        if self.waiting == 0 {
            return None;
        }
        self.lines.iter().filter(|line| !line.waiting.is_empty()).map(Line::due).min()
    }

    /// How long a newcomer of `workflow` would wait for its turn.
    pub fn wait(&self, workflow: Workflow) -> Span {
        let line = self.lines.get(usize::from(workflow.0).min(Workflows::LIMIT));
        let nanos = line.map_or(0.0, |line| line.waiting.len() as f64 / line.rate * 1e9);
        Span::from_nanos(nanos as u64)
    }

    /// How many wait.
    pub fn len(&self) -> usize {
        self.waiting
    }

    /// Whether nobody waits.
    pub fn is_empty(&self) -> bool {
        self.waiting == 0
    }

    /// A request has ended, so long after it was let in.
    pub fn on_finish(&mut self, workflow: Workflow, latency: Span) {
        let line = self.line(workflow);
        line.latency.add(latency.as_nanos_f64());
        line.finished = true;
    }

    /// A control period ends: an estimate that let nobody in is halved.
    pub fn end_period(&mut self) {
        for line in &mut self.lines {
            if line.refused && !line.finished && line.waiting.is_empty() {
                let half = line.latency.get().unwrap_or(0.0) / 2.0;
                line.latency = Ewma::new(1.0 / 32.0);
                line.latency.add(half);
            }
            (line.finished, line.refused) = (false, false);
        }
    }

    /// Panics if the state contradicts itself.
    pub fn invariants(&self) {
        let waiting: usize = self.lines.iter().map(|line| line.waiting.len()).sum();
        assert_eq!(waiting, self.waiting, "lines are counted");
        for line in &self.lines {
            assert!(
                line.tokens >= 0.0 && line.tokens <= self.burst.max(1.0),
                "tokens within burst"
            );
            assert!(line.waiting.len() <= self.hold_limit, "lines are bounded");
        }
    }

    fn line(&mut self, workflow: Workflow) -> &mut Line {
        let place = usize::from(workflow.0).min(Workflows::LIMIT);
        if place >= self.lines.len() {
            self.lines.resize_with(place + 1, Line::new);
        }
        &mut self.lines[place]
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const W: Workflow = Workflow(1);

    fn at(millis: u64) -> Instant {
        Instant::ZERO + Span::from_millis(millis)
    }

    fn limiter(rate: f64) -> Limiter {
        let mut limiter = Limiter::new(&WorkflowConfig { burst: 1, ..WorkflowConfig::default() });
        limiter.set_rate(Instant::ZERO, W, rate);
        limiter
    }

    fn request(deadline: Option<Instant>) -> Context {
        let deadline = deadline.unwrap_or(Instant::FAR);
        Context { workflow: W, deadline, ..Context::default() }
    }

    fn id(n: u64) -> RequestId {
        RequestId::from_u64(n)
    }

    /// Wisp §4.3 by hand: deadline 300 ms, 20 of them gone, 250 to come: 30 ms can be afforded; at 75 per second
    /// two in line (26.7 ms) will do, three (40 ms) will not.
    #[test]
    fn what_cannot_be_in_time_is_refused_at_the_door() {
        let mut limiter = limiter(75.0);
        // The burst that was earned before there was a limit.
        assert_eq!(limiter.ask(at(20), &request(None)), Room::Pass);
        limiter.on_finish(W, Span::from_millis(250));
        let urgent = request(Some(at(300)));
        for n in 0..3 {
            assert_eq!(limiter.ask(at(20), &urgent), Room::Wait, "{n} in line");
            limiter.push(W, id(n));
        }
        let Room::Refuse(rejection) = limiter.ask(at(20), &urgent) else { panic!("40 ms") };
        assert_eq!((rejection.reason, rejection.limit), (Reason::Infeasible, 30e6));
        assert!((rejection.measured - 40e6).abs() < 1.0, "{}", rejection.measured);
        limiter.invariants();
    }

    #[test]
    fn turns_come_at_the_rate() {
        let mut limiter = limiter(100.0);
        assert_eq!(limiter.ask(at(0), &request(None)), Room::Pass);
        for n in 0..50 {
            assert_eq!(limiter.ask(at(0), &request(None)), Room::Wait);
            limiter.push(W, id(n));
        }
        for n in 0..50 {
            let due = limiter.due().expect("somebody waits");
            assert!(due.since(at(10 * (n + 1))) <= Span::from_nanos(100), "{n} {due:?}");
            assert_eq!(limiter.pop(due - Span::from_micros(1)), None);
            assert_eq!(limiter.pop(due), Some(id(n)));
        }
        assert_eq!((limiter.due(), limiter.len()), (None, 0));
    }

    #[test]
    fn an_estimate_that_lets_nobody_in_is_halved() {
        let mut limiter = limiter(10.0);
        limiter.ask(at(0), &request(None));
        limiter.on_finish(W, Span::from_secs(60));
        limiter.end_period();
        limiter.ask(at(0), &request(None));
        limiter.push(W, id(0));
        assert!(matches!(limiter.ask(at(0), &request(Some(at(300)))), Room::Refuse(_)));
        assert!(limiter.remove(W, id(0)));
        let mut periods = 0;
        while let Room::Refuse(_) = {
            limiter.push(W, id(0));
            let room = limiter.ask(at(0), &request(Some(at(300))));
            limiter.remove(W, id(0));
            room
        } {
            limiter.end_period();
            periods += 1;
            assert!(periods < 20);
        }
        assert!(periods > 5, "60 s to 200 ms is more than eight halvings");
    }

    #[test]
    fn lines_are_bounded_and_requests_can_leave() {
        let config = WorkflowConfig { hold_limit: 3, burst: 1, ..WorkflowConfig::default() };
        let mut limiter = Limiter::new(&config);
        limiter.set_rate(Instant::ZERO, W, 100.0);
        limiter.ask(at(0), &request(None));
        for n in 0..3 {
            assert_eq!(limiter.ask(at(0), &request(None)), Room::Wait);
            limiter.push(W, id(n));
        }
        let Room::Refuse(rejection) = limiter.ask(at(0), &request(None)) else { panic!("full") };
        assert_eq!(rejection.reason, Reason::Full);
        assert!(limiter.remove(W, id(1)) && !limiter.remove(W, id(1)));
        assert_eq!((limiter.pop(at(10)), limiter.pop(at(20))), (Some(id(0)), Some(id(2))));
        limiter.invariants();
    }

    proptest! {
        /// However rates change, no more pass than the largest rate and one burst allow, and none is lost.
        #[test]
        fn changing_rates_mint_nothing(
            steps in prop::collection::vec((0..30u64, prop::option::of(1.0..500.0f64)), 1..100),
        ) {
            let mut limiter = limiter(100.0);
            let (mut now, mut came, mut passed) = (0, 0u64, 0u64);
            for (step, rate) in steps {
                now += step;
                if let Some(rate) = rate {
                    limiter.set_rate(at(now), W, rate);
                }
                match limiter.ask(at(now), &request(None)) {
                    Room::Pass => (came, passed) = (came + 1, passed + 1),
                    Room::Wait => {
                        limiter.push(W, id(came));
                        came += 1;
                    }
                    Room::Refuse(_) => {}
                }
                while limiter.pop(at(now)).is_some() {
                    passed += 1;
                }
                limiter.invariants();
                prop_assert_eq!(came, passed + limiter.len() as u64);
                prop_assert!(passed as f64 <= 1.0 + 500.0 * now as f64 / 1e3 + 1e-6);
            }
        }
    }
}
