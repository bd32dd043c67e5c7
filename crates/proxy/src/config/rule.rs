//! Rules that give ranks to requests which come without one.

use serde::{Deserialize, Serialize};

/// Which requests have which business rank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// The method; any if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
    /// The path, or one above it; any if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// 0, refused last, to 63, refused first.
    pub business: u8,
}

impl Rule {
    pub(crate) fn fits(&self, method: &http::Method, path: &str) -> bool {
        let below = |above: &String| {
            let rest = path.strip_prefix(above.trim_end_matches('/'));
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        self.method.as_ref().is_none_or(|wanted| method == wanted.as_str())
            && self.path.as_ref().is_none_or(below)
    }
}
