//! Guards polled by hand: who is woken, what is freed, and when.
#![cfg(not(loom))]
#![allow(clippy::disallowed_methods, reason = "tests of a driver have threads")]

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::task::{Context as TaskContext, Poll, Wake, Waker};

use proptest::prelude::*;
use tidegate_core::gate::{Gate, GateConfig};
use tidegate_core::slots::SlotsConfig;
use tidegate_core::{
    CallerId, Context, Cost, Instant, Outcome, Progress, Reason, Rejection, Span, Workflow,
};
use tidegate_driver::{Clock, Paused, SharedGate, Slot, Ticket};

/// A clock that the test turns.
#[derive(Clone, Debug, Default)]
struct Manual(Arc<AtomicU64>);

impl Manual {
    fn pass(&self, span: Span) {
        self.0.fetch_add(span.as_nanos(), SeqCst);
    }
}

impl Clock for Manual {
    fn now(&self) -> Instant {
        Instant::from_nanos(self.0.load(SeqCst))
    }
}

/// Counts how often it was woken.
#[derive(Debug, Default)]
struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, SeqCst);
    }
}

/// A ticket with a task of its own around it.
struct Task {
    ticket: Ticket,
    count: Arc<Count>,
}

impl Task {
    fn new(ticket: Ticket) -> Self {
        Self { ticket, count: Arc::default() }
    }

    fn poll(&mut self) -> Poll<Result<Slot, Rejection>> {
        let waker = Waker::from(Arc::clone(&self.count));
        Pin::new(&mut self.ticket).poll(&mut TaskContext::from_waker(&waker))
    }

    fn slot(&mut self) -> Slot {
        match self.poll() {
            Poll::Ready(Ok(slot)) => slot,
            other => panic!("expected a slot, got {other:?}"),
        }
    }

    fn woken(&self) -> usize {
        self.count.0.load(SeqCst)
    }
}

fn gate(slots: u32, queue_limit: usize) -> (SharedGate, Manual) {
    let config =
        GateConfig { slots: SlotsConfig::fixed(slots), queue_limit, ..GateConfig::default() };
    let clock = Manual::default();
    let gate = Gate::new(&config, Instant::ZERO, 1).expect("a valid configuration");
    (SharedGate::with_clock(gate, clock.clone()), clock)
}

fn arrive(gate: &SharedGate) -> Task {
    Task::new(gate.arrive(&Context::default()).expect("let in"))
}

#[test]
fn a_free_slot_is_taken_at_once_and_handed_on_at_finish() {
    let (gate, clock) = gate(1, 10);
    let (mut first, mut second) = (arrive(&gate), arrive(&gate));
    let slot = first.slot();
    assert!(second.poll().is_pending());
    assert_eq!((gate.running(), gate.waiting(), gate.tickets()), (1, 1, 1));
    clock.pass(Span::from_millis(1));
    slot.serve();
    assert_eq!(second.woken(), 1);
    second.slot().fail();
    assert_eq!((gate.running(), gate.waiting(), gate.tickets()), (0, 0, 0));
}

#[test]
fn a_slot_dropped_without_a_word_is_handed_on() {
    let (gate, _clock) = gate(1, 10);
    let (mut first, mut second) = (arrive(&gate), arrive(&gate));
    assert!(second.poll().is_pending());
    drop(first.slot());
    assert_eq!(second.woken(), 1);
}

/// The gap between start and the next poll: nobody but the guard knows of the slot.
#[test]
fn a_ticket_dropped_between_start_and_poll_gives_its_slot_on() {
    let (gate, _clock) = gate(1, 10);
    let (mut first, mut second, mut third) = (arrive(&gate), arrive(&gate), arrive(&gate));
    assert!(second.poll().is_pending() && third.poll().is_pending());
    first.slot().serve();
    assert_eq!((second.woken(), third.woken()), (1, 0));
    drop(second);
    assert_eq!(third.woken(), 1);
    third.slot().serve();
    assert_eq!((gate.running(), gate.tickets()), (0, 0));
}

#[test]
fn a_ticket_started_at_arrival_and_never_polled_gives_its_slot_on() {
    let (gate, _clock) = gate(1, 10);
    let (first, mut second) = (arrive(&gate), arrive(&gate));
    assert!(second.poll().is_pending());
    drop(first);
    assert_eq!(second.woken(), 1);
}

#[test]
fn a_ticket_dropped_while_it_waits_leaves_the_queue() {
    let (gate, _clock) = gate(1, 10);
    let (mut first, mut second, mut third) = (arrive(&gate), arrive(&gate), arrive(&gate));
    let slot = first.slot();
    assert!(second.poll().is_pending() && third.poll().is_pending());
    drop(second);
    assert_eq!(gate.waiting(), 1);
    slot.serve();
    assert_eq!(third.woken(), 1);
}

#[test]
fn a_full_queue_refuses_at_arrival_and_a_passed_deadline_while_waiting() {
    let (gate, clock) = gate(1, 1);
    let mut first = arrive(&gate);
    let deadline = gate.now() + Span::from_millis(5);
    let mut second = Task::new(gate.arrive(&Context { deadline, ..Context::default() }).unwrap());
    assert!(second.poll().is_pending());
    assert_eq!(gate.arrive(&Context::default()).unwrap_err().reason, Reason::Full);
    clock.pass(Span::from_millis(6));
    first.slot().serve();
    assert_eq!(second.woken(), 1);
    // Its place in the gate is used again before its task hears of the refusal.
    let mut third = arrive(&gate);
    let Poll::Ready(Err(rejection)) = second.poll() else { panic!("it was refused") };
    assert_eq!(rejection.reason, Reason::Expired);
    third.slot().serve();
    assert_eq!((gate.running(), gate.tickets()), (0, 0));
}

#[test]
fn what_entered_starts_at_the_dispatch() {
    let (gate, _clock) = gate(2, 10);
    let ticket = gate.enter(gate.now(), &Context::default()).unwrap();
    let mut task = Task::new(ticket);
    assert!(task.poll().is_pending());
    assert_eq!(gate.running(), 0);
    gate.dispatch();
    assert_eq!(task.woken(), 1);
    task.slot().serve();
}

#[test]
fn a_batch_is_answered_in_order() {
    let (gate, _clock) = gate(1, 2);
    let mut answers = Vec::new();
    gate.arrive_all(&[Context::default(); 4], &mut answers);
    // Nothing starts before all have arrived, so the queue holds two of them.
    assert!(answers[0].is_ok() && answers[1].is_ok());
    assert!(answers[2].is_err() && answers[3].is_err());
    let mut tasks: Vec<Task> = answers.into_iter().flatten().map(Task::new).collect();
    assert!(tasks[1].poll().is_pending());
    tasks[0].slot().serve();
    assert_eq!(tasks[1].woken(), 1);
}

#[test]
fn a_paused_request_lends_its_slot() {
    let (gate, clock) = gate(1, 10);
    let (mut first, mut second) = (arrive(&gate), arrive(&gate));
    let slot = first.slot();
    assert!(second.poll().is_pending());
    clock.pass(Span::from_micros(10));
    let paused = slot.pause();
    let lent = second.slot();
    let mut first = Task::new(paused.resume(Progress::default()));
    assert!(first.poll().is_pending());
    lent.serve();
    assert_eq!(first.woken(), 1);
    drop(first.slot().pause());
    assert_eq!((gate.running(), gate.tickets()), (0, 0));
    gate.read(Gate::invariants);
}

#[test]
fn an_answer_carries_feedback() {
    let (gate, _clock) = gate(1, 10);
    let slot = arrive(&gate).slot();
    let feedback = slot.answer(Outcome::Serve, Cost(5)).expect("the request was running");
    let later = gate.feedback(CallerId(7), Workflow::NONE);
    assert_eq!(feedback.gate, later.gate);
    assert!(feedback.sequence < later.sequence);
}

#[test]
fn a_panic_under_the_lock_does_not_close_the_gate() {
    let (gate, _clock) = gate(1, 10);
    let same = gate.clone();
    let panicked = std::thread::spawn(move || same.input(|_, _| panic!("a bug")) as ()).join();
    assert!(panicked.is_err());
    arrive(&gate).slot().serve();
    assert_eq!(gate.running(), 0);
}

#[derive(Clone, Copy, Debug)]
enum Op {
    Arrive { patience: u64 },
    Poll(usize),
    DropTicket(usize),
    Finish(usize),
    DropSlot(usize),
    Pause(usize),
    Resume(usize),
    Pass(u64),
    Dispatch,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => (1..40u64).prop_map(|patience| Op::Arrive { patience }),
        4 => any::<usize>().prop_map(Op::Poll),
        1 => any::<usize>().prop_map(Op::DropTicket),
        2 => any::<usize>().prop_map(Op::Finish),
        1 => any::<usize>().prop_map(Op::DropSlot),
        1 => any::<usize>().prop_map(Op::Pause),
        1 => any::<usize>().prop_map(Op::Resume),
        2 => (0..9u64).prop_map(Op::Pass),
        1 => Just(Op::Dispatch),
    ]
}

/// Takes the item that `at` means, if there is any.
fn pick<T>(items: &mut Vec<T>, at: usize) -> Option<T> {
    let at = at.checked_rem(items.len())?;
    Some(items.swap_remove(at))
}

proptest! {
    /// Whatever happens in whatever order: a ticket that could resolve was woken since its last
    /// poll, every slot in use belongs to a guard, and when all guards are gone nothing is left.
    #[test]
    fn no_wakeup_is_lost_and_no_slot_leaks(
        slots in 1..4u32,
        ops in proptest::collection::vec(op(), 1..120),
    ) {
        let (gate, clock) = gate(slots, 6);
        let mut fresh: Vec<Task> = Vec::new();
        let mut asked: Vec<Task> = Vec::new();
        let mut held: Vec<Slot> = Vec::new();
        let mut paused: Vec<Paused> = Vec::new();
        for op in ops {
            match op {
                Op::Arrive { patience } => {
                    let deadline = gate.now() + Span::from_micros(patience);
                    let context = Context { deadline, ..Context::default() };
                    fresh.extend(gate.arrive(&context).map(Task::new));
                }
                Op::Poll(at) => {
                    if let Some(mut task) = pick(&mut fresh, at) {
                        match task.poll() {
                            Poll::Ready(Ok(slot)) => held.push(slot),
                            Poll::Ready(Err(_)) => {}
                            Poll::Pending => asked.push(task),
                        }
                    }
                }
                Op::DropTicket(at) => {
                    drop(if at % 2 == 0 { pick(&mut fresh, at) } else { pick(&mut asked, at) });
                }
                Op::Finish(at) => {
                    pick(&mut held, at).into_iter().for_each(Slot::serve);
                }
                Op::DropSlot(at) => drop(pick(&mut held, at)),
                Op::Pause(at) => paused.extend(pick(&mut held, at).map(Slot::pause)),
                Op::Resume(at) => {
                    let ticket = pick(&mut paused, at).map(|p| p.resume(Progress::default()));
                    fresh.extend(ticket.map(Task::new));
                }
                Op::Pass(micros) => clock.pass(Span::from_micros(micros)),
                Op::Dispatch => gate.dispatch(),
            }
            // Poll everyone who has asked: those who were woken resolve, the others wait.
            for mut task in std::mem::take(&mut asked) {
                let woken = task.woken() > 0;
                match task.poll() {
                    Poll::Ready(answer) => {
                        prop_assert!(woken, "a ticket was ready and nobody woke it");
                        held.extend(answer);
                    }
                    Poll::Pending => {
                        prop_assert!(!woken, "a ticket was woken for nothing");
                        asked.push(task);
                    }
                }
            }
            gate.read(Gate::invariants);
            prop_assert!(gate.running() as usize >= held.len());
            prop_assert!(gate.running() as usize <= held.len() + fresh.len());
            prop_assert!(gate.waiting() == 0 || gate.running() >= slots);
        }
        drop((fresh, asked, held, paused));
        prop_assert_eq!((gate.running(), gate.waiting(), gate.tickets()), (0, 0, 0));
        gate.read(Gate::invariants);
    }
}
