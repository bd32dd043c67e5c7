//! Breakwater's Figure 9: what each of its parts contributes. Nothing at all; credits for demand that
//! was told; demand guessed instead; and delay-based refusals at the server.
//!
//! With steady demand the last part has little to do in our model, where nothing but chance makes
//! bursts. What it is for shows when demand steps up: so that is measured beside.

use tidegate_core::Span;

use super::chart::{Axis, Chart, Line, Panel};
use super::claim::{Claim, Unit};
use super::lab::{Lab, Runs, Source};
use super::testbed::{self, TESTBED, variant};
use super::{Figure, Outcome};
use crate::measure::Row;
use crate::report::Report;

pub(super) const FIGURE: Figure = Figure {
    name: "breakwater-9",
    title: "Breakwater part by part, 10 µs exponential, 1,000 callers",
    source: "Breakwater §5.2, Figure 9",
    make,
};

const SHIFT: Source = Source {
    name: "breakwater-shift",
    text: include_str!("../../../../plans/breakwater-shift.toml"),
};
const CREDITS: &str = "credits";
const GUESSED: &str = "and demand guessed";
/// Its parts, and beside them, where demand is steady, tide and the best there could be.
const POLICIES: [(&str, &str); 6] = [
    ("breakwater", "and refusals by delay"),
    ("guessed", GUESSED),
    ("credits", CREDITS),
    ("open", "no control"),
    ("tide", "tide"),
    ("ideal", "ideal"),
];
const PARTS: usize = 4;
/// An hour of delay is never seen: no refusals.
const NEVER: (&str, &str) = ("drop", "3600s");

fn make(lab: &Lab<'_>) -> Outcome {
    let loads = if lab.quick { "[0.7,1.2,2.0]" } else { "[0.3,0.5,0.7,0.8,0.9,1.0,1.2,1.5,2.0]" };
    let mut parts = vec!["caller.hold_time=50us".to_owned(), "callers=1000".to_owned()];
    parts.extend(variant("guessed", &[NEVER], &[]));
    let told = [NEVER, ("demand", "synchronise")];
    parts.extend(variant("credits", &told, &[("synchronise", "true")]));
    let names = POLICIES.map(|(policy, _)| policy);
    let mut sets = lab.four_seconds(60_000);
    sets.extend([format!("load={loads}"), format!("policy={:?}", &names[..5])]);
    sets.extend(parts.iter().cloned());
    let here = [format!("load={loads}"), "callers=1000".to_owned()];
    let runs = lab.run(TESTBED, &sets).and(testbed::ideal(lab, TESTBED, &here));
    parts.push(format!("policy={:?}", &names[..PARTS]));
    let step = [
        "duration=80ms".to_owned(),
        "warmup=20ms".to_owned(),
        "workload.steps=[{at=\"40ms\",load=2.0}]".to_owned(),
    ];
    let sets = [&parts[..], &step].concat();
    let steps = lab.run_series(SHIFT, &sets, Some(Span::from_millis(2)));
    Outcome {
        claims: claims(&runs, &steps),
        charts: vec![chart(&runs, &steps)],
        ..Outcome::default()
    }
}

fn throughput(run: &Report) -> f64 {
    run.throughput_rps / run.capacity_rps
}

fn rows<'a>(steps: &'a Runs, policy: &str) -> &'a [Row] {
    steps.get(policy, &[]).series.as_deref().unwrap_or_default()
}

fn claims(runs: &Runs, steps: &Runs) -> Vec<Claim> {
    let at = |policy, load| runs.get(policy, &[("load", load)]);
    let through = |policy| throughput(at(policy, 2.0));
    let tail = |policy| at(policy, 2.0).p99_us;
    let spike =
        |policy| rows(steps, policy).iter().map(|row| row.p99.as_micros_f64()).fold(0.0, f64::max);
    let (times, micros) = (Unit::Times, Unit::Micros);
    vec![
        Claim::at_least("no control at 2×, p99", micros, tail("open"), 2000.0).paper("soars"),
        Claim::at_most(
            "no control at 2×, throughput, of capacity",
            Unit::Percent,
            through("open"),
            0.9,
        )
        .paper("degrades"),
        Claim::at_most("credits at 2×, p99", micros, tail("credits"), 250.0).paper("bounded"),
        Claim::at_least(
            "demand guessed ÷ told, throughput at 2×",
            times,
            through("guessed") / through("credits"),
            1.15,
        )
        .paper("> 1×: fewer messages"),
        Claim::at_least(
            "step to 2×: worst p99 of 2 ms, guessed (too many credits are out)",
            micros,
            spike("guessed"),
            500.0,
        )
        .paper("worse tail"),
        Claim::at_most(
            "step to 2×: with refusals by delay ÷ without, worst p99 of 2 ms",
            times,
            spike("breakwater") / spike("guessed"),
            0.75,
        )
        .paper("low again"),
        Claim::at_least(
            "with refusals by delay ÷ without, throughput at 2×",
            times,
            through("breakwater") / through("guessed"),
            0.98,
        )
        .paper("as high"),
        Claim::at_most(
            "tide below ideal at 2×, goodput, of capacity",
            Unit::Percent,
            testbed::regret(runs, 10.0, &[("load", 2.0)]),
            0.01,
        ),
    ]
}

fn chart(runs: &Runs, steps: &Runs) -> Chart {
    let lines = |value: fn(&Report) -> f64| {
        let line = |(policy, name): (&str, &str)| Line {
            name: name.to_owned(),
            ..runs.line(policy, "load", value)
        };
        POLICIES.map(line).to_vec()
    };
    let over_time = |(policy, name): (&str, &str)| {
        let point = |row: &Row| (row.at.as_nanos() as f64 / 1e6, row.p99.as_micros_f64());
        Line::new(name, rows(steps, policy).iter().map(point).collect())
    };
    let panel = |title: &str, x: &str, y, lines| Panel {
        title: title.to_owned(),
        x: Axis::linear(x),
        y,
        lines,
    };
    let demand = "demand ÷ capacity";
    let p99 = |run: &Report| run.p99_us;
    Chart {
        title: FIGURE.title.to_owned(),
        panels: vec![
            panel("throughput", demand, Axis::linear("÷ capacity").up_to(1.0), lines(throughput)),
            panel("99th percentile", demand, Axis::log("µs"), lines(p99)),
            panel(
                "p99 while demand steps from 0.5 to 2",
                "ms",
                Axis::log("µs"),
                POLICIES[..PARTS].iter().copied().map(over_time).collect(),
            ),
        ],
    }
}
