//! `cargo xtask fuzz SECS`: the property tests, again and again, on ever more random cases.
//!
//! Every round draws new seeds from the system. What fails is shrunk by proptest and kept in a
//! `proptest-regressions` file beside the sources, where every later test run replays it: commit it
//! with the fix. A suite that fixes its own number of cases is not scaled.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::run::{Result, cargo, root, run};

/// Cases of the first round: four times those of a normal run.
const FIRST: u32 = 1024;
/// Longest round: short enough to see that it moves, long enough to make start-up negligible.
const ROUND: Duration = Duration::from_secs(60);

/// Runs for about `secs` seconds, at least one round.
pub(crate) fn fuzz(secs: u64) -> Result {
    let packages = packages_with_properties()?;
    if packages.is_empty() {
        return Err("no package has property tests".into());
    }
    println!("property tests of {}", packages.join(", "));
    run_tests(&packages, FIRST, &["--no-run"])?;
    let end = Instant::now() + Duration::from_secs(secs);
    let mut cases = FIRST;
    let mut total = 0u64;
    loop {
        let began = Instant::now();
        println!("{cases} cases each, {} s left", left(end).as_secs());
        run_tests(&packages, cases, &[]).map_err(|why| {
            format!("{why}\nthe failing case is kept in a proptest-regressions folder: commit it")
        })?;
        total += u64::from(cases);
        if left(end).is_zero() {
            println!("no failure in {total} cases of each property");
            return Ok(());
        }
        cases = next(cases, began.elapsed(), left(end));
    }
}

fn left(end: Instant) -> Duration {
    end.saturating_duration_since(Instant::now())
}

/// Cases for a round that fills the time left, at most [`ROUND`] and at most four times as many.
fn next(cases: u32, took: Duration, left: Duration) -> u32 {
    let factor = left.min(ROUND).as_secs_f64() / took.as_secs_f64().max(0.001);
    (f64::from(cases) * factor.clamp(0.01, 4.0)).max(1.0) as u32
}

fn run_tests(packages: &[String], cases: u32, more: &[&str]) -> Result {
    let mut command = cargo(&["test", "-q", "--lib", "--bins", "--tests"]);
    for package in packages {
        command.args(["-p", package]);
    }
    run(command.args(more).env("PROPTEST_CASES", cases.to_string()))
}

/// Packages below `crates` whose sources use proptest.
fn packages_with_properties() -> Result<Vec<String>> {
    let mut found = BTreeSet::new();
    let crates = root().join("crates");
    for entry in fs::read_dir(&crates).map_err(|error| error.to_string())? {
        let folder = entry.map_err(|error| error.to_string())?.path();
        if mentions(&folder, concat!("prop", "test!")) {
            let manifest = fs::read_to_string(folder.join("Cargo.toml"));
            let manifest = manifest.map_err(|error| error.to_string())?;
            let name = manifest.lines().find_map(|line| line.strip_prefix("name = "));
            found.extend(name.map(|name| name.trim_matches('"').to_owned()));
        }
    }
    Ok(found.into_iter().collect())
}

fn mentions(path: &Path, word: &str) -> bool {
    if path.extension().is_some_and(|extension| extension == "rs") {
        return fs::read_to_string(path).is_ok_and(|text| text.contains(word));
    }
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).any(|path| mentions(&path, word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_grow_to_a_minute_and_fit_the_time_left() {
        let secs = Duration::from_secs;
        assert_eq!(next(1000, secs(1), secs(600)), 4000, "no more than four times");
        assert_eq!(next(1000, secs(30), secs(600)), 2000, "a minute");
        assert_eq!(next(1000, secs(30), secs(15)), 500, "the time left");
        assert_eq!(next(1, secs(30), secs(0)), 1, "never none");
    }

    #[test]
    fn the_core_has_properties() {
        assert!(packages_with_properties().unwrap().contains(&"tidegate-core".to_owned()));
    }
}
