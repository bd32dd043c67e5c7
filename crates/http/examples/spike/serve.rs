//! The server: hyper, a handler that keeps its thread busy, and a gate driven in one of the ways.

use std::convert::Infallible;
use std::future::Future;
use std::io::Read;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use http::{HeaderValue, Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::service::TowerToHyperService;
use tidegate_core::admission::{AdmissionConfig, TideConfig};
use tidegate_core::gate::{Gate, GateConfig};
use tidegate_core::objective::Objective;
use tidegate_core::slots::SlotsConfig;
use tidegate_core::{Instant as Moment, Span};
use tidegate_driver::SharedGate;
use tidegate_http::{GateLayer, Trust};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tower_layer::Layer;
use tower_service::Service;

use crate::ways::{Gated, Way};
use crate::{SLO, Setup};

/// Serves until its parent closes the pipe.
pub(crate) fn run(setup: &Setup) {
    let mut builder = match setup.runtime.as_str() {
        "1c" => tokio::runtime::Builder::new_current_thread(),
        _ => tokio::runtime::Builder::new_multi_thread(),
    };
    if setup.runtime != "1c" {
        builder.worker_threads(setup.workers() as usize);
    }
    let runtime = builder.event_interval(setup.event_interval).enable_all().build().expect("built");
    std::thread::spawn(|| {
        // Whatever it reads, the end of input is the end.
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(0);
    });
    let setup = setup.clone();
    // Spawned, so that connections are accepted by a worker and not by the main thread.
    let accepting = runtime.spawn(async move { accept(&setup).await });
    runtime.block_on(accepting).expect("the server does not panic");
}

async fn accept(setup: &Setup) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    println!("{}", listener.local_addr().expect("bound"));
    let h2 = setup.protocol == "h2";
    let time = Duration::from_micros(setup.work_us);
    let awaits = setup.work == "await";
    let steps = (setup.work == "cpu").then(|| steps_in(time));
    let slots = if awaits { CONNECTIONS } else { setup.workers() + setup.extra_slots };
    let database = awaits.then(|| Arc::new(Semaphore::new(CONNECTIONS as usize)));
    let handler = Handler { time, steps, database };
    let gate = |admission| gate(slots, admission);
    match setup.way.as_str() {
        "open" => serve(listener, h2, handler).await,
        "tide" => {
            let objective = Objective::Given(Span::from(SLO).scale(0.5));
            let tide = TideConfig { objective, ..TideConfig::default() };
            let layer = GateLayer::new(gate(AdmissionConfig::Tide(tide))).trust(Trust::Inside);
            serve(listener, h2, layer.layer(handler)).await;
        }
        "layer" => {
            let layer = GateLayer::new(gate(AdmissionConfig::Open)).patience(patience());
            serve(listener, h2, layer.layer(handler)).await;
        }
        way => {
            let gated = Gated::new(Way::from_name(way), gate(AdmissionConfig::Open), handler);
            serve(listener, h2, gated).await;
        }
    }
}

/// So many slots, first come first served.
fn gate(slots: u32, admission: AdmissionConfig) -> SharedGate {
    let slots = SlotsConfig::fixed(slots);
    let config = GateConfig { slots, admission, ..GateConfig::default() };
    SharedGate::new(Gate::new(&config, Moment::ZERO, 1).expect("a valid configuration"))
}

pub(crate) fn patience() -> Span {
    Span::from(SLO).scale(0.4)
}

async fn serve<S, B>(listener: TcpListener, h2: bool, service: S)
where
    S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible>,
    S: Clone + Send + 'static,
    S::Future: Send,
    B: http_body::Body<Data = Bytes, Error = Infallible> + Send + 'static,
{
    loop {
        let Ok((stream, _)) = listener.accept().await else { continue };
        // Without it small answers wait for the acknowledgement of the one before.
        let _ = stream.set_nodelay(true);
        let (io, service) = (TokioIo::new(stream), TowerToHyperService::new(service.clone()));
        tokio::spawn(async move {
            // A connection that breaks is the client's affair.
            let _ = if h2 {
                hyper::server::conn::http2::Builder::new(TokioExecutor::new())
                    .max_concurrent_streams(10_000)
                    .serve_connection(io, service)
                    .await
            } else {
                hyper::server::conn::http1::Builder::new().serve_connection(io, service).await
            };
        });
    }
}

/// Connections of the database that handlers await with `work=await`: as many run at once.
const CONNECTIONS: u32 = 4;

/// Keeps its thread busy, or waits for its database, then answers with the delay from the client's
/// send to its own start.
#[derive(Clone, Debug)]
pub(crate) struct Handler {
    time: Duration,
    /// As many steps instead, however long they take.
    steps: Option<u64>,
    /// Waits for a connection and holds it for the time instead.
    database: Option<Arc<Semaphore>>,
}

impl Service<Request<Incoming>> for Handler {
    type Response = Response<Full<Bytes>>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Incoming>) -> Self::Future {
        let delay = delay_of(&request);
        let Self { time, steps, database } = self.clone();
        Box::pin(async move {
            match (database, steps) {
                (Some(database), _) => {
                    let _connection = database.acquire().await.expect("never closed");
                    tokio::time::sleep(time).await;
                }
                (None, Some(steps)) => work(steps),
                (None, None) => spin(time),
            }
            let mut response = Response::new(Full::from("done\n"));
            response.headers_mut().insert("x-delay-us", HeaderValue::from(delay));
            Ok(response)
        })
    }
}

fn delay_of<B>(request: &Request<B>) -> u64 {
    let sent = request.headers().get("x-sent-us").and_then(|value| value.to_str().ok());
    let sent: u64 = sent.and_then(|text| text.parse().ok()).unwrap_or(u64::MAX);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_micros() as u64);
    now.saturating_sub(sent)
}

fn spin(time: Duration) {
    let begun = Instant::now();
    while begun.elapsed() < time {
        std::hint::spin_loop();
    }
}

fn work(steps: u64) {
    let mut state = 1u64;
    for step in 0..steps {
        state = std::hint::black_box(state.wrapping_mul(6_364_136_223_846_793_005) ^ step);
    }
}

/// As many steps as fit into `time` when nothing disturbs.
fn steps_in(time: Duration) -> u64 {
    const TRIAL: u64 = 100_000;
    let fastest = (0..50).map(|_| {
        let begun = Instant::now();
        work(TRIAL);
        begun.elapsed()
    });
    let fastest = fastest.min().unwrap_or(time).as_nanos().max(1);
    (u128::from(TRIAL) * time.as_nanos() / fastest) as u64
}
