//! Order: which waiting request gets the next free slot.
//!
//! Schedulers rank ids; payloads stay with the driver, so the same scheduler orders simulator jobs,
//! RPC frames and HTTP futures. Rank decides who is refused, not who is next: a rank-ordered queue
//! makes the unimportant wait until they are worthless, which is a refusal by other means.

mod adaptive_lifo;
mod drr;
mod edf;
mod fifo;
mod heap;
mod keyed;
mod lasf;
mod lstf;
mod sjf;
mod srtf;
#[cfg(test)]
mod tests;

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::config::Problems;
use crate::context::Workflow;
use crate::request::{Request, RequestId};
use crate::time::Instant;

pub use adaptive_lifo::{AdaptiveLifo, AdaptiveLifoConfig};
pub use drr::{Drr, DrrConfig};
pub use edf::Edf;
pub use fifo::Fifo;
pub use keyed::{Keyed, Order};
pub use lasf::Lasf;
pub use lstf::Lstf;
pub use sjf::Sjf;
pub use srtf::Srtf;

/// An order of service over waiting requests.
pub trait Scheduler: fmt::Debug + Send {
    /// The name used in configuration and figures.
    fn name(&self) -> &'static str;

    /// A request, or its next step, starts to wait.
    fn push(&mut self, now: Instant, request: &Request);

    /// Takes the request that should start next.
    fn pop(&mut self, now: Instant) -> Option<RequestId>;

    /// Takes a given request out; false if it does not wait here.
    fn remove(&mut self, id: RequestId) -> bool;

    /// How many wait.
    fn len(&self) -> usize;

    /// Whether nobody waits.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether requests leave in the order they came, so that a newcomer's wait is what is queued.
    fn keeps_arrival_order(&self) -> bool {
        false
    }

    /// Tells the numbers of the workflows that the parameters name.
    fn name_workflows(&mut self, _number: &mut dyn FnMut(&str) -> Workflow) {}

    /// Turns by workflow number, for orders that have them; none given means all alike.
    fn set_weights(&mut self, _weights: &[u32]) {}

    /// A copy that can be asked without effect on this one.
    fn clone_box(&self) -> Box<dyn Scheduler>;
}

impl Clone for Box<dyn Scheduler> {
    fn clone(&self) -> Self {
        self.clone_box()
    }
}

/// Every order with its parameters; in TOML the key `order` chooses.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(tag = "order", rename_all = "kebab-case")]
pub enum ScheduleConfig {
    /// First come, first served.
    #[default]
    Fifo,
    /// First come, first served; newest first while a backlog stands.
    AdaptiveLifo(AdaptiveLifoConfig),
    /// Earliest deadline first.
    Edf,
    /// Least slack first: deadline less remaining service along the path.
    Lstf,
    /// Shortest job first, by estimated cost.
    Sjf,
    /// Shortest remaining time first.
    Srtf,
    /// Least attained service first.
    Lasf,
    /// Deficit round robin: workflows take turns of equal cost.
    Drr(DrrConfig),
}

impl ScheduleConfig {
    /// Builds the scheduler.
    pub fn build(&self) -> Box<dyn Scheduler> {
        match self {
            Self::Fifo => Box::new(Fifo::default()),
            Self::AdaptiveLifo(config) => Box::new(AdaptiveLifo::new(config)),
            Self::Edf => Box::new(Keyed::<Edf>::default()),
            Self::Lstf => Box::new(Keyed::<Lstf>::default()),
            Self::Sjf => Box::new(Keyed::<Sjf>::default()),
            Self::Srtf => Box::new(Keyed::<Srtf>::default()),
            Self::Lasf => Box::new(Keyed::<Lasf>::default()),
            Self::Drr(config) => Box::new(Drr::new(config)),
        }
    }

    /// Notes everything that is wrong with the parameters.
    pub fn validate(&self, problems: &mut Problems) {
        match self {
            Self::AdaptiveLifo(config) => config.validate(problems),
            Self::Drr(config) => config.validate(problems),
            Self::Fifo | Self::Edf | Self::Lstf | Self::Sjf | Self::Srtf | Self::Lasf => {}
        }
    }
}
