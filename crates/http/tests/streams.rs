//! Responses that take long give their slot back, and are counted until they end.

#![allow(clippy::disallowed_methods, reason = "tests of a driver wait for real sockets")]

mod common;

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use bytes::Bytes;
use common::{Client, Function, get, serve, until};
use http::{Request, Response, StatusCode};
use http_body::{Body, Frame};
use http_body_util::Empty;
use tidegate_core::Span;
use tidegate_core::gate::GateConfig;
use tidegate_driver::SharedGate;
use tidegate_http::GateLayer;
use tokio::sync::mpsc;
use tower_layer::Layer;
use tower_service::Service;

/// A body of unknown length, fed from outside.
struct Channel(mpsc::Receiver<Bytes>);

impl Body for Channel {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.poll_recv(cx).map(|bytes| bytes.map(|bytes| Ok(Frame::data(bytes))))
    }
}

/// A gate with one slot; every response is fed by the sender that is returned for it.
fn layer(stream_limit: usize) -> GateLayer {
    let config = GateConfig::from_toml(
        "admission = { policy = 'open' }\nslots = { slots = 'fixed', count = 1 }",
    )
    .expect("valid");
    let gate = SharedGate::build(&config).expect("checked");
    GateLayer::new(gate).stream_after(Span::from_millis(20)).stream_limit(stream_limit)
}

type Senders = Arc<Mutex<Vec<mpsc::Sender<Bytes>>>>;

async fn start(layer: &GateLayer) -> (Client, Senders) {
    let senders = Senders::default();
    let kept = Arc::clone(&senders);
    let handler = Function(move |_: Request<hyper::body::Incoming>| {
        let (sender, receiver) = mpsc::channel(4);
        kept.lock().unwrap().push(sender);
        async { Ok::<_, Infallible>(Response::new(Channel(receiver))) }
    });
    (Client(serve(layer.layer(handler)).await), senders)
}

#[tokio::test]
async fn a_stream_gives_its_slot_back_and_is_counted_until_it_ends() {
    let layer = layer(1);
    let gate = layer.gate().clone();
    let (mut client, senders) = start(&layer).await;
    let first = tokio::spawn(client.call(get("/")));
    until(|| layer.streams() == 1 && gate.running() == 0).await;
    // Its slot is free for the next, which becomes no stream as there is one already.
    let second = tokio::spawn(client.call(get("/")));
    until(|| gate.running() == 1 && senders.lock().unwrap().len() == 2).await;
    let third = tokio::spawn(client.call(get("/")));
    until(|| gate.waiting() == 1).await;
    assert_eq!((layer.streams(), senders.lock().unwrap().len()), (1, 2));
    // The first ends; the second takes its place among the streams, and the third the slot.
    senders.lock().unwrap().remove(0);
    assert_eq!(first.await.unwrap().expect("whole").status(), StatusCode::OK);
    until(|| layer.streams() == 1 && gate.running() == 1 && gate.waiting() == 0).await;
    // One is given up by its client, the other ends.
    second.abort();
    until(|| senders.lock().unwrap().len() == 2).await;
    senders.lock().unwrap().clear();
    assert_eq!(third.await.unwrap().expect("whole").status(), StatusCode::OK);
    until(|| layer.streams() == 0 && gate.running() == 0 && gate.tickets() == 0).await;
}

/// Bytes that keep coming do not make an answer a stream before its time, and a body that ends in
/// time never is one.
#[tokio::test]
async fn an_answer_in_time_is_no_stream() {
    let layer = layer(10).stream_after(Span::from_secs(3600));
    let gate = layer.gate().clone();
    let (mut client, senders) = start(&layer).await;
    let answer = tokio::spawn(client.call(get("/")));
    until(|| !senders.lock().unwrap().is_empty()).await;
    let sender = senders.lock().unwrap().remove(0);
    for _ in 0..3 {
        sender.send(Bytes::from("part ")).await.expect("somebody reads");
        assert_eq!(gate.running(), 1);
    }
    drop(sender);
    let answer = answer.await.unwrap().expect("whole");
    assert_eq!(common::text(answer.into_body()).await, "part part part ");
    until(|| gate.running() == 0).await;
    assert_eq!(layer.streams(), 0);
}

/// What follows an upgrade is no longer HTTP: it holds no slot and says nothing about load.
#[tokio::test]
async fn an_upgrade_gives_its_slot_back_with_its_answer() {
    let layer = GateLayer::default();
    let mut service = layer.layer(Function(|_: Request<Empty<Bytes>>| async {
        let upgrade = Response::builder().status(101).body(Empty::<Bytes>::new());
        Ok::<_, Infallible>(upgrade.expect("valid"))
    }));
    let Ok(response) = service.call(Request::new(Empty::new())).await;
    assert_eq!(response.status(), 101);
    assert_eq!((layer.gate().running(), layer.streams()), (0, 0), "before its body is dropped");
}
