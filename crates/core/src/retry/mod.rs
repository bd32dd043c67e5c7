//! Retries that cannot storm ("Handling Overload", Deciding to Retry).
//!
//! Three bounds, each enough alone: attempts per request, a share of the caller's traffic
//! ([`Budget`]), and the callee's own advice ([`AttemptHistogram`] at the gate decides when it says
//! "don't retry"). Only the layer right above a refusal may retry it; a caller whose budget is spent
//! tells its own caller not to.

mod attempts;
mod budget;
mod hedge;

use serde::{Deserialize, Serialize};

use crate::config::Problems;
use crate::rng::Rng;
use crate::time::Span;

pub use attempts::AttemptHistogram;
pub use budget::Budget;
pub use hedge::HedgeConfig;
pub(crate) use hedge::HedgeDelay;

/// Parameters of a caller's retries.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RetryConfig {
    /// Attempts per request, the first included. 1 never retries. Default 3 ("Handling Overload").
    pub attempts: u8,
    /// Retries as a share of the caller's requests, 0 to 1. More hides more failures and adds as
    /// much load. Default 0.1 ("Handling Overload").
    pub share: f64,
    /// Retries allowed beyond the share, so that a quiet caller can retry at all; also how many
    /// unused ones are saved. Default 10.
    pub reserve: u32,
    /// Longest pause before the first retry of a request refused with *later*; doubles with each
    /// attempt, and the actual pause is uniform below it. Default 25 ms, as in Envoy.
    pub backoff: Span,
    /// Whether failures (not refusals) are retried too. Only safe when requests are idempotent.
    /// Default false.
    pub failures: bool,
}

impl Default for RetryConfig {
    fn default() -> Self {
        Self {
            attempts: 3,
            share: 0.1,
            reserve: 10,
            backoff: Span::from_millis(25),
            failures: false,
        }
    }
}

impl RetryConfig {
    /// Notes everything that is wrong with the parameters.
    pub fn validate(&self, problems: &mut Problems) {
        problems.check("attempts", self.attempts, (1..=16).contains(&self.attempts), "1 to 16");
        problems.range("share", self.share, 0.0, 1.0);
        problems.check("reserve", self.reserve, self.reserve <= 1_000_000, "0 to 1000000");
        let backoff = self.backoff;
        problems.check("backoff", backoff, backoff <= Span::from_secs(3600), "at most 1h");
    }

    /// The pause before retry number `attempt` (1 or more): what the callee asked for, plus full
    /// jitter below an exponentially growing bound.
    pub(crate) fn pause(&self, attempt: u8, asked: Span, rng: &mut Rng) -> Span {
        let bound = self.backoff.as_nanos() << u32::from(attempt.saturating_sub(1)).min(10);
        asked + Span::from_nanos(rng.below(bound.saturating_add(1)))
    }
}
