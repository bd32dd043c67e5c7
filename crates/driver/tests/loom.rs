//! Models that loom runs through every interleaving. A lost wake-up is a deadlock there, and a
//! guard that is never dropped a leak.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p tidegate-driver --release --test loom`
#![cfg(loom)]

use loom::future::block_on;
use loom::sync::Arc;
use loom::thread;
use tidegate_core::caller::CallerConfig;
use tidegate_core::gate::{Gate, GateConfig};
use tidegate_core::limit::Limit;
use tidegate_core::slots::SlotsConfig;
use tidegate_core::throttle::Answer;
use tidegate_core::{Caller, Context, Instant, Outcome, Progress};
use tidegate_driver::{AtomicBucket, Clock, SharedCaller, SharedGate, Ticket};

/// Time stands still: only the order of steps matters here.
#[derive(Debug)]
struct Still;

impl Clock for Still {
    fn now(&self) -> Instant {
        Instant::from_nanos(1)
    }
}

fn gate(slots: u32) -> SharedGate {
    let config = GateConfig { slots: SlotsConfig::fixed(slots), ..GateConfig::default() };
    let gate = Gate::new(&config, Instant::ZERO, 1).expect("a valid configuration");
    SharedGate::with_clock(gate, Still)
}

fn arrive(gate: &SharedGate) -> Ticket {
    gate.arrive(&Context::default()).expect("the queue has room")
}

fn assert_empty(gate: &SharedGate) {
    assert_eq!((gate.running(), gate.waiting(), gate.tickets()), (0, 0, 0));
    gate.read(Gate::invariants);
}

/// Everyone who waits is woken, whoever finishes when.
#[test]
fn two_tasks_share_one_slot() {
    loom::model(|| {
        let gate = gate(1);
        let other = {
            let gate = gate.clone();
            thread::spawn(move || block_on(arrive(&gate)).expect("served").serve())
        };
        block_on(arrive(&gate)).expect("served").serve();
        other.join().expect("no panic");
        assert_empty(&gate);
    });
}

/// A ticket is dropped while the slot it waits for is handed to it: the next one gets it.
#[test]
fn a_dropped_ticket_never_keeps_the_slot() {
    loom::model(|| {
        let gate = gate(1);
        let slot = block_on(arrive(&gate)).expect("served");
        let (second, third) = (arrive(&gate), arrive(&gate));
        let dropper = thread::spawn(move || drop(second));
        let finisher = thread::spawn(move || slot.serve());
        block_on(third).expect("served").serve();
        dropper.join().expect("no panic");
        finisher.join().expect("no panic");
        assert_empty(&gate);
    });
}

/// A ticket that was polled is given up from elsewhere, as by a runtime that ends a task.
#[test]
fn a_polled_ticket_may_be_dropped_by_another_thread() {
    loom::model(|| {
        let gate = gate(1);
        let slot = block_on(arrive(&gate)).expect("served");
        let mut second = arrive(&gate);
        let polled = block_on(std::future::poll_fn(|cx| {
            std::task::Poll::Ready(std::future::Future::poll(std::pin::Pin::new(&mut second), cx))
        }));
        assert!(polled.is_pending());
        let dropper = thread::spawn(move || drop(second));
        drop(slot);
        dropper.join().expect("no panic");
        assert_empty(&gate);
    });
}

/// A step that pauses lends its slot, and gets one again.
#[test]
fn a_paused_task_comes_back() {
    loom::model(|| {
        let gate = gate(1);
        let other = {
            let gate = gate.clone();
            thread::spawn(move || block_on(arrive(&gate)).expect("served").serve())
        };
        let paused = block_on(arrive(&gate)).expect("served").pause();
        block_on(paused.resume(Progress::default())).expect("served").serve();
        other.join().expect("no panic");
        assert_empty(&gate);
    });
}

/// One call may be out at a time. Whoever answers, gives up or waits in whatever order: the last one
/// hears that it may leave.
#[test]
fn a_held_call_is_woken_by_an_answer_or_a_call_given_up() {
    loom::model(|| {
        let config = CallerConfig::from_toml("throttle = { throttle = 'credit' }").expect("valid");
        let caller = Caller::new(&config, 1, Instant::ZERO, 1).expect("checked");
        let caller = SharedCaller::with_clock(caller, Still);
        let submit = || caller.submit(&Context::default()).expect("there is room to hold it");
        let mut first = submit();
        block_on(first.leave()).expect("nothing is out yet");
        let (second, mut third) = (submit(), submit());
        let answered = thread::spawn(move || {
            first.respond(Answer::Done(Outcome::Serve), None);
        });
        let given_up = thread::spawn(move || drop(second));
        block_on(third.leave()).expect("its turn comes");
        answered.join().expect("no panic");
        given_up.join().expect("no panic");
        drop(third);
        assert_eq!((caller.waiting(), caller.read(|caller| caller.in_flight(0))), (0, 0));
        caller.read(Caller::invariants);
    });
}

/// However threads meet, together they take what one thread would have taken: no token twice, none
/// lost, and a refund comes back to somebody.
#[test]
fn tokens_are_taken_once() {
    loom::model(|| {
        let bucket = Arc::new(AtomicBucket::full(Instant::ZERO, Limit::new(1_000.0, 3.0)));
        let spend = |bucket: &AtomicBucket| {
            let one = u32::from(bucket.take(Instant::ZERO).is_ok());
            one + 2 * u32::from(bucket.take_cost(Instant::ZERO, 2.0).is_ok())
        };
        let other = {
            let bucket = bucket.clone();
            thread::spawn(move || spend(&bucket))
        };
        let taken = spend(&bucket) + other.join().expect("no panic");
        assert!((2..=3).contains(&taken), "{taken} of 3");
        assert_eq!(bucket.tokens(Instant::ZERO), f64::from(3 - taken));
    });
}

#[test]
fn a_refund_is_not_lost() {
    loom::model(|| {
        let bucket = Arc::new(AtomicBucket::full(Instant::ZERO, Limit::new(1_000.0, 2.0)));
        let other = {
            let bucket = bucket.clone();
            thread::spawn(move || {
                bucket.take(Instant::ZERO).expect("two are there");
                bucket.refund(1.0);
            })
        };
        bucket.take(Instant::ZERO).expect("two are there");
        other.join().expect("no panic");
        assert_eq!(bucket.tokens(Instant::ZERO), 1.0);
    });
}

/// Batches, bookings and settlements interleave as if one came after the other.
#[test]
fn batches_and_bookings_take_tokens_once() {
    loom::model(|| {
        let bucket = Arc::new(AtomicBucket::full(Instant::ZERO, Limit::new(1_000.0, 3.0)));
        let other = {
            let bucket = bucket.clone();
            thread::spawn(move || bucket.take_batch(Instant::ZERO, 2))
        };
        let millis = |due: Instant| (due.as_nanos() / 1_000_000) as u32;
        let due =
            bucket.book(Instant::ZERO, 2.0, Instant::FAR).map(millis).expect("no limit to waiting");
        bucket.settle_cost(Instant::ZERO, 2.0, 1.0, 0.0);
        let taken = other.join().expect("no panic");
        // Booked before or after: the batch leaves it one, or it leaves the batch one or, settled, two.
        assert!([(2, 1), (1, 0), (2, 0)].contains(&(taken, due)), "{taken} taken, due at {due} ms");
        assert_eq!(bucket.tokens(Instant::ZERO), f64::from(2 - taken));
    });
}

/// A bucket that is renewed while another thread takes: what it gave is missing in the new one.
#[test]
fn a_renewed_bucket_gives_nothing_twice() {
    loom::model(|| {
        let bucket = Arc::new(AtomicBucket::full(Instant::ZERO, Limit::new(1_000.0, 2.0)));
        let other = {
            let bucket = bucket.clone();
            thread::spawn(move || {
                bucket.take_batch(Instant::ZERO, 3) + bucket.take_batch(Instant::ZERO, 3)
            })
        };
        let new = bucket.renew(Instant::ZERO, Limit::new(2_000.0, 5.0)).expect("in use");
        let taken = other.join().expect("no panic");
        assert_eq!(taken + new.take_batch(Instant::ZERO, 9), 2);
    });
}

/// Of two that renew a bucket at once, one gets all of it and the other nothing.
#[test]
fn a_bucket_is_renewed_once() {
    loom::model(|| {
        let bucket = Arc::new(AtomicBucket::full(Instant::ZERO, Limit::new(1_000.0, 2.0)));
        let renew = |bucket: &AtomicBucket| {
            let new = bucket.renew(Instant::ZERO, Limit::new(2_000.0, 5.0));
            new.map(|new| new.take_batch(Instant::ZERO, 9))
        };
        let other = {
            let bucket = bucket.clone();
            thread::spawn(move || renew(&bucket))
        };
        let both = [renew(&bucket), other.join().expect("no panic")];
        assert!(both.contains(&Some(2)) && both.contains(&None), "{both:?}");
    });
}
