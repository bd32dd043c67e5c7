//! Server and client over real sockets: answers, refusals, failures, cancellation, contexts, the end.

#![allow(clippy::disallowed_methods, reason = "tests of a driver wait for real sockets")]

mod common;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use bytes::Bytes;
use common::{Got, Raw, open, until};
use tidegate_core::caller::CallerConfig;
use tidegate_core::gate::{CalleeId, GateConfig};
use tidegate_core::{Context, Criticality, Feedback, Rank, Reason, Sheds, Workflow};
use tidegate_rpc::wire::Goodbye;
use tidegate_rpc::{CallError, Client, Failure, Request, Server, Upstream, asynchronous, blocking};

const LONG: Duration = Duration::from_secs(60);

/// Credits as usual, with an objective so long that a busy machine does not count as overload.
fn patient() -> GateConfig {
    let text = "admission = { policy = 'tide', objective = '100s' }\n\
                slots = { slots = 'fixed', count = 1 }";
    GateConfig::from_toml(text).expect("valid")
}

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

/// Two services in a row: the second sees rank, workflow and deadline of the first's request, and its
/// feedback reaches the first's gate.
#[tokio::test]
async fn a_handlers_calls_inherit_its_context() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&seen);
    let handler = blocking(move |request: Request| {
        noted.lock().expect("no panic").push(request.context);
        Ok(request.payload)
    });
    let back = Server::builder().gate(patient()).bind("127.0.0.1:0", handler).expect("binds");
    let onward = client(&back);
    let handler = asynchronous(move |request: Request| {
        let onward = onward.clone();
        async move {
            onward
                .call(7, request.payload)
                .await
                .map_err(|error| Failure::new(1, error.to_string()))
        }
    });
    let front = Server::builder().gate(patient()).bind("127.0.0.1:0", handler).expect("binds");
    let client = client(&front);
    let rank = Rank::new(Criticality::CriticalPlus as u8, 77);
    let call = client.request(1, "through").rank(rank).workflow("inherit").deadline(LONG);
    assert_eq!(call.send().await.expect("served"), "through");
    let seen = seen.lock().expect("no panic")[0];
    assert_eq!((seen.rank, seen.attempt), (rank, 0));
    assert_eq!(seen.workflow, tidegate_driver::Names::process().number("inherit"));
    assert!(seen.deadline < tidegate_core::Instant::FAR);
}

/// Who told, and which window.
type Told = (CalleeId, Option<u32>);

/// What a gate hears from a client behind it.
#[derive(Clone, Default)]
struct Heard {
    told: Arc<Mutex<Vec<Told>>>,
    shed: Arc<AtomicUsize>,
}

impl Upstream for Heard {
    fn on_downstream(&self, callee: CalleeId, _workflow: Workflow, feedback: &Feedback) {
        self.told.lock().expect("no panic").push((callee, feedback.window));
    }

    fn take_sheds(&self, _callee: CalleeId) -> Sheds {
        let count = self.shed.swap(0, Ordering::SeqCst) as u32;
        Sheds { count, sample: Rank::new(50, 1) }
    }
}

#[tokio::test]
async fn feedback_goes_up_the_path_and_sheds_come_down() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&seen);
    let handler = blocking(move |request: Request| {
        noted.lock().expect("no panic").push(request.context.sheds);
        Ok(request.payload)
    });
    let back = Server::builder().gate(patient()).bind("127.0.0.1:0", handler).expect("binds");
    let gate = Heard { shed: Arc::new(AtomicUsize::new(5)), ..Heard::default() };
    let onward = Client::builder()
        .endpoint(back.address())
        .upstream(gate.clone(), CalleeId(3))
        .build()
        .expect("valid");
    onward.call(1, "x").await.expect("served");
    let told = gate.told.lock().expect("no panic").clone();
    assert!(matches!(told[..], [(CalleeId(3), Some(1..))]), "{told:?}");
    let sheds = seen.lock().expect("no panic").clone();
    assert_eq!(sheds, [Sheds { count: 5, sample: Rank::new(50, 1) }]);
}

/// What was accepted is finished; callers are told; nothing new is taken.
#[test]
fn stopping_finishes_what_was_let_in() {
    let (enter, entered) = mpsc::channel();
    let (leave, left) = mpsc::channel::<()>();
    let left = Mutex::new(left);
    let handler = blocking(move |request: Request| {
        enter.send(()).expect("the test listens");
        left.lock().expect("no panic").recv().expect("the test lets go");
        Ok(request.payload)
    });
    let server = Server::builder().gate(open(1)).workers(2).bind("127.0.0.1:0", handler);
    let server = server.expect("binds");
    let mut raw = Raw::connect(server.address());
    let (first, second) = (raw.send(b"first"), raw.send(b"second"));
    entered.recv().expect("runs");
    let gate = server.gate();
    until("the second waits", || gate.read(|gate| gate.waiting()) == 1);
    let address = server.address();
    let stopping = std::thread::spawn(move || server.stop(LONG));
    assert_eq!(raw.get(), Got::Goodbye(Goodbye::Leaving));
    let third = raw.send(b"third");
    let Got::Refusal(call, rejection) = raw.get() else { panic!("refused") };
    assert_eq!((call, rejection.reason), (third, Reason::Draining));
    assert!(std::net::TcpStream::connect(address).is_err(), "nobody new is taken");
    leave.send(()).expect("runs");
    assert_eq!(raw.get(), Got::Answer(first, b"first".to_vec()));
    leave.send(()).expect("runs");
    assert_eq!(raw.get(), Got::Answer(second, b"second".to_vec()));
    assert_eq!(raw.get(), Got::End);
    stopping.join().expect("stops");
}

/// When the grace is over, what waits is refused and what runs as a task is failed: all are told.
#[tokio::test(flavor = "multi_thread")]
async fn a_stop_without_grace_tells_everybody() {
    let handler = asynchronous(|_| async { std::future::pending().await });
    let server = Server::builder().gate(open(1)).bind("127.0.0.1:0", handler).expect("binds");
    let mut raw = Raw::connect(server.address());
    let (runs, waits) = (raw.send(b"runs"), raw.send(b"waits"));
    let gate = server.gate();
    until("one waits", || gate.read(|gate| gate.waiting()) == 1);
    let ended = tokio::task::spawn_blocking(move || {
        let mut got = Vec::new();
        loop {
            match raw.get() {
                Got::End => return got,
                other => got.push(other),
            }
        }
    });
    tokio::task::spawn_blocking(move || server.stop(Duration::ZERO)).await.expect("stops");
    let got = ended.await.expect("no panic");
    assert!(got.contains(&Got::Failure(runs, Failure::STOPPED)), "{got:?}");
    let refused = |got: &Got| matches!(got, Got::Refusal(call, r) if *call == waits && r.reason == Reason::Draining);
    assert!(got.iter().any(refused), "{got:?}");
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
