//! What the figures on Breakwater's testbed share: the plan, and the tuning of the baselines.
//!
//! The paper tunes every baseline for the most goodput, per workload, and SEDA also per number of
//! callers (§5.1). So do we, over the grids below, at 1.2 and 2 times the capacity, in runs as long as
//! those that are shown: two seconds to warm up, two measured. Quick figures tune with 50,000 or
//! 100,000 requests each. Breakwater has the paper's parameters and tide its defaults, everywhere.
//!
//! CoDel and windows are tuned at 1.4 times the capacity, as in the paper's Figure 1 (§2.2), the only
//! one that has them. They settle within a few round trips, so their runs are sized in requests.

use super::lab::{Grid, Lab, Runs, Source, Tuned, fair_goodput};
use crate::report::Report;

pub(super) const TESTBED: Source = Source {
    name: "breakwater-testbed",
    text: include_str!("../../../../plans/breakwater-testbed.toml"),
};

/// As DAGOR is called in Breakwater's figures: its authors' own form of it.
pub(super) const DAGOR: &str = "dagor-aimd";

/// Who takes part in a figure, ours first. The first four run for four seconds.
pub(super) const EVERYBODY: [&str; 8] =
    ["tide", "breakwater", DAGOR, "seda", "codel", "window", "open", "ideal"];

/// A service on which baselines are tuned.
#[derive(Clone, Copy, Debug)]
pub struct Bed<'a> {
    /// Its plan.
    pub source: Source,
    /// Requests per second it can serve.
    pub capacity: f64,
    /// How many callers it has.
    pub callers: u32,
    /// What is set otherwise than in the plan.
    pub sets: &'a [String],
    /// Whether a quick figure tries fewer values, at twice the capacity only.
    pub brief: bool,
}

/// The best parameters of the policies that need them, for so many callers of a service of 10 µs
/// with these values set.
pub(super) fn tuned(lab: &Lab<'_>, callers: u32, sets: &[String]) -> Tuned {
    tuned_for(lab, &Bed { source: TESTBED, capacity: 850_000.0, callers, sets, brief: false })
}

/// The same for any service.
pub(super) fn tuned_for(lab: &Lab<'_>, bed: &Bed<'_>) -> Tuned {
    tuned_dagor(lab, bed).and(tuned_seda(lab, bed))
}

/// The best parameters of one policy for a service; none where there is nothing that its paper tunes.
pub fn baseline(lab: &Lab<'_>, policy: &str, bed: &Bed<'_>) -> Option<Tuned> {
    match policy {
        DAGOR => Some(tuned_dagor(lab, bed)),
        "seda" => Some(tuned_seda(lab, bed)),
        "codel" | "window" => Some(tuned_alone_for(lab, policy, bed)),
        _ => None,
    }
}

fn tuned_dagor(lab: &Lab<'_>, bed: &Bed<'_>) -> Tuned {
    let threshold = "policies.dagor-aimd.gate.admission.detector.threshold";
    let thresholds = ["0.2 slo", "0.4 slo", "0.3 slo"];
    let thresholds = if bed.is_brief(lab) { &thresholds[..2] } else { &thresholds[..] };
    let grid = Grid::new(&format!("dagor-aimd, {} callers", bed.callers));
    lab.tune(bed.source, &bed.trial(lab, DAGOR, &[]), &grid.axis(threshold, thresholds))
}

fn tuned_seda(lab: &Lab<'_>, bed: &Bed<'_>) -> Tuned {
    let share = bed.capacity / f64::from(bed.callers);
    let start = seda_start(share);
    let throttle = |key| format!("policies.seda.caller.throttle.{key}");
    // Breakwater's 40 per second is for 1,000 callers of 850 per second each; it has to shrink as they
    // grow in number.
    let scale = |step: f64| format!("{:.1}", step * share / 850.0);
    let steps = [scale(40.0), scale(10.0), scale(100.0)];
    let steps: Vec<&str> = steps.iter().map(String::as_str).collect();
    let steps = if bed.is_brief(lab) { &steps[..1] } else { &steps[..] };
    let downs: &[&str] = if lab.quick { &["1.005", "1.04"] } else { &["1.005", "1.04", "1.3"] };
    let grid = Grid::new(&format!("seda, {} callers", bed.callers))
        .axis(&throttle("adj_i"), steps)
        .axis(&throttle("adj_d"), downs);
    let seda = lab.tune(bed.source, &bed.trial(lab, "seda", &start), &grid);
    Tuned { sets: start, note: String::new() }.and(seda)
}

impl Bed<'_> {
    fn is_brief(&self, lab: &Lab<'_>) -> bool {
        self.brief && lab.quick
    }

    /// The runs in which a policy's values are compared, with `more` set.
    fn trial(&self, lab: &Lab<'_>, policy: &str, more: &[String]) -> Vec<String> {
        let brief = self.is_brief(lab);
        let mut sets = lab.four_seconds(if brief { 50_000 } else { 100_000 });
        sets.extend(self.sets.iter().cloned());
        let loads = if brief { "load=[2.0]" } else { "load=[1.2,2.0]" };
        sets.extend([loads.to_owned(), format!("callers={}", self.callers)]);
        sets.push(format!("policy={policy}"));
        sets.extend(more.iter().cloned());
        sets
    }
}

/// The best target of CoDel or steps of the window, at 1.4 times the capacity of the testbed.
pub(super) fn tuned_alone(lab: &Lab<'_>, policy: &str, callers: u32) -> Tuned {
    let bed = Bed { source: TESTBED, capacity: 850_000.0, callers, sets: &[], brief: false };
    tuned_alone_for(lab, policy, &bed)
}

fn tuned_alone_for(lab: &Lab<'_>, policy: &str, bed: &Bed<'_>) -> Tuned {
    let Bed { source, callers, sets, brief, .. } = bed;
    let grid = Grid::new(&format!("{policy}, {callers} callers"));
    let grid = if policy == "codel" {
        grid.axis("policies.codel.gate.admission.target", &["0.2 slo", "0.4 slo", "0.6 slo"])
    } else {
        grid.axis("policies.window.caller.throttle.increase", &["0.1", "1.0"])
            .axis("policies.window.caller.throttle.decrease", &["0.5", "0.9"])
    };
    let mut all = lab.requests(if *brief { 20_000 } else { 60_000 }, 400_000);
    all.extend(sets.iter().cloned());
    all.extend([format!("policy={policy}"), "load=1.4".to_owned(), format!("callers={callers}")]);
    lab.tune(*source, &all, &grid)
}

/// Those that control nothing or at one end only (CoDel at the server, windows at callers), tuned, and
/// `ideal`, with these values.
pub(super) fn others(lab: &Lab<'_>, bed: &Bed<'_>, sets: &[String]) -> (Runs, Tuned) {
    let tuned = |policy| tuned_alone_for(lab, policy, bed);
    let tuned = tuned("codel").and(tuned("window"));
    let mut all = lab.requests(60_000, 400_000);
    all.push(format!("policy={:?}", &EVERYBODY[4..7]));
    all.extend(sets.iter().chain(&tuned.sets).cloned());
    (lab.run(bed.source, &all).and(ideal(lab, bed.source, sets)), tuned)
}

/// `ideal` with these values: the best of all windows, in 40,000 requests or, in full, 400,000.
pub(super) fn ideal(lab: &Lab<'_>, source: Source, sets: &[String]) -> Runs {
    let mut all = sets.to_vec();
    all.extend(lab.requests(40_000, 400_000));
    all.push("policy=[\"ideal\"]".to_owned());
    lab.run(source, &all)
}

/// By how much `told` with the best of its choices is below ideal, of capacity: 1,000 callers that hear with their answers cannot be nearer.
pub(super) fn told_regret(
    lab: &Lab<'_>,
    source: Source,
    ideal: &Report,
    mean_us: f64,
    sets: &[String],
) -> f64 {
    let choices =
        Grid::new("told").axis("told.offer", &["1.02", "1.06"]).axis("told.room", &["0.5", "0.6"]);
    let mut all = sets.to_vec();
    all.extend(lab.requests(60_000, 400_000));
    // The best of several would else be the luckiest.
    all.extend(["policy=[\"told\"]".to_owned(), "seeds=4".to_owned()]);
    let fair = |run: &Report| fair_goodput(run, mean_us, MESSAGES_US);
    let runs = lab.run_each(source, &all, &choices.sets(), None);
    let best = runs.iter().map(|runs| fair(&runs.mean().0[0])).fold(f64::MIN, f64::max);
    fair(ideal) - best
}

/// By how much tide is below ideal, of capacity, for a service of so many microseconds.
pub(super) fn regret(runs: &Runs, mean_us: f64, values: &[(&str, f64)]) -> f64 {
    let fair = |policy| fair_goodput(runs.get(policy, values), mean_us, MESSAGES_US);
    fair("ideal") - fair("tide")
}

/// What receiving and answering a request takes of a core.
const MESSAGES_US: f64 = 1.76;

/// SEDA's callers begin near their fair share. From the 2 to 4 requests per second of its code they
/// all overshoot at once and take seconds to come back, which says nothing about its steady state.
fn seda_start(share: f64) -> Vec<String> {
    vec![
        format!("policies.seda.caller.throttle.start_low={:.1}", (0.4 * share).max(2.0)),
        format!("policies.seda.caller.throttle.start_high={:.1}", (0.9 * share).max(4.0)),
    ]
}

/// A policy `name` that is Breakwater with some parameters otherwise: of its gate, and of its
/// callers' throttle.
pub(super) fn variant(name: &str, gate: &[(&str, &str)], throttle: &[(&str, &str)]) -> Vec<String> {
    let admission = [
        ("policy", "breakwater"),
        ("target", "0.4 slo"),
        ("drop", "0.8 slo"),
        ("period", "0.05 slo"),
    ];
    let set =
        |place: &str, (key, value): &(&str, &str)| format!("policies.{name}.{place}.{key}={value}");
    let gate = admission.iter().chain(gate).map(|pair| set("gate.admission", pair));
    let credit = [("throttle", "credit")];
    let caller = credit.iter().chain(throttle).map(|pair| set("caller.throttle", pair));
    gate.chain(caller).collect()
}
