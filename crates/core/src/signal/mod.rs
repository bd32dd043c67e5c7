//! Measurements: small pure types, tested alone, shared by all policies.

mod backlog;
mod ewma;

pub use backlog::{Backlog, DelaySignal};
pub use ewma::Ewma;
