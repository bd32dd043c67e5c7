//! Limits: how much of what may pass, whatever the load.

pub mod bucket;
pub mod gcra;

pub use bucket::{Bucket, Limit, Shortage};
pub use gcra::Gcra;
