//! A swarm of plans that nobody has tuned to, and how far each policy stays below what is possible.
//!
//! [`draw()`] says what is drawn and from where, [`Judged`] how a plan is judged. All policies meet the same requests;
//! the same seed gives the same swarm.

mod draw;
mod judge;
mod show;

use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::command::run_point;
use crate::plan::{Plan, PlanError};

pub use draw::{Drawn, draw};
pub use judge::{Judged, Seen};
pub use show::{json, table};

/// What is to be simulated.
#[derive(Clone, Debug)]
pub struct Options {
    /// How many plans.
    pub plans: usize,
    /// What they are drawn by.
    pub seed: u64,
    /// Names of policies of [`STANDARD`](crate::plan::STANDARD), the one in question first.
    pub policies: Vec<String>,
    /// Threads to use.
    pub threads: usize,
}

/// Draws, simulates and judges. `progress` hears how many plans are done.
pub fn run(options: &Options, progress: impl Fn(usize) + Sync) -> Result<Vec<Judged>, PlanError> {
    let (next, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let found = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..options.threads.max(1) {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= options.plans {
                        break;
                    }
                    let judged = run_one(options, number);
                    found.lock().expect("no thread panics while it holds this").push(judged);
                    progress(done.fetch_add(1, Ordering::Relaxed) + 1);
                }
            });
        }
    });
    let found = found.into_inner().expect("no thread panicked");
    let mut judged = found.into_iter().collect::<Result<Vec<_>, _>>()?;
    judged.sort_by_key(|plan| plan.number);
    Ok(judged)
}

/// One plan of the swarm.
fn run_one(options: &Options, number: usize) -> Result<Judged, PlanError> {
    let mut policies = options.policies.clone();
    policies.push("ideal".to_owned());
    let drawn = draw(options.seed, number, &policies);
    let plan = Plan::parse(&format!("swarm-{number}"), &drawn.text, &[], Path::new(""))?;
    let reports: Vec<_> =
        plan.points.iter().map(|point| run_point(&plan, point, plan.seed)).collect();
    let slo_us = plan.points[0].scenario.slo.as_micros_f64();
    Ok(Judged::new(number, drawn, slo_us, &reports))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_plan_can_be_read_and_measures_enough() {
        for number in 0..500 {
            let drawn = draw(7, number, &["tide".to_owned(), "seda".to_owned()]);
            let plan = Plan::parse("drawn", &drawn.text, &[], Path::new(""));
            let plan = plan.unwrap_or_else(|error| panic!("{error}\n{}", drawn.text));
            let scenario = &plan.points[0].scenario;
            let capacity = scenario.capacity();
            let seconds = scenario.duration.saturating_sub(scenario.warmup).as_secs_f64();
            assert!(capacity * seconds * drawn.loads[0].min(1.0) >= 19_990.0, "{}", drawn.text);
            assert!(seconds >= 19.9 * scenario.slo.as_secs_f64(), "{}", drawn.text);
            if !drawn.graph {
                let own = drawn.cores / drawn.core_time;
                assert!((own / capacity - 1.0).abs() < 1e-3, "{own} {}", drawn.text);
            }
        }
    }

    #[test]
    fn the_same_seed_gives_the_same_swarm() {
        let texts = |seed| (0..20).map(|n| draw(seed, n, &[]).text).collect::<Vec<_>>();
        assert_eq!(texts(3), texts(3));
        assert_ne!(texts(3), texts(4));
    }
}
