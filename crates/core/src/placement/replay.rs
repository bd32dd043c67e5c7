//! What a measurement would show, from a recording of the topic.
//!
//! A tail takes a minute to measure and a few milliseconds to compute, if one knows when messages
//! come and what they cost. The recording is there: sizing the topic's bucket needed it (SRTM §VI).
//! The costs are a benchmark's. So a recording is played through
//!
//! 1. the broker's **queue**: cores that take tasks in the order in which they became ready. A batch is read by a
//!    task of its connection, for a wake-up and so much per message, and then forwarded by the one task of its
//!    topic, which goes to the end of the queue and then works until nothing is left. So a batch queues twice, and
//!    whatever else the broker serves stands in the same queue, with a topic task of its own;
//! 2. the broker's **bucket**: a message may not leave before its token is there, counted from its
//!    arrival.
//!
//! A message leaves when both have let it go. That is a model, and simpler than any broker: who plans
//! with it leaves a margin and verifies ([`Planner`](super::Planner)).

use std::collections::VecDeque;

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
    /// Work per message of the task that reads it from its connection.
    pub read: Span,
    /// Work per message of the task that forwards it, of which a topic has one.
    pub forward: Span,
    /// Time on the way that is no work.
    pub network: Span,
}

impl Costs {
    /// Work that a batch takes.
    pub fn work(&self, messages: u32) -> Span {
        self.reading(messages) + times(self.forward, messages)
    }

    fn reading(&self, messages: u32) -> Span {
        self.wake + times(self.read, messages)
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

fn times(span: Span, count: u32) -> Span {
    Span::from_nanos(span.as_nanos().saturating_mul(count.into()))
}

/// Of each message, in order of arrival.
fn latencies(costs: Costs, share: Share, topic: &[Arrival], others: &[Arrival]) -> Vec<Span> {
    let mut bucket = Bucket::full(Instant::ZERO, share.limit());
    let mut latencies = Vec::with_capacity(topic.iter().map(|at| at.messages as usize).sum());
    let forwarded = Queue::new(costs, topic, others).run();
    for (arrival, started) in topic.iter().zip(forwarded) {
        for place in 1..=arrival.messages {
            let worked = started + times(costs.forward, place);
            let token = bucket.book(arrival.at, 1.0, Instant::FAR).unwrap_or(Instant::FAR);
            latencies.push(worked.max(token).since(arrival.at) + costs.network);
        }
    }
    latencies
}

/// The topic that is looked at is the first of two; all that the broker serves besides is the other.
const TOPIC: usize = 0;

/// A broker's cores, and what waits for them.
struct Queue<'a> {
    costs: Costs,
    stages: [Stage<'a>; 2],
    ready: VecDeque<Task>,
    /// What each core works on, and until when.
    cores: Vec<Option<(Instant, Task)>>,
    /// When the first message of each of the topic's batches begins to be forwarded.
    forwarded: Vec<Instant>,
    left: usize,
}

#[derive(Clone, Copy)]
enum Task {
    Read { stage: usize, batch: usize },
    Forward { stage: usize },
}

struct Stage<'a> {
    arrivals: &'a [Arrival],
    /// The next to arrive.
    next: usize,
    /// Batches that were read and not yet forwarded.
    buffer: Vec<usize>,
    /// Whether its task waits or works.
    busy: bool,
}

impl<'a> Queue<'a> {
    fn new(costs: Costs, topic: &'a [Arrival], others: &'a [Arrival]) -> Self {
        let stage = |arrivals| Stage { arrivals, next: 0, buffer: Vec::new(), busy: false };
        Self {
            costs,
            stages: [stage(topic), stage(others)],
            ready: VecDeque::new(),
            cores: vec![None; costs.cores.max(1) as usize],
            forwarded: vec![Instant::FAR; topic.len()],
            left: topic.len(),
        }
    }

    fn run(mut self) -> Vec<Instant> {
        while self.left > 0 {
            let now = match (self.next_arrival(), self.next_end()) {
                (Some((at, stage)), end) if end.is_none_or(|(end, _)| at <= end) => {
                    let batch = self.stages[stage].next;
                    self.stages[stage].next += 1;
                    self.ready.push_back(Task::Read { stage, batch });
                    at
                }
                (_, Some((end, core))) => {
                    self.end(core, end);
                    end
                }
                (_, None) => break,
            };
            for core in 0..self.cores.len() {
                if self.cores[core].is_none()
                    && let Some(task) = self.ready.pop_front()
                {
                    self.begin(core, task, now);
                }
            }
        }
        self.forwarded
    }

    fn next_arrival(&self) -> Option<(Instant, usize)> {
        let next = |stage: usize| {
            let Stage { arrivals, next, .. } = &self.stages[stage];
            arrivals.get(*next).map(|arrival| (arrival.at, stage))
        };
        (0..self.stages.len()).filter_map(next).min()
    }

    fn next_end(&self) -> Option<(Instant, usize)> {
        let end = |core: usize| self.cores[core].map(|(end, _)| (end, core));
        (0..self.cores.len()).filter_map(end).min()
    }

    fn begin(&mut self, core: usize, task: Task, now: Instant) {
        let mut end = now;
        match task {
            Task::Read { stage, batch } => {
                end += self.costs.reading(self.stages[stage].arrivals[batch].messages);
            }
            Task::Forward { stage } => {
                let Stage { arrivals, buffer, .. } = &mut self.stages[stage];
                for batch in buffer.drain(..) {
                    if stage == TOPIC {
                        self.forwarded[batch] = end;
                        self.left -= 1;
                    }
                    end += times(self.costs.forward, arrivals[batch].messages);
                }
            }
        }
        self.cores[core] = Some((end, task));
    }

    fn end(&mut self, core: usize, now: Instant) {
        match self.cores[core].take() {
            Some((_, Task::Read { stage, batch })) => {
                let stage_of = &mut self.stages[stage];
                stage_of.buffer.push(batch);
                if !stage_of.busy {
                    stage_of.busy = true;
                    self.ready.push_back(Task::Forward { stage });
                }
            }
            // It keeps its core as long as it has something to forward.
            Some((_, task @ Task::Forward { stage })) => {
                if self.stages[stage].buffer.is_empty() {
                    self.stages[stage].busy = false;
                } else {
                    self.begin(core, task, now);
                }
            }
            None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::share::Rate;

    const COSTS: Costs = Costs {
        cores: 2,
        wake: Span::from_micros(18),
        read: Span::from_micros(7),
        forward: Span::from_micros(8),
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
    fn batches_are_read_side_by_side_and_forwarded_one_by_one() {
        let plenty = share(1e6, 1_000);
        assert_eq!(micros(COSTS, plenty, &[arrival(0, 2)], &[]), [32 + 8, 32 + 16]);
        // Read by 32, 25 and 50. The topic's task stands behind the third batch, begins at 32, and has two to forward.
        let topic = [arrival(0, 2), arrival(0, 1), arrival(0, 1)];
        assert_eq!(micros(COSTS, plenty, &topic, &[]), [48, 56, 40, 64]);
        assert!((COSTS.utilization(&topic, Span::from_micros(1_000)) - 0.057).abs() < 1e-9);
    }

    #[test]
    fn what_else_is_served_stands_in_the_queue_twice() {
        let (plenty, alone) = (share(1e6, 1_000), [arrival(1, 1)]);
        assert_eq!(micros(COSTS, plenty, &alone, &[]), [33]);
        // One core reads for others until 25 and the other until 88. It is read from 25 to 50, and then
        // the others' task is before its own.
        let others = [arrival(0, 1), arrival(0, 10)];
        assert_eq!(micros(COSTS, plenty, &alone, &others), [24 + 25 + 8 + 8]);
    }

    #[test]
    fn a_message_waits_for_its_token() {
        // One token saved, one per millisecond: the rest of a batch of three waits.
        assert_eq!(micros(COSTS, share(1_000.0, 1), &[arrival(0, 3)], &[]), [47, 1_000, 2_000]);
    }

    #[test]
    fn the_tail_is_the_nearest_rank_of_the_worst_stretch() {
        let topic: Vec<Arrival> = (0..200).map(|n| arrival(n * 1_000, 1)).collect();
        let (plenty, long) = (share(1e6, 1_000), Span::from_secs(1));
        assert_eq!(tail(COSTS, plenty, &topic, &[], long), Some(Span::from_micros(33)));
        let mut slow = topic;
        slow[7].messages = 2;
        // Two of 201 are slower, and then two of 101.
        assert_eq!(tail(COSTS, plenty, &slow, &[], long), Some(Span::from_micros(33)));
        let short = Span::from_millis(100);
        assert_eq!(tail(COSTS, plenty, &slow, &[], short), Some(Span::from_micros(40)));
        assert_eq!(tail(COSTS, plenty, &[], &[], long), None);
    }
}
