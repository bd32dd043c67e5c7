//! What callers are told follows the queue of the moment.
//!
//! A queue that is offered just what it can serve wanders at random between empty and full: it is
//! idle at the one end and refuses at the other. So the cursors that a response carries are a little
//! laxer than those of the round while the queue is short, and a little stricter while it is long.
//! That pulls the queue back to where it should rest, as fast as callers hear of it.

use crate::rank::{Cursor, Rank};
use crate::time::Span;

/// Ranks that need no credit, and ranks let in at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cursors {
    pub(super) free: Cursor,
    pub(super) last: Cursor,
}

impl Cursors {
    pub(super) const OPEN: Self = Self { free: Cursor::OPEN, last: Cursor::OPEN };

    /// Between these (0) and those (1).
    fn toward(self, that: Self, part: f64) -> Self {
        let between = |here: Cursor, there: Cursor| {
            let (here, there) = (f64::from(here.ranks()), f64::from(there.ranks()));
            Cursor::first((here + part * (there - here)) as u32)
        };
        Self { free: between(self.free, that.free), last: between(self.last, that.last) }
    }
}

/// The cursors of a round, and those between which they sway.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sway {
    /// What is told while the queue is as long as it should be; open if there is no overload.
    pub(super) rest: Cursors,
    /// What is told while nothing waits, and while the queue is full.
    pub(super) lax: Cursors,
    pub(super) strict: Cursors,
}

/// Where the queue should rest, as a share of the longest allowed wait. By simulation: longer, and
/// 99 % come later than 0.8 of the objective; shorter, and cores run idle.
const REST: f64 = 0.38;
/// How far callers are told to move the queue before they hear again, in its way back to rest: a little beyond it, as most
/// of them hear later than that. By simulation: with more, a thousand callers are refused a little less often, but who is in
/// the first quarter of the ranks and just fits is answered 97.6 % of the time instead of 98.1.
const PULL: f64 = 1.25;
/// The same from which on they are taken to follow the queue, at [`MOST`].
const FOLLOWS: f64 = 0.5;
/// Most that callers are told to send more or less. More moves the cut through ranks back and forth
/// without a better queue.
const MOST: f64 = 0.15;

impl Sway {
    pub(super) const OPEN: Self = Self::still(Cursors::OPEN);

    /// The same, whatever the queue.
    pub(super) const fn still(rest: Cursors) -> Self {
        Self { rest, lax: rest, strict: rest }
    }

    /// Between `lax` and `strict`, as far as they are on the right side of `rest`.
    pub(super) fn between(rest: Cursors, lax: Cursors, strict: Cursors) -> Self {
        let lax = Cursors { free: lax.free.max(rest.free), last: lax.last.max(rest.last) };
        let strict = Cursors { free: strict.free.min(rest.free), last: strict.last.min(rest.last) };
        Self { rest, lax, strict }
    }

    /// By which share more or less is let in as the queue is empty or full, if a caller hears of it
    /// every `between`. A share x more fills the queue by x of the time that passes.
    pub(super) fn reach(longest: Span, between: Span) -> f64 {
        (PULL * longest.scale(REST).ratio(between)).min(MOST)
    }

    /// How well callers that hear every `between` follow the queue, 0 to 1.
    pub(super) fn followed(longest: Span, between: Span) -> f64 {
        (FOLLOWS * longest.scale(REST).ratio(between) / MOST).min(1.0)
    }

    /// What to tell a caller while the delay is `delay`.
    pub(super) fn told(&self, delay: Span, longest: Span) -> Cursors {
        let rest = longest.scale(REST);
        if delay < rest {
            return self.rest.toward(self.lax, 1.0 - delay.ratio(rest));
        }
        let above = delay.saturating_sub(rest).ratio(longest.saturating_sub(rest));
        self.rest.toward(self.strict, above.min(1.0))
    }

    /// The delay up to which callers are told that `rank` is let in.
    pub(super) fn wait_for(&self, rank: Rank, longest: Span) -> Span {
        let rest = || longest.scale(REST);
        // How far from `lax` to `strict` on the way the rank drops out.
        let part = |from: Cursor, to: Cursor| {
            let (from, to) = (f64::from(from.ranks()), f64::from(to.ranks()));
            (from - f64::from(rank.key())) / (from - to).max(1.0)
        };
        if self.strict.last.admits(rank) {
            longest
        } else if self.rest.last.admits(rank) {
            rest() + longest.saturating_sub(rest()).scale(part(self.rest.last, self.strict.last))
        } else if self.lax.last.admits(rank) {
            rest().scale(part(self.lax.last, self.rest.last))
        } else {
            Span::ZERO
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONGEST: Span = Span::from_micros(100);

    fn cursors(ranks: u32) -> Cursors {
        Cursors { free: Cursor::first(ranks), last: Cursor::first(ranks) }
    }

    fn sway() -> Sway {
        Sway::between(cursors(1_000), cursors(1_100), cursors(900))
    }

    #[test]
    fn a_short_queue_lets_in_more_and_a_long_one_less() {
        let told = |micros| sway().told(Span::from_micros(micros), LONGEST).last.ranks();
        assert_eq!([told(0), told(38), told(100), told(1_000)], [1_100, 1_000, 900, 900]);
        assert_eq!([told(19), told(69)], [1_050, 950]);
    }

    #[test]
    fn a_rank_is_let_in_up_to_the_delay_at_which_callers_are_told_otherwise() {
        for ranks in (850..1_150).step_by(7) {
            let rank = Rank::from_key(ranks);
            let wait = sway().wait_for(rank, LONGEST);
            for micros in 1..=100 {
                let delay = Span::from_micros(micros);
                let told = sway().told(delay, LONGEST).last;
                // The ranks at the very edge of a cursor are rounded.
                let edge = told.ranks().abs_diff(ranks) <= 2;
                assert!(edge || told.admits(rank) == (delay <= wait), "{rank} at {delay}: {wait}");
            }
        }
    }

    /// Nobody sways on what callers hear too late.
    #[test]
    fn the_rarer_callers_hear_the_less_they_are_told() {
        let reach = |micros| Sway::reach(LONGEST, Span::from_micros(micros));
        assert_eq!(reach(10), MOST);
        assert!((reach(1_000) - 0.0475).abs() < 1e-9);
        assert!(reach(100_000) < 0.001);
    }
}
