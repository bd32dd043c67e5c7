//! What does the layer cost a request that does nothing, while there is no overload?
//!
//! ```text
//! cargo run --release -p tidegate-http --example price               # nanoseconds, side by side
//! valgrind --tool=callgrind price inside 20000                       # instructions: twice, and the difference
//! ```
//!
//! A service that answers at once is called without sockets, bare and behind the layer: `edge` for
//! strangers, `inside` with a context that is read and feedback that is written, `refuse` with a gate that
//! lets nobody in. Strangers have credentials and no context; `bare-inside` is bare with one.

#![allow(clippy::disallowed_methods, reason = "a program that measures real time")]

use std::convert::Infallible;
use std::future::{Ready, poll_fn, ready};
use std::pin::pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use http_body_util::{Empty, Full};
use tidegate_core::Span;
use tidegate_core::gate::GateConfig;
use tidegate_driver::SharedGate;
use tidegate_http::{GateLayer, Trust};
use tower_layer::Layer;
use tower_service::Service;

const WAYS: [&str; 5] = ["bare", "edge", "bare-inside", "inside", "refuse"];
/// What each is compared with.
const BARE: [usize; WAYS.len()] = [0, 0, 2, 2, 2];
const ROUNDS: usize = 7;
const REQUESTS: u32 = 200_000;

fn main() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let args: Vec<String> = std::env::args().skip(1).collect();
    runtime.expect("built").block_on(async {
        if let [way, count] = &args[..] {
            run(way, count.parse().expect("a number of requests")).await;
            return;
        }
        // In turns, the best of each: what disturbs only adds.
        let mut best = [Duration::MAX; WAYS.len()];
        for _ in 0..ROUNDS {
            for (way, best) in WAYS.iter().zip(&mut best) {
                let begun = Instant::now();
                run(way, REQUESTS).await;
                *best = begun.elapsed().min(*best);
            }
        }
        let nanos = best.map(|time| (time / REQUESTS).as_nanos() as i64);
        for ((way, nanos_here), bare) in WAYS.iter().zip(nanos).zip(BARE) {
            let more = nanos_here - nanos[bare];
            println!("{way:<12} {nanos_here:>6} ns, {more:>6} ns more than {}", WAYS[bare]);
        }
    });
}

async fn run(way: &str, count: u32) {
    let listens = !matches!(way, "bare" | "edge");
    if way.starts_with("bare") {
        return requests(Nothing, count, listens).await;
    }
    let gate = SharedGate::build(&GateConfig::default()).expect("the defaults are valid");
    if way == "refuse" {
        gate.input(|gate, _| gate.drain());
    }
    let layer = GateLayer::new(gate).patience(Span::from_secs(1));
    let trust = if way == "edge" { Trust::Edge } else { Trust::Inside };
    requests(layer.trust(trust).layer(Nothing), count, listens).await;
}

/// Calls the service so often, each time to the last byte of the answer; by callers that have a context or not.
async fn requests<S, B>(mut service: S, count: u32, listens: bool)
where
    S: Service<Request<Empty<Bytes>>, Response = Response<B>, Error = Infallible>,
    B: Body<Data = Bytes, Error = Infallible>,
{
    for number in 0..count {
        let mut request = Request::get("http://localhost/items/17")
            .header("host", "localhost")
            .header("accept", "*/*")
            .header("user-agent", "price")
            .header("authorization", "Bearer 6d1b1f2e9c");
        if listens {
            let context = format!("r=(24 {}), c=\"00000000000000ff\"", number as u16);
            request = request.header("overload-context", context);
        }
        let request = request.body(Empty::new()).expect("a valid request");
        let Ok(response) = service.call(request).await;
        let mut body = pin!(response.into_body());
        while poll_fn(|cx| body.as_mut().poll_frame(cx)).await.is_some() {}
    }
}

#[derive(Clone)]
struct Nothing;

impl Service<Request<Empty<Bytes>>> for Nothing {
    type Response = Response<Full<Bytes>>;
    type Error = Infallible;
    type Future = Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _request: Request<Empty<Bytes>>) -> Self::Future {
        ready(Ok(Response::new(Full::from("done\n"))))
    }
}
