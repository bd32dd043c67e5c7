//! Slots: how many requests may execute at once.
//!
//! Too few, and the service idles; too many, and the queue moves out of the gate into the service,
//! where nobody sees it and the gate is blind.

mod adaptive;
mod fixed;
mod room;
#[cfg(test)]
mod tests;

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::config::Problems;
use crate::time::{Instant, Span};
use crate::verdict::Outcome;

pub use adaptive::{Adaptive, AdaptiveConfig};
pub use fixed::{Fixed, FixedConfig};

/// A bound on concurrent execution.
pub trait Slots: fmt::Debug + Send {
    /// The name used in configuration and figures.
    fn name(&self) -> &'static str;

    /// How many slots there are now, at least one.
    fn limit(&self) -> u32;

    /// Whether the number ever changes. If not, the gate spares itself the calls that follow.
    fn adapts(&self) -> bool {
        true
    }

    /// A request gave its slot back.
    fn on_finish(&mut self, _now: Instant, _finish: &Finish) {}

    /// Whether fewer may run for a moment than the service can take, to see what that costs.
    fn is_trying(&self) -> bool {
        false
    }

    /// Whether so few run now that none of them waits behind the gate for another.
    fn is_quiet(&self) -> bool {
        false
    }

    /// Panics if the state contradicts itself.
    fn invariants(&self) {}

    /// A copy that can be asked without effect on this one.
    fn clone_box(&self) -> Box<dyn Slots>;
}

/// Facts about a slot that was given back.
#[derive(Clone, Copy, Debug)]
pub struct Finish {
    /// How long it was held.
    pub service: Span,
    /// How the request ended.
    pub outcome: Outcome,
    /// The latency objective, [`Span::MAX`] if there is none.
    pub objective: Span,
    /// Whether that was too late for its caller.
    pub late: bool,
    /// Whether the time it held the slot would alone have been too much.
    pub crowded: bool,
    /// Requests still executing.
    pub running: u32,
    /// Requests that were executing when it began to.
    pub beside: u32,
    /// Requests that wait for a slot.
    pub waiting: usize,
    /// Whether so few ran that it did not wait behind the gate.
    pub quiet: bool,
    /// Whether the gate has refused anything since the last finish.
    pub shedding: bool,
}

impl Clone for Box<dyn Slots> {
    fn clone(&self) -> Self {
        self.clone_box()
    }
}

/// Every way to bound execution with its parameters; in TOML the key `slots` chooses.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "slots", rename_all = "kebab-case")]
pub enum SlotsConfig {
    /// A number that does not change.
    Fixed(FixedConfig),
    /// A number that finds itself.
    Adaptive(AdaptiveConfig),
}

impl Default for SlotsConfig {
    fn default() -> Self {
        Self::Fixed(FixedConfig::default())
    }
}

impl SlotsConfig {
    /// `count` slots, always.
    pub fn fixed(count: u32) -> Self {
        Self::Fixed(FixedConfig { count })
    }

    /// Builds the bound.
    pub fn build(&self, _now: Instant) -> Box<dyn Slots> {
        match self {
            Self::Fixed(config) => Box::new(Fixed::new(config)),
            Self::Adaptive(config) => Box::new(Adaptive::new(config)),
        }
    }

    /// Notes everything that is wrong with the parameters.
    pub fn validate(&self, problems: &mut Problems) {
        match self {
            Self::Fixed(config) => config.validate(problems),
            Self::Adaptive(config) => config.validate(problems),
        }
    }
}
