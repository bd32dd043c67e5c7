//! What is possible for callers that hear with their answers: a capacity that halves, a storm, heavy tails.
//!
//! `ideal` knows what is inside when a request is made, and turns it away for nothing. Here it stands beside
//! [`told`](crate::told), a server that knows as much but has to tell its callers, with the best of several choices
//! of how much it lets in, how long may be waited, and whether it tells everybody of a change. What is between the
//! two is the price of hearing late. It is no strict bound: who pushes out the less important, or follows the queue,
//! may be a little ahead of it.

use tidegate_core::Span;

use super::chart::{Axis, Chart, Line, Panel};
use super::claim::{Claim, Unit};
use super::lab::{Grid, Lab, Runs, Source, goodput};
use super::tide_grid::rough::{LASTS, fault};
use super::tide_grid::{fair, slo_us};
use super::{Figure, Outcome};
use crate::report::Report;

pub(super) const FIGURE: Figure = Figure {
    name: "tide-told",
    title: "What is possible for callers that hear with their answers: tide, told, and ideal",
    source: "no paper's: the goal, ideal − 1 point, is that of docs/figures.md",
    make,
};

const ROUGH: Source = Source { name: "rough", text: include_str!("../../../../plans/rough.toml") };
const STEPS: Source = Source { name: "steps", text: include_str!("../../../../plans/steps.toml") };

const ALL: [&str; 3] = ["ideal", "told", "tide"];

fn make(lab: &Lab<'_>) -> Outcome {
    let mut outcome = Outcome::default();
    let panels =
        vec![slower(lab, &mut outcome), storm(lab, &mut outcome), tails(lab, &mut outcome)];
    outcome.charts.push(Chart { title: FIGURE.title.to_owned(), panels });
    outcome
}

/// The runs of `policies`, `told` among them.
fn runs(
    lab: &Lab<'_>,
    plan: Source,
    what: &str,
    sets: &[String],
    policies: &[&str],
    bucket: Option<Span>,
    outcome: &mut Outcome,
) -> Runs {
    let told = best(lab, plan, what, sets, bucket, outcome);
    let others = policies.iter().filter(|policy| **policy != "told");
    let run = |policy: &&str| lab.run_series(plan, &with(policy, sets), bucket);
    others.map(run).fold(told, Runs::and).mean()
}

/// The run of `told` with the choice that has the most goodput, which is noted.
pub(super) fn best(
    lab: &Lab<'_>,
    plan: Source,
    what: &str,
    sets: &[String],
    bucket: Option<Span>,
    outcome: &mut Outcome,
) -> Runs {
    let sets = with("told", sets);
    let grid = Grid::new(&format!("told, {what}"));
    let grid = match lab.quick {
        true => grid.axis("told.offer", &["1.05"]).axis("told.room", &["0.3", "0.5"]),
        false => grid
            .axis("told.offer", &["0.97", "1.0", "1.05", "1.1"])
            .axis("told.room", &["0.2", "0.35", "0.5", "0.65"]),
    };
    // Where nothing changes there is nothing to tell.
    let changes = sets.iter().any(|set| set.starts_with("faults") || set.contains("steps"));
    let notices: &[&str] = if changes { &["true", "false"] } else { &["false"] };
    let tuned = lab.tune(plan, &sets, &grid.axis("told.notices", notices));
    outcome.notes.push(tuned.note);
    lab.run_series(plan, &[sets, tuned.sets].concat(), bucket)
}

fn with(policy: &str, sets: &[String]) -> Vec<String> {
    [sets, &[format!("policy=[\"{policy}\"]")]].concat()
}

/// The goal cannot be reached by those who hear late, who are below `ideal` by this `price` at least, and tide is
/// `near` what they can reach.
fn claims(what: &str, good: impl Fn(&str) -> f64, price: f64, near: f64) -> [Claim; 2] {
    let (below, what_for) =
        (good("ideal") - good("told"), format!("{what}: told below ideal, of capacity"));
    [Claim::at_least(&what_for, Unit::Percent, below, price), near_told(what, good, near)]
}

fn near_told(what: &str, good: impl Fn(&str) -> f64, near: f64) -> Claim {
    let what = format!("{what}: tide below told, of capacity");
    Claim::at_most(&what, Unit::Percent, good("told") - good("tide"), near)
}

/// The service is half as fast for 100 SLOs.
fn slower(lab: &Lab<'_>, outcome: &mut Outcome) -> Panel {
    let loads: &[f64] = if lab.quick { &[2.0] } else { &[2.0, 1.2] };
    let mut lines = Vec::new();
    for (time, price, near) in [("10us", 0.01, 0.015), ("1ms", 0.002, 0.01)] {
        let slo = slo_us(time);
        for load in loads {
            let what = format!("{time}, half as fast, {load}×");
            let sets =
                fault("kind=\"slow\",factor=2.0", time, *load, if lab.quick { 3 } else { 10 });
            let sets =
                [sets, vec![format!("load=[{load:?}]"), format!("service.time={time}")]].concat();
            let bucket = Span::from_nanos((5.0 * slo * 1e3) as u64);
            let runs = runs(lab, ROUGH, &what, &sets, &ALL, Some(bucket), outcome);
            let good = |policy: &str| fair(runs.get(policy, &[]), time);
            outcome.claims.extend(claims(&what, good, price, near));
            if lines.is_empty() {
                lines = ALL.map(|name| over_time(runs.get(name, &[]), slo)).into();
            }
        }
    }
    Panel {
        title: format!("10 µs, half as fast for {LASTS} SLOs, 2×"),
        x: Axis::linear("SLOs since it became slower"),
        y: Axis::linear("goodput, % of capacity"),
        lines,
    }
}

/// Goodput of what is measured, which begins with the fault; each point at the end of its bucket.
fn over_time(run: &Report, slo_us: f64) -> Line {
    let rows = run.series.iter().flatten().filter(|row| row.offered > 0);
    let measured = Span::from_nanos((run.duration_s * 1e9) as u64);
    let points: Vec<(f64, f64)> = rows
        .map(|row| {
            let good = row.good as f64 / row.step.as_secs_f64() / run.capacity_rps;
            (row.at.as_nanos() as f64, 100.0 * good)
        })
        .collect();
    let end = points.last().map_or(0.0, |(at, _)| *at);
    let begin = end - measured.as_nanos() as f64;
    let since = |(at, good): &(f64, f64)| ((at - begin) / 1e3 / slo_us, *good);
    Line::new(&run.policy, points.iter().map(since).filter(|(at, _)| *at >= 0.0).collect())
}

/// Ten times the capacity of a service of 1 µs: to receive it all would take 32 cores, of ten.
fn storm(lab: &Lab<'_>, outcome: &mut Outcome) -> Panel {
    let callers: &[u32] = if lab.quick { &[1000, 10_000] } else { &[10, 100, 1000, 3000, 10_000] };
    let slo = slo_us("1us");
    let at = |slos: f64| format!("{}us", slos * slo);
    // To find the best window for demand that steps takes long, and it is as good as all of the capacity.
    let policies: &[&str] = if lab.quick { &["told", "tide"] } else { &ALL };
    let mut lines: Vec<Line> = policies.iter().map(|name| Line::new(name, Vec::new())).collect();
    for callers in callers {
        let what = format!("1us, ten times from 10 to 100 SLOs, {callers} callers");
        let sets = [
            "seeds=1".to_owned(),
            format!("callers={callers}"),
            "service.time=1us".to_owned(),
            format!("slo={slo}us"),
            format!("warmup={}", at(110.0)),
            format!("duration={}", at(200.0)),
            format!("workload.steps=[{{at=\"{}\",load=10.0}}]", at(100.0)),
            "caller.hold_time=0.05 slo".to_owned(),
        ];
        let runs = runs(lab, STEPS, &what, &sets, policies, None, outcome);
        let good = |policy: &str| goodput(runs.get(policy, &[]));
        for line in &mut lines {
            line.points.push((f64::from(*callers), 100.0 * good(&line.name)));
        }
        if *callers >= 1000 {
            let most = if *callers < 10_000 { 0.9 } else { 0.05 };
            let told = format!("{what}: told, of capacity");
            outcome.claims.push(Claim::at_most(&told, Unit::Percent, good("told"), most));
            // In between, where most of the time goes into receiving, to hear a little sooner is worth much.
            outcome.claims.push(near_told(&what, good, if *callers == 3000 { 0.15 } else { 0.05 }));
        }
    }
    Panel {
        title: "1 µs, ten times the capacity".to_owned(),
        x: Axis::log("callers"),
        y: Axis::linear("goodput, % of capacity"),
        lines,
    }
}

/// Lognormal service times, the wider the heavier their tail.
fn tails(lab: &Lab<'_>, outcome: &mut Outcome) -> Panel {
    let sigmas: &[f64] = if lab.quick { &[2.0] } else { &[0.5, 1.0, 1.5, 2.0] };
    let mut lines = ALL.map(|name| Line::new(name, Vec::new()));
    for sigma in sigmas {
        let what = format!("10us, lognormal with σ = {sigma}, 2×");
        let mut sets = lab.requests(50_000, 200_000);
        sets.extend([
            "service.distribution=lognormal".to_owned(),
            format!("service.sigma={sigma:?}"),
            "service.time=10us".to_owned(),
            "load=[2.0]".to_owned(),
        ]);
        let runs = runs(lab, ROUGH, &what, &sets, &ALL, None, outcome);
        let good = |policy: &str| fair(runs.get(policy, &[]), "10us");
        for line in &mut lines {
            line.points.push((*sigma, 100.0 * (1.0 - good(&line.name))));
        }
        outcome.claims.extend(match *sigma {
            2.0 => claims(&what, good, 0.02, 0.02).to_vec(),
            // With lighter tails both are near each other.
            _ => vec![near_told(&what, good, 0.01)],
        });
    }
    Panel {
        title: "10 µs, lognormal, 2×".to_owned(),
        x: Axis::linear("σ"),
        y: Axis::linear("lost, % of capacity"),
        lines: lines.into(),
    }
}
