//! The yardstick: what a gate could do that knows everything at once and refuses for nothing.
//!
//! One window for the whole system: a request is submitted while fewer than so many are inside, and
//! turned away at the caller otherwise, without any message. What remains is the choice of the
//! size: more keeps cores busier and waits longer. The best is the largest goodput with a 99th
//! percentile within the SLO. Both grow with the window, so that is the largest window that keeps
//! the SLO; it is found by halving.

use crate::measure::{Fact, Measure};
use crate::plan::{Plan, Point};
use crate::report::Report;
use crate::world::Scenario;

/// Runs `point` with the best window.
pub fn run(plan: &Plan, point: &Point, seed: u64) -> Report {
    let mut point = point.clone();
    let (window, measure) = best(&point.scenario, seed);
    point.scenario.window = Some(window);
    Report::new(plan, &point, seed, measure)
}

/// The best window and what was measured with it.
fn best(scenario: &Scenario, seed: u64) -> (u32, Measure) {
    let measure = |window: u32| {
        let scenario = Scenario { window: Some(window), ..scenario.clone() };
        scenario.simulate(seed).expect("the open policy has no parameters")
    };
    let keeps = |measure: &Measure| measure.latency.quantile(0.99) <= scenario.slo;
    // Within the SLO there is never more inside than what can be served in twice that time.
    let mut high = (scenario.capacity() * scenario.slo.as_secs_f64() * 2.0).ceil().max(2.0) as u32;
    let most = measure(high);
    if keeps(&most) {
        return (high, most);
    }
    let (mut low, mut found) = (1, (1, measure(1)));
    if !keeps(&found.1) {
        return found;
    }
    // A window within one percent of the best is as good.
    while high - low > 1 + low / 100 {
        let middle = low + (high - low) / 2;
        let run = measure(middle);
        if keeps(&run) {
            low = middle;
            // Where the tail is heavy, p99 may stay while goodput falls: keep the better one.
            if run.window.get(Fact::Good) >= found.1.window.get(Fact::Good) {
                found = (middle, run);
            }
        } else {
            high = middle;
        }
    }
    found
}
