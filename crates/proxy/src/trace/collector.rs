//! The way to the collector: one request per batch, on a connection of its own.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, HOST};
use http::{HeaderValue, Request, Response, Uri};
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use opentelemetry_http::{HttpClient, HttpError};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;

use crate::log::Log;

/// Longest time for a batch.
const PATIENCE: Duration = Duration::from_secs(5);
/// Most bytes that an answer may have: it says nothing that is used.
const LONGEST_ANSWER: usize = 1 << 16;

/// Sends to a collector, and tells when that begins and ceases to fail.
#[derive(Debug)]
pub(super) struct Collector {
    log: Log,
    fails: AtomicBool,
    /// Runs in the thread that collects spans, which has nothing else to do.
    runtime: Mutex<Runtime>,
}

impl Collector {
    pub(super) fn new(log: Log) -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        Ok(Self { log, fails: AtomicBool::new(false), runtime: Mutex::new(runtime) })
    }

    fn tell(&self, result: &Result<Response<Bytes>, HttpError>) {
        let problem = match result {
            Ok(answer) if answer.status().is_success() => None,
            Ok(answer) => Some(format!("it answers {}", answer.status())),
            Err(error) => Some(error.to_string()),
        };
        let failed = self.fails.swap(problem.is_some(), Ordering::Relaxed);
        match problem {
            Some(problem) if !failed => {
                self.log.line(&format_args!("traces cannot be sent to the collector: {problem}"));
            }
            None if failed => self.log.line(&"traces are sent to the collector again"),
            _ => {}
        }
    }
}

impl HttpClient for Collector {
    fn send_bytes<'a, 'b>(
        &'a self,
        request: Request<Bytes>,
    ) -> Pin<Box<dyn Future<Output = Result<Response<Bytes>, HttpError>> + Send + 'b>>
    where
        'a: 'b,
        Self: 'b,
    {
        Box::pin(async move {
            let runtime = self.runtime.lock().unwrap_or_else(PoisonError::into_inner);
            let result = runtime.block_on(async {
                let late = |_| HttpError::from("no answer in time");
                tokio::time::timeout(PATIENCE, send(request)).await.map_err(late)?
            });
            self.tell(&result);
            result
        })
    }
}

async fn send(request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
    let (mut parts, body) = request.into_parts();
    let authority = parts.uri.authority().cloned().ok_or("the collector has no address")?;
    let path = parts.uri.path_and_query().cloned().ok_or("the collector has no path")?;
    let host = authority.host().trim_matches(['[', ']']);
    let stream = TcpStream::connect((host, authority.port_u16().unwrap_or(80))).await?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    parts.uri = Uri::from(path);
    parts.headers.insert(HOST, HeaderValue::from_str(authority.as_str())?);
    parts.headers.insert(CONTENT_LENGTH, body.len().into());
    let driver = tokio::spawn(connection);
    let answer = sender.send_request(Request::from_parts(parts, Full::new(body))).await?;
    let (parts, body) = answer.into_parts();
    let body = Limited::new(body, LONGEST_ANSWER).collect().await?.to_bytes();
    driver.abort();
    Ok(Response::from_parts(parts, body))
}
