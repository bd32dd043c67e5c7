//! What SRTM's figures share: six brokers, an objective of a millisecond, the papers' group sizes.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use tidegate_core::Span;

use super::lab::Lab;
use crate::broker::traffic::Pattern;

/// Both ways of sending, as they are called in figures.
pub(super) const PATTERNS: [(Pattern, &str); 2] =
    [(Pattern::Poisson, "Poisson"), (Pattern::Periodic, "periodic")];
/// No broker has anything else to do.
pub(super) const IDLE: [f64; 6] = [0.0; 6];
/// SRTM §VI-D: sizes of groups that send together.
pub(super) const GROUPS: [u32; 6] = [5, 10, 15, 20, 25, 30];
/// How long a measurement round is in the paper, in seconds.
pub(super) const ROUND_S: f64 = 60.0;

/// How long a recording of a topic with groups is: a minute, as in the paper. Groups are few, so their
/// tails take as long to show.
pub(super) fn rounds_of(lab: &Lab<'_>) -> Span {
    Span::from_secs(if lab.quick { 30 } else { 60 })
}

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
