//! What the orders by a number have in common: each names its [`Order::key`], [`Keyed`] does the
//! rest with one heap.
//!
//! A key is worked out when a request, or its next step, joins; it must not change while it waits.
//! That is no restriction for any of them: what a request has received and what it still needs
//! change only while it runs, and slack, which does shrink while it waits, shrinks for all alike.

use std::fmt;
use std::marker::PhantomData;

use super::Scheduler;
use super::heap::Heap;
use crate::request::{Request, RequestId};
use crate::time::{Instant, Span};

/// An order of service given by one number per request.
pub trait Order: Clone + fmt::Debug + Send + 'static {
    /// The name used in configuration and figures.
    const NAME: &'static str;

    /// Smaller is served sooner; equal keys in the order they joined.
    fn key(request: &Request) -> u64;
}

/// A scheduler that serves the smallest [`Order::key`] of `O` first.
#[derive(Clone, Debug)]
pub struct Keyed<O> {
    heap: Heap,
    order: PhantomData<O>,
}

impl<O: Order> Default for Keyed<O> {
    fn default() -> Self {
        Self { heap: Heap::default(), order: PhantomData }
    }
}

impl<O: Order> Scheduler for Keyed<O> {
    fn name(&self) -> &'static str {
        O::NAME
    }

    fn push(&mut self, _now: Instant, request: &Request) {
        self.heap.push(O::key(request), request.id);
    }

    fn pop(&mut self, _now: Instant) -> Option<RequestId> {
        self.heap.pop()
    }

    fn remove(&mut self, id: RequestId) -> bool {
        self.heap.remove(id)
    }

    fn len(&self) -> usize {
        self.heap.len()
    }

    fn clone_box(&self) -> Box<dyn Scheduler> {
        Box::new(self.clone())
    }
}

/// Service a request still needs: along its whole path where the entry sent a total (Wisp §4.2:
/// total − elapsed), else what its present step is expected to cost here, read as nanoseconds.
pub(super) fn remaining(request: &Request) -> Span {
    let progress = &request.context.progress;
    if progress.total > Span::ZERO {
        progress.remaining()
    } else {
        // The gate has already taken off what earlier steps received.
        Span::from_nanos(request.cost.0)
    }
}
