//! Distributed limits: one agreement (rate, burst), enforced by many nodes without asking anyone.
//!
//! Read in this order: [`split()`] divides a whole exactly; [`History`] is what a node knows of its own
//! load; [`Adaptor`] turns the loads of all nodes into targets; [`Granter`] (one, at the control
//! plane) and [`Holder`] (one per node) move from one division to the next by leases, such that the
//! shares in use never exceed the whole. [`wire`] is how reports and grants travel. [`Shaper`] makes what finds no
//! token wait for one.

mod adaptor;
mod granter;
mod history;
mod holder;
mod lease;
mod places;
mod rules;
mod shaper;
mod spare;
mod split;
pub mod wire;

#[cfg(test)]
mod place_schedules;
#[cfg(test)]
mod schedules;

use std::fmt;

pub use adaptor::{Adaptor, AdaptorConfig};
pub use granter::Granter;
pub use history::{History, HistoryConfig, Load};
pub use holder::Holder;
pub use lease::{Bound, Grant, HolderId, LeaseConfig, Legacy, OnLoss, Report};
pub use places::Places;
pub use rules::Rules;
pub use shaper::{Message, Offer, Room, Shaper, Tokens, Turn};
pub use split::{SplitError, Weight, apportion, split};

use crate::limit::Limit;

/// Tokens per second, in whole millionths: parts of a rate sum to it exactly.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rate(u64);

impl Rate {
    /// No tokens.
    pub const ZERO: Self = Self(0);
    /// One token a nanosecond: the fastest bucket there is.
    pub const MAX: Self = Self(1_000_000_000 * Self::UNIT);
    /// Millionths in one.
    const UNIT: u64 = 1_000_000;

    /// `tokens` per second, to the nearest millionth; none if it is negative, no number or above
    /// [`Rate::MAX`].
    pub fn per_second(tokens: f64) -> Option<Self> {
        let fits = (0.0..=Self::MAX.as_f64()).contains(&tokens);
        fits.then(|| Self((tokens * Self::UNIT as f64).round() as u64))
    }

    /// `millionths` of a token per second.
    pub const fn from_millionths(millionths: u64) -> Self {
        Self(millionths)
    }

    /// Millionths of a token per second.
    pub const fn millionths(self) -> u64 {
        self.0
    }

    /// Tokens per second.
    pub fn as_f64(self) -> f64 {
        self.0 as f64 / Self::UNIT as f64
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/s", self.as_f64())
    }
}

/// A node's part of an agreement, or the whole of it: so many tokens a second, so many at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Share {
    /// Tokens per second.
    pub rate: Rate,
    /// Most tokens saved up.
    pub burst: u64,
}

impl Share {
    /// Nothing.
    pub const NONE: Self = Self { rate: Rate::ZERO, burst: 0 };

    /// A share of `rate` and `burst`.
    pub const fn new(rate: Rate, burst: u64) -> Self {
        Self { rate, burst }
    }

    /// Both together.
    pub fn plus(self, other: Self) -> Self {
        self.each(other, u64::saturating_add)
    }

    /// What is left of it without `other`, in each part at least nothing.
    pub fn minus(self, other: Self) -> Self {
        self.each(other, u64::saturating_sub)
    }

    /// The smaller rate and the smaller burst.
    pub fn least(self, other: Self) -> Self {
        self.each(other, u64::min)
    }

    /// The larger rate and the larger burst.
    pub fn most(self, other: Self) -> Self {
        self.each(other, u64::max)
    }

    /// So many of them.
    pub fn times(self, count: u64) -> Self {
        self.each(Self::new(Rate(count), count), u64::saturating_mul)
    }

    /// Whether `other` is within it, rate and burst alike.
    pub fn covers(self, other: Self) -> bool {
        self.rate >= other.rate && self.burst >= other.burst
    }

    /// As a bucket's limit.
    pub fn limit(self) -> Limit {
        Limit::new(self.rate.as_f64(), self.burst as f64)
    }

    fn each(self, other: Self, op: fn(u64, u64) -> u64) -> Self {
        Self { rate: Rate(op(self.rate.0, other.rate.0)), burst: op(self.burst, other.burst) }
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, burst {}", self.rate, self.burst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_that_are_none_are_not_made() {
        for bad in [f64::NAN, -1.0, f64::INFINITY, 2e9] {
            assert_eq!(Rate::per_second(bad), None, "{bad}");
        }
        assert_eq!(Rate::per_second(0.25).map(Rate::millionths), Some(250_000));
        assert_eq!(Rate::per_second(1e9), Some(Rate::MAX));
    }

    #[test]
    fn a_share_covers_only_what_is_smaller_in_both() {
        let share = |rate, burst| Share::new(Rate(rate), burst);
        assert!(share(5, 5).covers(share(5, 4)));
        assert!(!share(5, 5).covers(share(4, 6)));
        assert_eq!(share(5, 1).minus(share(2, 3)), share(3, 0));
        assert_eq!(share(5, 1).most(share(2, 3)), share(5, 3));
        assert_eq!(share(5, 1).times(3), share(15, 3));
        assert_eq!(share(1_500_000, 3).to_string(), "1.5/s, burst 3");
    }
}
