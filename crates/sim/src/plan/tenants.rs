//! Tenants of a plan: groups of callers with a workload each.

use tidegate_core::{Instant, Span, Workflow};

use super::reader::Reader;
use crate::workload::{Arrivals, CostByRank, Profile, Ranks, Tenant, WorkloadSpec};

/// Groups of callers, each with a workflow and arrivals of its own; their names join those of the mix.
pub(super) fn read_tenants(
    root: &mut Reader<'_>,
    names: &mut Vec<String>,
    whole: &mut WorkloadSpec,
) -> Vec<Tenant> {
    let mut tenants: Vec<Tenant> = Vec::new();
    root.tables("tenants", |table| {
        let name = table.text("workflow", "");
        let place = names.iter().position(|known| *known == name).unwrap_or(names.len());
        if place == names.len() {
            names.push(name);
        }
        let from = Instant::ZERO + table.span("from", Span::ZERO);
        let arrivals = match table.choice("arrivals", &["poisson", "periodic", "closed"]) {
            1 => Arrivals::Periodic,
            2 => Arrivals::Closed {
                outstanding: 1,
                think: table.span("think", Span::from_millis(1)).max(Span::from_micros(1)),
            },
            _ => Arrivals::Poisson,
        };
        let mut profile = Profile::constant(0.0);
        profile.then(from, table.number("rate", 1.0, 0.0, 1e9), Span::ZERO);
        tenants.push(Tenant {
            callers: table.whole("callers", 1, 1, 1_000_000) as u32,
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
    if !tenants.is_empty() {
        let part = 1.0 / tenants.len() as f64;
        whole.mix = tenants.iter().map(|tenant| (tenant.spec.mix[0].0, part)).collect();
    }
    tenants
}
