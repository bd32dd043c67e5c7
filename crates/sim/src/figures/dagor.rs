//! What the figures on DAGOR's testbed share: the tuning of all but tide.
//!
//! The paper fixes 20 ms for DAGOR's own threshold (§4.1) and says nothing about the values of CoDel
//! and SEDA. Each is tuned for the most goodput with the tasks of the figure, at the demand at which
//! its claims are checked, over the grids below. tide has its defaults, and an objective for a single
//! call. In Figure 6, which compares thresholds, nothing is tuned.

use super::lab::{Grid, Lab, Source};

/// A workload that baselines are tuned for.
pub(super) struct Tasks<'a> {
    /// Its plan.
    pub(super) source: Source,
    /// How much of it, and of which kind.
    pub(super) sets: &'a [String],
}

/// The parameter of a baseline that is chosen, and from what.
fn choice(policy: &str) -> (&'static str, &'static [&'static str]) {
    match policy {
        "codel" => ("gate.admission.target", &["5ms", "10ms", "20ms", "40ms"]),
        // Of a response, not of waiting: tasks have 500 ms.
        "seda" => ("gate.admission.target", &["100ms", "200ms", "400ms"]),
        _ => ("gate.admission.detector.threshold", &["10ms", "20ms", "40ms", "80ms"]),
    }
}

/// What to set so that each of these policies has its best, and what was chosen, in a line each.
pub(super) fn tuned(
    lab: &Lab<'_>,
    tasks: &Tasks<'_>,
    policies: &[&str],
) -> (Vec<String>, Vec<String>) {
    // DAGOR moves once a second, by 5 %: from everybody to half in a quarter of a minute.
    let times = if lab.quick { ["30s", "60s"] } else { ["60s", "160s"] };
    let (mut sets, mut notes) = (Vec::new(), Vec::new());
    for policy in policies {
        let mut here = tasks.sets.to_vec();
        here.push(format!("policy={policy}"));
        here.extend([format!("warmup={}", times[0]), format!("duration={}", times[1])]);
        let (path, values) = choice(policy);
        let grid = Grid::new(policy).axis(&format!("policies.{policy}.{path}"), values);
        let best = lab.tune(tasks.source, &here, &grid);
        sets.extend(best.sets);
        notes.push(best.note);
    }
    (sets, notes)
}
