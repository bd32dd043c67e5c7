//! A message broker as SRTM's testbed has them: two cores, one task per connection, one stage per topic.
//!
//! The papers' broker is NSQ in Go (SRTM §V-A). What matters of it here:
//!
//! 1. Every publisher has a connection, and every connection a task that is woken when there is
//!    something to read, reads all there is, and hands it to the topic: a cost per wake-up and one per
//!    message.
//! 2. Every topic is one task that runs to completion: it forwards what its buffer holds, at a cost per
//!    message, as long as there are messages and tokens. It holds the bucket. A message's token is
//!    due by the message's *arrival* (§V-B), however late the task looks at it.
//! 3. Tasks take turns on the cores in the order in which they became ready.
//!
//! With 18 µs per wake-up and 15 µs per message (7 to read it, 8 to forward it) two cores serve 60 k/s of
//! single messages and 119 k/s in batches of ten, which is why larger batches can be *faster* in the
//! paper's Figures 6b and 6d: a connection is woken less often.
//!
//! Brokers do not affect each other, so each is simulated by itself. Latency is from arrival to being
//! forwarded, plus a constant for network and subscriber.

pub mod exact;
pub mod shares;
pub mod testbed;
pub mod traffic;

use std::collections::VecDeque;

use tidegate_core::limit::Bucket;
use tidegate_core::placement::replay::{Arrival, Costs};
use tidegate_core::share::{Message, Room, Shaper, Share};
use tidegate_core::{Instant, Rank, Span};

use crate::engine::Engine;

/// What a broker's work costs.
#[derive(Clone, Copy, Debug)]
pub struct Model {
    /// Cores.
    pub cores: usize,
    /// To wake a connection's task.
    pub wake: Span,
    /// To read a message from a connection.
    pub read: Span,
    /// To forward a message: by the topic's one task.
    pub forward: Span,
    /// On the way before and after, no matter the load.
    pub network: Span,
}

impl Default for Model {
    fn default() -> Self {
        Self {
            cores: 2,
            wake: Span::from_micros(18),
            read: Span::from_micros(7),
            forward: Span::from_micros(8),
            // By judgement: two hops over one switch. The paper gives none.
            network: Span::from_micros(50),
        }
    }
}

impl Model {
    /// What a benchmark of such a broker finds, and its profile.
    pub fn costs(&self) -> Costs {
        Costs {
            cores: self.cores as u32,
            wake: self.wake,
            read: self.read,
            forward: self.forward,
            network: self.network,
        }
    }

    /// Serves `topic` with `share` of its bucket beside `others`, both in order of arrival. The latency
    /// of each of the topic's messages that arrived at or after `warm`, in the order of leaving.
    pub fn serve(
        &self,
        share: Share,
        topic: &[Arrival],
        others: &[Arrival],
        warm: Instant,
    ) -> Vec<Span> {
        let mut broker = Broker::new(*self, share, topic, others, warm);
        broker.run();
        broker.latencies
    }
}

/// The topic that is looked at, and whatever else the broker serves.
const TOPIC: usize = 0;
const OTHERS: usize = 1;

#[derive(Clone, Copy, Debug)]
enum Event {
    /// The next batch of a stage arrives.
    Arrive(usize),
    /// A core has finished its task.
    Finish(usize),
    /// The token that the topic waits for is there.
    Token,
}

#[derive(Clone, Copy, Debug)]
enum Task {
    /// Read what a connection has.
    Read { stage: usize, connection: usize },
    /// Forward what a topic's buffer has.
    Forward { stage: usize },
}

/// One topic with its connections.
struct Stage<'a> {
    arrivals: &'a [Arrival],
    /// The next to arrive.
    next: usize,
    /// Batches that wait in each connection to be read; a connection with some has a task.
    unread: Vec<Vec<Arrival>>,
    /// Read and not yet forwarded, in the order of arrival, whoever sent it.
    buffer: Shaper<(), (), Option<Bucket>>,
    /// Whether its task is ready, running or waits for a token.
    busy: bool,
}

impl<'a> Stage<'a> {
    fn new(arrivals: &'a [Arrival], bucket: Option<Bucket>) -> Self {
        let connections = arrivals.iter().map(|at| at.publisher as usize + 1).max().unwrap_or(0);
        Self {
            arrivals,
            next: 0,
            unread: vec![Vec::new(); connections],
            buffer: Shaper::new(bucket, Room::ENDLESS),
            busy: false,
        }
    }
}

struct Broker<'a> {
    model: Model,
    engine: Engine<Event>,
    stages: [Stage<'a>; 2],
    ready: VecDeque<Task>,
    /// What each core works on.
    cores: Vec<Option<Task>>,
    warm: Instant,
    latencies: Vec<Span>,
}

impl<'a> Broker<'a> {
    fn new(
        model: Model,
        share: Share,
        topic: &'a [Arrival],
        others: &'a [Arrival],
        warm: Instant,
    ) -> Self {
        let bucket = Bucket::full(Instant::ZERO, share.limit());
        let mut engine = Engine::new();
        for (stage, arrivals) in [(TOPIC, topic), (OTHERS, others)] {
            if let Some(first) = arrivals.first() {
                engine.at(first.at, Event::Arrive(stage));
            }
        }
        Self {
            model,
            engine,
            stages: [Stage::new(topic, Some(bucket)), Stage::new(others, None)],
            ready: VecDeque::new(),
            cores: vec![None; model.cores],
            warm,
            latencies: Vec::new(),
        }
    }

    fn run(&mut self) {
        let all: usize = self.stages[TOPIC].arrivals.iter().map(|at| at.messages as usize).sum();
        self.latencies.reserve(all);
        while let Some(event) = self.engine.next_before(Instant::FAR) {
            match event {
                Event::Arrive(stage) => self.arrive(stage),
                Event::Finish(core) => self.finish(core),
                Event::Token => self.ready.push_back(Task::Forward { stage: TOPIC }),
            }
            self.start();
            // Only the topic is looked at: when all of it has left, the rest does not matter.
            let topic = &self.stages[TOPIC];
            if topic.next == topic.arrivals.len() && self.idle(TOPIC) {
                break;
            }
        }
    }

    fn idle(&self, stage: usize) -> bool {
        let stage = &self.stages[stage];
        !stage.busy && stage.buffer.waiting() == 0 && stage.unread.iter().all(Vec::is_empty)
    }

    fn arrive(&mut self, stage: usize) {
        let at = &mut self.stages[stage];
        let arrival = at.arrivals[at.next];
        at.next += 1;
        if let Some(next) = at.arrivals.get(at.next) {
            self.engine.at(next.at, Event::Arrive(stage));
        }
        let connection = arrival.publisher as usize;
        let unread = &mut at.unread[connection];
        unread.push(arrival);
        if unread.len() == 1 {
            self.ready.push_back(Task::Read { stage, connection });
        }
    }

    /// Gives ready tasks to free cores.
    fn start(&mut self) {
        for core in 0..self.cores.len() {
            while self.cores[core].is_none() {
                let Some(task) = self.ready.pop_front() else { return };
                self.work(core, task);
            }
        }
    }

    /// Starts a task on a core, unless there is nothing to do for it.
    fn work(&mut self, core: usize, task: Task) {
        let span = match task {
            Task::Read { stage, connection } => self.read(stage, connection),
            Task::Forward { stage } => self.forward(stage),
        };
        if span > Span::ZERO {
            self.cores[core] = Some(task);
            self.engine.after(span, Event::Finish(core));
        }
    }

    fn read(&mut self, stage: usize, connection: usize) -> Span {
        let unread = &self.stages[stage].unread[connection];
        let messages: u64 = unread.iter().map(|at| u64::from(at.messages)).sum();
        self.model.wake + Span::from_nanos(self.model.read.as_nanos() * messages)
    }

    /// Forwards what can be forwarded now; the time that takes.
    fn forward(&mut self, stage: usize) -> Span {
        let now = self.engine.now();
        let mut span = Span::ZERO;
        loop {
            match self.stages[stage].buffer.pop(now) {
                Ok(Some(turn)) => {
                    let arrived = turn.message.arrived;
                    span += self.model.forward;
                    if stage == TOPIC && arrived >= self.warm {
                        self.latencies.push((now + span).since(arrived) + self.model.network);
                    }
                }
                Ok(None) => {
                    self.stages[stage].busy = span > Span::ZERO;
                    return span;
                }
                // The rest waits for tokens. If something was forwarded, the end of that asks again.
                Err(due) => {
                    self.stages[stage].busy = true;
                    if span == Span::ZERO {
                        self.engine.at(due, Event::Token);
                    }
                    return span;
                }
            }
        }
    }

    fn finish(&mut self, core: usize) {
        match self.cores[core].take() {
            Some(Task::Read { stage, connection }) => {
                let at = &mut self.stages[stage];
                for arrival in at.unread[connection].drain(..) {
                    for _ in 0..arrival.messages {
                        let message = Message { arrived: arrival.at, bytes: 0, what: () };
                        at.buffer.restore((), Rank::UNRANKED, message);
                    }
                }
                if !at.busy {
                    at.busy = true;
                    self.ready.push_back(Task::Forward { stage });
                }
            }
            // Run to completion: it keeps its core as long as it has something to forward.
            Some(task @ Task::Forward { .. }) => self.work(core, task),
            None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use tidegate_core::share::Rate;

    use super::*;

    fn share(rate: f64, burst: u64) -> Share {
        Share::new(Rate::per_second(rate).unwrap(), burst)
    }

    fn batches(gap_us: u64, count: u64, messages: u32) -> Vec<Arrival> {
        let at = |n: u64| Instant::ZERO + Span::from_nanos(n * gap_us * 1_000);
        (0..count).map(|n| Arrival { at: at(n), publisher: n as u32, messages }).collect()
    }

    fn micros(latencies: &[Span]) -> Vec<u64> {
        latencies.iter().map(|at| at.as_nanos() / 1_000).collect()
    }

    #[test]
    fn a_message_is_woken_read_and_forwarded() {
        let model = Model { network: Span::ZERO, ..Model::default() };
        let served = model.serve(share(1e6, 100), &batches(0, 1, 2), &[], Instant::ZERO);
        assert_eq!(micros(&served), [18 + 14 + 8, 18 + 14 + 16]);
        // Two connections on two cores; the one topic forwards one after the other.
        let served = model.serve(share(1e6, 100), &batches(0, 2, 1), &[], Instant::ZERO);
        assert_eq!(micros(&served), [18 + 7 + 8, 18 + 7 + 16]);
    }

    #[test]
    fn tokens_are_counted_from_arrival() {
        let model = Model { network: Span::ZERO, ..Model::default() };
        // One token at once, then one per millisecond: forwarded when it is there.
        let served = model.serve(share(1_000.0, 1), &batches(0, 1, 3), &[], Instant::ZERO);
        assert_eq!(micros(&served), [18 + 21 + 8, 1_008, 2_008]);
    }

    /// 60 k/s of single messages, 119 k/s in batches of ten: SRTM's Figures 6b and 6d.
    #[test]
    fn capacity_depends_on_the_batch() {
        for (batch, capacity) in [(1, 60_606.0), (10, 119_048.0)] {
            let model = Model::default();
            let lasts = |rate: f64| {
                let count = 20_000 / u64::from(batch);
                let gap_ns = (1e9 * f64::from(batch) / rate) as u64;
                let at = |n: u64| Instant::from_nanos(n * gap_ns);
                let topic: Vec<Arrival> = (0..count)
                    .map(|n| Arrival { at: at(n), publisher: n as u32, messages: batch })
                    .collect();
                *model.serve(share(1e6, 1_000_000), &topic, &[], Instant::ZERO).last().unwrap()
            };
            assert!(lasts(capacity * 0.98) < Span::from_millis(2), "{batch}");
            assert!(lasts(capacity * 1.05) > Span::from_millis(5), "{batch}");
        }
    }

    #[test]
    fn others_slow_the_topic_down() {
        let model = Model::default();
        let topic = batches(1_000, 100, 1);
        let others = batches(90, 1_100, 10);
        let mean = |latencies: &[Span]| {
            latencies.iter().map(|at| at.as_nanos()).sum::<u64>() / latencies.len() as u64
        };
        let alone = model.serve(share(1e6, 100), &topic, &[], Instant::ZERO);
        let beside = model.serve(share(1e6, 100), &topic, &others, Instant::ZERO);
        assert_eq!((alone.len(), beside.len()), (100, 100));
        assert!(mean(&beside) > mean(&alone) + 50_000);
    }
}
