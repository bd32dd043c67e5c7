//! The outage that Wisp tells of in its section 2.4: a slow database takes the threads that others need.

use super::chart::{Axis, Chart, Panel};
use super::claim::{Claim, Unit};
use super::lab::{Lab, Runs, Source};
use super::wisp::{by_second, flow, only, outcome, over_time};
use super::{Figure, Outcome};

pub(super) const FIGURE: Figure = Figure {
    name: "wisp-outage",
    title: "A slow leaf under one workflow starves nobody",
    source: "Wisp §2.4",
    make,
};

const PLAN: Source =
    Source { name: "wisp-outage", text: include_str!("../../../../plans/wisp-outage.toml") };

fn make(lab: &Lab<'_>) -> Outcome {
    let runs = by_second(lab, PLAN, &[]);
    outcome(claims(&runs), chart(&runs))
}

fn claims(runs: &Runs) -> Vec<Claim> {
    let in_time = |policy| {
        let login = flow(only(runs, policy), "login");
        login.in_time_rps / login.offered_rps
    };
    let report = flow(only(runs, "wisp"), "report");
    vec![
        Claim::at_most("no control: logins within a second", Unit::Percent, in_time("none"), 0.05)
            .paper("outage"),
        Claim::at_least("wisp: logins within a second", Unit::Percent, in_time("wisp"), 0.9),
        Claim::at_least(
            "wisp: reports answered, of offered",
            Unit::Percent,
            report.answered_rps / report.offered_rps,
            0.2,
        ),
    ]
}

fn chart(runs: &Runs) -> Chart {
    let panel = |policy: &str, title: &str| Panel {
        title: title.to_owned(),
        x: Axis::linear("seconds (slow from 10 to 35)"),
        y: Axis::linear("answers per second").up_to(1000.0),
        lines: ["login", "report"]
            .map(|name| over_time(only(runs, policy), name, |row| row.0))
            .into(),
    };
    let panels = vec![panel("none", "no control"), panel("wisp", "rates by workflow")];
    Chart { title: FIGURE.title.to_owned(), panels }
}
