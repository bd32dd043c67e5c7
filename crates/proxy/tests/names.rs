//! What is called by a name is told by it everywhere; what comes is counted once, and an agreement that is used up is no overload.

#![allow(clippy::disallowed_methods, reason = "real sockets, real threads, real time")]

mod support;

use support::{Sidecar, Upstream, ok};

const RULES: &str = "[[proxy.rules]]\nname = 'checkout'\npath = '/checkout'\nbusiness = 5\n\
                     [[proxy.rules]]\npath = '/search'\nbusiness = 40\n";
const TWO_A_MONTH: &str =
    "[[gate.limits]]\nlimit = 'window'\nperiod = 'month'\nquota = 2.0\neach = 'all'\n";

/// The service hears the name of the rule, and never what a client makes of it.
#[test]
fn the_service_hears_the_rule_and_not_the_client() {
    let upstream = Upstream::start(|request| ok(request.header("tidegate-rule").unwrap_or("-")));
    let sidecar = Sidecar::start(RULES, &[upstream.address]);
    let mut client = sidecar.client();
    for path in ["/checkout", "/search", "/"] {
        let told = client.get(path, "tidegate-rule: made-up\r\n").text();
        assert_eq!(told, if path == "/checkout" { "checkout" } else { "-" }, "{path}");
    }
}

#[test]
fn what_comes_is_counted_once_and_told_by_name() {
    let upstream = Upstream::start(|_| ok("served"));
    let config = format!("{TWO_A_MONTH}[proxy]\ntrust = 'inside'\n{RULES}");
    let sidecar = Sidecar::start(&config, &[upstream.address]);
    let mut client = sidecar.client();
    let mut ask = |path| client.get(path, "");
    assert_eq!((ask("/checkout").status(), ask("/search").status()), (200, 200));
    let refused = ask("/checkout/pay");
    assert_eq!((refused.status(), refused.header("tidegate-rule")), (429, Some("checkout")));
    assert_eq!(refused.header("ratelimit-policy"), Some("\"window\";q=2"));
    let left: u64 =
        refused.header("ratelimit").and_then(|it| it.split("t=").nth(1)).unwrap().parse().unwrap();
    let asked: u64 = refused.header("retry-after").unwrap().parse().unwrap();
    assert!((left..=left + 30).contains(&asked), "{asked} of {left}");
    assert!(refused.text().contains("\"measured\":3,\"limit\":2,"), "{}", refused.text());
    sidecar.wait_for("all is counted", |state| state["rules"]["checkout"]["served"] == 1);
    let state = sidecar.state();
    let checkout = &state["rules"]["checkout"];
    assert_eq!((&checkout["arrived"], &checkout["refused"]), (&2.into(), &1.into()));
    assert_eq!(state["rules"]["/search"]["arrived"], 1);
    assert_eq!(state["arrived"]["critical-plus"], 2);
    let page = sidecar.admin("/metrics").text();
    for line in [
        "tidegate_rule_requests_total{rule=\"checkout\",what=\"refused\"} 1",
        "tidegate_arrived_total{band=\"critical-plus\"} 2",
    ] {
        assert!(page.lines().any(|it| it == line), "{line} is missing from\n{page}");
    }
    let refusals = sidecar.admin("/refusals").text();
    let refusals: serde_json::Value = serde_json::from_str(&refusals).expect("JSON");
    let last = &refusals["refusals"][0];
    assert_eq!((&last["rule"], &last["reason"]), (&"checkout".into(), &"window".into()));
}

/// Asked by what it is, a request has the rule, the rank and the limits that it will have.
#[test]
fn a_request_is_explained_as_it_comes() {
    let upstream = Upstream::start(|_| ok("served"));
    let config = format!("{TWO_A_MONTH}[proxy]\nworkflow_header = 'x-tenant'\n{RULES}");
    let sidecar = Sidecar::start(&config, &[upstream.address]);
    let explain = |query: &str| -> serde_json::Value {
        serde_json::from_str(&sidecar.admin(&format!("/explain?{query}")).text()).expect("JSON")
    };
    let told = explain("method=POST&path=/checkout%2Fpay&header=x-tenant:ann");
    assert_eq!((&told["rule"], &told["workflow"]), (&"checkout".into(), &"ann".into()));
    assert_eq!((&told["rank"][0], &told["verdict"]), (&5.into(), &"start".into()));
    assert_eq!(
        (&told["limits"][0]["which"], &told["limits"][0]["left"]),
        (&"limits.0".into(), &2.into())
    );
    assert_eq!(explain("path=/")["rank"][0], 63);
    assert_eq!(explain("path=/healthz")["verdict"], "pass");
    assert_eq!(explain("path=/search&business=3")["rank"][0], 3);
    let mut client = sidecar.client();
    (0..2).for_each(|_| assert_eq!(client.get("/checkout", "").status(), 200));
    let told = explain("path=/checkout");
    assert_eq!((&told["verdict"], &told["limits"][0]["left"]), (&"refuse".into(), &0.into()));
    assert!(told["would_change"][0].as_str().is_some_and(|it| it.contains("limits.0")), "{told}");
    // And nothing of it was consumed.
    assert_eq!(sidecar.state()["arrived"]["critical-plus"], 2);
}
