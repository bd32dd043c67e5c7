//! From 10 to 10,000 callers with the same parameters. A credit per caller is too much when callers
//! outnumber what a server can hold, and what callers know is older the less often each of them
//! calls.

use super::chart::{Axis, Chart, Panel};
use super::claim::{Claim, Unit};
use super::lab::{Lab, Runs, Source, goodput, text};
use super::{Figure, Outcome};
use crate::report::Report;

pub(super) const FIGURE: Figure = Figure {
    name: "tide-callers",
    title: "10 to 10,000 callers at twice the capacity, the same parameters for all",
    source: "no paper's: Breakwater's Figure 6 goes from 100 to 10,000, for 10 µs",
    make,
};

const PLAN: Source =
    Source { name: "service-times", text: include_str!("../../../../plans/service-times.toml") };
const POLICIES: [&str; 2] = ["tide", "breakwater"];
const CALLERS: [f64; 4] = [10.0, 100.0, 1000.0, 10_000.0];
const TIMES: [(&str, f64); 3] = [("10us", 200.0), ("100us", 1100.0), ("1ms", 10_100.0)];

fn make(lab: &Lab<'_>) -> Outcome {
    // 10,000 callers need some messages each to settle in.
    let mut sets = lab.requests(120_000, 400_000);
    sets.extend([
        format!("policy={POLICIES:?}"),
        "load=[2.0]".to_owned(),
        "service.distribution=[\"exponential\"]".to_owned(),
        format!("service.time={:?}", TIMES.map(|(time, _)| time)),
    ]);
    if !lab.quick {
        sets.push("callers=[10,30,100,300,1000,3000,10000]".to_owned());
    }
    let runs = lab.run(PLAN, &sets);
    Outcome { claims: claims(&runs), charts: vec![chart(&runs)], ..Outcome::default() }
}

fn of_time(runs: &Runs, time: &str) -> Runs {
    runs.only(|run| text(run, "service.time") == time)
}

fn claims(runs: &Runs) -> Vec<Claim> {
    let (share, times) = (Unit::Percent, Unit::Times);
    let mut claims = Vec::new();
    for (time, slo_us) in TIMES {
        let here = of_time(runs, time);
        let over = |policy: &'static str, value: fn(&Report) -> f64| {
            CALLERS.map(|callers| value(here.get(policy, &[("callers", callers)])))
        };
        let least = over("tide", goodput).into_iter().fold(f64::MAX, f64::min);
        let tail = over("tide", |run| run.p99_us).into_iter().fold(0.0, f64::max) / slo_us;
        let [.., few, many] = over("tide", |run| run.success_by_quarter[0]);
        let what = format!("{time}: tide, least over all numbers, of capacity");
        claims.extend([
            Claim::at_least(&what, share, least, 0.98),
            Claim::at_most(
                &format!("{time}: tide, worst p99 over all numbers, of the SLO"),
                times,
                tail,
                1.0,
            ),
            Claim::at_least(
                &format!("{time}: tide, first quarter of the ranks, 1,000 and 10,000 callers"),
                share,
                few.min(many),
                0.97,
            ),
        ]);
    }
    let here = of_time(runs, "10us");
    let kept = |policy| {
        let at = |callers| goodput(here.get(policy, &[("callers", callers)]));
        at(10_000.0) / at(100.0)
    };
    claims.push(Claim::at_most(
        "10us: breakwater, 10,000 callers ÷ 100 (it degrades)",
        times,
        kept("breakwater"),
        0.97,
    ));
    claims
}

fn chart(runs: &Runs) -> Chart {
    let panel = |(time, slo_us): (&str, f64)| {
        let here = of_time(runs, time);
        Panel {
            title: format!("{time} exponential, SLO {slo_us:.0} µs"),
            x: Axis::log("callers"),
            y: Axis::linear("goodput ÷ capacity"),
            lines: POLICIES.iter().map(|policy| here.line(policy, "callers", goodput)).collect(),
        }
    };
    Chart { title: FIGURE.title.to_owned(), panels: TIMES.map(panel).to_vec() }
}
