//! What is let in: which part of what is offered the service can do, and what of it needs no credit.

use super::offered::Lump;
use super::surplus::surplus;
use super::sway::{Cursors, Sway};
use super::{Tide, lots};
use crate::rank::Cursor;

/// Price below which a refusal is cheaper than to be idle for want of a request. With more, a service
/// of 100 µs refuses more than it has to.
const CHEAP: f64 = 0.02;

impl Tide {
    /// Cuts what is offered at what the service can do, and at `reach` more and less.
    pub(super) fn cut(&mut self, reach: f64) {
        let aim = self.capacity.rate() * (1.0 + self.surplus());
        // What cannot be cut is left to credits: with all demand on one rank this is Breakwater.
        let free = |aim: f64, lump| self.offered.cut(aim * self.config.free, lump);
        let cursors = |aim: f64, last: Cursor| match last {
            Cursor::OPEN => Cursors::OPEN,
            last => Cursors { free: free(aim, Lump::Without).min(last), last },
        };
        let rest = cursors(aim, self.offered.cut(aim, Lump::Within));
        if let Some((free, last)) = self.left_to_credits(rest.last, aim) {
            (self.lump, self.sway) = (true, Sway::still(Cursors { free, last }));
            return;
        }
        self.lump = rest.free < free(aim, Lump::Within).min(rest.last);
        self.sway = Sway::still(rest);
        if rest.last < Cursor::OPEN && !self.lump {
            let (more, less) = (aim * (1.0 + reach), aim * (1.0 - reach));
            let lax = cursors(more, self.offered.cut(more, Lump::Within).min(self.offered.end()));
            let strict = cursors(less, self.offered.cut(less, Lump::Within));
            self.sway = Sway::between(rest, lax, strict);
        }
    }

    /// Ranks that are cut by lot, which means nothing, are left to credits where those do better.
    fn left_to_credits(&self, cut: Cursor, aim: f64) -> Option<(Cursor, Cursor)> {
        let suits = self.lots.suit_credits(&lots::Demand {
            objective: self.derived.objective,
            messages: self.offered.mean_cost() / self.messages.each(),
            room: self.room(),
            resting: self.resting(),
            varied: f64::midpoint(1.0, self.offered.variability()),
            // What is offered beyond `more` times what can be done.
            exceeds: &|more| self.offered.cut(aim * more, Lump::Within) < Cursor::OPEN,
            already: self.lump,
        });
        if suits { self.offered.drawn(cut) } else { None }
    }

    /// Requests that may wait.
    fn room(&self) -> f64 {
        self.pace() * self.waits.longest().as_nanos_f64()
    }

    /// Credits that are at callers until these have their next request, if all that is served needs one.
    pub(super) fn resting(&self) -> f64 {
        let served = (self.pace() / self.offered.requests().max(1e-12)).min(1.0);
        served * self.windows.speakers() as f64
    }

    /// Whether no more is offered than the service can do: nobody is shed, and none should be.
    pub(super) fn is_calm(&self) -> bool {
        let all = || self.offered.cut(self.capacity.rate(), Lump::Within) == Cursor::OPEN;
        self.last() == Cursor::OPEN && all()
    }

    /// By which share what callers are told follows the queue.
    pub(super) fn reach(&self) -> f64 {
        Sway::reach(self.waits.longest(), self.hears)
    }

    /// Mean requests that can be served per nanosecond.
    pub(super) fn pace(&self) -> f64 {
        self.capacity.rate() / self.offered.mean_cost()
    }

    /// How much more than the capacity is let in: the less, the better callers follow the queue, unless
    /// a refusal costs next to nothing.
    fn surplus(&self) -> f64 {
        // Those who are refused are the least important that are let in.
        let price = self.waits.price() / self.offered.relative_cost(self.last());
        let (costs, arrivals) = (self.offered.variability(), self.bursts.dispersion());
        let followed = Sway::followed(self.waits.longest(), self.hears) * (price / CHEAP).min(1.0);
        surplus(self.room(), costs, arrivals, price) * (1.0 - followed)
    }
}
