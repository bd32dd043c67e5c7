//! [`Places`]: how many requests there may be that hold no slot, in all and of one address.
//!
//! What takes no slot has a bound all the same, or a stranger could have any number of it: bodies that are not there
//! yet, streams, tunnels. Each kind has its own places.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// The places of one kind.
#[derive(Debug, Default)]
pub(crate) struct Places(Mutex<Taken>);

#[derive(Debug, Default)]
struct Taken {
    all: u32,
    by_address: BTreeMap<IpAddr, u32>,
}

/// How many there may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bounds {
    pub(crate) most: u32,
    pub(crate) per_address: u32,
}

/// Why there is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lack {
    /// All are taken.
    Full(u32),
    /// This address has as many as one may have.
    Own(u32),
}

impl fmt::Display for Lack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Full(most) => write!(f, "there are {most} of them, and may be no more"),
            Self::Own(most) => write!(f, "{most} of them are yours, and you may have no more"),
        }
    }
}

/// One of them, until it is dropped.
#[derive(Debug)]
pub(crate) struct Place {
    places: Arc<Places>,
    address: IpAddr,
}

impl Places {
    /// Takes a place for a request from `address`.
    pub(crate) fn take(self: &Arc<Self>, address: IpAddr, bounds: Bounds) -> Result<Place, Lack> {
        let mut taken = self.lock();
        if taken.all >= bounds.most {
            return Err(Lack::Full(bounds.most));
        }
        let own = taken.by_address.get(&address).copied().unwrap_or(0);
        if own >= bounds.per_address {
            return Err(Lack::Own(bounds.per_address));
        }
        taken.by_address.insert(address, own + 1);
        taken.all += 1;
        Ok(Place { places: Arc::clone(self), address })
    }

    /// How many are taken.
    pub(crate) fn taken(&self) -> u32 {
        self.lock().all
    }

    fn lock(&self) -> MutexGuard<'_, Taken> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.places.lock();
        taken.all -= 1;
        if let Some(own) = taken.by_address.get_mut(&self.address) {
            *own -= 1;
            if *own == 0 {
                taken.by_address.remove(&self.address);
            }
        }
    }
}

/// Time between two bodies of one address that are given a slot although they are not there. Each stands still in it for
/// 10 ms before it is given back: so no more than a twentieth of a slot is lost by one address.
const BETWEEN: Duration = Duration::from_millis(200);
/// Addresses that are remembered before those that have no debts are forgotten.
const REMEMBERED: usize = 1024;

/// Turns of bodies that are not there.
#[derive(Debug, Default)]
pub(crate) struct Turns(Mutex<BTreeMap<IpAddr, Instant>>);

impl Turns {
    /// How long `address` has to wait for those it has had.
    pub(crate) fn owed(&self, address: IpAddr, now: Instant) -> Duration {
        let free = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        free.get(&address).map_or(Duration::ZERO, |free| free.saturating_duration_since(now))
    }

    /// How long the next of `address` has to wait.
    pub(crate) fn book(&self, address: IpAddr, now: Instant) -> Duration {
        let mut free = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if free.len() >= REMEMBERED {
            free.retain(|_, free| *free > now);
        }
        let free = free.entry(address).or_insert(now);
        let wait = free.saturating_duration_since(now);
        *free = now + wait + BETWEEN;
        wait
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_counted_in_all_and_by_address_and_given_back() {
        let places = Arc::<Places>::default();
        let bounds = Bounds { most: 3, per_address: 2 };
        let of = |host: u8| IpAddr::from([10, 0, 0, host]);
        let own = [places.take(of(1), bounds), places.take(of(1), bounds)];
        assert!(own.iter().all(Result::is_ok));
        assert_eq!(places.take(of(1), bounds).unwrap_err(), Lack::Own(2));
        let other = places.take(of(2), bounds).expect("the last");
        assert_eq!(places.take(of(3), bounds).unwrap_err(), Lack::Full(3));
        drop((own, other));
        assert_eq!((places.taken(), places.lock().by_address.len()), (0, 0));
    }

    #[test]
    fn turns_of_one_address_come_one_after_the_other() {
        let (turns, now) = (Turns::default(), Instant::now());
        let [one, other] = [1, 2].map(|host| IpAddr::from([10, 0, 0, host]));
        assert_eq!([(); 3].map(|()| turns.book(one, now)), [0, 1, 2].map(|n| BETWEEN * n));
        assert_eq!(turns.book(other, now), Duration::ZERO);
        assert_eq!(turns.book(one, now + 5 * BETWEEN), Duration::ZERO);
    }
}
