//! Tide: credits decide how much, ranks decide what.
//!
//! Breakwater holds goodput and tail but knows no importance; DAGOR knows importance but reacts
//! slowly and drops at the server. Tide is both.
//!
//! 1. **Detect**: the delay, independent of the order of service ([`Backlog`]).
//! 2. **How much**: a pool of credits follows the delay as in Breakwater §3.2; the control period is
//!    an eighth of the target delay.
//! 3. **What**: per rank the gate keeps the cost *offered*, arrivals and reported sheds alike
//!    ([`Offered`]). Once per round, while there is overload, two cursors are set: *last* so that
//!    the ranks inside offer what the service can do, *free* so that they offer `free` of it (`cut.rs`).
//! 4. Callers reject ranks beyond *last* at once, send ranks inside *free* without a credit, and
//!    hold the band between for credits. So what is important never waits for permission, what is
//!    hopeless never travels, and the credits have only the band to match supply and demand with.
//!    Requests that name no user have drawn lots, and are cut by them, or left to credits ([`Lots`]).
//! 5. **Alone**: callers that ignore all this, or never heard of it, are refused by predicted wait.
//!    The allowed wait is long inside *last*, as long as leaves most requests the time they need
//!    ([`Waits`]), and short beyond it: the gate conserves work, an idle service turns nobody away.
//!    Where a wait is too long, a more important arrival pushes out the least important that waits
//!    (`welcome.rs`).
//! 6. **Noise and news**: what a caller knows is as old as its last message. A round that differs from
//!    those before by no more than chance is followed slowly, one that differs by more at once.
//! 7. **Back**: what a caller was told holds for a bounded time, then it asks again; callers that
//!    were told a stricter cursor and are silent hear of a relaxed one unasked, while nothing waits
//!    (`telling.rs`).
//!
//! What the service can do is measured: the cost it finishes per time while there is pressure. When
//! ranks are shed without pressure, a little more is tried. Nothing is shed while the delay says
//! there is no overload.

mod bursts;
mod capacity;
mod config;
mod costs;
mod cut;
mod lots;
mod messages;
mod offered;
mod round;
mod surplus;
mod sway;
mod telling;
mod waits;
mod welcome;

use super::{Admission, AdmissionConfig, Issued, Needs};
use crate::context::{CallerId, Context, Sheds};
use crate::credit::{Pool, PoolForm, Share, Windows, Word};
use crate::event::Event;
use crate::feedback::Feedback;
use crate::meter::Cost;
use crate::objective::Objective;
use crate::rank::Cursor;
use crate::request::{Cx, Request};
use crate::signal::{Backlog, DelaySignal};
use crate::time::{Instant, Span};
use crate::verdict::{Advice, Outcome, Reason, Rejection, Verdict};
use bursts::Bursts;
use capacity::Capacity;
use config::Derived;
pub use config::TideConfig;
use lots::Lots;
use messages::Messages;
use offered::Offered;
use round::Round;
use sway::{Cursors, Sway};
use waits::Waits;
use welcome::allowed_wait;

/// The default policy: a pool of credits follows the delay, and two cursors over ranks follow what
/// is offered and what the service can do.
#[derive(Clone, Debug)]
pub struct Tide {
    config: TideConfig,
    derived: Derived,
    pool: Pool,
    windows: Windows,
    offered: Offered,
    bursts: Bursts,
    /// Ranks that need no credit, and ranks let in at all.
    sway: Sway,
    /// Whether demand that cannot be cut is in the band between the two.
    lump: bool,
    /// When the present control period ends.
    period_ends: Instant,
    /// The present round; none while nothing is offered and nobody is kept out.
    round: Option<Round>,
    capacity: Capacity,
    messages: Messages,
    lots: Lots,
    /// When who has not spoken counts as silent.
    epoch_ends: Instant,
    /// Mean time between two messages of one caller: how old what a caller knows is.
    between: Span,
    /// Mean time between two of our messages to one caller.
    hears: Span,
    /// How long our word holds: it should outlast a few of a caller's messages.
    holds: Span,
    /// How long requests may wait.
    waits: Waits,
    /// Callers that were told a stricter cursor than this one are to hear of it unasked…
    relief: Cursor,
    /// …so many per control period after which nothing waits.
    notices: usize,
}

// Where no reason stands with a constant here and in the other files, half or twice as much makes no
// difference (docs/policies/tide-tried.md).

/// Control periods concluded one by one after a long absence; see `breakwater`.
const PERIODS_AT_ONCE: usize = 512;
/// Weight of a round in what is offered, where every caller hears of every round…
const OFFERED_GAIN: f64 = 0.1;
/// …and the least share of it, where callers hear rarely: changes take effect all the same.
const HEARD_LEAST: f64 = 0.2;
/// Delay beyond which one is as bad as another, in targets.
const PRESSURE_LIMIT: f64 = 4.0;
/// Delay to steer for, in longest waits, where that is less than the target: with a target at or beyond the wait at
/// which requests are refused, credits would never be too many. By simulation: with all on one rank, and one in four
/// requests that costs seven times the others, 19 % are refused without it. With 0.62, a thousand callers of 10 µs with costs
/// that differ are refused 1.0 % at ten times the capacity instead of 0.55; with 0.54, callers that cannot be cut have 0.1 points less.
const STEERED: f64 = 0.58;
/// Unsolicited grants per control period.
const GRANTS_PER_PERIOD: usize = 64;

impl Tide {
    /// A gate that nobody has called yet.
    pub fn new(config: &TideConfig, now: Instant) -> Self {
        let derived = config.derive(config.objective.at_first());
        Self {
            config: config.clone(),
            derived,
            pool: Pool::new(&config.pool(derived.target)),
            windows: Windows::new(),
            offered: Offered::new(),
            bursts: Bursts::default(),
            sway: Sway::OPEN,
            lump: false,
            period_ends: now + derived.period,
            round: None,
            capacity: Capacity::default(),
            messages: Messages::new(),
            lots: Lots::new(),
            epoch_ends: now,
            between: Span::ZERO,
            hears: Span::ZERO,
            holds: derived.round,
            waits: Waits::new(derived.objective, derived.drop),
            relief: Cursor::first(0),
            notices: 0,
        }
    }

    /// Ranks that need no credit, and ranks let in at all.
    pub fn cursors(&self) -> (Cursor, Cursor) {
        (self.sway.rest.free, self.sway.rest.last)
    }

    /// Credits there are, and credits given out.
    pub fn credits(&self) -> (u32, u64) {
        (self.pool.total(), self.windows.issued())
    }

    /// Ranks let in at all.
    fn last(&self) -> Cursor {
        self.sway.rest.last
    }

    /// What a caller says it shed, but for what it was told since that it may send: it does so now, and that is counted
    /// as it comes. Where credits decide, it may lack them.
    #[inline(never)]
    fn still_shed(&self, sheds: Sheds, told: Option<Cursor>) -> Sheds {
        let may_send = told.is_some_and(|told| told.admits(sheds.sample));
        if may_send && !self.lump { Sheds::NONE } else { sheds }
    }

    /// A caller that was silent for so long, and told this cursor, tells what it shed.
    #[inline(always)]
    fn on_sheds(
        &mut self,
        now: Instant,
        sheds: Sheds,
        silence: Option<Span>,
        told: Option<Cursor>,
    ) {
        let sheds = if sheds.count > 0 { self.still_shed(sheds, told) } else { Sheds::NONE };
        self.offered.report(now, sheds, silence.map(|span| span.min(self.holds)));
    }

    fn count_refusal(&mut self) {
        if let Some(round) = &mut self.round {
            round.refused += 1;
        }
    }

    /// Concludes one control period that ended at `due`, or many alike. Returns how many.
    fn control(&mut self, cx: &mut Cx, backlog: &Backlog, due: Instant) -> u64 {
        let (period, target) = (self.derived.period, self.pool.target());
        let callers = self.windows.callers();
        let delay = backlog.delay(due, DelaySignal::Drain);
        let worst = self.derived.target.scale(PRESSURE_LIMIT);
        let before = self.pool.total();
        if delay >= target {
            self.pool.decrease(callers, delay);
        }
        if let Some(round) = &mut self.round {
            round.look(due, backlog.waiting() == 0);
            round.held_back |= backlog.is_held_back();
        }
        // Until something comes in, an empty queue stays empty and a stalled one stalled. Where that
        // leaves the pool as it is, or lets it grow, all periods are alike until the round ends, or
        // for ever if there is none.
        let steady = backlog.waiting() == 0 || delay >= worst;
        let mut periods = 1;
        if steady && self.pool.total() == before {
            let until = self.round_ends().map_or(cx.now, |ends| ends.min(cx.now));
            periods += until.since(due).as_nanos() / period.as_nanos();
        }
        if delay < target {
            self.pool.increase(callers, periods);
        }
        if let Some(round) = &mut self.round {
            round.add(delay.min(worst), periods);
        }
        self.bursts.pass(periods);
        if backlog.waiting() == 0 {
            // There is time for it, and nobody has to wait.
            self.windows.notify_stricter_than(self.relief, self.notices);
        }
        let credits = self.pool.total();
        cx.events.push(due, || Event::Pool { credits, delay });
        // Credits that wait at callers without demand matter only where credits decide.
        self.windows.grant_drained(due, credits, GRANTS_PER_PERIOD, self.lump);
        periods
    }

    /// When enough has been seen to set the cursors.
    fn round_ends(&self) -> Option<Instant> {
        let round = self.round?;
        if self.surges() {
            return Some(round.began);
        }
        let enough = self.offered.counted() >= round::REQUESTS;
        Some(round.ends(&self.derived, enough, self.cuts()))
    }

    /// Whether a storm has begun that is not waited out. Before it is known what the service can do, it is.
    fn surges(&self) -> bool {
        self.capacity.rate() > 0.0 && self.offered.surges(self.derived.round)
    }

    /// Whether ranks are shed, and it is not credits that decide.
    fn cuts(&self) -> bool {
        self.last() < Cursor::OPEN && !self.lump
    }

    /// Step 3: sets the cursors at the end of a round.
    fn set_cursors(&mut self, cx: &mut Cx, backlog: &Backlog, due: Instant) {
        if self.round_ends().is_none_or(|ends| ends > due) {
            return;
        }
        let Some(round) = self.round.take() else { return };
        let elapsed = due.since(round.began);
        let mean_delay = round.mean_delay(elapsed, &self.derived);
        let pressure = mean_delay / self.pool.target().as_nanos_f64();
        // A caller acts on what it heard `between` ago. To set cursors anew more often than callers
        // hear of it follows noise, and has those who heard refused by those who did not.
        let heard = self.heard(elapsed);
        let callers = self.windows.speakers();
        let weight = OFFERED_GAIN * heard.max(HEARD_LEAST);
        self.offered.close(due, elapsed, callers, weight, self.sway.strict.free);
        self.messages.learn(&round);
        self.offered.set_messages(self.messages.of_a_request());
        if !round.held_back {
            self.capacity.measure(&capacity::Seen {
                elapsed,
                work: self.messages.work(&round),
                lost: self.messages.lost(&round),
                mean_cost: self.offered.mean_cost(),
                variability: self.offered.variability(),
                mean_delay,
                pressed: pressure >= self.config.engage,
                // Where credits decide, it is the pool that tries more.
                probe: self.cuts().then_some(self.config.probe),
                heard,
            });
        }
        let (before, credits_decided) = (self.last(), self.lump);
        if before == Cursor::OPEN && pressure < self.config.engage {
            (self.sway, self.lump) = (Sway::OPEN, false);
        } else {
            self.cut(self.reach());
        }
        if self.lump && !credits_decided {
            // Nobody has minded how many there are: there may be any number.
            self.pool.reset();
            self.pool.raise_to((backlog.inside() as f64 + self.resting()) as u32);
        }
        let Derived { target, drop, .. } = self.derived;
        let (pace, variability) = (self.pace(), self.offered.variability());
        if self.is_calm() {
            // A queue that is long by chance is soon short again, and who would be refused need not be.
            self.waits.set_longest(drop);
        } else {
            self.waits.learn(drop, pace, variability, self.bursts.dispersion());
        }
        self.pool.steer_for(target.min(self.waits.longest().scale(STEERED)));
        if self.last() != before {
            let Cursors { free, last } = self.sway.rest;
            cx.events.push(due, || Event::Cursors { free, last });
        }
        self.hold_and_tell(&round, due);
        if !self.offered.is_empty() || self.last() < Cursor::OPEN {
            self.round = Some(Round::starting(due));
        }
    }
}

impl Admission for Tide {
    fn name(&self) -> &'static str {
        "tide"
    }

    fn needs(&self) -> Needs {
        Needs { ages: false, ranks: true, objective: self.config.objective == Objective::Learned }
    }

    fn on_arrival(&mut self, cx: &mut Cx, backlog: &Backlog, request: &Request) -> Verdict {
        let Context { rank, lot, sheds, .. } = request.context;
        self.round.get_or_insert(Round::starting(cx.now)).arrived += 1;
        let wait = backlog.age_at_start(cx.now, request.arrived);
        let (mut caller, silence) = self.windows.hear(cx.now, request.context.caller);
        let told = caller.as_ref().and_then(|caller| caller.told(Instant::FAR));
        let rules = (&self.sway, &self.waits, &self.derived);
        let (allowed, welcome) =
            allowed_wait(rules, cx.now, backlog, request, caller.as_deref_mut());
        let in_time = wait <= allowed;
        if caller.is_some_and(|caller| caller.on_request(&request.context, in_time || welcome)) {
            self.windows.follow(cx.now, request.context.caller);
        }
        self.offered.arrive(rank, lot);
        self.bursts.arrive();
        self.on_sheds(cx.now, sheds, silence, told);
        if in_time {
            return Verdict::Admit;
        }
        let (wait, limit) = (wait.as_nanos_f64(), allowed.as_nanos_f64());
        let rejection = Rejection::new(Reason::Wait, wait, limit, Advice::Elsewhere);
        if welcome {
            return Verdict::Displace(rejection);
        }
        self.count_refusal();
        Verdict::Refuse(rejection)
    }

    fn on_dequeue(
        &mut self,
        cx: &mut Cx,
        _backlog: &Backlog,
        request: &Request,
        sojourn: Span,
    ) -> Verdict {
        // Too late to be of use: what comes behind it is not.
        let age = cx.now.since(request.arrived);
        let latest = self.waits.latest_start(request, sojourn);
        if age < latest {
            return Verdict::Admit;
        }
        let (age, limit) = (age.as_nanos_f64(), latest.as_nanos_f64());
        Verdict::Refuse(Rejection::new(Reason::Delay, age, limit, Advice::Elsewhere))
    }

    fn on_finish(
        &mut self,
        cx: &mut Cx,
        backlog: &Backlog,
        request: &Request,
        outcome: Outcome,
        cost: Cost,
    ) {
        self.windows.on_end(request.context.caller, false);
        // Work was done, whatever came of it: a service that answers with errors can do as much as before.
        if let Some(round) = &mut self.round {
            round.served = round.served.saturating_add(cost.0);
            round.held = round.held.saturating_add(request.attained.as_nanos());
        }
        // Who gave up has not told what a request costs, and who failed not how long it takes.
        if outcome != Outcome::Cancel {
            self.offered.settle(request.context.rank, cost);
        }
        self.waits.on_end(cx.now, request, outcome, backlog.running());
    }

    fn on_leave(&mut self, _cx: &mut Cx, request: &Request) {
        self.windows.on_end(request.context.caller, true);
        self.count_refusal();
    }

    fn on_report(&mut self, cx: &mut Cx, _backlog: &Backlog, context: &Context) {
        let (silence, told) = self.windows.on_report(cx.now, context);
        self.on_sheds(cx.now, context.sheds, silence, told);
        if context.sheds.count > 0 {
            self.round.get_or_insert(Round::starting(cx.now));
        }
    }

    fn on_gone(&mut self, cx: &mut Cx, caller: CallerId) {
        self.windows.on_gone(cx.now, caller);
    }

    fn settle(&mut self, cx: &mut Cx, backlog: &Backlog) {
        let period = self.derived.period;
        for _ in 0..PERIODS_AT_ONCE {
            if self.period_ends > cx.now {
                return;
            }
            let periods = self.control(cx, backlog, self.period_ends);
            let skipped = Span::from_nanos(period.as_nanos().saturating_mul(periods - 1));
            let concluded = self.period_ends + skipped;
            self.set_cursors(cx, backlog, concluded);
            self.period_ends = concluded + period;
        }
        self.period_ends = self.period_ends.max(cx.now + period);
    }

    fn next_settle(&self) -> Instant {
        self.period_ends
    }

    fn next_wakeup(&self) -> Option<Instant> {
        let waits = self.windows.has_drained() || self.windows.has_stricter_than(self.relief);
        (waits || self.last() < Cursor::OPEN).then_some(self.period_ends)
    }

    fn feedback(&mut self, cx: &mut Cx, backlog: &Backlog, caller: CallerId, out: &mut Feedback) {
        self.windows.forget_silent(cx.now, cx.now - self.config.forget);
        let share = Share {
            total: self.pool.total(),
            per_caller: self.config.per_caller,
            form: PoolForm::Paper,
            overcommit: true,
            turn: None,
        };
        if let Some(round) = &mut self.round {
            round.told += 1;
        }
        let delay = backlog.delay(cx.now, DelaySignal::Drain);
        let told = self.sway.told(delay, self.waits.longest());
        let Cursors { free, last } = told;
        let word = Word { cursor: last, alone: self.alone(told), crossing: self.derived.crossing };
        out.window = self.windows.assign(cx.now, caller, &share, word);
        out.free = Some(free);
        out.last = Some(last);
        out.holds = self.holds;
    }

    fn poll_notice(&mut self) -> Option<CallerId> {
        let caller = self.windows.poll_notice()?;
        if let Some(round) = &mut self.round {
            round.unasked += 1;
        }
        Some(caller)
    }

    fn reconfigure(&mut self, config: &AdmissionConfig) -> bool {
        let AdmissionConfig::Tide(config) = config else { return false };
        self.config = config.clone();
        // What was learned stays in force until the gate says otherwise.
        self.set_objective(match config.objective {
            Objective::Learned => self.derived.objective,
            Objective::Given(objective) => objective,
        });
        true
    }

    fn word_holds(&self) -> Span {
        self.holds
    }

    fn objective(&self) -> Option<Span> {
        Some(self.derived.objective)
    }

    fn set_objective(&mut self, objective: Span) {
        self.derived = self.config.derive(objective);
        self.waits.set_objective(objective, self.derived.drop);
        self.pool.reconfigure(&self.config.pool(self.derived.target));
    }

    fn issued(&self) -> Vec<Issued> {
        self.windows.export()
    }

    fn take_over(&mut self, cx: &mut Cx, issued: &[Issued]) {
        self.windows.import(cx.now, issued);
        self.pool.raise_to(u32::try_from(self.windows.issued()).unwrap_or(u32::MAX));
    }

    fn invariants(&self) {
        self.pool.invariants();
        self.windows.invariants();
        let Sway { rest, lax, strict } = self.sway;
        for cursors in [rest, lax, strict] {
            assert!(cursors.free <= cursors.last, "what needs no credit is let in");
        }
        assert!(strict.last <= rest.last && rest.last <= lax.last);
        self.capacity.invariants();
    }

    fn clone_box(&self) -> Box<dyn Admission> {
        Box::new(self.clone())
    }
}
