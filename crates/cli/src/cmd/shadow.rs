//! `tidegate shadow show | start FILE | promote | drop`

use std::fmt::Write;
use std::path::PathBuf;

use clap::Subcommand;
use serde_json::Value;

use super::admin::{Admin, json};
use super::explain::word;
use super::{Error, Format, file, print};

/// Try another policy beside the live one of a running sidecar, without enforcing it.
#[derive(Debug, clap::Args)]
pub(crate) struct Shadow {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// How the candidate's decisions differ from the live policy's, so far.
    Show(Common),
    /// Begin to compare a candidate.
    Start {
        /// TOML with its `[gate]` block; `-` reads stdin.
        file: PathBuf,
        #[command(flatten)]
        common: Common,
    },
    /// Make the candidate the live policy.
    Promote(Common),
    /// End the comparison.
    Drop(Common),
}

#[derive(Debug, clap::Args)]
struct Common {
    #[command(flatten)]
    admin: Admin,
    /// How to answer.
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

impl Shadow {
    pub(crate) fn run(self) -> Result<(), Error> {
        match self.what {
            What::Show(common) => common.tell(&common.admin.get("/shadow")?),
            What::Start { file, common } => {
                let block = file::text(&file)?;
                common.tell(&common.admin.change("POST", "/shadow", &block)?)
            }
            What::Drop(common) => common.tell(&common.admin.change("DELETE", "/shadow", "")?),
            What::Promote(common) => {
                let block = common.admin.change("POST", "/shadow/promote", "")?;
                match common.format {
                    Format::Json => {
                        print(format_args!("{}\n", serde_json::json!({ "live": block })))
                    }
                    Format::Text => print(format_args!(
                        "The candidate is live until the process ends or the file is read again.\n\
                         To keep it, put this into the file:\n\n{block}"
                    )),
                }
            }
        }
    }
}

impl Common {
    fn tell(&self, answer: &str) -> Result<(), Error> {
        let told = json(answer)?;
        match self.format {
            Format::Json => print(format_args!("{told}\n")),
            Format::Text => print(describe(&told)),
        }
    }
}

fn describe(told: &Value) -> String {
    if told["candidate"].is_null() {
        return "There is no candidate: tidegate shadow start FILE\n".to_owned();
    }
    let number = |value: &Value| value.as_u64().unwrap_or(0);
    let (arrivals, differ) = (number(&told["arrivals"]), number(&told["differ"]));
    let share = 100.0 * differ as f64 / arrivals.max(1) as f64;
    let mut text = format!(
        "Compared for {:.1} s: {arrivals} arrivals, {differ} decided differently ({share:.1} %).\n\n",
        number(&told["since_ms"]) as f64 / 1e3,
    );
    let of_all = |refused: u64| {
        format!("{refused} ({:.1} %)", 100.0 * refused as f64 / arrivals.max(1) as f64)
    };
    let refused = ["candidate_refuses", "live_refuses"].map(|name| of_all(number(&told[name])));
    let _ = writeln!(
        text,
        "Refused, at once or from the queue: candidate {}, live policy {}.",
        refused[0], refused[1]
    );
    match (told["known"].as_bool(), told["really_refused"].as_u64()) {
        (Some(known), Some(really)) => {
            let word = if known { "The model can be believed" } else { "Do not know: the model of the live policy is far from what happened" };
            let _ = writeln!(text, "{word}; really refused {}.\n", of_all(really));
        }
        _ => text.push_str("Nothing tells whether the model is right: the live policy is not fully enforced, or too little has come.\n\n"),
    }
    let _ = writeln!(
        text,
        "{:<16} {:>9} {:>16} {:>16}",
        "band", "arrivals", "only live", "only candidate"
    );
    let _ = writeln!(text, "{:<16} {:>9} {:>16} {:>16}", "", "", "refuses", "refuses");
    for (band, counts) in told["by_band"].as_object().into_iter().flatten() {
        let of = |name: &str| number(&counts[name]);
        let columns = (of("arrivals"), of("live_only"), of("candidate_only"));
        let _ = writeln!(text, "{band:<16} {:>9} {:>16} {:>16}", columns.0, columns.1, columns.2);
    }
    for (who, name) in [("live", "live_only"), ("candidate", "candidate_only")] {
        for (reason, count) in told["by_reason"][name].as_object().into_iter().flatten() {
            let reason = word(&Value::from(reason.as_str()));
            let _ = writeln!(text, "only {who} refuses by {reason}: {count}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn differences_are_told_by_band_and_reason() {
        let told = json!({
            "candidate": "x", "since_ms": 1500, "arrivals": 200, "differ": 3,
            "candidate_refuses": 90, "live_refuses": 20, "really_refused": 60, "known": false,
            "by_band": { "critical": { "arrivals": 200, "live_only": 2, "candidate_only": 1 } },
            "by_reason": { "live_only": { "rank": 2 }, "candidate_only": { "wait": 1 } },
        });
        let text = describe(&told);
        for part in [
            "1.5 s",
            "200 arrivals",
            "(1.5 %)",
            "candidate 90 (45.0 %)",
            "Do not know",
            "60 (30.0 %)",
            "critical",
            "live refuses by rank: 2",
        ] {
            assert!(text.contains(part), "{part} is missing from\n{text}");
        }
        assert!(describe(&json!({ "candidate": null })).contains("no candidate"));
    }
}
