//! What the services further down let in, so that a doomed request is refused at the entry.
//!
//! Cursors are kept per callee and replica (gate), merged per service by the laxest replica, since
//! a call may go to any, and applied only to workflows that were measured to call that service
//! (DAGOR §4.2.4, carried up the whole path).

use std::collections::BTreeMap;

use crate::context::{Context, Sheds, Workflow};
use crate::feedback::{Feedback, GateId};
use crate::rank::Cursor;
use crate::rng::Rng;
use crate::time::{Instant, Span};

/// A service that handlers call, numbered by the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CalleeId(pub u32);

/// How long a workflow counts as calling a service after its last call.
const CALLS_FOR: Span = Span::from_secs(60);
/// Replicas remembered per service and workflow; beyond that the one that expires first is forgotten.
const REPLICAS: usize = 64;
/// Pairs of workflow and service remembered.
const PATHS: usize = 4096;

/// Cursors of downstream services by workflow.
#[derive(Clone, Debug, Default)]
pub(crate) struct Downstream {
    /// Ordered by workflow first, so that one workflow's callees are neighbours.
    paths: BTreeMap<(Workflow, CalleeId), Path>,
    sheds: BTreeMap<CalleeId, Sheds>,
}

/// What one workflow knows of one service.
#[derive(Clone, Debug, Default)]
struct Path {
    replicas: Vec<Replica>,
    last_call: Instant,
}

#[derive(Clone, Copy, Debug)]
struct Replica {
    gate: GateId,
    sequence: u64,
    last: Cursor,
    expires: Instant,
}

impl Path {
    /// The laxest cursor of all replicas that still hold, and until when.
    fn cursor(&self, now: Instant) -> (Cursor, Instant) {
        let mut holding = self.replicas.iter().filter(|replica| replica.expires > now).peekable();
        if now.since(self.last_call) > CALLS_FOR || holding.peek().is_none() {
            return (Cursor::OPEN, Instant::FAR);
        }
        holding.fold((Cursor::CLOSED, Instant::FAR), |(cursor, until), replica| {
            (cursor.max(replica.last), until.min(replica.expires))
        })
    }

    fn learn(&mut self, now: Instant, feedback: &Feedback) {
        self.last_call = now;
        let replica = Replica {
            gate: feedback.gate,
            sequence: feedback.sequence,
            last: feedback.last.unwrap_or(Cursor::OPEN),
            expires: now + feedback.holds,
        };
        match self.replicas.iter_mut().find(|known| known.gate == replica.gate) {
            // Responses overtake each other; the highest sequence wins.
            Some(known) if known.sequence >= replica.sequence => {}
            Some(known) => *known = replica,
            None => {
                if self.replicas.len() >= REPLICAS {
                    let oldest =
                        (0..REPLICAS).min_by_key(|at| self.replicas[*at].expires).unwrap_or(0);
                    self.replicas.swap_remove(oldest);
                }
                self.replicas.push(replica);
            }
        }
    }
}

impl Downstream {
    /// Whether nobody is called.
    pub(crate) fn is_empty(&self) -> bool {
        self.paths.is_empty()
    }

    pub(crate) fn on_feedback(
        &mut self,
        now: Instant,
        callee: CalleeId,
        workflow: Workflow,
        feedback: &Feedback,
    ) {
        let key = (workflow, callee);
        if self.paths.len() >= PATHS && !self.paths.contains_key(&key) {
            self.paths.retain(|_, path| now.since(path.last_call) <= CALLS_FOR);
            if self.paths.len() >= PATHS {
                return;
            }
        }
        self.paths.entry(key).or_default().learn(now, feedback);
    }

    /// The strictest cursor over the services `workflow` calls, whose it is, and until when it holds.
    fn strictest(&self, now: Instant, workflow: Workflow) -> Option<(Cursor, CalleeId, Instant)> {
        let callees = (workflow, CalleeId(0))..=(workflow, CalleeId(u32::MAX));
        self.paths
            .range(callees)
            .map(|((_, callee), path)| {
                let (cursor, until) = path.cursor(now);
                (cursor, *callee, until)
            })
            .min_by_key(|(cursor, ..)| *cursor)
            .filter(|(cursor, ..)| *cursor < Cursor::OPEN)
    }

    /// The cursor that refuses this request, counted as a shed to be reported to that service.
    /// Sheds that callers report to us are passed on the same way.
    pub(crate) fn refuses(
        &mut self,
        now: Instant,
        context: &Context,
        rng: &mut Rng,
    ) -> Option<Cursor> {
        if self.paths.is_empty() {
            return None;
        }
        let (cursor, callee, _) = self.strictest(now, context.workflow)?;
        let sheds = self.sheds.entry(callee).or_default();
        if context.sheds.count > 0 && !cursor.admits(context.sheds.sample) {
            sheds.merge(context.sheds, rng);
        }
        if cursor.admits(context.rank) {
            return None;
        }
        sheds.merge(Sheds { count: 1, sample: context.rank }, rng);
        Some(cursor)
    }

    pub(crate) fn take_sheds(&mut self, callee: CalleeId) -> Sheds {
        self.sheds.remove(&callee).unwrap_or_default()
    }

    /// Narrows what we announce to what the services behind us let in.
    pub(crate) fn restrict(&self, now: Instant, workflow: Workflow, feedback: &mut Feedback) {
        if self.paths.is_empty() {
            return;
        }
        if let Some((cursor, _, until)) = self.strictest(now, workflow) {
            feedback.last = Some(feedback.last.map_or(cursor, |last| last.min(cursor)));
            feedback.free = feedback.free.map(|free| free.min(cursor));
            feedback.holds = feedback.holds.min(until.since(now));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rank::Rank;

    const SHOP: Workflow = Workflow(1);
    const BULK: Workflow = Workflow(2);
    const STORE: CalleeId = CalleeId(1);

    fn cursor_at(gate: u64, sequence: u64, business: u8) -> Feedback {
        Feedback {
            last: Some(Cursor::at(Rank::new(business, 0))),
            holds: Span::from_millis(10),
            ..Feedback::silent(GateId(gate), sequence)
        }
    }

    fn request(workflow: Workflow, business: u8) -> Context {
        Context { workflow, rank: Rank::new(business, 0), ..Context::default() }
    }

    #[test]
    fn the_laxest_replica_decides_and_only_for_workflows_that_call() {
        let (mut downstream, mut rng, now) = (Downstream::default(), Rng::new(1), Instant::ZERO);
        downstream.on_feedback(now, STORE, SHOP, &cursor_at(1, 1, 10));
        assert!(downstream.refuses(now, &request(SHOP, 20), &mut rng).is_some());
        assert!(downstream.refuses(now, &request(SHOP, 10), &mut rng).is_none());
        assert!(downstream.refuses(now, &request(BULK, 20), &mut rng).is_none());
        downstream.on_feedback(now, STORE, SHOP, &cursor_at(2, 1, 30));
        assert!(downstream.refuses(now, &request(SHOP, 20), &mut rng).is_none());
        assert_eq!(downstream.take_sheds(STORE), Sheds { count: 1, sample: Rank::new(20, 0) });
        assert_eq!(downstream.take_sheds(STORE), Sheds::NONE);
    }

    #[test]
    fn cursors_age_out_and_overtaken_ones_are_ignored() {
        let (mut downstream, mut rng, now) = (Downstream::default(), Rng::new(1), Instant::ZERO);
        downstream.on_feedback(now, STORE, SHOP, &cursor_at(1, 2, 10));
        downstream.on_feedback(now, STORE, SHOP, &cursor_at(1, 1, 60));
        assert!(downstream.refuses(now, &request(SHOP, 20), &mut rng).is_some());
        let later = now + Span::from_millis(11);
        assert!(downstream.refuses(later, &request(SHOP, 20), &mut rng).is_none());
    }

    #[test]
    fn what_we_announce_is_no_laxer_than_what_is_behind_us() {
        let (mut downstream, now) = (Downstream::default(), Instant::ZERO);
        downstream.on_feedback(now, STORE, SHOP, &cursor_at(1, 1, 10));
        let mut feedback = Feedback::silent(GateId(9), 1);
        downstream.restrict(now, SHOP, &mut feedback);
        assert_eq!(feedback.last, Some(Cursor::at(Rank::new(10, 0))));
        assert_eq!(feedback.holds, Span::from_millis(10));
        let mut other = Feedback::silent(GateId(9), 2);
        downstream.restrict(now, BULK, &mut other);
        assert_eq!(other.last, None);
    }
}
