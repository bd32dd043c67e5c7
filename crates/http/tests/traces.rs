//! The traces of `testdata/traces` through the server layer: the same verdicts, at the same moments,
//! as the bare gate gives.

use std::convert::Infallible;
use std::future::Future;
use std::path::Path;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use tidegate_core::gate::Gate;
use tidegate_core::testing::{Ending, Trace};
use tidegate_core::{Cost, Instant, Reason};
use tidegate_driver::{Clock, SharedGate};
use tidegate_http::wire::{self, Names};
use tidegate_http::{GateBody, GateLayer, Trust};
use tower_layer::Layer;
use tower_service::Service;

#[derive(Clone, Debug, Default)]
struct Manual(Arc<AtomicU64>);

impl Clock for Manual {
    fn now(&self) -> Instant {
        Instant::from_nanos(self.0.load(Ordering::SeqCst))
    }
}

/// A handler that takes as long as the trace says.
#[derive(Clone)]
struct Handler {
    trace: Arc<Trace>,
    clock: Manual,
    /// When each request's handler started.
    started: Arc<Mutex<Vec<Option<Instant>>>>,
}

/// Which request of the trace this is.
#[derive(Clone, Copy)]
struct Place(usize);

impl Service<Request<Full<Bytes>>> for Handler {
    type Response = Response<Full<Bytes>>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>>>>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Full<Bytes>>) -> Self::Future {
        let Place(place) = *request.extensions().get().expect("noted by the test");
        let (begun, clock) = (self.clock.now(), self.clock.clone());
        self.started.lock().unwrap()[place] = Some(begun);
        let service = self.trace.arrivals[place].service;
        Box::pin(std::future::poll_fn(move |_| {
            if clock.now() < begun + service {
                return Poll::Pending;
            }
            let mut response = Response::new(Full::default());
            response.extensions_mut().insert(Cost::from(service));
            Poll::Ready(Ok(response))
        }))
    }
}

type Answer = Pin<Box<dyn Future<Output = Result<Response<GateBody<Full<Bytes>>>, Infallible>>>>;

/// Plays `trace` through the layer, all futures polled at every moment at which something happens.
fn play(trace: Trace) -> Vec<Option<Ending>> {
    let trace = Arc::new(trace);
    let clock = Manual::default();
    let gate = Gate::new(&trace.gate, Instant::ZERO, 1).expect("parsed traces are valid");
    let started = Arc::new(Mutex::new(vec![None; trace.arrivals.len()]));
    let handler = Handler { trace: Arc::clone(&trace), clock: clock.clone(), started };
    let layer = GateLayer::new(SharedGate::with_clock(gate, clock.clone())).trust(Trust::Inside);
    let mut service = layer.layer(handler.clone());
    let mut endings = vec![None; trace.arrivals.len()];
    let mut under_way: Vec<(usize, Answer)> = Vec::new();
    let mut next = 0;
    loop {
        let arrival = trace.arrivals.get(next).map(|arrival| arrival.at);
        let finishes = under_way.iter().filter_map(|(place, _)| {
            let started = handler.started.lock().unwrap()[*place]?;
            Some(started + trace.arrivals[*place].service)
        });
        let Some(now) = finishes.chain(arrival).min() else { break };
        clock.0.store(now.since(Instant::ZERO).as_nanos(), Ordering::SeqCst);
        advance(&mut under_way, &mut endings, now);
        while let Some(arrival) = trace.arrivals.get(next).filter(|arrival| arrival.at <= now) {
            let mut request = Request::new(Full::default());
            let field = wire::write_context(&arrival.context, now, &Names::process());
            request.headers_mut().insert(wire::CONTEXT, field);
            request.extensions_mut().insert(Place(next));
            under_way.push((next, Box::pin(service.call(request))));
            next += 1;
        }
        advance(&mut under_way, &mut endings, now);
    }
    assert!(under_way.is_empty(), "every request ends");
    for (ending, started) in endings.iter_mut().zip(&*handler.started.lock().unwrap()) {
        *ending = ending.or(started.map(Ending::Serve));
    }
    endings
}

/// Polls everybody until nothing changes any more, and notes who was refused.
fn advance(under_way: &mut Vec<(usize, Answer)>, endings: &mut [Option<Ending>], now: Instant) {
    let mut cx = Context::from_waker(Waker::noop());
    // A start takes two polls, since it lets others be read first; a finish may start another.
    for _ in 0..2 * under_way.len() + 2 {
        under_way.retain_mut(|(place, answer)| match answer.as_mut().poll(&mut cx) {
            Poll::Pending => true,
            Poll::Ready(response) => {
                let response = response.expect("infallible");
                if response.status() != StatusCode::OK {
                    endings[*place] = Some(Ending::Refuse(reason(&response), now));
                }
                let mut body = Box::pin(response.into_body().collect());
                assert!(body.as_mut().poll(&mut cx).is_ready(), "the last byte ends the slot");
                false
            }
        });
    }
}

fn reason(response: &Response<GateBody<Full<Bytes>>>) -> Reason {
    let message = wire::feedback_of(response.headers()).expect("told").expect("well-formed");
    message.rejection.expect("refused").reason
}

#[tokio::test]
async fn the_layer_gives_the_verdicts_of_the_bare_gate() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/traces");
    let mut played = 0;
    for file in std::fs::read_dir(folder).expect("the traces are there") {
        let path = file.expect("readable").path();
        let trace = Trace::parse(&std::fs::read_to_string(&path).expect("text")).expect("a trace");
        let expected: Vec<_> = trace.arrivals.iter().map(|arrival| arrival.expected).collect();
        let names: Vec<_> = trace.arrivals.iter().map(|arrival| arrival.name.clone()).collect();
        for ((seen, expected), name) in play(trace).into_iter().zip(expected).zip(names) {
            assert_eq!(seen, Some(expected), "{}: request {name}", path.display());
        }
        played += 1;
    }
    assert!(played >= 4, "{played} traces");
}
