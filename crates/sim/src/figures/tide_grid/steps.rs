//! Demand steps from 0.9 to 1.4 times the capacity and back, to ten times and back: how soon goodput
//! is where it can be, and how long the tail gets meanwhile. The mean of many seeds, in buckets of
//! five SLOs, which is 1 ms for a service of 10 µs.

use tidegate_core::Span;

use super::super::chart::{Axis, Chart, Line, Panel};
use super::super::claim::Unit;
use super::super::lab::{Lab, Runs, Source};
use super::goal::Goal;
use super::slo_us;
use crate::measure::Row;

const PLAN: Source =
    Source { name: "steps", text: include_str!("../../../../../plans/steps.toml") };

/// A bucket, in SLOs.
const BUCKET: f64 = 5.0;
/// When what happens, in SLOs: up to 1.4, back, up to ten, back, end.
const UP: f64 = 100.0;
const BACK: f64 = 250.0;
const FAR_UP: f64 = 400.0;
const FAR_BACK: f64 = 500.0;
const END: f64 = 650.0;

pub(super) fn part(lab: &Lab<'_>) -> (Vec<Goal>, Vec<Chart>) {
    let times: &[&str] =
        if lab.quick { &["10us"] } else { &["1us", "10us", "100us", "1ms", "10ms"] };
    let shapes: &[&str] =
        if lab.quick { &["exponential"] } else { &["constant", "exponential", "bimodal"] };
    let callers: &[u32] = if lab.quick { &[1000] } else { &[10, 100, 1000, 10_000] };
    let seeds = if lab.quick { 5 } else { 20 };
    let (mut goals, mut panels) = (Goals::new("steps", false, !lab.quick), Vec::new());
    let mut many = Goals::new("steps, 10,000 callers", true, true);
    for time in times {
        let slo = slo_us(time);
        let at = |slos: f64| format!("\"{}us\"", slos * slo);
        let steps = [(UP, 1.4), (BACK, 0.9), (FAR_UP, 10.0), (FAR_BACK, 0.9)]
            .map(|(slos, load)| format!("{{at={},load={load:?}}}", at(slos)));
        for shape in shapes {
            for callers in callers {
                let sets = [
                    "policy=[\"tide\"]".to_owned(),
                    format!("seeds={seeds}"),
                    format!("callers={callers}"),
                    format!("service.time={time}"),
                    format!("service.distribution={shape}"),
                    format!("slo={slo}us"),
                    format!("warmup={}", at(50.0)),
                    format!("duration={}", at(END)),
                    format!("workload.steps=[{}]", steps.join(",")),
                    "caller.hold_time=0.05 slo".to_owned(),
                ];
                let bucket = Span::from_nanos((BUCKET * slo * 1e3) as u64);
                let runs = lab.run_series(PLAN, &sets, Some(bucket)).mean();
                let follow = Follow::new(&runs, slo);
                let goals = if *callers < 10_000 { &mut goals } else { &mut many };
                goals.add(&format!("{time} {shape}, {callers} callers"), &follow);
                if *shape == "exponential" && *callers == 1000 {
                    panels.push(follow.panel(time));
                }
            }
        }
    }
    let title = "tide while demand steps: 0.9, 1.4, 0.9, 10, 0.9 × capacity".to_owned();
    let many = many.0.into_iter().filter(|_| !lab.quick);
    (goals.0.into_iter().chain(many).collect(), vec![Chart { title, panels }])
}

/// One run over time, in SLOs.
struct Follow {
    rows: Vec<Row>,
    slo_us: f64,
    capacity: f64,
}

impl Follow {
    fn new(runs: &Runs, slo_us: f64) -> Self {
        let run = &runs.0[0];
        let rows = run.series.clone().unwrap_or_default();
        Self { rows, slo_us, capacity: run.capacity_rps }
    }

    fn between(&self, from: f64, to: f64) -> impl Iterator<Item = &Row> {
        let slos = |row: &Row| row.at.as_nanos() as f64 / 1e3 / self.slo_us;
        // Half a bucket is no matter; the start of one may be a nanosecond early.
        self.rows.iter().filter(move |row| (from - 0.01..to - 0.01).contains(&slos(row)))
    }

    /// Goodput ÷ the lesser of what is offered and what can be served.
    fn share(&self, from: f64, to: f64) -> f64 {
        let rows = || self.between(from, to);
        let good: f64 = rows().map(|row| row.good as f64).sum();
        let best = |row: &Row| (row.offered as f64).min(self.capacity * row.step.as_secs_f64());
        good / rows().map(best).sum::<f64>()
    }

    /// Worst p99 of a bucket, of the SLO.
    fn tail(&self, from: f64, to: f64) -> f64 {
        self.between(from, to).map(|row| row.p99.as_micros_f64() / self.slo_us).fold(0.0, f64::max)
    }

    fn panel(&self, time: &str) -> Panel {
        let line = |name: &str, value: &dyn Fn(&Row) -> f64| {
            let slos = |row: &Row| row.at.as_nanos() as f64 / 1e3 / self.slo_us;
            Line::new(name, self.rows.iter().map(|row| (slos(row), value(row))).collect())
        };
        Panel {
            title: format!("{time} exponential, 1,000 callers"),
            x: Axis::linear("SLOs"),
            y: Axis::linear("").up_to(2.0),
            lines: vec![
                line("goodput ÷ capacity", &|row| {
                    row.good as f64 / row.step.as_secs_f64() / self.capacity
                }),
                line("p99 ÷ SLO", &|row| row.p99.as_micros_f64() / self.slo_us),
            ],
        }
    }
}

struct Goals([Goal; 5]);

impl Goals {
    /// Tails are open in full, for services of 1 µs; goodput with 10,000 callers, each of whom sends a
    /// request, and hears how things are, only every 60 SLOs or so.
    fn new(whose: &str, goodput_open: bool, tails_open: bool) -> Self {
        let least = |what| {
            let what = format!("{whose}: goodput {what}");
            Goal::at_least(what, Unit::Percent, 0.97).open_if(goodput_open)
        };
        let most =
            |what| Goal::at_most(format!("{whose}: {what}"), Unit::Times, 1.25).open_if(tails_open);
        Self([
            least("25 to 50 SLOs after 0.9 → 1.4, of capacity"),
            least("25 to 50 SLOs after 1.4 → 0.9, of offered"),
            least("50 to 75 SLOs after 10 → 0.9, of offered"),
            most("worst p99 of five SLOs, of the SLO"),
            most("the same while demand is ten times"),
        ])
    }

    fn add(&mut self, place: &str, follow: &Follow) {
        let [up, back, far_back, tail, far_tail] = &mut self.0;
        up.point(place.to_owned(), follow.share(UP + 25.0, UP + 50.0));
        back.point(place.to_owned(), follow.share(BACK + 25.0, BACK + 50.0));
        far_back.point(place.to_owned(), follow.share(FAR_BACK + 50.0, FAR_BACK + 75.0));
        // Who was not told yet that demand is ten times must wait; five SLOs after its end they are gone.
        let rest = follow.tail(FAR_BACK + BUCKET, END);
        tail.point(place.to_owned(), follow.tail(UP, FAR_UP).max(rest));
        far_tail.point(place.to_owned(), follow.tail(FAR_UP, FAR_BACK + BUCKET));
    }
}
