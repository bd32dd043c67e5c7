//! The sidecar: a gate before any HTTP service, in any language.
//!
//! ```text
//!              one per core: accept, parse, wait for a slot, forward
//!  clients ──► worker ──────────► upstream ──► pool of connections ──► service
//!                │  ▲
//!          arrive│  │slot, refusal          control: wake-ups, events, admin, signals
//!                ▼  │                          │
//!              the gate, one per process ◄─────┘
//! ```
//!
//! Each core has a thread with a runtime of its own, its own listening socket (`SO_REUSEPORT`) and
//! its own connections to the upstreams, so that a request never changes threads. They share the
//! gate, whose lock is held for a fraction of a microsecond. One more thread keeps the gate's
//! timer, counts its events and answers the admin port, also while all cores are busy.
//!
//! Read in this order: [`config`], `server` (threads, start and end), `worker` (connections),
//! `forward` (the way of one request), `entry` (ranks), `upstream` (choice and pool), `body` (slots to
//! the last byte), `watch` (events into numbers), `model` and `sideline` (what is
//! worked out beside the traffic), `operate` (what operators change), `admin`.

#![allow(clippy::disallowed_methods, reason = "a driver reads the clock for the core")]

mod abandoned;
mod address;
mod admin;
mod ahead;
mod body;
mod certificate;
pub mod config;
mod connect;
mod connection;
mod costs;
pub mod dashboard;
mod edge;
mod egress;
mod entry;
mod exempt;
mod explain;
mod files;
mod forward;
mod h1;
mod h2;
mod headers;
mod health;
mod hops;
mod inbound;
mod inflight;
mod journal;
mod jwt;
mod leases;
mod leash;
mod listen;
mod log;
mod machine;
mod metrics;
mod model;
mod operate;
mod orca;
mod outbound;
mod outlets;
mod places;
mod process;
mod proxy_protocol;
mod rarely;
mod reentry;
pub mod reference;
mod refusals;
mod report;
mod resets;
mod seats;
mod server;
mod sideline;
mod signals;
mod socket;
mod spare;
mod tls;
mod trace;
mod tunnel;
mod upload;
mod upstream;
mod verdict;
mod watch;
mod worker;

pub use config::{Address, EdgeConfig, File, Percent, ProxyConfig, Rule, Trust, Version};
pub use log::Log;
pub use server::{Handle, Server, Source, StartError};
