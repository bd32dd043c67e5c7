//! What is possible for callers that do not know the queue when they send: goodput against drops.
//!
//! Where a thousand callers send a hundred thousand requests a second, each hears of the queue every ten
//! milliseconds, and the queue is another one every few. So arrivals are as good as random, and all that can
//! be chosen is how much is offered and how many may wait: fewer, and cores are idle by chance; more, and
//! requests are late; offered less, the same; offered more, and more is dropped. For exponential service
//! that is M/M/c with a bounded queue, known exactly. The best of all choices is a frontier, and nobody gets
//! beyond it but who knows more, as few busy callers do.

use super::chart::{Axis, Chart, Line, Panel};
use super::claim::{Claim, Unit};
use super::erlang::{Bounded, LATE, MESSAGES, bounded, in_time};
use super::lab::{Lab, Runs, Source, fair_goodput, text};
use super::{Figure, Outcome};
use crate::report::Report;

pub(super) const FIGURE: Figure = Figure {
    name: "tide-frontier",
    title: "Goodput against drops: tide, and the best that is possible without knowing the queue",
    source: "no paper's: the goals for both are those of docs/figures.md",
    make,
};

const PLAN: Source =
    Source { name: "service-times", text: include_str!("../../../../plans/service-times.toml") };
const TIMES: [(&str, f64); 3] = [("10us", 10.0), ("100us", 100.0), ("1ms", 1000.0)];
/// Those that hear often, and those that do not.
const FEW: [f64; 2] = [10.0, 100.0];
const MANY: [f64; 2] = [1000.0, 10_000.0];

fn make(lab: &Lab<'_>) -> Outcome {
    let mut sets = lab.requests(100_000, 400_000);
    sets.extend([
        "policy=[\"tide\"]".to_owned(),
        "load=[2.0]".to_owned(),
        "service.distribution=[\"exponential\"]".to_owned(),
        format!("service.time={:?}", TIMES.map(|(time, _)| time)),
    ]);
    let runs = lab.run(PLAN, &sets);
    let frontiers = TIMES.map(|(_, micros)| Frontier::of(micros));
    let panels = TIMES
        .iter()
        .zip(&frontiers)
        .map(|((time, micros), frontier)| panel(time, frontier, &of_time(&runs, time), *micros));
    let chart = Chart { title: FIGURE.title.to_owned(), panels: panels.collect() };
    let claims = TIMES.iter().zip(&frontiers).flat_map(|((time, micros), frontier)| {
        claims(time, frontier, &of_time(&runs, time), *micros)
    });
    Outcome { claims: claims.collect(), charts: vec![chart], ..Outcome::default() }
}

fn of_time(runs: &Runs, time: &str) -> Runs {
    runs.only(|run| text(run, "service.time") == time)
}

fn claims(time: &str, frontier: &Frontier, runs: &Runs, micros: f64) -> Vec<Claim> {
    let gain = |callers: &f64| {
        let run = runs.get("tide", &[("callers", *callers)]);
        good(run, micros) - frontier.most(run.drop_rate)
    };
    let least = |callers: &[f64]| callers.iter().map(gain).fold(f64::MAX, f64::min);
    vec![
        Claim::at_least(
            &format!("{time}: tide above the frontier, 10 and 100 callers, worse of both"),
            Unit::Percent,
            least(&FEW),
            0.0,
        ),
        Claim::at_least(
            &format!("{time}: the same, 1,000 and 10,000 callers"),
            Unit::Percent,
            least(&MANY),
            -0.005,
        ),
        // The goals are 98 % of goodput and 1 % of drops.
        match time {
            "10us" => Claim::at_least(
                &format!("{time}: most goodput with 1 % dropped, not knowing the queue"),
                Unit::Percent,
                frontier.most(0.01),
                0.98,
            ),
            _ => Claim::at_most(
                &format!("{time}: the same: 98 % are impossible"),
                Unit::Percent,
                frontier.most(0.01),
                0.98,
            ),
        },
    ]
}

fn good(run: &Report, micros: f64) -> f64 {
    fair_goodput(run, micros, MESSAGES)
}

fn panel(time: &str, frontier: &Frontier, runs: &Runs, micros: f64) -> Panel {
    let percent = |drops: f64, good: f64| (100.0 * drops, 100.0 * (1.0 - good));
    let point = |run: &Report| percent(run.drop_rate, good(run, micros));
    let curve = frontier.0.iter().map(|(drops, good)| percent(*drops, *good));
    let mut lines = vec![Line::new("possible without knowing the queue", curve.collect())];
    for callers in FEW.into_iter().chain(MANY) {
        let run = runs.get("tide", &[("callers", callers)]);
        lines.push(Line::scatter(&format!("tide, {callers} callers"), vec![point(run)]));
    }
    Panel {
        title: format!("{time} exponential, twice the capacity offered"),
        x: Axis::linear("dropped, %"),
        y: Axis::linear("idle or late, % of capacity"),
        lines,
    }
}

/// The most goodput, as a share of capacity, by the drops that it takes; drops ascend.
struct Frontier(Vec<(f64, f64)>);

/// Drops up to which the frontier is found, and in which steps.
const DROPS: f64 = 0.1;
const STEP: f64 = 0.0025;

impl Frontier {
    /// For exponential service with this mean, in microseconds.
    fn of(micros: f64) -> Self {
        let steps = (DROPS / STEP) as usize;
        let mut best = vec![0.0f64; steps + 1];
        for room in (6..160).step_by(2) {
            let in_time = in_time(room, micros);
            for offered in (0..80).map(|n| 0.9 + 0.004 * f64::from(n)) {
                let Bounded { dropped, good, late } = bounded(offered, &[1.0], &in_time);
                let step = (dropped / STEP).ceil() as usize;
                if late <= LATE && step <= steps {
                    best[step] = best[step].max(good);
                }
            }
        }
        // More drops never force anybody to do worse.
        let mut most = 0.0;
        let point = |(step, good): (usize, f64)| {
            most = good.max(most);
            (STEP * step as f64, most)
        };
        Self(best.into_iter().enumerate().skip(1).map(point).collect())
    }

    /// The most goodput with such drops.
    fn most(&self, drops: f64) -> f64 {
        let after = self.0.partition_point(|(step, _)| *step < drops);
        let (Some(low), Some(high)) = (self.0.get(after.saturating_sub(1)), self.0.get(after))
        else {
            return self.0.last().map_or(1.0, |(_, good)| *good);
        };
        let part = if after == 0 { 0.0 } else { (drops - low.0) / (high.0 - low.0) };
        low.1 + part * (high.1 - low.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The goals for 100 µs contradict each other for callers that do not know the queue.
    #[test]
    fn a_hundred_microseconds_cannot_have_both() {
        let frontier = Frontier::of(100.0);
        assert!((0.975..0.98).contains(&frontier.most(0.01)), "{}", frontier.most(0.01));
        assert!(frontier.most(0.03) > 0.985);
        assert!(Frontier::of(10.0).most(0.01) > 0.985);
    }
}
