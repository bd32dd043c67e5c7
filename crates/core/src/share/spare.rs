//! What is leased to nobody saves up tokens, as it would in a node's bucket.
//!
//! A granter is one more node: its share is what is free of the pool. It serves no requests, so all it
//! does with its tokens is to send them along when a part of its share becomes somebody's lease. Levels and bursts
//! of all buckets together stay within the agreement's, because they only move.
//!
//! Tokens are counted in 10⁻¹⁵: millionths of a token a second, times nanoseconds, are whole numbers.

use super::Share;
use crate::time::Instant;

/// Units in one token.
const TOKEN: u128 = 1_000_000_000_000_000;

/// The bucket of what is free.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spare {
    level: u128,
    /// The least that has been free since `at`, up to which the level is counted.
    free: Share,
    at: Instant,
}

impl Spare {
    /// Of an agreement that nobody has used yet.
    pub(super) fn full(free: Share) -> Self {
        Self { level: most(free), free, at: Instant::ZERO }
    }

    /// Of one of which nothing is known.
    pub(super) fn empty(now: Instant) -> Self {
        Self { level: 0, free: Share::NONE, at: now }
    }

    /// Counts what was earned until `now`.
    pub(super) fn settle(&mut self, now: Instant) {
        let earned =
            u128::from(self.free.rate.millionths()) * u128::from(now.since(self.at).as_nanos());
        self.level = self.level.saturating_add(earned).min(most(self.free));
        self.at = self.at.max(now);
    }

    /// From the last settlement on, `free` earns.
    pub(super) fn set_free(&mut self, free: Share) {
        self.free = free;
        self.level = self.level.min(most(free));
    }

    /// No more than `free` earns, since the last settlement.
    pub(super) fn tighten(&mut self, free: Share) {
        self.free = self.free.least(free);
        self.level = self.level.min(most(self.free));
    }

    /// Takes as many of `tokens` as there are.
    pub(super) fn take(&mut self, tokens: u64) -> u64 {
        let taken = tokens.min(u64::try_from(self.level / TOKEN).unwrap_or(u64::MAX));
        self.level -= u128::from(taken) * TOKEN;
        taken
    }

    /// Whether all that `pool` can save up is there.
    pub(super) fn is_full(&self, pool: Share) -> bool {
        self.level == most(pool)
    }

    /// Panics if the state contradicts itself.
    pub(super) fn invariants(&self, pool: Share) {
        assert!(self.level <= most(pool.most(self.free)), "no more is saved up than can be leased");
    }
}

fn most(free: Share) -> u128 {
    u128::from(free.burst) * TOKEN
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::share::Rate;
    use crate::time::Span;

    fn at(millis: u64) -> Instant {
        Instant::ZERO + Span::from_millis(millis)
    }

    #[test]
    fn what_is_free_earns_while_it_is_free() {
        let share = |rate, burst| Share::new(Rate::per_second(rate).unwrap(), burst);
        let mut spare = Spare::full(share(10.0, 5));
        assert_eq!((spare.take(3), spare.take(9)), (3, 2));
        spare.settle(at(250));
        assert_eq!(spare.take(9), 2, "and half a token is kept");
        // Less is free from some moment on that is not known: all the while.
        spare.tighten(share(1.0, 5));
        spare.settle(at(1_250));
        spare.set_free(share(10.0, 5));
        assert_eq!(spare.take(9), 1);
        spare.settle(at(9_000));
        spare.set_free(Share::NONE);
        assert_eq!(spare.take(9), 0, "what is leased brings its tokens along, or they are gone");
    }
}
