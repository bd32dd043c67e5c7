//! Refusals, departures and the end: what the gate promises, over real sockets.

#![allow(clippy::disallowed_methods, reason = "real sockets, real threads, real time")]

mod support;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use support::{Barrier, Client, Sidecar, Upstream, file, ok};
use tidegate_proxy::{File, Source};

/// Refuses by its bounds alone, however slow the machine that runs this is.
const ONE_SLOT: &str =
    "[gate.admission]\npolicy = 'open'\n[gate.slots]\nslots = 'fixed'\ncount = 1\n";

/// What strangers claim is dropped, and nothing about the gate is told them.
#[test]
fn at_the_edge_nobody_is_believed_and_nothing_leaks() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let kept = Arc::clone(&seen);
    let upstream = Upstream::start(move |request| {
        kept.lock().unwrap().push(request.header("overload-context").map(str::to_owned));
        "HTTP/1.1 200 OK\r\noverload-feedback: n=9\r\ncontent-length: 0\r\n\r\n".to_owned()
    });
    let claim = "overload-context: r=(0 7), d=60000\r\n";
    for (trust, passed_on, told) in [("edge", "r=(24 ", false), ("inside", "r=(0 7)", true)] {
        let sidecar = Sidecar::start(&format!("[proxy]\ntrust = '{trust}'"), &[upstream.address]);
        let reply = sidecar.client().get("/", claim);
        let feedback = reply.header("overload-feedback");
        assert_eq!(feedback.is_some(), told, "{trust}: {feedback:?}");
        assert_ne!(feedback, Some("n=9"), "the upstream speaks to us, not to our clients");
        let context = seen.lock().unwrap().pop().flatten().expect("the rank is passed on");
        assert!(context.starts_with(passed_on), "{trust}: {context}");
        assert_eq!(context.contains("d="), told, "{trust}: {context}");
        let band = if told { "critical-plus" } else { "critical" };
        assert_eq!(sidecar.state()["admitted"][band], 1);
    }
}

/// A context that names no user is passed on with the lot that the gate here judged by.
#[test]
fn who_names_no_user_keeps_the_lot_it_drew_here() {
    let upstream = Upstream::start(|request| ok(request.header("overload-context").unwrap_or("")));
    let sidecar = Sidecar::start("[proxy]\ntrust = 'inside'", &[upstream.address]);
    let passed_on = sidecar.client().get("/", "overload-context: r=(7 0)\r\n").text();
    assert!(passed_on.starts_with("r=(7 ") && passed_on.contains("u=1"), "{passed_on}");
    assert!(!passed_on.starts_with("r=(7 0)"), "{passed_on}");
}

#[test]
fn a_refusal_comes_before_the_body_is_read_and_in_the_clients_words() {
    let barrier = Barrier::default();
    let held = barrier.clone();
    let upstream = Upstream::start(move |_| {
        held.pass();
        ok("")
    });
    let config = format!("{ONE_SLOT}[gate]\nqueue_limit = 1\n");
    let sidecar = Sidecar::start(&config, &[upstream.address]);
    let mut inside = [sidecar.client(), sidecar.client()];
    for client in &mut inside {
        client.send("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
    }
    sidecar.wait_for("a full gate", |state| state["running"] == 1 && state["waiting"] == 1);
    let mut client = sidecar.client();
    client.send("POST / HTTP/1.1\r\nhost: a\r\nexpect: 100-continue\r\ncontent-length: 9\r\n\r\n");
    let reply = client.reply();
    assert_eq!(
        (reply.status(), reply.header("content-type")),
        (503, Some("application/problem+json"))
    );
    assert!(reply.text().contains("\"reason\":\"full\""), "{}", reply.text());
    let reply = sidecar.client().get("/", "content-type: application/grpc\r\n");
    assert_eq!((reply.status(), reply.header("grpc-status")), (200, Some("14")));
    let mut prober = sidecar.client();
    prober.send("GET /healthz HTTP/1.1\r\nhost: a\r\n\r\n");
    sidecar.wait_for("the health check", |_| barrier.came() == 2);
    assert_eq!(sidecar.admin("/readyz").status(), 200, "overload is no reason to be taken out");
    let explained = sidecar.admin("/explain?business=40").text();
    assert!(explained.contains("\"full\""), "{explained}");
    assert_eq!(sidecar.state()["refused"]["critical"]["full"], 2, "explaining consumes nothing");
    barrier.open();
    for client in inside.iter_mut().chain([&mut prober]) {
        assert_eq!(client.reply().status(), 200);
    }
}

#[test]
fn a_request_whose_time_is_up_is_not_sent() {
    let asked = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&asked);
    let upstream = Upstream::start(move |_| {
        count.fetch_add(1, Ordering::SeqCst);
        ok("")
    });
    let sidecar = Sidecar::start("", &[upstream.address]);
    let reply = sidecar.client().get("/", "grpc-timeout: 0n\r\n");
    assert_eq!(reply.status(), 504, "{}", reply.text());
    assert_eq!(asked.load(Ordering::SeqCst), 0);
}

/// Silent from the start, in the middle of a head, between two requests, or within the first words of
/// HTTP/2: all are dropped.
#[test]
fn clients_that_are_silent_are_dropped() {
    let upstream = Upstream::start(|_| ok(""));
    let sidecar = Sidecar::start(
        "[proxy]\nheader_timeout = '100ms'\n[proxy.connections]\nidle_timeout = '100ms'",
        &[upstream.address],
    );
    let mut silent = [(); 4].map(|()| sidecar.client());
    silent[1].send("GET / HTTP/1.1\r\nhost: ");
    assert_eq!(silent[2].get("/", "").status(), 200);
    silent[3].send("PRI * HTTP/2.0\r\n");
    for client in &mut silent {
        // Perhaps told why, and then at the end.
        while client.head().is_ok() {}
    }
    sidecar.wait_for("closed connections", |state| state["connections"] == 0);
}

#[test]
fn the_end_loses_nothing_that_was_accepted() {
    const CLIENTS: usize = 12;
    let barrier = Barrier::default();
    let held = barrier.clone();
    let upstream = Upstream::start(move |_| {
        held.pass();
        ok("finished")
    });
    let config = "[gate.admission]\npolicy = 'open'\n";
    let sidecar = Sidecar::start(config, &[upstream.address]);
    let mut clients: Vec<Client> = (0..CLIENTS).map(|_| sidecar.client()).collect();
    for client in &mut clients {
        client.send("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
    }
    sidecar.wait_for("all inside", |state| {
        state["running"].as_u64().unwrap() + state["waiting"].as_u64().unwrap() == CLIENTS as u64
    });
    assert!(barrier.came() < CLIENTS, "some wait in the gate");
    // Neither a client that says nothing nor one between two requests holds up the end.
    let _silent = sidecar.client();
    sidecar.handle.stop();
    sidecar.wait_for("the end", |state| state["draining"] == true);
    assert_eq!(sidecar.admin("/readyz").status(), 503);
    barrier.open();
    for client in &mut clients {
        assert_eq!(client.reply().text(), "finished");
    }
    sidecar.ended();
}

/// What would be refused is served and counted.
#[test]
fn observing_enforces_nothing() {
    const CLIENTS: usize = 6;
    let barrier = Barrier::default();
    let held = barrier.clone();
    let upstream = Upstream::start(move |_| {
        held.pass();
        ok("served")
    });
    let config = format!("[proxy]\nenforce = '0%'\n[gate]\nqueue_limit = 1\n{ONE_SLOT}");
    let sidecar = Sidecar::start(&config, &[upstream.address]);
    let mut clients: Vec<Client> = (0..CLIENTS).map(|_| sidecar.client()).collect();
    for client in &mut clients {
        client.send("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
    }
    sidecar.wait_for("all served at once", |_| barrier.came() == CLIENTS);
    let state = sidecar.state();
    assert_eq!(state["would_refuse"]["critical"]["full"], CLIENTS as u64 - 2, "{state:#}");
    assert_eq!(state["refused"]["critical"], serde_json::json!({}));
    barrier.open();
    for client in &mut clients {
        assert_eq!(client.reply().text(), "served");
    }
    sidecar.wait_until_empty();
}

#[test]
fn a_reload_takes_effect_whole_or_not_at_all() {
    let (one, two) = (Upstream::start(|_| ok("one")), Upstream::start(|_| ok("two")));
    let now = Arc::new(Mutex::new(String::new()));
    let read = Arc::clone(&now);
    let (first, second) = (one.address, two.address);
    let source = Source::new(move || {
        let text = read.lock().unwrap().clone();
        File::parse(&text).map(|_| file(&text, &[second])).map_err(|error| error.to_string())
    });
    let sidecar = Sidecar::with_source(file("", &[first]), Some(source));
    let mut client = sidecar.client();
    assert_eq!(client.get("/", "").text(), "one");
    *now.lock().unwrap() = "[gate]\nqueue_limit = 0\n[proxy]\ntrust = 'nobody'".to_owned();
    let error = sidecar.handle.reload().expect_err("the file is wrong").to_string();
    for field in ["gate.queue_limit", "proxy.trust"] {
        assert!(error.contains(field), "{error}");
    }
    assert_eq!(client.get("/", "").text(), "one", "the old configuration stays");
    *now.lock().unwrap() = format!("[gate]\nqueue_limit = 77\n{ONE_SLOT}");
    sidecar.handle.reload().expect("the file is right");
    assert_eq!(client.get("/", "").text(), "two", "on the same connection");
    let config = sidecar.admin("/config").text();
    assert!(config.contains("queue_limit = 77"), "{config}");
    let state = sidecar.state();
    let count = |name: &str| state[name].as_u64();
    assert_eq!(
        (count("slots"), count("reloads"), count("bad_reloads")),
        (Some(1), Some(1), Some(1))
    );
}

/// Every line of the Prometheus page is well formed, and says the same as the JSON page.
#[test]
fn the_pages_for_machines_and_people_agree() {
    let upstream = Upstream::start(|request| match request.first.contains("/fail") {
        true => "HTTP/1.1 500 No\r\ncontent-length: 0\r\n\r\n".to_owned(),
        false => ok("fine"),
    });
    let sidecar = Sidecar::start("[proxy]\ntrust = 'inside'", &[upstream.address]);
    let mut client = sidecar.client();
    for business in [0, 20, 20, 40, 60, 60, 60] {
        client.get("/", &format!("overload-context: r=({business} 0)\r\n"));
    }
    client.get("/fail", "overload-context: what?\r\n");
    client.get("/", "grpc-timeout: 0n\r\n");
    sidecar.wait_until_empty();
    let (page, state) = (sidecar.admin("/metrics"), sidecar.state());
    assert_eq!(page.header("content-type"), Some("text/plain; version=0.0.4; charset=utf-8"));
    let page = page.text();
    let mut types = std::collections::BTreeMap::new();
    let mut samples = std::collections::BTreeMap::new();
    for line in page.lines() {
        if let Some(kind) = line.strip_prefix("# TYPE ") {
            let (name, kind) = kind.split_once(' ').expect("a name and a type");
            assert!(types.insert(name, kind).is_none(), "{name} is declared twice");
        } else if !line.starts_with("# HELP ") {
            let (name, value) = line.rsplit_once(' ').expect("a sample and its value");
            let value: f64 = value.parse().unwrap_or_else(|_| panic!("{line}"));
            let family = name.split('{').next().unwrap();
            let family = ["_bucket", "_sum", "_count"]
                .iter()
                .find_map(|suffix| family.strip_suffix(suffix).filter(|f| types.contains_key(f)))
                .unwrap_or(family);
            assert!(types.contains_key(family), "{line} has no type");
            assert!(samples.insert(name, value).is_none(), "{name} comes twice");
        }
    }
    let band = |name: &str| {
        let (json, label) = (&state["admitted"][name], format!("{{band=\"{name}\"}}"));
        (json.as_f64(), samples.get(format!("tidegate_admitted_total{label}").as_str()).copied())
    };
    for (name, count) in
        [("critical-plus", 1.0), ("critical", 3.0), ("sheddable-plus", 1.0), ("sheddable", 3.0)]
    {
        assert_eq!(band(name), (Some(count), Some(count)), "{name}");
        for outcome in ["served", "failed", "cancelled"] {
            let sample =
                format!("tidegate_finished_total{{band=\"{name}\",outcome=\"{outcome}\"}}");
            let told = state["finished"][name][outcome].as_f64();
            assert_eq!(samples.get(sample.as_str()).copied(), told, "{sample}");
        }
    }
    for (sample, told) in [
        (
            "tidegate_refused_total{band=\"critical\",reason=\"expired\"}",
            &state["refused"]["critical"]["expired"],
        ),
        ("tidegate_request_seconds_count", &state["request_seconds"]["count"]),
        ("tidegate_queue_seconds_count", &state["queue_seconds"]["count"]),
        ("tidegate_slots", &state["slots"]),
        ("tidegate_running", &state["running"]),
        ("tidegate_waiting", &state["waiting"]),
        ("tidegate_malformed_contexts_total", &state["malformed_contexts"]),
        ("tidegate_events_lost_total", &state["events_lost"]),
        ("tidegate_upstream_failures_total{kind=\"late\"}", &state["upstream_failures"]["late"]),
    ] {
        assert_eq!(samples.get(sample).copied(), told.as_f64(), "{sample}");
    }
    assert_eq!(state["malformed_contexts"], 1);
    assert_eq!(state["finished"]["critical"]["failed"], 1);
    assert_eq!(samples["tidegate_request_seconds_bucket{le=\"+Inf\"}"], 7.0);
}

#[test]
fn admin_pages_only_look() {
    let upstream = Upstream::start(|_| ok(""));
    let sidecar = Sidecar::start("", &[upstream.address]);
    for (path, status) in [("/", 200), ("/healthz", 200), ("/readyz", 200), ("/nowhere", 404)] {
        assert_eq!(sidecar.admin(path).status(), status, "{path}");
    }
    for (query, part) in
        [("business=99", "0 to 63"), ("deadline=soon", "50ms"), ("colour=red", "colour")]
    {
        let reply = sidecar.admin(&format!("/explain?{query}"));
        assert_eq!(reply.status(), 400);
        assert!(reply.text().contains(part), "{}", reply.text());
    }
    let explained = sidecar.admin("/explain?business=3&user=9&deadline=1s").text();
    assert!(explained.contains("\"start\"") && explained.contains("critical-plus"), "{explained}");
    let mut client = Client::connect(sidecar.handle.admin());
    client.send("POST /state HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\n\r\n");
    assert_eq!(client.reply().status(), 405);
    assert_eq!(sidecar.state()["admitted"]["critical-plus"], 0, "explaining consumes nothing");
}
