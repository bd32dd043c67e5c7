//! SRTM's Table I: how long it takes to find a placement. The paper measures a minute at a time; ours
//! replays a recording and measures to verify.

use tidegate_core::Span;

use super::chart::{Axis, Chart, Line, Panel};
use super::claim::{Claim, Unit};
use super::lab::Lab;
use super::srtm::{GROUPS, IDLE, ROUND, each, over_seeds, planner_claims, rounds};
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

/// What the paper's table says it took, in seconds, by group size.
const PAPER_S: [f64; 6] = [64.0, 189.0, 558.0, 745.0, 871.0, 1_058.0];

fn claims(runs: &[Run]) -> Vec<Claim> {
    let (small, large) = (&runs[0], &runs[runs.len() - 1]);
    let mut claims = vec![
        Claim::at_most("SRTM, groups of 5: rounds", Unit::Count, rounds(&small.fitted), 6.0)
            .paper("1 (64 s)"),
        Claim::at_least(
            "SRTM, groups of 30: brokers",
            Unit::Count,
            large.fitted.brokers as f64,
            5.0,
        )
        .paper("6"),
    ];
    // Groups of five fit on one broker of the paper's and not on one of ours.
    for (run, seconds) in runs.iter().zip(PAPER_S).skip(1) {
        let ratio = rounds(&run.fitted) * ROUND.as_secs_f64() / seconds;
        let what = format!("SRTM, groups of {}: time ÷ the paper's", run.group);
        let paper = format!("{seconds} s");
        claims.push(Claim::between(&what, Unit::Times, ratio, 0.5, 2.0).paper(&paper));
    }
    let plans: Vec<_> = runs.iter().map(|run| (&run.planned, &run.fitted)).collect();
    claims.extend(planner_claims("all groups", "SRTM", &plans));
    claims
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
