//! Running plans for a figure: short or in full, tuned over a grid, and found again by their values.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::Path;

use tidegate_core::Span;
use toml::Value;

use super::chart::Line;
use crate::command::run_plan;
use crate::plan::Plan;
use crate::report::{Report, mean_over_seeds};

/// A plan that is part of the program, so that figures can be made anywhere.
#[derive(Clone, Copy, Debug)]
pub struct Source {
    /// Its file in `plans/`, without the ending.
    pub name: &'static str,
    /// What the file says.
    pub text: &'static str,
}

/// How figures are to be made.
pub struct Lab<'a> {
    /// Fewer points and shorter runs: enough for the claims, not for a beautiful picture.
    pub quick: bool,
    /// The seed of every run.
    pub seed: u64,
    /// Threads to use; all cores if zero.
    pub threads: usize,
    /// Hears how many runs of the current grid are done, of how many.
    pub progress: &'a (dyn Fn(usize, usize) + Sync),
    /// What was tuned before, by plan, values and grid: several figures share baselines.
    tuned: RefCell<BTreeMap<String, Tuned>>,
}

impl<'a> Lab<'a> {
    /// A lab in which nothing was tuned yet.
    pub fn new(
        quick: bool,
        seed: u64,
        threads: usize,
        progress: &'a (dyn Fn(usize, usize) + Sync),
    ) -> Self {
        Self { quick, seed, threads, progress, tuned: RefCell::default() }
    }

    /// Runs a plan with some values set otherwise.
    ///
    /// # Panics
    ///
    /// If the plan is wrong: it is ours, and a test runs every figure.
    pub fn run(&self, source: Source, sets: &[String]) -> Runs {
        self.run_series(source, sets, None)
    }

    /// The same with a series in steps of this length.
    pub fn run_series(&self, source: Source, sets: &[String], step: Option<Span>) -> Runs {
        let [runs] = self.run_each(source, sets, &[Vec::new()], step).try_into().expect("one");
        runs
    }

    /// The same for each of several choices, all at once.
    pub fn run_each(
        &self,
        source: Source,
        sets: &[String],
        choices: &[Vec<String>],
        step: Option<Span>,
    ) -> Vec<Runs> {
        let parse = |choice: &Vec<String>| {
            let sets = [sets, choice].concat();
            let plan = Plan::parse(source.name, source.text, &sets, Path::new(""));
            plan.unwrap_or_else(|error| panic!("plans/{}.toml: {error}", source.name))
        };
        let plans: Vec<Plan> = choices.iter().map(parse).collect();
        let Some(mut all) = plans.first().cloned() else { return Vec::new() };
        all.seed = self.seed;
        all.points = plans.iter().flat_map(|plan| plan.points.clone()).collect();
        for point in &mut all.points {
            point.scenario.series = step;
        }
        let mut runs = run_plan(&all, self.threads, self.progress).into_iter();
        let of = |plan: &Plan| plan.points.len() * all.seeds as usize;
        plans.iter().map(|plan| Runs(runs.by_ref().take(of(plan)).collect())).collect()
    }

    /// Runs sized in requests: `quick` of them or `full`, after as long a warm-up.
    pub fn requests(&self, quick: u32, full: u32) -> Vec<String> {
        let count = if self.quick { quick } else { full };
        vec![format!("requests={count}"), format!("warmup_requests={count}")]
    }

    /// Runs as long as Breakwater's, two seconds to warm up and two that are measured (§5.1); quick,
    /// sized in requests.
    pub fn four_seconds(&self, quick: u32) -> Vec<String> {
        if self.quick {
            return self.requests(quick, quick);
        }
        vec!["warmup=2s".to_owned(), "duration=4s".to_owned()]
    }

    /// Tries every choice, and keeps the one with the most goodput over all runs of the plan.
    pub fn tune(&self, source: Source, sets: &[String], grid: &Grid) -> Tuned {
        let key = format!("{} {sets:?} {:?}", source.name, grid.axes);
        if let Some(tuned) = self.tuned.borrow().get(&key) {
            return tuned.clone();
        }
        let tuned = self.search(source, sets, grid);
        self.tuned.borrow_mut().insert(key, tuned.clone());
        tuned
    }

    fn search(&self, source: Source, sets: &[String], grid: &Grid) -> Tuned {
        let choices = grid.choices();
        // The share of capacity, so that runs of different services count alike.
        let score = |runs: &Runs| runs.0.iter().map(goodput).sum();
        let scores: Vec<f64> =
            self.run_each(source, sets, &grid.sets(), None).iter().map(score).collect();
        // Of equals, the first.
        let best = (0..choices.len()).rev().max_by(|a, b| scores[*a].total_cmp(&scores[*b]));
        let choice = &choices[best.expect("a grid has at least one choice")];
        Tuned { sets: set(choice), note: grid.describe(choice) }
    }
}

/// Values to try: path and choices, every combination.
#[derive(Clone, Debug)]
pub struct Grid {
    /// What is tuned, and for what.
    pub title: String,
    /// Paths in the plan and what to try there, as TOML.
    pub axes: Vec<(String, Vec<String>)>,
}

impl Grid {
    /// Nothing yet to choose from.
    pub fn new(title: &str) -> Self {
        Self { title: title.to_owned(), axes: Vec::new() }
    }

    /// With a further value to choose.
    pub fn axis(mut self, path: &str, choices: &[&str]) -> Self {
        self.axes.push((path.to_owned(), choices.iter().map(|&choice| choice.into()).collect()));
        self
    }

    /// Every combination, as what to set.
    pub fn sets(&self) -> Vec<Vec<String>> {
        self.choices().iter().map(|choice| set(choice)).collect()
    }

    fn choices(&self) -> Vec<Vec<(String, String)>> {
        let mut all = vec![Vec::new()];
        for (path, choices) in &self.axes {
            let longer = |prefix: &Vec<(String, String)>| {
                let prefix = prefix.clone();
                choices.iter().map(move |choice| {
                    let mut chosen = prefix.clone();
                    chosen.push((path.clone(), choice.clone()));
                    chosen
                })
            };
            all = all.iter().flat_map(longer).collect();
        }
        all
    }

    fn describe(&self, choice: &[(String, String)]) -> String {
        let part = |((path, value), (_, choices)): (&(String, String), &(String, Vec<String>))| {
            let name = path.rsplit('.').next().unwrap_or(path);
            format!("{name} {value} (of {})", choices.join(", "))
        };
        let parts: Vec<String> = choice.iter().zip(&self.axes).map(part).collect();
        format!("{}: {}", self.title, parts.join(", "))
    }
}

/// A choice as what to set.
fn set(choice: &[(String, String)]) -> Vec<String> {
    choice.iter().map(|(path, value)| format!("{path}={value}")).collect()
}

/// The best of a grid.
#[derive(Clone, Debug, Default)]
pub struct Tuned {
    /// What to set.
    pub sets: Vec<String>,
    /// What was chosen, and from what.
    pub note: String,
}

impl Tuned {
    /// The number that was chosen for the value called `key`, without its unit.
    ///
    /// # Panics
    ///
    /// If there was no such choice: figures ask for what they tuned.
    pub fn number(&self, key: &str) -> f64 {
        let value = |set: &String| {
            let (path, value) = set.split_once('=')?;
            let number = value.split_whitespace().next()?;
            (path.rsplit('.').next() == Some(key)).then(|| number.parse().ok())?
        };
        self.sets.iter().find_map(value).unwrap_or_else(|| panic!("no {key} in {:?}", self.sets))
    }

    /// Both.
    #[must_use]
    pub fn and(mut self, more: Self) -> Self {
        self.sets.extend(more.sets);
        let notes = [self.note, more.note];
        let notes: Vec<String> = notes.into_iter().filter(|note| !note.is_empty()).collect();
        Self { sets: self.sets, note: notes.join("; ") }
    }
}

/// What came of a grid of runs.
#[derive(Clone, Debug, Default)]
pub struct Runs(pub Vec<Report>);

impl Runs {
    /// The run of `policy` with these values.
    ///
    /// # Panics
    ///
    /// If there is none: figures ask for what they ran.
    pub fn get(&self, policy: &str, values: &[(&str, f64)]) -> &Report {
        let fits = |run: &&Report| {
            run.policy == policy && values.iter().all(|(path, value)| at(run, path) == Some(*value))
        };
        let found = self.0.iter().find(fits);
        found.unwrap_or_else(|| panic!("no run of {policy} with {values:?}"))
    }

    /// The runs of a policy.
    pub fn of<'a>(&'a self, policy: &'a str) -> impl Iterator<Item = &'a Report> {
        self.0.iter().filter(move |run| run.policy == policy)
    }

    /// A policy's runs over the values at `path`.
    pub fn line(&self, policy: &str, path: &str, value: impl Fn(&Report) -> f64) -> Line {
        let mut points: Vec<(f64, f64)> =
            self.of(policy).map(|run| (at(run, path).unwrap_or(0.0), value(run))).collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        Line::new(policy, points)
    }

    /// Those that fit.
    pub fn only(&self, fits: impl Fn(&Report) -> bool) -> Self {
        Self(self.0.iter().filter(|run| fits(run)).cloned().collect())
    }

    /// The mean over the seeds of each point.
    pub fn mean(&self) -> Self {
        Self(mean_over_seeds(&self.0))
    }

    /// Both together.
    pub fn and(mut self, more: Self) -> Self {
        self.0.extend(more.0);
        self
    }
}

/// A swept text.
pub fn text<'a>(run: &'a Report, path: &str) -> &'a str {
    let value = run.point.iter().find(|(name, _)| name == path);
    value.and_then(|(_, value)| value.as_str()).unwrap_or_default()
}

/// A swept number.
pub fn at(run: &Report, path: &str) -> Option<f64> {
    run.point.iter().find(|(name, _)| name == path).and_then(|(_, value)| match value {
        Value::Integer(number) => Some(*number as f64),
        Value::Float(number) => Some(*number),
        _ => None,
    })
}

/// What to set to run the point of `run` again.
pub fn point(run: &Report) -> Vec<String> {
    run.point.iter().map(|(path, value)| format!("{path}=[{value}]")).collect()
}

/// Goodput as a share of capacity.
pub fn goodput(run: &Report) -> f64 {
    run.goodput_rps / run.capacity_rps
}

/// The same without the luck of the draw: a run whose requests happened to take 1 % longer than they do on
/// average has served 1 % fewer. `messages_us` is what each costs besides.
pub fn fair_goodput(run: &Report, mean_us: f64, messages_us: f64) -> f64 {
    goodput(run) * (messages_us + run.work_us) / (messages_us + mean_us)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TINY: Source = Source {
        name: "tiny",
        text: "policy = \"open\"\nload = 0.5\ncallers = 2\nrequests = 500\nwarmup_requests = 100\n\
               slo = \"5ms\"\n[service]\ncores = 1\ntime = \"1ms\"\n[policies.open.gate]\n\
               admission = { policy = \"open\" }\n[policies.open.caller]\n\
               throttle = { throttle = \"open\" }\n",
    };

    #[test]
    fn tuning_finds_the_better_value_and_says_what_it_tried() {
        let lab = Lab::new(true, 1, 1, &|_, _| {});
        let grid = Grid::new("slo").axis("slo", &["2ms", "50ms", "3ms"]).axis("callers", &["2"]);
        let tuned = lab.tune(TINY, &[], &grid);
        assert_eq!(tuned.sets, ["slo=50ms", "callers=2"]);
        assert_eq!(tuned.note, "slo: slo 50ms (of 2ms, 50ms, 3ms), callers 2 (of 2)");
        assert_eq!(tuned.number("callers"), 2.0);
    }

    #[test]
    fn runs_are_found_by_their_values() {
        let lab = Lab::new(true, 1, 1, &|_, _| {});
        let runs = lab.run(TINY, &["load=[0.8,0.2]".to_owned()]);
        assert!(runs.get("open", &[("load", 0.8)]).offered_rps > 500.0);
        let line = runs.line("open", "load", |run| run.offered_rps);
        assert_eq!(line.points.iter().map(|point| point.0).collect::<Vec<_>>(), [0.2, 0.8]);
    }
}
