//! A share in whole percent.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// 0 to 100 percent, written `"10%"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Percent(u8);

impl Percent {
    /// Nothing.
    pub const NONE: Self = Self(0);
    /// Everything.
    pub const ALL: Self = Self(100);

    /// `percent`, at most all.
    pub const fn of(percent: u8) -> Self {
        if percent > 100 { Self::ALL } else { Self(percent) }
    }

    /// The number.
    pub const fn get(self) -> u8 {
        self.0
    }

    /// Whether something that is drawn evenly from `[0, 1)` is within the share.
    pub fn takes(self, drawn: f64) -> bool {
        drawn * 100.0 < f64::from(self.0)
    }
}

impl fmt::Display for Percent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}%", self.0)
    }
}

impl FromStr for Percent {
    type Err = String;

    /// With or without the sign.
    fn from_str(text: &str) -> Result<Self, String> {
        let number = text.trim().trim_end_matches('%').parse().ok().filter(|n| *n <= 100);
        number.map(Self).ok_or_else(|| format!("{text:?} is no share: 0% to 100%"))
    }
}

impl TryFrom<String> for Percent {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Percent> for String {
    fn from(percent: Percent) -> Self {
        percent.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_read_back() {
        for text in ["0%", "10%", "100%"] {
            assert_eq!(text.parse::<Percent>().map(String::from), Ok(text.to_owned()));
        }
        assert_eq!("10".parse(), Ok(Percent::of(10)));
        for text in ["", "%", "101%", "-1%", "10.5%", "half"] {
            assert!(text.parse::<Percent>().is_err(), "{text}");
        }
        assert!(!Percent::NONE.takes(0.0) && Percent::ALL.takes(0.999_999));
        assert!(Percent::of(10).takes(0.099) && !Percent::of(10).takes(0.1));
    }
}
