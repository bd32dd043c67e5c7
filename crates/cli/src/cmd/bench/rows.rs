//! Rows: a run as the simulator would report it, and what only a real one has.

use std::fmt::Write;

use tidegate_core::Span;
use tidegate_sim::figures::chart::{Axis, Chart, Line, Panel};
use tidegate_sim::plan::{Plan, Point};
use tidegate_sim::report::{self, Report};

use super::child::Usage;
use super::tally::Tally;

/// A run is not valid when the load itself was later than this share of the SLO, at the 99th
/// percentile.
const LATEST: f64 = 0.1;

/// What came of one run.
pub(super) struct Row {
    report: Report,
    real: Option<Real>,
}

/// What only a real run has.
struct Real {
    cpu_server: f64,
    cpu_us_per_request: f64,
    /// Share of the time in which others kept the server from running.
    stolen_server: f64,
    connections: usize,
    bytes_per_connection: u64,
    send_lag_p99_us: f64,
    rtt_us: f64,
    slo_us: f64,
    valid: bool,
    /// Least and most goodput of its rounds, in requests per second.
    goodput_range: (f64, f64),
    /// What of its parameters was chosen for this service, and from what; empty for none.
    tuned: String,
}

/// Everything about a run.
pub(super) struct Run<'a> {
    pub(super) plan: &'a Plan,
    pub(super) point: &'a Point,
    pub(super) seed: u64,
    pub(super) seconds: f64,
    pub(super) capacity: f64,
    pub(super) slo: Span,
    pub(super) rtt: Span,
    pub(super) connections: usize,
    pub(super) per_connection: u64,
    pub(super) usage: Usage,
    pub(super) tally: Tally,
}

impl Row {
    pub(super) fn simulated(mut report: Report) -> Self {
        report.policy = format!("sim {}", report.policy);
        Self { report, real: None }
    }

    pub(super) fn measured(mut run: Run<'_>) -> Self {
        let tally = &run.tally;
        let rate = |count: u64| count as f64 / run.seconds;
        let ratio = |a: u64, b: u64| if b > 0 { a as f64 / b as f64 } else { 0.0 };
        let micros = |q| tally.latency.quantile(q).as_micros_f64();
        let values = run.point.values.iter();
        let lag = tally.lag.quantile(0.99);
        let (cpu, slo) = (run.usage.cpu.as_secs_f64(), run.slo);
        let real = Real {
            cpu_server: cpu / run.seconds,
            cpu_us_per_request: 1e6 * cpu / tally.answered.max(1) as f64,
            stolen_server: run.usage.stolen.as_secs_f64() / run.seconds,
            connections: run.connections,
            bytes_per_connection: run.per_connection,
            send_lag_p99_us: lag.as_micros_f64(),
            rtt_us: run.rtt.as_micros_f64(),
            slo_us: slo.as_micros_f64(),
            valid: lag <= slo.scale(LATEST) && tally.is_enough(),
            goodput_range: (rate(tally.good), rate(tally.good)),
            tuned: String::new(),
        };
        let report = Report {
            plan: run.plan.name.clone(),
            policy: run.point.policy.clone(),
            point: values.filter(|(path, _)| path != "policy").cloned().collect(),
            seed: run.seed,
            requests: tally.offered,
            duration_s: run.seconds,
            capacity_rps: run.capacity,
            offered_rps: rate(tally.offered),
            goodput_rps: rate(tally.good),
            throughput_rps: rate(tally.answered),
            mean_us: tally.latency.mean() / 1e3,
            p50_us: micros(0.5),
            p99_us: micros(0.99),
            p999_us: micros(0.999),
            drop_rate: ratio(tally.refused, tally.requests),
            local_reject_rate: ratio(tally.rejected, tally.offered),
            expired_rate: 0.0,
            failed_rate: ratio(tally.failed, tally.offered),
            reject_delay_us: tally.reject_delay_us(),
            rx_per_request: ratio(tally.sent, tally.requests),
            tx_per_request: ratio(tally.received, tally.requests),
            success_by_quarter: tally.success_by_quarter(),
            jain_callers: tally.jain(),
            utilization: real.cpu_server,
            wasted: 0.0,
            work_us: 0.0,
            // Nobody retries here: what is refused is lost, as in Breakwater §5.1.
            attempts: Default::default(),
            workflows: Vec::new(),
            flows: Vec::new(),
            lnd: None,
            rates: Vec::new(),
            services: Vec::new(),
            obeying: None,
            window: None,
            series: None,
        };
        let series = run.tally.series();
        Self { report: Report { series, ..report }, real: Some(real) }
    }

    /// The round with the median goodput, of those that are valid if there are any.
    pub(super) fn median(mut rounds: Vec<Self>) -> Option<Self> {
        let valid = |row: &Self| row.real.as_ref().is_some_and(|real| real.valid);
        if rounds.iter().any(valid) {
            rounds.retain(valid);
        }
        rounds.sort_by(|a, b| a.report.goodput_rps.total_cmp(&b.report.goodput_rps));
        let range = (rounds.first()?.report.goodput_rps, rounds.last()?.report.goodput_rps);
        let mut median = rounds.swap_remove(rounds.len() / 2);
        median.real.iter_mut().for_each(|real| real.goodput_range = range);
        Some(median)
    }

    /// Its parameters were chosen, as `note` says.
    pub(super) fn is_tuned(&mut self, note: &str) {
        if let Some(real) = &mut self.real {
            note.clone_into(&mut real.tuned);
        }
    }

    /// One JSON object: the simulator's fields, and those of a real run.
    pub(super) fn to_json(&self) -> String {
        let mut json = self.report.to_json();
        let Some(real) = &self.real else { return json };
        json.pop();
        let _ = write!(
            json,
            ",\"cpu_server\":{:.4},\"cpu_us_per_request\":{:.4},\"stolen_server\":{:.4},\
             \"goodput_range_rps\":[{:.1},{:.1}],\"connections\":{},\
             \"bytes_per_connection\":{},\"send_lag_p99_us\":{:.3},\"rtt_us\":{:.3},\"slo_us\":{:.3},\
             \"valid\":{},\"tuned\":{:?}}}",
            real.cpu_server,
            real.cpu_us_per_request,
            real.stolen_server,
            real.goodput_range.0,
            real.goodput_range.1,
            real.connections,
            real.bytes_per_connection,
            real.send_lag_p99_us,
            real.rtt_us,
            real.slo_us,
            real.valid,
            real.tuned
        );
        json
    }

    /// Goodput of its rounds as shares of the capacity.
    fn range(&self) -> String {
        let Some(Real { goodput_range: (low, high), .. }) = self.real else { return String::new() };
        let share = |goodput: f64| 100.0 * goodput / self.report.capacity_rps;
        format!("{:.1}–{:.1}%", share(low), share(high))
    }

    /// Whether it is shown in pictures.
    fn counts(&self) -> bool {
        self.real.as_ref().is_none_or(|real| real.valid)
    }

    fn load(&self) -> f64 {
        let load = self.report.point.iter().find(|(path, _)| path == "load");
        load.and_then(|(_, value)| value.as_float()).unwrap_or(0.0)
    }
}

/// A table for people: the simulator's, and at its right what only a real run has.
pub(super) fn table(rows: &[Row]) -> String {
    let reports: Vec<Report> = rows.iter().map(|row| row.report.clone()).collect();
    let table = report::table(&reports);
    let mut lines = table.lines();
    let mut out = String::new();
    let width = table.lines().map(|line| line.chars().count()).max().unwrap_or(0);
    let pad = |line: &str| format!("{line}{}", " ".repeat(width - line.chars().count()));
    if let Some(heading) = lines.next() {
        let _ = writeln!(
            out,
            "{}  range of cap  cpu µs/answer  stolen  lag p99 µs  valid",
            pad(heading)
        );
    }
    for (line, row) in lines.zip(rows) {
        let _ = match &row.real {
            Some(real) => writeln!(
                out,
                "{}  {:>12}  {:>13.2}  {:>5.1}%  {:>10.1}  {}",
                pad(line),
                row.range(),
                real.cpu_us_per_request,
                100.0 * real.stolen_server,
                real.send_lag_p99_us,
                if real.valid { "yes" } else { "no" }
            ),
            None => writeln!(out, "{line}"),
        };
    }
    out
}

/// Goodput and tail over load. Runs that are not valid are left out, and the title says so.
pub(super) fn chart(rows: &[Row], title: &str) -> Chart {
    let panel = |title: &str, y: Axis, value: fn(&Row) -> f64| Panel {
        title: title.to_owned(),
        x: Axis::linear("demand ÷ capacity"),
        y,
        lines: by_policy(rows)
            .into_iter()
            .map(|(policy, rows)| {
                let points = rows.iter().map(|row| (row.load(), value(row)));
                Line::new(policy, points.collect())
            })
            .collect(),
    };
    let share = |row: &Row| row.report.goodput_rps / row.report.capacity_rps;
    let tail = |row: &Row| row.report.p99_us;
    let dropped = |row: &Row| 100.0 * row.report.drop_rate;
    let left_out = match rows.iter().filter(|row| !row.counts()).count() {
        0 => String::new(),
        1 => "; 1 run was not valid and is left out".to_owned(),
        many => format!("; {many} of {} runs were not valid and are left out", rows.len()),
    };
    Chart {
        title: format!("Real sockets: {title}{left_out}"),
        panels: vec![
            panel("goodput", Axis::linear("goodput ÷ capacity"), share),
            panel("99th percentile", Axis::log("µs"), tail),
            panel("refused by the server", Axis::linear("% of what arrived"), dropped),
        ],
    }
}

/// Goodput and tail over time, with a word at those that are not valid.
pub(super) fn course(rows: &[Row], title: &str) -> Chart {
    let lines = |value: fn(&tidegate_sim::measure::Row) -> f64| {
        let line = |row: &Row| {
            let series = row.report.series.iter().flatten();
            let points = series.map(|step| {
                (step.at.since(tidegate_core::Instant::ZERO).as_secs_f64(), value(step))
            });
            let word = if row.counts() { "" } else { " (not valid)" };
            Line::new(&format!("{}{word}", row.report.policy), points.collect())
        };
        rows.iter().map(line).collect::<Vec<_>>()
    };
    let panel = |title: &str, y: Axis, lines| Panel {
        title: title.to_owned(),
        x: Axis::linear("seconds"),
        y,
        lines,
    };
    Chart {
        title: format!("Real sockets: {title}"),
        panels: vec![
            panel(
                "offered",
                Axis::linear("requests/s"),
                lines(|step| step.offered as f64 / step.step.as_secs_f64()),
            ),
            panel(
                "goodput",
                Axis::linear("requests/s"),
                lines(|step| step.good as f64 / step.step.as_secs_f64()),
            ),
            panel(
                "99th percentile",
                Axis::log("µs"),
                lines(|step| step.p99.as_micros_f64().max(1.0)),
            ),
        ],
    }
}

/// Rows that count, by policy in the order of appearance.
fn by_policy(rows: &[Row]) -> Vec<(&str, Vec<&Row>)> {
    let mut found: Vec<(&str, Vec<&Row>)> = Vec::new();
    for row in rows.iter().filter(|row| row.counts()) {
        let policy = row.report.policy.as_str();
        match found.iter_mut().find(|(known, _)| *known == policy) {
            Some((_, rows)) => rows.push(row),
            None => found.push((policy, vec![row])),
        }
    }
    found
}
