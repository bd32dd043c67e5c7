//! Wisp's Table 3: latency ÷ deadline (LND) of a storage service's mix under four policies, and under ours.
//!
//! Ours keeps Wisp's rates and slack and adds three things: the gate has one slot per core, so that the queue is in
//! the gate, where least slack decides, and not before the core, where nobody does; the slowest process counts, because
//! scans fail with the first call that is refused; and `tide` refuses what rates are too slow for. What tide adds is told
//! by `lstf-rc-1`, which has all but that.

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
    let duration = format!("duration={}", if lab.quick { "40s" } else { "80s" });
    let runs = lab.run(PLAN, &[duration.clone(), "seeds=3".to_owned()]);
    // LSTF and EDF are less than a percent apart, and two seeds are more: in full ten of them.
    let orders = (!lab.quick).then(|| {
        let sets = ["policy=[\"edf-rc\", \"lstf-rc\"]", "callers=[200, 250]", "seeds=10"];
        lab.run(PLAN, &sets.map(str::to_owned).into_iter().chain([duration]).collect::<Vec<_>>())
    });
    let alone = lab.run(PLAN, &["callers=1".to_owned(), "policy=none".to_owned()]);
    let claims = claims(&runs, orders.as_ref().unwrap_or(&runs), &alone);
    Outcome { claims, charts: vec![chart(&runs)], measured: table(&runs), ..Outcome::default() }
}

/// The table itself: latency ÷ deadline as mean, 95th and 99th percentile, and what was lost.
fn table(runs: &Runs) -> Vec<String> {
    let row = |policy: &str, clients: f64| {
        let [mean, p95, p99] = [0, 1, 2].map(|place| self::mean(runs, policy, clients, lnd(place)));
        let lost = 100.0 * self::mean(runs, policy, clients, lost);
        format!(
            "{policy}, {clients} clients: mean {mean:.2}, p95 {p95:.2}, p99 {p99:.2}, lost {lost:.1} %"
        )
    };
    POLICIES.iter().flat_map(|policy| CLIENTS.map(|clients| row(policy, clients))).collect()
}

/// A value of the runs with so many clients, by seed.
fn each(runs: &Runs, policy: &str, clients: f64, value: impl Fn(&Report) -> f64) -> Vec<f64> {
    runs.of(policy).filter(|run| at(run, "callers") == Some(clients)).map(value).collect()
}

/// Their mean.
fn mean(runs: &Runs, policy: &str, clients: f64, value: impl Fn(&Report) -> f64) -> f64 {
    let here = each(runs, policy, clients, value);
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

fn claims(runs: &Runs, orders: &Runs, alone: &Runs) -> Vec<Claim> {
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
            // Seed by seed, because both meet the same requests.
            let lnds = |policy| each(orders, policy, clients, lnd(place));
            let pairs = lnds("lstf-rc").into_iter().zip(lnds("edf-rc"));
            let ratios: Vec<f64> = pairs.map(|(lstf, edf)| lstf / edf).collect();
            let what = format!("{name} at {clients}: lstf-rc ÷ edf-rc");
            let claim = Claim::at_most_on_average(&what, times, &ratios, 1.0);
            claims.push(claim.paper(paper(clients)[place]));
        }
        let ratio = p99("fifo-rc", clients) / p99("none", clients);
        let what = format!("p99 at {clients}: fifo-rc ÷ none");
        // What the paper's table has: 2.95 ÷ 18.47 and 10.5 ÷ 19.71.
        let (most, paper) = if clients == 200.0 { (0.16, "0.16×") } else { (0.53, "0.53×") };
        claims.push(Claim::at_most(&what, times, ratio, most).paper(paper));
    }
    for clients in CLIENTS {
        let ratio = |other: &str, value: &dyn Fn(&Report) -> f64| {
            mean(runs, "tide-lstf", clients, value) / mean(runs, other, clients, value)
        };
        let over = |what: &str, other: &str| format!("{what} at {clients}: tide-lstf ÷ {other}");
        let (in_time_of, p99_of) = ("answered in time", "p99");
        let wisp = "lstf-rc";
        let lost_less = mean(runs, "tide-lstf", clients, lost) - mean(runs, wisp, clients, lost);
        let what = format!("lost at {clients}: tide-lstf less lstf-rc");
        // With the most clients it is a tie, and chance is worth some 0.3 points.
        let most_lost = if clients < 250.0 { 0.0 } else { 0.005 };
        claims.extend([
            Claim::at_least(&over(in_time_of, wisp), times, ratio(wisp, &in_time), 1.01),
            Claim::at_most(&over(p99_of, wisp), times, ratio(wisp, &lnd(2)), 1.0),
            Claim::at_most(&what, Unit::Percent, lost_less, most_lost),
        ]);
        let alone = "lstf-rc-1";
        claims.extend([
            Claim::at_least(&over(in_time_of, alone), times, ratio(alone, &in_time), 1.0),
            Claim::at_most(&over(p99_of, alone), times, ratio(alone, &lnd(2)), 1.0),
        ]);
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
