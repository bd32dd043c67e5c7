//! Upstreams that are ill, full or busy, and what is known of them.

#![allow(clippy::disallowed_methods, reason = "real sockets, real threads, real time")]

mod support;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::Value;
use support::{Barrier, Client, Sidecar, Upstream, file, ok};
use tidegate_proxy::Address;

fn peer(state: &Value, address: SocketAddr) -> &Value {
    let wanted = format!("http://{address}");
    let list = state["upstreams"].as_array().expect("a list");
    list.iter().find(|peer| peer["address"] == *wanted).unwrap_or(&Value::Null)
}

/// An address at which nobody listens.
fn nowhere() -> SocketAddr {
    std::net::TcpListener::bind("127.0.0.1:0").expect("a free port").local_addr().expect("bound")
}

#[test]
fn an_upstream_that_only_fails_is_out_and_nobody_notices() {
    let (well, dead) = (Upstream::start(|_| ok("served")), nowhere());
    let config = "[proxy]\nthreads = 1\n[proxy.health]\neject_after = 1\neject_for = '5min'\n";
    let sidecar = Sidecar::start(config, &[dead, well.address]);
    let mut client = sidecar.client();
    let mut tries = 0;
    while peer(&sidecar.state(), dead)["in"] == true {
        assert_eq!(client.get("/", "").text(), "served", "another is tried");
        tries += 1;
        assert!(tries < 1_000, "{:#}", sidecar.state());
    }
    let failures = peer(&sidecar.state(), dead)["failures"].as_u64();
    assert_eq!(failures, Some(1));
    for _ in 0..50 {
        assert_eq!(client.get("/", "").text(), "served");
    }
    let state = sidecar.state();
    assert_eq!(peer(&state, dead)["failures"].as_u64(), failures, "it is left alone");
    assert!(peer(&state, dead)["out_for_ms"].as_u64() > Some(0));
    assert_eq!(peer(&state, well.address)["in_flight"], 0);
    let page = sidecar.admin("/metrics").text();
    assert!(page.contains(&format!("tidegate_upstream_in{{upstream=\"http://{dead}\"}} 0")));
    assert_eq!(sidecar.admin("/readyz").status(), 200);
}

/// One failure puts an upstream out, and no client can cause any.
const STRICT: &str = "[proxy]\nthreads = 1\n[proxy.health]\neject_after = 1\neject_for = '5min'\n\
                      [gate.admission]\npolicy = 'open'\n[gate.slots]\nslots = 'fixed'\ncount = 8\n";

#[test]
fn uploads_that_break_off_are_no_fault_of_the_upstream() {
    let upstream = Upstream::start(|_| ok("served"));
    let sidecar = Sidecar::start(STRICT, &[upstream.address]);
    sidecar.client().send("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 10\r\n\r\nabc");
    let mut client = sidecar.client_from(2);
    client.send("POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n");
    assert_eq!(client.reply().status(), 400);
    // Whoever has gone is given up as that, or as broken, whichever is seen first.
    sidecar.wait_for("both to be given up", |state| {
        state["running"] == 0 && state["broken_uploads"].as_u64() >= Some(1)
    });
    let state = sidecar.state();
    let peer = peer(&state, upstream.address);
    assert_eq!((&peer["in"], &peer["failures"]), (&true.into(), &0.into()));
    assert_eq!(state["upstream_failures"]["broken"], 0);
}

#[test]
fn a_client_in_a_hurry_is_no_witness_against_an_upstream() {
    let (barrier, upstream) = Upstream::held();
    let sidecar = Sidecar::start(STRICT, &[upstream.address]);
    let hurried = "x-envoy-expected-rq-timeout-ms: 40\r\n";
    assert_eq!(sidecar.client().get("/slow", hurried).status(), 504);
    assert_eq!(peer(&sidecar.state(), upstream.address)["in"], true);
    let patient = "x-envoy-expected-rq-timeout-ms: 1100\r\n";
    assert_eq!(sidecar.client().get("/slow", patient).status(), 504);
    let state = sidecar.state();
    let told = peer(&state, upstream.address);
    assert_eq!((&told["in"], &told["failures"]), (&true.into(), &0.into()), "a stranger's word");
    let inside = Sidecar::start(
        &STRICT.replace("[proxy]\n", "[proxy]\ntrust = 'inside'\n"),
        &[upstream.address],
    );
    assert_eq!(inside.client().get("/slow", patient).status(), 504);
    assert_eq!(peer(&inside.state(), upstream.address)["in"], false, "a peer is believed");
    // Its own time is up: that is its own fault.
    let short = Sidecar::start(
        &STRICT.replace("[proxy]\n", "[proxy]\nresponse_timeout = '50ms'\n"),
        &[upstream.address],
    );
    assert_eq!(short.client().get("/slow", patient).status(), 504);
    assert_eq!(peer(&short.state(), upstream.address)["in"], false, "it does not answer");
    barrier.open();
}

/// Whoever is behind must not work for longer than the client waits.
#[test]
fn timeouts_go_on_shortened() {
    let barrier = Barrier::default();
    let held = barrier.clone();
    let upstream = Upstream::start(move |request| {
        if request.first.contains("/first") {
            held.pass();
        }
        let told =
            ["grpc-timeout", "x-envoy-expected-rq-timeout-ms"].map(|name| request.header(name));
        ok(&told.map(|it| it.unwrap_or("none")).join(" "))
    });
    let config = "[gate.admission]\npolicy = 'open'\n[gate.slots]\nslots = 'fixed'\ncount = 1\n";
    let sidecar = Sidecar::start(config, &[upstream.address]);
    let mut first = sidecar.client();
    first.send("GET /first HTTP/1.1\r\nhost: a\r\n\r\n");
    sidecar.wait_for("one at work", |_| barrier.came() == 1);
    let mut clients = [
        "grpc-timeout: 60S\r\n",
        "x-envoy-expected-rq-timeout-ms: 60000\r\n",
        "grpc-timeout: x\r\n",
        "",
    ]
    .map(|fields| {
        let mut client = sidecar.client();
        client.send(&format!("GET / HTTP/1.1\r\nhost: a\r\n{fields}\r\n"));
        client
    });
    sidecar.wait_for("all wait", |state| state["waiting"] == 4);
    barrier.open();
    let told = clients.each_mut().map(|client| client.reply().text());
    let micros = told[0].strip_suffix("u none").and_then(|micros| micros.parse::<u64>().ok());
    assert!(micros.is_some_and(|micros| micros < 60_000_000), "{told:?}");
    let millis = told[1].strip_prefix("none ").and_then(|millis| millis.parse::<u64>().ok());
    assert!(millis.is_some_and(|millis| millis < 60_000), "{told:?}");
    assert_eq!(told[2..], ["x none", "none none"], "what cannot be read says nothing");
}

#[test]
fn upstreams_are_asked_how_they_are() {
    let fine = Arc::new(AtomicBool::new(false));
    let health = Arc::clone(&fine);
    let moody = Upstream::start(move |request| {
        match request.first.contains("/health") && !health.load(Ordering::SeqCst) {
            true => "HTTP/1.1 503 No\r\ncontent-length: 0\r\n\r\n".to_owned(),
            false => ok("moody"),
        }
    });
    let steady = Upstream::start(|_| ok("steady"));
    let config = "[proxy.health]\npath = '/health'\ninterval = '10ms'\nfall = 2\nrise = 2\n";
    let sidecar = Sidecar::start(config, &[moody.address, steady.address]);
    sidecar.wait_for("an ill upstream", |state| peer(state, moody.address)["in"] == false);
    let mut client = sidecar.client();
    for _ in 0..20 {
        assert_eq!(client.get("/", "").text(), "steady");
    }
    fine.store(true, Ordering::SeqCst);
    sidecar.wait_for("a cure", |state| peer(state, moody.address)["in"] == true);
}

/// What exceeds the capacity of the first group goes to the next.
#[test]
fn a_full_group_spills() {
    let barrier = Barrier::default();
    let held = barrier.clone();
    let near = Upstream::start(move |_| {
        held.pass();
        ok("near")
    });
    let far = Upstream::start(|_| ok("far"));
    let config = "[proxy]\ncapacity = 2\n[gate.admission]\npolicy = 'open'\n\
                  [gate.slots]\nslots = 'fixed'\ncount = 8\n";
    let mut file = file(config, &[near.address]);
    let address: Address = format!("http://{}", far.address).parse().expect("an address");
    file.proxy.spill =
        vec![tidegate_proxy::config::Spill { upstreams: vec![address], capacity: 0.0 }];
    let sidecar = Sidecar::with_source(file, None);
    let mut near_by: Vec<Client> = (0..2).map(|_| sidecar.client()).collect();
    for client in &mut near_by {
        client.send("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
    }
    sidecar.wait_for("a full group", |_| barrier.came() == 2);
    assert_eq!(peer(&sidecar.state(), near.address)["in_flight"], 2);
    for _ in 0..3 {
        assert_eq!(sidecar.client().get("/", "").text(), "far");
    }
    barrier.open();
    for client in &mut near_by {
        assert_eq!(client.reply().text(), "near");
    }
    sidecar.wait_for("room", |state| peer(state, near.address)["in_flight"] == 0);
    assert_eq!(sidecar.client().get("/", "").text(), "near");
}

/// An upstream that says it is full gets less than one that says it is idle, in either of the words there are for it.
#[test]
fn reported_utilization_weighs() {
    for words in ["endpoint-load-metrics: TEXT cpu_utilization=", "overload-feedback: v=1, u="] {
        less_goes_to_the_busy(words);
    }
}

fn less_goes_to_the_busy(words: &'static str) {
    let report = |utilization: &'static str| {
        Upstream::start(move |_| {
            format!(
                "HTTP/1.1 200 OK\r\n{words}{utilization}\r\n\
                 x-is: {utilization}\r\ncontent-length: 0\r\n\r\n"
            )
        })
    };
    let (idle, busy) = (report("0.0"), report("1000.0"));
    let sidecar = Sidecar::start("[proxy]\nthreads = 1\n", &[idle.address, busy.address]);
    let mut client = sidecar.client();
    let (mut to_idle, mut to_busy) = (0, 0);
    for _ in 0..100 {
        match client.get("/", "").header("x-is") {
            Some("0.0") => to_idle += 1,
            _ => to_busy += 1,
        }
    }
    assert!(to_idle > 2 * to_busy, "{words} {to_idle} {to_busy}");
}

/// Tenants share the slots, however much each of them asks for.
#[test]
fn workflows_share_fairly() {
    let order = Arc::new(std::sync::Mutex::new(Vec::new()));
    let barrier = Barrier::default();
    let (seen, held) = (Arc::clone(&order), barrier.clone());
    let upstream = Upstream::start(move |request| {
        seen.lock().unwrap().push(request.header("x-tenant").unwrap_or("first").to_owned());
        held.pass();
        ok("served")
    });
    let config = "[proxy]\nthreads = 1\nworkflow_header = 'x-tenant'\n\
                  [gate.admission]\npolicy = 'open'\n[gate.schedule]\norder = 'drr'\n\
                  [gate.slots]\nslots = 'fixed'\ncount = 1\n";
    let sidecar = Sidecar::start(config, &[upstream.address]);
    let mut clients: Vec<Client> = Vec::new();
    let mut send = |header: &str| {
        let mut client = sidecar.client();
        client.send(&format!("GET / HTTP/1.1\r\nhost: a\r\n{header}\r\n"));
        clients.push(client);
        let count = clients.len();
        sidecar.wait_for("it waits", |state| {
            state["running"].as_u64().unwrap() + state["waiting"].as_u64().unwrap() == count as u64
        });
    };
    send("");
    (0..6).for_each(|_| send("x-tenant: greedy\r\n"));
    (0..2).for_each(|_| send("x-tenant: modest\r\n"));
    barrier.open();
    clients.iter_mut().for_each(|client| assert_eq!(client.reply().text(), "served"));
    let order = order.lock().unwrap();
    let last = order.iter().rposition(|tenant| tenant == "modest").expect("it was served");
    assert!(last <= 5, "fifo would have served the modest last: {order:?}");
}

/// An upstream with a gate of its own says how much it takes, and gets no more.
#[test]
fn what_leaves_follows_the_gate_behind() {
    let barrier = Barrier::default();
    let held = barrier.clone();
    let upstream = Upstream::start(move |request| {
        if request.first.contains("/held") {
            held.pass();
        }
        // One credit: one request at a time.
        "HTTP/1.1 200 OK\r\noverload-feedback: n=1, i=\"a\", v=1, x=60000\r\ncontent-length: 0\r\n\r\n"
            .to_owned()
    });
    let config = "[caller]\nhold_limit = 1\nhold_time = '30s'\n[caller.throttle]\nthrottle = 'credit'\n\
                  [gate.admission]\npolicy = 'open'\n[gate.slots]\nslots = 'fixed'\ncount = 8\n";
    let sidecar = Sidecar::start(config, &[upstream.address]);
    assert_eq!(sidecar.client().get("/", "").status(), 200, "the first learns of the gate");
    let mut clients: Vec<Client> = (0..2).map(|_| sidecar.client()).collect();
    clients[0].send("GET /held HTTP/1.1\r\nhost: a\r\n\r\n");
    sidecar.wait_for("one sent", |_| barrier.came() == 1);
    clients[1].send("GET /held HTTP/1.1\r\nhost: a\r\n\r\n");
    sidecar.wait_for("one held", |state| state["running"] == 2);
    let reply = sidecar.client().get("/", "");
    assert_eq!((reply.status(), barrier.came()), (503, 1), "{}", reply.text());
    barrier.open();
    for client in &mut clients {
        assert_eq!(client.reply().status(), 200);
    }
    sidecar.wait_until_empty();
}
