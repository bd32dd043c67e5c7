//! Breakwater's Figure 7: demand goes 0.5 → 0.9 → 1.4 → 0.9 → 0.5 times the capacity in steps.
//!
//! In full, a step lasts the paper's two seconds; quick, it lasts 200 ms, which is 20,000 round
//! trips.

use super::chart::{Axis, Chart, Line, Panel};
use super::claim::{Claim, Unit};
use super::lab::{Lab, Runs, Source};
use super::testbed::{self, DAGOR};
use super::{Figure, Outcome};
use crate::measure::Row;

pub(super) const FIGURE: Figure = Figure {
    name: "breakwater-7",
    title: "A sudden shift in demand: 0.5, 0.9, 1.4, 0.9, 0.5 × capacity, 1,000 callers",
    source: "Breakwater §5.2, Figure 7",
    make,
};

const SHIFT: Source = Source {
    name: "breakwater-shift",
    text: include_str!("../../../../plans/breakwater-shift.toml"),
};
/// The paper's and ours, and those that control at one end only or not at all. `ideal` would be the demand, or the
/// capacity where that is less.
const POLICIES: [&str; 7] = ["tide", "breakwater", DAGOR, "seda", "codel", "window", "open"];
const SLO_US: f64 = 200.0;

fn make(lab: &Lab<'_>) -> Outcome {
    let alone = |policy| testbed::tuned_alone(lab, policy, 1000);
    let tuned = testbed::tuned(lab, 1000, &[]).and(alone("codel")).and(alone("window"));
    let (step_ms, bucket_ms) = if lab.quick { (200, 4) } else { (2000, 20) };
    let mut sets = vec![
        format!("policy={POLICIES:?}"),
        format!("duration={}ms", 5 * step_ms),
        format!("warmup={}ms", step_ms / 2),
        format!("workload.steps=[{}]", steps(step_ms)),
    ];
    sets.extend(tuned.sets);
    let runs = lab.run_series(SHIFT, &sets, Some(tidegate_core::Span::from_millis(bucket_ms)));
    let phases = Phases { step_ms: step_ms as f64, capacity: runs.0[0].capacity_rps };
    Outcome {
        claims: claims(&runs, &phases),
        charts: vec![chart(&runs, &phases)],
        notes: vec![tuned.note],
        ..Outcome::default()
    }
}

fn steps(step_ms: u64) -> String {
    let loads = [0.9, 1.4, 0.9, 0.5];
    let step = |(n, load): (u64, f64)| format!("{{at=\"{}ms\",load={load}}}", n * step_ms);
    (1..).zip(loads).map(step).collect::<Vec<_>>().join(",")
}

/// When what happens.
struct Phases {
    step_ms: f64,
    capacity: f64,
}

impl Phases {
    /// The rows of the `n`th step, from 0.
    fn rows<'a>(&self, runs: &'a Runs, policy: &str, n: u32) -> Vec<&'a Row> {
        let (from, to) = (self.step_ms * f64::from(n), self.step_ms * f64::from(n + 1));
        let series = runs.get(policy, &[]).series.as_deref().unwrap_or_default();
        series.iter().filter(|row| (from..to).contains(&millis(row))).collect()
    }

    /// How long after the spike goodput is 88 % of capacity and stays so, in milliseconds.
    fn settles(&self, runs: &Runs, policy: &str) -> f64 {
        let buckets = buckets(&self.rows(runs, policy, 2));
        let low = buckets.iter().rposition(|bucket| bucket.good_rps() < 0.88 * self.capacity);
        low.map_or(0.0, |place| (place + 1) as f64 * BUCKET_MS)
    }

    /// Mean goodput during the spike, of capacity.
    fn spike(&self, runs: &Runs, policy: &str) -> f64 {
        let rows = self.rows(runs, policy, 2);
        rows.iter().map(|row| good_rps(row)).sum::<f64>() / rows.len() as f64 / self.capacity
    }

    /// Worst 99th percentile of a bucket during the spike, in SLOs.
    fn overshoot(&self, runs: &Runs, policy: &str) -> f64 {
        let p99 =
            self.rows(runs, policy, 2).into_iter().map(|row| row.p99.as_micros_f64() / SLO_US);
        p99.fold(0.0, f64::max)
    }

    /// Longest mean time until a refusal was heard, of a bucket during the spike, in microseconds.
    fn reject_delay(&self, runs: &Runs, policy: &str) -> f64 {
        let delays = self.rows(runs, policy, 2).into_iter().map(|row| row.reject_delay);
        delays.max().map_or(0.0, |delay| delay.as_micros_f64())
    }

    /// Least goodput ÷ offered of a bucket after the spike.
    fn dip(&self, runs: &Runs, policy: &str) -> f64 {
        let buckets = buckets(&self.rows(runs, policy, 3));
        buckets.iter().map(|bucket| bucket.good / bucket.offered).fold(f64::MAX, f64::min)
    }
}

/// The paper's buckets, in milliseconds.
const BUCKET_MS: f64 = 20.0;

/// What happened in one of them.
struct Bucket {
    good: f64,
    offered: f64,
}

impl Bucket {
    fn good_rps(&self) -> f64 {
        self.good * 1e3 / BUCKET_MS
    }
}

/// The rows of a step, joined to the paper's buckets.
fn buckets(rows: &[&Row]) -> Vec<Bucket> {
    let per_bucket = rows
        .first()
        .map_or(1, |row| (BUCKET_MS / (row.step.as_micros_f64() / 1e3)).round() as usize);
    let join = |rows: &[&Row]| Bucket {
        good: rows.iter().map(|row| row.good as f64).sum(),
        offered: rows.iter().map(|row| row.offered as f64).sum(),
    };
    rows.chunks_exact(per_bucket.max(1)).map(join).collect()
}

fn millis(row: &Row) -> f64 {
    row.at.as_nanos() as f64 / 1e6
}

fn good_rps(row: &Row) -> f64 {
    row.good as f64 / row.step.as_secs_f64()
}

fn claims(runs: &Runs, phases: &Phases) -> Vec<Claim> {
    let settles = |policy| phases.settles(runs, policy);
    let over = |policy| phases.overshoot(runs, policy);
    let dip = |policy| phases.dip(runs, policy);
    let spike = |policy| phases.spike(runs, policy);
    let delay = |policy| phases.reject_delay(runs, policy);
    let blind = spike("window").max(spike("open"));
    let (millis, times, share) = (Unit::Millis, Unit::Times, Unit::Percent);
    vec![
        Claim::at_most(
            "breakwater: spike to 88 % of capacity for good",
            millis,
            settles("breakwater"),
            20.0,
        )
        .paper("< 20 ms"),
        Claim::at_most("tide: the same", millis, settles("tide"), 20.0),
        Claim::at_least("dagor: the same", millis, settles(DAGOR), 40.0).paper("500 ms"),
        Claim::at_least("seda: the same", millis, settles("seda"), 100.0).paper("1,600 ms"),
        Claim::at_least("tide: goodput in the spike, of capacity", share, spike("tide"), 0.97),
        Claim::at_most("codel: the same", share, spike("codel"), 0.97),
        Claim::at_most("window, no control, more of both: the same", share, blind, 0.05),
        Claim::at_most(
            "breakwater: worst p99 in the spike, of the SLO",
            times,
            over("breakwater"),
            1.5,
        )
        .paper("1.4×"),
        Claim::at_most("tide: the same", times, over("tide"), 1.25),
        Claim::at_least("dagor: the same", times, over(DAGOR), 2.0).paper("1,500×"),
        Claim::at_most(
            "breakwater: longest mean rejection delay in the spike",
            Unit::Micros,
            delay("breakwater"),
            1.4 * SLO_US,
        ),
        Claim::at_most("tide: the same", Unit::Micros, delay("tide"), SLO_US),
        // DAGOR's server collapses for 500 ms in the paper. Ours does not, as it refuses on arrival.
        Claim::at_least("dagor: the same", Unit::Micros, delay(DAGOR), 1e5)
            .paper("220,000 µs")
            .differs(0.0, 1e5),
        Claim::at_least(
            "breakwater: least goodput after the spike, of offered",
            share,
            dip("breakwater"),
            0.94,
        )
        .paper("no dip"),
        Claim::at_least("tide: the same", share, dip("tide"), 0.94),
        Claim::at_most("dagor: the same", share, dip(DAGOR), 0.9).paper("77.5 %"),
    ]
}

fn chart(runs: &Runs, phases: &Phases) -> Chart {
    let lines = |value: &dyn Fn(&Row) -> f64| {
        let line = |policy: &&str| {
            let rows = runs.get(policy, &[]).series.as_deref().unwrap_or_default();
            Line::new(policy, rows.iter().map(|row| (millis(row), value(row))).collect())
        };
        POLICIES.iter().map(line).collect()
    };
    let panel =
        |title: &str, y, lines| Panel { title: title.to_owned(), x: Axis::linear("ms"), y, lines };
    Chart {
        title: FIGURE.title.to_owned(),
        panels: vec![
            panel(
                "goodput",
                Axis::linear("÷ capacity"),
                lines(&|row| good_rps(row) / phases.capacity),
            ),
            panel("99th percentile", Axis::log("µs"), lines(&|row| row.p99.as_micros_f64())),
            panel(
                "mean rejection delay",
                Axis::log("µs"),
                lines(&|row| row.reject_delay.as_micros_f64().max(1.0)),
            ),
        ],
    }
}
