//! DAGOR's Figure 6: queueing time tells overload from slowness, response time does not.
//!
//! The service takes 240 ms, of which waiting is little until it is full. By the mean queueing time,
//! 20 ms are a clear sign for any service. By the mean response time the threshold has to be put
//! between "slow" and "full" for each service anew: 150 ms is always exceeded, 350 ms is noticed
//! late, and 250 ms, which suits this service, sheds before it is full.

use super::chart::{Axis, Chart, Line, Panel};
use super::claim::{Claim, Unit};
use super::lab::{Lab, Runs, Source};
use super::{Figure, Outcome};
use crate::report::Report;

pub(super) const FIGURE: Figure = Figure {
    name: "dagor-6",
    title: "Overload told by queueing time or by response time",
    source: "DAGOR §5.2, Figure 6",
    make,
};

const PLAN: Source =
    Source { name: "dagor-detector", text: include_str!("../../../../plans/dagor-detector.toml") };
const POLICIES: [&str; 4] = ["queueing-20", "response-150", "response-250", "response-350"];

fn make(lab: &Lab<'_>) -> Outcome {
    let loads = if lab.quick {
        "[0.33,0.8,0.9,1.33,2.0]"
    } else {
        "[0.33,0.5,0.67,0.8,0.85,0.9,0.95,1.0,1.33,1.67,2.0]"
    };
    let mut sets = vec![format!("load={loads}")];
    if lab.quick {
        sets.extend(["warmup=40s".to_owned(), "duration=100s".to_owned()]);
    }
    let runs = lab.run(PLAN, &sets);
    Outcome { claims: claims(&runs), charts: vec![chart(&runs)], notes: Vec::new() }
}

fn success(run: &Report) -> f64 {
    run.goodput_rps / run.offered_rps
}

fn claims(runs: &Runs) -> Vec<Claim> {
    let shed = |policy, load| {
        let run = runs.get(policy, &[("load", load)]);
        1.0 - success(run)
    };
    let of_best = |policy| goodput_of_best(runs.get(policy, &[("load", 2.0)]));
    let share = Unit::Percent;
    vec![
        Claim::at_most(
            "queueing 20 ms at 0.9×: not answered",
            share,
            shed("queueing-20", 0.9),
            0.01,
        )
        .paper("none to 750 QPS (1.0×)"),
        Claim::at_least(
            "response 250 ms at 0.9×: not answered",
            share,
            shed("response-250", 0.9),
            0.02,
        )
        .paper("from 630 QPS (0.84×)"),
        Claim::at_least(
            "response 150 ms at 0.33×: not answered",
            share,
            shed("response-150", 0.33),
            0.3,
        ),
        Claim::at_least("queueing 20 ms at 2×, of the optimum", share, of_best("queueing-20"), 0.9),
        Claim::at_least(
            "queueing ÷ response 150 ms at 2×, goodput",
            Unit::Times,
            of_best("queueing-20") / of_best("response-150"),
            1.1,
        ),
    ]
}

fn goodput_of_best(run: &Report) -> f64 {
    run.goodput_rps / run.capacity_rps.min(run.offered_rps)
}

fn chart(runs: &Runs) -> Chart {
    let mut lines: Vec<Line> = POLICIES
        .iter()
        .map(|policy| runs.line(policy, "load", |run| success(run) * 100.0))
        .collect();
    let best = |run: &Report| 100.0 * (run.capacity_rps / run.offered_rps).min(1.0);
    lines.push(Line { name: "optimum".to_owned(), ..runs.line(POLICIES[0], "load", best) });
    let panel = Panel {
        title: "three servers, 240 ms per request".to_owned(),
        x: Axis::linear("demand ÷ capacity"),
        y: Axis::linear("% answered in time").up_to(100.0),
        lines,
    };
    Chart { title: FIGURE.title.to_owned(), panels: vec![panel] }
}
