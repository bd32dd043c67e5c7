//! Services with a known capacity: all work is done one after the other.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{Empty, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tidegate_core::rng::Rng;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;

/// What a request takes.
#[derive(Clone, Debug)]
pub(crate) enum Work {
    /// Nothing.
    Reply,
    /// The cpu, for so long.
    Cpu(Duration),
    /// A lock that one holds at a time, for so long, while the cpu is free.
    Lock(mpsc::Sender<oneshot::Sender<()>>),
    /// A worker with a queue that its clients do not see, for exponential times of this mean. It goes on with what was
    /// abandoned, as most services do.
    Plain(mpsc::Sender<oneshot::Sender<()>>),
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
            Some(("plain", time)) => Ok(Self::Plain(worker(micros(time)?))),
            _ => Err(format!("{text} is not one of reply, cpu:MICROS, lock:MICROS, plain:MICROS")),
        }
    }

    async fn done(&self) {
        match self {
            Self::Reply => {}
            Self::Cpu(time) => {
                let start = Instant::now();
                while start.elapsed() < *time {
                    std::hint::spin_loop();
                }
            }
            Self::Lock(holder) | Self::Plain(holder) => {
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

/// A thread that works for whoever asked first, be they there or not. How much was to be done is what it has done: a sleep
/// that lasts longer is made up for by the next.
fn worker(mean: Duration) -> mpsc::Sender<oneshot::Sender<()>> {
    let (sender, asked) = mpsc::channel::<oneshot::Sender<()>>();
    std::thread::spawn(move || {
        let mut rng = Rng::new(1);
        let mut free = Instant::now();
        for turn in asked {
            free = free.max(Instant::now()) + mean.mul_f64(-(1.0 - rng.unit()).ln());
            std::thread::sleep(free.saturating_duration_since(Instant::now()));
            let _ = turn.send(());
        }
    });
    sender
}

/// Serves for ever.
pub(crate) async fn serve(at: SocketAddr, work: Work) -> Result<(), String> {
    accept(at, move |_: Request<Incoming>| {
        let work = work.clone();
        async move {
            work.done().await;
            StatusCode::OK
        }
    })
    .await
}

/// A service that works a little, then calls another as often as its path says, one call after the
/// other, and fails if one of them does. It hands `overload-context` on, as it would a trace.
pub(crate) async fn call(at: SocketAddr, callee: SocketAddr, work: Work) -> Result<(), String> {
    accept(at, move |request: Request<Incoming>| {
        let work = work.clone();
        async move {
            work.done().await;
            let calls = request.uri().path().trim_start_matches('/').parse().unwrap_or(1);
            for _ in 0..calls {
                match forward(callee, &request).await {
                    Ok(StatusCode::OK) => {}
                    Ok(status) => return status,
                    Err(_) => return StatusCode::BAD_GATEWAY,
                }
            }
            StatusCode::OK
        }
    })
    .await
}

async fn forward(to: SocketAddr, request: &Request<Incoming>) -> Result<StatusCode, hyper::Error> {
    let Ok(stream) = TcpStream::connect(to).await else { return Ok(StatusCode::BAD_GATEWAY) };
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    let mut call = Request::get("/").header("host", to.to_string());
    if let Some(context) = request.headers().get("overload-context") {
        call = call.header("overload-context", context);
    }
    let call = call.body(Empty::<Bytes>::new()).expect("the parts are valid");
    Ok(sender.send_request(call).await?.status())
}

async fn accept<F, A>(at: SocketAddr, answer: F) -> Result<(), String>
where
    F: Fn(Request<Incoming>) -> A + Clone + Send + 'static,
    A: Future<Output = StatusCode> + Send + 'static,
{
    let listener = TcpListener::bind(at).await.map_err(|error| format!("{at}: {error}"))?;
    loop {
        let Ok((stream, _)) = listener.accept().await else { continue };
        let _ = stream.set_nodelay(true);
        let answer = answer.clone();
        tokio::spawn(async move {
            let service = service_fn(move |request| {
                let status = answer(request);
                async move {
                    let mut response = Response::new(Full::new(Bytes::from_static(b"ok")));
                    *response.status_mut() = status.await;
                    Ok::<_, Infallible>(response)
                }
            });
            let http = hyper::server::conn::http1::Builder::new();
            let _ = http.serve_connection(TokioIo::new(stream), service).await;
        });
    }
}
