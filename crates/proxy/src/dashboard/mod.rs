//! The dashboard: one page on every sidecar's admin port, fed with what `/state` says.
//!
//! The page has no numbers of its own: once a second it is sent the very JSON of `/state`, and works
//! out rates from two of them. Everything it needs comes from here, so it works without a network;
//! the charts are plotly.js, which `build.rs` takes out of the crate that carries it.

pub(crate) mod detail;
pub(crate) mod meaning;

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use bytes::Bytes;
use http::header::{
    CACHE_CONTROL, CONTENT_ENCODING, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderName,
    REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};
use http::{HeaderValue, Response};
use serde_json::json;
use tokio::sync::mpsc;

use crate::body::ProxyBody;
use crate::server::Shared;

/// Time between two states that a page is sent.
const TICK: Duration = Duration::from_secs(1);
/// States on their way to a page; one that reads slower than that misses some.
const AHEAD: usize = 2;

/// A file of the page.
#[derive(Clone, Copy, Debug)]
pub struct Asset {
    /// Its media type.
    pub kind: &'static str,
    /// Whether `bytes` are packed with gzip.
    pub packed: bool,
    /// What it says.
    pub bytes: &'static [u8],
}

/// What all pages begin with, and `body` to its end; `script` is one of the files in `/assets`.
pub fn page(title: &str, script: &str, body: &str) -> String {
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>{title}</title>\n<link rel=\"icon\" href=\"data:,\">\n\
         <link rel=\"stylesheet\" href=\"/assets/style.css\">\n\
         <script src=\"/assets/plotly.js\" defer></script>\n\
         <script src=\"/assets/charts.js\" defer></script>\n\
         <script src=\"/assets/{script}\" defer></script>\n</head>\n<body>\n{body}</body>\n</html>\n"
    )
}

static PAGE: LazyLock<String> =
    LazyLock::new(|| page("Tidegate dashboard", "dashboard.js", include_str!("index.html")));

/// Files that pages are made of, by their path.
pub fn asset(path: &str) -> Option<Asset> {
    let plain = |kind, text: &'static str| Asset { kind, packed: false, bytes: text.as_bytes() };
    Some(match path {
        "/dashboard" => plain("text/html; charset=utf-8", &PAGE),
        "/assets/style.css" => plain("text/css; charset=utf-8", include_str!("style.css")),
        "/assets/charts.js" => plain(SCRIPT, include_str!("charts.js")),
        "/assets/dashboard.js" => plain(SCRIPT, include_str!("dashboard.js")),
        "/assets/plotly.js" => {
            let bytes = include_bytes!(concat!(env!("OUT_DIR"), "/plotly.js.gz"));
            Asset { kind: SCRIPT, packed: true, bytes }
        }
        _ => return None,
    })
}

const SCRIPT: &str = "text/javascript; charset=utf-8";

/// Headers of every page: scripts from here alone, no frames, nothing told to others. Plotly sets
/// styles of elements, and paints into images.
pub const HEADERS: [(HeaderName, &str); 4] = [
    (
        CONTENT_SECURITY_POLICY,
        "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; \
         img-src 'self' data: blob:; connect-src 'self'; frame-ancestors 'none'; \
         base-uri 'none'; form-action 'none'",
    ),
    (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (REFERRER_POLICY, "no-referrer"),
    (CACHE_CONTROL, "no-cache"),
];

/// The page at `path`, if there is one.
pub(crate) fn answer(shared: &Arc<Shared>, path: &str) -> Option<Response<ProxyBody>> {
    if path == "/events" {
        return Some(events(Arc::clone(shared)));
    }
    let asset = asset(path)?;
    let mut answer = Response::new(ProxyBody::text(asset.bytes));
    let headers = answer.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(asset.kind));
    if asset.packed {
        headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    }
    headers.extend(HEADERS.map(|(name, value)| (name, HeaderValue::from_static(value))));
    Some(answer)
}

/// Whether whoever asks wants a page to look at.
pub(crate) fn is_browser(headers: &http::HeaderMap) -> bool {
    let accept = headers.get(http::header::ACCEPT).and_then(|value| value.to_str().ok());
    accept.is_some_and(|accept| accept.contains("text/html"))
}

/// The state, now and every second, until the page is closed or the process ends.
fn events(shared: Arc<Shared>) -> Response<ProxyBody> {
    let (sender, receiver) = mpsc::channel(AHEAD);
    tokio::spawn(async move {
        let mut tick = tokio::time::interval(TICK);
        loop {
            tick.tick().await;
            let message = json!({
                "unix_ms": crate::log::unix_ms(),
                "state": shared.snapshot().json(),
                "enforce": shared.enforcement(),
                "shadow": shared.sideline.report(shared.gate.now()),
            });
            if sender.send(event(&message)).await.is_err() {
                return;
            }
        }
    });
    let mut answer = Response::new(ProxyBody::Events(receiver));
    let headers = answer.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    answer
}

/// A server-sent event; JSON on one line has no line ends.
pub fn event(message: &serde_json::Value) -> Bytes {
    Bytes::from(format!("data: {message}\n\n"))
}
