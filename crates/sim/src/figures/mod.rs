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

mod breakwater_1;
mod breakwater_3;
mod breakwater_4;
mod breakwater_6;
mod breakwater_7;
mod dagor_6;
mod dagor_8;
mod sre_retries;
mod sre_throttling;
mod testbed;
mod tide_rank;
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
pub const ALL: [Figure; 17] = [
    breakwater_1::FIGURE,
    breakwater_3::FIGURE,
    breakwater_4::FIGURE,
    breakwater_6::FIGURE,
    breakwater_7::FIGURE,
    tide_rank::FIGURE,
    dagor_6::FIGURE,
    dagor_8::FIGURE,
    sre_throttling::FIGURE,
    sre_retries::FIGURE,
    wisp_3::FIGURE,
    wisp_7::FIGURE,
    wisp_8::FIGURE,
    wisp_9::FIGURE,
    wisp_10::FIGURE,
    wisp_table_3::FIGURE,
    wisp_outage::FIGURE,
];

/// What came of making a figure.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// What was checked.
    pub claims: Vec<Claim>,
    /// What can be seen.
    pub charts: Vec<Chart>,
    /// Which values were chosen for baselines, and from what.
    pub notes: Vec<String>,
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
    /// Whether all claims hold.
    pub fn holds(&self) -> bool {
        self.claims.iter().all(|claim| claim.holds)
    }

    /// For people: the claims as a table, and what was chosen.
    pub fn to_text(&self, figure: &Figure) -> String {
        let mut out = format!("{}: {}\n{}\n\n", figure.name, figure.title, figure.source);
        out += &claim::table(&self.claims);
        if !self.notes.is_empty() {
            out += "\ntuned for most goodput:\n";
        }
        for note in &self.notes {
            out += &format!("  {note}\n");
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
        out.raw("holds", &self.holds().to_string());
        let claims: Vec<String> = self.claims.iter().map(claim_json).collect();
        out.raw("claims", &format!("[{}]", claims.join(",")));
        let notes: Vec<String> =
            self.notes.iter().map(|note| crate::report::quoted(note)).collect();
        out.raw("tuned", &format!("[{}]", notes.join(",")));
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
    out.end()
}

#[cfg(test)]
mod tests {
    use super::claim::Unit;
    use super::*;

    #[test]
    fn names_are_unique_and_found() {
        for figure in &ALL {
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
        };
        assert!(outcome(0.5).holds());
        let broken = outcome(0.4);
        assert!(!broken.holds());
        let text = broken.to_text(&ALL[0]);
        assert!(text.contains("FAILED") && text.contains("x 1 (of 1, 2)"), "{text}");
        let json = broken.to_json(&ALL[0], 3, true);
        assert!(
            json.contains("\"holds\":false,\"claims\":[{\"claim\":\"it is \\\"held\\\"\""),
            "{json}"
        );
    }
}
