//! What a request has to be before anything is asked about it: [`clean`].
//!
//! Rules, exempt paths and identities are worth what they look at. So what is looked at is first brought to the form in
//! which it goes on, byte for byte; what the service could read in another way is turned away or left out; and what only
//! proxies of ours may say is taken from them alone.

use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderName, Method, Request, Response, StatusCode, Uri};
use tidegate_http::path::{self, Ambiguous};

use crate::body::ProxyBody;
use crate::config::{AmbiguousPaths, ProxyConfig, Trust, Underscores};
use crate::forward::plain;
use crate::headers::Peer;
use crate::hops::Hops;
use crate::worker::{Settings, Worker};

/// How the names begin of fields that are ours to say.
const OURS: &str = "overload-";
/// The same of fields that proxies say.
const OF_PROXIES: &str = "x-forwarded-";
/// Fields in which proxies say where a request comes from, or services find another path than that of the request.
const FROM_PROXIES: [&str; 7] = [
    "forwarded",
    "x-real-ip",
    "x-client-ip",
    "x-cluster-client-ip",
    "true-client-ip",
    "x-original-url",
    "x-rewrite-url",
];
/// Fields that say where a message ends and whom it is for.
const FRAMING: [&str; 4] = ["content-length", "transfer-encoding", "host", "connection"];

/// What strangers may send.
#[derive(Clone, Debug)]
pub(crate) struct Strangers {
    pub(crate) hops: Hops,
    underscores: Underscores,
    ambiguous_paths: AmbiguousPaths,
    /// Fields that say what something before us has verified.
    verified: Vec<HeaderName>,
    /// Whether there are none: all who can connect are ours.
    nobody: bool,
}

impl Strangers {
    pub(crate) fn new(config: &ProxyConfig) -> Self {
        let rules = config.rules.iter().filter_map(|rule| rule.header.as_ref());
        let named = [&config.user_header, &config.workflow_header].into_iter().flatten();
        Self {
            hops: Hops::new(&config.edge),
            underscores: config.edge.underscores,
            ambiguous_paths: config.edge.ambiguous_paths,
            verified: named.chain(rules).filter_map(|name| name.parse().ok()).collect(),
            nobody: config.trust == Trust::Inside,
        }
    }

    /// Whether the word of `peer` is taken for what a request of somebody else's says.
    pub(crate) fn trusts(&self, peer: &Peer) -> bool {
        self.nobody || self.hops.trusts(peer.ip)
    }

    /// Leaves out what a request from `peer` may not say; none if it must not even try.
    fn clean(&self, headers: &mut HeaderMap, peer: &Peer) -> Option<()> {
        if self.nobody {
            return Some(());
        }
        let hop = self.hops.trusts(peer.ip);
        let unread = self.hops.unread();
        let mut out: Vec<HeaderName> = Vec::new();
        for name in headers.keys() {
            let text = name.as_str();
            let goes = if text.contains('_') {
                match self.underscores {
                    Underscores::Drop => false,
                    Underscores::Refuse => return None,
                    Underscores::Pass => {
                        let verified = |ours: &HeaderName| reads_as(text, ours.as_str());
                        !is_ours(text) && !self.verified.iter().any(verified)
                    }
                }
            } else if hop {
                *name != unread
            } else {
                // A list of addresses is the client's own to begin: ours goes behind it.
                let proxies = is_from_proxies(text) && text != "x-forwarded-for";
                !proxies && !(self.hops.any() && self.verified.contains(name))
            };
            if !goes {
                out.push(name.clone());
            }
        }
        out.iter().for_each(|name| drop(headers.remove(name)));
        Some(())
    }
}

/// Whether a field with this name is taken for one that strangers may not have, by those who take underscores for
/// hyphens, too.
pub(crate) fn is_ours(name: &str) -> bool {
    let ours = |name: &str| name.starts_with(OURS) || is_from_proxies(name);
    if !name.contains('_') {
        return ours(name);
    }
    let name = name.replace('_', "-");
    ours(&name) || FRAMING.contains(&&*name)
}

fn is_from_proxies(name: &str) -> bool {
    name.starts_with(OF_PROXIES) || FROM_PROXIES.contains(&name)
}

/// Whether a name with underscores is that of `ours` to those who take them for hyphens.
fn reads_as(name: &str, ours: &str) -> bool {
    let alike = |(one, other): (u8, u8)| one == other || (one, other) == (b'_', b'-');
    name.len() == ours.len() && name.bytes().zip(ours.bytes()).all(alike)
}

/// Brings a request to the form in which it is looked at and goes on, or says why that cannot be.
pub(crate) fn clean<B>(
    worker: &Worker,
    settings: &Settings,
    peer: &Peer,
    request: &mut Request<B>,
) -> Result<(), Response<ProxyBody>> {
    let strangers = &settings.strangers;
    if let Err(why) = normalise_path(request) {
        worker.counters.ambiguous.add(1);
        if strangers.ambiguous_paths == AmbiguousPaths::Refuse || why == Ambiguous::Rootless {
            return Err(plain(StatusCode::BAD_REQUEST, format!("{why}\n")));
        }
    }
    let clean = strangers.clean(request.headers_mut(), peer);
    clean.ok_or_else(|| plain(StatusCode::BAD_REQUEST, "the name of a field has an underscore\n"))
}

/// Writes the path in its one form, if it has one.
fn normalise_path<B>(request: &mut Request<B>) -> Result<(), Ambiguous> {
    let uri = request.uri();
    // Tunnels have no path, and are turned away later; the server itself has none, either (RFC 9112, 3.2.4).
    let whole = *request.method() == Method::OPTIONS && uri.path() == "*";
    if *request.method() == Method::CONNECT || whole {
        return Ok(());
    }
    let normal = path::normalise(uri.path())?;
    if normal == uri.path() {
        return Ok(());
    }
    let query = uri.query().map_or_else(String::new, |query| format!("?{query}"));
    // What was a path is one in another form.
    let written =
        PathAndQuery::try_from(format!("{normal}{query}")).map_err(|_| Ambiguous::Percent)?;
    let mut parts = uri.clone().into_parts();
    parts.path_and_query = Some(written);
    let uri = Uri::from_parts(parts).map_err(|_| Ambiguous::Rootless)?;
    *request.uri_mut() = uri;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_goes_on_is_what_was_looked_at() {
        for (method, uri, normal) in [
            (Method::GET, "/a/../b?x=/../y%2f", Ok("/b?x=/../y%2f")),
            (Method::GET, "http://me@shop/%61?", Ok("http://me@shop/a?")),
            (Method::GET, "http://shop", Ok("http://shop/")),
            (Method::GET, "http://shop?q", Ok("http://shop/?q")),
            (Method::OPTIONS, "*", Ok("*")),
            (Method::GET, "*", Err(Ambiguous::Rootless)),
            (Method::GET, "shop", Err(Ambiguous::Rootless)),
            (Method::CONNECT, "shop:443", Ok("shop:443")),
            (Method::GET, "/a%2fb", Err(Ambiguous::Slash)),
        ] {
            let mut request = Request::builder().method(method).uri(uri).body(()).unwrap();
            let told = normalise_path(&mut request);
            assert_eq!(
                told.map(|()| request.uri().to_string()),
                normal.map(str::to_owned),
                "{uri}"
            );
        }
    }

    fn left(config: &str, peer: [u8; 4], names: &[&'static str]) -> Option<Vec<String>> {
        let file = crate::File::parse(config).unwrap_or_else(|error| panic!("{error}"));
        let value = || http::HeaderValue::from_static("1");
        let mut headers: HeaderMap =
            names.iter().map(|name| (HeaderName::from_static(name), value())).collect();
        Strangers::new(&file.proxy).clean(&mut headers, &Peer::new(peer.into()))?;
        Some(headers.keys().map(ToString::to_string).collect())
    }

    #[test]
    fn strangers_do_not_say_what_only_proxies_of_ours_may() {
        let names = [
            "x-kept",
            "x-forwarded-for",
            "x-forwarded-proto",
            "forwarded",
            "x-real-ip",
            "x-original-url",
            "x-user",
            "x_user",
            "overload_context",
        ];
        let trusted = "[proxy]\nuser_header = 'x-user'\nedge = { trusted = ['10.0.0.0/8'] }\n";
        let stranger = left(trusted, [9, 9, 9, 9], &names).expect("clean");
        let sorted = |mut names: Vec<String>| {
            names.sort();
            names
        };
        assert_eq!(sorted(stranger), ["x-forwarded-for", "x-kept"]);
        let hop = sorted(left(trusted, [10, 0, 0, 1], &names).expect("clean"));
        let hops = [
            "x-forwarded-for",
            "x-forwarded-proto",
            "x-kept",
            "x-original-url",
            "x-real-ip",
            "x-user",
        ];
        assert_eq!(hop, hops, "a proxy of ours may, but it passes underscores on");
        let inside = left("[proxy]\ntrust = 'inside'\n", [9, 9, 9, 9], &names).expect("clean");
        assert_eq!(inside.len(), names.len());
    }

    #[test]
    fn underscores_are_left_out_refused_or_passed_where_they_mean_nothing() {
        let names =
            ["x_api_key", "overload_context", "x_forwarded_for", "x_user", "content_length", "x-a"];
        let with = |policy: &str| {
            let edge = format!("edge = {{ underscores = '{policy}' }}\n");
            left(&format!("[proxy]\nuser_header = 'x-user'\n{edge}"), [9, 9, 9, 9], &names)
        };
        assert_eq!(with("drop").expect("clean"), ["x-a"]);
        let mut passed = with("pass").expect("clean");
        passed.sort();
        assert_eq!(passed, ["x-a", "x_api_key"]);
        assert_eq!(with("refuse"), None);
    }
}
