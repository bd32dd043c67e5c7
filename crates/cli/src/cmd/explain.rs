//! `tidegate explain --method POST --path /checkout`, `tidegate explain --business N --user N`

use std::fmt::Write;

use serde_json::Value;
use tidegate_core::Span;

use super::admin::{Admin, json};
use super::{Error, Format, print};

/// Ask a running sidecar what would happen to a request now, and why. A copy of its gate is asked:
/// nothing is consumed.
#[derive(Debug, clap::Args)]
pub(crate) struct Explain {
    #[command(flatten)]
    admin: Admin,
    /// Its method, such as POST.
    #[arg(long, value_name = "METHOD")]
    method: Option<String>,
    /// Its path, such as /checkout.
    #[arg(long, value_name = "PATH")]
    path: Option<String>,
    /// One of its headers; may be given several times.
    #[arg(long = "header", value_name = "NAME:VALUE")]
    headers: Vec<String>,
    /// The address it comes from.
    #[arg(long, value_name = "ADDRESS")]
    peer: Option<std::net::IpAddr>,
    /// Its workflow, if not that of its rule.
    #[arg(long, value_name = "NAME")]
    workflow: Option<String>,
    /// Business rank, 0 (refused last) to 63; that of its rule, or 24, if left out.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(0..64))]
    business: Option<u8>,
    /// User rank, 1 (refused last) to 65535; 0, or left out, is nobody in particular and draws a lot.
    #[arg(long, value_name = "N")]
    user: Option<u16>,
    /// Time it has, such as 50ms.
    #[arg(long, value_name = "TIME")]
    deadline: Option<Span>,
    /// Which attempt it is; 0 is the first.
    #[arg(long, value_name = "N")]
    attempt: Option<u8>,
    /// How to answer.
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

impl Explain {
    pub(crate) fn run(self) -> Result<(), Error> {
        let mut query = Vec::new();
        let mut set = |name: &str, value: Option<String>| {
            query.extend(value.map(|value| format!("{name}={}", escape(&value))));
        };
        set("method", self.method);
        set("path", self.path);
        self.headers.into_iter().for_each(|header| set("header", Some(header)));
        set("peer", self.peer.map(|it| it.to_string()));
        set("workflow", self.workflow);
        set("business", self.business.map(|n| n.to_string()));
        set("user", self.user.map(|n| n.to_string()));
        set("deadline", self.deadline.map(|span| span.to_string()));
        set("attempt", self.attempt.map(|n| n.to_string()));
        let answer = self.admin.get(&format!("/explain?{}", query.join("&")))?;
        match self.format {
            Format::Json => print(format_args!("{}\n", json(&answer)?)),
            Format::Text => print(describe(&json(&answer)?)),
        }
    }
}

fn describe(told: &Value) -> String {
    let verdict = match told["verdict"].as_str().unwrap_or_default() {
        "start" => "It would start at once.".to_owned(),
        "wait" => "It would wait for a slot.".to_owned(),
        "pass" => "It would pass: its path is exempt, and the gate is not asked.".to_owned(),
        _ => format!("It would be refused: {}", word(&told["refusal"]["text"])),
    };
    let mut text = format!("{verdict}\n");
    let mut line = |name: &str, value: String| {
        let _ = writeln!(text, "  {name:<18} {value}");
    };
    told["rule"].as_str().into_iter().for_each(|_| line("rule", word(&told["rule"])));
    told["workflow"].as_str().into_iter().for_each(|_| line("workflow", word(&told["workflow"])));
    line("policy", word(&told["policy"]));
    let rank = format!("{}, {} ({})", told["rank"][0], told["rank"][1], word(&told["criticality"]));
    line("rank", rank);
    line("last rank let in", told["last_rank_let_in"].as_str().unwrap_or("all").to_owned());
    line("running of slots", format!("{} of {}", told["running"], told["slots"]));
    line("waiting", told["waiting"].to_string());
    let wait = told["predicted_wait_seconds"].as_f64().unwrap_or(0.0);
    line("predicted wait", format!("{:.1} ms", wait * 1e3));
    if let Some(refusal) = told["refusal"].as_object() {
        line("reason", word(&refusal["reason"]));
        line("told to retry", word(&refusal["retry"]));
    }
    for limit in told["limits"].as_array().into_iter().flatten() {
        let more = if limit["or_more"] == true { " or more" } else { "" };
        line(
            &word(&limit["which"]),
            format!("{} left{more} ({})", limit["left"], word(&limit["limit"])),
        );
    }
    for change in told["would_change"].as_array().into_iter().flatten() {
        line("let in with", word(change));
    }
    text
}

/// A value as it may stand in a query.
fn escape(value: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~/:".contains(&byte);
    let one =
        |byte: u8| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") };
    value.bytes().map(one).collect()
}

/// Names may come from strangers: what a terminal would act on is not shown.
pub(crate) fn word(value: &Value) -> String {
    let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_refusal_is_told_with_its_rule() {
        let told = json!({
            "verdict": "refuse", "policy": "tide", "rank": [40, 7], "criticality": "sheddable-plus",
            "last_rank_let_in": "(24, 9)", "running": 4, "slots": 4, "waiting": 9,
            "predicted_wait_seconds": 0.05,
            "refusal": { "text": "too much", "reason": "rank", "measured": 3.0, "limit": 2.0,
                         "unit": "ranks", "retry": "elsewhere" },
        });
        let text = describe(&told);
        for part in ["refused: too much", "40, 7", "(24, 9)", "4 of 4", "50.0 ms", "elsewhere"] {
            assert!(text.contains(part), "{part} is missing from\n{text}");
        }
    }

    #[test]
    fn values_are_escaped() {
        assert_eq!(escape("x-a: b&c=ä"), "x-a:%20b%26c%3D%C3%A4");
    }

    #[test]
    fn what_a_terminal_would_act_on_is_not_shown() {
        assert_eq!(word(&json!("a\u{1b}[2Jb")), "a\u{fffd}[2Jb");
    }
}
