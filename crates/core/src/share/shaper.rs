//! A bounded queue before a bucket: what finds no token waits for one, and what finds no room goes.
//!
//! A limit that refuses is of no use to whoever cannot be told, such as a publisher whose messages
//! nobody acknowledges. So they wait for their tokens (SRTM §V-B), and the wait is the access delay of
//! the papers. What waits must be bounded, and one publisher must not wait for all that another has sent:
//!
//! 1. A message conforms by its *arrival*: by when its token was there for it, however late anybody looks
//!    ([`Tokens`]).
//! 2. Messages of one publisher leave in the order in which they came; publishers take turns, one message each.
//! 3. Only the message whose turn it is asks for a token. So nothing is booked that might be withdrawn, and
//!    another share holds from the next message on.
//! 4. Without room the newest message of the least important publisher goes; among equals, of the one with
//!    most messages waiting, and the newcomer if that is its own.
//! 5. A publisher can be taken out with all that waits of it, and put in elsewhere, where it is let in
//!    beyond the bound: a move loses nothing, and what moves was within a bound before.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::holder::Holder;
use crate::limit::{Bucket, Shortage};
use crate::rank::Rank;
use crate::time::Instant;

/// What gives tokens.
pub trait Tokens {
    /// Takes a token for what arrived at `arrived`, if it is there at `now`; the moment from which it
    /// was, or when to ask again.
    fn take_for(&mut self, arrived: Instant, now: Instant) -> Result<Instant, Shortage>;
}

impl Tokens for Bucket {
    fn take_for(&mut self, arrived: Instant, now: Instant) -> Result<Instant, Shortage> {
        self.settle(arrived);
        let due = self.due().max(arrived);
        if due > now {
            return Err(Shortage::Until(due));
        }
        // At the moment it was due, so that looking late costs those behind nothing.
        if self.take(due) { Ok(due) } else { Err(Shortage::Never) }
    }
}

impl Tokens for Holder {
    /// A holder's share changes with time, so it goes by when it is asked.
    fn take_for(&mut self, _arrived: Instant, now: Instant) -> Result<Instant, Shortage> {
        self.take(now).map(|()| now)
    }
}

/// Without one, everything has its token when it arrives.
impl<B: Tokens> Tokens for Option<B> {
    fn take_for(&mut self, arrived: Instant, now: Instant) -> Result<Instant, Shortage> {
        self.as_mut().map_or(Ok(arrived), |tokens| tokens.take_for(arrived, now))
    }
}

/// How much may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Messages.
    pub messages: usize,
    /// Their sizes together.
    pub bytes: usize,
}

impl Room {
    /// As much as comes.
    pub const ENDLESS: Self = Self { messages: usize::MAX, bytes: usize::MAX };
}

/// A message as it comes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message<T> {
    /// When it arrived.
    pub arrived: Instant,
    /// How much room it takes.
    pub bytes: usize,
    /// What it is.
    pub what: T,
}

/// What became of a message that came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Offer<K, T> {
    /// It goes; its token was there from this moment on.
    Goes(T, Instant),
    /// It waits.
    Waits,
    /// There was no room, and these are gone. It may be one of them; else it waits.
    Gone(Vec<(K, T)>),
}

/// A message whose turn came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Turn<K, T> {
    /// Whose it is.
    pub publisher: K,
    /// It.
    pub message: Message<T>,
    /// From when on its token was there.
    pub due: Instant,
}

/// Makes messages of publishers `K` wait for tokens.
#[derive(Clone, Debug)]
pub struct Shaper<K, T, B = Bucket> {
    tokens: B,
    room: Room,
    lanes: BTreeMap<K, Lane<T>>,
    /// Whose turn it is: publishers by the number of their next turn.
    turns: BTreeMap<u64, K>,
    next_turn: u64,
    /// Who goes first when there is no room: the last of these.
    least: BTreeSet<(Rank, usize, K)>,
    messages: usize,
    bytes: usize,
}

/// What waits of one publisher; never empty.
#[derive(Clone, Debug)]
struct Lane<T> {
    rank: Rank,
    turn: u64,
    waiting: VecDeque<Message<T>>,
}

impl<K: Copy + Ord, T, B: Tokens> Shaper<K, T, B> {
    /// Nothing waits yet.
    pub fn new(tokens: B, room: Room) -> Self {
        Self {
            tokens,
            room,
            lanes: BTreeMap::new(),
            turns: BTreeMap::new(),
            next_turn: 0,
            least: BTreeSet::new(),
            messages: 0,
            bytes: 0,
        }
    }

    /// Whether what arrived at `arrived` may go past the queue: nothing waits, and its token was there from the
    /// moment returned. For who would not make a message of it otherwise.
    pub fn pass(&mut self, now: Instant, arrived: Instant) -> Option<Instant> {
        if self.messages > 0 {
            return None;
        }
        self.tokens.take_for(arrived, now).ok()
    }

    /// A message has come: it goes if it may pass, else it waits if there is room.
    pub fn offer(
        &mut self,
        now: Instant,
        publisher: K,
        rank: Rank,
        message: Message<T>,
    ) -> Offer<K, T> {
        if let Some(due) = self.pass(now, message.arrived) {
            return Offer::Goes(message.what, due);
        }
        if message.bytes > self.room.bytes {
            // Nobody goes for what will not fit anyway.
            return Offer::Gone(vec![(publisher, message.what)]);
        }
        let mut gone = Vec::new();
        while !self.has_room(message.bytes) {
            match self.push_out(publisher, rank) {
                Some(out) => gone.push(out),
                None => {
                    gone.push((publisher, message.what));
                    return Offer::Gone(gone);
                }
            }
        }
        self.restore(publisher, rank, message);
        if gone.is_empty() { Offer::Waits } else { Offer::Gone(gone) }
    }

    /// The next message whose token is there at `now`; none if nothing waits; or when to ask again.
    pub fn pop(&mut self, now: Instant) -> Result<Option<Turn<K, T>>, Instant> {
        let Some((_, &publisher)) = self.turns.first_key_value() else { return Ok(None) };
        let Some(head) = self.lanes.get(&publisher).and_then(|lane| lane.waiting.front()) else {
            return Ok(None);
        };
        match self.tokens.take_for(head.arrived, now) {
            Err(Shortage::Until(due)) => Err(due),
            Err(Shortage::Never) => Err(Instant::FAR),
            Ok(due) => {
                // Behind all others that wait.
                let turn = (self.turns.len() > 1).then(|| self.new_turn());
                let message = self.change(publisher, |lane| {
                    lane.turn = turn.unwrap_or(lane.turn);
                    lane.waiting.pop_front()
                });
                Ok(message.map(|message| {
                    self.forget(&message);
                    Turn { publisher, message, due }
                }))
            }
        }
    }

    /// Takes out all that waits of a publisher, in order.
    pub fn withdraw(&mut self, publisher: K) -> VecDeque<Message<T>> {
        let waiting = self.change(publisher, |lane| std::mem::take(&mut lane.waiting));
        waiting.iter().for_each(|message| self.forget(message));
        waiting
    }

    /// Lets a message wait whether there is room or not: one that waited elsewhere.
    pub fn restore(&mut self, publisher: K, rank: Rank, message: Message<T>) {
        self.messages += 1;
        self.bytes = self.bytes.saturating_add(message.bytes);
        let turn = self.new_turn();
        self.change(publisher, |lane| {
            if lane.waiting.is_empty() {
                lane.turn = turn;
            }
            lane.rank = rank;
            lane.waiting.push_back(message);
        });
    }

    /// What gives the tokens.
    pub fn tokens(&self) -> &B {
        &self.tokens
    }

    /// The same, to be changed: another share holds from the next message on.
    pub fn tokens_mut(&mut self) -> &mut B {
        &mut self.tokens
    }

    /// Other bounds. What waits beyond them goes on waiting.
    pub fn set_room(&mut self, room: Room) {
        self.room = room;
    }

    /// How many messages wait.
    pub fn waiting(&self) -> usize {
        self.messages
    }

    /// How many of one publisher.
    pub fn waiting_of(&self, publisher: K) -> usize {
        self.lanes.get(&publisher).map_or(0, |lane| lane.waiting.len())
    }

    /// How much room they take.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Panics if the state contradicts itself.
    pub fn invariants(&self) {
        let lengths = self.lanes.values().map(|lane| lane.waiting.len());
        assert_eq!(lengths.sum::<usize>(), self.messages, "messages are counted");
        let sizes = self.lanes.values().flat_map(|lane| &lane.waiting).map(|one| one.bytes);
        assert_eq!(sizes.sum::<usize>(), self.bytes, "and their sizes");
        assert_eq!(self.turns.len(), self.lanes.len(), "everybody has one turn");
        assert_eq!(self.least.len(), self.lanes.len(), "and one place among the least");
        for (publisher, lane) in &self.lanes {
            assert!(!lane.waiting.is_empty(), "nobody has a turn for nothing");
            assert!(self.turns.contains_key(&lane.turn), "turns are known");
            assert!(self.least.contains(&(lane.rank, lane.waiting.len(), *publisher)));
        }
    }

    fn has_room(&self, bytes: usize) -> bool {
        self.messages < self.room.messages && bytes <= self.room.bytes.saturating_sub(self.bytes)
    }

    /// Step 4: makes room for one more of `publisher`; none if that is the one to go.
    fn push_out(&mut self, publisher: K, rank: Rank) -> Option<(K, T)> {
        let &(least, length, who) = self.least.last()?;
        if (rank, self.waiting_of(publisher) + 1) >= (least, length) {
            return None;
        }
        let message = self.change(who, |lane| lane.waiting.pop_back());
        message.map(|message| {
            self.forget(&message);
            (who, message.what)
        })
    }

    fn forget(&mut self, message: &Message<T>) {
        self.messages -= 1;
        self.bytes -= message.bytes;
    }

    fn new_turn(&mut self) -> u64 {
        self.next_turn += 1;
        self.next_turn
    }

    /// Changes what waits of a publisher, and keeps the books.
    fn change<R>(&mut self, publisher: K, change: impl FnOnce(&mut Lane<T>) -> R) -> R {
        let lane = self.lanes.entry(publisher).or_default();
        let before = lane.place();
        let result = change(lane);
        let after = lane.place();
        // In before out: a book that is never empty keeps its memory.
        if let Some((turn, rank, length)) = after {
            self.turns.insert(turn, publisher);
            self.least.insert((rank, length, publisher));
        } else {
            self.lanes.remove(&publisher);
        }
        if let Some((turn, rank, length)) = before {
            if after.is_none_or(|after| after.0 != turn) {
                self.turns.remove(&turn);
            }
            if after.is_none_or(|after| (after.1, after.2) != (rank, length)) {
                self.least.remove(&(rank, length, publisher));
            }
        }
        result
    }
}

impl<T> Lane<T> {
    /// Its turn, and its place among those who go first; none if nothing waits.
    fn place(&self) -> Option<(u64, Rank, usize)> {
        let length = self.waiting.len();
        (length > 0).then_some((self.turn, self.rank, length))
    }
}

impl<T> Default for Lane<T> {
    fn default() -> Self {
        Self { rank: Rank::LAST, turn: 0, waiting: VecDeque::new() }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::limit::Limit;
    use crate::share::{Rate, Share, Weight, split};
    use crate::time::Span;

    fn at(millis: u64) -> Instant {
        Instant::ZERO + Span::from_millis(millis)
    }

    fn message(arrived: Instant, what: u32) -> Message<u32> {
        Message { arrived, bytes: 1, what }
    }

    fn shaper(rate: f64, burst: f64, messages: usize) -> Shaper<u8, u32> {
        let bucket = Bucket::full(Instant::ZERO, Limit::new(rate, burst));
        Shaper::new(bucket, Room { messages, ..Room::ENDLESS })
    }

    /// All that leaves up to `until`, with when its token was there.
    fn all(shaper: &mut Shaper<u8, u32>, until: Instant) -> Vec<(u8, u32, Instant)> {
        let next = || shaper.pop(until).ok().flatten();
        std::iter::from_fn(next).map(|turn| (turn.publisher, turn.message.what, turn.due)).collect()
    }

    /// SRTM §III-A, by hand: r = 10/s, b = 2, four arrivals at once.
    #[test]
    fn four_at_once_leave_as_the_paper_says() {
        let mut shaper = shaper(10.0, 2.0, 9);
        let offers =
            [0, 1, 2, 3].map(|what| shaper.offer(at(0), 7, Rank::UNRANKED, message(at(0), what)));
        assert_eq!(offers[1], Offer::Goes(1, at(0)));
        assert_eq!(offers[2], Offer::Waits);
        assert_eq!(shaper.pop(at(99)), Err(at(100)));
        assert_eq!(all(&mut shaper, at(200)), [(7, 2, at(100)), (7, 3, at(200))]);
        assert_eq!(shaper.pop(at(200)), Ok(None));
    }

    #[test]
    fn who_looks_late_costs_those_behind_nothing() {
        let mut shaper = shaper(10.0, 1.0, 9);
        for what in 0..4 {
            shaper.offer(at(0), 7, Rank::UNRANKED, message(at(0), what));
        }
        // Nobody looks for 350 ms: all have left as of the moments they were due.
        let left = all(&mut shaper, at(350));
        assert_eq!(left.iter().map(|one| one.2).collect::<Vec<_>>(), [at(100), at(200), at(300)]);
    }

    #[test]
    fn publishers_take_turns_and_keep_their_order() {
        let mut shaper = shaper(1_000.0, 1.0, 99);
        for what in 0..6 {
            shaper.offer(at(0), 1, Rank::UNRANKED, message(at(0), what));
        }
        for what in 10..12 {
            shaper.offer(at(0), 2, Rank::UNRANKED, message(at(0), what));
        }
        let left: Vec<u32> = all(&mut shaper, at(99)).iter().map(|one| one.1).collect();
        assert_eq!(left, [1, 10, 2, 11, 3, 4, 5]);
    }

    #[test]
    fn without_room_the_least_important_loses_its_newest() {
        let mut shaper = shaper(1.0, 1.0, 3);
        let (high, low) = (Rank::new(1, 0), Rank::new(9, 0));
        shaper.offer(at(0), 1, high, message(at(0), 0));
        for (publisher, rank, what) in [(1, high, 1), (2, low, 2), (2, low, 3)] {
            let offer = shaper.offer(at(0), publisher, rank, message(at(0), what));
            assert_eq!(offer, Offer::Waits);
        }
        let mut offer =
            |publisher, rank, what| shaper.offer(at(0), publisher, rank, message(at(0), what));
        assert_eq!(offer(3, low, 4), Offer::Gone(vec![(2, 3)]), "it has more waiting");
        assert_eq!(
            offer(2, low, 5),
            Offer::Gone(vec![(2, 5)]),
            "nobody has more than it would have"
        );
        assert_eq!(offer(1, high, 6), Offer::Gone(vec![(3, 4)]));
        assert_eq!(offer(1, high, 7), Offer::Gone(vec![(2, 2)]));
        assert_eq!(offer(1, high, 8), Offer::Gone(vec![(1, 8)]));
        let large = Message { arrived: at(0), bytes: usize::MAX, what: 9 };
        shaper.set_room(Room { messages: 9, bytes: 10 });
        assert_eq!(shaper.offer(at(0), 4, high, large), Offer::Gone(vec![(4, 9)]), "in vain");
        shaper.invariants();
    }

    #[test]
    fn who_moves_takes_all_it_has_along_beyond_any_bound() {
        let (mut here, mut there) = (shaper(1.0, 1.0, 9), shaper(1_000.0, 1.0, 1));
        for what in 0..5 {
            here.offer(at(0), 1, Rank::UNRANKED, message(at(0), what));
        }
        there.offer(at(0), 2, Rank::UNRANKED, message(at(0), 90));
        there.offer(at(0), 2, Rank::UNRANKED, message(at(0), 91));
        for message in here.withdraw(1) {
            there.restore(1, Rank::UNRANKED, message);
        }
        assert_eq!((here.waiting(), there.waiting()), (0, 5));
        let left: Vec<u32> = all(&mut there, at(99)).iter().map(|one| one.1).collect();
        assert_eq!(left, [91, 1, 2, 3, 4]);
        here.invariants();
        there.invariants();
    }

    #[derive(Clone, Debug)]
    enum Op {
        Offer { part: usize, publisher: u8, rank: u8, late: u64 },
        Wait(u64),
        Pop(usize),
        Move { publisher: u8, from: usize, to: usize },
        Split([u64; 3]),
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            8 => (0..3usize, 0..4u8, 0..3u8, 0..5_000_000u64)
                .prop_map(|(part, publisher, rank, late)| Op::Offer { part, publisher, rank, late }),
            4 => (0..20_000_000u64).prop_map(Op::Wait),
            6 => (0..3usize).prop_map(Op::Pop),
            1 => (0..4u8, 0..3usize, 0..3usize)
                .prop_map(|(publisher, from, to)| Op::Move { publisher, from, to }),
            1 => prop::array::uniform3(0..9u64).prop_map(Op::Split),
        ]
    }

    fn shares(weights: [u64; 3]) -> Vec<Share> {
        let whole = Share::new(Rate::per_second(1_000.0).unwrap(), 9);
        split(whole, &weights.map(Weight::both)).unwrap()
    }

    proptest! {
        /// Three sub-buckets of one agreement, through moves and other splits: all that goes conforms to the
        /// whole by when it was due, every message ends once, and publishers keep their order.
        #[test]
        fn parts_conform_to_the_whole_and_lose_nothing(ops in prop::collection::vec(op(), 1..200)) {
            let mut now = at(1_000);
            let part = |share: &Share| {
                Shaper::new(Bucket::full(now, share.limit()), Room { messages: 4, bytes: 4 })
            };
            let mut parts: Vec<Shaper<u8, u32>> = shares([1; 3]).iter().map(part).collect();
            let (mut next, mut ended, mut dues) = (0, Vec::new(), Vec::new());
            // Which part each publisher is at, and what was let out last of it.
            let (mut home, mut last) = ([0; 4], [None; 4]);
            for op in ops {
                match op {
                    Op::Offer { part, publisher, rank, late } => {
                        let who = usize::from(publisher);
                        if last[who].is_none() && parts.iter().all(|at| at.waiting_of(publisher) == 0) {
                            home[who] = part;
                        }
                        let arrived = now - Span::from_nanos(late);
                        let message = message(arrived, next);
                        let rank = Rank::new(rank, 0);
                        match parts[home[who]].offer(now, publisher, rank, message) {
                            Offer::Goes(what, due) => {
                                prop_assert!(due >= arrived && due <= now);
                                prop_assert!(last[who] < Some(what));
                                last[who] = Some(what);
                                ended.push(what);
                                dues.push(due);
                            }
                            Offer::Waits => {}
                            Offer::Gone(gone) => ended.extend(gone.into_iter().map(|one| one.1)),
                        }
                        next += 1;
                    }
                    Op::Wait(nanos) => now += Span::from_nanos(nanos),
                    Op::Pop(part) => {
                        if let Ok(Some(turn)) = parts[part].pop(now) {
                            let who = usize::from(turn.publisher);
                            prop_assert!(turn.due >= turn.message.arrived && turn.due <= now);
                            prop_assert!(last[who] < Some(turn.message.what));
                            last[who] = Some(turn.message.what);
                            ended.push(turn.message.what);
                            dues.push(turn.due);
                        }
                    }
                    Op::Move { publisher, from, to } => {
                        if home[usize::from(publisher)] == from && from != to {
                            for message in parts[from].withdraw(publisher) {
                                parts[to].restore(publisher, Rank::UNRANKED, message);
                            }
                            home[usize::from(publisher)] = to;
                        }
                    }
                    Op::Split(weights) => {
                        for (part, share) in parts.iter_mut().zip(shares(weights)) {
                            part.tokens_mut().set_limit(now, share.limit());
                        }
                    }
                }
                parts.iter().for_each(Shaper::invariants);
            }
            let waiting: usize = parts.iter().map(Shaper::waiting).sum();
            ended.sort_unstable();
            ended.dedup();
            prop_assert_eq!(ended.len() + waiting, next as usize, "every message ends once");
            dues.sort_unstable();
            let mut whole = Bucket::full(at(0), Limit::new(1_000.0, 9.0));
            for due in dues {
                // Rates of parts are rounded to whole fractions of a nanosecond per token.
                let late = whole.book(due, 1.0, Instant::FAR).unwrap();
                prop_assert!(late.since(due) < Span::from_micros(1), "beyond the whole by {}", late.since(due));
            }
        }
    }
}
