//! The papers' figures, made by our own policies, with the claims they are known for as checks.
//!
//! A figure is one file: which plan it runs, what it is expected to show and within which tolerance,
//! and how it is drawn. A claim states an ordering or a shape that was published, or a number that
//! can be computed; each is meant to fail if the policy it speaks of is broken. Baselines are tuned
//! over a stated grid where their paper does so, and the chosen values are told.
//!
//! The same seed gives the same figure on any machine.

pub mod chart;
pub mod claim;
pub mod lab;
pub mod testbed;

mod breakwater_1;
mod breakwater_10;
mod breakwater_11;
mod breakwater_12;
mod breakwater_3;
mod breakwater_4;
mod breakwater_5;
mod breakwater_6;
mod breakwater_7;
mod breakwater_8;
mod breakwater_9;
mod dagor;
mod dagor_6;
mod dagor_8;
mod dagor_9;
mod dagor_form_3;
pub(crate) mod erlang;
mod ignoring;
mod metastability;
mod plain;
mod shares_faults;
mod shares_split;
mod sre_attempts;
mod sre_criticality;
mod sre_layers;
mod sre_quotas;
mod sre_retries;
mod sre_throttling;
mod srtm;
mod srtm_4;
mod srtm_5;
mod srtm_6;
mod srtm_7;
mod srtm_8;
mod srtm_9;
mod srtm_table_1;
mod three_hops;
mod tide_bursts;
mod tide_callers;
mod tide_costly;
mod tide_frontier;
mod tide_grid;
mod tide_rank;
mod tide_told;
mod wisp;
mod wisp_10;
mod wisp_3;
mod wisp_7;
mod wisp_8;
mod wisp_9;
mod wisp_outage;
mod wisp_table_3;

use std::path::{Path, PathBuf};

use chart::Chart;
use claim::Claim;
use lab::Lab;

use crate::report::Object;

/// A figure that can be made.
#[derive(Clone, Copy, Debug)]
pub struct Figure {
    /// What it is asked for by.
    pub name: &'static str,
    /// What it shows.
    pub title: &'static str,
    /// Where the original is.
    pub source: &'static str,
    make: fn(&Lab<'_>) -> Outcome,
}

/// All figures, in the order in which they are told and made.
pub const ALL: &[Figure] = &[
    breakwater_1::FIGURE,
    breakwater_3::FIGURE,
    breakwater_4::FIGURE,
    breakwater_5::FIGURE,
    breakwater_6::FIGURE,
    breakwater_7::FIGURE,
    breakwater_8::FIGURE,
    breakwater_9::FIGURE,
    breakwater_10::FIGURE,
    breakwater_11::FIGURE,
    breakwater_12::FIGURE,
    tide_rank::FIGURE,
    tide_callers::FIGURE,
    tide_frontier::FIGURE,
    tide_bursts::FIGURE,
    tide_told::FIGURE,
    tide_costly::FIGURE,
    tide_grid::FIGURE,
    plain::FIGURE,
    dagor_6::FIGURE,
    dagor_8::FIGURE,
    dagor_9::FIGURE,
    dagor_form_3::FIGURE,
    sre_throttling::FIGURE,
    sre_criticality::FIGURE,
    sre_retries::FIGURE,
    sre_attempts::FIGURE,
    sre_layers::FIGURE,
    metastability::FIGURE,
    three_hops::FIGURE,
    ignoring::FIGURE,
    sre_quotas::FIGURE,
    srtm_4::FIGURE,
    srtm_5::FIGURE,
    srtm_6::FIGURE,
    srtm_7::FIGURE,
    srtm_8::FIGURE,
    srtm_9::FIGURE,
    srtm_table_1::FIGURE,
    shares_split::FIGURE,
    shares_faults::FIGURE,
    wisp_3::FIGURE,
    wisp_7::FIGURE,
    wisp_8::FIGURE,
    wisp_9::FIGURE,
    wisp_10::FIGURE,
    wisp_table_3::FIGURE,
    wisp_outage::FIGURE,
];

/// What came of making a figure.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// What was checked.
    pub claims: Vec<Claim>,
    /// What can be seen.
    pub charts: Vec<Chart>,
    /// Which values were chosen for baselines, and from what.
    pub notes: Vec<String>,
    /// What was measured, where the original is a table: a row each.
    pub measured: Vec<String>,
    /// Points of a grid that miss a goal, each in a line.
    pub misses: Vec<String>,
}

impl Figure {
    /// The figure of this name.
    pub fn find(name: &str) -> Option<&'static Self> {
        ALL.iter().find(|figure| figure.name == name)
    }

    /// Runs what it needs.
    pub fn make(&self, lab: &Lab<'_>) -> Outcome {
        (self.make)(lab)
    }
}

impl Outcome {
    /// Whether all claims hold, goals known to be missed aside if the figure is a quick one.
    pub fn holds(&self, quick: bool) -> bool {
        !self.claims.iter().any(|claim| claim.breaks(quick))
    }

    /// For people: the claims as a table, and what was chosen.
    pub fn to_text(&self, figure: &Figure) -> String {
        let mut out = format!("{}: {}\n{}\n\n", figure.name, figure.title, figure.source);
        out += &claim::table(&self.claims);
        if !self.notes.is_empty() {
            out += "\nchosen:\n";
        }
        for note in &self.notes {
            out += &format!("  {note}\n");
        }
        if !self.measured.is_empty() {
            out += "\nmeasured:\n";
        }
        for row in &self.measured {
            out += &format!("  {row}\n");
        }
        if !self.misses.is_empty() {
            out += "\npoints that miss a goal:\n";
        }
        for miss in &self.misses {
            out += &format!("  {miss}\n");
        }
        out
    }

    /// For programs: one JSON object, without a line break.
    pub fn to_json(&self, figure: &Figure, seed: u64, quick: bool) -> String {
        let mut out = Object::new();
        out.text("figure", figure.name);
        out.text("title", figure.title);
        out.text("source", figure.source);
        out.raw("seed", &seed.to_string());
        out.raw("quick", &quick.to_string());
        out.raw("holds", &self.holds(quick).to_string());
        let claims: Vec<String> = self.claims.iter().map(claim_json).collect();
        out.raw("claims", &format!("[{}]", claims.join(",")));
        for (name, lines) in
            [("tuned", &self.notes), ("measured", &self.measured), ("misses", &self.misses)]
        {
            let lines: Vec<String> = lines.iter().map(|line| crate::report::quoted(line)).collect();
            out.raw(name, &format!("[{}]", lines.join(",")));
        }
        out.end()
    }

    /// Writes `NAME.svg` and `NAME.csv` into `folder`; several charts are numbered.
    pub fn write(&self, figure: &Figure, folder: &Path) -> std::io::Result<Vec<PathBuf>> {
        std::fs::create_dir_all(folder)?;
        let mut files = Vec::new();
        for (n, chart) in self.charts.iter().enumerate() {
            let suffix = if n == 0 { String::new() } else { format!("-{}", n + 1) };
            for (ending, text) in [("svg", chart.to_svg()), ("csv", chart.to_csv())] {
                let file = folder.join(format!("{}{suffix}.{ending}", figure.name));
                std::fs::write(&file, text)?;
                files.push(file);
            }
        }
        Ok(files)
    }
}

fn claim_json(claim: &Claim) -> String {
    let mut out = Object::new();
    out.text("claim", &claim.what);
    out.text("expected", &claim.expected);
    out.text("measured", &claim.measured);
    out.text("paper", &claim.paper);
    out.raw("holds", &claim.holds.to_string());
    if claim.open {
        out.raw("open", "true");
    }
    if claim.differs {
        out.raw("differs", "true");
    }
    out.end()
}

#[cfg(test)]
mod tests {
    use super::claim::Unit;
    use super::*;

    #[test]
    fn names_are_unique_and_found() {
        for figure in ALL {
            let found = ALL.iter().filter(|other| other.name == figure.name).count();
            assert_eq!(found, 1, "{}", figure.name);
            assert_eq!(Figure::find(figure.name).map(|found| found.title), Some(figure.title));
        }
        assert!(Figure::find("breakwater-0").is_none());
    }

    #[test]
    fn one_broken_claim_breaks_the_figure() {
        let claim = |measured| Claim::at_least("it is \"held\"", Unit::Percent, measured, 0.5);
        let outcome = |measured| Outcome {
            claims: vec![claim(0.6), claim(measured)],
            charts: Vec::new(),
            notes: vec!["x 1 (of 1, 2)".to_owned()],
            measured: Vec::new(),
            misses: Vec::new(),
        };
        assert!(outcome(0.5).holds(true));
        let broken = outcome(0.4);
        assert!(!broken.holds(true) && !broken.holds(false));
        let text = broken.to_text(&ALL[0]);
        assert!(text.contains("FAILED") && text.contains("x 1 (of 1, 2)"), "{text}");
        let json = broken.to_json(&ALL[0], 3, true);
        assert!(
            json.contains("\"holds\":false,\"claims\":[{\"claim\":\"it is \\\"held\\\"\""),
            "{json}"
        );
    }
}
