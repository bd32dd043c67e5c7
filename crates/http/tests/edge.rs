//! What a layer at an edge makes of strangers: workflows by route, limits by who they are, and nothing of what they claim.

#![allow(clippy::disallowed_methods, reason = "tests of a driver wait for real sockets")]

mod common;

use std::convert::Infallible;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use common::{Client, Function, get, serve, text};
use http::{Method, Request, Response, StatusCode};
use http_body_util::Full;
use tidegate_core::gate::GateConfig;
use tidegate_driver::{SharedGate, context};
use tidegate_http::GateLayer;
use tidegate_http::server::{Head, Pressure, Rule, Trust};
use tidegate_http::wire::Names;
use tokio::sync::Semaphore;
use tower_layer::Layer;
use tower_service::Service;

fn layer(config: &str) -> GateLayer {
    let config = GateConfig::from_toml(config).unwrap_or_else(|error| panic!("{error}"));
    GateLayer::new(SharedGate::build(&config).expect("valid")).names(Names::default())
}

/// What the gate asks of its handler.
async fn pressed<B>(request: Request<B>) -> Result<Response<Full<Bytes>>, Infallible> {
    let degraded = Pressure::of(request.extensions()).degraded;
    Ok(Response::new(Full::from(if degraded { "cheap" } else { "whole" })))
}

async fn status(client: &mut Client, path: &str, headers: &[(&str, &str)]) -> StatusCode {
    let mut request = get(path);
    for (name, value) in headers {
        request.headers_mut().insert(
            http::HeaderName::from_bytes(name.as_bytes()).expect("a name"),
            value.parse().expect("a value"),
        );
    }
    client.call(request).await.expect("an answer").status()
}

/// Limits by workflow, quotas and trees could once not be reached by who uses the library at an edge.
#[tokio::test]
async fn a_workflow_by_route_has_the_limits_of_its_name() {
    let bucket = "rate = 0.001, burst = 1.0";
    for limit in [
        format!("{{ limit = 'rate', each = 'workflow', {bucket} }}"),
        format!(
            "{{ limit = 'tree', nodes = [{{ path = 'shop', {bucket} }}, {{ path = 'news', {bucket} }}] }}"
        ),
        format!(
            "{{ limit = 'quota', enforce = 'always', default = {{ {bucket} }}, \
             quotas = [{{ workflow = 'shop', {bucket} }}] }}"
        ),
        "{ limit = 'window', each = 'workflow', quota = 1.0, period = 'day' }".to_owned(),
    ] {
        let layer = layer(&format!("limits = [{limit}]\n"));
        let layer = layer.workflow(|head| head.uri.path().strip_prefix('/').map(str::to_owned));
        let mut client = Client(serve(layer.layer(Function(pressed))).await);
        assert_eq!(status(&mut client, "/shop", &[]).await, 200, "{limit}");
        // A stranger's claim is not what counts.
        let claim = [("overload-context", "w=\"news\"")];
        assert_eq!(status(&mut client, "/shop", &claim).await, 429, "{limit}");
        assert_eq!(status(&mut client, "/news", &[]).await, 200, "{limit}");
    }
}

/// Inside, what a request says of itself goes before what its route says.
#[tokio::test]
async fn a_trusted_context_names_its_workflow_itself() {
    let layer =
        layer("limits = [{ limit = 'rate', each = 'workflow', rate = 0.001, burst = 1.0 }]\n");
    let layer = layer.trust(Trust::Inside).workflow(|_| Some("all".to_owned()));
    let mut client = Client(serve(layer.layer(Function(pressed))).await);
    assert_eq!(status(&mut client, "/", &[]).await, 200);
    assert_eq!(status(&mut client, "/", &[]).await, 429);
    let mine = [("overload-context", "w=\"mine\"")];
    assert_eq!(status(&mut client, "/", &mine).await, 200);
}

#[tokio::test]
async fn a_limit_goes_by_the_header_that_was_named() {
    let layer =
        layer("limits = [{ limit = 'rate', each = 'header', rate = 0.001, burst = 1.0 }]\n");
    let layer = layer.limit_header(http::HeaderName::from_static("x-api-key"));
    let mut client = Client(serve(layer.layer(Function(pressed))).await);
    for (key, expected) in [("1", 200), ("1", 429), ("2", 200)] {
        assert_eq!(status(&mut client, "/", &[("x-api-key", key)]).await, expected, "{key}");
    }
}

/// A gate before this one has asked for a cheaper answer. Strangers may not: it would be theirs to choose what others get.
#[tokio::test]
async fn a_cheaper_answer_is_asked_for_by_whom_we_trust() {
    for (trust, expected) in [(Trust::Inside, "cheap"), (Trust::Edge, "whole")] {
        let layer = layer("").trust(trust);
        let mut client = Client(serve(layer.layer(Function(pressed))).await);
        let mut request = get("/");
        request.headers_mut().insert("overload-degrade", "?1".parse().expect("a value"));
        let answer = client.call(request).await.expect("an answer");
        assert_eq!(text(answer.into_body()).await, expected);
    }
}

/// Rules by what a request shows: prefix, method, header, and what a router has noted of its route.
#[tokio::test]
async fn the_first_rule_that_fits_decides_rank_and_workflow() {
    #[derive(Clone)]
    struct Route(&'static str);
    let layer = layer(
        "limits = [{ limit = 'rate', each = 'workflow', rate = 0.001, burst = 1.0 }]\n\
         [admission]\npolicy = 'open'\n",
    );
    let is_item =
        |head: &Head<'_>| head.extensions.get().is_some_and(|Route(it)| *it == "/item/{id}");
    let tier = http::HeaderName::from_static("x-tier");
    let layer = layer.rules([
        Rule::new(3).method(Method::POST).path("/checkout").workflow("checkout"),
        Rule::new(20).header(tier.clone(), "gold").workflow("gold"),
        Rule::new(30).when(is_item).workflow("item"),
        Rule::new(40).path("/rest"),
    ]);
    let layer = layer.workflow(|head| Some(head.uri.path().to_owned()));
    // The rank that the handler works for, and that its calls would have.
    let ranked = |_: Request<Full<Bytes>>| async {
        let rank = context::current().expect("inside a request").rank;
        Ok::<_, Infallible>(Response::new(Full::from(rank.business().to_string())))
    };
    let mut service = layer.layer(Function(ranked));
    let mut ask = |method: Method, path: &str, gold: bool, item: bool| {
        let mut request = get(path);
        *request.method_mut() = method;
        if gold {
            request.headers_mut().insert(&tier, "gold".parse().expect("a value"));
        }
        if item {
            request.extensions_mut().insert(Route("/item/{id}"));
        }
        let answer = service.call(request);
        async move {
            let answer = answer.await.expect("an answer");
            (answer.status().as_u16(), text(answer.into_body()).await)
        }
    };
    let (get, post) = (|| Method::GET, || Method::POST);
    assert_eq!(ask(post(), "/checkout/pay", true, false).await, (200, "3".to_owned()));
    assert_eq!(ask(post(), "/checkout", false, false).await.0, 429, "its workflow has had its one");
    assert_eq!(ask(get(), "/checkout/pay", true, false).await, (200, "20".to_owned()));
    assert_eq!(ask(get(), "/item/7", false, true).await, (200, "30".to_owned()));
    assert_eq!(ask(get(), "/rest/a", false, false).await, (200, "40".to_owned()));
    assert_eq!(ask(get(), "/rest/b", false, false).await.0, 200, "another workflow");
    assert_eq!(ask(get(), "/rest/a", false, false).await.0, 429);
    // What may be read as another path is not below it.
    assert_eq!(ask(post(), "/checkout/../export", false, false).await, (200, "63".to_owned()));
    assert_eq!(ask(get(), "/checkouts", false, false).await.1, "63", "nothing fits");
}

/// Turns by workflow (`drr`): who has four times the weight is served four times as often, in whatever order they came.
#[tokio::test]
async fn workflows_of_an_edge_take_turns_by_their_weights() {
    let layer = layer(
        "[slots]\nslots = 'fixed'\ncount = 1\n[admission]\npolicy = 'open'\n\
         [schedule]\norder = 'drr'\nweights = { gold = 4, tin = 1 }\n",
    );
    let layer = layer.rules([
        Rule::new(24).path("/gold").workflow("gold"),
        Rule::new(24).path("/tin").workflow("tin"),
    ]);
    let gate = layer.gate().clone();
    let (served, open) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Semaphore::new(0)));
    let handler = {
        let (served, open) = (Arc::clone(&served), Arc::clone(&open));
        move |request: Request<Full<Bytes>>| {
            let (served, open) = (Arc::clone(&served), Arc::clone(&open));
            async move {
                let _held = open.acquire().await.expect("never closed");
                served.lock().expect("not poisoned").push(request.uri().path().to_owned());
                Ok::<_, Infallible>(Response::new(Full::<Bytes>::default()))
            }
        }
    };
    let service = layer.layer(Function(handler));
    let mut asked = Vec::new();
    for path in std::iter::once("/first").chain([["/tin"; 20], ["/gold"; 20]].concat()) {
        // It arrives when it is called.
        asked.push(tokio::spawn(service.clone().call(get(path))));
    }
    assert_eq!(gate.read(|gate| gate.waiting()), 40);
    open.add_permits(1);
    for answer in asked {
        assert_eq!(answer.await.expect("no panic").expect("an answer").status(), 200);
    }
    let served = served.lock().expect("not poisoned");
    let gold = served[1..21].iter().filter(|path| *path == "/gold").count();
    assert!((15..=17).contains(&gold), "four in five of the first twenty: {served:?}");
}

/// However many ask for an exempt path, a few run beside the gate, and the others ask it.
#[tokio::test]
async fn exempt_requests_are_few_at_once_and_the_gate_is_asked_about_others() {
    let layer = layer("[slots]\nslots = 'fixed'\ncount = 1\n").exempt_at_once(4);
    let gate = layer.gate().clone();
    let (inside, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let open = Arc::new(Semaphore::new(0));
    let handler = {
        let (inside, most, open) = (Arc::clone(&inside), Arc::clone(&most), Arc::clone(&open));
        move |_: Request<Full<Bytes>>| {
            let (inside, most, open) = (Arc::clone(&inside), Arc::clone(&most), Arc::clone(&open));
            async move {
                let now = 1 + inside.fetch_add(1, Ordering::SeqCst);
                most.fetch_max(now, Ordering::SeqCst);
                let _held = open.acquire().await.expect("never closed");
                inside.fetch_sub(1, Ordering::SeqCst);
                Ok::<_, Infallible>(Response::new(Full::<Bytes>::default()))
            }
        }
    };
    let service = layer.layer(Function(handler));
    let asked: Vec<_> =
        (0..20).map(|_| tokio::spawn(service.clone().call(get("/healthz")))).collect();
    // Four beside the gate, and one of all others in its slot.
    while inside.load(Ordering::SeqCst) < 5 {
        tokio::task::yield_now().await;
    }
    assert!(gate.read(|gate| gate.waiting()) > 0, "the others wait for the slot");
    open.add_permits(20);
    for answer in asked {
        answer.await.expect("no panic").expect("an answer");
    }
    assert_eq!(most.load(Ordering::SeqCst), 5);
    // A place ends with its answer: there are four again.
    assert_eq!(service.clone().call(get("/healthz")).await.expect("an answer").status(), 200);
    assert_eq!(gate.read(|gate| gate.running()), 0);
}
