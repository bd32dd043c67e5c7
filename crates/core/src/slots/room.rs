//! Whether more slots than the knee are worth their queue.
//!
//! Where a request passes several queues in a row (threads, a pool, the services that it calls), throughput has no sharp
//! knee: of n equal stations each idles while all requests happen to be at the others, and k requests keep them busy for
//! k / (k + n − 1) of the time (a closed network of exponential stations). Twice as many then do a little more each time, and what
//! the knee is found by says stop long before the peak. Yet nobody minds that they wait behind the gate, so long as they are answered in time.
//!
//! So when the knee is known, as many as a part of the objective has room for (Little's law) take turns with it. What was
//! answered with either is counted, and the better one stays, but for a look at the other now and then.

use crate::time::Span;

/// Part of the objective that requests may be behind the gate: the rest is for variation, which is about as much.
const ROOMY: f64 = 0.4;
/// Growth of throughput that is worth so many, beyond what chance makes.
const PAYS: f64 = 1.03;
/// Relative error beyond which nothing is decided.
const UNKNOWN: f64 = 0.07;
/// Answers after which what was counted counts half: services change.
const REMEMBERED: f64 = 8192.0;
/// Of so many turns one is the other's.
const LOOK: u32 = 16;

/// Throughput with the knee and with as many as time allows.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Room {
    knee: Counted,
    roomy: Counted,
    turns: u32,
}

/// Answers, and the nanoseconds that they took.
#[derive(Clone, Copy, Debug, Default)]
struct Counted {
    answers: f64,
    time: f64,
}

impl Counted {
    fn add(&mut self, answers: u32, nanos: f64) {
        let kept = if self.answers > REMEMBERED { 0.5 } else { 1.0 };
        self.answers = self.answers * kept + f64::from(answers);
        self.time = self.time * kept + nanos;
    }

    fn rate(&self) -> f64 {
        self.answers / self.time.max(1.0)
    }
}

impl Room {
    /// So many were answered with the knee, in so many nanoseconds.
    pub(super) fn on_knee(&mut self, answers: u32, nanos: f64) {
        self.knee.add(answers, nanos);
    }

    /// So many were answered with as many slots as time allows.
    pub(super) fn on_roomy(&mut self, answers: u32, nanos: f64) {
        self.roomy.add(answers, nanos);
    }

    /// They were too many: for a while nobody asks.
    pub(super) fn on_relief(&mut self) {
        (self.roomy, self.turns) = (self.knee, 0);
    }

    /// A turn is over; whether the next one is with as many as time allows.
    pub(super) fn is_next(&mut self) -> bool {
        self.turns = (self.turns + 1) % LOOK;
        match self.pays() {
            Some(pays) => pays != (self.turns == 0),
            None => self.turns % 2 == 1,
        }
    }

    /// As many as are behind the gate for a part of the objective, at the best throughput that was seen.
    pub(super) fn slots(&self, objective: Span) -> u32 {
        let rate = self.knee.rate().max(self.roomy.rate());
        if objective == Span::MAX { 0 } else { (rate * ROOMY * objective.as_nanos_f64()) as u32 }
    }

    /// None before it can be told: the count of answers is about as uncertain as its root, whatever the times are like.
    pub(super) fn pays(&self) -> Option<bool> {
        let share = |counted: &Counted| 1.0 / counted.answers.max(1.0);
        let error = (share(&self.knee) + share(&self.roomy)).sqrt();
        let growth = self.roomy.rate() / self.knee.rate().max(f64::MIN_POSITIVE);
        let is_told = error < UNKNOWN && !(PAYS..PAYS + error).contains(&growth);
        is_told.then_some(growth > PAYS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Turns of two hundred answers each, with so many per second at the knee and with more slots.
    fn turns(room: &mut Room, knee: f64, roomy: f64, count: u32) -> u32 {
        let (mut wide, mut is_roomy) = (0, false);
        for _ in 0..count {
            let rate = if is_roomy { roomy } else { knee };
            let nanos = 200.0 * 1e9 / rate;
            let count = if is_roomy { Room::on_roomy } else { Room::on_knee };
            count(&mut *room, 200, nanos);
            wide += u32::from(is_roomy);
            is_roomy = room.is_next();
        }
        wide
    }

    #[test]
    fn more_slots_stay_where_more_is_answered_with_them() {
        let mut room = Room::default();
        let wide = turns(&mut room, 150.0, 190.0, 160);
        assert!((140..160).contains(&wide), "{wide}");
        // 190 per second, for two fifths of 160 ms.
        assert_eq!(room.slots(Span::from_millis(160)), 12);
    }

    #[test]
    fn where_they_answer_no_more_they_are_looked_at_now_and_then() {
        let mut room = Room::default();
        let wide = turns(&mut room, 200.0, 201.0, 160);
        assert!((8..24).contains(&wide), "{wide}");
    }

    #[test]
    fn a_service_that_loses_what_made_them_worth_it_goes_back_to_the_knee() {
        let mut room = Room::default();
        turns(&mut room, 150.0, 190.0, 160);
        turns(&mut room, 150.0, 150.0, 640);
        let wide = turns(&mut room, 150.0, 150.0, 160);
        assert!(wide < 24, "{wide}");
    }

    #[test]
    fn without_an_objective_there_is_no_room() {
        let mut room = Room::default();
        turns(&mut room, 150.0, 190.0, 16);
        assert_eq!(room.slots(Span::MAX), 0);
    }
}
