//! A bucket for each of any number of keys, in memory that never grows.
//!
//! Keys fall into sets of eight places by their hash; a place is a key and the one word of its bucket
//! ([`Gcra`]). A bucket that is full again says nothing, so its place is free. When all eight are
//! taken, the fullest goes, and the moment at which it would have been full goes into the set's
//! shared cell; a key that has no place starts from that cell. So whoever was pushed out and comes
//! back, and whoever shares the cell with it, may be treated more strictly than by a bucket of its
//! own, never more loosely: nobody gets tokens by bringing many keys.

use super::bucket::{Limit, Shortage};
use super::gcra::Gcra;
use crate::rng::mix;
use crate::time::Instant;

/// Places in a set. More lets fewer be pushed out, and takes longer to look through.
const WAYS: usize = 8;

/// Token buckets by key.
#[derive(Clone, Debug)]
pub struct Keyed {
    terms: Gcra,
    /// A power of two of them.
    sets: Vec<Set>,
}

#[derive(Clone, Debug)]
struct Set {
    keys: [u64; WAYS],
    /// The bucket of each key; a full one is nobody's.
    words: [u64; WAYS],
    /// No key without a place had a later word than this.
    cell: u64,
}

impl Keyed {
    /// Most keys that can be kept: 2²⁰ of them take 18 MB.
    pub const MOST_KEYS: usize = 1 << 20;

    /// Buckets for at least `keys` keys at once, in about 17 bytes each. All start full.
    pub fn new(now: Instant, limit: Limit, keys: usize) -> Self {
        let sets = keys.clamp(1, Self::MOST_KEYS).div_ceil(WAYS).next_power_of_two();
        let empty = Set { keys: [0; WAYS], words: [Gcra::FULL; WAYS], cell: Gcra::FULL };
        Self { terms: Gcra::new(now, limit), sets: vec![empty; sets] }
    }

    /// Takes `cost` tokens of `key`, all or none.
    pub fn take(&mut self, now: Instant, key: u64, cost: f64) -> Result<(), Shortage> {
        let price = self.terms.price(cost)?;
        let (set, place) = self.find(key);
        let word = place.map_or(self.sets[set].cell, |place| self.sets[set].words[place]);
        let word = self.terms.take_price(word, now, price)?;
        self.store(now, set, place, key, word);
        Ok(())
    }

    /// Charges `cost` tokens to `key`, also where they have to be owed, up to `debt`.
    pub fn charge(&mut self, now: Instant, key: u64, cost: f64, debt: f64) {
        let (set, place) = self.find(key);
        let word = place.map_or(self.sets[set].cell, |place| self.sets[set].words[place]);
        let word = self.terms.charge(word, now, cost, debt);
        self.store(now, set, place, key, word);
    }

    /// Gives back `cost` tokens. Who has no place any more gets nothing: others share its cell.
    pub fn refund(&mut self, key: u64, cost: f64) {
        if let (set, Some(place)) = self.find(key) {
            let words = &mut self.sets[set].words;
            // A bucket of word FULL would lose its place, and with it what the cell says of it.
            words[place] = self.terms.refund(words[place], cost).max(Gcra::FULL + 1);
        }
    }

    /// Tokens of `key` at `now`.
    pub fn tokens(&self, now: Instant, key: u64) -> f64 {
        let (set, place) = self.find(key);
        let set = &self.sets[set];
        self.terms.tokens(place.map_or(set.cell, |place| set.words[place]), now)
    }

    /// What each key is allowed.
    pub fn limit(&self) -> Limit {
        self.terms.limit()
    }

    /// Another limit from `now` on. Nobody gains tokens by it, not even who has no place.
    pub fn set_limit(&mut self, now: Instant, limit: Limit) {
        let (old, new) = (self.terms, Gcra::new(now, limit));
        for set in &mut self.sets {
            for word in set.words.iter_mut().filter(|word| **word != Gcra::FULL) {
                *word = old.convert(*word, now, &new).max(Gcra::FULL + 1);
            }
            set.cell = old.convert(set.cell, now, &new);
        }
        self.terms = new;
    }

    /// Another limit in another unit, for the same keys: nobody has tokens, and who owes some earns none
    /// before it would have paid them.
    pub fn recount(&mut self, now: Instant, limit: Limit) {
        let (old, new) = (self.terms, Gcra::new(now, limit));
        for set in &mut self.sets {
            let known = set.words.iter_mut().filter(|word| **word != Gcra::FULL);
            for word in known.chain([&mut set.cell]) {
                *word = new.empty(old.clear(*word).max(now));
            }
        }
        self.terms = new;
    }

    /// Room for another number of keys. Who is known keeps its bucket; strangers start from the
    /// strictest cell there was.
    pub fn resize(&mut self, now: Instant, keys: usize) {
        let mut resized = Self::new(now, self.limit(), keys);
        if resized.sets.len() == self.sets.len() {
            return;
        }
        resized.terms = self.terms;
        let cell = self.sets.iter().map(|set| set.cell).max().unwrap_or(Gcra::FULL);
        resized.sets.iter_mut().for_each(|set| set.cell = cell);
        for set in &self.sets {
            let kept = set.keys.iter().zip(&set.words).filter(|(_, word)| **word != Gcra::FULL);
            for (key, word) in kept {
                let (at, place) = resized.find(*key);
                resized.store(now, at, place, *key, *word);
            }
        }
        *self = resized;
    }

    /// Other terms for other keys: nobody has tokens, and nobody earns any while somebody would still
    /// have owed some.
    pub fn restart(&mut self, now: Instant, limit: Limit, keys: usize) {
        let words = self.sets.iter().flat_map(|set| set.words.iter().chain([&set.cell]));
        let latest = words.copied().max().unwrap_or(Gcra::FULL);
        let from = self.terms.clear(latest).max(now);
        *self = Self::new(now, limit, keys);
        let cell = self.terms.empty(from);
        self.sets.iter_mut().for_each(|set| set.cell = cell);
    }

    /// Panics if the state contradicts itself.
    pub fn invariants(&self) {
        for set in &self.sets {
            for (place, key) in set.keys.iter().enumerate() {
                let kept = |at: usize| set.words[at] != Gcra::FULL && set.keys[at] == *key;
                assert!(!kept(place) || (0..place).all(|at| !kept(at)), "a key has one place");
            }
        }
    }

    fn find(&self, key: u64) -> (usize, Option<usize>) {
        let at = mix(key) as usize & (self.sets.len() - 1);
        let set = &self.sets[at];
        let place = (0..WAYS).find(|way| set.keys[*way] == key && set.words[*way] != Gcra::FULL);
        (at, place)
    }

    fn store(&mut self, now: Instant, set: usize, place: Option<usize>, key: u64, word: u64) {
        let set = &mut self.sets[set];
        let place = place.unwrap_or_else(|| {
            let fullest = (0..WAYS).min_by_key(|way| set.words[*way]).expect("a set has places");
            if !self.terms.is_full(set.words[fullest], now) {
                set.cell = set.cell.max(set.words[fullest]);
            }
            fullest
        });
        (set.keys[place], set.words[place]) = (key, word);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::Bucket;
    use super::*;

    fn at(nanos: u64) -> Instant {
        Instant::from_nanos(nanos)
    }

    #[test]
    fn a_key_that_was_pushed_out_finds_its_debt() {
        let mut keyed = Keyed::new(at(0), Limit::new(1.0, 10.0), 8);
        keyed.take(at(0), 1, 10.0).unwrap();
        for key in 2..40 {
            // Each owes more than the last, so that the first ones go.
            let _ = keyed.take(at(0), key, 10.0);
        }
        assert!(keyed.take(at(0), 1, 1.0).is_err());
        // When the debt is earned everybody is as new.
        assert!(keyed.take(at(10_000_000_000), 1, 10.0).is_ok());
    }

    #[test]
    fn a_larger_burst_mints_nothing_for_strangers() {
        let mut keyed = Keyed::new(at(0), Limit::new(1.0, 2.0), 8);
        keyed.set_limit(at(0), Limit::new(1.0, 100.0));
        assert_eq!(keyed.tokens(at(0), 77), 2.0);
        assert_eq!(keyed.tokens(at(3_000_000_000), 77), 5.0);
    }

    #[test]
    fn costs_that_are_none_change_nothing() {
        let mut keyed = Keyed::new(at(0), Limit::new(1.0, 4.0), 8);
        keyed.take(at(0), 1, 3.0).unwrap();
        for cost in [f64::NAN, -1.0, f64::NEG_INFINITY] {
            assert_eq!(keyed.take(at(0), 1, cost), Err(Shortage::Never), "{cost}");
            keyed.charge(at(0), 1, cost, 4.0);
            keyed.refund(1, cost);
            assert_eq!(keyed.tokens(at(0), 1), 1.0, "{cost}");
            // Nor does a stranger get a place by it.
            assert_eq!(keyed.take(at(0), 2, cost), Err(Shortage::Never), "{cost}");
        }
        assert_eq!(keyed.take(at(0), 1, f64::INFINITY), Err(Shortage::Never));
        keyed.refund(1, f64::INFINITY);
        assert_eq!(keyed.tokens(at(0), 1), 1.0);
        keyed.invariants();
    }

    proptest! {
        /// What passes for a key would have passed at a bucket of its own, whatever other keys do:
        /// the bucket is asked only for what passed here, and must never be short.
        #[test]
        fn nobody_is_treated_more_loosely(
            ops in prop::collection::vec((0..10u8, 0..60u64, 0..400_000_000u64, 1..12u32), 1..300),
        ) {
            let mut limit = Limit::new(4.0, 3.0);
            // Two sets of eight for sixty keys.
            let mut keyed = Keyed::new(at(0), limit, 16);
            let mut own = vec![Bucket::full(at(0), limit); 60];
            let mut now = 0;
            for (op, key, step, n) in ops {
                now += step;
                let cost = f64::from(n) / 4.0;
                if op == 0 {
                    limit = Limit::new(f64::from(n), f64::from(n % 4 + 1));
                    keyed.set_limit(at(now), limit);
                    own.iter_mut().for_each(|bucket| bucket.set_limit(at(now), limit));
                } else if keyed.take(at(now), key, cost).is_ok() {
                    let bucket = &mut own[key as usize];
                    let fits = bucket.take_cost(at(now), cost);
                    prop_assert!(fits.is_ok(), "{cost} of {key}: {:?}", bucket);
                    if op == 1 {
                        keyed.refund(key, cost);
                        bucket.refund(at(now), cost);
                    }
                }
                keyed.invariants();
            }
        }

        /// With room for all it is a bucket each.
        #[test]
        fn with_room_for_all_it_is_exact(
            ops in prop::collection::vec((0..8u64, 0..400_000_000u64, 0..12u32), 1..200),
        ) {
            let limit = Limit::new(4.0, 3.0);
            let mut keyed = Keyed::new(at(0), limit, 4096);
            let mut own = vec![Bucket::full(at(0), limit); 8];
            let mut now = 0;
            for (key, step, n) in ops {
                now += step;
                let cost = f64::from(n) / 4.0;
                let exact = own[key as usize].take_cost(at(now), cost);
                prop_assert_eq!(keyed.take(at(now), key, cost), exact);
            }
        }
    }
}
