//! Wisp's Figure 9: two tenants on one partition server, one of which grows.

use super::chart::{Axis, Chart, Line, Panel};
use super::claim::{Claim, Unit};
use super::lab::{Lab, Runs, Source};
use super::wisp::{answered, by_second, flow, only, outcome, over_time, refused};
use super::{Figure, Outcome};
use crate::report::Report;

pub(super) const FIGURE: Figure = Figure {
    name: "wisp-9",
    title: "A hotspot: B joins A at 40 s and doubles at 60 s",
    source: "Wisp §6, Figure 9",
    make,
};

const PLAN: Source =
    Source { name: "wisp-hotspot", text: include_str!("../../../../plans/wisp-hotspot.toml") };

fn make(lab: &Lab<'_>) -> Outcome {
    let runs = by_second(lab, PLAN, &[]);
    outcome(claims(&runs), chart(&runs))
}

/// Median over the seconds from `from` to `to` of A's median latency.
fn median(run: &Report, from: usize, to: usize) -> f64 {
    let mut rows: Vec<f64> = flow(run, "a").rows[from..to].iter().map(|row| row.1).collect();
    rows.sort_by(f64::total_cmp);
    rows[rows.len() / 2]
}

/// Refused per second by all services but the entry.
fn behind(run: &Report) -> f64 {
    ["auth", "ps", "en"].iter().map(|name| refused(run, name)).sum()
}

fn claims(runs: &Runs) -> Vec<Claim> {
    let (none, wisp) = (only(runs, "none"), only(runs, "wisp"));
    let (share, times) = (Unit::Percent, Unit::Times);
    let alone = median(wisp, 10, 40);
    vec![
        Claim::at_least(
            "no control: A's latency from 65 s on ÷ alone",
            times,
            median(none, 65, 80) / median(none, 10, 40),
            5.0,
        )
        .paper("inflated"),
        Claim::at_most(
            "wisp: A's latency from 65 s on ÷ alone",
            times,
            median(wisp, 65, 80) / alone,
            3.0,
        )
        .paper("back to what it was"),
        Claim::at_most(
            "A's latency from 65 s on: wisp ÷ no control",
            times,
            median(wisp, 65, 80) / median(none, 65, 80),
            0.33,
        ),
        Claim::at_least("wisp: answered of A", share, answered(wisp, &["a"]), 0.98),
        Claim::at_least(
            "wisp: answered of C and D, elsewhere",
            share,
            answered(wisp, &["c", "d"]),
            0.98,
        )
        .paper("not throttled"),
        Claim::at_least(
            "B, wisp ÷ no control, answered",
            share,
            flow(wisp, "b").answered_rps / flow(none, "b").answered_rps,
            0.7,
        )
        .paper("throttled at the entry"),
        // Where: nobody is refused further on, and B, who goes the same way as A to the same server, waits
        // where A does not: at the entry.
        Claim::at_most(
            "wisp: refused behind the entry, per second",
            Unit::Count,
            behind(wisp),
            0.0,
        )
        .paper("throttled at the entry"),
        Claim::at_least(
            "wisp: latency of B ÷ A, who meet behind the entry",
            times,
            flow(wisp, "b").p50_ms / flow(wisp, "a").p50_ms,
            3.0,
        )
        .paper("throttled at the entry"),
        Claim::between(
            "no control: the same",
            times,
            flow(none, "b").p50_ms / flow(none, "a").p50_ms,
            0.9,
            1.1,
        ),
    ]
}

fn chart(runs: &Runs) -> Chart {
    let line = |policy: &str| Line {
        name: policy.to_owned(),
        ..over_time(only(runs, policy), "a", |row| row.1)
    };
    let panel = Panel {
        title: "tenant A".to_owned(),
        x: Axis::linear("seconds"),
        y: Axis::linear("median latency, ms"),
        lines: ["none", "wisp"].map(line).into(),
    };
    Chart { title: FIGURE.title.to_owned(), panels: vec![panel] }
}
