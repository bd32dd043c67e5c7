//! A deterministic discrete-event simulator that drives [`tidegate_core::Gate`] and
//! [`tidegate_core::Caller`] as they are: there is no second implementation of any policy here.
//!
//! It is both proof and tool: "what would this policy do to my services?" A [`plan`] names
//! services, workload, policies and ranges; [`command::run`] runs its grid on all cores; a
//! [`report`] says what came of it. The same plan and seed give the same bytes.

pub mod broker;
pub mod command;
pub mod dist;
pub mod engine;
pub mod fault;
pub mod figures;
pub mod ideal;
pub mod measure;
pub mod network;
pub mod node;
pub mod plain;
pub mod plan;
pub mod random;
pub mod report;
pub mod swarm;
pub mod told;
pub mod topology;
pub mod workload;
pub mod world;

mod client;
mod shared;

pub use command::{run_plan, run_point};
pub use plan::{Plan, Point};
pub use report::Report;
