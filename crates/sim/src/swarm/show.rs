//! A swarm's distribution, for people and as JSON: one object per policy, one per plan.

use std::fmt::Write as _;

use super::{Judged, Seen};
use crate::report::{Object, quoted};

/// Points behind the best other policy that count.
const BEHIND: f64 = 2.0;
/// Points refused below capacity that count.
const REFUSED: f64 = 0.2;

/// Regrets and bounds of one policy over the swarm.
struct Summary<'a> {
    policy: &'a str,
    regrets: Vec<f64>,
    overloaded: Vec<f64>,
    /// Shares of plans: p99 within the SLO, of those where `ideal` has it; refused no more, of those below
    /// capacity; behind the best other policy.
    in_time: f64,
    refused: f64,
    behind: f64,
    first_quarters: Vec<f64>,
}

impl<'a> Summary<'a> {
    fn all(plans: &'a [Judged]) -> Vec<Self> {
        let policies = plans.first().map_or(&[][..], |plan| &plan.seen);
        (0..policies.len()).map(|place| Self::new(plans, place)).collect()
    }

    fn new(plans: &'a [Judged], place: usize) -> Self {
        let seen = |plan: &'a Judged| &plan.seen[place];
        let all = plans.iter().map(|plan| (plan, seen(plan)));
        let overloaded = all.clone().filter(|(plan, _)| !plan.drawn.is_below_capacity());
        let timely = all.clone().filter(|(plan, _)| plan.in_time);
        let refused = plans.iter().filter_map(|plan| seen(plan).refused);
        let behind = all.clone().map(|(plan, own)| {
            let others = plan.seen.iter().filter(|other| other.policy != own.policy);
            own.regret > BEHIND + others.map(|other| other.regret).fold(f64::INFINITY, f64::min)
        });
        Self {
            policy: &plans[0].seen[place].policy,
            regrets: sorted(all.map(|(_, seen)| seen.regret)),
            overloaded: sorted(overloaded.map(|(_, seen)| seen.regret)),
            in_time: share(timely.map(|(_, seen)| seen.p99 <= 1.0)),
            refused: share(refused.map(|points| points <= REFUSED)),
            behind: share(behind),
            first_quarters: sorted(plans.iter().filter_map(|plan| seen(plan).first_quarter)),
        }
    }

    fn row(&self) -> Vec<String> {
        let points = |value: f64| format!("{value:.1}");
        let percent = |value: f64| format!("{:.0} %", 100.0 * value);
        let mut cells = vec![self.policy.to_owned(), points(mean(&self.regrets))];
        cells.extend([0.5, 0.9, 0.95, 1.0].map(|part| points(quantile(&self.regrets, part))));
        cells.push(points(mean(&self.overloaded)));
        cells.extend([self.in_time, self.refused].map(percent));
        cells.push(format!("{:.3}", quantile(&self.first_quarters, 0.05)));
        cells.push(percent(self.behind));
        cells
    }

    fn to_json(&self) -> String {
        let mut out = Object::new();
        out.text("policy", self.policy);
        out.number("mean", mean(&self.regrets), 3);
        for (name, part) in [("median", 0.5), ("p90", 0.9), ("p95", 0.95), ("worst", 1.0)] {
            out.number(name, quantile(&self.regrets, part), 3);
        }
        out.number("mean_from_load_1", mean(&self.overloaded), 3);
        out.number("p99_in_slo", self.in_time, 4);
        out.number("refused_no_more", self.refused, 4);
        out.number("first_quarter_p05", quantile(&self.first_quarters, 0.05), 4);
        out.number("behind", self.behind, 4);
        out.end()
    }
}

/// What the columns of the table are.
const HEADINGS: [&str; 11] = [
    "policy",
    "mean",
    "median",
    "90 %",
    "95 %",
    "worst",
    "load ≥ 1",
    "p99 ≤ SLO",
    "refused ok",
    "1st quarter",
    "behind",
];

/// The distribution as a table.
pub fn table(plans: &[Judged]) -> String {
    let mut rows = vec![HEADINGS.map(str::to_owned).to_vec()];
    rows.extend(Summary::all(plans).iter().map(Summary::row));
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let widths: Vec<usize> = (0..HEADINGS.len()).map(|n| width(n).unwrap_or(0)).collect();
    let mut text = String::new();
    for row in &rows {
        let cells: Vec<String> =
            row.iter().zip(&widths).map(|(cell, width)| format!("{cell:>width$}")).collect();
        let _ = writeln!(text, "| {} |", cells.join(" | "));
        if row[0] == HEADINGS[0] {
            let lines: Vec<String> = widths.iter().map(|width| "-".repeat(*width)).collect();
            let _ = writeln!(text, "|-{}-|", lines.join("-|-"));
        }
    }
    text
}

/// The distribution and all plans, one JSON object per line.
pub fn json(plans: &[Judged]) -> String {
    let summaries = Summary::all(plans);
    let lines = summaries.iter().map(Summary::to_json).chain(plans.iter().map(plan));
    lines.map(|line| line + "\n").collect()
}

fn plan(plan: &Judged) -> String {
    let mut out = Object::new();
    out.raw("plan", &plan.number.to_string());
    out.number("load", plan.drawn.loads[0], 1);
    out.number("possible", plan.possible, 4);
    out.raw("ideal_in_slo", &plan.in_time.to_string());
    let seen: Vec<String> = plan.seen.iter().map(of_policy).collect();
    out.raw("policies", &format!("[{}]", seen.join(",")));
    out.raw("file", &quoted(&plan.drawn.text));
    out.end()
}

fn of_policy(seen: &Seen) -> String {
    let mut out = Object::new();
    out.text("policy", &seen.policy);
    out.number("regret", seen.regret, 3);
    out.number("p99_slos", seen.p99, 3);
    for (name, value) in [("refused", seen.refused), ("first_quarter", seen.first_quarter)] {
        if let Some(value) = value {
            out.number(name, value, 4);
        }
    }
    out.end()
}

fn sorted(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

/// The value below which this part of them lies.
fn quantile(values: &[f64], part: f64) -> f64 {
    let place = (part * (values.len() as f64 - 1.0)).round() as usize;
    values.get(place).copied().unwrap_or(0.0)
}

/// The share of those that are true; all, if there are none.
fn share(values: impl Iterator<Item = bool>) -> f64 {
    let (mut yes, mut all) = (0.0, 0.0);
    for value in values {
        all += 1.0;
        yes += f64::from(value);
    }
    if all > 0.0 { yes / all } else { 1.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_and_shares_of_few_and_none() {
        let values = sorted([3.0, 1.0, 2.0].into_iter());
        assert_eq!([0.0, 0.5, 1.0].map(|part| quantile(&values, part)), [1.0, 2.0, 3.0]);
        assert_eq!((quantile(&[], 0.5), mean(&[])), (0.0, 0.0));
        assert_eq!((share([true, false].into_iter()), share([].into_iter())), (0.5, 1.0));
    }
}
