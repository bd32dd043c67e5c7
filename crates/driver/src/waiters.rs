//! Who waits for the gate, and how to wake them.

use std::task::Waker;

use tidegate_core::slab::{Key, Slab};
use tidegate_core::{Rejection, RequestId};

/// Identity of a waiter. Not that of its request: a refused request ends in the gate at once and
/// its place is used again, while its waiter stays until it has heard of the refusal.
pub(crate) type WaiterId = Key;

/// What became of a request that waited.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fate {
    /// It has a slot.
    Start {
        /// Whether a cheaper answer is asked for.
        degraded: bool,
    },
    /// It was turned away.
    Refuse(Rejection),
}

#[derive(Debug)]
enum Waiter<F> {
    /// Waits; the waker is that of its last poll.
    Parked(Option<Waker>),
    /// Has not yet heard its fate.
    Told(F),
}

/// Waiters by their own id and by the request they wait for. `F` is what they are told: of gates
/// [`Fate`].
#[derive(Debug)]
pub(crate) struct Waiters<F = Fate> {
    waiters: Slab<Waiter<F>>,
    /// At each place of the gate the request that was there last and its waiter.
    by_place: Vec<(RequestId, WaiterId)>,
}

impl<F> Default for Waiters<F> {
    fn default() -> Self {
        Self { waiters: Slab::default(), by_place: Vec::new() }
    }
}

impl<F: Copy> Waiters<F> {
    /// Somebody waits for `request` from here on.
    pub(crate) fn add(&mut self, request: RequestId) -> WaiterId {
        let waiter = self.waiters.insert_with(|_| Waiter::Parked(None));
        if self.by_place.len() <= request.index() {
            self.by_place.resize(request.index() + 1, (RequestId::NOWHERE, WaiterId::NOWHERE));
        }
        self.by_place[request.index()] = (request, waiter);
        waiter
    }

    /// Notes the fate of `request` and returns the waker of its task, if that has asked already.
    pub(crate) fn tell(&mut self, request: RequestId, fate: F) -> Option<Waker> {
        let (known, waiter) = *self.by_place.get(request.index())?;
        debug_assert_eq!(known, request, "a place was used again before its request was told");
        match std::mem::replace(self.waiters.get_mut(waiter)?, Waiter::Told(fate)) {
            Waiter::Parked(waker) => waker,
            Waiter::Told(_) => None,
        }
    }

    /// The waiter asks: its fate, which ends it, or nothing yet, and `waker` is kept. The waker
    /// that was kept until now is given back to be dropped after the lock, since what its drop
    /// runs is not ours.
    pub(crate) fn ask(&mut self, id: WaiterId, waker: &Waker) -> Result<F, Option<Waker>> {
        match self.waiters.get_mut(id).expect("a ticket's waiter stays until it was told") {
            Waiter::Parked(Some(known)) if known.will_wake(waker) => Err(None),
            Waiter::Parked(known) => Err(known.replace(waker.clone())),
            &mut Waiter::Told(fate) => {
                self.waiters.remove(id);
                Ok(fate)
            }
        }
    }

    /// The fate of a waiter, which ends it, if it is known already.
    pub(crate) fn take_fate(&mut self, id: WaiterId) -> Option<F> {
        let Some(&Waiter::Told(fate)) = self.waiters.get(id) else { return None };
        self.waiters.remove(id);
        Some(fate)
    }

    /// Ends a waiter: its fate, or the waker to drop after the lock.
    pub(crate) fn remove(&mut self, id: WaiterId) -> Result<F, Option<Waker>> {
        match self.waiters.remove(id) {
            Some(Waiter::Told(fate)) => Ok(fate),
            Some(Waiter::Parked(waker)) => Err(waker),
            None => Err(None),
        }
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.waiters.len()
    }
}

/// Wakers collected under the lock and woken when this is dropped, after it: also when a panic ends
/// the step. The common case, one finish that starts one request, does not allocate.
#[derive(Debug, Default)]
pub(crate) struct Wakers {
    first: Option<Waker>,
    more: Vec<Waker>,
}

impl Wakers {
    pub(crate) fn extend(&mut self, waker: Option<Waker>) {
        match self.first {
            None => self.first = waker,
            Some(_) => self.more.extend(waker),
        }
    }
}

impl Drop for Wakers {
    fn drop(&mut self) {
        if let Some(first) = self.first.take() {
            first.wake();
            self.more.drain(..).for_each(Waker::wake);
        }
    }
}
