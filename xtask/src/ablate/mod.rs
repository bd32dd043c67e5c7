//! `cargo xtask ablate`: what each part of tide contributes. Each is taken out of a copy of the code, all else
//! as it is, and the simulator tells what has become of some runs.
//!
//! One build of the copy has a switch for every part, an environment variable.

mod measures;
mod parts;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use serde_json::{Value, json};

use crate::run::{Result, cargo, output, root, run};
use crate::tidy::NOT_OURS;
use measures::{Measure, measures};
use parts::PARTS;

/// The variable, and what reads it.
const SWITCH: &str = "TIDEGATE_WITHOUT";
const SWITCHES: &str = r#"
#[doc(hidden)]
pub fn without(part: usize) -> bool {
    static PART: std::sync::OnceLock<Option<usize>> = std::sync::OnceLock::new();
    let read = || std::env::var("TIDEGATE_WITHOUT").ok()?.parse().ok();
    *PART.get_or_init(read) == Some(part)
}
"#;

/// By so many standard errors a part must show.
const SURE: f64 = 3.0;

/// Measures with all of tide and without each part whose name contains `filter`, and prints.
pub(crate) fn ablate(filter: &str, as_json: bool) -> Result {
    let numbered = PARTS.iter().enumerate();
    let parts: Vec<_> = numbered.filter(|(_, part)| part.name.contains(filter)).collect();
    if parts.is_empty() {
        return Err(format!("no part is called {filter:?}"));
    }
    let lab = Lab::new()?;
    let all = lab.tide(None)?;
    if !as_json {
        println!("| measure | what | all of tide |\n|---|---|---|");
        for (Measure { name, what, scale, .. }, seen) in lab.measures.iter().zip(&all) {
            println!("| {name} | {what} | {} |", scale.show(seen.mean()));
        }
        println!("\n| without | what changes |\n|---|---|");
    }
    for (number, part) in parts {
        let found = lab.tide(Some(number))?;
        let mut changes = Vec::new();
        for ((measure, all), seen) in lab.measures.iter().zip(&all).zip(&found) {
            let Measure { name, what, scale, .. } = measure;
            let (from, to, shows) = (all.mean(), seen.mean(), seen.differs(all, scale.matters()));
            if as_json {
                let row = json!({ "without": part.name, "measure": name, "what": what, "all": from,
                    "value": to, "standard_error": seen.error(), "shows": shows });
                println!("{row}");
            } else if shows {
                changes.push(format!("{name} {} → {}", scale.show(from), scale.show(to)));
            }
        }
        if !as_json {
            println!("| {} | {} |", part.name, changes.join("; "));
        }
    }
    Ok(())
}

/// The copy's program, what to ask it, and what `ideal` has where that counts.
struct Lab {
    program: PathBuf,
    measures: Vec<Measure>,
    ideal: Vec<Option<Seen>>,
}

impl Lab {
    fn new() -> Result<Self> {
        let mut lab = Self { program: build()?, measures: measures(), ideal: Vec::new() };
        let ideal = |measure: &Measure| {
            let runs = measure.below_ideal.then(|| lab.simulate("ideal", None, measure));
            Ok(runs.transpose()?.map(|runs| Seen::of(&runs, measure)))
        };
        lab.ideal = lab.measures.iter().map(ideal).collect::<Result<_>>()?;
        Ok(lab)
    }

    /// What tide has in every measure, without a part perhaps.
    fn tide(&self, without: Option<usize>) -> Result<Vec<Seen>> {
        let mut found: Vec<Seen> = Vec::new();
        let mut last: Option<(&[String], Vec<Value>)> = None;
        for (measure, ideal) in self.measures.iter().zip(&self.ideal) {
            let runs = match last.take() {
                Some((sets, runs)) if sets == measure.sets => runs,
                _ => self.simulate("tide", without, measure)?,
            };
            let seen = Seen::of(&runs, measure);
            found.push(match ideal {
                Some(ideal) => seen.below(ideal),
                None => seen,
            });
            last = Some((&measure.sets, runs));
        }
        Ok(found)
    }

    fn simulate(
        &self,
        policy: &str,
        without: Option<usize>,
        measure: &Measure,
    ) -> Result<Vec<Value>> {
        let mut sim = Command::new(&self.program);
        let plan = root().join("plans").join(format!("{}.toml", measure.plan));
        sim.arg("sim").arg(plan).args(["--format", "json"]);
        sim.args(["--set", &format!("policy=[\"{policy}\"]")]);
        sim.args(measure.sets.iter().flat_map(|set| ["--set", set.as_str()]));
        sim.args(measure.series.iter().flat_map(|step| ["--series", step.as_str()]));
        match without {
            Some(part) => sim.env(SWITCH, part.to_string()),
            None => sim.env_remove(SWITCH),
        };
        let (runs, _) = output(&mut sim)?;
        let wrong = |error| format!("the simulator's answer is no JSON: {error}");
        runs.lines().map(|line| serde_json::from_str(line).map_err(wrong)).collect()
    }
}

/// What a measure is, one number for each seed.
struct Seen(Vec<f64>);

impl Seen {
    fn of(runs: &[Value], measure: &Measure) -> Self {
        Self(runs.iter().map(measure.of).collect())
    }

    /// How far below that of `ideal` with the same seed.
    fn below(&self, ideal: &Self) -> Self {
        Self(self.0.iter().zip(&ideal.0).map(|(own, ideal)| ideal - own).collect())
    }

    fn mean(&self) -> f64 {
        self.0.iter().sum::<f64>() / self.0.len() as f64
    }

    /// The standard error of the mean.
    fn error(&self) -> f64 {
        let (mean, count) = (self.mean(), self.0.len() as f64);
        let squares: f64 = self.0.iter().map(|value| (value - mean).powi(2)).sum();
        (squares / (count - 1.0).max(1.0) / count).sqrt()
    }

    /// Whether two differ by more than chance, and by more than `matters`.
    fn differs(&self, other: &Self, matters: f64) -> bool {
        let (by, chance) = ((self.mean() - other.mean()).abs(), self.error().hypot(other.error()));
        by > matters && by > SURE * chance
    }
}

/// Builds the copy, with a switch for every part.
fn build() -> Result<PathBuf> {
    let copy = root().join("target/ablate");
    let source = copy.join("source");
    copy_all(&root(), &source)?;
    let core = source.join("crates/core/src");
    edit(&core.join("lib.rs"), |text| Ok(text.to_owned() + SWITCHES))?;
    for (number, part) in PARTS.iter().enumerate() {
        let switch = format!("crate::without({number})");
        edit(&core.join(part.file), |text| part.switched(text, &switch))?;
    }
    let mut build = cargo(&["build", "-p", "tidegate-cli"]);
    build.current_dir(&source).env("CARGO_TARGET_DIR", copy.join("target"));
    run(&mut build)?;
    Ok(copy.join("target/debug/tidegate").with_extension(env::consts::EXE_EXTENSION))
}

fn edit(file: &Path, change: impl Fn(&str) -> Result<String>) -> Result {
    let cannot = |error: std::io::Error| format!("{}: {error}", file.display());
    let text = fs::read_to_string(file).map_err(cannot)?;
    fs::write(file, change(&text)?).map_err(cannot)
}

/// Copies all sources of a folder.
fn copy_all(from: &Path, to: &Path) -> Result {
    let cannot = |error: std::io::Error| format!("cannot copy {}: {error}", from.display());
    fs::create_dir_all(to).map_err(cannot)?;
    for entry in fs::read_dir(from).map_err(cannot)? {
        let entry = entry.map_err(cannot)?;
        let (name, path) = (entry.file_name(), entry.path());
        if NOT_OURS.iter().any(|not| name == *not) {
            continue;
        }
        if entry.file_type().map_err(cannot)?.is_dir() {
            copy_all(&path, &to.join(name))?;
        } else {
            fs::copy(&path, to.join(name)).map_err(cannot)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_shows_if_it_is_more_than_chance_and_more_than_a_little() {
        let all = Seen(vec![0.98, 0.99, 0.97]);
        assert!(!Seen(vec![0.97, 0.98, 0.96]).differs(&all, 0.003), "chance");
        assert!(Seen(vec![0.90, 0.91, 0.89]).differs(&all, 0.003));
        let sure = Seen(vec![0.98, 0.98, 0.98]);
        assert!(!Seen(vec![0.979, 0.979, 0.979]).differs(&sure, 0.003), "a little");
    }

    #[test]
    fn what_is_told_beside_ideal_is_how_far_below() {
        let below = Seen(vec![0.9, 0.8]).below(&Seen(vec![1.0, 1.0]));
        assert!((below.mean() - 0.15).abs() < 1e-12 && (below.error() - 0.05).abs() < 1e-12);
    }
}
