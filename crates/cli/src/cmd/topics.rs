//! `tidegate nats size`, `place` and `calibrate`: how large a topic is, where its publishers should live, and what brokers can do.

use std::fmt::Write;
use std::path::PathBuf;

use serde_json::{Value, json};
use tidegate_core::Span;
use tidegate_core::limit::{Sizing, size};
use tidegate_core::share::{Rate, Share};
use tidegate_nats::Address;
use tidegate_nats::calibrate::{Calibration, Calibrations};
use tidegate_nats::place::{Log, place};

use super::file;
use super::{Error, Format, print};

#[derive(Clone, Debug, clap::Subcommand)]
pub(crate) enum Action {
    /// Size a topic from a recording: a rate a tenth above the mean, and the smallest burst with which 99 of 100
    /// messages find their token at once.
    Size(Size),
    /// Place a topic's publishers: on the fewest brokers that meet an objective, groups that send together cut alike.
    Place(Place),
    /// Measure what brokers' work costs, for `place`: a second or so of load on each, one after the other.
    Calibrate(Calibrate),
}

#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Size {
    /// A recording, as a gate's /trace has it: lines of `seconds,publisher,group`. `-` reads stdin.
    log: PathBuf,
    /// How to answer.
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Place {
    /// A recording, as a gate's /trace has it: lines of `seconds,publisher,group`. `-` reads stdin.
    log: PathBuf,
    /// What `tidegate nats calibrate` has written: the brokers there are.
    #[arg(long, value_name = "FILE")]
    brokers: PathBuf,
    /// The objective: the 99th percentile of the latency, on every broker.
    #[arg(long, value_name = "TIME", default_value = "5ms")]
    slo: Span,
    /// Messages per second of the topic. Default, with `burst`: as `size` finds.
    #[arg(long, requires = "burst")]
    rate: Option<f64>,
    /// Messages at once.
    #[arg(long, requires = "rate")]
    burst: Option<u64>,
    /// How to answer.
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Calibrate {
    /// A nats-server, as nats://host:port.
    #[arg(long = "broker", value_name = "URL", required = true)]
    brokers: Vec<Address>,
    /// Bytes in a message.
    #[arg(long, value_name = "BYTES", default_value_t = 100, value_parser = clap::value_parser!(u32).range(..=65_536))]
    payload: u32,
}

impl Action {
    pub(crate) fn run(&self) -> Result<(), Error> {
        match self {
            Self::Size(size) => size.run(),
            Self::Place(place) => place.run(),
            Self::Calibrate(calibrate) => calibrate.run(),
        }
    }
}

impl Size {
    fn run(&self) -> Result<(), Error> {
        let Sizing { requests, mean_rate, limit, delayed, longest } = sized(&log(&self.log)?)?;
        match self.format {
            Format::Json => {
                let told = json!({
                    "messages": requests, "mean_rate": mean_rate, "rate": limit.rate, "burst": limit.burst,
                    "delayed": delayed, "longest_delay_seconds": longest,
                });
                print(format_args!("{told}\n"))
            }
            Format::Text => print(format_args!(
                "[[nats.topics]]\nsubject = \"...\"\nrate = {:.3}\nburst = {}\n\n# {requests} messages at {mean_rate:.3} per \
                 second; {:.2} % would wait for a token, {longest:.3} s at most\n",
                limit.rate,
                limit.burst,
                delayed * 100.0,
            )),
        }
    }
}

impl Place {
    fn run(&self) -> Result<(), Error> {
        let log = log(&self.log)?;
        let (rate, burst) = match (self.rate, self.burst) {
            (Some(rate), Some(burst)) => (rate, burst),
            _ => {
                let sizing = sized(&log)?;
                (sizing.limit.rate, sizing.limit.burst as u64)
            }
        };
        let wrong =
            || Error::Input(format!("--rate {rate} is no rate: messages per second, above 0"));
        let rate = Rate::per_second(rate).filter(|rate| *rate > Rate::ZERO).ok_or_else(wrong)?;
        let text = file::text(&self.brokers).map_err(|error| Error::Input(error.to_string()))?;
        let name = file::name(&self.brokers);
        let brokers = Calibrations::parse(&text)
            .map_err(|error| Error::Input(format!("{name} is not valid\n{error}")))?;
        let plan = place(&log, Share::new(rate, burst), self.slo, &brokers.brokers)
            .map_err(Error::Input)?;
        match self.format {
            Format::Json => print(format_args!("{plan}\n")),
            Format::Text => print(as_text(&plan)),
        }
    }
}

impl Calibrate {
    fn run(&self) -> Result<(), Error> {
        let measure = |broker: &Address| Calibration::measure(broker, self.payload as usize);
        let brokers = self.brokers.iter().map(measure).collect::<Result<Vec<_>, String>>();
        print(Calibrations { brokers: brokers.map_err(Error::Failed)? }.to_toml())
    }
}

fn log(path: &std::path::Path) -> Result<Log, Error> {
    let text = file::log(path)?;
    Log::read(&text).map_err(|error| Error::Input(format!("{}: {error}", file::name(path))))
}

fn sized(log: &Log) -> Result<Sizing, Error> {
    size(&log.moments()).map_err(|error| Error::Input(error.to_string()))
}

/// A line per broker, and what it comes to.
fn as_text(plan: &Value) -> String {
    let mut text = format!(
        "{} publishers, {} messages in {:.1} s; agreement {:.1}/s, {} at once\n\n",
        plan["publishers"],
        plan["messages"],
        number(&plan["seconds"]),
        number(&plan["rate"]),
        plan["burst"]
    );
    // Writing to a string does not fail.
    for broker in plan["brokers"].as_array().into_iter().flatten() {
        let names: Vec<&str> = broker["publishers"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .collect();
        let p99 =
            broker["p99_ms"].as_f64().map_or("never".to_owned(), |p99| format!("{p99:.2} ms"));
        let _ = writeln!(
            text,
            "{}: {} publishers that send {:.1}/s; {:.1}/s, {} at once; p99 {p99}\n  {}",
            broker["broker"].as_str().unwrap_or_default(),
            names.len(),
            number(&broker["sends"]),
            number(&broker["rate"]),
            broker["burst"],
            names.join(" "),
        );
    }
    let meets = match (plan["meets"] == true, plan["brokers_that_would_do"].as_u64()) {
        (true, _) => "is predicted to be met".to_owned(),
        (false, Some(count)) => format!("is not met; {count} brokers would do"),
        (false, None) => {
            "is not met, by no number of such brokers: a larger burst would help".to_owned()
        }
    };
    let _ = writeln!(text, "\nThe objective of {} ms {meets}.", plan["slo_ms"]);
    text
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_default()
}
