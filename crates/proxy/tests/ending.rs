//! What one message leaves to the next, and how connections end.

#![allow(clippy::disallowed_methods, reason = "real sockets, real threads, real time")]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use support::{Client, Sidecar, Upstream, ok};

/// Refuses by its bounds alone, however slow the machine that runs this is.
const OPEN: &str = "[gate.admission]\npolicy = 'open'\n[gate.slots]\nslots = 'fixed'\ncount = 64\n";

/// The body comes when the connection would be free already, and the next answer would begin with it: so there is none.
#[test]
fn a_body_that_head_should_not_have_is_nobody_elses_answer() {
    let poison = ok("poison");
    let body = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", poison.len());
    let upstream = Upstream::raw(move |mut client| {
        let mut asked = 0;
        while let Ok(request) = client.head() {
            if request.first.starts_with("HEAD") {
                client.send(&body);
                asked += 1;
            } else if asked > 0 {
                // As late as can be.
                client.send(&poison);
            } else {
                client.send(&ok("served"));
            }
        }
    });
    let sidecar = Sidecar::start(&format!("{OPEN}[proxy]\nthreads = 1\n"), &[upstream.address]);
    let mut client = sidecar.client();
    for _ in 0..20 {
        client.send("HEAD / HTTP/1.1\r\nhost: a\r\n\r\n");
        assert_eq!(client.try_reply(true).expect("an answer").status(), 200);
        assert_eq!(client.get("/", "").text(), "served");
    }
}

/// Each asks again as soon as it is answered, and is told with an answer that it is the last.
#[test]
fn the_end_loses_no_request_of_a_busy_client() {
    let upstream = Upstream::start(|_| ok("served"));
    let sidecar = Sidecar::start(OPEN, &[upstream.address]);
    let answered = Arc::new(AtomicUsize::new(0));
    let clients: Vec<_> = (0..30)
        .map(|_| {
            let (mut client, answered) = (sidecar.client(), Arc::clone(&answered));
            thread::spawn(move || {
                loop {
                    let reply = client.get("/", "");
                    assert_eq!((reply.status(), &*reply.text()), (200, "served"));
                    answered.fetch_add(1, Ordering::SeqCst);
                    if reply.header("connection") == Some("close") {
                        return client;
                    }
                }
            })
        })
        .collect();
    sidecar.wait_for("all busy", |_| answered.load(Ordering::SeqCst) > 300);
    // One that is idle just then asks once more, and one that has only connected asks for the first time.
    let (mut idle, mut new) = (sidecar.client(), sidecar.client());
    assert_eq!(idle.get("/", "").text(), "served");
    sidecar.wait_for("both are there", |state| state["connections"] == 32);
    sidecar.handle.stop();
    sidecar.wait_for("the end", |state| state["draining"] == true);
    for client in [&mut idle, &mut new] {
        let reply = client.get("/", "");
        assert_eq!((reply.status(), reply.header("connection")), (200, Some("close")));
    }
    for client in clients {
        let mut client: Client = client.join().expect("no request was lost");
        assert!(client.head().is_err(), "and then it is closed");
    }
    sidecar.ended();
}
