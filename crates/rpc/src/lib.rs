//! Native RPC over TCP for services whose requests take microseconds, where refusing at the server
//! costs as much as serving: credits keep what cannot be served at its callers.
//!
//! A [`Server`] puts a gate with any policy before a [`Handler`]; a [`Client`] calls servers through a
//! caller with any throttle. They speak binary frames ([`wire`]) with everything that `Context` and
//! `Feedback` carry. Both are drivers of `tidegate-core`: they decide nothing about load.
//!
//! ```
//! use tidegate_rpc::{CallError, Client, Failure, Server, blocking};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let server = Server::builder().bind("127.0.0.1:0", blocking(|request| match request.method {
//!     1 => Ok(request.payload),
//!     other => Err(Failure::new(404, format!("there is no method {other}"))),
//! }))?;
//! let client = Client::builder().endpoint(server.address()).build()?;
//! assert_eq!(client.call(1, "hello").await?, "hello");
//! assert!(matches!(client.call(2, "").await, Err(CallError::Failed(f)) if f.code == 404));
//! client.close().await;
//! server.close(std::time::Duration::from_secs(1)).await;
//! # Ok(()) }
//! ```

#![allow(
    clippy::disallowed_methods,
    reason = "a driver reads clocks and runs threads; decisions are made in tidegate-core"
)]

mod client;
mod error;
mod handler;
mod server;
mod watch;
pub mod wire;

pub use bytes::Bytes;
pub use client::{Call, Client, ClientBuilder, Upstream};
pub use error::{Broken, CallError, StartError};
pub use handler::{Answer, Handler, Reply, Request, Working, asynchronous, blocking};
pub use server::{Counts, RpcGate, Server, ServerBuilder};
pub use tidegate_driver::context::Parent;
pub use wire::{Failure, Limits};
