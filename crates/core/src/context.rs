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

/// Names of workflows, numbered in the order they were first seen.
#[derive(Clone, Debug, Default)]
pub struct Workflows {
    numbers: BTreeMap<String, Workflow>,
    names: Vec<String>,
}

impl Workflows {
    /// How many workflows have a number of their own. Per-workflow state is a few hundred bytes,
    /// so a table grown by a hostile client stays below a megabyte.
    pub const LIMIT: usize = 1024;

    /// The number of `name`, a new one if there is room, else [`Workflow::NONE`].
    pub fn number(&mut self, name: &str) -> Workflow {
        if name.is_empty() {
            return Workflow::NONE;
        }
        if let Some(workflow) = self.numbers.get(name) {
            return *workflow;
        }
        if self.names.len() >= Self::LIMIT {
            return Workflow::NONE;
        }
        self.names.push(name.to_owned());
        let workflow = Workflow(u16::try_from(self.names.len()).expect("LIMIT fits in u16"));
        self.numbers.insert(name.to_owned(), workflow);
        workflow
    }

    /// The name behind `workflow`, none for [`Workflow::NONE`].
    pub fn name(&self, workflow: Workflow) -> Option<&str> {
        self.names.get(usize::from(workflow.0).checked_sub(1)?).map(String::as_str)
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
}
