//! Breakwater's Figure 3: goodput, tail and drops against demand, with 1,000 callers.

use super::chart::{Axis, Chart, Panel};
use super::claim::{Claim, Unit};
use super::lab::{Lab, Runs, goodput};
use super::testbed::{self, DAGOR, EVERYBODY, TESTBED};
use super::{Figure, Outcome};
use crate::report::Report;

pub(super) const FIGURE: Figure = Figure {
    name: "breakwater-3",
    title: "Goodput, tail and drops against demand, 1,000 callers, 10 µs exponential",
    source: "Breakwater §5.2, Figure 3",
    make,
};

fn make(lab: &Lab<'_>) -> Outcome {
    let alone = |policy| testbed::tuned_alone(lab, policy, 1000);
    let tuned = testbed::tuned(lab, 1000, &[]).and(alone("codel")).and(alone("window"));
    let mut sets = lab.four_seconds(300_000);
    let loads = if lab.quick {
        "[0.5,0.9,1.2,2.0]"
    } else {
        "[0.3,0.5,0.7,0.8,0.9,1.0,1.1,1.2,1.4,1.7,2.0]"
    };
    let here = [format!("load={loads}"), "callers=1000".to_owned()];
    sets.push(format!("policy={:?}", &EVERYBODY[..7]));
    sets.extend(here.iter().cloned());
    sets.extend(tuned.sets);
    let runs = lab.run(TESTBED, &sets).and(testbed::ideal(lab, TESTBED, &here));
    Outcome {
        claims: claims(&runs),
        charts: vec![chart(&runs)],
        notes: vec![tuned.note],
        ..Outcome::default()
    }
}

fn claims(runs: &Runs) -> Vec<Claim> {
    let at = |policy, load| runs.get(policy, &[("load", load)]);
    let good = |policy, load| goodput(at(policy, load));
    let worst = |policy: &'static str, value: fn(&Report) -> f64| {
        [1.2, 2.0].iter().map(|load| value(at(policy, *load))).fold(f64::MIN, f64::max)
    };
    let calm = EVERYBODY
        .iter()
        .filter(|policy| **policy != "seda")
        .flat_map(|policy| [0.5, 0.9].map(|load| at(policy, load)))
        .map(|run| run.goodput_rps / run.offered_rps)
        .fold(f64::MAX, f64::min);
    let (share, times, micros) = (Unit::Percent, Unit::Times, Unit::Micros);
    let p99 = |run: &Report| run.p99_us;
    let drops = |run: &Report| run.drop_rate;
    let regret = |load| testbed::regret(runs, 10.0, &[("load", load)]);
    vec![
        Claim::at_least("0.5× and 0.9×: everybody but seda serves, of offered", share, calm, 0.99),
        Claim::at_least("breakwater at 2×, of capacity", share, good("breakwater", 2.0), 0.94)
            .paper("94 % at capacity"),
        Claim::at_most(
            "breakwater, worst p99 at 1.2× and 2×",
            micros,
            worst("breakwater", p99),
            200.0,
        )
        .paper("within 200 µs"),
        Claim::at_least(
            "breakwater ÷ dagor at 2×, goodput",
            times,
            good("breakwater", 2.0) / good(DAGOR, 2.0),
            1.03,
        )
        .paper("1.066×"),
        Claim::at_least(
            "dagor ÷ breakwater at 2×, p99",
            times,
            at(DAGOR, 2.0).p99_us / at("breakwater", 2.0).p99_us,
            1.2,
        )
        .paper("1.9×"),
        Claim::at_least(
            "breakwater ÷ seda at 2×, goodput",
            times,
            good("breakwater", 2.0) / good("seda", 2.0),
            1.0,
        )
        .paper("1.057×"),
        Claim::at_least("tide at 1.2×, of capacity", share, good("tide", 1.2), 0.97),
        Claim::at_least("tide at 2×, of capacity", share, good("tide", 2.0), 0.97),
        Claim::at_least(
            "tide ÷ breakwater at 1.2×, goodput",
            times,
            good("tide", 1.2) / good("breakwater", 1.2),
            1.0,
        ),
        Claim::at_least(
            "tide ÷ breakwater at 2×, goodput",
            times,
            good("tide", 2.0) / good("breakwater", 2.0),
            0.995,
        ),
        Claim::at_most("tide below ideal at 1.2×, of capacity", share, regret(1.2), 0.01),
        Claim::at_most("tide below ideal at 2×, of capacity", share, regret(2.0), 0.01),
        Claim::at_most("tide, worst p99 at 1.2× and 2×", micros, worst("tide", p99), 200.0),
        Claim::at_most("tide, worst drop rate at 1.2× and 2×", share, worst("tide", drops), 0.02),
        Claim::at_least(
            "codel at 2×, drop rate: it refuses at the server",
            share,
            drops(at("codel", 2.0)),
            0.4,
        ),
        Claim::at_most("open at 1.2×, of capacity: it collapses", share, good("open", 1.2), 0.05),
    ]
}

fn chart(runs: &Runs) -> Chart {
    let lines = |value: fn(&Report) -> f64| {
        EVERYBODY.iter().map(|policy| runs.line(policy, "load", value)).collect()
    };
    let demand = || Axis::linear("demand ÷ capacity");
    let panel = |title: &str, y, lines| Panel { title: title.to_owned(), x: demand(), y, lines };
    Chart {
        title: FIGURE.title.to_owned(),
        panels: vec![
            panel("goodput (SLO 200 µs)", Axis::linear("÷ capacity").up_to(1.0), lines(goodput)),
            panel("99th percentile", Axis::log("µs"), lines(|run| run.p99_us)),
            panel(
                "dropped at the server",
                Axis::linear("% of arrived"),
                lines(|run| run.drop_rate * 100.0),
            ),
        ],
    }
}
