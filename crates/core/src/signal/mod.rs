//! Measurements: small pure types, tested alone, shared by all policies.

mod backlog;
mod ewma;
mod executor;
mod extremum;
mod rate;
mod stages;
mod utilization;

pub use backlog::{Backlog, DelaySignal};
pub use ewma::Ewma;
pub use executor::ExecutorLoad;
pub use extremum::Extremum;
pub use rate::RateMeter;
pub use stages::Stages;
pub use utilization::{Combine, Part, SignalId, Signals, SignalsConfig};
mod quantile;
mod window;

pub use quantile::Quantile;
pub use window::Window;
