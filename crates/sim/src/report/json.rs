//! JSON, as much of it as reports need.

use std::fmt::Write;

use toml::Value;

/// A JSON object in the making.
pub(crate) struct Object(String);

impl Object {
    pub(crate) fn new() -> Self {
        Self("{".to_owned())
    }

    pub(crate) fn raw(&mut self, name: &str, value: &str) {
        let comma = if self.0.len() > 1 { "," } else { "" };
        let _ = write!(self.0, "{comma}{}:{value}", quoted(name));
    }

    pub(crate) fn number(&mut self, name: &str, value: f64, digits: usize) {
        self.raw(name, &number(value, digits));
    }

    pub(crate) fn numbers(&mut self, name: &str, values: &[f64], digits: usize) {
        let values: Vec<String> = values.iter().map(|value| number(*value, digits)).collect();
        self.raw(name, &format!("[{}]", values.join(",")));
    }

    pub(crate) fn text(&mut self, name: &str, value: &str) {
        self.raw(name, &quoted(value));
    }

    pub(crate) fn end(mut self) -> String {
        self.0.push('}');
        self.0
    }
}

/// JSON knows no infinity.
fn number(value: f64, digits: usize) -> String {
    if value.is_finite() { format!("{value:.digits$}") } else { "null".to_owned() }
}

pub(super) fn json(value: &Value) -> String {
    match value {
        Value::Integer(number) => number.to_string(),
        Value::Float(number) if number.is_finite() => number.to_string(),
        Value::Boolean(value) => value.to_string(),
        Value::String(text) => quoted(text),
        Value::Array(values) => {
            format!("[{}]", values.iter().map(json).collect::<Vec<_>>().join(","))
        }
        Value::Table(table) => {
            let mut out = Object::new();
            for (key, value) in table {
                out.raw(key, &json(value));
            }
            out.end()
        }
        other => quoted(&other.to_string()),
    }
}

pub(crate) fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            c if c < ' ' => {
                let _ = write!(out, "\\u{:04x}", c as u32);
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_knows_no_infinity() {
        let mut out = Object::new();
        out.number("finite", 1.25, 1);
        out.numbers("others", &[f64::INFINITY, f64::NAN], 1);
        assert_eq!(out.end(), "{\"finite\":1.2,\"others\":[null,null]}");
    }
}
