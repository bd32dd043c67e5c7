//! Tower layers for HTTP and gRPC: a gate before services, and what they tell each other on the wire.
//!
//! [`GateLayer`] is the server side: always ready, decides each arrival in `call` itself, refuses
//! with a response and never with an error, and keeps the queue in the gate. [`CallerLayer`] is the
//! client side: sends, holds or rejects, passes on the context of the request it works for, learns
//! from every answer, and retries within a budget. [`wire`] is what the two tell each other.
//!
//! ```
//! use std::convert::Infallible;
//!
//! use http::{Request, Response};
//! use http_body_util::Full;
//! use tidegate_core::gate::GateConfig;
//! use tidegate_driver::SharedGate;
//! use tidegate_http::GateLayer;
//! use tower_layer::Layer;
//! # use bytes::Bytes; type Body = http_body_util::Empty<Bytes>;
//! # use std::{future::{Ready, ready}, task::{Context, Poll}};
//! # #[derive(Clone)] struct Hello;
//! # impl tower_service::Service<Request<Body>> for Hello {
//! #     type Response = Response<Full<Bytes>>; type Error = Infallible;
//! #     type Future = Ready<Result<Self::Response, Infallible>>;
//! #     fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> { Poll::Ready(Ok(())) }
//! #     fn call(&mut self, _: Request<Body>) -> Self::Future { ready(Ok(Response::new(Full::from("hello")))) }
//! # }
//!
//! let gate = SharedGate::build(&GateConfig::default())?;
//! let service = GateLayer::new(gate).layer(Hello);
//! # let _ = service;
//! # Ok::<(), tidegate_core::config::ConfigError>(())
//! ```

#![allow(clippy::disallowed_methods, reason = "a driver reads the clock for the core")]

mod body;
pub mod client;
pub mod identity;
pub mod path;
pub mod server;
mod spawn;
pub mod wire;

pub use body::GateBody;
pub use client::CallerLayer;
pub use server::{GateLayer, Trust};
pub use spawn::spawn;
