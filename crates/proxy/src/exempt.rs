//! Requests for exempt paths, which the gate is not asked about: bounded, so that they are no way around it.
//!
//! Whoever asks for health must not be told "overloaded", or instances would be taken out when they are needed most.
//! But what passes the gate is work all the same, and anybody can ask. So:
//!
//! 1. GETs without a body, credentials or anything else that could change the answer are asked of the service once,
//!    however many come, and all are answered from that: a flood is one request at a time, and refuses nobody. What
//!    is asked has only the fields named in [`SENT`], as one client's words must not decide what others are told.
//! 2. Everything else takes one of a few places ([`Exempt::place`]), of which an address has a share. So does each
//!    request asked in common, as hosts and queries can be made up.
//! 3. Who finds no place is not refused either: it is no longer exempt, and the gate is asked.
//!
//! What is given up within its place may still be at work: the place is free a while later ([`KEPT`]).

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::header::{AGE, CONNECTION, CONTENT_LENGTH, DATE, HOST, SET_COOKIE, TRANSFER_ENCODING};
use http::{HeaderMap, HeaderName, Method, Request, Response, StatusCode};
use http_body::Body;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::sleep;

use crate::address;
use crate::body::{Entry, ProxyBody};
use crate::forward::{self, Asked};
use crate::headers::Peer;
use crate::trace::Span;
use crate::upload::Upload;
use crate::worker::{Settings, Worker};

/// Fields of a request that go on where it is asked in common.
const SENT: [&str; 4] = ["host", "user-agent", "traceparent", "tracestate"];
/// Fields that a request asked in common may have besides, as no health check answers by them.
const HARMLESS: [&str; 13] = [
    "accept",
    "accept-encoding",
    "accept-language",
    "baggage",
    "cache-control",
    "connection",
    "forwarded",
    "keep-alive",
    "pragma",
    "priority",
    "upgrade-insecure-requests",
    "via",
    "x-request-id",
];
/// The same by how they begin.
const HARMLESS_PREFIXES: [&str; 4] = ["sec-fetch-", "sec-ch-", "x-forwarded-", "x-real-"];
/// Largest answer that is kept for many: what is larger is asked for by each. With all places taken, 8 MB.
const LARGEST: usize = 1 << 20;
/// For how long a place is taken that was given up, by judgement: longer than a health check takes.
const KEPT: Duration = Duration::from_secs(5);
/// What an address may take of all places: a quarter.
const SHARE: u32 = 4;

/// What is on its way past the gate.
#[derive(Debug, Default)]
pub(crate) struct Exempt {
    places: Mutex<Places>,
    /// Answers that are awaited, by what was asked.
    awaited: Mutex<BTreeMap<String, Awaited>>,
}

/// How many places are taken, in all and by address.
#[derive(Debug, Default)]
struct Places {
    taken: u32,
    by: BTreeMap<IpAddr, u32>,
}

/// An answer for many, once it is there; none of it if it cannot be shared.
type Awaited = watch::Receiver<Option<Option<Shared>>>;

#[derive(Clone, Debug)]
struct Shared {
    status: StatusCode,
    headers: HeaderMap,
    body: Bytes,
}

/// Answers a request for an exempt path, or gives its span back if there are too many of them.
pub(crate) async fn pass(
    worker: &Arc<Worker>,
    settings: &Arc<Settings>,
    peer: &Peer,
    request: &mut Request<Upload>,
    asked: &Asked,
    mut span: Span,
) -> Result<Response<ProxyBody>, Span> {
    if let Some(key) = key(request) {
        let awaited = worker.exempt.join(worker, settings, asked.address, request, key);
        let told = match awaited {
            Some(mut awaited) => {
                awaited.wait_for(Option::is_some).await.ok().and_then(|it| it.clone())
            }
            None => None,
        };
        if let Some(Some(Shared { status, headers, body })) = told {
            span.passed();
            span.failed(status);
            let mut answer = Response::new(ProxyBody::text(body));
            (*answer.status_mut(), *answer.headers_mut()) = (status, headers);
            return Ok(answer);
        }
    }
    let Some(place) = worker.exempt.place(asked.address, settings.exempt_at_once) else {
        worker.counters.exempt_gated.add(1);
        return Err(span);
    };
    span.passed();
    Ok(forward::forward(worker, settings, peer, request, asked, Entry::Exempt(place), span).await)
}

/// What tells requests apart that can be asked in common; none for all others.
fn key(request: &Request<Upload>) -> Option<String> {
    let harmless = |name: &str| {
        SENT.contains(&name)
            || HARMLESS.contains(&name)
            || HARMLESS_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
    };
    let plain = *request.method() == Method::GET
        && request.body().is_end_stream()
        && request.headers().keys().all(|name| harmless(name.as_str()));
    let uri = request.uri();
    let host = match uri.authority() {
        Some(authority) => authority.as_str(),
        None => request.headers().get(HOST).map_or(Some(""), |host| host.to_str().ok())?,
    };
    plain.then(|| format!("{host} {}", uri.path_and_query().map_or("/", |path| path.as_str())))
}

impl Exempt {
    /// The answer to what others ask too, or that is asked now; none if there is no place for it.
    fn join(
        self: &Arc<Self>,
        worker: &Arc<Worker>,
        settings: &Arc<Settings>,
        client: IpAddr,
        request: &Request<Upload>,
        key: String,
    ) -> Option<Awaited> {
        let mut awaited = lock(&self.awaited);
        if let Some(known) = awaited.get(&key) {
            return Some(known.clone());
        }
        let place = self.place(client, settings.exempt_at_once)?;
        let (tell, told) = watch::channel(None);
        awaited.insert(key.clone(), told.clone());
        let leading = Leading { exempt: Arc::clone(self), key };
        let mut common = Request::new(Upload::empty());
        (*common.uri_mut(), *common.version_mut()) = (request.uri().clone(), request.version());
        for name in SENT {
            let values = request.headers().get_all(name).iter();
            common
                .headers_mut()
                .extend(values.map(|value| (HeaderName::from_static(name), value.clone())));
        }
        let (worker, settings) = (Arc::clone(worker), Arc::clone(settings));
        let peer = Peer::new(client);
        // A task of its own: whoever came first may leave, and the others still wait.
        tokio::spawn(async move {
            let answer = forward::ask_for(&worker, &settings, &peer, common, Entry::Exempt(place));
            let answer = collect(answer.await).await;
            drop(leading);
            // Whoever comes now asks anew.
            let _ = tell.send(Some(answer));
        });
        Some(told)
    }

    /// A place for a request of `peer`, where there are `most` in all.
    fn place(self: &Arc<Self>, peer: IpAddr, most: u32) -> Option<Place> {
        let peer = address::neighbourhood(peer);
        let mut places = lock(&self.places);
        let own = places.by.get(&peer).copied().unwrap_or(0);
        if places.taken >= most || own >= most.div_ceil(SHARE) {
            return None;
        }
        places.taken += 1;
        places.by.insert(peer, own + 1);
        Some(Place(Some((Arc::clone(self), peer))))
    }

    fn free(&self, peer: IpAddr) {
        let mut places = lock(&self.places);
        places.taken -= 1;
        let left = places.by.remove(&peer).unwrap_or(1) - 1;
        if left > 0 {
            places.by.insert(peer, left);
        }
    }
}

/// Reads an answer to its end, if it can be kept for many.
async fn collect(answer: Response<ProxyBody>) -> Option<Shared> {
    let (mut head, mut body) = answer.into_parts();
    let mut bytes = Vec::new();
    while let Some(frame) = poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
        if let Ok(data) = frame.ok()?.into_data() {
            bytes.extend_from_slice(&data);
        }
        if bytes.len() > LARGEST {
            return None;
        }
    }
    // A session is nobody else's; the rest was said of one message.
    for name in [SET_COOKIE, CONTENT_LENGTH, TRANSFER_ENCODING, CONNECTION, DATE, AGE] {
        head.headers.remove(name);
    }
    Some(Shared { status: head.status, headers: head.headers, body: bytes.into() })
}

/// Takes what is asked off the list, even if asking it fails.
struct Leading {
    exempt: Arc<Exempt>,
    key: String,
}

impl Drop for Leading {
    fn drop(&mut self) {
        lock(&self.exempt.awaited).remove(&self.key);
    }
}

/// One of the places, until it is dropped; empty once that is settled.
#[derive(Debug)]
pub(crate) struct Place(Option<(Arc<Exempt>, IpAddr)>);

impl Place {
    /// What it was for has ended.
    pub(crate) fn end(mut self) {
        self.0.take().into_iter().for_each(|(exempt, peer)| exempt.free(peer));
    }
}

impl Drop for Place {
    /// Given up: the service may still be at it.
    fn drop(&mut self) {
        let Some((exempt, peer)) = self.0.take() else { return };
        match Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn(async move {
                sleep(KEPT).await;
                exempt.free(peer);
            })),
            Err(_) => exempt.free(peer),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_a_share_of_the_places_and_gives_them_back() {
        let exempt = Arc::new(Exempt::default());
        let peer = |n: u8| IpAddr::from([10, 0, 0, n]);
        let place = |n| exempt.place(peer(n), 8);
        let mut held: Vec<Place> = [1, 1].into_iter().filter_map(place).collect();
        assert!(held.len() == 2 && place(1).is_none(), "a quarter of eight");
        held.extend([2, 2, 3, 3, 4, 4].into_iter().filter_map(place));
        assert!(held.len() == 8 && place(5).is_none(), "all are taken");
        held.drain(..1).for_each(Place::end);
        held.extend(place(1));
        assert_eq!(held.len(), 8);
        held.into_iter().for_each(Place::end);
        let places = lock(&exempt.places);
        assert_eq!((places.taken, places.by.len()), (0, 0));
    }

    #[test]
    fn only_what_nobody_would_answer_differently_is_asked_in_common() {
        let key = |request: http::request::Builder| key(&request.body(Upload::empty()).unwrap());
        let get = || Request::get("/healthz?a").header("host", "shop");
        assert_eq!(key(get()).as_deref(), Some("shop /healthz?a"));
        let prober = get().header("user-agent", "kube-probe/1.33").header("accept", "*/*");
        assert_eq!(key(prober).as_deref(), Some("shop /healthz?a"));
        assert_eq!(key(Request::get("http://other/healthz")).as_deref(), Some("other /healthz"));
        for name in ["authorization", "cookie", "range", "if-none-match", "x-api-key", "origin"] {
            assert_eq!(key(get().header(name, "1")), None, "{name}");
        }
        assert_eq!(key(Request::post("/healthz").header("host", "shop")), None);
    }
}
