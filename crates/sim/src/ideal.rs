//! The yardstick: what a gate could do that knows everything at once and refuses for nothing.
//!
//! One window for the whole system: a request is submitted while fewer than so many are inside, and
//! turned away at the caller otherwise, without any message. What remains is the choice of the
//! size: more keeps cores busier and makes more answers late. The best is the largest goodput with a 99th
//! percentile within the SLO; where no window keeps that, because more than one request in a hundred takes
//! longer by itself, the largest goodput. Up to the best window goodput grows with it, beyond it falls, so
//! it is found by climbing. A request whose message is lost leaves the window at once: who knows everything
//! does not wait for what cannot come.

use std::collections::BTreeMap;

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

/// Requests that a trial measures: the 99th percentile is then known to about a percent. Before it, a tenth as many: it
/// knows everything at once, so all there is to warm up is to fill the window.
const TRIAL: f64 = 200_000.0;

/// The best window and what was measured with it.
fn best(scenario: &Scenario, seed: u64) -> (u32, Measure) {
    let measure = |scenario: &Scenario, window: u32| {
        let scenario = Scenario { window: Some(window), ..scenario.clone() };
        scenario.simulate(seed).expect("the open policy has no parameters")
    };
    let short = shortened(scenario);
    // What can be served within the SLO; there is never more than twice as much inside.
    let full = scenario.capacity() * scenario.slo.as_secs_f64();
    let (window, found) = climb(&windows(2.0 * full), 0.5 * full, scenario.slo, &|window| {
        measure(short.as_ref().unwrap_or(scenario), window)
    });
    (window, if short.is_some() { measure(scenario, window) } else { found })
}

/// Windows up to `most`, at least the first two. A tenth more or less is as good.
fn windows(most: f64) -> Vec<u32> {
    let larger = |window: &u32| Some(window + 1 + window / 10);
    let fits = |window: &u32| *window <= 2 || f64::from(*window) <= most;
    std::iter::successors(Some(1), larger).take_while(fits).collect()
}

/// The best of these windows, and what `trial` measured with it. From the one near `start` it goes to whichever of its
/// neighbours is better until none is, with large steps first.
fn climb(windows: &[u32], start: f64, slo: Span, trial: &dyn Fn(u32) -> Measure) -> (u32, Measure) {
    let mut tried: BTreeMap<usize, Measure> = BTreeMap::new();
    let mut worth = |place: usize| {
        let run = tried.entry(place).or_insert_with(|| trial(windows[place]));
        (run.latency.quantile(0.99) <= slo, run.window.get(Fact::Good))
    };
    let mut place = windows.partition_point(|window| f64::from(*window) < start);
    place = place.min(windows.len() - 1);
    for stride in [3, 1] {
        while let Some(better) = [place.checked_sub(stride), Some(place + stride)]
            .into_iter()
            .flatten()
            .filter(|other| *other < windows.len())
            .find(|other| worth(*other) > worth(place))
        {
            place = better;
        }
    }
    (windows[place], tried.remove(&place).expect("it was tried"))
}

/// The same with fewer requests, unless there are few or something changes over time, as where tenants come and go.
fn shortened(scenario: &Scenario) -> Option<Scenario> {
    let changes = !(scenario.faults.is_empty() && scenario.tenants.is_empty());
    let rate = scenario.workload.steady_rate().filter(|_| !changes)?;
    let time_of = |requests: f64| Span::from_nanos((requests / rate * 1e9) as u64);
    let measured = scenario.duration.saturating_sub(scenario.warmup).min(time_of(TRIAL));
    let warmup = scenario.warmup.min(time_of(TRIAL / 10.0));
    let duration = warmup + measured;
    (duration < scenario.duration).then(|| Scenario { warmup, duration, ..scenario.clone() })
}
