//! The client of `breakwater` and `tide`: sends what the callee's window and cursors allow.
//!
//! A request leaves at once if its rank is inside the *free* cursor, or if fewer requests are
//! outstanding than the *window* has credits. It is rejected at once if it is beyond the *last*
//! cursor. What is between is held for a credit (Breakwater §3.3). A gate that announces no cursors
//! makes this Breakwater's client.
//!
//! - Windows are absolute and count what is in flight, so a lost or overtaken message heals itself.
//! - The first request registers the caller (Breakwater §3): until an answer comes, one may be out.
//! - Behind one address there may be many gates: their windows add up, and the laxest cursor counts.
//! - Who is no longer served in time sends little of what is free until it is again (`silence.rs`).
//! - Restrictions age. When a window or cursor no longer holds, one request at a time goes out to
//!   ask: a caller that rejects everything still probes.

use serde::{Deserialize, Serialize};

use super::silence::Silence;
use super::{Answer, Response, Throttle, ThrottleConfig};
use crate::config::Problems;
use crate::context::Context;
use crate::feedback::{Feedback, GateId};
use crate::rank::Cursor;
use crate::request::Cx;
use crate::time::{Instant, Span};
use crate::verdict::{Advice, Outcome, Passage, Reason, Rejection};

/// Sends what the credits and cursors of the callee's gates allow, holds or rejects the rest.
#[derive(Clone, Debug)]
pub struct Credit {
    config: CreditConfig,
    gates: Vec<Known>,
    /// Requests outstanding.
    used: u32,
    silence: Silence,
    /// The callee serves again after a silence, and those held meanwhile do not know it yet.
    again: bool,
    /// The latest moment heard of.
    now: Instant,
}

/// What one gate said.
#[derive(Clone, Copy, Debug)]
struct Known {
    gate: GateId,
    window: u32,
    free: Cursor,
    last: Cursor,
    /// Until when this holds.
    until: Instant,
}

/// What all gates together allow.
#[derive(Clone, Copy, Debug)]
struct Allowed {
    window: u32,
    free: Cursor,
    last: Cursor,
}

/// Gates remembered behind one endpoint.
const GATES: usize = 64;

impl Credit {
    /// A client that knows nothing yet.
    pub fn new(config: &CreditConfig) -> Self {
        Self {
            config: config.clone(),
            gates: Vec::new(),
            used: 0,
            silence: Silence::new(),
            again: false,
            now: Instant::ZERO,
        }
    }

    /// What may be sent, none when nothing is known any more.
    fn allowed(&self, now: Instant) -> Option<Allowed> {
        // A gate that let everything through is taken at its word until it says otherwise.
        let holds = |known: &&Known| known.until > now || known.free == Cursor::OPEN;
        let mut holding = self.gates.iter().filter(holds);
        let first = holding.next()?;
        let start = Allowed { window: first.window, free: first.free, last: first.last };
        let all = holding.fold(start, |all, known| Allowed {
            window: all.window.saturating_add(known.window),
            free: all.free.max(known.free),
            last: all.last.max(known.last),
        });
        Some(Allowed { window: all.window.max(self.config.floor), ..all })
    }
}

impl Throttle for Credit {
    fn name(&self) -> &'static str {
        "credit"
    }

    fn on_submit(&mut self, cx: &mut Cx, context: &Context) -> Passage {
        // Knowing nothing, ask with one request at a time.
        let unknown = Allowed { window: 1, free: Cursor::CLOSED, last: Cursor::OPEN };
        let allowed = self.allowed(cx.now).unwrap_or(unknown);
        if !allowed.last.admits(context.rank) {
            let (rank, ranks) = (f64::from(context.rank.key()), f64::from(allowed.last.ranks()));
            return Passage::Reject(Rejection::new(Reason::Rank, rank, ranks, Advice::Never));
        }
        let free = allowed.free.admits(context.rank) && !self.silence.holds(cx.now, self.used);
        if free || self.used < allowed.window {
            self.used += 1;
            self.silence.on_send(cx.now);
            return Passage::Send;
        }
        Passage::Hold
    }

    fn on_response(&mut self, _cx: &mut Cx, response: &Response) {
        if response.answer == Answer::Done(Outcome::Serve) {
            self.again |= self.silence.on_answer(response.latency, self.used);
        }
        self.used = self.used.saturating_sub(1);
    }

    fn on_feedback(&mut self, cx: &mut Cx, feedback: &Feedback) -> bool {
        let before = self.allowed(cx.now);
        let known = Known {
            gate: feedback.gate,
            window: feedback.window.unwrap_or(u32::MAX),
            free: feedback.free.unwrap_or(Cursor::CLOSED),
            last: feedback.last.unwrap_or(Cursor::OPEN),
            until: cx.now + feedback.holds.min(self.config.holds),
        };
        match self.gates.iter_mut().find(|other| other.gate == known.gate) {
            Some(other) => *other = known,
            None => {
                self.gates.retain(|other| other.until > cx.now);
                if self.gates.len() >= GATES {
                    self.gates.remove(0);
                }
                self.gates.push(known);
            }
        }
        let after = self.allowed(cx.now);
        let (before, after) = (before.map(|b| (b.free, b.last)), after.map(|a| (a.free, a.last)));
        let laxer = matches!((before, after), (Some(before), Some(after)) if after.0 > before.0 || after.1 > before.1);
        std::mem::take(&mut self.again) || laxer
    }

    fn settle(&mut self, cx: &mut Cx) {
        self.now = cx.now;
    }

    fn next_wakeup(&self) -> Option<Instant> {
        // When the last word has lost its force, or a silence has lasted, what is held may ask again.
        let last = self.gates.iter().map(|known| known.until).max();
        let next = last.into_iter().chain(self.silence.asks_at());
        next.filter(|at| self.now < *at && *at < Instant::FAR).min()
    }

    fn cursor(&self, now: Instant) -> Cursor {
        self.allowed(now).map_or(Cursor::OPEN, |allowed| allowed.last)
    }

    fn synchronises(&self) -> bool {
        self.config.synchronise
    }

    fn adopt(&mut self, outstanding: u32) {
        self.used = outstanding;
    }

    fn reconfigure(&mut self, config: &ThrottleConfig) -> bool {
        let ThrottleConfig::Credit(config) = config else { return false };
        self.config = config.clone();
        true
    }

    fn clone_box(&self) -> Box<dyn Throttle> {
        Box::new(self.clone())
    }
}

/// Parameters of [`Credit`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CreditConfig {
    /// Credits a caller always has. 0 where gates can send unsolicited feedback; 1 where they cannot
    /// (HTTP), or a drained caller would wait for a grant that never comes. Default 0.
    pub floor: u32,
    /// Longest time that windows and cursors count, whatever the gate says. Less probes more often.
    /// Default 10 s.
    pub holds: Span,
    /// Tells the callee of demand by messages of their own when nothing else would, for a
    /// `breakwater` gate with `demand = "synchronise"` (Breakwater §5.2, Figure 8): never wrong
    /// about demand, at twice the messages. Default false.
    pub synchronise: bool,
}

impl Default for CreditConfig {
    fn default() -> Self {
        Self { floor: 0, holds: Span::from_secs(10), synchronise: false }
    }
}

impl CreditConfig {
    /// Notes everything that is wrong with the parameters.
    pub fn validate(&self, problems: &mut Problems) {
        problems.check("holds", self.holds, self.holds > Span::ZERO, "more than 0");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rank::Rank;
    use crate::throttle::Answer;
    use crate::verdict::Outcome;

    struct Fixture {
        credit: Credit,
        cx: Cx,
    }

    impl Fixture {
        fn new() -> Self {
            let credit = Credit::new(&CreditConfig::default());
            Self { credit, cx: Cx::new(Instant::ZERO, 1) }
        }

        fn submit(&mut self, business: u8) -> Passage {
            let context = Context { rank: Rank::new(business, 0), ..Context::default() };
            self.credit.on_submit(&mut self.cx, &context)
        }

        fn respond(&mut self) {
            let answer = Answer::Done(Outcome::Serve);
            let latency = Span::from_micros(10);
            let response = Response { context: Context::default(), latency, answer };
            self.credit.on_response(&mut self.cx, &response);
        }

        fn hear(&mut self, gate: u64, window: u32, cursors: Option<(u8, u8)>) -> bool {
            let cursor = |business| Cursor::at(Rank::new(business, u16::MAX));
            let feedback = Feedback {
                window: Some(window),
                free: cursors.map(|(free, _)| cursor(free)),
                last: cursors.map(|(_, last)| cursor(last)),
                holds: Span::from_millis(1),
                ..Feedback::silent(GateId(gate), 1)
            };
            self.credit.on_feedback(&mut self.cx, &feedback)
        }
    }

    #[test]
    fn one_request_registers_and_the_window_counts_what_is_in_flight() {
        let mut caller = Fixture::new();
        assert_eq!((caller.submit(9), caller.submit(9)), (Passage::Send, Passage::Hold));
        caller.respond();
        caller.hear(1, 2, None);
        assert_eq!(
            (caller.submit(9), caller.submit(9), caller.submit(9)),
            (Passage::Send, Passage::Send, Passage::Hold)
        );
        // Credits taken away are just a smaller window (Breakwater's code).
        caller.hear(1, 1, None);
        caller.respond();
        assert_eq!(caller.submit(9), Passage::Hold);
        caller.respond();
        assert_eq!(caller.submit(9), Passage::Send);
    }

    #[test]
    fn free_ranks_need_no_credit_and_ranks_beyond_the_last_are_rejected() {
        let mut caller = Fixture::new();
        caller.hear(1, 0, Some((10, 20)));
        assert_eq!((caller.submit(10), caller.submit(15)), (Passage::Send, Passage::Hold));
        assert!(
            matches!(caller.submit(21), Passage::Reject(rejection) if rejection.reason == Reason::Rank)
        );
        // A second gate behind the same address: windows add up, the laxest cursor counts.
        caller.hear(2, 2, Some((5, 30)));
        assert_eq!(caller.submit(21), Passage::Send);
    }

    #[test]
    fn what_no_longer_holds_is_asked_for_again_one_at_a_time() {
        let mut caller = Fixture::new();
        caller.hear(1, 0, Some((10, 20)));
        caller.cx.now += Span::from_millis(2);
        assert_eq!((caller.submit(63), caller.submit(0)), (Passage::Send, Passage::Hold));
    }

    #[test]
    fn what_is_free_waits_while_the_callee_is_silent() {
        let mut caller = Fixture::new();
        caller.hear(1, 0, Some((63, 63)));
        assert_eq!(caller.submit(9), Passage::Send);
        caller.respond();
        // Four are on their way, then an answer is late, and the next one asks.
        for _ in 0..4 {
            assert_eq!(caller.submit(9), Passage::Send);
        }
        caller.cx.now += Span::from_micros(10);
        assert_eq!((caller.submit(9), caller.submit(9)), (Passage::Send, Passage::Hold));
        let at = caller.credit.next_wakeup();
        assert_eq!(at, Some(caller.cx.now + Span::from_micros(20)), "it asks again");
        // Being served ends it, and those who are held hear of it.
        caller.respond();
        assert!(caller.hear(1, 0, Some((63, 63))), "all that is held may leave");
        assert_eq!(caller.submit(9), Passage::Send);
    }
}
