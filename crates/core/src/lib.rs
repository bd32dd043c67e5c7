//! Every overload decision of Tidegate as a state machine: no I/O, no clock, no threads, no ambient
//! randomness. Facts go in, one question is asked, a value comes out.
//!
//! A driver (simulator, RPC library, tower layer, sidecar) runs one loop:
//!
//! **any number of inputs, then one `dispatch(now)`, then drain `poll()` until it is empty, then
//! wait for an input or for `next_wakeup()`.**
//!
//! ```
//! use tidegate_core::gate::{Action, Gate, GateConfig};
//! use tidegate_core::{Context, Cost, Instant, Outcome, Span};
//!
//! let mut gate = Gate::new(&GateConfig::default(), Instant::ZERO, 7).unwrap();
//! let now = Instant::ZERO + Span::from_micros(5);
//!
//! // Inputs: here one arrival. It never starts work; a refusal would be known at once.
//! let id = gate.arrive(now, &Context::default()).unwrap();
//!
//! // One dispatch, then the actions.
//! gate.dispatch(now);
//! assert_eq!(gate.poll(), Some(Action::Start { id, degraded: false }));
//! assert_eq!(gate.poll(), None);
//!
//! // The handler has run for 3 ms.
//! let now = now + Span::from_millis(3);
//! gate.finish(now, id, Outcome::Serve, Cost::from(Span::from_millis(3)));
//! gate.dispatch(now);
//! ```

#![deny(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    clippy::iter_over_hash_type,
    reason = "the same inputs give the same decisions; clippy.toml gives the reason for each"
)]

pub mod admission;
pub mod allocate;
pub mod balance;
pub mod caller;
pub mod config;
pub mod context;
pub mod credit;
pub mod entry;
pub mod event;
pub mod feedback;
pub mod gate;
mod levels;
pub mod limit;
mod list;
pub mod meter;
pub mod objective;
pub mod placement;
pub mod rank;
pub mod request;
pub mod retry;
pub mod rng;
pub mod schedule;
pub mod share;
pub mod signal;
pub mod siphash;
pub mod slab;
pub mod slots;
mod table;
pub mod testing;
pub mod throttle;
pub mod time;
pub mod verdict;
pub mod workflow;

pub use caller::Caller;
pub use context::{CallerId, Context, Progress, Sender, Sheds, Workflow};
pub use feedback::{Feedback, GateId};
pub use gate::Gate;
pub use meter::Cost;
pub use rank::{Criticality, Cursor, Rank};
pub use request::{Cx, Request, RequestId};
pub use time::{Instant, Span};
pub use verdict::{Advice, Outcome, Passage, Reason, Rejection, Verdict};

/// The book's page for authors of drivers: its example is a test.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/writing-a-driver.md")]
struct WritingADriver;

/// The book's pages on what only drivers and control planes use: their examples are tests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/policies/shares.md")]
#[doc = include_str!("../../../docs/policies/placement.md")]
struct SharesAndPlacement;
