//! What the figures on Breakwater's testbed share: the plan, and the tuning of the baselines.
//!
//! The paper tunes every baseline for the most goodput, per workload, and SEDA also per number of
//! callers (§5.1). So do we, over the grids below, at 1.2 and 2 times the capacity. Breakwater has
//! the paper's parameters and tide its defaults, everywhere.

use super::lab::{Grid, Lab, Source, Tuned};

pub(super) const TESTBED: Source = Source {
    name: "breakwater-testbed",
    text: include_str!("../../../../plans/breakwater-testbed.toml"),
};

/// Requests per second the testbed can serve.
const CAPACITY: f64 = 850_000.0;

/// As DAGOR is called in Breakwater's figures: its authors' own form of it.
pub(super) const DAGOR: &str = "dagor-aimd";

/// The best parameters of the policies that need them, for so many callers of a service with these
/// values set.
pub(super) fn tuned(lab: &Lab<'_>, callers: u32, sets: &[String]) -> Tuned {
    let mut common = lab.requests(100_000, 400_000);
    common.extend(sets.iter().cloned());
    common.extend(["load=[1.2,2.0]".to_owned(), format!("callers={callers}")]);
    let with = |policy: &str, more: Vec<String>| {
        let mut sets = common.clone();
        sets.push(format!("policy={policy}"));
        sets.extend(more);
        sets
    };
    let title = format!("dagor-aimd, {callers} callers");
    let threshold = "policies.dagor-aimd.gate.admission.detector.threshold";
    let grid = Grid::new(&title).axis(threshold, &["40us", "60us", "80us"]);
    let dagor = lab.tune(TESTBED, &with(DAGOR, Vec::new()), &grid);
    let start = seda_start(callers);
    let throttle = |key| format!("policies.seda.caller.throttle.{key}");
    // Breakwater's 40 is for 1,000 callers; it has to shrink as they grow in number.
    let scale = |step: f64| format!("{:.1}", step * 1000.0 / f64::from(callers));
    let steps = [scale(10.0), scale(40.0), scale(100.0)];
    let grid = Grid::new(&format!("seda, {callers} callers"))
        .axis(&throttle("adj_i"), &[&steps[0], &steps[1], &steps[2]])
        .axis(&throttle("adj_d"), &["1.005", "1.04"]);
    let seda = lab.tune(TESTBED, &with("seda", start.clone()), &grid);
    let sets = [dagor.sets, start, seda.sets].concat();
    Tuned { sets, note: format!("{}; {}", dagor.note, seda.note) }
}

/// SEDA's callers begin near their fair share. From the 2 to 4 requests per second of its code they
/// all overshoot at once and take seconds to come back, which says nothing about its steady state.
fn seda_start(callers: u32) -> Vec<String> {
    let share = CAPACITY / f64::from(callers);
    vec![
        format!("policies.seda.caller.throttle.start_low={:.1}", (0.4 * share).max(2.0)),
        format!("policies.seda.caller.throttle.start_high={:.1}", (0.9 * share).max(4.0)),
    ]
}
