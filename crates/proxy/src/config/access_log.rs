//! Block `[proxy.access_log]`.

use serde::{Deserialize, Serialize};
use tidegate_core::config::Problems;

/// A line per request: what it was, what was decided, and what became of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AccessLogConfig {
    /// Where lines go, appended; `-` is stdout. Default: none, and no lines are written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// Share of requests that is written, 0 to 1, chosen evenly. Default 1.
    pub sample: f64,
    /// Most lines per second, whatever comes; 0 is no limit. More tells more, and fills disks sooner: a line has some 300 bytes.
    /// Default 1000, by judgement.
    pub per_second: u32,
    /// Bytes after which a file is full: it becomes `FILE.1`, in the place of the one before. Default 100 MB.
    pub most_bytes: u64,
    /// Whether lines have the user rank: the same for all requests of a user within an hour. Default false.
    pub users: bool,
}

impl Default for AccessLogConfig {
    fn default() -> Self {
        Self { file: None, sample: 1.0, per_second: 1000, most_bytes: 100_000_000, users: false }
    }
}

impl AccessLogConfig {
    /// Notes everything that is wrong with the parameters.
    pub fn validate(&self, problems: &mut Problems) {
        let file = self.file.as_deref().unwrap_or("-");
        problems.check("file", file, !file.is_empty(), "a path, or - for stdout");
        problems.range("sample", self.sample, 0.0, 1.0);
        let least = 4096;
        problems.check("most_bytes", self.most_bytes, self.most_bytes >= least, "at least 4096");
    }
}
