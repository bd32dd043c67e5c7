//! Ranks end to end: a shop of three tiers, each with its gate, in one process and over sockets.
//!
//! ```text
//! customers ─► edge (assigns ranks) ─► orders ─► stock (the bottleneck)
//! ```
//!
//! Customers pay and browse, together twice as often as `stock` can serve. The rank that the edge
//! gives a request goes with it to the last tier, and what that lets in comes back the same way: the
//! payments go through, and most of what is refused is refused at the edge, before anything was done.
//!
//! ```text
//! cargo run -p example-three-tiers
//! ```

mod net;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use net::{Client, Function, get, serve};
use tidegate::caller::CallerConfig;
use tidegate::config::ConfigError;
use tidegate::entry::{Entry, EntryConfig};
use tidegate::gate::{CalleeId, GateConfig};
use tidegate::http::GateBody;
use tidegate::{CallerLayer, GateLayer, SharedCaller, SharedGate, Trust};
use tower_layer::Layer;
use tower_service::Service;

/// How long `stock` takes for one request, and how many it serves at once: 400 per second.
const WORK: Duration = Duration::from_millis(5);
const STOCK: &str = "admission = { policy = 'tide', objective = '100ms' }
slots = { slots = 'fixed', count = 2 }";
/// The tiers before it only pass requests on.
const OTHERS: &str = "admission = { policy = 'tide', objective = '100ms' }
slots = { slots = 'fixed', count = 64 }";
/// Calls leave by the cursors and windows that the callee's gate announces.
const CALLER: &str = "throttle = { throttle = 'credit' }";

/// What customers do, how important it is, and how often per second.
const ACTIONS: [(&str, u8, u32); 2] = [("/pay", 1, 200), ("/browse", 40, 600)];
const SECONDS: u32 = 3;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let stock_served = Arc::new(AtomicU32::new(0));
    let served = Arc::clone(&stock_served);
    let stock = Function(move |_: Request<_>| {
        served.fetch_add(1, Ordering::Relaxed);
        async {
            tokio::time::sleep(WORK).await;
            Ok(Response::new(Full::<Bytes>::from("in stock\n")))
        }
    });
    let gate = SharedGate::build(&GateConfig::from_toml(STOCK)?)?;
    let stock = serve(GateLayer::new(gate).trust(Trust::Inside).layer(stock)).await?;

    let gate = SharedGate::build(&GateConfig::from_toml(OTHERS)?)?;
    let handler = pass_on(&gate, stock)?;
    let orders = serve(GateLayer::new(gate).trust(Trust::Inside).layer(handler)).await?;

    let ranks = ACTIONS.map(|(path, business, _)| (format!("GET {path}"), business));
    let entry = EntryConfig { actions: Some(ranks.into_iter().collect()) };
    let gate = SharedGate::build(&GateConfig::from_toml(OTHERS)?)?;
    let handler = pass_on(&gate, orders)?;
    let layer = GateLayer::new(gate).entry(Entry::new(&entry, *b"0123456789abcdef"));
    let edge = serve(layer.layer(handler)).await?;

    let customers = ACTIONS.map(|action| tokio::spawn(customers(edge, action)));
    for (customers, (path, business, _)) in customers.into_iter().zip(ACTIONS) {
        let (served, sent) = customers.await?;
        println!("{path:8} business rank {business:2}: {served:4} of {sent:4} served");
    }
    println!("stock worked {} times", stock_served.load(Ordering::Relaxed));
    Ok(())
}

/// A tier that asks the next one. Its gate hears what that one lets in, and refuses in its name.
fn pass_on(
    gate: &SharedGate,
    next: SocketAddr,
) -> Result<
    impl Service<
        Request<Incoming>,
        Response = Response<GateBody<Full<Bytes>>>,
        Error = Infallible,
        Future: Send,
    > + Clone
    + Send
    + 'static,
    ConfigError,
> {
    let caller = SharedCaller::build(&CallerConfig::from_toml(CALLER)?, 1)?;
    let layer = CallerLayer::new(caller).upstream(gate.clone(), CalleeId(0));
    let next = layer.layer(Client(next));
    Ok(Function(move |_: Request<Incoming>| {
        // The call inherits the context of the request it is made for.
        let call = next.clone().call(get("/"));
        async { Ok(call.await.unwrap_or_else(|error| panic!("sockets of ours work: {error}"))) }
    }))
}

/// Sends requests evenly spaced, whatever becomes of them, and counts those that are served.
async fn customers(edge: SocketAddr, action: (&'static str, u8, u32)) -> (u32, u32) {
    let (path, _, per_second) = action;
    let mut ticks = tokio::time::interval(Duration::from_secs(1) / per_second);
    let mut requests = Vec::new();
    for user in 0..per_second * SECONDS {
        ticks.tick().await;
        let mut request = get(path);
        let name = HeaderValue::try_from(format!("Bearer user-{}", user % 100)).expect("ascii");
        request.headers_mut().insert(http::header::AUTHORIZATION, name);
        requests.push(tokio::spawn(Client(edge).call(request)));
    }
    let (mut served, sent) = (0, requests.len() as u32);
    for request in requests {
        served +=
            u32::from(matches!(request.await, Ok(Ok(answer)) if answer.status().is_success()));
    }
    (served, sent)
}
