//! Tiers and sidecars as processes that are killed and paused.

#![cfg(unix)]
#![allow(clippy::disallowed_methods, reason = "real processes")]

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

const STORAGE: &str = env!("CARGO_BIN_EXE_storage");

/// A process, ended when it is dropped.
struct Process(Child);

impl Process {
    fn signal(&self, name: &str) {
        let sent = Command::new("kill").args([name, &self.0.id().to_string()]).status();
        assert!(sent.expect("kill runs").success());
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A tier, its sidecar, and where that listens.
struct Tier {
    service: Process,
    sidecar: Process,
    listen: SocketAddr,
    admin: SocketAddr,
}

fn free() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

impl Tier {
    /// Of what it calls: the path, the name, and where.
    fn start(test: &str, name: &str, calls: &[(&str, SocketAddr)]) -> Self {
        let (mut ways, mut routes) = (String::new(), Vec::new());
        for (callee, at) in calls {
            let listen = free();
            ways += &format!(
                "[[proxy.egress]]\nname = '{callee}'\nlisten = '{listen}'\nupstreams = ['http://{at}']\n"
            );
            routes.push(format!("/{callee}=http://{listen}/{callee}"));
        }
        let mut service = Command::new(STORAGE)
            .args(["tier", "127.0.0.1:0", "16", "0.1"])
            .args(routes)
            .stdout(Stdio::piped())
            .spawn()
            .expect("it starts");
        let mut line = String::new();
        let output = service.stdout.take().expect("piped");
        BufReader::new(output).read_line(&mut line).expect("it says where");
        let (listen, admin) = (free(), free());
        let file = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{test}-{name}.toml"));
        let config = format!(
            "[proxy]\nlisten = '{listen}'\nadmin = '{admin}'\nupstreams = ['http://{}']\n\
             trust = 'inside'\nthreads = 1\nlog = 'none'\n{ways}[gate.admission]\npolicy = 'open'\n",
            line.trim()
        );
        fs::write(&file, config).expect("a folder of our own");
        let sidecar = Command::new(STORAGE).arg("sidecar").arg(&file).spawn().expect("it starts");
        let (service, sidecar) = (Process(service), Process(sidecar));
        while TcpStream::connect(listen).is_err() {
            std::thread::yield_now();
        }
        Self { service, sidecar, listen, admin }
    }

    /// The status of an answer, within its deadline.
    fn ask(&self, path: &str) -> u16 {
        let head = "host: a\r\nconnection: close\r\noverload-context: r=(7 3), d=1000\r\n";
        let text = get(self.listen, &format!("GET {path} HTTP/1.1\r\n{head}\r\n"));
        let status = text.split(' ').nth(1).and_then(|status| status.parse().ok());
        status.unwrap_or_else(|| panic!("{text:?}"))
    }

    fn metric(&self, line: &str) -> u64 {
        let head = "GET /metrics HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n";
        let page = get(self.admin, head);
        let found = page.lines().find_map(|it| it.strip_prefix(line));
        found.unwrap_or_else(|| panic!("{line} in {page}")).trim().parse().expect("a number")
    }
}

fn get(at: SocketAddr, request: &str) -> String {
    let mut stream = TcpStream::connect(at).expect("somebody listens");
    stream.write_all(request.as_bytes()).expect("it is read");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("an answer");
    text
}

/// Front, partition and extent for reads; front and auth for logins.
fn store(test: &str) -> [Tier; 4] {
    let extent = Tier::start(test, "extent", &[]);
    let auth = Tier::start(test, "auth", &[]);
    let partition = Tier::start(test, "partition", &[("read", extent.listen)]);
    let calls = [("read", partition.listen), ("login", auth.listen)];
    [Tier::start(test, "front", &calls), auth, partition, extent]
}

#[test]
fn calls_are_matched_over_three_processes_and_nobody_is_left_inside() {
    let [front, auth, partition, extent] = store("matched");
    for _ in 0..20 {
        assert_eq!((front.ask("/read"), front.ask("/login")), (200, 200));
    }
    let calls = "tidegate_egress_calls_total{callee=";
    for (tier, callee) in [(&front, "read"), (&front, "login"), (&partition, "read")] {
        assert_eq!(tier.metric(&format!("{calls}\"{callee}\",matched=\"traceparent\"}}")), 20);
        assert_eq!(tier.metric("tidegate_egress_inside"), 0);
    }
    for tier in [&front, &auth, &partition, &extent] {
        assert_eq!(tier.metric("tidegate_running"), 0);
    }
}

/// With its sidecar or without: reads fail at once, logins do not know of it, and when it is there again it is
/// used again.
#[test]
fn what_is_killed_or_paused_in_the_middle_costs_its_own_calls_only() {
    let [front, _auth, partition, _extent] = store("killed");
    assert_eq!(front.ask("/read"), 200);
    for process in [&partition.service, &partition.sidecar] {
        process.signal("-STOP");
        // It hangs until the deadline, and no longer.
        assert_eq!(front.ask("/read"), 504);
        // Who left work behind waits for an objective at most.
        assert!(
            (0..100_000).any(|_| front.ask("/login") == 200),
            "logins have nothing to do with it"
        );
        process.signal("-CONT");
        // What had reached it is worked off before.
        assert!((0..1_000).any(|_| front.ask("/read") == 200), "it does not come back");
    }
    partition.service.signal("-KILL");
    assert_eq!((front.ask("/read"), front.ask("/login")), (502, 200));
    partition.sidecar.signal("-KILL");
    assert_eq!((front.ask("/read"), front.ask("/login")), (502, 200));
    assert_eq!(front.metric("tidegate_egress_inside"), 0);
}
