//! Breakwater: server-driven credits (Cho et al., OSDI 2020).
//!
//! A caller may have as many requests outstanding as the server gave it credits, so the server
//! decides how much load it receives, and the work of shedding is left to the callers.
//!
//! 1. **Detect** (§3.1): the queueing delay, by default the age of the oldest waiting request.
//! 2. **How many** (§3.2, eq. 1–3): a pool of credits, once per period up additively or down
//!    multiplicatively as the delay is below or above target: [`Pool`].
//! 3. **To whom** (§3.2.2, §4): lazily with the responses, by demand and overcommitment; drained callers
//!    by unsolicited messages: [`Windows`].
//! 4. **Active queue management** (§3.2.3): overcommitment lets bursts through, so arrivals are
//!    refused while the delay is at or above a threshold of twice the target.
//!
//! Paper and code differ in some twenty places. `form` chooses between them where it matters: the
//! step up, the least step down, and whether a caller may be drained without a refusal.
//! We deviate from both in this: a request never goes unanswered for want of a place (the code
//! drops silently when a session's 64 places are taken), drained callers with known demand come
//! first (as in the authors' later code), and callers that fall silent lose their credits.

use serde::{Deserialize, Serialize};

use super::{Admission, AdmissionConfig, Issued, Needs};
use crate::config::Problems;
use crate::context::{CallerId, Context};
use crate::credit::{Pool, PoolConfig, PoolForm, Share, Windows, Word};
use crate::event::Event;
use crate::feedback::Feedback;
use crate::meter::Cost;
use crate::request::{Cx, Request};
use crate::signal::{Backlog, DelaySignal};
use crate::time::{Instant, Span};
use crate::verdict::{Advice, Outcome, Reason, Rejection, Verdict};

/// A server that gives its callers credits: each may have as many requests outstanding as it was
/// given, and the delay decides how many there are.
#[derive(Clone, Debug)]
pub struct Breakwater {
    config: BreakwaterConfig,
    pool: Pool,
    windows: Windows,
    /// When the present control period ends.
    period_ends: Instant,
}

/// Control periods concluded one by one after a long absence. By then a pool under steady pressure
/// is at its floor: from the target up it is halved at the latest every period after 26 targets.
const PERIODS_AT_ONCE: usize = 512;
/// Unsolicited grants per control period; more would make the gate a sender of messages.
const GRANTS_PER_PERIOD: usize = 64;

impl Breakwater {
    /// A server that nobody has called yet.
    pub fn new(config: &BreakwaterConfig, now: Instant) -> Self {
        Self {
            config: config.clone(),
            pool: Pool::new(&config.pool()),
            windows: Windows::new(),
            period_ends: now + config.period,
        }
    }

    /// Credits there are, and credits given out.
    pub fn credits(&self) -> (u32, u64) {
        (self.pool.total(), self.windows.issued())
    }

    fn share(&self) -> Share {
        Share {
            total: self.pool.total(),
            per_caller: self.config.per_caller,
            form: self.config.form,
            overcommit: self.config.demand == Demand::Speculate,
            turn: (self.config.turn > Span::ZERO).then_some(self.config.turn),
        }
    }

    /// Concludes one control period that ended at `due`, or many alike. Returns how many.
    fn control(&mut self, cx: &mut Cx, backlog: &Backlog, due: Instant) -> u64 {
        let callers = self.windows.callers();
        let delay = backlog.delay(due, self.config.delay);
        let mut periods = 1;
        if delay < self.config.target {
            // An empty queue stays empty until something arrives: all missed periods are alike.
            if backlog.waiting() == 0 {
                periods += cx.now.since(due).as_nanos() / self.config.period.as_nanos();
            }
            self.pool.increase(callers, periods);
        } else {
            self.pool.decrease(callers, delay);
        }
        let credits = self.pool.total();
        cx.events.push(due, || Event::Pool { credits, delay });
        // Who tells every change of its demand need not be asked by a credit.
        let guess = self.config.demand == Demand::Speculate;
        self.windows.grant_drained(due, credits, GRANTS_PER_PERIOD, guess);
        periods
    }
}

impl Admission for Breakwater {
    fn name(&self) -> &'static str {
        "breakwater"
    }

    fn needs(&self) -> Needs {
        Needs { ages: self.config.delay == DelaySignal::Oldest, ..Needs::default() }
    }

    fn on_arrival(&mut self, cx: &mut Cx, backlog: &Backlog, request: &Request) -> Verdict {
        let delay = backlog.delay(cx.now, self.config.delay);
        let in_time = delay < self.config.drop;
        let caller = self.windows.hear(cx.now, request.context.caller).0;
        if caller.is_some_and(|caller| caller.on_request(&request.context, in_time)) {
            self.windows.follow(cx.now, request.context.caller);
        }
        if in_time {
            return Verdict::Admit;
        }
        let (delay, limit) = (delay.as_nanos_f64(), self.config.drop.as_nanos_f64());
        Verdict::Refuse(Rejection::new(Reason::Delay, delay, limit, Advice::Elsewhere))
    }

    fn on_finish(
        &mut self,
        _cx: &mut Cx,
        _backlog: &Backlog,
        request: &Request,
        _outcome: Outcome,
        _cost: Cost,
    ) {
        self.windows.on_end(request.context.caller, false);
    }

    fn on_leave(&mut self, _cx: &mut Cx, request: &Request) {
        self.windows.on_end(request.context.caller, false);
    }

    fn on_report(&mut self, cx: &mut Cx, _backlog: &Backlog, context: &Context) {
        self.windows.on_report(cx.now, context);
    }

    fn on_gone(&mut self, cx: &mut Cx, caller: CallerId) {
        self.windows.on_gone(cx.now, caller);
    }

    fn settle(&mut self, cx: &mut Cx, backlog: &Backlog) {
        for _ in 0..PERIODS_AT_ONCE {
            if self.period_ends > cx.now {
                return;
            }
            let periods = self.control(cx, backlog, self.period_ends);
            self.period_ends +=
                Span::from_nanos(self.config.period.as_nanos().saturating_mul(periods));
        }
        if self.period_ends <= cx.now {
            self.period_ends = cx.now + self.config.period;
        }
    }

    fn next_settle(&self) -> Instant {
        self.period_ends
    }

    fn next_wakeup(&self) -> Option<Instant> {
        // Between messages nobody can see the pool, except callers that wait for a grant.
        self.windows.has_drained().then_some(self.period_ends)
    }

    fn feedback(&mut self, cx: &mut Cx, _backlog: &Backlog, caller: CallerId, out: &mut Feedback) {
        self.windows.forget_silent(cx.now, cx.now - self.config.forget);
        if self.windows.callers() == 0 {
            self.pool.reset();
        }
        let share = self.share();
        let window = self.windows.assign(cx.now, caller, &share, Word::OPEN);
        if let Some(credits) = window {
            cx.events.push(cx.now, || Event::Window { caller, credits });
        }
        out.window = window;
        out.holds = self.config.forget;
    }

    fn poll_notice(&mut self) -> Option<CallerId> {
        self.windows.poll_notice()
    }

    fn reconfigure(&mut self, config: &AdmissionConfig) -> bool {
        let AdmissionConfig::Breakwater(config) = config else { return false };
        self.pool.reconfigure(&config.pool());
        self.config = config.clone();
        true
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
    }

    fn clone_box(&self) -> Box<dyn Admission> {
        Box::new(self.clone())
    }
}

/// How the server knows what callers want.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Demand {
    /// It guesses, by overcommitment (§3.2.2).
    #[default]
    Speculate,
    /// Callers tell it with messages of their own; twice the messages (§5.2, Figure 8).
    Synchronise,
}

/// Parameters of [`Breakwater`]. Defaults are those of its testbed: a service of 10 µs, a round trip
/// of 10 µs and an objective of 200 µs (§5.1).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct BreakwaterConfig {
    /// Paper or code, where they differ. Default paper.
    pub form: PoolForm,
    /// Queueing delay to steer for. Less is a shorter tail and less goodput. Default 80 µs, 40 % of
    /// the objective (§5.1).
    pub target: Span,
    /// Delay from which on arrivals are refused. Default 160 µs, twice the target (§5.1).
    pub drop: Span,
    /// Control period, about a round trip. Default 10 µs (§3.2).
    pub period: Span,
    /// Credits added per period and caller below target. More follows demand faster and overshoots
    /// further. Default 0.001 (§5.1).
    pub additive: f64,
    /// Share of credits removed per period at twice the target. Default 0.02 (§5.1).
    pub multiplicative: f64,
    /// Fewest credits there ever are; the code has the number of cores. Default 10.
    pub floor: u32,
    /// Most credits one caller ever has. Default 63 (code: 64 places per session).
    pub per_caller: u32,
    /// How the server knows what callers want. Default speculate.
    pub demand: Demand,
    /// Which delay. Default oldest, as published; `drain` for orders other than fifo.
    pub delay: DelaySignal,
    /// Callers that held credits for this long make room for hungry ones; 0 s: never. Less is fairer
    /// and sends more unsolicited grants. Default 0 s, as published.
    pub turn: Span,
    /// A caller silent for this long loses its credits. Default 10 s, judgement.
    pub forget: Span,
}

impl Default for BreakwaterConfig {
    fn default() -> Self {
        Self {
            form: PoolForm::Paper,
            target: Span::from_micros(80),
            drop: Span::from_micros(160),
            period: Span::from_micros(10),
            additive: 0.001,
            multiplicative: 0.02,
            floor: 10,
            per_caller: 63,
            demand: Demand::Speculate,
            delay: DelaySignal::Oldest,
            turn: Span::ZERO,
            forget: Span::from_secs(10),
        }
    }
}

impl BreakwaterConfig {
    fn pool(&self) -> PoolConfig {
        PoolConfig {
            form: self.form,
            target: self.target,
            additive: self.additive,
            multiplicative: self.multiplicative,
            floor: self.floor,
            per_caller: self.per_caller,
        }
    }

    /// Notes everything that is wrong with the parameters.
    pub fn validate(&self, problems: &mut Problems) {
        self.pool().validate(problems);
        problems.check("drop", self.drop, self.drop >= self.target, "at least target");
        problems.check("period", self.period, self.period > Span::ZERO, "more than 0");
        problems.check("forget", self.forget, self.forget >= self.period, "at least period");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gate::{Action, Gate, GateConfig};
    use crate::slots::SlotsConfig;

    fn gate(config: BreakwaterConfig) -> Gate {
        let config = GateConfig {
            admission: AdmissionConfig::Breakwater(config),
            slots: SlotsConfig::fixed(1),
            ..GateConfig::default()
        };
        Gate::new(&config, Instant::ZERO, 1).unwrap()
    }

    fn micros(n: u64) -> Instant {
        Instant::ZERO + Span::from_micros(n)
    }

    fn from(caller: u64, demand: u32) -> Context {
        Context { caller: CallerId(caller), demand, ..Context::default() }
    }

    #[test]
    fn arrivals_are_refused_from_twice_the_target_on() {
        let mut gate = gate(BreakwaterConfig::default());
        let running = gate.arrive(micros(0), &from(1, 0)).unwrap();
        gate.dispatch(micros(0));
        assert!(matches!(gate.poll(), Some(Action::Start { id, .. }) if id == running));
        gate.arrive(micros(0), &from(1, 0)).unwrap();
        assert!(gate.arrive(micros(159), &from(2, 0)).is_ok());
        let rejection = gate.arrive(micros(160), &from(2, 0)).unwrap_err();
        assert_eq!((rejection.reason, rejection.limit), (Reason::Delay, 160_000.0));
        gate.invariants();
        // A refusal returns its credit and carries a window all the same.
        let feedback = gate.feedback(micros(160), CallerId(2), Default::default());
        assert!(feedback.window.is_some());
        gate.invariants();
    }

    #[test]
    fn who_tells_its_demand_is_granted_nothing_it_did_not_ask_for() {
        let notified = |demand, can| {
            let mut gate = gate(BreakwaterConfig { demand, ..BreakwaterConfig::default() });
            gate.set_notifies(can);
            // Caller 1 comes and goes, wants nothing more, and is told so; the queue stays empty.
            let id = gate.arrive(micros(0), &from(1, 0)).unwrap();
            gate.dispatch(micros(0));
            while gate.poll().is_some() {}
            gate.finish(micros(1), id, Outcome::Serve, Cost(1_000));
            gate.on_report(micros(1), &from(1, 0));
            gate.dispatch(micros(50));
            let mut actions = std::iter::from_fn(|| gate.poll());
            actions.any(|action| matches!(action, Action::Notify { .. }))
        };
        assert!(notified(Demand::Speculate, true), "it may have got new demand meanwhile");
        assert!(!notified(Demand::Synchronise, true), "it would have said so");
        assert!(!notified(Demand::Speculate, false), "nobody can tell it");
    }

    #[test]
    fn waking_late_gives_the_same_pool_as_waking_exactly() {
        let run = |wakeups: &[u64]| {
            let mut gate = gate(BreakwaterConfig::default());
            gate.arrive(micros(0), &from(1, 3)).unwrap();
            for at in wakeups {
                gate.dispatch(micros(*at));
            }
            let feedback = gate.feedback(micros(5_000), CallerId(1), Default::default());
            gate.invariants();
            feedback.window
        };
        let exactly: Vec<u64> = (0..500).map(|period| period * 10).collect();
        assert_eq!(run(&exactly), run(&[0]));
    }

    #[test]
    fn a_million_missed_periods_cost_one_step() {
        let mut gate = gate(BreakwaterConfig::default());
        gate.arrive(micros(0), &from(1, 500)).unwrap();
        gate.dispatch(micros(0));
        while gate.poll().is_some() {}
        gate.events().keep(true);
        gate.dispatch(micros(10_000_000));
        assert_eq!(gate.events().drain().count(), 1);
        let window = gate.feedback(micros(10_000_000), CallerId(1), Default::default()).window;
        assert_eq!(window, Some(63), "the pool has grown to its ceiling");
    }

    #[test]
    fn all_problems_are_found_at_once() {
        let zero = Span::ZERO;
        let config = BreakwaterConfig {
            target: zero,
            period: zero,
            additive: f64::NAN,
            multiplicative: -1.0,
            floor: 0,
            per_caller: 0,
            ..BreakwaterConfig::default()
        };
        let config =
            GateConfig { admission: AdmissionConfig::Breakwater(config), ..GateConfig::default() };
        let error = config.check().unwrap_err();
        let fields: Vec<_> =
            error.problems().iter().map(|problem| problem.field.as_str()).collect();
        let all = ["target", "additive", "multiplicative", "floor", "per_caller", "period"];
        assert_eq!(fields, all.map(|field| format!("admission.{field}")));
    }
}
