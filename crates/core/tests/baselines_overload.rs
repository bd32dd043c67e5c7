//! The baselines under a plain overload: one server of 1,000 requests a second is offered 2,000,
//! then
//! 800. Small enough to read; figures with many callers are the simulator's.

use std::collections::BTreeMap;

use tidegate_core::admission::{
    AdmissionConfig, CodelConfig, CodelForm, DagorConfig, RandomConfig, SedaConfig,
};
use tidegate_core::gate::{Action, Gate, GateConfig};
use tidegate_core::rng::Rng;
use tidegate_core::slots::SlotsConfig;
use tidegate_core::{
    CallerId, Context, Cost, Cursor, Instant, Outcome, Rank, RequestId, Sheds, Span, Workflow,
};

/// What became of the requests of one phase.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    offered: u32,
    /// Answered within the deadline.
    served: u32,
    /// The same for the most important quarter.
    top_offered: u32,
    top_served: u32,
}

impl Tally {
    fn served_share(&self) -> f64 {
        f64::from(self.served) / f64::from(self.offered)
    }

    fn top_share(&self) -> f64 {
        f64::from(self.top_served) / f64::from(self.top_offered)
    }
}

/// One server, exponential service of 1 ms, deadlines of 500 ms as in WeChat's tasks.
struct World {
    gate: Gate,
    rng: Rng,
    now: Instant,
    running: Option<(Instant, RequestId)>,
    deadlines: BTreeMap<RequestId, (Instant, Rank)>,
    /// What the caller does with the gate's cursor.
    caller: Cooperation,
    /// The cursor it heard of last, and until when it holds.
    cursor: (Cursor, Instant),
    /// What it shed since its last report.
    sheds: Sheds,
    /// Requests that it sent.
    sent: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cooperation {
    Ignore,
    Shed,
    ShedAndReport,
}

impl World {
    fn new(admission: AdmissionConfig) -> Self {
        let config =
            GateConfig { admission, slots: SlotsConfig::fixed(1), ..GateConfig::default() };
        let gate = Gate::new(&config, Instant::ZERO, 5).unwrap();
        Self {
            gate,
            rng: Rng::new(11),
            now: Instant::ZERO,
            running: None,
            deadlines: BTreeMap::new(),
            caller: Cooperation::Ignore,
            cursor: (Cursor::OPEN, Instant::ZERO),
            sheds: Sheds::NONE,
            sent: 0,
        }
    }

    /// Offers `rate` requests a second for `seconds`; tells what became of those that came after
    /// `skip` seconds.
    fn offer(&mut self, rate: f64, seconds: u64, skip: u64) -> Tally {
        let (end, counted) =
            (self.now + Span::from_secs(seconds), self.now + Span::from_secs(skip));
        let (mut tally, mut next) = (Tally::default(), self.now);
        while next < end {
            match self.running.filter(|(done, _)| *done <= next) {
                Some((done, id)) => self.finish(done, id, counted, &mut tally),
                None => {
                    self.arrive(next, counted, &mut tally);
                    next += self.exponential(1.0 / rate);
                }
            }
            self.dispatch();
        }
        tally
    }

    fn arrive(&mut self, now: Instant, counted: Instant, tally: &mut Tally) {
        self.now = now;
        let rank = Rank::new(24, self.rng.next_u64() as u16);
        let deadline = now + Span::from_millis(500);
        if now >= counted {
            tally.offered += 1;
            tally.top_offered += u32::from(is_top(rank));
        }
        if self.caller_sheds(rank) {
            return;
        }
        self.sent += 1;
        let sheds = std::mem::take(&mut self.sheds);
        // Nobody believes what nobody in particular says.
        let caller = CallerId(1);
        let context = Context { rank, deadline, sheds, caller, ..Context::default() };
        match self.gate.arrive(now, &context) {
            Ok(id) => {
                self.deadlines.insert(id, (deadline, rank));
            }
            Err(_) => self.hear(),
        }
    }

    fn caller_sheds(&mut self, rank: Rank) -> bool {
        let (cursor, until) = self.cursor;
        let sheds = self.caller != Cooperation::Ignore && self.now < until && !cursor.admits(rank);
        if sheds && self.caller == Cooperation::ShedAndReport {
            self.sheds.merge(Sheds { count: 1, sample: rank }, &mut self.rng);
        }
        sheds
    }

    /// Every answer tells the cursor, a refusal too.
    fn hear(&mut self) {
        let feedback = self.gate.feedback(self.now, CallerId(1), Workflow::NONE);
        let cursor = feedback.last.unwrap_or(Cursor::OPEN);
        self.cursor = (cursor, self.now + feedback.holds);
    }

    fn finish(&mut self, now: Instant, id: RequestId, counted: Instant, tally: &mut Tally) {
        self.now = now;
        self.running = None;
        self.gate.finish(now, id, Outcome::Serve, Cost::from(Span::from_millis(1)));
        self.hear();
        let (deadline, rank) = self.deadlines.remove(&id).unwrap();
        if now <= deadline && deadline - Span::from_millis(500) >= counted {
            tally.served += 1;
            tally.top_served += u32::from(is_top(rank));
        }
    }

    fn dispatch(&mut self) {
        self.gate.dispatch(self.now);
        while let Some(action) = self.gate.poll() {
            match action {
                Action::Start { id, .. } => {
                    self.running = Some((self.now + self.exponential(0.001), id));
                }
                Action::Refuse { id, .. } => {
                    self.deadlines.remove(&id);
                }
                Action::Notify { .. } => {}
            }
        }
    }

    fn exponential(&mut self, mean: f64) -> Span {
        Span::from_secs(1).scale(-mean * (1.0 - self.rng.unit()).ln())
    }
}

fn is_top(rank: Rank) -> bool {
    rank.user() < 1 << 14
}

/// Offers twice the capacity for two minutes, then 0.8 of it for four, and looks at the second half
/// of each: shares of all requests in overload, of the most important quarter, and of all when calm
/// again.
fn check(admission: AdmissionConfig, overload: [f64; 2], top: [f64; 2], calm: f64) {
    let mut world = World::new(admission.clone());
    let loaded = world.offer(2_000.0, 120, 60);
    let after = world.offer(800.0, 240, 120);
    let within = |share: f64, [low, high]: [f64; 2]| (low..=high).contains(&share);
    assert!(within(loaded.served_share(), overload), "{admission:?} {loaded:?}");
    assert!(within(loaded.top_share(), top), "{admission:?} {loaded:?}");
    assert!(after.served_share() >= calm, "{admission:?} {after:?}");
}

/// Half is the most that can be served. DAGOR gives it to the most important.
#[test]
fn dagor_serves_the_most_important() {
    check(AdmissionConfig::Dagor(DagorConfig::default()), [0.45, 0.51], [0.99, 1.0], 0.999);
}

/// Callers that shed by the cursor hide their demand from the gate, which then opens everything in
/// one calm window and closes again. With reports it knows, and next to nothing is sent in vain.
#[test]
fn dagor_needs_callers_that_report_what_they_shed() {
    let run = |caller| {
        let mut world = World::new(AdmissionConfig::Dagor(DagorConfig::default()));
        world.caller = caller;
        world.offer(2_000.0, 60, 0);
        world.sent = 0;
        let tally = world.offer(2_000.0, 60, 0);
        (tally.top_share(), f64::from(tally.served) / f64::from(world.sent))
    };
    let (top, useful) = run(Cooperation::ShedAndReport);
    assert!(top > 0.99 && useful > 0.99, "{top} {useful}");
    let (top, useful) = run(Cooperation::Shed);
    assert!(top < 0.9 && useful < 0.9, "the fault: {top} {useful}");
}

#[test]
fn random_serves_as_much_but_anyone() {
    check(AdmissionConfig::Random(RandomConfig::default()), [0.45, 0.51], [0.44, 0.52], 0.999);
}

#[test]
fn codel_serves_as_much_but_anyone() {
    for form in [CodelForm::Slough, CodelForm::Timeout] {
        let config = CodelConfig { form, ..CodelConfig::default() };
        check(AdmissionConfig::Codel(config), [0.48, 0.51], [0.47, 0.52], 0.99);
    }
}

/// SEDA creeps up by at most 1.8 a second for each hundred completions, and a bucket of depth one
/// loses tokens between arrivals: it protects, but it serves far less than it could.
#[test]
fn seda_is_slow_to_find_its_rate() {
    check(AdmissionConfig::Seda(SedaConfig::default()), [0.10, 0.40], [0.10, 0.40], 0.5);
}
