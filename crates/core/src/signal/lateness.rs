//! How old a request may be when its turn comes, so that its answer is still in time.
//!
//! How long a request will take is not known when it starts, nor how many are before it in a queue behind the
//! gate. Who starts close to the objective is mostly late, and what is late was done in vain. Instead of
//! predicting all that, the age is steered by what came of it:
//!
//! 1. An answer that is late lowers the age by nearly a step, one in time raises it by a hundredth of that, so
//!    that it rests where [`IN_TIME`] of the answers are in time, whatever hides behind the gate.
//! 2. A step is smaller the more run at once: their answers are late together, and they started before the
//!    last change.
//!
//! What is given up after its time counts as late; what is given up before says nothing.

use crate::request::Request;
use crate::time::{Instant, Span};
use crate::verdict::Outcome;

/// Answers that are to be in time: 99 in a hundred, and a little more, as half of the time it is less.
const IN_TIME: f64 = 0.992;
/// A step, as a share of the time allowed, before it is divided by what runs and three more.
const STEP: f64 = 0.1;
/// However late answers are, so old a request may be: or nothing would start that could show that it has changed.
const LEAST: f64 = 0.1;

/// The age, as a share of the time that a request is allowed.
#[derive(Clone, Copy, Debug)]
pub struct Lateness {
    share: f64,
}

impl Lateness {
    /// Begins with this share.
    pub fn new(share: f64) -> Self {
        Self { share: share.clamp(LEAST, 1.0) }
    }

    /// A request has ended while so many ran.
    pub fn on_end(&mut self, late: bool, outcome: Outcome, running: u32) {
        let step = STEP / (3.0 + f64::from(running));
        let change = match outcome {
            _ if late => -IN_TIME,
            Outcome::Serve => 1.0 - IN_TIME,
            Outcome::Fail | Outcome::Cancel => 0.0,
        };
        self.share = (self.share + step * change).clamp(LEAST, 1.0);
    }

    /// The age at which it makes no sense any more to start, of what is allowed so much time.
    pub fn latest_start(&self, allowed: Span) -> Span {
        allowed.scale(self.share)
    }

    /// The share.
    pub fn share(&self) -> f64 {
        self.share
    }
}

/// How long after its arrival the answer to a request is in time: the objective, or its own deadline where that
/// is shorter. One that others have worked for has its deadline alone: their work would be lost with it.
pub fn allowed(request: &Request, objective: Span) -> Span {
    let context = &request.context;
    if context.deadline == Instant::FAR {
        return objective;
    }
    let own = context.deadline.since(request.arrived);
    if context.progress.elapsed > Span::ZERO { own } else { own.min(objective) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    /// Answers take as long as they waited and an exponential time more.
    #[test]
    fn ninety_nine_in_a_hundred_are_in_time_whatever_they_take() {
        for mean in [0.02, 0.05, 0.1] {
            let (mut lateness, mut rng) = (Lateness::new(1.0), Rng::new(1));
            let mut late = 0;
            for n in 0..60_000 {
                let took = lateness.share() - mean * (1.0 - rng.unit()).ln();
                late += u32::from(took > 1.0 && n >= 20_000);
                lateness.on_end(took > 1.0, Outcome::Serve, 2);
            }
            assert!((200..=500).contains(&late), "{mean}: {late} of 40,000");
        }
    }

    #[test]
    fn what_is_given_up_in_time_says_nothing_and_later_it_was_late() {
        let mut lateness = Lateness::new(0.7);
        lateness.on_end(false, Outcome::Cancel, 1);
        assert_eq!(lateness.share(), 0.7);
        lateness.on_end(true, Outcome::Cancel, 1);
        assert!(lateness.share() < 0.7);
        for _ in 0..1_000 {
            lateness.on_end(true, Outcome::Fail, 1);
        }
        assert_eq!(lateness.share(), LEAST);
    }
}
