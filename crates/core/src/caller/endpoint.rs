//! One replica as a caller sees it.

use super::breaker::Breaker;
use super::ejection::Tally;
use crate::balance::Load;
use crate::feedback::{Feedback, GateId};
use crate::throttle::Throttle;
use crate::time::Instant;

/// Gates remembered behind one endpoint; beyond that the one first heard of is forgotten.
const GATES: usize = 64;

/// A throttle, a load, and what was last said in either direction.
#[derive(Clone, Debug)]
pub(super) struct Endpoint {
    pub(super) throttle: Box<dyn Throttle>,
    pub(super) load: Load,
    pub(super) breaker: Breaker,
    pub(super) tally: Tally,
    /// Demand last told to this endpoint.
    pub(super) told_demand: u32,
    /// Highest sequence heard from each gate behind this endpoint.
    gates: Vec<(GateId, u64)>,
}

impl Endpoint {
    pub(super) fn new(throttle: Box<dyn Throttle>, now: Instant) -> Self {
        Self {
            throttle,
            load: Load::new(now),
            breaker: Breaker::default(),
            tally: Tally::default(),
            told_demand: 0,
            gates: Vec::new(),
        }
    }

    /// Whether this is the latest word of its gate: responses overtake each other.
    pub(super) fn is_news(&mut self, feedback: &Feedback) -> bool {
        match self.gates.iter_mut().find(|(gate, _)| *gate == feedback.gate) {
            Some((_, sequence)) if *sequence >= feedback.sequence => return false,
            Some((_, sequence)) => *sequence = feedback.sequence,
            None => {
                if self.gates.len() >= GATES {
                    self.gates.remove(0);
                }
                self.gates.push((feedback.gate, feedback.sequence));
            }
        }
        true
    }
}
