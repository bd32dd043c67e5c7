//! Tenants of a plan: groups of callers with a workload each.

use tidegate_core::{Instant, Span, Workflow};

use super::reader::Reader;
use crate::workload::{Arrivals, CostByRank, Profile, Ranks, Tenant, WorkloadSpec};

/// Why keys of the whole workload have no meaning then.
pub(super) const BESIDE: &str = "beside [[tenants]], which say it themselves";

/// Groups of callers, each with a workflow and arrivals of its own. The mix becomes theirs, by the rates at
/// which they offer.
pub(super) fn read_tenants(
    root: &mut Reader<'_>,
    names: &mut Vec<String>,
    whole: &mut WorkloadSpec,
) -> Vec<Tenant> {
    let (mut tenants, mut rates) = (Vec::new(), Vec::new());
    root.tables("tenants", |table| {
        let name = table.text("workflow", "");
        let place = names.iter().position(|known| *known == name).unwrap_or(names.len());
        if place == names.len() {
            names.push(name);
        }
        let from = Instant::ZERO + table.span("from", Span::ZERO);
        let callers = table.whole("callers", 1, 1, 1_000_000) as u32;
        let mut profile = Profile::constant(0.0);
        let (arrivals, rate) = match table.choice("arrivals", &["poisson", "periodic", "closed"]) {
            2 => {
                let think = table.span("think", Span::from_millis(1)).max(Span::from_micros(1));
                // What they would offer if answers took no time.
                let rate = f64::from(callers) / think.as_secs_f64();
                (Arrivals::Closed { outstanding: 1, think }, rate)
            }
            open => {
                let rate = table.number("rate", 1.0, 0.0, 1e9);
                profile.then(from, rate, Span::ZERO);
                (if open == 1 { Arrivals::Periodic } else { Arrivals::Poisson }, rate)
            }
        };
        rates.push(rate);
        tenants.push(Tenant {
            callers,
            spec: WorkloadSpec {
                arrivals,
                profile,
                ranks: Ranks::Uniform,
                cost: CostByRank::Independent,
                mix: vec![(Workflow(place as u16), 1.0)],
                deadline: table.some_span("deadline"),
                deadline_of: Vec::new(),
            },
            from,
            until: Instant::ZERO + table.span("until", Span::MAX),
        });
    });
    if tenants.is_empty() {
        return tenants;
    }
    let total: f64 = rates.iter().sum();
    if total <= 0.0 {
        root.note("tenants", "offer nothing: one rate at least must be above zero");
    }
    let shares = rates.iter().map(|rate| rate / total);
    whole.mix = tenants.iter().map(|tenant| tenant.spec.mix[0].0).zip(shares).collect();
    tenants
}
