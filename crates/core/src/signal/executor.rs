//! Executor load average ("Handling Overload", Utilization Signals).
//!
//! The load of an executor is how much of it wants to run: what runs now and what is ready to. It
//! is smoothed so that a short burst of fan-out does not look like overload, and compared with how
//! much can run at once. In async code that means tasks, not threads: a runtime's worker threads
//! are always as many as its cores, however long its run queue is.

use crate::time::{Instant, Span};

/// Running and runnable tasks, smoothed over time.
#[derive(Clone, Debug)]
pub struct ExecutorLoad {
    /// Tasks that can run at once.
    workers: f64,
    smoothing: Span,
    load: f64,
    /// The latest sample, none before the first.
    sampled: Option<Instant>,
}

impl ExecutorLoad {
    /// An executor with `workers` threads, at least one. A change of load shows to 63 % after
    /// `smoothing`; zero smooths nothing.
    pub fn new(workers: u32, smoothing: Span) -> Self {
        Self { workers: f64::from(workers.max(1)), smoothing, load: 0.0, sampled: None }
    }

    /// Takes a sample: tasks that run, on average since the last one, and tasks that are ready to.
    pub fn add(&mut self, now: Instant, running: f64, runnable: u32) {
        let sample = running.max(0.0) + f64::from(runnable);
        // Weighing by elapsed time makes the result independent of how often samples come.
        let weight = self.sampled.map_or(1.0, |sampled| {
            let elapsed = now.since(sampled).as_secs_f64();
            let smoothing = self.smoothing.as_secs_f64();
            if smoothing > 0.0 { -(-elapsed / smoothing).exp_m1() } else { 1.0 }
        });
        self.load += weight * (sample - self.load);
        self.sampled = Some(self.sampled.map_or(now, |sampled| sampled.max(now)));
    }

    /// Tasks that run or want to, smoothed; none before the first sample.
    pub fn load(&self) -> Option<f64> {
        self.sampled.map(|_| self.load)
    }

    /// The load per worker: 1 when all are busy and nothing waits.
    pub fn utilization(&self) -> Option<f64> {
        self.load().map(|load| load / self.workers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Instant {
        Instant::ZERO + Span::from_millis(millis)
    }

    #[test]
    fn what_waits_to_run_counts_like_what_runs() {
        let mut load = ExecutorLoad::new(4, Span::from_secs(1));
        assert_eq!(load.utilization(), None);
        load.add(at(0), 4.0, 12);
        assert_eq!((load.load(), load.utilization()), (Some(16.0), Some(4.0)));
    }

    #[test]
    fn a_burst_is_smoothed_and_a_change_followed() {
        let mut load = ExecutorLoad::new(1, Span::from_secs(1));
        load.add(at(0), 0.0, 0);
        load.add(at(10), 1.0, 99);
        assert!(load.load().unwrap() < 1.0, "a burst of 10 ms: {load:?}");
        load.add(at(1_010), 1.0, 99);
        let followed = load.load().unwrap();
        assert!((followed - 63.5).abs() < 0.5, "{followed}");
    }

    /// Sampling more often must not change what is measured.
    #[test]
    fn the_sampling_rate_does_not_matter() {
        let (mut often, mut rarely) =
            (ExecutorLoad::new(1, Span::from_secs(1)), ExecutorLoad::new(1, Span::from_secs(1)));
        often.add(at(0), 0.0, 0);
        rarely.add(at(0), 0.0, 0);
        for n in 1..=1_000 {
            often.add(at(n), 1.0, 4);
        }
        rarely.add(at(1_000), 1.0, 4);
        assert!((often.load - rarely.load).abs() < 1e-9, "{often:?} {rarely:?}");
        often.add(at(500), 1.0, 4);
        assert_eq!(often.sampled, Some(at(1_000)), "time going backwards is no time");
    }
}
