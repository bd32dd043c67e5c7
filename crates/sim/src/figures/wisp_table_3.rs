//! Wisp's Table 3: latency ÷ deadline (LND) of a storage service's mix under four policies, and under ours.
//!
//! Ours keeps Wisp's rates and slack and adds two things: the gate has one slot per core, so that the queue is in
//! the gate, where least slack decides, and not before the core, where nobody does; and `tide` beside them. The lead is
//! the slot's, which `lstf-rc-1` shows: tide cuts by rank, and here nothing has one.

use super::chart::{Axis, Chart, Line, Panel};
use super::claim::{Claim, Unit};
use super::lab::{Lab, Runs, Source, at};
use super::{Figure, Outcome};
use crate::report::Report;

pub(super) const FIGURE: Figure = Figure {
    name: "wisp-table-3",
    title: "Latency ÷ deadline, with 100 to 250 clients",
    source: "Wisp §6, Table 3",
    make,
};

const PLAN: Source =
    Source { name: "wisp-deadlines", text: include_str!("../../../../plans/wisp-deadlines.toml") };
const POLICIES: [&str; 6] = ["none", "fifo-rc", "edf-rc", "lstf-rc", "lstf-rc-1", "tide-lstf"];
const CLIENTS: [f64; 4] = [100.0, 150.0, 200.0, 250.0];

fn make(lab: &Lab<'_>) -> Outcome {
    // EDF and LSTF are a few percent apart, and so are two seeds: three of them.
    let duration = if lab.quick { "40s" } else { "80s" };
    let sets = [format!("duration={duration}"), "seeds=3".to_owned()];
    let runs = lab.run(PLAN, &sets);
    let alone = lab.run(PLAN, &["callers=1".to_owned(), "policy=none".to_owned()]);
    Outcome {
        misses: Vec::new(),
        claims: claims(&runs, &alone),
        charts: vec![chart(&runs)],
        notes: Vec::new(),
    }
}

/// The mean over seeds of a value of the runs with so many clients.
fn mean(runs: &Runs, policy: &str, clients: f64, value: impl Fn(&Report) -> f64) -> f64 {
    let here: Vec<f64> =
        runs.of(policy).filter(|run| at(run, "callers") == Some(clients)).map(value).collect();
    here.iter().sum::<f64>() / here.len() as f64
}

fn lnd(place: usize) -> impl Fn(&Report) -> f64 {
    move |run| run.lnd.map_or(f64::NAN, |lnd| lnd[place])
}

fn in_time(run: &Report) -> f64 {
    run.flows.iter().map(|flow| flow.in_time_rps).sum()
}

/// Refused, rejected, expired or failed ÷ offered.
fn lost(run: &Report) -> f64 {
    let lost = run.flows.iter().map(|flow| (flow.turned_away + flow.failed) * flow.offered_rps);
    lost.sum::<f64>() / run.offered_rps
}

fn claims(runs: &Runs, alone: &Runs) -> Vec<Claim> {
    let p99 = |policy, clients| mean(runs, policy, clients, lnd(2));
    let times = Unit::Times;
    let mut claims = vec![
        Claim::between(
            "one client: mean LND (deadline = 4 × alone)",
            times,
            mean(alone, "none", 1.0, lnd(0)),
            0.22,
            0.28,
        )
        .paper("0.25"),
        Claim::at_least(
            "p99 at 250: none ÷ lstf-rc",
            times,
            p99("none", 250.0) / p99("lstf-rc", 250.0),
            10.0,
        )
        .paper("10.8×"),
    ];
    let paper = |clients| {
        if clients == 200.0 {
            ["0.89×", "0.77×", "0.74×"]
        } else {
            ["0.94×", "0.90×", "0.85×"]
        }
    };
    for clients in [200.0, 250.0] {
        for (place, name) in ["mean", "p95", "p99"].into_iter().enumerate() {
            let ratio = mean(runs, "lstf-rc", clients, lnd(place))
                / mean(runs, "edf-rc", clients, lnd(place));
            let what = format!("{name} at {clients}: lstf-rc ÷ edf-rc");
            let claim = Claim::at_most(&what, times, ratio, 1.0).paper(paper(clients)[place]);
            // With 16 threads before one core they are equal but for the seed.
            claims.push(claim.open());
        }
        let ratio = p99("fifo-rc", clients) / p99("none", clients);
        let what = format!("p99 at {clients}: fifo-rc ÷ none");
        claims.push(Claim::at_most(&what, times, ratio, 0.8).paper(if clients == 200.0 {
            "0.16×"
        } else {
            "0.53×"
        }));
    }
    for clients in CLIENTS {
        let ratio = |value: &dyn Fn(&Report) -> f64| {
            mean(runs, "tide-lstf", clients, value) / mean(runs, "lstf-rc", clients, value)
        };
        let more = |what: &str| format!("{what} at {clients}: tide-lstf ÷ lstf-rc");
        claims.push(Claim::at_least(&more("answered in time"), times, ratio(&in_time), 1.01));
        claims.push(Claim::at_most(&more("p99"), times, ratio(&lnd(2)), 1.0));
        let (ours, wisp) =
            (mean(runs, "tide-lstf", clients, lost), mean(runs, "lstf-rc", clients, lost));
        let what = format!("lost at {clients}: tide-lstf less lstf-rc");
        // Clients in a closed loop that are answered sooner ask for more, of which more is refused.
        claims.push(Claim::at_most(&what, Unit::Percent, ours - wisp, 0.0).open());
        let alone = mean(runs, "lstf-rc-1", clients, in_time);
        let what = format!("answered in time at {clients}: tide-lstf ÷ one slot without tide");
        let ratio = mean(runs, "tide-lstf", clients, in_time) / alone;
        claims.push(Claim::between(&what, times, ratio, 0.98, 1.02));
    }
    claims
}

fn chart(runs: &Runs) -> Chart {
    let lines = |value: &dyn Fn(&Report) -> f64| -> Vec<Line> {
        let line = |policy: &str| {
            let point = |clients| (clients, mean(runs, policy, clients, value));
            Line::new(policy, CLIENTS.map(point).into())
        };
        POLICIES.map(line).into()
    };
    let panel = |title: &str, y: Axis, lines| Panel {
        title: title.to_owned(),
        x: Axis::linear("clients"),
        y,
        lines,
    };
    let lost = |run: &Report| 100.0 * lost(run);
    Chart {
        title: FIGURE.title.to_owned(),
        panels: vec![
            panel("99th percentile", Axis::log("latency ÷ deadline"), lines(&lnd(2))),
            panel("answered in time", Axis::linear("per second"), lines(&in_time)),
            panel("turned away or failed", Axis::linear("%"), lines(&lost)),
        ],
    }
}
