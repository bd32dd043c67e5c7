//! Breakwater's Figure 12: a key-value store with 10,000 callers and an SLO of 50 µs.
//!
//! The paper runs memcached; we model its service times and what its messages cost. Its server is
//! full at fewer requests than ours, for one, since it takes locks and misses caches.
//!
//! Beside the paper's four are those that control nothing or at one end only. Receiving and refusing a
//! request costs twice what serving it does, so that at 2× who refuses at the server alone serves nobody.

use super::chart::{Axis, Chart, Panel};
use super::claim::{Claim, Unit};
use super::lab::{Lab, Runs, Source, goodput};
use super::testbed::{self, Bed, DAGOR, EVERYBODY};
use super::{Figure, Outcome};
use crate::report::Report;

pub(super) const FIGURE: Figure = Figure {
    name: "breakwater-12",
    title: "A key-value store, 1 µs, 10,000 callers, SLO 50 µs",
    source: "Breakwater §5.3, Figure 12",
    make,
};

const PLAN: Source =
    Source { name: "key-value", text: include_str!("../../../../plans/key-value.toml") };

fn make(lab: &Lab<'_>) -> Outcome {
    let bed = Bed { source: PLAN, capacity: 3.62e6, callers: 10_000, sets: &[], brief: true };
    let tuned = testbed::tuned_for(lab, &bed);
    let mut sets = lab.four_seconds(200_000);
    let loads = if lab.quick { "[0.9,2.0]" } else { "[0.5,0.8,0.9,1.0,1.1,1.2,1.5,2.0]" };
    let here = [format!("load={loads}")];
    sets.push(format!("policy={:?}", &EVERYBODY[..4]));
    sets.extend(here.iter().chain(&tuned.sets).cloned());
    let (others, alone) = testbed::others(lab, &bed, &here);
    let runs = lab.run(PLAN, &sets).and(others);
    // Seeds differ by half a percent, and 10,000 callers need forty messages each to settle in.
    let policies = "policy=[\"tide\",\"ideal\"]";
    let sets = [policies, "load=[2.0]", "seeds=8", "warmup_requests=800000", "requests=400000"];
    let near = lab.run(PLAN, &sets.map(str::to_owned)).mean();
    Outcome {
        claims: claims(&runs, &near),
        charts: vec![chart(&runs)],
        notes: vec![tuned.and(alone).note],
        ..Outcome::default()
    }
}

fn claims(runs: &Runs, near: &Runs) -> Vec<Claim> {
    let at = |policy| runs.get(policy, &[("load", 2.0)]);
    let good = |policy| goodput(at(policy));
    let tail = |policy| at(policy).p99_us;
    let times = Unit::Times;
    vec![
        Claim::at_least(
            "breakwater ÷ dagor at 2×, goodput",
            times,
            good("breakwater") / good(DAGOR),
            1.05,
        )
        .paper("1.143×"),
        Claim::at_least(
            "breakwater ÷ seda at 2×, goodput",
            times,
            good("breakwater") / good("seda"),
            1.0,
        )
        .paper("1.05×"),
        Claim::at_least(
            "dagor ÷ breakwater at 2×, p99",
            times,
            tail(DAGOR) / tail("breakwater"),
            1.5,
        )
        .paper("2.9×"),
        Claim::at_most("breakwater at 2×, p99", Unit::Micros, tail("breakwater"), 75.0)
            .paper("75 µs"),
        Claim::at_least(
            "tide ÷ breakwater at 2×, goodput",
            times,
            good("tide") / good("breakwater"),
            1.0,
        ),
        Claim::at_least("tide at 2×, goodput, of capacity", Unit::Percent, good("tide"), 0.95),
        Claim::at_most(
            "tide below ideal at 2×, of capacity, mean of eight seeds",
            Unit::Percent,
            testbed::regret(near, 1.0, &[("load", 2.0)]),
            0.02,
        ),
        Claim::at_most("tide at 2×, p99, of the SLO", times, tail("tide") / 50.0, 1.0),
        Claim::at_most(
            "tide at 2×, p99, as bounded as breakwater's in the paper",
            Unit::Micros,
            tail("tide"),
            75.0,
        ),
        Claim::at_most("codel at 2×, goodput, of capacity", Unit::Percent, good("codel"), 0.05),
        Claim::at_most("window at 2×, goodput, of capacity", Unit::Percent, good("window"), 0.05),
        Claim::at_most("open at 2×, goodput, of capacity", Unit::Percent, good("open"), 0.05),
    ]
}

fn chart(runs: &Runs) -> Chart {
    let lines = |value: fn(&Report) -> f64| {
        EVERYBODY.iter().map(|policy| runs.line(policy, "load", value)).collect()
    };
    let panel = |title: &str, y, lines| Panel {
        title: title.to_owned(),
        x: Axis::linear("demand ÷ capacity"),
        y,
        lines,
    };
    Chart {
        title: FIGURE.title.to_owned(),
        panels: vec![
            panel("goodput (SLO 50 µs)", Axis::linear("÷ capacity").up_to(1.0), lines(goodput)),
            panel("median", Axis::log("µs"), lines(|run| run.p50_us)),
            panel("99th percentile", Axis::log("µs"), lines(|run| run.p99_us)),
            panel(
                "dropped at the server",
                Axis::linear("% of arrived"),
                lines(|run| 100.0 * run.drop_rate),
            ),
        ],
    }
}
