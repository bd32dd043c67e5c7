//! What a stranger may say, and ways around the gate that there are none of.

#![allow(clippy::disallowed_methods, reason = "real sockets, real threads, real time")]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use support::{Client, Sidecar, Upstream, ok};

/// Refuses by its bounds alone, however slow the machine that runs this is.
const OPEN: &str = "[gate.admission]\npolicy = 'open'\n";

/// Answers with the request line, and the rank that was given.
fn mirror() -> Upstream {
    Upstream::start(|request| {
        let rank = request.header("overload-context").unwrap_or_default().to_owned();
        ok(&format!("{} {rank}", request.first))
    })
}

#[test]
fn a_path_goes_on_as_it_was_matched() {
    let upstream = mirror();
    let rules = "[[proxy.rules]]\npath = '/checkout'\nbusiness = 3\n\
                 [[proxy.rules]]\npath = '/expensive'\nbusiness = 60\n";
    let sidecar = Sidecar::start(&format!("{OPEN}{rules}"), &[upstream.address]);
    for (path, goes_on, business) in [
        ("/checkout/pay", "/checkout/pay", 3),
        ("/checkout/../expensive", "/expensive", 60),
        ("/checkout/%2e%2E/expensive?q=/../%2f", "/expensive?q=/../%2f", 60),
        ("/checkout/./x/..", "/checkout/", 3),
        ("/%65xpensive", "/expensive", 60),
        ("/grpc.health.v1.Health/../expensive", "/expensive", 60),
        ("/grpc.health.v1.Health/%2e%2e/expensive", "/expensive", 60),
    ] {
        let told = sidecar.client().get(path, "").text();
        let wanted = format!("GET {goes_on} HTTP/1.1 r=({business} ");
        assert!(told.starts_with(&wanted), "{path}: {told}");
    }
    let admitted = &sidecar.state()["admitted"];
    let (high, low) = (&admitted["critical-plus"], &admitted["sheddable"]);
    assert_eq!((high, low), (&2.into(), &5.into()), "none of them is a health check");
    let connections = upstream.connections.load(Ordering::SeqCst);
    for path in [
        "/grpc.health.v1.Health/..%2fexpensive",
        "/checkout/..%5cexpensive",
        "/checkout\\..\\expensive",
        "/checkout/%252e%252e/expensive",
        "/checkout/..;/expensive",
        "/../expensive",
        "/healthz%00",
        "/%",
    ] {
        let reply = sidecar.client().get(path, "");
        assert_eq!(reply.status(), 400, "{path}: {}", reply.text());
    }
    assert_eq!(upstream.connections.load(Ordering::SeqCst), connections, "nothing was sent");
    assert_eq!(sidecar.state()["ambiguous_paths"], 8);
}

/// Names with encoded slashes are some services' own; no rule and no exemption is meant by them.
#[test]
fn ambiguous_paths_pass_if_told_so_and_fit_no_path() {
    let upstream = mirror();
    let config = "[proxy.edge]\nambiguous_paths = 'pass'\n\
                  [[proxy.rules]]\npath = '/checkout'\nbusiness = 3\n";
    let sidecar = Sidecar::start(&format!("{OPEN}{config}"), &[upstream.address]);
    for path in ["/checkout/@scope%2Fname", "/healthz/..%2f..%2fexpensive"] {
        let told = sidecar.client().get(path, "").text();
        assert!(told.starts_with(&format!("GET {path} HTTP/1.1 r=(63 ")), "{told}");
    }
    assert_eq!(sidecar.state()["admitted"]["sheddable"], 2);
}

/// The prober is answered with everybody else, from one request.
#[test]
fn a_flood_of_health_checks_is_one_request_at_a_time_and_none_is_refused() {
    let (at_once, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (now, peak) = (Arc::clone(&at_once), Arc::clone(&most));
    let upstream = Upstream::start(move |request| {
        assert_eq!(request.header("accept"), None, "one client's words are not for all");
        peak.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        let answer = "HTTP/1.1 200 OK\r\nset-cookie: sid=1\r\nx-kept: 1\r\n\
                      content-length: 4\r\n\r\nwell";
        now.fetch_sub(1, Ordering::SeqCst);
        answer.to_owned()
    });
    let config =
        format!("{OPEN}[gate.slots]\nslots = 'fixed'\ncount = 1\n[gate]\nqueue_limit = 1\n");
    let sidecar = Sidecar::start(&config, &[upstream.address]);
    for _ in 0..5 {
        let mut flood: Vec<Client> = (0..50).map(|_| sidecar.client()).collect();
        for client in &mut flood {
            client.send("GET /healthz HTTP/1.1\r\nhost: shop\r\naccept: */*\r\n\r\n");
        }
        let mut prober = sidecar.client();
        prober.send("GET /healthz HTTP/1.1\r\nhost: shop\r\nuser-agent: kube-probe/1.33\r\n\r\n");
        for client in flood.iter_mut().chain([&mut prober]) {
            let reply = client.reply();
            assert_eq!((reply.status(), &*reply.text()), (200, "well"));
            assert_eq!((reply.header("x-kept"), reply.header("set-cookie")), (Some("1"), None));
        }
    }
    assert_eq!(most.load(Ordering::SeqCst), 1);
    assert_eq!(sidecar.state()["exempt_gated"], 0);
}

/// What cannot be asked in common has a few places, and otherwise goes through the gate.
#[test]
fn exempt_requests_of_other_kinds_are_bounded() {
    let (barrier, upstream) = Upstream::held();
    let config =
        format!("{OPEN}[proxy]\nexempt = ['/slow']\n[gate.slots]\nslots = 'fixed'\ncount = 2\n");
    let sidecar = Sidecar::start(&config, &[upstream.address]);
    let mut flood: Vec<Client> = (0..40).map(|_| sidecar.client()).collect();
    for (n, client) in flood.iter_mut().enumerate() {
        match n % 3 {
            0 => client.send("POST /slow HTTP/1.1\r\nhost: a\r\ncontent-length: 1\r\n\r\nx"),
            1 => client.send("GET /slow HTTP/1.1\r\nhost: a\r\ncookie: a=b\r\n\r\n"),
            _ => client.send(&format!("GET /slow?{n} HTTP/1.1\r\nhost: a\r\n\r\n")),
        }
    }
    sidecar.wait_for("all inside", |state| {
        state["running"] == 2 && state["waiting"] == 36 && barrier.came() == 4
    });
    barrier.open();
    for client in &mut flood {
        assert_eq!(client.reply().status(), 200);
    }
    sidecar.wait_until_empty();
}

/// Or whoever asks and leaves would have as much work done as it likes.
#[test]
fn who_leaves_an_exempt_request_keeps_its_place_for_a_while() {
    let (barrier, upstream) = Upstream::held();
    let config = format!("{OPEN}[proxy]\nexempt = ['/slow']\n");
    let sidecar = Sidecar::start(&config, &[upstream.address]);
    let post = |client: &mut Client| {
        client.send("POST /slow HTTP/1.1\r\nhost: a\r\ncontent-length: 1\r\n\r\nx");
    };
    let mut first = [sidecar.client(), sidecar.client()];
    first.iter_mut().for_each(post);
    sidecar.wait_for("both places are taken", |_| barrier.came() == 2);
    drop(first);
    sidecar.wait_for("they have left", |state| state["connections"] == 0);
    let mut next = sidecar.client();
    post(&mut next);
    sidecar
        .wait_for("the gate is asked", |state| state["exempt_gated"] == 1 && state["running"] == 1);
    barrier.open();
    assert_eq!(next.reply().status(), 200);
}
