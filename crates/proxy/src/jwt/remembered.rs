//! [`Remembered`]: tokens that were good, until they end.

use std::collections::{BTreeMap, VecDeque};

/// Most of them, at some 150 bytes each. Beyond, the oldest is verified again when it comes back.
const MOST: usize = 16_384;
/// Longest name of a user that is remembered.
const LONGEST: usize = 256;

#[derive(Debug, Default)]
pub(super) struct Remembered {
    known: BTreeMap<[u8; 32], Known>,
    /// In the order in which they came.
    order: VecDeque<[u8; 32]>,
}

#[derive(Debug)]
struct Known {
    user: String,
    /// In seconds since 1970.
    until: u64,
}

impl Remembered {
    pub(super) fn get(&self, token: &[u8; 32], now: u64) -> Option<String> {
        self.known.get(token).filter(|known| now < known.until).map(|known| known.user.clone())
    }

    pub(super) fn put(&mut self, token: [u8; 32], user: String, until: u64) {
        if user.len() > LONGEST || self.known.insert(token, Known { user, until }).is_some() {
            return;
        }
        self.order.push_back(token);
        if self.order.len() > MOST
            && let Some(oldest) = self.order.pop_front()
        {
            self.known.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_only_so_many_and_none_after_its_end() {
        let mut remembered = Remembered::default();
        let name = |n: usize| {
            let mut name = [0; 32];
            name[..8].copy_from_slice(&n.to_le_bytes());
            name
        };
        for n in 0..MOST + 10 {
            // Twice the same is one.
            (0..2).for_each(|_| remembered.put(name(n), n.to_string(), 100));
        }
        assert_eq!((remembered.known.len(), remembered.order.len()), (MOST, MOST));
        assert_eq!(remembered.get(&name(9), 1), None);
        assert_eq!(remembered.get(&name(10), 99).as_deref(), Some("10"));
        assert_eq!(remembered.get(&name(10), 100), None);
        remembered.put(name(MOST + 20), "x".repeat(LONGEST + 1), 100);
        assert_eq!(remembered.get(&name(MOST + 20), 1), None);
    }
}
