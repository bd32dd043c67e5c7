//! Overload control for services: whatever load arrives, the service keeps serving at its peak rate
//! within its latency objective, and what has to be refused is refused early, cheaply, and
//! least-important-first.
//!
//! This is the crate to depend on. It re-exports [`tidegate_core`], where every decision is made by
//! two state machines without I/O, clock or threads: [`Gate`] before a service, [`Caller`] before
//! the calls it makes. Whoever drives them supplies time, carries messages, and runs handlers.
//!
//! # Quick start: one call, from a caller through a gate and back
//!
//! ```
//! use tidegate::caller::{CallAction, CallerConfig, Next};
//! use tidegate::gate::{Action, GateConfig};
//! use tidegate::throttle::Answer;
//! use tidegate::{Caller, Context, Cost, Gate, Instant, Outcome, Span};
//!
//! // Both sides are built from TOML; every parameter has a default. The last argument is the seed.
//! let config = GateConfig::from_toml("slots = { slots = 'fixed', count = 2 }")?;
//! let mut gate = Gate::new(&config, Instant::ZERO, 1)?;
//! let mut caller = Caller::new(&CallerConfig::default(), 1, Instant::ZERO, 2)?;
//! let now = Instant::ZERO + Span::from_micros(10);
//!
//! // The application calls. The caller rejects at once, holds, or says what to transmit.
//! let deadline = now + Span::from_millis(50);
//! let call = caller.submit(now, &Context { deadline, ..Context::default() }).unwrap();
//! let Some(CallAction::Transmit { id, context, .. }) = caller.poll() else { panic!() };
//! assert_eq!(id, call);
//!
//! // The server: any number of arrivals, then one dispatch, then drain the actions.
//! let request = gate.arrive(now, &context).unwrap();
//! gate.dispatch(now);
//! assert_eq!(gate.poll(), Some(Action::Start { id: request, degraded: false }));
//! assert_eq!(gate.poll(), None);
//!
//! // The handler has run for 3 ms; its answer carries feedback to the caller.
//! let now = now + Span::from_millis(3);
//! gate.finish(now, request, Outcome::Serve, Cost::from(Span::from_millis(3)));
//! gate.dispatch(now);
//! let feedback = gate.feedback(now, context.caller, context.workflow);
//! let answer = Answer::Done(Outcome::Serve);
//! assert_eq!(caller.respond(now, call, answer, Some(&feedback)), Next::Over(answer));
//! # Ok::<(), tidegate::config::ConfigError>(())
//! ```

#![cfg_attr(
    feature = "http",
    doc = r#"
# HTTP and gRPC in one line, or three

With the feature `http`, a gate is a tower layer for axum, hyper or tonic, and a caller one for their
clients. A refusal is a response, with a status, a reason and advice that any client understands.

```
use tidegate::{GateLayer, SharedGate, gate::GateConfig};
# use tower_layer::Layer; use tower_service::Service; use http::{Request, Response};
# use std::{convert::Infallible, future::{Ready, ready}, task::{Context, Poll}};
# type Body = http_body_util::Full<&'static [u8]>;
# #[derive(Clone)] struct MyService;
# impl Service<Request<Body>> for MyService {
#     type Response = Response<http_body_util::Full<&'static [u8]>>; type Error = Infallible;
#     type Future = Ready<Result<Self::Response, Infallible>>;
#     fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> { Poll::Ready(Ok(())) }
#     fn call(&mut self, _: Request<Body>) -> Self::Future { ready(Ok(Response::default())) }
# }
# #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tidegate::config::ConfigError> {

// Without configuration: the objective is learned, the number of slots found by trial.
let mut service = GateLayer::default().layer(MyService);
# assert_eq!(service.call(Request::new(Body::default())).await.unwrap().status(), 200);

let config = GateConfig::from_toml("admission = { policy = 'tide', objective = '50ms' }")?;
let gate = SharedGate::build(&config)?;
let mut service = GateLayer::new(gate).layer(MyService);
# assert_eq!(service.call(Request::new(Body::default())).await.unwrap().status(), 200);
# Ok(()) }
```
"#
)]
#![cfg_attr(
    feature = "rpc",
    doc = r#"
# Native RPC

With the feature `rpc`, a server whose gate gives credits and clients that keep what cannot be served,
for requests so short that refusing them costs as much as serving.

```
use tidegate::rpc::{CallError, Client, Server, blocking};
# #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {

let server = Server::builder().bind("127.0.0.1:0", blocking(|request| Ok(request.payload)))?;
let client = Client::builder().endpoint(server.address()).build()?;
match client.call(1, "hello").await {
    Ok(answer) => assert_eq!(answer, "hello"),
    Err(CallError::Refused(rejection)) => println!("turned away: {rejection}"),
    Err(failed) => return Err(failed.into()),
}
# Ok(()) }
```
"#
)]

pub use tidegate_core::*;

#[cfg(any(feature = "http", feature = "rpc"))]
pub use tidegate_driver::{self as driver, SharedCaller, SharedGate};
#[cfg(feature = "http")]
pub use tidegate_http::{self as http, CallerLayer, GateLayer, Trust, spawn};
#[cfg(feature = "rpc")]
pub use tidegate_rpc as rpc;
