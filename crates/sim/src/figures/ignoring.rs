//! None, half or all of the callers ignore windows and cursors, as at every edge. The server must
//! hold alone, and those who ignore must gain nothing over those who obey.
//!
//! What everybody sends arrives, and refusing costs a receive and a send. So with all callers
//! ignoring, no policy can answer more than `most` of the capacity at a given demand; at four times
//! the capacity that is 97 %, at ten times 91 %.

use super::chart::{Axis, Chart, Line, Panel};
use super::claim::{Claim, Unit};
use super::lab::{Lab, Runs, Source, at, goodput};
use super::{Figure, Outcome};
use crate::report::Report;

pub(super) const FIGURE: Figure = Figure {
    name: "ignoring",
    title: "Callers that ignore windows and cursors, 1 ms exponential, 100 callers",
    source: "no paper's: Breakwater and DAGOR assume callers that obey",
    make,
};

const PLAN: Source =
    Source { name: "ignoring", text: include_str!("../../../../plans/ignoring.toml") };
const POLICIES: [&str; 3] = ["tide", "breakwater", "dagor-aimd"];
const LOADS: [f64; 4] = [1.2, 2.0, 4.0, 10.0];
const SHARE: &str = "workload.ignoring";

fn make(lab: &Lab<'_>) -> Outcome {
    let mut sets = lab.requests(60_000, 400_000);
    sets.extend([format!("policy={POLICIES:?}"), format!("load={LOADS:?}")]);
    let runs = lab.run(PLAN, &sets);
    // A difference of 1 % between two halves of callers takes many requests to tell from chance.
    let half = LOADS.map(|load| {
        let mut sets = lab.requests((ANSWERED * load) as u32, (ANSWERED * load) as u32);
        sets.extend(["policy=[\"tide\"]".to_owned(), format!("load=[{load:?}]")]);
        sets.push(format!("{SHARE}=[0.5]"));
        lab.run(PLAN, &sets)
    });
    let half = half.into_iter().fold(Runs::default(), Runs::and);
    Outcome { claims: claims(&runs, &half), charts: vec![chart(&runs)], ..Outcome::default() }
}

/// So many are answered, half of them to callers who ignore: the success of each half is then known to
/// 0.35 %.
const ANSWERED: f64 = 125_000.0;

/// The best share of capacity when all of `load` arrives: of 1,010 µs of core time per request that
/// could be answered, receiving and answering each arrival takes 10.
fn most(load: f64) -> f64 {
    (1010.0 - 10.0 * load) / 1000.0
}

/// Success of those who ignore ÷ of those who obey.
fn gain(run: &Report) -> f64 {
    run.obeying.map_or(f64::NAN, |(obeying, ignoring)| ignoring / obeying)
}

fn claims(runs: &Runs, half: &Runs) -> Vec<Claim> {
    let run = |policy, load, share| runs.get(policy, &[("load", load), (SHARE, share)]);
    let (share, times) = (Unit::Percent, Unit::Times);
    let mut claims = Vec::new();
    for load in LOADS {
        let all = goodput(run("tide", load, 1.0));
        claims.push(Claim::at_least(
            &format!("tide at {load}×, all ignore: of what refusing leaves"),
            share,
            all / most(load).min(1.0),
            0.97,
        ));
        let tail = run("tide", load, 1.0).p99_us / 10_100.0;
        claims.push(Claim::at_most(
            &format!("tide at {load}×, all ignore: p99, of the SLO"),
            times,
            tail,
            1.0,
        ));
        // Whoever sends all hears most often, and knows a little sooner what is let in.
        claims.push(Claim::at_most(
            &format!("tide at {load}×, half ignore: their success ÷ of those who obey"),
            times,
            gain(half.get("tide", &[("load", load)])),
            1.01,
        ));
    }
    claims.extend([
        Claim::at_least(
            "breakwater at 2×, half ignore: their success ÷ of those who obey",
            times,
            gain(run("breakwater", 2.0, 0.5)),
            5.0,
        ),
        Claim::at_most(
            "breakwater at 2×, all ignore, of capacity",
            share,
            goodput(run("breakwater", 2.0, 1.0)),
            0.75,
        ),
        Claim::at_least(
            "tide ÷ breakwater at 4×, all ignore, goodput",
            times,
            goodput(run("tide", 4.0, 1.0)) / goodput(run("breakwater", 4.0, 1.0)),
            2.0,
        ),
    ]);
    claims
}

fn chart(runs: &Runs) -> Chart {
    let all = runs.only(|run| at(run, SHARE) == Some(1.0));
    let mut goodputs: Vec<Line> = POLICIES.map(|policy| all.line(policy, "load", goodput)).to_vec();
    let best = LOADS.map(|load| (load, most(load).min(1.0))).to_vec();
    goodputs.push(Line::new("what refusing leaves", best));
    let who = |policy: &str| {
        let here = runs.only(|run| at(run, SHARE) == Some(0.5));
        [("obey", 0), ("ignore", 1)].map(|(name, n)| Line {
            name: format!("{policy}: who {name}"),
            ..here.line(policy, "load", |run| {
                let (obeying, ignoring) = run.obeying.unwrap_or_default();
                100.0 * [obeying, ignoring][n]
            })
        })
    };
    let panel = |title: &str, y, lines| Panel {
        title: title.to_owned(),
        x: Axis::linear("demand ÷ capacity"),
        y,
        lines,
    };
    Chart {
        title: FIGURE.title.to_owned(),
        panels: vec![
            panel("all ignore: goodput", Axis::linear("÷ capacity"), goodputs),
            panel(
                "half ignore: who is answered",
                Axis::linear("% answered in time").up_to(100.0),
                [who("tide"), who("breakwater")].concat(),
            ),
        ],
    }
}
