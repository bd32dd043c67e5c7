//! One tier: workers, the time they take, and whom they call.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode, Uri};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tidegate_core::rng::Rng;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::client::{Client, Failure};

/// What stock tracing copies, and all that is copied here.
const COPIED: &str = "traceparent";

/// A service that works and calls others.
#[derive(Debug)]
pub(crate) struct Tier {
    workers: Semaphore,
    mean: Duration,
    /// What is called at the same time for a path.
    routes: BTreeMap<String, Vec<Uri>>,
    client: Client,
    rng: Mutex<Rng>,
    /// Requests that were worked on.
    worked: AtomicU64,
}

impl Tier {
    /// `routes` are written as `PATH=URL,URL…`.
    pub(crate) fn new(workers: usize, mean_ms: f64, routes: &[&str]) -> Result<Self, Failure> {
        let route = |route: &&str| -> Result<_, Failure> {
            let (path, urls) = route.split_once('=').ok_or("a route is PATH=URL,URL…")?;
            let urls = urls.split(',').map(str::parse).collect::<Result<Vec<_>, _>>()?;
            Ok((path.to_owned(), urls))
        };
        Ok(Self {
            workers: Semaphore::new(workers),
            mean: Duration::from_secs_f64(mean_ms / 1e3),
            routes: routes.iter().map(route).collect::<Result<_, _>>()?,
            client: Client::default(),
            rng: Mutex::new(Rng::new(u64::from(std::process::id()))),
            worked: AtomicU64::new(0),
        })
    }

    /// Serves until the process is ended. The address is printed once somebody can connect to it.
    pub(crate) async fn serve(self, listen: SocketAddr) -> std::io::Result<()> {
        let listener = TcpListener::bind(listen).await?;
        println!("{}", listener.local_addr()?);
        let tier = Arc::new(self);
        loop {
            let (stream, _) = listener.accept().await?;
            stream.set_nodelay(true)?;
            let tier = Arc::clone(&tier);
            tokio::spawn(async move {
                let answer = service_fn(|request| {
                    let tier = Arc::clone(&tier);
                    async move { Ok::<_, Infallible>(tier.answer(request).await) }
                });
                // How a connection ends is its client's business.
                let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), answer).await;
            });
        }
    }

    async fn answer(&self, request: Request<Incoming>) -> Response<Full<Bytes>> {
        let path = request.uri().path();
        if path == "/worked" {
            return text(StatusCode::OK, self.worked.load(Ordering::Relaxed).to_string());
        }
        // Held to the end, as by a thread.
        let Ok(_worker) = self.workers.acquire().await else {
            return text(StatusCode::SERVICE_UNAVAILABLE, "closed");
        };
        sleep(self.time()).await;
        self.worked.fetch_add(1, Ordering::Relaxed);
        let mut copied = HeaderMap::new();
        if let Some(trace) = request.headers().get(COPIED) {
            copied.insert(COPIED, trace.clone());
        }
        let mut calls = JoinSet::new();
        for url in self.routes.get(path).into_iter().flatten() {
            let (client, url, copied) = (self.client.clone(), url.clone(), copied.clone());
            calls.spawn(async move { client.get(&url, copied).await });
        }
        let mut answer = text(StatusCode::OK, "done");
        while let Some(called) = calls.join_next().await {
            match called {
                Ok(Ok((StatusCode::OK, ..))) => {}
                Ok(Ok((status, ..))) => answer = text(status, "a call was refused"),
                Ok(Err(_)) | Err(_) => answer = text(StatusCode::BAD_GATEWAY, "a call failed"),
            }
        }
        answer
    }

    /// Drawn from an exponential distribution.
    fn time(&self) -> Duration {
        let unit = self.rng.lock().unwrap_or_else(PoisonError::into_inner).unit();
        self.mean.mul_f64(-(1.0 - unit).ln())
    }
}

fn text(status: StatusCode, text: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(text.into()));
    *response.status_mut() = status;
    response
}
