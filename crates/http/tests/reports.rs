//! What answers say besides their answer: feedback in trailers, load reports, and what callers make of
//! answers that are late or never come.

#![allow(clippy::disallowed_methods, reason = "tests of a driver wait for real sockets")]

mod common;

use std::convert::Infallible;
use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use common::{Function, get};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use tidegate_core::Span;
use tidegate_core::caller::CallerConfig;
use tidegate_core::gate::GateConfig;
use tidegate_driver::{SharedCaller, SharedGate};
use tidegate_http::client::Endpoint;
use tidegate_http::{CallerLayer, GateLayer, Trust, wire};
use tower_layer::Layer;
use tower_service::Service;

type Answer = Result<Response<Full<Bytes>>, Infallible>;

fn caller(text: &str, endpoints: usize) -> SharedCaller {
    let config = CallerConfig::from_toml(text).expect("valid");
    SharedCaller::build(&config, endpoints).expect("checked")
}

fn gate(text: &str) -> SharedGate {
    SharedGate::build(&GateConfig::from_toml(text).expect("valid")).expect("checked")
}

fn ok() -> Answer {
    Ok(Response::new(Full::from("served")))
}

/// Answers at once, but the first request for `/slow`, which is never answered.
fn mostly_quick(
    heard: &Arc<AtomicUsize>,
) -> impl Service<
    Request<Full<Bytes>>,
    Response = Response<Full<Bytes>>,
    Error = Infallible,
    Future: Send,
> + Clone
+ Send
+ 'static {
    let heard = Arc::clone(heard);
    Function(move |request: Request<Full<Bytes>>| {
        let slow = request.uri().path() == "/slow" && heard.fetch_add(1, Ordering::SeqCst) == 0;
        async move { if slow { pending::<Answer>().await } else { ok() } }
    })
}

/// A request that takes longer than most is sent once more, elsewhere; the first answer is taken and
/// the other call given up.
#[tokio::test]
async fn a_late_answer_is_hedged_if_the_request_may_be_done_twice() {
    let caller = caller("[hedge]\nleast = '1ms'\n[retry]\nreserve = 20", 2);
    let heard = Arc::new(AtomicUsize::new(0));
    let mut client = CallerLayer::new(caller.clone())
        .patience(Span::from_millis(300))
        .layer(mostly_quick(&heard));
    for _ in 0..100 {
        client.call(get("/")).await.unwrap();
    }
    let answer = client.call(get("/slow")).await.unwrap();
    assert_eq!((answer.status(), heard.load(Ordering::SeqCst)), (StatusCode::OK, 2));
    let in_flight = |caller: &SharedCaller| {
        caller.read(|caller| (0..2).map(|at| caller.in_flight(at)).sum::<u32>())
    };
    assert_eq!(in_flight(&caller), 0, "the first was given up");

    heard.store(0, Ordering::SeqCst);
    let mut post = get("/slow");
    *post.method_mut() = Method::POST;
    let answer = client.call(post).await.unwrap();
    assert_eq!((answer.status(), heard.load(Ordering::SeqCst)), (StatusCode::GATEWAY_TIMEOUT, 1));
    assert_eq!(in_flight(&caller), 0);
}

/// Dropped while both attempts are under way, a hedged call leaves nothing behind.
#[tokio::test]
async fn a_hedged_call_that_is_dropped_frees_both() {
    let caller = caller("[hedge]\nleast = '1ms'", 2);
    let heard = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&heard);
    let service = Function(move |request: Request<Full<Bytes>>| {
        let slow = request.uri().path() == "/slow";
        counted.fetch_add(usize::from(slow), Ordering::SeqCst);
        async move { if slow { pending::<Answer>().await } else { ok() } }
    });
    let mut client = CallerLayer::new(caller.clone()).layer(service);
    for _ in 0..100 {
        client.call(get("/")).await.unwrap();
    }
    let call = tokio::spawn(client.call(get("/slow")));
    common::until(|| heard.load(Ordering::SeqCst) == 2).await;
    call.abort();
    assert!(call.await.is_err());
    assert_eq!(caller.read(|caller| (caller.in_flight(0), caller.in_flight(1))), (0, 0));
}

/// Calls that are held wake by one timer, and give up when they have waited long enough.
#[tokio::test]
async fn held_calls_give_up_although_nothing_comes_in() {
    let caller = caller(
        "hold_time = '20ms'\n[throttle]\nthrottle = 'window'\nincrease = 0.0\nslo = '60s'",
        1,
    );
    let service = Function(|_: Request<Full<Bytes>>| pending::<Answer>());
    let mut client = CallerLayer::new(caller.clone()).layer(service);
    let first = tokio::spawn(client.call(get("/")));
    common::until(|| caller.read(|caller| caller.in_flight(0)) == 1).await;
    let held: Vec<_> = (0..10).map(|_| tokio::spawn(client.call(get("/")))).collect();
    for call in held {
        let answer = call.await.unwrap().unwrap();
        assert_eq!(answer.status(), StatusCode::SERVICE_UNAVAILABLE);
    }
    first.abort();
    // The timer stops when nothing is left of the layer, and starts again for whoever waits next.
    assert!(first.await.is_err());
    assert_eq!(caller.read(|caller| caller.in_flight(0)), 0);
}

/// What a gate says in trailers is heard: here that it lets nothing in any more.
#[tokio::test]
async fn feedback_in_trailers_of_grpc_is_heard() {
    let caller = caller("throttle = { throttle = 'credit' }", 1);
    let service = Function(|_: Request<Full<Bytes>>| async {
        let trailers = HeaderMap::from_iter([(
            wire::FEEDBACK,
            HeaderValue::from_static("n=0, f=(), l=(), x=60000, i=\"2a\", v=7"),
        )]);
        let body = Full::<Bytes>::from("message").with_trailers(async { Some(Ok(trailers)) });
        let mut response = Response::new(body);
        let kind = HeaderValue::from_static("application/grpc");
        response.headers_mut().insert("content-type", kind);
        Ok::<_, Infallible>(response)
    });
    let mut client = CallerLayer::new(caller).once().layer(service);
    for _ in 0..2 {
        // Unread, they say nothing.
        assert_eq!(client.call(get("/")).await.unwrap().status(), StatusCode::OK);
    }
    client.call(get("/")).await.unwrap().into_body().collect().await.expect("whole");
    let answer = client.call(get("/")).await.unwrap();
    assert_eq!(answer.status(), StatusCode::SERVICE_UNAVAILABLE);
}

/// Of two endpoints the one that reports to be busy gets less, in words of ORCA.
#[tokio::test]
async fn load_reports_weigh_the_choice_of_an_endpoint() {
    let heard = Arc::new([AtomicUsize::new(0), AtomicUsize::new(0)]);
    let counted = Arc::clone(&heard);
    let service = Function(move |request: Request<Full<Bytes>>| {
        let Endpoint(at) = *request.extensions().get().expect("an endpoint");
        counted[at].fetch_add(1, Ordering::SeqCst);
        let report =
            ["TEXT cpu_utilization=0.1,application_utilization=20", "TEXT cpu_utilization=0.1"][at];
        async move {
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
            let mut response = ok()?;
            response.headers_mut().insert(wire::LOAD, HeaderValue::from_static(report));
            Ok::<_, Infallible>(response)
        }
    });
    let mut client = CallerLayer::new(caller("", 2)).layer(service);
    for _ in 0..100 {
        client.call(get("/")).await.unwrap();
    }
    let [busy, idle] = [0, 1].map(|at| heard[at].load(Ordering::SeqCst));
    assert!(idle > 3 * busy, "{busy} and {idle}");
}

/// A gRPC request, with a context if `inside`.
fn call(context: Option<&'static str>) -> Request<Full<Bytes>> {
    let mut request = Request::new(Full::default());
    request.headers_mut().insert("content-type", HeaderValue::from_static("application/grpc"));
    if let Some(context) = context {
        request.headers_mut().insert(wire::CONTEXT, HeaderValue::from_static(context));
    }
    request
}

/// Trusted callers with a context get feedback in headers and trailers, those without a load report;
/// strangers get nothing, unless it is asked for.
#[tokio::test]
async fn answers_tell_the_state_of_the_gate_to_those_who_may_know() {
    let handler = Function(|_: Request<Full<Bytes>>| async {
        let body = Full::<Bytes>::from("message").with_trailers(async {
            Some(Ok(HeaderMap::from_iter([(
                http::HeaderName::from_static("grpc-status"),
                HeaderValue::from_static("0"),
            )])))
        });
        let mut response = Response::new(body);
        // What a service behind says of itself does not pass.
        let other = HeaderValue::from_static("TEXT cpu_utilization=0.123");
        response.headers_mut().insert(wire::LOAD, other);
        Ok::<_, Infallible>(response)
    });
    let listens = Some("r=(1 2), c=\"7\"");
    for (trust, report, context, feedback, load) in [
        (Trust::Inside, None, listens, true, false),
        (Trust::Inside, None, None, false, true),
        (Trust::Inside, Some(false), None, false, false),
        (Trust::Edge, None, listens, false, false),
        (Trust::Edge, Some(true), listens, false, true),
    ] {
        let case = format!("{trust:?} {report:?} {context:?}");
        let mut layer = GateLayer::new(gate("")).trust(trust);
        if let Some(report) = report {
            layer = layer.report_load(report);
        }
        let answer = layer.layer(handler.clone()).call(call(context)).await.unwrap();
        let headers = answer.headers().clone();
        let body = answer.into_body().collect().await.unwrap();
        let trailers = body.trailers().expect("those of the handler").clone();
        assert!(trailers.contains_key("grpc-status"), "{case}");
        for told in [&headers, &trailers] {
            assert_eq!(told.contains_key(wire::FEEDBACK), feedback, "{case}");
            assert_eq!(told.contains_key(wire::LOAD_BIN), load, "{case}");
            assert!(!told.contains_key(wire::LOAD), "{case}");
        }
    }
}
