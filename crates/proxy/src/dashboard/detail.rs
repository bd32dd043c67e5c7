//! Finer numbers than the metrics have, for whoever looks closer: by rank and by workflow.
//!
//! They are counted from the same events. Every table has a bound: Prometheus keeps a series per
//! label for ever, a page forgets.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};
use tidegate_core::event::Event;
use tidegate_core::limit::{Each, Heavy, LimitConfig, Limiter};
use tidegate_core::{Gate, Outcome, Rank, Workflow};
use tidegate_http::wire::Names;

/// Parts that the users of one business rank are divided into.
const PARTS: usize = 16;
/// Most workflows that are told apart.
const MOST_WORKFLOWS: usize = 256;
/// Most of those who ask most of a limit that are told.
const MOST_HEAVY: usize = 10;

/// What events add up to.
#[derive(Clone, Debug, Default)]
pub(crate) struct Detail {
    /// By business rank, and within it by user rank.
    ranks: BTreeMap<u8, [Counts; PARTS]>,
    workflows: BTreeMap<Workflow, Counts>,
    /// By label: rules, of which a file has a bounded number.
    rules: BTreeMap<u16, Counts>,
    /// The business rank that each last had.
    of_rules: BTreeMap<u16, u8>,
    /// Size of the pool, if the policy has one.
    pub(crate) credits: Option<u32>,
}

/// What became of the requests of a rule.
#[derive(Clone, Debug)]
pub(crate) struct RuleCounts {
    pub(crate) title: String,
    /// The rank that the last of them had.
    business: Option<u8>,
    pub(crate) counts: [(&'static str, u64); 4],
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    /// Each once.
    arrived: u64,
    admitted: u64,
    refused: u64,
    served: u64,
    failed: u64,
}

impl Counts {
    fn json(self) -> Value {
        let Self { arrived, admitted, refused, served, failed } = self;
        json!({
            "arrived": arrived, "admitted": admitted, "refused": refused, "served": served, "failed": failed,
        })
    }
}

impl Detail {
    /// Counts one event, whether it was enforced or not.
    pub(crate) fn count(&mut self, event: &Event) {
        match *event {
            Event::Admit { rank, workflow, label } => self.at(rank, workflow, label, |n| {
                n.arrived += 1;
                n.admitted += 1;
            }),
            Event::Refuse { rank, workflow, label, admitted, .. } => {
                self.at(rank, workflow, label, |n| {
                    n.arrived += u64::from(!admitted);
                    n.refused += 1;
                });
            }
            Event::Finish { rank, workflow, label, outcome, .. } => {
                self.at(rank, workflow, label, |n| match outcome {
                    Outcome::Serve => n.served += 1,
                    Outcome::Fail => n.failed += 1,
                    Outcome::Cancel => {}
                });
            }
            Event::Pool { credits, .. } => self.credits = Some(credits),
            _ => {}
        }
    }

    /// Another policy: what the last one had is no more.
    pub(crate) fn forget(&mut self) {
        self.credits = None;
    }

    fn at(&mut self, rank: Rank, workflow: Workflow, label: u16, count: impl Fn(&mut Counts)) {
        let part = usize::from(rank.user()) * PARTS / 65536;
        count(&mut self.ranks.entry(rank.business()).or_default()[part]);
        if self.workflows.len() < MOST_WORKFLOWS || self.workflows.contains_key(&workflow) {
            count(self.workflows.entry(workflow).or_default());
        }
        count(self.rules.entry(label).or_default());
        self.of_rules.insert(label, rank.business());
    }

    /// Rules and their numbers, each as what they are called in `titles`; nothing where nothing came by a rule.
    pub(crate) fn rules(&self, titles: &Names) -> Vec<RuleCounts> {
        if self.rules.keys().all(|label| *label == 0) {
            return Vec::new();
        }
        let title =
            |label: u16| titles.name(Workflow(label)).unwrap_or_else(|| "(none)".to_owned());
        let rows = self.rules.iter().map(|(label, counts)| {
            let Counts { arrived, refused, served, failed, .. } = *counts;
            let counts = [
                ("arrived", arrived),
                ("refused", refused),
                ("served", served),
                ("failed", failed),
            ];
            RuleCounts { title: title(*label), business: self.of_rules.get(label).copied(), counts }
        });
        rows.collect()
    }

    /// Puts all of it into a state.
    pub(crate) fn tell(&self, state: &mut Value, names: &Names, titles: &Names) {
        let ranks: Map<String, Value> = self
            .ranks
            .iter()
            .map(|(business, parts)| {
                let parts: Vec<Value> = parts.iter().map(|counts| counts.json()).collect();
                (business.to_string(), parts.into())
            })
            .collect();
        let workflows: Map<String, Value> = self
            .workflows
            .iter()
            .map(|(workflow, counts)| {
                let name = names.name(*workflow).unwrap_or_else(|| "(none)".to_owned());
                (name, counts.json())
            })
            .collect();
        state["credits"] = self.credits.into();
        state["ranks"] = ranks.into();
        state["workflows"] = workflows.into();
        let rules = self.rules(titles).into_iter().map(|RuleCounts { title, business, counts }| {
            let counts = counts.map(|(name, count)| (name.to_owned(), count.into()));
            let mut told: Map<String, Value> = counts.into_iter().collect();
            told.insert("business".to_owned(), business.into());
            (title, told.into())
        });
        state["rules"] = rules.collect::<Map<_, _>>().into();
    }
}

/// Who asks most of each limit that tells workflows or callers apart.
pub(crate) fn heavy_hitters(gate: &Gate, names: &Names) -> Value {
    let Some(limits) = gate.limits() else { return json!([]) };
    let of = |(at, limiter): (usize, &dyn Limiter)| {
        let heavy = limiter.heavy_hitters()?;
        let LimitConfig::Rate(config) = gate.config().limits.get(at)? else { return None };
        let who = |key: u64| match config.each {
            Each::Workflow => {
                names.name(Workflow(key as u16)).unwrap_or_else(|| "(none)".to_owned())
            }
            _ => format!("{key:x}"),
        };
        let row = |heavy: &Heavy| json!({ "who": who(heavy.key), "asked": heavy.count, "error": heavy.error });
        let top: Vec<Value> = heavy.top().iter().take(MOST_HEAVY).map(row).collect();
        Some(
            json!({ "limit": format!("limits.{at}"), "each": config.each, "asked": heavy.total(), "top": top }),
        )
    };
    limits.iter().enumerate().filter_map(of).collect::<Vec<Value>>().into()
}

#[cfg(test)]
mod tests {
    use tidegate_core::gate::GateConfig;
    use tidegate_core::{Advice, CallerId, Context, Instant, Reason, Rejection, Span};

    use super::*;

    #[test]
    fn ranks_and_workflows_are_told_apart() {
        let (mut detail, names) = (Detail::default(), Names::default());
        let shop = names.number("<b>shop</b>");
        let rejection = Rejection::new(Reason::Rank, 1.0, 0.0, Advice::Never);
        let (first, last) = (Rank::new(24, 0), Rank::new(24, 65535));
        let (label, admitted) = (names.number("pay").0, false);
        detail.count(&Event::Admit { rank: first, workflow: shop, label });
        let (outcome, latency) = (Outcome::Serve, Span::ZERO);
        detail.count(&Event::Finish { rank: first, workflow: shop, label, outcome, latency });
        let workflow = Workflow::NONE;
        detail.count(&Event::Refuse { rank: last, workflow, label: 0, admitted, rejection });
        detail.count(&Event::Pool { credits: 12, delay: Span::ZERO });
        let mut state = json!({});
        detail.tell(&mut state, &names, &names);
        let pay = &state["rules"]["pay"];
        assert_eq!(
            (&pay["arrived"], &pay["served"], &pay["business"]),
            (&json!(1), &json!(1), &json!(24))
        );
        assert_eq!(state["rules"]["(none)"]["refused"], 1);
        assert_eq!(state["ranks"]["24"][0]["served"], 1);
        assert_eq!(state["ranks"]["24"][PARTS - 1]["refused"], 1);
        assert_eq!(state["workflows"]["<b>shop</b>"]["admitted"], 1);
        assert_eq!(state["workflows"]["(none)"]["refused"], 1);
        assert_eq!(state["credits"], 12);
        detail.forget();
        detail.tell(&mut state, &names, &names);
        assert_eq!(state["credits"], Value::Null);
    }

    #[test]
    fn who_asks_most_of_a_limit_is_told() {
        let names = Names::default();
        let config = "[[limits]]\nlimit = 'window'\nquota = 1000.0\n\
            [[limits]]\nlimit = 'rate'\nrate = 1.0\neach = 'workflow'\n\
            [[limits]]\nlimit = 'rate'\nrate = 1.0\neach = 'caller'\n";
        let config = GateConfig::from_toml(config).unwrap();
        let mut gate = Gate::new(&config, Instant::ZERO, 1).unwrap();
        let (mail, shop) = (names.number("mail"), names.number("shop"));
        for (workflow, caller, times) in [(mail, 10, 3), (shop, 255, 9)] {
            for _ in 0..times {
                let caller = CallerId(caller);
                let _ =
                    gate.arrive(Instant::ZERO, &Context { workflow, caller, ..Context::default() });
            }
        }
        let told = heavy_hitters(&gate, &names);
        assert_eq!(
            (&told[0]["limit"], &told[0]["top"][0]["who"]),
            (&json!("limits.1"), &json!("shop"))
        );
        assert_eq!(
            (&told[1]["limit"], &told[1]["top"][0]["who"]),
            (&json!("limits.2"), &json!("ff"))
        );
        assert_eq!(told[0]["top"][0]["asked"], 9.0);
    }

    #[test]
    fn tables_have_bounds() {
        let mut detail = Detail::default();
        for n in 0..10_000u16 {
            detail.count(&Event::Admit { rank: Rank::new(1, 1), workflow: Workflow(n), label: 0 });
        }
        assert_eq!(detail.workflows.len(), MOST_WORKFLOWS);
    }
}
