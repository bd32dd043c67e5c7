//! What was done for a request travels with the calls that are made for it, and comes back with answers.

#![allow(clippy::disallowed_methods, reason = "tests of a driver wait for real sockets")]

mod common;

use std::sync::{Arc, Mutex};

use common::{Got, Manual, Raw, open};
use tidegate_core::gate::{CalleeId, Gate, GateConfig};
use tidegate_core::{CallerId, Context, Progress, Span};
use tidegate_driver::{Clock, Monotonic, SharedGate, context};
use tidegate_rpc::{Bytes, Client, Failure, Handler, Request, Server, asynchronous, blocking};
use tokio::sync::Notify;

/// What each handler does itself: a sleep that keeps its thread busy takes no less.
const WORK: Span = Span::from_millis(2);

fn work() {
    std::thread::sleep(WORK.into());
}

/// Totals are learned where requests come in.
fn learning() -> GateConfig {
    GateConfig::from_toml("admission = { policy = 'open' }\n[workflow]\n").expect("valid")
}

/// Contexts that a handler saw.
#[derive(Clone, Default)]
struct Seen(Arc<Mutex<Vec<Progress>>>);

impl Seen {
    /// Notes how far a request has come, and works.
    fn handler(&self) -> impl Handler {
        let seen = self.0.clone();
        blocking(move |request: Request| {
            seen.lock().expect("no panic").push(request.context.progress);
            work();
            Ok(request.payload)
        })
    }

    fn all(&self) -> Vec<Progress> {
        self.0.lock().expect("no panic").clone()
    }
}

/// Works, then calls a server twice.
fn twice(onward: Client) -> impl Handler {
    asynchronous(move |request: Request| {
        let onward = onward.clone();
        async move {
            work();
            for _ in 0..2 {
                let answer = onward.call(1, request.payload.clone()).await;
                answer.map_err(|error| Failure::new(1, error.to_string()))?;
            }
            Ok(request.payload)
        }
    })
}

fn at_least(progress: &Progress, works: u64, in_all: u64) {
    let all = |works: u64| Span::from_nanos(works * WORK.as_nanos());
    assert!(progress.elapsed >= all(works), "{works} before: {progress:?}");
    assert!(u64::from(progress.work) >= works * WORK.as_nanos() / 1000, "{progress:?}");
    assert!(progress.total >= all(in_all), "{in_all} in all: {progress:?}");
}

/// Three services in a row, of which two call the next one twice: seven times work, and each sees how much was
/// done before it. The whole is learned at the first and travels with the second request.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn progress_goes_down_two_hops_and_comes_back() {
    let seen = Seen::default();
    let back = Server::builder().gate(open(1)).bind("127.0.0.1:0", seen.handler()).expect("binds");
    let calling = |callee: &Server, config| {
        let onward = Client::builder().endpoint(callee.address());
        let server = Server::builder().gate(config).bind_with("127.0.0.1:0", |gate| {
            twice(onward.upstream(gate, CalleeId(1)).build().expect("valid"))
        });
        server.expect("binds")
    };
    let middle = calling(&back, open(1));
    let front = calling(&middle, learning());
    let client = Client::builder().endpoint(front.address()).build().expect("valid");
    for in_all in [0, 7] {
        client.call(1, "x").await.expect("served");
        let seen = std::mem::take(&mut *seen.0.lock().expect("no panic"));
        assert_eq!(seen.len(), 4);
        // Front and middle; the first call of the back; front, middle with two calls, middle again.
        for (progress, before) in seen.iter().zip([2, 3, 5, 6]) {
            at_least(progress, before, in_all);
        }
    }
}

/// A handler behind a gate of another driver, as of HTTP, and one whose client knows of no gate.
#[tokio::test]
async fn progress_comes_from_any_driver() {
    let seen = Seen::default();
    let back = Server::builder().gate(open(1)).bind("127.0.0.1:0", seen.handler()).expect("binds");
    let gate = Gate::new(&open(1), Monotonic::process().now(), 1).expect("valid");
    let gate = SharedGate::new(gate);
    let client = || Client::builder().endpoint(back.address());
    let known = client().upstream(gate.clone(), CalleeId(1)).build().expect("valid");
    let slot = gate.arrive(&Context::default()).expect("open").await.expect("open");
    let alone = client().build().expect("valid");
    let parent = slot.parent(WORK, gate.now());
    let handler = async {
        for client in [&alone, &known, &known, &alone] {
            client.call(1, "x").await.expect("served");
        }
    };
    let mut handler = std::pin::pin!(handler);
    let entered = std::future::poll_fn(|cx| {
        let _entered = context::enter_for(Context::default(), Some(parent));
        handler.as_mut().poll(cx)
    });
    entered.await;
    let seen = seen.all();
    for (progress, before) in seen.iter().zip([1, 1, 2, 1]) {
        at_least(progress, before, 0);
    }
    let done = gate.read(|gate| gate.done(parent.request)).expect("has not ended");
    at_least(&done, 2, 0);
    slot.serve();
}

/// A handler's own time is the time in its polls: what it waits for others is none of its work.
#[tokio::test]
async fn waiting_is_no_work() {
    let clock = Manual::default();
    let (waits, go_on) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (own, told, told_to) = (clock.clone(), Arc::clone(&waits), Arc::clone(&go_on));
    let handler = asynchronous(move |_| {
        own.go_on(Span::from_millis(1));
        let (own, told, told_to) = (own.clone(), Arc::clone(&told), Arc::clone(&told_to));
        async move {
            own.go_on(Span::from_millis(3));
            told.notify_one();
            told_to.notified().await;
            own.go_on(Span::from_millis(5));
            Ok(Bytes::new())
        }
    });
    let server = Server::builder()
        .gate(open(1))
        .clock(clock.clone())
        .stamps(false)
        .bind("127.0.0.1:0", handler)
        .expect("binds");
    let mut raw = Raw::connect(server.address());
    let progress = Progress { elapsed: Span::from_secs(9), ..Progress::default() };
    let context = Context { caller: CallerId(7), progress, ..Context::default() };
    let call = raw.send_as(&context, 1, b"");
    waits.notified().await;
    // It runs on this thread too, so its poll is over.
    clock.go_on(Span::from_secs(100));
    go_on.notify_one();
    let answer = tokio::task::spawn_blocking(move || raw.get_with_feedback());
    let (got, feedback) = answer.await.expect("no panic");
    assert_eq!(got, Got::Answer(call, Vec::new()));
    let done = feedback.expect("the caller is known").progress;
    let expected = Progress { elapsed: Span::from_millis(9), work: 9000, ..Progress::default() };
    assert_eq!(done, expected, "what was done here, not before");
}
