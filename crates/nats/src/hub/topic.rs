//! Limited topics: one agreement each, a bucket and a queue of what waits per broker.
//!
//! The parts of an agreement are made and remade here, in one place at one moment, so they need no leases: what
//! one broker's bucket loses another's gains with the next message, and no token is minted on the way. Where several
//! gates share a topic, what is divided is this gate's lease of it (`leases`).

use std::collections::BTreeMap;

use tidegate_core::limit::Bucket;
use tidegate_core::share::{
    Adaptor, AdaptorConfig, History, HistoryConfig, HolderId, Message, Offer, Rate, Room, Shaper,
    Share, Turn, apportion,
};
use tidegate_core::{Instant, Rank, Span};

use super::ClientId;
use super::delays::Delays;
use super::recording::Recording;
use crate::config::TopicConfig;
use crate::leases::{Lease, Part};
use crate::wire::subject;

/// Of an agreement, what is divided evenly and not by load, so that an idle broker's first messages need not wait
/// for the next division. A tenth, as for leases.
const FLOOR: u64 = 10;

/// One topic.
#[derive(Debug)]
pub(super) struct Topic {
    pub(super) config: TopicConfig,
    /// What this gate has of it, where several share it.
    pub(super) lease: Option<Lease>,
    /// The one broker that it passes through, if it is of streams.
    pub(super) only: Option<usize>,
    /// What was divided last.
    divided: Share,
    cells: Vec<Cell>,
    adaptor: Adaptor,
    /// All that left, as one bucket sees it that is never split: below nothing it has exceeded the agreement.
    whole: Bucket,
    /// Until when what it has sent lately may still change shares.
    busy_until: Instant,
    /// How far back its load is remembered.
    memory: Span,
    pub(super) stats: Stats,
    pub(super) recording: Recording,
}

/// A topic at one broker.
#[derive(Debug)]
struct Cell {
    shaper: Shaper<ClientId, Vec<u8>, Part>,
    history: History,
    share: Share,
    open: bool,
}

/// What is counted of a topic.
#[derive(Debug, Default)]
pub(super) struct Stats {
    /// Messages that went on.
    pub(super) passed: u64,
    /// Messages that found no room.
    pub(super) refused: u64,
    /// From arrival to token.
    pub(super) access: Delays,
    /// Longest time from token to departure.
    pub(super) lag: Span,
    /// Most tokens ever taken beyond the agreement by the moments of departure.
    pub(super) beyond: f64,
    /// When the first and the last token were due.
    pub(super) due: Option<(Instant, Instant)>,
}

/// A message on its way.
pub(super) struct Departure {
    pub(super) client: ClientId,
    pub(super) bytes: Vec<u8>,
}

impl Topic {
    /// Nothing was sent. Buckets begin empty, so that a restart admits nothing extra.
    pub(super) fn new(
        now: Instant,
        config: TopicConfig,
        (brokers, only): (usize, Option<usize>),
        adaptor: AdaptorConfig,
        history: HistoryConfig,
    ) -> Self {
        let room = Room { messages: config.queue, bytes: config.queue_bytes };
        let lease = config.leased().map(|config| Lease::new(&config, now));
        let part =
            || Part { bucket: Bucket::empty(now, Share::NONE.limit()), lease: lease.clone() };
        let cell = |_| Cell {
            shaper: Shaper::new(part(), room),
            history: History::new(now, history),
            share: Share::NONE,
            open: false,
        };
        let whole = Bucket::full(now, config.whole().limit());
        Self {
            cells: (0..brokers).map(cell).collect(),
            adaptor: Adaptor::new(adaptor),
            whole,
            busy_until: now,
            memory: history.span + history.step + history.step,
            stats: Stats::default(),
            recording: Recording::default(),
            divided: Share::NONE,
            only,
            lease,
            config,
        }
    }

    /// Another rate, burst or queue.
    pub(super) fn change(&mut self, now: Instant, config: TopicConfig) {
        let room = Room { messages: config.queue, bytes: config.queue_bytes };
        self.config = config;
        self.whole.set_limit(now, self.config.whole().limit());
        self.cells.iter_mut().for_each(|cell| cell.shaper.set_room(room));
        self.divide(now);
    }

    /// Whether a broker has a part of it.
    pub(super) fn open(&mut self, now: Instant, broker: usize, open: bool) {
        let cell = &mut self.cells[broker];
        if cell.open != open && self.only.is_none_or(|only| only == broker) {
            cell.open = open;
            // What it had saved up is divided among the others, or was.
            cell.shaper.tokens_mut().bucket = Bucket::empty(now, Share::NONE.limit());
            cell.share = Share::NONE;
            if !open {
                self.adaptor.remove(HolderId(broker as u64));
            }
            self.divide(now);
        }
    }

    /// A message for `broker` has arrived: true if it may go at once.
    pub(super) fn arrive(&mut self, now: Instant, broker: usize, arrived: Instant) -> bool {
        self.busy_until = now + self.memory;
        let cell = &mut self.cells[broker];
        cell.history.on_arrival(now, 1);
        if let Some(lease) = &self.lease {
            lease.on_arrival(now);
        }
        let due = cell.shaper.pass(now, arrived);
        if let Some(due) = due {
            self.note(now, broker, arrived, due);
        }
        due.is_some()
    }

    /// It has to wait. Whose messages found no room for it, with them.
    pub(super) fn wait(
        &mut self,
        now: Instant,
        broker: usize,
        client: ClientId,
        rank: Rank,
        message: Message<Vec<u8>>,
    ) -> Vec<(ClientId, Vec<u8>)> {
        let cell = &mut self.cells[broker];
        let gone = match cell.shaper.offer(now, client, rank, message) {
            Offer::Gone(gone) => gone,
            Offer::Waits => Vec::new(),
            // Asked a moment ago at the same time, there was no token.
            Offer::Goes(what, _) => vec![(client, what)],
        };
        self.stats.refused += gone.len() as u64;
        self.note_backlog(now, broker);
        gone
    }

    /// The next that may leave for `broker`, or when there will be one.
    pub(super) fn next(
        &mut self,
        now: Instant,
        broker: usize,
    ) -> Result<Option<Departure>, Instant> {
        let Some(turn) = self.cells[broker].shaper.pop(now)? else { return Ok(None) };
        let Turn { publisher: client, message, due } = turn;
        self.note(now, broker, message.arrived, due);
        Ok(Some(Departure { client, bytes: message.what }))
    }

    /// Takes out all that waits of a publisher.
    pub(super) fn withdraw(
        &mut self,
        broker: usize,
        client: ClientId,
    ) -> impl Iterator<Item = Message<Vec<u8>>> {
        self.cells[broker].shaper.withdraw(client).into_iter()
    }

    /// Puts it in at another broker.
    pub(super) fn restore(
        &mut self,
        broker: usize,
        client: ClientId,
        rank: Rank,
        message: Message<Vec<u8>>,
    ) {
        self.cells[broker].shaper.restore(client, rank, message);
    }

    /// Whether messages of a publisher wait for `broker`.
    pub(super) fn has(&self, broker: usize, client: ClientId) -> bool {
        self.cells[broker].shaper.waiting_of(client) > 0
    }

    /// How many messages wait for `broker`.
    pub(super) fn waiting(&self, broker: usize) -> usize {
        self.cells[broker].shaper.waiting()
    }

    /// How long one more would wait for `broker`.
    pub(super) fn wait_ahead(&self, broker: usize) -> Span {
        let ahead = (self.waiting(broker) + 1) as f64;
        Span::from_nanos_f64(ahead / self.cells[broker].share.rate.as_f64().max(1e-9) * 1e9)
    }

    /// What `broker` has of it.
    pub(super) fn share(&self, broker: usize) -> Share {
        self.cells[broker].share
    }

    /// What all gates have agreed on.
    pub(super) fn agreement(&self, now: Instant) -> Share {
        self.lease.as_ref().map_or_else(|| self.config.whole(), |lease| lease.whole(now))
    }

    /// What this gate has of it.
    pub(super) fn own(&self, now: Instant) -> Share {
        self.lease.as_ref().map_or_else(|| self.config.whole(), |lease| lease.share(now))
    }

    /// Lets shares follow loads. Of a topic that was idle for as long as anything is remembered, there is no news but
    /// of its lease.
    pub(super) fn adapt(&mut self, now: Instant) {
        if now > self.busy_until && self.own(now) == self.divided {
            return;
        }
        for (broker, cell) in self.cells.iter_mut().enumerate().filter(|(_, cell)| cell.open) {
            self.adaptor.on_load(HolderId(broker as u64), cell.history.load(now));
        }
        self.divide(now);
    }

    /// Floors for all that are open, and the rest by load.
    fn divide(&mut self, now: Instant) {
        let open: Vec<usize> = (0..self.cells.len()).filter(|at| self.cells[*at].open).collect();
        let whole = self.own(now);
        self.divided = whole;
        let floor =
            Share::new(Rate::from_millionths(whole.rate.millionths() / FLOOR), open.len() as u64);
        let floor = floor.least(whole);
        let (floors, pool) = (evenly(floor, open.len()), whole.minus(floor));
        let mut left = pool;
        let mut targets = BTreeMap::new();
        for broker in &open {
            let target = self.adaptor.target(pool, HolderId(*broker as u64));
            left = left.minus(target);
            targets.insert(*broker, target);
        }
        // While nobody has said anything, all are alike.
        let rest = (left == pool).then(|| evenly(pool, open.len()));
        for (at, (broker, floor)) in open.iter().zip(floors).enumerate() {
            let more = rest.as_ref().map_or(targets[broker], |rest| rest[at]);
            let (share, cell) = (floor.plus(more), &mut self.cells[*broker]);
            if cell.share != share {
                cell.share = share;
                // A lease may have fewer tokens at once than there are brokers, and it is the lease that holds them back.
                let burst = share.burst.max(u64::from(self.lease.is_some()));
                let limit = Share::new(share.rate, burst).limit();
                cell.shaper.tokens_mut().bucket.set_limit(now, limit);
            }
        }
    }

    fn note(&mut self, now: Instant, broker: usize, arrived: Instant, due: Instant) {
        let stats = &mut self.stats;
        stats.passed += 1;
        stats.access.add(due.since(arrived));
        stats.lag = stats.lag.max(now.since(due));
        stats.due = Some(stats.due.map_or((due, due), |(a, b)| (a.min(due), b.max(due))));
        if self.lease.is_none() {
            // It takes what it has not, and owes it.
            let _ = self.whole.book(now, 1.0, Instant::FAR);
            stats.beyond = stats.beyond.max(-self.whole.tokens(now));
        }
        self.note_backlog(now, broker);
    }

    fn note_backlog(&mut self, now: Instant, broker: usize) {
        let cell = &mut self.cells[broker];
        let bucket = &cell.shaper.tokens().bucket;
        let missing = (bucket.limit().burst - bucket.tokens(now)).max(0.0).ceil() as u64;
        cell.history.on_backlog(now, missing + cell.shaper.waiting() as u64);
        if let Some(lease) = &self.lease {
            lease.on_waiting(now, self.cells.iter().map(|cell| cell.shaper.waiting()).sum());
        }
    }
}

/// As many shares that sum to it exactly, all alike but for rounding; what is less than one each is none for some.
fn evenly(share: Share, parts: usize) -> Vec<Share> {
    let alike = vec![1; parts];
    let parts = |total| apportion(total, &alike, 0).unwrap_or_default();
    let rates = parts(share.rate.millionths()).into_iter().map(Rate::from_millionths);
    rates.zip(parts(share.burst)).map(|(rate, burst)| Share::new(rate, burst)).collect()
}

/// Topics by their subjects: first tokens that are no wildcards lead to the few that can match.
#[derive(Debug, Default)]
pub(super) struct Topics {
    pub(super) list: Vec<Topic>,
    by_first: BTreeMap<Vec<u8>, Vec<usize>>,
    /// Those that begin with a wildcard.
    open: Vec<usize>,
}

impl Topics {
    pub(super) fn new(list: Vec<Topic>) -> Self {
        let mut topics = Self::default();
        for (at, topic) in list.iter().enumerate() {
            match first(topic.config.subject.as_bytes()) {
                b"*" | b">" => topics.open.push(at),
                token => topics.by_first.entry(token.to_vec()).or_default().push(at),
            }
        }
        topics.list = list;
        topics
    }

    /// The topic of a subject.
    pub(super) fn find(&self, subject: &[u8]) -> Option<usize> {
        if self.list.is_empty() {
            return None;
        }
        let near = self.by_first.get(first(subject)).into_iter().flatten();
        let fits =
            |at: &&usize| subject::matches(self.list[**at].config.subject.as_bytes(), subject);
        near.chain(&self.open).find(fits).copied()
    }
}

fn first(subject: &[u8]) -> &[u8] {
    subject.split(|byte| *byte == b'.').next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Instant {
        Instant::ZERO + Span::from_millis(millis)
    }

    fn topic(subject: &str, rate: f64, burst: u64, brokers: usize) -> Topic {
        let text = format!("subject = '{subject}'\nrate = {rate}\nburst = {burst}\n");
        let config = toml::from_str(&text).expect("a topic");
        Topic::new(
            at(0),
            config,
            (brokers, None),
            AdaptorConfig::default(),
            HistoryConfig::default(),
        )
    }

    fn sum(topic: &Topic) -> Share {
        (0..topic.cells.len()).map(|at| topic.share(at)).fold(Share::NONE, Share::plus)
    }

    #[test]
    fn shares_are_the_agreement_whoever_is_there_and_whatever_the_loads() {
        let mut topic = topic("a", 1_000.0, 10, 3);
        for broker in [0, 1, 2] {
            topic.open(at(0), broker, true);
            assert_eq!(sum(&topic), topic.config.whole());
        }
        for n in 0..3_000 {
            topic.arrive(at(n), usize::from(n % 10 == 0), at(n));
            if n % 100 == 0 {
                topic.adapt(at(n));
                assert_eq!(sum(&topic), topic.config.whole());
            }
        }
        let rates = [0, 1, 2].map(|at| topic.share(at).rate.as_f64());
        assert!(rates[0] > 800.0 && rates[1] > 100.0 && rates[2] > 30.0, "{rates:?}");
        topic.open(at(3_000), 0, false);
        assert_eq!((sum(&topic), topic.share(0)), (topic.config.whole(), Share::NONE));
    }

    /// With a token each and no more, there is no burst to divide by load, but a rate.
    #[test]
    fn before_anybody_has_sent_anything_all_of_the_agreement_is_divided() {
        for (brokers, burst) in [(1, 1), (3, 3), (3, 4)] {
            let mut topic = topic("a", 300.0, burst, brokers);
            (0..brokers).for_each(|broker| topic.open(at(0), broker, true));
            assert_eq!(sum(&topic), topic.config.whole());
        }
    }

    #[test]
    fn what_the_parts_let_pass_the_whole_lets_pass() {
        let mut topic = topic("a", 1_000.0, 10, 3);
        (0..3).for_each(|broker| topic.open(at(0), broker, true));
        for n in 0..5_000u64 {
            // From one broker to the next and back, with more than agreed.
            let broker = (n / 500 % 3) as usize;
            let now = Instant::ZERO + Span::from_micros(n * 300);
            if !topic.arrive(now, broker, now) {
                let message = Message { arrived: now, bytes: 1, what: Vec::new() };
                topic.wait(now, broker, 1, Rank::UNRANKED, message);
            }
            for broker in 0..3 {
                while topic.next(now, broker).is_ok_and(|one| one.is_some()) {}
            }
            if n % 50 == 0 {
                topic.adapt(now);
            }
        }
        let Stats { passed, lag, beyond, .. } = topic.stats;
        assert!(passed > 1_000 && passed <= 1_510, "{passed} of 1,500 and a burst of 10");
        // A token that was due is taken when somebody looks.
        assert!(beyond <= 1_000.0 * lag.as_secs_f64() + 1e-3, "{beyond} with a lag of {lag}");
    }

    #[test]
    fn subjects_find_their_topic() {
        let list = ["a.b", "a.c.>", "*.z", "b.*"].map(|subject| topic(subject, 1.0, 1, 1));
        let topics = Topics::new(list.into());
        for (subject, found) in [
            ("a.b", Some(0)),
            ("a.c.d.e", Some(1)),
            ("q.z", Some(2)),
            ("b.x", Some(3)),
            ("a", None),
            ("a.c", None),
            ("", None),
        ] {
            assert_eq!(topics.find(subject.as_bytes()), found, "{subject}");
        }
    }
}
