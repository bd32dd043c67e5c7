//! Parameters of rate control by workflow: the block `[gate.workflow]`.

use serde::{Deserialize, Serialize};

use crate::allocate::AllocatorConfig;
use crate::config::Problems;
use crate::context::Workflow;
use crate::gate::CalleeId;
use crate::time::Span;

/// Parameters of [`RateControl`](super::RateControl) and [`Limiter`](super::Limiter).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct WorkflowConfig {
    /// How often rates are worked out. Shorter follows sooner and is noisier. Default 100 ms (Wisp
    /// §4.1, Algorithm 1).
    pub period: Span,
    /// Cores that requests may keep busy, 0 if their cost is not CPU time or not to be counted. Default 0:
    /// then slots alone are the resource.
    pub cores: f64,
    /// Busy share from which on a resource counts as overloaded, above 0 to 1; this much is divided.
    /// Higher uses more and queues longer. Default 0.9 (judgement: a queue of nine service times at
    /// one core; Wisp gives no number).
    pub target: f64,
    /// A standing queue is worked off within this time, by dividing less. Shorter empties it sooner and
    /// cuts deeper. Default 1 s, ten periods.
    pub drain: Span,
    /// How fast limits rise when nothing is overloaded: part of what the workflow alone could have, per
    /// period, times the spare share. More finds room sooner and overshoots further. Default 0.1
    /// (judgement; Wisp §4.3 gives none).
    pub probe: f64,
    /// Quantile over the processes of a downstream service. More uses faster ones fully and makes slower
    /// ones drop. Default q = 0.5 (Wisp §4.1.3).
    pub quantile: Knob,
    /// Exceptions for services and workflows; the first that fits counts. Default none.
    pub quantiles: Vec<QuantileOf>,
    /// How a bottleneck is divided. Default bottleneck fairness (Wisp §4.3).
    pub allocator: AllocatorConfig,
    /// Weights and bands of workflows, for allocators that heed them. Default none: weight 1, band 0.
    pub shares: Vec<ShareOf>,
    /// Longest time a rate is believed, ours by callers and that of others by us. Default 1 s, ten periods.
    pub max_age: Span,
    /// Requests that may pass the limiter at once after a pause. Default 4, as deep as the rate throttle.
    pub burst: u32,
    /// Longest time a request without a deadline waits at the limiter; with one, it waits as long as it
    /// can afford. Default 1 s.
    pub hold: Span,
    /// Most requests of one workflow that wait at the limiter: a bound on memory. Default 4,096.
    pub hold_limit: usize,
    /// Whether requests past their deadline are served all the same, and deadlines only order and limit.
    /// Default false; true is Wisp's testbed (§6), whose deadlines are soft.
    pub soft_deadlines: bool,
}

impl Default for WorkflowConfig {
    fn default() -> Self {
        Self {
            period: Span::from_millis(100),
            cores: 0.0,
            target: 0.9,
            drain: Span::from_secs(1),
            probe: 0.1,
            quantile: Knob { q: Some(0.5), beta: None },
            quantiles: Vec::new(),
            allocator: AllocatorConfig::Bottleneck,
            shares: Vec::new(),
            max_age: Span::from_secs(1),
            burst: 4,
            hold: Span::from_secs(1),
            hold_limit: 4096,
            soft_deadlines: false,
        }
    }
}

impl WorkflowConfig {
    /// Notes everything that is wrong with the parameters.
    pub fn validate(&self, problems: &mut Problems) {
        let hour = Span::from_secs(3600);
        for (field, span) in [
            ("period", self.period),
            ("drain", self.drain),
            ("max_age", self.max_age),
            ("hold", self.hold),
        ] {
            let fine = (Span::from_micros(1)..=hour).contains(&span);
            problems.check(field, span, fine, "1us to 1h");
        }
        problems.range("cores", self.cores, 0.0, 1e6);
        problems.range("target", self.target, 0.01, 1.0);
        problems.range("probe", self.probe, 1e-6, 1.0);
        problems.within("quantile", |problems| self.quantile.validate(problems));
        for of in &self.quantiles {
            problems.within("quantiles", |problems| of.knob.validate(problems));
        }
        problems.within("allocator", |problems| self.allocator.validate(problems));
        for share in &self.shares {
            problems.within("shares", |problems| problems.range("weight", share.weight, 1e-6, 1e6));
        }
        problems.check("burst", self.burst, (1..=1 << 20).contains(&self.burst), "1 to 1048576");
        let limit = self.hold_limit;
        problems.check("hold_limit", limit, (1..=1 << 20).contains(&limit), "1 to 1048576");
    }

    /// Tells the numbers of the workflows that are named; before that, those are nobody's.
    pub fn name_workflows(&mut self, number: &mut dyn FnMut(&str) -> Workflow) {
        self.quantiles
            .iter_mut()
            .filter_map(|of| of.workflow.as_mut())
            .for_each(|of| of.learn(number));
        self.shares.iter_mut().for_each(|share| share.workflow.learn(number));
    }

    /// The quantile over the processes of `callee` for `workflow`.
    pub fn quantile_of(&self, callee: CalleeId, workflow: Workflow) -> f64 {
        let fits = |of: &&QuantileOf| {
            of.callee.is_none_or(|number| number == callee.0)
                && of.workflow.as_ref().is_none_or(|named| named.is(workflow))
        };
        self.quantiles.iter().find(fits).map_or(&self.quantile, |of| &of.knob).value()
    }

    /// Weight and band of a workflow.
    pub fn share_of(&self, workflow: Workflow) -> (f64, u8) {
        let share = self.shares.iter().find(|share| share.workflow.is(workflow));
        share.map_or((1.0, 0), |share| (share.weight, share.band))
    }
}

/// A quantile, said in one of two ways.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Knob {
    /// The quantile itself, 0 to 1: 0 keeps to the slowest process, 1 to the fastest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub q: Option<f64>,
    /// How much worse unused capacity is than dropped requests, 0 or more: q = β ÷ (1 + β) minimises
    /// their weighted sum (Wisp §4.1.3).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub beta: Option<f64>,
}

impl Knob {
    /// The quantile.
    pub fn value(&self) -> f64 {
        self.q.or(self.beta.map(|beta| beta / (1.0 + beta))).unwrap_or(0.5)
    }

    fn validate(&self, problems: &mut Problems) {
        match (self.q, self.beta) {
            (Some(q), None) => problems.range("q", q, 0.0, 1.0),
            (None, Some(beta)) => problems.range("beta", beta, 0.0, 1e6),
            (Some(q), Some(_)) => problems.check("q", q, false, "either q or beta"),
            (None, None) => problems.check("q", "nothing", false, "q or beta"),
        }
    }
}

/// A workflow by its name, and the number that a driver has given it, if it has.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Named {
    name: String,
    #[serde(skip)]
    number: Option<Workflow>,
}

impl Named {
    fn learn(&mut self, number: &mut dyn FnMut(&str) -> Workflow) {
        let known = number(&self.name);
        // A name that got no number is that of nobody in particular.
        self.number = (self.name.is_empty() || known != Workflow::NONE).then_some(known);
    }

    fn is(&self, workflow: Workflow) -> bool {
        self.number == Some(workflow)
    }
}

impl PartialEq for Named {
    /// Numbers differ from driver to driver.
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

/// A quantile for some services or workflows.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct QuantileOf {
    /// Number of the service as the driver counts, all if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub callee: Option<u32>,
    /// Name of the workflow, all if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workflow: Option<Named>,
    /// The quantile.
    #[serde(flatten)]
    pub knob: Knob,
}

/// Weight and band of a workflow.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShareOf {
    /// Name of the workflow; empty for requests without one.
    pub workflow: Named,
    /// Twice the weight gets twice as much where it is scarce, above 0.
    #[serde(default = "one")]
    pub weight: f64,
    /// Smaller bands are served first.
    #[serde(default)]
    pub band: u8,
}

fn one() -> f64 {
    1.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config;

    /// Wisp §4.1.3: β of 1 and 3.
    #[test]
    fn a_weight_is_a_quantile() {
        for (beta, q) in [(0.0, 0.0), (1.0, 0.5), (3.0, 0.75)] {
            assert_eq!(Knob { q: None, beta: Some(beta) }.value(), q);
        }
    }

    #[test]
    fn quantiles_are_found_by_service_and_workflow() {
        let text = "quantile = { q = 0.1 }\n\
            quantiles = [{ callee = 2, workflow = 'seven', beta = 3.0 }, { callee = 2, q = 0.0 }]";
        let mut config: WorkflowConfig = config::read(text, WorkflowConfig::validate).unwrap();
        assert_eq!(
            config.quantile_of(CalleeId(2), Workflow(7)),
            0.0,
            "nobody has said who that is"
        );
        config.name_workflows(&mut |name| Workflow(if name == "seven" { 7 } else { 0 }));
        let q = |callee, workflow| config.quantile_of(CalleeId(callee), Workflow(workflow));
        assert_eq!((q(1, 7), q(2, 7), q(2, 8)), (0.1, 0.75, 0.0));
        let printed = config::print(&config);
        assert_eq!(config::read(&printed, WorkflowConfig::validate), Ok(config));
    }

    #[test]
    fn everything_wrong_is_told() {
        let text = "target = nan\nprobe = -1.0\ncores = -2.0\nperiod = '0s'\nburst = 0\n\
            quantile = { q = 0.5, beta = 1.0 }\nshares = [{ workflow = 'a', weight = -3.0 }]";
        let error = config::read(text, WorkflowConfig::validate).unwrap_err();
        let mut fields: Vec<&str> = error.problems().iter().map(|p| p.field.as_str()).collect();
        fields.sort_unstable();
        assert_eq!(
            fields,
            ["burst", "cores", "period", "probe", "quantile.q", "shares.weight", "target"]
        );
    }
}
