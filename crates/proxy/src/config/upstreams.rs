//! Blocks `[proxy.health]` and `[[proxy.spill]]`.

use serde::{Deserialize, Serialize};
use tidegate_core::Span;
use tidegate_core::config::Problems;

use super::Address;

/// When an upstream counts as well.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HealthConfig {
    /// Failures in a row (no connection, broken off, no answer in time) after which an upstream is out
    /// for a while; 0 is never. Default 5, as Envoy.
    pub eject_after: u32,
    /// For how long it is out the first time; twice as long each time until it answers, at most 5
    /// minutes. Default 10 s: Envoy's 30 s is long for a process that restarts.
    pub eject_for: Span,
    /// Path that upstreams are asked for; 200 to 399 is a good answer. Default: none, and only requests
    /// tell.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Time between two questions. Default 5 s.
    pub interval: Span,
    /// Longest time to answer one. With `trust = "inside"` also the least time for which a request must have waited in vain to
    /// count against an upstream, whatever deadline its caller has set; strangers have to wait for all of
    /// `response_timeout`. Default 1 s.
    pub timeout: Span,
    /// Bad answers in a row after which an upstream is out. Default 3 (HAProxy's).
    pub fall: u32,
    /// Good answers in a row after which it is back. Default 2 (HAProxy's).
    pub rise: u32,
}

impl Default for HealthConfig {
    fn default() -> Self {
        Self {
            eject_after: 5,
            eject_for: Span::from_secs(10),
            path: None,
            interval: Span::from_secs(5),
            timeout: Span::from_secs(1),
            fall: 3,
            rise: 2,
        }
    }
}

impl HealthConfig {
    /// Notes everything that is wrong with the parameters.
    pub fn validate(&self, problems: &mut Problems) {
        if let Some(path) = &self.path {
            problems.check("path", path, path.starts_with('/'), "a path begins with /");
        }
        for (field, span) in
            [("interval", self.interval), ("timeout", self.timeout), ("eject_for", self.eject_for)]
        {
            problems.check(field, span, span >= Span::from_millis(1), "at least 1ms");
        }
        problems.check("fall", self.fall, self.fall >= 1, "at least 1");
        problems.check("rise", self.rise, self.rise >= 1, "at least 1");
    }
}

/// Upstreams that take what those before them have no room for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spill {
    /// The upstreams, spoken to as the others.
    pub upstreams: Vec<Address>,
    /// Their capacity, as `proxy.capacity`; 0 is no limit.
    #[serde(default)]
    pub capacity: f64,
}

impl Spill {
    /// Notes everything that is wrong with the parameters.
    pub fn validate(&self, problems: &mut Problems) {
        let count = self.upstreams.len();
        problems.check("spill.upstreams", count, (1..=1024).contains(&count), "1 to 1024");
        problems.range("spill.capacity", self.capacity, 0.0, 1e9);
    }
}
