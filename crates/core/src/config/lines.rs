//! Where in a text every key is.

use std::collections::BTreeMap;

use toml::de::{DeTable, DeValue};

/// The lines of all keys in a TOML text, by their paths, such as `gate.limits.0.rate`.
#[derive(Clone, Debug, Default)]
pub struct Lines(BTreeMap<String, usize>);

impl Lines {
    /// Those of this text; none if it is no TOML.
    pub fn of(text: &str) -> Self {
        let mut lines = Self::default();
        if let Ok(table) = DeTable::parse(text) {
            lines.find(table.get_ref(), "", text);
        }
        lines
    }

    /// The line of a path, from 1, or else that of the block it should be in.
    pub fn line(&self, path: &str) -> Option<usize> {
        self.0.get(path).copied().or_else(|| self.line(path.rsplit_once('.')?.0))
    }

    /// All paths and their lines.
    pub fn iter(&self) -> impl Iterator<Item = (&str, usize)> {
        self.0.iter().map(|(path, line)| (path.as_str(), *line))
    }

    fn find(&mut self, table: &DeTable<'_>, above: &str, text: &str) {
        for (key, value) in table.iter() {
            let dot = if above.is_empty() { "" } else { "." };
            let path = format!("{above}{dot}{}", key.get_ref());
            self.note(&path, key.span().start, text);
            match value.get_ref() {
                DeValue::Table(inner) => self.find(inner, &path, text),
                DeValue::Array(items) => {
                    for (at, item) in items.iter().enumerate() {
                        let path = format!("{path}.{at}");
                        self.note(&path, item.span().start, text);
                        if let DeValue::Table(inner) = item.get_ref() {
                            self.find(inner, &path, text);
                        }
                    }
                }
                _ => {}
            }
        }
    }

    fn note(&mut self, path: &str, start: usize, text: &str) {
        let before = &text.as_bytes()[..start.min(text.len())];
        let line = 1 + before.iter().filter(|byte| **byte == b'\n').count();
        self.0.entry(path.to_owned()).or_insert(line);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_has_its_line_and_what_is_missing_that_of_its_block() {
        let text = "a = 1\n[b]\nc.d = 2\n[[e]]\nf = 3\n[[e]]\nf = 4\ng = [\n  1,\n  2,\n]\n";
        let lines = Lines::of(text);
        let expected = [
            ("a", 1),
            ("b", 2),
            ("b.c.d", 3),
            ("e.0", 4),
            ("e.0.f", 5),
            ("e.1", 6),
            ("e.1.f", 7),
            ("e.1.g.1", 10),
            ("b.missing", 2),
            ("e.1.missing", 6),
        ];
        for (path, line) in expected {
            assert_eq!(lines.line(path), Some(line), "{path}");
        }
        assert_eq!(lines.line("missing"), None);
        assert_eq!(Lines::of("a =").iter().count(), 0, "no TOML");
    }
}
