//! What SRTM's figures share: six brokers, an objective of a millisecond, the papers' group sizes, three seeds.

use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use tidegate_core::Span;

use super::Outcome;
use super::chart::{Axis, Line, Panel};
use super::claim::{Claim, Unit};
use super::lab::Lab;
use crate::broker::testbed::{Found, Testbed};
use crate::broker::traffic::{Pattern, Topic};

/// Both ways of sending, as they are called in figures.
pub(super) const PATTERNS: [(Pattern, &str); 2] =
    [(Pattern::Poisson, "Poisson"), (Pattern::Periodic, "periodic")];
/// No broker has anything else to do.
pub(super) const IDLE: [f64; 6] = [0.0; 6];
/// SRTM §VI-D: sizes of groups that send together.
pub(super) const GROUPS: [u32; 6] = [5, 10, 15, 20, 25, 30];
/// How long a measurement round is, as in the paper. Groups are few, so their tails take as long to show.
pub(super) const ROUND: Span = Span::from_secs(60);

/// Milliseconds.
pub(super) fn millis(span: Span) -> f64 {
    span.as_millis_f64()
}

/// Does `work` for each of `points`, on the lab's threads; the answers in the order of the points.
pub(super) fn each<T: Sync, R: Send>(
    lab: &Lab<'_>,
    points: &[T],
    work: impl Fn(&T) -> R + Sync,
) -> Vec<R> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = if lab.threads == 0 { cores } else { lab.threads };
    let (next, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let answers = Mutex::new(Vec::with_capacity(points.len()));
    let progress = lab.progress;
    std::thread::scope(|scope| {
        for _ in 0..threads.min(points.len()) {
            scope.spawn(|| {
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    let Some(point) = points.get(at) else { break };
                    let answer = work(point);
                    answers.lock().expect("a panic ends the run").push((at, answer));
                    progress(done.fetch_add(1, Ordering::Relaxed) + 1, points.len());
                }
            });
        }
    });
    let mut answers = answers.into_inner().expect("a panic ends the run");
    answers.sort_by_key(|(at, _)| *at);
    answers.into_iter().map(|(_, answer)| answer).collect()
}

/// Seeds of a figure: one quick, three in full.
pub(super) fn seeds(lab: &Lab<'_>) -> Range<u64> {
    lab.seed..lab.seed + if lab.quick { 1 } else { 3 }
}

/// Makes a figure with each of the seeds. Of a claim the worst is told; pictures are of the first seed.
pub(super) fn over_seeds(lab: &Lab<'_>, make: fn(&Lab<'_>) -> Outcome) -> Outcome {
    let mut outcomes =
        seeds(lab).map(|seed| make(&Lab::new(lab.quick, seed, lab.threads, lab.progress)));
    let mut worst = outcomes.next().expect("at least one seed");
    for outcome in outcomes {
        let both = worst.claims.into_iter().zip(outcome.claims);
        worst.claims = both.map(|(one, other)| one.worse(other)).collect();
    }
    worst
}

/// Placements of a topic whose publishers send each on its own: the two of the paper, and ours (Figures 5 and 6).
pub(super) struct Alone {
    pub(super) pattern: Pattern,
    pub(super) batch: u32,
    pub(super) publishers: u32,
    /// By seed.
    pub(super) found: Vec<[Found; 3]>,
}

impl Alone {
    /// A value of one of them, the mean over the seeds.
    pub(super) fn of(&self, which: usize, value: fn(&Found) -> f64) -> f64 {
        let sum: f64 = self.found.iter().map(|found| value(&found[which])).sum();
        sum / self.found.len() as f64
    }
}

/// For both patterns and batches of one and ten, topics of these sizes.
pub(super) fn alone(
    lab: &Lab<'_>,
    seeds: Range<u64>,
    loads: &[f64],
    sizes: &[u32],
    span: Span,
    find: impl Fn(&Testbed) -> [Found; 3] + Sync,
) -> Vec<Alone> {
    let mut points = Vec::new();
    for (pattern, _) in PATTERNS {
        for batch in [1, 10] {
            points.extend(sizes.iter().map(|size| (pattern, batch, *size)));
        }
    }
    each(lab, &points, |&(pattern, batch, publishers)| {
        let topic = Topic::alone(publishers, batch, pattern);
        let found = |seed| find(&Testbed::new(topic, loads, seed, span));
        Alone { pattern, batch, publishers, found: seeds.clone().map(found).collect() }
    })
}

/// Brokers in use.
pub(super) fn brokers(found: &Found) -> f64 {
    found.brokers as f64
}

/// How many brokers each of them has, and the 99th percentile of the worst.
pub(super) fn alone_notes(alone: &[Alone], names: [&str; 3]) -> Vec<String> {
    let line = |at: &Alone| {
        let Alone { pattern, batch, publishers, .. } = at;
        let on = |which: usize| {
            let (on, late) = (at.of(which, brokers), at.of(which, worst));
            format!("{} on {on:.1}, {late:.2} ms", names[which])
        };
        let on = [0, 1, 2].map(on).join("; ");
        format!("{pattern:?}, batch {batch}, {publishers} publishers: {on}")
    };
    alone.iter().map(line).collect()
}

/// A panel per pattern and batch.
pub(super) fn alone_panels(
    alone: &[Alone],
    names: [&str; 3],
    y: &Axis,
    value: fn(&Found) -> f64,
) -> Vec<Panel> {
    let mut panels = Vec::new();
    for (pattern, name) in PATTERNS {
        for batch in [1, 10] {
            let line = |which: usize| {
                let here = alone.iter().filter(|at| at.pattern == pattern && at.batch == batch);
                let point = |at: &Alone| (f64::from(at.publishers), at.of(which, value));
                Line::new(names[which], here.map(point).collect())
            };
            panels.push(Panel {
                title: format!("{name}, batch {batch}"),
                x: Axis::linear("publishers"),
                y: y.clone(),
                lines: [0, 1, 2].map(line).into(),
            });
        }
    }
    panels
}

/// Three placements of a topic with groups, blind to them, fitted and planned (Figures 7 and 9).
pub(super) struct Trio {
    pub(super) pattern: Pattern,
    /// What is varied.
    pub(super) at: u32,
    pub(super) max_min: Found,
    pub(super) fitted: Found,
    pub(super) planned: Found,
}

/// For both patterns, the topics that `topic` makes of these values.
pub(super) fn trios(
    lab: &Lab<'_>,
    values: &[u32],
    topic: impl Fn(u32, Pattern) -> Topic + Sync,
) -> Vec<Trio> {
    let seed = lab.seed;
    let points: Vec<(Pattern, u32)> =
        PATTERNS.iter().flat_map(|with| values.iter().map(|at| (with.0, *at))).collect();
    each(lab, &points, |&(pattern, at)| {
        let testbed = Testbed::new(topic(at, pattern), &IDLE, seed, ROUND);
        let (max_min, fitted, planned) = (testbed.max_min(), testbed.fit(), testbed.plan());
        Trio { pattern, at, max_min, fitted, planned }
    })
}

/// What the planner claims wherever `plans` were made, each beside what another way, called `than`, found: the
/// objective met, by one measurement, on no more brokers. Without a plan, nothing is shown.
pub(super) fn planner_claims(name: &str, than: &str, plans: &[(&Found, &Found)]) -> [Claim; 3] {
    let most = |value: fn(&Found, &Found) -> f64| {
        let values = plans.iter().map(|(planned, other)| value(planned, other));
        values.reduce(f64::max).unwrap_or(f64::NAN)
    };
    let more = most(|planned, other| brokers(planned) - brokers(other));
    let late = most(|planned, _| worst(planned)) * 1e3;
    [
        Claim::at_most(&format!("{name}: planned, worst p99"), Unit::Micros, late, 1_000.0),
        Claim::at_most(
            &format!("{name}: planned, rounds, most"),
            Unit::Count,
            most(|planned, _| rounds(planned)),
            1.0,
        ),
        Claim::at_most(
            &format!("{name}: planned, brokers more than {than}'s, most"),
            Unit::Count,
            more,
            0.0,
        ),
    ]
}

/// Measurements it took.
pub(super) fn rounds(found: &Found) -> f64 {
    found.rounds.iter().map(|rounds| f64::from(*rounds)).sum()
}

/// The 99th percentile of the worst broker, in milliseconds.
pub(super) fn worst(found: &Found) -> f64 {
    millis(found.latency.worst)
}

/// How many brokers each of the three has, where `what` was varied.
pub(super) fn trio_notes(trios: &[Trio], what: &str) -> Vec<String> {
    let line = |trio: &Trio| {
        let Trio { pattern, at, max_min, fitted, planned } = trio;
        format!(
            "{pattern:?}, {what} {at}: brokers of Max-Min {}, SRTM {}, planned {}",
            max_min.brokers, fitted.brokers, planned.brokers
        )
    };
    trios.iter().map(line).collect()
}

/// A panel per pattern, over what was varied.
pub(super) fn trio_panels(trios: &[Trio], x: &str) -> Vec<Panel> {
    let panel = |(pattern, name): (Pattern, &str)| {
        let line = |name: &str, found: fn(&Trio) -> &Found| {
            let here = trios.iter().filter(|trio| trio.pattern == pattern);
            let point = |trio: &Trio| (f64::from(trio.at), worst(found(trio)));
            Line::new(name, here.map(point).collect())
        };
        Panel {
            title: name.to_owned(),
            x: Axis::linear(x),
            y: Axis::linear("p99 of the worst broker, ms").up_to(2.0),
            lines: vec![
                line("planned", |trio| &trio.planned),
                line("SRTM", |trio| &trio.fitted),
                line("Max-Min", |trio| &trio.max_min),
            ],
        }
    };
    PATTERNS.map(panel).into()
}
