//! Calls that wait here: how they come to, how long, and when they leave.

use super::routing::Route;
use super::{CallAction, Caller, State, no_credit};
use crate::context::Context;
use crate::request::RequestId;
use crate::time::{Instant, Span};
use crate::verdict::{Advice, Passage, Reason, Rejection};

impl Caller {
    pub(super) fn hold_new(
        &mut self,
        now: Instant,
        context: &Context,
    ) -> Result<RequestId, Rejection> {
        let give_up = self.hold_until(now, context);
        let full = self.holding.len() >= self.config.hold_limit;
        // Full: the least important goes, be it the newcomer; nobody for its lot.
        let rank = context.importance();
        let victim = self.holding.least().filter(|(least, _)| full && *least > rank);
        if give_up <= now || full && victim.is_none() {
            self.shed(context.rank);
            return Err(no_credit(self.holding.len() + 1, Advice::Elsewhere));
        }
        if let Some((least, id)) = victim {
            let (measured, limit) = (f64::from(least.key()), f64::from(rank.key()));
            let pushed = Rejection::new(Reason::PushedOut, measured, limit, Advice::Elsewhere);
            self.drop_held(id, pushed);
        }
        let id = self.insert(now, context, State::Held);
        self.holding.push(id, rank, give_up);
        self.report_demand();
        Ok(id)
    }

    /// When a held request gives up: after the holding limit, and in time for an answer to come
    /// before its deadline.
    pub(super) fn hold_until(&self, now: Instant, context: &Context) -> Instant {
        let by_limit = now + self.config.hold_time;
        if context.deadline == Instant::FAR {
            return by_limit;
        }
        // RTT, wait and service as TCP estimates a timeout: mean plus four deviations.
        let answer = self.latency.get().unwrap_or(0.0) + 4.0 * self.deviation.get().unwrap_or(0.0);
        by_limit.min(context.deadline - Span::from_nanos(answer as u64))
    }

    pub(super) fn drop_held(&mut self, id: RequestId, rejection: Rejection) {
        self.holding.remove(id);
        self.fail(id, rejection);
    }

    /// Sends held calls to `endpoint` in order of arrival, as far as its throttle lets them. When
    /// cursors were relaxed, later ones may go although an earlier one must still wait.
    pub(super) fn release(&mut self, now: Instant, endpoint: usize, look_at_all: bool) {
        let look_at_all = look_at_all || !self.endpoints[endpoint].throttle.in_order();
        let mut next = self.holding.front();
        // Asked anew for each: a circuit that is tried takes one call.
        while let Some(id) = next.filter(|_| self.endpoints[endpoint].breaker.allows(now)) {
            next = self.holding.after(id);
            let Some(call) = self.calls.get(id) else { break };
            match self.endpoints[endpoint].throttle.on_submit(&mut self.cx, &call.context) {
                Passage::Send => {
                    self.holding.remove(id);
                    self.transmit(now, id, endpoint);
                }
                Passage::Hold if look_at_all => {}
                Passage::Hold => break,
                Passage::Reject(rejection) if self.endpoints.len() == 1 => {
                    self.drop_held(id, rejection);
                }
                // Another endpoint may still take it.
                Passage::Reject(_) => {}
            }
        }
        self.report_demand();
    }

    /// Asks anew about every held call, in order of arrival: everything may have changed.
    pub(super) fn reroute_held(&mut self, now: Instant) {
        let mut next = self.holding.front();
        while let Some(id) = next {
            next = self.holding.after(id);
            let Some(context) = self.calls.get(id).map(|call| call.context) else { break };
            match self.route(now, &context, None) {
                Route::Send(endpoint) => {
                    self.holding.remove(id);
                    self.transmit(now, id, endpoint);
                }
                Route::Hold => {}
                // One call tries a circuit, the others wait for what comes of it.
                Route::Reject(rejection) if rejection.reason == Reason::Broken => break,
                Route::Reject(rejection) => self.drop_held(id, rejection),
            }
        }
    }

    /// Tells endpoints that hear of it in no other way what waits here: that nothing does any more,
    /// or its credits would be stranded until the next request; and, where the throttle synchronises
    /// demand, how much.
    pub(super) fn report_demand(&mut self) {
        let demand = self.demand();
        for index in 0..self.endpoints.len() {
            let endpoint = &mut self.endpoints[index];
            let matters = demand == 0 || endpoint.throttle.synchronises();
            if matters && endpoint.told_demand != demand && endpoint.load.in_flight() == 0 {
                endpoint.told_demand = demand;
                let sheds = self.sheds.take(self.cx.now);
                let context = Context { caller: self.id, demand, sheds, ..Context::default() };
                self.actions.push_back(CallAction::Report { endpoint: index, context });
            }
        }
    }

    /// What to tell an endpoint: its part of what waits here.
    pub(super) fn demand(&self) -> u32 {
        let endpoints = self.endpoints.len().max(1);
        self.holding.len().div_ceil(endpoints) as u32
    }
}
