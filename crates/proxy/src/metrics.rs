//! Numbers about what happened: counted from the gate's events and by the workers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tidegate_core::event::Event;
use tidegate_core::{Criticality, Outcome, Rank, Reason, Span};
use tidegate_http::wire::Names;

use crate::ahead::Readers;
use crate::leash::Leashes;
use crate::places::{Places, Turns};
use crate::reentry::Reentry;

/// How many bands there are.
pub(crate) const BANDS: usize = Criticality::ALL.len();
/// How many reasons there are.
pub(crate) const REASONS: usize = Reason::ALL.len();

/// Everything the gate's events add up to.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Metrics {
    /// Requests that came, each once, by band.
    pub(crate) arrived: [u64; BANDS],
    /// Requests let into the queue, by band: what was refused from there is among them.
    pub(crate) admitted: [u64; BANDS],
    /// Requests turned away, at arrival or later, by band and reason.
    pub(crate) refused: [[u64; REASONS]; BANDS],
    /// The same where it is not enforced: they were served all the same.
    pub(crate) would_refuse: [[u64; REASONS]; BANDS],
    /// Requests that ended, by band and [`Outcome`].
    pub(crate) finished: [[u64; OUTCOMES.len()]; BANDS],
    /// From arrival to the last byte, of requests served.
    pub(crate) latency: Histogram,
    /// From arrival to the slot, of requests that got one.
    pub(crate) sojourn: Histogram,
    /// Events lost because they were not counted in time.
    pub(crate) lost: u64,
}

/// How requests end, and what that is called.
pub(crate) const OUTCOMES: [(Outcome, &str); 3] =
    [(Outcome::Serve, "served"), (Outcome::Fail, "failed"), (Outcome::Cancel, "cancelled")];

impl Metrics {
    /// Counts one event; `enforced` is false for a refusal that was not.
    pub(crate) fn count(&mut self, event: &Event, enforced: bool) {
        match event {
            Event::Admit { rank, .. } => {
                self.arrived[band(*rank)] += 1;
                self.admitted[band(*rank)] += 1;
            }
            Event::Refuse { rank, rejection, admitted, .. } => {
                self.arrived[band(*rank)] += u64::from(!admitted);
                let table = if enforced { &mut self.refused } else { &mut self.would_refuse };
                table[band(*rank)][rejection.reason as usize] += 1;
            }
            Event::Start { sojourn, .. } => self.sojourn.add(*sojourn),
            Event::Finish { rank, outcome, latency, .. } => {
                let place = OUTCOMES.iter().position(|(known, _)| known == outcome);
                self.finished[band(*rank)][place.expect("all outcomes are listed")] += 1;
                if *outcome == Outcome::Serve {
                    self.latency.add(*latency);
                }
            }
            Event::Window { .. }
            | Event::Pool { .. }
            | Event::Cursors { .. }
            | Event::Slots { .. }
            | Event::Retry { .. }
            | Event::Objective { .. }
            | Event::Endpoint { .. }
            | Event::Ignore(_) => {}
        }
    }

    /// Requests served, all bands together.
    pub(crate) fn served(&self) -> u64 {
        self.finished.iter().map(|by_outcome| by_outcome[0]).sum()
    }

    /// Refusals because there was too much to do, that were enforced.
    pub(crate) fn enforced(&self) -> u64 {
        self.refused.iter().map(overload).sum()
    }

    /// Refusals because there was too much to do, by band, enforced or not.
    pub(crate) fn refusals(&self) -> [u64; BANDS] {
        std::array::from_fn(|at| overload(&self.refused[at]) + overload(&self.would_refuse[at]))
    }

    /// How often each reason was given because there was too much to do, enforced or not.
    pub(crate) fn reasons(&self) -> [u64; REASONS] {
        let both = |at: usize| {
            [&self.refused, &self.would_refuse]
                .map(|table| table.iter().map(|band| band[at]).sum::<u64>())
        };
        std::array::from_fn(
            |at| if Reason::ALL[at].is_overload() { both(at).iter().sum() } else { 0 },
        )
    }
}

/// Of the refusals of a band, those because there was too much to do: that an agreement is used up says nothing of the service.
fn overload(counts: &[u64; REASONS]) -> u64 {
    let counts = Reason::ALL.iter().zip(counts);
    counts.filter(|(reason, _)| reason.is_overload()).map(|(_, count)| count).sum()
}

fn band(rank: Rank) -> usize {
    rank.criticality().index()
}

/// Times in fixed classes.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Histogram {
    /// How many fell into each class and, last, beyond all.
    classes: [u64; BOUNDS.len() + 1],
    sum: f64,
}

/// Upper bounds of the classes in microseconds: 1, 2, 5 per decade from 100 µs to 10 s.
pub(crate) const BOUNDS: [u64; 16] = [
    100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000, 200_000, 500_000,
    1_000_000, 2_000_000, 5_000_000, 10_000_000,
];

impl Histogram {
    pub(crate) fn add(&mut self, span: Span) {
        let class = BOUNDS.partition_point(|bound| Span::from_micros(*bound) < span);
        self.classes[class] += 1;
        self.sum += span.as_secs_f64();
    }

    /// How many were at most as long as each bound.
    pub(crate) fn cumulative(&self) -> impl Iterator<Item = (u64, u64)> {
        let mut sum = 0;
        BOUNDS.iter().zip(self.classes).map(move |(bound, count)| {
            sum += count;
            (*bound, sum)
        })
    }

    pub(crate) fn count(&self) -> u64 {
        self.classes.iter().sum()
    }

    /// Sum of all times in seconds.
    pub(crate) fn sum(&self) -> f64 {
        self.sum
    }
}

/// What happens outside the gate. Nothing here changes once per request, so one set serves all
/// threads.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    /// Requests that hold a place of a fleet's.
    pub(crate) leashes: Leashes,
    /// Client connections accepted.
    pub(crate) accepted: Counter,
    /// Accepts that failed.
    pub(crate) accept_failures: Counter,
    /// Client connections closed because there were too many.
    pub(crate) too_many: Counter,
    /// Client connections that were idle, and made room for others.
    pub(crate) reclaimed: Counter,
    /// Client connections on which too many frames came that ask for nothing.
    pub(crate) floods: Counter,
    /// Tunnels that were refused, as there are too many.
    pub(crate) tunnels_refused: Counter,
    /// Tunnels that were closed, as nothing moved.
    pub(crate) tunnels_idle: Counter,
    /// Client connections closed because too many came at once.
    pub(crate) too_fast: Counter,
    /// Heads and bodies that were not sent, and answers that were not taken, in time.
    pub(crate) slow_clients: Counter,
    /// Requests that their clients broke off while they were sent.
    pub(crate) broken_uploads: Counter,
    /// Client connections that did not begin with whose they are, where they have to.
    pub(crate) unnamed: Counter,
    /// Requests that were turned away because too many hold no slot.
    pub(crate) too_many_waiting: Counter,
    /// Client connections on which no TLS came about.
    pub(crate) tls_failures: Counter,
    /// Client connections open.
    pub(crate) connections: Gauge,
    /// Connections that have changed their protocol, such as WebSockets.
    pub(crate) tunnels: Gauge,
    /// Requests for which no upstream could be connected to.
    pub(crate) connect_failures: Counter,
    /// Requests whose upstream broke off before the head of its answer.
    pub(crate) broken: Counter,
    /// Requests whose upstream did not begin its answer in time.
    pub(crate) late: Counter,
    /// Requests for exempt paths that were asked at the gate, as too many were on their way.
    pub(crate) exempt_gated: Counter,
    /// Requests whose path can be read in several ways.
    pub(crate) ambiguous: Counter,
    /// Contexts that could not be read.
    pub(crate) malformed: Counter,
    /// Reloads of the configuration that took effect.
    pub(crate) reloads: Counter,
    /// Reloads that were refused because the file was wrong.
    pub(crate) bad_reloads: Counter,
    /// Requests whose bodies are not there.
    pub(crate) uploads: Arc<Places>,
    /// And whose turn it is.
    pub(crate) turns: Arc<Turns>,
    /// Requests that last long.
    pub(crate) long: Arc<Places>,
    /// Who has a slot, and who came back.
    pub(crate) reentry: Arc<Reentry>,
    /// Answers that are read ahead of their clients.
    pub(crate) readers: Arc<Readers>,
    /// What rules are called, as labels of events.
    pub(crate) rules: Names,
    jitters: Counter,
}

impl Counters {
    /// Another number from 0 to 1 every time: multiples of the golden ratio, which spread more evenly
    /// than chance.
    pub(crate) fn jitter(&self) -> f64 {
        let n = self.jitters.0.fetch_add(1, Ordering::Relaxed);
        (n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// A number that grows.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// How many of something there are.
#[derive(Debug, Default)]
pub(crate) struct Gauge(AtomicU64);

impl Gauge {
    /// One more, until the guard is dropped.
    pub(crate) fn hold(&self) -> impl Drop {
        self.0.fetch_add(1, Ordering::Relaxed);
        Holding(self)
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

struct Holding<'a>(&'a Gauge);

impl Drop for Holding<'_> {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use tidegate_core::context::Workflow;
    use tidegate_core::{Advice, Rejection};

    use super::*;

    #[test]
    fn a_time_at_its_bound_is_within() {
        let mut histogram = Histogram::default();
        for micros in [100, 101, 50_000, 20_000_000] {
            histogram.add(Span::from_micros(micros));
        }
        let at_most =
            |wanted| histogram.cumulative().find(|(bound, _)| *bound == wanted).unwrap().1;
        assert_eq!((at_most(100), at_most(200), at_most(50_000)), (1, 2, 3));
        assert_eq!((at_most(10_000_000), histogram.count()), (3, 4));
        assert!((histogram.sum() - 20.050_201).abs() < 1e-9);
    }

    #[test]
    fn what_is_not_enforced_is_counted_apart() {
        let mut metrics = Metrics::default();
        let rejection = Rejection::new(Reason::Rank, 1.0, 0.0, Advice::Never);
        let of = |rejection, admitted| Event::Refuse {
            rank: Rank::new(40, 0),
            workflow: Workflow::NONE,
            label: 0,
            admitted,
            rejection,
        };
        let event = of(rejection, false);
        metrics.count(&event, false);
        metrics.count(&event, true);
        metrics.count(&event, true);
        let place = (Criticality::SheddablePlus.index(), Reason::Rank as usize);
        assert_eq!(metrics.would_refuse[place.0][place.1], 1);
        assert_eq!(metrics.refused[place.0][place.1], 2);
        assert_eq!(metrics.refusals(), [0, 0, 3, 0]);
        // An agreement that is used up is no overload.
        let used_up = Rejection { reason: Reason::Window, ..rejection };
        metrics.count(&of(used_up, false), true);
        assert_eq!((metrics.refusals(), metrics.enforced()), ([0, 0, 3, 0], 2));
        assert_eq!(metrics.reasons()[Reason::Rank as usize], 3);
        assert_eq!(metrics.reasons().iter().sum::<u64>(), 3);
        assert_eq!(metrics.arrived, [0, 0, 4, 0]);
    }

    #[test]
    fn what_is_refused_from_the_queue_has_come_once() {
        let mut metrics = Metrics::default();
        let (rank, workflow, label) = (Rank::new(40, 0), Workflow::NONE, 0);
        let rejection = Rejection::new(Reason::Delay, 1.0, 0.0, Advice::Never);
        metrics.count(&Event::Admit { rank, workflow, label }, true);
        metrics.count(&Event::Refuse { rank, workflow, label, admitted: true, rejection }, true);
        metrics.count(&Event::Refuse { rank, workflow, label, admitted: false, rejection }, true);
        assert_eq!((metrics.arrived, metrics.admitted), ([0, 0, 2, 0], [0, 0, 1, 0]));
        assert_eq!(metrics.refusals(), [0, 0, 2, 0]);
    }

    /// Reasons are told apart by their number.
    #[test]
    fn reasons_are_numbered_in_their_order() {
        for (number, reason) in Reason::ALL.into_iter().enumerate() {
            assert_eq!(reason as usize, number);
        }
    }
}
