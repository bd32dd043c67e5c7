//! The control signal: how long the work that waits will take, or has already taken too long.
//!
//! Breakwater §3.1 steers by the age of the oldest queued item, summed over stages. That is right
//! for first-come-first-served only: under any other order one unlucky request looks like an
//! overload. So the delay here does not depend on the order of service:
//!
//! ```text
//! delay = max( queued weight ÷ drain rate , time since the last dequeue while something waits )
//!       + the delay of other stages, as the driver reports them
//! ```
//!
//! The first part says how much waits, in time; the second rises even when nothing completes. The
//! [drain rate](super::drain) is measured only while the gate is *saturated*, that is while something waits and
//! every slot is taken: weight started per unit of that time. At other times a start says nothing
//! about how fast the service could go.
//!
//! A request's [`Weight`] is its estimated cost in mean costs of the moment, not the cost itself: where
//! requests take long because something behind them stutters, the mean moves by a multiple within
//! milliseconds, and a queue counted in today's unit by a rate in yesterday's would be off by as much.

use serde::{Deserialize, Serialize};

use super::drain::Drain;
use crate::list::{Links, List};
use crate::meter::Weight;
use crate::table;
use crate::time::{Instant, Span};

/// Which delay a policy steers by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DelaySignal {
    /// Queued weight ÷ drain rate, and the time since the last dequeue: any order of service.
    #[default]
    Drain,
    /// Age of the oldest waiting request, as in Breakwater §3.1: for `fifo` only.
    Oldest,
}

/// What waits at a gate, and how fast it drains.
#[derive(Clone, Debug)]
pub struct Backlog {
    waiting: usize,
    /// The weight of what waits, by place, and its sum.
    weights: Vec<Weight>,
    queued: u64,
    /// Requests that run, and whether fewer may than usual.
    running: u32,
    held_back: bool,
    /// The last dequeue, or the moment the queue became non-empty.
    head_since: Instant,
    /// Since when the gate has been saturated, reset at each start.
    saturated_since: Option<Instant>,
    drain: Drain,
    /// Delay of the stages before this queue, summed.
    before: Span,
    ages: Option<Ages>,
}

/// Arrival order of what waits, kept only for policies that ask for the oldest.
#[derive(Clone, Debug, Default)]
struct Ages {
    links: Links,
    order: List,
    arrived: Vec<Instant>,
}

impl Backlog {
    /// Nothing waits, nothing is known. `ages` keeps arrival order for [`DelaySignal::Oldest`].
    pub(crate) fn new(ages: bool) -> Self {
        Self {
            waiting: 0,
            weights: Vec::new(),
            queued: 0,
            running: 0,
            held_back: false,
            head_since: Instant::ZERO,
            saturated_since: None,
            drain: Drain::default(),
            before: Span::ZERO,
            ages: ages.then(Ages::default),
        }
    }

    /// How many requests wait.
    pub fn waiting(&self) -> usize {
        self.waiting
    }

    /// How many requests wait or run.
    pub fn inside(&self) -> usize {
        self.waiting + self.running as usize
    }

    /// How long a request that arrived now would wait for what is already queued.
    pub fn predicted_wait(&self) -> Span {
        self.drain.time_for(self.queued)
    }

    /// The delay at `now`; zero when nothing waits anywhere.
    pub fn delay(&self, now: Instant, signal: DelaySignal) -> Span {
        self.here(now, signal) + self.before
    }

    /// How old a request that came at `arrived` and joins the queue now will be when its turn comes.
    /// Its own time in the stages before the queue is part of that, the delay of those who are still
    /// there is not.
    pub fn age_at_start(&self, now: Instant, arrived: Instant) -> Span {
        now.since(arrived) + self.here(now, DelaySignal::Drain)
    }

    fn here(&self, now: Instant, signal: DelaySignal) -> Span {
        match (signal, &self.ages) {
            _ if self.waiting == 0 => Span::ZERO,
            (DelaySignal::Oldest, Some(ages)) => ages.oldest(now),
            _ => self.predicted_wait().max(now.since(self.head_since)),
        }
    }

    /// Requests that run.
    pub fn running(&self) -> u32 {
        self.running
    }

    /// Whether fewer may run for a moment than the service can take: what is served meanwhile is not what it can do.
    pub fn is_held_back(&self) -> bool {
        self.held_back
    }

    pub(crate) fn set_held_back(&mut self, held_back: bool) {
        self.held_back = held_back;
    }

    /// Reports the delay of the stages before this queue (kernel, parser).
    pub(crate) fn set_stages_before(&mut self, delay: Span) {
        self.before = delay;
    }

    #[inline(always)] // Every request comes here.
    pub(crate) fn on_enqueue(
        &mut self,
        now: Instant,
        place: usize,
        arrived: Instant,
        weight: Weight,
    ) {
        if self.waiting == 0 {
            self.head_since = now;
        }
        self.waiting += 1;
        self.queued += u64::from(weight.0);
        *table::at(&mut self.weights, place, || Weight::ONE) = weight;
        if let Some(ages) = &mut self.ages {
            ages.insert(place, arrived);
        }
    }

    /// A request left the queue; `started` tells a start from a cancel, push-out or drop.
    #[inline]
    pub(crate) fn on_dequeue(&mut self, now: Instant, place: usize, started: bool) {
        debug_assert!(self.waiting > 0, "dequeue from an empty queue");
        let weight = self.weights[place];
        self.waiting -= 1;
        self.queued -= u64::from(weight.0);
        if let Some(ages) = &mut self.ages {
            ages.remove(place);
        }
        if started {
            self.head_since = now;
            if let Some(since) = self.saturated_since {
                self.drain.count(weight, now.since(since));
                self.saturated_since = Some(now);
            } else {
                self.drain.forget();
            }
        }
    }

    /// All that could start has been started, and so many run. What still waits does so because every slot, or the driver,
    /// is taken.
    pub(crate) fn on_dispatch(&mut self, now: Instant, running: u32) {
        self.running = running;
        match (self.waiting > 0, self.saturated_since) {
            (true, None) => self.saturated_since = Some(now),
            (false, Some(_)) => self.saturated_since = None,
            _ => {}
        }
    }

    /// A slot is free again: so many run.
    pub(crate) fn on_free(&mut self, running: u32) {
        self.running = running;
    }

    pub(crate) fn invariants(&self) {
        assert!(
            self.waiting > 0 || self.queued == 0,
            "an empty queue holds weight {}",
            self.queued
        );
        self.drain.invariants();
    }
}

impl Ages {
    fn oldest(&self, now: Instant) -> Span {
        self.order.front().map_or(Span::ZERO, |place| now.since(self.arrived[place]))
    }

    fn insert(&mut self, place: usize, arrived: Instant) {
        *table::at(&mut self.arrived, place, || Instant::ZERO) = arrived;
        self.links.push_back(&mut self.order, place);
    }

    fn remove(&mut self, place: usize) {
        self.links.remove(&mut self.order, place);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(micros: u64) -> Instant {
        Instant::ZERO + Span::from_micros(micros)
    }

    /// An empty queue reads as zero, however long ago the last dequeue was.
    #[test]
    fn an_empty_queue_has_no_delay() {
        let mut backlog = Backlog::new(true);
        backlog.on_enqueue(at(0), 0, at(0), Weight::ONE);
        backlog.on_dequeue(at(5), 0, true);
        for signal in [DelaySignal::Drain, DelaySignal::Oldest] {
            assert_eq!(backlog.delay(at(1_000_000), signal), Span::ZERO);
        }
    }

    /// Breakwater §3.1: the signal rises while nothing completes.
    #[test]
    fn the_delay_rises_while_nothing_is_dequeued() {
        let mut backlog = Backlog::new(false);
        backlog.on_enqueue(at(10), 0, at(10), Weight::ONE);
        assert_eq!(backlog.delay(at(60), DelaySignal::Drain), Span::from_micros(50));
        backlog.set_stages_before(Span::from_micros(8));
        assert_eq!(backlog.delay(at(60), DelaySignal::Drain), Span::from_micros(58));
    }

    /// What a request spent in the socket before it was read is its own age, and not waited for again.
    #[test]
    fn time_in_the_stages_before_is_counted_once() {
        let mut backlog = Backlog::new(false);
        backlog.on_enqueue(at(10), 0, at(3), Weight::ONE);
        backlog.set_stages_before(Span::from_micros(20));
        // It came 20 µs ago, and the queue stands for 50.
        assert_eq!(backlog.age_at_start(at(60), at(40)), Span::from_micros(70));
    }

    #[test]
    fn the_drain_rate_is_measured_only_while_saturated() {
        let mut backlog = Backlog::new(false);
        // Starts at once: no evidence.
        for n in 0..100 {
            backlog.on_enqueue(at(n), 0, at(n), Weight::ONE);
            backlog.on_dequeue(at(n), 0, true);
        }
        // Saturated: one start every 10 µs.
        for place in 0..100 {
            backlog.on_enqueue(at(100), place, at(100), Weight::ONE);
        }
        assert_eq!(backlog.predicted_wait(), Span::ZERO, "nothing is known");
        backlog.on_dispatch(at(100), 1);
        for place in 0..50u64 {
            backlog.on_dequeue(at(110 + 10 * place), place as usize, true);
        }
        assert_eq!(backlog.predicted_wait(), Span::from_micros(500));
        // What is twice the mean waits for as long again.
        backlog.on_enqueue(at(600), 0, at(600), Weight(2 * Weight::ONE.0));
        assert_eq!(backlog.predicted_wait(), Span::from_micros(520));
    }

    /// A service that was slow once is not thought to be so for ever by those whom nobody keeps waiting.
    #[test]
    fn a_rate_that_is_not_seen_again_is_forgotten() {
        let mut backlog = Backlog::new(false);
        let start = |backlog: &mut Backlog, at| {
            backlog.on_enqueue(at, 0, at, Weight::ONE);
            backlog.on_dequeue(at, 0, true);
        };
        backlog.on_enqueue(at(0), 1, at(0), Weight::ONE);
        backlog.on_dispatch(at(0), 1);
        (1..=3).for_each(|n| start(&mut backlog, at(40 * n)));
        assert_eq!(backlog.predicted_wait(), Span::from_micros(40));
        backlog.on_dequeue(at(160), 1, true);
        backlog.on_dispatch(at(160), 1);
        (1..256).for_each(|_| start(&mut backlog, at(200)));
        backlog.on_enqueue(at(200), 1, at(200), Weight::ONE);
        assert_eq!(backlog.predicted_wait(), Span::from_micros(40));
        start(&mut backlog, at(200));
        assert_eq!(backlog.predicted_wait(), Span::ZERO, "nothing is known");
    }

    #[test]
    fn the_oldest_is_found_whatever_leaves_first() {
        let mut backlog = Backlog::new(true);
        for place in 0..3 {
            backlog.on_enqueue(at(place), place as usize, at(place), Weight::ONE);
        }
        backlog.on_dequeue(at(5), 0, false);
        assert_eq!(backlog.delay(at(9), DelaySignal::Oldest), Span::from_micros(8));
    }
}
