//! What callers say they shed, as far as it is believed.
//!
//! Cursors follow what is offered, and of what is beyond them callers only tell. Who said that it shed four billion
//! requests of the first rank would shut out everybody: one such caller among a thousand took all of a service. Nor can it be held
//! to what it sends: an honest caller of low rank sheds nearly all it has.
//!
//! The idea: what is shed now was sent before there was a cut. A sender is believed the demand that was seen of it.
//!
//! 1. **Proof**: what a sender sends is counted in windows as long as our word holds. While it claims nothing, its proof
//!    follows that; while it claims sheds, it is the most that was seen.
//! 2. **Room**: in time a sender has room for twice its proof, as chance is. What it claims takes of it; what
//!    does not fit is not believed.
//! 3. **Growth**: demand may grow while it is cut. Where claims did not fit, they have twice the room after a minute, and [`GROWN`] times
//!    it at most.
//! 4. **Storms**: where the claims of most senders do not fit, more is offered by all, or we have just begun, and there
//!    is room for more at once. Liars would have to be the majority for that; of many senders, of those that speak first.
//! 5. **Who**: the peer that the driver vouches for; a caller can give itself as many ids as it likes. Where no driver does,
//!    the caller. Gateways that are known to speak for many are believed.
//!
//! `tide` counts no claim of ranks that a caller was told it may send. So nobody gains by a lie: it adds
//! at most twice its own true demand, of ranks that are not served anyway.

use std::collections::VecDeque;

use super::Gate;
use crate::context::{CallerId, Context, Sender, Sheds};
use crate::credit::Index;
use crate::slab::{Key, Slab};
use crate::time::{Instant, Span};

/// What is believed of whom.
#[derive(Clone, Debug)]
pub(super) struct Claims {
    /// How long our word holds; zero where no cursor follows from what callers say.
    window: Span,
    places: Index,
    books: Slab<Book>,
    /// All of them, the one looked at longest ago first.
    by_look: VecDeque<CallerId>,
    /// How much more than what was proven is believed of everybody.
    common: f32,
    faded: Instant,
    /// When that is next looked at.
    due: Instant,
    /// The present poll: its number, how many senders spoke in it, and of how many claims did not fit.
    poll: u32,
    spoke: u32,
    over: u32,
}

/// One sender.
#[derive(Clone, Copy, Debug)]
struct Book {
    spoke: Instant,
    /// The present window: since when, what came, and whether claims came too, and more than fitted.
    since: Instant,
    came: f32,
    claims: bool,
    over: bool,
    /// Proven demand, in requests per nanosecond, and how many times that is believed.
    proof: f32,
    grown: f32,
    /// Sheds that would be believed now.
    room: f32,
    /// The last polls it took part in: as one that spoke, and as one whose claims did not fit.
    polled: u32,
    voted: u32,
}

/// Room for claims, in proven demands: of eight requests per window seldom more come by chance.
const SLACK: f32 = 2.0;
/// Windows for which room is kept: who was silent for as long as our word holds tells of all that time.
const DEPTH: f32 = 2.0;
/// Time in which demand that is cut may double…
const DOUBLES: Span = Span::from_secs(60);
/// …and how often, as a factor: after three minutes a liar has reached its end.
const GROWN: f32 = 8.0;
/// Weight of a window in the proof of a sender that claims nothing, if less came than before.
const FADES: f32 = 0.25;
/// How much more is believed of everybody when the claims of most do not fit, and how much more at most.
const STORM: f32 = 4.0;
const STORM_MOST: f32 = 64.0;
/// So many senders decide whether most claim more, or half of all if they are fewer.
const POLLED: u32 = 64;
/// Senders remembered at once, as callers are.
const SENDERS: usize = 1 << 17;
/// Silence after which a sender is forgotten, unless our word holds for longer.
const FORGET: Span = Span::from_secs(10);
/// Where only services behind the gate have cursors: theirs hold about as long.
const WINDOW: Span = Span::from_millis(100);
/// How often that is, in windows.
const SETTLES: f64 = 1.0 / 16.0;
/// Senders looked at then, whether they have fallen silent.
const LOOKS: usize = 4;

impl Gate {
    /// What is believed of a context, if that is less than it says. Its sender has sent a request, or only word.
    #[inline]
    pub(super) fn believe(
        &mut self,
        now: Instant,
        context: &Context,
        is_request: bool,
    ) -> Option<Context> {
        if self.claims.window == Span::ZERO {
            if self.downstream.is_empty() {
                return None;
            }
            self.claims.window = WINDOW;
        }
        let sheds = self.claims.hear(now, context, is_request);
        (sheds.count < context.sheds.count).then_some(Context { sheds, ..*context })
    }
}

impl Claims {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            window: Span::ZERO,
            places: Index::new(),
            books: Slab::default(),
            by_look: VecDeque::new(),
            common: 1.0,
            faded: now,
            due: now,
            poll: 1,
            spoke: 0,
            over: 0,
        }
    }

    /// A request has come from its sender, or only word of it, and says what was shed. Returns what of that is believed.
    #[inline]
    fn hear(&mut self, now: Instant, context: &Context, is_request: bool) -> Sheds {
        let Some(who) = who(context) else {
            let is_gateway = context.sender.peer == Sender::GATEWAY;
            return if is_gateway { context.sheds } else { Sheds::NONE };
        };
        let mut key = self.places.get(who);
        if key == Key::NOWHERE {
            key = self.open(now, who);
        }
        let Some(book) = self.books.get_mut(key) else { return Sheds::NONE };
        if book.polled != self.poll {
            book.polled = self.poll;
            self.spoke += 1;
        }
        book.count(now, is_request, self.window, self.common);
        if context.sheds.count == 0 {
            return Sheds::NONE;
        }
        self.claim(key, context.sheds)
    }

    /// Steps 2 to 4: what is believed of a claim.
    #[inline(never)]
    fn claim(&mut self, key: Key, sheds: Sheds) -> Sheds {
        let Some(book) = self.books.get_mut(key) else { return Sheds::NONE };
        let believed = (sheds.count as f32).min(book.room.floor());
        book.room -= believed;
        book.claims = true;
        let over = believed < sheds.count as f32;
        book.over |= over;
        if over && book.voted != self.poll {
            book.voted = self.poll;
            self.over += 1;
        }
        if believed < 1.0 { Sheds::NONE } else { Sheds { count: believed as u32, ..sheds } }
    }

    /// A period of the policy is over, and our word holds for `window`. Ends the poll if enough of all senders have spoken.
    pub(super) fn settle(&mut self, now: Instant, window: Span) {
        self.window = window;
        // Some policies settle with every input.
        if now < self.due {
            return;
        }
        self.due = now + window.scale(SETTLES);
        self.common = (self.common * halved(now.since(self.faded))).max(1.0);
        self.faded = now;
        let all = self.books.len() as u32;
        if self.spoke >= POLLED.min(all / 2 + 1) {
            if 2 * self.over > self.spoke {
                self.common = (self.common * STORM).min(STORM_MOST);
            }
            self.poll = self.poll.wrapping_add(1);
            (self.spoke, self.over) = (0, 0);
        }
        let patience = FORGET.max(window.scale(f64::from(DEPTH)));
        for _ in 0..LOOKS {
            self.look(now, patience);
        }
    }

    fn look(&mut self, now: Instant, patience: Span) {
        let Some(who) = self.by_look.pop_front() else { return };
        let silent = |book: &Book| now.since(book.spoke) > patience;
        if self.books.get(self.places.get(who)).is_some_and(silent) {
            let key = self.places.remove(who);
            self.books.remove(key);
        } else {
            self.by_look.push_back(who);
        }
    }

    /// Nobody is remembered who does not fit, or believed.
    #[cold]
    fn open(&mut self, now: Instant, who: CallerId) -> Key {
        if self.books.len() >= SENDERS {
            return Key::NOWHERE;
        }
        let key = self.books.insert_with(|_| Book {
            spoke: now,
            since: now,
            came: 0.0,
            claims: false,
            over: false,
            proof: 0.0,
            grown: 1.0,
            room: 0.0,
            polled: 0,
            voted: 0,
        });
        self.places.insert(who, key);
        self.by_look.push_back(who);
        key
    }
}

impl Book {
    /// It speaks: time has made room, and what came is counted.
    #[inline]
    fn count(&mut self, now: Instant, is_request: bool, window: Span, common: f32) {
        let nanos = window.as_nanos().max(1) as f32;
        let seen = self.proof.max(self.came / nanos);
        let pace = SLACK * common * self.grown * seen;
        let silent = now.since(self.spoke).as_nanos() as f32;
        self.room = (self.room + pace * silent).min(pace * DEPTH * nanos);
        self.spoke = now;
        if now.since(self.since) >= window {
            self.roll(now);
        }
        self.came += f32::from(u8::from(is_request));
    }

    /// Steps 1 and 3: a window is over.
    fn roll(&mut self, now: Instant) {
        let elapsed = now.since(self.since);
        let rate = self.came / elapsed.as_nanos().max(1) as f32;
        if !self.claims {
            (self.proof, self.grown) = (self.proof + FADES * (rate - self.proof), 1.0);
        } else if self.over {
            self.grown = (self.grown / halved(elapsed)).min(GROWN);
        }
        self.proof = self.proof.max(rate);
        (self.since, self.came, self.claims, self.over) = (now, 0.0, false, false);
    }
}

/// Whose claims are counted together; none of gateways, and of those that nothing is known of.
fn who(context: &Context) -> Option<CallerId> {
    match (context.sender.peer, context.caller) {
        (Sender::GATEWAY, _) | (0, CallerId::UNKNOWN) => None,
        (0, caller) => Some(caller),
        (peer, _) => Some(CallerId(u64::from(peer) << 32 | 1)),
    }
}

/// What is left of one after `time` if half of it goes in every [`DOUBLES`].
fn halved(time: Span) -> f32 {
    (-(time.ratio(DOUBLES)) as f32).exp2()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rank::Rank;

    const WORD: Span = Span::from_millis(10);

    /// Senders that speak once per millisecond, by the clock of one gate.
    struct Run {
        claims: Claims,
        now: Instant,
    }

    impl Run {
        fn new() -> Self {
            let mut claims = Claims::new(Instant::ZERO);
            claims.settle(Instant::ZERO, WORD);
            Self { claims, now: Instant::ZERO }
        }

        /// For so many milliseconds the senders of `each` (peer, whether it sends, what it says it shed) speak. Returns what was
        /// believed of each.
        fn go(&mut self, millis: u32, each: &[(u32, bool, u32)]) -> Vec<u64> {
            let mut believed = vec![0; each.len()];
            for _ in 0..millis {
                self.now += Span::from_millis(1);
                self.claims.settle(self.now, WORD);
                for (n, (peer, sends, count)) in each.iter().enumerate() {
                    let context = Context {
                        sender: Sender { peer: *peer, ..Sender::UNKNOWN },
                        // Who lies gives itself another name every time.
                        caller: CallerId(self.now.as_nanos()),
                        sheds: Sheds { count: *count, sample: Rank::FIRST },
                        ..Context::default()
                    };
                    believed[n] += u64::from(self.claims.hear(self.now, &context, *sends).count);
                }
            }
            believed
        }
    }

    /// At ten times the capacity a caller of low rank sheds all it has, and sends nothing.
    #[test]
    fn a_caller_that_is_cut_wholly_is_believed_what_it_sent_before() {
        let mut run = Run::new();
        run.go(1_000, &[(1, true, 0), (2, true, 0), (3, true, 0)]);
        let believed = run.go(60_000, &[(1, false, 1), (2, true, 0), (3, true, 0)]);
        assert_eq!(believed[0], 60_000, "for as long as it is cut");
    }

    #[test]
    fn a_liar_is_believed_twice_its_own_demand_and_eight_times_that_in_minutes() {
        let mut run = Run::new();
        let honest = [(2, true, 0), (3, true, 1), (4, true, 0)];
        let with = |liar| [&[liar][..], &honest].concat();
        run.go(1_000, &with((1, true, 0)));
        let second = run.go(1_000, &with((1, true, u32::MAX)));
        assert!((1_900..2_100).contains(&second[0]), "{second:?}");
        assert_eq!(second[2], 1_000, "others are believed as before");
        let minute = run.go(60_000, &with((1, true, u32::MAX)));
        assert!((150_000..185_000).contains(&minute[0]), "between two and four: {minute:?}");
        run.go(600_000, &with((1, true, u32::MAX)));
        let last = run.go(1_000, &with((1, true, u32::MAX)));
        assert!((15_000..16_500).contains(&last[0]), "{last:?}");
    }

    #[test]
    fn who_sends_nothing_is_believed_nothing_whatever_it_calls_itself() {
        let mut run = Run::new();
        run.go(100, &[(2, true, 0), (3, true, 0)]);
        let believed = run.go(1_000, &[(1, false, 1_000), (2, true, 0), (3, true, 0)]);
        assert_eq!(believed[0], 0);
    }

    /// Demand grows to ten times what it was, of all at once; most of them say so.
    #[test]
    fn what_most_say_is_believed() {
        let mut run = Run::new();
        run.go(1_000, &[(1, true, 0), (2, true, 0), (3, true, 0)]);
        run.go(5, &[(1, true, 9), (2, true, 9), (3, true, 9)]);
        let believed = run.go(1_000, &[(1, true, 9), (2, true, 9), (3, true, 9)]);
        assert!(believed.iter().all(|count| *count > 8_900), "{believed:?}");
    }

    #[test]
    fn a_minority_is_not_believed_however_often_it_speaks() {
        let mut run = Run::new();
        let (honest, liar) = ((2..=400).map(|peer| (peer, true, 0)), (1, true, 1_000));
        let all: Vec<_> = honest.chain([(1, true, 0)]).collect();
        run.go(100, &all);
        // Between any two words of the others.
        for _ in 0..100 {
            run.go(20, &[liar]);
            run.go(1, &all);
        }
        let believed = run.go(1_000, &[liar]);
        assert!(believed[0] < 2_500, "{believed:?}");
    }

    #[test]
    fn gateways_are_believed_and_strangers_without_a_name_are_not() {
        let mut run = Run::new();
        assert_eq!(run.go(10, &[(Sender::GATEWAY, false, 1_000)]), [10_000]);
        let context =
            Context { sheds: Sheds { count: 9, sample: Rank::FIRST }, ..Context::default() };
        assert_eq!(run.claims.hear(run.now, &context, true), Sheds::NONE);
    }

    #[test]
    fn the_silent_are_forgotten() {
        let mut run = Run::new();
        let all: Vec<_> = (1..=100).map(|peer| (peer, true, 0)).collect();
        run.go(10, &all);
        run.go(12_000, &[(1, true, 0)]);
        assert_eq!((run.claims.books.len(), run.claims.places.len()), (1, 1));
    }
}
