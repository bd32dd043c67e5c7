//! Measurements: small pure types, tested alone, shared by all policies.

mod backlog;
mod ewma;
mod quantile;
mod window;

pub use backlog::{Backlog, DelaySignal};
pub use ewma::Ewma;
pub use quantile::Quantile;
pub use window::Window;
