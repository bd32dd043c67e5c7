//! Clients that ask and never read: what they hold is bounded in memory and in time.

#![allow(clippy::disallowed_methods, reason = "real sockets, real threads, real time")]

mod support;

use std::io::{Read, Write};
use std::time::Duration;

use support::leaks::{conserved, files_at_rest, memory, wait_for_files};
use support::{Client, Sidecar, Upstream, ok};

/// Far more than any buffer holds.
const ANSWER: usize = 64 << 20;
/// Of all buffers on the way, for each client: sockets' own are the kernel's.
const KEPT_PER_CLIENT: u64 = 1 << 10;
const CONFIG: &str = "[proxy]\nbody_timeout = '400ms'\nidle_timeout = '20ms'\n\
                      [gate.admission]\npolicy = 'open'\n[gate.slots]\nslots = 'fixed'\ncount = 64\n";

/// `GET /` with the fields of HTTP/2's own table (RFC 7541, appendix A), on the stream `id`; the end of
/// stream and of headers.
fn get_frame(id: u32) -> Vec<u8> {
    let block = [0x82, 0x84, 0x86, 0x41, 1, b'a'];
    let mut frame = vec![0, 0, block.len() as u8, 1, 5];
    frame.extend(id.to_be_bytes());
    frame.extend(block);
    frame
}

/// The preface and settings; with `window` as what each answer may have on its way.
fn hello(window: u32) -> Vec<u8> {
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    bytes.extend([0, 0, 6, 4, 0, 0, 0, 0, 0, 0, 4]);
    bytes.extend(window.to_be_bytes());
    bytes
}

/// An upstream with answers without end, a sidecar before it, and how many files were open.
fn endless() -> (Upstream, Sidecar, usize) {
    let piece = "z".repeat(1 << 16);
    let upstream = Upstream::raw(move |mut client| {
        while let Ok(request) = client.head() {
            if request.first.contains("/short") {
                client.send(&ok("served"));
                continue;
            }
            client.send(&format!("HTTP/1.1 200 OK\r\ncontent-length: {ANSWER}\r\n\r\n"));
            for _ in 0..ANSWER / piece.len() {
                if client.stream.get_mut().write_all(piece.as_bytes()).is_err() {
                    return;
                }
            }
        }
    });
    let sidecar = Sidecar::start(CONFIG, &[upstream.address]);
    assert_eq!(sidecar.client().get("/short", "").text(), "served");
    sidecar.wait_for("no connections", |state| state["connections"] == 0);
    let before = files_at_rest();
    (upstream, sidecar, before)
}

/// Waits until all `clients` were given up, which they did not notice; nothing of them is left.
fn given_up(sidecar: &Sidecar, clients: Vec<Client>, before: usize, memory_before: u64) {
    let count = clients.len() as u64;
    sidecar.wait_for("all are given up", |state| state["slow_clients"] == count);
    let kept = memory().saturating_sub(memory_before);
    assert!(kept < count * KEPT_PER_CLIENT, "{kept} kB were kept for {count} clients");
    conserved(sidecar);
    sidecar.wait_for("no connections", |state| state["connections"] == 0);
    drop(clients);
    wait_for_files(before);
    assert_eq!(sidecar.client().get("/short", "").text(), "served", "others are served on");
}

#[test]
fn whoever_reads_nothing_is_given_up() {
    let (_upstream, sidecar, before) = endless();
    let memory_before = memory();
    let mut clients: Vec<Client> = (0..20).map(|_| sidecar.client()).collect();
    clients.iter_mut().for_each(|client| client.send("GET / HTTP/1.1\r\nhost: a\r\n\r\n"));
    given_up(&sidecar, clients, before, memory_before);
}

/// Of HTTP/2 the window says how much may come: here next to nothing, and never more.
#[test]
fn whoever_opens_no_window_is_given_up() {
    let (_upstream, sidecar, before) = endless();
    for window in [0, 100] {
        let so_far = sidecar.state()["slow_clients"].as_u64().expect("a number");
        let memory_before = memory();
        let mut clients: Vec<Client> = (0..5).map(|_| sidecar.client()).collect();
        for client in &mut clients {
            let stream = client.stream.get_mut();
            stream.write_all(&hello(window)).expect("it is read");
            (0..4).for_each(|n| stream.write_all(&get_frame(2 * n + 1)).expect("it is read"));
        }
        // Stream by stream, or, where there are no streams, a connection.
        sidecar.wait_for("all are given up", |state| {
            state["slow_clients"].as_u64() >= Some(so_far + 5) && state["running"] == 0
        });
        let kept = memory().saturating_sub(memory_before);
        assert!(kept < 20 * KEPT_PER_CLIENT, "{kept} kB were kept for 20 streams");
        conserved(&sidecar);
        drop(clients);
        wait_for_files(before);
    }
}

/// Who pings all the time keeps the connection, but not what it does not take; what it takes comes.
#[test]
fn pings_do_not_keep_a_stream_that_is_left_lying() {
    const PING: [u8; 17] = [0, 0, 8, 6, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8];
    let (_upstream, sidecar, _) = endless();
    let mut client = sidecar.client();
    // 100 bytes for each stream: what is short comes whole.
    client.stream.get_mut().write_all(&[hello(100), get_frame(1)].concat()).expect("it is read");
    let (mut pongs, mut reset) = (0, None);
    while reset.is_none() {
        assert!(pongs < 1_000, "for ten seconds and more, it was not given up");
        client.stream.get_mut().write_all(&PING).expect("it is read");
        std::thread::sleep(Duration::from_millis(10));
        let (kind, stream, payload) = frame(&mut client);
        match kind {
            3 => reset = Some((stream, payload)),
            6 => pongs += 1,
            kind => assert_ne!(kind, 7, "the connection goes on"),
        }
    }
    assert_eq!(reset, Some((1, 8u32.to_be_bytes().to_vec())), "CANCEL, for this stream alone");
    assert!(pongs > 0);
    conserved(&sidecar);
    assert_eq!(sidecar.state()["slow_clients"], 1);
    // Whatever comes then, until the last that was asked is answered.
    let mut short = vec![0x82, 0x86, 0x41, 1, b'a', 0x04, 6];
    short.extend(b"/short");
    let mut asked = vec![0, 0, short.len() as u8, 1, 5, 0, 0, 0, 3];
    asked.extend(short);
    client.stream.get_mut().write_all(&asked).expect("it is read");
    let body = loop {
        if let (0, 3, body) = frame(&mut client) {
            break body;
        }
    };
    assert_eq!(body, b"served");
}

/// The next frame: its type, its stream, what it carries.
fn frame(client: &mut Client) -> (u8, u32, Vec<u8>) {
    let mut head = [0; 9];
    client.stream.read_exact(&mut head).expect("a frame");
    let [a, b, c, kind, _, stream @ ..] = head;
    let mut payload = vec![0; u32::from_be_bytes([0, a, b, c]) as usize];
    client.stream.read_exact(&mut payload).expect("all of it");
    (kind, u32::from_be_bytes(stream), payload)
}

/// A stream whose upstream has nothing to say is no slow client.
#[test]
fn whoever_waits_for_the_upstream_is_kept() {
    let upstream = Upstream::raw(|mut client| {
        let Ok(_) = client.head() else { return };
        client.send("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhi\r\n");
        std::thread::sleep(Duration::from_millis(1_500));
        client.send("5\r\nlater\r\n0\r\n\r\n");
    });
    let sidecar = Sidecar::start(CONFIG, &[upstream.address]);
    assert_eq!(sidecar.client().get("/", "").text(), "hilater");
    assert_eq!(sidecar.state()["slow_clients"], 0);
}

/// Requests one after the other without a look at the answers: reading stops when nothing can be written.
#[test]
fn requests_without_end_are_not_answered_into_memory() {
    let upstream = Upstream::start(|_| ok(&"y".repeat(1_000)));
    let sidecar = Sidecar::start(CONFIG, &[upstream.address]);
    assert_eq!(sidecar.client().get("/", "").status(), 200);
    let memory_before = memory();
    let mut client = sidecar.client();
    let stream = client.stream.get_mut();
    stream.set_write_timeout(Some(Duration::from_millis(500))).expect("a time");
    let many = "GET / HTTP/1.1\r\nhost: a\r\n\r\n".repeat(1_000);
    // A hundred megabytes of answers, if nobody stops it.
    let sent = (0..100).take_while(|_| stream.write_all(many.as_bytes()).is_ok()).count();
    // Until nothing moves any more.
    let served = || sidecar.state()["finished"]["critical"]["served"].as_u64();
    let mut before = None;
    while before != served() || before < Some(100) {
        before = served();
        std::thread::sleep(Duration::from_millis(200));
    }
    let kept = memory().saturating_sub(memory_before);
    assert!(kept < 16 << 10, "{kept} kB were kept after {before:?} of {sent},000 requests");
    drop(client);
    conserved(&sidecar);
}

/// Asked and taken back at once, ten thousand times: what was begun ends, and the connection too, at some
/// point.
#[test]
fn requests_that_are_taken_back_at_once_leave_nothing() {
    let (_upstream, sidecar, before) = endless();
    let memory_before = memory();
    let mut client = sidecar.client();
    let stream = client.stream.get_mut();
    let mut sent = stream.write_all(&hello(65_535)).is_ok();
    for n in 0..10_000u32 {
        let id = 2 * n + 1;
        let mut frames = get_frame(id);
        frames.extend([0, 0, 4, 3, 0]);
        frames.extend(id.to_be_bytes());
        frames.extend(8u32.to_be_bytes());
        sent = sent && stream.write_all(&frames).is_ok();
    }
    drop(client);
    conserved(&sidecar);
    sidecar.wait_for("no connections", |state| state["connections"] == 0);
    wait_for_files(before);
    let kept = memory().saturating_sub(memory_before);
    assert!(kept < 16 << 10, "{kept} kB were kept");
    assert_eq!(sidecar.client().get("/short", "").text(), "served", "others are served on");
}
