//! `tidegate enforce [PERCENT]`

use tidegate_proxy::Percent;

use super::admin::{Admin, json};
use super::{Error, Format, print};

/// See or change for how many requests a running sidecar's refusals are enforced. `0%` is the kill
/// switch: from that moment on nothing is refused or held.
#[derive(Debug, clap::Args)]
pub(crate) struct Enforce {
    /// Such as 10%; `file` goes back to what the configuration says. Without it, nothing is changed.
    percent: Option<String>,
    #[command(flatten)]
    admin: Admin,
    /// How to answer.
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

impl Enforce {
    pub(crate) fn run(self) -> Result<(), Error> {
        let answer = match self.percent.as_deref() {
            None => self.admin.get("/enforce")?,
            Some("file") => self.admin.change("DELETE", "/enforce", "")?,
            Some(text) => {
                let percent: Percent = text.parse().map_err(Error::Input)?;
                self.admin.change("POST", &format!("/enforce?percent={}", percent.get()), "")?
            }
        };
        let told = json(&answer)?;
        match self.format {
            Format::Json => print(format_args!("{told}\n")),
            Format::Text => {
                let file = match told["overridden"].as_bool() {
                    Some(true) => format!(" (the file says {} %)", told["configured"]),
                    _ => String::new(),
                };
                print(format_args!("enforced for {} % of requests{file}\n", told["percent"]))
            }
        }
    }
}
