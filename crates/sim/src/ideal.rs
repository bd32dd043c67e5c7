//! The yardstick: what a gate could do that knows everything at once and refuses for nothing.
//!
//! One window for the whole system: a request is submitted while fewer than so many are inside, and
//! turned away at the caller otherwise, without any message. What remains is the choice of the
//! size: more keeps cores busier and waits longer. The best is the largest goodput with a 99th
//! percentile within the SLO. Both grow with the window, so that is the largest window that keeps
//! the SLO; it is found by halving. Where more than one request in a hundred takes longer than the SLO
//! by itself, no window keeps it: there the best is the largest goodput. A request whose message is lost
//! leaves the window at once: who knows everything does not wait for what cannot come.

use tidegate_core::Span;

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

/// Requests that a trial measures, and half as many to warm up: the 99th percentile is then known to
/// about a percent.
const TRIAL: f64 = 200_000.0;

/// The best window and what was measured with it.
fn best(scenario: &Scenario, seed: u64) -> (u32, Measure) {
    let measure = |scenario: &Scenario, window: u32| {
        let scenario = Scenario { window: Some(window), ..scenario.clone() };
        scenario.simulate(seed).expect("the open policy has no parameters")
    };
    let keeps = |measure: &Measure| measure.latency.quantile(0.99) <= scenario.slo;
    let trial = shortened(scenario);
    // Within the SLO there is never more inside than what can be served in twice that time.
    let most = (scenario.capacity() * scenario.slo.as_secs_f64() * 2.0).ceil().max(2.0) as u32;
    let mut high = most;
    let (mut low, mut found) = (1, (1, 0));
    if keeps(&measure(&trial, high)) {
        found.0 = high;
        low = high;
    }
    // A window within one percent of the best is as good.
    while high - low > 1 + low / 100 {
        let middle = low + (high - low) / 2;
        let run = measure(&trial, middle);
        if keeps(&run) {
            low = middle;
            // Where the tail is heavy, p99 may stay while goodput falls: keep the better one.
            let good = run.window.get(Fact::Good);
            if good >= found.1 {
                found = (middle, good);
            }
        } else {
            high = middle;
        }
    }
    if found == (1, 0) && !keeps(&measure(&trial, 1)) {
        found.0 = most_good(most, &|window| measure(&trial, window).window.get(Fact::Good));
    }
    (found.0, measure(scenario, found.0))
}

/// The window up to `most` with the largest goodput; a tenth more or less is as good.
fn most_good(most: u32, good: &dyn Fn(u32) -> u64) -> u32 {
    let larger = |window: &u32| Some(window + 1 + window / 10);
    let windows = std::iter::successors(Some(1), larger).take_while(|window| *window <= most);
    windows.max_by_key(|window| good(*window)).unwrap_or(1)
}

/// The same with fewer requests, if nothing changes over time, as tenants do that come and go.
fn shortened(scenario: &Scenario) -> Scenario {
    let mut trial = scenario.clone();
    let changes = !(scenario.faults.is_empty() && scenario.tenants.is_empty());
    let Some(rate) = scenario.workload.steady_rate().filter(|_| !changes) else {
        return trial;
    };
    let time_of = |requests: f64| Span::from_nanos((requests / rate * 1e9) as u64);
    let measured = scenario.duration.saturating_sub(scenario.warmup).min(time_of(TRIAL));
    trial.warmup = scenario.warmup.min(time_of(TRIAL / 2.0));
    trial.duration = trial.warmup + measured;
    trial
}
