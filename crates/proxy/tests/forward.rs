//! Bytes and headers pass unharmed both ways, over real sockets.

#![allow(clippy::disallowed_methods, reason = "real sockets, real threads, real time")]

mod support;

use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use support::{Client, Reply, Sidecar, Upstream, ok};

/// An upstream that keeps what it was asked and answers `answer`.
fn recorder(answer: &'static str) -> (Upstream, Arc<Mutex<Vec<Reply>>>) {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let kept = Arc::clone(&seen);
    let upstream = Upstream::start(move |request| {
        kept.lock().unwrap().push(request);
        answer.to_owned()
    });
    (upstream, seen)
}

fn last(seen: &Mutex<Vec<Reply>>) -> Reply {
    seen.lock().unwrap().last().expect("the upstream was asked").clone()
}

/// Once the answer has begun, both sides may take their time: that is how they talk to each other.
#[test]
fn a_conversation_lasts_longer_than_an_upload_may() {
    let upstream = Upstream::raw(|mut client| {
        client.head().expect("a request");
        client.send("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\none\r\n");
        let mut said = [0; 8];
        client.stream.read_exact(&mut said).expect("the client goes on");
        assert_eq!(&said, b"3\r\nand\r\n");
        client.send("3\r\ntwo\r\n0\r\n\r\n");
    });
    let sidecar = Sidecar::start("[proxy]\nbody_timeout = '50ms'\n", &[upstream.address]);
    let mut client = sidecar.client();
    client.send("POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n");
    let mut begun = client.head().expect("an answer");
    assert_eq!(begun.status(), 200);
    std::thread::sleep(std::time::Duration::from_millis(300));
    client.send("3\r\nand\r\n");
    begun.body.resize(b"3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n".len(), 0);
    client.stream.read_exact(&mut begun.body).expect("all of the answer");
    assert_eq!(begun.text(), "3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n");
}

#[test]
fn a_request_and_its_answer_pass_unharmed() {
    let answer = "HTTP/1.1 201 Created\r\nconnection: keep-alive, x-hop\r\nx-hop: 1\r\nx-kept: a, b\r\n\
                  set-cookie: c=d\r\ncontent-length: 5\r\n\r\nhello";
    let (upstream, seen) = recorder(answer);
    let sidecar = Sidecar::start("", &[upstream.address]);
    let mut client = sidecar.client();
    client.send(
        "POST /a%20b?c=d HTTP/1.1\r\nHost: shop:8443\r\nConnection: X-Private\r\nX-Private: 1\r\n\
         X-Forwarded-For: 9.9.9.9\r\nTraceparent: 00-ab-cd-01\r\nContent-Length: 3\r\n\r\nxyz",
    );
    let reply = client.reply();
    assert_eq!((reply.status(), reply.text()), (201, "hello".to_owned()));
    assert_eq!(reply.header("x-kept"), Some("a, b"));
    assert_eq!(reply.header("set-cookie"), Some("c=d"));
    assert_eq!((reply.header("x-hop"), reply.header("connection")), (None, None));
    let request = last(&seen);
    assert_eq!(request.first, "POST /a%20b?c=d HTTP/1.1");
    assert_eq!((request.header("host"), request.text()), (Some("shop:8443"), "xyz".to_owned()));
    assert_eq!(request.header("x-forwarded-for"), Some("9.9.9.9, 127.0.0.1"));
    assert_eq!(request.header("traceparent"), Some("00-ab-cd-01"));
    assert_eq!((request.header("x-private"), request.header("connection")), (None, None));
}

#[test]
fn chunked_bodies_and_trailers_pass_both_ways() {
    let answer = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ntrailer: x-sum\r\n\r\n\
                  3\r\nabc\r\n4\r\ndefg\r\n0\r\nx-sum: 7\r\n\r\n";
    let (upstream, seen) = recorder(answer);
    let sidecar = Sidecar::start("", &[upstream.address]);
    let mut client = sidecar.client();
    client.send(
        "POST / HTTP/1.1\r\nhost: a\r\nte: trailers\r\ntransfer-encoding: chunked\r\n\
         trailer: x-up\r\n\r\n2\r\nhi\r\n1\r\n!\r\n0\r\nx-up: 3\r\n\r\n",
    );
    let reply = client.reply();
    assert_eq!(reply.text(), "abcdefg");
    assert_eq!(reply.trailers.get("x-sum").map(String::as_str), Some("7"));
    let request = last(&seen);
    assert_eq!(request.text(), "hi!");
    assert_eq!(request.trailers.get("x-up").map(String::as_str), Some("3"));
    assert_eq!(request.header("te"), Some("trailers"));
}

#[test]
fn head_has_a_length_and_no_body() {
    let upstream = Upstream::raw(|mut client| {
        while let Ok(request) = client.try_reply(false) {
            assert!(request.first.starts_with("HEAD"));
            client.send("HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n");
        }
    });
    let sidecar = Sidecar::start("", &[upstream.address]);
    let mut client = sidecar.client();
    for _ in 0..2 {
        client.send("HEAD / HTTP/1.1\r\nhost: a\r\n\r\n");
        let reply = client.try_reply(true).unwrap();
        assert_eq!((reply.status(), reply.header("content-length")), (200, Some("1000")));
    }
    sidecar.wait_until_empty();
}

#[test]
fn a_client_that_asks_first_is_told_to_continue() {
    let (upstream, seen) = recorder("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n");
    let sidecar = Sidecar::start("", &[upstream.address]);
    let mut client = sidecar.client();
    client.send("PUT / HTTP/1.1\r\nhost: a\r\nexpect: 100-continue\r\ncontent-length: 4\r\n\r\n");
    assert_eq!(client.head().unwrap().status(), 100);
    client.send("body");
    assert_eq!(client.reply().status(), 200);
    assert_eq!(last(&seen).text(), "body");
}

/// Two lengths that differ, or a length beside chunks, are how requests are smuggled.
#[test]
fn conflicting_lengths_never_reach_the_upstream() {
    let (upstream, seen) = recorder("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n");
    let sidecar = Sidecar::start("", &[upstream.address]);
    for fields in [
        "content-length: 4\r\ncontent-length: 5\r\n",
        "content-length: 4, 5\r\n",
        "content-length: -1\r\n",
        "transfer-encoding: chunked, gzip\r\n",
    ] {
        let mut client = sidecar.client();
        client.send(&format!("POST / HTTP/1.1\r\nhost: a\r\n{fields}\r\nbody"));
        assert_eq!(client.reply().status(), 400, "{fields}");
    }
    assert!(seen.lock().unwrap().is_empty());
    let mut client = sidecar.client();
    client.send(
        "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 30\r\ntransfer-encoding: chunked\r\n\r\n\
         2\r\nhi\r\n0\r\n\r\n",
    );
    assert_eq!(client.reply().status(), 200);
    let request = last(&seen);
    assert_eq!((request.header("content-length"), request.text()), (None, "hi".to_owned()));
}

/// How much can be written to `client` when nobody reads at the other end.
fn written_until_it_stops(client: &mut Client, most: usize) -> usize {
    let stream = client.stream.get_mut();
    stream.set_write_timeout(Some(Duration::from_millis(500))).unwrap();
    let (piece, mut written) = (vec![b'x'; 1 << 16], 0);
    while written < most {
        match stream.write(&piece) {
            Ok(n) => written += n,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                break;
            }
            Err(error) => panic!("{error}"),
        }
    }
    written
}

const LARGE: usize = 1 << 28;
/// The kernel's buffers of two connections, by default at most 10 MB each, and ours.
const HELD_AT_MOST: usize = 1 << 26;

#[test]
fn a_large_upload_is_held_back_by_a_slow_upstream() {
    let upstream = Upstream::raw(|mut client| {
        client.head().unwrap();
        std::thread::park();
    });
    let sidecar = Sidecar::start("", &[upstream.address]);
    let mut client = sidecar.client();
    client.send(&format!("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: {LARGE}\r\n\r\n"));
    let held = written_until_it_stops(&mut client, LARGE);
    assert!(held < HELD_AT_MOST, "{held} bytes were taken in");
}

#[test]
fn a_large_download_is_held_back_by_a_slow_client() {
    let written = Arc::new(AtomicUsize::new(usize::MAX));
    let told = Arc::clone(&written);
    let upstream = Upstream::raw(move |mut client| {
        client.head().unwrap();
        client.send(&format!("HTTP/1.1 200 OK\r\ncontent-length: {LARGE}\r\n\r\n"));
        told.store(written_until_it_stops(&mut client, LARGE), Ordering::SeqCst);
        std::thread::park();
    });
    let sidecar = Sidecar::start("", &[upstream.address]);
    let mut client = sidecar.client();
    client.send("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
    assert_eq!(client.head().unwrap().status(), 200);
    sidecar.wait_for("the upstream to stop", |_| written.load(Ordering::SeqCst) != usize::MAX);
    assert!(written.load(Ordering::SeqCst) < HELD_AT_MOST);
    sidecar.wait_for("the slot to be free", |state| {
        state["running"] == 0 && state["readers_behind"] == 1
    });
    drop(client);
    sidecar.wait_for("an end", |state| state["readers_behind"] == 0);
}

#[test]
fn a_killed_upstream_is_a_502_and_its_return_is_noticed() {
    let mut upstream = Upstream::start(|_| ok("one"));
    let address: SocketAddr = upstream.address;
    let sidecar = Sidecar::start("", &[address]);
    let mut client = sidecar.client();
    assert_eq!(client.get("/", "").text(), "one");
    upstream.kill();
    for _ in 0..3 {
        assert_eq!(client.get("/", "").status(), 502);
    }
    let _upstream = Upstream::at(address, |_| ok("two"));
    assert_eq!(client.get("/", "").text(), "two");
    let failures = &sidecar.state()["upstream_failures"];
    let count = |kind: &str| failures[kind].as_u64().unwrap();
    assert_eq!(count("connect") + count("broken"), 3, "{failures}");
    sidecar.wait_until_empty();
}

#[test]
fn an_upstream_that_breaks_off_or_is_silent_is_told_apart() {
    let upstream = Upstream::raw(|mut client| {
        let request = client.head().unwrap();
        if request.first.contains("/silent") {
            std::thread::park();
        }
        if request.first.contains("/nonsense") {
            client.send("what?\r\n\r\n");
        }
    });
    let config = "[proxy]\nresponse_timeout = '100ms'";
    let sidecar = Sidecar::start(config, &[upstream.address]);
    let mut client = sidecar.client();
    assert_eq!(client.get("/gone", "").status(), 502);
    assert_eq!(client.get("/nonsense", "").status(), 502);
    assert_eq!(client.get("/silent", "").status(), 504);
    let failures = &sidecar.state()["upstream_failures"];
    assert_eq!((failures["broken"].as_u64(), failures["late"].as_u64()), (Some(2), Some(1)));
    sidecar.wait_until_empty();
}

#[test]
fn a_dead_replica_and_one_that_only_refuses_are_avoided() {
    let mut dead = Upstream::start(|_| ok("dead"));
    dead.kill();
    let serving = Upstream::start(|_| {
        std::thread::sleep(Duration::from_millis(3));
        ok("served")
    });
    let refusing = Upstream::start(|_| "HTTP/1.1 503 Busy\r\ncontent-length: 0\r\n\r\n".to_owned());
    let sidecar = Sidecar::start("", &[dead.address, serving.address]);
    let mut client = sidecar.client();
    for _ in 0..50 {
        assert_eq!(client.get("/", "").text(), "served");
    }
    let sidecar = Sidecar::start("", &[refusing.address, serving.address]);
    let mut client = sidecar.client();
    let served = (0..200).filter(|_| client.get("/", "").status() == 200).count();
    // Half would be blind, and almost none if quick refusals looked like speed.
    assert!(served > 140, "only {served} of 200 were served");
}

#[test]
fn a_websocket_passes_and_holds_no_slot() {
    let upstream = Upstream::raw(|mut client| {
        let request = client.head().unwrap();
        assert_eq!(request.header("upgrade"), Some("websocket"));
        client.send(
            "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n",
        );
        let mut bytes = [0; 4];
        while client.stream.read_exact(&mut bytes).is_ok() {
            client.stream.get_mut().write_all(&bytes.map(|byte| byte + 1)).unwrap();
        }
    });
    let sidecar = Sidecar::start("", &[upstream.address]);
    let mut client = sidecar.client();
    client.send("GET /ws HTTP/1.1\r\nhost: a\r\nconnection: Upgrade\r\nupgrade: websocket\r\n\r\n");
    let reply = client.head().unwrap();
    assert_eq!((reply.status(), reply.header("upgrade")), (101, Some("websocket")));
    for _ in 0..3 {
        client.send("abcd");
        let mut bytes = [0; 4];
        client.stream.read_exact(&mut bytes).unwrap();
        assert_eq!(&bytes, b"bcde");
    }
    sidecar.wait_for("the tunnel", |state| state["tunnels"] == 1 && state["running"] == 0);
    drop(client);
    sidecar.wait_for("its end", |state| state["tunnels"] == 0);
}

/// One socket for both families writes IPv4 addresses in another way.
#[test]
fn a_client_has_one_address_and_a_request_a_path() {
    if std::net::TcpListener::bind("[::]:0").is_err() {
        eprintln!("skipped: there is no IPv6");
        return;
    }
    let (upstream, seen) = recorder("HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nserved");
    let mut file = support::file("", &[upstream.address]);
    file.proxy.listen = "[::]:0".parse().unwrap();
    let sidecar = Sidecar::with_source(file, None);
    let address = SocketAddr::from(([127, 0, 0, 1], sidecar.handle.listen().port()));
    let mut client = Client::connect(address);
    client.send("GET http://shop?q=1 HTTP/1.1\r\nhost: shop\r\n\r\n");
    assert_eq!(client.reply().text(), "served");
    let request = last(&seen);
    assert_eq!(request.first, "GET /?q=1 HTTP/1.1");
    assert_eq!(request.header("x-forwarded-for"), Some("127.0.0.1"));
}

#[test]
fn an_old_upstream_does_not_make_our_connections_old() {
    let upstream = Upstream::raw(|mut client| {
        client.head().unwrap();
        client.send("HTTP/1.0 200 OK\r\n\r\nuntil the end");
    });
    let sidecar = Sidecar::start("", &[upstream.address]);
    let mut client = sidecar.client();
    for _ in 0..2 {
        let reply = client.get("/", "");
        assert_eq!(
            (reply.first.as_str(), reply.text()),
            ("HTTP/1.1 200 OK", "until the end".into())
        );
    }
}

/// Runs curl; none where it is not installed.
fn curl(args: &[&str]) -> Option<String> {
    match Command::new("curl").args(["-s", "--max-time", "20"]).args(args).output() {
        Ok(output) => Some(String::from_utf8_lossy(&output.stdout).into_owned()),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            eprintln!("curl is not installed: this part was not tested");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn curl_speaks_both_versions_with_it() {
    let upstream = Upstream::start(|request| ok(&format!("{} bytes", request.body.len())));
    let sidecar = Sidecar::start("", &[upstream.address]);
    let url = format!("http://{}/", sidecar.handle.listen());
    let big = "x".repeat(100_000);
    for version in ["--http1.1", "--http2-prior-knowledge"] {
        let Some(answer) = curl(&[version, "-w", " %{http_version}", "-d", &big, &url]) else {
            return;
        };
        let spoken = if version == "--http1.1" { "1.1" } else { "2" };
        assert_eq!(answer, format!("100000 bytes {spoken}"));
        assert_eq!(curl(&[version, &url]).as_deref(), Some("0 bytes"));
    }
}
