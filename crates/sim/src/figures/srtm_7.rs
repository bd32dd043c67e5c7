//! SRTM's Figure 7: publishers that send together. Who knows the groups splits bursts as it splits the
//! bucket, and can use as many brokers as the bursts need.

use tidegate_core::Span;

use super::chart::{Axis, Chart, Line, Panel};
use super::claim::{Claim, Unit};
use super::lab::Lab;
use super::srtm::{GROUPS, IDLE, PATTERNS, each, millis, rounds_of};
use super::{Figure, Outcome};
use crate::broker::testbed::{Found, Testbed};
use crate::broker::traffic::{Pattern, Topic};

pub(super) const FIGURE: Figure = Figure {
    name: "srtm-7",
    title: "Groups that send at the same moment: known to SRTM and to the planner, not to Max-Min",
    source: "SRTM §VI-D, Figure 7",
    make,
};

struct Run {
    pattern: Pattern,
    group: u32,
    max_min: Found,
    fitted: Found,
    planned: Found,
}

fn make(lab: &Lab<'_>) -> Outcome {
    let (seed, span) = (lab.seed, rounds_of(lab));
    let sizes: &[u32] = if lab.quick { &[5, 15, 30] } else { &GROUPS };
    let points: Vec<(Pattern, u32)> =
        PATTERNS.iter().flat_map(|at| sizes.iter().map(|size| (at.0, *size))).collect();
    let runs = each(lab, &points, |&(pattern, group)| {
        let topic = Topic::groups(group, Span::ZERO, pattern);
        let testbed = Testbed::new(topic, &IDLE, seed, span);
        let (max_min, fitted, planned) = (testbed.max_min(), testbed.fit(), testbed.plan());
        Run { pattern, group, max_min, fitted, planned }
    });
    Outcome {
        misses: Vec::new(),
        claims: claims(&runs),
        charts: vec![chart(&runs)],
        notes: notes(&runs),
    }
}

fn worst(found: &Found) -> f64 {
    millis(found.latency.worst)
}

fn claims(runs: &[Run]) -> Vec<Claim> {
    let mut claims = Vec::new();
    for (pattern, name) in PATTERNS {
        let here: Vec<&Run> = runs.iter().filter(|run| run.pattern == pattern).collect();
        let large = here.iter().find(|run| run.group == 30).expect("it ran");
        let most = |value: fn(&Run) -> f64| here.iter().map(|run| value(run)).fold(0.0, f64::max);
        claims.extend([
            Claim::at_least(
                &format!("{name}, groups of 30: Max-Min ÷ SRTM, worst p99"),
                Unit::Times,
                worst(&large.max_min) / worst(&large.fitted),
                1.2,
            )
            .paper("> 1"),
            Claim::at_least(
                &format!("{name}, groups of 30: Max-Min, worst p99"),
                Unit::Micros,
                worst(&large.max_min) * 1e3,
                1_000.0,
            )
            .paper("above 1 ms"),
            Claim::at_most(
                &format!("{name}: planned, worst p99 of all groups"),
                Unit::Micros,
                most(|run| worst(&run.planned)) * 1e3,
                1_000.0,
            ),
            Claim::at_most(
                &format!("{name}: planned, brokers more than SRTM's"),
                Unit::Count,
                most(|run| (run.planned.brokers as f64 - run.fitted.brokers as f64).max(0.0)),
                0.0,
            ),
        ]);
    }
    claims
}

fn notes(runs: &[Run]) -> Vec<String> {
    let line = |run: &Run| {
        let Run { pattern, group, max_min, fitted, planned } = run;
        format!(
            "{pattern:?}, groups of {group}: brokers of Max-Min {}, SRTM {}, planned {}",
            max_min.brokers, fitted.brokers, planned.brokers
        )
    };
    runs.iter().map(line).collect()
}

fn chart(runs: &[Run]) -> Chart {
    let panel = |(pattern, name): (Pattern, &str)| {
        let line = |name: &str, found: fn(&Run) -> &Found| {
            let here = runs.iter().filter(|run| run.pattern == pattern);
            let point = |run: &Run| (f64::from(run.group), worst(found(run)));
            Line::new(name, here.map(point).collect())
        };
        Panel {
            title: name.to_owned(),
            x: Axis::linear("publishers in a group"),
            y: Axis::linear("p99 of the worst broker, ms").up_to(2.0),
            lines: vec![
                line("planned", |run| &run.planned),
                line("SRTM", |run| &run.fitted),
                line("Max-Min", |run| &run.max_min),
            ],
        }
    };
    Chart { title: FIGURE.title.to_owned(), panels: PATTERNS.map(panel).into() }
}
