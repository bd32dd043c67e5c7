//! The messaging gate.

#![allow(clippy::disallowed_methods, reason = "a driver reads the clock for the core")]

pub mod wire;
