//! Parameters of a [`Gate`](super::Gate): what a driver's configuration file holds under `[gate]`.

use serde::{Deserialize, Serialize};

use crate::admission::AdmissionConfig;
use crate::config::{self, ConfigError, Problems};
use crate::limit::{LimitConfig, validate_all};
use crate::schedule::ScheduleConfig;
use crate::signal::SignalsConfig;
use crate::slots::SlotsConfig;
use crate::time::Span;
use crate::workflow::WorkflowConfig;

/// Parameters of a [`Gate`](super::Gate).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GateConfig {
    /// How much of what may pass whatever the load, all of them. Default: no limits.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub limits: Vec<LimitConfig>,
    /// Who may enter.
    pub admission: AdmissionConfig,
    /// Who is next.
    pub schedule: ScheduleConfig,
    /// How many execute at once.
    pub slots: SlotsConfig,
    /// Most requests that may wait: a bound on memory, not a control. Policies bound the wait in
    /// time. Default 16,384, about 5 MB.
    pub queue_limit: usize,
    /// Delay from which on requests are let in *degraded*, so that handlers can answer cheaper.
    /// Default: never (an hour).
    pub degrade_delay: Span,
    /// Share of retries among arrivals above which refusals say "don't retry" instead of "retry
    /// elsewhere", 0 to 1. Lower gives up sooner. Default 0.1: the share that well-behaved callers'
    /// budgets allow ("Handling Overload", Deciding to Retry).
    pub retry_share: f64,
    /// How full the machine is: for policies that ask, and told to callers. The driver measures it.
    pub signals: SignalsConfig,
    /// Rates by workflow, progress and the limiter (Wisp). Default: none of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workflow: Option<WorkflowConfig>,
}

impl Default for GateConfig {
    fn default() -> Self {
        Self {
            limits: Vec::new(),
            admission: AdmissionConfig::default(),
            schedule: ScheduleConfig::default(),
            slots: SlotsConfig::default(),
            queue_limit: 16_384,
            degrade_delay: Span::from_secs(3600),
            retry_share: 0.1,
            signals: SignalsConfig::default(),
            workflow: None,
        }
    }
}

impl GateConfig {
    /// Reads and checks a TOML block.
    pub fn from_toml(text: &str) -> Result<Self, ConfigError> {
        config::read(text, Self::validate)
    }

    /// Reads and checks a TOML block that has been parsed.
    pub fn from_table(table: toml::Table) -> Result<Self, ConfigError> {
        config::read_table(table, Self::validate)
    }

    /// Writes the configuration as TOML, every parameter in full.
    pub fn to_toml(&self) -> String {
        config::print(self)
    }

    /// Whether late requests are served all the same.
    pub(super) fn deadlines_are_soft(&self) -> bool {
        self.workflow.as_ref().is_some_and(|config| config.soft_deadlines)
    }

    /// Everything that is wrong with it, at once.
    pub fn check(&self) -> Result<(), ConfigError> {
        let mut problems = Problems::default();
        self.validate(&mut problems);
        problems.into_result()
    }

    /// Notes everything that is wrong with the parameters.
    pub fn validate(&self, problems: &mut Problems) {
        validate_all(&self.limits, problems);
        problems.within("admission", |problems| self.admission.validate(problems));
        problems.within("schedule", |problems| self.schedule.validate(problems));
        problems.within("slots", |problems| self.slots.validate(problems));
        let limit = self.queue_limit;
        problems.check("queue_limit", limit, (1..=1 << 24).contains(&limit), "1 to 16777216");
        problems.range("retry_share", self.retry_share, 0.0, 1.0);
        problems.within("signals", |problems| self.signals.validate(problems));
        if let Some(workflow) = &self.workflow {
            problems.within("workflow", |problems| workflow.validate(problems));
        }
    }
}
