//! Parameters of a caller.

use serde::{Deserialize, Serialize};

use super::{BreakerConfig, EjectionConfig};
use crate::config::{self, ConfigError, Problems};
use crate::retry::{HedgeConfig, RetryConfig};
use crate::throttle::ThrottleConfig;
use crate::time::Span;

/// Parameters of a [`Caller`](super::Caller).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CallerConfig {
    /// Who may leave.
    pub throttle: ThrottleConfig,
    /// Who may try again.
    pub retry: RetryConfig,
    /// Second attempts while the first has not been answered. Default: none. Only for requests that
    /// may be done twice, and of drivers that can send one request twice.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hedge: Option<HedgeConfig>,
    /// Leaves an endpoint alone that only fails. Default: off.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub breaker: Option<BreakerConfig>,
    /// Leaves an endpoint out that fails more often than others. Default: off.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ejection: Option<EjectionConfig>,
    /// Most requests held for a credit or token. More smooths bursts, fewer fails sooner. Default
    /// 16 (Breakwater's code, per session).
    pub hold_limit: usize,
    /// Longest time a request is held. Less fails sooner, more serves a request that has aged.
    /// Requests with a deadline are given up in time for an answer anyway. Default 1 s;
    /// Breakwater's code has 10 µs, one round trip.
    pub hold_time: Span,
    /// Whether calls past their deadline are sent all the same. Default false; true where deadlines only order
    /// and limit, as in `gate.workflow`.
    pub soft_deadlines: bool,
}

impl Default for CallerConfig {
    fn default() -> Self {
        Self {
            throttle: ThrottleConfig::default(),
            retry: RetryConfig::default(),
            hedge: None,
            breaker: None,
            ejection: None,
            hold_limit: 16,
            hold_time: Span::from_secs(1),
            soft_deadlines: false,
        }
    }
}

impl CallerConfig {
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

    /// Everything that is wrong with it, at once.
    pub fn check(&self) -> Result<(), ConfigError> {
        let mut problems = Problems::default();
        self.validate(&mut problems);
        problems.into_result()
    }

    /// Notes everything that is wrong with the parameters.
    pub fn validate(&self, problems: &mut Problems) {
        problems.within("throttle", |problems| self.throttle.validate(problems));
        problems.within("retry", |problems| self.retry.validate(problems));
        if let Some(hedge) = &self.hedge {
            problems.within("hedge", |problems| hedge.validate(problems));
        }
        if let Some(breaker) = &self.breaker {
            problems.within("breaker", |problems| breaker.validate(problems));
        }
        if let Some(ejection) = &self.ejection {
            problems.within("ejection", |problems| ejection.validate(problems));
        }
        problems.check("hold_limit", self.hold_limit, self.hold_limit <= 1 << 20, "0 to 1048576");
    }
}
