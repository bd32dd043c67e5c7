//! Contexts along a call path, over real sockets: what is inherited, what is believed, what is told.

#![allow(clippy::disallowed_methods, reason = "tests of a driver wait for real sockets")]

mod common;

use std::convert::Infallible;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use common::{Client, Function, get, serve, text, until};
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use tidegate_core::caller::CallerConfig;
use tidegate_core::entry::{Entry, EntryConfig};
use tidegate_core::gate::{CalleeId, GateConfig};
use tidegate_core::{Context, Criticality, Rank, Span};
use tidegate_driver::{Clock, Monotonic, SharedCaller, SharedGate, context};
use tidegate_http::server::Pressure;
use tidegate_http::{CallerLayer, GateLayer, Trust, wire};
use tower_layer::Layer;
use tower_service::Service;

/// One runs, one waits, and the next is refused.
const FULL_AT_TWO: &str =
    "queue_limit = 1\nadmission = { policy = 'open' }\nslots = { slots = 'fixed', count = 1 }";

fn gate(text: &str) -> SharedGate {
    SharedGate::build(&GateConfig::from_toml(text).expect("valid")).expect("checked")
}

fn caller(text: &str) -> SharedCaller {
    SharedCaller::build(&CallerConfig::from_toml(text).expect("valid"), 1).expect("checked")
}

/// What handlers saw, in order.
type Seen = Arc<Mutex<Vec<Sight>>>;

#[derive(Debug)]
struct Sight {
    context: Context,
    pressure: Pressure,
    /// Until the deadline.
    left: Span,
}

fn note<Q>(seen: &Seen, request: &Request<Q>) {
    let context = context::current().expect("a handler has a context");
    let left = context.deadline.since(Monotonic::process().now());
    let pressure = Pressure::of(request.extensions());
    seen.lock().unwrap().push(Sight { context, pressure, left });
}

fn ok(text: &'static str) -> Result<Response<Full<Bytes>>, Infallible> {
    Ok(Response::new(Full::from(text)))
}

/// A backend that is inside, and notes what it sees.
async fn backend(gate: SharedGate) -> (std::net::SocketAddr, Seen) {
    let seen = Seen::default();
    let noted = Arc::clone(&seen);
    let handler = Function(move |request: Request<_>| {
        note(&noted, &request);
        async { ok("backend") }
    });
    (serve(GateLayer::new(gate).trust(Trust::Inside).layer(handler)).await, seen)
}

/// Edge → middle → backend. The edge assigns the rank, and it arrives unchanged two hops later; the
/// deadline shrinks on the way; a criticality can be overridden at a point.
#[tokio::test]
async fn a_rank_is_inherited_through_two_hops() {
    let (backend, at_backend) = backend(gate("")).await;
    let at_middle = Seen::default();
    let noted = Arc::clone(&at_middle);
    let out = CallerLayer::new(caller("")).layer(Client(backend));
    let middle = Function(move |request: Request<_>| {
        note(&noted, &request);
        let mut out = out.clone();
        async move {
            // A task of its own keeps the context by `spawn`.
            let call = async move { out.call(get("/low")).await };
            let response = tidegate_http::spawn(call).await.expect("no panic").expect("connects");
            assert_eq!(response.status(), StatusCode::OK);
            assert!(response.headers().contains_key(wire::FEEDBACK));
            ok("middle")
        }
    });
    let middle = serve(GateLayer::new(gate("")).trust(Trust::Inside).layer(middle)).await;
    let out = CallerLayer::new(caller("")).layer(Client(middle));
    let table = [("GET /pay".to_owned(), 1), ("GET /browse".to_owned(), 40)];
    let entry = EntryConfig { actions: Some(table.into_iter().collect()) };
    let edge = Function(move |request: Request<hyper::body::Incoming>| {
        let mut out = out.clone();
        let lowered = request.uri().path() == "/browse";
        async move {
            let context = context::current().expect("a handler has a context");
            let call = async move { out.call(get("/middle")).await };
            let response = if lowered {
                context::scope(context.with_criticality(Criticality::Sheddable), call).await
            } else {
                call.await
            };
            assert_eq!(response.expect("connects").status(), StatusCode::OK);
            ok("edge")
        }
    });
    let layer = GateLayer::new(gate(""))
        .patience(Span::from_secs(3600))
        .entry(Entry::new(&entry, *b"0123456789abcdef"));
    let edge = serve(layer.layer(edge)).await;

    for path in ["/pay", "/browse", "/unlisted"] {
        let mut request = get(path);
        request.headers_mut().insert("authorization", "Bearer ann".parse().unwrap());
        // A stranger's claim.
        request.headers_mut().insert(wire::CONTEXT, "r=(0 0), c=\"7\", a=3".parse().unwrap());
        let response = Client(edge).call(request).await.expect("connects");
        assert_eq!(response.status(), StatusCode::OK);
        assert!(!response.headers().contains_key(wire::FEEDBACK), "nothing leaks at an edge");
    }
    let (at_middle, at_backend) = (at_middle.lock().unwrap(), at_backend.lock().unwrap());
    let rank = |sight: &Sight| sight.context.rank;
    let businesses: Vec<u8> = at_middle.iter().map(|sight| rank(sight).business()).collect();
    assert_eq!(businesses, [1, 56, 63]);
    for (middle, backend) in at_middle.iter().zip(at_backend.iter()) {
        assert_eq!(rank(middle), rank(backend));
        assert_eq!(rank(middle).user(), rank(&at_middle[0]).user(), "one user, one rank");
        assert!(backend.left < middle.left && middle.left < Span::from_secs(3600));
        let (middle, backend) = (middle.context, backend.context);
        assert_ne!(middle.caller, backend.caller, "each process calls in its own name");
        assert_eq!((middle.attempt, backend.attempt), (0, 0));
    }
    let seen = at_middle[0].pressure;
    assert_eq!(seen, Pressure { degraded: false, rank: rank(&at_middle[0]) });
}

#[tokio::test]
async fn what_a_stranger_claims_changes_nothing_at_an_edge() {
    let entry = || Entry::new(&EntryConfig::default(), *b"0123456789abcdef");
    let seen = Seen::default();
    let noted = Arc::clone(&seen);
    let handler = Function(move |request: Request<_>| {
        note(&noted, &request);
        assert!(!request.headers().contains_key(wire::CONTEXT));
        async { ok("") }
    });
    let layer = GateLayer::new(gate("")).entry(entry());
    let address = serve(layer.layer(handler)).await;
    let claims = ["r=(0 0)", "r=(63 9), a=2, q=9, c=\"1\", s=(900 0 0)", "garbage((", "d=0"];
    for claim in [None].into_iter().chain(claims.map(Some)) {
        let mut request = get("/");
        request.headers_mut().insert("x-envoy-attempt-count", "3".parse().unwrap());
        if let Some(claim) = claim {
            request.headers_mut().insert(wire::CONTEXT, claim.parse().unwrap());
        }
        let response = Client(address).call(request).await.expect("connects");
        assert_eq!(response.status(), StatusCode::OK);
    }
    let seen = seen.lock().unwrap();
    assert_eq!(seen.len(), 5);
    assert!(seen.iter().all(|sight| sight.context == seen[0].context), "{seen:?}");
    assert_eq!(layer.malformed(), 0, "what is not read is not malformed");
}

#[tokio::test]
async fn inside_a_malformed_context_is_ignored_whole_and_counted() {
    let seen = Seen::default();
    let noted = Arc::clone(&seen);
    let handler = Function(move |request: Request<_>| {
        note(&noted, &request);
        async { ok("") }
    });
    let layer = GateLayer::new(gate("")).trust(Trust::when(|head| {
        head.headers.get("x-cluster").is_some_and(|value| value == "ours")
    }));
    let address = serve(layer.layer(handler)).await;
    for (cluster, field) in
        [("ours", "r=(3 7), d=9000, a=1"), ("ours", "r=(3 7), d=x"), ("else", "r=(3 7)")]
    {
        let mut request = get("/");
        request.headers_mut().insert("x-cluster", cluster.parse().unwrap());
        request.headers_mut().insert(wire::CONTEXT, field.parse().unwrap());
        let response = Client(address).call(request).await.expect("connects");
        assert_eq!(response.status(), StatusCode::OK);
        let listens = (cluster, field.contains('x')) == ("ours", false);
        assert_eq!(response.headers().contains_key(wire::FEEDBACK), listens, "{cluster} {field}");
    }
    let ranks: Vec<Rank> = seen.lock().unwrap().iter().map(|sight| sight.context.rank).collect();
    let unranked = Rank::new(24, u16::MAX);
    assert_eq!(ranks, [Rank::new(3, 7), unranked, unranked]);
    assert_eq!(layer.malformed(), 1);
}

#[tokio::test]
async fn refusals_speak_to_everybody_and_health_is_never_refused() {
    let gate = gate(FULL_AT_TWO);
    let handler = Function(|request: Request<hyper::body::Incoming>| async move {
        if request.uri().path() == "/wait" {
            std::future::pending::<()>().await;
        }
        ok("served")
    });
    let layer = GateLayer::new(gate.clone()).trust(Trust::Inside);
    let address = serve(layer.layer(handler)).await;
    let mut held = Vec::new();
    for busy in 1..=2u32 {
        held.push(tokio::spawn(Client(address).call(get("/wait"))));
        until(|| gate.running() + gate.waiting() as u32 == busy).await;
    }
    let mut client = Client(address);
    let mut request = get("/");
    request.headers_mut().insert(wire::CONTEXT, "r=(30 5), c=\"9\"".parse().unwrap());
    let refused = client.call(request).await.expect("a refusal is a response");
    assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
    let told = wire::feedback_of(refused.headers()).expect("told").expect("well-formed");
    assert_eq!(told.rejection.expect("refused").reason, tidegate_core::Reason::Full);
    assert!(refused.headers().contains_key("retry-after"));
    let problem = text(refused.into_body()).await;
    assert!(
        problem.contains("\"reason\":\"full\"") && problem.contains("\"rank\":[30,5]"),
        "{problem}"
    );

    let mut request = get("/pkg.Service/Method");
    request.headers_mut().insert("content-type", "application/grpc".parse().unwrap());
    let refused = client.call(request).await.expect("a refusal is a response");
    assert_eq!(
        (refused.status(), &refused.headers()["grpc-status"]),
        (StatusCode::OK, &"14".parse().unwrap())
    );
    assert!(!refused.headers().contains_key(wire::FEEDBACK), "it sent no context");

    let mut request = get("/");
    request.headers_mut().insert("grpc-timeout", "0m".parse().unwrap());
    let refused = client.call(request).await.expect("a refusal is a response");
    assert_eq!(refused.status(), StatusCode::GATEWAY_TIMEOUT);

    for path in ["/healthz", "/grpc.health.v1.Health/Check"] {
        let healthy = client.call(get(path)).await.expect("connects");
        assert_eq!(healthy.status(), StatusCode::OK, "{path}");
    }
    for held in held {
        held.abort();
    }
    until(|| gate.running() == 0 && gate.waiting() == 0 && gate.tickets() == 0).await;
}

/// The workflow that has used up its quota is told so in everybody's words; another passes.
#[tokio::test]
async fn a_workflow_beyond_its_quota_gets_429() {
    let gate = gate(
        "[[limits]]\nlimit = 'quota'\n\
         quotas = [{ workflow = 'mail', rate = 0.1, burst = 2 }]\n",
    );
    let handler = Function(|_: Request<hyper::body::Incoming>| async move { ok("served") });
    let layer = GateLayer::new(gate.clone()).trust(Trust::Inside);
    let mut client = Client(serve(layer.layer(handler)).await);
    let mut ask = async |workflow: &str| {
        let mut request = get("/");
        let context = format!("w=\"{workflow}\", c=\"9\"").parse().unwrap();
        request.headers_mut().insert(wire::CONTEXT, context);
        client.call(request).await.expect("connects")
    };
    for _ in 0..2 {
        assert_eq!(ask("mail").await.status(), StatusCode::OK);
    }
    let refused = ask("mail").await;
    assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
    let header = |name: &str| refused.headers()[name].to_str().unwrap().to_owned();
    assert_eq!(header("ratelimit-policy"), "\"quota\";q=1;w=10");
    assert!(header("ratelimit").starts_with("\"quota\";r=0;t="), "{}", header("ratelimit"));
    let seconds: u64 = header("retry-after").parse().unwrap();
    assert!((9..=15).contains(&seconds), "ten, and its half as spread: {seconds}");
    let told = wire::feedback_of(refused.headers()).expect("told").expect("well-formed");
    assert_eq!(told.rejection.expect("refused").reason, tidegate_core::Reason::Quota);
    let body = text(refused.into_body()).await;
    assert!(body.contains("\"which\":\"limits.0\""), "{body}");
    assert_eq!(ask("calendar").await.status(), StatusCode::OK);
}

/// A server that refuses everything hears each call three times while the budget lasts, and then
/// once: retries stop at the budget.
#[tokio::test]
async fn retries_stop_at_the_budget() {
    const CALLS: u32 = 60;
    let heard = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&heard);
    let server = Function(move |_: Request<hyper::body::Incoming>| {
        counted.fetch_add(1, Ordering::SeqCst);
        async {
            let mut response = Response::new(Full::<Bytes>::from("busy"));
            *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
            response
                .headers_mut()
                .insert(wire::FEEDBACK, "why=full, then=elsewhere".parse().unwrap());
            Ok::<_, Infallible>(response)
        }
    });
    let address = serve(server).await;
    let caller = caller("retry = { share = 0.1, reserve = 5, attempts = 3 }");
    let mut out = CallerLayer::new(caller.clone()).layer(Client(address));
    for _ in 0..CALLS {
        let refused = out.call(get("/")).await.expect("connects");
        assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
    }
    let heard = heard.load(Ordering::SeqCst);
    assert!(heard > CALLS && heard <= CALLS + CALLS / 10 + 5, "{heard} heard of {CALLS}");
    assert_eq!(caller.read(|caller| caller.in_flight(0)), 0);
    // What cannot be repeated is sent once.
    let mut once = CallerLayer::new(caller).once().layer(Client(address));
    let refused = once.call(get("/")).await.expect("connects");
    assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
}

/// A first answer says when to come back; the second attempt comes then, and not before.
#[tokio::test]
async fn a_pause_that_is_asked_for_is_kept() {
    let attempts = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&attempts);
    let server = Function(move |request: Request<hyper::body::Incoming>| {
        let field = request.headers()[wire::CONTEXT].to_str().unwrap().to_owned();
        noted.lock().unwrap().push((std::time::Instant::now(), field));
        let first = noted.lock().unwrap().len() == 1;
        async move {
            let mut response = Response::new(Full::<Bytes>::from("busy"));
            if first {
                *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
                response.headers_mut().insert("retry-after", "1".parse().unwrap());
            }
            Ok::<_, Infallible>(response)
        }
    });
    let address = serve(server).await;
    let mut out = CallerLayer::new(caller("")).layer(Client(address));
    let served = out.call(get("/")).await.expect("connects");
    assert_eq!(served.status(), StatusCode::OK);
    let attempts = attempts.lock().unwrap();
    let [(first, _), (second, field)] = &attempts[..] else { panic!("two attempts") };
    assert!(second.duration_since(*first) >= Duration::from_secs(1));
    assert!(field.contains("a=1"), "{field}");
}

#[tokio::test]
async fn rejections_at_the_caller_are_responses_and_dropped_calls_free_everything() {
    let started = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&started);
    let server = Function(move |_: Request<hyper::body::Incoming>| {
        counted.fetch_add(1, Ordering::SeqCst);
        std::future::pending::<Result<Response<Full<Bytes>>, Infallible>>()
    });
    let address = serve(server).await;
    let caller = caller("hold_limit = 1\nthrottle = { throttle = 'window', start = 1, limit = 1 }");
    let out = CallerLayer::new(caller.clone()).layer(Client(address));
    let call = || tokio::spawn(out.clone().call(get("/")));
    let sent = call();
    until(|| started.load(Ordering::SeqCst) == 1).await;
    let held = call();
    until(|| caller.waiting() == 1).await;
    let rejected = out.clone().call(get("/")).await.expect("a rejection is a response");
    assert_eq!(rejected.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(started.load(Ordering::SeqCst), 1, "what is rejected here never leaves");
    held.abort();
    sent.abort();
    until(|| caller.waiting() == 0 && caller.read(|c| c.held() == 0 && c.in_flight(0) == 0)).await;
    caller.read(tidegate_core::Caller::invariants);
    // A deadline ends a call that is under way.
    let mut patient =
        CallerLayer::new(caller.clone()).patience(Span::from_millis(30)).layer(Client(address));
    let late = patient.call(get("/")).await.expect("a passed deadline is a response");
    assert_eq!(late.status(), StatusCode::GATEWAY_TIMEOUT);
    assert_eq!(caller.read(|caller| caller.in_flight(0)), 0);
}

/// What a request takes in all is learned where it came in, from its handler and from what the backend reports, and
/// travels with the next ones: what `lstf` and `srtf` order by.
#[tokio::test]
async fn progress_travels_and_totals_are_learned() {
    const CONTROLLED: &str = "schedule = { order = 'lstf' }\n[workflow]\n";
    let work = || std::thread::sleep(Duration::from_millis(3));
    let seen = Seen::default();
    let noted = Arc::clone(&seen);
    let handler = Function(move |request: Request<_>| {
        note(&noted, &request);
        async move {
            work();
            ok("backend")
        }
    });
    let layer = GateLayer::new(gate(CONTROLLED)).trust(Trust::Inside);
    let backend = serve(layer.layer(handler)).await;
    let front = gate(CONTROLLED);
    let out = CallerLayer::new(caller("")).upstream(front.clone(), CalleeId(1));
    let out = out.layer(Client(backend));
    let handler = Function(move |_: Request<hyper::body::Incoming>| {
        let mut out = out.clone();
        async move {
            work();
            let response = out.call(get("/")).await.expect("connects");
            assert_eq!(response.status(), StatusCode::OK);
            ok("front")
        }
    });
    let address = serve(GateLayer::new(front.clone()).layer(handler)).await;
    for _ in 0..2 {
        let response = Client(address).call(get("/")).await.expect("connects");
        assert_eq!(response.status(), StatusCode::OK);
        until(|| front.running() == 0).await;
    }
    let seen = seen.lock().unwrap();
    let progress = [0, 1].map(|at| seen[at].context.progress);
    assert_eq!(progress[0].total, Span::ZERO, "nothing was known of the first");
    for progress in progress {
        assert!(progress.elapsed >= Span::from_millis(3), "what its caller did: {progress:?}");
    }
    let both = Span::from_millis(6);
    assert!(
        progress[1].total >= both,
        "of the second, what the first took here and there: {progress:?}"
    );
}
