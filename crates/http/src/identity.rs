//! Who a request is from, for the entry's keyed hash: what is found goes through it at once and is
//! kept nowhere, and never logged.

use std::cell::Cell;
use std::net::IpAddr;

use http::{HeaderMap, HeaderName, HeaderValue, header};
use tidegate_core::entry::{Entry, HourKey};
use tidegate_core::{Rank, Sender};
use tidegate_driver::{sender, values};

use crate::path;

/// Cookies that tell users apart, by the names that frameworks give them.
const SESSION_COOKIES: [&[u8]; 5] =
    [b"session", b"sessionid", b"session_id", b"sid", b"JSESSIONID"];

/// Calls `use_it` with the best that tells this user from others: the value of the header `verified`,
/// which something before us has verified; else, if `credentials` have been verified, these or a session
/// cookie; else the address of the peer. What nobody has verified its sender has chosen, and would choose again until
/// it has a good rank.
///
/// Of an IPv6 address the first half counts: the other is the client's to choose, and who may choose
/// freely tries until one has a good rank.
pub fn with_user<R>(
    headers: &HeaderMap,
    verified: Option<&HeaderName>,
    credentials: bool,
    peer: Option<IpAddr>,
    use_it: impl FnOnce(Option<&[u8]>) -> R,
) -> R {
    let verified = verified.and_then(|name| headers.get(name)).map(HeaderValue::as_bytes);
    let token = || headers.get(header::AUTHORIZATION).map(HeaderValue::as_bytes);
    let shown = || if credentials { token().or_else(|| session(headers)) } else { None };
    match verified.or_else(shown) {
        Some(user) => use_it(Some(user)),
        None => with_peer(peer, use_it),
    }
}

/// Calls `use_it` with what counts of an address.
pub(crate) fn with_peer<R>(peer: Option<IpAddr>, use_it: impl FnOnce(Option<&[u8]>) -> R) -> R {
    match peer {
        Some(peer) => sender::with_address(peer, |address| use_it(Some(address))),
        None => use_it(None),
    }
}

/// The sender of a request from `peer`, whose user is told by the header `verified` as in [`with_user`]; and what the
/// header `limited` says, if limits go by one.
pub fn sender_of(
    headers: &HeaderMap,
    verified: Option<&HeaderName>,
    credentials: bool,
    limited: Option<&HeaderName>,
    peer: Option<IpAddr>,
) -> Sender {
    let said = limited.and_then(|name| headers.get(name));
    let named = verified.is_some_and(|name| headers.contains_key(name));
    let mark = |user: Option<&[u8]>| user.map_or(0, |user| values::user(user, named));
    let user = with_user(headers, verified, credentials, peer, mark);
    let header = said.map_or(0, |value| values::header(value.as_bytes()));
    Sender { user, header, ..peer.map_or(Sender::UNKNOWN, sender::at) }
}

/// The first session cookie.
pub(crate) fn session(headers: &HeaderMap) -> Option<&[u8]> {
    let cookies = headers.get_all(header::COOKIE).iter();
    cookies
        .flat_map(|cookies| cookies.as_bytes().split(|byte| *byte == b';').map(<[u8]>::trim_ascii))
        .filter_map(|pair| {
            let equals = pair.iter().position(|byte| *byte == b'=')?;
            Some((&pair[..equals], &pair[equals + 1..]))
        })
        .find(|(name, value)| SESSION_COOKIES.contains(name) && !value.is_empty())
        .map(|(_, value)| value)
}

thread_local! {
    /// The key that this thread used last: of most threads the only one in an hour.
    static KEY: Cell<Option<HourKey>> = const { Cell::new(None) };
}

/// The rank that `entry` gives now to a request for `action` by `user`.
pub fn rank(entry: &Entry, action: &str, user: Option<&[u8]>) -> Rank {
    entry.rank_of(action, user.map(|user| key_now(entry).user(user)))
}

fn key_now(entry: &Entry) -> HourKey {
    let hour = hour();
    KEY.get().filter(|key| entry.made(key, hour)).unwrap_or_else(|| {
        let key = entry.hour_key(hour);
        KEY.set(Some(key));
        key
    })
}

/// Hours since 1970 by the wall clock, which replicas share well enough: the entry's key changes with
/// them.
pub fn hour() -> u64 {
    seconds() / 3600
}

/// A clock that is some milliseconds late costs a third of one that is not.
#[cfg(target_os = "linux")]
fn seconds() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::RealtimeCoarse);
    u64::try_from(time.tv_sec).unwrap_or(0)
}

#[cfg(not(target_os = "linux"))]
fn seconds() -> u64 {
    use std::time::{SystemTime, UNIX_EPOCH};
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Paths that are served whatever the load: whoever asks for health must not be told "overloaded",
/// or instances would be taken out when they are needed most.
pub const EXEMPT: [&str; 5] =
    ["/healthz", "/livez", "/readyz", "/health", "/grpc.health.v1.Health/"];

/// Whether `path` is one of `exempt`. One that ends in `/` stands for all below it. A path that a server may
/// resolve to another is none.
pub fn is_exempt(exempt: &[impl AsRef<str>], path: &str) -> bool {
    exempt
        .iter()
        .map(AsRef::as_ref)
        .any(|exempt| if exempt.ends_with('/') { path.starts_with(exempt) } else { path == exempt })
        && path::is_normal(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(headers: &[(&'static str, &'static str)], peer: Option<&str>) -> Option<Vec<u8>> {
        user_by(true, headers, peer)
    }

    fn user_by(
        credentials: bool,
        headers: &[(&'static str, &'static str)],
        peer: Option<&str>,
    ) -> Option<Vec<u8>> {
        let headers: HeaderMap = headers
            .iter()
            .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)))
            .collect();
        let verified = HeaderName::from_static("x-user");
        let peer = peer.map(|peer| peer.parse().unwrap());
        with_user(&headers, Some(&verified), credentials, peer, |user| user.map(<[u8]>::to_vec))
    }

    /// The configured header, else credentials, else a session, else the address.
    #[test]
    fn users_are_told_from_the_best_there_is() {
        let cookie = ("cookie", "theme=dark; sid=; session=abc=; x");
        let token = ("authorization", "Bearer t");
        let header = ("x-user", "ann");
        assert_eq!(user(&[], None), None);
        assert_eq!(user(&[], Some("10.0.0.7")).as_deref(), Some(&[10, 0, 0, 7][..]));
        assert_eq!(user(&[cookie], Some("10.0.0.7")).as_deref(), Some(&b"abc="[..]));
        assert_eq!(user(&[cookie, token], None).as_deref(), Some(&b"Bearer t"[..]));
        assert_eq!(user(&[cookie, token, header], None).as_deref(), Some(&b"ann"[..]));
        let peer = Some("10.0.0.7");
        assert_eq!(
            user_by(false, &[cookie, token], peer),
            user(&[], peer),
            "nobody has verified them"
        );
        assert_eq!(user_by(false, &[cookie, header], peer).as_deref(), Some(&b"ann"[..]));
    }

    #[test]
    fn what_a_client_may_choose_of_its_address_does_not_count() {
        let one = user(&[], Some("2001:db8:1:2::1"));
        assert_eq!(one, user(&[], Some("2001:db8:1:2:ffff:1:2:3")));
        assert_ne!(one, user(&[], Some("2001:db8:1:3::1")));
        assert_eq!(user(&[], Some("::ffff:10.0.0.7")), user(&[], Some("10.0.0.7")));
    }

    #[test]
    fn health_checks_are_exempt() {
        for (path, exempt) in [
            ("/healthz", true),
            ("/healthz/x", false),
            ("/grpc.health.v1.Health/Check", true),
            ("/", false),
            ("/grpc.health.v1.Health/../expensive", false),
            ("/grpc.health.v1.Health/%2e%2e/expensive", false),
            ("/grpc.health.v1.Health/..%2fexpensive", false),
        ] {
            assert_eq!(is_exempt(&EXEMPT, path), exempt, "{path}");
        }
    }
}
