//! Measurements: small pure types, tested alone, shared by all policies.

mod backlog;
mod drain;
mod ewma;
mod executor;
mod extremum;
mod lateness;
mod quantile;
mod rate;
mod stages;
mod utilization;
mod window;

pub use backlog::{Backlog, DelaySignal};
pub use ewma::Ewma;
pub use executor::ExecutorLoad;
pub use extremum::Extremum;
pub use lateness::{Lateness, allowed};
pub use quantile::Quantile;
pub use rate::RateMeter;
pub use stages::Stages;
pub use utilization::{Combine, Part, SignalId, Signals, SignalsConfig};
pub use window::Window;
