//! Headers on their way through: what is meant for one connection stays there.

use std::cell::RefCell;
use std::fmt::Write;
use std::net::IpAddr;
use std::time::{SystemTime, UNIX_EPOCH};

use http::header::{CONNECTION, HOST, TE, TRANSFER_ENCODING, UPGRADE};
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Uri, Version};

const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");
/// Fields of one connection; the first names others. Their lengths are 2, 7, 10 and 16.
static HOP_BY_HOP: [HeaderName; 5] = [CONNECTION, KEEP_ALIVE, PROXY_CONNECTION, TE, UPGRADE];
const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// Who is at the other end of a connection.
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    pub(crate) ip: IpAddr,
    /// The same as upstreams are told, written once for all requests of the connection.
    written: HeaderValue,
}

impl Peer {
    pub(crate) fn new(ip: IpAddr) -> Self {
        let written = HeaderValue::try_from(ip.to_string()).expect("an address is a plain word");
        Self { ip, written }
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

/// Makes a client's request one to an HTTP/1.1 upstream. False if it cannot be: it names no host.
pub(crate) fn prepare_request<B>(request: &mut Request<B>, peer: &Peer, upgrade: bool) -> bool {
    let headers = request.headers_mut();
    let takes_trailers = has_token(headers, &TE, "trailers");
    let protocol = if upgrade { headers.remove(UPGRADE) } else { None };
    remove_hop_by_hop(headers);
    if takes_trailers {
        headers.insert(TE, HeaderValue::from_static("trailers"));
    }
    if let Some(protocol) = protocol {
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(UPGRADE, protocol);
    }
    append_peer(headers, peer);
    // HTTP/2 has the host in the URI; so has a request written for a forward proxy, whose Host
    // field is then to be replaced (RFC 9112, 3.2.2).
    let authority = request.uri().authority().map(host_value);
    match authority {
        Some(Some(host)) => drop(request.headers_mut().insert(HOST, host)),
        Some(None) => return false,
        None if request.headers().contains_key(HOST) => {}
        // HTTP/1.0 has no host, and HTTP/1.1 without one is wrong.
        None if request.version() < Version::HTTP_11 => {
            request.headers_mut().insert(HOST, HeaderValue::from_static(""));
        }
        None => return false,
    }
    if request.uri().scheme().is_some() || request.uri().authority().is_some() {
        let path = request.uri().path_and_query().cloned();
        *request.uri_mut() = Uri::from(path.unwrap_or_else(|| PathAndQuery::from_static("/")));
    }
    *request.version_mut() = Version::HTTP_11;
    true
}

/// Makes a request prepared for HTTP/1.1 one of HTTP/2. False if its host cannot be one.
pub(crate) fn move_to_http2<B>(request: &mut Request<B>, secure: bool) -> bool {
    let host = request.headers_mut().remove(HOST);
    let authority = host.as_ref().and_then(|host| Authority::try_from(host.as_bytes()).ok());
    let path = request.uri().path_and_query().cloned();
    let uri = authority.and_then(|authority| {
        let path = path.unwrap_or_else(|| PathAndQuery::from_static("/"));
        let scheme = if secure { Scheme::HTTPS } else { Scheme::HTTP };
        Uri::builder().scheme(scheme).authority(authority).path_and_query(path).build().ok()
    });
    let Some(uri) = uri else { return false };
    *request.uri_mut() = uri;
    *request.version_mut() = Version::HTTP_2;
    // Chunks are HTTP/1.1's; frames need none.
    request.headers_mut().remove(TRANSFER_ENCODING);
    true
}

/// Whether a request asks for another protocol on its connection. Tunnels of forward proxies
/// (CONNECT) are not ours.
pub(crate) fn wants_upgrade<B>(request: &Request<B>) -> bool {
    request.version() == Version::HTTP_11
        && request.method() != Method::CONNECT
        && request.headers().contains_key(UPGRADE)
        && has_token(request.headers(), &CONNECTION, "upgrade")
}

/// Removes what is meant for one connection (RFC 9110, 7.6.1). Transfer-Encoding stays: the body
/// is passed on as it is framed, and hyper has checked it.
pub(crate) fn remove_hop_by_hop(headers: &mut HeaderMap) {
    // To read all names once is quicker than to look up each of these, and most differ in length.
    let mut there = [false; HOP_BY_HOP.len()];
    for name in headers.keys() {
        if !matches!(name.as_str().len(), 2 | 7 | 10 | 16) {
            continue;
        }
        if let Some(at) = HOP_BY_HOP.iter().position(|hop| hop == name) {
            there[at] = true;
        }
    }
    if there == [false; HOP_BY_HOP.len()] {
        return;
    }
    if there[0] {
        let named: Vec<HeaderName> = tokens(headers, &CONNECTION)
            .filter(|token| {
                !["close", "keep-alive"].iter().any(|it| it.eq_ignore_ascii_case(token))
            })
            .filter_map(|token| token.parse().ok())
            .filter(|name| !is_framing(name))
            .collect();
        for name in named {
            headers.remove(name);
        }
    }
    for (name, _) in HOP_BY_HOP.iter().zip(there).filter(|(_, there)| *there) {
        headers.remove(name);
    }
}

/// Fields that a client must not be able to take away by naming them in Connection.
fn is_framing(name: &HeaderName) -> bool {
    [http::header::CONTENT_LENGTH, TRANSFER_ENCODING, HOST].contains(name)
}

fn has_token(headers: &HeaderMap, name: &HeaderName, token: &str) -> bool {
    tokens(headers, name).any(|word| word.eq_ignore_ascii_case(token))
}

/// The words between commas of all fields with a name.
fn tokens<'a>(headers: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'a str> {
    let values = headers.get_all(name).into_iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).map(str::trim)
}

fn host_value(authority: &Authority) -> Option<HeaderValue> {
    // Without user and password, which a Host field never has.
    let host = authority.as_str().rsplit('@').next()?;
    HeaderValue::from_str(host).ok()
}

/// Appends the client's address to those of the proxies before us.
fn append_peer(headers: &mut HeaderMap, peer: &Peer) {
    let before = headers.get_all(FORWARDED_FOR).iter().filter_map(|value| value.to_str().ok());
    let mut list = before.fold(String::new(), |list, value| list + value + ", ");
    let value = if list.is_empty() {
        peer.written.clone()
    } else {
        let _ = write!(list, "{}", peer.ip);
        // What was a value before is one with an address behind it.
        HeaderValue::try_from(list).unwrap_or_else(|_| peer.written.clone())
    };
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
                ("content-length", "3"),
                ("x-forwarded-for", "1.1.1.1"),
                ("x-forwarded-for", "2.2.2.2"),
                ("cookie", "kept"),
            ],
        );
        assert!(prepare_request(&mut request, &peer(), false));
        let names = ["host", "te", "content-length", "x-forwarded-for", "cookie"];
        assert_eq!(request.headers().len(), names.len(), "{request:?}");
        let values = names.map(|name| get(&request, name));
        let list = "1.1.1.1, 2.2.2.2, 10.1.2.3";
        assert_eq!(values.map(Option::unwrap), ["shop", "trailers", "3", list, "kept"]);
    }

    #[test]
    fn an_upgrade_keeps_its_protocol() {
        let headers = [("host", "a"), ("connection", "keep-alive, Upgrade"), ("upgrade", "ws")];
        let mut request = request(Version::HTTP_11, "/", &headers);
        assert!(wants_upgrade(&request));
        assert!(prepare_request(&mut request, &peer(), true));
        assert_eq!(get(&request, "connection"), Some("upgrade"));
        assert_eq!(get(&request, "upgrade"), Some("ws"));
    }

    #[test]
    fn the_host_comes_from_wherever_the_protocol_has_it() {
        let mut h2 = request(Version::HTTP_2, "http://shop:81/a?b", &[]);
        assert!(prepare_request(&mut h2, &peer(), false));
        assert_eq!((get(&h2, "host"), h2.uri().to_string()), (Some("shop:81"), "/a?b".to_owned()));
        assert_eq!(h2.version(), Version::HTTP_11);
        let mut absolute = request(Version::HTTP_11, "http://shop", &[("host", "other")]);
        assert!(prepare_request(&mut absolute, &peer(), false));
        assert_eq!((get(&absolute, "host"), absolute.uri().path()), (Some("shop"), "/"));
        assert!(prepare_request(&mut request(Version::HTTP_10, "/", &[]), &peer(), false));
        assert!(!prepare_request(&mut request(Version::HTTP_11, "/", &[]), &peer(), false));
    }

    #[test]
    fn a_request_of_one_version_becomes_one_of_the_other() {
        let headers = [("host", "shop:81"), ("transfer-encoding", "chunked"), ("a", "b")];
        let mut moved = request(Version::HTTP_11, "/x?y", &headers);
        assert!(move_to_http2(&mut moved, false));
        assert_eq!((moved.version(), moved.headers().len()), (Version::HTTP_2, 1));
        assert_eq!(moved.uri().to_string(), "http://shop:81/x?y");
        assert!(!move_to_http2(&mut request(Version::HTTP_11, "/", &[("host", "")]), false));
    }
}
