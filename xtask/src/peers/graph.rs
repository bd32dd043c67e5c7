//! A graph of four tiers as processes, without control, by ranks, and by rates: `examples/storage`.

use std::process::Command;

use serde_json::{Value, json};

use super::process::target;
use crate::run::{Result, cargo, output, run};

pub(crate) const COLUMNS: [&str; 5] = ["control", "load", "of_capacity", "in_vain", "logins"];

/// Seconds that each row is measured for.
const SECONDS: &str = "20";

/// Measures every way of control at two and at four times the capacity.
pub(crate) fn compare() -> Result<Vec<Value>> {
    run(&mut cargo(&["build", "--release", "-q", "-p", "example-storage"]))?;
    let program = target().join("release").join("storage");
    let (text, _) = output(Command::new(program).args(["show", SECONDS, "json"]))?;
    let rows = text.lines().map(|line| {
        let row: Value = serde_json::from_str(line).map_err(|error| format!("{error}: {line}"))?;
        let part = |name: &str| row["row"][name].clone();
        Ok(json!({
            "control": row["control"],
            "load": row["load"],
            "of_capacity": part("of_capacity"),
            "in_vain": part("in_vain"),
            "logins": part("logins"),
            "became": part("became"),
        }))
    });
    rows.collect()
}
