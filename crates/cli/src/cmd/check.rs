//! `tidegate check FILE`

use std::path::PathBuf;

use serde_json::json;
use tidegate_core::config::{ConfigError, Problem};
use tidegate_core::limit::{LimitConfig, QuotaConfig};
use tidegate_proxy::File;

use super::file;
use super::{Error, Format, print};

/// Check a configuration file and tell everything that is wrong with it.
#[derive(Debug, clap::Args)]
pub(crate) struct Check {
    /// TOML with the blocks `[proxy]`, `[gate]` and `[caller]`, or with the block `[nats]`; `-` reads stdin.
    file: PathBuf,
    /// How to answer.
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

impl Check {
    pub(crate) fn run(self) -> Result<(), Error> {
        let name = file::name(&self.file);
        let text = file::text(&self.file)?;
        #[cfg(feature = "nats")]
        if is_for_nats(&text) {
            let result = tidegate_nats::File::parse(&text);
            return self.tell(&name, &result, |_| Vec::new());
        }
        self.tell(&name, &File::parse(&text), remarks)
    }

    fn tell<T>(
        &self,
        name: &str,
        result: &Result<T, ConfigError>,
        remarks: impl Fn(&T) -> Vec<String>,
    ) -> Result<(), Error> {
        let problems = result.as_ref().err().map_or(&[][..], |error| error.problems());
        match self.format {
            Format::Json => {
                let list: Vec<_> = problems.iter().map(as_json).collect();
                let answer = json!({ "file": name, "valid": list.is_empty(), "problems": list });
                print(format_args!("{answer}\n"))?;
                if problems.is_empty() { Ok(()) } else { Err(Error::Told) }
            }
            Format::Text => match result {
                Ok(file) => {
                    print(format_args!("{name} is valid\n"))?;
                    remarks(file).iter().try_for_each(|line| print(format_args!("{line}\n")))
                }
                Err(error) => Err(Error::Input(format!("{name} is not valid\n{error}"))),
            },
        }
    }
}

/// Whether a file is one of the messaging gate: what is wrong with it otherwise is said as of that.
#[cfg(feature = "nats")]
fn is_for_nats(text: &str) -> bool {
    let begins = |line: &str| line.starts_with("[nats") || line.starts_with("[[nats.");
    text.lines().map(str::trim_start).any(begins)
}

/// What is allowed and still worth knowing: quotas that sum to more than there is.
fn remarks(file: &File) -> Vec<String> {
    let quotas = file.gate.limits.iter().enumerate().filter_map(|(at, limit)| match limit {
        LimitConfig::Quota(quotas) => Some((at, quotas)),
        _ => None,
    });
    let above = quotas.filter(|(_, quotas)| quotas.capacity > 0.0);
    let above = above.filter(|(_, quotas)| quotas.promised() > quotas.capacity);
    let line = |(at, quotas): (usize, &QuotaConfig)| {
        let (promised, capacity) = (quotas.promised(), quotas.capacity);
        format!(
            "gate.limits.{at}: quotas sum to {promised} of a capacity of {capacity}: fine while not \
             all are used at once"
        )
    };
    above.map(line).collect()
}

/// A syntax error has no field and no value, and tells its line with what is allowed.
fn as_json(Problem { field, value, allowed, line }: &Problem) -> serde_json::Value {
    json!({ "field": field, "value": value, "allowed": allowed, "line": line })
}
