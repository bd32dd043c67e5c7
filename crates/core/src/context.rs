//! What travels with a request: [`Context`], filled in by the caller, read by every gate on the
//! path and inherited by the calls a handler makes.

use std::collections::BTreeMap;

use crate::rank::{Criticality, Rank};
use crate::rng::Rng;
use crate::time::{Instant, Span};

/// Everything a gate knows about a request before serving it. Times are in the receiving driver's
/// clock; on the wire they are relative.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Context {
    /// How important it is.
    pub rank: Rank,
    /// Whether the user part of the rank was drawn by lot, as nobody is named.
    pub lot: bool,
    /// Which tenant or kind of request it belongs to.
    pub workflow: Workflow,
    /// After this the answer is worthless; [`Instant::FAR`] when there is no deadline.
    pub deadline: Instant,
    /// 0 for the first attempt, 1 and 2 for retries ("Handling Overload", Deciding to Retry).
    pub attempt: u8,
    /// The process that calls, [`CallerId::UNKNOWN`] when it did not say or is not trusted.
    pub caller: CallerId,
    /// Requests still waiting at the caller after this one left (Breakwater §3.2.2).
    pub demand: u32,
    /// What the caller shed itself since its last report.
    pub sheds: Sheds,
    /// Work done so far and expected in all (Wisp §4.2).
    pub progress: Progress,
    /// Who sent it, as the receiving driver has seen for itself. It never travels.
    pub sender: Sender,
    /// What the receiving driver calls requests of its kind, such as the rule that gave it its rank; 0 is nothing. Events tell it,
    /// and nothing is decided by it. It never travels.
    pub label: u16,
}

impl Context {
    /// The context of a call made on behalf of this request: same rank, workflow and deadline; a
    /// new first attempt, and nothing of this request's own caller.
    pub const fn inherit(&self) -> Self {
        Self {
            attempt: 0,
            caller: CallerId::UNKNOWN,
            demand: 0,
            sheds: Sheds::NONE,
            rank: self.rank,
            lot: self.lot,
            workflow: self.workflow,
            deadline: self.deadline,
            progress: self.progress,
            sender: Sender::UNKNOWN,
            label: 0,
        }
    }

    /// The same, with a lot for the user part of its rank if it names no user, that is 0. What has one rank cannot
    /// be cut; by lot it can, and hops that pass the rank on agree on whom to refuse.
    #[must_use]
    pub const fn draw(mut self, rng: &mut Rng) -> Self {
        if self.rank.user() == 0 {
            let user = 1 + rng.below(u16::MAX as u64) as u16;
            self.rank = Rank::new(self.rank.business(), user);
            self.lot = true;
        }
        self
    }

    /// Its rank, whatever its lot: of those who drew lots nobody is more important than another.
    pub const fn importance(&self) -> Rank {
        if self.lot { Rank::new(self.rank.business(), 0) } else { self.rank }
    }

    /// Overrides the inherited criticality at this point of the call path, keeping the user.
    #[must_use]
    pub const fn with_criticality(mut self, criticality: Criticality) -> Self {
        self.rank = self.rank.with_criticality(criticality);
        self
    }
}

impl Default for Context {
    fn default() -> Self {
        Self {
            rank: Rank::UNRANKED,
            lot: false,
            workflow: Workflow::NONE,
            deadline: Instant::FAR,
            attempt: 0,
            caller: CallerId::UNKNOWN,
            demand: 0,
            sheds: Sheds::NONE,
            progress: Progress::default(),
            sender: Sender::UNKNOWN,
            label: 0,
        }
    }
}

/// Who sent a request: what a driver knows of it without believing a word. Keyed hashes, so that who tells them apart
/// cannot tell who they are; 0 where nothing is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sender {
    /// The peer that has proved who it is, say by a certificate, else its address.
    pub peer: u32,
    /// The address that it came from.
    pub address: u32,
    /// The user it is for, as the entry tells users apart.
    pub user: u32,
    /// What the header says that limits go by, if one was named.
    pub header: u32,
}

impl Sender {
    /// Nothing is known.
    pub const UNKNOWN: Self = Self { peer: 0, address: 0, user: 0, header: 0 };

    /// A peer that was named as one that speaks for many, so that its word weighs as much as it says.
    pub const GATEWAY: u32 = u32::MAX;

    /// The part of a keyed hash that a field holds: neither unknown nor a gateway.
    pub const fn part(hash: u64) -> u32 {
        (hash % (Self::GATEWAY as u64 - 1)) as u32 + 1
    }
}

/// Requests a caller shed itself since its last report. Each shed is reported once, to one
/// replica, so that a gate can count what was *offered* although it never saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sheds {
    /// How many.
    pub count: u32,
    /// The rank of one of them, chosen uniformly.
    pub sample: Rank,
}

impl Sheds {
    /// Nothing was shed.
    pub const NONE: Self = Self { count: 0, sample: Rank::LAST };

    /// Adds other sheds, keeping the sample uniform over all of them.
    pub fn merge(&mut self, other: Self, rng: &mut Rng) {
        let total = u64::from(self.count) + u64::from(other.count);
        if rng.below(total) >= u64::from(self.count) && other.count > 0 {
            self.sample = other.sample;
        }
        self.count = u32::try_from(total).unwrap_or(u32::MAX);
    }
}

impl Default for Sheds {
    fn default() -> Self {
        Self::NONE
    }
}

/// How far a request has come along its path (Wisp §4.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Service time received so far, over all hops.
    pub elapsed: Span,
    /// Service time expected in all, zero when unknown.
    pub total: Span,
    /// Work done so far: microseconds of service, all branches summed.
    pub work: u32,
    /// Work expected in all, zero when unknown.
    pub total_work: u32,
}

impl Progress {
    /// Service time still expected, zero when the total is unknown or exceeded.
    pub const fn remaining(&self) -> Span {
        self.total.saturating_sub(self.elapsed)
    }
}

/// A calling process, not a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallerId(pub u64);

impl CallerId {
    /// A caller that gave no id or is not trusted. All such callers share one entry.
    pub const UNKNOWN: Self = Self(0);
}

/// A tenant or kind of request, as a small number; [`Workflows`] knows the names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Workflow(pub u16);

impl Workflow {
    /// Requests that named no workflow, or one more than [`Workflows::LIMIT`].
    pub const NONE: Self = Self(0);
}

/// Names of workflows, as numbers.
///
/// Those that a configuration or a program names are kept. Those that are only heard of, which anybody may make up, take what room
/// is left: a name that was not heard for a while makes room for another, and nobody brings more than half of all, or who
/// sends junk would have everybody else's requests be those of nobody in particular.
#[derive(Clone, Debug, Default)]
pub struct Workflows {
    numbers: BTreeMap<String, Workflow>,
    names: Vec<Heard>,
    /// How many names each sender has brought.
    brought: BTreeMap<u32, usize>,
    /// Until then nobody is silent for long enough.
    crowded_until: Instant,
}

/// A name.
#[derive(Clone, Debug)]
struct Heard {
    name: String,
    /// When it was heard last; [`Instant::FAR`] of one that is kept.
    at: Instant,
    /// Who brought it.
    by: u32,
}

impl Workflows {
    /// How many workflows have a number of their own. Per-workflow state is a few hundred bytes,
    /// so a table grown by a hostile client stays below a megabyte.
    pub const LIMIT: usize = 1024;
    /// How many of them one sender may bring, unless it is a gateway.
    pub const SHARE: usize = Self::LIMIT / 2;
    /// Silence after which a name makes room for another.
    pub const SILENCE: Span = Span::from_secs(60);

    /// The number of a `name` that is to be kept, a new one if there is room, else [`Workflow::NONE`].
    pub fn number(&mut self, name: &str) -> Workflow {
        self.hear(Instant::FAR, Sender::GATEWAY, name)
    }

    /// The number of a `name` that the peer `by` has sent; [`Workflow::NONE`] if there is no room for it.
    pub fn hear(&mut self, now: Instant, by: u32, name: &str) -> Workflow {
        if name.is_empty() {
            return Workflow::NONE;
        }
        if let Some(workflow) = self.numbers.get(name) {
            let heard = &mut self.names[usize::from(workflow.0) - 1];
            heard.at = heard.at.max(now);
            return *workflow;
        }
        self.add(now, by, name)
    }

    /// The name behind `workflow`, none for [`Workflow::NONE`].
    pub fn name(&self, workflow: Workflow) -> Option<&str> {
        let heard = self.names.get(usize::from(workflow.0).checked_sub(1)?)?;
        Some(heard.name.as_str())
    }

    fn add(&mut self, now: Instant, by: u32, name: &str) -> Workflow {
        let is_full = self.names.len() >= Self::LIMIT;
        let has_its_share = by != Sender::GATEWAY
            && self.brought.get(&by).is_some_and(|brought| *brought >= Self::SHARE);
        let place = match is_full || has_its_share {
            false => self.names.len(),
            true => match self.make_room(now, has_its_share.then_some(by)) {
                Some(place) => place,
                None => return Workflow::NONE,
            },
        };
        let workflow = Workflow(u16::try_from(place + 1).expect("LIMIT fits in u16"));
        let heard = Heard { name: name.to_owned(), at: now, by };
        if let Some(old) = self.names.get_mut(place) {
            let old = std::mem::replace(old, heard);
            self.numbers.remove(&old.name);
            self.brought.entry(old.by).and_modify(|brought| *brought -= 1);
            self.brought.retain(|_, brought| *brought > 0);
        } else {
            self.names.push(heard);
        }
        *self.brought.entry(by).or_default() += 1;
        self.numbers.insert(name.to_owned(), workflow);
        workflow
    }

    /// The place of the name that was not heard for longest, of all or of what `of` has brought, if that was long ago.
    fn make_room(&mut self, now: Instant, of: Option<u32>) -> Option<usize> {
        // A name that is to be kept comes seldom, and before the others.
        if now == Instant::FAR || now < self.crowded_until {
            return None;
        }
        let theirs = self.names.iter().enumerate();
        let theirs = theirs.filter(|(_, heard)| of.is_none_or(|of| heard.by == of));
        let (place, at) =
            theirs.map(|(place, heard)| (place, heard.at)).min_by_key(|(_, at)| *at)?;
        if now.since(at) >= Self::SILENCE && at < Instant::FAR {
            return Some(place);
        }
        if of.is_none() {
            self.crowded_until = at + Self::SILENCE;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_inherits_importance_but_not_the_caller() {
        let context = Context {
            rank: Rank::new(3, 9),
            deadline: Instant::from_nanos(70),
            attempt: 2,
            caller: CallerId(5),
            demand: 4,
            sheds: Sheds { count: 1, sample: Rank::FIRST },
            ..Context::default()
        };
        let call = context.inherit();
        assert_eq!((call.rank, call.deadline), (context.rank, context.deadline));
        assert_eq!(
            (call.attempt, call.caller, call.demand, call.sheds.count),
            (0, CallerId::UNKNOWN, 0, 0)
        );
    }

    #[test]
    fn who_names_no_user_draws_a_lot_once_and_keeps_it() {
        let mut rng = Rng::new(1);
        let mut eighths = [0; 8];
        for _ in 0..8_000 {
            let drawn = Context::default().draw(&mut rng);
            assert!(drawn.lot && drawn.importance() == Rank::UNRANKED, "{drawn:?}");
            assert_eq!(drawn.inherit().draw(&mut rng), drawn);
            eighths[usize::from(drawn.rank.user() >> 13)] += 1;
        }
        assert!(eighths.iter().all(|count| (880..1_120).contains(count)), "{eighths:?}");
        let named = Context { rank: Rank::new(24, 7), ..Context::default() };
        assert_eq!(named.draw(&mut rng), named);
        assert_eq!(named.importance(), named.rank);
    }

    #[test]
    fn workflow_names_are_bounded() {
        let mut workflows = Workflows::default();
        let first = workflows.number("checkout");
        for n in 0..Workflows::LIMIT + 10 {
            workflows.number(&format!("w{n}"));
        }
        assert_eq!(workflows.number("checkout"), first);
        assert_eq!(workflows.number("one too many"), Workflow::NONE);
        assert_eq!(workflows.name(first), Some("checkout"));
        assert_eq!(workflows.name(Workflow::NONE), None);
    }

    fn at(secs: u64) -> Instant {
        Instant::ZERO + Span::from_secs(secs)
    }

    /// They once stayed for ever, and whoever came after the first 1,024 was nobody in particular.
    #[test]
    fn junk_makes_room_when_it_is_silent_and_one_sender_never_fills_the_table() {
        let (mut workflows, honest, liar) = (Workflows::default(), 1, 2);
        let kept = workflows.number("gold");
        let used = workflows.hear(at(0), honest, "used");
        for n in 0..10 * Workflows::LIMIT {
            workflows.hear(at(1), liar, &format!("junk {n}"));
        }
        assert_eq!(workflows.hear(at(1), liar, "more"), Workflow::NONE);
        let other = workflows.hear(at(1), honest, "other");
        assert!(other != Workflow::NONE && workflows.hear(at(59), honest, "used") == used);
        let (mut more, second) = (0, 3);
        for n in 0..2 * Workflows::LIMIT {
            more += usize::from(workflows.hear(at(59), second, &format!("{n}")) != Workflow::NONE);
        }
        assert_eq!(more, Workflows::LIMIT - Workflows::SHARE - 3);
        assert_eq!(workflows.hear(at(60), honest, "third"), Workflow::NONE, "it is full");
        // What was silent for a minute makes room, what was used or is to be kept does not.
        assert_ne!(workflows.hear(at(62), honest, "third"), Workflow::NONE);
        assert_eq!(workflows.hear(at(63), honest, "used"), used);
        assert_eq!((workflows.number("gold"), workflows.name(kept)), (kept, Some("gold")));
    }

    #[test]
    fn a_gateway_brings_as_many_as_there_is_room_for() {
        let mut workflows = Workflows::default();
        for n in 0..Workflows::LIMIT {
            assert_ne!(workflows.hear(at(0), Sender::GATEWAY, &format!("{n}")), Workflow::NONE);
        }
    }
}
