//! DAGOR's Figure 6: queueing time tells overload from slowness, response time does not.
//!
//! A busy service with more threads than cores is slow before it is full, and its response time says
//! so, its queueing time does not. So the detector by response time sheds while there is room.
//!
//! Nothing is tuned. 20 ms of queueing is the paper's; 30 ms of response time stands for the 250 ms of
//! its longer service. With two calls the paper tries 150 and 350 ms as well (its Figure 6b). In that
//! ratio 18 ms would be less than one call takes, so we try 42 and 60 ms: A's own response is twice as
//! long then, and what is right for one kind of task sheds the other without any need.

use super::chart::{Axis, Chart, Line, Panel};
use super::claim::{Claim, Unit};
use super::lab::{Lab, Runs, Source};
use super::{Figure, Outcome};
use crate::report::Report;

pub(super) const FIGURE: Figure = Figure {
    name: "dagor-6",
    title: "Overload told by queueing time or by response time",
    source: "DAGOR §5.2, Figure 6",
    make,
};

const PLAN: Source =
    Source { name: "dagor-detector", text: include_str!("../../../../plans/dagor-detector.toml") };
/// Names of lines, and the thresholds of those by response time.
const QUEUEING: &str = "by queueing time";
const RESPONSE: [(&str, &str); 3] = [
    ("by response time, 30 ms", "30ms"),
    ("by response time, 42 ms", "42ms"),
    ("by response time, 60 ms", "60ms"),
];
/// Calls per task of the two parts.
const CALLS: [usize; 2] = [1, 2];

fn make(lab: &Lab<'_>) -> Outcome {
    let parts = CALLS.map(|calls| part(lab, calls));
    Outcome {
        claims: claims(&parts),
        charts: vec![chart(&parts)],
        measured: measured(&parts[1]),
        ..Outcome::default()
    }
}

/// Tasks of so many calls, by calls per second.
fn part(lab: &Lab<'_>, calls: usize) -> Runs {
    let rates: &[f64] = if lab.quick {
        &[250.0, 500.0, 700.0, 750.0, 1500.0]
    } else {
        &[250.0, 500.0, 630.0, 700.0, 750.0, 1000.0, 1500.0]
    };
    let tasks: Vec<f64> = rates.iter().map(|rate| rate / calls as f64).collect();
    let run = |policy: &str, name: &str, threshold: Option<&str>| {
        let mut sets = vec!["warmup=60s".to_owned(), "duration=160s".to_owned()];
        sets.extend([format!("policy={policy}"), format!("sweep.rate={tasks:?}")]);
        sets.push(format!("services.a.calls={:?}", vec!["m"; calls]));
        let path = "policies.dagor-response.gate.admission.detector.threshold";
        sets.extend(threshold.map(|threshold| format!("{path}={threshold}")));
        let mut runs = lab.run(PLAN, &sets);
        runs.0.iter_mut().for_each(|run| name.clone_into(&mut run.policy));
        runs
    };
    responses(calls)
        .iter()
        .map(|(name, threshold)| run("dagor-response", name, Some(threshold)))
        .fold(run("dagor", QUEUEING, None), Runs::and)
}

/// With one call the paper has one threshold only.
fn responses(calls: usize) -> &'static [(&'static str, &'static str)] {
    if calls == 1 { &RESPONSE[..1] } else { &RESPONSE }
}

fn success(run: &Report) -> f64 {
    run.goodput_rps / run.offered_rps
}

fn claims([once, twice]: &[Runs; 2]) -> Vec<Claim> {
    let at = |policy, rate| once.get(policy, &[("rate", rate)]);
    let lost = |policy, rate| 1.0 - success(at(policy, rate));
    let of_best = |policy| at(policy, 1500.0).goodput_rps / at(policy, 1500.0).capacity_rps;
    let response = RESPONSE[0].0;
    let ratio = at(QUEUEING, 750.0).goodput_rps / at(response, 750.0).goodput_rps;
    let share = Unit::Percent;
    vec![
        Claim::at_most("by queueing time, 700/s of 750: lost", share, lost(QUEUEING, 700.0), 0.01)
            .paper("none to 750/s"),
        Claim::at_least("by response time, 700/s of 750: lost", share, lost(response, 700.0), 0.02)
            .paper("sheds from 630/s"),
        Claim::at_most(
            "by response time, 500/s: lost (it is no alarm at any load)",
            share,
            lost(response, 500.0),
            0.01,
        )
        .paper("none"),
        Claim::at_least("queueing ÷ response time at 750/s, goodput", Unit::Times, ratio, 1.04),
        Claim::at_least("by queueing time at 1,500/s, of capacity", share, of_best(QUEUEING), 0.93),
        Claim::at_least(
            "two calls, 500/s of 750: lost by the 30 ms that fit one call",
            share,
            1.0 - success(twice.get(response, &[("rate", 250.0)])),
            0.2,
        ),
    ]
}

/// With two calls: goodput over all rates by each threshold of response time ÷ by queueing time. No
/// claim: in the paper queueing time is ahead of all three; in ours the longest, which fits just these
/// tasks, is ahead of it.
fn measured(twice: &Runs) -> Vec<String> {
    let sum = |name: &str| twice.of(name).map(|run| run.goodput_rps).sum::<f64>();
    let row = |(name, _): &(&str, &str)| {
        format!("two calls, all rates: {name} ÷ {QUEUEING}: {:.3}", sum(name) / sum(QUEUEING))
    };
    RESPONSE.iter().map(row).collect()
}

fn chart(parts: &[Runs; 2]) -> Chart {
    let panel = |(calls, runs): (usize, &Runs)| {
        let mut lines = vec![runs.line(QUEUEING, "rate", |run| success(run) * 100.0)];
        let line = |(name, _): &(&str, &str)| runs.line(name, "rate", |run| success(run) * 100.0);
        lines.extend(responses(calls).iter().map(line));
        let best = |run: &Report| 100.0 * (run.capacity_rps / run.offered_rps).min(1.0);
        lines.push(Line { name: "optimum".to_owned(), ..runs.line(QUEUEING, "rate", best) });
        Panel {
            title: format!("calls to M per task: {calls}; M can do 750/s"),
            x: Axis::linear("tasks per second"),
            y: Axis::linear("% answered in time").up_to(100.0),
            lines,
        }
    };
    let panels = CALLS.into_iter().zip(parts).map(panel).collect();
    Chart { title: FIGURE.title.to_owned(), panels }
}
