//! Steady load: service times × shapes × callers × demand, against the others and against `ideal`; with ranks spread evenly,
//! and where nobody ranks anything.

use super::super::chart::{Axis, Chart, Line, Panel};
use super::super::claim::Unit;
use super::super::lab::{Lab, Runs, Source, at, goodput, point, text};
use super::goal::Goal;
use super::reach::{GOOD, Reach, marks};
use super::rivals::{Beside, Entry, Rivals};
use super::{MANY, Part, beyond_ideal, capacity, slo_us};
use crate::report::Report;

const PLAN: Source =
    Source { name: "service-times", text: include_str!("../../../../../plans/service-times.toml") };
const SHAPES: [&str; 3] = ["constant", "exponential", "bimodal"];

/// Which part of the grid is run.
struct Grid {
    times: &'static [&'static str],
    shapes: &'static [&'static str],
    callers: &'static [u32],
    overload: &'static [f64],
    /// Without ranks, these of them.
    unranked: (&'static [&'static str], &'static [&'static str], &'static [f64]),
}

const FULL: Grid = Grid {
    times: &["1us", "10us", "100us", "1ms", "10ms"],
    shapes: &SHAPES,
    callers: &[10, 100, 1000, 10_000],
    overload: &[1.2, 2.0, 4.0, 10.0],
    unranked: (&["1us", "10us", "100us", "1ms"], &["exponential", "bimodal"], &[1.2, 2.0, 10.0]),
};
const QUICK: Grid = Grid {
    times: &["10us", "1ms"],
    shapes: &["exponential"],
    callers: &[100],
    overload: &[1.2, 2.0],
    unranked: (&["10us"], &["exponential"], &[1.2, 2.0]),
};

pub(super) fn part(lab: &Lab<'_>) -> Part {
    let grid = if lab.quick { QUICK } else { FULL };
    let of = |policies: &str, loads: &[f64]| {
        let mut sets = lab.requests(60_000, 200_000);
        sets.extend([
            format!("policy=[{policies}]"),
            format!("load={loads:?}"),
            format!("callers={:?}", grid.callers),
            format!("service.time={:?}", grid.times),
            format!("service.distribution={:?}", grid.shapes),
        ]);
        sets
    };
    let tide = |loads: &[f64], more: &[String]| {
        let lots = lots(grid.callers, loads, &[]);
        all(run(lab, &[&of("\"tide\"", loads), more].concat(), &lots, SLOWEST))
    };
    let (times, shapes, loads) = grid.unranked;
    let without_ranks = [
        format!("service.time={times:?}"),
        format!("service.distribution={shapes:?}"),
        "workload.ranks=one".to_owned(),
    ];
    let (runs, unranked) = (tide(grid.overload, &[]), tide(loads, &without_ranks));
    let calm = lab.run(PLAN, &of("\"tide\"", &[0.9]));
    let mut goals = of_overload(lab, "overload", &runs, &[]);
    goals.push(of_first(&runs));
    goals.push(of_calm(lab, &calm));
    goals.extend(of_overload(lab, UNRANKED, &unranked, &without_ranks[2..]));
    goals.extend(of_others(lab, &runs, &unranked, &others(lab, &grid, &of)));
    if !lab.quick {
        goals.push(near_no_control(&lab.run(PLAN, &of("\"tide\",\"open\"", &[0.95]))));
        // It is the same for all that are too many for answers to share messages.
        let mut sets = of("\"ideal\"", &NEAR_LOADS);
        sets.push(format!("callers=[{FEW},{MANY}]"));
        sets.push(format!("warmup_requests={AT_ONCE:.0}"));
        goals.push(near_ideal(lab, &tide(&NEAR_LOADS, &[]), &lab.run(PLAN, &sets)));
    }
    Part { goals, charts: vec![chart(&runs, &grid)], ..Part::default() }
}

/// A number of callers and a load with some parameters.
struct Lot {
    sets: Vec<String>,
    callers: u32,
    load: f64,
}

/// All of them, those first that take longest.
fn lots(callers: &[u32], loads: &[f64], sets: &[String]) -> Vec<Lot> {
    let of = |callers: u32| {
        loads.iter().rev().map(move |load| Lot { sets: sets.to_vec(), callers, load: *load })
    };
    callers.iter().rev().flat_map(|callers| of(*callers)).collect()
}

/// Runs them all at once. What many callers are told is old: it takes them some messages each to settle in, and
/// the higher the load, the fewer of their requests are sent.
fn run(lab: &Lab<'_>, sets: &[String], lots: &[Lot], messages: f64) -> Vec<Runs> {
    let choice = |Lot { sets, callers, load }: &Lot| {
        let mut sets = sets.clone();
        sets.extend([format!("callers=[{callers}]"), format!("load=[{load:?}]")]);
        if !lab.quick {
            sets.extend(settled(f64::from(*callers), *load, messages));
        }
        sets
    };
    lab.run_each(PLAN, sets, &lots.iter().map(choice).collect::<Vec<_>>(), None)
}

fn all(runs: Vec<Runs>) -> Runs {
    runs.into_iter().fold(Runs::default(), Runs::and)
}

/// As many requests as are needed.
fn settled(callers: f64, load: f64, messages: f64) -> [String; 2] {
    [
        format!("warmup_requests={:.0}", (messages * callers * load).max(200_000.0)),
        format!("requests={:.0}", (SERVED * load).max(200_000.0)),
    ]
}

/// Requests of each caller that are let in before anything is measured: tide and SEDA still change after half of
/// them, Breakwater and DAGOR are the same after a quarter.
const SLOWEST: f64 = 40.0;
const SLOW: f64 = 20.0;
/// Requests before that where nobody has to settle in.
const AT_ONCE: f64 = 20_000.0;
/// As many requests can be served while it is measured, at least: chance is then worth less than half a percent.
const SERVED: f64 = 100_000.0;

/// The other policies, DAGOR and SEDA with two parameters each: the best of all counts. Those two are not
/// run at ten times the capacity, to save time; there the goal is one beside Breakwater and CoDel.
fn others(lab: &Lab<'_>, grid: &Grid, of: &dyn Fn(&str, &[f64]) -> Vec<String>) -> Vec<Rivals> {
    let run = |policy: &str, lots: &[Lot], messages: f64| {
        let runs = run(lab, &of(&format!("\"{policy}\""), grid.overload), lots, messages);
        let rivals = |(lot, runs): (&Lot, Runs)| Rivals { sets: lot.sets.clone(), runs };
        lots.iter().zip(runs).map(rivals).collect::<Vec<_>>()
    };
    let mut rivals = run("breakwater", &lots(grid.callers, grid.overload, &[]), SLOW);
    // Its callers learn nothing, so they need not settle in.
    let mut sets = of("\"codel\"", grid.overload);
    sets.extend((!lab.quick).then(|| format!("warmup_requests={AT_ONCE:.0}")));
    rivals.push(Rivals { sets: Vec::new(), runs: lab.run(PLAN, &sets) });
    if lab.quick {
        return rivals;
    }
    let loads = &grid.overload[..3];
    let detector = "policies.dagor-aimd.gate.admission.detector";
    let dagor = ["0.2 slo", "0.35 slo"].map(|threshold| {
        // Its window of 1 ms is five SLOs of the paper's service.
        let window = format!("{detector}.window=5 slo");
        lots(grid.callers, loads, &[format!("{detector}.threshold={threshold}"), window])
    });
    rivals.extend(run("dagor-aimd", &dagor.into_iter().flatten().collect::<Vec<_>>(), SLOW));
    rivals.extend(run("seda", &seda(grid, loads), SLOWEST));
    rivals
}

/// SEDA has to be tuned for every number of callers and every service (Breakwater §5.1). With 10,000 callers the faster
/// way down is left out: wherever it was tried it served less than half of the capacity.
fn seda(grid: &Grid, loads: &[f64]) -> Vec<Lot> {
    let throttle = "policies.seda.caller.throttle";
    let of = |time: &str, callers: u32, down: &str| {
        let share = capacity(time) / f64::from(callers);
        let sets = [
            format!("{throttle}.start_low={:.4}", 0.4 * share),
            format!("{throttle}.start_high={:.4}", 0.9 * share),
            // The least that may be set is one in a thousand seconds.
            format!("{throttle}.floor={:.4}", (0.002 * share).max(0.001)),
            format!("{throttle}.adj_i={:.4}", 0.05 * share),
            format!("{throttle}.adj_d={down}"),
            format!("{throttle}.timeout=5 slo"),
            format!("service.time=[\"{time}\"]"),
        ];
        lots(&[callers], loads, &sets)
    };
    let callers = grid.callers.iter().rev();
    let all = callers.flat_map(|callers| grid.times.iter().map(move |time| (time, *callers)));
    let ways = |callers| if callers < 10_000 { &["1.005", "1.04"][..] } else { &["1.005"] };
    all.flat_map(|(time, callers)| {
        ways(callers).iter().flat_map(move |down| of(time, callers, down))
    })
    .collect()
}

fn fair(run: &Report) -> f64 {
    super::fair(run, text(run, "service.time"))
}

fn place(run: &Report) -> String {
    format!(
        "{} {}, {} callers, {}×",
        text(run, "service.time"),
        text(run, "service.distribution"),
        at(run, "callers").unwrap_or_default(),
        at(run, "load").unwrap_or_default()
    )
}

/// Least goodput, of the capacity. One run is off by 0.2 % by chance: one that has less is run again, for longer.
const LEAST: f64 = 0.98;
/// What points are called in which nobody ranks anything.
const UNRANKED: &str = "overload, no ranks";

fn of_overload(lab: &Lab<'_>, prefix: &str, runs: &Runs, sets: &[String]) -> Vec<Goal> {
    let what = format!("{prefix}: goodput, of capacity");
    let mut most = Goal::at_least(what, Unit::Percent, LEAST);
    let mut tail = Goal::at_most(format!("{prefix}: p99, of the SLO"), Unit::Times, 1.0);
    for run in runs.of("tide") {
        let good = match fair(run) {
            few if few < LEAST && !lab.quick => fair(&again(lab, "tide", sets, run)),
            enough => enough,
        };
        most.point(place(run), good);
        tail.point(place(run), run.p99_us / slo_us(text(run, "service.time")));
    }
    vec![most, tail]
}

fn of_first(runs: &Runs) -> Goal {
    let what = "2×: first quarter of the ranks answered in time";
    let mut first = Goal::at_least(what, Unit::Percent, 0.99);
    for run in runs.of("tide").filter(|run| at(run, "load") == Some(2.0)) {
        first.point(place(run), run.success_by_quarter[0]);
    }
    first
}

/// Where requests differ much, chance makes the queue so long even at 0.9 of the capacity that some are
/// late whatever one does: so many may be refused. `ideal` tells how many, where tide refuses any to speak of.
fn of_calm(lab: &Lab<'_>, runs: &Runs) -> Goal {
    let what = "0.9×: refused, beyond what ideal does not answer in time either";
    let mut goal = Goal::at_most(what, Unit::Percent, CALM);
    let runs: Vec<&Report> = runs.of("tide").collect();
    let beyond = beyond_ideal(lab, PLAN, &lab.requests(60_000, 200_000), CALM, &runs);
    for (tide, beyond) in runs.iter().zip(beyond) {
        goal.point(place(tide), beyond);
    }
    goal
}

/// Most that may be refused in calm weather.
const CALM: f64 = 0.001;

/// The others and `told` ignore ranks, or have them at their best: they are run once.
fn of_others(
    lab: &Lab<'_>,
    runs: &Runs,
    unranked: &Runs,
    others: &[Rivals],
) -> impl Iterator<Item = Goal> + use<> {
    let [mut ranked, mut plain] = ["overload", UNRANKED].map(|what| Beside::new(what, others));
    for tide in runs.of("tide") {
        let (time, place) = (text(tide, "service.time"), place(tide));
        let told = &Reach::lazily(lab, PLAN, time, tide, &[]);
        let first = 0.98 * (4.0 / at(tide, "load").unwrap_or(1.0)).min(1.0);
        let again = |policy: &str, sets: &[String]| again(lab, policy, sets, tide);
        let entry = Entry { place: place.clone(), time, tide, again: &again, told, first };
        ranked.add(&entry, others);
        if let Some(tide) = unranked.of("tide").find(|run| run.point == tide.point) {
            let again = |policy: &str, sets: &[String]| {
                self::again(lab, policy, &[sets, &["workload.ranks=one".to_owned()]].concat(), tide)
            };
            plain.add(&Entry { place, time, tide, again: &again, told, first: 0.0 }, others);
        }
    }
    [ranked.goals(), plain.goals()].into_iter().flatten()
}

/// `policy` with these parameters in the point of `run`: the mean of four seeds, each twice as long; of two where callers take
/// long to settle in.
fn again(lab: &Lab<'_>, policy: &str, with: &[String], run: &Report) -> Report {
    let (load, callers) = (at(run, "load").unwrap_or(1.0), at(run, "callers").unwrap_or(1.0));
    let mut sets = [with, &point(run)].concat();
    sets.extend(settled(callers, load, SLOWEST));
    let seeds = if callers > f64::from(MANY) { 2 } else { 4 };
    sets.extend([format!("policy={policy}"), format!("seeds={seeds}")]);
    sets.push(format!("requests={:.0}", 2.0 * (SERVED * load).max(200_000.0)));
    if policy == "ideal" {
        // It knows everything at once: nobody has to settle in. It is the same for all that are too many.
        sets.push(format!("warmup_requests={AT_ONCE:.0}"));
        sets.push(format!("callers=[{:.0}]", callers.min(f64::from(MANY))));
    }
    lab.run(PLAN, &sets).mean().0.remove(0)
}

fn near_no_control(runs: &Runs) -> Goal {
    let what = "0.95×: goodput ÷ with no control";
    let mut goal = Goal::at_least(what, Unit::Times, 0.999);
    for run in runs.of("tide") {
        let open = runs.of("open").find(|open| open.point == run.point).expect("both were run");
        goal.point(place(run), run.goodput_rps / open.goodput_rps);
    }
    goal
}

/// Most by which goodput is below that of `ideal`, at these loads.
const NEAR: f64 = 0.01;
const NEAR_LOADS: [f64; 2] = [1.0, 1.1];
/// Callers that are so few that answers share messages.
const FEW: u32 = 10;

fn near_ideal(lab: &Lab<'_>, runs: &Runs, ideals: &Runs) -> Goal {
    let what = "1.0× and 1.1×: goodput below ideal, of capacity";
    let mut goal = Goal::at_most(what, Unit::Percent, NEAR).near(0.01, 0.03);
    for run in runs.of("tide") {
        let callers = at(run, "callers").filter(|callers| *callers <= f64::from(FEW));
        let callers = callers.unwrap_or(f64::from(MANY));
        let same = |ideal: &&Report| {
            let texts = ["service.time", "service.distribution"];
            texts.iter().all(|path| text(ideal, path) == text(run, path))
                && at(ideal, "load") == at(run, "load")
                && at(ideal, "callers") == Some(callers)
        };
        let ideal = ideals.of("ideal").find(same).expect("it was run");
        let time = text(run, "service.time");
        let told = Reach::lazily(lab, PLAN, time, run, &[]);
        let (mut own, mut best) = (marks(run, time), fair(ideal));
        if best - own[GOOD] > NEAR {
            // That may be chance.
            own = marks(&again(lab, "tide", &[], run), time);
            best = fair(&again(lab, "ideal", &[], run));
        }
        let goals = [best - NEAR, -0.8, -0.01, 0.0];
        goal.point_or(place(run), best - own[GOOD], || {
            told.best(&goals, &own, GOOD).map(|possible| best - possible)
        });
    }
    goal
}

fn chart(runs: &Runs, grid: &Grid) -> Chart {
    let panel = |shape: &&str| {
        let line = |time: &&str| {
            let here = runs.only(|run| {
                text(run, "service.distribution") == *shape
                    && text(run, "service.time") == *time
                    && at(run, "load") == Some(2.0)
            });
            Line { name: (*time).to_owned(), ..here.line("tide", "callers", goodput) }
        };
        Panel {
            title: format!("{shape}, demand 2 × capacity"),
            x: Axis::log("callers"),
            y: Axis::linear("goodput ÷ capacity"),
            lines: grid.times.iter().map(line).collect(),
        }
    };
    Chart {
        title: "tide with the same parameters everywhere".to_owned(),
        panels: grid.shapes.iter().map(panel).collect(),
    }
}
