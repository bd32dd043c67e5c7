//! The door: how a request gets in, and how one that waits is turned out again.
//!
//! In this order: closing down, deadline passed, abandoned work to be waited for, downstream cursor, the limits, the policy, the
//! bounds of the gate itself. What the policy let in but a bound refuses is a request that left, for
//! the policy; and limits get back what they took from whoever was refused after them.

use super::{Due, Entry, Gate, State};
use crate::context::Context;
use crate::event::Event;
use crate::levels::{RankIndex, level_of};
use crate::limit::Ask;
use crate::request::{Request, RequestId};
use crate::signal::DelaySignal;
use crate::slab::Key;
use crate::time::{Instant, Span};
use crate::verdict::{Advice, Reason, Rejection, Verdict};

impl Gate {
    pub(super) fn enter(
        &mut self,
        now: Instant,
        arrived: Instant,
        context: &Context,
    ) -> Result<RequestId, Rejection> {
        if let Some(control) = &mut self.control {
            control.on_arrival(context);
        }
        if self.draining {
            return Err(Rejection::new(Reason::Draining, 1.0, 0.0, Advice::Elsewhere));
        }
        if context.deadline <= now && !self.config.deadlines_are_soft() {
            let late = now.since(context.deadline).as_nanos_f64();
            return Err(Rejection::new(Reason::Expired, late, 0.0, Advice::Never));
        }
        self.owes(now, context)?;
        if let Some(cursor) = self.downstream.refuses(now, context, &mut self.cx.rng) {
            let (rank, ranks) = (f64::from(context.rank.key()), f64::from(cursor.ranks()));
            return Err(Rejection::new(Reason::Downstream, rank, ranks, Advice::Never));
        }
        let mut request = Request {
            id: Key::NOWHERE,
            context: *context,
            arrived,
            enqueued: now,
            cost: self.costs.estimate(context.workflow),
            attained: Span::ZERO,
        };
        let is_first_hop = context.progress.total == Span::ZERO;
        if let Some(control) = &self.control {
            control.totals.fill_in(context.workflow, &mut request.context.progress);
        }
        if self.limits.is_some() {
            self.pass_limits(now, &request)?;
        }
        let entered = self.go_in(now, &mut request, is_first_hop);
        if let Some(limits) = &mut self.limits {
            match entered {
                Ok(id) => limits.keep(id),
                Err(_) => limits.give_back(now, context),
            }
        }
        entered
    }

    /// By the time of arrival, whenever it is looked at.
    #[inline(never)]
    fn pass_limits(&mut self, now: Instant, request: &Request) -> Result<(), Rejection> {
        let Some(limits) = &mut self.limits else { return Ok(()) };
        let needed = limits.needs_delay();
        let delay = if needed { self.backlog.delay(now, DelaySignal::Drain) } else { Span::ZERO };
        let ask = Ask { context: &request.context, cost: request.cost, delay };
        limits.pass(request.arrived, &ask)
    }

    /// Past the limits: the turn of its workflow, the policy, the bounds of the gate itself.
    #[inline]
    fn go_in(
        &mut self,
        now: Instant,
        request: &mut Request,
        is_first_hop: bool,
    ) -> Result<RequestId, Rejection> {
        if let Some(held) = self.hold_back(now, request, is_first_hop) {
            return held;
        }
        let degraded = self.ask_policy(now, request)?;
        let id = self.entries.insert_with(|id| {
            request.id = id;
            Entry::new(request, State::Waiting, degraded, is_first_hop, now)
        });
        self.wait(now, request);
        Ok(id)
    }

    /// May a request that passed all the rest enter, and degraded?
    #[inline(always)] // It is most of what a refusal costs.
    pub(super) fn ask_policy(
        &mut self,
        now: Instant,
        request: &Request,
    ) -> Result<bool, Rejection> {
        let degraded = match self.admission.on_arrival(&mut self.cx, &self.backlog, request) {
            Verdict::Refuse(rejection) => return Err(rejection),
            Verdict::Displace(rejection) => {
                if !self.push_out(now, &request.context, true) {
                    self.leave(request);
                    return Err(rejection);
                }
                false
            }
            Verdict::Admit => false,
            Verdict::Degrade => true,
        };
        if let Err(rejection) = self.has_room(now, &request.context) {
            self.leave(request);
            return Err(rejection);
        }
        let delay = self.backlog.delay(now, DelaySignal::Drain);
        Ok(degraded || delay >= self.config.degrade_delay)
    }

    /// A request that was let in joins the schedule.
    #[inline(always)] // Every request that is let in comes here.
    pub(super) fn wait(&mut self, now: Instant, request: &Request) {
        self.schedule.push(now, request);
        let weight = self.costs.weight(request.cost);
        self.backlog.on_enqueue(now, request.id.index(), request.arrived, weight);
        if self.ranks.is_some() {
            self.unranked.push(request.id);
        }
    }

    /// Whether a request that the policy let in fits the bounds of the gate itself.
    fn has_room(&mut self, now: Instant, context: &Context) -> Result<(), Rejection> {
        let waiting = self.backlog.waiting();
        if waiting >= self.config.queue_limit && !self.push_out(now, context, false) {
            return Err(Rejection::new(
                Reason::Full,
                waiting as f64,
                self.config.queue_limit as f64,
                Advice::Elsewhere,
            ));
        }
        // Who finds a free slot is not refused for what others took: if nobody were let in, nothing would show that it has
        // changed.
        let free = waiting == 0 && self.running < self.limit;
        if context.deadline < Instant::FAR && !free && !self.config.deadlines_are_soft() {
            // The wait can be predicted only where order is that of arrival.
            let wait = if self.schedule.keeps_arrival_order() {
                self.backlog.predicted_wait()
            } else {
                Span::ZERO
            };
            let service = Span::from_nanos_f64(self.service.get().unwrap_or(0.0))
                .max(context.progress.remaining());
            let left = context.deadline.since(now);
            if wait + service > left {
                let needed = (wait + service).as_nanos_f64();
                return Err(Rejection::new(
                    Reason::Infeasible,
                    needed,
                    left.as_nanos_f64(),
                    Advice::Elsewhere,
                ));
            }
        }
        Ok(())
    }

    /// Pushes out the least important request that waits, if it is less important than `context`; or, where the policy
    /// `cuts` ranks, if it drew the worse lot.
    pub(super) fn push_out(&mut self, now: Instant, context: &Context, cuts: bool) -> bool {
        self.rank_newcomers();
        let Some((place, level)) = self.ranks.as_ref().and_then(RankIndex::least_important) else {
            return false;
        };
        if level <= level_of(context.rank) {
            return false;
        }
        let Some(id) = self.entries.key_at(place) else { return false };
        let victim = self.entries.get(id).map(|entry| entry.request.context.importance());
        if !cuts && victim <= Some(context.importance()) {
            return false;
        }
        let Some(request) = self.take_out(now, id) else { return false };
        let (victim, winner) = (request.context.rank.key(), context.rank.key());
        let rejection = Rejection::new(
            Reason::PushedOut,
            f64::from(victim),
            f64::from(winner),
            Advice::Elsewhere,
        );
        self.turn_out(now, id, &request.context, rejection);
        true
    }

    /// Enters newcomers that still wait into the index by rank.
    #[inline]
    pub(super) fn rank_newcomers(&mut self) {
        if self.backlog.waiting() == 0 {
            self.unranked.clear();
        }
        if !self.unranked.is_empty() {
            self.rank_those_that_wait();
        }
    }

    fn rank_those_that_wait(&mut self) {
        let Some(ranks) = &mut self.ranks else { return };
        for id in self.unranked.drain(..) {
            if let Some(entry) = self.entries.get(id).filter(|entry| entry.state == State::Waiting)
            {
                ranks.insert(id.index(), entry.request.context.rank);
            }
        }
    }

    /// Takes a request that waits out of every structure but `entries`.
    pub(super) fn take_out(&mut self, now: Instant, id: RequestId) -> Option<Request> {
        let entry = self.entries.get_mut(id)?;
        entry.state = State::Refused;
        let request = entry.request;
        self.schedule.remove(id);
        self.dequeue(now, id, false);
        self.leave(&request);
        self.refund(now, &request);
        Some(request)
    }

    /// Limits get back what a request paid that was never served. One that was paused has been
    /// served in part, and keeps its bill.
    pub(super) fn refund(&mut self, now: Instant, request: &Request) {
        if let Some(limits) = self.limits.as_mut().filter(|_| request.attained == Span::ZERO) {
            limits.refund(now, request.id, &request.context);
        }
    }

    #[inline(always)] // Every request that starts comes here.
    pub(super) fn dequeue(&mut self, now: Instant, id: RequestId, started: bool) {
        self.backlog.on_dequeue(now, id.index(), started);
        if let Some(ranks) = &mut self.ranks {
            ranks.remove(id.index());
        }
    }

    pub(super) fn leave(&mut self, request: &Request) {
        self.admission.on_leave(&mut self.cx, request);
    }

    /// Refuses a request that was inside; the driver is told.
    pub(super) fn turn_out(
        &mut self,
        now: Instant,
        id: RequestId,
        context: &Context,
        mut rejection: Rejection,
    ) {
        self.note_refusal(now, context, true, &mut rejection);
        self.due.push_back(Due::Refuse(id));
        self.refusals.push_back(rejection);
    }

    /// Counts a refusal and, when many requests are retries, advises against one more: others are
    /// overloaded too ("Handling Overload", Deciding to Retry).
    pub(super) fn note_refusal(
        &mut self,
        now: Instant,
        context: &Context,
        admitted: bool,
        rejection: &mut Rejection,
    ) {
        self.shedding |= rejection.reason.is_overload();
        if rejection.advice == Advice::Elsewhere
            && rejection.reason != Reason::Draining
            && self.attempts.retries_are_common()
        {
            rejection.advice = Advice::Never;
        }
        let rejection = *rejection;
        self.cx.events.push(now, || Event::Refuse {
            rank: context.rank,
            workflow: context.workflow,
            label: context.label,
            admitted,
            rejection,
        });
    }
}
