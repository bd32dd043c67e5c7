//! SRTM's Figure 4: a topic on one to six idle brokers. One is too slow; every further one splits the
//! bucket once more.

use tidegate_core::Span;

use super::chart::{Axis, Chart, Line, Panel};
use super::claim::{Claim, Unit};
use super::lab::Lab;
use super::srtm::{IDLE, each, millis, over_seeds};
use super::{Figure, Outcome};
use crate::broker::testbed::{Latency, Testbed};
use crate::broker::traffic::{Pattern, Topic};

pub(super) const FIGURE: Figure = Figure {
    name: "srtm-4",
    title: "6,000 publishers on one to six brokers",
    source: "SRTM §VI-A, Figure 4",
    make: |lab| over_seeds(lab, make),
};

fn make(lab: &Lab<'_>) -> Outcome {
    let span = Span::from_secs(if lab.quick { 4 } else { 30 });
    let topic = Topic::alone(6_000, 1, Pattern::Poisson);
    let testbed = Testbed::new(topic, &IDLE, lab.seed, span);
    let runs = each(lab, &[1, 2, 3, 4, 5, 6], |count| testbed.max_min_on(*count).latency);
    let notes = vec![format!("bucket of the topic: {}", testbed.whole)];
    Outcome { claims: claims(&runs), charts: vec![chart(&runs)], notes, ..Outcome::default() }
}

fn claims(runs: &[Latency]) -> Vec<Claim> {
    let p99 = |brokers: usize| runs[brokers - 1].p99;
    let times = |a: usize, b: usize| p99(a).as_secs_f64() / p99(b).as_secs_f64();
    let rises = (3..6).map(|k| times(k + 1, k)).fold(f64::MAX, f64::min);
    vec![
        Claim::at_least("one broker, p99", Unit::Micros, p99(1).as_micros_f64(), 1_000.0)
            .paper("saturated"),
        Claim::at_most("two brokers, p99", Unit::Micros, p99(2).as_micros_f64(), 1_000.0)
            .paper("the best"),
        Claim::at_least("three brokers ÷ two, p99", Unit::Times, times(3, 2), 1.2)
            .paper("more is worse"),
        Claim::at_least("each further broker, p99, least rise", Unit::Times, rises, 1.05)
            .paper("ever worse"),
        Claim::at_least("six brokers ÷ two, p99", Unit::Times, times(6, 2), 3.0),
    ]
}

fn chart(runs: &[Latency]) -> Chart {
    let line = |name: &str, value: fn(&Latency) -> Span| {
        let point = |(n, run): (usize, &Latency)| (n as f64 + 1.0, millis(value(run)));
        Line::new(name, runs.iter().enumerate().map(point).collect())
    };
    let panel = Panel {
        title: "Poisson, 10 msg/s each, batch 1".to_owned(),
        x: Axis::linear("brokers"),
        y: Axis::linear("latency, ms"),
        lines: vec![
            line("p99", |run| run.p99),
            line("p95", |run| run.p95),
            line("median", |run| run.p50),
        ],
    };
    Chart { title: FIGURE.title.to_owned(), panels: vec![panel] }
}
