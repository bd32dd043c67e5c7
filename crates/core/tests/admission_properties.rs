//! Properties that every admission policy must have inside a gate, whatever is done to it.
//!
//! A new policy is one line in [`configs`].

use std::collections::VecDeque;

use proptest::prelude::*;
use tidegate_core::admission::{
    AdmissionConfig, BreakwaterConfig, ChainConfig, CodelConfig, CodelForm, DagorConfig,
    DetectorConfig, LoadSignal, RandomConfig, SedaConfig, TideConfig, UtilizationConfig,
};
use tidegate_core::credit::PoolForm;
use tidegate_core::gate::{Action, Gate, GateConfig};
use tidegate_core::signal::DelaySignal;
use tidegate_core::slots::SlotsConfig;
use tidegate_core::{
    CallerId, Context, Cost, Instant, Outcome, Progress, Rank, Reason, Rejection, RequestId, Sheds,
    Span, Workflow,
};

/// Every policy, in every form, as shipped and with parameters that make it act within a short run.
fn configs() -> Vec<AdmissionConfig> {
    let detector = |signal| DetectorConfig {
        signal,
        window: Span::from_millis(1),
        requests: 20,
        threshold: Span::from_micros(300),
    };
    let dagor = |signal| DagorConfig { detector: detector(signal), ..DagorConfig::default() };
    let baseline = DagorConfig::breakwater_baseline();
    let seda = |per_criticality| SedaConfig {
        target: Span::from_micros(500),
        samples: 5,
        period: Span::from_millis(2),
        per_criticality,
        start_rate: 5_000.0,
        ..SedaConfig::default()
    };
    let codel = |form| CodelConfig {
        form,
        interval: Span::from_millis(2),
        target: Span::from_micros(300),
        ..CodelConfig::default()
    };
    let quick = |policies: Vec<AdmissionConfig>| AdmissionConfig::Chain(ChainConfig { policies });
    vec![
        AdmissionConfig::Open,
        AdmissionConfig::Breakwater(BreakwaterConfig::default()),
        AdmissionConfig::Breakwater(BreakwaterConfig {
            form: PoolForm::Code,
            floor: 1,
            turn: Span::from_micros(50),
            delay: DelaySignal::Drain,
            ..BreakwaterConfig::default()
        }),
        AdmissionConfig::Tide(TideConfig::default()),
        AdmissionConfig::Tide(TideConfig {
            objective: Span::from_micros(700).into(),
            floor: 1,
            ..TideConfig::default()
        }),
        AdmissionConfig::Dagor(DagorConfig::default()),
        AdmissionConfig::Dagor(dagor(LoadSignal::Queueing)),
        AdmissionConfig::Dagor(dagor(LoadSignal::Response)),
        AdmissionConfig::Dagor(dagor(LoadSignal::Sampled)),
        AdmissionConfig::Dagor(baseline),
        AdmissionConfig::Dagor(DagorConfig {
            detector: detector(LoadSignal::Sampled),
            alpha: 0.3,
            ..baseline
        }),
        AdmissionConfig::Random(RandomConfig::default()),
        AdmissionConfig::Random(RandomConfig {
            alpha: 0.5,
            beta: 0.1,
            detector: detector(LoadSignal::Queueing),
        }),
        AdmissionConfig::Codel(CodelConfig::default()),
        AdmissionConfig::Codel(codel(CodelForm::Slough)),
        AdmissionConfig::Codel(codel(CodelForm::Timeout)),
        AdmissionConfig::Seda(SedaConfig::default()),
        AdmissionConfig::Seda(seda(false)),
        AdmissionConfig::Seda(seda(true)),
        AdmissionConfig::Utilization(UtilizationConfig::default()),
        quick(vec![
            AdmissionConfig::Utilization(UtilizationConfig::default()),
            AdmissionConfig::Dagor(dagor(LoadSignal::Queueing)),
            AdmissionConfig::Codel(codel(CodelForm::Slough)),
        ]),
    ]
}

/// One thing that can happen to a gate.
#[derive(Clone, Debug)]
enum Op {
    Arrive { rank: Rank, caller: u8, sheds: u32, deadline: Option<u32> },
    Finish { which: usize, outcome: Outcome, micros: u32 },
    Cancel(usize),
    Pause(usize),
    Resume(usize),
    Utilize(f64),
    StageDelay(u32),
    Gone(u8),
    Tell(u8),
    Reconfigure(usize),
    Pass(Span),
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let rank = (0..64u8, any::<u16>()).prop_map(|(business, user)| Rank::new(business, user));
    let outcome = prop_oneof![Just(Outcome::Serve), Just(Outcome::Fail), Just(Outcome::Cancel)];
    let arrive = (rank, 0..4u8, 0..3u32, prop::option::weighted(0.1, 0..2_000u32))
        .prop_map(|(rank, caller, sheds, deadline)| Op::Arrive { rank, caller, sheds, deadline });
    let op = prop_oneof![
        30 => arrive,
        15 => (0..8usize, outcome, 0..2_000u32)
            .prop_map(|(which, outcome, micros)| Op::Finish { which, outcome, micros }),
        2 => (0..64usize).prop_map(Op::Cancel),
        2 => (0..64usize).prop_map(Op::Pause),
        2 => (0..64usize).prop_map(Op::Resume),
        2 => (0.0..1.5f64).prop_map(Op::Utilize),
        1 => (0..1_000u32).prop_map(Op::StageDelay),
        1 => (0..4u8).prop_map(Op::Gone),
        4 => (0..4u8).prop_map(Op::Tell),
        20 => (0..1_000u64).prop_map(|micros| Op::Pass(Span::from_micros(micros))),
        2 => (0..50u64).prop_map(|millis| Op::Pass(Span::from_millis(millis))),
    ];
    prop::collection::vec(op, 1..250)
}

/// The same with changes of policy and with leaps through time.
fn rough_ops() -> impl Strategy<Value = Vec<Op>> {
    let rough = prop_oneof![
        2 => (0..64usize).prop_map(Op::Reconfigure),
        2 => (0..100_000u64).prop_map(|secs| Op::Pass(Span::from_secs(secs))),
        1 => Just(Op::Pass(Span::MAX)),
    ];
    (ops(), prop::collection::vec((any::<prop::sample::Index>(), rough), 0..12)).prop_map(
        |(mut ops, rough)| {
            for (at, op) in rough {
                // The end of time comes last, or nothing would be left to try.
                let at = match op {
                    Op::Pass(Span::MAX) => ops.len(),
                    _ => at.index(ops.len()),
                };
                ops.insert(at, op);
            }
            ops
        },
    )
}

/// What can be seen of a gate's decisions.
#[derive(Clone, Debug, PartialEq)]
enum Seen {
    Enter(RequestId),
    Refuse(Rejection),
    Act(Action),
}

/// A gate with a clock, driven as every driver does.
#[derive(Clone)]
struct Driver {
    gate: Gate,
    now: Instant,
    /// All ids so far, ended ones too.
    ids: Vec<RequestId>,
    seen: Vec<Seen>,
    /// What was started and not yet taken from here, oldest first.
    running: VecDeque<RequestId>,
    /// Whether to wake exactly when the gate asks to.
    exact: bool,
    /// Whether a caller was told something unasked, or refused although nothing had ended.
    notified: bool,
}

impl Driver {
    fn new(admission: &AdmissionConfig, exact: bool) -> Self {
        let slots = SlotsConfig::fixed(2);
        let config = GateConfig {
            admission: admission.clone(),
            slots,
            queue_limit: 40,
            ..GateConfig::default()
        };
        let gate = Gate::new(&config, Instant::ZERO, 7).unwrap();
        Self {
            gate,
            now: Instant::ZERO,
            ids: Vec::new(),
            seen: Vec::new(),
            running: VecDeque::new(),
            exact,
            notified: false,
        }
    }

    fn play(&mut self, op: &Op) {
        let now = self.now;
        // Counted from the newest, so that misuse of ended ids happens but is not the rule.
        let recent = |which: usize| self.ids.len().checked_sub(which + 1).map(|at| self.ids[at]);
        match *op {
            Op::Arrive { rank, caller, sheds, deadline } => {
                self.arrive(rank, caller, sheds, deadline);
            }
            Op::Finish { which, outcome, micros } => {
                if let Some(id) = recent(which) {
                    let cost = Cost::from(Span::from_micros(u64::from(micros)));
                    self.gate.finish(now, id, outcome, cost);
                }
            }
            Op::Cancel(which) => recent(which).into_iter().for_each(|id| self.gate.cancel(now, id)),
            Op::Pause(which) => recent(which).into_iter().for_each(|id| self.gate.pause(now, id)),
            Op::Resume(which) => {
                if let Some(id) = recent(which) {
                    self.gate.resume(now, id, Progress::default());
                }
            }
            Op::Utilize(utilization) => self.gate.on_utilization(now, utilization),
            Op::StageDelay(micros) => {
                self.gate.on_stage_delay(now, Span::from_micros(u64::from(micros)));
            }
            Op::Gone(caller) => self.gate.on_gone(now, CallerId(u64::from(caller))),
            Op::Tell(caller) => {
                self.gate.feedback(now, CallerId(u64::from(caller)), Workflow::NONE);
            }
            Op::Reconfigure(which) => {
                let (configs, mut config) = (configs(), self.gate.config().clone());
                config.admission = configs[which % configs.len()].clone();
                self.gate.reconfigure(now, &config).unwrap();
            }
            Op::Pass(span) => self.pass(span),
        }
        self.dispatch();
    }

    fn arrive(&mut self, rank: Rank, caller: u8, sheds: u32, deadline: Option<u32>) {
        let context = Context {
            rank,
            caller: CallerId(u64::from(caller)),
            sheds: Sheds { count: sheds, sample: rank },
            deadline: deadline
                .map_or(Instant::FAR, |micros| self.now + Span::from_micros(u64::from(micros))),
            ..Context::default()
        };
        match self.gate.arrive(self.now, &context) {
            Ok(id) => {
                self.ids.push(id);
                self.seen.push(Seen::Enter(id));
            }
            Err(rejection) => self.seen.push(Seen::Refuse(rejection)),
        }
    }

    fn pass(&mut self, span: Span) {
        let end = self.now + span;
        if self.exact {
            while let Some(wakeup) = self.gate.next_wakeup().filter(|wakeup| *wakeup < end) {
                assert!(wakeup > self.now, "wakes for ever at {wakeup}");
                self.now = wakeup;
                let seen = self.seen.len();
                self.dispatch();
                self.notified |= self.seen.len() > seen;
            }
        }
        self.now = end;
    }

    fn dispatch(&mut self) {
        self.gate.dispatch(self.now);
        while let Some(action) = self.gate.poll() {
            if let Action::Start { id, .. } = action {
                self.running.push_back(id);
            }
            match action {
                Action::Notify { .. } => self.notified = true,
                _ => self.seen.push(Seen::Act(action)),
            }
        }
        self.gate.invariants();
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// No input breaks an invariant, and the same seed gives the same answers.
    #[test]
    fn nothing_breaks_and_everything_repeats(ops in rough_ops()) {
        for config in configs() {
            let (mut one, mut two) = (Driver::new(&config, false), Driver::new(&config, false));
            for op in &ops {
                one.play(op);
                two.play(op);
            }
            prop_assert_eq!(&one.seen, &two.seen, "{:?}", config);
        }
    }

    /// A copy answers as the original would, and asking it has no effect on the original.
    #[test]
    fn a_copy_is_equal_and_apart(ops in ops(), at in any::<prop::sample::Index>()) {
        for config in configs() {
            let mut plain = Driver::new(&config, false);
            let mut copied = None;
            for (n, op) in ops.iter().enumerate() {
                if n == at.index(ops.len()) {
                    copied = Some(plain.clone());
                    // A second copy is asked a lot.
                    let mut asked = plain.clone();
                    ops.iter().for_each(|op| asked.play(op));
                }
                plain.play(op);
                if let Some(copied) = &mut copied {
                    copied.play(op);
                    prop_assert_eq!(&plain.seen, &copied.seen, "{:?}", config);
                }
            }
            let mut alone = Driver::new(&config, false);
            ops.iter().for_each(|op| alone.play(op));
            prop_assert_eq!(&plain.seen, &alone.seen, "{:?}", config);
        }
    }

    /// Late wake-ups are settled as of the moment each was due. When a caller is told something unasked, or refused while
    /// nothing ends, depends on when the gate is awake, and it is held to what it was told: from then on answers may
    /// differ.
    #[test]
    fn waking_exactly_or_lazily_gives_equal_answers(ops in ops()) {
        for config in configs() {
            let (mut exact, mut lazy) = (Driver::new(&config, true), Driver::new(&config, false));
            for op in &ops {
                exact.play(op);
                lazy.play(op);
                if exact.notified || lazy.notified {
                    break;
                }
                prop_assert_eq!(&exact.seen, &lazy.seen, "{:?}", config);
            }
        }
    }
}

/// The runs above mean something only if policies act in them: in a plain overload each one
/// refuses, before the bounded queue has to.
#[test]
fn every_policy_acts_in_a_plain_overload() {
    for admission in configs() {
        let mut driver = Driver::new(&admission, false);
        // Three arrivals and one finish a millisecond at a full machine, for three seconds.
        for n in 0..3_000u16 {
            driver.play(&Op::Utilize(1.05));
            for k in 0..3 {
                let rank = Rank::new((n % 64) as u8, n.wrapping_mul(163).wrapping_add(k));
                driver.play(&Op::Arrive { rank, caller: 1, sheds: 0, deadline: None });
            }
            driver.play(&Op::Pass(Span::from_millis(1)));
            if let Some(id) = driver.running.pop_front() {
                let cost = Cost::from(Span::from_millis(1));
                driver.gate.finish(driver.now, id, Outcome::Serve, cost);
                driver.dispatch();
            }
        }
        let own = driver.seen.iter().any(|seen| match seen {
            Seen::Refuse(rejection) | Seen::Act(Action::Refuse { rejection, .. }) => {
                rejection.reason != Reason::Full
            }
            _ => false,
        });
        assert_eq!(own, admission != AdmissionConfig::Open, "{admission:?}");
    }
}

/// What is deployed is what was tried: every configuration survives its own text.
#[test]
fn every_config_reads_back_from_its_text() {
    for admission in configs() {
        let config = GateConfig { admission, ..GateConfig::default() };
        let text = config.to_toml();
        assert_eq!(GateConfig::from_toml(&text).as_ref(), Ok(&config), "{text}");
    }
}
