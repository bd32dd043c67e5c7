//! Clients that leave: what they asked for stays with the service, and with its slot, until that has answered.

#![allow(clippy::disallowed_methods, reason = "real sockets, real threads, real time")]

mod support;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use support::leaks::conserved;
use support::streams::Streams;
use support::{Barrier, Client, Sidecar, Upstream};

const ONE_SLOT: &str = "[proxy]\nthreads = 1\n[gate.admission]\npolicy = 'open'\n[gate.slots]\nslots = 'fixed'\ncount = 1\n";

fn ask(client: &mut Client, path: &str) {
    client.send(&format!("GET {path} HTTP/1.1\r\nhost: a\r\n\r\n"));
}

/// Ends a client's connection and waits until that is known.
fn leave(sidecar: &Sidecar, client: Client) {
    drop(client);
    sidecar.wait_for("somebody to have left", |state| state["abandoned"] == 1);
}

#[test]
fn who_leaves_does_not_end_the_work_and_its_slot_is_free_with_the_answer() {
    let (barrier, upstream) = Upstream::held();
    let sidecar = Sidecar::start(ONE_SLOT, &[upstream.address]);
    let mut first = sidecar.client_from(2);
    ask(&mut first, "/slow");
    sidecar.wait_for("work", |_| barrier.came() == 1);
    leave(&sidecar, first);
    let mut next = sidecar.client_from(3);
    ask(&mut next, "/");
    sidecar.wait_for("somebody waits", |state| state["waiting"] == 1 && state["running"] == 1);
    assert_eq!(sidecar.state()["when_left"], "goes-on");
    barrier.open();
    assert_eq!(next.reply().text(), "served");
    conserved(&sidecar);
    assert_eq!(upstream.connections.load(Ordering::SeqCst), 1, "and so is its connection");
    let finished = &sidecar.state()["finished"]["critical"];
    assert_eq!((&finished["served"], &finished["cancelled"]), (&1.into(), &1.into()));
}

#[test]
fn over_http2_the_upstream_goes_on_too() {
    let upstream = Streams::start();
    let sidecar = upstream.sidecar(ONE_SLOT);
    let mut first = sidecar.client_from(2);
    ask(&mut first, "/slow");
    sidecar.wait_for("work", |_| upstream.begun() == 1);
    leave(&sidecar, first);
    let mut next = sidecar.client_from(3);
    ask(&mut next, "/");
    sidecar.wait_for("somebody waits", |state| state["waiting"] == 1 && state["running"] == 1);
    upstream.open();
    assert_eq!(next.reply().text(), "served");
    conserved(&sidecar);
    assert_eq!(upstream.reset(), 0);
}

/// A deadline that has passed is a client that waits no more: it is told, and the slot stays with the work.
#[test]
fn a_deadline_that_passes_leaves_the_slot_with_the_work() {
    let (barrier, upstream) = Upstream::held();
    let sidecar = Sidecar::start(ONE_SLOT, &[upstream.address]);
    let mut hurried = sidecar.client_from(2);
    let reply = hurried.get("/slow", "x-envoy-expected-rq-timeout-ms: 30\r\n");
    assert_eq!(reply.status(), 504);
    let state = sidecar.state();
    assert_eq!((&state["running"], &state["abandoned"]), (&1.into(), &1.into()));
    barrier.open();
    conserved(&sidecar);
    assert_eq!(sidecar.client_from(3).get("/", "").text(), "served");
    assert_eq!(upstream.connections.load(Ordering::SeqCst), 1);
}

/// While it works for one that has left, the same client has to wait, and nobody else does.
#[test]
fn who_left_much_behind_is_refused_until_it_is_done() {
    let (barrier, upstream) = Upstream::held();
    let config = ONE_SLOT.replace("count = 1", "count = 2");
    let sidecar = Sidecar::start(&config, &[upstream.address]);
    let mut first = sidecar.client_from(2);
    ask(&mut first, "/slow");
    sidecar.wait_for("work", |_| barrier.came() == 1);
    leave(&sidecar, first);
    let reply = sidecar.client_from(2).get("/", "");
    assert_eq!(reply.status(), 429, "{}", reply.text());
    assert!(reply.text().contains("\"reason\":\"abandoned\""), "{}", reply.text());
    assert_eq!(sidecar.client_from(3).get("/", "").text(), "served");
    barrier.open();
    conserved(&sidecar);
}

#[test]
fn a_service_that_is_known_to_stop_is_told_at_once() {
    let (asked, gone) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (came, count) = (Arc::clone(&asked), Arc::clone(&gone));
    let upstream = Upstream::raw(move |mut client| {
        // A client may be gone before anything was sent for it.
        if client.head().is_err() {
            return;
        }
        came.fetch_add(1, Ordering::SeqCst);
        assert!(client.head().is_err(), "nothing more is sent");
        count.fetch_add(1, Ordering::SeqCst);
    });
    let config = ONE_SLOT.replace("count = 1", "count = 3");
    let config = config.replace("[proxy]\n", "[proxy]\nwhen_left = 'stops'\n");
    let sidecar = Sidecar::start(&config, &[upstream.address]);
    let mut clients: Vec<Client> = (2..10).map(|host| sidecar.client_from(host)).collect();
    clients.iter_mut().for_each(|client| ask(client, "/"));
    sidecar.wait_for("a full gate", |state| state["running"] == 3 && state["waiting"] == 5);
    sidecar.wait_for("work", |_| asked.load(Ordering::SeqCst) == 3);
    drop(clients);
    conserved(&sidecar);
    sidecar.wait_for("upstreams told", |_| {
        asked.load(Ordering::SeqCst) == gone.load(Ordering::SeqCst)
    });
    let state = sidecar.state();
    let finished = &state["finished"]["critical"];
    assert_eq!((&finished["served"], &finished["failed"]), (&0.into(), &0.into()));
    assert!(finished["cancelled"].as_u64() >= Some(3), "{finished}");
}

/// Unless told, the gate tries what the service does: of what is left behind while others wait, some is ended, by lot.
#[test]
fn whether_a_service_stops_is_found_by_trying() {
    let (ended, open) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(true)));
    let (seen, opened) = (Arc::clone(&ended), Arc::clone(&open));
    let upstream = Upstream::raw(move |mut client| {
        let look = Some(Duration::from_millis(2));
        while let Ok(request) = client.head() {
            // It looks whether its client is there while it works.
            client.stream.get_ref().set_read_timeout(look).unwrap();
            while request.first.contains("/slow") && !opened.load(Ordering::SeqCst) {
                if matches!(client.stream.get_ref().peek(&mut [0]), Ok(0)) {
                    seen.fetch_add(1, Ordering::SeqCst);
                    return;
                }
            }
            client.stream.get_ref().set_read_timeout(None).unwrap();
            client.send("HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nserved");
        }
    });
    let config = ONE_SLOT.replace("count = 1", "count = 2");
    let sidecar = Sidecar::start(&config, &[upstream.address]);
    assert_eq!(sidecar.client_from(2).get("/", "").text(), "served");
    let mut hosts = (3..250).cycle();
    while ended.load(Ordering::SeqCst) == 0 {
        open.store(false, Ordering::SeqCst);
        let mut asked = || {
            let mut client = sidecar.client_from(hosts.next().unwrap());
            ask(&mut client, "/slow");
            client
        };
        let leaves = asked();
        sidecar.wait_for("work", |state| state["running"] == 1);
        let mut stay = [asked(), asked(), asked()];
        sidecar.wait_for("others wait", |state| state["waiting"] == 2);
        drop(leaves);
        sidecar.wait_for("it has left", |state| {
            state["abandoned"] == 1 || ended.load(Ordering::SeqCst) == 1
        });
        open.store(true, Ordering::SeqCst);
        stay.iter_mut().for_each(|client| assert_eq!(client.reply().status(), 200));
        conserved(&sidecar);
    }
    assert_eq!(sidecar.state()["when_left"], "goes-on", "one trial shows nothing");
}

/// The rest of an answer is read where that is soon done, and the connection kept; else it is closed.
#[test]
fn an_answer_that_nobody_wants_is_read_if_it_is_short() {
    let barrier = Barrier::default();
    let held = barrier.clone();
    let ends = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&ends);
    let upstream = Upstream::raw(move |mut client| {
        while let Ok(request) = client.head() {
            let endless = request.first.contains("/endless");
            let length = if endless { 64 << 20 } else { 1_000_000 };
            client.send(&format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\nbegun"));
            held.pass();
            let rest = vec![b'x'; length - 5];
            let written = std::io::Write::write_all(client.stream.get_mut(), &rest);
            seen.lock().unwrap().push((endless, written.is_ok()));
            if written.is_err() {
                return;
            }
        }
    });
    let sidecar = Sidecar::start(ONE_SLOT, &[upstream.address]);
    for (path, host) in [("/short", 2), ("/endless", 3)] {
        let mut client = sidecar.client_from(host);
        ask(&mut client, path);
        client.head().expect("the answer begins");
        leave(&sidecar, client);
        barrier.open();
        conserved(&sidecar);
    }
    sidecar.wait_for("both ends", |_| ends.lock().unwrap().len() == 2);
    assert_eq!(*ends.lock().unwrap(), [(false, true), (true, false)]);
    assert_eq!(upstream.connections.load(Ordering::SeqCst), 1);
}

/// Or the server would take us for an attacker, and end the requests of everybody.
#[test]
fn resets_are_few_whatever_clients_do() {
    let upstream = Streams::start();
    let config = ONE_SLOT.replace("count = 1", "count = 200");
    let config = config.replace("[proxy]\n", "[proxy]\nwhen_left = 'stops'\n");
    let sidecar = upstream.sidecar(&config);
    let mut honest = sidecar.client_from(2);
    ask(&mut honest, "/slow");
    sidecar.wait_for("work", |_| upstream.begun() == 1);
    // It does not look at what comes for a while.
    let busy = upstream.hold();
    // Half of them with a body that never comes.
    let mut clients: Vec<Client> = (3..63).map(|host| sidecar.client_from(host)).collect();
    for (n, client) in clients.iter_mut().enumerate() {
        match n % 2 {
            0 => ask(client, "/slow"),
            _ => {
                client.send("POST /slow HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n");
            }
        }
    }
    sidecar.wait_for("all are with the service", |state| {
        state["upstreams"][0]["in_flight"] == 61 && state["running"] == 31
    });
    drop(clients);
    sidecar.wait_for("all have left", |state| state["connections"] == 1);
    drop(busy);
    upstream.open();
    assert_eq!(honest.reply().text(), "served", "{:?}", upstream.ends());
    conserved(&sidecar);
    assert_eq!(upstream.ends(), [""; 0]);
}
