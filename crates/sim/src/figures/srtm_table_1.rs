//! SRTM's Table I: how long it takes to find a placement. The paper measures a minute at a time; ours
//! replays a recording and measures to verify.

use tidegate_core::Span;

use super::chart::{Axis, Chart, Line, Panel};
use super::claim::{Claim, Unit};
use super::lab::Lab;
use super::srtm::{GROUPS, IDLE, ROUND, each, over_seeds, worst};
use super::{Figure, Outcome};
use crate::broker::testbed::{Found, Testbed};
use crate::broker::traffic::{Pattern, Topic};

pub(super) const FIGURE: Figure = Figure {
    name: "srtm-table-1",
    title: "Measurement rounds to find a placement",
    source: "SRTM §VI-E, Table I",
    make: |lab| over_seeds(lab, make),
};

struct Run {
    group: u32,
    fitted: Found,
    planned: Found,
}

fn make(lab: &Lab<'_>) -> Outcome {
    let seed = lab.seed;
    let runs = each(lab, &GROUPS, |&group| {
        let topic = Topic::groups(group, Span::ZERO, Pattern::Poisson);
        let testbed = Testbed::new(topic, &IDLE, seed, ROUND);
        Run { group, fitted: testbed.fit(), planned: testbed.plan() }
    });
    Outcome {
        claims: claims(&runs),
        charts: vec![chart(&runs)],
        notes: notes(&runs),
        ..Outcome::default()
    }
}

fn rounds(found: &Found) -> f64 {
    found.rounds.iter().map(|rounds| f64::from(*rounds)).sum()
}

fn claims(runs: &[Run]) -> Vec<Claim> {
    let (small, large) = (&runs[0], &runs[runs.len() - 1]);
    let most = |value: fn(&Run) -> f64| runs.iter().map(value).fold(0.0, f64::max);
    vec![
        Claim::at_most("SRTM, groups of 5: rounds", Unit::Count, rounds(&small.fitted), 6.0)
            .paper("1 (64 s)"),
        Claim::at_least("SRTM, groups of 30: rounds", Unit::Count, rounds(&large.fitted), 10.0)
            .paper("17 (1,058 s)"),
        Claim::at_least(
            "SRTM, groups of 30: brokers",
            Unit::Count,
            large.fitted.brokers as f64,
            5.0,
        )
        .paper("6"),
        Claim::at_most("planned: rounds, most", Unit::Count, most(|run| rounds(&run.planned)), 2.0),
        Claim::at_most(
            "planned: brokers more than SRTM's, most",
            Unit::Count,
            most(|run| (run.planned.brokers as f64 - run.fitted.brokers as f64).max(0.0)),
            0.0,
        ),
        Claim::at_most(
            "planned: worst p99",
            Unit::Micros,
            most(|run| worst(&run.planned)) * 1e3,
            1_000.0,
        ),
    ]
}

fn notes(runs: &[Run]) -> Vec<String> {
    let line = |run: &Run| {
        let Run { group, fitted, planned } = run;
        format!(
            "groups of {group}: SRTM {:?} rounds, {} brokers, {:.0} s; planned {} rounds, {} brokers, {:.0} s",
            fitted.rounds,
            fitted.brokers,
            rounds(fitted) * ROUND.as_secs_f64(),
            rounds(planned),
            planned.brokers,
            rounds(planned) * ROUND.as_secs_f64(),
        )
    };
    runs.iter().map(line).collect()
}

fn chart(runs: &[Run]) -> Chart {
    let panel = |title: &str, y: &str, value: fn(&Found) -> f64| {
        let line = |name: &str, found: fn(&Run) -> &Found| {
            let point = |run: &Run| (f64::from(run.group), value(found(run)));
            Line::new(name, runs.iter().map(point).collect())
        };
        Panel {
            title: title.to_owned(),
            x: Axis::linear("publishers in a group"),
            y: Axis::linear(y),
            lines: vec![line("planned", |run| &run.planned), line("SRTM", |run| &run.fitted)],
        }
    };
    Chart {
        title: FIGURE.title.to_owned(),
        panels: vec![
            panel("time", "seconds of measuring", |found| rounds(found) * ROUND.as_secs_f64()),
            panel("brokers", "brokers in use", |found| found.brokers as f64),
        ],
    }
}
