//! Connections that are many, idle, slow or old.

#![allow(clippy::disallowed_methods, reason = "real sockets, real threads, real time")]

mod support;

use std::io::{Read, Write};
use std::thread;
use std::time::Duration;

use support::leaks::{conserved, files_at_rest, memory, wait_for_files};
use support::{Client, Sidecar, Upstream, ok};

/// Reads to the end: true if it came.
fn is_closed(client: &mut Client) -> bool {
    let mut rest = Vec::new();
    client.stream.read_to_end(&mut rest).is_ok()
}

#[test]
fn beyond_the_limit_connections_are_closed_and_counted() {
    let upstream = Upstream::start(|_| ok("served"));
    let sidecar = Sidecar::start("[proxy.connections]\nmost = 2", &[upstream.address]);
    let mut inside = [sidecar.client(), sidecar.client()];
    for client in &mut inside {
        assert_eq!(client.get("/", "").text(), "served");
    }
    assert!(is_closed(&mut sidecar.client()));
    assert_eq!(sidecar.state()["connections_refused"], 1);
    drop(inside);
    sidecar.wait_for("room", |state| state["connections"] == 0);
    assert_eq!(sidecar.client().get("/", "").text(), "served");
}

#[test]
fn connections_that_come_too_fast_are_closed_and_counted() {
    let upstream = Upstream::start(|_| ok("served"));
    let config = "[proxy]\nthreads = 1\n[proxy.connections]\nper_second = 1";
    let sidecar = Sidecar::start(config, &[upstream.address]);
    let mut clients = [(); 8].map(|()| sidecar.client());
    // Two at once are a second's worth and the next one's; more by the time that passed meanwhile.
    assert_eq!(clients[0].get("/", "").text(), "served");
    sidecar.wait_for("all accepted", |state| state["connections_accepted"] == 8);
    let state = sidecar.state();
    let throttled = state["connections_throttled"].as_u64().unwrap();
    assert!(throttled >= 1, "{state:#}");
    assert_eq!(state["connections"].as_u64().unwrap() + throttled, 8);
}

/// The idle are told to end, in the words of their version; the busy are not.
#[test]
fn idle_connections_end_in_good_order() {
    let (barrier, upstream) = Upstream::held();
    let config = "[proxy.connections]\nidle_timeout = '80ms'\n[gate.slots]\nslots = 'fixed'\n";
    let sidecar = Sidecar::start(config, &[upstream.address]);
    let mut busy = sidecar.client();
    busy.send("GET /slow HTTP/1.1\r\nhost: a\r\n\r\n");
    let mut idle = sidecar.client();
    assert_eq!(idle.get("/", "").status(), 200);
    assert!(is_closed(&mut idle));
    let mut second = sidecar.client();
    second.stream.get_mut().write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").unwrap();
    second.stream.get_mut().write_all(&[0, 0, 0, 4, 0, 0, 0, 0, 0]).unwrap();
    assert!(has_goaway(&mut second), "an idle HTTP/2 client is told");
    barrier.open();
    assert_eq!(busy.reply().text(), "served");
    assert_eq!(sidecar.state()["slow_clients"], 0);
}

/// Looks for a frame of kind 7 among those that come (RFC 9113, 6.8).
fn has_goaway(client: &mut Client) -> bool {
    let mut head = [0; 9];
    while client.stream.read_exact(&mut head).is_ok() {
        if head[3] == 7 {
            return true;
        }
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let mut payload = vec![0; length as usize];
        client.stream.read_exact(&mut payload).unwrap();
    }
    false
}

#[test]
fn old_connections_end_after_their_last_answer() {
    let upstream = Upstream::start(|_| ok("served"));
    let sidecar = Sidecar::start("[proxy.connections]\nmax_age = '100ms'", &[upstream.address]);
    let mut client = sidecar.client();
    let mut answered = 0;
    loop {
        client.send("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
        let reply = client.try_reply(false).expect("whoever was not told may go on");
        assert_eq!(reply.text(), "served");
        answered += 1;
        if reply.header("connection") == Some("close") {
            break;
        }
        thread::sleep(Duration::from_millis(5));
    }
    assert!(answered > 1);
    assert!(is_closed(&mut client));
}

/// A head that trickles in is dropped; so is a body, with its slot.
#[test]
fn slow_senders_hold_nothing_for_long() {
    let upstream = Upstream::start(|_| ok("served"));
    let config = "[proxy]\nheader_timeout = '200ms'\nbody_timeout = '200ms'\n\
                  [gate.admission]\npolicy = 'open'\n[gate.slots]\nslots = 'fixed'\ncount = 8\n";
    let sidecar = Sidecar::start(config, &[upstream.address]);
    assert_eq!(sidecar.client().get("/", "").text(), "served", "it opens what stays open");
    sidecar.wait_for("no connections", |state| state["connections"] == 0);
    let before = files_at_rest();
    let mut heads: Vec<Client> = (0..20).map(|_| sidecar.client()).collect();
    for client in &mut heads {
        client.send("GET / HTTP/1.1\r\nhost: a\r\nx-slow: ");
    }
    let mut bodies: Vec<Client> = (0..4).map(|_| sidecar.client()).collect();
    for client in &mut bodies {
        client.send("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 1000000\r\n\r\nx");
    }
    for client in &mut bodies {
        assert_eq!(client.reply().status(), 408);
    }
    assert!(heads.iter_mut().all(is_closed));
    drop((heads, bodies));
    conserved(&sidecar);
    sidecar.wait_for("all gone", |state| state["slow_clients"] == 24);
    wait_for_files(before);
    let state = sidecar.state();
    assert_eq!(state["finished"]["critical"]["failed"], 0, "they say nothing about the service");
    // Whoever is quick is served on.
    let body = "y".repeat(100_000);
    let mut client = sidecar.client();
    client.send(&format!("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 100000\r\n\r\n{body}"));
    assert_eq!(client.reply().text(), "served");
}

#[test]
fn floods_of_headers_are_turned_away() {
    let upstream = Upstream::start(|_| ok("served"));
    let config = "[proxy.connections]\nheaders = 50\nheader_bytes = 16384";
    let sidecar = Sidecar::start(config, &[upstream.address]);
    assert_eq!(sidecar.client().get("/", "").text(), "served", "it opens what stays open");
    sidecar.wait_for("no connections", |state| state["connections"] == 0);
    let (before, memory_before) = (files_at_rest(), memory());
    let many: String = (0..60).map(|n| format!("x-{n}: y\r\n")).collect();
    assert_eq!(sidecar.client().get("/", &many).status(), 431);
    let mut client = sidecar.client();
    let long = "z".repeat(1 << 20);
    // It is told off and closed before it has sent everything.
    let _ = write!(client.stream.get_mut(), "GET / HTTP/1.1\r\nhost: a\r\nx-long: {long}");
    let reply = client.head();
    assert!(reply.is_err() || reply.is_ok_and(|reply| reply.status() == 431));
    drop(client);
    // Many at once, none of which comes to an end.
    let mut flood: Vec<Client> = (0..50).map(|_| sidecar.client()).collect();
    for client in &mut flood {
        let _ = write!(client.stream.get_mut(), "GET / HTTP/1.1\r\nhost: a\r\nx-long: {long}");
    }
    let kept = memory().saturating_sub(memory_before);
    assert!(kept < 20 << 10, "{kept} kB were kept of 50 MB");
    drop(flood);
    wait_for_files(before);
    assert_eq!(sidecar.client().get("/", "").text(), "served");
    sidecar.wait_for("all gone", |state| state["connections"] == 0);
}

/// A client that is far away waits for longer than its service takes, and what the service is held to includes
/// that: from the kernel, by whoever accepts, to the gate.
#[cfg(target_os = "linux")]
#[test]
fn a_learned_objective_includes_the_way_to_the_client() {
    let far = Duration::from_millis(400);
    let upstream = Upstream::start(|_| ok("served"));
    let sidecar = Sidecar::start("[proxy]\nthreads = 1\n", &[upstream.address]);
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None);
    let socket = socket.expect("a socket");
    // The last word of the handshake is kept until there is something to send: for the server, the client
    // is as far away as that.
    socket.set_tcp_quickack(false).expect("Linux has it");
    socket.connect(&sidecar.handle.listen().into()).expect("somebody listens");
    thread::sleep(far);
    let mut client = Client::of(socket.into());
    // As many as a learned objective rests on.
    for _ in 0..64 {
        assert_eq!(client.get("/", "").text(), "served");
    }
    let objective = sidecar.state()["objective_seconds"].as_f64();
    assert!(objective >= Some(far.as_secs_f64() / 2.0), "{objective:?}");
}
