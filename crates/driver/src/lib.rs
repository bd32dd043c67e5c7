//! What the async drivers of Tidegate share, whatever their runtime: a [`SharedGate`] and a
//! [`SharedCaller`] behind a mutex, guards that give back what they hold when they are dropped, and the [`Context`] of the
//! request a task works for. Only std and `tidegate-core`; on Linux rustix for the clock and, with
//! the feature `stamp`, nix; and with `tokio` its timers; with `tls` rustls.
//!
//! [`Context`]: tidegate_core::Context
//!
//! ```
//! use std::future::Future;
//! use std::pin::pin;
//! use std::task::{Context as TaskContext, Poll, Waker};
//!
//! use tidegate_core::gate::{Gate, GateConfig};
//! use tidegate_core::{Context, Instant};
//! use tidegate_driver::SharedGate;
//!
//! let gate = Gate::new(&GateConfig::default(), Instant::ZERO, 7).unwrap();
//! let gate = SharedGate::new(gate);
//!
//! // Decided at once; the ticket is a future that resolves when a slot is free.
//! let ticket = gate.arrive(&Context::default()).expect("nothing is overloaded");
//! let mut cx = TaskContext::from_waker(Waker::noop());
//! let Poll::Ready(Ok(slot)) = pin!(ticket).poll(&mut cx) else { panic!("there are free slots") };
//! assert_eq!(gate.running(), 1);
//!
//! // The handler has run: its slot goes to whoever waits.
//! slot.serve();
//! assert_eq!(gate.running(), 0);
//! ```

#![allow(clippy::disallowed_methods, reason = "a driver reads the clock for the core")]

mod bucket;
mod call;
mod clock;
pub mod context;
mod guard;
pub mod machine;
mod names;
mod notice;
#[cfg(feature = "stamp")]
mod round_trips;
pub mod sender;
mod shared;
#[cfg(feature = "stamp")]
pub mod stamp;
mod sync;
#[cfg(feature = "tokio")]
pub mod timer;
#[cfg(feature = "tls")]
pub mod tls;
pub mod values;
mod waiters;

pub use bucket::AtomicBucket;
pub use call::{Call, Departure, SharedCaller};
pub use clock::{Clock, Monotonic, random_seed, unix_time};
pub use guard::{Abandoned, Charge, Paused, Slot, Ticket};
pub use names::Names;
pub use notice::{Notice, Notices};
#[cfg(feature = "stamp")]
pub use round_trips::RoundTrips;
pub use shared::SharedGate;
