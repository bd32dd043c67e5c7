//! Reading tables so that every problem is found, not only the first, and each with its line.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use tidegate_core::Span;
use tidegate_core::config::Lines;
use toml::{Table, Value};

use super::PlanError;

/// Problems of a plan, each once.
#[derive(Debug, Default)]
pub(crate) struct Problems {
    /// Where every key is, by its path.
    places: BTreeMap<String, Place>,
    found: Vec<(Option<Place>, String)>,
}

/// Where something was written: in a line of the plan, whose name is empty, or of a file that it includes, or on the command line.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    file: String,
    line: Option<usize>,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, line } = self;
        match line {
            Some(line) if file.is_empty() => write!(f, "line {line}"),
            Some(line) => write!(f, "{file} line {line}"),
            None => f.write_str(file),
        }
    }
}

impl Problems {
    pub(crate) fn new(text: &str) -> Self {
        let mut problems = Self::default();
        problems.add_lines("", text);
        problems
    }

    /// Keys may also come from another file.
    pub(crate) fn add_lines(&mut self, file: &str, text: &str) {
        for (path, line) in Lines::of(text).iter() {
            let place = || Place { file: file.to_owned(), line: Some(line) };
            self.places.entry(path.to_owned()).or_insert_with(place);
        }
    }

    /// What is at `path` was not written in a file, but comes from the command line.
    pub(crate) fn is_set(&mut self, path: &str) {
        self.move_to(path, Place { file: "--set".to_owned(), line: None });
    }

    /// What is at `path` was written at `other`.
    pub(crate) fn stands_at(&mut self, path: &str, other: &str) {
        if let Some(place) = self.places.get(other).cloned() {
            self.move_to(path, place);
        }
    }

    fn move_to(&mut self, path: &str, place: Place) {
        let below = format!("{path}.");
        self.places.retain(|known, _| !known.starts_with(&below));
        self.places.insert(path.to_owned(), place);
    }

    /// Notes that the value at `path` has a problem.
    pub(crate) fn note(&mut self, path: &str, problem: &str) {
        let place = self.place(path).cloned();
        let told = place.as_ref().map_or(String::new(), |place| format!("{place}: "));
        let joined = path.is_empty() || problem.is_empty() || problem.starts_with(':');
        let space = if joined { "" } else { " " };
        let found = (place, format!("{told}{path}{space}{problem}"));
        // A grid reads the same lines many times.
        if !self.found.contains(&found) {
            self.found.push(found);
        }
    }

    /// Where `path` is, or the table it should be in.
    fn place(&self, path: &str) -> Option<&Place> {
        self.places.get(path).or_else(|| self.place(path.rsplit_once('.')?.0))
    }

    /// Nothing found, or an error with all of it, in the order of the lines.
    pub(crate) fn into_result(mut self) -> Result<(), PlanError> {
        self.found.sort_by(|(a, _), (b, _)| a.cmp(b));
        let found: Vec<String> = self.found.into_iter().map(|(_, text)| text).collect();
        if found.is_empty() { Ok(()) } else { Err(PlanError(found)) }
    }
}

fn join(path: &str, key: &str) -> String {
    if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") }
}

/// Reads the values of one table. What was never asked for is unknown and reported at the end.
#[derive(Debug)]
pub(crate) struct Reader<'a> {
    table: &'a Table,
    path: String,
    asked: Vec<String>,
    problems: &'a mut Problems,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(table: &'a Table, problems: &'a mut Problems) -> Self {
        Self { table, path: String::new(), asked: Vec::new(), problems }
    }

    pub(crate) fn note(&mut self, key: &str, problem: &str) {
        let path = if key.is_empty() { self.path.clone() } else { join(&self.path, key) };
        self.problems.note(&path, problem);
    }

    /// Notes a problem with what is at `path` from the root.
    pub(crate) fn note_at(&mut self, path: &str, problem: &str) {
        self.problems.note(path, problem);
    }

    /// `key` is known, whoever reads it.
    pub(crate) fn known(&mut self, key: &str) {
        self.asked.push(key.to_owned());
    }

    /// Notes those of `keys` that are there.
    pub(crate) fn refuse(&mut self, keys: &[&str], reason: &str) {
        let table = self.table;
        for key in keys.iter().filter(|key| table.contains_key(**key)) {
            self.note(key, &format!("has no meaning {reason}"));
        }
    }

    /// Notes all known keys that are there, but for `kept`.
    pub(crate) fn refuse_but(&mut self, kept: &[&str], reason: &str) {
        let asked = std::mem::take(&mut self.asked);
        let keys = asked.iter().map(String::as_str).filter(|key| !kept.contains(key));
        self.refuse(&keys.collect::<Vec<_>>(), reason);
        self.asked = asked;
    }

    pub(crate) fn has(&self, key: &str) -> bool {
        self.table.contains_key(key)
    }

    pub(crate) fn value(&mut self, key: &str) -> Option<Value> {
        self.known(key);
        self.table.get(key).cloned()
    }

    pub(crate) fn text(&mut self, key: &str, default: &str) -> String {
        match self.value(key) {
            None => default.to_owned(),
            Some(Value::String(text)) => text,
            Some(_) => {
                self.note(key, "is not text");
                default.to_owned()
            }
        }
    }

    pub(crate) fn span(&mut self, key: &str, default: Span) -> Span {
        let result = match self.value(key) {
            None => return default,
            Some(Value::String(text)) => Span::from_str(&text).map_err(|error| error.to_string()),
            Some(other) => {
                Err(format!("{other} is not a time: write it as text, such as \"80us\""))
            }
        };
        result.unwrap_or_else(|error| {
            self.note(key, &format!(": {error}"));
            default
        })
    }

    /// A time that need not be there.
    pub(crate) fn some_span(&mut self, key: &str) -> Option<Span> {
        self.has(key).then(|| self.span(key, Span::ZERO))
    }

    pub(crate) fn number(&mut self, key: &str, default: f64, low: f64, high: f64) -> f64 {
        let number = match self.value(key) {
            None => return default,
            Some(Value::Float(number)) => number,
            Some(Value::Integer(number)) => number as f64,
            Some(other) => {
                self.note(key, &format!("= {other} is not a number"));
                return default;
            }
        };
        if !(low..=high).contains(&number) {
            self.note(key, &format!("= {number} is not allowed: {low} to {high}"));
            return default;
        }
        number
    }

    pub(crate) fn numbers(&mut self, key: &str) -> Vec<f64> {
        let Some(Value::Array(values)) = self.value(key) else { return Vec::new() };
        let number = |value: &Value| value.as_float().or(value.as_integer().map(|n| n as f64));
        let numbers: Vec<f64> = values.iter().filter_map(number).collect();
        if numbers.len() < values.len() || numbers.iter().any(|n| !(*n >= 0.0 && n.is_finite())) {
            self.note(key, "must be numbers, none below zero");
        }
        numbers
    }

    /// Yes or no.
    pub(crate) fn flag(&mut self, key: &str, default: bool) -> bool {
        match self.value(key) {
            None => default,
            Some(Value::Boolean(value)) => value,
            Some(other) => {
                self.note(key, &format!("= {other} is not allowed: true or false"));
                default
            }
        }
    }

    pub(crate) fn whole(&mut self, key: &str, default: i64, low: i64, high: i64) -> i64 {
        match self.value(key) {
            None => default,
            Some(Value::Integer(number)) if (low..=high).contains(&number) => number,
            Some(other) => {
                self.note(
                    key,
                    &format!("= {other} is not allowed: a whole number, {low} to {high}"),
                );
                default
            }
        }
    }

    /// Which of `choices` it is; the first is the default.
    pub(crate) fn choice(&mut self, key: &str, choices: &[&str]) -> usize {
        let text = self.text(key, choices[0]);
        choices.iter().position(|choice| *choice == text).unwrap_or_else(|| {
            self.note(key, &format!("= \"{text}\" is not allowed: {}", choices.join(", ")));
            0
        })
    }

    /// Reads the table at `key`, if there is one.
    pub(crate) fn table(&mut self, key: &str, read: impl FnOnce(&mut Reader<'_>)) {
        self.known(key);
        match self.table.get(key) {
            None => {}
            Some(Value::Table(table)) => self.inside(key, table, read),
            Some(_) => self.note(key, "is not a table"),
        }
    }

    /// The table at `key` as it is, empty if there is none.
    pub(crate) fn block(&mut self, key: &str) -> Table {
        let mut block = Table::new();
        self.table(key, |reader| {
            block = reader.table.clone();
            reader.asked = reader.keys();
        });
        block
    }

    /// The keys there are.
    pub(crate) fn keys(&self) -> Vec<String> {
        self.table.keys().cloned().collect()
    }

    /// Reads every table in this one.
    pub(crate) fn each_table(&mut self, mut read: impl FnMut(&str, &mut Reader<'_>)) {
        let table = self.table;
        for (key, value) in table {
            self.known(key);
            match value {
                Value::Table(inner) => self.inside(key, inner, |reader| read(key, reader)),
                _ => self.note(key, "is not a table"),
            }
        }
    }

    /// Reads every table of the list at `key`, if there is one.
    pub(crate) fn tables(&mut self, key: &str, mut read: impl FnMut(&mut Reader<'_>)) {
        match self.value(key) {
            None => {}
            Some(Value::Array(values)) => {
                for (n, value) in values.iter().enumerate() {
                    let path = join(key, &n.to_string());
                    match value {
                        Value::Table(table) => self.inside(&path, table, &mut read),
                        _ => self.note(&path, "is not a table"),
                    }
                }
            }
            Some(_) => self.note(key, "is not a list of tables"),
        }
    }

    fn inside(&mut self, key: &str, table: &Table, read: impl FnOnce(&mut Reader<'_>)) {
        let path = join(&self.path, key);
        let mut reader = Reader { table, path, asked: Vec::new(), problems: self.problems };
        read(&mut reader);
        reader.finish();
    }

    /// Reports the keys that nobody asked for.
    pub(crate) fn finish(mut self) {
        for key in self.table.keys() {
            if !self.asked.contains(key) {
                self.note(key, "is not a known key");
            }
        }
    }
}
