//! The demo's web server: its page, what the page sets, and what it is told.

use std::convert::Infallible;
use std::sync::{Arc, LazyLock};

use bytes::Bytes;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE, HOST, ORIGIN};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::channel::Channel;
use http_body_util::{Either, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tidegate_proxy::dashboard;
use tokio::net::TcpListener;

use super::live::Show;

type Answer = Response<Either<Full<Bytes>, Channel<Bytes>>>;

/// Messages on their way to a page; one that reads slower than that misses some.
const AHEAD: usize = 2;

/// Answers for ever.
pub(crate) async fn serve(show: Arc<Show>, listener: TcpListener) {
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
            continue;
        };
        let show = Arc::clone(&show);
        tokio::spawn(async move {
            let service = service_fn(|request| {
                let answer = answer(&show, &request);
                async move { Ok::<_, Infallible>(answer) }
            });
            // How a page's connection ends is not our business.
            let _ = http1::Builder::new()
                .timer(TokioTimer::new())
                .serve_connection(TokioIo::new(stream), service)
                .await;
        });
    }
}

fn answer(show: &Arc<Show>, request: &Request<Incoming>) -> Answer {
    let (path, query) = (request.uri().path(), request.uri().query().unwrap_or_default());
    match (request.method(), path) {
        (&Method::POST, "/set") if is_foreign(request.headers()) => {
            text(StatusCode::FORBIDDEN, "a page of another site may change nothing here\n")
        }
        (&Method::POST, "/set") => match show.set(query) {
            Ok(controls) => {
                with_type(text(StatusCode::OK, controls.to_string()), "application/json")
            }
            Err(problem) => text(StatusCode::BAD_REQUEST, problem),
        },
        (&Method::GET, "/") => page(PAGE.as_bytes(), HTML, false),
        (&Method::GET, "/assets/demo.js") => {
            page(include_str!("demo.js").as_bytes(), "text/javascript; charset=utf-8", false)
        }
        (&Method::GET, "/events") => events(show),
        (&Method::GET, path) => match dashboard::asset(path).filter(|_| path != "/dashboard") {
            Some(asset) => page(asset.bytes, asset.kind, asset.packed),
            None => text(StatusCode::NOT_FOUND, "not here\n"),
        },
        _ => text(StatusCode::METHOD_NOT_ALLOWED, "GET, or POST /set\n"),
    }
}

const HTML: &str = "text/html; charset=utf-8";

static PAGE: LazyLock<String> =
    LazyLock::new(|| dashboard::page("Tidegate demo", "demo.js", include_str!("demo.html")));

/// Whether a browser sent this for a page that is not ours.
fn is_foreign(headers: &HeaderMap) -> bool {
    let text = |name: &str| headers.get(name).map(|value| value.to_str().unwrap_or("?"));
    let site = text("sec-fetch-site").is_some_and(|site| site != "same-origin" && site != "none");
    let origin = text(ORIGIN.as_str()).map(|origin| origin.trim_start_matches("http://"));
    site || origin.is_some_and(|origin| text(HOST.as_str()) != Some(origin))
}

fn page(bytes: &'static [u8], kind: &'static str, packed: bool) -> Answer {
    let mut answer = with_type(text(StatusCode::OK, bytes), kind);
    let headers = answer.headers_mut();
    if packed {
        headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    }
    headers.extend(dashboard::HEADERS.map(|(name, value)| (name, HeaderValue::from_static(value))));
    answer
}

/// Every message until the page is closed.
fn events(show: &Arc<Show>) -> Answer {
    let (mut sender, body) = Channel::new(AHEAD);
    let mut messages = show.hear();
    tokio::spawn(async move {
        while messages.changed().await.is_ok() {
            let event = dashboard::event(&messages.borrow_and_update());
            if sender.send_data(event).await.is_err() {
                return;
            }
        }
    });
    let mut answer = Response::new(Either::Right(body));
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    answer
}

fn text(status: StatusCode, text: impl Into<Bytes>) -> Answer {
    let mut answer = Response::new(Either::Left(Full::new(text.into())));
    *answer.status_mut() = status;
    with_type(answer, "text/plain; charset=utf-8")
}

fn with_type(mut answer: Answer, kind: &'static str) -> Answer {
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    answer
}
