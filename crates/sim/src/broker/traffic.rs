//! A topic's messages: when they come, from whom, how many at once.
//!
//! As SRTM's evaluation has them (§VI): publishers of 10 messages a second, by events (Poisson) or by
//! the clock (periodic, each with a phase of its own), in batches of 1 or 10, alone or in groups that
//! send together: at the same moment, or spread over a short interval.

use tidegate_core::placement::replay::Arrival;
use tidegate_core::placement::{GroupId, Publisher};
use tidegate_core::share::{Rate, Share};
use tidegate_core::{Instant, Span};

use crate::random::{exponential, stream};

/// When a publisher or group sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// By events that know nothing of each other.
    Poisson,
    /// By the clock.
    Periodic,
}

/// How much larger a topic's burst is than its recording needs. Without, one message in a hundred waits
/// by construction, and whether the 99th percentile does is a matter of luck. (SRTM's footnote 1 speaks
/// of a margin and gives no number.)
pub const MARGIN: f64 = 1.5;

/// A topic.
#[derive(Clone, Copy, Debug)]
pub struct Topic {
    /// How many publishers.
    pub publishers: u32,
    /// Messages per second of each.
    pub rate: f64,
    /// How many times as much every tenth publisher sends, or every publisher of each tenth group; 1 in
    /// SRTM's evaluation.
    pub heavy: f64,
    /// Messages that each sends at once.
    pub batch: u32,
    /// When they are sent.
    pub pattern: Pattern,
    /// How many publishers send together; 1 is each on its own.
    pub group: u32,
    /// Over how long a group's batches are spread, evenly.
    pub spread: Span,
}

impl Topic {
    /// Publishers of 10 messages a second that know nothing of each other.
    pub fn alone(publishers: u32, batch: u32, pattern: Pattern) -> Self {
        Self { publishers, rate: 10.0, heavy: 1.0, batch, pattern, group: 1, spread: Span::ZERO }
    }

    /// SRTM §VI-D: 1,000 publishers of 10 messages a second in batches of 10, in groups.
    pub fn groups(group: u32, spread: Span, pattern: Pattern) -> Self {
        Self { group, spread, ..Self::alone(1_000, 10, pattern) }
    }

    /// Messages per second of all.
    pub fn total(&self) -> f64 {
        (0..self.publishers).map(|at| self.rate_of(at)).sum()
    }

    /// Messages per second of one publisher.
    fn rate_of(&self, publisher: u32) -> f64 {
        let tenth = (publisher / self.group.max(1)).is_multiple_of(10);
        self.rate * if tenth { self.heavy } else { 1.0 }
    }

    /// Its publishers, with their groups if they have any.
    pub fn publishers(&self) -> Vec<Publisher> {
        let group = |at: u32| (self.group > 1).then_some(GroupId(at / self.group));
        let publisher = |at| Publisher { rate: self.rate_of(at), group: group(at) };
        (0..self.publishers).map(publisher).collect()
    }

    /// What it sends in `span`, in order of arrival. The same `who` has the same phases whenever it is
    /// recorded; `when` decides everything else.
    pub fn record(&self, who: u64, when: u64, span: Span) -> Vec<Arrival> {
        let (mut phases, mut rng) = (stream(who, "phases"), stream(when, "traffic"));
        let end = span.as_secs_f64();
        let mut arrivals = Vec::new();
        for first in (0..self.publishers).step_by(self.group.max(1) as usize) {
            let last = (first + self.group.max(1)).min(self.publishers);
            let period = f64::from(self.batch) / self.rate_of(first);
            // A phase for those who go by the clock, a wait for those who do not.
            let mut at = period
                * match self.pattern {
                    Pattern::Poisson => exponential(&mut rng),
                    Pattern::Periodic => phases.unit(),
                };
            while at < end {
                for publisher in first..last {
                    let place = f64::from(publisher - first) / f64::from(self.group.max(1));
                    let at = Span::from_nanos((at * 1e9) as u64) + self.spread.scale(place);
                    let at = Instant::ZERO + at;
                    arrivals.push(Arrival { at, publisher, messages: self.batch });
                }
                at += match self.pattern {
                    Pattern::Poisson => period * exponential(&mut rng),
                    Pattern::Periodic => period,
                };
            }
        }
        arrivals.sort_by_key(|arrival| (arrival.at, arrival.publisher));
        arrivals
    }

    /// Its bucket as SRTM §VI sizes it: a tenth faster than the topic, and the smallest burst with which
    /// 99 % of the recorded messages do not wait, in any stretch of length `window`; here with [`MARGIN`].
    pub fn bucket(&self, recording: &[Arrival], window: Span) -> Share {
        let rate = 1.1 * self.total();
        let (mut work, mut last) = (0.0f64, Instant::ZERO);
        let place = |at: &Arrival| at.at.as_nanos() / window.as_nanos().max(1);
        let mut most = 1.0f64;
        for stretch in recording.chunk_by(|a, b| place(a) == place(b)) {
            let mut needed = Vec::new();
            for arrival in stretch {
                work = (work - rate * arrival.at.since(last).as_secs_f64()).max(0.0);
                last = arrival.at;
                for _ in 0..arrival.messages {
                    work += 1.0;
                    needed.push(work);
                }
            }
            let rank = (needed.len() * 99).div_ceil(100).saturating_sub(1);
            most = most.max(*needed.select_nth_unstable_by(rank, f64::total_cmp).1);
        }
        let burst = (most * MARGIN).ceil() as u64;
        Share::new(Rate::per_second(rate).expect("a topic's rate is a rate"), burst)
    }
}

#[cfg(test)]
mod tests {
    use tidegate_core::limit::Bucket;

    use super::*;

    #[test]
    fn rates_and_groups_are_as_asked_for() {
        for pattern in [Pattern::Poisson, Pattern::Periodic] {
            let topic = Topic::groups(25, Span::from_millis(4), pattern);
            let recording = topic.record(1, 1, Span::from_secs(20));
            let messages: u32 = recording.iter().map(|at| at.messages).sum();
            assert!((f64::from(messages) / 200_000.0 - 1.0).abs() < 0.1, "{messages}");
            assert!(recording.is_sorted_by_key(|at| at.at));
            let second: Vec<Instant> =
                recording.iter().filter(|at| at.publisher == 1).map(|at| at.at).collect();
            let first: Vec<Instant> =
                recording.iter().filter(|at| at.publisher == 0).map(|at| at.at).collect();
            assert!(first.iter().zip(&second).all(|(a, b)| b.since(*a) == Span::from_micros(160)));
            assert_eq!(topic.publishers()[25].group, Some(GroupId(1)));
        }
    }

    #[test]
    fn the_bucket_is_the_smallest_that_lets_99_of_100_pass() {
        let topic = Topic::groups(10, Span::ZERO, Pattern::Poisson);
        let recording = topic.record(3, 3, Span::from_secs(5));
        let share = topic.bucket(&recording, Span::from_secs(5));
        let waits = |burst: u64| {
            let mut bucket = Bucket::full(Instant::ZERO, Share::new(share.rate, burst).limit());
            let batches = recording.iter().flat_map(|at| (0..at.messages).map(|_| at.at));
            let waits = batches.filter(|at| bucket.book(*at, 1.0, Instant::FAR) != Ok(*at)).count();
            waits as f64 / (10 * recording.len()) as f64
        };
        let needed = (share.burst as f64 / MARGIN).ceil() as u64;
        assert!(waits(needed) <= 0.01, "{}", waits(needed));
        assert!(waits(needed - 2) > 0.01);
    }
}
