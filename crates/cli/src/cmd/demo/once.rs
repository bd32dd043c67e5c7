//! `tidegate demo --once`: every policy at three loads, side by side, as a table.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tokio::time::Instant;

use super::super::progress::Progress;
use super::super::{Error, Format, print};
use super::lane::{OBEYED, POLICIES, Stage};
use super::load::{self, Fate, OBJECTIVE, PATIENCE, Record, Wanted};
use super::service::{CAPACITY, MEAN, WORKERS};
use super::{failed, runtime};

/// Offered load as a multiple of what the service can do, how long a policy may take to settle, and
/// how long is counted: some 40 seconds in all. Slots have to be found, and DAGOR has a cursor to bring down.
const LOADS: [(f64, Duration, Duration); 3] = [
    (0.8, Duration::from_millis(500), Duration::from_millis(2500)),
    (2.0, Duration::from_secs(10), Duration::from_secs(6)),
    (5.0, Duration::from_secs(10), Duration::from_secs(6)),
];
/// Time for the last answers after a load has ended.
const LAST: Duration = Duration::from_millis(1010);
/// Steps of the bar per second.
const STEPS: u32 = 5;

/// A policy, and whether its callers obey what they are told.
type Shown = (&'static str, bool);

/// All that is measured, side by side.
fn shown() -> Vec<Shown> {
    let plain = POLICIES.iter().map(|policy| (*policy, false));
    plain.chain(OBEYED.iter().map(|policy| (*policy, true))).collect()
}

/// What a policy made of a load.
#[derive(Debug)]
struct Score {
    policy: &'static str,
    /// Whether its callers obey what they are told.
    obey: bool,
    load: f64,
    offered_rps: f64,
    /// Answered within the objective.
    goodput_rps: f64,
    /// Of all that was not refused; who gave up counts with the time until then.
    p99: Duration,
    /// Of the most important quarter, answered within the objective.
    success_top_quarter: f64,
}

impl Score {
    fn of((policy, obey): Shown, load: f64, counted: Duration, records: &[Record]) -> Self {
        let rate = |n: usize| n as f64 / counted.as_secs_f64();
        let good = |records: &[&Record]| records.iter().filter(|record| record.is_good()).count();
        let all: Vec<&Record> = records.iter().collect();
        let is_top = |record: &&&Record| record.place.is_some_and(|place| place < 0.25);
        let top: Vec<&Record> = all.iter().filter(is_top).copied().collect();
        let mut latencies: Vec<Duration> = records
            .iter()
            .filter(|record| record.fate != Fate::Refused)
            .map(|record| record.latency)
            .collect();
        latencies.sort_unstable();
        Self {
            policy,
            obey,
            load,
            offered_rps: rate(all.len()),
            goodput_rps: rate(good(&all)),
            p99: quantile(&latencies, 0.99),
            success_top_quarter: good(&top) as f64 / top.len().max(1) as f64,
        }
    }

    fn json(&self) -> serde_json::Value {
        let round = |value: f64, places: i32| {
            let unit = 10f64.powi(places);
            (value * unit).round() / unit
        };
        json!({
            "policy": self.policy,
            "callers": if self.obey { "obeying" } else { "plain" },
            "load": self.load,
            "offered_rps": round(self.offered_rps, 1),
            "goodput_rps": round(self.goodput_rps, 1),
            "p99_ms": round(self.p99.as_secs_f64() * 1e3, 1),
            "success_top_quarter": round(self.success_top_quarter, 4),
        })
    }
}

/// The value that so large a part is not above; zero of nothing.
pub(crate) fn quantile(sorted: &[Duration], part: f64) -> Duration {
    let place = (sorted.len() as f64 * part).ceil() as usize;
    sorted.get(place.saturating_sub(1)).copied().unwrap_or_default()
}

pub(crate) fn run(format: Format) -> Result<(), Error> {
    let runtime = runtime()?;
    let progress = Progress::new("demo");
    let mut scores = Vec::new();
    for (n, phase) in LOADS.into_iter().enumerate() {
        let tell = |step: u32| {
            let all = STEPS * LOADS.len() as u32;
            progress.tell((STEPS * n as u32 + step) as usize, all as usize);
        };
        let stages = shown().into_iter().map(|(policy, obey)| Stage::start(policy, obey, 1));
        let stages = stages.collect::<Result<Vec<_>, _>>().map_err(|error| failed(&error))?;
        scores.extend(runtime.block_on(measure(&stages, phase, &tell)));
    }
    progress.wipe();
    match format {
        Format::Json => {
            print(scores.iter().map(|score| format!("{}\n", score.json())).collect::<String>())
        }
        Format::Text => print(table(&scores)),
    }
}

/// All policies under one load at the same time, each with a service and a sidecar of its own.
async fn measure(
    stages: &[Stage],
    (load, settle, counted): (f64, Duration, Duration),
    tell: &dyn Fn(u32),
) -> Vec<Score> {
    let lanes: Vec<_> = stages.iter().map(|stage| Arc::clone(&stage.lane)).collect();
    let begin = Instant::now();
    let sending = tokio::spawn(load::generate(lanes, move || Wanted::new(load), 1));
    let (from, to) = (begin + settle, begin + settle + counted);
    for step in 0..STEPS {
        tell(step);
        tokio::time::sleep_until(begin + (to - begin) * (step + 1) / STEPS).await;
    }
    sending.abort();
    // Everything that counts has an answer by then, or nobody waits for it any more.
    tokio::time::sleep_until(to + LAST).await;
    let scores = shown().into_iter().zip(stages).map(|(shown, stage)| {
        let inside = |record: &Record| (from..to).contains(&record.due);
        let records: Vec<Record> = stage.lane.take().into_iter().filter(inside).collect();
        Score::of(shown, load, counted, &records)
    });
    scores.collect()
}

fn table(scores: &[Score]) -> String {
    let mut text = format!(
        "A service of {WORKERS} workers, {} ms each, can do {CAPACITY:.0} requests/s. An answer is good within {} ms; callers give up\n\
         after {} s, and know nothing of the gate. Every policy gets the same requests over HTTP on this machine.\n\n",
        MEAN.as_millis(),
        OBJECTIVE.as_millis(),
        PATIENCE.as_secs(),
    );
    text += &" ".repeat(10);
    for (load, ..) in LOADS {
        let offered = format!("offered {load} × = {:.0}/s", load * CAPACITY);
        text += &format!("  │ {offered:<26}");
    }
    text += "\n";
    text += &format!("{:<10}", "policy");
    for _ in LOADS {
        text += &format!("  │ {:>8} {:>8} {:>8}", "good/s", "p99", "top ¼");
    }
    text += "\n";
    text += &rule("");
    POLICIES.iter().for_each(|policy| text += &row(scores, (policy, false)));
    text +=
        &rule(&format!(" with callers that obey, and gates that know of the {WORKERS} workers "));
    OBEYED.iter().for_each(|policy| text += &row(scores, (policy, true)));
    text + "\ngood/s: answered in time.  p99: of what was not refused.  \
           top ¼: answered in time, of the most important quarter\n\
           (at 5 × that quarter alone is more than the service can do: at most 80 %).\n"
}

/// A line across the table that may say what comes below.
fn rule(title: &str) -> String {
    let mut line = "─".repeat(10) + &format!("──┼─{}", "─".repeat(26)).repeat(LOADS.len());
    let end = line.char_indices().nth(title.chars().count()).map_or(line.len(), |(at, _)| at);
    line.replace_range(..end, title);
    line + "\n"
}

fn row(scores: &[Score], (policy, obey): Shown) -> String {
    let mut text = format!("{policy:<10}");
    for score in scores.iter().filter(|score| (score.policy, score.obey) == (policy, obey)) {
        let more = if score.p99 >= PATIENCE { ">" } else { "" };
        let p99 = format!("{more}{} ms", score.p99.min(PATIENCE).as_millis());
        let top = format!("{:.1} %", 100.0 * score.success_top_quarter);
        text += &format!("  │ {:>8.0} {p99:>8} {top:>8}", score.goodput_rps);
    }
    text + "\n"
}
