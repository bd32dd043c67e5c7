//! Ranks for requests that come without one: by rule for the business, by a keyed hash for the user.
//!
//! Rules are looked through in order and the first that fits decides. Where there are rules, what
//! fits none is refused first; where there are none, everything is equally important.
//!
//! A user is somebody whom something has verified, or else an address: whoever may choose what tells it from others tries
//! until it has a good rank. In this order count: a header, if a proxy that we trust has set it; the certificate of the
//! connection; a token of an issuer whose keys we have; credentials and session cookies, if we are told that they are verified; the address, through the
//! proxies that we trust. What is found goes through the hash at once and is kept nowhere.

use std::net::IpAddr;
use std::sync::Arc;

use http::{HeaderMap, HeaderName, HeaderValue, Request};
use tidegate_core::entry::{Entry, EntryConfig};
use tidegate_core::{Criticality, Rank, Sender};
use tidegate_driver::{sender, values};
use tidegate_http::wire::Names;
use tidegate_http::{identity, path};

use crate::config::{Network, ProxyConfig, Rule, Trust};
use crate::edge::Strangers;
use crate::headers::Peer;
use crate::jwt::Jwt;

/// Header that says which rule a request goes by.
const RULE: HeaderName = HeaderName::from_static("tidegate-rule");

/// Assigns ranks.
#[derive(Debug)]
pub(crate) struct Ranks {
    entry: Entry,
    rules: Vec<Known>,
    user_header: Option<HeaderName>,
    /// Whose tokens tell users apart.
    jwt: Option<Arc<Jwt>>,
    /// Whether credentials have been verified.
    credentials: bool,
    workflow_header: Option<HeaderName>,
    limit_header: Option<HeaderName>,
    gateways: Vec<Network>,
    batch: bool,
    exempt: Vec<String>,
}

/// A rule and what it is known as.
#[derive(Debug)]
pub(crate) struct Known {
    rule: Rule,
    /// In the entry's table.
    action: String,
    /// In events.
    label: u16,
    /// What the service is told, if the rule has a name of its own.
    header: Option<HeaderValue>,
}

impl Known {
    pub(crate) fn label(&self) -> u16 {
        self.label
    }
}

impl Ranks {
    /// `titles` numbers what rules are called.
    pub(crate) fn new(
        config: &ProxyConfig,
        secret: [u8; 16],
        titles: &Names,
        jwt: Option<Arc<Jwt>>,
    ) -> Self {
        let known = |(n, rule): (usize, &Rule)| Known {
            action: n.to_string(),
            label: titles.number(&rule.title()).0,
            header: rule.name.as_deref().and_then(|name| HeaderValue::from_str(name).ok()),
            rule: rule.clone(),
        };
        let rules: Vec<Known> = config.rules.iter().enumerate().map(known).collect();
        let table = rules.iter().map(|it| (it.action.clone(), it.rule.business)).collect();
        let actions = (!rules.is_empty()).then_some(table);
        Self {
            entry: Entry::new(&EntryConfig { actions }, secret),
            rules,
            user_header: config.user_header.as_ref().and_then(|name| name.parse().ok()),
            jwt,
            // Services of ours show what they have been given.
            credentials: config.edge.verified_credentials || config.trust == Trust::Inside,
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

    /// The first rule that fits a request from `peer`.
    pub(crate) fn rule<B>(&self, request: &Request<B>, peer: IpAddr) -> Option<&Known> {
        let (method, path) = (request.method(), request.uri().path());
        // What may be read as another path is none of those that rules name.
        let path = if !self.rules.is_empty() && path::is_normal(path) { path } else { "" };
        self.rules.iter().find(|it| it.rule.fits(method, path, request.headers(), peer))
    }

    /// The workflow of a request that `rule` fits: by rule, else by header.
    pub(crate) fn workflow<'a>(
        &'a self,
        rule: Option<&'a Known>,
        headers: &'a HeaderMap,
    ) -> Option<&'a str> {
        let told = || headers.get(self.workflow_header.as_ref()?)?.to_str().ok();
        let rule = rule.and_then(|it| it.rule.workflow.as_deref());
        rule.or_else(told).filter(|name| name.len() <= Names::LONGEST)
    }

    /// Tells the service which rule a request goes by, where rules have names; what a client says of that is dropped.
    pub(crate) fn name_rule(&self, headers: &mut HeaderMap, label: u16) {
        if self.rules.iter().any(|it| it.header.is_some()) {
            headers.remove(RULE);
            self.header_of(label).into_iter().for_each(|name| drop(headers.insert(RULE, name)));
        }
    }

    /// The same in a refusal, for callers that may know.
    pub(crate) fn name_rule_of_refusal(&self, headers: &mut HeaderMap, trust: Trust, label: u16) {
        let name = self.header_of(label).filter(|_| trust == Trust::Inside);
        name.into_iter().for_each(|name| drop(headers.insert(RULE, name)));
    }

    fn header_of(&self, label: u16) -> Option<HeaderValue> {
        let rule = self.rules.iter().find(|it| label != 0 && it.label == label)?;
        rule.header.clone()
    }

    /// Who sent a request from `client`, which came by the connection of `peer`.
    pub(crate) fn sender(&self, headers: &HeaderMap, client: &Client<'_>, peer: IpAddr) -> Sender {
        let named = self.names_itself(headers, client);
        let mark = |user: Option<&[u8]>| user.map_or(0, |user| values::user(user, named));
        let user = self.with_user(headers, client, Some(client.address), mark);
        let said = self.limit_header.as_ref().and_then(|name| headers.get(name));
        let header = said.map_or(0, |value| values::header(value.as_bytes()));
        let known = sender::at(client.address);
        let peer = match client.certificate {
            _ if self.gateways.iter().any(|gateways| gateways.contains(peer)) => Sender::GATEWAY,
            Some(certificate) => sender::mark(certificate),
            None => known.peer,
        };
        Sender { peer, user, header, ..known }
    }

    /// What is left of a rank where everything is work that can wait.
    pub(crate) fn stamp(&self, rank: Rank) -> Rank {
        let batch = Criticality::SheddablePlus;
        let more_important = rank.criticality().index() < batch.index();
        if self.batch && more_important { rank.with_criticality(batch) } else { rank }
    }

    /// Whether more than its address says who a request is from.
    pub(crate) fn names_user(&self, headers: &HeaderMap, client: &Client<'_>) -> bool {
        self.with_user(headers, client, None, |user| user.is_some())
    }

    /// The rank of a request from `client` that `rule` fits.
    pub(crate) fn rank(
        &self,
        rule: Option<&Known>,
        headers: &HeaderMap,
        client: &Client<'_>,
    ) -> Rank {
        let action = rule.map_or("", |it| &it.action);
        let rank = |user: Option<&[u8]>| identity::rank(&self.entry, action, user);
        self.with_user(headers, client, Some(client.address), rank)
    }

    /// Whether a name says who a request is from, and not credentials or an address.
    fn names_itself(&self, headers: &HeaderMap, client: &Client<'_>) -> bool {
        let told = |name: &HeaderName| client.vouched && headers.contains_key(name);
        self.user_header.as_ref().is_some_and(told) || client.certificate.is_some()
    }

    /// Calls `use_it` with what tells the user of a request, or else `address`, from others.
    fn with_user<R>(
        &self,
        headers: &HeaderMap,
        client: &Client<'_>,
        address: Option<IpAddr>,
        use_it: impl FnOnce(Option<&[u8]>) -> R,
    ) -> R {
        let told = |name: &&HeaderName| client.vouched && headers.contains_key(*name);
        let header = self.user_header.as_ref().filter(told);
        match client.certificate {
            Some(certificate) if header.is_none() => use_it(Some(certificate)),
            _ => {
                match self.jwt.as_ref().filter(|_| header.is_none()).and_then(|it| it.user(headers))
                {
                    Some(user) => use_it(Some(user.as_bytes())),
                    None => identity::with_user(headers, header, self.credentials, address, use_it),
                }
            }
        }
    }
}

/// Whom a request is from, as far as the connection and the proxies before us say.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Client<'a> {
    pub(crate) address: IpAddr,
    /// Whom the certificate of the connection is for, if it is the client's own.
    certificate: Option<&'a [u8]>,
    /// Whether something that we trust has passed the request on.
    vouched: bool,
}

impl<'a> Client<'a> {
    /// Somebody at this address whose headers can be believed.
    pub(crate) fn known(address: IpAddr) -> Self {
        Self { address, certificate: None, vouched: true }
    }

    /// Whoever has sent a request with these `headers` over a connection from `peer`.
    pub(crate) fn of(strangers: &Strangers, headers: &HeaderMap, peer: &'a Peer) -> Self {
        let vouched = strangers.trusts(peer);
        // The certificate of a proxy tells nothing of whom it passes on.
        let certificate = peer.certificate.as_deref().filter(|_| !vouched);
        Self { address: strangers.hops.client(headers, peer.ip), certificate, vouched }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PEER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    fn ranks(rules: &str) -> Ranks {
        let text = format!("[proxy]\nuser_header = 'x-user'\n{rules}");
        let file = crate::File::parse(&text).unwrap_or_else(|error| panic!("{error}"));
        Ranks::new(&file.proxy, [7; 16], &Names::default(), None)
    }

    fn rank_of(ranks: &Ranks, request: &Request<()>, client: &Client<'_>) -> Rank {
        ranks.rank(ranks.rule(request, client.address), request.headers(), client)
    }

    /// A stranger at an address.
    fn client(address: IpAddr) -> Client<'static> {
        Client { address, certificate: None, vouched: false }
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
            let rank = rank_of(&ranks, &request(method, path, &[]), &client(PEER));
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
            assert_eq!(
                rank_of(&ranks, &request, &client(PEER)).business(),
                business,
                "{headers:?}"
            );
            let told = ranks.workflow(ranks.rule(&request, PEER), request.headers());
            assert_eq!(told, workflow, "{headers:?}");
        }
        let stranger = "10.0.0.1".parse().unwrap();
        assert_eq!(rank_of(&ranks, &request("GET", "/", &[]), &client(stranger)).business(), 63);
        let stamped = |business| ranks.stamp(Rank::new(business, 9));
        assert_eq!(stamped(3).criticality(), Criticality::SheddablePlus);
        assert_eq!((stamped(3).user(), stamped(50)), (9, Rank::new(50, 9)));
    }

    #[test]
    fn users_are_those_whom_something_has_verified() {
        let (own, told) = (ranks(""), ranks("edge = { verified_credentials = true }\n"));
        let (stranger, ann) = (client(PEER), Client { certificate: Some(b"ann"), ..client(PEER) });
        let vouched = Client { vouched: true, ..client(PEER) };
        let rank = |ranks: &Ranks, client: &Client<'_>, headers: &[(&str, &str)]| {
            rank_of(ranks, &request("GET", "/", headers), client)
        };
        let (cookie, token) = (("cookie", "a=b; sid=ann"), ("authorization", "Bearer ann"));
        let header = ("x-user", "ann");
        let nobody = rank(&own, &stranger, &[]);
        assert_eq!(nobody.business(), 24);
        for made_up in [&[cookie][..], &[token], &[header], &[cookie, token, header]] {
            assert_eq!(rank(&own, &stranger, made_up), nobody, "{made_up:?}");
        }
        let by_cookie = rank(&told, &stranger, &[cookie]);
        let by_token = rank(&told, &stranger, &[token, cookie]);
        let by_header = rank(&own, &vouched, &[header, token]);
        assert_eq!(by_header, by_cookie, "who it is, not where it stands");
        assert_ne!(by_header, rank(&own, &vouched, &[("x-user", "bob")]));
        assert_eq!(rank(&own, &ann, &[header, token]), by_header, "by its certificate");
        let all = [nobody, by_cookie, by_token];
        assert!(all.windows(2).all(|pair| pair[0] != pair[1]), "{all:?}");
        let names = |ranks: &Ranks, client, headers: &[(&str, &str)]| {
            ranks.names_user(request("GET", "/", headers).headers(), client)
        };
        assert!(!names(&own, &stranger, &[cookie, token, header]));
        assert!(names(&told, &stranger, &[cookie]) && names(&own, &vouched, &[header]));
        assert!(names(&own, &ann, &[]));
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
