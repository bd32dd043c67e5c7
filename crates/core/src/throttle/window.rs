//! ORCA's client: a window of outstanding requests, found by trial (Breakwater §2.2).
//!
//! 1. A caller has at most `window` requests outstanding, and holds the rest.
//! 2. A response within the SLO adds `increase / window`: about `increase` per round trip.
//! 3. Any other multiplies the window by `decrease`.
//! 4. The window never falls below one. With thousands of callers that is its undoing: all their
//!    single requests can still meet at the server (Breakwater §2.2).
//!
//! The constants are not published. Where the description leaves a choice, we take the stronger:
//!
//! - The window shrinks once per overload, not once per late response: only answers to requests sent
//!   since the last decrease count, or one bad moment would take any window to one.
//! - It grows only while it is in use: an idle caller learns nothing about how much is too much.
//! - Refusals and failures count as late; cancels count as nothing.

use serde::{Deserialize, Serialize};

use super::{Answer, Response, Throttle, ThrottleConfig};
use crate::config::Problems;
use crate::context::Context;
use crate::request::Cx;
use crate::time::{Instant, Span};
use crate::verdict::{Outcome, Passage};

/// A window of outstanding requests that follows response times.
#[derive(Clone, Debug)]
pub struct WindowThrottle {
    config: WindowConfig,
    /// Requests that may be outstanding, in [1, limit]; the whole part counts.
    window: f64,
    outstanding: u32,
    /// The last decrease: answers to requests sent before it have had their say.
    lowered: Instant,
}

impl WindowThrottle {
    /// A window of its first size, none of it in use.
    pub fn new(config: &WindowConfig, now: Instant) -> Self {
        Self {
            config: config.clone(),
            window: f64::from(config.start),
            outstanding: 0,
            lowered: now,
        }
    }

    /// Requests that may be outstanding.
    pub fn size(&self) -> u32 {
        self.window as u32
    }
}

impl Throttle for WindowThrottle {
    fn name(&self) -> &'static str {
        "window"
    }

    fn on_submit(&mut self, _cx: &mut Cx, _context: &Context) -> Passage {
        if self.outstanding >= self.size() {
            return Passage::Hold;
        }
        self.outstanding += 1;
        Passage::Send
    }

    fn on_response(&mut self, cx: &mut Cx, response: &Response) {
        let in_use = self.outstanding >= self.size();
        self.outstanding = self.outstanding.saturating_sub(1);
        let in_time = match response.answer {
            Answer::Done(Outcome::Cancel) => return,
            Answer::Done(Outcome::Serve) => response.latency <= self.config.slo,
            Answer::Done(Outcome::Fail) | Answer::Refused(_) => false,
        };
        let sent = cx.now - response.latency;
        if in_time && in_use {
            let limit = f64::from(self.config.limit);
            self.window = (self.window + self.config.increase / self.window).min(limit);
        } else if !in_time && sent >= self.lowered {
            self.window = (self.window * self.config.decrease).max(1.0);
            self.lowered = cx.now;
        }
    }

    fn adopt(&mut self, outstanding: u32) {
        self.outstanding = outstanding;
    }

    fn reconfigure(&mut self, config: &ThrottleConfig) -> bool {
        let ThrottleConfig::Window(config) = config else { return false };
        self.window = self.window.min(f64::from(config.limit));
        self.config = config.clone();
        true
    }

    fn invariants(&self) {
        let limit = f64::from(self.config.limit);
        assert!((1.0..=limit).contains(&self.window), "window {}", self.window);
    }

    fn clone_box(&self) -> Box<dyn Throttle> {
        Box::new(self.clone())
    }
}

/// Parameters of the window throttle.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct WindowConfig {
    /// Response time above which the window shrinks. Default 200 µs (Breakwater §5.1, for a service
    /// of 10 µs).
    pub slo: Span,
    /// Requests added per window of answers in time. More fills spare capacity sooner and overshoots
    /// more. Default 1, as in TCP (judgement: not published).
    pub increase: f64,
    /// What a late answer leaves of the window, 0 to 1. Less empties the callee's queue sooner and
    /// wastes more capacity. Default 0.5, as in TCP (judgement: not published).
    pub decrease: f64,
    /// Window to start with, at least 1. Default 1: thousands of callers may start at once.
    pub start: u32,
    /// Largest window, so that a calm callee's later overload is not met with everything at once.
    /// Default 65536 (judgement).
    pub limit: u32,
}

impl Default for WindowConfig {
    fn default() -> Self {
        Self { slo: Span::from_micros(200), increase: 1.0, decrease: 0.5, start: 1, limit: 65_536 }
    }
}

impl WindowConfig {
    /// Notes everything that is wrong with the parameters.
    pub fn validate(&self, problems: &mut Problems) {
        let slo = (Span::from_nanos(1)..=Span::from_secs(3600)).contains(&self.slo);
        problems.check("slo", self.slo, slo, "1ns to 1h");
        problems.range("increase", self.increase, 0.0, 1000.0);
        problems.range("decrease", self.decrease, 0.0, 0.999);
        let limit = (1..=1 << 20).contains(&self.limit);
        problems.check("limit", self.limit, limit, "1 to 1048576");
        let start = (1..=self.limit.max(1)).contains(&self.start);
        problems.check("start", self.start, start, "1 to `limit`");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::throttle::testing::{Bench, refused};

    const SERVED: Answer = Answer::Done(Outcome::Serve);

    fn window(start: u32, body: impl FnOnce(&mut WindowThrottle, &mut Bench)) {
        let mut bench = Bench::new(ThrottleConfig::Open);
        let config = WindowConfig { start, ..WindowConfig::default() };
        let mut window = WindowThrottle::new(&config, bench.cx.now);
        body(&mut window, &mut bench);
        window.invariants();
    }

    /// Fills the window, lets `latency` pass, and answers everything.
    fn round(window: &mut WindowThrottle, bench: &mut Bench, latency: Span, answer: Answer) -> u32 {
        let mut sent = 0;
        while window.on_submit(&mut bench.cx, &Context::default()) == Passage::Send {
            sent += 1;
        }
        bench.pass(latency);
        for _ in 0..sent {
            let response = Response { context: Context::default(), latency, answer };
            window.on_response(&mut bench.cx, &response);
            // In use until its last answer, as it would be with enough to send.
            window.on_submit(&mut bench.cx, &Context::default());
        }
        window.adopt(0);
        sent
    }

    #[test]
    fn grows_by_one_per_round_trip_and_halves_once_per_overload() {
        window(1, |window, bench| {
            let in_time = Span::from_micros(200);
            let sizes: Vec<u32> = (0..8).map(|_| round(window, bench, in_time, SERVED)).collect();
            assert_eq!(sizes[..3], [1, 2, 2]);
            assert!((6..=8).contains(&sizes[7]), "{sizes:?}");
            let before = window.window;
            // All of a window comes late, but they were all sent before the first decrease.
            round(window, bench, Span::from_micros(201), SERVED);
            assert_eq!(window.window, before / 2.0);
        });
    }

    #[test]
    fn never_below_one_and_one_is_always_allowed() {
        for answer in [refused(), Answer::Done(Outcome::Fail)] {
            window(64, |window, bench| {
                for _ in 0..20 {
                    round(window, bench, Span::from_micros(10), answer);
                }
                assert_eq!(window.size(), 1);
                assert_eq!(round(window, bench, Span::from_micros(10), SERVED), 1);
            });
        }
    }

    #[test]
    fn cancels_change_nothing_but_free_their_place() {
        window(3, |window, bench| {
            let cancelled = Answer::Done(Outcome::Cancel);
            assert_eq!(round(window, bench, Span::from_secs(1), cancelled), 3);
            assert_eq!(window.size(), 3);
        });
    }

    #[test]
    fn an_unused_window_does_not_grow() {
        window(10, |window, bench| {
            for _ in 0..1_000 {
                window.on_submit(&mut bench.cx, &Context::default());
                let latency = Span::from_micros(10);
                let response = Response { context: Context::default(), latency, answer: SERVED };
                window.on_response(&mut bench.cx, &response);
            }
            assert_eq!(window.size(), 10);
        });
    }
}
