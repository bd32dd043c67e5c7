//! Server and client over real sockets: answers, refusals, failures, cancellation, credits.

#![allow(clippy::disallowed_methods, reason = "tests of a driver wait for real sockets")]

mod common;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use bytes::Bytes;
use common::{Got, Raw, held, open, patient, until};
use tidegate_core::caller::CallerConfig;
use tidegate_core::gate::GateConfig;
use tidegate_core::{Context, Rank, Reason};
use tidegate_rpc::wire::{self, Goodbye};
use tidegate_rpc::{CallError, Client, Failure, Limits, Request, Server, asynchronous, blocking};

const LONG: Duration = Duration::from_secs(60);

fn client(server: &Server) -> Client {
    Client::builder().endpoint(server.address()).build().expect("valid")
}

/// A caller that controls nothing and tries once.
fn plain() -> CallerConfig {
    CallerConfig::from_toml("throttle = { throttle = 'open' }\nretry = { attempts = 1 }")
        .expect("valid")
}

#[tokio::test]
async fn many_calls_at_once_get_their_own_answers() {
    for workers in [1, 3] {
        let server = Server::builder()
            .gate(patient())
            .workers(workers)
            .bind("127.0.0.1:0", blocking(|request| Ok(request.payload)))
            .expect("binds");
        let client = client(&server);
        let calls: Vec<_> = (0..500)
            .map(|n| {
                let client = client.clone();
                tokio::spawn(async move { client.call(n, n.to_string()).await })
            })
            .collect();
        let mut served = 0;
        for (n, call) in calls.into_iter().enumerate() {
            match call.await.expect("no panic") {
                Ok(answer) => {
                    assert_eq!(answer, n.to_string());
                    served += 1;
                }
                // The holding queue is bounded: what finds it full is told so.
                Err(error) => assert!(error.is_refusal(), "{error}"),
            }
        }
        assert!(served > 0);
        client.close().await;
        assert_eq!(server.counts().answered, served);
        server.gate().read(|gate| gate.invariants());
        server.stop(LONG);
    }
}

#[tokio::test]
async fn async_handlers_run_beside_each_other_and_hold_slots() {
    let (release, released) = tokio::sync::watch::channel(false);
    let handler = asynchronous(move |request: Request| {
        let mut released = released.clone();
        async move {
            released.wait_for(|now| *now).await.expect("not dropped");
            Ok(request.payload)
        }
    });
    let server = Server::builder().gate(open(2)).bind("127.0.0.1:0", handler).expect("binds");
    let client = Client::builder().endpoint(server.address()).caller(plain()).build().expect("ok");
    let calls: Vec<_> = (0..5)
        .map(|n: u32| {
            let client = client.clone();
            tokio::spawn(async move { client.call(1, n.to_string()).await })
        })
        .collect();
    let gate = server.gate();
    for _ in 0..10_000 {
        if gate.read(|gate| (gate.running(), gate.waiting())) == (2, 3) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(gate.read(|gate| (gate.running(), gate.waiting())), (2, 3));
    release.send(true).expect("handlers listen");
    for (n, call) in calls.into_iter().enumerate() {
        assert_eq!(call.await.expect("no panic").expect("served"), n.to_string());
    }
    assert_eq!(gate.read(|gate| (gate.running(), gate.waiting())), (0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn refusals_failures_and_panics_are_told_apart() {
    let config = GateConfig { queue_limit: 1, ..open(1) };
    let (enter, entered) = mpsc::channel();
    let (leave, left) = mpsc::channel::<()>();
    let left = Mutex::new(left);
    let handler = blocking(move |request: Request| match request.method {
        1 => {
            enter.send(()).expect("the test listens");
            left.lock().expect("no panic").recv().expect("the test lets go");
            Ok(Bytes::from_static(b"waited"))
        }
        2 => Err(Failure::new(404, "none")),
        _ => panic!("on purpose"),
    });
    let server =
        Server::builder().gate(config).workers(2).bind("127.0.0.1:0", handler).expect("binds");
    let client = Client::builder().endpoint(server.address()).caller(plain()).build().expect("ok");
    assert!(matches!(client.call(2, "").await, Err(CallError::Failed(f)) if f.code == 404));
    let panicked = client.call(3, "").await;
    assert!(matches!(panicked, Err(CallError::Failed(f)) if f.code == Failure::PANIC));
    let holds = tokio::spawn({
        let client = client.clone();
        async move { client.call(1, "").await }
    });
    tokio::task::spawn_blocking(move || entered.recv()).await.expect("runs").expect("entered");
    let waits = tokio::spawn({
        let client = client.clone();
        async move { client.call(2, "").await }
    });
    let gate = server.gate();
    until("one waits", || gate.read(|gate| gate.waiting()) == 1);
    let refused = client.call(2, "").await;
    assert!(
        matches!(refused, Err(CallError::Refused(r)) if r.reason == Reason::Full),
        "{refused:?}"
    );
    leave.send(()).expect("the handler waits");
    assert_eq!(holds.await.expect("no panic").expect("served"), "waited");
    assert!(matches!(waits.await.expect("no panic"), Err(CallError::Failed(_))));
    assert_eq!(server.counts().panics, 1);
}

/// An answer that its caller could not read fails its own call and no other; so does a message.
#[tokio::test]
async fn an_answer_that_is_too_large_fails_its_call_alone() {
    let handler = blocking(|request: Request| match request.method {
        1 => Ok(Bytes::from(vec![0; 4097])),
        2 => Err(Failure::new(7, "é".repeat(4096))),
        _ => Ok(Bytes::from(vec![0; 4096])),
    });
    let limits = Limits { payload: 4096, ..Limits::default() };
    let server = Server::builder().gate(patient()).limits(limits).bind("127.0.0.1:0", handler);
    let server = server.expect("binds");
    let client = Client::builder().endpoint(server.address()).limits(limits).build().expect("ok");
    let failed = |result| match result {
        Err(CallError::Failed(failure)) => failure,
        other => panic!("{other:?}"),
    };
    assert_eq!(failed(client.call(1, "").await).code, Failure::TOO_LARGE);
    let failure = failed(client.call(2, "").await);
    assert_eq!((failure.code, failure.message), (7, "é".repeat(2048)));
    assert_eq!(client.call(3, "").await.expect("fits").len(), 4096);
    assert_eq!(server.counts().connections, 1, "all over one connection");
}

#[test]
fn an_async_handler_needs_a_runtime_and_says_so() {
    let handler = asynchronous(|request: Request| async move { Ok(request.payload) });
    let server = Server::builder().gate(open(1)).bind("127.0.0.1:0", handler).expect("binds");
    let mut raw = Raw::connect(server.address());
    let call = raw.send(b"x");
    assert_eq!(raw.get(), Got::Failure(call, Failure::NO_RUNTIME));
}

/// What runs to completion although its caller has given up was not answered.
#[test]
fn what_nobody_waits_for_counts_as_cancelled() {
    let (handler, entered, leave) = held(|request| request.method == 1);
    let server = Server::builder().gate(open(1)).workers(2).bind("127.0.0.1:0", handler);
    let server = server.expect("binds");
    let mut raw = Raw::connect(server.address());
    let runs = raw.send_as(&Context::default(), 1, b"");
    entered.recv().expect("runs");
    let mut bytes = Vec::new();
    wire::write_cancel(&mut bytes, runs);
    let waits = raw.frame(&mut bytes, &Context::default(), 0, b"x");
    raw.write(&bytes);
    // Frames are read in order: with the second the cancel has been.
    let gate = server.gate();
    until("the second waits", || gate.read(|gate| gate.waiting()) == 1);
    leave.send(()).expect("runs");
    assert_eq!(raw.get(), Got::Answer(waits, b"x".to_vec()));
    let counts = server.counts();
    assert_eq!((counts.requests, counts.answered, counts.cancelled), (2, 1, 1), "{counts:?}");
}

/// Where nobody answers in time the client says so, and its request is cancelled.
#[tokio::test(flavor = "multi_thread")]
async fn a_deadline_that_passes_is_told_by_the_client() {
    let ran = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&ran);
    let handler = asynchronous(move |_| {
        counter.fetch_add(1, Ordering::SeqCst);
        std::future::pending()
    });
    let server = Server::builder().gate(open(1)).bind("127.0.0.1:0", handler).expect("binds");
    let client = Client::builder().endpoint(server.address()).caller(plain()).build().expect("ok");
    for patience in [20, 200, 2_000, 20_000].map(Duration::from_millis) {
        let late = client.request(1, "").deadline(patience).send().await;
        if ran.load(Ordering::SeqCst) > 0 {
            assert!(matches!(late, Err(CallError::TimedOut)), "{late:?}");
            break;
        }
        // On a machine that slow the gate was first to find out.
        assert!(late.is_err(), "{late:?}");
    }
    assert_eq!(ran.load(Ordering::SeqCst), 1);
    until("it is cancelled", || server.gate().read(|gate| gate.running()) == 0);
}

#[tokio::test]
async fn a_call_that_is_dropped_is_cancelled_at_the_server() {
    struct Dropped(Arc<AtomicUsize>);
    impl Drop for Dropped {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
    let dropped = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&dropped);
    let handler = asynchronous(move |_| {
        let guard = Dropped(Arc::clone(&counter));
        async move {
            std::future::pending::<()>().await;
            drop(guard);
            Ok(Bytes::new())
        }
    });
    let server = Server::builder().gate(open(1)).bind("127.0.0.1:0", handler).expect("binds");
    let client = Client::builder().endpoint(server.address()).caller(plain()).build().expect("ok");
    let calls: Vec<_> = (0..2)
        .map(|_| {
            let client = client.clone();
            tokio::spawn(async move { client.call(1, "never").await })
        })
        .collect();
    let gate = server.gate();
    let state = || gate.read(|gate| (gate.running(), gate.waiting()));
    for _ in 0..10_000 {
        if state() == (1, 1) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(state(), (1, 1));
    calls.iter().for_each(tokio::task::JoinHandle::abort);
    for _ in 0..10_000 {
        if state() == (0, 0) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!((state(), dropped.load(Ordering::SeqCst)), ((0, 0), 1));
    assert_eq!(server.counts().cancelled, 2);
}

#[test]
fn callers_that_say_who_they_are_get_feedback_and_credits_return_when_they_go() {
    let server = Server::builder()
        .gate(patient())
        .bind("127.0.0.1:0", blocking(|r| Ok(r.payload)))
        .expect("binds");
    let mut stranger = Raw::connect(server.address());
    stranger.send(b"x");
    assert_eq!(stranger.get_with_feedback(), (Got::Answer(1, b"x".to_vec()), None));
    let mut raw = Raw::connect(server.address());
    let context = Context { caller: tidegate_core::CallerId(9), ..Context::default() };
    raw.send_as(&context, 0, b"x");
    let (_, feedback) = raw.get_with_feedback();
    assert!(feedback.expect("told").window.expect("credits") > 0);
    let gate = server.gate();
    let issued = || gate.read(|gate| gate.admission().issued());
    let with = issued();
    raw.hang_up();
    until("the credits are back", || issued() != with);
}

/// Who has left is no caller any more, also if something of it was still running.
#[test]
fn an_answer_after_a_goodbye_gives_no_credits() {
    let (handler, entered, leave) = held(|_| true);
    let server = Server::builder().gate(patient()).workers(2).bind("127.0.0.1:0", handler);
    let server = server.expect("binds");
    let gate = server.gate();
    let issued = || gate.read(|gate| gate.admission().issued());
    let mut raw = Raw::connect(server.address());
    let context = Context { caller: tidegate_core::CallerId(9), ..Context::default() };
    let call = raw.send_as(&context, 0, b"x");
    entered.recv().expect("runs");
    assert!(!issued().is_empty(), "it is known");
    let mut bytes = Vec::new();
    wire::write_goodbye(&mut bytes, Goodbye::Leaving);
    raw.write(&bytes);
    until("its credits are back", || issued().is_empty());
    leave.send(()).expect("runs");
    assert_eq!(raw.get_with_feedback(), (Got::Answer(call, b"x".to_vec()), None));
    assert!(issued().is_empty());
}

/// Strangers have no rank, no workflow and no credits, and their names are not kept.
#[test]
fn what_strangers_say_of_themselves_is_not_believed() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&seen);
    let handler = blocking(move |request: Request| {
        noted.lock().expect("no panic").push(request.context);
        Ok(request.payload)
    });
    let server = Server::builder().gate(patient()).trust(false).bind("127.0.0.1:0", handler);
    let server = server.expect("binds");
    let mut raw = Raw::connect(server.address());
    let context = Context {
        caller: tidegate_core::CallerId(9),
        rank: Rank::FIRST,
        workflow: tidegate_driver::Names::process().number("stranger"),
        deadline: tidegate_core::Instant::ZERO + tidegate_core::Span::from_secs(600),
        ..Context::default()
    };
    let call = raw.send_as(&context, 0, b"x");
    assert_eq!(raw.get_with_feedback(), (Got::Answer(call, b"x".to_vec()), None));
    let mut seen = seen.lock().expect("no panic")[0];
    assert!(seen.deadline < tidegate_core::Instant::FAR, "that one is its own affair");
    let (deadline, rank) = (tidegate_core::Instant::FAR, seen.importance());
    let sender = std::mem::replace(&mut seen.sender, tidegate_core::Sender::UNKNOWN);
    assert_ne!(sender, seen.sender, "who it is was seen by the server itself");
    assert_eq!(Context { deadline, rank, lot: false, ..seen }, Context::default());
    assert!(seen.lot, "it has drawn a lot, as all who name nobody");
    assert!(server.gate().read(|gate| gate.admission().issued().is_empty()));
}

/// A caller that found no credit left is told of one without asking again.
#[test]
fn a_caller_that_waits_is_told_of_its_credit_unasked() {
    // The pool has one credit for its first period; on a machine too slow for that, for a longer one.
    for period in ["100ms", "1s", "10s"] {
        let gate = GateConfig::from_toml(&format!(
            "admission = {{ policy = 'breakwater', target = '10s', drop = '100s', floor = 1, \
             per_caller = 1, period = '{period}' }}\nslots = {{ slots = 'fixed', count = 1 }}"
        ));
        let server = Server::builder()
            .gate(gate.expect("valid"))
            .bind("127.0.0.1:0", blocking(|r| Ok(r.payload)))
            .expect("binds");
        let ask = |caller: u64| {
            let mut raw = Raw::connect(server.address());
            let caller = tidegate_core::CallerId(caller);
            raw.send_as(&Context { caller, demand: 1, ..Context::default() }, 0, b"x");
            let (_, feedback) = raw.get_with_feedback();
            (raw, feedback.expect("told").window)
        };
        let (first, _) = ask(1);
        let (mut second, window) = ask(2);
        if window == Some(0) {
            first.hang_up();
            let Got::Feedback(feedback) = second.get() else { panic!("told unasked") };
            assert_eq!(feedback.window, Some(1));
            return;
        }
    }
    panic!("there was always a credit left");
}

/// A single worker reads between handlers: what came while one ran is in the gate, and has its say,
/// before the next one starts.
#[test]
fn what_came_meanwhile_is_read_before_the_next_handler_runs() {
    let gate: Arc<std::sync::OnceLock<tidegate_rpc::RpcGate>> = Arc::default();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let (enter, entered) = mpsc::channel();
    let (leave, left) = mpsc::channel::<()>();
    let left = Mutex::new(left);
    let (look, noted) = (Arc::clone(&gate), Arc::clone(&seen));
    let handler = blocking(move |request: Request| {
        let waiting = look.get().expect("set below").read(|gate| gate.waiting());
        noted.lock().expect("no panic").push(waiting);
        if request.method == 1 {
            enter.send(()).expect("the test listens");
            left.lock().expect("no panic").recv().expect("the test lets go");
        }
        Ok(request.payload)
    });
    let server = Server::builder().gate(open(1)).bind("127.0.0.1:0", handler).expect("binds");
    assert!(gate.set(server.gate()).is_ok());
    let mut first = Raw::connect(server.address());
    let mut others: Vec<Raw> = (0..5).map(|_| Raw::connect(server.address())).collect();
    until("all are accepted", || server.counts().connections == 6);
    first.send_as(&Context::default(), 1, b"");
    entered.recv().expect("runs");
    // Nobody reads now; these wait in their sockets.
    first.send(b"x");
    for raw in &mut others {
        raw.send(b"y");
    }
    leave.send(()).expect("runs");
    assert_eq!(first.get(), Got::Answer(1, Vec::new()));
    assert_eq!(first.get(), Got::Answer(2, b"x".to_vec()));
    for raw in &mut others {
        assert_eq!(raw.get(), Got::Answer(1, b"y".to_vec()));
    }
    let seen = seen.lock().expect("no panic").clone();
    assert_eq!(seen, [0, 5, 4, 3, 2, 1, 0], "waiting as each handler starts");
}

/// However many slots there are: no more handlers run to completion at once than there are workers,
/// what is beyond waits in the gate, and somebody reads.
#[test]
fn workers_bound_what_runs_to_completion_and_sockets_are_read() {
    for workers in [1, 2] {
        let (handler, entered, leave) = held(|_| true);
        let server = Server::builder().gate(open(16)).workers(workers);
        let server = server.bind("127.0.0.1:0", handler).expect("binds");
        let gate = server.gate();
        let mut raw = Raw::connect(server.address());
        let mut bytes = Vec::new();
        for _ in 0..5 {
            raw.frame(&mut bytes, &Context::default(), 0, b"x");
        }
        raw.write(&bytes);
        (0..workers).for_each(|_| entered.recv().expect("runs"));
        let state = || gate.read(|gate| (gate.running() as usize, gate.waiting()));
        until("the rest waits", || state() == (workers, 5 - workers));
        if workers > 1 {
            raw.send(b"y");
            until("it is read", || state() == (workers, 6 - workers));
        }
        (0..6).for_each(|_| leave.send(()).expect("the handler waits"));
        (0..5).for_each(|_| assert!(matches!(raw.get(), Got::Answer(..))));
    }
}

/// With several servers calls go to one that lives.
#[tokio::test]
async fn calls_go_elsewhere_when_a_server_is_gone() {
    let serve = |name: &'static [u8]| {
        let handler = blocking(move |_| Ok(Bytes::from_static(name)));
        Server::builder().gate(patient()).bind("127.0.0.1:0", handler).expect("binds")
    };
    let (one, two) = (serve(b"one"), serve(b"two"));
    let caller = CallerConfig::from_toml("retry = { attempts = 3, share = 1.0 }").expect("valid");
    let client = Client::builder()
        .endpoint(one.address())
        .endpoint(two.address())
        .caller(caller)
        .build()
        .expect("valid");
    let mut heard = std::collections::BTreeSet::new();
    for _ in 0..200 {
        heard.insert(client.call(1, "").await.expect("served"));
    }
    assert_eq!(heard.len(), 2, "both are used: {heard:?}");
    tokio::task::spawn_blocking(move || drop(one)).await.expect("stops");
    let mut served = 0;
    for _ in 0..200 {
        match client.call(1, "").await {
            Ok(answer) => {
                assert_eq!(answer, "two");
                served += 1;
            }
            Err(error) => assert!(!matches!(error, CallError::Failed(_)), "{error}"),
        }
    }
    assert!(served >= 150, "{served} of 200");
}

/// Who reads its answers is served, however many large ones it asks for at once.
#[test]
fn large_answers_are_no_reason_to_refuse_whoever_takes_them() {
    let answer = Bytes::from(vec![1; 300_000]);
    let handler = blocking(move |_: Request| Ok(answer.clone()));
    let server = Server::builder().gate(open(1)).bind("127.0.0.1:0", handler).expect("binds");
    let mut raw = Raw::connect(server.address());
    for _ in 0..20 {
        let mut bytes = Vec::new();
        for _ in 0..16 {
            raw.frame(&mut bytes, &Context::default(), 0, b"");
        }
        raw.write(&bytes);
        for _ in 0..16 {
            assert!(matches!(raw.get(), Got::Answer(_, answer) if answer.len() == 300_000));
        }
    }
}
