//! What a limit divided over nodes costs in delay, against theory: with Poisson arrivals the delay of
//! each part is known exactly. Shares that follow measured load must not add to it; and when load
//! moves, they must follow.

use tidegate_core::share::{AdaptorConfig, HistoryConfig, LeaseConfig, Rate, Share, Weight, split};
use tidegate_core::{Instant, Span};

use super::chart::{Axis, Chart, Line, Panel};
use super::claim::{Claim, Unit};
use super::lab::Lab;
use super::srtm::each;
use super::{Figure, Outcome};
use crate::broker::exact::mean_delay;
use crate::broker::shares::Scenario;

pub(super) const FIGURE: Figure = Figure {
    name: "shares-split",
    title: "A limit divided over nodes, its shares following their loads",
    source: "SRTM §II-A and §V-D; waits of M/D/1 (Crommelin 1932)",
    make,
};

/// Tokens per second and burst of each node's even part.
const RATE: f64 = 1_000.0;
const BURST: u64 = 10;
/// How loads are to each other.
const EVEN: [f64; 1] = [1.0];
const UNEVEN: [f64; 4] = [4.0, 2.0, 1.0, 1.0];
/// When the load of the second scenario shifts, in seconds.
const SHIFT_S: u64 = 20;

fn rate(tokens: f64) -> Rate {
    Rate::per_second(tokens).expect("a rate")
}

/// So many nodes whose loads are as these weights, repeated, and together `load` of the whole rate.
fn loaded(nodes: u32, weights: &[f64], load: f64, seed: u64, span: Span) -> Scenario {
    let weights: Vec<f64> = weights.iter().copied().cycle().take(nodes as usize).collect();
    let each = RATE * load * f64::from(nodes) / weights.iter().sum::<f64>();
    Scenario {
        whole: Share::new(rate(RATE * f64::from(nodes)), BURST * u64::from(nodes)),
        lease: LeaseConfig { nodes, ..LeaseConfig::default() },
        history: HistoryConfig::default(),
        adaptor: AdaptorConfig::default(),
        loads: weights.into_iter().map(|weight| weight * each).collect(),
        shift: None,
        faults: Vec::new(),
        span,
        warm: Span::from_secs(20),
        seed,
    }
}

fn shifting(paper: bool, seed: u64) -> Scenario {
    let mut scenario = loaded(4, &EVEN, 0.0, seed, Span::from_secs(40));
    scenario.loads = vec![2_000.0, 400.0, 400.0, 400.0];
    let after = vec![400.0, 400.0, 400.0, 2_000.0];
    scenario.shift = Some((Instant::ZERO + Span::from_secs(SHIFT_S), after));
    if paper {
        (scenario.history, scenario.adaptor) = (HistoryConfig::paper(), AdaptorConfig::paper());
    }
    scenario
}

/// What the exact formula allows for the split that such loads lead to: safe shares alike, the rest in proportion.
fn exact(scenario: &Scenario) -> f64 {
    let Scenario { whole, lease, loads, .. } = scenario;
    let safe = lease.safe_share(*whole).expect("enough tokens");
    let weights: Vec<Weight> = loads.iter().map(|load| Weight::both((load * 1e3) as u64)).collect();
    let pool = whole.minus(safe.times(u64::from(lease.nodes)));
    let parts = split(pool, &weights).expect("enough tokens");
    let delay = |(load, part): (&f64, Share)| {
        let share = safe.plus(part);
        load * mean_delay(*load, share.rate.as_f64(), share.burst)
    };
    loads.iter().zip(parts).map(delay).sum::<f64>() / loads.iter().sum::<f64>()
}

/// Delay of a run and in theory, both in microseconds.
struct Run {
    load: f64,
    nodes: u32,
    even: bool,
    measured: f64,
    exact: f64,
}

fn make(lab: &Lab<'_>) -> Outcome {
    let seed = lab.seed;
    let mut points = Vec::new();
    for load in [0.8, 0.9] {
        points.extend([2, 4, 8].map(|nodes| (load, nodes, true)));
        points.extend([4, 8].map(|nodes| (load, nodes, false)));
    }
    let span = Span::from_secs(if lab.quick { 140 } else { 620 });
    let runs = each(lab, &points, |&(load, nodes, even)| {
        let weights: &[f64] = if even { &EVEN } else { &UNEVEN };
        let scenario = loaded(nodes, weights, load, seed, span);
        let exact = exact(&scenario) * 1e6;
        Run { load, nodes, even, measured: scenario.run().mean_delay * 1e6, exact }
    });
    let shifts = each(lab, &[false, true], |paper| shifting(*paper, seed).run().rates);
    Outcome {
        claims: claims(&runs, &shifts),
        charts: vec![chart(&runs, &shifts)],
        notes: Vec::new(),
        ..Outcome::default()
    }
}

/// Seconds from the shift until the busy node's share is within a tenth of what it comes to.
fn follows(rates: &[Vec<f64>]) -> f64 {
    let last = rates.last().map_or(0.0, |rates| rates[3]);
    let from = SHIFT_S as usize * 10;
    let there = rates.iter().skip(from).position(|rates| rates[3] >= 0.9 * last);
    there.map_or(f64::MAX, |steps| steps as f64 / 10.0)
}

fn claims(runs: &[Run], shifts: &[Vec<Vec<f64>>]) -> Vec<Claim> {
    let claim = |run: &Run| {
        let loads = if run.even { "" } else { ", loads as 4 : 2 : 1 : 1" };
        let what =
            format!("{} nodes at {} of their rate{loads}: delay ÷ exact", run.nodes, run.load);
        let ratio = run.measured / run.exact;
        if run.even {
            Claim::between(&what, Unit::Times, ratio, 0.9, 1.1)
        } else {
            // Shares may do better than in proportion to loads, not worse.
            Claim::at_most(&what, Unit::Times, ratio, 1.0)
        }
    };
    let mut claims: Vec<Claim> = runs.iter().map(claim).collect();
    let [ours, paper] = [&shifts[0], &shifts[1]].map(|rates| follows(rates) * 1e3);
    claims.push(Claim::at_most("ours: a shift is followed within", Unit::Millis, ours, 2_000.0));
    claims.push(
        Claim::between("the paper's form: within", Unit::Millis, paper, 4_000.0, 12_000.0)
            .paper("10 s history"),
    );
    claims
}

fn chart(runs: &[Run], shifts: &[Vec<Vec<f64>>]) -> Chart {
    let mut lines = Vec::new();
    for load in [0.8, 0.9] {
        let line = |name: String, value: fn(&Run) -> f64| {
            let here = runs.iter().filter(|run| run.load == load && run.even);
            Line::new(&name, here.map(|run| (f64::from(run.nodes), value(run))).collect())
        };
        lines.push(line(format!("load {load}"), |run| run.measured));
        lines.push(line(format!("exact {load}"), |run| run.exact));
    }
    let share = |(name, rates): (&str, &Vec<Vec<f64>>)| {
        let point = |(step, rates): (usize, &Vec<f64>)| (step as f64 / 10.0, rates[3]);
        Line::new(name, rates.iter().enumerate().map(point).collect())
    };
    Chart {
        title: FIGURE.title.to_owned(),
        panels: vec![
            Panel {
                title: "equal Poisson loads".to_owned(),
                x: Axis::linear("nodes"),
                y: Axis::linear("mean access delay, µs"),
                lines,
            },
            Panel {
                title: format!("load moves to a node at {SHIFT_S} s"),
                x: Axis::linear("time, s"),
                y: Axis::linear("its share, tokens/s"),
                lines: ["ours", "paper's form"].into_iter().zip(shifts).map(share).collect(),
            },
        ],
    }
}
