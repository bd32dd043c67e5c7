//! The server side: a gate before a tower service.
//!
//! **The queue must live in the gate**, not in sockets or in the runtime's run queue. A service
//! that decides and runs its handler in one poll finds a free slot every time, since whatever else
//! is ready has not been read yet: its gate sees no queue while clients wait for seconds. So
//! a finish hands its slot straight on to a request that waits, and between a request's start and
//! its handler the task goes once around the runtime's loop, through the I/O driver (`turn.rs`).
//! Whatever arrived meanwhile is then read and stands in the gate. `docs/driving.md` compares this
//! with other ways, measured.

mod arrival;
mod drain;
pub(crate) mod exempt;
mod future;
mod layer;
mod machine;
mod meter;
mod pressure;
mod rule;
mod service;
pub(crate) mod streams;
mod turn;

pub use arrival::{Head, Peer, Trust, Vouched};
pub use future::ResponseFuture;
pub use layer::GateLayer;
pub use meter::{BegunPoll, CpuClocks, Meter, Metered, SystemClocks};
pub use pressure::Pressure;
pub use rule::Rule;
pub use service::GateService;
