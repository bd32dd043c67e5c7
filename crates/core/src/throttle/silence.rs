//! A callee that no longer answers in time is asked, not flooded.
//!
//! What a gate lets everybody send needs no credit, so nothing else bounds how much of it is on its
//! way. A service that is busy receiving serves nobody, and callers that hear nothing, or refusals
//! that come too late, go on by its last good word, which was to send: receive livelock, kept up from
//! outside. So the caller knows two things of better times: how long an answer takes (mean plus
//! four deviations, as TCP's timeout in RFC 6298, without its floor of a second: within a data
//! centre it is microseconds), and how many requests were on their way meanwhile. When nothing has
//! been served for longer than the first,
//!
//! 1. no more than twice the second may be on their way, and
//! 2. beyond that one request leaves to ask, then another after twice the time, and so on (§5.5).
//!
//! The first answer that is no refusal ends it. While answers come in time there is no bound: a
//! caller that wakes up and sends fifty at once waits for nothing.

use crate::signal::Ewma;
use crate::time::{Instant, Span};

/// How long answers take, how many are awaited meanwhile, and since when one is due.
#[derive(Clone, Debug)]
pub(super) struct Silence {
    /// Time from sending to answer, ns, and how far it is from its mean.
    latency: Ewma,
    deviation: Ewma,
    /// Most requests outstanding when answers came, lately.
    reach: f64,
    state: State,
}

#[derive(Clone, Copy, Debug)]
enum State {
    /// Nothing was sent since the last answer.
    Heard,
    /// Something was, and an answer is due by this moment.
    Due(Instant),
    /// None came. The next question may leave at this moment, this long after the one before.
    Silent(Instant, Span),
}

/// Weight of an answer in the mean and in the deviation (RFC 6298 §2.3).
const LATENCY: f64 = 1.0 / 8.0;
const DEVIATION: f64 = 1.0 / 4.0;
/// The longest time between two questions.
const LONGEST: Span = Span::from_secs(1);
/// Requests that may always be on their way: fewer, and two answers that take long by chance would
/// stop a caller that sends rarely.
const LEAST: f64 = 4.0;
/// How much of the reach that was not made use of is forgotten with an answer.
const FORGET: f64 = 1.0 / 16.0;

impl Silence {
    pub(super) const fn new() -> Self {
        let (latency, deviation) = (Ewma::new(LATENCY), Ewma::new(DEVIATION));
        Self { latency, deviation, reach: 0.0, state: State::Heard }
    }

    /// Whether a request that needs no credit has to wait while `used` are on their way.
    pub(super) fn holds(&self, now: Instant, used: u32) -> bool {
        let most = (2.0 * self.reach).max(LEAST);
        self.asks_at().is_some_and(|at| now < at) && f64::from(used) >= most
    }

    /// When the next question may leave; none while answers are in time.
    pub(super) const fn asks_at(&self) -> Option<Instant> {
        match self.state {
            State::Silent(at, _) => Some(at),
            State::Heard | State::Due(_) => None,
        }
    }

    /// A request left.
    pub(super) fn on_send(&mut self, now: Instant) {
        let next = |wait: Span| {
            let wait = wait.scale(2.0).min(LONGEST);
            State::Silent(now + wait, wait)
        };
        self.state = match self.state {
            State::Heard => State::Due(self.patience().map_or(Instant::FAR, |wait| now + wait)),
            State::Due(at) if now >= at => next(self.patience().unwrap_or(LONGEST)),
            State::Silent(at, wait) if now >= at => next(wait),
            waiting => waiting,
        };
    }

    /// An answer took this long, with `used` on their way, itself included. True if the callee had
    /// been silent.
    pub(super) fn on_answer(&mut self, latency: Span, used: u32) -> bool {
        let nanos = latency.as_nanos_f64();
        self.deviation.add((nanos - self.latency.get().unwrap_or(nanos)).abs());
        self.latency.add(nanos);
        let used = f64::from(used);
        self.reach = used.max(self.reach - FORGET * (self.reach - used));
        let silent = self.asks_at().is_some();
        self.state = State::Heard;
        silent
    }

    /// How long an answer may take, none before the first.
    fn patience(&self) -> Option<Span> {
        let nanos = self.latency.get()? + 4.0 * self.deviation.get().unwrap_or(0.0);
        Some(Span::from_nanos(nanos as u64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MICRO: Span = Span::from_micros(1);

    /// A caller whose requests are answered one by one, after 100 µs.
    fn answered() -> (Silence, Instant) {
        let (mut silence, mut now) = (Silence::new(), Instant::ZERO);
        for _ in 0..50 {
            silence.on_send(now);
            now += MICRO.scale(100.0);
            assert!(!silence.on_answer(MICRO.scale(100.0), 1));
        }
        (silence, now)
    }

    #[test]
    fn what_is_sent_at_once_waits_for_nothing() {
        let (mut silence, now) = answered();
        for used in 0..50 {
            assert!(!silence.holds(now, used));
            silence.on_send(now);
        }
        assert!(!silence.holds(now + MICRO.scale(99.0), 50), "an answer is not due yet");
    }

    #[test]
    fn a_silent_callee_is_asked_with_one_request_after_ever_longer_times() {
        let (mut silence, start) = answered();
        let (mut used, mut sent) = (0, Vec::new());
        for micros in 0..2_000 {
            let now = start + MICRO.scale(f64::from(micros));
            if !silence.holds(now, used) {
                silence.on_send(now);
                used += 1;
                sent.push(micros);
            }
        }
        // Everything until the answer to the first is due, then the questions.
        let late: Vec<_> = sent.into_iter().filter(|micros| *micros >= 100).collect();
        assert_eq!(late, [100, 300, 700, 1_500]);
        // Who has fewer than four on their way is never held.
        assert!(!silence.holds(start + MICRO.scale(2_000.0), 3));
        assert!(silence.on_answer(MICRO.scale(2_000.0), used), "it is over");
        assert!(!silence.holds(start + MICRO.scale(2_000.0), used));
    }

    #[test]
    fn twice_of_what_was_on_its_way_in_good_times_may_be() {
        let (mut silence, now) = answered();
        silence.on_answer(MICRO.scale(100.0), 10);
        silence.on_send(now);
        silence.on_send(now + MICRO.scale(100.0));
        let later = now + MICRO.scale(101.0);
        assert_eq!((silence.holds(later, 19), silence.holds(later, 20)), (false, true));
    }

    #[test]
    fn who_has_heard_nothing_yet_has_no_measure() {
        let mut silence = Silence::new();
        silence.on_send(Instant::ZERO);
        silence.on_send(Instant::ZERO + Span::from_secs(100));
        assert!(!silence.holds(Instant::ZERO + Span::from_secs(100), 1_000));
    }
}
