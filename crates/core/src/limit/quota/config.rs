//! Parameters of `quota`.

use serde::{Deserialize, Serialize};

use super::super::bucket::Limit;
use super::super::order::BANDS;
use super::super::{Unit, check_factor};
use crate::config::Problems;
use crate::rank::Criticality;
use crate::time::Span;

/// When quotas are enforced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Enforce {
    /// Whatever the load.
    #[default]
    Always,
    /// Only while the gate's delay is at or above `overload_delay`.
    Overload,
}

/// Parameters of quotas.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct QuotaConfig {
    /// What is counted: `requests`, `cpu-seconds`, or `cost` as the driver counts it. Default
    /// requests.
    pub unit: Unit,
    /// Work this machine does in a second, as a multiple of a standard machine's: costs are
    /// multiplied by it ("Handling Overload", The Pitfalls of "Queries per Second"). Default 1.
    pub factor: f64,
    /// `always`, or only under `overload`: then spare capacity is used by whoever comes, and the
    /// quota decides who gives way. Default always.
    pub enforce: Enforce,
    /// Gate delay from which on it is overloaded, for `enforce = "overload"` and for guarantees.
    /// Less acts sooner and on shorter bursts. Default 10 ms: a fifth of the default objective of
    /// `tide`, half of its target delay (judgement).
    pub overload_delay: Span,
    /// What there is to share, in the unit per second, 0 when nobody knows. It changes no decision: it
    /// is what `tidegate check` compares the quotas with. Default 0.
    pub capacity: f64,
    /// The quota of each workflow that is not named, and of requests without one; its `workflow` is
    /// empty. Default: none, they pass.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default: Option<Quota>,
    /// Quotas of workflows by name.
    pub quotas: Vec<Quota>,
}

impl Default for QuotaConfig {
    fn default() -> Self {
        Self {
            unit: Unit::Requests,
            factor: 1.0,
            enforce: Enforce::Always,
            overload_delay: Span::from_millis(10),
            capacity: 0.0,
            default: None,
            quotas: Vec::new(),
        }
    }
}

impl QuotaConfig {
    /// What all named workflows may use together, per second. It may be more than there is ("Handling
    /// Overload", Per-Customer Limits).
    pub fn promised(&self) -> f64 {
        self.quotas.iter().map(|quota| quota.rate).sum()
    }

    /// Notes everything that is wrong with the parameters.
    pub fn validate(&self, problems: &mut Problems) {
        check_factor(problems, self.factor);
        problems.range("capacity", self.capacity, 0.0, 1e12);
        let least = self.unit.least_burst();
        if let Some(default) = &self.default {
            problems.within("default", |problems| {
                let name = format!("{:?}", default.workflow);
                let fine = default.workflow.is_empty();
                problems.check("workflow", name, fine, "none: it is for those not named");
                default.validate(problems, least);
            });
        }
        for (at, quota) in self.quotas.iter().enumerate() {
            problems.within_item("quotas", at, |problems| {
                let name = format!("{:?}", quota.workflow);
                problems.check("workflow", &name, !quota.workflow.is_empty(), "a name");
                let before = self.quotas[..at].iter();
                let fresh = !before.clone().any(|other| other.workflow == quota.workflow);
                problems.check("workflow", name, fresh, "each workflow once");
                quota.validate(problems, least);
            });
        }
    }
}

/// What one workflow may use.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Quota {
    /// Its name.
    pub workflow: String,
    /// What it may use, per second. Default 100 (judgement: small enough to be noticed and set).
    pub rate: f64,
    /// What it may use at once after a pause. Default 33: at nine tenths of its rate, 999 of 1,000
    /// Poisson arrivals are within it.
    pub burst: f64,
    /// What passes even in an overload, while the rest is best effort. Default: no distinction.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub guarantee: Option<Guaranteed>,
    /// A limit of its own for requests that are critical-plus, within the whole. Default: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub critical_plus: Option<Guaranteed>,
    /// The same for critical ones. Default: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub critical: Option<Guaranteed>,
    /// The same for sheddable-plus ones. Default: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sheddable_plus: Option<Guaranteed>,
    /// The same for sheddable ones. Default: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sheddable: Option<Guaranteed>,
}

/// A part of a quota.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Guaranteed {
    /// Per second.
    pub rate: f64,
    /// At once after a pause.
    pub burst: f64,
}

impl Default for Quota {
    fn default() -> Self {
        Self {
            workflow: String::new(),
            rate: 100.0,
            burst: 33.0,
            guarantee: None,
            critical_plus: None,
            critical: None,
            sheddable_plus: None,
            sheddable: None,
        }
    }
}

impl Quota {
    pub(super) fn limit(&self) -> Limit {
        Limit::new(self.rate, self.burst)
    }

    pub(super) fn guaranteed(&self) -> Option<Limit> {
        self.guarantee.map(|part| Limit::new(part.rate, part.burst))
    }

    fn parts(&self) -> [(Criticality, &'static str, Option<Guaranteed>); BANDS] {
        [
            (Criticality::CriticalPlus, "critical_plus", self.critical_plus),
            (Criticality::Critical, "critical", self.critical),
            (Criticality::SheddablePlus, "sheddable_plus", self.sheddable_plus),
            (Criticality::Sheddable, "sheddable", self.sheddable),
        ]
    }

    pub(super) fn bands(&self) -> impl Iterator<Item = (Criticality, Limit)> {
        let limits = |(band, _, part): (_, _, Option<Guaranteed>)| {
            part.map(|part| (band, Limit::new(part.rate, part.burst)))
        };
        self.parts().into_iter().filter_map(limits)
    }

    fn validate(&self, problems: &mut Problems, least: f64) {
        self.limit().validate(problems, least);
        let parts = self.parts().map(|(_, name, part)| (name, part));
        for (name, part) in parts.into_iter().chain([("guarantee", self.guarantee)]) {
            let Some(part) = part else { continue };
            problems.within(name, |problems| {
                Limit::new(part.rate, part.burst).validate(problems, least);
                let fine = part.rate.is_nan() || part.rate <= self.rate;
                let allowed = format!("at most the whole rate, {}", self.rate);
                problems.check("rate", part.rate, fine, &allowed);
            });
        }
    }
}
