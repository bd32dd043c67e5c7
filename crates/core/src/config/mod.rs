//! Configuration: one serialisable enum per family, one `build` each, all problems at once.
//!
//! The same TOML block runs in the simulator, in the library and in the sidecar.

mod lines;
mod salvage;

use std::fmt;

use serde::Serialize;
use serde::de::DeserializeOwned;

pub use lines::Lines;

/// What is wrong with a configuration: never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError(Vec<Problem>);

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The field, as a path from the root, such as `gate.admission.target`.
    pub field: String,
    /// The value it has.
    pub value: String,
    /// What is allowed.
    pub allowed: String,
    /// The line it is in, from 1, or that of the block in which it should be; none where there is no text.
    pub line: Option<usize>,
}

impl Problem {
    /// What is told of a file is for people to read, whatever the file has: a line of a megabyte is cut.
    fn new(field: String, value: String, allowed: String) -> Self {
        let cut = |text: String| match text.lines().any(|line| line.len() > LONGEST_LINE) {
            true => text.lines().map(clip).collect::<Vec<_>>().join("\n"),
            false => text,
        };
        Self { field: cut(field), value: cut(value), allowed: cut(allowed), line: None }
    }
}

/// Longest line of what is told, in bytes: twice as many as all fields of the largest block.
const LONGEST_LINE: usize = 2_000;
/// What is left of a longer one.
const BEGINNING: usize = 200;

/// The beginning of a line that is too long.
fn clip(line: &str) -> String {
    if line.len() <= LONGEST_LINE {
        return line.to_owned();
    }
    format!("{}… ({} bytes)", &line[..line.floor_char_boundary(BEGINNING)], line.len())
}

impl ConfigError {
    /// Everything that is wrong, in the order of the lines if there is a text.
    pub fn problems(&self) -> &[Problem] {
        &self.0
    }

    /// Finds the lines of the problems in the text that has them.
    fn in_text(mut self, text: &str) -> Self {
        let lines = Lines::of(text);
        self.0.iter_mut().for_each(|problem| problem.line = lines.line(&problem.field));
        self.0.sort_by_key(|problem| problem.line);
        self
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, Problem { field, value, allowed, line }) in self.0.iter().enumerate() {
            let newline = if n > 0 { "\n" } else { "" };
            let newline = line.map_or(newline.to_owned(), |line| format!("{newline}line {line}: "));
            if field.is_empty() {
                write!(f, "{newline}{allowed}")?;
            } else if value.is_empty() {
                write!(f, "{newline}{field}: {allowed}")?;
            } else {
                write!(f, "{newline}{field} = {value} is not allowed: {allowed}")?;
            }
        }
        Ok(())
    }
}

impl std::error::Error for ConfigError {}

/// Collects problems while a configuration is checked.
#[derive(Clone, Debug, Default)]
pub struct Problems {
    path: Vec<String>,
    found: Vec<Problem>,
}

impl Problems {
    /// Checks the fields of a nested block.
    pub fn within(&mut self, name: &'static str, check: impl FnOnce(&mut Self)) {
        self.path.push(name.to_owned());
        check(self);
        self.path.pop();
    }

    /// Checks the fields of one block in a list of them, named by its place from 0.
    pub fn within_item(&mut self, list: &'static str, at: usize, check: impl FnOnce(&mut Self)) {
        self.path.push(format!("{list}.{at}"));
        check(self);
        self.path.pop();
    }

    /// Notes a problem with `field` unless `fine`.
    pub fn check(&mut self, field: &str, value: impl fmt::Display, fine: bool, allowed: &str) {
        if fine {
            return;
        }
        let field =
            self.path.iter().map(String::as_str).chain([field]).collect::<Vec<_>>().join(".");
        self.found.push(Problem::new(field, value.to_string(), allowed.to_owned()));
    }

    /// Checks that `value` is a number from `low` to `high`.
    pub fn range(&mut self, field: &str, value: f64, low: f64, high: f64) {
        // NaN is in no range.
        self.check(field, value, (low..=high).contains(&value), &format!("{low} to {high}"));
    }

    /// Nothing found, or an error with all of it.
    pub fn into_result(self) -> Result<(), ConfigError> {
        if self.found.is_empty() { Ok(()) } else { Err(ConfigError(self.found)) }
    }
}

/// Reads TOML into a configuration and checks its values with `validate`; all problems are told.
pub fn read<T: DeserializeOwned + Serialize>(
    text: &str,
    validate: impl FnOnce(&T, &mut Problems),
) -> Result<T, ConfigError> {
    let table: toml::Table = toml::from_str(text).map_err(|error| {
        // Not TOML at all: its own message shows line and column.
        let allowed = error.to_string().trim_end().to_owned();
        ConfigError(vec![Problem::new(String::new(), String::new(), allowed)])
    })?;
    read_table(table, validate).map_err(|error| error.in_text(text))
}

/// The same for TOML that has been parsed. What cannot be read (a field that does not exist, a string
/// for a number) is set aside, field by field, so that the rest is judged in the same go.
pub fn read_table<T: DeserializeOwned + Serialize>(
    mut table: toml::Table,
    validate: impl FnOnce(&T, &mut Problems),
) -> Result<T, ConfigError> {
    let (mut problems, mut filled, mut gaps) = (Problems::default(), Vec::new(), Vec::new());
    let config = loop {
        match table.clone().try_into::<T>() {
            Ok(config) => break config,
            Err(error) => {
                let error = salvage::message(&error);
                let mut problem = |path: Vec<String>, value: String, allowed: String| {
                    problems.found.push(Problem::new(path.join("."), value, allowed));
                };
                let before = gaps.len();
                if let Some(path) = salvage::fill_in::<T>(&mut table, &error, &filled) {
                    filled.push(path.clone());
                    problem(salvage::as_given(path, &gaps), String::new(), error);
                } else if let Some((path, value)) =
                    salvage::set_aside_culprit::<T>(&mut table, &error, &mut gaps)
                {
                    let path = salvage::as_given(path, &gaps[..before]);
                    problem(path, value.to_string(), error);
                } else {
                    problem(Vec::new(), String::new(), error);
                    return Err(ConfigError(problems.found));
                }
            }
        }
    };
    let unread = std::mem::take(&mut problems.found);
    if let Ok(printed) = toml::Table::try_from(&config) {
        salvage::note_unread(&table, &printed, &mut problems);
    }
    validate(&config, &mut problems);
    for problem in &mut problems.found {
        let path = problem.field.split('.').map(str::to_owned).collect();
        problem.field = salvage::as_given(path, &gaps).join(".");
    }
    // What stands there instead of what could not be read is nobody's fault.
    problems.found.retain(|problem| unread.iter().all(|one| one.field != problem.field));
    problems.found.splice(..0, unread);
    problems.into_result().map(|()| config)
}

/// Writes a configuration as TOML.
pub fn print<T: serde::Serialize>(config: &T) -> String {
    toml::to_string(config).expect("configurations are plain tables of strings and numbers")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use crate::caller::CallerConfig;
    use crate::gate::GateConfig;

    fn problems(text: &str) -> Vec<(String, String)> {
        let error = GateConfig::from_toml(text).expect_err("a problem was put in");
        error.problems().iter().map(|at| (at.field.clone(), at.value.clone())).collect()
    }

    fn pairs(expected: &[(&str, &str)]) -> Vec<(String, String)> {
        expected.iter().map(|(field, value)| ((*field).into(), (*value).into())).collect()
    }

    #[test]
    fn everything_wrong_is_told_at_once() {
        let text = r#"
            queue_limit = 0
            retry_share = nan
            degrade_delay = "soon"
            colour = "red"
            [slots]
            slots = "fixed"
            count = 0
            depth = 3
            [schedule]
            order = "alphabetical"
        "#;
        assert_eq!(
            problems(text),
            pairs(&[
                ("queue_limit", "0"),
                ("retry_share", "NaN"),
                ("degrade_delay", "\"soon\""),
                ("colour", "\"red\""),
                ("slots.count", "0"),
                ("slots.depth", "3"),
                ("schedule", "{ order = \"alphabetical\" }"),
            ])
        );
    }

    /// A choice without parameters was read whatever stood beside it.
    #[test]
    fn nothing_stands_beside_a_choice_without_parameters() {
        let text = r#"
            [admission]
            policy = "open"
            target = "1ms"
            [schedule]
            order = "fifo"
            depth = 3
            [[limits]]
            limit = "rate"
            rate = 1.0
        "#;
        let expected = [("admission.target", "\"1ms\""), ("schedule.depth", "3")];
        assert_eq!(problems(text), pairs(&expected));
    }

    /// A kind that does not exist hides nothing: neither a second one, nor what is wrong with those behind them.
    #[test]
    fn a_list_is_judged_without_what_is_no_kind_of_item() {
        let text = r#"
            [[limits]]
            limit = "nope"
            [[limits]]
            limit = "rate"
            rate = -1.0
            [[limits]]
            limit = "nope"
            [[limits]]
            limit = "rate"
            rat = 1.0
        "#;
        let error = GateConfig::from_toml(text).expect_err("a problem was put in");
        let told = error.problems().iter().map(|at| (at.field.as_str(), at.line));
        let expected =
            [("limits.0", 2), ("limits.1.rate", 6), ("limits.2", 7), ("limits.3.rat", 11)];
        assert_eq!(told.collect::<Vec<_>>(), expected.map(|(field, line)| (field, Some(line))));
    }

    #[test]
    fn whoever_slips_is_told_what_was_meant() {
        for (slip, meant) in [
            ("queue_limt = 1", "queue_limit"),
            ("queue_limitt = 1", "queue_limit"),
            ("queue_limot = 1", "queue_limit"),
            ("queue_limti = 1", "queue_limit"),
            ("[schedule]\norder = 'fifp'", "fifo"),
            ("queu_limt = 1", "queue_limit"),
            ("retryshares = 1", "retry_share"),
        ] {
            let error = GateConfig::from_toml(slip).expect_err("a slip").to_string();
            assert!(error.ends_with(&format!("; did you mean `{meant}`?")), "{error}");
        }
        let error = GateConfig::from_toml("colour = 'red'").expect_err("unknown").to_string();
        assert!(error.contains("expected one of"), "{error}");
    }

    #[test]
    fn a_block_without_its_choice_is_one_problem() {
        let error = GateConfig::from_toml("[slots]\ncount = 4").unwrap_err();
        assert_eq!(error.problems().len(), 1, "{error}");
        assert!(error.to_string().contains("slots"), "{error}");
    }

    #[test]
    fn what_is_no_toml_is_shown_with_its_line() {
        let error = GateConfig::from_toml("queue_limit = \n").unwrap_err();
        assert!(error.to_string().contains("line 1"), "{error}");
    }

    proptest! {
        #[test]
        fn no_text_breaks_the_reader(text in "\\PC{0,80}") {
            let _ = GateConfig::from_toml(&text);
            let _ = CallerConfig::from_toml(&text);
        }

        #[test]
        fn no_value_breaks_the_reader(
            field in prop::sample::select(vec![
                "queue_limit", "retry_share", "degrade_delay", "slots.count", "hold_limit",
                "retry.share", "retry.attempts", "admission", "throttle.throttle", "retry",
            ]),
            value in prop_oneof![
                any::<i64>().prop_map(|n| n.to_string()),
                any::<f64>().prop_map(|x| toml::Value::Float(x).to_string()),
                "[a-z0-9 ]{0,8}".prop_map(|text| toml::Value::String(text).to_string()),
                Just("[1, {}]".to_owned()),
            ],
        ) {
            let text = format!("{field} = {value}");
            for error in [GateConfig::from_toml(&text).err(), CallerConfig::from_toml(&text).err()] {
                prop_assert!(error.is_none_or(|error| !error.to_string().is_empty()));
            }
        }

        #[test]
        fn what_is_printed_reads_back(
            limit in 1usize..1 << 24, share in 0.0..=1.0, delay in any::<u64>(), count in 1u32..,
        ) {
            let config = GateConfig {
                queue_limit: limit,
                retry_share: share,
                degrade_delay: crate::time::Span::from_nanos(delay),
                slots: crate::slots::SlotsConfig::fixed(count),
                ..GateConfig::default()
            };
            prop_assert_eq!(GateConfig::from_toml(&config.to_toml()), Ok(config));
        }
    }
}
