//! What a measurement would show, from a recording of the topic.
//!
//! A tail takes a minute to measure and a few milliseconds to compute, if one knows when messages
//! come and what they cost. The recording is there: sizing the topic's bucket needed it (SRTM §VI).
//! The costs are a benchmark's. So a recording is played through
//!
//! 1. the broker's **queue**: cores that take batches in the order of arrival, each for a wake-up and
//!    so much per message, together with whatever else the broker serves;
//! 2. the broker's **bucket**: a message may not leave before its token is there, counted from its
//!    arrival.
//!
//! A message leaves when both have let it go. That is a model, and simpler than any broker: who plans
//! with it leaves a margin and verifies ([`Planner`](super::Planner)).

use crate::limit::Bucket;
use crate::share::Share;
use crate::time::{Instant, Span};

/// Messages of one publisher that come together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// When.
    pub at: Instant,
    /// From whom, by its place in the topic.
    pub publisher: u32,
    /// How many.
    pub messages: u32,
}

/// What a broker's work costs, from a benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Costs {
    /// Cores that work at the same time; at least one is taken.
    pub cores: u32,
    /// Work per batch.
    pub wake: Span,
    /// Work per message.
    pub message: Span,
    /// Time on the way that is no work.
    pub network: Span,
}

impl Costs {
    /// Work that a batch takes.
    pub fn work(&self, messages: u32) -> Span {
        let work = self.message.as_nanos().saturating_mul(messages.into());
        self.wake + Span::from_nanos(work)
    }

    /// Cores' time per second that `arrivals` ask for, over a recording of length `over`; 1 is all
    /// there is.
    pub fn utilization(&self, arrivals: &[Arrival], over: Span) -> f64 {
        let work: f64 = arrivals.iter().map(|at| self.work(at.messages).as_secs_f64()).sum();
        work / over.as_secs_f64().max(f64::MIN_POSITIVE) / f64::from(self.cores.max(1))
    }
}

/// The 99th percentile of the latency of `topic`'s messages at a broker that has `share` of its bucket
/// and serves `others` besides: the largest that any stretch of length `window` shows, as a measurement
/// of that length would. Both in order of arrival. None if there is no message.
pub fn tail(
    costs: Costs,
    share: Share,
    topic: &[Arrival],
    others: &[Arrival],
    window: Span,
) -> Option<Span> {
    let mut latencies = latencies(costs, share, topic, others).into_iter();
    let place = |at: &Arrival| at.at.as_nanos() / window.as_nanos().max(1);
    let stretches = topic.chunk_by(|a, b| place(a) == place(b));
    let tails = stretches.filter_map(|stretch| {
        let count = stretch.iter().map(|at| at.messages as usize).sum();
        let mut here: Vec<Span> = latencies.by_ref().take(count).collect();
        let rank = (here.len() * 99).div_ceil(100).checked_sub(1)?;
        Some(*here.select_nth_unstable(rank).1)
    });
    tails.max()
}

/// Of each message, in order of arrival.
fn latencies(costs: Costs, share: Share, topic: &[Arrival], others: &[Arrival]) -> Vec<Span> {
    let mut bucket = Bucket::full(Instant::ZERO, share.limit());
    let mut free = vec![Instant::ZERO; costs.cores.max(1) as usize];
    let mut latencies = Vec::with_capacity(topic.iter().map(|at| at.messages as usize).sum());
    let mut others = others.iter().peekable();
    for arrival in topic {
        while let Some(other) = others.next_if(|other| other.at <= arrival.at) {
            occupy(&mut free, other.at, costs.work(other.messages));
        }
        let started = occupy(&mut free, arrival.at, costs.work(arrival.messages));
        for place in 1..=arrival.messages {
            let worked = started + costs.work(place);
            let token = bucket.book(arrival.at, 1.0, Instant::FAR).unwrap_or(Instant::FAR);
            latencies.push(worked.max(token).since(arrival.at) + costs.network);
        }
    }
    latencies
}

/// The first core that is free takes it; when it starts.
fn occupy(free: &mut [Instant], at: Instant, work: Span) -> Instant {
    let first = (0..free.len()).min_by_key(|core| free[*core]).unwrap_or(0);
    let started = free[first].max(at);
    free[first] = started + work;
    started
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::share::Rate;

    const COSTS: Costs = Costs {
        cores: 2,
        wake: Span::from_micros(18),
        message: Span::from_micros(15),
        network: Span::ZERO,
    };

    fn arrival(micros: u64, messages: u32) -> Arrival {
        Arrival { at: Instant::ZERO + Span::from_micros(micros), publisher: 0, messages }
    }

    fn share(rate: f64, burst: u64) -> Share {
        Share::new(Rate::per_second(rate).unwrap(), burst)
    }

    fn micros(costs: Costs, share: Share, topic: &[Arrival], others: &[Arrival]) -> Vec<u64> {
        let all = latencies(costs, share, topic, others);
        all.into_iter().map(|at| at.as_nanos() / 1_000).collect()
    }

    #[test]
    fn work_takes_its_time_on_the_first_free_core() {
        let plenty = share(1e6, 1_000);
        let topic = [arrival(0, 2), arrival(0, 1), arrival(0, 1)];
        // Two cores, 48 and 33 µs; the third batch follows the shorter.
        assert_eq!(micros(COSTS, plenty, &topic, &[]), [33, 48, 33, 66]);
        // What else the broker serves takes a core, too.
        assert_eq!(micros(COSTS, plenty, &topic, &[arrival(0, 1)]), [33, 48, 66, 81]);
        assert!((COSTS.utilization(&topic, Span::from_micros(1_000)) - 0.057).abs() < 1e-9);
    }

    #[test]
    fn a_message_waits_for_its_token() {
        // One token saved, one per millisecond: the rest of a batch of three waits.
        assert_eq!(micros(COSTS, share(1_000.0, 1), &[arrival(0, 3)], &[]), [33, 1_000, 2_000]);
    }

    #[test]
    fn the_tail_is_the_nearest_rank_of_the_worst_stretch() {
        let topic: Vec<Arrival> = (0..200).map(|n| arrival(n * 1_000, 1)).collect();
        let (plenty, long) = (share(1e6, 1_000), Span::from_secs(1));
        assert_eq!(tail(COSTS, plenty, &topic, &[], long), Some(Span::from_micros(33)));
        let mut slow = topic;
        slow[7].messages = 3;
        // Two of 202 are slower, and then two of 102.
        assert_eq!(tail(COSTS, plenty, &slow, &[], long), Some(Span::from_micros(33)));
        let short = Span::from_millis(100);
        assert_eq!(tail(COSTS, plenty, &slow, &[], short), Some(Span::from_micros(48)));
        assert_eq!(tail(COSTS, plenty, &[], &[], long), None);
    }
}
