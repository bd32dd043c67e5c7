//! Load generators that never heard of us, against a gate that is overloaded: wrk over HTTP/1.1, h2load
//! over HTTP/2. Where one is not installed its test says so.
//!
//! They keep connections open through thousands of refusals and count every answer; nothing is lost,
//! nothing breaks, and the gate is empty afterwards.

#![allow(clippy::disallowed_methods, reason = "tests of a driver wait for real sockets")]

mod common;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::process::Command;
use std::time::Duration;

use bytes::Bytes;
use common::{Function, serve, until};
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::service::TowerToHyperService;
use tidegate_core::gate::GateConfig;
use tidegate_driver::SharedGate;
use tidegate_http::GateLayer;
use tokio::net::TcpListener;
use tower_layer::Layer;

/// Two run, eight wait, and the rest is refused.
const SMALL: &str =
    "queue_limit = 8\nadmission = { policy = 'open' }\nslots = { slots = 'fixed', count = 2 }";

fn gate() -> SharedGate {
    SharedGate::build(&GateConfig::from_toml(SMALL).expect("valid")).expect("checked")
}

async fn handler(_: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    tokio::time::sleep(Duration::from_millis(1)).await;
    Ok(Response::new(Full::from("served\n")))
}

/// What `program` prints; none if it is not installed.
async fn run(program: &'static str, arguments: Vec<String>) -> Option<String> {
    let run = move || Command::new(program).args(arguments).output();
    match tokio::task::spawn_blocking(run).await.expect("no panic") {
        Ok(output) => {
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
            Some(text)
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            eprintln!("skipped: {program} is not installed");
            None
        }
        Err(error) => panic!("{program}: {error}"),
    }
}

/// The first number in the line that contains `label`, after it or before it.
fn number(text: &str, label: &str) -> u64 {
    let line = text.lines().find(|line| line.contains(label));
    let line = line.unwrap_or_else(|| panic!("{label} in {text}"));
    let digits = |text: &str| {
        let mut words = text.split(|c: char| !c.is_ascii_digit());
        words.rfind(|word| !word.is_empty()).map(|word| word.parse().expect("digits"))
    };
    let (before, after) = line.split_once(label).expect("found above");
    let first = after.split(',').next().unwrap_or_default();
    digits(before).or_else(|| digits(first)).unwrap_or_else(|| panic!("{label} in {line}"))
}

fn arguments(text: &str, address: SocketAddr) -> Vec<String> {
    let url = format!("http://{address}/");
    text.split(' ').map(str::to_owned).chain([url]).collect()
}

#[tokio::test]
async fn wrk_meets_refusals_and_keeps_its_connections() {
    let gate = gate();
    let address = serve(GateLayer::new(gate.clone()).layer(Function(handler))).await;
    let Some(text) = run("wrk", arguments("-t1 -c64 -d1s", address)).await else { return };
    assert!(!text.contains("Socket errors"), "{text}");
    let (all, refused) =
        (number(&text, " requests in"), number(&text, "Non-2xx or 3xx responses:"));
    assert!(0 < refused && refused < all, "{text}");
    until(|| gate.running() == 0 && gate.waiting() == 0).await;
}

#[tokio::test]
async fn h2load_meets_refusals_and_keeps_its_connections() {
    let gate = gate();
    let service = GateLayer::new(gate.clone()).layer(Function(handler));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("bound");
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.expect("accepts");
            let (io, service) = (TokioIo::new(stream), TowerToHyperService::new(service.clone()));
            tokio::spawn(async move {
                // Connections that clients drop end with an error, as they should.
                let _ = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
                    .max_concurrent_streams(10_000)
                    .serve_connection(io, service)
                    .await;
            });
        }
    });
    let Some(text) = run("h2load", arguments("-n2000 -c4 -m64", address)).await else { return };
    let (good, refused) = (number(&text, " 2xx"), number(&text, " 5xx"));
    assert_eq!((number(&text, " errored"), number(&text, " timeout")), (0, 0), "{text}");
    assert!(0 < good && 0 < refused && good + refused == 2_000, "{text}");
    until(|| gate.running() == 0 && gate.waiting() == 0).await;
}
