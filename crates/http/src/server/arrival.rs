//! What a request comes with: its own context where its sender is trusted, else a rank from the
//! entry.
//!
//! At an edge nothing that would gain its sender anything is believed: not the context, not the
//! attempt. A timeout is, since it only says when the sender stops waiting.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use http::{Extensions, HeaderMap, HeaderName, Method, Request, Uri, header};
use tidegate_core::{Context, Instant, Rank};

use super::layer::GateLayer;
use crate::wire;

/// A request without its body.
#[derive(Clone, Copy, Debug)]
pub struct Head<'a> {
    /// Its method.
    pub method: &'a Method,
    /// Its target.
    pub uri: &'a Uri,
    /// Its headers.
    pub headers: &'a HeaderMap,
    /// What layers before have noted, such as [`Peer`].
    pub extensions: &'a Extensions,
}

impl<'a> Head<'a> {
    pub(crate) fn of<Q>(request: &'a Request<Q>) -> Self {
        Self {
            method: request.method(),
            uri: request.uri(),
            headers: request.headers(),
            extensions: request.extensions(),
        }
    }
}

/// The address a request came from, for whoever accepts connections to note in its extensions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer(pub IpAddr);

/// Whose contexts are believed.
#[derive(Clone, Default)]
pub enum Trust {
    /// Nobody's: requests come from strangers.
    #[default]
    Edge,
    /// Everybody's: only services of ours can reach this one.
    Inside,
    /// Those of requests that pass this test, say by the certificate of their peer.
    When(Arc<dyn Fn(&Head<'_>) -> bool + Send + Sync>),
}

impl Trust {
    /// Believes those whose requests pass `test`.
    pub fn when(test: impl Fn(&Head<'_>) -> bool + Send + Sync + 'static) -> Self {
        Self::When(Arc::new(test))
    }

    fn trusts(&self, head: &Head<'_>) -> bool {
        match self {
            Self::Edge => false,
            Self::Inside => true,
            Self::When(test) => test(head),
        }
    }
}

impl fmt::Debug for Trust {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Edge => "Edge",
            Self::Inside => "Inside",
            Self::When(_) => "When(..)",
        })
    }
}

/// Where a user is told from: the configured header, else credentials, else the peer's address.
/// What is found goes through the entry's keyed hash at once and is kept nowhere.
#[derive(Clone, Debug, Default)]
pub(super) struct Identity {
    pub(super) header: Option<HeaderName>,
}

/// Cookies that tell users apart, by the names that frameworks give them.
const SESSION_COOKIES: [&[u8]; 5] =
    [b"session", b"sessionid", b"session_id", b"sid", b"JSESSIONID"];

impl Identity {
    fn with_user<R>(&self, head: &Head<'_>, use_it: impl FnOnce(Option<&[u8]>) -> R) -> R {
        let configured = self.header.as_ref().and_then(|name| head.headers.get(name));
        if let Some(value) = configured.or_else(|| head.headers.get(header::AUTHORIZATION)) {
            return use_it(Some(value.as_bytes()));
        }
        if let Some(session) = session(head.headers) {
            return use_it(Some(session));
        }
        match head.extensions.get::<Peer>() {
            Some(Peer(IpAddr::V4(address))) => use_it(Some(&address.octets())),
            Some(Peer(IpAddr::V6(address))) => use_it(Some(&address.octets())),
            None => use_it(None),
        }
    }
}

fn session(headers: &HeaderMap) -> Option<&[u8]> {
    let pairs = headers
        .get_all(header::COOKIE)
        .iter()
        .flat_map(|cookies| cookies.as_bytes().split(|byte| *byte == b';').map(<[u8]>::trim_ascii));
    pairs
        .filter_map(|pair| {
            let equals = pair.iter().position(|byte| *byte == b'=')?;
            Some((&pair[..equals], &pair[equals + 1..]))
        })
        .find(|(name, value)| SESSION_COOKIES.contains(name) && !value.is_empty())
        .map(|(_, value)| value)
}

/// What a layer counts.
#[derive(Debug, Default)]
pub(super) struct Counts {
    malformed: AtomicU64,
    refused: AtomicU64,
}

impl Counts {
    pub(super) fn malformed(&self) -> u64 {
        self.malformed.load(Ordering::Relaxed)
    }

    /// Another number from 0 to 1 for every refusal: multiples of the golden ratio, which spread more
    /// evenly than chance.
    pub(super) fn jitter(&self) -> f64 {
        let refusal = self.refused.fetch_add(1, Ordering::Relaxed);
        (refusal.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// What there is to know of a request before the gate is asked.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    pub(super) context: Context,
    /// Whether its sender is trusted, and may know its rank and our cursor.
    pub(super) trusted: bool,
    /// Whether it sent a context, and so understands feedback.
    pub(super) listens: bool,
    pub(super) grpc: bool,
}

impl GateLayer {
    /// Whether the request is served without asking the gate.
    pub(super) fn is_exempt(&self, path: &str) -> bool {
        self.exempt.iter().any(|exempt| {
            if exempt.ends_with('/') { path.starts_with(&**exempt) } else { path == exempt }
        })
    }

    /// Reads what `head` comes with.
    pub(super) fn ask(&self, now: Instant, head: &Head<'_>) -> Asked {
        let trusted = self.trust.trusts(head);
        let told = if trusted { self.told(now, head.headers) } else { None };
        let mut context =
            told.unwrap_or_else(|| Context { rank: self.assign(head), ..Context::default() });
        if trusted {
            let attempt = wire::attempt_of(head.headers).unwrap_or(0);
            context.attempt = context.attempt.max(attempt);
        }
        for patience in wire::timeout_of(head.headers).into_iter().chain(self.patience) {
            context.deadline = context.deadline.min(now + patience);
        }
        Asked { context, trusted, listens: told.is_some(), grpc: wire::is_grpc(head.headers) }
    }

    /// The context that came along, unless it is missing or malformed.
    fn told(&self, now: Instant, headers: &HeaderMap) -> Option<Context> {
        let told = wire::context_of(headers, now, &self.names)?;
        if told.is_err() {
            self.counts.malformed.fetch_add(1, Ordering::Relaxed);
        }
        told.ok()
    }

    fn assign(&self, head: &Head<'_>) -> Rank {
        let action = match &self.action {
            Some(action) => action(head),
            None => format!("{} {}", head.method, head.uri.path()),
        };
        self.identity.with_user(head, |user| self.entry.rank(hour(), &action, user))
    }
}

/// Hours since 1970 by the wall clock, which replicas share well enough.
fn hour() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() / 3600)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use http::HeaderValue;

    use super::*;

    fn user(build: impl FnOnce(&mut Request<()>)) -> Option<Vec<u8>> {
        let mut request = Request::new(());
        build(&mut request);
        let identity = Identity { header: Some(HeaderName::from_static("x-user")) };
        identity.with_user(&Head::of(&request), |user| user.map(<[u8]>::to_vec))
    }

    fn set(request: &mut Request<()>, name: HeaderName, value: &'static str) {
        request.headers_mut().append(name, HeaderValue::from_static(value));
    }

    /// The configured header, else credentials, else the address.
    #[test]
    fn users_are_told_from_the_best_there_is() {
        assert_eq!(user(|_| {}), None);
        let address = Peer(IpAddr::V4(Ipv4Addr::new(10, 0, 0, 7)));
        let from_address = |request: &mut Request<()>| {
            request.extensions_mut().insert(address);
        };
        assert_eq!(user(from_address).as_deref(), Some(&[10, 0, 0, 7][..]));
        let with_cookie = |request: &mut Request<()>| {
            from_address(request);
            set(request, header::COOKIE, "theme=dark; sid=; session=abc=; x");
        };
        assert_eq!(user(with_cookie).as_deref(), Some(&b"abc="[..]));
        let with_token = |request: &mut Request<()>| {
            with_cookie(request);
            set(request, header::AUTHORIZATION, "Bearer t");
        };
        assert_eq!(user(with_token).as_deref(), Some(&b"Bearer t"[..]));
        let with_header = |request: &mut Request<()>| {
            with_token(request);
            set(request, HeaderName::from_static("x-user"), "ann");
        };
        assert_eq!(user(with_header).as_deref(), Some(&b"ann"[..]));
    }

    #[test]
    fn jitter_is_spread_over_zero_to_one() {
        let counts = Counts::default();
        let mut tenths = [0; 10];
        for _ in 0..1_000 {
            tenths[(counts.jitter() * 10.0) as usize] += 1;
        }
        assert!(tenths.iter().all(|count| (60..=140).contains(count)), "{tenths:?}");
    }
}
