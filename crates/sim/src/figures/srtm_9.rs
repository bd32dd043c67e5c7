//! SRTM's Figure 9: groups whose messages are spread over a short interval.

use tidegate_core::Span;

use super::chart::Chart;
use super::claim::{Claim, Unit};
use super::lab::Lab;
use super::srtm::{
    PATTERNS, Trio, over_seeds, planner_claims, trio_notes, trio_panels, trios, worst,
};
use super::{Figure, Outcome};
use crate::broker::traffic::Topic;

pub(super) const FIGURE: Figure = Figure {
    name: "srtm-9",
    title: "Groups of 25 that send nearly at the same moment",
    source: "SRTM §VI-D, Figure 9",
    make: |lab| over_seeds(lab, make),
};

fn make(lab: &Lab<'_>) -> Outcome {
    let spreads: &[u32] = if lab.quick { &[0, 2, 16] } else { &[0, 1, 2, 4, 8, 16] };
    let runs = trios(lab, spreads, |spread_ms, pattern| {
        Topic::groups(25, Span::from_millis(spread_ms.into()), pattern)
    });
    let panels = trio_panels(&runs, "spread of a group, ms");
    Outcome {
        claims: claims(&runs),
        charts: vec![Chart { title: FIGURE.title.to_owned(), panels }],
        notes: trio_notes(&runs, "milliseconds:"),
        ..Outcome::default()
    }
}

fn claims(runs: &[Trio]) -> Vec<Claim> {
    let mut claims = Vec::new();
    for (pattern, name) in PATTERNS {
        let at = |spread_ms: u32| {
            let fits = |run: &&Trio| run.pattern == pattern && run.at == spread_ms;
            runs.iter().find(fits).expect("it ran")
        };
        let (tight, near, wide) = (at(0), at(2), at(16));
        let times =
            |what: &str, value| Claim::at_most(&format!("{name}, {what}"), Unit::Times, value, 1.0);
        claims.extend([
            times(
                "at once: SRTM ÷ Max-Min, worst p99",
                worst(&tight.fitted) / worst(&tight.max_min),
            )
            .paper("< 1"),
            times("over 2 ms: planned ÷ Max-Min", worst(&near.planned) / worst(&near.max_min))
                .paper("< 1 (SRTM)"),
            times("16 ms ÷ at once: SRTM", worst(&wide.fitted) / worst(&tight.fitted))
                .paper("falls"),
            times("16 ms ÷ at once: Max-Min", worst(&wide.max_min) / worst(&tight.max_min))
                .paper("falls"),
            times(
                "16 ms ÷ at once: SRTM's brokers",
                wide.fitted.brokers as f64 / tight.fitted.brokers as f64,
            )
            .paper("falls"),
        ]);
        let here = runs.iter().filter(|run| run.pattern == pattern);
        let plans: Vec<_> = here.map(|run| (&run.planned, &run.fitted)).collect();
        claims.extend(planner_claims(name, "SRTM", &plans));
    }
    claims
}
