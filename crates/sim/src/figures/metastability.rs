//! Overload that outlives its trigger: a retry storm, a cold cache, capacity that goes and comes back
//! slowly. Load stays at 0.8 of capacity all the time, so whatever is left after the trigger is gone
//! is of the system's own making.
//!
//! Naive retries without control never come back: work is done for callers that have given up, and
//! they try again. With a budget alone the queue drains in its own time. With a gate it must be over
//! within ten seconds.

use tidegate_core::Span;

use super::chart::{Axis, Chart, Line, Panel};
use super::claim::{Claim, Unit};
use super::lab::{Lab, Runs, Source};
use super::{Figure, Outcome};
use crate::measure::Row;

pub(super) const FIGURE: Figure = Figure {
    name: "metastability",
    title: "Overload that outlives its trigger, at 0.8 of capacity before and after",
    source: "no paper's of ours; after Huang et al., Metastable Failures in the Wild",
    make,
};

/// What happens, in which plan, and from when on it is over.
struct Trigger {
    what: &'static str,
    plan: Source,
    over_ms: f64,
    /// How soon tide is back. The goal is ten seconds for all; without a gate a retry budget alone
    /// takes 3, 13 and more than 12 s, so that less tells whether the gate does its part.
    soon_ms: f64,
}

const TRIGGERS: [Trigger; 3] = [
    Trigger {
        what: "retry storm",
        plan: Source {
            name: "metastable-retry",
            text: include_str!("../../../../plans/metastable-retry.toml"),
        },
        over_ms: 2500.0,
        soon_ms: 1500.0,
    },
    Trigger {
        what: "cold cache",
        plan: Source {
            name: "metastable-cache",
            text: include_str!("../../../../plans/metastable-cache.toml"),
        },
        over_ms: 2001.0,
        soon_ms: 5000.0,
    },
    Trigger {
        what: "slow capacity",
        plan: Source {
            name: "metastable-capacity",
            text: include_str!("../../../../plans/metastable-capacity.toml"),
        },
        over_ms: 6000.0,
        soon_ms: 2000.0,
    },
];
const POLICIES: [&str; 5] = ["tide", "breakwater", "codel", "open", "storm"];
/// A bucket has more than a thousand requests, and is the mean of so many seeds: one time in a hundred even one of a service
/// that is well has 5 % late by chance, where one request in ten takes half of the SLO.
const BUCKET: Span = Span::from_millis(500);
const SEEDS: u32 = 4;
/// Within this much after the trigger, goodput has to be back.
const BACK_MS: f64 = 10_000.0;

fn make(lab: &Lab<'_>) -> Outcome {
    let (mut claims, mut panels) = (Vec::new(), Vec::new());
    for trigger in &TRIGGERS {
        let sets = [format!("policy={POLICIES:?}"), format!("seeds={SEEDS}")];
        let runs = lab.run_series(trigger.plan, &sets, Some(BUCKET)).mean();
        claims.extend(claims_of(trigger, &runs));
        panels.push(panel(trigger, &runs));
    }
    let charts = vec![Chart { title: FIGURE.title.to_owned(), panels }];
    Outcome { claims, charts, ..Outcome::default() }
}

fn rows<'a>(runs: &'a Runs, policy: &str) -> &'a [Row] {
    runs.get(policy, &[]).series.as_deref().unwrap_or_default()
}

fn millis(row: &Row) -> f64 {
    row.at.as_nanos() as f64 / 1e6
}

fn share(row: &Row) -> f64 {
    row.good as f64 / row.offered as f64
}

/// How long after the trigger goodput is 95 % of what is offered and stays so: infinitely long if
/// the last bucket is short of it.
fn back_after(trigger: &Trigger, rows: &[Row]) -> f64 {
    let low = rows.iter().rposition(|row| share(row) < 0.95);
    match low.map(|place| (place, &rows[place])) {
        None => 0.0,
        Some((place, _)) if place + 1 == rows.len() => f64::INFINITY,
        Some((_, row)) => (millis(row) + row.step.as_micros_f64() / 1e3 - trigger.over_ms).max(0.0),
    }
}

fn claims_of(trigger: &Trigger, runs: &Runs) -> Vec<Claim> {
    let what = trigger.what;
    let before = |policy| {
        let rows = rows(runs, policy).iter().filter(|row| millis(row) < 2000.0);
        rows.map(share).fold(f64::MAX, f64::min)
    };
    let last = share(&rows(runs, "storm")[rows(runs, "storm").len() - 1]);
    let dip = rows(runs, "tide").iter().map(share).fold(f64::MAX, f64::min);
    let back = |policy| back_after(trigger, rows(runs, policy));
    let say = |text: &str| format!("{what}: {text}");
    vec![
        Claim::at_least(
            &say("naive retries, before the trigger, of offered"),
            Unit::Percent,
            before("storm"),
            0.97,
        ),
        Claim::at_most(
            &say("naive retries, at the end, of offered (it stays)"),
            Unit::Percent,
            last,
            0.05,
        ),
        Claim::at_most(
            &say("tide, worst half second (the trigger is real), of offered"),
            Unit::Percent,
            dip,
            0.5,
        ),
        Claim::at_most(
            &say("tide, back to 95 % for good after (goal: 10 s)"),
            Unit::Millis,
            back("tide"),
            trigger.soon_ms,
        ),
        Claim::at_most(
            &say("breakwater, back to 95 % for good after"),
            Unit::Millis,
            back("breakwater"),
            BACK_MS,
        ),
        Claim::at_least(
            &say("a retry budget without a gate takes longer than tide, by"),
            Unit::Millis,
            back("open") - back("tide"),
            1000.0,
        ),
    ]
}

fn panel(trigger: &Trigger, runs: &Runs) -> Panel {
    let line = |policy: &&str| {
        let points = rows(runs, policy).iter().map(|row| (millis(row) / 1e3, 100.0 * share(row)));
        Line::new(policy, points.collect())
    };
    Panel {
        title: format!("{}, over after {:.1} s", trigger.what, trigger.over_ms / 1e3),
        x: Axis::linear("s"),
        y: Axis::linear("% answered in time").up_to(100.0),
        lines: POLICIES.iter().map(line).collect(),
    }
}
