//! What callers know of us: how old it is, how long it holds, and who must hear of a relaxed cursor.

use super::Tide;
use super::offered::Lump;
use super::round::Round;
use super::sway::Cursors;
use crate::rank::Cursor;
use crate::time::{Instant, Span};

/// Callers that were told to let in less than this part of what is let in now are to hear of it. With three
/// quarters, some of 10,000 callers are told of half of a relief and then of nothing more for hundreds of SLOs:
/// a service of 100 µs has 91 % of what is offered again when it could have all.
const TOLD: f64 = 0.9;
/// By so much less of it, divided by the messages that can be sent in the time of a request: 0.77 for a service of 1 µs.
/// With 0.9 there too, 10,000 callers are told of noise at ten times the capacity, and the messages take 1 % of it.
const TOLD_PRICE: f64 = 0.4;
/// The share of a control period's work that goes into telling them. More than there is time for is not sent, as it is only done
/// while nothing waits. By simulation: with a tenth, a service of 10 µs has 41 % of what 10,000 callers offer again 25 SLOs after
/// a storm of ten times, instead of 97; with a quarter, 80.
const NOTICES: f64 = 0.5;

impl Tide {
    /// The share of callers that hear of us in `elapsed`, 0 to 1.
    pub(super) fn heard(&self, elapsed: Span) -> f64 {
        elapsed.ratio(self.between).min(1.0)
    }

    /// What callers that were told `cursors` send if they hear nothing more: where credits decide, what needs none.
    pub(super) fn alone(&self, cursors: Cursors) -> Cursor {
        if self.lump { cursors.free } else { cursors.last }
    }

    /// Step 7: how long our word holds, and who must hear of a relaxed cursor.
    pub(super) fn hold_and_tell(&mut self, round: &Round, due: Instant) {
        let (elapsed, callers) = (due.since(round.began), self.windows.speakers() as f64);
        // A caller is heard of every `callers ÷ arrivals`.
        self.between = elapsed.scale(callers / f64::from(round.arrived.max(1)));
        self.hears = elapsed.scale(callers / f64::from(round.told.max(1)));
        self.lots.answered(elapsed, callers, round.told.saturating_sub(round.unasked));
        self.holds = self.between.scale(self.config.holds).max(self.derived.round);
        if self.epoch_ends <= due {
            self.windows.start_epoch();
            self.epoch_ends = due + self.holds;
        }
        // What is open stays so, and is worth telling.
        let open = self.last() == Cursor::OPEN;
        let told = if open { 1.0 } else { TOLD * (1.0 - self.reach()) };
        let least = (told - TOLD_PRICE / self.waits.messages()) * self.capacity.rate();
        self.relief = self.offered.cut(least, Lump::Within).min(self.alone(self.sway.rest));
        let requests = self.pace() * self.derived.period.as_nanos_f64();
        self.notices = 1 + (NOTICES * self.waits.messages() * requests) as usize;
    }
}
