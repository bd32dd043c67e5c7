//! Configuration: one serialisable enum per family, one `build` each, all problems at once.
//!
//! The same TOML block runs in the simulator, in the library and in the sidecar.

use std::fmt;

use serde::Serialize;
use serde::de::DeserializeOwned;

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
}

impl ConfigError {
    /// Everything that is wrong, in the order of the fields.
    pub fn problems(&self) -> &[Problem] {
        &self.0
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, Problem { field, value, allowed }) in self.0.iter().enumerate() {
            let newline = if n > 0 { "\n" } else { "" };
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
        self.found.push(Problem { field, value: value.to_string(), allowed: allowed.to_owned() });
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
        ConfigError(vec![Problem { field: String::new(), value: String::new(), allowed }])
    })?;
    read_table(table, validate)
}

/// The same for TOML that has been parsed. What cannot be read (a field that does not exist, a string
/// for a number) is set aside, field by field, so that the rest is judged in the same go.
pub fn read_table<T: DeserializeOwned + Serialize>(
    mut table: toml::Table,
    validate: impl FnOnce(&T, &mut Problems),
) -> Result<T, ConfigError> {
    let (mut problems, mut filled) = (Problems::default(), Vec::new());
    let config = loop {
        match table.clone().try_into::<T>() {
            Ok(config) => break config,
            Err(error) => {
                let error = message(&error);
                let mut problem = |path: Vec<String>, value: String, allowed: String| {
                    problems.found.push(Problem { field: path.join("."), value, allowed });
                };
                if let Some(path) = fill_in::<T>(&mut table, &error, &filled) {
                    filled.push(path.clone());
                    problem(path, String::new(), error);
                } else if let Some((path, value)) = set_aside_culprit::<T>(&mut table, &error) {
                    problem(path, value.to_string(), error);
                } else {
                    problem(Vec::new(), String::new(), error);
                    return Err(ConfigError(problems.found));
                }
            }
        }
    };
    if let Ok(printed) = toml::Table::try_from(&config) {
        note_unread(&table, &printed, &mut problems);
    }
    let unread = problems.found.clone();
    validate(&config, &mut problems);
    // What stands there instead of what could not be read is nobody's fault.
    let judged = problems.found.split_off(unread.len());
    let is_given = |problem: &Problem| unread.iter().all(|one| one.field != problem.field);
    problems.found.extend(judged.into_iter().filter(is_given));
    problems.into_result().map(|()| config)
}

/// Notes fields beside a choice that has none, such as `order = "fifo"`: it is read whatever is beside it,
/// and printed without.
fn note_unread(given: &toml::Table, printed: &toml::Table, problems: &mut Problems) {
    let choice = match printed.iter().next() {
        Some((name, toml::Value::String(_))) if printed.len() == 1 => Some(name),
        _ => None,
    };
    for (name, value) in given {
        problems.path.push(name.clone());
        match (printed.get(name), choice) {
            (Some(printed), _) => note_unread_in(value, printed, problems),
            (None, Some(choice)) if !is_empty(value) => {
                let (field, value) = (problems.path.join("."), value.to_string());
                let allowed = format!("unknown field `{name}`, there is only `{choice}`");
                problems.found.push(Problem { field, value, allowed });
            }
            (None, _) => {}
        }
        problems.path.pop();
    }
}

/// The same for a value, whose blocks in a list are named by their place.
fn note_unread_in(given: &toml::Value, printed: &toml::Value, problems: &mut Problems) {
    match (given, printed) {
        (toml::Value::Table(given), toml::Value::Table(printed)) => {
            note_unread(given, printed, problems);
        }
        (toml::Value::Array(given), toml::Value::Array(printed)) => {
            for (at, (given, printed)) in given.iter().zip(printed).enumerate() {
                problems.path.push(at.to_string());
                note_unread_in(given, printed, problems);
                problems.path.pop();
            }
        }
        _ => {}
    }
}

/// Whether a value is a list or block without anything in it, which is not printed.
fn is_empty(value: &toml::Value) -> bool {
    match value {
        toml::Value::Table(block) => block.is_empty(),
        toml::Value::Array(list) => list.is_empty(),
        _ => false,
    }
}

/// Removes the field without which `error` does not occur. Errors of tagged blocks do not say where
/// they are, but there are few fields, so each is tried. What a block in a list cannot do without is replaced.
fn set_aside_culprit<T: DeserializeOwned>(
    table: &mut toml::Table,
    error: &str,
) -> Option<(Vec<String>, toml::Value)> {
    let mut paths = Vec::new();
    fields(table, &mut Vec::new(), &mut paths);
    paths.into_iter().find_map(|path| {
        let mut rest = table.clone();
        let value = take(&mut rest, &path)?;
        let last = &path[path.len() - 1];
        let misspelt = error.starts_with(&format!("unknown field `{last}`"));
        match rest.clone().try_into::<T>().map_err(|now| message(&now)) {
            // Without the key that chooses a policy there is another error, and no cure. But where a name is wrong, the
            // right one may be missing.
            Err(now) if now == error => return None,
            Err(now) if now.starts_with("missing field") && !misspelt => {
                let at = &path[..path.len() - 1];
                let in_list = at.last()?.parse::<usize>().is_ok();
                rest = Some(rest)
                    .filter(|_| in_list)
                    .and_then(|rest| fill::<T>(rest, at, last, error))?;
            }
            _ => {}
        }
        *table = rest;
        Some((path, value))
    })
}

/// Puts something into the block at `path`, so that `error` does not occur and the rest can be judged.
fn fill<T: DeserializeOwned>(
    table: toml::Table,
    path: &[String],
    name: &str,
    error: &str,
) -> Option<toml::Table> {
    // Each with how an error tells that it does not fit.
    let fillers = [(0.into(), "`0`"), (FILLER.into(), FILLER), (false.into(), "`false`")];
    fillers.into_iter().find_map(|(filler, unfit): (toml::Value, &str)| {
        let mut filled = table.clone();
        block(&mut filled, path)?.insert(name.to_owned(), filler);
        let now = filled.clone().try_into::<T>().err().map(|now| message(&now));
        now.is_none_or(|now| now != error && !now.contains(unfit)).then_some(filled)
    })
}

/// No value that anybody gives.
const FILLER: &str = "/?";

/// Puts something where a block in a list lacks a field, once, so that the rest can be judged. Returns its path.
fn fill_in<T: DeserializeOwned>(
    table: &mut toml::Table,
    error: &str,
    filled: &[Vec<String>],
) -> Option<Vec<String>> {
    let name = error.strip_prefix("missing field `")?.split('`').next()?;
    let mut paths = Vec::new();
    items(table, &mut Vec::new(), &mut paths);
    paths.into_iter().find_map(|mut path| {
        if block(table, &path)?.contains_key(name) {
            return None;
        }
        let rest = fill::<T>(table.clone(), &path, name, error)?;
        path.push(name.to_owned());
        if filled.contains(&path) {
            return None;
        }
        *table = rest;
        Some(path)
    })
}

/// Paths of all blocks in lists.
fn items(table: &toml::Table, above: &mut Vec<String>, found: &mut Vec<Vec<String>>) {
    for (name, value) in table {
        above.push(name.clone());
        match value {
            toml::Value::Table(block) => items(block, above, found),
            toml::Value::Array(list) => {
                for (at, item) in list.iter().enumerate() {
                    above.push(at.to_string());
                    if let toml::Value::Table(block) = item {
                        items(block, above, found);
                        found.push(above.clone());
                    }
                    above.pop();
                }
            }
            _ => {}
        }
        above.pop();
    }
}

/// Paths of all fields, those of a block before the block itself.
fn fields(table: &toml::Table, above: &mut Vec<String>, found: &mut Vec<Vec<String>>) {
    for (name, value) in table {
        above.push(name.clone());
        fields_of(value, above, found);
        found.push(above.clone());
        above.pop();
    }
}

/// The same for a value, whose blocks in a list are named by their place.
fn fields_of(value: &toml::Value, above: &mut Vec<String>, found: &mut Vec<Vec<String>>) {
    match value {
        toml::Value::Table(block) => fields(block, above, found),
        toml::Value::Array(list) => {
            for (at, block) in list.iter().enumerate() {
                above.push(at.to_string());
                fields_of(block, above, found);
                above.pop();
            }
        }
        _ => {}
    }
}

fn take(table: &mut toml::Table, path: &[String]) -> Option<toml::Value> {
    let (last, blocks) = path.split_last()?;
    block(table, blocks)?.remove(last)
}

/// The block at a path.
fn block<'a>(table: &'a mut toml::Table, path: &[String]) -> Option<&'a mut toml::Table> {
    let Some((first, rest)) = path.split_first() else { return Some(table) };
    let mut value = table.get_mut(first)?;
    for name in rest {
        value = match value {
            toml::Value::Array(list) => list.get_mut(name.parse::<usize>().ok()?)?,
            value => value.get_mut(name)?,
        };
    }
    value.as_table_mut()
}

/// What is wrong, without the line that says where: fields are named by their path. Instead of all that
/// is known, the one that was probably meant.
fn message(error: &toml::de::Error) -> String {
    let told = error.message();
    let mut words = told.split('`').skip(1).step_by(2);
    let meant = words.next().and_then(|unknown| {
        let known = words.map(|known| (slips(unknown, known), known));
        // One slip in three letters, and two in a long word.
        let near = known.filter(|(slips, known)| *slips <= (known.len() / 3).min(2));
        near.min_by_key(|(slips, _)| *slips).map(|(_, known)| known)
    });
    match (meant, told.split_once(", expected")) {
        (Some(meant), Some((unknown, _))) => format!("{unknown}; did you mean `{meant}`?"),
        _ => told.to_owned(),
    }
}

/// Slips that make `written` of `meant`: a letter too many, too few or another, or two that changed places.
fn slips(written: &str, meant: &str) -> usize {
    let (written, meant) = (written.as_bytes(), meant.as_bytes());
    // Slips for all beginnings of what was meant, each row with one more letter of what was written.
    let (mut before, mut last) = (Vec::new(), Vec::from_iter(0..=meant.len()));
    for (i, letter) in written.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, other) in meant.iter().enumerate() {
            let another = last[j] + usize::from(letter != other);
            let mut least = another.min(last[j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && *letter == meant[j - 1] && written[i - 1] == *other {
                least = least.min(before[j - 1] + 1);
            }
            row.push(least);
        }
        before = std::mem::replace(&mut last, row);
    }
    last[meant.len()]
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
                ("colour", "\"red\""),
                ("degrade_delay", "\"soon\""),
                ("schedule", "{ order = \"alphabetical\" }"),
                ("slots.depth", "3"),
                ("slots.count", "0"),
                ("queue_limit", "0"),
                ("retry_share", "NaN"),
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
