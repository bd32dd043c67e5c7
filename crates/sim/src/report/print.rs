//! Reports as comma-separated values, and as a table for people.

use std::fmt::Write;

use super::json::json;
use super::{Report, row_numbers};
use crate::measure::ratio;

/// One line per run, with a heading. The columns of swept values are those of the first run.
pub fn csv(reports: &[Report]) -> String {
    let Some(first) = reports.first() else { return String::new() };
    let point = first.point.iter().map(|(path, _)| path.as_str());
    let numbers = first.numbers();
    let names = numbers.iter().map(|(name, ..)| *name);
    let quarters = ["success_q1", "success_q2", "success_q3", "success_q4"];
    let heading = ["plan", "policy"].into_iter().chain(point).chain(["seed", "requests"]);
    let mut out = line(heading.chain(names).chain(quarters).map(str::to_owned));
    for report in reports {
        let words = [report.plan.clone(), report.policy.clone()].into_iter();
        let point = report.point.iter().map(|(_, value)| json(value).trim_matches('"').to_owned());
        let counts = [report.seed.to_string(), report.requests.to_string()];
        let numbers = report.numbers().map(|(_, value, digits)| format!("{value:.digits$}"));
        let quarters = report.success_by_quarter.map(|part| format!("{part:.5}"));
        out += &line(words.chain(point).chain(counts).chain(numbers).chain(quarters));
    }
    out
}

/// One line per step of every run that has a series.
pub fn series_csv(reports: &[Report]) -> String {
    let Some(first) = reports.first() else { return String::new() };
    let point = first.point.iter().map(|(path, _)| path.as_str());
    let values = ["seed", "t_ms", "offered_rps", "goodput_rps", "p99_us"];
    let mut out = line(["policy"].into_iter().chain(point).chain(values).map(str::to_owned));
    for report in reports {
        for row in report.series.iter().flatten() {
            let point =
                report.point.iter().map(|(_, value)| json(value).trim_matches('"').to_owned());
            let values = row_numbers(row).map(|(_, text)| text);
            let seed = [report.seed.to_string()];
            let words = [report.policy.clone()].into_iter().chain(point).chain(seed);
            out += &line(words.chain(values));
        }
    }
    out
}

/// A line of comma-separated values.
fn line(cells: impl Iterator<Item = String>) -> String {
    let quote = |cell: String| {
        let plain = !cell.contains([',', '"', '\n']);
        if plain { cell } else { format!("\"{}\"", cell.replace('"', "\"\"")) }
    };
    cells.map(quote).collect::<Vec<_>>().join(",") + "\n"
}

/// A table for people.
pub fn table(reports: &[Report]) -> String {
    let mut rows = vec![
        [
            "policy",
            "point",
            "offered/s",
            "goodput/s",
            "of cap",
            "p50 µs",
            "p99 µs",
            "p99.9 µs",
            "dropped",
            "rejected",
            "success by quarter",
            "jain",
            "util",
        ]
        .map(str::to_owned)
        .to_vec(),
    ];
    for report in reports {
        let last = |path: &str| path.rsplit('.').next().unwrap_or(path).to_owned();
        let point = report.point.iter().map(|(path, value)| {
            let short = last(path);
            let alike = report.point.iter().filter(|(other, _)| last(other) == short).count();
            let name = if alike > 1 { path } else { &short };
            format!("{name}={}", json(value).trim_matches('"'))
        });
        let quarters = report.success_by_quarter.map(|part| format!("{:.1}", part * 100.0));
        rows.push(vec![
            report.policy.clone(),
            point.collect::<Vec<_>>().join(" "),
            format!("{:.0}", report.offered_rps),
            format!("{:.0}", report.goodput_rps),
            format!("{:.1}%", 100.0 * ratio(report.goodput_rps, report.capacity_rps)),
            format!("{:.1}", report.p50_us),
            format!("{:.1}", report.p99_us),
            format!("{:.1}", report.p999_us),
            format!("{:.2}%", report.drop_rate * 100.0),
            format!("{:.2}%", report.local_reject_rate * 100.0),
            quarters.join(" "),
            format!("{:.3}", report.jain_callers),
            format!("{:.3}", report.utilization),
        ]);
    }
    let width = |n: usize| rows.iter().map(|row| row[n].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..rows[0].len()).map(width).collect();
    let mut out = String::new();
    for row in &rows {
        for (n, (cell, width)) in row.iter().zip(&widths).enumerate() {
            // The first two are words, the others numbers.
            let _ = match n {
                0 | 1 => write!(out, "{cell:<width$}  "),
                _ => write!(out, "{cell:>width$}  "),
            };
        }
        out.truncate(out.trim_end().len());
        out.push('\n');
    }
    out
}
