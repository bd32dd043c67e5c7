//! Who is refused, when ranks are spread evenly, all the same, or few have most of the demand, and
//! when the most or the least important quarter costs seven times as much as the rest.

use super::super::chart::Chart;
use super::super::claim::Unit;
use super::super::lab::{Lab, Runs, Source, at, goodput, text};
use super::goal::Goal;
use crate::report::Report;

const PLAN: Source = Source {
    name: "ranks-and-costs",
    text: include_str!("../../../../../plans/ranks-and-costs.toml"),
};

pub(super) fn part(lab: &Lab<'_>) -> (Vec<Goal>, Vec<Chart>) {
    let times: &[&str] = if lab.quick { &["10us"] } else { &["10us", "1ms"] };
    let mut sets = lab.requests(60_000, 200_000);
    sets.push("policy=[\"tide\",\"breakwater\"]".to_owned());
    if lab.quick {
        sets.push("load=[1.2]".to_owned());
        sets.push("workload.ranks=[\"uniform\",\"one\"]".to_owned());
        sets.push("workload.cost=[\"independent\",\"falling\"]".to_owned());
    } else {
        sets.push("load=[0.9,1.2,2.0,4.0]".to_owned());
    }
    let mut goals = Goals::new();
    for time in times {
        let mut sets = sets.clone();
        let (micros, slo) = if *time == "10us" { (10.0, "200us") } else { (1000.0, "10100us") };
        sets.extend([format!("service.time={time}"), format!("slo={slo}")]);
        sets.push("caller.hold_time=0.05 slo".to_owned());
        goals.add(time, micros, &lab.run(PLAN, &sets));
    }
    (goals.0.into(), Vec::new())
}

struct Goals([Goal; 3]);

impl Goals {
    fn new() -> Self {
        let first = "mixes, 1.2× and more: first quarter answered, of what is possible";
        let most = "mixes, 1.2× and more, cost independent of rank: goodput, of capacity";
        let calm = "mixes: first quarter refused at 0.9×, or not answered at 1.2×";
        Self([
            Goal::at_least(first, Unit::Percent, 0.98).open(),
            Goal::at_least(most, Unit::Percent, 0.98),
            Goal::at_most(calm, Unit::Percent, 0.005).open(),
        ])
    }

    fn add(&mut self, time: &str, micros: f64, runs: &Runs) {
        let [first, most, calm] = &mut self.0;
        for run in runs.of("tide") {
            let (ranks, cost) = (text(run, "workload.ranks"), text(run, "workload.cost"));
            let load = at(run, "load").unwrap_or_default();
            let place = || format!("{time}, ranks {ranks}, cost {cost}, {load}×");
            let quarter = run.success_by_quarter[0];
            if load > 1.0 && cost == "independent" {
                most.point(place(), goodput(run));
            }
            // With one rank for all there is no first quarter to prefer; with Zipf over business
            // ranks the quarters cut through ranks.
            if ranks != "uniform" {
                continue;
            }
            if load > 1.0 {
                first.point(place(), quarter / possible(micros, cost, load));
            }
            if load <= 1.2 {
                let lost = if load < 1.0 { refused(run) } else { 1.0 - quarter };
                calm.point(place(), lost);
            }
        }
    }
}

fn refused(run: &Report) -> f64 {
    run.drop_rate + run.local_reject_rate + run.expired_rate
}

/// How much of the first quarter can be answered in time: its share of the cost, times demand, may be
/// more than everything, and some take longer than the SLO by themselves.
fn possible(micros: f64, cost: &str, load: f64) -> f64 {
    let factor = match cost {
        "falling" => 2.8,
        "rising" => 0.4,
        _ => 1.0,
    };
    // Receiving and sending take 1.76 µs of the core, whatever the request.
    let share = 0.25 * (factor * micros + 1.76) / (micros + 1.76);
    // Times are exponential; the SLO is ten times service and round trip, which is 10 µs.
    let in_time = 1.0 - (-(10.0 * micros + 90.0) / (factor * micros)).exp();
    (1.0 / (load * share)).min(1.0) * in_time
}
