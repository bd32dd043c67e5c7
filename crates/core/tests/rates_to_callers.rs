//! A gate's workflow rates on their way: worked out, told with answers, kept to by the callers' throttles, and
//! forgotten when nobody repeats them.

use std::collections::BTreeMap;

use tidegate_core::caller::{CallAction, Caller, CallerConfig};
use tidegate_core::gate::{Action, Gate, GateConfig};
use tidegate_core::throttle::Answer;
use tidegate_core::{Context, Cost, Instant, Outcome, RequestId, Span, Workflow};

/// Asks for more than there is.
const GREEDY: Workflow = Workflow(1);
/// Keeps within its share.
const MODEST: Workflow = Workflow(2);
const SERVICE: Span = Span::from_millis(10);

/// Two callers and a gate with one slot of 100 requests per second, in steps of a millisecond; messages take
/// no time.
struct Path {
    gate: Gate,
    callers: Vec<Caller>,
    now: Instant,
    /// Whose call a request of the gate is, and when it is done if it runs.
    inside: BTreeMap<RequestId, (usize, RequestId, Context, Option<Instant>)>,
    /// Sent by each caller, by workflow.
    sent: BTreeMap<(usize, Workflow), u32>,
    refused: u32,
}

impl Path {
    fn new() -> Self {
        let gate = "admission = { policy = 'open' }\nslots = { slots = 'fixed', count = 1 }\n\
            [workflow]\nhold = '200ms'\n";
        let caller = "hold_limit = 1000\nhold_time = '100ms'\nretry = { attempts = 1 }\n\
            throttle = { throttle = 'rate', rate = 1000.0 }\n";
        let gate = GateConfig::from_toml(gate).unwrap();
        let caller = CallerConfig::from_toml(caller).unwrap();
        let build = |seed| Caller::new(&caller, 1, Instant::ZERO, seed).unwrap();
        Self {
            gate: Gate::new(&gate, Instant::ZERO, 1).unwrap(),
            callers: [7, 8].map(build).into(),
            now: Instant::ZERO,
            inside: BTreeMap::new(),
            sent: BTreeMap::new(),
            refused: 0,
        }
    }

    /// Milliseconds in which each caller asks once in so many for each workflow, if at all.
    fn run(&mut self, millis: u64, greedy: Option<u64>, modest: Option<u64>) {
        for n in 0..millis {
            for (workflow, every) in [(GREEDY, greedy), (MODEST, modest)] {
                if every.is_some_and(|every| n.is_multiple_of(every)) {
                    (0..self.callers.len()).for_each(|caller| self.submit(caller, workflow));
                }
            }
            self.now += Span::from_millis(1);
            self.step();
        }
    }

    fn submit(&mut self, caller: usize, workflow: Workflow) {
        let _ = self.callers[caller].submit(self.now, &Context { workflow, ..Context::default() });
    }

    fn step(&mut self) {
        let now = self.now;
        let done = |entry: &(usize, RequestId, Context, Option<Instant>)| {
            entry.3.is_some_and(|at| at <= now)
        };
        let over: Vec<RequestId> =
            self.inside.iter().filter(|(_, entry)| done(entry)).map(|(id, _)| *id).collect();
        for id in over {
            self.gate.finish(now, id, Outcome::Serve, Cost::from(SERVICE));
            self.answer(id, Answer::Done(Outcome::Serve));
        }
        for place in 0..self.callers.len() {
            self.callers[place].dispatch(now);
            while let Some(action) = self.callers[place].poll() {
                let CallAction::Transmit { id: call, context, .. } = action else { continue };
                *self.sent.entry((place, context.workflow)).or_default() += 1;
                match self.gate.arrive(now, &context) {
                    Ok(id) => drop(self.inside.insert(id, (place, call, context, None))),
                    Err(rejection) => {
                        self.refused += 1;
                        let told = self.gate.feedback(now, context.caller, context.workflow);
                        let answer = Answer::Refused(rejection);
                        self.callers[place].respond(now, call, answer, Some(&told));
                    }
                }
            }
        }
        self.gate.dispatch(now);
        while let Some(action) = self.gate.poll() {
            match action {
                Action::Start { id, .. } => {
                    self.inside.get_mut(&id).unwrap().3 = Some(now + SERVICE);
                }
                Action::Refuse { id, rejection } => self.answer(id, Answer::Refused(rejection)),
                Action::Notify { .. } => {}
            }
        }
    }

    fn answer(&mut self, id: RequestId, answer: Answer) {
        let (place, call, context, _) = self.inside.remove(&id).unwrap();
        let told = self.gate.feedback(self.now, context.caller, context.workflow);
        self.callers[place].respond(self.now, call, answer, Some(&told));
    }

    /// What was sent since the last time this was asked.
    fn take(&mut self, caller: usize, workflow: Workflow) -> u32 {
        self.sent.remove(&(caller, workflow)).unwrap_or(0)
    }
}

/// Wisp §4.1: 400 of the greedy and 40 of the modest come per second, 100 can be served. The callers are told what
/// is left of the greedy's, each its part, and send no more; the modest are not touched.
#[test]
fn rates_reach_callers_and_are_kept_to() {
    let mut path = Path::new();
    path.run(5_000, Some(5), Some(50));
    for caller in [0, 1] {
        path.take(caller, GREEDY);
        path.take(caller, MODEST);
    }
    let refused = path.refused;
    path.run(10_000, Some(5), Some(50));
    let rate = path.gate.workflows().unwrap().rate(GREEDY).expect("limited");
    assert!((35.0..60.0).contains(&rate), "{rate}");
    let greedy = [0, 1].map(|caller| path.take(caller, GREEDY));
    let sum = f64::from(greedy[0] + greedy[1]) / 10.0;
    assert!((0.7 * rate..1.2 * rate).contains(&sum), "sent {sum} of {rate} per second");
    assert!(greedy[0].abs_diff(greedy[1]) < greedy[0] / 4, "{greedy:?}");
    assert_eq!([0, 1].map(|caller| path.take(caller, MODEST)), [200, 200], "all of them");
    let refused = path.refused - refused;
    assert!(refused < 25, "{refused} of 4,000 were sent in vain");
}

/// A rate that nobody repeats is not kept to for ever: the callee may be another by then.
#[test]
fn a_rate_that_is_not_repeated_ages_out() {
    let mut path = Path::new();
    path.run(5_000, Some(5), None);
    path.take(0, GREEDY);
    // Still told: what was saved up, and the rate of some 45 for a tenth of a second.
    (0..50).for_each(|_| path.submit(0, GREEDY));
    path.run(100, None, None);
    let under_grant = path.take(0, GREEDY);
    assert!(under_grant <= 15, "{under_grant}");
    // Two seconds later the local rate counts, 1,000 per second.
    path.run(2_000, None, None);
    path.take(0, GREEDY);
    (0..50).for_each(|_| path.submit(0, GREEDY));
    path.run(40, None, None);
    let alone = path.take(0, GREEDY);
    assert!(alone >= 40, "{alone}");
}
