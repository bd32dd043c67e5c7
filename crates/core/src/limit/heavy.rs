//! Who asks most, in bounded memory: the space-saving sketch.
//!
//! 1. A key that is kept is counted.
//! 2. A key that is not takes the place of the one with the smallest count, and its count too: that
//!    is how much it can have been counted too high.
//!
//! With k places, whoever makes up more than 1/k of all that was counted is among them (Metwally,
//! Agrawal, El Abbadi 2005).

/// One of those who ask most.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Heavy {
    /// Who: a caller's id or a workflow's number.
    pub key: u64,
    /// How much it asked for, at most.
    pub count: f64,
    /// How much of that may be somebody else's.
    pub error: f64,
}

/// The largest of a stream of keys.
#[derive(Clone, Debug, Default)]
pub struct HeavyHitters {
    places: Vec<Heavy>,
    total: f64,
}

impl HeavyHitters {
    /// Places kept: who takes more than a thirty-second of everything is found.
    pub const PLACES: usize = 32;

    /// Counts `amount` for `key`.
    pub fn add(&mut self, key: u64, amount: f64) {
        self.total += amount;
        if let Some(place) = self.places.iter_mut().find(|place| place.key == key) {
            place.count += amount;
            return;
        }
        if self.places.len() < Self::PLACES {
            self.places.push(Heavy { key, count: amount, error: 0.0 });
            return;
        }
        let least = self.places.iter_mut().min_by(|a, b| a.count.total_cmp(&b.count));
        let least = least.expect("there are places");
        *least = Heavy { key, count: least.count + amount, error: least.count };
    }

    /// Those who asked most, largest first.
    pub fn top(&self) -> Vec<Heavy> {
        let mut top = self.places.clone();
        top.sort_by(|a, b| b.count.total_cmp(&a.count).then(a.key.cmp(&b.key)));
        top
    }

    /// All that was counted.
    pub fn total(&self) -> f64 {
        self.total
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Counts are never too low, too high by no more than they say, and nobody large is missed.
        #[test]
        fn the_large_are_found(keys in prop::collection::vec(0..200u64, 1..2_000)) {
            let mut heavy = HeavyHitters::default();
            let mut exact: BTreeMap<u64, f64> = BTreeMap::new();
            for key in keys {
                // Squared, so that small keys are frequent.
                let key = key * key / 400;
                heavy.add(key, 1.0);
                *exact.entry(key).or_default() += 1.0;
            }
            let top = heavy.top();
            prop_assert!(top.len() <= HeavyHitters::PLACES);
            for place in &top {
                let truth = exact[&place.key];
                prop_assert!(place.count >= truth && place.count - place.error <= truth);
            }
            for (key, count) in exact {
                let found = top.iter().any(|place| place.key == key);
                prop_assert!(found || count <= heavy.total() / HeavyHitters::PLACES as f64);
            }
        }
    }
}
