//! For tests of this crate and of drivers: scripted traces that every driver plays alike.

mod trace;

pub use trace::{Arrival, Ending, Trace, TraceError};
