//! Limits that hold over a fleet, decided locally: `tidegate control`.
//!
//! An agreement is a rate and a burst that all processes of a fleet share. One daemon keeps agreements and
//! leases shares of them; each process decides its requests with the share it has, and asks nobody. The
//! protocol, and why the shares in use never exceed the whole, is in [`tidegate_core::share`]; here is
//! what carries it between processes.
//!
//! | module | what it is |
//! |---|---|
//! | [`agreement`] | agreements and the daemon's file, in TOML |
//! | [`book`] | the daemon without its sockets: a granter per agreement and key, who holds what |
//! | [`ledger`] | what has to outlive the daemon: its epoch, agreements, and what they were |
//! | [`daemon`] | its sockets: nodes on one port, operators on the other |
//! | [`link`] | the node's side: carries the reports of a gate's leased limits |

#![allow(
    clippy::disallowed_methods,
    reason = "a process reads clocks and files; decisions are made in tidegate-core"
)]

mod admin;
pub mod agreement;
pub mod book;
pub mod daemon;
pub mod ledger;
mod library;
pub mod link;
mod page;

pub use agreement::{Agreement, ControlConfig, File, Store};
pub use daemon::{Daemon, Handle, Source, StartError};
pub use link::{Holders, Link, key_name};
