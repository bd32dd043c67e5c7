//! Limits: how much of what may pass, whatever the load.

pub mod bucket;

pub use bucket::{Bucket, Limit, Shortage};
