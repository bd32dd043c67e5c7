//! Ranks for requests that come without one: by rule for the business, by a keyed hash for the user.
//!
//! Rules are looked through in order and the first that fits decides. Where there are rules, what
//! fits none is refused first; where there are none, everything is equally important. Users are told
//! apart by a header that something before us has verified, else by their credentials, else by
//! their address; what is found goes through the hash at once and is kept nowhere.

use std::net::IpAddr;

use http::{HeaderName, Request};
use tidegate_core::Rank;
use tidegate_core::entry::{Entry, EntryConfig};
use tidegate_http::identity;

use crate::config::{ProxyConfig, Rule};

/// Assigns ranks.
#[derive(Debug)]
pub(crate) struct Ranks {
    entry: Entry,
    /// Rules, each with the name its business rank has in the entry's table.
    rules: Vec<(Rule, String)>,
    user_header: Option<HeaderName>,
    exempt: Vec<String>,
}

impl Ranks {
    pub(crate) fn new(config: &ProxyConfig, secret: [u8; 16]) -> Self {
        let named = |(n, rule): (usize, &Rule)| (rule.clone(), n.to_string());
        let rules: Vec<(Rule, String)> = config.rules.iter().enumerate().map(named).collect();
        let table = rules.iter().map(|(rule, name)| (name.clone(), rule.business)).collect();
        let actions = (!rules.is_empty()).then_some(table);
        Self {
            entry: Entry::new(&EntryConfig { actions }, secret),
            rules,
            user_header: config.user_header.as_ref().and_then(|name| name.parse().ok()),
            exempt: config.exempt.clone(),
        }
    }

    /// Whether the gate is not asked about this path. One that ends in `/` stands for all below it.
    pub(crate) fn is_exempt(&self, path: &str) -> bool {
        identity::is_exempt(&self.exempt, path)
    }

    /// The rank of a request from `peer`.
    pub(crate) fn rank<B>(&self, request: &Request<B>, peer: IpAddr) -> Rank {
        let fits =
            self.rules.iter().find(|(rule, _)| rule.fits(request.method(), request.uri().path()));
        let action = fits.map_or("", |(_, name)| name);
        identity::with_user(request.headers(), self.user_header.as_ref(), Some(peer), |user| {
            self.entry.rank(identity::hour(), action, user)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PEER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    fn ranks(rules: &str) -> Ranks {
        let text = format!("[proxy]\nuser_header = 'x-user'\n{rules}");
        let file = crate::File::parse(&text).unwrap_or_else(|error| panic!("{error}"));
        Ranks::new(&file.proxy, [7; 16])
    }

    fn request(method: &str, path: &str, headers: &[(&str, &str)]) -> Request<()> {
        let mut request = Request::builder().method(method).uri(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(()).expect("well formed")
    }

    #[test]
    fn the_first_rule_that_fits_decides_and_what_fits_none_comes_last() {
        let rules = "
            [[proxy.rules]]
            method = 'POST'
            path = '/checkout'
            business = 3
            [[proxy.rules]]
            path = '/checkout'
            business = 20
            [[proxy.rules]]
            method = 'HEAD'
            business = 40
        ";
        let ranks = ranks(rules);
        for (method, path, business) in [
            ("POST", "/checkout", 3),
            ("POST", "/checkout/pay", 3),
            ("POST", "/checkouts", 63),
            ("GET", "/checkout", 20),
            ("HEAD", "/", 40),
            ("GET", "/", 63),
        ] {
            let rank = ranks.rank(&request(method, path, &[]), PEER);
            assert_eq!(rank.business(), business, "{method} {path}");
        }
    }

    #[test]
    fn users_are_told_apart_by_the_best_there_is() {
        let ranks = ranks("");
        let of = |headers: &[(&str, &str)]| ranks.rank(&request("GET", "/", headers), PEER);
        assert_eq!(of(&[]).business(), 24);
        let by_cookie = of(&[("cookie", "a=b; sid=ann")]);
        let by_credentials = of(&[("authorization", "Bearer ann"), ("cookie", "sid=ann")]);
        let by_header = of(&[("x-user", "ann"), ("authorization", "Bearer ann")]);
        assert_eq!(by_cookie, of(&[("cookie", "sid=ann"), ("x-other", "1")]));
        assert_eq!(by_credentials, of(&[("authorization", "Bearer ann")]));
        assert_eq!(by_header, of(&[("x-user", "ann")]));
        assert_eq!(by_header, by_cookie, "who it is, not where it stands");
        let all = [of(&[]), by_cookie, by_credentials, of(&[("x-user", "bob")])];
        assert!(all.windows(2).all(|pair| pair[0] != pair[1]), "{all:?}");
    }

    #[test]
    fn health_checks_are_exempt() {
        let ranks = ranks("");
        for (path, exempt) in [
            ("/healthz", true),
            ("/healthz/x", false),
            ("/grpc.health.v1.Health/Check", true),
            ("/", false),
        ] {
            assert_eq!(ranks.is_exempt(path), exempt, "{path}");
        }
    }
}
