//! Progress metrics (Wisp §4.2): how much service a request has had, and how much its kind takes in all.
//!
//! 1. A process adds what it did itself to what its children report: a sum over the sub-tree.
//! 2. Service *time* of children that were called at the same time is divided by their number: the mean,
//!    since the largest would over-estimate what is to come on the other branches. *Work* is what it
//!    costs all resources together: a plain sum.
//! 3. Where the request entered, the sum of the whole tree is its total; an average over those of its
//!    workflow is sent along with the next ones.
//! 4. Remaining = total − elapsed, at any hop, for the orders `lstf` and `srtf`; total work for `sjf`, work
//!    so far for `lasf` (Table 2).
//!
//! Service, not latency: otherwise congestion would look like work.

use crate::context::{Progress, Workflow, Workflows};
use crate::signal::Ewma;
use crate::table;
use crate::time::Span;

/// Totals by workflow, learned from requests that were answered in full.
#[derive(Clone, Debug, Default)]
pub struct Totals {
    flows: Vec<Total>,
}

#[derive(Clone, Copy, Debug)]
struct Total {
    time: Ewma,
    work: Ewma,
}

impl Total {
    /// Weight of a new request, as for costs: follows a change within some fifty.
    const GAIN: f64 = 1.0 / 32.0;
}

impl Totals {
    /// A request was answered in full; this is what its whole tree took.
    pub fn learn(&mut self, workflow: Workflow, tree: &Progress) {
        let place = usize::from(workflow.0).min(Workflows::LIMIT);
        let new = Total { time: Ewma::new(Total::GAIN), work: Ewma::new(Total::GAIN) };
        let flow = table::at(&mut self.flows, place, || new);
        flow.time.add(tree.elapsed.as_nanos_f64());
        flow.work.add(f64::from(tree.work));
    }

    /// Fills in the totals of a request that comes without, if they are known.
    pub fn fill_in(&self, workflow: Workflow, progress: &mut Progress) {
        let Some(flow) = self.flows.get(usize::from(workflow.0).min(Workflows::LIMIT)) else {
            return;
        };
        if progress.total == Span::ZERO {
            progress.total = Span::from_nanos(flow.time.get().unwrap_or(0.0) as u64);
        }
        if progress.total_work == 0 {
            progress.total_work = flow.work.get().unwrap_or(0.0) as u32;
        }
    }
}

impl Progress {
    /// A step of the request's own has taken `time`.
    pub fn add_step(&mut self, time: Span) {
        self.elapsed += time;
        self.work = self.work.saturating_add((time.as_nanos() / 1_000) as u32);
    }

    /// A child, one of `parallel` that were called at the same time, reports what its sub-tree took.
    pub fn add_child(&mut self, child: &Self, parallel: u32) {
        self.elapsed += Span::from_nanos(child.elapsed.as_nanos() / u64::from(parallel.max(1)));
        self.work = self.work.saturating_add(child.work);
    }

    /// What it came with and what was done since.
    #[must_use]
    pub fn plus(&self, done: &Self) -> Self {
        Self {
            elapsed: self.elapsed + done.elapsed,
            work: self.work.saturating_add(done.work),
            ..*self
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const W: Workflow = Workflow(2);

    #[test]
    fn children_in_a_row_add_up_and_children_at_once_count_once() {
        let child = Progress { elapsed: Span::from_millis(6), work: 6_000, ..Progress::default() };
        let mut tree = Progress::default();
        tree.add_step(Span::from_millis(2));
        tree.add_child(&child, 1);
        for _ in 0..3 {
            tree.add_child(&child, 3);
        }
        assert_eq!((tree.elapsed, tree.work), (Span::from_millis(14), 26_000));
    }

    #[test]
    fn totals_are_learned_and_filled_in_once() {
        let mut totals = Totals::default();
        let mut progress = Progress::default();
        totals.fill_in(W, &mut progress);
        assert_eq!(progress, Progress::default());
        totals.learn(W, &Progress { elapsed: Span::from_millis(40), work: 9, ..progress });
        totals.fill_in(W, &mut progress);
        assert_eq!((progress.total, progress.total_work), (Span::from_millis(40), 9));
        totals.learn(W, &Progress { elapsed: Span::from_secs(40), work: 90, ..progress });
        totals.fill_in(W, &mut progress);
        assert_eq!(progress.total, Span::from_millis(40), "what travels is not changed");
        totals.fill_in(Workflow(1), &mut Progress::default());
    }

    #[derive(Clone, Debug)]
    struct Tree {
        step: u64,
        stages: Vec<Vec<Self>>,
    }

    fn trees() -> impl Strategy<Value = Tree> {
        let leaf = (0..50u64).prop_map(|step| Tree { step, stages: Vec::new() });
        leaf.prop_recursive(3, 24, 3, |inner| {
            let stages = prop::collection::vec(prop::collection::vec(inner, 1..4), 0..3);
            (0..50u64, stages).prop_map(|(step, stages)| Tree { step, stages })
        })
    }

    fn measured(tree: &Tree) -> Progress {
        let mut progress = Progress::default();
        progress.add_step(Span::from_millis(tree.step));
        for stage in &tree.stages {
            for child in stage {
                progress.add_child(&measured(child), stage.len() as u32);
            }
        }
        progress
    }

    fn expected(tree: &Tree) -> (f64, u64) {
        let (mut time, mut work) = (tree.step as f64, tree.step);
        for stage in &tree.stages {
            let of: Vec<(f64, u64)> = stage.iter().map(expected).collect();
            time += of.iter().map(|(time, _)| time).sum::<f64>() / of.len() as f64;
            work += of.iter().map(|(_, work)| work).sum::<u64>();
        }
        (time, work)
    }

    proptest! {
        #[test]
        fn a_tree_sums_to_what_it_took(tree in trees()) {
            let (time, work) = expected(&tree);
            let found = measured(&tree);
            prop_assert!((found.elapsed.as_millis_f64() - time).abs() < 0.001);
            prop_assert_eq!(u64::from(found.work), work * 1_000);
        }
    }
}
