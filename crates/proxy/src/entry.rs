//! Ranks for requests that come without one: by rule for the business, by a keyed hash for the user.
//!
//! Rules are looked through in order and the first that fits decides. Where there are rules, what
//! fits none is refused first; where there are none, everything is equally important. Users are told
//! apart by a header that something before us has verified, else by their credentials, else by
//! their address; what is found goes through the hash at once and is kept nowhere.

use std::net::IpAddr;

use http::{HeaderMap, HeaderName, Request};
use tidegate_core::entry::{Entry, EntryConfig};
use tidegate_core::{Criticality, Rank, Sender};
use tidegate_http::identity;
use tidegate_http::wire::Names;

use crate::config::{Network, ProxyConfig, Rule};

/// Assigns ranks.
#[derive(Debug)]
pub(crate) struct Ranks {
    entry: Entry,
    /// Rules, each with the name its business rank has in the entry's table.
    rules: Vec<(Rule, String)>,
    user_header: Option<HeaderName>,
    workflow_header: Option<HeaderName>,
    limit_header: Option<HeaderName>,
    gateways: Vec<Network>,
    batch: bool,
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
            workflow_header: config.workflow_header.as_ref().and_then(|name| name.parse().ok()),
            limit_header: config.limit_header.as_ref().and_then(|name| name.parse().ok()),
            gateways: config.gateways.clone(),
            batch: config.batch,
            exempt: config.exempt.clone(),
        }
    }

    /// Whether the gate is not asked about this path. One that ends in `/` stands for all below it.
    pub(crate) fn is_exempt(&self, path: &str) -> bool {
        identity::is_exempt(&self.exempt, path)
    }

    fn rule<B>(&self, request: &Request<B>, peer: IpAddr) -> Option<&(Rule, String)> {
        let (method, path) = (request.method(), request.uri().path());
        self.rules.iter().find(|(rule, _)| rule.fits(method, path, request.headers(), peer))
    }

    /// The workflow of a request from `peer`: by rule, else by header.
    pub(crate) fn workflow<'a, B>(
        &'a self,
        request: &'a Request<B>,
        peer: IpAddr,
    ) -> Option<&'a str> {
        let told = || request.headers().get(self.workflow_header.as_ref()?)?.to_str().ok();
        let rule = self.rule(request, peer).and_then(|(rule, _)| rule.workflow.as_deref());
        rule.or_else(told).filter(|name| name.len() <= Names::LONGEST)
    }

    /// Who sent a request that came from `peer`.
    pub(crate) fn sender(&self, headers: &HeaderMap, peer: IpAddr) -> Sender {
        let (verified, limited) = (self.user_header.as_ref(), self.limit_header.as_ref());
        let mut sender = identity::sender_of(headers, verified, limited, Some(peer));
        if self.gateways.iter().any(|gateways| gateways.contains(peer)) {
            sender.peer = Sender::GATEWAY;
        }
        sender
    }

    /// What is left of a rank where everything is work that can wait.
    pub(crate) fn stamp(&self, rank: Rank) -> Rank {
        let batch = Criticality::SheddablePlus;
        let more_important = rank.criticality().index() < batch.index();
        if self.batch && more_important { rank.with_criticality(batch) } else { rank }
    }

    /// Whether more than its address says who a request is from.
    pub(crate) fn names_user(&self, headers: &HeaderMap) -> bool {
        identity::with_user(headers, self.user_header.as_ref(), None, |user| user.is_some())
    }

    /// The rank of a request from `peer`.
    pub(crate) fn rank<B>(&self, request: &Request<B>, peer: IpAddr) -> Rank {
        let action = self.rule(request, peer).map_or("", |(_, name)| name);
        identity::with_user(request.headers(), self.user_header.as_ref(), Some(peer), |user| {
            identity::rank(&self.entry, action, user)
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
    fn rules_look_at_headers_and_peers_and_name_workflows() {
        let rules = "
            workflow_header = 'x-tenant'
            batch = true
            [[proxy.rules]]
            header = 'x-tier'
            value = 'gold'
            business = 3
            workflow = 'gold'
            [[proxy.rules]]
            header = 'x-tier'
            business = 20
            [[proxy.rules]]
            peer = '127.0.0.0/8'
            business = 50
        ";
        let ranks = ranks(rules);
        for (headers, business, workflow) in [
            (&[("x-tier", "gold"), ("x-tenant", "ann")][..], 3, Some("gold")),
            (&[("x-tier", "tin"), ("x-tenant", "ann")], 20, Some("ann")),
            (&[], 50, None),
        ] {
            let request = request("GET", "/", headers);
            assert_eq!(ranks.rank(&request, PEER).business(), business, "{headers:?}");
            assert_eq!(ranks.workflow(&request, PEER), workflow, "{headers:?}");
        }
        let stranger = "10.0.0.1".parse().unwrap();
        assert_eq!(ranks.rank(&request("GET", "/", &[]), stranger).business(), 63);
        let stamped = |business| ranks.stamp(Rank::new(business, 9));
        assert_eq!(stamped(3).criticality(), Criticality::SheddablePlus);
        assert_eq!((stamped(3).user(), stamped(50)), (9, Rank::new(50, 9)));
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
