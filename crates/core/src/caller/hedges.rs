//! Trying twice at the same time.

use super::routing::Route;
use super::{Caller, State};
use crate::context::Context;
use crate::event::Event;
use crate::request::RequestId;
use crate::time::Instant;

impl Caller {
    /// When to ask for a [`hedge`](Self::hedge) of a call that was sent; none if it gets none.
    pub fn hedge_at(&self, id: RequestId) -> Option<Instant> {
        let (call, _) = self.sent(id)?;
        let delay = self.hedge.delay(self.config.hedge.as_ref()?)?;
        let at = call.sent + delay;
        (call.context.attempt == 0 && at < call.context.deadline).then_some(at)
    }

    /// Sends a call once more, elsewhere, while it is not answered, as a call of its own: the first
    /// answer is taken, and the other call cancelled. None if that may not be, because the budget of
    /// retries is spent or no other endpoint would take it now.
    pub fn hedge(&mut self, now: Instant, of: RequestId) -> Option<RequestId> {
        let now = self.advance(now);
        let (call, first) = self.sent(of)?;
        self.config.hedge?;
        let attempt = call.context.attempt.saturating_add(1);
        let may = attempt < self.config.retry.attempts
            && now < call.context.deadline
            && self.endpoints.len() > 1
            && self.budget.withdraw();
        self.cx.events.push(now, || Event::Retry { attempt, allowed: may });
        if !may {
            return None;
        }
        let context = Context { attempt, ..call.context };
        match self.route(now, &context, Some(first)) {
            Route::Send(endpoint) => {
                let id = self.insert(now, &context, State::Sent { endpoint });
                self.transmit(now, id, endpoint);
                Some(id)
            }
            // Where a first attempt would have to wait, a second one has no place.
            Route::Hold | Route::Reject(_) => {
                self.budget.refund();
                None
            }
        }
    }
}
