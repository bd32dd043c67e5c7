//! Order: which waiting request gets the next free slot.
//!
//! Schedulers rank ids; payloads stay with the driver, so the same scheduler orders simulator jobs,
//! RPC frames and HTTP futures. Rank decides who is refused, not who is next: a rank-ordered queue
//! makes the unimportant wait until they are worthless, which is a refusal by other means.

mod fifo;

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::config::Problems;
use crate::request::{Request, RequestId};
use crate::time::Instant;

pub use fifo::Fifo;

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
}

impl ScheduleConfig {
    /// Builds the scheduler.
    pub fn build(&self) -> Box<dyn Scheduler> {
        match self {
            Self::Fifo => Box::new(Fifo::default()),
        }
    }

    /// Notes everything that is wrong with the parameters.
    pub fn validate(&self, _problems: &mut Problems) {
        match self {
            Self::Fifo => {}
        }
    }
}
