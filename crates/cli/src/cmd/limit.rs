//! `tidegate limit size LOG`

use std::path::PathBuf;

use serde_json::json;
use tidegate_core::Instant;
use tidegate_core::limit::{Sizing, size};

use super::file;
use super::{Error, Format, print};

/// Find limits that fit.
#[derive(Debug, clap::Args)]
pub(crate) struct Limit {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// Size a token bucket from a recorded log: a rate a tenth above the mean, and the smallest burst
    /// with which 99 of 100 requests find their token at once.
    Size(Size),
}

#[derive(Debug, clap::Args)]
struct Size {
    /// A log as the simulator replays it: lines that begin with a time in seconds, further columns
    /// after a comma; the second is the workflow. `-` reads stdin.
    log: PathBuf,
    /// Only requests of this workflow.
    #[arg(long, value_name = "NAME")]
    workflow: Option<String>,
    /// How to answer.
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

impl Limit {
    pub(crate) fn run(self) -> Result<(), Error> {
        let Action::Size(size) = self.action;
        size.run()
    }
}

impl Size {
    fn run(self) -> Result<(), Error> {
        let name = file::name(&self.log);
        let wrong = |problem: String| Error::Input(format!("{name}: {problem}"));
        let text = file::log(&self.log)?;
        let arrivals = arrivals(&text, self.workflow.as_deref()).map_err(wrong)?;
        let sizing = size(&arrivals).map_err(|error| {
            Error::Input(format!("{name}: {error}, and there are {} requests", arrivals.len()))
        })?;
        match self.format {
            Format::Json => print(format_args!("{}\n", as_json(&sizing))),
            Format::Text => print(as_text(&sizing)),
        }
    }
}

/// The times of a log.
fn arrivals(text: &str, workflow: Option<&str>) -> Result<Vec<Instant>, String> {
    let mut arrivals = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let heading = number == 0 && !line.starts_with(|c: char| c.is_ascii_digit());
        if heading || line.trim().is_empty() {
            continue;
        }
        let mut columns = line.split(',').map(str::trim);
        let seconds = columns.next().and_then(|time| time.parse::<f64>().ok());
        let Some(seconds) = seconds.filter(|seconds| seconds.is_finite() && *seconds >= 0.0) else {
            let problem = "does not begin with a time in seconds, such as 0.25";
            return Err(format!("line {} {problem}: {line}", number + 1));
        };
        if workflow.is_none_or(|wanted| columns.next() == Some(wanted)) {
            arrivals.push(Instant::from_nanos((seconds * 1e9).round() as u64));
        }
    }
    Ok(arrivals)
}

fn as_json(sizing: &Sizing) -> serde_json::Value {
    json!({
        "requests": sizing.requests,
        "mean_rate": sizing.mean_rate,
        "rate": sizing.limit.rate,
        "burst": sizing.limit.burst,
        "delayed": sizing.delayed,
        "longest_delay_seconds": sizing.longest,
    })
}

/// The block to copy, and below it what it does to the log.
fn as_text(sizing: &Sizing) -> String {
    let Sizing { requests, mean_rate, limit, delayed, longest } = sizing;
    format!(
        "[[gate.limits]]\nlimit = \"rate\"\nrate = {:.3}\nburst = {}\n\n\
         # {requests} requests at {mean_rate:.3} per second; {:.2} % would wait for a token, \
         {:.3} s at most\n",
        limit.rate,
        limit.burst,
        delayed * 100.0,
        longest,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_is_read_by_workflow_and_a_bad_line_is_named() {
        let log = "timestamp,workflow\n0.5,shop\n0.25,bulk\n\n1,shop\n";
        assert_eq!(arrivals(log, None).unwrap().len(), 3);
        assert_eq!(arrivals(log, Some("shop")).unwrap().len(), 2);
        for bad in ["0.5\nsoon,shop\n", "1\n-1,shop", "1\nnan"] {
            assert!(arrivals(bad, None).unwrap_err().contains("line 2"), "{bad}");
        }
    }
}
