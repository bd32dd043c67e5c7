//! How important a request is: [`Rank`], its four [`Criticality`] bands, and the [`Cursor`] that
//! cuts the order of ranks in two.
//!
//! A rank is the pair (business, user) of DAGOR §4.2, smaller meaning more important. We keep 64
//! business ranks and 65,536 user ranks so that a single business rank can be cut anywhere;
//! DAGOR's 128 user levels are the top seven bits of ours.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Importance of a request: `(business, user)`, compared in that order, smaller is more important.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "(u8, u16)", into = "(u8, u16)")]
pub struct Rank(u32);

impl Rank {
    /// How many business ranks there are.
    pub const BUSINESS: u8 = 64;
    /// The most important rank.
    pub const FIRST: Self = Self(0);
    /// The least important rank: what an action missing from an action table gets (DAGOR §4.2.1).
    pub const LAST: Self = Self(((Self::BUSINESS as u32) << 16) - 1);
    /// Where everything is when nobody ranks anything: the middle of critical.
    pub const UNRANKED: Self = Self(24 << 16);

    /// The rank `(business, user)`; `business` above 63 becomes 63.
    pub const fn new(business: u8, user: u16) -> Self {
        let business = if business < Self::BUSINESS { business } else { Self::BUSINESS - 1 };
        Self((business as u32) << 16 | user as u32)
    }

    /// Business part, 0–63.
    pub const fn business(self) -> u8 {
        (self.0 >> 16) as u8
    }

    /// User part, 0–65535.
    pub const fn user(self) -> u16 {
        self.0 as u16
    }

    /// Position in the order of all ranks, 0 for the most important.
    pub const fn key(self) -> u32 {
        self.0
    }

    /// The rank at `key`, or the last rank beyond the end.
    pub const fn from_key(key: u32) -> Self {
        if key < Self::LAST.0 { Self(key) } else { Self::LAST }
    }

    /// The band this rank is in.
    pub const fn criticality(self) -> Criticality {
        match self.business() / Criticality::WIDTH {
            0 => Criticality::CriticalPlus,
            1 => Criticality::Critical,
            2 => Criticality::SheddablePlus,
            _ => Criticality::Sheddable,
        }
    }

    /// The same user in the middle of another band: the explicit override at a point of the call
    /// path ("Handling Overload", Criticality).
    pub const fn with_criticality(self, criticality: Criticality) -> Self {
        let business = criticality as u8 * Criticality::WIDTH + Criticality::WIDTH / 2;
        Self::new(business, self.user())
    }
}

impl Default for Rank {
    fn default() -> Self {
        Self::UNRANKED
    }
}

impl TryFrom<(u8, u16)> for Rank {
    type Error = String;
    fn try_from((business, user): (u8, u16)) -> Result<Self, String> {
        if business >= Self::BUSINESS {
            return Err(format!("business rank {business} is not allowed: 0 to 63"));
        }
        Ok(Self::new(business, user))
    }
}

impl From<Rank> for (u8, u16) {
    fn from(rank: Rank) -> Self {
        (rank.business(), rank.user())
    }
}

impl fmt::Display for Rank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "({}, {})", self.business(), self.user())
    }
}

impl fmt::Debug for Rank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The four bands of business ranks, named as in "Handling Overload".
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Criticality {
    /// Business 0–15: failure has serious user-visible impact.
    CriticalPlus,
    /// Business 16–31: the default of production jobs.
    Critical,
    /// Business 32–47: partial unavailability is expected; the default of batch jobs.
    SheddablePlus,
    /// Business 48–63: frequent partial and occasional full unavailability is expected.
    Sheddable,
}

impl Criticality {
    /// All bands, most important first.
    pub const ALL: [Self; 4] =
        [Self::CriticalPlus, Self::Critical, Self::SheddablePlus, Self::Sheddable];
    /// Business ranks per band.
    pub const WIDTH: u8 = 16;

    /// 0 for the most important band, 3 for the least.
    pub const fn index(self) -> usize {
        self as usize
    }

    /// The name used in configuration, metrics and headers.
    pub const fn name(self) -> &'static str {
        match self {
            Self::CriticalPlus => "critical-plus",
            Self::Critical => "critical",
            Self::SheddablePlus => "sheddable-plus",
            Self::Sheddable => "sheddable",
        }
    }
}

/// The last rank that is let in; everything less important is refused (DAGOR §4.2.3).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cursor(
    /// Number of ranks let in, counted from the most important: one past the last rank's key.
    u32,
);

impl Cursor {
    /// Lets nothing in.
    pub const CLOSED: Self = Self(0);
    /// Lets everything in.
    pub const OPEN: Self = Self(Rank::LAST.0 + 1);

    /// The cursor whose last admitted rank is `rank`.
    pub const fn at(rank: Rank) -> Self {
        Self(rank.0 + 1)
    }

    /// The cursor that lets in the `ranks` most important ranks.
    pub const fn first(ranks: u32) -> Self {
        if ranks < Self::OPEN.0 { Self(ranks) } else { Self::OPEN }
    }

    /// How many ranks are let in.
    pub const fn ranks(self) -> u32 {
        self.0
    }

    /// The last admitted rank, none when closed.
    pub const fn last(self) -> Option<Rank> {
        match self.0 {
            0 => None,
            n => Some(Rank(n - 1)),
        }
    }

    /// Whether `rank` is let in.
    pub const fn admits(self, rank: Rank) -> bool {
        rank.0 < self.0
    }
}

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.last() {
            None => f.write_str("closed"),
            Some(Rank::LAST) => f.write_str("open"),
            Some(rank) => rank.fmt(f),
        }
    }
}

impl fmt::Debug for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// DAGOR §4.2.3: cursor (2,3) admits (1,*) and (2,0..=3), sheds (2,4) and business ≥ 3.
    #[test]
    fn cursor_cuts_as_in_dagor() {
        let cursor = Cursor::at(Rank::new(2, 3));
        for rank in [Rank::new(1, 0), Rank::new(1, u16::MAX), Rank::new(2, 0), Rank::new(2, 3)] {
            assert!(cursor.admits(rank), "{rank}");
        }
        for rank in [Rank::new(2, 4), Rank::new(3, 0), Rank::LAST] {
            assert!(!cursor.admits(rank), "{rank}");
        }
        assert!(Cursor::OPEN.admits(Rank::LAST));
        assert!(!Cursor::CLOSED.admits(Rank::FIRST));
    }

    #[test]
    fn criticalities_are_bands_of_sixteen() {
        for (business, criticality) in
            [(0, 0), (15, 0), (16, 1), (24, 1), (31, 1), (32, 2), (48, 3), (63, 3)]
        {
            assert_eq!(Rank::new(business, 7).criticality().index(), criticality, "{business}");
        }
        for criticality in Criticality::ALL {
            let moved = Rank::new(3, 99).with_criticality(criticality);
            assert_eq!((moved.criticality(), moved.user()), (criticality, 99));
        }
    }
}
