//! The configuration file: `[proxy]` is the sidecar's own, `[gate]` and `[caller]` are the core's.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use tidegate_core::admission::AdmissionConfig;
use tidegate_core::caller::CallerConfig;
use tidegate_core::config::{self, ConfigError, Problems};
use tidegate_core::gate::GateConfig;
use tidegate_core::schedule::ScheduleConfig;
use tidegate_core::slots::{AdaptiveConfig, SlotsConfig};
use tidegate_core::workflow::WorkflowConfig;
use tidegate_core::{Rank, Span};

/// A whole file. What it leaves out has its default.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct File {
    /// Where to listen, what to protect.
    pub proxy: ProxyConfig,
    /// Who may enter, who is next, how many at once.
    #[serde(with = "GateBlock")]
    pub gate: GateConfig,
    /// For programs that call through the library; the sidecar itself does not use it.
    pub caller: CallerConfig,
}

impl Default for File {
    fn default() -> Self {
        Self {
            proxy: ProxyConfig::default(),
            gate: gate_defaults(),
            caller: CallerConfig::default(),
        }
    }
}

impl File {
    /// Reads and checks a file; all problems are told at once.
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        config::read(text, Self::validate)
    }

    /// Every parameter in full.
    pub fn to_toml(&self) -> String {
        config::print(self)
    }

    fn validate(&self, problems: &mut Problems) {
        problems.within("proxy", |problems| self.proxy.validate(problems));
        problems.within("gate", |problems| self.gate.validate(problems));
        problems.within("caller", |problems| self.caller.validate(problems));
    }
}

/// The gate of a sidecar that was told nothing: as the core's, but nobody knows how many requests
/// the service behind can take at once, so that is found out.
pub fn gate_defaults() -> GateConfig {
    let slots = SlotsConfig::Adaptive(AdaptiveConfig::default());
    GateConfig { slots, ..GateConfig::default() }
}

/// [`GateConfig`] with the defaults of [`gate_defaults`] for what a file leaves out.
#[derive(Serialize, Deserialize)]
#[serde(remote = "GateConfig", default = "gate_defaults", deny_unknown_fields)]
struct GateBlock {
    admission: AdmissionConfig,
    schedule: ScheduleConfig,
    slots: SlotsConfig,
    queue_limit: usize,
    degrade_delay: Span,
    retry_share: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    workflow: Option<WorkflowConfig>,
}

/// Parameters of the sidecar itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ProxyConfig {
    /// Where clients connect. Default port 8080 on all addresses. Not changed by a reload.
    pub listen: SocketAddr,
    /// Where operators look. Default 127.0.0.1:9901: nothing here is for strangers. Not changed by a
    /// reload.
    pub admin: SocketAddr,
    /// The services behind, as `http://host:port`, or `h2c://host:port` for HTTP/2 (gRPC); several are
    /// replicas of one service, and speak the same. No default: a sidecar without one does not start.
    pub upstreams: Vec<Address>,
    /// Whose word about ranks, deadlines and callers is taken. Default edge.
    pub trust: Trust,
    /// Header that says who the user is, if something before us has verified it; who may choose it
    /// freely may try names until one has a good rank. Default: none, and users are told apart by
    /// credentials, session cookies or addresses.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user_header: Option<String>,
    /// File whose first 16 bytes are the secret that user ranks are derived from. All replicas of an
    /// entry need the same, or a user would be served by one and refused by the next. Default: none,
    /// and the process makes up its own. Not changed by a reload.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret_file: Option<String>,
    /// Paths served without asking the gate; one that ends in `/` stands for all below it. Default:
    /// the usual health checks, as whoever asks for health must not be told "overloaded".
    pub exempt: Vec<String>,
    /// Enforces nothing, and counts what would have been refused. Default false.
    pub observe: bool,
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
    /// When an answer whose body goes on counts as a stream and gives its slot back. Longer lets slow
    /// readers and streams take the slots of others; shorter lets more run at once than there are
    /// slots. Default 1 s, by judgement: far above any objective for requests that are worth gating.
    pub stream_after: Span,
    /// How long a connection to an upstream is kept without a request on it. Longer saves connects;
    /// longer than the upstream keeps it risks a request on a connection just closed. Default 4 s,
    /// below the 5 s of Node.js, the shortest in common use.
    pub idle_timeout: Span,
    /// Longest time a client may be silent between requests, or take to send the head of one. Default
    /// 30 s (hyper's). Not changed by a reload.
    pub header_timeout: Span,
    /// Longest time for what is inside to finish when the process is asked to end. Default 25 s:
    /// Kubernetes kills after 30.
    pub drain_timeout: Span,
    /// Business ranks of requests that come without a rank: the first rule that fits decides, and
    /// what fits none is refused first. Default: no rules, everything gets 24.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<Rule>,
}

/// Which requests have which business rank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// The method; any if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
    /// The path, or one above it; any if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// 0, refused last, to 63, refused first.
    pub business: u8,
}

impl Rule {
    pub(crate) fn fits(&self, method: &http::Method, path: &str) -> bool {
        let below = |above: &String| {
            let rest = path.strip_prefix(above.trim_end_matches('/'));
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        self.method.as_ref().is_none_or(|wanted| method == wanted.as_str())
            && self.path.as_ref().is_none_or(below)
    }
}

/// Paths that are served whatever the load.
const EXEMPT: [&str; 5] = ["/healthz", "/livez", "/readyz", "/health", "/grpc.health.v1.Health/"];

impl Default for ProxyConfig {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from((Ipv4Addr::UNSPECIFIED, 8080)),
            admin: SocketAddr::from((Ipv4Addr::LOCALHOST, 9901)),
            upstreams: Vec::new(),
            trust: Trust::Edge,
            user_header: None,
            secret_file: None,
            exempt: EXEMPT.map(str::to_owned).to_vec(),
            observe: false,
            threads: 0,
            connect_timeout: Span::from_secs(2),
            response_timeout: Span::from_secs(30),
            stream_after: Span::from_secs(1),
            idle_timeout: Span::from_secs(4),
            header_timeout: Span::from_secs(30),
            drain_timeout: Span::from_secs(25),
            rules: Vec::new(),
        }
    }
}

impl ProxyConfig {
    /// Most serving threads: beyond any machine there is.
    const MOST_THREADS: usize = 1024;
    /// Most upstreams: each has an idle pool per thread.
    const MOST_UPSTREAMS: usize = 1024;

    /// Notes everything that is wrong with the parameters.
    pub fn validate(&self, problems: &mut Problems) {
        let threads = self.threads;
        problems.check("threads", threads, threads <= Self::MOST_THREADS, "0 to 1024");
        let upstreams = self.upstreams.len();
        problems.check("upstreams", upstreams, upstreams <= Self::MOST_UPSTREAMS, "at most 1024");
        let versions = |version| self.upstreams.iter().filter(|at| at.version == version).count();
        let mixed = versions(Version::One).min(versions(Version::Two));
        problems.check(
            "upstreams",
            mixed,
            mixed == 0,
            "http or h2c for all, as replicas are alike",
        );
        for rule in &self.rules {
            let (business, path) = (rule.business, rule.path.as_deref().unwrap_or("/"));
            problems.check("rules.business", business, business < Rank::BUSINESS, "0 to 63");
            problems.check("rules.path", path, path.starts_with('/'), "a path begins with /");
        }
        if let Some(name) = &self.user_header {
            let fine = name.parse::<http::HeaderName>().is_ok();
            problems.check("user_header", name, fine, "the name of a header");
        }
        for (field, span) in [
            ("connect_timeout", self.connect_timeout),
            ("response_timeout", self.response_timeout),
            ("stream_after", self.stream_after),
            ("idle_timeout", self.idle_timeout),
            ("header_timeout", self.header_timeout),
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

/// An upstream: `http://host:port`, or `h2c://host:port` for one that speaks HTTP/2 without TLS, as
/// gRPC does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Address {
    /// Which version it is spoken to in.
    pub version: Version,
    /// A name or an IP address, the latter without brackets.
    pub host: String,
    /// 80 if the URL names none.
    pub port: u16,
}

/// The protocol of an upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// HTTP/1.1: one request at a time on a connection.
    One,
    /// HTTP/2 with prior knowledge: all on one connection per thread.
    Two,
}

impl Address {
    const DEFAULT_PORT: u16 = 80;
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wanted =
            |why: &str| format!("{why}: an upstream is http://host:port or h2c://host:port");
        let uri: http::Uri = text.parse().map_err(|_| wanted("not a URL"))?;
        let version = match uri.scheme_str() {
            Some("http") => Version::One,
            Some("h2c") => Version::Two,
            Some("https") => return Err(wanted("TLS to upstreams is not there yet")),
            _ => return Err(wanted("not a URL of HTTP")),
        };
        if !matches!(uri.path(), "" | "/") || uri.query().is_some() {
            return Err(wanted("paths are passed on as they are, not changed"));
        }
        let authority = uri.authority().ok_or_else(|| wanted("no host"))?;
        if authority.as_str().contains('@') {
            return Err(wanted("user and password are not allowed here"));
        }
        let host = authority.host().trim_start_matches('[').trim_end_matches(']');
        if host.is_empty() {
            return Err(wanted("no host"));
        }
        let port = authority.port_u16().unwrap_or(Self::DEFAULT_PORT);
        Ok(Self { version, host: host.to_owned(), port })
    }
}

impl TryFrom<String> for Address {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Address> for String {
    fn from(address: Address) -> Self {
        address.to_string()
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { version, host, port } = self;
        let scheme = match version {
            Version::One => "http",
            Version::Two => "h2c",
        };
        if host.contains(':') {
            write!(f, "{scheme}://[{host}]:{port}")
        } else {
            write!(f, "{scheme}://{host}:{port}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_read_back_and_are_valid() {
        let file = File::default();
        assert_eq!(File::parse(&file.to_toml()), Ok(file.clone()));
        assert_eq!(File::parse(""), Ok(file));
    }

    /// A file that sets one thing of the gate does not lose the sidecar's choice of another.
    #[test]
    fn a_partial_gate_block_keeps_the_defaults_of_the_sidecar() {
        let file = File::parse("[gate]\nqueue_limit = 7\n").expect("valid");
        assert_eq!(file.gate, GateConfig { queue_limit: 7, ..gate_defaults() });
        assert!(matches!(file.gate.slots, SlotsConfig::Adaptive(_)));
    }

    #[test]
    fn problems_of_all_blocks_are_told_at_once() {
        let text = "
            [proxy]
            upstreams = ['http://a', 'ftp://b']
            threads = 4096
            idle_timeout = '0s'
            trust = 'everybody'
            user_header = 'no header'
            [[proxy.rules]]
            path = 'checkout'
            business = 64
            [gate]
            queue_limit = 0
            [gate.admission]
            policy = 'tide'
            objective = '0s'
        ";
        let error = File::parse(text).expect_err("much is wrong");
        for field in [
            "proxy.upstreams",
            "proxy.threads",
            "proxy.idle_timeout",
            "proxy.trust",
            "proxy.user_header",
            "proxy.rules.path",
            "proxy.rules.business",
            "gate.queue_limit",
            "gate.admission.objective",
        ] {
            assert!(error.to_string().contains(field), "{field} is missing from:\n{error}");
        }
    }

    #[test]
    fn addresses_are_hosts_and_ports() {
        let address = |text: &str| text.parse::<Address>();
        let known = |version, port| Ok(Address { version, host: "a".into(), port });
        assert_eq!(address("http://a:81"), known(Version::One, 81));
        assert_eq!(address("http://a/"), known(Version::One, 80));
        assert_eq!(address("h2c://a:81"), known(Version::Two, 81));
        assert_eq!(address("http://[::1]:9").map(|a| a.host), Ok("::1".to_owned()));
        for text in ["http://[::1]:9", "http://10.0.0.1:80", "h2c://a:81"] {
            assert_eq!(address(text).map(String::from), Ok(text.to_owned()));
        }
        for text in ["", "a:81", "https://a", "http://a/b", "http://a?b", "http://u@a", "http://"] {
            assert!(address(text).is_err(), "{text}");
        }
    }
}
