//! Requests for exempt paths, which the gate is not asked about: bounded, so that they are no way around it.
//!
//! Health must be told whatever the load, but what passes the gate is work all the same, and anybody can ask for it. So
//! there are a few places, of which an address has a quarter; who finds none is no longer exempt, and the gate is asked.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// How many requests may be beside the gate.
#[derive(Debug)]
pub(super) struct Places {
    most: usize,
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    all: usize,
    by: BTreeMap<IpAddr, usize>,
}

/// One of them, until it is dropped.
#[derive(Debug)]
pub(crate) struct Place {
    places: Arc<Places>,
    address: Option<IpAddr>,
}

impl Places {
    /// As many as the sidecar has.
    pub(super) const DEFAULT: usize = 8;
    /// What an address may take of them: a quarter.
    const SHARE: usize = 4;

    pub(super) fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { most, taken: Mutex::default() })
    }

    /// A place for a request from `address`; without one it has no share, and all of them bound it.
    pub(super) fn take(self: &Arc<Self>, address: Option<IpAddr>) -> Option<Place> {
        let mut taken = self.lock();
        let own = address.and_then(|address| taken.by.get(&address)).copied().unwrap_or(0);
        let share = if address.is_some() { self.most.div_ceil(Self::SHARE) } else { self.most };
        if taken.all >= self.most || own >= share {
            return None;
        }
        taken.all += 1;
        if let Some(address) = address {
            taken.by.insert(address, own + 1);
        }
        Some(Place { places: Arc::clone(self), address })
    }

    fn lock(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.places.lock();
        taken.all -= 1;
        if let Some(address) = self.address
            && let Some(own) = taken.by.get_mut(&address)
        {
            *own -= 1;
            if *own == 0 {
                taken.by.remove(&address);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_a_quarter_and_nothing_is_kept_of_who_is_gone() {
        let places = Places::new(8);
        let address = |n| Some(IpAddr::from([10, 0, 0, n]));
        let own = [places.take(address(1)), places.take(address(1))];
        assert!(own.iter().all(Option::is_some) && places.take(address(1)).is_none());
        let others: Vec<Place> = (2..8).filter_map(|n| places.take(address(n))).collect();
        assert_eq!(others.len(), 6);
        assert!(places.take(None).is_none() && places.take(address(9)).is_none());
        drop((own, others));
        assert!(places.lock().by.is_empty() && places.lock().all == 0);
        assert_eq!((0..9).map_while(|_| places.take(None)).collect::<Vec<_>>().len(), 8);
    }
}
