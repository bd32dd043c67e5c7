//! SRTM's Figure 8: the same number of brokers, with and without knowledge of groups.

use tidegate_core::Span;

use super::chart::{Axis, Chart, Line, Panel};
use super::claim::{Claim, Unit};
use super::lab::Lab;
use super::srtm::{GROUPS, IDLE, PATTERNS, ROUND, each, over_seeds, worst};
use super::{Figure, Outcome};
use crate::broker::testbed::Testbed;
use crate::broker::traffic::{Pattern, Topic};

pub(super) const FIGURE: Figure = Figure {
    name: "srtm-8",
    title: "Max-Min on as many brokers as SRTM has",
    source: "SRTM §VI-D, Figure 8",
    make: |lab| over_seeds(lab, make),
};

struct Run {
    pattern: Pattern,
    group: u32,
    /// Worst p99 in milliseconds: knowing the groups, and not.
    knowing: f64,
    blind: f64,
}

fn make(lab: &Lab<'_>) -> Outcome {
    let seed = lab.seed;
    let sizes: &[u32] = if lab.quick { &[15, 20, 30] } else { &GROUPS };
    let points: Vec<(Pattern, u32)> =
        PATTERNS.iter().flat_map(|at| sizes.iter().map(|size| (at.0, *size))).collect();
    let runs = each(lab, &points, |&(pattern, group)| {
        let topic = Topic::groups(group, Span::ZERO, pattern);
        let testbed = Testbed::new(topic, &IDLE, seed, ROUND);
        let knowing = testbed.fit();
        let blind = testbed.max_min_on(knowing.brokers);
        let [knowing, blind] = [knowing, blind].map(|found| worst(&found));
        Run { pattern, group, knowing, blind }
    });
    Outcome { claims: claims(&runs), charts: vec![chart(&runs)], ..Outcome::default() }
}

fn claims(runs: &[Run]) -> Vec<Claim> {
    let claim = |(pattern, name): (Pattern, &str)| {
        let here = runs.iter().filter(|run| run.pattern == pattern && run.group >= 15);
        let least = here.map(|run| run.blind / run.knowing).fold(f64::MAX, f64::min);
        let what = format!("{name}, groups of 15 and more: Max-Min ÷ SRTM, least");
        Claim::at_least(&what, Unit::Times, least, 1.15).paper("even worse than in Figure 7")
    };
    PATTERNS.map(claim).into()
}

fn chart(runs: &[Run]) -> Chart {
    let panel = |(pattern, name): (Pattern, &str)| {
        let line = |name: &str, value: fn(&Run) -> f64| {
            let here = runs.iter().filter(|run| run.pattern == pattern);
            Line::new(name, here.map(|run| (f64::from(run.group), value(run))).collect())
        };
        Panel {
            title: name.to_owned(),
            x: Axis::linear("publishers in a group"),
            y: Axis::linear("p99 of the worst broker, ms").up_to(2.0),
            lines: vec![
                line("SRTM", |run| run.knowing),
                line("Max-Min, as many brokers", |run| run.blind),
            ],
        }
    };
    Chart { title: FIGURE.title.to_owned(), panels: PATTERNS.map(panel).into() }
}
