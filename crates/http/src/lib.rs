//! Tower layers for HTTP and gRPC: a gate before services, and what they tell each other on the wire.
//!
//! [`server::GateLayer`] is the server side: always ready, decides each arrival in `call` itself,
//! refuses with a response and never with an error, and keeps the queue in the gate.

#![allow(clippy::disallowed_methods, reason = "a driver reads the clock for the core")]

mod body;
pub mod server;
pub mod wire;

pub use body::GateBody;
pub use server::GateLayer;
