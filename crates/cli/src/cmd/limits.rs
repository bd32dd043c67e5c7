//! `tidegate limits show|set|revert|explain`

use std::path::PathBuf;

use serde_json::{Value, json};

use super::admin::{Admin, json};
use super::{Error, Format, file, print};

/// See or change the limits that a `tidegate control` keeps for a fleet.
#[derive(Debug, clap::Args)]
pub(crate) struct Limits {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    /// What is agreed, and how much of it is leased.
    Show(Show),
    /// Another rate or burst of one agreement, or another list of all.
    Set(Set),
    /// Back to what was in force at a version.
    Revert(Revert),
    /// Who has which share of an agreement, and what is guaranteed.
    Explain(Explain),
}

#[derive(Debug, clap::Args)]
struct Daemon {
    /// The daemon's admin address.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:9912")]
    admin: String,
    /// The file with the token of its `control.admin_token_file`; needed to change something.
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// How to answer.
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

impl Daemon {
    fn admin(&self) -> Admin {
        Admin::of(self.admin.clone(), self.token_file.clone())
    }
}

#[derive(Debug, clap::Args)]
struct Show {
    #[command(flatten)]
    daemon: Daemon,
}

#[derive(Debug, clap::Args)]
struct Set {
    /// An agreement's name. Without it, the file has all of them.
    #[arg(required_unless_present = "file")]
    agreement: Option<String>,
    /// Tokens per second.
    #[arg(long, requires = "agreement", allow_negative_numbers = true)]
    rate: Option<f64>,
    /// Tokens at once.
    #[arg(long, requires = "agreement", allow_negative_numbers = true)]
    burst: Option<f64>,
    /// Requests in flight, of an agreement about these.
    #[arg(long, requires = "agreement", conflicts_with_all = ["rate", "burst"])]
    places: Option<u64>,
    /// How many of a hundred users are held to it: 0 is a shadow, which counts and refuses nothing.
    #[arg(long, requires = "agreement")]
    percent: Option<u8>,
    /// TOML with `[[agreements]]`; `-` reads stdin. What it leaves out is gone.
    #[arg(long, value_name = "FILE", conflicts_with = "agreement")]
    file: Option<PathBuf>,
    #[command(flatten)]
    daemon: Daemon,
}

#[derive(Debug, clap::Args)]
struct Revert {
    /// One of the versions that `limits show` lists.
    version: u64,
    #[command(flatten)]
    daemon: Daemon,
}

#[derive(Debug, clap::Args)]
struct Explain {
    /// Its name.
    agreement: String,
    #[command(flatten)]
    daemon: Daemon,
}

impl Limits {
    pub(crate) fn run(self) -> Result<(), Error> {
        match self.what {
            What::Show(show) => show.run(),
            What::Set(set) => set.run(),
            What::Revert(revert) => revert.run(),
            What::Explain(explain) => explain.run(),
        }
    }
}

impl Show {
    fn run(self) -> Result<(), Error> {
        let admin = self.daemon.admin();
        let mut state = json(&admin.get("/state")?)?;
        let changes = json(&admin.get("/v1/changes")?)?;
        if let Format::Json = self.daemon.format {
            state["changes"] = changes["changes"].clone();
            return print(format_args!("{state}\n"));
        }
        let mut text = format!(
            "version {}, epoch {}\n{:<24} {:>12} {:>8} {:>12} {:>12} {:>6}\n",
            state["version"],
            state["epoch"],
            "agreement",
            "rate",
            "burst",
            "leased",
            "asked",
            "nodes"
        );
        for agreement in list(&state["agreements"]) {
            let holders: Vec<&Value> =
                list(&agreement["keys"]).iter().flat_map(|key| list(&key["holders"])).collect();
            let sum =
                |of: &dyn Fn(&Value) -> f64| holders.iter().map(|holder| of(holder)).sum::<f64>();
            text += &format!(
                "{:<24} {:>10}/s {:>8} {:>10.1}/s {:>10.1}/s {:>6}\n",
                word(&agreement["name"]),
                agreement["rate"],
                agreement["burst"],
                sum(&|holder| number(&holder["leased"]["rate"])),
                sum(&|holder| number(&holder["asked_rate"])),
                holders.len(),
            );
        }
        for change in list(&changes["changes"]).iter().take(10) {
            for what in list(&change["what"]) {
                text += &format!(
                    "version {} by {}: {}\n",
                    change["version"],
                    word(&change["who"]),
                    word(what)
                );
            }
        }
        print(text)
    }
}

impl Set {
    fn run(self) -> Result<(), Error> {
        let admin = self.daemon.admin();
        if let Some(path) = &self.file {
            let answer = admin.change("PUT", "/v1/agreements", &file::text(path)?)?;
            return told(&answer, self.daemon.format);
        }
        let name = self.agreement.unwrap_or_default();
        let mut now = json(&admin.get("/v1/agreements")?)?;
        let version = now["version"].clone();
        let mut list = now["agreements"].take();
        let found =
            list.as_array_mut().and_then(|list| list.iter_mut().find(|at| at["name"] == name));
        let Some(agreement) = found else {
            return Err(Error::Input(format!("there is no agreement {name}")));
        };
        for (field, value) in [("rate", self.rate), ("burst", self.burst)] {
            if let Some(value) = value {
                agreement[field] = json!(value);
            }
        }
        if let Some(places) = self.places {
            agreement["places"] = json!(places);
        }
        if let Some(percent) = self.percent {
            agreement["percent"] = json!(percent);
        }
        let path = format!("/v1/agreements?version={version}");
        let answer = admin.change("PUT", &path, &json!({ "agreements": list }).to_string())?;
        told(&answer, self.daemon.format)
    }
}

impl Revert {
    fn run(self) -> Result<(), Error> {
        let path = format!("/v1/revert?to={}", self.version);
        told(&self.daemon.admin().change("POST", &path, "")?, self.daemon.format)
    }
}

/// What is in force after a change.
fn told(answer: &str, format: Format) -> Result<(), Error> {
    let now = json(answer)?;
    match format {
        Format::Json => print(format_args!("{now}\n")),
        Format::Text => print(format_args!(
            "version {} is in force; connected nodes hear of it within a second, others when their \
             leases end\n",
            now["version"]
        )),
    }
}

impl Explain {
    fn run(self) -> Result<(), Error> {
        let path = format!("/state?agreement={}", self.agreement);
        let state = json(&self.daemon.admin().get(&path)?)?;
        let Some(agreement) = list(&state["agreements"]).first() else {
            return Err(Error::Input(format!("there is no agreement {}", self.agreement)));
        };
        if let Format::Json = self.daemon.format {
            return print(format_args!("{agreement}\n"));
        }
        let amount = match agreement["places"].as_u64() {
            Some(places) => format!("{places} in flight"),
            None => format!("{}/s, burst {}", agreement["rate"], agreement["burst"]),
        };
        let mut text = format!(
            "{}: {amount}, over at most {} nodes; without word a node is {}\n",
            word(&agreement["name"]),
            agreement["nodes"],
            word(&agreement["on_loss"]),
        );
        text += &explain_mode(agreement);
        if list(&agreement["keys"]).is_empty() {
            text += "nobody uses it\n";
        }
        for key in list(&agreement["keys"]) {
            text += &explain_key(key);
        }
        print(text)
    }
}

/// What is not as usual.
fn explain_mode(agreement: &Value) -> String {
    let mut text = String::new();
    match agreement["percent"].as_u64() {
        Some(100) | None => {}
        Some(0) => text += "in shadow: everything passes and is counted\n",
        Some(percent) => text += &format!("for {percent} % of the users; the others' is counted\n"),
    }
    if agreement["enforce"] == "overload" {
        text += "only while the gate that decides is overloaded\n";
    }
    text
}

fn explain_key(key: &Value) -> String {
    let name = match word(&key["key"]) {
        "" => "all together",
        name => name,
    };
    let of_places = number(&key["whole"]["rate"]) == 0.0;
    let bound = match key["bounded"].as_bool() {
        Some(true) if of_places => {
            format!("at most {} are in flight at any moment", key["bound"]["burst"])
        }
        Some(true) => format!(
            "in any time T at most {} + {:.3}/s × T pass",
            key["bound"]["burst"],
            number(&key["bound"]["rate"])
        ),
        _ => {
            "no bound: not enforced for all, always, or nodes are open that hear nothing".to_owned()
        }
    };
    let mut text = format!("{name}: {bound}\n");
    let quiet = number(&key["quiet_seconds"]);
    if quiet > 0.0 {
        text += &format!(
            "  nothing is granted for {quiet:.1} s: leases of the daemon before may still be in use\n"
        );
    }
    for holder in list(&key["holders"]) {
        if of_places {
            text += &format!(
                "  {:<24} leases {:>6} places; is asked for {:>6}\n",
                word(&holder["node"]),
                holder["leased"]["burst"],
                holder["asked_places"],
            );
            continue;
        }
        text += &format!(
            "  {:<24} leases {:>10.1}/s, burst {:>6}; is asked for {:>10.1}/s\n",
            word(&holder["node"]),
            number(&holder["leased"]["rate"]),
            holder["leased"]["burst"],
            number(&holder["asked_rate"]),
        );
    }
    text
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn word(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_default()
}
