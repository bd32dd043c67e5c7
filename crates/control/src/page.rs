//! A page of metrics, in Prometheus' text format.

use std::fmt::{Display, Write as _};

/// Lines so far.
#[derive(Debug, Default)]
pub(crate) struct Page {
    text: String,
    name: String,
}

impl Page {
    /// The samples that follow are of `name`.
    pub(crate) fn head(&mut self, name: &str, kind: &str, help: &str) {
        name.clone_into(&mut self.name);
        let _ = writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    /// Labels are names of agreements, which need no escapes.
    pub(crate) fn line(&mut self, agreement: &str, value: impl Display) {
        let _ = match agreement {
            "" => writeln!(self.text, "{} {value}", self.name),
            _ => writeln!(self.text, "{}{{agreement=\"{agreement}\"}} {value}", self.name),
        };
    }

    pub(crate) fn text(self) -> String {
        self.text
    }
}
