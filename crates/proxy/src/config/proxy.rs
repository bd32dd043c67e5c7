//! The block `[proxy]`.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use tidegate_core::Span;
use tidegate_core::config::Problems;
use tidegate_http::identity::EXEMPT;

use super::{
    AccessLogConfig, Address, ConnectionsConfig, EdgeConfig, Egress, HealthConfig, JwtConfig,
    LongConfig, Network, Percent, Rule, Spill, TlsConfig, TracesConfig,
};
use crate::log::Log;

/// Parameters of the sidecar itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ProxyConfig {
    /// Where clients connect. Default port 8080 on all addresses. Not changed by a reload.
    pub listen: SocketAddr,
    /// Where operators look. Default 127.0.0.1:9901: nothing here is for strangers. Not changed by a
    /// reload.
    pub admin: SocketAddr,
    /// The services behind, as `http://host:port`, or `h2c://host:port` for HTTP/2 (gRPC), or with TLS
    /// `https://` and `h2://`; several are replicas of one service, and speak the same. No default: a sidecar without one does not start.
    pub upstreams: Vec<Address>,
    /// Capacity of `upstreams` in cost: seconds of service per second, which is how many requests they
    /// have at once. What exceeds it goes to the next `spill`. 0 is no limit. Default 0.
    pub capacity: f64,
    /// Whose word about ranks, deadlines and callers is taken. Default edge.
    pub trust: Trust,
    /// Header that says who the user is, if something before us has verified it: at an edge it is taken from the networks in
    /// `edge.trusted` alone, as who may choose it freely may try names until one has a good rank. Default: none, and users
    /// are told apart by certificates of clients, or else by addresses.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user_header: Option<String>,
    /// Header that names the workflow of a request that no rule gives one, such as its tenant; only if
    /// something before us has verified it. Default: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workflow_header: Option<String>,
    /// Header whose value has a bucket of its own under limits with `each = "header"`, such as the key of an API. Default:
    /// none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit_header: Option<String>,
    /// Addresses of gateways that speak for many, such as `10.0.0.0/8`. What they say they shed is believed whatever
    /// it is; of others as far as they were seen to have the demand. Only where trust is inside. Default: none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub gateways: Vec<Network>,
    /// Header or trailer of answers that says what the request cost, in seconds of cpu time. Default: none, and a request
    /// costs the time for which it has its slot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost_header: Option<String>,
    /// Name of the same in load reports (ORCA, `request_cost` or `named_metrics` of `endpoint-load-metrics`). Default: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost_metric: Option<String>,
    /// Whether everything that passes is work that can wait: its rank is taken to sheddable-plus,
    /// unless it is less important already. Default false.
    pub batch: bool,
    /// Whether `traceparent` and `x-request-id` of clients are kept at the edge, where calls of the service are
    /// told apart by them (`egress`). Only if something before us has written them: a client that knows the
    /// id of another request could have that one's calls count as its own. Default false: such ids are
    /// replaced at the edge, and kept inside.
    pub trust_traces: bool,
    /// File whose first 16 bytes are the secret that user ranks are derived from. All replicas of an
    /// entry need the same, or a user would be served by one and refused by the next. Default: none,
    /// and the process makes up its own. Not changed by a reload.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret_file: Option<String>,
    /// Paths served without asking the gate; one that ends in `/` stands for all below it. Default:
    /// the usual health checks, as whoever asks for health must not be told "overloaded".
    pub exempt: Vec<String>,
    /// Protocols that a client may change its connection to, which the gate then sees no more of. A
    /// request that asks for another is served as if it had not. Default: websocket. Never h2c, in which
    /// any number of requests would follow past the gate.
    pub upgrades: Vec<String>,
    /// Share of requests that what the gate decides is enforced for. At 0% nothing is refused or held,
    /// and what would have been refused is counted; in between, requests chosen by a hash of their
    /// user are refused and nothing is held. Default 100%.
    pub enforce: Percent,
    /// File with the token that changes over the admin port need, at least 16 characters. Default:
    /// none, and nothing can be changed there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub admin_token_file: Option<String>,
    /// How lines for operators are written: text or json. Default text.
    pub log: Log,
    /// Names, beside those of this machine, by which operators reach the admin port, such as `gate.ops.example`. A page of a stranger
    /// can have a name of its own point here, and then read what its visitor may. Default: none.
    pub admin_hosts: Vec<String>,
    /// Threads that serve, each with a listening socket and upstream connections of its own; 0 is
    /// one per core. Default 0. Not changed by a reload.
    pub threads: usize,
    /// Longest time to connect to an upstream before the next is tried. Longer survives a lost SYN
    /// (1 s on Linux), shorter finds a dead host sooner. Default 2 s, by judgement.
    pub connect_timeout: Span,
    /// Longest time an upstream may take to begin its answer; afterwards the client gets 504.
    /// Requests with a deadline of their own wait no longer than that. Default 30 s, by judgement:
    /// twice the 15 s of Envoy, as slow answers are the objective's business.
    pub response_timeout: Span,
    /// What the services behind do with a request whose client has left: `goes-on`, and it keeps its slot until they have
    /// answered; or `stops`, and it is ended at once. Stops is for services that notice and end their work: elsewhere clients
    /// that ask and leave would fill them. Default learned: taken to go on, as most do not notice, until trials show otherwise.
    pub when_left: WhenLeft,
    /// How long a connection to an upstream is kept without a request on it. Longer saves connects;
    /// longer than the upstream keeps it risks a request on a connection just closed. Default 4 s,
    /// below the 5 s of Node.js, the shortest in common use.
    pub idle_timeout: Span,
    /// Longest time a client may take to say hello and to send the head of a request. Default 30 s
    /// (hyper's).
    pub header_timeout: Span,
    /// Longest time a part of a request's body may take, 64 kB or what is left of it, or the next piece of one without a length,
    /// until it is answered; then the client gets 408. Also the longest time in which a client takes nothing of an answer; then its
    /// connection is closed, or over HTTP/2 that request reset. Default 30 s, by judgement: as long as
    /// its head.
    pub body_timeout: Span,
    /// Longest time for what is inside to finish when the process is asked to end. Default 25 s:
    /// Kubernetes kills after 30.
    pub drain_timeout: Span,
    /// What is taken of strangers.
    pub edge: EdgeConfig,
    /// Whose tokens tell users apart. Default: nobody's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub jwt: Option<JwtConfig>,
    /// When an upstream counts as well.
    pub health: HealthConfig,
    /// What client connections may take.
    pub connections: ConnectionsConfig,
    /// Requests that last long, and hold no slot.
    pub long: LongConfig,
    /// A line per request. Default: none.
    pub access_log: AccessLogConfig,
    /// File that all requests are written to, appended, as `tidegate sim replay` and `tidegate limit size` read them: time, workflow, rank and
    /// time of service, up to a gigabyte. Default: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub record_file: Option<String>,
    /// Spans for a collector of OpenTelemetry. Default: none.
    pub traces: TracesConfig,
    /// TLS on either side. Default: none.
    #[serde(skip_serializing_if = "TlsConfig::is_default")]
    pub tls: TlsConfig,
    /// Business ranks of requests that come without a rank: the first rule that fits decides, and
    /// what fits none is refused first. Default: no rules, everything gets 24.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<Rule>,
    /// Upstreams that take what those before have no room for, or what they cannot take because they
    /// are not well. Default: none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub spill: Vec<Spill>,
    /// Services that the guarded one calls through this sidecar, so that its calls keep the rank and the deadline of
    /// the request they are made for. Default: none, and what the service sends out is its own business.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub egress: Vec<Egress>,
}

impl Default for ProxyConfig {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from((Ipv4Addr::UNSPECIFIED, 8080)),
            admin: SocketAddr::from((Ipv4Addr::LOCALHOST, 9901)),
            upstreams: Vec::new(),
            capacity: 0.0,
            trust: Trust::Edge,
            user_header: None,
            workflow_header: None,
            limit_header: None,
            gateways: Vec::new(),
            cost_header: None,
            cost_metric: None,
            batch: false,
            trust_traces: false,
            secret_file: None,
            exempt: EXEMPT.map(str::to_owned).to_vec(),
            upgrades: vec!["websocket".to_owned()],
            enforce: Percent::ALL,
            admin_token_file: None,
            log: Log::Text,
            admin_hosts: Vec::new(),
            threads: 0,
            connect_timeout: Span::from_secs(2),
            response_timeout: Span::from_secs(30),
            when_left: WhenLeft::Learned,
            idle_timeout: Span::from_secs(4),
            header_timeout: Span::from_secs(30),
            body_timeout: Span::from_secs(30),
            drain_timeout: Span::from_secs(25),
            health: HealthConfig::default(),
            edge: EdgeConfig::default(),
            jwt: None,
            connections: ConnectionsConfig::default(),
            long: LongConfig::default(),
            access_log: AccessLogConfig::default(),
            record_file: None,
            traces: TracesConfig::default(),
            tls: TlsConfig::default(),
            rules: Vec::new(),
            spill: Vec::new(),
            egress: Vec::new(),
        }
    }
}

impl ProxyConfig {
    /// Most serving threads: beyond any machine there is.
    const MOST_THREADS: usize = 1024;
    /// Most upstreams: each has an idle pool per thread.
    const MOST_UPSTREAMS: usize = 1024;

    /// All upstreams, those that take the rest included.
    pub fn addresses(&self) -> impl Iterator<Item = &Address> {
        self.upstreams.iter().chain(self.spill.iter().flat_map(|spill| &spill.upstreams))
    }

    /// Notes everything that is wrong with the parameters.
    pub fn validate(&self, problems: &mut Problems) {
        let threads = self.threads;
        problems.check("threads", threads, threads <= Self::MOST_THREADS, "0 to 1024");
        let upstreams = self.upstreams.len();
        problems.check("upstreams", upstreams, upstreams <= Self::MOST_UPSTREAMS, "at most 1024");
        let first = self.upstreams.first().map(|address| address.scheme);
        let mixed = self.addresses().filter(|address| Some(address.scheme) != first).count();
        problems.check(
            "upstreams",
            mixed,
            mixed == 0,
            "one of http, https, h2c, h2 for all, as replicas are alike",
        );
        problems.within("edge", |problems| self.edge.validate(problems));
        if let Some(jwt) = &self.jwt {
            problems.within("jwt", |problems| jwt.validate(problems));
        }
        problems.within("connections", |problems| self.connections.validate(problems));
        problems.within("long", |problems| self.long.validate(problems));
        problems.within("access_log", |problems| self.access_log.validate(problems));
        problems.within("traces", |problems| self.traces.validate(problems));
        problems.within("tls", |problems| self.tls.validate(problems));
        problems.within("health", |problems| self.health.validate(problems));
        problems.range("capacity", self.capacity, 0.0, 1e9);
        for (at, rule) in self.rules.iter().enumerate() {
            problems.within_item("rules", at, |problems| rule.validate(problems));
        }
        self.spill.iter().for_each(|spill| spill.validate(problems));
        Egress::validate_all(&self.egress, problems);
        for protocol in &self.upgrades {
            // A protocol is a word, as the name of a header is.
            let word = protocol.parse::<http::HeaderName>().is_ok();
            let fine = word && !protocol.eq_ignore_ascii_case("h2c");
            problems.check("upgrades", protocol, fine, "the name of a protocol other than h2c");
        }
        let gateways = self.gateways.len();
        let fine = gateways == 0 || self.trust == Trust::Inside;
        problems.check("gateways", gateways, fine, "only where trust is inside");
        for (field, name) in [
            ("user_header", &self.user_header),
            ("workflow_header", &self.workflow_header),
            ("limit_header", &self.limit_header),
            ("cost_header", &self.cost_header),
        ] {
            let Some(name) = name else { continue };
            let fine = name.parse::<http::HeaderName>().is_ok();
            problems.check(field, name, fine, "the name of a header");
        }
        for (field, span) in [
            ("connect_timeout", self.connect_timeout),
            ("response_timeout", self.response_timeout),
            ("idle_timeout", self.idle_timeout),
            ("header_timeout", self.header_timeout),
            ("body_timeout", self.body_timeout),
        ] {
            problems.check(field, span, span >= Span::from_millis(1), "at least 1ms");
        }
    }
}

/// Whose word about a request is taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Trust {
    /// Clients are strangers: what they claim in `overload-context` is dropped.
    #[default]
    Edge,
    /// Clients are peers behind the same edge: their contexts are taken.
    Inside,
}

impl fmt::Display for Trust {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Edge => "edge",
            Self::Inside => "inside",
        })
    }
}

impl FromStr for Trust {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "edge" => Ok(Self::Edge),
            "inside" => Ok(Self::Inside),
            _ => Err("edge or inside".to_owned()),
        }
    }
}

/// What a service does with a request whose client has left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WhenLeft {
    /// The gate finds out, and takes it to work on until then.
    #[default]
    Learned,
    /// It works on.
    GoesOn,
    /// It notices, and ends its work.
    Stops,
}

impl fmt::Display for WhenLeft {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Learned => "learned",
            Self::GoesOn => "goes-on",
            Self::Stops => "stops",
        })
    }
}
