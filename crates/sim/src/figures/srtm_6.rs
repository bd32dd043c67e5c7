//! SRTM's Figure 6: brokers that have something else to do. Equal totals leave the busiest broker the
//! smallest part of the topic, and the smallest bucket; max-min does not.

use tidegate_core::Span;

use super::chart::{Axis, Chart, Line, Panel};
use super::claim::{Claim, Unit};
use super::lab::Lab;
use super::srtm::{PATTERNS, each, millis};
use super::{Figure, Outcome};
use crate::broker::testbed::{Found, Testbed};
use crate::broker::traffic::{Pattern, Topic};

pub(super) const FIGURE: Figure = Figure {
    name: "srtm-6",
    title: "Max-min against equal loads on six brokers with 10 to 80 k msg/s",
    source: "SRTM §VI-C, Figure 6",
    make,
};

/// The brokers' existing loads, in messages per second.
const LOADS: [f64; 6] = [10e3, 40e3, 50e3, 60e3, 70e3, 80e3];

struct Run {
    pattern: Pattern,
    batch: u32,
    publishers: u32,
    conc: Found,
    max_min: Found,
}

fn make(lab: &Lab<'_>) -> Outcome {
    let seed = lab.seed;
    let sizes: &[u32] =
        if lab.quick { &[4_000, 8_000] } else { &[2_000, 4_000, 6_000, 8_000, 10_000] };
    let span = Span::from_secs(if lab.quick { 3 } else { 10 });
    let mut points = Vec::new();
    for (pattern, _) in PATTERNS {
        for batch in [1, 10] {
            points.extend(sizes.iter().map(|size| (pattern, batch, *size)));
        }
    }
    let runs = each(lab, &points, |&(pattern, batch, publishers)| {
        let topic = Topic::alone(publishers, batch, pattern);
        let testbed = Testbed::new(topic, &LOADS, seed, span);
        let (conc, max_min) = (testbed.concentrate(), testbed.max_min());
        Run { pattern, batch, publishers, conc, max_min }
    });
    Outcome {
        misses: Vec::new(),
        claims: claims(&runs),
        charts: vec![chart(&runs)],
        notes: notes(&runs),
    }
}

fn conc(run: &Run) -> f64 {
    millis(run.conc.latency.worst)
}

fn max_min(run: &Run) -> f64 {
    millis(run.max_min.latency.worst)
}

fn claims(runs: &[Run]) -> Vec<Claim> {
    let mut claims = Vec::new();
    for (pattern, name) in PATTERNS {
        let at = |batch: u32, publishers: u32| {
            let fits = |run: &&Run| {
                run.pattern == pattern && run.batch == batch && run.publishers == publishers
            };
            runs.iter().find(fits).expect("it ran")
        };
        let (small, large) = (at(1, 4_000), at(1, 8_000));
        let what = format!("{name}, batch 1, 4,000 publishers: Conc ÷ Max-Min");
        let ratio = conc(small) / max_min(small);
        claims.push(Claim::between(&what, Unit::Times, ratio, 0.95, 1.05).paper("1"));
        let what = format!("{name}, batch 1, 8,000 publishers: Conc ÷ Max-Min, worst broker");
        let ratio = conc(large) / max_min(large);
        claims
            .push(Claim::at_least(&what, Unit::Times, ratio, 1.1).paper("1.72 (1.50 ms, 0.87 ms)"));
        let bursty = at(10, 8_000);
        let what = format!("{name}, 8,000 publishers: Max-Min's brokers, batch 10 ÷ batch 1");
        let ratio = bursty.max_min.brokers as f64 / large.max_min.brokers as f64;
        claims.push(Claim::at_most(&what, Unit::Times, ratio, 0.7).paper("more load per broker"));
        let what = format!("{name}, 8,000 publishers: Conc with batch 10 ÷ batch 1");
        let ratio = conc(bursty) / conc(large);
        claims.push(Claim::at_most(&what, Unit::Times, ratio, 1.0).paper("as good or better"));
    }
    claims
}

fn notes(runs: &[Run]) -> Vec<String> {
    let line = |run: &Run| {
        let Run { pattern, batch, publishers, conc, max_min } = run;
        format!(
            "{pattern:?}, batch {batch}, {publishers} publishers: Conc on {}, Max-Min on {}",
            conc.brokers, max_min.brokers
        )
    };
    runs.iter().map(line).collect()
}

fn chart(runs: &[Run]) -> Chart {
    let mut panels = Vec::new();
    for (pattern, name) in PATTERNS {
        for batch in [1, 10] {
            let line = |name: &str, value: fn(&Run) -> f64| {
                let here = runs.iter().filter(|run| run.pattern == pattern && run.batch == batch);
                Line::new(name, here.map(|run| (f64::from(run.publishers), value(run))).collect())
            };
            panels.push(Panel {
                title: format!("{name}, batch {batch}"),
                x: Axis::linear("publishers"),
                y: Axis::linear("p99 of the worst broker, ms"),
                lines: vec![line("Max-Min", max_min), line("Conc", conc)],
            });
        }
    }
    Chart { title: FIGURE.title.to_owned(), panels }
}
