//! SRTM's Figure 5: as few brokers as will do, against all there are.

use tidegate_core::Span;

use super::chart::{Axis, Chart, Line, Panel};
use super::claim::{Claim, Unit};
use super::lab::Lab;
use super::srtm::{IDLE, PATTERNS, each, millis};
use super::{Figure, Outcome};
use crate::broker::testbed::{Found, Testbed};
use crate::broker::traffic::{Pattern, Topic};

pub(super) const FIGURE: Figure = Figure {
    name: "srtm-5",
    title: "Concentration against load balancing over six idle brokers",
    source: "SRTM §VI-B, Figure 5",
    make,
};

struct Run {
    pattern: Pattern,
    batch: u32,
    publishers: u32,
    balanced: Found,
    concentrated: Found,
}

fn make(lab: &Lab<'_>) -> Outcome {
    let seed = lab.seed;
    let sizes: &[u32] = if lab.quick {
        &[1_000, 4_000, 8_000]
    } else {
        &[1_000, 2_000, 4_000, 6_000, 8_000, 10_000]
    };
    let span = Span::from_secs(if lab.quick { 3 } else { 15 });
    let mut points = Vec::new();
    for (pattern, _) in PATTERNS {
        for batch in [1, 10] {
            points.extend(sizes.iter().map(|size| (pattern, batch, *size)));
        }
    }
    let runs = each(lab, &points, |&(pattern, batch, publishers)| {
        let topic = Topic::alone(publishers, batch, pattern);
        let testbed = Testbed::new(topic, &IDLE, seed, span);
        let (balanced, concentrated) = (testbed.balance(), testbed.concentrate());
        Run { pattern, batch, publishers, balanced, concentrated }
    });
    Outcome {
        misses: Vec::new(),
        claims: claims(&runs),
        charts: vec![chart(&runs)],
        notes: notes(&runs),
    }
}

fn balanced(run: &Run) -> f64 {
    millis(run.balanced.latency.p99)
}

fn concentrated(run: &Run) -> f64 {
    millis(run.concentrated.latency.p99)
}

fn claims(runs: &[Run]) -> Vec<Claim> {
    let mut claims = Vec::new();
    for (pattern, name) in PATTERNS {
        for batch in [1, 10] {
            let here = |run: &&Run| run.pattern == pattern && run.batch == batch;
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
            let falls = balanced(of(8_000)) / balanced(of(1_000));
            let what = format!("{name}, batch {batch}: LB with 8,000 publishers ÷ 1,000");
            claims.push(Claim::at_most(&what, Unit::Times, falls, 0.5).paper("falls with load"));
        }
        let at = |batch: u32| {
            let fits = |run: &&Run| run.pattern == pattern && run.batch == batch;
            runs.iter().filter(fits).find(|run| run.publishers == 4_000).map_or(0.0, balanced)
        };
        let what = format!("{name}: LB with batch 10 ÷ batch 1, 4,000 publishers");
        claims.push(Claim::at_least(&what, Unit::Times, at(10) / at(1), 3.0).paper("larger"));
    }
    claims
}

fn notes(runs: &[Run]) -> Vec<String> {
    let line = |run: &Run| {
        let Run { pattern, batch, publishers, concentrated, .. } = run;
        format!(
            "{pattern:?}, batch {batch}, {publishers} publishers: Conc on {}",
            concentrated.brokers
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
                y: Axis::log("p99, ms"),
                lines: vec![line("Conc", concentrated), line("LB", balanced)],
            });
        }
    }
    Chart { title: FIGURE.title.to_owned(), panels }
}
