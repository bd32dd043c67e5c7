//! Parameters of `tide`.

use serde::{Deserialize, Serialize};

use crate::config::Problems;
use crate::credit::{PoolConfig, PoolForm};
use crate::objective::Objective;
use crate::time::Span;

/// Parameters of [`Tide`](super::Tide). Only the objective differs from service to service.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TideConfig {
    /// The latency objective: an answer later than this is worth nothing. Default `"learned"`: the
    /// gate finds it, 50 ms until it has.
    pub objective: Objective,
    /// Delay to steer for, as a share of the objective. Default 0.4 (Breakwater §5.1).
    pub target: f64,
    /// Predicted wait from which on ranks inside the last cursor are refused, or push out others,
    /// as a share of the objective. Less, down to a third of it, where more is offered than can be served and service takes much of the
    /// objective or differs much. More lets bursts through to the edge of the
    /// objective. Default 0.7, by simulation: with it 99 % of the answers come within 0.8 of the
    /// objective, where Breakwater begins to drop (§5.1).
    pub drop: f64,
    /// Predicted wait up to which ranks beyond the last cursor are let in, in targets.
    /// From callers that were told otherwise they are let in only while the service is idle. 0 would leave the
    /// service idle when the cursor is too strict. Default 0.25, by simulation.
    pub beyond: f64,
    /// Part of the capacity whose ranks are free, 0 to 1. Less gives more control to credits: callers hold
    /// what comes by chance until there is room, instead of having it refused. Default 1, by simulation: credits
    /// decide only where ranks cannot. At 0.5 the server refuses half as much with a thousand callers, but who has a
    /// credit comes before who is more important (the third quarter at 1.2 × the capacity: 96 % instead of 99), and
    /// credits are lost with messages.
    pub free: f64,
    /// Mean delay over a round from which on there is overload, in targets. Less sheds in calm
    /// weather, more lets the queue stand longer. Default 0.4, by simulation: 0.95 of the capacity is
    /// served without a refusal.
    pub engage: f64,
    /// How much more is tried per round when ranks are shed but there is no pressure, if every caller
    /// hears of it within a round. Default 0.01, by simulation; three times as much doubles what the
    /// server itself must refuse.
    pub probe: f64,
    /// How long our word holds, in mean times between a caller's messages. Less asks again more
    /// often, more is slower to forget. Default 8: one gap in three thousand is longer.
    pub holds: f64,
    /// Credits added per period and caller below target. Default 0.001 (Breakwater §5.1).
    pub additive: f64,
    /// Share of credits removed per period at twice the target. Default 0.005, a quarter of
    /// Breakwater's (§5.1): refusals bound the queue here, and a thousand callers hear of a decrease
    /// a hundred periods late.
    pub multiplicative: f64,
    /// Fewest credits there ever are. Default 10.
    pub floor: u32,
    /// Most credits one caller ever has. Default 63.
    pub per_caller: u32,
    /// A caller silent for this long loses its credits. Default 10 s.
    pub forget: Span,
}

impl Default for TideConfig {
    fn default() -> Self {
        Self {
            objective: Objective::Learned,
            target: 0.4,
            drop: 0.7,
            beyond: 0.25,
            free: 1.0,
            engage: 0.4,
            probe: 0.01,
            holds: 8.0,
            additive: 0.001,
            multiplicative: 0.005,
            floor: 10,
            per_caller: 63,
            forget: Span::from_secs(10),
        }
    }
}

/// Control periods in a target delay: one per round trip in Breakwater's testbed (80 µs and 10 µs, §5.1).
pub(super) const PERIODS: u32 = 8;
/// Control periods in the shortest round. By simulation: with half as many a thousand callers are refused
/// twice as often, with twice as many nothing is better.
const ROUND: u64 = 50;
/// Time that a request and a word to its caller may take to cross on the fastest networks: three round trips of
/// Breakwater's testbed (§5.1). Elsewhere a control period is longer than that. By simulation: with a control period there too,
/// ten callers of 1 µs are refused 0.47 % of what they were told to send instead of 0.06.
const CROSSING: Span = Span::from_micros(30);

impl TideConfig {
    pub(super) fn derive(&self, objective: Span) -> Derived {
        let target = objective.scale(self.target);
        let period = target.scale(1.0 / f64::from(PERIODS)).max(Span::from_nanos(1));
        let round = Span::from_nanos(period.as_nanos().saturating_mul(ROUND));
        Derived {
            objective,
            target,
            drop: objective.scale(self.drop),
            beyond: target.scale(self.beyond),
            period,
            crossing: period.max(CROSSING),
            round,
        }
    }

    pub(super) fn pool(&self, target: Span) -> PoolConfig {
        PoolConfig {
            form: PoolForm::Paper,
            target,
            additive: self.additive,
            multiplicative: self.multiplicative,
            floor: self.floor,
            per_caller: self.per_caller,
        }
    }

    /// Notes everything that is wrong with the parameters.
    pub fn validate(&self, problems: &mut Problems) {
        let shortest = Span::from_micros(1);
        let long_enough = self.objective.at_first() >= shortest;
        problems.check("objective", self.objective, long_enough, "\"learned\", or at least 1us");
        problems.range("target", self.target, 0.01, 1.0);
        problems.check("drop", self.drop, (self.target..=1.0).contains(&self.drop), "target to 1");
        problems.range("beyond", self.beyond, 0.0, 100.0);
        problems.range("free", self.free, 0.0, 1.0);
        problems.range("engage", self.engage, 0.01, 4.0);
        problems.range("probe", self.probe, 0.0, 1.0);
        problems.range("holds", self.holds, 0.0, 1e6);
        problems.range("additive", self.additive, 1e-9, 1e3);
        problems.range("multiplicative", self.multiplicative, 1e-9, 1.0);
        problems.check("floor", self.floor, (1..=1 << 20).contains(&self.floor), "1 to 1048576");
        problems.check(
            "per_caller",
            self.per_caller,
            (1..=1 << 16).contains(&self.per_caller),
            "1 to 65536",
        );
        problems.check("forget", self.forget, self.forget > Span::ZERO, "more than 0");
    }
}

/// Times that follow from the objective.
#[derive(Clone, Copy, Debug)]
pub(super) struct Derived {
    pub(super) objective: Span,
    pub(super) target: Span,
    pub(super) drop: Span,
    /// Longest predicted wait beyond the last cursor.
    pub(super) beyond: Span,
    pub(super) period: Span,
    /// For so long what was sent by an earlier word may still be on its way.
    pub(super) crossing: Span,
    /// Shortest time between two settings of the cursors.
    pub(super) round: Span,
}
