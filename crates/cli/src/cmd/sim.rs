//! `tidegate sim PLAN`, `tidegate sim new [FILE]`, `tidegate sim replay LOG`

use std::fs::OpenOptions;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use clap::Subcommand;
use tidegate_core::Span;
use tidegate_sim::Report;
use tidegate_sim::command::{self, Format, Options};
use tidegate_sim::plan::{PlanError, TEMPLATE};

use super::progress::Progress;
use super::{Error, file, print};

/// Simulate a plan: what would these policies do to my services?
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct Sim {
    #[command(subcommand)]
    other: Option<Other>,
    /// TOML with services, workload, policies and ranges; `-` reads stdin. `tidegate sim new` prints one.
    #[arg(required = true)]
    plan: Option<PathBuf>,
    #[command(flatten)]
    run: Run,
}

#[derive(Debug, Subcommand)]
enum Other {
    /// A commented plan to start from.
    New {
        /// Where to write it; stdout if missing. A file that is there is left alone.
        file: Option<PathBuf>,
    },
    /// Replay a recorded log: what would these policies have done to it? Say what it was recorded at: `--set service.cores=8
    /// --set callers=20 --set slo=200ms`; without, it is one core, one caller, and ten times a mean request and a round trip.
    Replay {
        /// Lines of `timestamp,workflow,business,user,service`: seconds, name, rank, microseconds.
        log: PathBuf,
        /// Policies to compare; may be given several times.
        #[arg(long = "policy", value_name = "NAME", default_value = "tide")]
        policies: Vec<String>,
        #[command(flatten)]
        run: Run,
    },
}

/// What all simulations can be told.
#[derive(Debug, clap::Args)]
struct Run {
    /// Another seed than the plan's.
    #[arg(long)]
    seed: Option<u64>,
    /// Set a value of the plan otherwise; may be given several times.
    #[arg(long = "set", value_name = "PATH=VALUE")]
    sets: Vec<String>,
    /// Tell the course of every run too, in steps of this length: 20ms. With `--format json` or `--out`.
    #[arg(long, value_name = "STEP")]
    series: Option<Span>,
    /// One answer for the runs of a point with several seeds: their mean.
    #[arg(long)]
    mean: bool,
    /// How to answer: table, json (one object per run and line) or csv.
    #[arg(long, default_value = "table")]
    format: Format,
    /// Write all of it, in every format, into this folder too.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Threads to use; all cores if 0. The answer does not depend on it.
    #[arg(long, default_value_t = 0)]
    threads: usize,
}

impl Sim {
    pub(crate) fn run(self) -> Result<(), Error> {
        match (self.other, self.plan) {
            (Some(Other::New { file }), _) => new(file.as_deref()),
            (Some(Other::Replay { log, policies, run }), _) => {
                run.run(&log, |options, tell| command::replay(options, &policies, tell))
            }
            (None, Some(plan)) => self.run.run(&plan, |options, tell| command::run(options, tell)),
            (None, None) => unreachable!("clap asks for a plan unless there is a subcommand"),
        }
    }
}

type Tell<'a> = &'a (dyn Fn(usize, usize) + Sync);

impl Run {
    fn run(
        self,
        path: &Path,
        simulate: impl Fn(&Options, Tell<'_>) -> Result<Vec<Report>, PlanError>,
    ) -> Result<(), Error> {
        let told = self.format == Format::Json || self.out.is_some();
        if self.series.is_some() && !told {
            eprintln!("--series is told with --format json or --out, and left out here");
        }
        let cannot = |folder: &Path, error| {
            Error::Failed(format!("cannot write to {}: {error}", folder.display()))
        };
        // Before anything is simulated: nothing is to be lost for want of a folder.
        if let Some(folder) = &self.out {
            command::prepare(folder).map_err(|error| cannot(folder, error))?;
        }
        let options = Options {
            plan: path.to_owned(),
            seed: self.seed,
            sets: self.sets,
            series: self.series.filter(|_| told),
            mean: self.mean,
            threads: self.threads,
        };
        let name = file::name(path);
        let progress = Progress::new(&name);
        let reports = simulate(&options, &|done, all| progress.tell(done, all));
        drop(progress);
        let reports =
            reports.map_err(|error| Error::Input(format!("cannot simulate {name}\n{error}")))?;
        print(self.format.render(&reports))?;
        match &self.out {
            Some(folder) => command::write(folder, &reports).map_err(|error| cannot(folder, error)),
            None => Ok(()),
        }
    }
}

/// Writes the template, never over a file that is there.
fn new(file: Option<&Path>) -> Result<(), Error> {
    let Some(path) = file else { return print(TEMPLATE) };
    let name = path.display();
    let mut file =
        OpenOptions::new().write(true).create_new(true).open(path).map_err(|error| match error
            .kind()
        {
            ErrorKind::AlreadyExists => Error::Input(format!("{name} is there already")),
            _ => Error::Failed(format!("cannot write {name}: {error}")),
        })?;
    let written = file.write_all(TEMPLATE.as_bytes());
    written.map_err(|error| Error::Failed(format!("cannot write {name}: {error}")))?;
    print(format_args!("wrote {name}; run it with: tidegate sim {name}\n"))
}
