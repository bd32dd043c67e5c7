//! SRTM's Figure 6: brokers that have something else to do. Equal totals leave the busiest broker the
//! smallest part of the topic, and the smallest bucket; max-min does not.

use tidegate_core::Span;

use super::chart::{Axis, Chart};
use super::claim::{Claim, Unit};
use super::lab::Lab;
use super::srtm::{
    Alone, PATTERNS, alone, alone_notes, alone_panels, brokers, planner_claims, worst,
};
use super::{Figure, Outcome};
use crate::broker::testbed::Found;
use crate::broker::traffic::Pattern;

pub(super) const FIGURE: Figure = Figure {
    name: "srtm-6",
    title: "Max-min against equal loads on six brokers with 10 to 80 k msg/s",
    source: "SRTM §VI-C, Figure 6",
    make,
};

/// The brokers' existing loads, in messages per second.
const LOADS: [f64; 6] = [10e3, 40e3, 50e3, 60e3, 70e3, 80e3];

const NAMES: [&str; 3] = ["Max-Min", "Conc", "planned"];

fn make(lab: &Lab<'_>) -> Outcome {
    let sizes: &[u32] =
        if lab.quick { &[4_000, 8_000] } else { &[2_000, 4_000, 6_000, 8_000, 10_000] };
    let span = Span::from_secs(if lab.quick { 3 } else { 10 });
    // Which of the two is ahead differs from seed to seed: the mean of three is told, quick or not.
    let runs = alone(lab, lab.seed..lab.seed + 3, &LOADS, sizes, span, |at| {
        [at.max_min(), at.concentrate(), at.plan()]
    });
    let y = Axis::linear("p99 of the worst broker, ms");
    Outcome {
        claims: claims(&runs),
        charts: vec![Chart {
            title: FIGURE.title.to_owned(),
            panels: alone_panels(&runs, NAMES, &y, worst),
        }],
        notes: alone_notes(&runs, NAMES),
        ..Outcome::default()
    }
}

fn max_min(run: &Alone) -> f64 {
    run.of(0, worst)
}

fn conc(run: &Alone) -> f64 {
    run.of(1, worst)
}

/// The planner takes no more brokers than Max-Min where that meets the objective. It misses it itself with batches of ten
/// that one broker can hardly take and two share badly, by less than a quarter.
fn planner(runs: &[Alone], pattern: Pattern, name: &str) -> [Claim; 2] {
    let here = runs.iter().filter(|run| run.pattern == pattern);
    let all = here.flat_map(|run| run.found.iter().map(|[max_min, _, planned]| (planned, max_min)));
    let met: Vec<(&Found, &Found)> = all.filter(|(_, max_min)| worst(max_min) <= 1.0).collect();
    let [_, _, fewer] = planner_claims(name, "Max-Min", &met);
    let means = runs.iter().filter(|run| run.pattern == pattern).map(|run| run.of(2, worst));
    let late = means.reduce(f64::max).unwrap_or(f64::NAN) * 1e3;
    let what = format!("{name}: planned, worst p99, mean of seeds");
    [Claim::at_most(&what, Unit::Micros, late, 1_250.0), fewer]
}

fn claims(runs: &[Alone]) -> Vec<Claim> {
    let mut claims = Vec::new();
    for (pattern, name) in PATTERNS {
        let at = |batch: u32, publishers: u32| {
            let fits = |run: &&Alone| {
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
        let ratio = bursty.of(0, brokers) / large.of(0, brokers);
        claims.push(Claim::at_most(&what, Unit::Times, ratio, 0.7).paper("more load per broker"));
        let what = format!("{name}, 8,000 publishers: Conc with batch 10 ÷ batch 1");
        let ratio = conc(bursty) / conc(large);
        claims.push(Claim::at_most(&what, Unit::Times, ratio, 1.0).paper("as good or better"));
        claims.extend(planner(runs, pattern, name));
    }
    claims
}
