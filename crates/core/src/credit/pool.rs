//! How many credits there are: the law of the pool (Breakwater §3.2, equations 1 to 3).
//!
//! Once per control period, from one sample of the delay:
//!
//! 1. delay below target: add `max(additive × callers, 1)` credits;
//! 2. otherwise: multiply by `max(1 − multiplicative × (delay − target) ÷ target, ½)`.
//!
//! The paper's form has the floor of one credit in step 1; its code keeps the fraction for later
//! periods instead, so a hundred callers gain one credit in ten periods, and drops it at every
//! decrease. Both truncate to whole credits. In the code form a decrease takes at least one credit.

use serde::{Deserialize, Serialize};

use crate::config::Problems;
use crate::time::Span;

/// Size of the pool of credits.
#[derive(Clone, Debug)]
pub(crate) struct Pool {
    config: PoolConfig,
    total: u32,
    /// Fraction of a credit gained but not yet added, in [0, 1).
    carry: f64,
}

impl Pool {
    pub(crate) fn new(config: &PoolConfig) -> Self {
        Self { config: config.clone(), total: config.floor, carry: 0.0 }
    }

    pub(crate) fn reconfigure(&mut self, config: &PoolConfig) {
        self.config = config.clone();
        self.total = self.total.max(config.floor);
    }

    pub(crate) fn total(&self) -> u32 {
        self.total
    }

    /// The delay that is steered for.
    pub(crate) fn target(&self) -> Span {
        self.config.target
    }

    /// From now on, another one.
    pub(crate) fn steer_for(&mut self, target: Span) {
        self.config.target = target;
    }

    /// Back to the start, as when the last caller has left.
    pub(crate) fn reset(&mut self) {
        (self.total, self.carry) = (self.config.floor, 0.0);
    }

    /// At least what is already out there, when another policy's credits are taken over.
    pub(crate) fn raise_to(&mut self, credits: u32) {
        self.total = self.total.max(credits);
    }

    fn ceiling(&self, callers: usize) -> u32 {
        let all_full = (callers as u64) * u64::from(self.config.per_caller);
        u32::try_from(all_full).unwrap_or(u32::MAX).max(self.config.floor)
    }

    /// `periods` periods in a row with a delay below target.
    pub(crate) fn increase(&mut self, callers: usize, periods: u64) {
        let step = self.config.additive * callers as f64;
        let step = match self.config.form {
            PoolForm::Paper => step.max(1.0),
            PoolForm::Code => step,
        };
        let gain = self.carry + step * periods as f64;
        // `as` saturates, and the ceiling binds long before that.
        self.total = self.total.saturating_add(gain as u32).min(self.ceiling(callers));
        self.carry = gain.fract();
    }

    /// One period with `delay` at or above target.
    pub(crate) fn decrease(&mut self, callers: usize, delay: Span) {
        let target = self.config.target.as_nanos_f64();
        let excess = (delay.as_nanos_f64() - target) / target;
        let factor = (1.0 - self.config.multiplicative * excess).max(0.5);
        let mut total = (f64::from(self.total) * factor) as u32;
        if self.config.form == PoolForm::Code && factor < 1.0 {
            total = total.min(self.total.saturating_sub(1));
        }
        self.total = total.max(self.config.floor).min(self.ceiling(callers));
        self.carry = 0.0;
    }

    pub(crate) fn invariants(&self) {
        assert!(self.total >= self.config.floor, "the pool has a floor");
        assert!((0.0..1.0).contains(&self.carry));
    }
}

/// Which of Breakwater's two published forms: its paper's or its code's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PoolForm {
    /// As the paper has it: at least one credit is added per period.
    #[default]
    Paper,
    /// As its code has it: fractions of a credit are carried over.
    Code,
}

/// Parameters of the pool of credits.
#[derive(Clone, Debug, PartialEq)]
pub struct PoolConfig {
    /// Which form of the law.
    pub form: PoolForm,
    /// Delay to steer for.
    pub target: Span,
    /// Credits added per period and caller.
    pub additive: f64,
    /// Share of credits removed per period when the delay is twice the target.
    pub multiplicative: f64,
    /// Fewest credits there ever are.
    pub floor: u32,
    /// Most credits one caller ever has; the pool's ceiling is that many for each.
    pub per_caller: u32,
}

impl PoolConfig {
    /// Notes everything that is wrong with the parameters.
    pub fn validate(&self, problems: &mut Problems) {
        problems.check("target", self.target, self.target > Span::ZERO, "more than 0");
        problems.range("additive", self.additive, 1e-9, 1e3);
        problems.range("multiplicative", self.multiplicative, 1e-9, 1.0);
        problems.check("floor", self.floor, (1..=1 << 20).contains(&self.floor), "1 to 1048576");
        let most = self.per_caller;
        problems.check("per_caller", most, (1..=1 << 16).contains(&most), "1 to 65536");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(form: PoolForm, total: u32) -> Pool {
        let target = Span::from_micros(80);
        let config = PoolConfig {
            form,
            target,
            additive: 0.001,
            multiplicative: 0.02,
            floor: 10,
            per_caller: 64,
        };
        Pool { total, ..Pool::new(&config) }
    }

    /// Breakwater §3.2, decrease, worked example: dt = 80 µs, β = 0.02, C = 1000.
    #[test]
    fn decreases_as_published() {
        for (micros, left) in
            [(80, 1000), (120, 990), (160, 980), (400, 920), (2080, 500), (5000, 500)]
        {
            for form in [PoolForm::Paper, PoolForm::Code] {
                let mut pool = pool(form, 1000);
                pool.decrease(1000, Span::from_micros(micros));
                assert_eq!(pool.total(), left, "{micros} µs, {form:?}");
            }
        }
    }

    /// Breakwater §3.2, increase, worked example: α = 0.001 gives +1 for 1,000 callers, +10 for
    /// 10,000; for 100 it gives +1 (paper) or +1 every 10 periods (code).
    #[test]
    fn increases_as_published() {
        for (callers, form, periods, gain) in [
            (1_000, PoolForm::Paper, 1, 1),
            (10_000, PoolForm::Paper, 1, 10),
            (100, PoolForm::Paper, 1, 1),
            (100, PoolForm::Code, 9, 0),
            (100, PoolForm::Code, 10, 1),
            (1_000, PoolForm::Paper, 990, 990),
        ] {
            let mut pool = pool(form, 10);
            for _ in 0..periods {
                pool.increase(callers, 1);
            }
            // Ten steps of 0.1 may miss the whole by rounding; the eleventh makes up for it.
            if pool.total() < 10 + gain {
                pool.increase(callers, 1);
            }
            assert_eq!(pool.total(), 10 + gain, "{callers} {form:?}");
        }
    }

    #[test]
    fn many_periods_at_once_equal_one_by_one() {
        let (mut single, mut bulk) = (pool(PoolForm::Paper, 10), pool(PoolForm::Paper, 10));
        for _ in 0..1_000 {
            single.increase(3_000, 1);
        }
        bulk.increase(3_000, 1_000);
        assert_eq!(single.total(), bulk.total());
        bulk.increase(3_000, 1_000_000);
        assert_eq!(bulk.total(), 3_000 * 64, "the ceiling holds");
    }

    /// Breakwater §3.2, stability: alternating around the target does not drift down.
    #[test]
    fn alternating_around_the_target_does_not_drift() {
        for form in [PoolForm::Paper, PoolForm::Code] {
            let mut pool = pool(form, 1000);
            for _ in 0..1_000 {
                pool.increase(1_000, 1);
                pool.decrease(1_000, Span::from_micros(81));
                pool.invariants();
            }
            assert!((990..=1010).contains(&pool.total()), "{form:?} {}", pool.total());
        }
    }
}
