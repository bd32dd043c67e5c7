//! Who has the credits: a window per caller, absolute and with in-flight requests included.
//!
//! Breakwater (§3.2.2; §4, lazy credit distribution) hands credits out with the responses that are
//! sent anyway:
//!
//! 1. demand is what a caller said it has waiting, refreshed by every request;
//! 2. overcommitment `max((pool − issued) ÷ callers, 1)` is added, since demand is old when it is
//!    used;
//! 3. below the pool, a window grows to demand + overcommitment, as far as open credits reach;
//!    above it, it shrinks by one credit per response, or to demand + overcommitment if that is
//!    less;
//! 4. a caller left without credits and without anything in flight is *drained*: it cannot tell its
//!    demand any more. When the pool has open credits, drained callers are granted one each by an
//!    unsolicited message, those with known demand first.
//!
//! The convention is that of Breakwater's code: `window = in flight + unused`, and the sum of all
//! windows is `issued`, always. The paper's `c` is the unused part alone.

use std::collections::VecDeque;

use super::PoolForm;
use super::holder::{Drained, Holder, Speakers, Word};
use super::index::Index;
use crate::admission::Issued;
use crate::context::{CallerId, Context};
use crate::list::{Links, List};
use crate::rank::Cursor;
use crate::slab::{Key, Slab};
use crate::time::{Instant, Span};

/// Windows of all callers.
#[derive(Clone, Debug)]
pub(crate) struct Windows {
    places: Index,
    callers: Slab<Holder>,
    /// Sum of all windows.
    issued: u64,
    /// All callers, the one whose silence was looked at longest ago first.
    by_look: List,
    look: Links,
    /// Drained callers that said they want more, longest first, and all other drained ones.
    hungry: List,
    content: List,
    drained: Links,
    /// Callers that do not send everything by what they were told, longest ago first.
    by_telling: List,
    strict: Links,
    notices: VecDeque<CallerId>,
    speakers: Speakers,
}

/// How credits are shared out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Share {
    /// Credits there are.
    pub(crate) total: u32,
    /// Most for one caller.
    pub(crate) per_caller: u32,
    /// Paper or code.
    pub(crate) form: PoolForm,
    /// Whether more than the known demand is given. Without it, demand has to be synchronised.
    pub(crate) overcommit: bool,
    /// Callers that held credits this long make room for hungry ones.
    pub(crate) turn: Option<Span>,
}

/// Callers remembered at once. Beyond it the one looked at longest ago is forgotten unless it has
/// something in flight; then newcomers are treated like unknown callers.
const CALLERS: usize = 1 << 17;

impl Windows {
    pub(crate) fn new() -> Self {
        Self {
            places: Index::new(),
            callers: Slab::default(),
            issued: 0,
            by_look: List::EMPTY,
            look: Links::default(),
            hungry: List::EMPTY,
            content: List::EMPTY,
            drained: Links::default(),
            by_telling: List::EMPTY,
            strict: Links::default(),
            notices: VecDeque::new(),
            speakers: Speakers { epoch: 2, now: 0, before: 0 },
        }
    }

    pub(crate) fn issued(&self) -> u64 {
        self.issued
    }

    pub(crate) fn callers(&self) -> usize {
        self.callers.len()
    }

    /// Callers that spoke in this epoch or the one before.
    pub(crate) fn speakers(&self) -> usize {
        self.speakers.now + self.speakers.before
    }

    /// Begins another epoch: who does not speak in it is no speaker any more.
    pub(crate) fn start_epoch(&mut self) {
        self.speakers.epoch += 1;
        self.speakers.before = std::mem::take(&mut self.speakers.now);
    }

    pub(crate) fn has_drained(&self) -> bool {
        !self.hungry.is_empty() || !self.content.is_empty()
    }

    #[cfg(test)]
    pub(crate) fn window(&self, caller: CallerId) -> Option<u32> {
        Some(self.callers.get(self.places.get(caller))?.window)
    }

    pub(crate) fn poll_notice(&mut self) -> Option<CallerId> {
        self.notices.pop_front()
    }

    // === facts ===

    /// A caller speaks: what is known of it, nothing of one that gave no id, or for whom there is no room; and for how long
    /// it was silent, if it spoke before.
    #[inline(always)] // Every arrival comes here.
    pub(crate) fn hear(
        &mut self,
        now: Instant,
        caller: CallerId,
    ) -> (Option<&mut Holder>, Option<Span>) {
        let key = self.place(now, caller);
        let Some(holder) = self.callers.get_mut(key) else { return (None, None) };
        let silent = self.speakers.note(now, holder);
        (Some(holder), silent)
    }

    /// The window of a caller that was just heard is not what its demand says, or it was among the drained.
    #[cold]
    pub(crate) fn follow(&mut self, now: Instant, caller: CallerId) {
        let key = self.places.get(caller);
        self.unfile_drained(key);
        if let Some(holder) = self.callers.get(key) {
            let window = holder.wanted();
            self.set_window(now, key, window);
        }
    }

    /// A request of `caller` has ended, served or not.
    #[inline]
    pub(crate) fn on_end(&mut self, caller: CallerId, refused: bool) {
        let Some(holder) = self.callers.get_mut(self.places.get(caller)) else { return };
        holder.in_flight = holder.in_flight.saturating_sub(1);
        holder.refused |= refused;
    }

    /// A message without a request: the caller tells its demand and what it has shed. Returns for how long it was silent,
    /// and the cursor that it was told.
    pub(crate) fn on_report(
        &mut self,
        now: Instant,
        context: &Context,
    ) -> (Option<Span>, Option<Cursor>) {
        let (Some(holder), silent) = self.hear(now, context.caller) else { return (None, None) };
        let told = holder.told;
        holder.demand = context.demand;
        holder.sheds += u64::from(context.sheds.count);
        let window = holder.window.min(holder.in_flight.saturating_add(context.demand));
        let key = self.places.get(context.caller);
        self.unfile_drained(key);
        self.set_window(now, key, window);
        self.file_drained(key);
        (silent, told)
    }

    pub(crate) fn on_gone(&mut self, now: Instant, caller: CallerId) {
        let key = self.places.remove(caller);
        if key == Key::NOWHERE {
            return;
        }
        self.falls_silent(key);
        self.set_window(now, key, 0);
        self.unfile_drained(key);
        self.look.remove(&mut self.by_look, key.index());
        self.strict.remove(&mut self.by_telling, key.index());
        self.callers.remove(key);
    }

    /// Forgets callers not heard of since `before` with nothing in flight. Looks at a few, those
    /// first that were looked at longest ago, so that it can be called often.
    pub(crate) fn forget_silent(&mut self, now: Instant, before: Instant) {
        for _ in 0..2 {
            let Some(key) = self.by_look.front().and_then(|place| self.callers.key_at(place))
            else {
                return;
            };
            let Some(holder) = self.callers.get_mut(key) else { return };
            if holder.looked >= before {
                return;
            }
            holder.looked = now;
            let silent = holder.heard < before && holder.in_flight == 0;
            if silent {
                let caller = holder.caller;
                self.on_gone(now, caller);
            } else {
                self.look.remove(&mut self.by_look, key.index());
                self.look.push_back(&mut self.by_look, key.index());
            }
        }
    }

    // === decisions ===

    /// The window to tell `caller` now, none if it is unknown. `cursor` is what it is told beside.
    pub(crate) fn assign(
        &mut self,
        now: Instant,
        caller: CallerId,
        share: &Share,
        word: Word,
    ) -> Option<u32> {
        let key = self.address(now, caller)?;
        self.tell(now, key, word);
        let window = self.target(now, key, share);
        let holder = self.callers.get_mut(key)?;
        holder.refused = false;
        if window != holder.window {
            self.set_window(now, key, window);
        }
        if window == 0 {
            self.file_drained(key);
        }
        Some(window)
    }

    /// Steps 2 and 3 of the module's prose.
    fn target(&self, now: Instant, key: Key, share: &Share) -> u32 {
        let holder = self.callers.get(key).expect("placed callers are stored");
        let total = u64::from(share.total);
        let open = total.saturating_sub(self.issued);
        let overcommit = match share.overcommit {
            true => {
                u32::try_from(open / self.callers.len().max(1) as u64).unwrap_or(u32::MAX).max(1)
            }
            false => 0,
        };
        let wanted = holder.in_flight.saturating_add(holder.demand).saturating_add(overcommit);
        let mut window = if self.issued < total {
            let reachable = u64::from(holder.window) + open;
            u32::try_from(reachable).unwrap_or(u32::MAX).min(wanted)
        } else if self.issued > total {
            wanted.min(holder.window.saturating_sub(1))
        } else {
            wanted.min(holder.window)
        };
        // The code keeps a caller alive unless one of its requests was just refused.
        if share.form == PoolForm::Code && window == 0 && holder.window > 0 && !holder.refused {
            window = overcommit;
        }
        let held = now.since(holder.holding_since);
        if share.turn.is_some_and(|turn| held > turn)
            && !self.hungry.is_empty()
            && self.issued >= total
        {
            window = 0;
        }
        window.min(share.per_caller).max(holder.in_flight)
    }

    /// Grants drained callers one credit each while the pool has open ones, and notes that they
    /// have to be told. At most `limit` at once; without `guess` only those with known demand.
    pub(crate) fn grant_drained(&mut self, now: Instant, total: u32, limit: usize, guess: bool) {
        for _ in 0..limit {
            if self.issued >= u64::from(total) {
                return;
            }
            let content = || self.content.front().filter(|_| guess);
            let Some(place) = self.hungry.front().or_else(content) else { return };
            let key = self.callers.key_at(place).expect("drained callers are stored");
            self.unfile_drained(key);
            self.set_window(now, key, 1);
            let holder = self.callers.get(key).expect("drained callers are stored");
            self.notices.push_back(holder.caller);
        }
    }

    // === cursors told ===

    /// Notes what a caller is being told.
    fn tell(&mut self, now: Instant, key: Key, word: Word) {
        let Some(holder) = self.callers.get_mut(key) else { return };
        if holder.tell(now, word) < Cursor::OPEN {
            self.strict.remove(&mut self.by_telling, key.index());
        }
        if word.alone < Cursor::OPEN {
            self.strict.push_back(&mut self.by_telling, key.index());
        }
    }

    /// Asks for a message to up to `limit` callers that were told to send less than `bound`,
    /// longest ago first. Those with something in flight hear of it anyway.
    pub(crate) fn notify_stricter_than(&mut self, bound: Cursor, limit: usize) {
        for _ in 0..limit {
            let Some(key) = self.first_stricter_than(bound) else { return };
            self.strict.remove(&mut self.by_telling, key.index());
            if let Some(holder) = self.callers.get(key).filter(|holder| holder.in_flight == 0) {
                self.notices.push_back(holder.caller);
            }
        }
    }

    /// Whether there is one to notify.
    pub(crate) fn has_stricter_than(&self, bound: Cursor) -> bool {
        self.first_stricter_than(bound).is_some()
    }

    /// The caller that was told to send less than everything longest ago, if that is less than `bound`.
    fn first_stricter_than(&self, bound: Cursor) -> Option<Key> {
        let key = self.callers.key_at(self.by_telling.front()?)?;
        (self.callers.get(key)?.alone < bound).then_some(key)
    }

    // === hand-over ===

    pub(crate) fn export(&self) -> Vec<Issued> {
        self.callers
            .iter()
            .map(|(_, holder)| Issued {
                caller: holder.caller,
                window: holder.window,
                in_flight: holder.in_flight,
                demand: holder.demand,
                sheds: holder.sheds,
            })
            .collect()
    }

    pub(crate) fn import(&mut self, now: Instant, issued: &[Issued]) {
        for entry in issued {
            let Some(key) = self.address(now, entry.caller) else { continue };
            let Some(holder) = self.callers.get_mut(key) else { continue };
            holder.in_flight = entry.in_flight;
            self.set_window(now, key, entry.window.max(entry.in_flight));
        }
    }

    pub(crate) fn invariants(&self) {
        let sum: u64 = self.callers.iter().map(|(_, holder)| u64::from(holder.window)).sum();
        assert_eq!(sum, self.issued, "the sum of windows is what is issued");
        assert_eq!(self.places.len(), self.callers.len());
        let speaks = |holder: &Holder| holder.epoch + 1 >= self.speakers.epoch;
        let speakers = self.callers.iter().filter(|(_, holder)| speaks(holder)).count();
        assert_eq!(speakers, self.speakers());
        for (key, holder) in self.callers.iter() {
            let drained = self.drained.contains(key.index());
            assert_eq!(drained, holder.drained.is_some());
            assert!(!drained || holder.window == 0, "drained callers have no credits");
        }
    }

    // === inside ===

    /// The key of a caller, a new one if there is room; [`Key::NOWHERE`] of one that gave no id, or if there is none.
    #[inline]
    fn place(&mut self, now: Instant, caller: CallerId) -> Key {
        let key = self.places.get(caller);
        if key == Key::NOWHERE { self.register(now, caller) } else { key }
    }

    /// The key of a caller that is told something, if it has one.
    fn address(&mut self, now: Instant, caller: CallerId) -> Option<Key> {
        let key = self.place(now, caller);
        self.callers.get_mut(key)?.heard = now;
        self.unfile_drained(key);
        Some(key)
    }

    /// Makes room by forgetting the caller that was looked at longest ago, unless it has something in flight.
    fn make_room(&mut self, now: Instant) {
        let oldest = self.by_look.front().and_then(|place| self.callers.key_at(place));
        let Some(holder) = oldest.and_then(|key| self.callers.get(key)) else { return };
        if holder.in_flight == 0 {
            let forgotten = holder.caller;
            self.on_gone(now, forgotten);
        }
    }

    /// A new entry, if there is room.
    #[cold]
    fn register(&mut self, now: Instant, caller: CallerId) -> Key {
        if caller == CallerId::UNKNOWN {
            return Key::NOWHERE;
        }
        if self.callers.len() >= CALLERS {
            self.make_room(now);
            if self.callers.len() >= CALLERS {
                return Key::NOWHERE;
            }
        }
        let key = self.callers.insert_with(|_| Holder {
            caller,
            window: 0,
            in_flight: 0,
            demand: 0,
            sheds: 0,
            heard: now,
            spoke: Instant::FAR,
            epoch: 0,
            looked: now,
            holding_since: now,
            refused: false,
            drained: None,
            told: None,
            alone: Cursor::OPEN,
            told_before: None,
            told_until: now,
            heeds: 1,
        });
        self.places.insert(caller, key);
        self.look.push_back(&mut self.by_look, key.index());
        key
    }

    /// Forgets that a caller spoke.
    fn falls_silent(&mut self, key: Key) {
        match self.callers.get(key).map(|holder| self.speakers.epoch - holder.epoch) {
            Some(0) => self.speakers.now -= 1,
            Some(1) => self.speakers.before -= 1,
            _ => {}
        }
    }

    fn set_window(&mut self, now: Instant, key: Key, window: u32) {
        let Some(holder) = self.callers.get_mut(key) else { return };
        if holder.window == 0 && window > 0 {
            holder.holding_since = now;
        }
        self.issued = self.issued - u64::from(holder.window) + u64::from(window);
        holder.window = window;
        if window > 0 {
            self.unfile_drained(key);
        }
    }

    /// Puts a caller without credits and without anything in flight among the drained ones.
    fn file_drained(&mut self, key: Key) {
        let Some(holder) = self.callers.get_mut(key) else { return };
        if holder.window > 0 || holder.in_flight > 0 || holder.drained.is_some() {
            return;
        }
        let (list, kind) = match holder.demand {
            0 => (&mut self.content, Drained::Content),
            _ => (&mut self.hungry, Drained::Hungry),
        };
        holder.drained = Some(kind);
        self.drained.push_back(list, key.index());
    }

    fn unfile_drained(&mut self, key: Key) {
        let Some(holder) = self.callers.get_mut(key) else { return };
        match holder.drained.take() {
            None => {}
            Some(Drained::Hungry) => drop(self.drained.remove(&mut self.hungry, key.index())),
            Some(Drained::Content) => drop(self.drained.remove(&mut self.content, key.index())),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn share(total: u32, form: PoolForm) -> Share {
        Share { total, per_caller: 63, form, overcommit: true, turn: None }
    }

    fn request(windows: &mut Windows, now: Instant, caller: CallerId, demand: u32, is_in: bool) {
        let (Some(holder), _) = windows.hear(now, caller) else { panic!("there is room") };
        if holder.on_request(&Context { caller, demand, ..Context::default() }, is_in) {
            windows.follow(now, caller);
        }
    }

    fn report(windows: &mut Windows, now: Instant, caller: CallerId, demand: u32) {
        windows.on_report(now, &Context { caller, demand, ..Context::default() });
    }

    /// Ten callers, `issued` credits in all, the first with `in_flight` requests and `unused` credits.
    fn ten_callers(issued: u32, unused: u32, demand: u32) -> Windows {
        let mut windows = Windows::new();
        let now = Instant::ZERO;
        let rest = issued - unused;
        let entries: Vec<Issued> = (1..=10)
            .map(|caller| Issued {
                caller: CallerId(caller),
                window: if caller == 1 {
                    unused
                } else {
                    rest / 9 + u32::from(caller as u32 - 2 < rest % 9)
                },
                in_flight: 0,
                ..Issued::default()
            })
            .collect();
        windows.import(now, &entries);
        let key = windows.places.get(CallerId(1));
        windows.callers.get_mut(key).unwrap().demand = demand;
        assert_eq!(windows.issued(), u64::from(issued));
        windows
    }

    /// Breakwater §4, eq. 5 and 6, worked example. Nothing is in flight, so the window is the paper's `c`.
    #[test]
    fn distributes_as_published() {
        for (total, issued, demand, unused, expected) in
            [(100, 40, 3, 2, 9), (40, 100, 3, 5, 4), (40, 100, 3, 20, 4)]
        {
            let mut windows = ten_callers(issued, unused, demand);
            let window = windows.assign(
                Instant::ZERO,
                CallerId(1),
                &share(total, PoolForm::Paper),
                Word::OPEN,
            );
            assert_eq!(window, Some(expected), "{total} {issued} {demand} {unused}");
            windows.invariants();
        }
    }

    /// Nobody keeps a credit by right (Breakwater §3.2.1), and no callers means no division by them.
    #[test]
    fn a_caller_can_be_drained_and_is_woken_by_an_explicit_grant() {
        let (mut windows, now) = (Windows::new(), Instant::ZERO);
        request(&mut windows, now, CallerId(7), 5, true);
        windows.on_end(CallerId(7), true);
        assert_eq!(
            windows.assign(now, CallerId(7), &share(0, PoolForm::Paper), Word::OPEN),
            Some(0)
        );
        assert!(windows.has_drained());
        windows.grant_drained(now, 0, 10, true);
        assert_eq!(windows.poll_notice(), None, "no open credit, no grant");
        windows.grant_drained(now, 1, 10, true);
        assert_eq!(windows.poll_notice(), Some(CallerId(7)));
        assert_eq!((windows.window(CallerId(7)), windows.issued()), (Some(1), 1));
        windows.invariants();
    }

    /// Breakwater's code: a session is drained to zero only right after a drop.
    #[test]
    fn the_code_form_keeps_callers_alive_until_one_is_refused() {
        let (mut windows, now) = (Windows::new(), Instant::ZERO);
        for refused in [false, true] {
            request(&mut windows, now, CallerId(7), 0, true);
            windows.on_end(CallerId(7), refused);
            let window = windows.assign(now, CallerId(7), &share(0, PoolForm::Code), Word::OPEN);
            assert_eq!(window, Some(u32::from(!refused)));
        }
    }

    #[test]
    fn long_holders_make_room_for_hungry_callers() {
        let (mut windows, now) = (Windows::new(), Instant::ZERO);
        let fair = Share { turn: Some(Span::from_millis(1)), ..share(1, PoolForm::Paper) };
        for caller in [1, 2] {
            request(&mut windows, now, CallerId(caller), 9, true);
        }
        windows.on_end(CallerId(2), true);
        assert_eq!(windows.assign(now, CallerId(2), &fair, Word::OPEN), Some(0));
        windows.on_end(CallerId(1), false);
        assert_eq!(
            windows.assign(now, CallerId(1), &fair, Word::OPEN),
            Some(1),
            "its turn is not over"
        );
        let later = now + Span::from_millis(2);
        assert_eq!(windows.assign(later, CallerId(1), &fair, Word::OPEN), Some(0));
        windows.grant_drained(later, 1, 1, false);
        assert_eq!(windows.poll_notice(), Some(CallerId(2)));
        windows.invariants();
    }

    /// Two callers may send a thousand ranks, but one of them needs a credit for each. When nobody gives credits any more it is the one to be told.
    #[test]
    fn who_waits_for_a_credit_hears_that_it_needs_none() {
        let mut windows = Windows::new();
        let told = |ranks| Word {
            cursor: Cursor::first(1_000),
            alone: Cursor::first(ranks),
            crossing: Span::ZERO,
        };
        let share = share(0, PoolForm::Paper);
        windows.assign(Instant::ZERO, CallerId(1), &share, told(0));
        windows.assign(Instant::ZERO, CallerId(2), &share, told(1_000));
        assert!(!windows.has_stricter_than(Cursor::first(0)), "while credits decide");
        windows.notify_stricter_than(Cursor::first(900), 10);
        assert_eq!((windows.poll_notice(), windows.poll_notice()), (Some(CallerId(1)), None));
    }

    #[test]
    fn silent_callers_are_forgotten_with_their_credits() {
        let (mut windows, now) = (Windows::new(), Instant::ZERO);
        request(&mut windows, now, CallerId(1), 0, true);
        windows.on_end(CallerId(1), false);
        windows.assign(now, CallerId(1), &share(100, PoolForm::Paper), Word::OPEN);
        assert!(windows.issued() > 0);
        windows.forget_silent(now, Instant::from_nanos(5));
        assert_eq!((windows.issued(), windows.callers()), (0, 0));
        windows.invariants();
    }

    proptest! {
        /// The sum of windows is what is issued after every step, also with callers that vanish.
        #[test]
        fn credits_are_conserved(ops in prop::collection::vec((0..8u8, 1..6u64, 0..8u32, 0..40u32), 0..300)) {
            let mut windows = Windows::new();
            for (step, (op, caller, demand, total)) in ops.into_iter().enumerate() {
                let (now, caller) = (Instant::from_nanos(step as u64), CallerId(caller));
                let form = if total % 2 == 0 { PoolForm::Paper } else { PoolForm::Code };
                match op {
                    0 => request(&mut windows, now, caller, demand, true),
                    1 => request(&mut windows, now, caller, demand, false),
                    2 => windows.on_end(caller, demand % 2 == 0),
                    3 => drop(windows.assign(now, caller, &share(total, form), Word::OPEN)),
                    4 => windows.grant_drained(now, total, 3, demand % 2 == 0),
                    7 => windows.start_epoch(),
                    5 => report(&mut windows, now, caller, demand),
                    _ => windows.on_gone(now, caller),
                }
                windows.invariants();
            }
        }
    }
}
