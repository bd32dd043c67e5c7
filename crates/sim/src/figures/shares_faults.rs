//! A limit divided over nodes while one of them crashes and another is cut off: what passes stays within
//! the stated bound at all times, and what is left is used.

use tidegate_core::share::{AdaptorConfig, HistoryConfig, LeaseConfig, Rate, Share};
use tidegate_core::{Instant, Span};

use super::chart::{Axis, Chart, Line, Panel};
use super::claim::{Claim, Unit};
use super::lab::Lab;
use super::{Figure, Outcome};
use crate::broker::shares::{Fault, Outcome as Played, Scenario};

pub(super) const FIGURE: Figure = Figure {
    name: "shares-faults",
    title: "One limit of 4,000/s, four nodes that ask for twice as much, a crash and a partition",
    source: "\"Handling Overload\", Per-Customer Limits",
    make,
};

const QUOTA: f64 = 4_000.0;
const BURST: u64 = 400;
/// Node 1 is down, then node 2 is cut off, for so many seconds from these on.
const CRASH_S: (u64, u64) = (15, 20);
const PARTITION_S: (u64, u64) = (30, 35);
const END_S: u64 = 45;

fn scenario(seed: u64) -> Scenario {
    let at = |second: u64| Instant::ZERO + Span::from_secs(second);
    let fault = |node: usize, (from, until): (u64, u64), down: bool| Fault {
        node,
        from: at(from),
        until: at(until),
        down,
    };
    Scenario {
        whole: Share::new(Rate::per_second(QUOTA).expect("a rate"), BURST),
        // A short term, so that a partition of five seconds shows both: the lease kept, then safe.
        lease: LeaseConfig { nodes: 4, term: Span::from_secs(3), ..LeaseConfig::default() },
        history: HistoryConfig::default(),
        adaptor: AdaptorConfig::default(),
        loads: vec![QUOTA / 2.0; 4],
        shift: None,
        faults: vec![fault(1, CRASH_S, true), fault(2, PARTITION_S, false)],
        span: Span::from_secs(END_S),
        warm: Span::ZERO,
        seed,
    }
}

fn make(lab: &Lab<'_>) -> Outcome {
    let scenario = scenario(lab.seed);
    let played = scenario.run();
    let bound = scenario.lease.bound(scenario.whole);
    let notes = vec![format!("bound: {bound}")];
    Outcome {
        claims: claims(&played, bound.excess),
        charts: vec![chart(&played)],
        notes,
        ..Outcome::default()
    }
}

/// Messages per second that passed, from one second to another.
fn passed(played: &Played, from: u64, until: u64) -> f64 {
    let steps = &played.passed[from as usize * 10..until as usize * 10];
    f64::from(steps.iter().sum::<u32>()) / (until - from) as f64
}

fn claims(played: &Played, excess: f64) -> Vec<Claim> {
    let share = |from, until| passed(played, from, until) / QUOTA;
    let percent = Unit::Percent;
    let held = |node: usize, second: f64| played.rates[(second * 10.0) as usize][node];
    vec![
        Claim::at_most("stated bound: above the rate", percent, excess, 0.01),
        Claim::at_most("tokens beyond the bound, at any time", Unit::Count, played.beyond, 0.0),
        Claim::between("before: passed, of the limit", percent, share(5, 15), 0.99, 1.011),
        Claim::at_least("a term after the crash: passed", percent, share(19, 20), 0.95),
        Claim::at_least("during crash and partition, least", percent, share(15, 35), 0.8),
        Claim::between("after both: passed, of the limit", percent, share(38, 45), 0.99, 1.011),
        Claim::between(
            "cut off for 2 s: share kept",
            Unit::Times,
            held(2, 32.0) / held(2, 29.0),
            0.99,
            1.01,
        ),
        Claim::between(
            "cut off for 4 s: share ÷ safe share",
            Unit::Times,
            held(2, 34.0) / (0.1 * QUOTA / 4.0),
            0.99,
            1.01,
        ),
        Claim::at_least(
            "2 s after it: share, of before",
            percent,
            held(2, 37.0) / held(2, 29.0),
            0.9,
        ),
    ]
}

fn chart(played: &Played) -> Chart {
    let time = |step: usize| step as f64 / 10.0;
    let passed =
        played.passed.iter().enumerate().map(|(n, count)| (time(n), f64::from(*count) * 10.0));
    let share = |node: usize| {
        let points = played.rates.iter().enumerate().map(|(n, rates)| (time(n), rates[node]));
        Line::new(
            ["node 0", "node 1, crashes", "node 2, cut off", "node 3"][node],
            points.collect(),
        )
    };
    let sum = played.rates.iter().enumerate();
    let sum = sum.map(|(n, rates)| (time(n), rates.iter().sum::<f64>())).collect();
    Chart {
        title: FIGURE.title.to_owned(),
        panels: vec![
            Panel {
                title: "all nodes".to_owned(),
                x: Axis::linear("time, s"),
                y: Axis::linear("per second"),
                lines: vec![Line::new("shares in use", sum), Line::new("passed", passed.collect())],
            },
            Panel {
                title: "each node".to_owned(),
                x: Axis::linear("time, s"),
                y: Axis::linear("share, tokens/s"),
                lines: (0..4).map(share).collect(),
            },
        ],
    }
}
