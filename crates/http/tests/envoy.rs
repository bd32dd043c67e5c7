//! A real Envoy in front: it retries, or not, as it is told. The variable `ENVOY` names the program; where
//! it is not set the test says so (`cargo xtask peers http` sets it).

#![allow(clippy::disallowed_methods, reason = "tests of a driver wait for real sockets")]

mod common;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use common::{Client, Function, get, serve};
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use tidegate_core::gate::{Gate, GateConfig};
use tidegate_core::{Context, Instant};
use tidegate_driver::SharedGate;
use tidegate_http::{GateLayer, Trust};
use tower_layer::Layer;
use tower_service::Service;

/// One runs, one waits, and the next is refused.
const FULL_AT_TWO: &str =
    "queue_limit = 1\nadmission = { policy = 'open' }\nslots = { slots = 'fixed', count = 1 }";

/// Envoy with one route to one cluster, which retries whatever is a 503 up to twice.
const CONFIG: &str = r#"
static_resources:
  listeners:
  - address: { socket_address: { address: 127.0.0.1, port_value: LISTEN } }
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: in
          http_filters:
          - name: envoy.filters.http.router
            typed_config: { "@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router }
          route_config:
            virtual_hosts:
            - name: all
              domains: ["*"]
              include_request_attempt_count: true
              routes:
              - match: { prefix: "/" }
                route:
                  cluster: us
                  timeout: 20s
                  retry_policy: { retry_on: "5xx", num_retries: 2 }
  clusters:
  - name: us
    type: STATIC
    load_assignment:
      cluster_name: us
      endpoints:
      - lb_endpoints:
        - endpoint: { address: { socket_address: { address: 127.0.0.1, port_value: SERVER } } }
"#;

/// An Envoy that ends with this guard.
struct Envoy(Child);

impl Envoy {
    async fn start(program: &str, server: SocketAddr) -> (Self, SocketAddr) {
        let listen = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listen.local_addr().expect("bound");
        drop(listen);
        let config = CONFIG
            .replace("LISTEN", &address.port().to_string())
            .replace("SERVER", &server.port().to_string());
        let child = Command::new(program)
            .args(["--config-yaml", &config, "--use-dynamic-base-id", "--concurrency", "1"])
            .args(["--log-level", "error"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap_or_else(|error| panic!("{program}: {error}"));
        let envoy = Self(child);
        common::until(|| std::net::TcpStream::connect(address).is_ok()).await;
        (envoy, address)
    }
}

impl Drop for Envoy {
    fn drop(&mut self) {
        // One that is gone already is what we want.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A gate that is full: retry elsewhere. With `retried` it has heard so many retries that it says not to.
fn full(retried: bool) -> SharedGate {
    let config = GateConfig::from_toml(FULL_AT_TWO).expect("valid");
    let mut gate = Gate::new(&config, Instant::ZERO, 1).expect("checked");
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

#[tokio::test]
async fn envoy_retries_or_not_as_it_is_told() {
    let Ok(program) = std::env::var("ENVOY") else {
        eprintln!("skipped: ENVOY names no program");
        return;
    };
    for (retried, attempts) in [(false, 3), (true, 1)] {
        let heard = Arc::new(AtomicUsize::new(0));
        let handler = Function(|_: Request<Incoming>| async {
            Ok::<_, Infallible>(Response::new(Full::<Bytes>::default()))
        });
        let mut gated = GateLayer::new(full(retried)).trust(Trust::Inside).layer(handler);
        let counted = Arc::clone(&heard);
        let server = serve(Function(move |request: Request<Incoming>| {
            let attempt = request.headers().get("x-envoy-attempt-count").cloned();
            let before = counted.fetch_add(1, Ordering::SeqCst);
            assert_eq!(attempt.expect("Envoy counts"), &(before + 1).to_string());
            assert!(request.headers().contains_key("x-envoy-expected-rq-timeout-ms"));
            gated.call(request)
        }))
        .await;
        let (_envoy, address) = Envoy::start(&program, server).await;
        let answer = Client(address).call(get("/")).await.expect("Envoy answers");
        assert_eq!(answer.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(heard.load(Ordering::SeqCst), attempts, "retried: {retried}");
    }
}
