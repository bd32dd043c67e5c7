//! Where a call goes.

use super::{CallAction, Caller, State};
use crate::balance::two_choices;
use crate::context::Context;
use crate::request::RequestId;
use crate::time::Instant;
use crate::verdict::{Advice, Passage, Reason, Rejection};

/// Where a call may go.
pub(super) enum Route {
    Send(usize),
    Hold,
    Reject(Rejection),
}

impl Caller {
    /// Where a request may go: the less loaded of two endpoints, else the other. Before it has to
    /// wait, all others are asked; but a rejection is believed, or a caller with many endpoints
    /// would find one that has not rejected yet every time.
    pub(super) fn route(&mut self, now: Instant, context: &Context, avoid: Option<usize>) -> Route {
        let Some(pair) = two_choices(&mut self.cx.rng, self.endpoints.len()) else {
            return Route::Reject(Rejection::new(Reason::Draining, 0.0, 1.0, Advice::Never));
        };
        let (first, second) = match self.usable(now, pair) {
            Ok(pair) => pair,
            Err(rejection) => return Route::Reject(rejection),
        };
        let score = |index: usize| {
            let endpoint = &self.endpoints[index];
            // After a refusal, replicas with a laxer cursor are better, and the same one is last.
            let refuses = !endpoint.throttle.cursor(now).admits(context.rank);
            (Some(index) == avoid, refuses, endpoint.load.score(now))
        };
        let (mut best, mut other) = (first, second);
        if first != second && score(second) < score(first) {
            (best, other) = (second, first);
        }
        let mut outcome =
            Route::Reject(Rejection::new(Reason::Credit, 0.0, 0.0, Advice::Elsewhere));
        for index in [best, other] {
            match self.endpoints[index].throttle.on_submit(&mut self.cx, context) {
                Passage::Send => return Route::Send(index),
                Passage::Hold => outcome = Route::Hold,
                Passage::Reject(rejection) => {
                    if !matches!(outcome, Route::Hold) {
                        outcome = Route::Reject(rejection);
                    }
                }
            }
            if first == second {
                break;
            }
        }
        let Route::Hold = outcome else { return outcome };
        let count = self.endpoints.len();
        let others = (1..count).map(|step| (best + step) % count).filter(|index| *index != other);
        for index in others {
            if !self.endpoints[index].breaker.allows(now) {
                continue;
            }
            if self.endpoints[index].throttle.on_submit(&mut self.cx, context) == Passage::Send {
                return Route::Send(index);
            }
        }
        Route::Hold
    }

    pub(super) fn transmit(&mut self, now: Instant, id: RequestId, endpoint: usize) {
        let demand = self.demand();
        let Some(call) = self.calls.get_mut(id) else { return };
        call.state = State::Sent { endpoint };
        call.sent = now;
        let context =
            Context { caller: self.id, demand, sheds: self.sheds.take(now), ..call.context };
        let target = &mut self.endpoints[endpoint];
        target.load.on_send();
        target.breaker.on_send();
        target.told_demand = demand;
        self.actions.push_back(CallAction::Transmit { id, endpoint, context });
    }
}
