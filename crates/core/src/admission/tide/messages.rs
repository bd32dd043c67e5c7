//! What messages cost: cores that receive, refuse and answer do not serve meanwhile.
//!
//! Where a request takes a millisecond that is nothing. Where it takes a microsecond it is most of the work, and a service that
//! received much and served little has not become slower. So what requests cost is counted with their messages,
//! and what a service has done with all that it received and sent: under pressure that is
//! the same in every round to some parts in a thousand, whatever came by chance.

use super::round::Round;
use crate::meter::Cost;

/// Time it takes to receive a request and refuse it, in nanoseconds (1.76 µs in Breakwater's testbed).
pub(super) const REFUSAL_NS: f64 = 2_000.0;

/// What a message costs, in the unit of costs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Messages {
    each: u64,
}

/// Costs are taken to be in nanoseconds unless they are less than a thirtieth of the time for which
/// slots are held. Then they are in a unit of the driver's own, or of a service that mostly waits for others, and
/// messages count for the less.
const TIMES: f64 = 32.0;

impl Messages {
    pub(super) const fn new() -> Self {
        Self { each: (REFUSAL_NS / 2.0) as u64 }
    }

    /// Learns from a round which unit costs are in.
    pub(super) fn learn(&mut self, round: &Round) {
        if round.held > 0 {
            let unit = (TIMES * round.served as f64 / round.held as f64).min(1.0);
            self.each = (unit * REFUSAL_NS / 2.0) as u64;
        }
    }

    /// What one costs; nothing where costs are in a unit that is so much larger.
    pub(super) fn each(self) -> f64 {
        self.each as f64
    }

    /// What the two messages of a request cost.
    pub(super) fn of_a_request(self) -> Cost {
        Cost(2 * self.each)
    }

    /// All that was done in a round.
    pub(super) fn work(self, round: &Round) -> f64 {
        let messages = u64::from(round.arrived) + u64::from(round.told);
        round.served.saturating_add(self.each * messages) as f64
    }

    /// What of it went into refusals, and into messages that nobody asked for.
    pub(super) fn lost(self, round: &Round) -> f64 {
        (self.each * (2 * u64::from(round.refused) + u64::from(round.unasked))) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Instant;

    fn round(served: u64, held: u64) -> Round {
        let mut round = Round::starting(Instant::ZERO);
        (round.arrived, round.refused) = (100, 10);
        (round.told, round.unasked) = (104, 4);
        (round.served, round.held) = (served, held);
        round
    }

    #[test]
    fn what_was_done_is_what_was_served_received_and_sent() {
        let messages = Messages::new();
        assert_eq!(messages.work(&round(90_000, 0)), 90_000.0 + 204_000.0);
        assert_eq!(messages.lost(&round(90_000, 0)), 24_000.0);
        assert_eq!(messages.of_a_request(), Cost(2_000));
    }

    #[test]
    fn in_another_unit_they_count_in_proportion() {
        let after = |served, held| {
            let mut messages = Messages::new();
            messages.learn(&round(served, held));
            messages.of_a_request().0
        };
        assert_eq!(after(90_000, 150_000), 2_000, "slots are held for longer than work takes");
        assert_eq!(after(500, 1_000_000), 32, "a unit is two microseconds");
        assert_eq!(after(0, 0), 2_000, "nothing is known");
    }
}
