//! Lines for the operator, on stderr.

use std::fmt::{self, Display};
use std::io::{self, Write};
use std::str::FromStr;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use serde_json::json;

/// How lines are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Log {
    /// For people: `tidegate: …`
    #[default]
    Text,
    /// For programs: one JSON object per line with `unix_ms` and `message`.
    Json,
    /// Not at all: for programs that show themselves what happens.
    None,
}

impl Log {
    /// Writes a line.
    pub(crate) fn line(self, line: &dyn Display) {
        // Nobody is left to tell when stderr is closed.
        let _ = match self {
            Self::Text => writeln!(io::stderr(), "tidegate: {line}"),
            Self::Json => writeln!(io::stderr(), "{}", as_json(unix_ms(), line)),
            Self::None => Ok(()),
        };
    }
}

fn as_json(unix_ms: u64, line: &dyn Display) -> serde_json::Value {
    json!({ "unix_ms": unix_ms, "message": line.to_string() })
}

/// Milliseconds since 1970 by the wall clock.
pub(crate) fn unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

impl Display for Log {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Text => "text",
            Self::Json => "json",
            Self::None => "none",
        })
    }
}

impl FromStr for Log {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "text" => Ok(Self::Text),
            "json" => Ok(Self::Json),
            "none" => Ok(Self::None),
            _ => Err("text, json or none".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_for_programs_is_one_object_whatever_it_says() {
        let line = as_json(7, &"two\nlines and a \"quote\"").to_string();
        assert!(!line.contains('\n'), "{line}");
        let read: serde_json::Value = serde_json::from_str(&line).expect("JSON");
        assert_eq!(read["unix_ms"], 7);
        assert_eq!(read["message"], "two\nlines and a \"quote\"");
    }
}
