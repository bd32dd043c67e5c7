//! What tests of admission policies share.

use super::{Admission, AdmissionConfig};
use crate::context::Context;
use crate::meter::Cost;
use crate::rank::Rank;
use crate::request::{Cx, Request};
use crate::signal::Backlog;
use crate::slab::Key;
use crate::time::{Instant, Span};
use crate::verdict::{Outcome, Verdict};

/// The moment `micros` microseconds after the epoch.
pub(super) fn at(micros: u64) -> Instant {
    Instant::ZERO + Span::from_micros(micros)
}

/// A plain request that arrived at `arrived`.
pub(super) fn request(arrived: Instant) -> Request {
    Request {
        id: Key::NOWHERE,
        context: Context::default(),
        arrived,
        enqueued: arrived,
        cost: Cost(1_000),
        attained: Span::ZERO,
    }
}

/// A policy with the things a gate would lend it, and an empty queue.
pub(super) struct Bench<P: ?Sized = dyn Admission> {
    pub(super) policy: Box<P>,
    pub(super) backlog: Backlog,
    cx: Cx,
}

impl Bench {
    pub(super) fn new(config: &AdmissionConfig) -> Self {
        Self::with(config.build(Instant::ZERO))
    }
}

impl<P: Admission + ?Sized> Bench<P> {
    pub(super) fn with(policy: Box<P>) -> Self {
        let backlog = Backlog::new(policy.needs().ages);
        Self { policy, backlog, cx: Cx::new(Instant::ZERO, 1) }
    }

    /// A copy of the policy with all it has learned, and the same random numbers ahead.
    pub(super) fn clone_at_rest(&self) -> Self
    where
        Box<P>: Clone,
    {
        Self { policy: self.policy.clone(), backlog: self.backlog.clone(), cx: self.cx.clone() }
    }

    /// Lets the policy hear one fact at `now`, settled first as a gate would.
    pub(super) fn tell<T>(
        &mut self,
        now: Instant,
        fact: impl FnOnce(&mut P, &mut Cx, &Backlog) -> T,
    ) -> T {
        self.cx.now = now;
        self.policy.settle(&mut self.cx, &self.backlog);
        let answer = fact(&mut *self.policy, &mut self.cx, &self.backlog);
        self.policy.invariants();
        answer
    }

    pub(super) fn arrive(&mut self, now: Instant, rank: Rank) -> Verdict {
        let mut request = request(now);
        request.context.rank = rank;
        self.tell(now, |policy, cx, backlog| policy.on_arrival(cx, backlog, &request))
    }

    /// A request that waited for `sojourn` is about to start.
    pub(super) fn dequeue(&mut self, now: Instant, sojourn: Span) -> Verdict {
        let request = request(now - sojourn);
        self.tell(now, |policy, cx, backlog| policy.on_dequeue(cx, backlog, &request, sojourn))
    }

    /// A request of `rank` that arrived `latency` ago is served.
    pub(super) fn finish(&mut self, now: Instant, rank: Rank, latency: Span) {
        let mut request = request(now - latency);
        request.context.rank = rank;
        self.tell(now, |policy, cx, backlog| {
            policy.on_finish(cx, backlog, &request, Outcome::Serve, Cost(1_000));
        });
    }
}
