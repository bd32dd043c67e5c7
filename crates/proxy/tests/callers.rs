//! Callers that take part, as `/state` and the dashboard show them.

#![allow(clippy::disallowed_methods, reason = "real sockets, real threads, real time")]

mod support;

use support::{Sidecar, Upstream};

#[test]
fn credits_requests_demand_and_sheds_are_told_for_each_caller() {
    // Under tide nobody is believed to have shed what it was not seen to have, but a gateway.
    let tide = "policy = 'tide'\nobjective = '10s'";
    for (policy, gateways, sheds) in [
        (tide, "", 0),
        (tide, "gateways = ['127.0.0.0/8']", 3),
        ("policy = 'breakwater'\ndrop = '10s'", "", 3),
    ] {
        // Of its own for each: a barrier that was opened stays open.
        let (barrier, upstream) = Upstream::held();
        let config = format!("[proxy]\ntrust = 'inside'\n{gateways}\n[gate.admission]\n{policy}\n");
        let sidecar = Sidecar::start(&config, &[upstream.address]);
        let mut client = sidecar.client();
        assert_eq!(client.get("/", "overload-context: c=\"web\", q=1\r\n").status(), 200);
        let context = "overload-context: c=\"web\", q=5, s=(3 40 1)\r\n";
        client.send(&format!("GET /slow HTTP/1.1\r\nhost: a\r\n{context}\r\n"));
        sidecar.wait_for("its request", |state| {
            let callers = state["callers"].as_object().expect("an object");
            let caller = callers.values().next();
            callers.len() == 1
                && caller.is_some_and(|caller| {
                    caller["in_flight"] == 1
                        && caller["demand"] == 5
                        && caller["sheds"] == sheds
                        && caller["credits"].as_u64() >= Some(1)
                })
        });
        barrier.open();
        assert_eq!(client.reply().status(), 200);
        sidecar.wait_for("its end", |state| {
            let callers = state["callers"].as_object().expect("an object");
            callers.values().all(|caller| caller["in_flight"] == 0)
        });
    }
}
