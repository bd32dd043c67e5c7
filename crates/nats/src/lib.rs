//! The messaging gate: rate-limited topics over ordinary NATS servers, for clients as they are.
//!
//! ```text
//!                ┌─ one thread: sockets, the hub ─┐
//!  NATS clients ─┤  read ─► decide ─► write       ├─ nats-server, nats-server, …  (no cluster)
//!                └────────────▲───────────────────┘
//!                  questions  │  signals, admin pages
//! ```
//!
//! A topic's (rate, burst) holds over all brokers together, by when messages arrived, and a message that finds no
//! token waits (SRTM). The gate ends the clients' protocol, chooses each publisher's broker, and merges what
//! subscribers get from all of them; clients and servers need not know of it.
//!
//! Read in this order: [`config`], [`wire`] (bytes), [`hub`] (what is decided, without a socket), `server`
//! (sockets), [`gate`](Gate) (threads, start and end), `admin`.

#![allow(clippy::disallowed_methods, reason = "a driver reads the clock for the core")]

mod admin;
pub mod calibrate;
pub mod config;
mod gate;
pub mod hub;
mod leases;
pub mod place;
mod probe;
mod server;
mod signals;
mod stream;
mod timer;
mod tls;
pub mod users;
pub mod wire;

pub use config::{
    Address, File, NatsConfig, PublisherRule, StreamsConfig, TlsConfig, TopicConfig, UserRule,
};
pub use gate::{Gate, Handle, Source, StartError};
