//! The block `[proxy.long]`.

use serde::{Deserialize, Serialize};
use tidegate_core::config::Problems;

/// Requests that hold no slot, as they last long and are mostly no work: streams of events, WebSockets, conversations
/// in which the answer begins before the request is whole, and what is named here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LongConfig {
    /// Most of them at once; beyond, they are refused with 503. As many requests may wait for their own bodies. More lets more
    /// connections to the services be held by requests that no slot bounds. Default 1,000, by judgement.
    pub most: u32,
    /// Most of one address. Default 100, by judgement: a household or an office, but not all places.
    pub per_address: u32,
    /// Paths of requests that last long by nature, such as long polls; one that ends in `/` stands for all below it.
    /// The gate is not asked about them. Default: none, as the others are recognised.
    pub paths: Vec<String>,
}

impl Default for LongConfig {
    fn default() -> Self {
        Self { most: 1_000, per_address: 100, paths: Vec::new() }
    }
}

impl LongConfig {
    /// Notes everything that is wrong with the parameters.
    pub fn validate(&self, problems: &mut Problems) {
        for (field, count) in [("most", self.most), ("per_address", self.per_address)] {
            problems.check(field, count, count >= 1, "at least 1");
        }
        for path in &self.paths {
            problems.check("paths", path, path.starts_with('/'), "a path begins with /");
        }
    }
}
