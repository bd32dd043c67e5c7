//! SRTM's Figure 7: publishers that send together. Who knows the groups splits bursts as it splits the
//! bucket, and can use as many brokers as the bursts need.

use tidegate_core::Span;

use super::chart::Chart;
use super::claim::{Claim, Unit};
use super::lab::Lab;
use super::srtm::{
    GROUPS, PATTERNS, Trio, over_seeds, planner_claims, trio_notes, trio_panels, trios, worst,
};
use super::{Figure, Outcome};
use crate::broker::traffic::Topic;

pub(super) const FIGURE: Figure = Figure {
    name: "srtm-7",
    title: "Groups that send at the same moment: known to SRTM and to the planner, not to Max-Min",
    source: "SRTM §VI-D, Figure 7",
    make: |lab| over_seeds(lab, make),
};

fn make(lab: &Lab<'_>) -> Outcome {
    let sizes: &[u32] = if lab.quick { &[5, 15, 30] } else { &GROUPS };
    let runs = trios(lab, sizes, |size, pattern| Topic::groups(size, Span::ZERO, pattern));
    let panels = trio_panels(&runs, "publishers in a group");
    Outcome {
        claims: claims(&runs),
        charts: vec![Chart { title: FIGURE.title.to_owned(), panels }],
        notes: trio_notes(&runs, "groups of"),
        ..Outcome::default()
    }
}

fn claims(runs: &[Trio]) -> Vec<Claim> {
    let mut claims = Vec::new();
    for (pattern, name) in PATTERNS {
        let here: Vec<&Trio> = runs.iter().filter(|run| run.pattern == pattern).collect();
        let large = here.iter().find(|run| run.at == 30).expect("it ran");
        claims.extend([
            Claim::at_least(
                &format!("{name}, groups of 30: Max-Min ÷ SRTM, worst p99"),
                Unit::Times,
                worst(&large.max_min) / worst(&large.fitted),
                1.2,
            )
            .paper("> 1"),
            Claim::at_least(
                &format!("{name}, groups of 30: Max-Min, worst p99"),
                Unit::Micros,
                worst(&large.max_min) * 1e3,
                1_000.0,
            )
            .paper("above 1 ms"),
        ]);
        let plans: Vec<_> = here.iter().map(|run| (&run.planned, &run.fitted)).collect();
        claims.extend(planner_claims(name, "SRTM", &plans));
    }
    claims
}
