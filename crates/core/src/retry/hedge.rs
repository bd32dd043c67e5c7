//! Hedged requests: a second attempt elsewhere while the first has not been answered yet (Dean and
//! Barroso, *The Tail at Scale*, 2013).
//!
//! 1. Wait until a request has taken longer than a share `quantile` of answers do: most never get
//!    there, so few are sent twice.
//! 2. Send it once more, to another replica, and take the first answer; the other is given up.
//! 3. A hedge is paid for from the same budget as retries: a service in trouble answers late, and would
//!    otherwise get every request twice.
//!
//! The quantile is followed in steps in proportion to itself: up by a share of `quantile` with an
//! answer that took longer, down by one of `1 − quantile` with any other.

use serde::{Deserialize, Serialize};

use crate::config::Problems;
use crate::time::Span;

/// How long answers take, at a quantile.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct HedgeDelay {
    /// The estimate, in nanoseconds; zero before the first answer.
    delay: f64,
    answers: u32,
}

/// Answers without which the quantile is not known.
const ENOUGH: u32 = 64;
/// The largest step.
const STEP: f64 = 0.1;

impl HedgeDelay {
    /// An answer came after `latency`.
    pub(crate) fn on_answer(&mut self, latency: Span, config: &HedgeConfig) {
        let latency = latency.as_nanos().max(1) as f64;
        self.answers = self.answers.saturating_add(1);
        if self.delay == 0.0 {
            self.delay = latency;
        }
        self.delay *= match latency > self.delay {
            true => 1.0 + STEP * config.quantile,
            false => 1.0 - STEP * (1.0 - config.quantile),
        };
    }

    /// How long to wait for an answer before another attempt; none while that is not known.
    pub(crate) fn delay(&self, config: &HedgeConfig) -> Option<Span> {
        let known = self.answers >= ENOUGH;
        known.then(|| Span::from_nanos(self.delay as u64).max(config.least))
    }
}

/// Parameters of hedges.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HedgeConfig {
    /// Share of answers that are quicker than what is waited for, 0.5 to 0.999. Less sends more twice.
    /// Default 0.95 (*The Tail at Scale*: at most one request in twenty, and the tail is gone).
    pub quantile: f64,
    /// Shortest time to wait. Less hedges services so quick that it is not worth it. Default 1 ms.
    pub least: Span,
}

impl Default for HedgeConfig {
    fn default() -> Self {
        Self { quantile: 0.95, least: Span::from_millis(1) }
    }
}

impl HedgeConfig {
    /// Notes everything that is wrong with the parameters.
    pub fn validate(&self, problems: &mut Problems) {
        problems.range("quantile", self.quantile, 0.5, 0.999);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    #[test]
    fn the_delay_is_the_quantile_of_answers() {
        let config = HedgeConfig::default();
        let (mut hedge, mut rng) = (HedgeDelay::default(), Rng::new(3));
        let mut later = 0;
        for n in 0..20_000 {
            // Exponential with a mean of 10 ms: the 95th percentile is 30 ms.
            let latency = Span::from_millis(10).scale(-(1.0 - rng.unit()).ln());
            if n >= 10_000 {
                later += u32::from(latency > hedge.delay(&config).unwrap());
            }
            hedge.on_answer(latency, &config);
        }
        assert!((350..650).contains(&later), "{later} of 10,000 instead of 500");
    }

    #[test]
    fn nothing_is_hedged_before_enough_is_known_or_below_the_least() {
        let config = HedgeConfig::default();
        let mut hedge = HedgeDelay::default();
        for n in 0..ENOUGH {
            assert_eq!(hedge.delay(&config), None, "{n}");
            hedge.on_answer(Span::from_micros(5), &config);
        }
        assert_eq!(hedge.delay(&config), Some(config.least));
    }
}
