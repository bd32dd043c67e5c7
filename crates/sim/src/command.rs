//! The simulator as a command: a plan file in, reports out. The command line is a thin wrapper.

use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use tidegate_core::Span;

use crate::ideal;
use crate::plan::{Plan, PlanError, Point};
use crate::report::{self, Report};

/// What to simulate.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The plan; `-` reads stdin.
    pub plan: PathBuf,
    /// A seed other than the plan's.
    pub seed: Option<u64>,
    /// Values to set otherwise, as `path=value`.
    pub sets: Vec<String>,
    /// Length of a step of the series, if one is wanted.
    pub series: Option<Span>,
    /// Whether the runs of a point with several seeds become one report, their mean.
    pub mean: bool,
    /// Threads to use; all cores if zero.
    pub threads: usize,
}

/// How reports are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// For people.
    #[default]
    Table,
    /// One object per run and line.
    Json,
    /// One line per run, with a heading.
    Csv,
}

impl Format {
    /// The reports as text.
    pub fn render(self, reports: &[Report]) -> String {
        match self {
            Self::Table => report::table(reports),
            Self::Json => reports.iter().map(|report| report.to_json() + "\n").collect(),
            Self::Csv => report::csv(reports),
        }
    }
}

impl FromStr for Format {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "table" => Ok(Self::Table),
            "json" => Ok(Self::Json),
            "csv" => Ok(Self::Csv),
            _ => Err(format!("\"{text}\" is not a format: table, json, csv")),
        }
    }
}

/// The path that stands for stdin.
const STDIN: &str = "-";

/// Reads the plan and runs all of it. `progress` hears how many runs of how many are done.
pub fn run(
    options: &Options,
    progress: impl Fn(usize, usize) + Sync,
) -> Result<Vec<Report>, PlanError> {
    let path = &options.plan;
    let (name, text) = if path.as_os_str() == STDIN {
        ("stdin".to_owned(), std::io::read_to_string(std::io::stdin()))
    } else {
        (stem(path), std::fs::read_to_string(path))
    };
    let text = text.map_err(|error| PlanError(vec![format!("{}: {error}", path.display())]))?;
    let folder = path.parent().unwrap_or(Path::new(""));
    let plan = Plan::parse(&name, &text, &options.sets, folder)?;
    run_with(plan, options, progress)
}

/// Replays the log that `options` name as their plan, once with each of `policies`. The values that
/// a plan would have (`service.cores`, `slo`, `workload.speed`, …) are set as usual.
pub fn replay(
    options: &Options,
    policies: &[String],
    progress: impl Fn(usize, usize) + Sync,
) -> Result<Vec<Report>, PlanError> {
    let log = std::path::absolute(&options.plan)
        .map_err(|error| PlanError(vec![format!("{}: {error}", options.plan.display())]))?;
    let plan = Plan::replay(&stem(&log), &log, policies, &options.sets)?;
    run_with(plan, options, progress)
}

/// Makes sure that reports can be written into `folder`.
pub fn prepare(folder: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(folder)?;
    let probe = folder.join(".tidegate");
    std::fs::write(&probe, "").and_then(|()| std::fs::remove_file(probe))
}

/// Writes reports into `folder`: `NAME.jsonl`, `NAME.csv`, `NAME.txt`, and with a series
/// `NAME-series.csv`.
pub fn write(folder: &Path, reports: &[Report]) -> std::io::Result<()> {
    std::fs::create_dir_all(folder)?;
    let name = reports.first().map_or("empty", |report| &report.plan);
    for (format, ending) in [(Format::Json, "jsonl"), (Format::Csv, "csv"), (Format::Table, "txt")]
    {
        std::fs::write(folder.join(format!("{name}.{ending}")), format.render(reports))?;
    }
    if reports.iter().any(|report| report.series.is_some()) {
        let file = folder.join(format!("{name}-series.csv"));
        std::fs::write(file, report::series_csv(reports))?;
    }
    Ok(())
}

fn stem(path: &Path) -> String {
    path.file_stem().map_or_else(String::new, |stem| stem.to_string_lossy().into_owned())
}

fn run_with(
    mut plan: Plan,
    options: &Options,
    progress: impl Fn(usize, usize) + Sync,
) -> Result<Vec<Report>, PlanError> {
    if let Some(step) = options.series {
        check_series(step, &plan)?;
    }
    plan.seed = options.seed.unwrap_or(plan.seed);
    for point in &mut plan.points {
        point.scenario.series = options.series;
    }
    let reports = run_plan(&plan, options.threads, progress);
    Ok(if options.mean { report::mean_over_seeds(&reports) } else { reports })
}

/// Most steps of a series: a million rows are more than anybody reads, and still fit into memory.
const STEPS: u64 = 1_000_000;

fn check_series(step: Span, plan: &Plan) -> Result<(), PlanError> {
    let longest = plan.points.iter().map(|point| point.scenario.duration).max();
    let longest = longest.unwrap_or(Span::ZERO);
    let least = Span::from_nanos(longest.as_nanos().div_ceil(STEPS).max(1));
    if step >= least {
        return Ok(());
    }
    let problem = format!(
        "--series {step} is not allowed: at least {least}, for at most {STEPS} steps of {longest}"
    );
    Err(PlanError(vec![problem]))
}

/// Runs all points of a plan, with each of its seeds, on `threads` threads (all cores if zero). The reports come in the
/// order of the points and do not depend on the number of threads.
pub fn run_plan(
    plan: &Plan,
    threads: usize,
    progress: impl Fn(usize, usize) + Sync,
) -> Vec<Report> {
    let seeds = plan.seeds as usize;
    let count = plan.points.len() * seeds;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = if threads == 0 { cores } else { threads }.clamp(1, count.max(1));
    let (next, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let reports = Mutex::new(vec![None; count]);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    let Some(point) = plan.points.get(number / seeds) else { break };
                    let seed = plan.seed.wrapping_add((number % seeds) as u64);
                    let report = run_point(plan, point, seed);
                    reports.lock().expect("no thread panics while it holds this")[number] =
                        Some(report);
                    progress(done.fetch_add(1, Ordering::Relaxed) + 1, count);
                }
            });
        }
    });
    let reports = reports.into_inner().expect("no thread panicked");
    reports.into_iter().map(|report| report.expect("every point was run")).collect()
}

/// Runs one point of a plan.
pub fn run_point(plan: &Plan, point: &Point, seed: u64) -> Report {
    if point.ideal {
        return ideal::run(plan, point, seed);
    }
    let measure = point.scenario.simulate(seed).expect("a plan's configurations are checked");
    Report::new(plan, point, seed, measure)
}
