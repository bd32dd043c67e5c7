//! Responses that take long are streams: they give their slot back and count against a limit of
//! their own.
//!
//! A slot is the right to be executing. A response whose last byte is not out a second after its
//! head waits for something else: for a client that reads slowly, or for events that come when they
//! come. With its slot it would shrink the gate, and its lifetime says nothing about load. So it is
//! *lent* a place among the streams, and its slot goes to whoever waits. When there are too many
//! streams it keeps its slot, and asks again later.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tidegate_core::{Outcome, Span};
use tokio::runtime::Handle;
use tokio::task::AbortHandle;

use crate::body::Held;

/// When responses become streams, and how many there may be.
#[derive(Debug)]
pub(crate) struct Streams {
    pub(crate) after: Span,
    pub(crate) limit: usize,
    open: Arc<AtomicUsize>,
}

impl Streams {
    pub(crate) fn open(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }

    fn enter(&self) -> Option<Place> {
        let room = |open: usize| (open < self.limit).then_some(open + 1);
        let entered = self.open.fetch_update(Ordering::Relaxed, Ordering::Relaxed, room);
        entered.is_ok().then(|| Place(Arc::clone(&self.open)))
    }
}

impl Default for Streams {
    fn default() -> Self {
        Self { after: Span::from_secs(1), limit: 16_384, open: Arc::default() }
    }
}

impl Clone for Streams {
    /// The same streams under other limits.
    fn clone(&self) -> Self {
        Self { open: Arc::clone(&self.open), ..*self }
    }
}

/// A place among the streams, given back when it is dropped.
#[derive(Debug)]
struct Place(Arc<AtomicUsize>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What a response holds whose body takes more than one poll: first its slot, later a place among
/// the streams. A timer makes the exchange, since a body whose client stalls is not polled.
#[derive(Debug)]
pub(crate) struct Lease {
    holds: Arc<Mutex<Holds>>,
    timer: Option<AbortHandle>,
}

#[derive(Debug)]
enum Holds {
    Slot(Held),
    Stream { _place: Place },
    Nothing,
}

impl Lease {
    pub(crate) fn new(held: Held, streams: &Arc<Streams>) -> Self {
        let holds = Arc::new(Mutex::new(Holds::Slot(held)));
        // Without a runtime there are no timers, and the slot is kept to the end.
        let timer = Handle::try_current().ok().map(|runtime| {
            let task = exchange(Arc::clone(&holds), Arc::clone(streams));
            runtime.spawn(task).abort_handle()
        });
        Self { holds, timer }
    }

    /// The body has ended: a slot that it still holds is finished, with this outcome if the body
    /// broke.
    pub(crate) fn finish(self, broke: Option<Outcome>) {
        if let Holds::Slot(mut held) = replace(&self.holds, Holds::Nothing) {
            held.outcome = broke.unwrap_or(held.outcome);
            held.finish();
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.timer.iter().for_each(AbortHandle::abort);
        drop(replace(&self.holds, Holds::Nothing));
    }
}

/// Exchanges the slot for a place among the streams as soon as it is time and there is one.
async fn exchange(holds: Arc<Mutex<Holds>>, streams: Arc<Streams>) {
    loop {
        tokio::time::sleep(streams.after.into()).await;
        let Some(place) = streams.enter() else { continue };
        // To drop the slot cancels it, which says nothing about load.
        let former = {
            let mut holds = lock(&holds);
            match *holds {
                Holds::Slot(_) => std::mem::replace(&mut *holds, Holds::Stream { _place: place }),
                Holds::Stream { .. } | Holds::Nothing => Holds::Nothing,
            }
        };
        drop(former);
        return;
    }
}

/// What was held until now, to be dropped after the lock.
fn replace(holds: &Mutex<Holds>, by: Holds) -> Holds {
    std::mem::replace(&mut *lock(holds), by)
}

fn lock(holds: &Mutex<Holds>) -> std::sync::MutexGuard<'_, Holds> {
    holds.lock().unwrap_or_else(PoisonError::into_inner)
}
