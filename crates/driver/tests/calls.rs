//! Calls through a shared caller: who leaves, who is woken, and what is freed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::task::{Context as TaskContext, Poll, Wake, Waker};

use proptest::prelude::*;
use tidegate_core::caller::{CallerConfig, Next};
use tidegate_core::throttle::Answer;
use tidegate_core::{
    Advice, Caller, Context, Feedback, GateId, Instant, Outcome, Reason, Rejection, Span,
};
use tidegate_driver::{Call, Clock, SharedCaller};

#[derive(Clone, Debug, Default)]
struct Manual(Arc<AtomicU64>);

impl Manual {
    fn pass(&self, span: Span) {
        self.0.fetch_add(span.as_nanos(), Ordering::SeqCst);
    }
}

impl Clock for Manual {
    fn now(&self) -> Instant {
        Instant::from_nanos(self.0.load(Ordering::SeqCst))
    }
}

/// Counts wake-ups.
#[derive(Default)]
struct Woken(AtomicUsize);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

struct Task {
    call: Call,
    woken: Arc<Woken>,
}

impl Task {
    fn new(call: Call) -> Self {
        Self { call, woken: Arc::default() }
    }

    fn poll(&mut self) -> Poll<bool> {
        let waker = Waker::from(Arc::clone(&self.woken));
        let departure = self.call.poll_leave(&TaskContext::from_waker(&waker));
        departure.map(|departure| departure.is_ok())
    }

    fn woken(&self) -> usize {
        self.woken.0.swap(0, Ordering::SeqCst)
    }
}

/// One endpoint whose window is 1 until it says otherwise.
fn caller(hold_limit: usize) -> (SharedCaller, Manual) {
    let text = format!("hold_limit = {hold_limit}\nthrottle = {{ throttle = 'credit' }}");
    let config = CallerConfig::from_toml(&text).expect("a valid configuration");
    let clock = Manual::default();
    let caller = Caller::new(&config, 1, Instant::ZERO, 1).expect("checked");
    let shared = SharedCaller::with_clock(caller, clock.clone());
    // The first answer opens the window of one.
    let mut first = Task::new(shared.submit(&Context::default()).expect("the first leaves"));
    assert_eq!(first.poll(), Poll::Ready(true));
    respond(&mut first, 1, 1);
    (shared, clock)
}

fn respond(task: &mut Task, window: u32, sequence: u64) -> Next {
    let feedback = Feedback { window: Some(window), ..Feedback::silent(GateId(1), sequence) };
    task.call.respond(Answer::Done(Outcome::Serve), Some(&feedback))
}

fn submit(caller: &SharedCaller) -> Task {
    Task::new(caller.submit(&Context::default()).expect("there is room to hold it"))
}

fn assert_empty(caller: &SharedCaller) {
    assert_eq!(caller.waiting(), 0);
    caller.read(|caller| {
        assert_eq!((caller.held(), caller.in_flight(0)), (0, 0));
        caller.invariants();
    });
}

#[test]
fn an_answer_wakes_whoever_may_leave_next() {
    let (caller, _clock) = caller(4);
    let (mut one, mut two, mut three) = (submit(&caller), submit(&caller), submit(&caller));
    assert_eq!(one.poll(), Poll::Ready(true));
    assert!(two.poll().is_pending() && three.poll().is_pending());
    respond(&mut one, 1, 2);
    assert_eq!((two.woken(), three.woken()), (1, 0));
    assert_eq!(two.poll(), Poll::Ready(true));
    drop(two);
    assert_eq!(three.woken(), 1, "a call that is given up makes room");
    assert_eq!(three.poll(), Poll::Ready(true));
    drop((one, three));
    assert_empty(&caller);
}

#[test]
fn what_is_held_too_long_is_told_at_the_wakeup() {
    let (caller, clock) = caller(4);
    let (mut one, mut two) = (submit(&caller), submit(&caller));
    assert!(one.poll().is_ready() && two.poll().is_pending());
    let wakeup = caller.next_wakeup().expect("somebody waits");
    clock.pass(wakeup.since(caller.now()));
    caller.dispatch();
    assert_eq!(two.woken(), 1);
    assert_eq!(two.poll(), Poll::Ready(false));
    drop((one, two));
    assert_empty(&caller);
}

#[test]
fn a_refused_call_leaves_again_after_its_pause_and_only_so_often() {
    let (caller, clock) = caller(4);
    let mut call = submit(&caller);
    assert_eq!(call.poll(), Poll::Ready(true));
    let later = Advice::Later(Span::from_millis(5));
    let refused = Answer::Refused(Rejection::new(Reason::Delay, 0.0, 0.0, later));
    let mut attempts = 1;
    while call.call.respond(refused, None) == Next::Retry {
        attempts += 1;
        assert!(call.poll().is_pending());
        clock.pass(Span::from_secs(1));
        caller.dispatch();
        assert_eq!(call.woken(), 1);
        assert_eq!(call.poll(), Poll::Ready(true));
    }
    assert_eq!(attempts, 3);
    assert_empty(&caller);
}

#[derive(Clone, Copy, Debug)]
enum Op {
    Submit,
    Poll(usize),
    Drop(usize),
    Respond(usize, u32),
    Refuse(usize),
    Pass(u64),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => Just(Op::Submit),
        4 => any::<usize>().prop_map(Op::Poll),
        1 => any::<usize>().prop_map(Op::Drop),
        3 => (any::<usize>(), 0..4u32).prop_map(|(at, window)| Op::Respond(at, window)),
        1 => any::<usize>().prop_map(Op::Refuse),
        1 => (0..2_000u64).prop_map(Op::Pass),
    ]
}

fn pick<T>(items: &mut Vec<T>, at: usize) -> Option<T> {
    let at = at.checked_rem(items.len())?;
    Some(items.swap_remove(at))
}

proptest! {
    /// Whatever happens in whatever order: who could leave was woken, and when all calls are gone
    /// nothing is left.
    #[test]
    fn no_wakeup_is_lost_and_nothing_leaks(ops in proptest::collection::vec(op(), 1..150)) {
        let (caller, clock) = caller(4);
        let (mut asked, mut sent) = (Vec::<Task>::new(), Vec::<Task>::new());
        let mut fresh = Vec::<Task>::new();
        let mut sequence = 1;
        for op in ops {
            match op {
                Op::Submit => {
                    fresh.extend(caller.submit(&Context::default()).map(Task::new));
                }
                Op::Poll(at) => {
                    if let Some(mut task) = pick(&mut fresh, at) {
                        match task.poll() {
                            Poll::Ready(true) => sent.push(task),
                            Poll::Ready(false) => {}
                            Poll::Pending => asked.push(task),
                        }
                    }
                }
                Op::Drop(at) => match at % 3 {
                    0 => drop(pick(&mut fresh, at)),
                    1 => drop(pick(&mut asked, at)),
                    _ => drop(pick(&mut sent, at)),
                },
                Op::Respond(at, window) => {
                    if let Some(mut task) = pick(&mut sent, at) {
                        sequence += 1;
                        respond(&mut task, window, sequence);
                    }
                }
                Op::Refuse(at) => {
                    if let Some(mut task) = pick(&mut sent, at) {
                        let later = Advice::Later(Span::from_millis(3));
                        let rejection = Rejection::new(Reason::Delay, 0.0, 0.0, later);
                        if task.call.respond(Answer::Refused(rejection), None) == Next::Retry {
                            fresh.push(task);
                        }
                    }
                }
                Op::Pass(millis) => {
                    clock.pass(Span::from_millis(millis));
                    caller.dispatch();
                }
            }
            for mut task in std::mem::take(&mut asked) {
                let woken = task.woken() > 0;
                match task.poll() {
                    Poll::Pending => {
                        prop_assert!(!woken, "a call was woken for nothing");
                        asked.push(task);
                    }
                    Poll::Ready(leaves) => {
                        prop_assert!(woken, "a call could leave and nobody woke it");
                        if leaves {
                            sent.push(task);
                        }
                    }
                }
            }
            caller.read(Caller::invariants);
            prop_assert!(caller.read(|caller| caller.in_flight(0)) as usize <= sent.len() + fresh.len());
        }
        drop((fresh, asked, sent));
        assert_empty(&caller);
    }
}
