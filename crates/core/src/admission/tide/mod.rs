//! Tide: credits decide how much, ranks decide what.
//!
//! Breakwater holds goodput and tail but knows no importance; DAGOR knows importance but reacts
//! slowly and drops at the server. Tide is both.
//!
//! 1. **Detect**: the delay, independent of the order of service ([`Backlog`]).
//! 2. **How much**: a pool of credits follows the delay as in Breakwater §3.2; the control period is
//!    an eighth of the target delay.
//! 3. **What**: per rank the gate keeps the cost *offered*, arrivals and reported sheds alike
//!    ([`Offered`]). Once per window, while there is overload, two cursors are set: *last* so that
//!    the ranks inside offer what the service can do, *free* so that they offer `free` of it.
//! 4. Callers reject ranks beyond *last* at once, send ranks inside *free* without a credit, and
//!    hold the band between for credits. So what is important never waits for permission, what is
//!    hopeless never travels, and the credits have only the band to match supply and demand with.
//! 5. **Alone**: callers that ignore all this, or never heard of it, are refused by predicted wait.
//!    The allowed wait is long inside *last* and short beyond it: the gate conserves work, it
//!    refuses nobody while nothing waits. Where a wait is too long, a more important arrival pushes
//!    out the least important that waits.
//! 6. **Back**: what a caller was told holds for a bounded time, then it asks again; callers that
//!    were told a stricter cursor and are silent hear of a relaxed one unasked.
//!
//! What the service can do is measured: the cost it finishes per time while there is pressure. When
//! ranks are shed without pressure, a little more is tried. Nothing is shed while the delay says
//! there is no overload.

mod offered;

use serde::{Deserialize, Serialize};

use super::{Admission, AdmissionConfig, Issued, Needs};
use crate::config::Problems;
use crate::context::{CallerId, Context};
use crate::credit::{Pool, PoolConfig, PoolForm, Share, Windows};
use crate::event::Event;
use crate::feedback::Feedback;
use crate::meter::Cost;
use crate::rank::{Cursor, Rank};
use crate::request::{Cx, Request};
use crate::signal::{Backlog, DelaySignal};
use crate::time::{Instant, Span};
use crate::verdict::{Advice, Outcome, Reason, Rejection, Verdict};
use offered::Offered;

/// The policy.
#[derive(Clone, Debug)]
pub struct Tide {
    config: TideConfig,
    derived: Derived,
    pool: Pool,
    windows: Windows,
    offered: Offered,
    /// Ranks that need no credit.
    free: Cursor,
    /// Ranks let in at all. Open: there is no overload.
    last: Cursor,
    /// When the present control period ends.
    period_ends: Instant,
    window: Window,
    /// Cost per nanosecond the service was seen to finish under pressure; zero while unknown.
    capacity: f64,
    /// How long what we tell holds.
    holds: Span,
}

/// What has been seen since the cursors were last set.
#[derive(Clone, Copy, Debug)]
struct Window {
    began: Instant,
    /// Requests that arrived.
    arrived: u32,
    /// Requests and cost that finished.
    finished: u32,
    served: u64,
    /// Sum of the delay, as a share of the target, over control periods, and how many there were.
    pressure: f64,
    periods: u64,
}

/// Times that follow from the objective.
#[derive(Clone, Copy, Debug)]
struct Derived {
    target: Span,
    drop: Span,
    period: Span,
    /// Shortest time between two settings of the cursors.
    window: Span,
}

/// Requests offered before the cursors are set again, so that a window is more than noise…
const WINDOW_REQUESTS: f32 = 128.0;
/// …unless it has lasted for this many of the shortest windows.
const WINDOW_PATIENCE: u64 = 16;
/// Weight of a new window in the measured capacity: windows of a few hundred requests with
/// exponential costs are off by some 5 %, and the mean of ten of them by 2 %.
const CAPACITY_GAIN: f64 = 0.2;
/// Control periods concluded one by one after a long absence; see `breakwater`.
const PERIODS_AT_ONCE: usize = 512;
/// Unsolicited grants per control period.
const GRANTS_PER_PERIOD: usize = 64;

impl Tide {
    /// A gate that nobody has called yet.
    pub fn new(config: &TideConfig, now: Instant) -> Self {
        let derived = config.derive();
        Self {
            config: config.clone(),
            derived,
            pool: Pool::new(&config.pool()),
            windows: Windows::new(),
            offered: Offered::new(),
            free: Cursor::OPEN,
            last: Cursor::OPEN,
            period_ends: now + derived.period,
            window: Window::starting(now),
            capacity: 0.0,
            holds: derived.window,
        }
    }

    /// Ranks that need no credit, and ranks let in at all.
    pub fn cursors(&self) -> (Cursor, Cursor) {
        (self.free, self.last)
    }

    /// Credits there are, and credits given out.
    pub fn credits(&self) -> (u32, u64) {
        (self.pool.total(), self.windows.issued())
    }

    /// Step 5: the longest predicted wait at which `rank` is let in.
    fn allowed_wait(&self, rank: Rank) -> Span {
        let Derived { target, drop, .. } = self.derived;
        if self.last.admits(rank) { drop } else { target.scale(self.config.beyond) }
    }

    /// Concludes one control period that ended at `due`, or many alike. Returns how many.
    fn control(&mut self, cx: &mut Cx<'_>, backlog: &Backlog, due: Instant) -> u64 {
        let Derived { target, period, .. } = self.derived;
        let callers = self.windows.callers();
        let delay = backlog.delay(due, DelaySignal::Drain);
        let mut periods = 1;
        if delay < target {
            if backlog.waiting() == 0 {
                periods += cx.now.since(due).as_nanos() / period.as_nanos();
            }
            self.pool.increase(callers, periods);
        } else {
            self.pool.decrease(callers, delay);
        }
        let pressure = delay.as_nanos() as f64 / target.as_nanos() as f64;
        self.window.pressure += pressure.min(4.0) * periods as f64;
        self.window.periods += periods;
        let credits = self.pool.total();
        cx.events.push(due, || Event::Pool { credits, delay });
        self.windows.grant_drained(due, credits, GRANTS_PER_PERIOD, false);
        periods
    }

    /// Step 3: sets the cursors when enough has been seen.
    fn set_cursors(&mut self, cx: &mut Cx<'_>) {
        let elapsed = cx.now.since(self.window.began);
        let patience = Span::from_nanos(self.derived.window.as_nanos() * WINDOW_PATIENCE);
        if elapsed < self.derived.window
            || (self.offered.counted() < WINDOW_REQUESTS && elapsed < patience)
        {
            return;
        }
        let window = std::mem::replace(&mut self.window, Window::starting(cx.now));
        let pressure = window.pressure / window.periods.max(1) as f64;
        self.offered.close(elapsed);
        self.measure_capacity(&window, elapsed, pressure);
        let before = self.last;
        if self.last == Cursor::OPEN && pressure < self.config.engage {
            self.free = Cursor::OPEN;
        } else {
            self.last = self.offered.cut(self.capacity);
            self.free = match self.last {
                Cursor::OPEN => Cursor::OPEN,
                last => self.offered.cut(self.capacity * self.config.free).min(last),
            };
        }
        if self.last != before {
            let (free, last) = (self.free, self.last);
            cx.events.push(cx.now, || Event::Cursors { free, last });
        }
        self.hold_and_tell(&window, elapsed);
    }

    /// What the service can do: what it did under pressure. Without pressure what it did is a lower
    /// bound; while ranks are shed all the same, more is tried.
    fn measure_capacity(&mut self, window: &Window, elapsed: Span, pressure: f64) {
        let served = window.served as f64 / elapsed.as_nanos().max(1) as f64;
        if served > self.capacity {
            self.capacity = served;
        } else if pressure >= self.config.engage {
            self.capacity += CAPACITY_GAIN * (served - self.capacity);
        } else if self.last < Cursor::OPEN {
            self.capacity *= 1.0 + self.config.probe;
        }
    }

    /// Step 6: how long our word holds, and who must hear of a relaxed cursor.
    fn hold_and_tell(&mut self, window: &Window, elapsed: Span) {
        // A caller is heard of every `callers ÷ arrivals`; our word should outlast a few of those.
        let callers = self.windows.callers() as f64;
        let between = elapsed.scale(callers / f64::from(window.arrived.max(1)));
        self.holds = between.scale(self.config.holds).max(self.derived.window);
        let bound = Cursor::first((f64::from(self.last.ranks()) * 0.9) as u32);
        let limit = 8 + window.finished as usize / 8;
        self.windows.notify_stricter_than(bound, limit);
    }
}

impl Window {
    fn starting(now: Instant) -> Self {
        Self { began: now, arrived: 0, finished: 0, served: 0, pressure: 0.0, periods: 0 }
    }
}

impl Admission for Tide {
    fn name(&self) -> &'static str {
        "tide"
    }

    fn needs(&self) -> Needs {
        Needs { ages: false, ranks: true }
    }

    fn on_arrival(&mut self, cx: &mut Cx<'_>, backlog: &Backlog, request: &Request) -> Verdict {
        let Context { caller, demand, rank, sheds, .. } = request.context;
        self.offered.add(rank, 1);
        if sheds.count > 0 {
            self.offered.add(sheds.sample, sheds.count);
        }
        self.window.arrived += 1;
        self.windows.on_request(cx.now, caller, demand);
        let wait = backlog.predicted_wait() + cx.now.since(request.arrived);
        let allowed = self.allowed_wait(rank);
        if wait <= allowed {
            return Verdict::Admit;
        }
        let rejection = Rejection::new(
            Reason::Wait,
            wait.as_nanos() as f64,
            allowed.as_nanos() as f64,
            Advice::Elsewhere,
        );
        if self.last.admits(rank) {
            return Verdict::Displace(rejection);
        }
        self.windows.on_end(caller, true);
        Verdict::Refuse(rejection)
    }

    fn on_dequeue(
        &mut self,
        cx: &mut Cx<'_>,
        _backlog: &Backlog,
        request: &Request,
        _sojourn: Span,
    ) -> Verdict {
        // Too late to be of use: what comes behind it is not.
        let age = cx.now.since(request.arrived);
        if age < self.config.objective {
            return Verdict::Admit;
        }
        let (age, limit) = (age.as_nanos() as f64, self.config.objective.as_nanos() as f64);
        Verdict::Refuse(Rejection::new(Reason::Delay, age, limit, Advice::Elsewhere))
    }

    fn on_finish(
        &mut self,
        _cx: &mut Cx<'_>,
        _backlog: &Backlog,
        request: &Request,
        outcome: Outcome,
        cost: Cost,
    ) {
        self.windows.on_end(request.context.caller, false);
        if outcome == Outcome::Serve {
            self.offered.settle(request.context.rank, cost);
            self.window.served = self.window.served.saturating_add(cost.0);
            self.window.finished += 1;
        }
    }

    fn on_leave(&mut self, _cx: &mut Cx<'_>, request: &Request) {
        self.windows.on_end(request.context.caller, true);
    }

    fn on_report(&mut self, cx: &mut Cx<'_>, _backlog: &Backlog, context: &Context) {
        self.windows.on_report(cx.now, context.caller, context.demand);
        if context.sheds.count > 0 {
            self.offered.add(context.sheds.sample, context.sheds.count);
        }
    }

    fn on_gone(&mut self, cx: &mut Cx<'_>, caller: CallerId) {
        self.windows.on_gone(cx.now, caller);
    }

    fn settle(&mut self, cx: &mut Cx<'_>, backlog: &Backlog) {
        if self.period_ends > cx.now {
            return;
        }
        for _ in 0..PERIODS_AT_ONCE {
            if self.period_ends > cx.now {
                break;
            }
            let periods = self.control(cx, backlog, self.period_ends);
            self.period_ends +=
                Span::from_nanos(self.derived.period.as_nanos().saturating_mul(periods));
        }
        if self.period_ends <= cx.now {
            self.period_ends = cx.now + self.derived.period;
        }
        self.set_cursors(cx);
    }

    fn next_wakeup(&self) -> Option<Instant> {
        (self.windows.has_drained() || self.last < Cursor::OPEN).then_some(self.period_ends)
    }

    fn feedback(
        &mut self,
        cx: &mut Cx<'_>,
        _backlog: &Backlog,
        caller: CallerId,
        out: &mut Feedback,
    ) {
        self.windows.forget_silent(cx.now, cx.now - self.config.forget);
        let share = Share {
            total: self.pool.total(),
            per_caller: self.config.per_caller,
            form: PoolForm::Paper,
            overcommit: true,
            turn: None,
        };
        out.window = self.windows.assign(cx.now, caller, &share);
        self.windows.tell_cursor(caller, self.last);
        out.free = Some(self.free);
        out.last = Some(self.last);
        out.holds = self.holds;
    }

    fn poll_notice(&mut self) -> Option<CallerId> {
        self.windows.poll_notice()
    }

    fn reconfigure(&mut self, config: &AdmissionConfig) -> bool {
        let AdmissionConfig::Tide(config) = config else { return false };
        self.pool.reconfigure(&config.pool());
        self.derived = config.derive();
        self.config = config.clone();
        true
    }

    fn issued(&self) -> Vec<Issued> {
        self.windows.export()
    }

    fn take_over(&mut self, cx: &mut Cx<'_>, issued: &[Issued]) {
        self.windows.import(cx.now, issued);
        self.pool.raise_to(u32::try_from(self.windows.issued()).unwrap_or(u32::MAX));
    }

    fn invariants(&self) {
        self.pool.invariants();
        self.windows.invariants();
        assert!(self.free <= self.last, "what needs no credit is let in");
        assert!(self.capacity >= 0.0 && self.capacity.is_finite());
    }

    fn clone_box(&self) -> Box<dyn Admission> {
        Box::new(self.clone())
    }
}

/// Parameters of [`Tide`]. Only the objective differs from service to service.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TideConfig {
    /// The latency objective: an answer later than this is worth nothing. Default 50 ms.
    pub objective: Span,
    /// Delay to steer for, as a share of the objective. Default 0.4 (Breakwater §5.1).
    pub target: f64,
    /// Predicted wait from which on ranks inside the last cursor are refused, or push out others,
    /// as a share of the objective. More lets bursts through to the edge of the objective. Default
    /// 0.8 (Breakwater §3.4).
    pub drop: f64,
    /// Predicted wait up to which ranks beyond the last cursor are let in, in targets. 0 would leave
    /// the service idle when the cursor is too strict. Default 0.25, by simulation.
    pub beyond: f64,
    /// Part of the capacity whose ranks are free, 0 to 1. Less gives more control to credits, which
    /// suits a few busy callers; more suits many quiet ones, whose credits are old when they are
    /// used. Default 0.95, by simulation: within 0.3 % of the best for 10 to 10,000 callers.
    pub free: f64,
    /// Mean delay over a window from which on there is overload, in targets. Less sheds in calm
    /// weather, more lets the queue stand longer. Default 0.5.
    pub engage: f64,
    /// How much more is tried per window when ranks are shed but there is no pressure. Default
    /// 0.01, by simulation; three times as much doubles what the server itself must refuse.
    pub probe: f64,
    /// How long our word holds, in mean times between a caller's messages. Less asks again more
    /// often, more is slower to forget. Default 8: one gap in three thousand is longer.
    pub holds: f64,
    /// Credits added per period and caller below target. Default 0.001 (Breakwater §5.1).
    pub additive: f64,
    /// Share of credits removed per period at twice the target. Default 0.02 (Breakwater §5.1).
    pub multiplicative: f64,
    /// Fewest credits there ever are. Default 10.
    pub floor: u32,
    /// Most credits one caller ever has. Default 63.
    pub per_caller: u32,
    /// A caller silent for this long loses its credits. Default 10 s.
    pub forget: Span,
}

impl Default for TideConfig {
    fn default() -> Self {
        Self {
            objective: Span::from_millis(50),
            target: 0.4,
            drop: 0.8,
            beyond: 0.25,
            free: 0.95,
            engage: 0.5,
            probe: 0.01,
            holds: 8.0,
            additive: 0.001,
            multiplicative: 0.02,
            floor: 10,
            per_caller: 63,
            forget: Span::from_secs(10),
        }
    }
}

impl TideConfig {
    fn derive(&self) -> Derived {
        let target = self.objective.scale(self.target);
        let period = target.scale(1.0 / 8.0).max(Span::from_nanos(1));
        let window = Span::from_nanos(period.as_nanos().saturating_mul(50));
        Derived { target, drop: self.objective.scale(self.drop), period, window }
    }

    fn pool(&self) -> PoolConfig {
        PoolConfig {
            form: PoolForm::Paper,
            target: self.derive().target,
            additive: self.additive,
            multiplicative: self.multiplicative,
            floor: self.floor,
            per_caller: self.per_caller,
        }
    }

    /// Notes everything that is wrong with the parameters.
    pub fn validate(&self, problems: &mut Problems) {
        let shortest = Span::from_micros(1);
        problems.check("objective", self.objective, self.objective >= shortest, "at least 1us");
        problems.range("target", self.target, 0.01, 1.0);
        problems.check("drop", self.drop, (self.target..=1.0).contains(&self.drop), "target to 1");
        problems.range("beyond", self.beyond, 0.0, 100.0);
        problems.range("free", self.free, 0.0, 1.0);
        problems.range("engage", self.engage, 0.01, 4.0);
        problems.range("probe", self.probe, 0.0, 1.0);
        problems.range("holds", self.holds, 0.0, 1e6);
        problems.range("additive", self.additive, 1e-9, 1e3);
        problems.range("multiplicative", self.multiplicative, 1e-9, 1.0);
        problems.check("floor", self.floor, (1..=1 << 20).contains(&self.floor), "1 to 1048576");
        problems.check(
            "per_caller",
            self.per_caller,
            (1..=1 << 16).contains(&self.per_caller),
            "1 to 65536",
        );
        problems.check("forget", self.forget, self.forget > Span::ZERO, "more than 0");
    }
}
