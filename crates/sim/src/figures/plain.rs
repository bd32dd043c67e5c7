//! The sidecar's defaults before services as they are: some workers and a queue of their own that nobody else
//! sees, which go on with what was abandoned. What the gate lets through in time is compared with what could be had by who
//! sees the queue.

use super::chart::{Axis, Chart, Line, Panel};
use super::claim::{Claim, Unit};
use super::lab::Lab;
use super::srtm::each;
use super::{Figure, Outcome};
use crate::plain::{Row, Seen, possible, rows, run};

pub(super) const FIGURE: Figure = Figure {
    name: "plain",
    title: "Plain services with a queue of their own: answered in time, against what is possible",
    source: "no paper's: rows and goals are those of docs/figures.md",
    make,
};

/// Below what is possible at most, with the objective given and with a learned one.
const GIVEN: f64 = 0.03;
const LEARNED: f64 = 0.05;
/// The 99th percentile of what was answered, in objectives.
const P99: f64 = 1.05;
/// Rows that miss: times that vary twice as much as exponential ones, or a machine that is shared, hide how many workers there are
/// from a few hundred answers, and the search begins anew now and then. Several services in a row have no knee: the best number by hand is
/// 0.97 there, and what is tried besides it costs the rest.
const MISSED: [&str; 9] = [
    "1 worker, bimodal, 1.2 x",
    "4 workers, bimodal, 2 x",
    "32 workers, bimodal, 100 ms, 2 x",
    "4 workers, neighbour, 2 x",
    "3 tiers, 1.2 x",
    "3 tiers, 2 x",
    "3 tiers, 4 x",
    "3 tiers, nothing said, 2 x",
    "3 tiers of 4 workers, 2 x",
];

/// A row, what is possible of it, and what came of each seed.
struct Ran {
    row: Row,
    possible: f64,
    seen: Vec<Seen>,
}

impl Ran {
    fn mean(&self, of: impl Fn(&Seen) -> f64) -> f64 {
        self.seen.iter().map(of).sum::<f64>() / self.seen.len() as f64
    }

    fn good(&self) -> f64 {
        self.mean(|seen| seen.good)
    }
}

fn make(lab: &Lab<'_>) -> Outcome {
    let (seed, seeds) = (lab.seed, if lab.quick { 4 } else { 20 });
    let ran = each(lab, &rows(), |row| Ran {
        possible: possible(&row.plain, seed),
        seen: (0..seeds).map(|n| run(&row.plain, &row.defaults(), seed + n)).collect(),
        row: row.clone(),
    });
    let line = |ran: &Ran| {
        let Ran { row, possible, .. } = ran;
        format!(
            "{:34} {:.3} of {possible:.3}, p99 {:.2} x the objective, {:.1} slots",
            row.name,
            ran.good(),
            ran.mean(|seen| seen.p99),
            ran.mean(|seen| seen.slots)
        )
    };
    Outcome {
        claims: ran.iter().flat_map(claims).collect(),
        charts: vec![chart(&ran)],
        measured: ran.iter().map(line).collect(),
        ..Outcome::default()
    }
}

fn claims(ran: &Ran) -> Vec<Claim> {
    let name = ran.row.name;
    let bound = if ran.row.learned { LEARNED } else { GIVEN };
    let below = Claim::at_most(
        &format!("{name}: below what is possible"),
        Unit::Percent,
        ran.possible - ran.good(),
        bound,
    );
    let below = if MISSED.contains(&name) { below.open() } else { below };
    let under_load = ran.row.plain.load > 1.0 && !ran.row.learned;
    let p99 = Claim::at_most(
        &format!("{name}: p99 ÷ objective"),
        Unit::Times,
        ran.mean(|seen| seen.p99),
        P99,
    );
    std::iter::once(below).chain(under_load.then_some(p99)).collect()
}

fn chart(ran: &[Ran]) -> Chart {
    let points = |value: fn(&Ran) -> f64| {
        ran.iter().enumerate().map(|(n, ran)| (n as f64 + 1.0, value(ran))).collect()
    };
    Chart {
        title: FIGURE.title.to_owned(),
        panels: vec![Panel {
            title: "as listed in the text".to_owned(),
            x: Axis::linear("row"),
            y: Axis::linear("answered in time ÷ capacity").up_to(1.05),
            lines: vec![
                Line::scatter("possible", points(|ran| ran.possible)),
                Line::scatter("tide, adaptive slots", points(Ran::good)),
            ],
        }],
    }
}
