//! The block `[proxy.edge]`: what is taken of strangers, and what is not.

use serde::{Deserialize, Serialize};
use tidegate_core::config::Problems;

/// What is taken of strangers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EdgeConfig {
    /// What becomes of paths that servers read in different ways: an encoded slash, a backslash, a double encoding,
    /// dots that lead out. `refuse` answers 400. `pass` is for services whose names have encoded slashes: such a path goes
    /// on as it came, no exempt path is meant by it, and of the rules only those without a path fit it. Default refuse.
    pub ambiguous_paths: AmbiguousPaths,
    /// Most requests for exempt paths at once beside the gate, an address having a quarter of them; further ones are asked
    /// at the gate as all others. Those that are asked in common count once. More lets probes with bodies and
    /// credentials in during floods, and lets strangers put as much more work on the service. Default 8, by judgement:
    /// two for each of four that look.
    pub exempt_at_once: u32,
}

/// What becomes of paths that can be read in several ways.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AmbiguousPaths {
    /// They are answered with 400.
    #[default]
    Refuse,
    /// They go on, and no path in the configuration fits them.
    Pass,
}

impl Default for EdgeConfig {
    fn default() -> Self {
        Self { ambiguous_paths: AmbiguousPaths::Refuse, exempt_at_once: 8 }
    }
}

impl EdgeConfig {
    /// Notes everything that is wrong with the parameters.
    pub fn validate(&self, problems: &mut Problems) {
        let most = self.exempt_at_once;
        problems.check("exempt_at_once", most, (1..=10_000).contains(&most), "1 to 10000");
    }
}
