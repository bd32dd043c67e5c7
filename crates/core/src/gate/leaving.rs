//! Whether the service ends its work when a caller leaves: found by trying.
//!
//! Nobody tells. Where it would stop, what is kept to its end wastes capacity; where it goes on, what is ended is
//! work that the gate no longer sees. So it is taken to go on, and tried: now and then, when a request is abandoned while
//! others wait, a lot decides whether it and the next few, a quarter of the slots, are kept or ended. The answers
//! to others are counted for as long as a request takes. A service that stops has workers free, and gives more of them.
//!
//! 1. What was ended holds its slot for four times as long as requests take, so that only the service can make the
//!    difference, and hardly ever more work is there than slots. There must be two slots at least: with one, nothing could come
//!    of a worker that is free.
//! 2. If more is answered after ends, by [`SURE`] standard errors, the service stops. From then on all that is abandoned is ended and
//!    its slot free at once. Trials go on: each batch of twice as many has to confirm it.
//! 3. Trials are rare: they hold less than one in fifty slots.
//!
//! Whoever leaves does not see the lot, so no client can make the gate believe anything.

use super::{Gate, Gone, State};
use crate::request::RequestId;
use crate::time::{Instant, Span};

/// Standard errors between the two arms for a verdict, and for what confirms it.
const SURE: f64 = 4.0;
const STILL: f64 = 2.0;
/// Trials in each arm before anything is said.
const LEAST: u32 = 20;
/// Times as many trials confirm a verdict: it may have been near.
const AGAIN: u32 = 2;
/// Trials in each arm after which half of what they say is forgotten.
const MOST: u32 = 4_096;
/// Service times for which an ended request holds its slot.
const HOLDS: f64 = 4.0;
/// Service times between two trials of all slots.
const RESTS: f64 = 128.0;

/// What was found so far.
#[derive(Clone, Debug, Default)]
pub(super) struct Leaving {
    stops: bool,
    trial: Option<Trial>,
    /// None before.
    next: Instant,
    kept: Arm,
    ended: Arm,
    /// Trials in each arm that have to confirm what was decided.
    batch: u32,
}

/// What is being counted.
#[derive(Clone, Copy, Debug)]
struct Trial {
    ended: bool,
    until: Instant,
    /// Requests that may still join.
    more: u32,
    answers: u32,
}

/// Answers after one way of treating who leaves.
#[derive(Clone, Copy, Debug, Default)]
struct Arm {
    trials: u32,
    sum: f64,
    squares: f64,
}

impl Arm {
    fn add(&mut self, answers: f64) {
        if self.trials == MOST {
            let half =
                Self { trials: self.trials / 2, sum: self.sum / 2.0, squares: self.squares / 2.0 };
            *self = half;
        }
        self.trials += 1;
        self.sum += answers;
        self.squares += answers * answers;
    }

    fn mean(&self) -> f64 {
        self.sum / f64::from(self.trials.max(1))
    }

    /// The square of the mean's standard error. Counts of a few trials may all be the same by chance.
    fn error(&self) -> f64 {
        let trials = f64::from(self.trials.max(1));
        let variance = self.squares / trials - self.mean() * self.mean();
        variance.max(1.0 / trials) / trials
    }
}

impl Leaving {
    /// An answer to somebody who waits for it.
    pub(super) fn on_answer(&mut self, now: Instant) {
        if self.trial.is_none() {
            return;
        }
        self.conclude(now);
        if let Some(trial) = &mut self.trial {
            trial.answers += 1;
        }
    }

    /// Ends the trial whose time is up.
    fn conclude(&mut self, now: Instant) {
        let Some(trial) = self.trial.take_if(|trial| trial.until <= now) else { return };
        let arm = if trial.ended { &mut self.ended } else { &mut self.kept };
        arm.add(f64::from(trial.answers));
        let trials = self.kept.trials.min(self.ended.trials);
        let errors = (self.ended.mean() - self.kept.mean())
            / (self.ended.error() + self.kept.error()).sqrt();
        if !self.stops && trials >= LEAST && errors >= SURE {
            (self.stops, self.batch) = (true, AGAIN * trials);
        } else if self.stops && trials >= self.batch {
            self.stops = errors >= STILL;
        } else {
            return;
        }
        (self.kept, self.ended) = (Arm::default(), Arm::default());
    }
}

/// What is known of a service that callers leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WhenLeft {
    /// Whether it ends its work.
    pub stops: bool,
    /// Trials since that was decided.
    pub trials: u32,
}

impl Gate {
    /// The caller of a request that runs has left, and its driver could end it at the service. Whether it shall:
    /// then nobody will hear of it any more. Otherwise it is [kept](Gone::Kept). Those that do not run are cancelled.
    pub fn leave_or_end(&mut self, now: Instant, id: RequestId) -> bool {
        let now = self.advance(now);
        if self.entries.get(id).is_none_or(|entry| entry.state != State::Running) {
            self.cancel(now, id);
            return true;
        }
        self.leaving.conclude(now);
        let usual = Span::from_nanos_f64(self.service.get().unwrap_or(0.0));
        if self.may_try(now) && usual > Span::ZERO {
            let (ended, most) = (self.cx.rng.below(2) == 0, (self.limit / 4).max(1));
            let rest = usual.scale(RESTS * f64::from(most) / f64::from(self.limit));
            self.leaving.next = now + rest;
            self.leaving.trial = Some(Trial { ended, until: now + usual, more: most, answers: 0 });
        }
        let trial = self.leaving.trial.as_mut().filter(|trial| trial.more > 0);
        let tried = trial.map(|trial| {
            trial.more -= 1;
            trial.ended
        });
        match tried {
            Some(true) => self.book(now, id, now + usual.scale(HOLDS)),
            None if self.leaving.stops => self.cancel(now, id),
            _ => self.abandon(now, id, Gone::Kept),
        }
        tried.unwrap_or(self.leaving.stops)
    }

    fn may_try(&self, now: Instant) -> bool {
        let Leaving { trial, next, .. } = &self.leaving;
        trial.is_none() && *next <= now && self.limit >= 2 && self.backlog.waiting() > 0
    }

    /// What the service is taken to do when callers leave.
    pub fn when_left(&self) -> WhenLeft {
        let Leaving { stops, kept, ended, .. } = &self.leaving;
        WhenLeft { stops: *stops, trials: kept.trials + ended.trials }
    }
}
