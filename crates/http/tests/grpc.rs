//! A real gRPC client: Python's grpcio, by the interpreter that `PYTHON` names, else `python3`.
//! Where that has no grpcio the test says so.

#![allow(clippy::disallowed_methods, reason = "tests of a driver wait for real sockets")]

mod common;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use common::Function;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::service::TowerToHyperService;
use tidegate_core::gate::{Gate, GateConfig};
use tidegate_core::{Context, Instant};
use tidegate_driver::SharedGate;
use tidegate_http::{GateBody, GateLayer};
use tokio::net::TcpListener;
use tower_layer::Layer;
use tower_service::Service;

/// One runs, one waits, and the next is refused.
const FULL_AT_TWO: &str =
    "queue_limit = 1\nadmission = { policy = 'open' }\nslots = { slots = 'fixed', count = 1 }";

fn python() -> String {
    std::env::var("PYTHON").unwrap_or_else(|_| "python3".to_owned())
}

fn has_grpcio() -> bool {
    let probe = Command::new(python()).args(["-c", "import grpc"]).output();
    probe.is_ok_and(|output| output.status.success())
}

/// What the client prints.
async fn client(address: SocketAddr, mode: &'static str) -> String {
    let script =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/clients/grpc_refused.py");
    let run =
        move || Command::new(python()).arg(script).arg(address.to_string()).arg(mode).output();
    let output = tokio::task::spawn_blocking(run).await.expect("no panic").expect("it runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

/// Serves HTTP/2 and counts the requests it hears.
async fn serve<S>(mut service: S) -> (SocketAddr, Arc<AtomicUsize>)
where
    S: Service<Request<Incoming>, Error = Infallible> + Clone + Send + 'static,
    S: Service<Request<Incoming>, Response = Response<GateBody<Full<Bytes>>>>,
    S::Future: Send,
{
    let heard = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&heard);
    let counting = Function(move |request| {
        counted.fetch_add(1, Ordering::SeqCst);
        service.call(request)
    });
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("bound");
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.expect("accepts");
            let (io, service) = (TokioIo::new(stream), TowerToHyperService::new(counting.clone()));
            tokio::spawn(async move {
                // Connections that clients drop end with an error, as they should.
                let _ = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
                    .serve_connection(io, service)
                    .await;
            });
        }
    });
    (address, heard)
}

/// A gate that is full: retry elsewhere. With `retried` it has heard so many retries that it says
/// not to.
fn full(retried: bool) -> SharedGate {
    let config = GateConfig::from_toml(FULL_AT_TWO);
    let mut gate = Gate::new(&config.expect("valid"), Instant::ZERO, 1).expect("checked");
    for _ in 0..2 {
        gate.arrive(Instant::ZERO, &Context::default()).expect("there is room");
        gate.dispatch(Instant::ZERO);
        while gate.poll().is_some() {}
    }
    for _ in 0..if retried { 10_000 } else { 0 } {
        let retry = Context { attempt: 1, ..Context::default() };
        assert!(gate.arrive(Instant::ZERO, &retry).is_err());
    }
    SharedGate::new(gate)
}

/// Told to retry, it does, as often as its policy has it; told not to, it does not.
#[tokio::test]
async fn grpcio_does_as_it_is_told() {
    if !has_grpcio() {
        eprintln!("skipped: {} has no grpcio", python());
        return;
    }
    for (retried, mode, attempts, pushback) in
        [(false, "once", 1, "1"), (false, "retry", 3, "1"), (true, "retry", 1, "-1")]
    {
        let handler = Function(|_: Request<Incoming>| async {
            Ok::<_, Infallible>(Response::new(Full::<Bytes>::default()))
        });
        let (address, heard) = serve(GateLayer::new(full(retried)).layer(handler)).await;
        let told = client(address, mode).await;
        assert!(told.starts_with("UNAVAILABLE\nthe queue is full"), "{told}");
        assert!(told.contains(&format!("grpc-retry-pushback-ms {pushback}\n")), "{told}");
        assert_eq!(heard.load(Ordering::SeqCst), attempts, "{mode}, {told}");
    }
}
