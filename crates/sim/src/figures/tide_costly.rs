//! What is possible where the most important quarter costs seven times the rest: a service of 1 ms.
//!
//! Requests of that quarter take 2.8 ms on average, and one of 37 takes longer than the SLO of 10.1 ms by itself.
//! Nobody can do more for them than serve them alone, as if there were no others. So this is what both yardsticks do
//! with such a service: [`ideal`](crate::ideal), whose callers know the queue, and [`told`](crate::told), whose
//! callers do not. They say how much could be done by one who has the others to serve too.

use super::chart::{Axis, Chart, Line, Panel};
use super::claim::{Claim, Unit};
use super::lab::{Lab, Source};
use super::tide_grid::mixes::{possible, share};
use super::tide_grid::slo_us;
use super::tide_told::best;
use super::{Figure, Outcome};
use crate::report::Report;

pub(super) const FIGURE: Figure = Figure {
    name: "tide-costly",
    title: "An important quarter that costs seven times the rest, and what could be done for it alone",
    source: "no paper's: the goal, 98 % of what there is room for, is that of docs/figures.md",
    make,
};

const PLAN: Source = Source { name: "rough", text: include_str!("../../../../plans/rough.toml") };
const TIME: &str = "1ms";
const COST: &str = "falling";

fn make(lab: &Lab<'_>) -> Outcome {
    let loads: &[f64] = if lab.quick { &[1.2, 2.0] } else { &[1.05, 1.2, 1.4, 1.7, 2.0, 3.0, 4.0] };
    let mut outcome = Outcome::default();
    let points: Vec<Point> = loads.iter().map(|load| Point::of(lab, *load, &mut outcome)).collect();
    let percent = |name: &str, value: fn(&Point) -> f64| {
        Line::new(name, points.iter().map(|point| (point.load, 100.0 * value(point))).collect())
    };
    let panel = Panel {
        title: "1 ms, 1,000 callers".to_owned(),
        x: Axis::linear("demand ÷ capacity"),
        y: Axis::linear("first quarter answered in time, %"),
        lines: vec![
            percent("room for", |point| point.room),
            percent("alone, ideal", |point| point.ideal),
            percent("alone, told", |point| point.told),
            percent("tide", |point| point.tide),
            percent("breakwater", |point| point.breakwater),
        ],
    };
    outcome.charts.push(Chart { title: FIGURE.title.to_owned(), panels: vec![panel] });
    outcome.claims.extend(points.iter().flat_map(Point::claims));
    outcome
}

/// One load: the first quarter answered in time, of offered.
struct Point {
    load: f64,
    room: f64,
    ideal: f64,
    told: f64,
    tide: f64,
    breakwater: f64,
}

impl Point {
    fn of(lab: &Lab<'_>, load: f64, outcome: &mut Outcome) -> Self {
        let sets = |more: [String; 3]| {
            let mut sets = lab.requests(60_000, 200_000);
            sets.push("service.distribution=exponential".to_owned());
            sets.push(format!("slo={}us", slo_us(TIME)));
            [sets, more.to_vec()].concat()
        };
        let time = format!("service.time={TIME}");
        let cost = format!("workload.cost={COST}");
        let all = sets([time, cost, format!("load=[{load:?}]")]);
        let among = |policy: &str| {
            let sets = [&all[..], &[format!("policy=[\"{policy}\"]")]].concat();
            lab.run(PLAN, &sets).get(policy, &[]).success_by_quarter[0]
        };
        let time = "service.time=2800us".to_owned();
        let cost = "workload.cost=independent".to_owned();
        let alone = sets([time, cost, format!("load=[{:?}]", load * share(TIME, COST))]);
        let answered = |run: &Report| run.goodput_rps / run.offered_rps;
        let ideal = lab.run(PLAN, &[&alone[..], &["policy=[\"ideal\"]".to_owned()]].concat());
        let told = best(lab, PLAN, &format!("alone, {load}×"), &alone, None, outcome);
        Self {
            load,
            room: possible(TIME, COST, load),
            ideal: answered(ideal.get("ideal", &[])),
            told: answered(&told.0[0]),
            tide: among("tide"),
            breakwater: among("breakwater"),
        }
    }

    fn claims(&self) -> Vec<Claim> {
        let load = self.load;
        let among = format!("{load}×: tide, among all, ÷ alone with told");
        let among = |least| Claim::at_least(&among, Unit::Percent, self.tide / self.told, least);
        // Up to 1.43 times the capacity there is room for all of the quarter. What it loses there, it loses because
        // others are before it in the queue: rank decides who is refused, not who is next.
        if load < 1.4 {
            return vec![among(0.9)];
        }
        let alone = format!("{load}×: alone with told, of what there is room for");
        let goal = Claim::at_most(&alone, Unit::Percent, self.told / self.room, 0.98);
        vec![goal, among(if load < 2.0 { 0.9 } else { 0.97 })]
    }
}
