//! Spans, as a collector receives them. `traceparent` passes in any build.

#![allow(clippy::disallowed_methods, reason = "real sockets, real threads, real time")]

mod support;

use std::sync::{Arc, Mutex};

use support::{Reply, Sidecar, Upstream, ok};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PARENT: &str = "00f067aa0ba902b7";

/// An upstream that remembers what it was asked, and its requests so far.
fn remembering() -> (Upstream, Arc<Mutex<Vec<Reply>>>) {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let kept = Arc::clone(&seen);
    let upstream = Upstream::start(move |request| {
        kept.lock().unwrap().push(request);
        ok("{}")
    });
    (upstream, seen)
}

fn traceparent(flags: &str) -> String {
    format!("traceparent: 00-{TRACE}-{PARENT}-{flags}\r\ntracestate: shop=1\r\n")
}

#[test]
fn nobody_who_makes_no_spans_touches_the_trace() {
    let (upstream, seen) = remembering();
    let sidecar = Sidecar::start("", &[upstream.address]);
    sidecar.client().get("/", &traceparent("01"));
    sidecar.client().get("/", "");
    let seen = seen.lock().unwrap();
    assert_eq!(seen[0].header("traceparent"), Some(&*format!("00-{TRACE}-{PARENT}-01")));
    assert_eq!(seen[0].header("tracestate"), Some("shop=1"));
    assert_eq!(seen[1].header("traceparent"), None);
}

/// Whoever asks for traces and gets a build without is told so.
#[cfg(not(feature = "otel"))]
#[test]
fn a_build_without_traces_says_so() {
    let config = "[proxy.traces]\ncollector = 'http://127.0.0.1:4318'\n";
    let error = tidegate_proxy::File::parse(config).expect_err("no traces here");
    assert!(error.to_string().contains("--features otel"), "{error}");
}

#[cfg(feature = "otel")]
mod collected {
    use serde_json::Value;

    use super::*;

    /// All spans of what a collector was sent.
    fn spans(sent: &[Reply]) -> Vec<Value> {
        let mut spans = Vec::new();
        for request in sent {
            assert_eq!(request.first, "POST /v1/traces HTTP/1.1");
            assert_eq!(request.header("content-type"), Some("application/json"));
            let body: Value = serde_json::from_slice(&request.body).expect("JSON");
            for resource in body["resourceSpans"].as_array().expect("a list") {
                let service = attribute(&resource["resource"], "service.name");
                assert_eq!(service["stringValue"], "shop-gate");
                for scope in resource["scopeSpans"].as_array().expect("a list") {
                    assert_eq!(scope["scope"]["name"], "tidegate");
                    spans.extend(scope["spans"].as_array().expect("a list").iter().cloned());
                }
            }
        }
        spans
    }

    fn attribute(of: &Value, name: &str) -> Value {
        let all = of["attributes"].as_array().expect("attributes");
        let found = all.iter().find(|attribute| attribute["key"] == name);
        found.map_or(Value::Null, |attribute| attribute["value"].clone())
    }

    fn config(collector: &Upstream, sample: f64) -> String {
        format!(
            "[proxy]\ntrust = 'inside'\n[proxy.traces]\ncollector = 'http://{}'\nsample = {sample:?}\n\
             service = 'shop-gate'\n[gate.admission]\npolicy = 'open'\n\
             [[gate.limits]]\nlimit = 'rate'\nrate = 0.001\nburst = 3\n",
            collector.address
        )
    }

    #[test]
    fn the_collector_learns_what_became_of_each_traced_request() {
        let (collector, sent) = remembering();
        let (upstream, seen) = remembering();
        let sidecar = Sidecar::start(&config(&collector, 0.0), &[upstream.address]);
        let mut client = sidecar.client();
        let rank = "overload-context: r=(7 42)\r\n";
        // Traced and served; not traced, by decision and for want of one; traced and refused; traced and
        // not the gate's business.
        assert_eq!(client.get("/cart?user=me", &(traceparent("01") + rank)).status(), 200);
        assert_eq!(client.get("/", &traceparent("00")).status(), 200);
        assert_eq!(client.get("/", "").status(), 200);
        assert_eq!(client.get("/pay", &(traceparent("01") + rank)).status(), 429);
        assert_eq!(client.get("/healthz", &traceparent("01")).status(), 200);
        drop(client);
        sidecar.handle.stop();
        sidecar.ended();

        let spans = spans(&sent.lock().unwrap());
        let of = |path: &str| {
            let found =
                spans.iter().find(|span| attribute(span, "url.path")["stringValue"] == path);
            found.unwrap_or_else(|| panic!("no span of {path} in {spans:#?}"))
        };
        assert_eq!(spans.len(), 3, "{spans:#?}");
        for span in &spans {
            assert_eq!((&span["traceId"], &span["parentSpanId"]), (&TRACE.into(), &PARENT.into()));
            let time = |name: &str| span[name].as_str().and_then(|time| time.parse::<u64>().ok());
            assert!(time("startTimeUnixNano") <= time("endTimeUnixNano"), "{span}");
        }
        let served = of("/cart");
        assert_eq!(attribute(served, "tidegate.verdict")["stringValue"], "admit");
        assert_eq!(attribute(served, "tidegate.rank.business")["intValue"], "7");
        assert_eq!(attribute(served, "tidegate.rank.user")["intValue"], "42");
        assert!(attribute(served, "tidegate.sojourn_ms")["doubleValue"].is_number(), "{served}");
        let behind = format!("http://{}", upstream.address);
        assert_eq!(attribute(served, "tidegate.upstream")["stringValue"], behind);
        assert_eq!(attribute(served, "http.response.status_code")["intValue"], "200");
        assert!(!served.to_string().contains("user=me"), "queries tell users apart: {served}");
        let refused = of("/pay");
        assert_eq!(attribute(refused, "tidegate.verdict")["stringValue"], "refuse");
        assert_eq!(attribute(refused, "tidegate.reason")["stringValue"], "quota");
        assert_eq!(refused["status"]["code"], 2);
        assert!(!refused["status"]["message"].as_str().unwrap_or_default().is_empty(), "{refused}");
        assert_eq!(attribute(refused, "http.response.status_code")["intValue"], "429");
        assert_eq!(attribute(of("/healthz"), "tidegate.verdict")["stringValue"], "pass");

        // The next hop is told of the span before it, and nothing else has changed.
        let seen = seen.lock().unwrap();
        let own = served["spanId"].as_str().expect("an id");
        assert_eq!(seen[0].header("traceparent"), Some(&*format!("00-{TRACE}-{own}-01")));
        assert_eq!(seen[0].header("tracestate"), Some("shop=1"));
        assert_eq!(seen[1].header("traceparent"), Some(&*format!("00-{TRACE}-{PARENT}-00")));
        assert_eq!(seen[2].header("traceparent"), None);
    }

    #[test]
    fn a_share_of_the_others_begins_a_trace() {
        let (collector, sent) = remembering();
        let (upstream, seen) = remembering();
        let sidecar = Sidecar::start(&config(&collector, 1.0), &[upstream.address]);
        assert_eq!(sidecar.client().get("/new", "").status(), 200);
        sidecar.handle.stop();
        sidecar.ended();
        let spans = spans(&sent.lock().unwrap());
        assert_eq!(spans.len(), 1);
        let (trace, span) = (spans[0]["traceId"].as_str(), spans[0]["spanId"].as_str());
        let told = format!("00-{}-{}-01", trace.expect("an id"), span.expect("an id"));
        assert_eq!(seen.lock().unwrap()[0].header("traceparent"), Some(&*told));
        assert_eq!(spans[0]["parentSpanId"].as_str().unwrap_or_default(), "", "it is the first");
    }

    /// A collector that is not there, or says nothing: requests do not notice, nor does the end.
    #[test]
    fn a_collector_that_is_down_holds_nobody_up() {
        let (upstream, seen) = remembering();
        let mut collector = Upstream::raw(|mut client| drop(client.head()));
        collector.kill();
        let config = config(&collector, 1.0).replace("burst = 3", "burst = 1000");
        let sidecar = Sidecar::start(&config, &[upstream.address]);
        let mut client = sidecar.client();
        for _ in 0..200 {
            assert_eq!(client.get("/", "").status(), 200);
        }
        drop(client);
        sidecar.handle.stop();
        sidecar.ended();
        assert_eq!(seen.lock().unwrap().len(), 200);
    }
}
