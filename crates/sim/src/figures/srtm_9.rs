//! SRTM's Figure 9: groups whose messages are spread over a short interval.

use tidegate_core::Span;

use super::chart::{Axis, Chart, Line, Panel};
use super::claim::{Claim, Unit};
use super::lab::Lab;
use super::srtm::{IDLE, PATTERNS, each, millis, rounds_of};
use super::{Figure, Outcome};
use crate::broker::testbed::{Found, Testbed};
use crate::broker::traffic::{Pattern, Topic};

pub(super) const FIGURE: Figure = Figure {
    name: "srtm-9",
    title: "Groups of 25 that send nearly at the same moment",
    source: "SRTM §VI-D, Figure 9",
    make,
};

struct Run {
    pattern: Pattern,
    spread_ms: u64,
    max_min: Found,
    fitted: Found,
    planned: Found,
}

fn make(lab: &Lab<'_>) -> Outcome {
    let (seed, span) = (lab.seed, rounds_of(lab));
    let spreads: &[u64] = if lab.quick { &[0, 2, 16] } else { &[0, 1, 2, 4, 8, 16] };
    let points: Vec<(Pattern, u64)> =
        PATTERNS.iter().flat_map(|at| spreads.iter().map(|spread| (at.0, *spread))).collect();
    let runs = each(lab, &points, |&(pattern, spread_ms)| {
        let topic = Topic::groups(25, Span::from_millis(spread_ms), pattern);
        let testbed = Testbed::new(topic, &IDLE, seed, span);
        let (max_min, fitted, planned) = (testbed.max_min(), testbed.fit(), testbed.plan());
        Run { pattern, spread_ms, max_min, fitted, planned }
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
        let at = |spread_ms: u64| {
            let fits = |run: &&Run| run.pattern == pattern && run.spread_ms == spread_ms;
            runs.iter().find(fits).expect("it ran")
        };
        let (tight, near, wide) = (at(0), at(2), at(16));
        let times =
            |what: &str, value| Claim::at_most(&format!("{name}, {what}"), Unit::Times, value, 1.0);
        claims.extend([
            times(
                "at once: SRTM ÷ Max-Min, worst p99",
                worst(&tight.fitted) / worst(&tight.max_min),
            )
            .paper("< 1"),
            times("over 2 ms: planned ÷ Max-Min", worst(&near.planned) / worst(&near.max_min))
                .paper("< 1 (SRTM)"),
            times("16 ms ÷ at once: SRTM", worst(&wide.fitted) / worst(&tight.fitted))
                .paper("falls"),
            times("16 ms ÷ at once: Max-Min", worst(&wide.max_min) / worst(&tight.max_min))
                .paper("falls"),
            times(
                "16 ms ÷ at once: SRTM's brokers",
                wide.fitted.brokers as f64 / tight.fitted.brokers as f64,
            )
            .paper("falls"),
        ]);
        let most = runs.iter().filter(|run| run.pattern == pattern);
        let most = most.map(|run| worst(&run.planned)).fold(0.0, f64::max);
        let what = format!("{name}: planned, worst p99 of all");
        claims.push(Claim::at_most(&what, Unit::Micros, most * 1e3, 1_000.0));
    }
    claims
}

fn notes(runs: &[Run]) -> Vec<String> {
    let line = |run: &Run| {
        let Run { pattern, spread_ms, max_min, fitted, planned } = run;
        format!(
            "{pattern:?}, over {spread_ms} ms: brokers of Max-Min {}, SRTM {}, planned {}",
            max_min.brokers, fitted.brokers, planned.brokers
        )
    };
    runs.iter().map(line).collect()
}

fn chart(runs: &[Run]) -> Chart {
    let panel = |(pattern, name): (Pattern, &str)| {
        let line = |name: &str, found: fn(&Run) -> &Found| {
            let here = runs.iter().filter(|run| run.pattern == pattern);
            let point = |run: &Run| (run.spread_ms as f64, worst(found(run)));
            Line::new(name, here.map(point).collect())
        };
        Panel {
            title: name.to_owned(),
            x: Axis::linear("spread of a group, ms"),
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
