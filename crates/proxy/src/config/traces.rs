//! Block `[proxy.traces]`.

use serde::{Deserialize, Serialize};
use tidegate_core::config::Problems;

use super::{Address, Scheme};

/// Spans for a collector of OpenTelemetry; needs a build with the feature `otel`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TracesConfig {
    /// The collector, as `http://host:port`: spans go to `/v1/traces` there, as OTLP over HTTP in JSON.
    /// Default: none, and no spans are made.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub collector: Option<Address>,
    /// Share of the requests without a `traceparent` that a trace begins with, 0 to 1; whoever sends one
    /// has decided. More tells more, and each span costs time and memory. Default 0.01, by judgement.
    pub sample: f64,
    /// What the spans say they are from. Default `tidegate`.
    pub service: String,
}

impl Default for TracesConfig {
    fn default() -> Self {
        Self { collector: None, sample: 0.01, service: "tidegate".to_owned() }
    }
}

impl TracesConfig {
    /// Notes everything that is wrong with the parameters.
    pub fn validate(&self, problems: &mut Problems) {
        problems.range("sample", self.sample, 0.0, 1.0);
        problems.check("service", &self.service, !self.service.is_empty(), "a name");
        if let Some(collector) = &self.collector {
            let fine = collector.scheme == Scheme::Http;
            problems.check("collector", collector, fine, "http://host:port");
        }
    }
}
