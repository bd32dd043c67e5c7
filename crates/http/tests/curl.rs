//! A real client that never heard of us: curl. Where it is not installed the test says so.

#![allow(clippy::disallowed_methods, reason = "tests of a driver wait for real sockets")]

mod common;

use std::net::SocketAddr;
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use common::{Client, Function, get, serve, until};
use http::{Request, Response};
use http_body_util::Full;
use tidegate_core::gate::GateConfig;
use tidegate_driver::SharedGate;
use tidegate_http::GateLayer;
use tower_layer::Layer;
use tower_service::Service;

/// One runs, one waits, and the next is refused.
const FULL_AT_TWO: &str =
    "queue_limit = 1\nadmission = { policy = 'open' }\nslots = { slots = 'fixed', count = 1 }";

/// Runs curl, away from the runtime's thread; none if there is no curl.
async fn curl(arguments: Vec<String>) -> Option<Output> {
    let run = move || Command::new("curl").args(arguments).output();
    match tokio::task::spawn_blocking(run).await.expect("no panic") {
        Ok(output) => Some(output),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
        Err(error) => panic!("curl: {error}"),
    }
}

fn arguments(address: SocketAddr, more: &[&str], paths: &[&str]) -> Vec<String> {
    let urls = paths.iter().map(|path| format!("http://{address}{path}"));
    ["-s", "-i", "-v", "--max-time", "60"]
        .iter()
        .chain(more)
        .map(|argument| (*argument).to_owned())
        .chain(urls)
        .collect()
}

/// Two refusals and a health check over one connection; then, with `--retry`, curl waits as long as
/// `Retry-After` says and is served.
#[tokio::test]
async fn curl_reads_refusals_and_keeps_its_connection() {
    let config = GateConfig::from_toml(FULL_AT_TWO);
    let gate = SharedGate::build(&config.expect("valid")).expect("checked");
    let handler = Function(|request: Request<hyper::body::Incoming>| async move {
        if request.uri().path() == "/wait" {
            std::future::pending::<()>().await;
        }
        Ok::<_, std::convert::Infallible>(Response::new(Full::<Bytes>::from("served\n")))
    });
    let refused = Arc::new(AtomicUsize::new(0));
    let (counted, mut service) =
        (Arc::clone(&refused), GateLayer::new(gate.clone()).layer(handler));
    let counting = Function(move |request| {
        let (counted, answer) = (Arc::clone(&counted), service.call(request));
        async move {
            let answer = answer.await?;
            counted.fetch_add(usize::from(answer.status() == 503), Ordering::SeqCst);
            Ok(answer)
        }
    });
    let address = serve(counting).await;
    let mut busy = Vec::new();
    for count in 1..=2 {
        busy.push(tokio::spawn(Client(address).call(get("/wait"))));
        until(|| gate.running() as usize + gate.waiting() == count).await;
    }
    let paths = ["/a", "/b", "/healthz"];
    let Some(output) = curl(arguments(address, &[], &paths)).await else {
        eprintln!("skipped: curl is not installed");
        return;
    };
    let (out, log) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(out.matches("HTTP/1.1 503").count(), 2, "{out}");
    assert_eq!(out.matches("retry-after: ").count(), 2, "{out}");
    assert_eq!(out.matches("application/problem+json").count(), 2, "{out}");
    assert!(out.ends_with("served\n"), "{out}");
    assert!(!out.contains("overload-feedback"), "nothing leaks at an edge: {out}");
    assert_eq!(log.to_lowercase().matches("using existing").count(), 2, "{log}");

    // Refused and told when to come back, it finds room then.
    let before = refused.load(Ordering::SeqCst);
    let waits = tokio::spawn(curl(arguments(address, &["--retry", "5"], &["/later"])));
    until(|| refused.load(Ordering::SeqCst) > before).await;
    busy.iter().for_each(tokio::task::JoinHandle::abort);
    let output = waits.await.expect("no panic").expect("it is installed");
    assert!(text(&output.stdout).contains("HTTP/1.1 200"), "{}", text(&output.stdout));
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
