//! The admin port: pages to look at, and the one request that changes something.

use std::convert::Infallible;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{
    AUTHORIZATION, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ORIGIN, X_CONTENT_TYPE_OPTIONS,
};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpListener;
use tokio::sync::oneshot;

use crate::server::{Ask, Line};

type Answer = Response<Full<Bytes>>;

const PAGES: &str = "\
/topics    the page: rates against agreements, access delays, brokers
/metrics   numbers for Prometheus
/state     the same and more as JSON
/clients   who is there, and at which broker
/trace?topic=NAME   the latest arrivals of a topic with `record`
/config    the configuration in force
/healthz   whether the process is there
/readyz    whether a broker is, and new clients are welcome
POST /move?client=ID&broker=NUMBER   moves a publisher; needs the token
";

/// What is asked of whoever wants to change something.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Token(String);

impl fmt::Debug for Token {
    /// Without the secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Token").finish_non_exhaustive()
    }
}

impl Token {
    /// Shortest: 16 characters cannot be tried out over a network.
    pub(crate) const SHORTEST: usize = 16;

    pub(crate) fn new(text: &str) -> Option<Self> {
        (text.len() >= Self::SHORTEST).then(|| Self(text.to_owned()))
    }

    /// In the same time however much of it is right.
    fn is(&self, given: &str) -> bool {
        let (own, given) = (self.0.as_bytes(), given.as_bytes());
        let differ = own.iter().zip(given).fold(0, |differ, (own, given)| differ | (own ^ given));
        own.len() == given.len() && differ == 0
    }
}

/// What answers.
#[derive(Clone, Debug)]
pub(crate) struct Pages {
    line: Line,
    token: Option<Arc<Token>>,
}

/// Answers on `listener` for ever.
pub(crate) async fn serve(pages: Pages, listener: TcpListener) {
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        let pages = pages.clone();
        tokio::spawn(async move {
            let service = service_fn(|request| {
                let pages = pages.clone();
                async move { Ok::<_, Infallible>(pages.answer(&request).await) }
            });
            // How an operator's connection ends is not our business.
            let _ = http1::Builder::new()
                .timer(TokioTimer::new())
                .serve_connection(TokioIo::new(stream), service)
                .await;
        });
    }
}

impl Pages {
    pub(crate) fn new(line: Line, token: Option<Token>) -> Self {
        Self { line, token: token.map(Arc::new) }
    }

    async fn answer(&self, request: &Request<Incoming>) -> Answer {
        let path = request.uri().path();
        if *request.method() == Method::POST && path == "/move" {
            let query = request.uri().query().unwrap_or_default();
            return match self.authorize(request.headers()) {
                Ok(()) => self.r#move(query).await,
                Err((status, why)) => text(status, why),
            };
        }
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            return text(StatusCode::METHOD_NOT_ALLOWED, PAGES);
        }
        match path {
            "/" => text(StatusCode::OK, PAGES),
            "/topics" => page(include_str!("page/topics.html"), "text/html; charset=utf-8"),
            "/topics.js" => page(include_str!("page/topics.js"), "text/javascript; charset=utf-8"),
            "/healthz" => text(StatusCode::OK, "ok\n"),
            "/readyz" => match self.ask(Ask::State).await {
                Some(state) => ready(&state),
                None => ending(),
            },
            "/metrics" => self.ask(Ask::Metrics).await.map_or_else(ending, |page| {
                with_type(text(StatusCode::OK, page), "text/plain; version=0.0.4; charset=utf-8")
            }),
            "/state" => self.ask(Ask::State).await.map_or_else(ending, |state| json(&state)),
            "/clients" => self.ask(Ask::Clients).await.map_or_else(ending, |list| json(&list)),
            "/trace" => {
                let query = request.uri().query().unwrap_or_default();
                let name = decode(query.strip_prefix("topic=").unwrap_or_default());
                match self.ask(|to| Ask::Trace(name, to)).await {
                    Some(Some(trace)) => with_type(text(StatusCode::OK, trace), "text/csv"),
                    Some(None) => {
                        let why =
                            "no topic of that name says `record = NUMBER`: /trace?topic=NAME\n";
                        text(StatusCode::NOT_FOUND, why)
                    }
                    None => ending(),
                }
            }
            "/config" => self.ask(Ask::Config).await.map_or_else(ending, |file| {
                with_type(text(StatusCode::OK, file), "application/toml")
            }),
            _ => text(StatusCode::NOT_FOUND, PAGES),
        }
    }

    async fn r#move(&self, query: &str) -> Answer {
        let value = |name: &str| {
            let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
            pairs.filter(|(key, _)| *key == name).find_map(|(_, value)| value.parse::<u64>().ok())
        };
        let (Some(client), Some(broker)) = (value("client"), value("broker")) else {
            let problem = "say who and where to: /move?client=ID&broker=NUMBER\n";
            return text(StatusCode::BAD_REQUEST, problem);
        };
        let broker = usize::try_from(broker).unwrap_or(usize::MAX);
        match self.ask(|to| Ask::Move(client, broker, to)).await {
            Some(Ok(())) => text(StatusCode::ACCEPTED, "on its way\n"),
            Some(Err(problem)) => text(StatusCode::CONFLICT, format!("{problem}\n")),
            None => ending(),
        }
    }

    /// None while the gate ends.
    async fn ask<T>(&self, ask: impl FnOnce(oneshot::Sender<T>) -> Ask) -> Option<T> {
        let (to, answer) = oneshot::channel();
        if self.line.ask(ask(to)) { answer.await.ok() } else { None }
    }

    fn authorize(&self, headers: &HeaderMap) -> Result<(), (StatusCode, &'static str)> {
        if headers.contains_key(ORIGIN) {
            let why = "a page of another site may change nothing here\n";
            return Err((StatusCode::FORBIDDEN, why));
        }
        let Some(token) = &self.token else {
            let why = "changes need a token, and none is configured: set nats.admin_token_file\n";
            return Err((StatusCode::FORBIDDEN, why));
        };
        let given = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok());
        match given.and_then(|value| value.strip_prefix("Bearer ")) {
            Some(given) if token.is(given.trim()) => Ok(()),
            _ => {
                let why = "changes need `authorization: Bearer TOKEN` with the token of nats.admin_token_file\n";
                Err((StatusCode::UNAUTHORIZED, why))
            }
        }
    }
}

/// `%3E` as `>`; what is no such pair stays as it is.
fn decode(text: &str) -> String {
    let (mut bytes, mut rest) = (Vec::new(), text.as_bytes());
    while let [first, after @ ..] = rest {
        let pair = after.get(..2).filter(|_| *first == b'%');
        let pair = pair.and_then(|pair| std::str::from_utf8(pair).ok());
        let byte = pair.and_then(|pair| u8::from_str_radix(pair, 16).ok());
        bytes.push(byte.unwrap_or(*first));
        rest = if byte.is_some() { &after[2..] } else { after };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn ready(state: &serde_json::Value) -> Answer {
    let up = |broker: &serde_json::Value| broker["state"] == "up";
    if state["draining"] == true {
        text(StatusCode::SERVICE_UNAVAILABLE, "draining\n")
    } else if state["brokers"].as_array().is_some_and(|brokers| brokers.iter().any(up)) {
        text(StatusCode::OK, "ready\n")
    } else {
        text(StatusCode::SERVICE_UNAVAILABLE, "no broker is up\n")
    }
}

fn ending() -> Answer {
    text(StatusCode::SERVICE_UNAVAILABLE, "the gate is ending\n")
}

fn json(value: &serde_json::Value) -> Answer {
    with_type(text(StatusCode::OK, format!("{value:#}\n")), "application/json")
}

fn text(status: StatusCode, text: impl Into<Bytes>) -> Answer {
    let mut answer = Response::new(Full::new(text.into()));
    *answer.status_mut() = status;
    with_type(answer, "text/plain; charset=utf-8")
}

/// Runs only what comes from here.
fn page(text_of: &'static str, kind: &'static str) -> Answer {
    let mut answer = with_type(text(StatusCode::OK, text_of), kind);
    let policy = "default-src 'none'; script-src 'self'; connect-src 'self'; style-src 'unsafe-inline'; \
                  frame-ancestors 'none'; base-uri 'none'";
    let headers = answer.headers_mut();
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(policy));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    answer
}

fn with_type(mut answer: Answer, kind: &'static str) -> Answer {
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    answer
}
