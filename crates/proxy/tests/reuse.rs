//! Connections to an upstream that carry one request after another.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use support::{Client, Sidecar, Upstream, leaks, ok};

/// How often a number was counted up, from anywhere.
#[derive(Clone, Default)]
struct Count(Arc<AtomicUsize>);

impl Count {
    fn add(&self) -> usize {
        self.0.fetch_add(1, Ordering::SeqCst)
    }

    fn get(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

/// Answers the first request on each connection and breaks off at the second, of which it has read
/// the head: as an upstream does whose idle timeout ends just then.
fn forgetful(requests: &Count) -> Upstream {
    let requests = requests.clone();
    Upstream::raw(move |mut client: Client| {
        for turn in 0..2 {
            if client.head().is_err() {
                return;
            }
            requests.add();
            if turn == 0 {
                client.send(&ok("once"));
            }
        }
    })
}

#[test]
fn what_changes_nothing_is_asked_again_on_a_new_connection() {
    let requests = Count::default();
    let upstream = forgetful(&requests);
    let sidecar = Sidecar::start("", &[upstream.address]);
    let mut client = sidecar.client();
    for _ in 0..5 {
        assert_eq!(client.get("/", "").status(), 200);
    }
    assert!(requests.get() > 5, "some were sent twice");
    assert_eq!(sidecar.state()["upstream_failures"]["broken"], 0);
}

#[test]
fn what_changes_something_is_never_sent_twice() {
    let requests = Count::default();
    let upstream = forgetful(&requests);
    let sidecar = Sidecar::start("", &[upstream.address]);
    let mut client = sidecar.client();
    for (method, sent) in [("POST", 2), ("PUT", 4), ("DELETE", 6)] {
        assert_eq!(client.get("/", "").status(), 200);
        client.send(&format!("{method} / HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\n\r\n"));
        assert_eq!(client.reply().status(), 502, "{method}");
        assert_eq!(requests.get(), sent, "{method}");
    }
}

#[test]
fn a_request_that_breaks_a_new_connection_is_not_sent_again() {
    let requests = Count::default();
    let upstream = {
        let requests = requests.clone();
        Upstream::raw(move |mut client| {
            let _ = client.head();
            requests.add();
        })
    };
    let sidecar = Sidecar::start("", &[upstream.address, upstream.address]);
    assert_eq!(sidecar.client().get("/deadly", "").status(), 502);
    assert_eq!(requests.get(), 1);
}

/// An upstream may refuse an upload without reading it.
#[test]
fn an_answer_may_come_before_the_request_is_whole() {
    let upstream = Upstream::raw(|mut client| {
        if client.head().is_ok() {
            client.send("HTTP/1.1 413 Too Large\r\ncontent-length: 4\r\n\r\nlong");
        }
    });
    let sidecar = Sidecar::start("", &[upstream.address]);
    for _ in 0..3 {
        let mut client = sidecar.client();
        client.send("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 1000000\r\n\r\nsome");
        let reply = client.reply();
        assert_eq!((reply.status(), reply.text()), (413, "long".into()));
    }
    assert_eq!(
        upstream.connections.load(Ordering::SeqCst),
        3,
        "no connection carries a request behind half of another"
    );
    sidecar.wait_until_empty();
}

/// Most clients look for an answer once they have sent everything: that must not be in vain.
#[test]
fn a_refused_upload_gets_its_refusal() {
    let upstream = Upstream::start(|_| ok("served"));
    let config = "[[gate.limits]]\nlimit = 'rate'\nrate = 0.0001\nburst = 1.0\n";
    let sidecar = Sidecar::start(config, &[upstream.address]);
    assert_eq!(sidecar.client().get("/", "").status(), 200);
    let body = "x".repeat(5_000_000);
    for chunked in [false, true] {
        let head = match chunked {
            false => format!("content-length: {}\r\n\r\n", body.len()),
            true => format!("transfer-encoding: chunked\r\n\r\n{:x}\r\n", body.len()),
        };
        for _ in 0..10 {
            let mut client = sidecar.client();
            client.send(&format!("POST / HTTP/1.1\r\nhost: a\r\n{head}"));
            client.send(&body);
            let reply = client.reply();
            assert_eq!((reply.status(), reply.header("connection")), (429, Some("close")));
        }
    }
    // What is read with the head does not end the connection.
    let mut client = sidecar.client();
    for _ in 0..3 {
        client.send("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 3\r\n\r\nabc");
        let reply = client.reply();
        assert_eq!((reply.status(), reply.header("connection")), (429, None));
    }
    drop(client);
    sidecar.wait_for("no connections", |state| state["connections"] == 0);
}

/// What comes behind an answer belongs to nobody.
#[test]
fn words_that_nobody_asked_for_end_the_connection() {
    let upstream = Upstream::raw(|mut client| {
        while client.head().is_ok() {
            client
                .send(&format!("{}HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nwrong", ok("right")));
        }
    });
    let sidecar = Sidecar::start("", &[upstream.address]);
    let mut client = sidecar.client();
    for _ in 0..5 {
        assert_eq!(client.get("/", "").text(), "right");
    }
    assert_eq!(upstream.connections.load(Ordering::SeqCst), 5);
}

#[test]
fn connections_that_the_upstream_closes_are_closed_here_too() {
    let upstream = Upstream::raw(|mut client| {
        let _ = client.head();
        client.send(&ok("bye"));
    });
    let sidecar = Sidecar::start("", &[upstream.address]);
    let mut client = sidecar.client();
    assert_eq!(client.get("/", "").text(), "bye");
    let before = leaks::files_at_rest();
    for _ in 0..20 {
        assert_eq!(client.get("/", "").text(), "bye");
    }
    leaks::wait_for_files(before);
    assert_eq!(sidecar.state()["upstream_failures"]["broken"], 0);
}
