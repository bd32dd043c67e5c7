//! The configuration file of the messaging gate: the block `[nats]`.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use tidegate_core::config::{self, ConfigError, Problems};
use tidegate_core::limit::LeasedConfig;
use tidegate_core::share::{AdaptorConfig, HistoryConfig, Rate, Share};
use tidegate_core::{Rank, Span};

use crate::wire::nkey::UserKey;
use crate::wire::subject;

/// A whole file. What it leaves out has its default.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct File {
    /// Where to listen, which brokers, which topics are limited.
    pub nats: NatsConfig,
}

impl File {
    /// Reads and checks a file; all problems are told at once.
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        config::read(text, |file: &Self, problems| {
            problems.within("nats", |problems| file.nats.validate(problems));
        })
    }

    /// Every parameter in full.
    pub fn to_toml(&self) -> String {
        config::print(self)
    }
}

/// Parameters of the gate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NatsConfig {
    /// Where clients connect. Default port 4222, NATS's own, on all addresses. Not changed by a reload.
    pub listen: SocketAddr,
    /// Where operators look. Default 127.0.0.1:9902: nothing here is for strangers. Not changed by a reload.
    pub admin: SocketAddr,
    /// The servers behind, as `nats://host:port`; each by itself, without a cluster. No default: a gate without one
    /// does not start. Not changed by a reload.
    pub brokers: Vec<Address>,
    /// Most clients at once. Default 65,536, as nats-server. Not changed by a reload.
    pub connections: usize,
    /// Longest control line, in bytes: what is not a payload. Default 4,096, as nats-server.
    pub control_line: usize,
    /// Most that waits for a client or a broker that does not read, in bytes; then its connection is closed. Default
    /// 64 MiB, as nats-server.
    pub pending: usize,
    /// Most subscriptions of a client. More needs memory at the gate. Default 65,536, by judgement.
    pub subscriptions: usize,
    /// Longest time a client may take to say who it is. Default 2 s, as nats-server.
    pub auth_timeout: Span,
    /// How long a client may be silent before it is asked whether it is there; the second time without an answer
    /// its connection is closed. Default 2 min, as nats-server.
    pub ping_interval: Span,
    /// Longest time a broker may take to answer a PING, or to connect to; then its connection is closed. Shorter finds
    /// a silent broker sooner, longer forgives a slow one. Default 5 s, by judgement.
    pub broker_timeout: Span,
    /// Longest time for what waits to leave when the process is asked to end. Default 25 s: Kubernetes kills after 30.
    pub drain_timeout: Span,
    /// File with the token that changes over the admin port need, at least 16 characters. Default: none, and
    /// nothing can be changed there. Not changed by a reload.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub admin_token_file: Option<String>,
    /// Certificates. Default: none, and everything is spoken in clear.
    #[serde(skip_serializing_if = "TlsConfig::is_none")]
    pub tls: TlsConfig,
    /// Where streams are. Default: nowhere, and clients hear of none. Not changed by a reload.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub jetstream: Option<StreamsConfig>,
    /// When shares of brokers follow their loads.
    pub adaptor: AdaptorConfig,
    /// How far back a broker's load is remembered.
    pub history: HistoryConfig,
    /// Topics with limits. What fits none passes unlimited. Default: none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub topics: Vec<TopicConfig>,
    /// How important publishers are: the first rule that fits decides. Default: no rules, and all are alike.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub publishers: Vec<PublisherRule>,
    /// Who proves who they are by an nkey, which the gate checks. All other credentials are for the brokers to check.
    /// Default: nobody.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub users: Vec<UserRule>,
}

impl Default for NatsConfig {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from((Ipv4Addr::UNSPECIFIED, 4222)),
            admin: SocketAddr::from((Ipv4Addr::LOCALHOST, 9902)),
            brokers: Vec::new(),
            connections: 65_536,
            control_line: 4_096,
            pending: 64 << 20,
            subscriptions: 65_536,
            auth_timeout: Span::from_secs(2),
            ping_interval: Span::from_secs(120),
            broker_timeout: Span::from_secs(5),
            drain_timeout: Span::from_secs(25),
            admin_token_file: None,
            tls: TlsConfig::default(),
            jetstream: None,
            adaptor: AdaptorConfig::default(),
            history: HistoryConfig::default(),
            topics: Vec::new(),
            publishers: Vec::new(),
            users: Vec::new(),
        }
    }
}

/// Longest time of all that a file gives: an hour is no longer a time-out.
const HOUR: Span = Span::from_secs(3_600);
/// Most brokers and topics: each topic has a bucket per broker.
const MOST_BROKERS: usize = 64;
const MOST_TOPICS: usize = 10_000;

impl NatsConfig {
    fn validate(&self, problems: &mut Problems) {
        let count = self.brokers.len();
        problems.check("brokers", count, count <= MOST_BROKERS, "at most 64");
        for (at, broker) in self.brokers.iter().enumerate() {
            let known = self.brokers[..at].contains(broker);
            problems.check("brokers", broker, !known, "each broker once");
        }
        problems.range("connections", self.connections as f64, 1.0, 1e6);
        problems.range("control_line", self.control_line as f64, 512.0, 65_536.0);
        problems.range("pending", self.pending as f64, 65_536.0, (1u64 << 32) as f64);
        problems.range("subscriptions", self.subscriptions as f64, 1.0, 1e6);
        for (field, span) in [
            ("auth_timeout", self.auth_timeout),
            ("ping_interval", self.ping_interval),
            ("broker_timeout", self.broker_timeout),
            ("drain_timeout", self.drain_timeout),
        ] {
            problems.check(field, span, span > Span::ZERO && span <= HOUR, "above 0s, at most 1h");
        }
        problems.within("adaptor", |problems| self.adaptor.validate(problems));
        problems.within("history", |problems| self.history.validate(problems));
        let count = self.topics.len();
        problems.check("topics", count, count <= MOST_TOPICS, "at most 10000");
        for (at, topic) in self.topics.iter().enumerate() {
            problems.within_item("topics", at, |problems| {
                topic.validate(self.brokers.len(), problems);
                for other in &self.topics[..at] {
                    let apart =
                        !subject::overlap(topic.subject.as_bytes(), other.subject.as_bytes());
                    let allowed =
                        format!("no subject that is also of the topic `{}`", other.name());
                    problems.check("subject", &topic.subject, apart, &allowed);
                    let control = topic.control.as_deref().unwrap_or_default();
                    let alike = topic.control.is_none()
                        || other.control.is_none()
                        || topic.control == other.control;
                    problems.check("control", control, alike, "the same for all topics with one");
                    let alone = topic.name() != other.name();
                    problems.check("name", topic.name(), alone, "a name of its own");
                }
            });
        }
        for (at, rule) in self.publishers.iter().enumerate() {
            problems.within_item("publishers", at, |problems| rule.validate(problems));
        }
        if let Some(streams) = &self.jetstream {
            problems.within("jetstream", |problems| streams.validate(self, problems));
        }
        problems.within("tls", |problems| self.tls.validate(problems));
        for (at, rule) in self.users.iter().enumerate() {
            problems.within_item("users", at, |problems| {
                rule.validate(problems);
                let alone = self.users[..at].iter().all(|other| other.nkey != rule.nkey);
                problems.check("nkey", &rule.nkey, alone, "each key once");
            });
        }
    }

    /// How important a client is.
    pub(crate) fn rank(&self, name: Option<&str>, user: Option<&str>) -> Rank {
        let fits = |rule: &&PublisherRule| rule.fits(name, user);
        let rule = self.publishers.iter().find(fits);
        rule.map_or(Rank::UNRANKED, |rule| Rank::new(rule.business, 0))
    }
}

/// A limited topic.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TopicConfig {
    /// Its subjects, as a pattern such as `orders.>`. Topics must not overlap.
    pub subject: String,
    /// What it is called in metrics. Default: its subject.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Messages per second over all brokers.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub rate: f64,
    /// Most messages at once over all brokers: at least one per broker.
    #[serde(default, skip_serializing_if = "is_none")]
    pub burst: u64,
    /// Where the agreement is kept that several gates share, as `http://host:port` of a `tidegate control`; the same for all
    /// topics that have one. Rate and burst are said there, and not here. Default: none, and this gate has all of it.
    /// Not changed by a reload.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub control: Option<String>,
    /// The agreement's name there. Default: the topic's. Not changed by a reload.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agreement: Option<String>,
    /// File with the token that the daemon asks of nodes. Not changed by a reload.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_file: Option<String>,
    /// How many of its latest arrivals are kept for `tidegate nats place`, at the admin page `/trace`: 40 bytes each.
    /// Default 0.
    #[serde(default, skip_serializing_if = "is_nothing")]
    pub record: usize,
    /// Most messages that wait for tokens, at each broker. More makes later what less would refuse. Default
    /// 10,000, by judgement.
    #[serde(default = "default_queue")]
    pub queue: usize,
    /// Most bytes of them, at each broker. Default 64 MiB, by judgement.
    #[serde(default = "default_queue_bytes")]
    pub queue_bytes: usize,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_zero(rate: &f64) -> bool {
    *rate == 0.0
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_none(burst: &u64) -> bool {
    *burst == 0
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_nothing(count: &usize) -> bool {
    *count == 0
}

fn default_queue() -> usize {
    10_000
}

fn default_queue_bytes() -> usize {
    64 << 20
}

impl TopicConfig {
    /// What it is called.
    pub fn name(&self) -> &str {
        self.name.as_deref().unwrap_or(&self.subject)
    }

    /// The lease it is to have, if several gates share it.
    pub(crate) fn leased(&self) -> Option<LeasedConfig> {
        let agreement = self.agreement.clone().unwrap_or_else(|| self.name().to_owned());
        let (control, token_file) = (self.control.clone()?, self.token_file.clone());
        Some(LeasedConfig { agreement, control, token_file, ..LeasedConfig::default() })
    }

    /// What was agreed, where this gate has all of it.
    pub fn whole(&self) -> Share {
        Share::new(Rate::per_second(self.rate).unwrap_or(Rate::ZERO), self.burst)
    }

    fn validate(&self, brokers: usize, problems: &mut Problems) {
        let sound = subject::is_pattern(self.subject.as_bytes());
        let allowed = "tokens between dots, `*` for one and `>` for the rest, such as orders.>";
        problems.check("subject", &self.subject, sound, allowed);
        let named = !self.name().is_empty() && self.name().chars().all(|at| !at.is_control());
        problems.check("name", self.name(), named, "a text without control characters");
        problems.range("record", self.record as f64, 0.0, 1e7);
        problems.range("queue", self.queue as f64, 1.0, 1e7);
        problems.range("queue_bytes", self.queue_bytes as f64, 1024.0, (1u64 << 32) as f64);
        if let Some(lease) = self.leased() {
            lease.validate(problems);
            let allowed = "left out: the agreement at `control` says it";
            problems.check("rate", self.rate, self.rate == 0.0, allowed);
            problems.check("burst", self.burst, self.burst == 0, allowed);
            return;
        }
        let shown = self.agreement.as_ref().or(self.token_file.as_ref());
        let used = "only with `control`";
        problems.check("agreement", shown.map_or("", |at| at), shown.is_none(), used);
        problems.range("rate", self.rate, 0.001, 1e9);
        let least = brokers.max(1);
        let enough = self.burst >= least as u64 && self.burst <= 1_000_000_000;
        let allowed =
            format!("{least} to 1000000000: each of the brokers needs a token of its own");
        problems.check("burst", self.burst, enough, &allowed);
    }
}

/// How important some publishers are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PublisherRule {
    /// Those whose name (the option `name` of NATS clients) begins so. Default: any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Those of this user. Default: any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Their business rank: 0 is the most important, 63 the least; those without a rule have 24.
    pub business: u8,
}

impl PublisherRule {
    fn fits(&self, name: Option<&str>, user: Option<&str>) -> bool {
        let begins = |wanted: &String| name.is_some_and(|name| name.starts_with(wanted.as_str()));
        self.name.as_ref().is_none_or(begins)
            && self.user.as_ref().is_none_or(|wanted| user == Some(wanted.as_str()))
    }

    fn validate(&self, problems: &mut Problems) {
        problems.check("business", self.business, self.business < Rank::BUSINESS, "0 to 63");
        let says = self.name.is_some() || self.user.is_some();
        problems.check("name", "nothing", says, "a rule has `name`, `user` or both");
    }
}

/// JetStream: streams, key-value and object stores live at one broker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StreamsConfig {
    /// Which one: one of `brokers`, with JetStream switched on.
    pub broker: Address,
    /// Subjects that streams take in, as patterns. The API's own and those of key-value and object stores are known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub subjects: Vec<String>,
    /// Longest time that a message to a stream may wait for its token; one that would wait longer is refused at once,
    /// and its publisher hears so. Default 2 s: clients wait five for an answer.
    #[serde(default = "default_patience")]
    pub patience: Span,
}

fn default_patience() -> Span {
    Span::from_secs(2)
}

/// Subjects that are JetStream's by themselves.
const STREAMS: [&[u8]; 3] = [b"$JS.", b"$KV.", b"$O."];

impl StreamsConfig {
    /// Whether a subject, or every one of a pattern, is for streams.
    pub(crate) fn takes(&self, subject: &[u8]) -> bool {
        let own = STREAMS.iter().any(|prefix| subject.starts_with(prefix));
        own || self.subjects.iter().any(|at| subject::covers(at.as_bytes(), subject))
    }

    fn validate(&self, config: &NatsConfig, problems: &mut Problems) {
        let known = config.brokers.is_empty() || config.brokers.contains(&self.broker);
        problems.check("broker", &self.broker, known, "one of `nats.brokers`");
        let patient = self.patience > Span::ZERO && self.patience <= HOUR;
        problems.check("patience", self.patience, patient, "above 0s, at most 1h");
        for pattern in &self.subjects {
            let sound = subject::is_pattern(pattern.as_bytes());
            problems.check("subjects", pattern, sound, "patterns such as orders.>");
            for topic in &config.topics {
                let (one, other) = (topic.subject.as_bytes(), pattern.as_bytes());
                let clear = !subject::overlap(one, other) || self.takes(one);
                let allowed = format!(
                    "all of the topic `{}` or nothing of it, for it has one way",
                    topic.name()
                );
                problems.check("subjects", pattern, clear, &allowed);
            }
        }
    }
}

/// Certificates, each a file in PEM, read at the start and at every reload. Connections that are open keep theirs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TlsConfig {
    /// What clients are shown, the chain up to an authority of theirs. With it, clients have to speak TLS after INFO.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cert_file: Option<String>,
    /// Its private key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_file: Option<String>,
    /// Authorities, one of which has to have signed a certificate of each client. Default: clients need none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_ca_file: Option<String>,
    /// Authorities for brokers that are given as `tls://host:port`. Default: the system's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub broker_ca_file: Option<String>,
    /// What the gate shows to brokers that ask for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub broker_cert_file: Option<String>,
    /// Its private key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub broker_key_file: Option<String>,
}

impl TlsConfig {
    fn is_none(&self) -> bool {
        *self == Self::default()
    }

    fn validate(&self, problems: &mut Problems) {
        for (field, cert, key) in [
            ("key_file", &self.cert_file, &self.key_file),
            ("broker_key_file", &self.broker_cert_file, &self.broker_key_file),
        ] {
            let shown = key.as_deref().unwrap_or("nothing");
            let both = cert.is_some() == key.is_some();
            problems.check(field, shown, both, "a certificate and its key, or neither");
        }
        let of_clients = self.client_ca_file.as_deref().unwrap_or("nothing");
        let used = self.client_ca_file.is_none() || self.cert_file.is_some();
        problems.check("client_ca_file", of_clients, used, "only with `cert_file`");
    }
}

/// A user with an nkey.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UserRule {
    /// The public key: `U` and 55 more letters and digits.
    pub nkey: String,
    /// The user that brokers are told in its name. Default: none, for brokers that ask for none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// File with that user's password.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub password_file: Option<String>,
}

impl UserRule {
    fn validate(&self, problems: &mut Problems) {
        let sound = self.nkey.parse::<UserKey>().is_ok();
        let allowed = "the public key of a user: `U` and 55 letters and digits";
        problems.check("nkey", &self.nkey, sound, allowed);
        let shown = self.password_file.as_deref().unwrap_or("nothing");
        let whose = self.password_file.is_none() || self.user.is_some();
        problems.check("password_file", shown, whose, "only with `user`");
    }
}

/// Where a broker is: `nats://host:port`, or `tls://host:port`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Address {
    /// Host and port.
    authority: String,
    tls: bool,
}

impl Address {
    /// Host and port, as `host:port`.
    pub fn authority(&self) -> &str {
        &self.authority
    }

    /// The host alone, as names in certificates are.
    pub fn host(&self) -> &str {
        let host = self.authority.rsplit_once(':').map_or(&*self.authority, |(host, _)| host);
        host.trim_start_matches('[').trim_end_matches(']')
    }

    /// Whether it is spoken to by TLS.
    pub fn is_tls(&self) -> bool {
        self.tls
    }
}

impl FromStr for Address {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong =
            || format!("`{text}` is no address of a broker: nats://host:port or tls://host:port");
        if text.contains('@') {
            return Err(
                "a broker's address has no credentials: clients' own are passed on".to_owned()
            );
        }
        let (tls, rest) = match text.strip_prefix("tls://") {
            Some(rest) => (true, rest),
            None => (false, text.strip_prefix("nats://").unwrap_or(text)),
        };
        let rest = rest.trim_end_matches('/');
        let (host, port) = match rest.rsplit_once(':') {
            // An IPv6 address without a port ends in a bracket.
            Some((host, port)) if !port.ends_with(']') => (host, port),
            _ => (rest, "4222"),
        };
        let printable = host.chars().all(|at| at.is_ascii_graphic() && !"/?#".contains(at));
        if host.is_empty() || !printable || port.parse::<u16>().is_err() {
            return Err(wrong());
        }
        Ok(Self { authority: format!("{host}:{port}"), tls })
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
        write!(f, "{}://{}", if self.tls { "tls" } else { "nats" }, self.authority)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_read_back_and_are_valid() {
        let file = File::default();
        assert_eq!(File::parse(&file.to_toml()), Ok(file.clone()));
        assert_eq!(File::parse("[nats]\n"), Ok(file));
    }

    #[test]
    fn addresses_are_hosts_with_ports() {
        for (text, authority) in [
            ("nats://a:1", "a:1"),
            ("a", "a:4222"),
            ("nats://[::1]:7/", "[::1]:7"),
            ("nats://[::1]", "[::1]:4222"),
        ] {
            assert_eq!(text.parse::<Address>().map(|at| at.authority), Ok(authority.to_owned()));
        }
        for text in ["", "nats://", "nats://a:x", "ws://a:1", "nats://u:p@a:1", "http://a/b", "a b"]
        {
            assert!(text.parse::<Address>().is_err(), "{text}");
        }
    }

    #[test]
    fn all_that_is_wrong_is_told_at_once() {
        let text = "
            [nats]
            brokers = ['nats://a:1', 'nats://b:1', 'a:1']
            pending = 1
            auth_timeout = '0s'
            [[nats.topics]]
            subject = 'orders.>'
            rate = 0
            burst = 2
            [[nats.topics]]
            subject = 'orders.*.new'
            rate = 10
            burst = 3
            [[nats.topics]]
            subject = 'a..b'
            rate = 1
            burst = 3
            [[nats.topics]]
            subject = 'shared'
            rate = 1
            control = 'control:9911'
            [[nats.topics]]
            subject = 'more.>'
            control = 'http://control:9911'
            [[nats.publishers]]
            business = 64
            [nats.jetstream]
            broker = 'nats://c:1'
            subjects = ['orders.eu.>']
            [nats.tls]
            cert_file = 'a'
            [[nats.users]]
            nkey = 'UA'
            password_file = 'b'
        ";
        let told = File::parse(text).expect_err("much is wrong").to_string();
        for problem in [
            "nats.brokers = nats://a:1 is not allowed: each broker once",
            "nats.pending = 1",
            "nats.auth_timeout = 0s",
            "nats.topics.0.rate = 0",
            "nats.topics.0.burst = 2 is not allowed: 3 to 1000000000: each of the brokers needs a token",
            "nats.topics.1.subject = orders.*.new is not allowed: no subject that is also of the topic `orders.>`",
            "nats.topics.2.subject = a..b",
            "nats.topics.3.rate = 1 is not allowed: left out",
            "nats.topics.3.control = control:9911 is not allowed: where the daemon is",
            "nats.topics.4.agreement = more.> is not allowed: the agreement's name",
            "nats.topics.4.control = http://control:9911 is not allowed: the same for all",
            "nats.publishers.0.business = 64",
            "a rule has `name`, `user` or both",
            "nats.jetstream.broker = nats://c:1 is not allowed: one of `nats.brokers`",
            "nats.jetstream.subjects = orders.eu.> is not allowed: all of the topic `orders.>`",
            "nats.tls.key_file = nothing is not allowed: a certificate and its key",
            "nats.users.0.nkey = UA is not allowed: the public key of a user",
            "nats.users.0.password_file = b is not allowed: only with `user`",
        ] {
            assert!(told.contains(problem), "{problem} is missing from:\n{told}");
        }
    }

    #[test]
    fn the_first_rule_that_fits_decides_who_is_important() {
        let text = "
            [[nats.publishers]]
            name = 'billing'
            business = 1
            [[nats.publishers]]
            user = 'batch'
            business = 50
        ";
        let config = File::parse(text).expect("valid").nats;
        assert_eq!(config.rank(Some("billing-7"), Some("batch")), Rank::new(1, 0));
        assert_eq!(config.rank(Some("other"), Some("batch")), Rank::new(50, 0));
        assert_eq!(config.rank(None, None), Rank::UNRANKED);
    }
}
