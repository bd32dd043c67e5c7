//! The admin port: pages to look at, and the few requests that change something.

use std::convert::Infallible;
use std::future::poll_fn;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HOST, LOCATION};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use http_body::Body as _;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use serde_json::{Value, json};
use tidegate_core::{Advice, Rejection};
use tokio::net::TcpListener;

use crate::body::ProxyBody;
use crate::config::Percent;
use crate::log::unix_ms;
use crate::refusals;
use crate::server::Shared;
use crate::{dashboard, explain};

type Answer = Response<ProxyBody>;

/// Answers on `listener` for ever.
pub(crate) async fn serve(shared: Arc<Shared>, listener: TcpListener) {
    loop {
        let Ok((stream, peer)) = listener.accept().await else {
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
            continue;
        };
        let shared = Arc::clone(&shared);
        let own = stream.local_addr().map(|address| address.ip()).ok();
        tokio::spawn(async move {
            let service = service_fn(|request| {
                let shared = Arc::clone(&shared);
                async move {
                    let answer = match is_own(&shared, request.headers(), own) {
                        true => answer(&shared, request, peer).await,
                        false => text(StatusCode::MISDIRECTED_REQUEST, NOT_OURS),
                    };
                    Ok::<_, Infallible>(answer)
                }
            });
            // How an operator's connection ends is not our business.
            let _ = http1::Builder::new()
                .timer(TokioTimer::new())
                .serve_connection(TokioIo::new(stream), service)
                .await;
        });
    }
}

async fn answer(shared: &Arc<Shared>, request: Request<Incoming>, peer: SocketAddr) -> Answer {
    if matches!(*request.method(), Method::GET | Method::HEAD) {
        return look(shared, &request);
    }
    let changes = ["/enforce", "/shadow", "/shadow/promote"];
    if !changes.contains(&request.uri().path()) {
        return text(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD\n");
    }
    if let Err((status, why)) = shared.authorize(request.headers()) {
        return text(status, why);
    }
    change(shared, request, peer).await
}

const NOT_OURS: &str = "\
the admin port is asked by a name that is not this machine's: name it in proxy.admin_hosts if it is
";

/// Whether a request is for this machine by one of its names. A stranger's page can have a name of the stranger's point to
/// any address, and then reads what its visitor may read (DNS rebinding); but its browser says that name, and
/// no stranger can have an address, or a name without a dot.
fn is_own(shared: &Shared, headers: &HeaderMap, own: Option<IpAddr>) -> bool {
    let mut hosts = headers.get_all(HOST).iter();
    // No browser leaves it out.
    let Some(host) = hosts.next() else { return true };
    let Some(host) = host.to_str().ok().filter(|_| hosts.next().is_none()) else { return false };
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    };
    if let Ok(address) = name.parse::<IpAddr>() {
        let address = address.to_canonical();
        return address.is_loopback() || own.is_some_and(|own| own.to_canonical() == address);
    }
    let name = name.trim_end_matches('.').to_ascii_lowercase();
    let named = |known: &String| known.eq_ignore_ascii_case(&name);
    !name.contains('.')
        || name.ends_with(".localhost")
        || shared.file().proxy.admin_hosts.iter().any(named)
}

/// Pages that change nothing.
fn look(shared: &Arc<Shared>, request: &Request<Incoming>) -> Answer {
    let uri = request.uri();
    if let Some(page) = dashboard::answer(shared, uri.path()) {
        return page;
    }
    let query = uri.query().unwrap_or_default();
    match uri.path() {
        "/" if dashboard::is_browser(request.headers()) => to_dashboard(),
        "/" => text(StatusCode::OK, PAGES),
        "/healthz" => text(StatusCode::OK, "ok\n"),
        // Overload is no reason to be taken out: the others would get the load.
        "/readyz" if shared.is_draining() => text(StatusCode::SERVICE_UNAVAILABLE, "draining\n"),
        "/readyz" => text(StatusCode::OK, "ready\n"),
        "/metrics" => {
            let page = shared.snapshot().prometheus();
            with_type(text(StatusCode::OK, page), "text/plain; version=0.0.4; charset=utf-8")
        }
        "/state" => as_json(&shared.snapshot().json()),
        "/config" => with_type(text(StatusCode::OK, shared.file().to_toml()), "application/toml"),
        "/policy" => as_json(&dashboard::meaning::parameters(&shared.file())),
        "/enforce" => as_json(&shared.enforcement()),
        "/shadow" => as_json(&shared.sideline.report(shared.gate.now())),
        "/refusals" => match number(query, "limit", refusals::KEPT) {
            Ok(most) => as_json(&latest_refusals(shared, most)),
            Err(problem) => text(StatusCode::BAD_REQUEST, problem),
        },
        "/explain" => match explain::explain(shared, query) {
            Ok(answer) => as_json(&answer),
            Err(problem) => text(StatusCode::BAD_REQUEST, format!("{problem}\n")),
        },
        _ => text(StatusCode::NOT_FOUND, PAGES),
    }
}

/// Requests that change something; whoever sent it may.
async fn change(shared: &Shared, request: Request<Incoming>, peer: SocketAddr) -> Answer {
    let (parts, body) = request.into_parts();
    let query = parts.uri.query().unwrap_or_default();
    match (parts.method, parts.uri.path()) {
        (Method::POST, "/enforce") => match number(query, "percent", usize::MAX) {
            Ok(percent @ 0..=100) => {
                shared.enforce(Some(Percent::of(percent as u8)), peer);
                as_json(&shared.enforcement())
            }
            _ => text(StatusCode::BAD_REQUEST, "say how much: /enforce?percent=0 to 100\n"),
        },
        (Method::DELETE, "/enforce") => {
            shared.enforce(None, peer);
            as_json(&shared.enforcement())
        }
        (Method::POST, "/shadow") => {
            let Some(toml) = read(body).await else {
                let why = "a candidate is TOML with a [gate] block, at most 64 kB\n";
                return text(StatusCode::BAD_REQUEST, why);
            };
            match shared.shadow(&toml, peer) {
                Ok(()) => as_json(&shared.sideline.report(shared.gate.now())),
                Err(problem) => text(StatusCode::BAD_REQUEST, format!("{problem}\n")),
            }
        }
        (Method::DELETE, "/shadow") => match shared.end_shadow(peer) {
            true => as_json(&shared.sideline.report(shared.gate.now())),
            false => text(StatusCode::NOT_FOUND, "there is no candidate\n"),
        },
        (Method::POST, "/shadow/promote") => match shared.promote(peer) {
            Ok(Some(toml)) => with_type(text(StatusCode::OK, toml), "application/toml"),
            Ok(None) => text(StatusCode::NOT_FOUND, "there is no candidate\n"),
            Err(error) => text(StatusCode::CONFLICT, format!("{error}\n")),
        },
        _ => text(StatusCode::METHOD_NOT_ALLOWED, PAGES),
    }
}

/// Largest body that is read: ten times a full configuration.
const LARGEST_BODY: usize = 64 * 1024;

/// A body as text, unless it is too long, broken or no text.
async fn read(mut body: Incoming) -> Option<String> {
    let mut bytes = Vec::new();
    while let Some(frame) = poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
        if let Ok(data) = frame.ok()?.into_data() {
            bytes.extend_from_slice(&data);
        }
        if bytes.len() > LARGEST_BODY {
            return None;
        }
    }
    String::from_utf8(bytes).ok()
}

/// The number `name` has in a query.
fn number(query: &str, name: &str, without: usize) -> Result<usize, String> {
    let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    match pairs.find(|(key, _)| *key == name) {
        None => Ok(without),
        Some((_, value)) => {
            value.parse().map_err(|_| format!("{name} = {value} is not allowed: a number\n"))
        }
    }
}

fn latest_refusals(shared: &Shared, most: usize) -> Value {
    let line = shared.watch.collect();
    line.iter().for_each(|line| shared.log(line));
    let (now, unix_ms) = (shared.gate.now(), unix_ms());
    shared
        .watch
        .refusals(|refusals| refusals.report(most, now, unix_ms, (&shared.names, shared.titles())))
}

const PAGES: &str = "\
/healthz  the process lives
/readyz   it takes requests, also under overload
/metrics  numbers for Prometheus
/state    the same as JSON
/explain  ?method=POST&path=/pay&header=x-tier:gold&peer=10.1.2.3, or ?business=0..63&user=0..65535, &deadline=50ms: what would happen to such a request now
/refusals the latest refusals, newest first (?limit=N)
/config   the configuration in force
/policy   the gate's parameters, with what each means
/dashboard  all of it as a page
/enforce  how much is enforced; POST ?percent=0..100 changes it, DELETE goes back to the file
/shadow   how a candidate compares; POST a [gate] block begins, DELETE ends, POST /shadow/promote takes it
Changes need `authorization: Bearer TOKEN`.
";

pub(crate) fn refusal(rejection: &Rejection) -> Value {
    let advice = match rejection.advice {
        Advice::Elsewhere => "elsewhere".to_owned(),
        Advice::Later(span) => format!("after {span}"),
        Advice::Never => "never".to_owned(),
    };
    json!({
        "reason": rejection.reason.token(),
        "measured": rejection.measured,
        "limit": rejection.limit,
        "which": rejection.which(),
        "unit": rejection.reason.unit(),
        "retry": advice,
        "text": rejection.to_string(),
    })
}

fn to_dashboard() -> Answer {
    let mut answer = text(StatusCode::FOUND, "/dashboard\n");
    answer.headers_mut().insert(LOCATION, HeaderValue::from_static("/dashboard"));
    answer
}

fn as_json(value: &Value) -> Answer {
    with_type(text(StatusCode::OK, format!("{value:#}\n")), "application/json")
}

fn text(status: StatusCode, text: impl Into<Bytes>) -> Answer {
    let mut answer = Response::new(ProxyBody::text(text));
    *answer.status_mut() = status;
    with_type(answer, "text/plain; charset=utf-8")
}

fn with_type(mut answer: Answer, kind: &'static str) -> Answer {
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    answer
}
