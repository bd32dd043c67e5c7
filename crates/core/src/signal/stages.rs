//! The delay of the stages a request passes outside the gate's own queue (kernel, parser, run queue).
//!
//! A stage may have parallel queues, one per core or connection: a request is in one of them, so the
//! longest counts. Stages follow each other, so they add up (Breakwater §3.1).

use crate::table;
use crate::time::Span;

/// Delay by stage and parallel queue.
#[derive(Clone, Debug, Default)]
pub struct Stages {
    stages: Vec<Vec<Span>>,
}

impl Stages {
    /// Most stages and queues per stage; what is beyond is counted with the last.
    pub const LIMIT: usize = 1024;

    /// The delay of one queue has changed; zero when it is empty.
    pub fn set(&mut self, stage: usize, queue: usize, delay: Span) {
        let (stage, queue) = (stage.min(Self::LIMIT - 1), queue.min(Self::LIMIT - 1));
        let queues = table::at(&mut self.stages, stage, Vec::new);
        *table::at(queues, queue, || Span::ZERO) = delay;
    }

    /// The delay of all stages together, for `Gate::on_stage_delay`.
    pub fn delay(&self) -> Span {
        let longest = |queues: &Vec<Span>| queues.iter().copied().max().unwrap_or_default();
        self.stages.iter().map(longest).fold(Span::ZERO, |sum, delay| sum + delay)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_of_parallel_queues_summed_over_stages() {
        let mut stages = Stages::default();
        assert_eq!(stages.delay(), Span::ZERO);
        for (stage, queue, micros) in [(0, 0, 5), (0, 3, 9), (2, 1, 20), (2, 0, 1)] {
            stages.set(stage, queue, Span::from_micros(micros));
        }
        assert_eq!(stages.delay(), Span::from_micros(29));
        stages.set(0, 3, Span::ZERO);
        assert_eq!(stages.delay(), Span::from_micros(25));
    }
}
