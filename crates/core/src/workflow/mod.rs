//! Workflows along call graphs (Wisp, SoCC 2017): how much of each may come in, given what every
//! service further down can take, and how far each request has come.
//!
//! A service knows its own load and hears its neighbours; nobody knows the whole graph. Two things make
//! that enough:
//!
//! - **Rates bubble up.** [`RateControl`] works out, per workflow, what this process can take, divides
//!   what downstream processes grant by the calls each request makes, and tells callers the least of it
//!   ([`Feedback::rate`](crate::Feedback)). What a hop far below cannot do is then refused at the entry,
//!   and only for workflows that go there. [`Limiter`] keeps to the rate at the door, and refuses what
//!   would wait there for too long to meet its deadline.
//! - **Progress travels.** [`Totals`] learns at the entry how much service a workflow's requests take in
//!   all; each request carries that and what it has had, so that every hop can order by what is left.
//!
//! | file | what |
//! |---|---|
//! | `control` | Algorithm 1: local limit, downstream grants, minimum; shares for callers |
//! | `local` | the local policy: max-min at a bottleneck, probing otherwise |
//! | `downstream` | grants of downstream processes, amplification, quantile |
//! | `upstream` | demand by caller |
//! | `limiter` | shaping at the door, deadline feasibility |
//! | `progress` | elapsed and total service time and work |
//! | `pool` | thread pools, semaphores and connection pools as resources |
//! | `usage` | busy time of a resource by workflow |

mod config;
mod control;
mod downstream;
mod limiter;
mod local;
mod pool;
mod progress;
mod smooth;
mod upstream;
mod usage;

pub use config::{Knob, QuantileOf, ShareOf, WorkflowConfig};
pub use control::RateControl;
pub use limiter::{Limiter, Room};
pub use local::ResourceId;
pub use pool::{Pool, PoolConfig};
pub use progress::Totals;
