//! A request inside a gate, as policies and schedulers see it.

use crate::context::Context;
use crate::event::Events;
use crate::meter::Cost;
use crate::rng::Rng;
use crate::slab::Key;
use crate::time::{Instant, Span};

/// Identity of a request in one gate, or of a call in one caller.
pub type RequestId = Key;

/// Facts about one request. Policies read it, the gate alone writes it.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// Its identity in this gate.
    pub id: RequestId,
    /// What it came with.
    pub context: Context,
    /// When it reached this process, by the kernel's receive time where the driver has it.
    pub arrived: Instant,
    /// When its present step joined the schedule.
    pub enqueued: Instant,
    /// Estimated cost of its present step.
    pub cost: Cost,
    /// Service it has received here in earlier steps; when it finishes, in all.
    pub attained: Span,
}

/// What is lent to a policy for one call: the moment, randomness, and somewhere to tell what happened.
#[derive(Clone, Debug)]
pub struct Cx {
    /// The present moment; never earlier than in any call before.
    pub now: Instant,
    /// Random numbers from the run's seed.
    pub rng: Rng,
    /// Takes events for whoever listens.
    pub events: Events,
}

impl Cx {
    /// The beginning, with nobody listening.
    pub fn new(now: Instant, seed: u64) -> Self {
        Self { now, rng: Rng::new(seed), events: Events::default() }
    }
}
