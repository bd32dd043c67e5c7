//! Answers that go on: what holds a slot until all of it is here, and what lasts long and holds none.

#![allow(clippy::disallowed_methods, reason = "real sockets, real threads, real time")]

mod support;

use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use support::leaks::conserved;
use support::{Barrier, Client, Sidecar, Upstream, ok};

const ONE_SLOT: &str = "[proxy]\nthreads = 1\n[gate.admission]\npolicy = 'open'\n[gate.slots]\nslots = 'fixed'\n\
                        count = 1\n";

fn ask(client: &mut Client, path: &str) {
    client.send(&format!("GET {path} HTTP/1.1\r\nhost: a\r\n\r\n"));
}

/// Answers `/short`, and for everything else begins an answer that goes on when the barrier is open.
fn in_two_pieces(head: &'static str) -> (Barrier, Upstream) {
    let barrier = Barrier::default();
    let held = barrier.clone();
    let upstream = Upstream::raw(move |mut client| {
        while let Ok(request) = client.head() {
            if request.first.contains("/short") {
                client.send(&ok("served"));
                continue;
            }
            client.send(&format!("HTTP/1.1 200 OK\r\n{head}\r\n5\r\nfirst\r\n"));
            held.pass();
            client.send("5\r\nafter\r\n0\r\n\r\n");
        }
    });
    (barrier, upstream)
}

#[test]
fn an_answer_that_goes_on_holds_its_slot_to_the_end() {
    let (barrier, upstream) = in_two_pieces("transfer-encoding: chunked\r\n");
    let sidecar = Sidecar::start(ONE_SLOT, &[upstream.address]);
    let (mut first, mut next) = (sidecar.client(), sidecar.client());
    ask(&mut first, "/");
    assert_eq!(first.head().expect("an answer").status(), 200);
    ask(&mut next, "/short");
    sidecar.wait_for("one waits", |state| state["running"] == 1 && state["waiting"] == 1);
    barrier.open();
    let mut whole = [0; 25];
    first.stream.read_exact(&mut whole).expect("all of it");
    assert_eq!(&whole, b"5\r\nfirst\r\n5\r\nafter\r\n0\r\n\r\n");
    assert_eq!(next.reply().text(), "served");
    conserved(&sidecar);
}

#[test]
fn a_stream_of_events_holds_no_slot() {
    let head = "content-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n";
    let (barrier, upstream) = in_two_pieces(head);
    let config = format!("{ONE_SLOT}[proxy.long]\nper_address = 2\n");
    let sidecar = Sidecar::start(&config, &[upstream.address]);
    let mut streams = [sidecar.client_from(2), sidecar.client_from(2)];
    for client in &mut streams {
        ask(client, "/");
        assert_eq!(client.head().expect("it begins").status(), 200);
    }
    let state = sidecar.state();
    assert_eq!((&state["running"], &state["long_lived"]), (&0.into(), &2.into()));
    let mut third = sidecar.client_from(2);
    let refused = third.get("/", "");
    assert_eq!(refused.status(), 503);
    assert!(refused.text().contains("2 of them are yours"), "{}", refused.text());
    assert_eq!(sidecar.client_from(3).get("/short", "").text(), "served");
    barrier.open();
    for client in &mut streams {
        let mut whole = [0; 25];
        client.stream.read_exact(&mut whole).expect("all of it");
    }
    sidecar.wait_for("none are left", |state| state["long_lived"] == 0);
    conserved(&sidecar);
}

#[test]
fn who_leaves_a_stream_of_events_ends_it() {
    let gone = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&gone);
    let upstream = Upstream::raw(move |mut client| {
        client.head().expect("a request");
        client.send("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\ndata: 1\n\n");
        assert!(client.head().is_err(), "nothing more is sent");
        seen.fetch_add(1, Ordering::SeqCst);
    });
    let sidecar = Sidecar::start(ONE_SLOT, &[upstream.address]);
    let mut client = sidecar.client();
    ask(&mut client, "/");
    client.head().expect("it begins");
    drop(client);
    sidecar.wait_for("the service is told", |_| gone.load(Ordering::SeqCst) == 1);
    sidecar.wait_for("none are left", |state| state["long_lived"] == 0);
}

#[test]
fn what_is_named_as_long_is_not_asked_for_a_slot() {
    let (barrier, upstream) = Upstream::held();
    let config = format!("{ONE_SLOT}[proxy.long]\npaths = ['/slow/']\nmost = 2\n");
    let sidecar = Sidecar::start(&config, &[upstream.address]);
    let mut polls = [sidecar.client_from(2), sidecar.client_from(3)];
    polls.iter_mut().for_each(|client| ask(client, "/slow/poll"));
    sidecar.wait_for("both poll", |state| barrier.came() == 2 && state["long_lived"] == 2);
    assert_eq!(sidecar.state()["running"], 0);
    assert_eq!(sidecar.client_from(4).get("/slow/poll", "").status(), 503);
    assert_eq!(sidecar.client_from(4).get("/", "").text(), "served");
    barrier.open();
    polls.iter_mut().for_each(|client| assert_eq!(client.reply().text(), "served"));
    conserved(&sidecar);
}

#[test]
fn a_tunnel_holds_a_place_and_no_slot() {
    let upstream = Upstream::raw(|mut client| {
        let Ok(request) = client.head() else { return };
        match request.header("upgrade") {
            Some(_) => {
                client.send("HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n");
                let mut said = [0; 5];
                if client.stream.read_exact(&mut said).is_ok() {
                    client.send("heard");
                }
            }
            None => client.send(&ok("served")),
        }
    });
    let config = format!("{ONE_SLOT}[proxy.long]\nper_address = 1\n");
    let sidecar = Sidecar::start(&config, &[upstream.address]);
    let upgrade = "connection: upgrade\r\nupgrade: websocket\r\n";
    let mut socket = sidecar.client_from(2);
    assert_eq!(socket.get("/", upgrade).status(), 101);
    let state = sidecar.state();
    assert_eq!((&state["running"], &state["long_lived"]), (&0.into(), &1.into()));
    assert_eq!(sidecar.client_from(2).get("/", upgrade).status(), 503);
    assert_eq!(sidecar.client_from(3).get("/", "").text(), "served");
    socket.send("hello");
    let mut heard = [0; 5];
    socket.stream.read_exact(&mut heard).expect("an answer");
    assert_eq!(&heard, b"heard");
    drop(socket);
    sidecar.wait_for("none are left", |state| state["long_lived"] == 0);
}

/// A client that reads nothing: what is short is here, and the service and its slot are free.
#[test]
fn what_nobody_reads_frees_its_slot_when_it_is_here() {
    let body = "x".repeat(200_000);
    let upstream = Upstream::start(move |request| match request.first.contains("/short") {
        true => ok("served"),
        false => ok(&body),
    });
    let sidecar = Sidecar::start(ONE_SLOT, &[upstream.address]);
    let mut idle: Vec<Client> = (0..10).map(|_| sidecar.client()).collect();
    idle.iter_mut().for_each(|client| ask(client, "/"));
    sidecar.wait_for("all are answered", |state| {
        state["finished"]["critical"]["served"] == 10 && state["running"] == 0
    });
    assert_eq!(sidecar.client().get("/short", "").text(), "served");
    for client in &mut idle {
        assert_eq!(client.reply().body.len(), 200_000, "it is all there for whoever looks at last");
    }
    conserved(&sidecar);
}

/// More than is kept, and nobody reads: no more of them are with the service than there are slots.
#[test]
fn readers_that_take_nothing_of_much_do_not_hold_the_service() {
    const MUCH: usize = 32 << 20;
    let (at_once, broken) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (now, ends) = (Arc::clone(&at_once), Arc::clone(&broken));
    let upstream = Upstream::raw(move |mut client| {
        while let Ok(request) = client.head() {
            now.fetch_add(1, Ordering::SeqCst);
            let body = if request.first.contains("/short") { 6 } else { MUCH };
            let answer = ok(&"x".repeat(body));
            let sent = std::io::Write::write_all(client.stream.get_mut(), answer.as_bytes());
            now.fetch_sub(1, Ordering::SeqCst);
            if sent.is_err() {
                ends.fetch_add(1, Ordering::SeqCst);
                return;
            }
        }
    });
    let config = ONE_SLOT.replace("count = 1", "count = 2");
    let sidecar = Sidecar::start(&config, &[upstream.address]);
    let mut idle: Vec<Client> = (2..10).map(|host| sidecar.client_from(host)).collect();
    idle.iter_mut().for_each(|client| ask(client, "/"));
    sidecar.wait_for("all but two are cut off", |state| {
        broken.load(Ordering::SeqCst) == 6 && state["readers_behind"] == 2
    });
    assert_eq!(at_once.load(Ordering::SeqCst), 2);
    let mut honest = sidecar.client_from(20);
    for _ in 0..20 {
        assert_eq!(honest.get("/short", "").body.len(), 6);
    }
    // Who is slow and reads all the same has all of it.
    let mut slow = sidecar.client_from(21);
    ask(&mut slow, "/");
    assert_eq!(slow.reply().body.len(), MUCH);
}
