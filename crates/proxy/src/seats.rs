//! Who is connected: how many there may be, of one address and in all, and who goes when somebody else wants in.
//!
//! A connection that waits for nothing costs little, but it has a place that somebody else may need. So none is
//! turned away while another is idle:
//!
//! 1. An address has at most `per_address` connections. Beyond, the one of its own that has been there for longest without
//!    a request on its way makes room.
//! 2. All together there are at most `most`. Beyond, one of the address that has most of them makes room, likewise, or
//!    else one of any other.
//! 3. Where all are at work, or are tunnels, the new one is turned away.
//!
//! Proxies that we trust speak for many, so their connections are nobody's, until the PROXY protocol says whose they are.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::address;
use crate::connection::Pulse;

/// All connections of a process.
#[derive(Debug, Default)]
pub(crate) struct Seats {
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    /// By when they came.
    all: BTreeMap<u64, Arc<Guest>>,
    /// The same of each address that is known.
    by: BTreeMap<IpAddr, BTreeMap<u64, Arc<Guest>>>,
    next: u64,
}

/// One connection.
#[derive(Debug, Default)]
struct Guest {
    pulse: Arc<Pulse>,
    /// Whether it is a tunnel.
    busy: AtomicBool,
    leave: Notify,
    address: Mutex<Option<IpAddr>>,
}

impl Guest {
    fn is_idle(&self) -> bool {
        !self.busy.load(Ordering::Relaxed) && self.pulse.is_idle()
    }
}

/// Why there is no seat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Full;

impl Seats {
    /// A seat for somebody, where there are `most`; and whether another has to leave for it.
    pub(crate) fn take(self: &Arc<Self>, most: u64) -> Result<(Seat, bool), Full> {
        let mut taken = self.lock();
        let full = taken.all.len() as u64 >= most;
        if full {
            let victim = taken.idle_of_most().ok_or(Full)?;
            taken.dismiss(victim);
        }
        let number = taken.next;
        taken.next += 1;
        let guest = Arc::new(Guest::default());
        taken.all.insert(number, Arc::clone(&guest));
        Ok((Seat { seats: Arc::clone(self), number, guest }, full))
    }

    fn lock(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Taken {
    /// The idle one that came first, of the address that has most; or of all.
    fn idle_of_most(&self) -> Option<u64> {
        let most = self.by.values().max_by_key(|of_one| of_one.len());
        most.and_then(first_idle).or_else(|| first_idle(&self.all))
    }

    fn dismiss(&mut self, number: u64) {
        if let Some(guest) = self.all.get(&number).cloned() {
            self.remove(number);
            guest.leave.notify_one();
        }
    }

    fn remove(&mut self, number: u64) {
        let Some(guest) = self.all.remove(&number) else { return };
        let address = guest.address.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(address) = address else { return };
        if let Some(of_one) = self.by.get_mut(&address) {
            of_one.remove(&number);
            if of_one.is_empty() {
                self.by.remove(&address);
            }
        }
    }
}

fn first_idle(guests: &BTreeMap<u64, Arc<Guest>>) -> Option<u64> {
    guests.iter().find(|(_, guest)| guest.is_idle()).map(|(number, _)| *number)
}

/// A connection's seat, until it is dropped.
#[derive(Debug)]
pub(crate) struct Seat {
    seats: Arc<Seats>,
    number: u64,
    guest: Arc<Guest>,
}

impl Seat {
    /// It is `address` that sits here, which may have so many seats (0 is any number); and whether another of its own has
    /// to leave for it.
    pub(crate) fn name(&self, address: IpAddr, per_address: u64) -> Result<bool, Full> {
        let address = address::neighbourhood(address);
        let mut taken = self.seats.lock();
        // It may have been told to leave already.
        if !taken.all.contains_key(&self.number) {
            return Ok(false);
        }
        let own = taken.by.get(&address);
        let full = per_address > 0 && own.is_some_and(|own| own.len() as u64 >= per_address);
        if full {
            let victim = own.and_then(first_idle).ok_or(Full)?;
            taken.dismiss(victim);
        }
        *self.guest.address.lock().unwrap_or_else(PoisonError::into_inner) = Some(address);
        taken.by.entry(address).or_default().insert(self.number, Arc::clone(&self.guest));
        Ok(full)
    }

    /// What moves on the connection.
    pub(crate) fn pulse(&self) -> &Arc<Pulse> {
        &self.guest.pulse
    }

    /// Resolves when it has to leave.
    pub(crate) async fn leave(&self) {
        self.guest.leave.notified().await;
    }

    /// It has become a tunnel, which is never idle.
    pub(crate) fn become_tunnel(&self) {
        self.guest.busy.store(true, Ordering::Relaxed);
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.seats.lock().remove(self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sits(seat: &Seat) -> bool {
        seat.seats.lock().all.contains_key(&seat.number)
    }

    #[test]
    fn who_is_idle_makes_room_and_who_is_at_work_does_not() {
        let seats = Arc::new(Seats::default());
        let peer = |n: u8| IpAddr::from([10, 0, 0, n]);
        let take = |n, most, each| {
            let (seat, _) = seats.take(most)?;
            seat.name(peer(n), each).map(|_| seat)
        };
        let first: Vec<Seat> = (0..3).map(|_| take(1, 4, 3).expect("room")).collect();
        first[0].become_tunnel();
        let fourth = take(1, 4, 3).expect("one of its own makes room");
        assert_eq!([&first[0], &first[1], &first[2], &fourth].map(sits), [true, false, true, true]);
        let other = take(2, 4, 3).expect("room");
        let next = take(2, 4, 3).expect("one of the address with most makes room");
        assert_eq!([&first[2], &fourth, &other, &next].map(sits), [false, true, true, true]);
        [&fourth, &other, &next].into_iter().for_each(Seat::become_tunnel);
        assert_eq!(take(3, 4, 3).err(), Some(Full), "all are at work");
        assert_eq!(take(1, 5, 2).err(), Some(Full), "all of its own are");
        drop((first, fourth, other, next));
        let taken = seats.lock();
        assert_eq!((taken.all.len(), taken.by.len()), (0, 0));
    }
}
