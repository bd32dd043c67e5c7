//! Requests refused before their body was read: short bodies keep the connection, long ones do not.

#![allow(clippy::disallowed_methods, reason = "tests of a driver wait for real sockets")]

mod common;

use std::convert::Infallible;
use std::net::SocketAddr;

use bytes::Bytes;
use common::{Function, serve};
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use tidegate_core::gate::{Gate, GateConfig};
use tidegate_core::{Context, Instant};
use tidegate_driver::SharedGate;
use tidegate_http::GateLayer;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tower_layer::Layer;

/// Serves behind a gate that is full for ever.
async fn full() -> SocketAddr {
    let text =
        "queue_limit = 1\nadmission = { policy = 'open' }\nslots = { slots = 'fixed', count = 1 }";
    let config = GateConfig::from_toml(text).expect("valid");
    let mut gate = Gate::new(&config, Instant::ZERO, 1).expect("checked");
    for _ in 0..2 {
        gate.arrive(Instant::ZERO, &Context::default()).expect("there is room");
        gate.dispatch(Instant::ZERO);
        while gate.poll().is_some() {}
    }
    let handler = Function(|_: Request<Incoming>| async {
        Ok::<_, Infallible>(Response::new(Full::<Bytes>::from("healthy")))
    });
    serve(GateLayer::new(SharedGate::new(gate)).layer(handler)).await
}

/// Sends the head of a request with a body of so many bytes, hears the refusal, sends the body, and asks
/// for health on the same connection. What came after the refusal; empty if the connection was closed.
async fn refused_then_healthy(length: usize, more: &str) -> String {
    let mut stream = TcpStream::connect(full().await).await.expect("connects");
    let head = format!("POST / HTTP/1.1\r\nhost: x\r\ncontent-length: {length}\r\n{more}\r\n");
    stream.write_all(head.as_bytes()).await.expect("sent");
    let mut heard = Vec::new();
    while !String::from_utf8_lossy(&heard).contains("\"advice\"") {
        assert_ne!(stream.read_buf(&mut heard).await.expect("read"), 0, "the refusal comes first");
    }
    assert!(heard.starts_with(b"HTTP/1.1 503"), "{}", String::from_utf8_lossy(&heard));
    // A server that closes may do so at any byte from here on.
    let mut rest = vec![b'x'; length];
    rest.extend_from_slice(b"GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
    let _ = stream.write_all(&rest).await;
    let mut after = Vec::new();
    let _ = stream.read_to_end(&mut after).await;
    String::from_utf8_lossy(&after).into_owned()
}

#[tokio::test]
async fn a_short_body_is_read_and_the_connection_kept() {
    let after = refused_then_healthy(60_000, "").await;
    assert!(after.contains("200 OK") && after.ends_with("healthy"), "{after}");
}

#[tokio::test]
async fn a_long_body_is_not_worth_a_connection() {
    assert_eq!(refused_then_healthy(4 << 20, "").await, "");
}

#[tokio::test]
async fn who_asks_before_it_sends_is_not_asked_for_its_body() {
    assert!(!refused_then_healthy(10, "expect: 100-continue\r\n").await.contains("100 Continue"));
}
