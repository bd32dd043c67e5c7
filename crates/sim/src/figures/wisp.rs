//! What the figures on Wisp share: workflows of a run, and series of them.

use tidegate_core::Span;

use super::Outcome;
use super::chart::{Chart, Line};
use super::claim::Claim;
use super::lab::{Lab, Runs, Source};
use crate::report::{FlowReport, Report, ServiceReport};

/// Runs a plan, with series in steps of a second.
pub(super) fn by_second(lab: &Lab<'_>, plan: Source, sets: &[String]) -> Runs {
    lab.run_series(plan, sets, Some(Span::from_secs(1)))
}

/// A figure of one chart.
pub(super) fn outcome(claims: Vec<Claim>, chart: Chart) -> Outcome {
    Outcome { claims, charts: vec![chart], ..Outcome::default() }
}

/// A workflow of a run.
///
/// # Panics
///
/// If there is none of that name: figures ask for what their plans have.
pub(super) fn flow<'a>(run: &'a Report, name: &str) -> &'a FlowReport {
    let found = run.flows.iter().find(|flow| flow.name == name);
    found.unwrap_or_else(|| panic!("no workflow {name} in {}", run.plan))
}

/// A service of a run; see [`flow`].
pub(super) fn service<'a>(run: &'a Report, name: &str) -> &'a ServiceReport {
    let found = run.services.iter().find(|service| service.name == name);
    found.unwrap_or_else(|| panic!("no service {name} in {}", run.plan))
}

/// Refused per second at a service.
pub(super) fn refused(run: &Report, name: &str) -> f64 {
    let service = service(run, name);
    service.arrived_rps * service.drop_rate
}

/// A sum over some workflows.
pub(super) fn sum(run: &Report, names: &[&str], value: impl Fn(&FlowReport) -> f64) -> f64 {
    names.iter().map(|name| value(flow(run, name))).sum()
}

/// Answered ÷ offered of some workflows together.
pub(super) fn answered(run: &Report, names: &[&str]) -> f64 {
    sum(run, names, |flow| flow.answered_rps) / sum(run, names, |flow| flow.offered_rps)
}

/// Rates that a service announces for a workflow, in steps of so many seconds.
pub(super) fn announced(run: &Report, service: &str, workflow: &str, step: f64) -> Line {
    let own = run.rates.iter().find(|own| own.service == service && own.workflow == workflow);
    let points = own.into_iter().flat_map(|own| &own.steps);
    Line::new(service, points.map(|(at, rate)| (*at as f64 * step, *rate)).collect())
}

/// A value of a workflow over time, in steps of a second.
pub(super) fn over_time(run: &Report, name: &str, value: impl Fn(&(f64, f64)) -> f64) -> Line {
    let rows = flow(run, name).rows.iter().enumerate();
    Line::new(name, rows.map(|(at, row)| (at as f64, value(row))).collect())
}

/// The only run of a policy.
pub(super) fn only<'a>(runs: &'a Runs, policy: &str) -> &'a Report {
    runs.get(policy, &[])
}
