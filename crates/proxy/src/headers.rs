//! Headers on their way through: what is meant for one connection stays there.

use std::cell::RefCell;
use std::fmt::Write;
use std::future::pending;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_LENGTH, COOKIE, HOST, TE, TRANSFER_ENCODING, UPGRADE};
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode, Uri, Version};
use http_body::Frame;
use tidegate_http::wire::{FEEDBACK, LOAD, LOAD_BIN};

use crate::config::Trust;
use crate::connection::Pulse;
use crate::edge;
use crate::hops::FORWARDED_FOR;
use crate::seats::Seat;

/// Fields of one connection (RFC 9110, 7.6.1); the first names others.
const HOP_BY_HOP: [&str; 6] =
    ["connection", "te", "keep-alive", "proxy-connection", "upgrade", "http2-settings"];

/// Which fields a message has of those that need care.
#[derive(Clone, Copy, Debug, Default)]
struct There {
    /// As listed in [`HOP_BY_HOP`].
    hop_by_hop: [bool; HOP_BY_HOP.len()],
    length: bool,
    coding: bool,
    cookie: bool,
    forwarded_for: bool,
    forwarded_proto: bool,
}

/// Fields that a client must not be able to take away by naming them in Connection, nor to say behind a
/// body.
const FRAMING: [HeaderName; 3] = [CONTENT_LENGTH, TRANSFER_ENCODING, HOST];
const FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");

/// Who is at the other end of a connection.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) ip: IpAddr,
    /// Whether it is spoken to by TLS.
    secure: bool,
    /// Whom its certificate is for, if it has shown one.
    pub(crate) certificate: Option<Vec<u8>>,
    /// Where its connection sits, if there is one.
    pub(crate) seat: Option<Arc<Seat>>,
    /// Its address as upstreams are told, written once for all requests of the connection.
    written: HeaderValue,
    /// The authority that was asked for last, mostly the only one, and its field.
    host: Mutex<Option<(Authority, HeaderValue)>>,
}

/// Why a request cannot be passed on: how it is answered, and what is said.
pub(crate) type Unfit = (StatusCode, &'static str);

const NO_HOST: Unfit = (StatusCode::BAD_REQUEST, "the request names no host\n");
const TWO_HOSTS: Unfit = (StatusCode::BAD_REQUEST, "the request names two hosts\n");
const NO_SUCH_HOST: Unfit =
    (StatusCode::BAD_REQUEST, "the host that the request names cannot be one\n");
const TWO_LENGTHS: Unfit = (StatusCode::BAD_REQUEST, "the request has two lengths\n");
/// The body would be passed on coded, and without the word that it is.
const CODED: Unfit =
    (StatusCode::NOT_IMPLEMENTED, "of transfer codings only chunked is understood here\n");
/// Tunnels are those of forward proxies; an upgrade is another matter.
const NO_TUNNELS: Unfit =
    (StatusCode::NOT_IMPLEMENTED, "CONNECT opens a tunnel, and there are none here\n");

impl Peer {
    /// An IPv4 client of an IPv6 socket is known by the address it has.
    pub(crate) fn new(ip: IpAddr) -> Self {
        let ip = ip.to_canonical();
        let written = HeaderValue::try_from(ip.to_string()).expect("an address is a plain word");
        Self { ip, secure: false, certificate: None, seat: None, written, host: Mutex::new(None) }
    }

    /// The same with its seat.
    pub(crate) fn on(self, seat: Arc<Seat>) -> Self {
        Self { seat: Some(seat), ..self }
    }

    /// What moves on its connection.
    pub(crate) fn pulse(&self) -> Arc<Pulse> {
        self.seat.as_ref().map(|seat| Arc::clone(seat.pulse())).unwrap_or_default()
    }

    /// Resolves when its connection has to make room for another.
    pub(crate) async fn leave(&self) {
        match &self.seat {
            Some(seat) => seat.leave().await,
            None => pending().await,
        }
    }

    /// The same behind TLS, with whom its certificate is for.
    pub(crate) fn secured(ip: IpAddr, certificate: Option<Vec<u8>>) -> Self {
        Self { secure: true, certificate, ..Self::new(ip) }
    }

    /// What a host field says for `authority`.
    fn host(&self, authority: &Authority) -> Option<HeaderValue> {
        let mut last = self.host.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, host)) =
            last.as_ref().filter(|(known, _)| known.as_str() == authority.as_str())
        {
            return Some(host.clone());
        }
        let host = host_value(authority)?;
        *last = Some((authority.clone(), host.clone()));
        Some(host)
    }
}

/// The time, for an answer that comes without one (RFC 9110, 6.6.1).
pub(crate) fn date() -> HeaderValue {
    thread_local! {
        /// The last, and its second since 1970.
        static LAST: RefCell<(u64, HeaderValue)> =
            const { RefCell::new((0, HeaderValue::from_static(""))) };
    }
    let now = SystemTime::now();
    let second = now.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    LAST.with_borrow_mut(|(last, written)| {
        if *last != second {
            let text = httpdate::fmt_http_date(now);
            *written = HeaderValue::try_from(text).expect("a date is plain words");
            *last = second;
        }
        written.clone()
    })
}

/// Makes a client's request one to an HTTP/1.1 upstream, if it can be. Of its URI, only path and query
/// are for the upstream.
pub(crate) fn prepare_request<B>(
    request: &mut Request<B>,
    peer: &Peer,
    upgrade: Option<HeaderValue>,
) -> Result<(), Unfit> {
    if request.method() == Method::CONNECT {
        return Err(NO_TUNNELS);
    }
    let version = request.version();
    let headers = request.headers_mut();
    let there = There::of(headers);
    if there.length && !agree_on_length(headers) {
        return Err(TWO_LENGTHS);
    }
    if there.coding && !is_chunked(headers) {
        return Err(CODED);
    }
    if there.cookie && version == Version::HTTP_2 {
        join_cookies(headers);
    }
    let takes_trailers = there.hop_by_hop[1] && has_token(headers, &TE, "trailers");
    remove(headers, there.hop_by_hop);
    if takes_trailers {
        headers.insert(TE, HeaderValue::from_static("trailers"));
    }
    if let Some(protocol) = upgrade {
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(UPGRADE, protocol);
    }
    append_peer(headers, peer, there.forwarded_for);
    if peer.secure && !there.forwarded_proto {
        headers.insert(FORWARDED_PROTO, HeaderValue::from_static("https"));
    }
    // HTTP/2 has the host in the URI; so has a request written for a forward proxy, whose Host
    // field is then to be replaced (RFC 9112, 3.2.2).
    let authority = request.uri().authority().map(|authority| peer.host(authority));
    match authority {
        Some(Some(host)) => drop(request.headers_mut().insert(HOST, host)),
        Some(None) => return Err(NO_HOST),
        None if request.headers().get_all(HOST).iter().count() > 1 => return Err(TWO_HOSTS),
        None if request.headers().get(HOST).is_some_and(|host| !is_host(host.as_bytes())) => {
            return Err(NO_SUCH_HOST);
        }
        None if request.headers().contains_key(HOST) => {}
        // HTTP/1.0 has no host, and HTTP/1.1 without one is wrong.
        None if request.version() < Version::HTTP_11 => {
            request.headers_mut().insert(HOST, HeaderValue::from_static(""));
        }
        None => return Err(NO_HOST),
    }
    // What has a query and no path is written with the slash that both versions want.
    let pathless = request.uri().path_and_query().filter(|path| path.as_str().starts_with('?'));
    if let Some(Ok(uri)) = pathless.map(|path| path.to_string().parse()) {
        *request.uri_mut() = uri;
    }
    *request.version_mut() = Version::HTTP_11;
    Ok(())
}

/// Makes a request prepared for HTTP/1.1 one of HTTP/2, if its host can be one there.
pub(crate) fn move_to_http2<B>(request: &mut Request<B>, secure: bool) -> Result<(), Unfit> {
    let host = request.headers_mut().remove(HOST);
    let authority = host.as_ref().and_then(|host| Authority::try_from(host.as_bytes()).ok());
    let path = request.uri().path_and_query().cloned();
    let uri = authority.and_then(|authority| {
        let path = path.unwrap_or_else(|| PathAndQuery::from_static("/"));
        let scheme = if secure { Scheme::HTTPS } else { Scheme::HTTP };
        Uri::builder().scheme(scheme).authority(authority).path_and_query(path).build().ok()
    });
    *request.uri_mut() = uri.ok_or(NO_HOST)?;
    *request.version_mut() = Version::HTTP_2;
    // Chunks are HTTP/1.1's; frames need none.
    request.headers_mut().remove(TRANSFER_ENCODING);
    Ok(())
}

/// The protocol that a request asks for on its connection, if it is one of `allowed`: in another,
/// such as HTTP/2, more requests might follow that no gate sees. Tunnels of forward proxies (CONNECT)
/// are not ours.
pub(crate) fn upgrade<B>(request: &Request<B>, allowed: &[String]) -> Option<HeaderValue> {
    let headers = request.headers();
    let asked = request.version() == Version::HTTP_11
        && request.method() != Method::CONNECT
        && headers.contains_key(UPGRADE)
        && has_token(headers, &CONNECTION, "upgrade");
    let allowed = |word: &&str| allowed.iter().any(|known| known.eq_ignore_ascii_case(word));
    let protocol = asked.then(|| tokens(headers, &UPGRADE).find(allowed)).flatten()?;
    HeaderValue::from_str(protocol).ok()
}

/// Removes what is meant for one connection (RFC 9110, 7.6.1). Transfer-Encoding stays: the body
/// is passed on as it is framed, and hyper has checked it.
pub(crate) fn remove_hop_by_hop(headers: &mut HeaderMap) {
    remove(headers, There::of(headers).hop_by_hop);
}

/// Removes from trailers what is meant for one connection or was to be said before the body (RFC 9110,
/// 6.5.1): a message is not to be lost for it.
pub(crate) fn clean_trailers(frame: &mut Frame<Bytes>) {
    if let Some(trailers) = frame.trailers_mut() {
        remove_hop_by_hop(trailers);
        FRAMING.iter().for_each(|name| drop(trailers.remove(name)));
    }
}

/// Removes from trailers of a request, besides, what is ours to say: that is said in heads, and nobody has looked at
/// what comes behind a body.
pub(crate) fn clean_request_trailers(frame: &mut Frame<Bytes>) {
    clean_trailers(frame);
    if let Some(trailers) = frame.trailers_mut() {
        let ours = trailers.keys().filter(|name| edge::is_ours(name.as_str()));
        let ours: Vec<HeaderName> = ours.cloned().collect();
        ours.iter().for_each(|name| drop(trailers.remove(name)));
    }
}

/// Removes what a service says of its load, from the head or the trailers of an answer: its gate speaks to us, not to our
/// clients, and how full it is is no business of strangers.
pub(crate) fn remove_reports(headers: &mut HeaderMap, trust: Trust) {
    headers.remove(FEEDBACK);
    if trust == Trust::Edge {
        headers.remove(LOAD);
        headers.remove(LOAD_BIN);
    }
}

impl There {
    /// To read all names once is quicker than to look up each of these.
    fn of(headers: &HeaderMap) -> Self {
        let mut there = Self::default();
        for name in headers.keys() {
            match name.as_str() {
                "connection" => there.hop_by_hop[0] = true,
                "te" => there.hop_by_hop[1] = true,
                "keep-alive" => there.hop_by_hop[2] = true,
                "proxy-connection" => there.hop_by_hop[3] = true,
                "upgrade" => there.hop_by_hop[4] = true,
                "http2-settings" => there.hop_by_hop[5] = true,
                "content-length" => there.length = true,
                "transfer-encoding" => there.coding = true,
                "cookie" => there.cookie = true,
                "x-forwarded-for" => there.forwarded_for = true,
                "x-forwarded-proto" => there.forwarded_proto = true,
                _ => {}
            }
        }
        there
    }
}

fn remove(headers: &mut HeaderMap, there: [bool; HOP_BY_HOP.len()]) {
    if there == [false; HOP_BY_HOP.len()] {
        return;
    }
    if there[0] {
        let named: Vec<HeaderName> = tokens(headers, &CONNECTION)
            .filter(|token| {
                !["close", "keep-alive"].iter().any(|it| it.eq_ignore_ascii_case(token))
            })
            .filter_map(|token| token.parse().ok())
            .filter(|name| !FRAMING.contains(name))
            .collect();
        for name in named {
            headers.remove(name);
        }
    }
    for (name, _) in HOP_BY_HOP.iter().zip(there).filter(|(_, there)| *there) {
        headers.remove(*name);
    }
}

/// Whether all that is said of the body's length is the same; then it is said once. What differs as a
/// number hyper and `h2` have turned away, but not every server reads `05` as they do.
fn agree_on_length(headers: &mut HeaderMap) -> bool {
    let mut told = headers.get_all(CONTENT_LENGTH).iter();
    let Some(first) = told.next() else { return true };
    let Some(second) = told.next() else { return true };
    let same = second == first && told.all(|other| other == first);
    let first = first.clone();
    headers.insert(CONTENT_LENGTH, first);
    same
}

fn is_chunked(headers: &HeaderMap) -> bool {
    let mut codings = tokens(headers, &TRANSFER_ENCODING);
    codings.next().is_some_and(|first| first.eq_ignore_ascii_case("chunked"))
        && codings.next().is_none()
}

/// Makes one field of cookies that came one by one, as HTTP/2 allows and nothing else does (RFC 9113,
/// 8.2.3).
fn join_cookies(headers: &mut HeaderMap) {
    let cookies = headers.get_all(COOKIE);
    if cookies.iter().nth(1).is_none() {
        return;
    }
    let cookies: Vec<&[u8]> = cookies.iter().map(HeaderValue::as_bytes).collect();
    if let Ok(joined) = HeaderValue::from_bytes(&cookies.join(&b"; "[..])) {
        headers.insert(COOKIE, joined);
    }
}

fn has_token(headers: &HeaderMap, name: &HeaderName, token: &str) -> bool {
    tokens(headers, name).any(|word| word.eq_ignore_ascii_case(token))
}

/// The words between commas of all fields with a name.
fn tokens<'a>(headers: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'a str> {
    let values = headers.get_all(name).into_iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).map(str::trim)
}

/// Whether a Host field can be one (RFC 9110, 7.2): nothing, or a name or an address, and perhaps a port. Commas are
/// left out of what a name may have, as some make one field of two by them.
fn is_host(value: &[u8]) -> bool {
    let name = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._~%!$&'()*+;=".contains(byte);
    let (host, port) = match value.strip_prefix(b"[") {
        Some(rest) => {
            let Some(end) = rest.iter().position(|byte| *byte == b']') else { return false };
            let literal = |byte: &u8| name(byte) || *byte == b':';
            (end > 0 && rest[..end].iter().all(literal), &rest[end + 1..])
        }
        None => {
            let end = value.iter().position(|byte| *byte == b':').unwrap_or(value.len());
            ((end > 0 || value.is_empty()) && value[..end].iter().all(name), &value[end..])
        }
    };
    let digits = |port: &[u8]| port.len() <= 5 && port.iter().all(u8::is_ascii_digit);
    host && (port.is_empty() || port.strip_prefix(b":").is_some_and(digits))
}

fn host_value(authority: &Authority) -> Option<HeaderValue> {
    // Without user and password, which a Host field never has.
    let host = authority.as_str().rsplit('@').next()?;
    HeaderValue::from_str(host).ok()
}

/// Appends the client's address to those of the proxies before us, if there were any.
fn append_peer(headers: &mut HeaderMap, peer: &Peer, others: bool) {
    let mut value = peer.written.clone();
    if others {
        let before = headers.get_all(FORWARDED_FOR).iter().filter_map(|value| value.to_str().ok());
        let mut list = before.fold(String::new(), |list, value| list + value + ", ");
        let _ = write!(list, "{}", peer.ip);
        // What was a value before is one with an address behind it.
        value = HeaderValue::try_from(list).unwrap_or(value);
    }
    headers.insert(FORWARDED_FOR, value);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer() -> Peer {
        Peer::new(IpAddr::from([10, 1, 2, 3]))
    }

    fn request(version: Version, uri: &str, headers: &[(&str, &str)]) -> Request<()> {
        let mut request = Request::builder().version(version).uri(uri);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(()).expect("well formed")
    }

    fn get<'a>(request: &'a Request<()>, name: &str) -> Option<&'a str> {
        request.headers().get(name).map(|value| value.to_str().expect("text"))
    }

    #[test]
    fn what_is_meant_for_one_connection_stays_there() {
        let mut request = request(
            Version::HTTP_11,
            "/a?b",
            &[
                ("host", "shop"),
                ("connection", "close, X-Private, content-length"),
                ("keep-alive", "timeout=5"),
                ("x-private", "1"),
                ("te", "gzip, trailers"),
                ("upgrade", "h2c"),
                ("http2-settings", "AAMAAABkAAQAoAAAAAIAAAAA"),
                ("content-length", "3"),
                ("x-forwarded-for", "1.1.1.1"),
                ("x-forwarded-for", "2.2.2.2"),
                ("cookie", "kept"),
            ],
        );
        assert_eq!(prepare_request(&mut request, &peer(), None), Ok(()));
        let names = ["host", "te", "content-length", "x-forwarded-for", "cookie"];
        assert_eq!(request.headers().len(), names.len(), "{request:?}");
        let values = names.map(|name| get(&request, name));
        let list = "1.1.1.1, 2.2.2.2, 10.1.2.3";
        assert_eq!(values.map(Option::unwrap), ["shop", "trailers", "3", list, "kept"]);
    }

    #[test]
    fn an_upgrade_keeps_its_protocol_if_that_is_allowed() {
        let allowed = ["websocket".to_owned(), "spdy".to_owned()];
        for (asked, kept) in [
            ("websocket", Some("websocket")),
            ("WebSocket", Some("WebSocket")),
            ("h2c, websocket", Some("websocket")),
            ("spdy, h2c", Some("spdy")),
            ("h2c", None),
            ("websocket/h2c", None),
            ("", None),
        ] {
            let headers =
                [("host", "a"), ("connection", "keep-alive, Upgrade"), ("upgrade", asked)];
            let mut request = request(Version::HTTP_11, "/", &headers);
            let protocol = upgrade(&request, &allowed);
            assert_eq!(prepare_request(&mut request, &peer(), protocol), Ok(()));
            assert_eq!(get(&request, "connection"), kept.map(|_| "upgrade"), "{asked}");
            assert_eq!(get(&request, "upgrade"), kept, "{asked}");
        }
        let unnamed = request(Version::HTTP_11, "/", &[("upgrade", "websocket")]);
        assert_eq!(upgrade(&unnamed, &allowed), None);
    }

    #[test]
    fn the_host_comes_from_wherever_the_protocol_has_it() {
        let peer = peer();
        let prepared = |version, uri, headers: &[_]| {
            let mut request = request(version, uri, headers);
            prepare_request(&mut request, &peer, None).map(|()| request)
        };
        for (version, uri, told, host, path) in [
            (Version::HTTP_2, "http://shop:81/a?b", &[][..], "shop:81", "/a?b"),
            (Version::HTTP_2, "http://shop:81/c", &[], "shop:81", "/c"),
            (Version::HTTP_2, "http://other/c", &[], "other", "/c"),
            (Version::HTTP_11, "http://me@shop", &[("host", "other")], "shop", "/"),
            (Version::HTTP_11, "http://shop?b", &[("host", "other")], "shop", "/?b"),
            (Version::HTTP_11, "/", &[("host", "shop")], "shop", "/"),
            (Version::HTTP_10, "/", &[], "", "/"),
        ] {
            let request = prepared(version, uri, told).expect("it names a host");
            let asked = request.uri().path_and_query().map(PathAndQuery::as_str);
            assert_eq!((get(&request, "host"), asked), (Some(host), Some(path)), "{uri}");
            assert_eq!(request.version(), Version::HTTP_11);
        }
        assert_eq!(prepared(Version::HTTP_11, "/", &[]).err(), Some(NO_HOST));
        let two = [("host", "shop"), ("host", "other")];
        assert_eq!(prepared(Version::HTTP_2, "/", &two).err(), Some(TWO_HOSTS));
    }

    #[test]
    fn a_host_is_a_name_or_an_address_and_perhaps_a_port() {
        for good in
            ["", "shop", "shop:81", "shop:", "10.0.0.1:80", "[::1]:80", "[::1]", "a_b", "%41"]
        {
            assert!(is_host(good.as_bytes()), "{good}");
        }
        for wrong in [
            "a b", "a/b", "me@shop", "a, b", "a,b", ":80", "a:b", "a:80:80", "::1", "[::1", "[]",
            "[::1]x", "a?b",
        ] {
            assert!(!is_host(wrong.as_bytes()), "{wrong}");
        }
    }

    #[test]
    fn what_cannot_be_passed_on_is_told_why() {
        let mut tunnel = request(Version::HTTP_2, "shop:443", &[]);
        *tunnel.method_mut() = Method::CONNECT;
        assert_eq!(prepare_request(&mut tunnel, &peer(), None), Err(NO_TUNNELS));
        for (lengths, result) in [
            (&["5", "5", "5"][..], Ok(1)),
            (&["5"], Ok(1)),
            (&[], Ok(0)),
            (&["5", "6"], Err(TWO_LENGTHS)),
            (&["5", "5", "05"], Err(TWO_LENGTHS)),
        ] {
            let told: Vec<_> = lengths.iter().map(|length| ("content-length", *length)).collect();
            let mut request = request(Version::HTTP_2, "http://shop/", &told);
            let prepared = prepare_request(&mut request, &peer(), None);
            let left = request.headers().get_all(CONTENT_LENGTH).iter().count();
            assert_eq!(prepared.map(|()| left), result, "{lengths:?}");
        }
    }

    #[test]
    fn trailers_keep_what_may_come_behind_a_body() {
        let names = ["x-sum", "te", "connection", "x-hop", "transfer-encoding", "content-length"];
        let value =
            |name: &str| HeaderValue::from_static(if name == "connection" { "x-hop" } else { "1" });
        let trailers = names.map(|name| (HeaderName::from_static(name), value(name)));
        let mut frame = Frame::trailers(trailers.into_iter().collect());
        clean_trailers(&mut frame);
        let left = frame.into_trailers().expect("trailers");
        assert_eq!(left.keys().map(HeaderName::as_str).collect::<Vec<_>>(), ["x-sum"]);
    }

    #[test]
    fn a_request_of_one_version_becomes_one_of_the_other() {
        let headers = [("host", "shop:81"), ("transfer-encoding", "chunked"), ("a", "b")];
        let mut moved = request(Version::HTTP_11, "/x?y", &headers);
        assert_eq!(move_to_http2(&mut moved, false), Ok(()));
        assert_eq!((moved.version(), moved.headers().len()), (Version::HTTP_2, 1));
        assert_eq!(moved.uri().to_string(), "http://shop:81/x?y");
        let mut nowhere = request(Version::HTTP_11, "/", &[("host", "")]);
        assert_eq!(move_to_http2(&mut nowhere, false), Err(NO_HOST));
    }
}
