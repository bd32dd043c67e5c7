//! The standing property: under every hostile client there is, the service has no more work than there are slots, and
//! honest clients are served nine of ten of what they ask for.

#![allow(clippy::disallowed_methods, reason = "real sockets, real threads, real time")]

mod support;

use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use support::{Client, Sidecar, Upstream, ok};

const SLOTS: usize = 4;
/// Far more than anybody waits for whom nobody keeps a slot.
const CONFIG: &str = "[proxy]\nthreads = 2\n[gate.admission]\npolicy = 'tide'\nobjective = '1s'\n\
                      [gate.slots]\nslots = 'fixed'\ncount = 4\n";
/// Honest clients, what each of them asks for, and what of all that is served at least.
const HONEST: (u8, usize, usize) = (4, 40, 144);

/// A service that works for 5 ms on everything that is whole, and counts how much of that it does at once.
struct Counting {
    upstream: Upstream,
    most: Arc<AtomicUsize>,
}

impl Counting {
    fn start() -> Self {
        let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let seen = Arc::clone(&most);
        let upstream = Upstream::raw(move |mut client| {
            while let Ok(request) = client.try_reply(false) {
                seen.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                thread::sleep(Duration::from_millis(5));
                now.fetch_sub(1, Ordering::SeqCst);
                let answer = match (request.header("upgrade"), request.first.contains("/much")) {
                    (Some(_), _) => "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\n\
                                     upgrade: websocket\r\n\r\n"
                        .to_owned(),
                    (None, true) => ok(&"x".repeat(4 << 20)),
                    (None, false) => ok("served"),
                };
                if client.stream.get_mut().write_all(answer.as_bytes()).is_err() {
                    return;
                }
            }
        });
        Self { upstream, most }
    }
}

/// Lets `hostile` go on, again and again, while honest clients ask.
fn holds(name: &str, hostile: impl Fn(&Sidecar) -> Vec<Client> + Sync) {
    let service = Counting::start();
    let sidecar = Sidecar::start(CONFIG, &[service.upstream.address]);
    let (done, begun) = (AtomicBool::new(false), AtomicBool::new(false));
    let (clients, each, least) = HONEST;
    let served: usize = thread::scope(|scope| {
        scope.spawn(|| {
            let mut kept = Vec::new();
            while !done.load(Ordering::SeqCst) {
                kept.extend(hostile(&sidecar));
                // As many as anybody can have open.
                kept.drain(..kept.len().saturating_sub(64));
                begun.store(true, Ordering::SeqCst);
                thread::sleep(Duration::from_millis(2));
            }
        });
        while !begun.load(Ordering::SeqCst) {
            thread::yield_now();
        }
        let ask = |host| {
            let mut client = sidecar.client_from(host);
            (0..each).filter(|_| client.get("/", "").status() == 200).count()
        };
        let asking: Vec<_> = (0..clients).map(|n| scope.spawn(move || ask(100 + n))).collect();
        let served = asking.into_iter().map(|asking| asking.join().expect("no panic")).sum();
        done.store(true, Ordering::SeqCst);
        served
    });
    let most = service.most.load(Ordering::SeqCst);
    assert!(most <= SLOTS, "{name}: {most} at work at once");
    assert!(served >= least, "{name}: {served} served: {:#}", sidecar.state());
}

fn send(sidecar: &Sidecar, bytes: &[u8]) -> Client {
    let mut client = sidecar.client_from(2);
    // One that was cut off has been told so.
    let _ = client.stream.get_mut().write_all(bytes);
    client
}

/// The preface and settings of HTTP/2, and then `frames` for each of so many streams.
fn streams(count: u32, frames: impl Fn([u8; 4]) -> Vec<u8>) -> Vec<u8> {
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    bytes.extend([0, 0, 0, 4, 0, 0, 0, 0, 0]);
    (0..count).for_each(|n| bytes.extend(frames((2 * n + 1).to_be_bytes())));
    bytes
}

/// A head by the table of HTTP/2 (RFC 7541, appendix A): 2 for GET or 3 for POST, of `/`.
fn head(method: u8, flags: u8, id: [u8; 4]) -> Vec<u8> {
    [&[0, 0, 6, 1, flags][..], &id, &[0x80 | method, 0x84, 0x86, 0x41, 1, b'a']].concat()
}

#[test]
fn unfinished_uploads_over_http1() {
    for fields in ["content-length: 100\r\n", "transfer-encoding: chunked\r\n"] {
        let bytes = format!("POST / HTTP/1.1\r\nhost: a\r\n{fields}\r\n");
        holds(fields, |sidecar| vec![send(sidecar, bytes.as_bytes())]);
    }
}

#[test]
fn unfinished_uploads_over_http2() {
    let bytes = streams(8, |id| head(3, 4, id));
    holds("uploads over HTTP/2", |sidecar| vec![send(sidecar, &bytes)]);
}

#[test]
fn large_uploads_that_stand_still() {
    let mut bytes = b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 1000000\r\n\r\n".to_vec();
    bytes.extend([b'x'; 70_000]);
    holds("large uploads", |sidecar| vec![send(sidecar, &bytes)]);
}

#[test]
fn dribbled_bodies() {
    let kept = std::sync::Mutex::new(Vec::<Client>::new());
    holds("dribbles", |sidecar| {
        let mut kept = kept.lock().unwrap();
        if kept.len() < 40 {
            let head = b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n";
            kept.push(send(sidecar, head));
        }
        for client in kept.iter_mut() {
            let _ = client.stream.get_mut().write_all(b"1\r\nx\r\n");
        }
        Vec::new()
    });
}

#[test]
fn floods_of_requests_that_are_given_up() {
    holds("aborts", |sidecar| {
        let client = send(sidecar, b"GET / HTTP/1.1\r\nhost: a\r\n\r\n");
        thread::sleep(Duration::from_millis(1));
        drop(client);
        Vec::new()
    });
}

#[test]
fn floods_of_resets() {
    let bytes = streams(16, |id| {
        let reset = [&[0, 0, 4, 3, 0][..], &id, &[0, 0, 0, 8]].concat();
        [head(2, 5, id), reset].concat()
    });
    holds("resets", |sidecar| vec![send(sidecar, &bytes)]);
}

#[test]
fn readers_that_take_nothing() {
    let asked = AtomicUsize::new(0);
    holds("readers", |sidecar| {
        // What they ask for is work, too, and as much of it as there is would be a load like any other.
        match asked.fetch_add(1, Ordering::SeqCst) {
            0..30 => vec![send(sidecar, b"GET /much HTTP/1.1\r\nhost: a\r\n\r\n")],
            _ => Vec::new(),
        }
    });
}

#[test]
fn upgrades_that_are_never_used() {
    let bytes = b"GET / HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n";
    holds("upgrades", |sidecar| {
        let mut client = send(sidecar, bytes);
        let mut some = [0; 1];
        let _ = client.stream.read(&mut some);
        vec![client]
    });
}
