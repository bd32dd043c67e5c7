//! The book of abandoned work: requests whose callers have left while the service goes on with them.
//!
//! Most services do not notice that a caller has left; they work on (which do is [found out](super::leaving)). If the slot were free at once, a
//! client that connects, asks and leaves would fill the service while the gate believes it idle. So what
//! was sent and abandoned keeps its slot, until the service has answered ([`Gone::Kept`]: the driver waits for
//! that) or, where nobody will hear of it ([`Gone::Lost`]), for as long as requests take.
//!
//! Whoever frees the slots of a service that is full of abandoned work fills it further, and it never recovers. So what is
//! kept is bounded in time by the driver, as a client that stays could hold a slot for as long. But the book must not become a
//! weapon either:
//!
//! 1. One *source* (a user's rank, or the caller's id) may have no more in it than its part of half of the slots, one at
//!    least, and while it has as many nothing else of it starts, for one objective at most: what hangs for longer is not its
//!    fault any more.
//! 2. Cancellations are charged to who cancels: for the time that the service worked for it in vain, it is turned
//!    away long enough to have had no more than half of its fair share, for one objective at most. The fair share is that of
//!    one of the sources that were started lately.
//! 3. What was lost holds a slot for one objective at most, and all of it together half of the slots: beyond that the
//!    earliest gives way.
//! 4. What is kept for longer than one objective hangs. Where more than half of the slots are in the book, or more of a source than its
//!    part, the earliest of these gives way to the next request: one for each that the service answers, so that one which
//!    answers nothing gets no more.

use std::collections::BTreeMap;

use super::{Gate, State, time_left};
use crate::context::{CallerId, Context};
use crate::event::Misuse;
use crate::request::RequestId;
use crate::time::{Instant, Span};
use crate::verdict::{Advice, Outcome, Reason, Rejection};

/// Whether somebody will tell when the service is done with abandoned work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gone {
    /// The driver waits for the answer, and tells it by [`Gate::finish`].
    Kept,
    /// Nobody will: the gate guesses.
    Lost,
}

/// Requests started lately whose sources count as present.
const RECENT: usize = 64;
/// Sources that are remembered: more than can be in the book, as each has a slot there.
const SOURCES: usize = 1024;
/// How long what was lost holds a slot at most where the policy has no objective.
const WITHOUT_OBJECTIVE: Span = Span::from_secs(1);

/// Who is behind a request, as far as anybody knows: nobody in particular is `None`.
fn source_of(context: &Context) -> Option<u64> {
    match context.caller {
        CallerId::UNKNOWN if context.lot => None,
        CallerId::UNKNOWN => Some(u64::from(context.rank.key())),
        CallerId(caller) => Some(caller | 1 << 63),
    }
}

/// Abandoned work that holds slots, and who is charged for it.
#[derive(Clone, Debug, Default)]
pub(super) struct Abandoned {
    /// In the order in which it was abandoned.
    book: Vec<Booked>,
    accounts: BTreeMap<u64, Account>,
    /// Sources of requests started lately, none in places that were never used.
    recent: Vec<Option<u64>>,
    next: usize,
}

#[derive(Clone, Copy, Debug)]
struct Booked {
    id: RequestId,
    source: Option<u64>,
    since: Instant,
    /// When its slot is free even if nobody tells: never, if somebody will.
    until: Instant,
}

#[derive(Clone, Copy, Debug, Default)]
struct Account {
    booked: u32,
    /// Until then it is turned away.
    until: Instant,
}

impl Abandoned {
    fn enter(&mut self, booked: Booked) {
        let Booked { source, .. } = booked;
        if let Some(source) = source
            && (self.accounts.len() < SOURCES || self.accounts.contains_key(&source))
        {
            self.accounts.entry(source).or_default().booked += 1;
        }
        let source = source.filter(|source| self.accounts.contains_key(source));
        self.book.push(Booked { source, ..booked });
    }

    /// Slots that it holds.
    pub(super) fn held(&self) -> usize {
        self.book.len()
    }

    fn on_start(&mut self, context: &Context) {
        let source = source_of(context);
        if self.recent.len() < RECENT {
            self.recent.push(source);
        } else {
            self.recent[self.next] = source;
            self.next = (self.next + 1) % RECENT;
        }
    }

    /// Sources that were started lately, at least one.
    fn present(&self) -> usize {
        let mut sources: Vec<u64> = self.recent.iter().flatten().copied().collect();
        sources.sort_unstable();
        sources.dedup();
        sources.len().max(1)
    }

    /// How many one source may have in the book, of so many slots.
    fn part(&self, slots: u32) -> u32 {
        let sources = self.accounts.values().filter(|account| account.booked > 0).count();
        (half(slots) / sources.max(1) as u32).max(1)
    }

    /// How many a source has in the book for less than so long: what hangs for longer is not its fault any more.
    fn booked_lately(&self, source: Option<u64>, now: Instant, most: Span) -> u32 {
        let lately = |booked: &&Booked| booked.source == source && now.since(booked.since) < most;
        self.book.iter().filter(lately).count() as u32
    }

    /// The first that hangs and has more than its part: of half of the slots, or of its source's part of these.
    fn overdue(&self, now: Instant, slots: u32, most: Span) -> Option<usize> {
        let (full, part) = (self.book.len() > half(slots) as usize, self.part(slots));
        let booked = |source| self.accounts.get(&source).map_or(0, |account| account.booked);
        self.book.iter().position(|it| {
            now.since(it.since) >= most && (full || it.source.map_or(0, booked) > part)
        })
    }

    fn remove(&mut self, id: RequestId) -> Option<Booked> {
        let at = self.book.iter().position(|booked| booked.id == id)?;
        let booked = self.book.remove(at);
        if let Some(account) = booked.source.and_then(|source| self.accounts.get_mut(&source)) {
            account.booked -= 1;
        }
        Some(booked)
    }

    /// What it held was abandoned work of this source for so long.
    fn charge(&mut self, now: Instant, source: Option<u64>, held: Span, slots: u32, most: Span) {
        let parts = 2.0 * self.present() as f64 / f64::from(slots) - 1.0;
        let Some(account) = source.and_then(|source| self.accounts.get_mut(&source)) else {
            return;
        };
        let away = held.scale(parts.max(0.0)).min(most);
        account.until = account.until.max(now + away);
    }
}

/// So many slots may be taken by abandoned work.
fn half(slots: u32) -> u32 {
    slots.div_ceil(2)
}

impl Gate {
    /// The caller of a request that runs has left, and the service goes on with it. Its slot is
    /// free when the service is done, as far as that can be known, but not much later than requests take. Those that do not run are
    /// cancelled.
    pub fn abandon(&mut self, now: Instant, id: RequestId, gone: Gone) {
        let now = self.advance(now);
        match self.entries.get(id).map(|entry| entry.state) {
            Some(State::Running) => {
                let until = match gone {
                    Gone::Kept => Instant::FAR,
                    Gone::Lost => self.usual_end(now, id),
                };
                self.book(now, id, until);
            }
            Some(State::Abandoned) => self.ignore(now, Misuse::WrongState),
            _ => self.cancel(now, id),
        }
    }

    /// Requests that hold a slot although their callers have left.
    pub fn abandoned(&self) -> usize {
        self.abandoned.held()
    }

    /// When requests like this one end.
    fn usual_end(&self, now: Instant, id: RequestId) -> Instant {
        let usual = Span::from_nanos_f64(self.service.get().unwrap_or(0.0));
        let started = self.entries.get(id).map_or(now, |entry| entry.started);
        now + usual.saturating_sub(now.since(started)).min(self.longest_in_book())
    }

    /// It holds its slot until then, unless the driver tells of its end before.
    pub(super) fn book(&mut self, now: Instant, id: RequestId, until: Instant) {
        let Some(entry) = self.entries.get_mut(id) else { return };
        entry.state = State::Abandoned;
        let source = source_of(&entry.request.context);
        self.abandoned.enter(Booked { id, source, since: now, until });
        let lost = |booked: &Booked| booked.until < Instant::FAR;
        if self.abandoned.book.iter().filter(|booked| lost(booked)).count()
            > half(self.limit) as usize
            && let Some(earliest) = self.abandoned.book.iter().position(lost)
        {
            self.let_go(now, earliest);
        }
    }

    fn longest_in_book(&self) -> Span {
        self.admission.objective().unwrap_or(WITHOUT_OBJECTIVE)
    }

    /// Ends what was lost, when requests do.
    pub(super) fn expire_abandoned(&mut self, now: Instant) {
        while let Some(at) = self.abandoned.book.iter().position(|booked| booked.until <= now) {
            self.let_go(now, at);
        }
        self.abandoned.accounts.retain(|_, account| account.booked > 0 || account.until > now);
    }

    /// When the next of them does.
    pub(super) fn abandoned_until(&self) -> Option<Instant> {
        let until = self.abandoned.book.iter().map(|booked| booked.until).min()?;
        (until < Instant::FAR).then_some(until)
    }

    /// The service has answered something: what hangs there meanwhile, and is too much, gives way.
    pub(super) fn give_way(&mut self, now: Instant) {
        if let Some(at) = self.abandoned.overdue(now, self.limit, self.longest_in_book()) {
            self.let_go(now, at);
        }
    }

    /// Nobody knows whether the service still works on it.
    fn let_go(&mut self, now: Instant, at: usize) {
        let id = self.abandoned.book[at].id;
        let done = self.done_so_far(now, id);
        self.finish(now, id, Outcome::Cancel, done);
    }

    fn charge(&mut self, now: Instant, booked: &Booked) {
        let Some(entry) = self.entries.get(booked.id) else { return };
        let held = now.since(entry.started);
        let (slots, most) = (self.limit, self.longest_in_book());
        self.abandoned.charge(now, booked.source, held, slots, most);
    }

    /// The service is done with abandoned work that was in the book.
    pub(super) fn clear_abandoned(&mut self, now: Instant, id: RequestId) {
        if let Some(booked) = self.abandoned.remove(id) {
            self.charge(now, &booked);
        }
    }

    /// Whether whoever is behind a request has to wait for what it abandoned.
    pub(super) fn owes(&self, now: Instant, context: &Context) -> Result<(), Rejection> {
        if self.abandoned.accounts.is_empty() {
            return Ok(());
        }
        let source = source_of(context);
        let account = source.and_then(|source| self.abandoned.accounts.get(&source));
        let Some(account) = account else { return Ok(()) };
        let (part, most) = (self.abandoned.part(self.limit), self.longest_in_book());
        let booked = self.abandoned.booked_lately(source, now, most);
        if booked < part && account.until <= now {
            return Ok(());
        }
        let later = account.until.since(now).max(Span::from_millis(1));
        let later =
            if time_left(now, context) > later { Advice::Later(later) } else { Advice::Never };
        Err(Rejection::new(Reason::Abandoned, f64::from(booked), f64::from(part), later))
    }

    /// A request of this source was started.
    pub(super) fn note_source(&mut self, context: &Context) {
        self.abandoned.on_start(context);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admission::{AdmissionConfig, TideConfig};
    use crate::gate::{Action, GateConfig};
    use crate::meter::Cost;
    use crate::objective::Objective;
    use crate::rank::Rank;
    use crate::slots::SlotsConfig;

    const OBJECTIVE: Span = Span::from_millis(100);

    fn gate(slots: u32) -> Gate {
        let objective = Objective::Given(OBJECTIVE);
        let admission = AdmissionConfig::Tide(TideConfig { objective, ..TideConfig::default() });
        let slots = SlotsConfig::fixed(slots);
        Gate::new(&GateConfig { admission, slots, ..GateConfig::default() }, at(0), 1).unwrap()
    }

    fn at(millis: u64) -> Instant {
        Instant::ZERO + Span::from_millis(millis)
    }

    fn of(user: u16) -> Context {
        Context { rank: Rank::new(24, user), ..Context::default() }
    }

    /// Arrives and starts.
    fn start(gate: &mut Gate, now: Instant, user: u16) -> Option<RequestId> {
        let id = gate.arrive(now, &of(user)).ok()?;
        gate.dispatch(now);
        let started = std::iter::from_fn(|| gate.poll())
            .any(|action| matches!(action, Action::Start { id: started, .. } if started == id));
        gate.invariants();
        started.then_some(id)
    }

    #[test]
    fn a_slot_whose_caller_left_is_taken_until_the_service_has_answered() {
        let mut gate = gate(1);
        let id = start(&mut gate, at(0), 1).unwrap();
        gate.abandon(at(3), id, Gone::Kept);
        assert_eq!((gate.running(), gate.abandoned()), (1, 1));
        assert_eq!(start(&mut gate, at(4), 2), None, "the service still works");
        gate.finish(at(5), id, Outcome::Serve, Cost(5));
        assert_eq!((gate.running(), gate.abandoned()), (0, 0));
        gate.dispatch(at(5));
        assert!(matches!(gate.poll(), Some(Action::Start { .. })));
    }

    #[test]
    fn what_nobody_will_hear_of_ends_when_requests_do() {
        let mut gate = gate(1);
        let id = start(&mut gate, at(0), 1).unwrap();
        gate.finish(at(10), id, Outcome::Serve, Cost(10));
        let id = start(&mut gate, at(20), 1).unwrap();
        gate.abandon(at(22), id, Gone::Lost);
        assert_eq!(gate.next_wakeup(), Some(at(30)));
        gate.dispatch(at(30));
        assert!(gate.running() == 0 && gate.request(id).is_none());
    }

    #[test]
    fn what_was_lost_has_half_of_the_slots_and_what_is_kept_all_it_had() {
        for (gone, left) in [(Gone::Lost, 2), (Gone::Kept, 4)] {
            let mut gate = gate(4);
            let done = start(&mut gate, at(0), 9).unwrap();
            gate.finish(at(50), done, Outcome::Serve, Cost(5));
            let ids: Vec<_> = (1..=4).map(|user| start(&mut gate, at(60), user).unwrap()).collect();
            for id in &ids {
                gate.abandon(at(61), *id, gone);
                gate.invariants();
            }
            assert_eq!((gate.running(), gate.abandoned()), (left, left as usize));
            for id in ids {
                gate.finish(at(62), id, Outcome::Serve, Cost(5));
            }
            assert_eq!((gate.running(), gate.abandoned()), (0, 0));
        }
    }

    #[test]
    fn who_cancels_much_is_turned_away_and_nobody_else_is() {
        let mut gate = gate(1);
        for user in 2..10 {
            let id = start(&mut gate, at(0), user).unwrap();
            gate.finish(at(0), id, Outcome::Serve, Cost(5));
        }
        let id = start(&mut gate, at(1), 1).unwrap();
        gate.abandon(at(2), id, Gone::Kept);
        assert_eq!(gate.arrive(at(3), &of(1)).unwrap_err().reason, Reason::Abandoned);
        gate.finish(at(6), id, Outcome::Serve, Cost(5));
        // Nine sources share one slot: after 5 ms of it, half of a fair share is one in eighteen.
        assert_eq!(gate.arrive(at(80), &of(1)).unwrap_err().reason, Reason::Abandoned);
        assert!(start(&mut gate, at(81), 2).is_some());
        assert!(gate.arrive(at(92), &of(1)).is_ok());
    }

    /// Requests that hang and whose callers leave hold half of the slots, and no source more than its part.
    #[test]
    fn what_hangs_gives_way_to_what_is_answered() {
        let mut gate = gate(4);
        let hang = |gate: &mut Gate, now, user| {
            let id = start(gate, now, user).unwrap();
            gate.abandon(now, id, Gone::Kept);
        };
        (1..=3).for_each(|user| hang(&mut gate, at(0), user));
        let answer = |gate: &mut Gate, from, to| {
            let id = start(gate, at(from), 9).unwrap();
            gate.finish(at(to), id, Outcome::Serve, Cost(5));
            gate.invariants();
        };
        answer(&mut gate, 50, 60);
        assert_eq!(gate.abandoned(), 3, "for one objective all keep what they had");
        gate.dispatch(at(150));
        assert_eq!(gate.abandoned(), 3, "nothing was answered");
        answer(&mut gate, 150, 160);
        assert_eq!(gate.abandoned(), 2, "half of the slots");
        answer(&mut gate, 170, 180);
        assert_eq!(gate.abandoned(), 2);
        // A source that hangs is not turned away for ever, but has no more than its part of the half.
        hang(&mut gate, at(400), 2);
        assert_eq!(gate.abandoned(), 3);
        answer(&mut gate, 401, 402);
        assert_eq!(gate.abandoned(), 2);
        answer(&mut gate, 600, 601);
        let of = |gate: &Gate, user| {
            let source = source_of(&of(user));
            gate.abandoned.book.iter().filter(|booked| booked.source == source).count()
        };
        assert!(of(&gate, 2) <= 1 && gate.abandoned() <= 2);
    }

    /// Or a stall in which all callers leave would shut all of them out.
    #[test]
    fn nobody_is_turned_away_for_longer_than_an_objective() {
        let mut gate = gate(1);
        for user in 2..60 {
            let id = start(&mut gate, at(0), user).unwrap();
            gate.finish(at(0), id, Outcome::Serve, Cost(5));
        }
        let id = start(&mut gate, at(1), 1).unwrap();
        gate.abandon(at(80), id, Gone::Kept);
        gate.finish(at(400), id, Outcome::Serve, Cost(5));
        assert!(gate.arrive(at(501), &of(1)).is_ok());
    }
}
