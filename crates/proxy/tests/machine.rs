//! What the machine says of itself reaches the gate, and whoever looks.

#![allow(clippy::disallowed_methods, reason = "real sockets, real threads, real time")]

mod support;

use support::{Sidecar, Upstream, ok};

/// Any machine uses more of its memory than that, so that everything is refused after the first sample.
const NERVOUS: &str = "
[gate.signals]
read = ['memory', 'lag', 'executor']
every = '100ms'
[gate.admission]
policy = 'utilization'
hysteresis = 0.0
full = 0.000006
critical_plus = { degrade = 0.000004, refuse = 0.000005 }
critical = { degrade = 0.000003, refuse = 0.000004 }
sheddable_plus = { degrade = 0.000002, refuse = 0.000003 }
sheddable = { degrade = 0.000001, refuse = 0.000002 }
";

#[test]
fn a_full_machine_refuses_and_says_why() {
    let upstream = Upstream::start(|_| ok("served"));
    let sidecar = Sidecar::start(NERVOUS, &[upstream.address]);
    sidecar.wait_for("a sample", |state| state["utilization"].as_f64() > Some(0.0));
    for signal in ["memory", "lag", "executor"] {
        assert!(sidecar.state()["signals"][signal].is_number(), "{signal}: {}", sidecar.state());
    }
    let reply = sidecar.client().get("/", "");
    assert_eq!(reply.status(), 503, "{}", reply.text());
    sidecar.wait_for("a reason", |state| state["refused"]["critical"]["utilization"] == 1);
    let metrics = sidecar.admin("/metrics").text();
    assert!(metrics.contains("tidegate_signal{signal=\"memory\"} "), "{metrics}");
}

/// While nothing is enforced, the model hears of it all the same.
#[test]
fn who_only_observes_hears_of_it_too() {
    let upstream = Upstream::start(|_| ok("served"));
    let config = format!("[proxy]\nenforce = '0%'\n{NERVOUS}");
    let sidecar = Sidecar::start(&config, &[upstream.address]);
    sidecar.wait_for("a sample", |state| state["utilization"].as_f64() > Some(0.0));
    assert_eq!(sidecar.client().get("/", "").text(), "served");
    sidecar.wait_for("a reason", |state| state["would_refuse"]["critical"]["utilization"] == 1);
}

/// What the service says of itself counts in the place of what the sidecar sees of its own machine.
#[test]
fn a_service_that_reports_to_be_full_is_believed() {
    for words in
        ["endpoint-load-metrics: TEXT cpu_utilization=0.99", "overload-feedback: v=1, u=5.0"]
    {
        let upstream = Upstream::start(move |_| {
            format!("HTTP/1.1 200 OK\r\n{words}\r\ncontent-length: 6\r\n\r\nserved")
        });
        let config = "[gate.signals]\nread = ['memory']\nevery = '100ms'\nstale_after = '1h'\n\
                      [gate.admission]\npolicy = 'utilization'\nstale_after = '1h'\n";
        let sidecar = Sidecar::start(config, &[upstream.address]);
        let mut client = sidecar.client();
        assert_eq!(client.get("/", "").status(), 200, "{words}");
        sidecar.wait_for("its report", |state| {
            state["utilization"].as_f64() > Some(0.98) && !state["signals"]["memory"].is_number()
        });
        // From 0.9 to 1 of the scale more and more are refused: not all at once.
        let refused = || sidecar.client().get("/", "").status() == 503;
        assert!((0..1_000).any(|_| refused()), "{words}");
    }
}
