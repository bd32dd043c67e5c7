//! Breakwater's Figure 5: goodput and drops for mean service times of 1, 10 and 100 µs.
//!
//! What a message costs is what refusing at the server costs: with 1 µs of service at twice the
//! capacity messages alone take more than all cores have, with 100 µs next to nothing.

use super::chart::{Axis, Chart, Line, Panel};
use super::claim::{Claim, Unit};
use super::lab::{Lab, Runs, Source, goodput};
use super::testbed::{self, Bed, DAGOR, EVERYBODY};
use super::{Figure, Outcome};

pub(super) const FIGURE: Figure = Figure {
    name: "breakwater-5",
    title: "Mean service times of 1, 10 and 100 µs, exponential, 1,000 callers",
    source: "Breakwater §5.2, Figure 5",
    make,
};

const PLAN: Source =
    Source { name: "service-times", text: include_str!("../../../../plans/service-times.toml") };
/// Mean, SLO in microseconds, requests per second.
const TIMES: [(&str, f64, f64); 3] =
    [("1us", 110.0, 3.62e6), ("10us", 200.0, 8.5e5), ("100us", 1100.0, 9.83e4)];

fn make(lab: &Lab<'_>) -> Outcome {
    let (mut outcome, mut panels, mut drops) = (Outcome::default(), Vec::new(), Vec::new());
    // The middle one is that of all other figures.
    let quick = |(time, ..): &(&str, f64, f64)| lab.quick && *time == "10us";
    for (time, slo_us, capacity) in TIMES.into_iter().filter(|time| !quick(time)) {
        let service = [
            format!("service.time={time}"),
            "service.distribution=exponential".to_owned(),
            "caller.hold_time=10us".to_owned(),
        ];
        let bed = Bed { source: PLAN, capacity, callers: 1000, sets: &service, brief: true };
        let tuned = testbed::tuned_for(lab, &bed);
        let mut sets = lab.four_seconds(100_000);
        let loads = if lab.quick { "load=[0.9,2.0]" } else { "load=[0.9,1.2,2.0]" };
        let mut here = service.to_vec();
        here.extend([loads.to_owned(), "callers=1000".to_owned()]);
        sets.push(format!("policy={:?}", &EVERYBODY[..4]));
        sets.extend(here.iter().chain(&tuned.sets).cloned());
        let (others, alone) = testbed::others(lab, &bed, &here);
        let runs = lab.run(PLAN, &sets).and(others);
        outcome.claims.extend(claims_of(time, slo_us, &runs));
        panels.push(panel(time, &runs));
        drops.push(testbed::drops(&format!("{time} mean"), &runs));
        outcome.notes.push(format!("{time}: {}", tuned.and(alone).note));
    }
    panels.extend(drops);
    outcome.charts = vec![Chart { title: FIGURE.title.to_owned(), panels }];
    outcome
}

fn claims_of(time: &str, slo_us: f64, runs: &Runs) -> Vec<Claim> {
    let at = |policy, load| runs.get(policy, &[("load", load)]);
    let good = |policy| goodput(at(policy, 2.0));
    let say = |what: &str| format!("{time}, 2×: {what}");
    let times = Unit::Times;
    let regret = testbed::regret(runs, slo_us / 10.0 - 10.0, &[("load", 2.0)]);
    let paper = |gain: &'static str| if time == "100us" { gain } else { "> 1×" };
    let share = Unit::Percent;
    // Receiving and refusing are 1.76 µs of 2.76 or of 101.76.
    let codel = match time {
        "1us" => Claim::at_most(&say("codel, of capacity"), share, good("codel"), 0.05),
        "10us" => {
            Claim::at_most(&say("codel ÷ tide"), Unit::Times, good("codel") / good("tide"), 0.9)
        }
        _ => Claim::at_least(&say("codel, of capacity"), share, good("codel"), 0.95)
            .paper("trivial overhead"),
    };
    vec![
        Claim::at_least(&say("breakwater ÷ dagor"), times, good("breakwater") / good(DAGOR), 1.0)
            .paper(paper("1.102×")),
        Claim::at_least(&say("breakwater ÷ seda"), times, good("breakwater") / good("seda"), 1.0)
            .paper(paper("1.175×")),
        Claim::at_least(&say("tide ÷ breakwater"), times, good("tide") / good("breakwater"), 0.995),
        Claim::at_most(&say("tide below ideal, of capacity"), share, regret, 0.01),
        Claim::at_most(&say("tide, p99, of the SLO"), times, at("tide", 2.0).p99_us / slo_us, 1.0),
        codel,
        Claim::at_most(&say("window, of capacity"), share, good("window"), 0.05),
        Claim::at_most(&say("open, of capacity"), share, good("open"), 0.05),
    ]
}

fn panel(time: &str, runs: &Runs) -> Panel {
    let lines: Vec<Line> =
        EVERYBODY.iter().map(|policy| runs.line(policy, "load", goodput)).collect();
    Panel {
        title: format!("{time} mean"),
        x: Axis::linear("demand ÷ capacity"),
        y: Axis::linear("goodput ÷ capacity").up_to(1.0),
        lines,
    }
}
