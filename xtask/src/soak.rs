//! `cargo xtask soak [SECS [BINARY]]`: the sidecar at twice its capacity for a long time, with clients that come,
//! go and break off. Memory and open files have to stay what they are.
//!
//! The first third is for warming up. Afterwards, the mean of the last third may not exceed that of the
//! second by more than a tenth and a little.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::run::{self, Result};

/// Workers of the service behind, and the time each takes: 400 requests per second.
const WORKERS: usize = 8;
const WORK: Duration = Duration::from_millis(20);
/// Clients, which together ask for twice that.
const CLIENTS: u32 = 80;
const PAUSE: Duration = Duration::from_millis(100);
/// Memory may vary by this much besides a tenth, in kilobytes.
const SLACK: f64 = 2_048.0;

/// Runs for `secs` seconds, with the program given or a new one.
pub(crate) fn soak(secs: u64, binary: Option<&str>) -> Result {
    let binary = match binary {
        Some(binary) => PathBuf::from(binary),
        None => {
            run::run(&mut run::cargo(&["build", "-p", "tidegate-cli"]))?;
            let target = std::env::var("CARGO_TARGET_DIR").unwrap_or_else(|_| "target".to_owned());
            run::root().join(target).join("debug/tidegate")
        }
    };
    let upstream = serve().map_err(|error| format!("cannot serve: {error}"))?;
    let (listen, admin) = (free_port()?, free_port()?);
    let mut sidecar = Sidecar::start(&binary, upstream, listen, admin)?;
    let end = Instant::now() + Duration::from_secs(secs);
    let tally = Arc::new(Tally::default());
    let clients: Vec<_> = (0..CLIENTS)
        .map(|n| {
            let tally = Arc::clone(&tally);
            thread::spawn(move || client(n, listen, end, &tally))
        })
        .collect();
    let mut samples = Vec::new();
    while Instant::now() < end {
        thread::sleep(Duration::from_millis(500));
        samples.push(sidecar.sample()?);
        if samples.len() % 20 == 0 {
            let (memory, files) = samples[samples.len() - 1];
            println!("{:4} s: {memory} kB, {files} files, {tally}", samples.len() / 2);
        }
    }
    for client in clients {
        client.join().map_err(|_| "a client panicked")?;
    }
    let state = state(admin)?;
    sidecar.stop()?;
    println!("in all: {tally}");
    verdict(&samples, &tally, secs, &state)
}

/// What clients have met.
#[derive(Debug, Default)]
struct Tally {
    served: AtomicU64,
    refused: AtomicU64,
    failed: AtomicU64,
}

impl std::fmt::Display for Tally {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let get = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let (served, refused, failed) = (get(&self.served), get(&self.refused), get(&self.failed));
        write!(f, "{served} served, {refused} refused, {failed} failed")
    }
}

/// Sends at its pace; every tenth time on a new connection, every fiftieth it leaves without waiting.
fn client(number: u32, address: SocketAddr, end: Instant, tally: &Tally) {
    let mut stream = None;
    let mut due = Instant::now() + PAUSE * number / CLIENTS;
    for n in 0u64.. {
        if due >= end {
            return;
        }
        thread::sleep(due.saturating_duration_since(Instant::now()));
        due += PAUSE;
        if n % 10 == 0 {
            stream = None;
        }
        let counter = match ask(&mut stream, address, n) {
            Some(200) => &tally.served,
            Some(503) => &tally.refused,
            Some(_) | None if n % 50 == 49 => continue,
            _ => &tally.failed,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

fn ask(stream: &mut Option<TcpStream>, address: SocketAddr, n: u64) -> Option<u16> {
    if stream.is_none() {
        let new = TcpStream::connect(address).ok()?;
        new.set_read_timeout(Some(Duration::from_secs(30))).ok()?;
        *stream = Some(new);
    }
    let mut open = stream.take()?;
    let request = format!("GET /{n} HTTP/1.1\r\nhost: soak\r\ncookie: sid={}\r\n\r\n", n % 97);
    open.write_all(request.as_bytes()).ok()?;
    if n % 50 == 49 {
        return None;
    }
    let (mut answer, mut buffer) = (Vec::new(), [0; 4096]);
    loop {
        let read = open.read(&mut buffer).ok()?;
        answer.extend_from_slice(&buffer[..read]);
        let text = String::from_utf8_lossy(&answer);
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
        let length = head.lines().find_map(|line| {
            line.to_ascii_lowercase().strip_prefix("content-length: ")?.parse().ok()
        });
        if read == 0 || length.is_some_and(|length: usize| body.len() >= length) {
            let status = head.split(' ').nth(1)?.parse().ok();
            *stream = Some(open);
            return status;
        }
    }
}

/// A service with a fixed number of workers.
fn serve() -> std::io::Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let free = Arc::new((Mutex::new(WORKERS), Condvar::new()));
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let free = Arc::clone(&free);
            thread::spawn(move || answer_all(stream, &free));
        }
    });
    Ok(address)
}

fn answer_all(mut stream: TcpStream, free: &(Mutex<usize>, Condvar)) {
    let _ = stream.set_nodelay(true);
    let mut buffer = [0; 4096];
    // Requests are short and come one at a time, so each is one read.
    while stream.read(&mut buffer).is_ok_and(|read| read > 0) {
        let Ok(guard) = free.0.lock() else { return };
        let Ok(mut guard) = free.1.wait_while(guard, |free| *free == 0) else { return };
        *guard -= 1;
        drop(guard);
        thread::sleep(WORK);
        if let Ok(mut guard) = free.0.lock() {
            *guard += 1;
        }
        free.1.notify_one();
        if stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\ndone").is_err() {
            return;
        }
    }
}

fn free_port() -> Result<SocketAddr> {
    let address = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    address.map_err(|error| format!("no free port: {error}"))
}

/// The process under test, ended when it is dropped.
struct Sidecar(Child);

impl Sidecar {
    fn start(
        binary: &Path,
        upstream: SocketAddr,
        listen: SocketAddr,
        admin: SocketAddr,
    ) -> Result<Self> {
        let child = Command::new(binary)
            .args(["proxy", "--listen", &listen.to_string(), "--admin", &admin.to_string()])
            .args(["--upstream", &format!("http://{upstream}"), "--objective", "200ms"])
            .stdin(Stdio::null())
            .spawn()
            .map_err(|error| format!("cannot start {}: {error}", binary.display()))?;
        let sidecar = Self(child);
        for _ in 0..200 {
            if TcpStream::connect(listen).is_ok() {
                return Ok(sidecar);
            }
            thread::sleep(Duration::from_millis(50));
        }
        Err("the sidecar does not listen".to_owned())
    }

    /// Kilobytes of memory and open files.
    fn sample(&mut self) -> Result<(u64, usize)> {
        if let Ok(Some(status)) = self.0.try_wait() {
            return Err(format!("the sidecar has ended: {status}"));
        }
        let id = self.0.id();
        let status = std::fs::read_to_string(format!("/proc/{id}/status"))
            .map_err(|error| format!("memory cannot be read here: {error}"))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let memory = line.and_then(|line| line.trim().split(' ').next()?.parse().ok());
        let files = std::fs::read_dir(format!("/proc/{id}/fd")).map_or(0, Iterator::count);
        Ok((memory.unwrap_or(0), files))
    }

    fn stop(mut self) -> Result {
        self.0.kill().map_err(|error| error.to_string())
    }
}

impl Drop for Sidecar {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The numbers once everything has come to rest.
fn state(admin: SocketAddr) -> Result<Value> {
    let ask = || -> std::io::Result<String> {
        let mut stream = TcpStream::connect(admin)?;
        stream.write_all(b"GET /state HTTP/1.0\r\n\r\n")?;
        std::io::read_to_string(stream)
    };
    let mut state = Value::Null;
    for _ in 0..100 {
        let text = ask().map_err(|error| format!("no admin page: {error}"))?;
        let body = text.split_once("\r\n\r\n").map_or("", |(_, body)| body);
        state = serde_json::from_str(body).map_err(|error| error.to_string())?;
        if state["running"] == 0 && state["waiting"] == 0 {
            break;
        }
        thread::sleep(Duration::from_millis(50));
    }
    Ok(state)
}

fn verdict(samples: &[(u64, usize)], tally: &Tally, secs: u64, state: &Value) -> Result {
    let third = samples.len() / 3;
    let (second, last) = (&samples[third..2 * third], &samples[2 * third..]);
    let memory = |part: &[(u64, usize)]| {
        part.iter().map(|(memory, _)| *memory as f64).sum::<f64>() / part.len().max(1) as f64
    };
    let files = |part: &[(u64, usize)]| part.iter().map(|(_, files)| *files).max().unwrap_or(0);
    println!(
        "memory {:.0} kB, then {:.0} kB; at most {} files, then {}",
        memory(second),
        memory(last),
        files(second),
        files(last),
    );
    let capacity = secs as f64 * WORKERS as f64 / WORK.as_secs_f64();
    let served = tally.served.load(Ordering::Relaxed) as f64;
    println!("goodput {:.1} % of what the service could do", 100.0 * served / capacity);
    let mut found = Vec::new();
    if memory(last) > 1.1 * memory(second) + SLACK {
        found.push("memory grows");
    }
    if files(last) > files(second) + CLIENTS as usize {
        found.push("open files grow");
    }
    if state["running"] != 0 || state["waiting"] != 0 {
        found.push("slots are not given back");
    }
    if tally.failed.load(Ordering::Relaxed) > 0 {
        found.push("requests failed");
    }
    if found.is_empty() { Ok(()) } else { Err(found.join(", ")) }
}
