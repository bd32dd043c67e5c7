//! Services with a known capacity: all work is done one after the other.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderName, Request, Response, StatusCode};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Empty, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use tidegate_core::Span;
use tokio::net::TcpListener;
use tokio::sync::oneshot;

use crate::client::{Client, EMPTY};
use crate::plain::{self, Workers};

/// What is answered where nobody reads it.
const OK: Bytes = Bytes::from_static(b"ok");
const GRPC: &str = "application/grpc";

/// What a request takes.
#[derive(Clone, Debug)]
pub(crate) enum Work {
    /// Nothing.
    Reply,
    /// The cpu, for so long.
    Cpu(Duration),
    /// A lock that one holds at a time, for so long, while the cpu is free.
    Lock(mpsc::Sender<oneshot::Sender<()>>),
    /// Workers with a queue that their clients do not see.
    Plain(Arc<Workers>),
}

impl Work {
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let micros = |text: &str| match text.parse() {
            Ok(micros) => Ok(Duration::from_micros(micros)),
            Err(_) => Err(format!("{text} is no number of microseconds")),
        };
        match text.split_once(':') {
            None if text == "reply" => Ok(Self::Reply),
            Some(("cpu", time)) => Ok(Self::Cpu(micros(time)?)),
            Some(("lock", time)) => Ok(Self::Lock(holder(micros(time)?))),
            _ => Err(format!("{text} is not one of reply, cpu:MICROS, lock:MICROS")),
        }
    }

    pub(crate) async fn done(&self) {
        match self {
            Self::Reply => {}
            Self::Cpu(time) => {
                let start = Instant::now();
                while start.elapsed() < *time {
                    std::hint::spin_loop();
                }
            }
            Self::Plain(workers) => workers.done().await,
            Self::Lock(holder) => {
                let (sender, released) = oneshot::channel();
                if holder.send(sender).is_ok() {
                    let _ = released.await;
                }
            }
        }
    }
}

/// A thread that holds the lock for whoever asked first.
fn holder(time: Duration) -> mpsc::Sender<oneshot::Sender<()>> {
    let (sender, asked) = mpsc::channel::<oneshot::Sender<()>>();
    std::thread::spawn(move || {
        for turn in asked {
            // Whoever left does not hold it.
            if !turn.is_closed() {
                std::thread::sleep(time);
                let _ = turn.send(());
            }
        }
    });
    sender
}

/// Serves for ever.
pub(crate) async fn serve(at: SocketAddr, work: Work) -> Result<(), String> {
    accept(at, move |request: Request<Incoming>| {
        let work = work.clone();
        async move {
            if let Work::Plain(workers) = &work
                && request.uri().path() == "/tally"
            {
                return (StatusCode::OK, workers.tally().to_string().into());
            }
            work.done().await;
            (StatusCode::OK, OK)
        }
    })
    .await
}

/// A service that works a little, then calls another as often as its path says, one call after the
/// other, and fails if one of them does. It hands `overload-context` on, as it would a trace.
pub(crate) async fn call(at: SocketAddr, callee: SocketAddr, work: Work) -> Result<(), String> {
    let callee = Arc::new(Client::new(callee, false));
    accept(at, move |request: Request<Incoming>| {
        let (work, callee) = (work.clone(), Arc::clone(&callee));
        async move {
            work.done().await;
            let calls = request.uri().path().trim_start_matches('/').parse().unwrap_or(1);
            for _ in 0..calls {
                let status = hand_on(&callee, &request).await;
                if status != StatusCode::OK {
                    return (status, OK);
                }
            }
            (StatusCode::OK, OK)
        }
    })
    .await
}

/// Fields by which a service says for which request it makes a call.
const COPIED: [&str; 2] = ["traceparent", "overload-context"];

/// Plain services that call one another: when its worker is done, a request is handed on to the callee, if there is one.
pub(crate) async fn tier(
    at: SocketAddr,
    mean: Span,
    callee: Option<SocketAddr>,
    grpc: bool,
) -> Result<(), String> {
    let callee = callee.map(|callee| Arc::new(Client::new(callee, grpc)));
    let workers = Workers::start(plain::one_worker(mean));
    accept(at, move |request: Request<Incoming>| {
        let (workers, callee) = (Arc::clone(&workers), callee.clone());
        async move {
            if request.uri().path() == "/tally" {
                return (StatusCode::OK, workers.tally().to_string().into());
            }
            workers.done().await;
            match callee {
                Some(callee) => (hand_on(&callee, &request).await, OK),
                None => (StatusCode::OK, OK),
            }
        }
    })
    .await
}

/// Calls the next service for this request.
async fn hand_on(callee: &Client, request: &Request<Incoming>) -> StatusCode {
    let copied = |name| {
        let value = request.headers().get(name)?.to_str().ok()?;
        Some((name, value.to_owned()))
    };
    let fields: Vec<(&str, String)> = COPIED.into_iter().filter_map(copied).collect();
    let status = callee.ask("/", &fields).await.unwrap_or(502);
    StatusCode::from_u16(status).unwrap_or(StatusCode::BAD_GATEWAY)
}

/// Serves HTTP/1.1, and gRPC to whoever speaks it.
async fn accept<F, A>(at: SocketAddr, answer: F) -> Result<(), String>
where
    F: Fn(Request<Incoming>) -> A + Clone + Send + 'static,
    A: Future<Output = (StatusCode, Bytes)> + Send + 'static,
{
    let listener = TcpListener::bind(at).await.map_err(|error| format!("{at}: {error}"))?;
    loop {
        let Ok((stream, _)) = listener.accept().await else { continue };
        let _ = stream.set_nodelay(true);
        let answer = answer.clone();
        tokio::spawn(async move {
            let service = service_fn(move |request: Request<Incoming>| {
                let grpc = request.headers().get(CONTENT_TYPE).is_some_and(|kind| kind == GRPC);
                let answer = answer(request);
                async move {
                    let (status, body) = answer.await;
                    Ok::<_, Infallible>(if grpc { in_grpc(status) } else { in_http(status, body) })
                }
            });
            let http = Builder::new(TokioExecutor::new());
            let _ = http.serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

type Body = BoxBody<Bytes, Infallible>;

fn in_http(status: StatusCode, body: Bytes) -> Response<Body> {
    let mut response = Response::new(Full::new(body).boxed());
    *response.status_mut() = status;
    response
}

/// The same in gRPC's words: an empty message and trailers, or trailers alone.
fn in_grpc(status: StatusCode) -> Response<Body> {
    let code = match status.as_u16() {
        200 => 0,
        429 | 503 => 14,
        504 => 4,
        _ => 13,
    };
    let response = Response::builder().header(CONTENT_TYPE, GRPC);
    if code != 0 {
        let response = response.header("grpc-status", code).body(Empty::new().boxed());
        return response.expect("the parts are valid");
    }
    let trailers = HeaderMap::from_iter([(HeaderName::from_static("grpc-status"), code.into())]);
    let body = Full::new(EMPTY).with_trailers(async { Some(Ok(trailers)) });
    response.body(body.boxed()).expect("the parts are valid")
}
