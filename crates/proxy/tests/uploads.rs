//! Bodies that are not there: a slot begins when the service can work.

#![allow(clippy::disallowed_methods, reason = "real sockets, real threads, real time")]

mod support;

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use support::leaks::conserved;
use support::{Client, Sidecar, Upstream, ok};

const ONE_SLOT: &str = "[proxy]\nthreads = 1\nbody_timeout = '2s'\n[gate.admission]\npolicy = 'open'\n\
                        [gate.slots]\nslots = 'fixed'\ncount = 1\n";

/// The preface, settings, and heads of `count` POST requests without an end.
fn heads(count: u32) -> Vec<u8> {
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    bytes.extend([0, 0, 0, 4, 0, 0, 0, 0, 0]);
    for n in 0..count {
        // POST http://a/, by the table of HTTP/2 (RFC 7541, appendix A).
        let block = [0x83, 0x84, 0x86, 0x41, 1, b'a'];
        bytes.extend([0, 0, block.len() as u8, 1, 4]);
        bytes.extend((2 * n + 1).to_be_bytes());
        bytes.extend(block);
    }
    bytes
}

fn echo() -> Upstream {
    Upstream::start(|request| ok(&format!("{} bytes", request.body.len())))
}

#[test]
fn heads_without_bodies_take_no_slots() {
    let upstream = echo();
    let sidecar = Sidecar::start(ONE_SLOT, &[upstream.address]);
    let mut silent = sidecar.client_from(2);
    silent.stream.get_mut().write_all(&heads(8)).expect("it is read");
    let mut known: Vec<Client> = (0..8).map(|_| sidecar.client_from(2)).collect();
    for client in &mut known {
        client.send("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 100\r\n\r\nsome");
    }
    sidecar.wait_for("all are there", |state| state["unfinished_uploads"] == 16);
    let mut honest = sidecar.client_from(3);
    for _ in 0..20 {
        assert_eq!(honest.get("/", "").text(), "0 bytes");
    }
    assert!(sidecar.state()["unfinished_uploads"].as_u64() >= Some(8), "they are still there");
}

#[test]
fn a_body_that_comes_slowly_is_served_when_it_is_there() {
    let upstream = echo();
    let sidecar = Sidecar::start(ONE_SLOT, &[upstream.address]);
    let mut sensor = sidecar.client_from(2);
    sensor.send("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 10\r\n\r\n");
    let mut honest = sidecar.client_from(3);
    for _ in 0..10 {
        sensor.send("x");
        thread::sleep(Duration::from_millis(15));
        assert_eq!(honest.get("/", "").text(), "0 bytes");
    }
    assert_eq!(sensor.reply().text(), "10 bytes");
    let mut chunked = sidecar.client_from(2);
    chunked.send("POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n");
    for _ in 0..5 {
        chunked.send("1\r\nx\r\n");
        thread::sleep(Duration::from_millis(70));
        assert_eq!(honest.get("/", "").text(), "0 bytes");
    }
    chunked.send("0\r\n\r\n");
    assert_eq!(chunked.reply().text(), "5 bytes");
    conserved(&sidecar);
}

/// More than is awaited, and then nothing: the slot is given back, and taken again for the rest.
#[test]
fn a_body_that_stands_still_gives_its_slot_back_until_it_goes_on() {
    let upstream = echo();
    let sidecar = Sidecar::start(ONE_SLOT, &[upstream.address]);
    let mut client = sidecar.client_from(2);
    client.send("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 200000\r\n\r\n");
    client.send(&"x".repeat(100_000));
    sidecar.wait_for("it has begun", |_| upstream.connections.load(Ordering::SeqCst) == 1);
    sidecar.wait_for("its slot is free", |state| state["running"] == 0);
    assert_eq!(sidecar.client_from(3).get("/", "").text(), "0 bytes");
    client.send(&"x".repeat(100_000));
    assert_eq!(client.reply().text(), "200000 bytes");
    conserved(&sidecar);
    let finished = &sidecar.state()["finished"]["critical"];
    assert_eq!((&finished["served"], &finished["cancelled"]), (&2.into(), &0.into()));
}

#[test]
fn a_body_that_stands_still_for_too_long_loses_its_upstream_too() {
    let gone = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&gone);
    let upstream = Upstream::raw(move |mut client| {
        let Ok(_) = client.try_reply(false) else {
            seen.fetch_add(1, Ordering::SeqCst);
            return;
        };
    });
    let config = ONE_SLOT.replace("'2s'", "'300ms'");
    let sidecar = Sidecar::start(&config, &[upstream.address]);
    let mut known = sidecar.client_from(2);
    known.send("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 10\r\n\r\nsome");
    assert_eq!(known.reply().status(), 408);
    assert_eq!(upstream.connections.load(Ordering::SeqCst), 0, "the service never heard of it");
    let mut chunked = sidecar.client_from(2);
    chunked.send("POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n4\r\nsome\r\n");
    assert_eq!(chunked.reply().status(), 408);
    sidecar.wait_for("the upstream is told", |_| gone.load(Ordering::SeqCst) == 1);
    conserved(&sidecar);
    assert_eq!(sidecar.state()["unfinished_uploads"], 0);
}

/// Whoever asks first is answered first, and holds nothing until its body is there.
#[test]
fn a_client_that_waits_to_be_told_holds_no_slot() {
    let upstream = echo();
    let sidecar = Sidecar::start(ONE_SLOT, &[upstream.address]);
    let mut client = sidecar.client_from(2);
    client.send("POST / HTTP/1.1\r\nhost: a\r\nexpect: 100-continue\r\ncontent-length: 5\r\n\r\n");
    assert_eq!(client.head().expect("told to go on").status(), 100);
    assert_eq!(sidecar.client_from(3).get("/", "").text(), "0 bytes");
    client.send("hello");
    assert_eq!(client.reply().text(), "5 bytes");
    conserved(&sidecar);
}

/// Neither knows that the other is to speak first: nobody waits for long.
#[test]
fn an_upload_that_waits_for_an_answer_gets_it() {
    let upstream = Upstream::raw(|mut client| {
        client.head().expect("a head");
        client.send("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nspeak\r\n");
        let mut line = [0; 10];
        std::io::Read::read_exact(&mut client.stream, &mut line).expect("it speaks");
        assert_eq!(&line, b"5\r\nhello\r\n");
        client.send("3\r\nbye\r\n0\r\n\r\n");
    });
    let sidecar = Sidecar::start(ONE_SLOT, &[upstream.address]);
    let mut client = sidecar.client_from(2);
    client.send("POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n");
    client.head().expect("an answer begins");
    let mut speak = [0; 10];
    std::io::Read::read_exact(&mut client.stream, &mut speak).expect("the service speaks");
    client.send("5\r\nhello\r\n0\r\n\r\n");
    let mut rest = [0; 13];
    std::io::Read::read_exact(&mut client.stream, &mut rest).expect("and answers");
    assert_eq!(&rest, b"3\r\nbye\r\n0\r\n\r\n");
    conserved(&sidecar);
}

#[test]
fn one_address_has_only_so_many_bodies_under_way() {
    let upstream = echo();
    let sidecar = Sidecar::start(ONE_SLOT, &[upstream.address]);
    let mut silent = sidecar.client_from(2);
    silent.stream.get_mut().write_all(&heads(100)).expect("it is read");
    sidecar.wait_for("all are there", |state| state["unfinished_uploads"] == 100);
    let post = "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 3\r\n\r\nab";
    let mut one_more = sidecar.client_from(2);
    one_more.send(post);
    let reply = one_more.reply();
    assert_eq!(reply.status(), 503);
    assert!(reply.text().contains("100 of them are yours"), "{}", reply.text());
    let mut other = sidecar.client_from(3);
    other.send(post);
    sidecar.wait_for("another's is awaited", |state| state["unfinished_uploads"] == 101);
    other.send("c");
    assert_eq!(other.reply().text(), "3 bytes");
}
