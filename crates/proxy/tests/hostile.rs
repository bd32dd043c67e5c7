//! Clients and upstreams that do what they must not: nothing leaks, nothing that was accepted is lost,
//! and nobody smuggles a request past us.

#![allow(clippy::disallowed_methods, reason = "real sockets, real threads, real time")]

mod support;

use std::io::{Read, Write};

use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use support::leaks::{conserved, files_at_rest, memory, wait_for_files};
use support::{Barrier, Client, Sidecar, Upstream, ok};
use tidegate_proxy::File;

/// Every way that two servers have been known to disagree about where a request ends. What is left
/// over after ours must never reach the upstream as a request of its own.
#[test]
fn no_request_is_smuggled() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let kept = Arc::clone(&seen);
    let upstream = Upstream::start(move |request| {
        kept.lock().unwrap().push(request.first.clone());
        ok("served")
    });
    let config = "[proxy]\nheader_timeout = '300ms'\nbody_timeout = '300ms'\n";
    let sidecar = Sidecar::start(config, &[upstream.address]);
    assert_eq!(sidecar.client().get("/", "").text(), "served", "it opens what stays open");
    sidecar.wait_for("no connections", |state| state["connections"] == 0);
    let before = files_at_rest();
    let hidden = "GET /hidden HTTP/1.1\r\nhost: a\r\n\r\n";
    let length = hidden.len();
    for (name, head, body) in [
        ("two lengths", "content-length: 0\r\ncontent-length: 5\r\n", "12345".to_owned()),
        ("two lengths in one", "content-length: 0, 5\r\n", "12345".to_owned()),
        ("a signed length", "content-length: +5\r\n", "12345".to_owned()),
        ("a length in words", "content-length: five\r\n", "12345".to_owned()),
        ("a negative length", "content-length: -1\r\n", hidden.to_owned()),
        (
            "length and chunks",
            &*format!("content-length: {length}\r\ntransfer-encoding: chunked\r\n"),
            format!("0\r\n\r\n{hidden}"),
        ),
        (
            "chunks and length",
            "transfer-encoding: chunked\r\ncontent-length: 4\r\n",
            format!("0\r\n\r\n{hidden}"),
        ),
        ("unknown coding", "transfer-encoding: xchunked\r\n", format!("0\r\n\r\n{hidden}")),
        ("chunked not last", "transfer-encoding: chunked, gzip\r\n", format!("0\r\n\r\n{hidden}")),
        (
            "two codings",
            "transfer-encoding: chunked\r\ntransfer-encoding: identity\r\n",
            format!("0\r\n\r\n{hidden}"),
        ),
        (
            "a space before the colon",
            "transfer-encoding : chunked\r\n",
            format!("0\r\n\r\n{hidden}"),
        ),
        ("a folded line", "x: y\r\n transfer-encoding: chunked\r\n", format!("0\r\n\r\n{hidden}")),
        ("a size that is none", "transfer-encoding: chunked\r\n", format!("zz\r\n{hidden}")),
        (
            "a size beyond all numbers",
            "transfer-encoding: chunked\r\n",
            format!("ffffffffffffffff0\r\n{hidden}"),
        ),
        ("a null in a name", "x\0y: z\r\n", String::new()),
        ("a bare carriage return", "x: y\rcontent-length: 0\r\n", String::new()),
    ] {
        seen.lock().unwrap().clear();
        let mut client = sidecar.client();
        client.send(&format!("POST /seen HTTP/1.1\r\nhost: a\r\n{head}\r\n{body}"));
        let mut answers = Vec::new();
        let _ = client.stream.read_to_end(&mut answers);
        let answers = String::from_utf8_lossy(&answers);
        let hidden = seen.lock().unwrap().iter().any(|line| line.contains("/hidden"));
        // Where our own reading is clear, the rest may be the client's own next request: then it is
        // answered as one, to its sender.
        let own = answers.matches("HTTP/1.1 200").count() == 2;
        assert!(!hidden || own, "{name}: {answers}");
        let bad = ["two lengths", "two lengths in one", "a signed length", "unknown coding"];
        if bad.contains(&name) {
            assert!(answers.starts_with("HTTP/1.1 400"), "{name}: {answers}");
            assert!(seen.lock().unwrap().is_empty(), "{name}");
        }
    }
    conserved(&sidecar);
    wait_for_files(before);
    assert_eq!(sidecar.client().get("/", "").text(), "served", "still there");
}

/// A service that changes to HTTP/2 when it is asked would then take requests that no gate has seen.
#[test]
fn no_connection_is_opened_past_the_gate() {
    let upstream = Upstream::start(|request| {
        let asked = ["upgrade", "http2-settings", "connection"].map(|name| request.header(name));
        match asked {
            [None, None, None] => ok("plain"),
            [protocol, ..] => format!(
                "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: {}\r\n\r\n",
                protocol.unwrap_or_default()
            ),
        }
    });
    let sidecar = Sidecar::start("", &[upstream.address]);
    let settings = "http2-settings: AAMAAABkAAQAoAAAAAIAAAAA\r\n";
    for asked in [
        format!("connection: upgrade, http2-settings\r\nupgrade: h2c\r\n{settings}"),
        format!("connection: Upgrade\r\nupgrade: H2C, h2c\r\n{settings}"),
        "connection: upgrade\r\nupgrade: TLS/1.0\r\n".to_owned(),
        settings.to_owned(),
    ] {
        let mut client = sidecar.client();
        for _ in 0..2 {
            let reply = client.get("/", &asked);
            assert_eq!((reply.status(), reply.text()), (200, "plain".into()), "{asked}");
        }
    }
    let one_of_two = "connection: upgrade\r\nupgrade: h2c, websocket\r\n";
    let reply = sidecar.client().get("/", one_of_two);
    assert_eq!((reply.status(), reply.header("upgrade")), (101, Some("websocket")));
    let other = Sidecar::start("[proxy]\nupgrades = ['chat']\n", &[upstream.address]);
    let reply = other.client().get("/", "connection: upgrade\r\nupgrade: chat\r\n");
    assert_eq!((reply.status(), reply.header("upgrade")), (101, Some("chat")));
    for wrong in ["h2c", "H2c", "two words", ""] {
        let wrong = format!("[proxy]\nupgrades = ['{wrong}']\n");
        assert!(File::parse(&wrong).is_err(), "{wrong}");
    }
}

/// A coding that we do not take off would arrive as if it were the content.
#[test]
fn what_is_coded_for_one_connection_does_not_pass() {
    let upstream = Upstream::start(|request| match request.first.contains("/coded") {
        true => "HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n".to_owned(),
        false => ok("served"),
    });
    let config = "[proxy.health]\neject_after = 0\n[gate.admission]\npolicy = 'open'\n";
    let sidecar = Sidecar::start(config, &[upstream.address]);
    for (codings, status) in [("chunked", 200), ("Chunked", 200), ("gzip, chunked", 501)] {
        let mut client = sidecar.client();
        client.send(&format!("POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: {codings}\r\n\r\n"));
        client.send("0\r\n\r\n");
        assert_eq!(client.reply().status(), status, "{codings}");
    }
    assert_eq!(sidecar.client().get("/coded", "").status(), 502);
    conserved(&sidecar);
}

/// Half-open, silent, broken off, killed: clients are told, and nothing is left behind.
#[test]
fn upstreams_that_fail_in_every_way_leave_nothing_behind() {
    let upstream = Upstream::raw(|mut client| {
        let Ok(request) = client.head() else { return };
        match request.first.split(' ').nth(1).unwrap_or_default() {
            // Accepts, and says nothing until the other side goes.
            "/silent" => drop(client.head()),
            "/broken" => client.send("HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf"),
            "/nonsense" => client.send("this is not HTTP\r\n\r\n"),
            "/chunk" => {
                client.send("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n");
            }
            "/early" => client
                .send("HTTP/1.1 200 OK\r\ncontent-length: 5\r\nconnection: close\r\n\r\nearly"),
            _ => {}
        }
    });
    // Nobody waits longer for an answer, and so the work of those who have left is over then, too.
    let config = "[proxy]\nidle_timeout = '20ms'\nresponse_timeout = '300ms'\n[proxy.health]\n\
                  eject_after = 0\n[gate.admission]\npolicy = 'open'\n[gate.slots]\nslots = 'fixed'\n";
    let sidecar = Sidecar::start(config, &[upstream.address]);
    let mut before = None;
    // The first round opens what stays open.
    for _ in 0..4 {
        for (path, wanted) in [
            ("/silent", Some(504)),
            ("/nonsense", Some(502)),
            ("/closed", Some(502)),
            ("/broken", None),
            ("/chunk", None),
            ("/early", Some(200)),
        ] {
            for _ in 0..5 {
                let mut client = sidecar.client();
                // Nobody waits for ever for those that say nothing.
                let patience = match path {
                    "/silent" => "x-envoy-expected-rq-timeout-ms: 100\r\n",
                    _ => "",
                };
                client.send(&format!("GET {path} HTTP/1.1\r\nhost: a\r\n{patience}\r\n"));
                match (client.try_reply(false), wanted) {
                    // On a slow machine its time may be up before it is sent.
                    (Ok(reply), Some(504)) => assert!(reply.status() >= 503, "{path}"),
                    (Ok(reply), Some(status)) => assert_eq!(reply.status(), status, "{path}"),
                    // What began cannot be taken back: the connection breaks off too.
                    (Err(_), None) => {}
                    (other, _) => panic!("{path}: {other:?}"),
                }
            }
        }
        conserved(&sidecar);
        sidecar.wait_for("no connections", |state| state["connections"] == 0);
        match before {
            None => before = Some(files_at_rest()),
            Some(before) => wait_for_files(before),
        }
    }
    let finished = &sidecar.state()["finished"]["critical"];
    assert_eq!(finished["served"], 20, "only whole answers: {finished}");
    let failed = finished["failed"].as_u64().unwrap();
    assert!((80..=100).contains(&failed), "{finished}");
}

#[test]
fn an_upstream_that_is_killed_under_load_loses_only_what_it_had() {
    let barrier = Barrier::default();
    let held = barrier.clone();
    let mut upstream = Upstream::start(move |_| {
        held.pass();
        ok("late")
    });
    let address = upstream.address;
    let config = "[proxy.health]\neject_after = 0\n[gate.admission]\npolicy = 'open'\n\
                  [gate.slots]\nslots = 'fixed'\ncount = 4\n";
    let sidecar = Sidecar::start(config, &[address]);
    let before = files_at_rest();
    let mut clients: Vec<Client> = (0..12).map(|_| sidecar.client()).collect();
    for client in &mut clients {
        client.send("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
    }
    sidecar.wait_for("four at work", |state| barrier.came() == 4 && state["waiting"] == 8);
    upstream.kill();
    barrier.open();
    for client in &mut clients {
        assert_eq!(client.reply().status(), 502, "everybody gets an answer");
    }
    conserved(&sidecar);
    // It comes back, and nobody has to do anything.
    let again = Upstream::at(address, |_| ok("back"));
    assert_eq!(clients[0].get("/", "").text(), "back");
    drop((clients, again));
    wait_for_files(before);
}

/// Clients that leave at every stage of a request.
#[test]
fn clients_that_leave_early_leave_nothing_behind() {
    let upstream = Upstream::start(|_| {
        thread::sleep(Duration::from_millis(2));
        ok(&"x".repeat(100_000))
    });
    let config = "[proxy]\nidle_timeout = '20ms'\n[gate.slots]\nslots = 'fixed'\ncount = 4\n\
                  [gate.admission]\npolicy = 'open'\n";
    let sidecar = Sidecar::start(config, &[upstream.address]);
    let mut before = None;
    for _ in 0..4 {
        for n in 0..60 {
            let mut client = sidecar.client();
            let whole = "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 10\r\n\r\n0123456789";
            match n % 4 {
                0 => {}
                1 => client.send(&whole[..n % whole.len()]),
                2 => client.send(whole),
                _ => {
                    client.send(whole);
                    let mut some = [0; 100];
                    client.stream.read_exact(&mut some).expect("the answer begins");
                }
            }
        }
        conserved(&sidecar);
        sidecar.wait_for("no connections", |state| state["connections"] == 0);
        match before {
            None => before = Some(files_at_rest()),
            Some(before) => wait_for_files(before),
        }
    }
    let mut client = sidecar.client();
    assert_eq!(client.get("/", "").body.len(), 100_000);
}

/// Nobody reads an upload that waits, nor what follows a request: the end behind them is seen all the same.
#[test]
fn clients_that_leave_something_unread_free_their_places() {
    let (barrier, upstream) = Upstream::held();
    let config = "[gate.admission]\npolicy = 'open'\n[gate.slots]\nslots = 'fixed'\ncount = 1\n";
    let sidecar = Sidecar::start(config, &[upstream.address]);
    let body = "x".repeat(30_000);
    let post = |fields: &str| format!("POST /left HTTP/1.1\r\nhost: a\r\n{fields}\r\n");
    let left = [
        "GET /left HTTP/1.1\r\nhost: a\r\n\r\n\r\n".to_owned(),
        format!("{}{body}", post("content-length: 30000\r\n")),
        format!("{}{body}", post("content-length: 300000\r\n")),
        format!("{}3\r\nabc\r\n0\r\n\r\n", post("transfer-encoding: chunked\r\n")),
        post("content-length: 3\r\n"),
    ];
    // It has the slot, and something behind its request.
    let mut first = sidecar.client();
    first.send("GET /slow HTTP/1.1\r\nhost: a\r\n\r\nGET /left HTTP/1.1\r\nhost: a\r\n\r\n");
    sidecar.wait_for("one at work", |_| barrier.came() == 1);
    let mut waiting: Vec<Client> = left.iter().map(|_| sidecar.client()).collect();
    for (client, bytes) in waiting.iter_mut().zip(&left) {
        client.send(bytes);
    }
    let wait = |state: &serde_json::Value, slots: u32, bodies: u32| {
        state["waiting"] == slots && state["unfinished_uploads"] == bodies
    };
    sidecar.wait_for("all wait, two of them for their own bodies", |state| wait(state, 3, 2));
    drop(waiting);
    sidecar.wait_for("nobody waits", |state| wait(state, 0, 0));
    drop(first);
    sidecar.wait_for("it has left, too", |state| state["abandoned"] == 1);
    assert_eq!(barrier.came(), 1, "nothing was asked for those who left");
    barrier.open();
    conserved(&sidecar);
    assert_eq!(sidecar.client_from(2).get("/", "").text(), "served");
}

/// A body passes in pieces, however large it is and however slowly it is taken.
#[test]
fn giant_bodies_pass_without_being_kept() {
    const SIZE: u64 = 256 << 20;
    let upstream = Upstream::raw(|mut client| {
        while let Ok(head) = client.head() {
            let length = head.header("content-length").and_then(|length| length.parse().ok());
            let mut rest = (&mut client.stream).take(length.unwrap_or(0));
            let read = std::io::copy(&mut rest, &mut std::io::sink()).unwrap_or(0);
            client.send(&format!(
                "HTTP/1.1 200 OK\r\ncontent-length: {SIZE}\r\nx-read: {read}\r\n\r\n"
            ));
            let piece = vec![b'y'; 1 << 16];
            for _ in 0..SIZE / piece.len() as u64 {
                if client.stream.get_mut().write_all(&piece).is_err() {
                    return;
                }
            }
        }
    });
    let sidecar = Sidecar::start("", &[upstream.address]);
    let mut client = sidecar.client();
    client.get("/", "");
    let before = memory();
    client.send(&format!("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: {SIZE}\r\n\r\n"));
    let piece = vec![b'x'; 1 << 16];
    for _ in 0..SIZE / piece.len() as u64 {
        client.stream.get_mut().write_all(&piece).expect("it is taken");
    }
    let head = client.head().expect("an answer");
    assert_eq!(head.header("x-read"), Some(&*SIZE.to_string()));
    // Nobody reads for a while: what is behind has to wait, and is not kept here.
    thread::sleep(Duration::from_millis(200));
    let kept = memory().saturating_sub(before);
    assert!(kept < SIZE / 1024 / 8, "{kept} kB were kept of {} kB", SIZE / 1024);
    let mut rest = (&mut client.stream).take(SIZE);
    assert_eq!(std::io::copy(&mut rest, &mut std::io::sink()).expect("all of it"), SIZE);
    conserved(&sidecar);
}
