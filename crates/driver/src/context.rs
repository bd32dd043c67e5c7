//! The [`Context`] of the request a task works for, so that calls made on its behalf keep its rank,
//! workflow and deadline, whichever driver it came in by and whichever it goes out by.
//!
//! It belongs to the task, not to the thread: [`scope`] sets it around each poll of a future and
//! takes it back afterwards. What is spawned from inside is another task and starts without one;
//! hand it on with `spawn(scope(context, future))`. To override the criticality of a part of a
//! handler, run that part in a scope of its own.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::pin::pin;

use tidegate_core::feedback::GateId;
use tidegate_core::rng::Rng;
use tidegate_core::{Context, Gate, Instant, Progress, RequestId, Span};

use crate::random_seed;

thread_local! {
    static CURRENT: Cell<Option<Current>> = const { Cell::new(None) };
    static LOTS: RefCell<Rng> = RefCell::new(Rng::new(random_seed()));
}

#[derive(Clone, Copy, Debug)]
struct Current {
    context: Context,
    parent: Option<Parent>,
}

/// A request in a gate of this process: whose progress the calls of a task belong to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parent {
    /// The gate.
    pub gate: GateId,
    /// Who it is there.
    pub request: RequestId,
    /// Service time of its own that the gate has not been told of, up to `since`.
    pub worked: Span,
    /// It works since then, [`Instant::FAR`] if it does not.
    pub since: Instant,
}

impl Parent {
    /// The request at `now`: waiting for what it calls is no work.
    #[must_use]
    pub fn as_of(self, now: Instant) -> Self {
        Self { worked: self.worked + now.since(self.since), since: Instant::FAR, ..self }
    }

    /// How far it has come: what it came with, what was done here and below, and what it does now; none if
    /// it is no request of `gate`, or has ended.
    pub fn progress(&self, gate: &Gate, now: Instant) -> Option<Progress> {
        let mut progress = self.is_in(gate).then(|| gate.progress(self.request)).flatten()?;
        progress.add_step(self.as_of(now).worked);
        Some(progress)
    }

    /// Whether it is a request of `gate` that has not ended.
    pub fn is_in(&self, gate: &Gate) -> bool {
        gate.id() == self.gate && gate.request(self.request).is_some()
    }
}

/// A context as it came in, with a lot if it names no user: what is done for the request inherits the lot, so that all
/// gates on its way agree whether it is one to refuse.
pub fn draw(context: Context) -> Context {
    LOTS.with_borrow_mut(|lots| context.draw(lots))
}

/// The context this code runs in, none outside of any request.
pub fn current() -> Option<Context> {
    CURRENT.get().map(|current| current.context)
}

/// The request this code works for, if it has a slot of a gate of this process.
pub fn parent() -> Option<Parent> {
    CURRENT.get().and_then(|current| current.parent)
}

/// Runs `future` in `context`: it sees it by [`current`] in each of its polls.
pub async fn scope<F: Future>(context: Context, future: F) -> F::Output {
    let mut future = pin!(future);
    poll_fn(|cx| {
        let _entered = enter(context);
        future.as_mut().poll(cx)
    })
    .await
}

/// Makes `context` the current one of this thread until the guard is dropped: for futures written
/// by hand, around one poll. The work is for the same request as before, if for any.
pub fn enter(context: Context) -> Entered {
    let parent = parent();
    Entered { outer: CURRENT.replace(Some(Current { context, parent })) }
}

/// The same for work that is done for `parent`.
pub fn enter_for(context: Context, parent: Option<Parent>) -> Entered {
    Entered { outer: CURRENT.replace(Some(Current { context, parent })) }
}

/// Puts the former context back when it is dropped, also by a panic.
#[derive(Debug)]
#[must_use = "the context is left at once when the guard is dropped"]
pub struct Entered {
    outer: Option<Current>,
}

impl Drop for Entered {
    fn drop(&mut self) {
        CURRENT.set(self.outer);
    }
}

#[cfg(test)]
mod tests {
    use std::task::{Poll, Waker};

    use super::*;
    use tidegate_core::Rank;
    use tidegate_core::gate::GateConfig;

    fn of_rank(business: u8) -> Context {
        Context { rank: Rank::new(business, 0), ..Context::default() }
    }

    fn rank_now() -> Option<Rank> {
        current().map(|context| context.rank)
    }

    /// Two tasks that take turns on one thread do not see each other's context.
    #[test]
    fn a_context_belongs_to_its_task() {
        let two_polls = |business| {
            scope(of_rank(business), async move {
                assert_eq!(rank_now(), Some(Rank::new(business, 0)));
                let mut polled = false;
                poll_fn(|_| {
                    if std::mem::replace(&mut polled, true) {
                        Poll::Ready(())
                    } else {
                        Poll::Pending
                    }
                })
                .await;
                assert_eq!(rank_now(), Some(Rank::new(business, 0)));
            })
        };
        let (mut one, mut two) = (pin!(two_polls(3)), pin!(two_polls(7)));
        let mut cx = std::task::Context::from_waker(Waker::noop());
        assert!(one.as_mut().poll(&mut cx).is_pending());
        assert_eq!(rank_now(), None);
        assert!(two.as_mut().poll(&mut cx).is_pending());
        assert!(one.as_mut().poll(&mut cx).is_ready());
        assert!(two.as_mut().poll(&mut cx).is_ready());
        assert_eq!(rank_now(), None);
    }

    #[test]
    fn scopes_nest_and_a_panic_leaves_them() {
        let _outer = enter(of_rank(5));
        let panicked = std::panic::catch_unwind(|| {
            let _inner = enter(of_rank(9));
            assert_eq!(rank_now(), Some(Rank::new(9, 0)));
            panic!("the handler's own");
        });
        assert!(panicked.is_err());
        assert_eq!(rank_now(), Some(Rank::new(5, 0)));
    }

    /// What a request does counts until a call is made for it, not what it waits for the answer; and it counts
    /// for nobody else.
    #[test]
    fn a_parent_has_worked_until_it_calls() {
        let at = |millis| Instant::ZERO + Span::from_millis(millis);
        let config = GateConfig::from_toml("admission = { policy = 'open' }").unwrap();
        let mut gate = Gate::new(&config, at(0), 1).unwrap();
        let request = gate.arrive(at(0), &Context::default()).unwrap();
        let parent =
            Parent { gate: gate.id(), request, worked: Span::from_millis(2), since: at(10) };
        let elapsed = |parent: Parent, gate: &Gate, now| {
            parent.progress(gate, at(now)).map(|progress| progress.elapsed)
        };
        assert_eq!(elapsed(parent, &gate, 13), Some(Span::from_millis(5)));
        assert_eq!(elapsed(parent.as_of(at(13)), &gate, 99), Some(Span::from_millis(5)));
        let other = Gate::new(&config, at(0), 2).unwrap();
        assert_eq!(elapsed(parent, &other, 13), None);
        gate.cancel(at(20), request);
        assert_eq!(elapsed(parent, &gate, 21), None);
    }
}
