//! "Handling Overload", Per-Customer Limits and Criticality: in a global overload only the customer
//! that misbehaves is refused, and of its requests the least critical first.

use super::chart::{Axis, Chart, Line, Panel};
use super::claim::{Claim, Unit};
use super::lab::{Lab, Runs, Source};
use super::{Figure, Outcome};
use crate::report::Report;

pub(super) const FIGURE: Figure = Figure {
    name: "sre-quotas",
    title: "Quotas: ten tenants within theirs, one at ten times its own",
    source: "\"Handling Overload\", Per-Customer Limits and Criticality",
    make,
};

const TENANTS: Source =
    Source { name: "sre-quotas", text: include_str!("../../../../plans/sre-quotas.toml") };
const ORDER: Source = Source {
    name: "sre-quota-order",
    text: include_str!("../../../../plans/sre-quota-order.toml"),
};
const POLICIES: [&str; 4] = ["quotas", "quotas-in-overload", "open", "tide"];
const WILD: &str = "wild";
/// The quota of the second plan, as a share of the service's capacity.
const QUOTA: f64 = 0.5;

fn make(lab: &Lab<'_>) -> Outcome {
    // As many when it is quick: refusals of bursts come in clusters, and one of the ten would have few.
    let tenants = lab.run(TENANTS, &lab.requests(600_000, 600_000));
    let order = lab.run(ORDER, &lab.requests(400_000, 400_000));
    let claims = tenants_claims(&tenants).into_iter().chain(order_claims(&order)).collect();
    Outcome {
        claims,
        charts: vec![chart(&tenants, &order)],
        misses: Vec::new(),
        ..Outcome::default()
    }
}

/// The share of answers in time that the ten got together; they offer the same.
fn behaved(run: &Report) -> f64 {
    let behaved: Vec<f64> =
        run.workflows.iter().filter(|(name, _)| name != WILD).map(|(_, share)| *share).collect();
    behaved.iter().sum::<f64>() / behaved.len() as f64
}

/// The least share that one of the ten got.
fn least(run: &Report) -> f64 {
    let behaved = run.workflows.iter().filter(|(name, _)| name != WILD);
    behaved.map(|(_, success)| *success).fold(1.0, f64::min)
}

fn wild(run: &Report) -> f64 {
    run.workflows.iter().find(|(name, _)| name == WILD).map_or(0.0, |(_, success)| *success)
}

fn tenants_claims(runs: &Runs) -> Vec<Claim> {
    let of = |policy: &str| runs.get(policy, &[]);
    let share = Unit::Percent;
    vec![
        Claim::at_least("quotas: the ten", share, behaved(of("quotas")), 0.999).paper("unaffected"),
        Claim::at_least("quotas: least served of the ten", share, least(of("quotas")), 0.999),
        // Its quota is a tenth of what it offers.
        Claim::between("quotas: the eleventh", share, wild(of("quotas")), 0.095, 0.105),
        Claim::at_least(
            "only under overload: the ten",
            share,
            behaved(of("quotas-in-overload")),
            0.999,
        )
        .paper("unaffected"),
        Claim::at_least(
            "only under overload: least served of the ten",
            share,
            least(of("quotas-in-overload")),
            0.999,
        ),
        // 6,300 of 8,000 a second are the others': it may use what is left, and keeps its quota.
        Claim::between(
            "only under overload: the eleventh",
            share,
            wild(of("quotas-in-overload")),
            0.10,
            0.28,
        ),
        Claim::at_most("no control: least served of the ten", share, least(of("open")), 0.5),
        Claim::at_most("tide without quotas: least of the ten", share, least(of("tide")), 0.7),
    ]
}

fn order_claims(runs: &Runs) -> Vec<Claim> {
    let served = |load, band: usize| runs.get("quotas", &[("load", load)]).success_by_quarter[band];
    let share = Unit::Percent;
    let rising = runs.of("quotas").flat_map(|run| {
        let quarters = run.success_by_quarter;
        (1..4).map(move |band| quarters[band] - quarters[band - 1])
    });
    vec![
        Claim::at_least("0.8 of its quota: sheddable", share, served(0.4, 3), 0.999),
        Claim::at_least("1.6 of its quota: critical", share, served(0.8, 1), 0.99),
        // A fifth of the quota is left for two fifths of it.
        Claim::between("1.6 of its quota: sheddable-plus", share, served(0.8, 2), 0.35, 0.6),
        Claim::at_most("1.6 of its quota: sheddable", share, served(0.8, 3), 0.1),
        // It offers 0.9 of the quota, and an eighth of the burst is its own: 12 tokens.
        Claim::at_least("3.6 of its quota: critical-plus", share, served(1.8, 0), 0.99),
        Claim::at_most("3.6 of its quota: sheddable-plus", share, served(1.8, 2), 0.02),
        Claim::at_most(
            "most that a lower criticality is served above a higher one",
            share,
            rising.fold(0.0, f64::max),
            0.005,
        ),
    ]
}

fn chart(tenants: &Runs, order: &Runs) -> Chart {
    let tenant = |policy: &&str| {
        let served = tenants.get(policy, &[]).workflows.iter().zip(1u32..);
        let points = served.map(|((_, success), n)| (f64::from(n), success * 100.0));
        Line::new(policy, points.collect())
    };
    let names = ["critical-plus", "critical", "sheddable-plus", "sheddable"];
    let band = |(band, name): (usize, &&str)| {
        let line = order.line("quotas", "load", |run| run.success_by_quarter[band] * 100.0);
        let points = line.points.iter().map(|(load, served)| (load / QUOTA, *served));
        Line::new(name, points.collect())
    };
    Chart {
        title: FIGURE.title.to_owned(),
        panels: vec![
            Panel {
                title: "eleven tenants, the last misbehaves".to_owned(),
                x: Axis::linear("tenant"),
                y: Axis::linear("% answered in time"),
                lines: POLICIES.iter().map(tenant).collect(),
            },
            Panel {
                title: "one tenant beyond its quota".to_owned(),
                x: Axis::linear("demand ÷ quota"),
                y: Axis::linear("% answered in time"),
                lines: names.iter().enumerate().map(band).collect(),
            },
        ],
    }
}
