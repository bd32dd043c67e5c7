//! SRTM's Figure 5: as few brokers as will do, against all there are.

use tidegate_core::Span;

use super::chart::{Axis, Chart};
use super::claim::{Claim, Unit};
use super::lab::Lab;
use super::srtm::{
    Alone, IDLE, PATTERNS, alone, alone_notes, alone_panels, millis, over_seeds, planner_claims,
};
use super::{Figure, Outcome};
use crate::broker::testbed::Found;

pub(super) const FIGURE: Figure = Figure {
    name: "srtm-5",
    title: "Concentration against load balancing over six idle brokers",
    source: "SRTM §VI-B, Figure 5",
    make: |lab| over_seeds(lab, make),
};

const NAMES: [&str; 3] = ["Conc", "LB", "planned"];

fn make(lab: &Lab<'_>) -> Outcome {
    let sizes: &[u32] = if lab.quick {
        &[1_000, 4_000, 8_000]
    } else {
        &[1_000, 2_000, 4_000, 6_000, 8_000, 10_000]
    };
    let span = Span::from_secs(if lab.quick { 3 } else { 15 });
    let runs = alone(lab, lab.seed..lab.seed + 1, &IDLE, sizes, span, |at| {
        [at.concentrate(), at.balance(), at.plan()]
    });
    let panels = alone_panels(&runs, NAMES, &Axis::log("p99, ms"), p99);
    Outcome {
        claims: claims(&runs),
        charts: vec![Chart { title: FIGURE.title.to_owned(), panels }],
        notes: alone_notes(&runs, NAMES),
        ..Outcome::default()
    }
}

fn p99(found: &Found) -> f64 {
    millis(found.latency.p99)
}

fn concentrated(run: &Alone) -> f64 {
    run.of(0, p99)
}

fn balanced(run: &Alone) -> f64 {
    run.of(1, p99)
}

fn claims(runs: &[Alone]) -> Vec<Claim> {
    let mut claims = Vec::new();
    for (pattern, name) in PATTERNS {
        for batch in [1, 10] {
            let here = |run: &&Alone| run.pattern == pattern && run.batch == batch;
            let of = |publishers: u32| {
                runs.iter().filter(here).find(|run| run.publishers == publishers).expect("it ran")
            };
            let most = runs.iter().filter(here).filter(|run| run.publishers <= 8_000);
            let worst = most.map(concentrated).fold(0.0, f64::max);
            let what = format!("{name}, batch {batch}: Conc to 8,000 publishers, worst p99");
            claims.push(
                Claim::at_most(&what, Unit::Micros, worst * 1e3, 1_000.0).paper("within 1 ms"),
            );
            let least = runs
                .iter()
                .filter(here)
                .filter(|run| run.publishers <= 8_000)
                .map(|run| balanced(run) / concentrated(run))
                .fold(f64::MAX, f64::min);
            let what = format!("{name}, batch {batch}: LB ÷ Conc, least");
            claims.push(Claim::at_least(&what, Unit::Times, least, 2.0).paper("> 1"));
            let plans: Vec<_> = runs
                .iter()
                .filter(here)
                .filter(|run| run.publishers <= 8_000)
                .flat_map(|run| run.found.iter().map(|[conc, _, planned]| (planned, conc)))
                .collect();
            claims.extend(planner_claims(&format!("{name}, batch {batch}"), "Conc", &plans));
            let falls = balanced(of(8_000)) / balanced(of(1_000));
            let what = format!("{name}, batch {batch}: LB with 8,000 publishers ÷ 1,000");
            claims.push(Claim::at_most(&what, Unit::Times, falls, 0.5).paper("falls with load"));
        }
        let at = |batch: u32| {
            let fits = |run: &&Alone| run.pattern == pattern && run.batch == batch;
            runs.iter().filter(fits).find(|run| run.publishers == 4_000).map_or(0.0, balanced)
        };
        let what = format!("{name}: LB with batch 10 ÷ batch 1, 4,000 publishers");
        claims.push(Claim::at_least(&what, Unit::Times, at(10) / at(1), 3.0).paper("larger"));
    }
    claims
}
