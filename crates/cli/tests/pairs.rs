//! The papers' pairs of a gate and its callers, on the wire: a sidecar whose callers are another sidecar, each a process of
//! its own.

#![cfg(unix)]
#![allow(clippy::disallowed_methods, reason = "real processes, real sockets")]

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use serde_json::Value;

/// A sidecar in a process of its own, killed when it is dropped.
struct Sidecar {
    child: Child,
    listen: String,
    admin: String,
}

impl Sidecar {
    fn start(name: &str, upstream: &str, config: &str) -> Self {
        let file = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}.toml"));
        fs::write(&file, config).expect("a folder of our own");
        let mut child = Command::new(env!("CARGO_BIN_EXE_tidegate"))
            .args(["proxy", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"])
            .args(["--trust", "inside", "--threads", "1"])
            .args(["--upstream", &format!("http://{upstream}"), "--config"])
            .arg(&file)
            .stderr(Stdio::piped())
            .spawn()
            .expect("it starts");
        let mut lines = BufReader::new(child.stderr.take().expect("piped")).lines();
        let line = lines.by_ref().map_while(Result::ok).find(|line| line.contains("admin on"));
        let line = line.expect("it says where");
        let after = |mark: &str| {
            let (_, rest) = line.split_once(mark).unwrap_or_else(|| panic!("{line}"));
            let end = rest.find([' ', ',', '/']).unwrap_or(rest.len());
            rest[..end].trim().to_owned()
        };
        let (listen, admin) = (after("listening on "), after("admin on http://"));
        // Keeps the pipe open until the process ends.
        thread::spawn(move || lines.for_each(drop));
        Self { child, listen, admin }
    }

    fn state(&self) -> Value {
        let mut stream = TcpStream::connect(&self.admin).expect("it listens");
        stream.write_all(b"GET /state HTTP/1.0\r\nhost: admin\r\n\r\n").expect("it reads");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("text");
        let (_, body) = answer.split_once("\r\n\r\n").expect("a head");
        serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {answer}"))
    }

    /// Requests that came.
    fn came(&self) -> u64 {
        let state = self.state();
        let bands = state["arrived"].as_object().into_iter().flat_map(|bands| bands.values());
        bands.filter_map(Value::as_u64).sum()
    }

    fn wait_for(&self, what: &str, is: impl Fn(&Value) -> bool) {
        for _ in 0..6_000 {
            if is(&self.state()) {
                return;
            }
            thread::sleep(Duration::from_millis(5));
        }
        panic!("{what} did not come: {:#}", self.state());
    }
}

impl Drop for Sidecar {
    fn drop(&mut self) {
        let _ = self.child.kill().and_then(|()| self.child.wait());
    }
}

/// A connection that asks again and again.
struct Client(BufReader<TcpStream>);

impl Client {
    fn of(sidecar: &Sidecar) -> Self {
        Self(BufReader::new(TcpStream::connect(&sidecar.listen).expect("it listens")))
    }

    /// The status of the answer to a request of this rank.
    fn ask(&mut self, business: u8, user: u64) -> u16 {
        let rank = format!("overload-context: r=({business} {})", 1 + user % 65_535);
        let request = format!("GET / HTTP/1.1\r\nhost: shop\r\n{rank}\r\n\r\n");
        self.0.get_mut().write_all(request.as_bytes()).expect("it reads");
        read_message(&mut self.0).expect("an answer")
    }
}

/// Reads a message with its body; the number in its first line, 0 for a request.
fn read_message(stream: &mut BufReader<TcpStream>) -> Option<u16> {
    let (mut status, mut length) = (None, 0);
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line).ok()? == 0 {
            return None;
        }
        let line = line.trim_end().to_ascii_lowercase();
        if line.is_empty() {
            break;
        }
        let word = || line.split(' ').nth(1).and_then(|word| word.parse().ok());
        status = status.or_else(|| Some(word().unwrap_or(0)));
        if let Some(value) = line.strip_prefix("content-length: ") {
            length = value.parse().ok()?;
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).ok()?;
    status
}

/// A service that takes so long for each request, on as many threads as there are connections.
fn service(time: Duration) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("bound").to_string();
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            thread::spawn(move || {
                let mut stream = BufReader::new(stream);
                while read_message(&mut stream).is_some() {
                    thread::sleep(time);
                    let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
                    if stream.get_mut().write_all(answer).is_err() {
                        return;
                    }
                }
            });
        }
    });
    address
}

/// DAGOR (§4.2.4): what the gate would refuse, its callers do not send any more; and when it has nothing to refuse, they hear of it.
#[test]
fn dagor_tells_its_cursor_and_callers_keep_to_it() {
    let callee = "[gate.slots]\nslots = 'fixed'\ncount = 1\n[gate.admission]\npolicy = 'dagor'\n\
                  alpha = 0.3\nbeta = 0.3\n[gate.admission.detector]\nwindow = '60s'\n\
                  requests = 40\nthreshold = '100us'\n";
    let caller = "[gate.admission]\npolicy = 'open'\n[caller.throttle]\nthrottle = 'cursor'\n\
                  max_age = '1h'\nprobe = '1h'\n";
    let service = service(Duration::from_millis(1));
    let callee = Sidecar::start("dagor-callee", &service, callee);
    let caller = Sidecar::start("dagor-caller", &callee.listen, caller);
    let (sent, served, over) = (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        for n in 0..8u64 {
            let (sent, served, over, caller) = (&sent, &served, &over, &caller);
            scope.spawn(move || {
                let mut client = Client::of(caller);
                for user in 0u64.. {
                    if over.load(Ordering::Relaxed) {
                        return;
                    }
                    let business = if user % 2 == 0 { 5 } else { 40 };
                    sent.fetch_add(1, Ordering::Relaxed);
                    let status = client.ask(business, 7_919 * (8 * user + n));
                    served.fetch_add(u64::from(status == 200), Ordering::Relaxed);
                }
            });
        }
        // A quarter of what was sent is not there, and yet nobody waits for an answer: the callers kept it.
        while sent.load(Ordering::Relaxed) < 2_000
            || 4 * callee.came() > 3 * (sent.load(Ordering::Relaxed) - 8)
        {
            assert!(sent.load(Ordering::Relaxed) < 1_000_000, "all is sent: {:#}", callee.state());
            thread::sleep(Duration::from_millis(5));
        }
        // While it lasts: with the last of them the cursor may open.
        let refused = Client::of(&caller).ask(63, 65_000);
        over.store(true, Ordering::Relaxed);
        assert_eq!(refused, 503, "beyond what was told");
    });
    let mut client = Client::of(&caller);
    // One by one nobody waits: windows are calm, and the important bring the news.
    let opens = (0..100_000).any(|user| client.ask(5, user) == 200 && client.ask(40, user) == 200);
    assert!(opens, "it never opened: {:#}", callee.state());
}

/// Breakwater (§3.3): who has no credit waits at the caller, and not at the gate.
#[test]
fn breakwater_gives_credits_and_callers_wait_for_them() {
    let callee = "[gate.slots]\nslots = 'fixed'\ncount = 1\n[gate.admission]\npolicy = 'breakwater'\n\
                  target = '1ms'\ndrop = '10s'\nperiod = '1ms'\nfloor = 1\nmultiplicative = 0.5\n";
    let waits = |throttle: &str, name: &str| {
        let caller = format!(
            "[gate.admission]\npolicy = 'open'\n[gate.slots]\nslots = 'fixed'\ncount = 64\n\
             [caller]\nhold_limit = 64\nhold_time = '60s'\n[caller.throttle]\nthrottle = '{throttle}'\n"
        );
        let service = service(Duration::from_millis(3));
        let callee = Sidecar::start(&format!("{name}-callee"), &service, callee);
        let caller = Sidecar::start(&format!("{name}-caller"), &callee.listen, &caller);
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            let (caller, over) = (&caller, &over);
            let clients: Vec<_> = (0..16)
                .map(|n| {
                    scope.spawn(move || {
                        let mut client = Client::of(caller);
                        while !over.load(Ordering::Relaxed) {
                            assert_eq!(client.ask(24, n), 200, "nobody is refused");
                        }
                    })
                })
                .collect();
            // All are inside the caller's gate, and are sent, or held for a credit.
            let all = |state: &Value| state["running"].as_u64() == Some(16);
            caller.wait_for("sixteen requests", all);
            let settled = |state: &Value| match throttle {
                "credit" => {
                    let callers = state["callers"].as_object();
                    let credits = callers.and_then(|callers| callers.values().next());
                    // What is answered still counts when its answer tells the next window, so it stays at a few.
                    let few = credits
                        .and_then(|caller| caller["credits"].as_u64())
                        .is_some_and(|credits| (1..8).contains(&credits));
                    few && state["waiting"].as_u64().is_some_and(|waiting| waiting < 8)
                }
                _ => state["waiting"].as_u64() == Some(15),
            };
            callee.wait_for("its queue", settled);
            caller.wait_for("sixteen requests", all);
            over.store(true, Ordering::Relaxed);
            for client in clients {
                client.join().expect("served");
            }
        });
    };
    waits("credit", "credit");
    waits("open", "no-credit");
}
