//! `tidegate figure list`, `tidegate figure NAME…`, `tidegate figure all`

use std::path::PathBuf;

use tidegate_sim::figures::lab::Lab;
use tidegate_sim::figures::{ALL, Figure as Known, Outcome};

use super::png;
use super::progress::Progress;
use super::{Error, Format, print};

/// Make the papers' figures with our policies, and check what they claim.
#[derive(Debug, clap::Args)]
pub(crate) struct Figure {
    /// Which figures; `list` names them, `all` makes every one.
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,
    /// Fewer points and shorter runs: enough to check the claims.
    #[arg(long)]
    quick: bool,
    /// Write NAME.svg and NAME.csv into this folder.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Write NAME.png as well; needs the feature `png` and a font on this machine.
    #[arg(long, requires = "out")]
    png: bool,
    /// How to answer.
    #[arg(long, value_enum, default_value_t)]
    format: Format,
    /// The seed of every run.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Threads to use; all cores if 0. The answer does not depend on it.
    #[arg(long, default_value_t = 0)]
    threads: usize,
}

impl Figure {
    pub(crate) fn run(self) -> Result<(), Error> {
        if self.names == ["list"] {
            return print(list(self.format));
        }
        let figures = self.chosen()?;
        if self.png && !png::AVAILABLE {
            return Err(Error::Input(
                "--png: this binary was built without it; build with --features png".to_owned(),
            ));
        }
        let progress = Progress::new("figures");
        let tell = |done: usize, all: usize| progress.tell(done, all);
        // One lab for all: what was tuned for one figure need not be tuned again.
        let lab = Lab::new(self.quick, self.seed, self.threads, &tell);
        let mut failed = Vec::new();
        for figure in figures {
            let outcome = figure.make(&lab);
            progress.wipe();
            if !self.tell(figure, &outcome)? {
                failed.push(figure.name);
            }
        }
        if failed.is_empty() {
            return Ok(());
        }
        Err(Error::Failed(format!("claims failed in: {}", failed.join(", "))))
    }

    /// All names are looked at before the first figure is made.
    fn chosen(&self) -> Result<Vec<&'static Known>, Error> {
        if self.names == ["all"] {
            return Ok(ALL.iter().collect());
        }
        let unknown: Vec<&str> = self
            .names
            .iter()
            .map(String::as_str)
            .filter(|name| Known::find(name).is_none())
            .collect();
        if !unknown.is_empty() {
            let known: Vec<_> = ALL.iter().map(|figure| figure.name).collect();
            let known = known.join(", ");
            let unknown = unknown.join(", ");
            return Err(Error::Input(format!("no such figure: {unknown}\nthere are: {known}")));
        }
        Ok(self.names.iter().filter_map(|name| Known::find(name)).collect())
    }

    /// Tells what came of a figure, and whether all its claims hold.
    fn tell(&self, figure: &Known, outcome: &Outcome) -> Result<bool, Error> {
        match self.format {
            Format::Json => {
                print(format_args!("{}\n", outcome.to_json(figure, self.seed, self.quick)))?;
            }
            Format::Text => print(format_args!("{}\n", outcome.to_text(figure)))?,
        }
        if let Some(folder) = &self.out {
            let files = outcome.write(figure, folder).map_err(|error| {
                Error::Failed(format!("cannot write to {}: {error}", folder.display()))
            })?;
            let pictures = files.iter().filter(|file| file.extension().is_some_and(|e| e == "svg"));
            for picture in pictures.filter(|_| self.png) {
                png::convert(picture).map_err(Error::Failed)?;
            }
        }
        Ok(outcome.holds(self.quick))
    }
}

fn list(format: Format) -> String {
    let line = |figure: &Known| {
        let Known { name, title, source, .. } = figure;
        match format {
            Format::Text => format!("{name:<15} {title} ({source})\n"),
            Format::Json => {
                serde_json::json!({ "figure": name, "title": title, "source": source }).to_string()
                    + "\n"
            }
        }
    };
    ALL.iter().map(line).collect()
}
