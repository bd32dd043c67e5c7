//! `cargo xtask peers NAME`: ours and others, side by side on this machine, in one run.
//!
//! Nothing here is part of `test`: the programs of others are large, and their numbers mean something
//! only relative to each other, on a machine that does nothing else.

mod config;
mod graph;
mod http;
pub(crate) mod moves;
mod nats;
mod overload;
mod plain;
mod process;
mod proxy;
mod rpc;
mod tasks;
mod tiers;

use serde_json::Value;

use crate::run::Result;

/// What can be compared.
pub(crate) const NAMES: &str = "proxy, overload, plain, tiers, tasks, http, nats, rpc, graph";

/// Runs the comparison called `name`, or the rows of it whose names contain `filter` where it has many, and prints it as a table, or
/// as one JSON object per line.
pub(crate) fn peers(name: &str, filter: &str, json: bool) -> Result {
    let print = |columns: &[&str], rows: &[Value]| {
        for row in rows.iter().filter(|_| json) {
            println!("{row}");
        }
        if !json {
            print!("{}", table(columns, rows));
        }
    };
    match name {
        "proxy" => proxy::compare().map(|rows| print(&proxy::COLUMNS, &rows)),
        "overload" => overload::compare().map(|rows| print(&overload::COLUMNS, &rows)),
        "plain" => plain::compare(filter).map(|rows| print(&plain::COLUMNS, &rows)),
        "tiers" => tiers::compare(filter).map(|rows| print(&tiers::COLUMNS, &rows)),
        "graph" => graph::compare().map(|rows| print(&graph::COLUMNS, &rows)),
        "http" => http::check(),
        "nats" => nats::compare().map(|rows| print(&nats::COLUMNS, &rows)),
        "rpc" => rpc::compare().map(|rows| print(&rpc::COLUMNS, &rows)),
        "tasks" => tasks::compare().map(|rows| print(&tasks::COLUMNS, &rows)),
        other => Err(format!("no comparison called {other}; there are {NAMES}")),
    }
}

/// Rows as a table in Markdown, so that it can go into the book as it is.
fn table(columns: &[&str], rows: &[Value]) -> String {
    let line = |cells: Vec<String>| format!("| {} |\n", cells.join(" | "));
    let head = line(columns.iter().map(ToString::to_string).collect());
    let rule = line(columns.iter().map(|_| "---".to_owned()).collect());
    let body = rows.iter().map(|row| line(columns.iter().map(|name| cell(&row[*name])).collect()));
    head + &rule + &body.collect::<String>()
}

fn cell(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => "–".to_owned(),
        Value::Number(number) => match number.as_f64() {
            Some(float) if number.is_f64() && float.abs() < 10.0 => format!("{float:.3}"),
            Some(float) if number.is_f64() => format!("{float:.1}"),
            _ => number.to_string(),
        },
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn rows_become_a_table() {
        let rows = [json!({ "name": "a", "rate": 12345.67, "ratio": 0.98765, "errors": 3 })];
        let expected = "| name | rate | ratio | errors | p99 |\n| --- | --- | --- | --- | --- |\n\
                        | a | 12345.7 | 0.988 | 3 | – |\n";
        assert_eq!(table(&["name", "rate", "ratio", "errors", "p99"], &rows), expected);
    }
}
