//! Demand steps from 0.9 to 1.4 times the capacity and back, to ten times and back: how soon goodput
//! is where it can be, and how long the tail gets meanwhile. The mean of many seeds, in buckets of
//! five SLOs, which is 1 ms for a service of 10 µs.

use std::cell::LazyCell;

use tidegate_core::Span;

use super::super::chart::{Axis, Chart, Line, Panel};
use super::super::claim::Unit;
use super::super::lab::{Grid, Lab, Runs, Source};
use super::goal::Goal;
use super::reach::{Marks, Reach};
use super::{Part, slo_us};
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
/// From when on goodput is to be where it can be, for 25 SLOs.
const AFTER: [f64; 3] = [UP + 25.0, BACK + 25.0, FAR_BACK + 50.0];
/// How long after ten times the capacity those who came meanwhile are gone, in SLOs, and with 10,000 callers: each may have four requests
/// on their way without an answer, and to receive 40,000 takes ten cores 33 SLOs of 1 µs. Whoever is being served then is
/// answered after them, whatever one does.
const GONE: f64 = BUCKET;
const GONE_MANY: f64 = 50.0;
/// Its goals, and what the mean of three seeds is off by chance.
const GOALS: Marks = [0.97, 0.97, 0.97, -1.25];
const CHANCE: Marks = [0.003, 0.003, 0.003, 0.05];

pub(super) fn part(lab: &Lab<'_>) -> Part {
    let times: &[&str] =
        if lab.quick { &["10us"] } else { &["1us", "10us", "100us", "1ms", "10ms"] };
    let shapes: &[&str] =
        if lab.quick { &["exponential"] } else { &["constant", "exponential", "bimodal"] };
    let callers: &[u32] = if lab.quick { &[1000] } else { &[10, 100, 1000, 10_000] };
    let seeds = if lab.quick { 5 } else { 20 };
    let (mut goals, mut panels) = (Goals::new("steps", 0.95, 2.0), Vec::new());
    let mut told_of_storms = Vec::new();
    let mut many = Goals::new("steps, 10,000 callers", 0.2, 10.0);
    for time in times {
        let slo = slo_us(time);
        let at = |slos: f64| format!("\"{}us\"", slos * slo);
        let steps = [(UP, 1.4), (BACK, 0.9), (FAR_UP, 10.0), (FAR_BACK, 0.9)]
            .map(|(slos, load)| format!("{{at={},load={load:?}}}", at(slos)));
        let mut storm = Storm::default();
        for shape in shapes {
            for callers in callers {
                let sets = [
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
                let of = |policy: &str, seeds| {
                    let who = [format!("policy=[\"{policy}\"]"), format!("seeds={seeds}")];
                    [&sets[..], &who].concat()
                };
                let runs = lab.run_series(PLAN, &of("tide", seeds), Some(bucket)).mean();
                let (goals, gone) =
                    if *callers < 10_000 { (&mut goals, GONE) } else { (&mut many, GONE_MANY) };
                let follow = Follow::new(&runs, slo, gone);
                let told = LazyCell::new(|| {
                    let runs = lab.run_each(PLAN, &of("told", 3), &choices().sets(), Some(bucket));
                    runs.iter().map(|runs| Follow::new(&runs.mean(), slo, gone)).collect()
                });
                let place = format!("{time} {shape}, {callers} callers");
                storm.add(&place, &follow);
                goals.add(&place, &follow, &|| &*told);
                if *shape == "exponential" && *callers == 1000 {
                    panels.push(follow.panel(time));
                }
            }
        }
        told_of_storms.push(storm.line());
    }
    let title = "tide while demand steps: 0.9, 1.4, 0.9, 10, 0.9 × capacity".to_owned();
    let many = many.0.into_iter().filter(|_| !lab.quick);
    Part {
        goals: goals.0.into_iter().chain(many).collect(),
        charts: vec![Chart { title, panels }],
        told: told_of_storms,
    }
}

/// The least goodput of all runs while demand is ten times the capacity, and the longest tail of five SLOs, of which run.
/// It is no goal: what was being served when so much came is answered after all of it was received, whoever comes after it.
struct Storm {
    good: (f64, String),
    tail: (f64, String),
}

impl Default for Storm {
    fn default() -> Self {
        Self { good: (f64::INFINITY, String::new()), tail: (0.0, String::new()) }
    }
}

impl Storm {
    fn add(&mut self, place: &str, run: &Follow) {
        let (good, tail) = (run.share(FAR_UP, FAR_BACK), run.tail(FAR_UP, run.gone));
        if good < self.good.0 {
            self.good = (good, place.to_owned());
        }
        if tail > self.tail.0 {
            self.tail = (tail, place.to_owned());
        }
    }

    fn line(&self) -> String {
        let Self { good: (good, least), tail: (tail, longest) } = self;
        let [good, tail] = [Unit::Percent.show(*good), Unit::Times.show(*tail)];
        format!(
            "while demand is ten times: goodput {good} of capacity ({least}), worst p99 of five SLOs {tail} ({longest})"
        )
    }
}

/// One run over time, in SLOs.
struct Follow {
    rows: Vec<Row>,
    slo_us: f64,
    capacity: f64,
    /// When those are gone that came while demand was ten times.
    gone: f64,
}

impl Follow {
    fn new(runs: &Runs, slo_us: f64, gone: f64) -> Self {
        let run = &runs.0[0];
        let rows = run.series.clone().unwrap_or_default();
        Self { rows, slo_us, capacity: run.capacity_rps, gone: FAR_BACK + gone }
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

    /// While demand steps to 1.4 and back, and after ten times: who was not told yet that demand is ten times must wait.
    fn tail_of_steps(&self) -> f64 {
        self.tail(UP, FAR_UP).max(self.tail(self.gone, END))
    }

    /// How much of what can be served is, after each step, and the tail meanwhile, below zero.
    fn marks(&self) -> Marks {
        let [up, back, far_back] = AFTER.map(|from| self.share(from, from + 25.0));
        [up, back, far_back, -self.tail_of_steps()]
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

/// What `told` may choose: how much it lets in, how long may be waited, and whether everybody hears of a step.
fn choices() -> Grid {
    Grid::new("told")
        .axis("told.offer", &["0.98", "1.02"])
        .axis("told.room", &["0.35", "0.55"])
        .axis("told.notices", &["true", "false"])
}

struct Goals([Goal; 4]);

impl Goals {
    /// Goals of these runs, which have no less than `least` after a step and no longer a tail than `longest`, whatever is
    /// possible.
    fn new(whose: &str, least: f64, longest: f64) -> Self {
        let goodput = |what| {
            let what = format!("{whose}: goodput {what}");
            Goal::at_least(what, Unit::Percent, 0.97).near(0.01, least)
        };
        Self([
            goodput("25 to 50 SLOs after 0.9 → 1.4, of capacity"),
            goodput("25 to 50 SLOs after 1.4 → 0.9, of offered"),
            goodput("50 to 75 SLOs after 10 → 0.9, of offered"),
            Goal::at_most(
                format!("{whose}: worst p99 of five SLOs, of the SLO"),
                Unit::Times,
                1.25,
            )
            .near(0.25, longest),
        ])
    }

    /// A run of tide, and those of `told`.
    fn add<'a>(&mut self, place: &str, tide: &Follow, told: &dyn Fn() -> &'a Vec<Follow>) {
        let own = tide.marks();
        for (which, goal) in self.0.iter_mut().enumerate() {
            goal.point_or(place.to_owned(), own[which].abs(), || {
                let told = Reach::new(told().iter().map(Follow::marks), CHANCE);
                told.best(&GOALS, &own, which).map(f64::abs)
            });
        }
    }
}
