//! Agreements, and the file that the daemon reads them from.
//!
//! ```toml
//! [control]
//! listen = "127.0.0.1:9911"
//!
//! [[agreements]]
//! name = "api"
//! rate = 300.0
//! burst = 30.0
//! nodes = 3
//! ```

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use tidegate_core::Span;
use tidegate_core::config::{self, ConfigError, Problems};
use tidegate_core::limit::{Each, Enforce, Guaranteed, Limit, Unit, is_agreement};
use tidegate_core::share::wire::LONGEST_KEY;
use tidegate_core::share::{LeaseConfig, OnLoss, Rate, Rules, Share};

/// Most agreements.
pub const MOST_AGREEMENTS: usize = 1_000;
/// Most keys that an agreement names.
const MOST_NAMED: usize = 1_000;

/// A whole file. What it leaves out has its default.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct File {
    /// The daemon's own.
    pub control: ControlConfig,
    /// What it keeps.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub agreements: Vec<Agreement>,
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
        problems.within("control", |problems| self.control.validate(problems));
        validate_all(&self.agreements, problems);
    }
}

/// Agreements alone, as the admin port takes them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Agreements {
    /// All there are.
    pub agreements: Vec<Agreement>,
}

impl Agreements {
    /// Reads and checks a list; all problems are told at once.
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        config::read(text, |list: &Self, problems| validate_all(&list.agreements, problems))
    }
}

fn validate_all(agreements: &[Agreement], problems: &mut Problems) {
    let count = agreements.len();
    problems.check("agreements", count, count <= MOST_AGREEMENTS, "at most 1000 of them");
    let mut names = BTreeSet::new();
    for (at, agreement) in agreements.iter().enumerate() {
        problems.within_item("agreements", at, |problems| {
            agreement.validate(problems);
            let first = names.insert(&agreement.name);
            problems.check("name", &agreement.name, first, "a name that no other agreement has");
        });
    }
}

/// Where the daemon listens and what it asks for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ControlConfig {
    /// Where nodes ask for leases. Default `127.0.0.1:9911`.
    pub listen: SocketAddr,
    /// Where operators look and change agreements. Default `127.0.0.1:9912`.
    pub admin: SocketAddr,
    /// What outlives the daemon: `file:PATH`, or `memory` for nothing at all. Default
    /// `file:tidegate-control.json` in the folder it is started in.
    pub store: Store,
    /// File with a token that every node has to show. Without it, and without `nodes`, whoever
    /// reaches the port is taken for a node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_file: Option<String>,
    /// File with the token that changes over the admin port need. Without it nothing is changed there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub admin_token_file: Option<String>,
    /// Nodes that have tokens of their own.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<NodeConfig>,
}

impl Default for ControlConfig {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 9911)),
            admin: SocketAddr::from(([127, 0, 0, 1], 9912)),
            store: Store::File("tidegate-control.json".to_owned()),
            token_file: None,
            admin_token_file: None,
            nodes: Vec::new(),
        }
    }
}

impl ControlConfig {
    fn validate(&self, problems: &mut Problems) {
        let apart = self.listen != self.admin || self.listen.port() == 0;
        problems.check("admin", self.admin, apart, "another address than `listen`");
        let mut names = BTreeSet::new();
        for (at, node) in self.nodes.iter().enumerate() {
            problems.within_item("nodes", at, |problems| {
                let first = is_agreement(&node.name) && names.insert(&node.name);
                let allowed = "1 to 64 letters, digits, `-`, `_` and `.`, and no other node's";
                problems.check("name", &node.name, first, allowed);
            });
        }
    }
}

/// A node that is known by its token.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeConfig {
    /// What it is called.
    pub name: String,
    /// File with its token.
    pub token_file: String,
}

/// Where the ledger is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Store {
    /// Nowhere: after a restart nothing is known.
    Memory,
    /// In a file.
    File(String),
}

impl FromStr for Store {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.strip_prefix("file:") {
            Some(path) if !path.is_empty() => Ok(Self::File(path.to_owned())),
            None if text == "memory" => Ok(Self::Memory),
            _ => Err("memory, or file: and a path".to_owned()),
        }
    }
}

impl TryFrom<String> for Store {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Store> for String {
    fn from(store: Store) -> Self {
        match store {
            Store::Memory => "memory".to_owned(),
            Store::File(path) => format!("file:{path}"),
        }
    }
}

/// So much a second and so much at once, over all nodes together.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Agreement {
    /// What nodes call it: letters, digits, `-`, `_` and `.`.
    pub name: String,
    /// Who has it for itself: `all` share one, or each `workflow`, `user`, value of a `header`, or `descriptor` (a workflow
    /// and a value, as `workflow/value`) has one. Default all.
    pub each: Each,
    /// What a token is: `requests`, `cpu-seconds`, `cost` as drivers count it, or `tokens`, `bytes` or an
    /// `own` unit as services tell. Default requests.
    pub unit: Unit,
    /// Tokens per second, over all nodes. Of each key, where each has one. Default 100.
    pub rate: f64,
    /// Most tokens saved up, over all nodes. At least one for each node. Default 33.
    pub burst: f64,
    /// Instead of a rate and a burst: most requests in flight over all nodes, places they hold. Default none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub places: Option<u64>,
    /// How many of these each node may hold without asking, and without the daemon. What is set aside so is nobody
    /// else's. Default 0.
    pub safe_places: u64,
    /// How long the place of a request is kept that was aborted because its node's lease was over. More
    /// gives work that was abandoned longer to end. Default 1 s; nodes need a tenth of a second to abort.
    pub allowance: Span,
    /// Keys that have another rate and burst.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub named: Vec<Named>,
    /// `always`, or only in an `overload` of the gate that decides; then nothing is guaranteed. Default always.
    pub enforce: Enforce,
    /// How many of a hundred users are held to it, and who is stays so as it grows; 0 is a shadow: all is counted,
    /// nothing refused. Below 100 nothing is guaranteed. Default 100.
    pub percent: u8,
    /// What requests that are critical-plus may have of it at most. Default: all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub critical_plus: Option<Guaranteed>,
    /// The same for critical ones. Default: all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub critical: Option<Guaranteed>,
    /// The same for sheddable-plus ones. Default: all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sheddable_plus: Option<Guaranteed>,
    /// The same for sheddable ones. Default: all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sheddable: Option<Guaranteed>,
    /// Most processes that use it at the same time; what an autoscaler may start at most. Each has
    /// `safe × rate ÷ nodes` without being told, and so has each that is beyond: on top. Default 16.
    pub nodes: u32,
    /// What part is set aside for nodes that hear nothing, from 0 to 1. Less leaves more for where the
    /// load is. Default 0.03: what idles where it is not needed, in a fleet that is well.
    pub safe: f64,
    /// How long a lease is: how long nodes go on as they were without the daemon, and how long a crashed
    /// node's share is kept for it. Default 10 s.
    pub term: Span,
    /// How often nodes report when nothing changes. Default 500 ms: an edit is heard of within a second.
    pub period: Span,
    /// How much two clocks may differ in speed, as a share. Default 0.001.
    pub drift: f64,
    /// What nodes do that hear nothing for a term: `safe`, `open` or `closed`. With `open` nothing is
    /// guaranteed. Default safe.
    pub on_loss: OnLoss,
    /// Most keys at a time; others have nothing but their safe share. Default 10,000.
    pub keys: usize,
}

/// A key with a rate and a burst of its own.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Named {
    /// The workflow, the user, or what the header says.
    pub key: String,
    /// Tokens per second.
    #[serde(default)]
    pub rate: f64,
    /// Most tokens saved up.
    #[serde(default)]
    pub burst: f64,
    /// Instead of these, requests in flight.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub places: Option<u64>,
}

impl Default for Agreement {
    fn default() -> Self {
        let LeaseConfig { nodes, term, period, drift, on_loss, .. } = LeaseConfig::default();
        Self {
            name: String::new(),
            each: Each::All,
            unit: Unit::Requests,
            rate: 100.0,
            burst: 33.0,
            places: None,
            safe_places: 0,
            allowance: Span::from_secs(1),
            named: Vec::new(),
            enforce: Enforce::Always,
            percent: 100,
            critical_plus: None,
            critical: None,
            sheddable_plus: None,
            sheddable: None,
            nodes,
            safe: 0.03,
            term,
            period,
            drift,
            on_loss,
            keys: 10_000,
        }
    }
}

impl Agreement {
    /// The whole of what `key` has.
    pub fn whole(&self, key: &str) -> Share {
        let named = self.named.iter().find(|named| named.key == key);
        if let Some(places) = self.places {
            let own = named.and_then(|named| named.places);
            return Share::new(Rate::ZERO, own.unwrap_or(places));
        }
        let (rate, burst) =
            named.map_or((self.rate, self.burst), |named| (named.rate, named.burst));
        self.share(rate, burst)
    }

    /// The terms of its leases.
    pub fn terms(&self) -> LeaseConfig {
        let Self { nodes, term, period, drift, on_loss, .. } = *self;
        let places = self.places.map(|_| self.allowance);
        let safe = match self.places {
            None => self.safe,
            // So many each, however that is rounded.
            Some(places) => {
                let all = self.safe_places.saturating_mul(u64::from(nodes));
                if all == 0 { 0.0 } else { (all as f64 + 0.5) / places.max(1) as f64 }
            }
        };
        LeaseConfig { nodes, safe, term, period, drift, on_loss, places }
    }

    /// How it is applied to requests.
    pub fn rules(&self) -> Rules {
        let cap =
            |(_, cap): (_, Option<Guaranteed>)| cap.map(|cap| self.share(cap.rate, cap.burst));
        let Self { enforce, percent, .. } = *self;
        Rules { enforce, percent, caps: self.caps().map(cap), ..Rules::default() }
    }

    /// What each criticality may have at most.
    fn caps(&self) -> [(&'static str, Option<Guaranteed>); 4] {
        [
            ("critical_plus", self.critical_plus),
            ("critical", self.critical),
            ("sheddable_plus", self.sheddable_plus),
            ("sheddable", self.sheddable),
        ]
    }

    fn share(&self, rate: f64, burst: f64) -> Share {
        let tokens = self.unit.tokens();
        let rate = Rate::per_second(rate * tokens).unwrap_or(Rate::MAX);
        Share::new(rate, (burst * tokens) as u64)
    }

    fn validate(&self, problems: &mut Problems) {
        let allowed = "1 to 64 letters, digits, `-`, `_` and `.`";
        problems.check("name", &self.name, is_agreement(&self.name), allowed);
        let each = format!("{:?}", self.each).to_lowercase();
        let fine = !matches!(self.each, Each::Caller | Each::Address);
        problems.check("each", each, fine, "all, workflow, user, header or descriptor");
        problems.check("percent", self.percent, self.percent <= 100, "0 to 100");
        for (name, cap) in self.caps() {
            let Some(cap) = cap else { continue };
            problems.within(name, |problems| {
                let least = 1.0 / self.unit.tokens();
                problems.range("rate", cap.rate, Limit::RATES.0, self.rate);
                problems.range("burst", cap.burst, least, self.burst);
            });
        }
        self.terms().validate(problems);
        match self.places {
            Some(places) => self.validate_places(places, problems),
            None => self.validate_share(self.rate, self.burst, problems),
        }
        let count = self.named.len();
        problems.check("named", count, count <= MOST_NAMED, "at most 1000 of them");
        let mut keys = BTreeSet::new();
        for (at, named) in self.named.iter().enumerate() {
            problems.within_item("named", at, |problems| {
                let fits = (1..=LONGEST_KEY).contains(&named.key.len());
                let first = fits && self.each != Each::All && keys.insert(&named.key);
                let allowed =
                    "1 to 128 bytes, no other's, in an agreement for each workflow, user or value";
                problems.check("key", &named.key, first, allowed);
                match (self.places, named.places) {
                    (None, None) => self.validate_share(named.rate, named.burst, problems),
                    (Some(_), Some(places)) => self.validate_places(places, problems),
                    (_, places) => {
                        let allowed = "given where the agreement has places, and only there";
                        problems.check("places", places.unwrap_or(0), false, allowed);
                    }
                }
            });
        }
        problems.check("keys", self.keys, (1..=100_000).contains(&self.keys), "1 to 100000");
    }

    fn validate_places(&self, places: u64, problems: &mut Problems) {
        let allowed = "1 to 1000000000";
        problems.check("places", places, (1..=1_000_000_000).contains(&places), allowed);
        let aside = self.safe_places.saturating_mul(u64::from(self.nodes));
        let allowed = format!("at most {places} for all {} nodes together", self.nodes);
        problems.check("safe_places", self.safe_places, aside <= places, &allowed);
        let unit = format!("{:?}", self.unit).to_lowercase();
        let fine = self.unit == Unit::Requests;
        problems.check("unit", unit, fine, "requests, where it is about places");
        let least = Span::from_millis(100);
        problems.check("allowance", self.allowance, self.allowance >= least, "at least 100ms");
        let fine = self.caps().iter().all(|(_, cap)| cap.is_none());
        problems.check("sheddable", "set", fine, "no criticality's limit where it is about places");
    }

    fn validate_share(&self, rate: f64, burst: f64, problems: &mut Problems) {
        let tokens = self.unit.tokens();
        problems.range("rate", rate, Limit::RATES.0, Limit::RATES.1 / tokens);
        problems.range("burst", burst, 1.0 / tokens, Limit::BURSTS.1 / tokens);
        if let Err(error) = self.terms().safe_share(self.share(rate, burst)) {
            problems.check("nodes", self.nodes, false, &error.to_string());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_read_back() {
        let named = Named { key: "gold".to_owned(), rate: 5.0, burst: 20.0, places: None };
        let agreement = Agreement {
            name: "api".to_owned(),
            each: Each::Workflow,
            named: vec![named],
            ..Agreement::default()
        };
        let file = File { agreements: vec![agreement.clone()], ..File::default() };
        assert_eq!(File::parse(&file.to_toml()), Ok(file));
        assert_eq!(agreement.whole("gold").burst, 20);
        assert_eq!(agreement.whole("other").burst, 33);
    }

    #[test]
    fn everything_that_is_wrong_is_told_at_once() {
        let text = "
            [control]
            store = 'etcd:x'
            [[agreements]]
            name = 'a b'
            rate = 0.0
            [[agreements]]
            name = 'a'
            nodes = 100
            [[agreements]]
            name = 'a'
            term = '100ms'
            [[agreements.named]]
            key = 'x'
            rate = 1.0
            burst = 1.0
        ";
        let told = File::parse(text).expect_err("much is wrong").to_string();
        assert!(told.contains("memory, or file:"), "{told}");
        let told = File::parse(&text.replace("etcd:x", "memory")).expect_err("much").to_string();
        for part in [
            "agreements.0.name = a b",
            "agreements.0.rate = 0",
            "agreements.1.nodes = 100 is not allowed: a burst of 33",
            "agreements.2.name = a is not allowed: a name that no other",
            "agreements.2.term = 100ms",
            "agreements.2.named.0.key = x",
        ] {
            assert!(told.contains(part), "{part} is missing from:\n{told}");
        }
    }

    /// 50 ms of processor time at once is a burst, though less than a second.
    #[test]
    fn processor_time_is_counted_in_milliseconds() {
        let agreement = Agreement { unit: Unit::CpuSeconds, burst: 0.05, ..Agreement::default() };
        assert_eq!(agreement.whole("").burst, 50);
        assert_eq!(agreement.whole("").rate, Rate::per_second(100_000.0).expect("a rate"));
    }
}
