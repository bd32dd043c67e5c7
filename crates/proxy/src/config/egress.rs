//! The list `[[proxy.egress]]`: what the guarded service calls.

use std::net::SocketAddr;

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize};
use tidegate_core::caller::CallerConfig;
use tidegate_core::config::Problems;

use super::{Address, ProxyConfig, TlsConfig, Trust};

/// A service that the guarded one calls, by a listener of the sidecar's own.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Egress {
    /// What it is called in numbers and lines: letters, digits, `-`, `_` and `.`.
    pub name: String,
    /// Where the guarded service connects instead of to the other one: an address of this machine that no
    /// stranger reaches, as what comes in here is taken for its calls. Not changed by a reload.
    #[serde(deserialize_with = "listen")]
    pub listen: SocketAddr,
    /// Replicas of the service that is called, written as `proxy.upstreams`.
    pub upstreams: Vec<Address>,
    /// Who may leave towards it, and what may be tried again. Default: everything leaves, and what a
    /// replica's gate refused goes once or twice to another, as far as the budget of retries reaches.
    #[serde(default)]
    pub caller: CallerConfig,
    /// Longest body of a request, in bytes, that is kept so that the request can go to another replica when
    /// one has refused it; longer ones are sent once. More is memory for each call that is on its way.
    /// Default 16384, by judgement: most requests of services to services.
    #[serde(default = "keep_body")]
    pub keep_body: u64,
    /// Header in which whatever is called finds what is left of the deadline, in milliseconds, beside
    /// `overload-context` and `grpc-timeout`. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_header: Option<String>,
}

/// Says which field is wrong, as what is told of a list is told of the whole entry.
fn listen<'de, D: Deserializer<'de>>(from: D) -> Result<SocketAddr, D::Error> {
    let text = String::deserialize(from)?;
    let wrong = |_| D::Error::custom(format!("listen = {text:?} is none, write 127.0.0.1:3101"));
    text.parse().map_err(wrong)
}

const fn keep_body() -> u64 {
    16 * 1024
}

impl Egress {
    /// Most of them: each has a socket per serving thread.
    const MOST: usize = 64;
    /// Most bytes of a body that may be kept.
    const MOST_KEPT: u64 = 16 << 20;

    /// Notes everything that is wrong with the list.
    pub(super) fn validate_all(list: &[Self], problems: &mut Problems) {
        problems.check("egress", list.len(), list.len() <= Self::MOST, "at most 64");
        for (at, egress) in list.iter().enumerate() {
            problems.within_item("egress", at, |problems| {
                egress.validate(problems);
                let twice = |same: &dyn Fn(&Self) -> bool| list[..at].iter().any(same);
                let known = twice(&|other| other.name == egress.name);
                problems.check("name", &egress.name, !known, "a name of its own");
                let port = egress.listen.port();
                let taken = port != 0 && twice(&|other| other.listen == egress.listen);
                problems.check("listen", egress.listen, !taken, "an address of its own");
            });
        }
    }

    fn validate(&self, problems: &mut Problems) {
        let word = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
        let fine = (1..=64).contains(&self.name.len()) && self.name.chars().all(word);
        problems.check("name", &self.name, fine, "1 to 64 letters, digits, -, _ and .");
        let count = self.upstreams.len();
        problems.check("upstreams", count, (1..=64).contains(&count), "1 to 64");
        let first = self.upstreams.first().map(|address| address.scheme);
        let mixed = self.upstreams.iter().any(|address| Some(address.scheme) != first);
        problems.check(
            "upstreams",
            count,
            !mixed,
            "one of http, https, h2c, h2 for all, as replicas are alike",
        );
        problems.check(
            "keep_body",
            self.keep_body,
            self.keep_body <= Self::MOST_KEPT,
            "at most 16777216",
        );
        if let Some(name) = &self.deadline_header {
            let fine = name.parse::<http::HeaderName>().is_ok();
            problems.check("deadline_header", name, fine, "the name of a header");
        }
        problems.within("caller", |problems| {
            self.caller.validate(problems);
            let hedged = self.caller.hedge.is_some();
            problems.check(
                "hedge",
                hedged,
                !hedged,
                "left out: a sidecar sends nothing twice at once",
            );
        });
    }

    /// The settings of a worker that serves this listener: those of the sidecar, but for what is about its
    /// clients and its own service.
    pub(crate) fn settings(&self, proxy: &ProxyConfig) -> ProxyConfig {
        let tls = TlsConfig { cert_file: None, key_file: None, ..proxy.tls.clone() };
        ProxyConfig {
            upstreams: self.upstreams.clone(),
            listen: self.listen,
            capacity: 0.0,
            trust: Trust::Inside,
            spill: Vec::new(),
            rules: Vec::new(),
            exempt: Vec::new(),
            egress: Vec::new(),
            tls,
            ..proxy.clone()
        }
    }
}
