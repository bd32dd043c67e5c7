//! Adaptive lifo ("Fail at Scale", Facebook 2015): first come, first served in good times, newest
//! first in bad ones.
//!
//! In a standing queue every request waits about as long as callers are willing to, so a server
//! that is fair in the order of arrival answers everybody too late. Serving the newest answers most
//! of them at once, and those it leaves behind would have been too late anyway.
//!
//! 1. While the queue has been empty at some moment during the last `interval`: oldest first.
//! 2. Once something has waited all that time, the backlog *stands*: newest first, until the queue
//!    is empty.
//!
//! The article does not say when a backlog counts as one; the interval is the one its controlled
//! delay uses for the same question. It also leaves the oldest to starve. Here an oldest whose
//! deadline has passed is handed out first: the gate answers it with a refusal, which takes no
//! slot, and asks again. So a caller with a deadline hears by its deadline, and the queue does not
//! fill with the dead.
//!
//! Newest first also turns round the order of one connection's requests; where that matters, use
//! another order.

use serde::{Deserialize, Serialize};

use super::Scheduler;
use crate::config::Problems;
use crate::list::{Links, List};
use crate::request::{Request, RequestId};
use crate::table;
use crate::time::{Instant, Span};

/// Oldest first, or newest first while a backlog stands. Everything takes constant time.
#[derive(Clone, Debug)]
pub struct AdaptiveLifo {
    interval: Span,
    /// What waits, oldest first.
    list: List,
    links: Links,
    /// Id and deadline of what waits at each place.
    waiting: Vec<Option<(RequestId, Instant)>>,
    len: usize,
    /// When the queue was last empty; meaningful while something waits.
    empty_until: Instant,
}

impl AdaptiveLifo {
    /// An empty queue.
    pub fn new(config: &AdaptiveLifoConfig) -> Self {
        Self {
            interval: config.interval,
            list: List::EMPTY,
            links: Links::default(),
            waiting: Vec::new(),
            len: 0,
            empty_until: Instant::ZERO,
        }
    }

    /// Which place is next.
    fn next(&self, now: Instant) -> Option<usize> {
        let oldest = self.list.front()?;
        let stands = now.since(self.empty_until) >= self.interval;
        let expired = self.waiting[oldest].is_some_and(|(_, deadline)| deadline <= now);
        if stands && !expired { self.list.back() } else { Some(oldest) }
    }

    fn take(&mut self, place: usize) -> Option<RequestId> {
        self.links.remove(&mut self.list, place);
        self.len -= 1;
        self.waiting[place].take().map(|(id, _)| id)
    }
}

impl Scheduler for AdaptiveLifo {
    fn name(&self) -> &'static str {
        "adaptive-lifo"
    }

    fn push(&mut self, now: Instant, request: &Request) {
        if self.list.is_empty() {
            self.empty_until = now;
        }
        let place = request.id.index();
        *table::at(&mut self.waiting, place, || None) =
            Some((request.id, request.context.deadline));
        self.links.push_back(&mut self.list, place);
        self.len += 1;
    }

    fn pop(&mut self, now: Instant) -> Option<RequestId> {
        let place = self.next(now)?;
        self.take(place)
    }

    fn remove(&mut self, id: RequestId) -> bool {
        let place = id.index();
        if self.waiting.get(place).copied().flatten().is_none_or(|(other, _)| other != id) {
            return false;
        }
        self.take(place).is_some()
    }

    fn len(&self) -> usize {
        self.len
    }

    fn clone_box(&self) -> Box<dyn Scheduler> {
        Box::new(self.clone())
    }
}

/// Parameters of [`AdaptiveLifo`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AdaptiveLifoConfig {
    /// How long the queue must have been non-empty before the newest is served first. Longer keeps
    /// the order of arrival through longer bursts; shorter turns sooner, and at zero it is plain
    /// lifo. Default 100 ms, the interval N of "Fail at Scale"; a service whose callers wait less
    /// should have less, well below their deadline.
    pub interval: Span,
}

impl Default for AdaptiveLifoConfig {
    fn default() -> Self {
        Self { interval: Span::from_millis(100) }
    }
}

impl AdaptiveLifoConfig {
    /// Notes everything that is wrong with the parameters.
    pub fn validate(&self, problems: &mut Problems) {
        let hour = Span::from_secs(3600);
        problems.check("interval", self.interval, self.interval <= hour, "0s to 1h");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::tests::{at, request};

    fn lifo() -> AdaptiveLifo {
        AdaptiveLifo::new(&AdaptiveLifoConfig::default())
    }

    fn drain(order: &mut AdaptiveLifo, now: Instant) -> Vec<usize> {
        std::iter::from_fn(|| order.pop(now)).map(RequestId::index).collect()
    }

    #[test]
    fn turns_round_when_a_backlog_has_stood_and_back_when_it_is_gone() {
        let mut order = lifo();
        for place in 0..4 {
            order.push(at(place), &request(place as u32));
        }
        assert_eq!(order.pop(at(99)).map(RequestId::index), Some(0), "a burst is served in order");
        assert_eq!(drain(&mut order, at(100)), [3, 2, 1], "a backlog that stands is not");
        for place in 0..3 {
            order.push(at(200), &request(place));
        }
        assert_eq!(drain(&mut order, at(299)), [0, 1, 2], "the queue was empty in between");
    }

    #[test]
    fn a_queue_emptied_by_removal_was_empty() {
        let mut order = lifo();
        order.push(at(0), &request(0));
        assert!(order.remove(request(0).id));
        order.push(at(90), &request(1));
        order.push(at(90), &request(2));
        assert_eq!(drain(&mut order, at(150)), [1, 2]);
    }

    /// What starves is told so as soon as its deadline has passed.
    #[test]
    fn an_expired_oldest_is_handed_out_first() {
        let mut order = lifo();
        for place in 0..4 {
            let mut request = request(place);
            request.context.deadline = at(150 + u64::from(place));
            order.push(at(0), &request);
        }
        assert_eq!(order.pop(at(120)).map(RequestId::index), Some(3));
        assert_eq!(drain(&mut order, at(151)), [0, 1, 2]);
    }
}
