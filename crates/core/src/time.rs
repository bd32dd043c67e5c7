//! Time as a number: [`Instant`] and [`Span`], both whole nanoseconds in a `u64`.
//!
//! A moment counts from an epoch that the driver chooses (process start, simulation start), so it
//! sorts, fits an atomic, serialises, and starts at zero in a simulation. All arithmetic saturates:
//! a clock that steps back reads as "no time passed", never as a panic.

use std::fmt;
use std::ops::{Add, AddAssign, Sub};
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A moment: nanoseconds since the driver's epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(u64);

impl Instant {
    /// The driver's epoch.
    pub const ZERO: Self = Self(0);
    /// A moment that never comes; as a deadline it means "none".
    pub const FAR: Self = Self(u64::MAX);

    /// The moment `nanos` nanoseconds after the epoch.
    #[inline]
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Nanoseconds since the epoch.
    #[inline]
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Time from `earlier` to `self`, zero if `earlier` is later.
    #[inline]
    pub const fn since(self, earlier: Self) -> Span {
        Span(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Span> for Instant {
    type Output = Self;
    #[inline]
    fn add(self, span: Span) -> Self {
        Self(self.0.saturating_add(span.0))
    }
}

impl AddAssign<Span> for Instant {
    #[inline]
    fn add_assign(&mut self, span: Span) {
        *self = *self + span;
    }
}

impl Sub<Span> for Instant {
    type Output = Self;
    #[inline]
    fn sub(self, span: Span) -> Self {
        Self(self.0.saturating_sub(span.0))
    }
}

impl fmt::Display for Instant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::FAR { f.write_str("never") } else { Span(self.0).fmt(f) }
    }
}

/// A whole number to calculate with, at most 2⁶³. Processors convert signed numbers in one instruction and unsigned ones in
/// several.
pub(crate) const fn float(whole: u64) -> f64 {
    let signed = whole as i64;
    (if signed < 0 { i64::MAX } else { signed }) as f64
}

/// The whole part of what a calculation gave, zero if it is negative or NaN; as [`float`], at most 2⁶³, for the same reason.
pub(crate) const fn whole(float: f64) -> u64 {
    let signed = float as i64;
    if signed < 0 { 0 } else { signed as u64 }
}

/// A length of time in nanoseconds. In configuration it is written `"80us"`, `"1.5ms"`, `"2s"`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span(u64);

impl Span {
    /// No time.
    pub const ZERO: Self = Self(0);
    /// Longer than anything.
    pub const MAX: Self = Self(u64::MAX);

    /// `nanos` nanoseconds.
    #[inline]
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// `micros` microseconds.
    pub const fn from_micros(micros: u64) -> Self {
        Self(micros.saturating_mul(1_000))
    }

    /// `millis` milliseconds.
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis.saturating_mul(1_000_000))
    }

    /// `secs` seconds.
    pub const fn from_secs(secs: u64) -> Self {
        Self(secs.saturating_mul(1_000_000_000))
    }

    /// Whole nanoseconds.
    #[inline]
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Nanoseconds to calculate with. What is longer than 292 years counts as that.
    #[inline]
    pub const fn as_nanos_f64(self) -> f64 {
        float(self.0)
    }

    /// The time that a calculation gave, whole nanoseconds of it; negative or NaN gives zero.
    #[inline]
    pub const fn from_nanos_f64(nanos: f64) -> Self {
        Self(whole(nanos))
    }

    /// Microseconds with fraction.
    pub fn as_micros_f64(self) -> f64 {
        self.as_nanos_f64() / 1e3
    }

    /// Milliseconds with fraction.
    pub fn as_millis_f64(self) -> f64 {
        self.as_nanos_f64() / 1e6
    }

    /// Seconds with fraction.
    pub fn as_secs_f64(self) -> f64 {
        self.as_nanos_f64() / 1e9
    }

    /// How often `other` fits in here; no time counts as a nanosecond.
    #[inline]
    pub fn ratio(self, other: Self) -> f64 {
        self.as_nanos_f64() / float(other.0.max(1))
    }

    /// Scaled by `factor`, rounded to the nearest nanosecond; negative or NaN gives zero.
    #[inline]
    pub fn scale(self, factor: f64) -> Self {
        Self::from_nanos_f64(self.as_nanos_f64() * factor + 0.5)
    }

    /// `self − other`, or zero.
    #[inline]
    pub const fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

impl Add for Span {
    type Output = Self;
    #[inline]
    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl AddAssign for Span {
    #[inline]
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl From<Duration> for Span {
    fn from(duration: Duration) -> Self {
        Self(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX))
    }
}

impl From<Span> for Duration {
    fn from(span: Span) -> Self {
        Self::from_nanos(span.0)
    }
}

/// The units a span is read in, and shown in (the largest that keeps it at or above one).
const UNITS: [(&str, u64); 6] = [
    ("h", 3_600_000_000_000),
    ("min", 60_000_000_000),
    ("s", 1_000_000_000),
    ("ms", 1_000_000),
    ("us", 1_000),
    ("ns", 1),
];

impl fmt::Display for Span {
    /// Exact: what is shown reads back as the same span.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == 0 {
            return f.write_str("0s");
        }
        // Hours and minutes only when whole: nobody writes 1.5min for a timeout of 90 s.
        let (name, unit) = *UNITS
            .iter()
            .find(|(name, unit)| {
                self.0 >= *unit && (self.0.is_multiple_of(*unit) || !matches!(*name, "h" | "min"))
            })
            .unwrap_or(&("ns", 1));
        let (whole, rest) = (self.0 / unit, self.0 % unit);
        if rest == 0 {
            return write!(f, "{whole}{name}");
        }
        let digits = unit.ilog10() as usize;
        let fraction = format!("{rest:0digits$}");
        write!(f, "{whole}.{}{name}", fraction.trim_end_matches('0'))
    }
}

/// Why a text is not a span.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseSpanError(String);

impl fmt::Display for ParseSpanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "\"{}\" is not a time: write a number and a unit (ns, us, ms, s, min, h), such as \"80us\"",
            self.0
        )
    }
}

impl std::error::Error for ParseSpanError {}

impl FromStr for Span {
    type Err = ParseSpanError;

    fn from_str(text: &str) -> Result<Self, ParseSpanError> {
        let error = || ParseSpanError(text.chars().take(40).collect());
        let trimmed = text.trim();
        let split = trimmed.find(|c: char| !(c.is_ascii_digit() || c == '.')).ok_or_else(error)?;
        let (number, name) = trimmed.split_at(split);
        let name = match name.trim_start() {
            "µs" | "μs" => "us",
            other => other,
        };
        let (_, unit) = *UNITS.iter().find(|(known, _)| *known == name).ok_or_else(error)?;
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        let whole: u64 = whole.parse().map_err(|_| error())?;
        let mut nanos = whole.checked_mul(unit).ok_or_else(error)?;
        // Digits of the fraction, each a tenth of the one before; below a nanosecond they are dropped.
        let mut place = unit;
        for digit in fraction.bytes() {
            place /= 10;
            let digit = u64::from(digit.checked_sub(b'0').filter(|d| *d < 10).ok_or_else(error)?);
            nanos = nanos.checked_add(digit * place).ok_or_else(error)?;
        }
        Ok(Self(nanos))
    }
}

impl Serialize for Span {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn reads_and_shows_units() {
        for (text, nanos) in [
            ("80us", 80_000),
            ("1.5ms", 1_500_000),
            ("2 s", 2_000_000_000),
            ("0.25µs", 250),
            ("90s", 90_000_000_000),
        ] {
            assert_eq!(text.parse(), Ok(Span(nanos)), "{text}");
        }
        assert_eq!(Span(90_000_000_000).to_string(), "90s");
        assert_eq!(Span(1_500_000).to_string(), "1.5ms");
        for bad in ["", "5", "ms", "-1ms", "1e3s", "1 parsec", "99999999999999h", "1.x ms"] {
            assert!(bad.parse::<Span>().is_err(), "{bad}");
        }
    }

    #[test]
    fn time_going_backwards_is_no_time() {
        assert_eq!(Instant(5).since(Instant(9)), Span::ZERO);
        assert_eq!(Instant::FAR + Span(1), Instant::FAR);
        assert_eq!(Span(3).scale(f64::NAN), Span::ZERO);
        assert_eq!(Span(3).scale(-1.0), Span::ZERO);
    }

    proptest! {
        #[test]
        fn shown_spans_read_back(nanos in any::<u64>()) {
            prop_assert_eq!(Span(nanos).to_string().parse(), Ok(Span(nanos)));
        }
    }
}
