//! Random operations under every throttle, against a model of what each call may do.

use std::collections::BTreeMap;

use proptest::prelude::*;
use tidegate_core::caller::{BreakerConfig, CallAction, CallerConfig, EjectionConfig, Next};
use tidegate_core::retry::RetryConfig;
use tidegate_core::throttle::{Answer, ThrottleConfig};
use tidegate_core::{
    Advice, Caller, Context, Cursor, Feedback, GateId, Instant, Outcome, Rank, Reason, Rejection,
    RequestId, Span, Workflow,
};

use crate::{SERVED, refused, throttles};

const ENDPOINTS: usize = 3;
const HOLD_LIMIT: usize = 4;
const RETRY: RetryConfig = RetryConfig {
    attempts: 3,
    share: 0.1,
    reserve: 3,
    backoff: Span::from_millis(5),
    failures: true,
};

const BREAKER: BreakerConfig =
    BreakerConfig { failures: 2, pause: Span::from_millis(3), longest: Span::from_millis(9) };
const EJECTION: EjectionConfig = EjectionConfig {
    every: Span::from_millis(20),
    least: 2,
    share: 0.2,
    factor: 3.0,
    pause: Span::from_millis(15),
    most: 0.5,
};

fn config(throttle: ThrottleConfig, hold_limit: usize) -> CallerConfig {
    CallerConfig {
        throttle,
        retry: RETRY,
        hold_limit,
        hold_time: Span::from_millis(50),
        breaker: Some(BREAKER),
        ejection: Some(EJECTION),
        ..CallerConfig::default()
    }
}

#[derive(Clone, Debug)]
enum Op {
    Submit { rank: Rank, workflow: u16, within: Option<Span> },
    Respond { which: usize, answer: Answer, feedback: Option<Feedback> },
    RespondToEnded { which: usize },
    RespondToNothing { bits: u64 },
    Notice { endpoint: usize, feedback: Feedback },
    Cancel { which: usize },
    CancelEnded { which: usize },
    Pass(Span),
    Wake,
    AddEndpoint,
    Reconfigure { throttle: usize, hold_limit: usize },
}

fn op() -> impl Strategy<Value = Op> {
    let rank = (0..64u8, prop::sample::select(vec![0, 7, u16::MAX]))
        .prop_map(|(business, user)| Rank::new(business, user));
    let within = prop::option::of((0..100u64).prop_map(Span::from_millis));
    prop_oneof![
        12 => (rank, 0..3u16, within)
            .prop_map(|(rank, workflow, within)| Op::Submit { rank, workflow, within }),
        10 => (any::<usize>(), answer(), prop::option::of(feedback()))
            .prop_map(|(which, answer, feedback)| Op::Respond { which, answer, feedback }),
        1 => any::<usize>().prop_map(|which| Op::RespondToEnded { which }),
        1 => any::<u64>().prop_map(|bits| Op::RespondToNothing { bits }),
        2 => (0..ENDPOINTS + 2, feedback())
            .prop_map(|(endpoint, feedback)| Op::Notice { endpoint, feedback }),
        1 => any::<usize>().prop_map(|which| Op::Cancel { which }),
        1 => any::<usize>().prop_map(|which| Op::CancelEnded { which }),
        6 => (0..20_000u64).prop_map(|us| Op::Pass(Span::from_micros(us))),
        4 => Just(Op::Wake),
        1 => Just(Op::AddEndpoint),
        1 => (0..6usize, 0..=HOLD_LIMIT)
            .prop_map(|(throttle, hold_limit)| Op::Reconfigure { throttle, hold_limit }),
    ]
}

fn answer() -> impl Strategy<Value = Answer> {
    prop_oneof![
        4 => Just(SERVED),
        1 => Just(Answer::Done(Outcome::Fail)),
        1 => Just(Answer::Done(Outcome::Cancel)),
        2 => Just(refused(Advice::Elsewhere)),
        1 => Just(refused(Advice::Never)),
        2 => (0..20u64).prop_map(|ms| refused(Advice::Later(Span::from_millis(ms)))),
    ]
}

fn feedback() -> impl Strategy<Value = Feedback> {
    let rate = prop_oneof![
        4 => Just(None),
        4 => (0.0..2_000.0f64).prop_map(Some),
        1 => prop::sample::select(vec![Some(f64::NAN), Some(-1.0), Some(f64::INFINITY)]),
    ];
    let last = prop::option::of((0..=Cursor::OPEN.ranks()).prop_map(Cursor::first));
    (0..3u64, 0..200u64, last, rate, 0..100u64).prop_map(|(gate, sequence, last, rate, holds)| {
        let holds = Span::from_millis(holds);
        Feedback { last, rate, holds, window: Some(3), ..Feedback::silent(GateId(gate), sequence) }
    })
}

/// A caller and everything it has said.
struct Run {
    caller: Caller,
    now: Instant,
    hold_limit: usize,
    /// Whether ranks that need no credit may overtake others.
    free_ranks: bool,
    live: BTreeMap<RequestId, Live>,
    ended: Vec<RequestId>,
    /// Demand each endpoint was last told.
    told: Vec<u32>,
    submitted: u64,
    retries: u64,
    shed: u64,
    reported: u64,
    transcript: Vec<(Instant, CallAction)>,
}

/// What the model knows of a call that has not ended.
#[derive(Clone, Copy, Debug)]
struct Live {
    context: Context,
    /// Calls submitted before it.
    number: u64,
    attempt: u8,
    place: Place,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Place {
    Held,
    Sent(usize),
    /// Not to be sent before then.
    Pausing(Instant),
}

impl Run {
    fn new(throttle: ThrottleConfig, endpoints: usize) -> Self {
        let free_ranks = matches!(throttle, ThrottleConfig::Credit(_));
        let config = config(throttle, HOLD_LIMIT);
        Self {
            free_ranks,
            caller: Caller::new(&config, endpoints, Instant::ZERO, 42).unwrap(),
            now: Instant::ZERO,
            hold_limit: HOLD_LIMIT,
            live: BTreeMap::new(),
            ended: Vec::new(),
            told: vec![0; endpoints],
            submitted: 0,
            retries: 0,
            shed: 0,
            reported: 0,
            transcript: Vec::new(),
        }
    }

    fn apply(&mut self, op: &Op) {
        match op {
            Op::Submit { rank, workflow, within } => {
                let deadline = within.map_or(Instant::FAR, |within| self.now + within);
                let workflow = Workflow(*workflow);
                self.submit(&Context { rank: *rank, workflow, deadline, ..Context::default() });
            }
            Op::Respond { which, answer, feedback } => {
                if let Some(id) = self.pick(*which) {
                    self.respond(id, *answer, feedback.as_ref());
                }
            }
            Op::RespondToEnded { which } => {
                if let Some(id) = self.pick_ended(*which) {
                    let next = self.caller.respond(self.now, id, SERVED, None);
                    assert_eq!(next, Next::Over(SERVED));
                }
            }
            Op::RespondToNothing { bits } => {
                // Places are used far less often than 2³¹ times here.
                let id = RequestId::from_u64(*bits | 1 << 63);
                self.caller.respond(self.now, id, refused(Advice::Elsewhere), None);
            }
            Op::Notice { endpoint, feedback } => {
                self.caller.notice(self.now, *endpoint, feedback);
            }
            Op::Cancel { which } => {
                if let Some(id) = self.pick(*which) {
                    self.caller.cancel(self.now, id);
                    self.end(id);
                }
            }
            Op::CancelEnded { which } => {
                if let Some(id) = self.pick_ended(*which) {
                    self.caller.cancel(self.now, id);
                }
            }
            Op::Pass(time) => {
                self.now += *time;
                self.caller.dispatch(self.now);
            }
            Op::Wake => {
                self.wake();
            }
            Op::AddEndpoint => {
                self.told.push(0);
                assert_eq!(self.caller.add_endpoint(self.now), self.told.len() - 1);
            }
            Op::Reconfigure { throttle, hold_limit } => {
                self.hold_limit = *hold_limit;
                let throttle = throttles()[*throttle].clone();
                self.free_ranks |= matches!(throttle, ThrottleConfig::Credit(_));
                let config = config(throttle, *hold_limit);
                self.caller.reconfigure(self.now, &config).unwrap();
            }
        }
        self.drain();
        self.check();
    }

    fn submit(&mut self, context: &Context) {
        let number = self.submitted;
        self.submitted += 1;
        match self.caller.submit(self.now, context) {
            Ok(id) => {
                let live = Live { context: *context, number, attempt: 0, place: Place::Held };
                assert!(self.live.insert(id, live).is_none(), "an id is used once");
                assert!(!self.ended.contains(&id), "an ended id never comes back");
            }
            Err(rejection) if rejection.reason == Reason::Expired => {
                assert!(context.deadline <= self.now);
            }
            Err(rejection) => {
                self.shed += 1;
                if rejection.reason == Reason::Credit && context.deadline == Instant::FAR {
                    assert_eq!(self.held().count(), self.hold_limit, "rejected with room left");
                    let least = self.held().map(|live| live.context.rank).max();
                    assert!(least <= Some(context.rank), "the least important goes");
                }
            }
        }
    }

    fn respond(&mut self, id: RequestId, answer: Answer, feedback: Option<&Feedback>) {
        let before = self.live[&id];
        let next = self.caller.respond(self.now, id, answer, feedback);
        let Place::Sent(_) = before.place else {
            return assert_eq!(next, Next::Retry, "a call that waits is not ended by an answer");
        };
        let asked = match answer {
            Answer::Done(Outcome::Fail) => Some(Span::ZERO),
            Answer::Done(_) => None,
            Answer::Refused(Rejection { advice, .. }) => match advice {
                Advice::Elsewhere => Some(Span::ZERO),
                Advice::Later(asked) => Some(asked),
                Advice::Never => None,
            },
        };
        match (next, asked) {
            (Next::Retry, Some(asked)) => {
                self.retries += 1;
                let live = self.live.get_mut(&id).unwrap();
                live.attempt += 1;
                live.place = Place::Pausing(self.now + asked);
            }
            (Next::Retry, None) => panic!("{answer:?} is not to be retried"),
            (Next::Over(told), _) => {
                match told {
                    Answer::Refused(told) => {
                        assert_eq!(told.advice, Advice::Never, "no second layer may retry");
                    }
                    Answer::Done(_) => assert_eq!(told, answer),
                }
                self.end(id);
            }
        }
    }

    /// Sleeps until the next wake-up; false if there is none.
    fn wake(&mut self) -> bool {
        let Some(at) = self.caller.next_wakeup() else { return false };
        assert!(at > self.now, "what is due has been done");
        self.now = at;
        self.caller.dispatch(at);
        true
    }

    fn drain(&mut self) {
        while let Some(action) = self.caller.poll() {
            self.transcript.push((self.now, action));
            match action {
                CallAction::Transmit { id, endpoint, context } => {
                    self.transmitted(id, endpoint, &context);
                }
                CallAction::Fail { id, rejection } => {
                    let live = self.live[&id];
                    assert!(!matches!(live.place, Place::Sent(_)), "what was sent is answered");
                    self.end(id);
                    self.shed += 1;
                    if rejection.reason == Reason::PushedOut {
                        let rank = live.context.rank;
                        assert!(self.held().all(|other| other.context.rank <= rank));
                    }
                    if live.place != Place::Held {
                        assert_eq!(rejection.advice, Advice::Never, "no second layer may retry");
                    }
                }
                CallAction::Report { endpoint, context } => {
                    assert_eq!((context.caller, context.demand), (self.caller.id(), 0));
                    assert!(self.told[endpoint] > 0, "only what has changed is reported");
                    self.told[endpoint] = 0;
                    self.reported += u64::from(context.sheds.count);
                }
            }
        }
    }

    fn transmitted(&mut self, id: RequestId, endpoint: usize, context: &Context) {
        let live = self.live[&id];
        assert!(self.now < live.context.deadline, "too late to be of use");
        assert_eq!(context.importance(), live.context.importance());
        assert_eq!(context.workflow, live.context.workflow);
        assert_eq!(context.attempt, live.attempt);
        assert!(context.attempt < RETRY.attempts);
        assert_eq!(context.caller, self.caller.id());
        match live.place {
            Place::Sent(_) => panic!("sent twice"),
            Place::Pausing(until) => assert!(self.now >= until, "sooner than asked"),
            Place::Held => {
                let overtaken = self.held().any(|other| {
                    other.context.workflow == context.workflow
                        && other.number < live.number
                        && (!self.free_ranks || other.context.rank <= context.rank)
                });
                assert!(!overtaken, "first come, first served");
            }
        }
        self.live.get_mut(&id).unwrap().place = Place::Sent(endpoint);
        self.told[endpoint] = context.demand;
        self.reported += u64::from(context.sheds.count);
    }

    /// What must hold whenever all actions are done.
    fn check(&self) {
        self.caller.invariants();
        assert_eq!(self.caller.held(), self.held().count());
        assert!(self.caller.held() <= self.hold_limit);
        for endpoint in 0..self.told.len() {
            let sent = self.live.values().filter(|live| live.place == Place::Sent(endpoint));
            let sent = sent.count();
            assert_eq!(self.caller.in_flight(endpoint) as usize, sent);
            let idle = sent == 0 && self.caller.held() == 0;
            assert!(!idle || self.told[endpoint] == 0, "vanished demand is reported");
        }
        assert!(self.retries as f64 <= 3.0 + 0.1 * self.submitted as f64, "the budget is kept");
        assert!(self.reported <= self.shed, "no shed is reported twice");
    }

    /// Answers everything, waits for the rest, and looks whether the books balance.
    fn finish(&mut self) {
        while let Some((id, live)) = self.live.first_key_value() {
            match live.place {
                Place::Sent(_) => self.respond(*id, SERVED, None),
                Place::Held | Place::Pausing(_) => assert!(self.wake(), "forgotten"),
            }
            self.drain();
            self.check();
        }
        // A most important call leaves sooner or later. That no shed is reported twice was checked
        // at every step; that all are, unless a storm is over, is a test beside the log of sheds.
        let said = self.transcript.len();
        for _ in 0..20 {
            self.now += Span::from_secs(1);
            self.submit(&Context { rank: Rank::FIRST, ..Context::default() });
            self.drain();
            let mut new = self.transcript[said..].iter();
            if new.any(|(_, action)| matches!(action, CallAction::Transmit { .. })) {
                return;
            }
        }
        panic!("locked out for good");
    }

    fn held(&self) -> impl Iterator<Item = &Live> {
        self.live.values().filter(|live| live.place == Place::Held)
    }

    fn pick(&self, which: usize) -> Option<RequestId> {
        self.live.keys().nth(which % self.live.len().max(1)).copied()
    }

    fn pick_ended(&self, which: usize) -> Option<RequestId> {
        self.ended.get(which % self.ended.len().max(1)).copied()
    }

    fn end(&mut self, id: RequestId) {
        assert!(self.live.remove(&id).is_some(), "a call ends once");
        self.ended.push(id);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// No sequence of inputs breaks the caller, every call ends exactly once, and the same inputs
    /// give the same actions.
    #[test]
    fn every_call_ends_once_whatever_happens(
        throttle in 0..6usize,
        endpoints in 1..=ENDPOINTS,
        ops in prop::collection::vec(op(), 1..150),
    ) {
        let play = || {
            let mut run = Run::new(throttles()[throttle].clone(), endpoints);
            ops.iter().for_each(|op| run.apply(op));
            run.finish();
            run.transcript
        };
        prop_assert_eq!(format!("{:?}", play()), format!("{:?}", play()));
    }
}
