//! Configuration: one serialisable enum per family, one `build` each, all problems at once.
//!
//! The same TOML block runs in the simulator, in the library and in the sidecar.

use std::fmt;

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
            if value.is_empty() {
                write!(f, "{newline}{allowed}")?;
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
    path: Vec<&'static str>,
    found: Vec<Problem>,
}

impl Problems {
    /// Checks the fields of a nested block.
    pub fn within(&mut self, name: &'static str, check: impl FnOnce(&mut Self)) {
        self.path.push(name);
        check(self);
        self.path.pop();
    }

    /// Notes a problem with `field` unless `fine`.
    pub fn check(&mut self, field: &str, value: impl fmt::Display, fine: bool, allowed: &str) {
        if fine {
            return;
        }
        let field = self.path.iter().copied().chain([field]).collect::<Vec<_>>().join(".");
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

/// Reads TOML into a configuration without checking its values.
pub(crate) fn parse<T: DeserializeOwned>(text: &str) -> Result<T, ConfigError> {
    toml::from_str(text).map_err(|error| {
        let allowed = error.to_string().trim_end().to_owned();
        ConfigError(vec![Problem { field: String::new(), value: String::new(), allowed }])
    })
}

/// Writes a configuration as TOML.
pub(crate) fn print<T: serde::Serialize>(config: &T) -> String {
    toml::to_string(config).expect("configurations are plain tables of strings and numbers")
}
