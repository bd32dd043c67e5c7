//! DAGOR's Figures 7 and 8: tasks that call a full service once to four times. Whoever sheds at
//! random at each call loses the task at one of them; whoever sheds by rank answers all calls of a
//! task alike.

use super::chart::{Axis, Chart, Line, Panel};
use super::claim::{Claim, Unit};
use super::dagor::{self, Tasks};
use super::lab::{Lab, Runs, Source};
use super::{Figure, Outcome};
use crate::report::Report;

pub(super) const FIGURE: Figure = Figure {
    name: "dagor-8",
    title: "Tasks with one to four calls to a full service (load = calls ÷ capacity)",
    source: "DAGOR §5.3, Figures 7 and 8",
    make,
};

const PLAN: Source = Source {
    name: "dagor-subsequent",
    text: include_str!("../../../../plans/dagor-subsequent.toml"),
};
const POLICIES: [&str; 5] = ["tide", "dagor", "codel", "seda", "random"];
/// Most calls of a task.
const CALLS: usize = 4;

fn make(lab: &Lab<'_>) -> Outcome {
    let loads = if lab.quick { "[2.0]" } else { "[0.5,0.75,1.0,1.5,2.0,3.0,4.0,10.0]" };
    let times = ["warmup=60s".to_owned(), "duration=360s".to_owned()];
    let (mut runs, mut notes) = (Runs::default(), Vec::new());
    for x in 1..=CALLS {
        let kind = format!("services.a.calls=[{:?}]", vec!["m"; x]);
        let twice = [kind.clone(), "load=2.0".to_owned()];
        let tasks = Tasks { source: PLAN, sets: &twice };
        let (mut sets, chosen) = dagor::tuned(lab, &tasks, &POLICIES[1..]);
        sets.extend([kind, format!("policy={POLICIES:?}"), format!("load={loads}")]);
        sets.extend(times.iter().cloned());
        runs = runs.and(lab.run(PLAN, &sets));
        notes.push(format!("calls per task: {x}: {}", chosen.join("; ")));
    }
    if lab.quick {
        let far = ["policy=[\"tide\"]".to_owned(), "load=[4.0]".to_owned()];
        runs = runs.and(lab.run(PLAN, &[&far[..], &times].concat()));
    }
    let (claims, charts) = (claims(&runs, lab.quick), vec![chart(&runs)]);
    Outcome { claims, charts, notes, ..Outcome::default() }
}

/// How many calls the tasks of a run make.
fn calls(run: &Report) -> usize {
    let value = run.point.iter().find(|(path, _)| path == "services.a.calls");
    value.and_then(|(_, value)| value.as_array()).map_or(0, Vec::len)
}

/// Goodput ÷ the best possible.
fn of_best(run: &Report) -> f64 {
    run.goodput_rps / run.capacity_rps.min(run.offered_rps)
}

/// Refused ÷ arrived, at M.
fn refused_at_m(run: &Report) -> f64 {
    let m = run.services.iter().find(|service| service.name == "m");
    m.map_or(f64::NAN, |service| service.drop_rate)
}

fn claims(runs: &Runs, quick: bool) -> Vec<Claim> {
    let with =
        |policy, x, load| of_best(runs.only(|run| calls(run) == x).get(policy, &[("load", load)]));
    let at = |policy, x| with(policy, x, 2.0);
    let (share, times) = (Unit::Percent, Unit::Times);
    let mut claims = Vec::new();
    for x in 1..=CALLS {
        let what = format!("dagor at 2×, calls per task: {x}, of the optimum");
        claims.push(Claim::at_least(&what, share, at("dagor", x), 0.85).paper("close to it"));
        let what = format!("tide at 2×, calls per task: {x}, of the optimum");
        claims.push(Claim::at_least(&what, share, at("tide", x), 0.95));
        for (load, least) in [(4.0, 0.95), (10.0, 0.9)].into_iter().take(if quick { 1 } else { 2 })
        {
            let what = format!("tide at {load}×, calls per task: {x}, of the optimum");
            claims.push(Claim::at_least(&what, share, with("tide", x, load), least));
        }
    }
    let once = runs.only(|run| calls(run) == 1);
    let once = once.get("dagor", &[("load", 2.0)]);
    claims.extend([
        // Without cursors at the callers everything is sent, and servers have to refuse it.
        Claim::at_least(
            "dagor at 2×, 1 call: rejected by callers, by the cursor they have",
            share,
            once.local_reject_rate,
            0.25,
        )
        .paper("upstream sheds first"),
        Claim::at_most("dagor at 2×, 1 call: refused by M itself", share, refused_at_m(once), 0.05),
        Claim::at_least("codel at 2×, 1 call, of the optimum", share, at("codel", 1), 0.9)
            .paper("about equal"),
        Claim::at_least(
            "dagor ÷ codel at 2×, 2 calls",
            times,
            at("dagor", 2) / at("codel", 2),
            1.15,
        )
        .paper("about 1.5×"),
        Claim::at_least(
            "dagor ÷ codel at 2×, 4 calls",
            times,
            at("dagor", 4) / at("codel", 4),
            1.3,
        )
        .paper("more than for 2"),
        Claim::at_least("dagor ÷ seda at 2×, 2 calls", times, at("dagor", 2) / at("seda", 2), 1.15)
            .paper("about 1.5×"),
        Claim::at_most(
            "random at 2×: 4 calls ÷ 1 call",
            times,
            at("random", 4) / at("random", 1),
            0.65,
        ),
    ]);
    claims
}

fn chart(runs: &Runs) -> Chart {
    let by_calls = |policy: &&str| {
        let here = runs.only(|run| super::lab::at(run, "load") == Some(2.0));
        let points = here.of(policy).map(|run| (calls(run) as f64, 100.0 * of_best(run))).collect();
        Line::new(policy, points)
    };
    let by_load = |x: usize| -> Vec<Line> {
        let here = runs.only(|run| calls(run) == x);
        POLICIES.map(|policy| here.line(policy, "load", |run| 100.0 * of_best(run))).to_vec()
    };
    let panel = |title: &str, x: &str, lines| Panel {
        title: title.to_owned(),
        x: Axis::linear(x),
        y: Axis::linear("successful tasks, % of the optimum"),
        lines,
    };
    let demand = "calls offered ÷ capacity";
    Chart {
        title: FIGURE.title.to_owned(),
        panels: vec![
            panel("one call per task", demand, by_load(1)),
            panel("two calls per task", demand, by_load(2)),
            panel("load 2", "calls per task", POLICIES.iter().map(by_calls).collect()),
        ],
    }
}
