//! A fleet for tests: a service, a daemon, sidecars before the service.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

/// What nodes show.
pub(crate) const TOKEN: &str = "a-token-that-all-nodes-show";
/// What sidecars of a fleet have besides, in its folder.
const LIMITS: &str = "limits.toml";
/// A bound on tests that hang, not a measurement.
const PATIENCE: Duration = Duration::from_secs(120);

/// Waits until `done`.
pub(crate) fn wait(what: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < end, "waited in vain: {what}");
        thread::sleep(Duration::from_millis(20));
    }
}

/// A service behind sidecars that lease from one daemon: 300 requests a second, 30 at once.
pub(crate) struct Fleet {
    pub(crate) sidecars: Vec<Sidecar>,
    pub(crate) daemon: Daemon,
    pub(crate) config: PathBuf,
    pub(crate) folder: PathBuf,
    pub(crate) service: String,
}

impl Fleet {
    pub(crate) fn start(name: &str, count: usize) -> Self {
        Self::start_with(name, count, "", "")
    }

    /// With more agreements, and more limits of every sidecar.
    pub(crate) fn start_with(name: &str, count: usize, agreements: &str, limits: &str) -> Self {
        let (mut fleet, _) = Self::prepare(name, "127.0.0.1", (free(), free()), agreements);
        fs::write(fleet.folder.join(LIMITS), limits).expect("writable");
        let sidecars = (0..count)
            .map(|n| Sidecar::start(&fleet.folder, &fleet.daemon.listen, &fleet.service, n));
        fleet.sidecars = sidecars.collect();
        fleet.connect();
        fleet
    }

    /// Each sidecar in a network of its own.
    pub(crate) fn start_apart(name: &str, count: usize) -> (Self, Networks) {
        let networks = Networks::new(count);
        let (mut fleet, port) =
            Self::prepare(name, "0.0.0.0", ("0.0.0.0:9911".into(), "127.0.0.1:9912".into()), "");
        let sidecars = networks.names.iter().enumerate().map(|(n, namespace)| {
            let (host, control) = (format!("10.71.{n}.2"), format!("10.72.{n}.1:9911"));
            let service = format!("http://10.71.{n}.1:{port}");
            let place = Some((host.as_str(), namespace.as_str()));
            Sidecar::start_at(&fleet.folder, &control, &service, n, place)
        });
        fleet.sidecars = sidecars.collect();
        fleet.connect();
        (fleet, networks)
    }

    /// Where a fleet of that name has its files.
    pub(crate) fn folder(name: &str) -> PathBuf {
        let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
        folder.join(format!("fleet-{name}-{}", std::process::id()))
    }

    fn connect(&self) {
        for sidecar in &self.sidecars {
            wait("a sidecar is connected", || sidecar.connected());
        }
    }

    fn prepare(
        name: &str,
        host: &str,
        (listen, admin): (String, String),
        agreements: &str,
    ) -> (Self, u16) {
        let folder = Self::folder(name);
        fs::create_dir_all(&folder).expect("a folder of its own");
        fs::write(folder.join("node.token"), TOKEN).expect("writable");
        fs::write(folder.join("admin.token"), "a-token-for-operators").expect("writable");
        let config = folder.join("control.toml");
        let text = format!(
            "[control]\nlisten = '{}'\nadmin = '{}'\nstore = 'file:{}'\ntoken_file = '{}'\n\
             admin_token_file = '{}'\n\
             [[agreements]]\nname = 'api'\nrate = 300.0\nburst = 30.0\nnodes = 3\nterm = '2s'\n\
             {agreements}",
            listen,
            admin,
            folder.join("state.json").display(),
            folder.join("node.token").display(),
            folder.join("admin.token").display(),
        );
        fs::write(&config, text).expect("writable");
        let daemon = Daemon::start(&config);
        let port = service(host);
        let service = format!("http://127.0.0.1:{port}");
        (Self { sidecars: Vec::new(), daemon, config, folder, service }, port)
    }
}

/// A daemon; killed when it is dropped.
pub(crate) struct Daemon {
    child: Child,
    pub(crate) listen: String,
    pub(crate) admin: String,
}

impl Daemon {
    pub(crate) fn start(config: &Path) -> Self {
        let text = fs::read_to_string(config).expect("there");
        let of = |field: &str| {
            let line = text.lines().find(|line| line.starts_with(field)).expect("it is given");
            line.split('\'').nth(1).expect("quoted").to_owned()
        };
        let (listen, admin) = (of("listen"), of("admin"));
        let child = tidegate(&["control", "--config", config.to_str().expect("text")]);
        let daemon = Self { child, listen, admin };
        wait("the daemon answers", || get(&daemon.admin, "healthz").is_some());
        daemon
    }

    pub(crate) fn state(&self) -> Value {
        get(&self.admin, "state").expect("it answers")
    }

    /// As an operator ends it.
    pub(crate) fn end(&mut self) {
        let id = self.child.id().to_string();
        assert!(Command::new("kill").args(["-s", "TERM", &id]).status().expect("kill").success());
        assert!(self.child.wait().expect("it ends").success());
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().and_then(|()| self.child.wait()).expect("it ends");
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A sidecar; killed when it is dropped.
pub(crate) struct Sidecar {
    child: Child,
    listen: String,
    admin: String,
}

impl Sidecar {
    pub(crate) fn start(folder: &Path, control: &str, service: &str, number: usize) -> Self {
        Self::start_at(folder, control, service, number, None)
    }

    /// In a network of its own, where the host's address and a namespace are given.
    fn start_at(
        folder: &Path,
        control: &str,
        service: &str,
        number: usize,
        place: Option<(&str, &str)>,
    ) -> Self {
        let (listen, admin) = match place {
            None => (free(), free()),
            Some((host, _)) => (format!("{host}:8080"), format!("{host}:9901")),
        };
        let config = folder.join(format!("sidecar-{number}.toml"));
        let text = format!(
            "[proxy]\nlisten = '{listen}'\nadmin = '{admin}'\nadmin_token_file = '{}'\n\
             upstreams = ['{service}']\nthreads = 1\nlog = 'none'\nlimit_header = 'x-tenant'\n\
             [gate.admission]\npolicy = 'open'\n[gate.slots]\nslots = 'fixed'\ncount = 100\n\
             [[gate.limits]]\nlimit = 'leased'\nagreement = 'api'\ncontrol = 'http://{control}'\n\
             token_file = '{}'\nnode = 'sidecar-{number}'\n{}",
            // Its admin port is not at loopback everywhere, where none is had without a token.
            folder.join("node.token").display(),
            folder.join("node.token").display(),
            fs::read_to_string(folder.join(LIMITS))
                .unwrap_or_default()
                .replace("{control}", control),
        );
        fs::write(&config, text).expect("writable");
        let args = ["proxy", "--config", config.to_str().expect("text")];
        let child = match place {
            None => tidegate(&args),
            Some((_, namespace)) => {
                let mut command = Command::new("ip");
                command.args(["netns", "exec", namespace, env!("CARGO_BIN_EXE_tidegate")]);
                spawn(command.args(args))
            }
        };
        let sidecar = Self { child, listen, admin };
        wait("the sidecar answers", || get(&sidecar.admin, "state").is_some());
        sidecar
    }

    pub(crate) fn client(&self) -> Client {
        Client::open(&self.listen)
    }

    pub(crate) fn state(&self) -> Value {
        get(&self.admin, "state").expect("it answers")
    }

    /// Requests per second that it may let pass now.
    pub(crate) fn share(&self) -> f64 {
        self.state()["leases"][0]["share_rate"].as_f64().expect("a number")
    }

    pub(crate) fn connected(&self) -> bool {
        self.state()["leases"][0]["connected"].as_bool().expect("told")
    }

    pub(crate) fn uptime(&self) -> f64 {
        self.state()["uptime_seconds"].as_f64().expect("a number")
    }

    pub(crate) fn admitted(&self) -> u64 {
        sum(&self.state()["admitted"])
    }

    pub(crate) fn refused(&self) -> u64 {
        let refused = self.state()["refused"].clone();
        refused.as_object().expect("by band").values().map(sum).sum()
    }

    /// Keeps asking for what is not answered, by so many connections, for as long as it runs.
    pub(crate) fn hold(&self, connections: usize) {
        for _ in 0..connections {
            let listen = self.listen.clone();
            thread::spawn(move || {
                while let Some(mut client) = Client::try_open(&listen) {
                    // Refused, or aborted: not at once again.
                    while client.try_get("hold").is_some() {
                        thread::sleep(Duration::from_millis(50));
                    }
                }
            });
        }
    }

    pub(crate) fn signal(&self, name: &str) {
        let id = self.child.id().to_string();
        assert!(Command::new("kill").args(["-s", name, &id]).status().expect("kill").success());
    }
}

impl Drop for Sidecar {
    fn drop(&mut self) {
        let _ = self.child.kill().and_then(|()| self.child.wait());
    }
}

fn sum(numbers: &Value) -> u64 {
    numbers.as_object().expect("named").values().filter_map(Value::as_u64).sum()
}

fn tidegate(args: &[&str]) -> Child {
    spawn(Command::new(env!("CARGO_BIN_EXE_tidegate")).args(args))
}

fn spawn(command: &mut Command) -> Child {
    let command = command.stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().expect("the binary was built")
}

/// Sidecars in networks of their own, each with two lines to this one: one for clients, one for the daemon.
pub(crate) struct Networks {
    names: Vec<String>,
}

/// Which way nothing gets through any more between a sidecar and the daemon.
#[derive(Clone, Copy)]
pub(crate) enum Lost {
    Reports,
    Answers,
}

impl Networks {
    /// Runs the test `name` again in a network of its own, once, so that nothing of this machine's is
    /// touched; says whether this is that run. Where that may not be done, says so and does nothing.
    pub(crate) fn enter(name: &str) -> bool {
        const INSIDE: &str = "TIDEGATE_TEST_INSIDE";
        if std::env::var_os(INSIDE).is_some() {
            return true;
        }
        let hub = format!("tg-hub-{}", std::process::id());
        if !ip(&["netns", "add", &hub]) {
            eprintln!("skipped: {name} needs root and ip netns");
            return false;
        }
        let test = std::env::current_exe().expect("this test");
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &hub]).arg(test).args(["--exact", name, "--nocapture"]);
        let status = command.env(INSIDE, &hub).status();
        ip(&["netns", "del", &hub]);
        assert!(status.expect("it runs").success(), "see above");
        false
    }

    fn new(count: usize) -> Self {
        assert!(ip(&["link", "set", "lo", "up"]));
        let name = |n| format!("tg-{n}-{}", std::process::id());
        let networks = Self { names: (0..count).map(name).collect() };
        for (n, name) in networks.names.iter().enumerate() {
            assert!(ip(&["netns", "add", name]));
            for (line, net) in [("a", 71), ("b", 72)] {
                let (here, there) = (format!("tg{line}{n}"), format!("{line}{n}"));
                assert!(ip(&["link", "add", &here, "type", "veth", "peer", "name", &there]));
                assert!(ip(&["link", "set", &there, "netns", name]));
                assert!(ip(&["addr", "add", &format!("10.{net}.{n}.1/24"), "dev", &here]));
                assert!(ip(&["link", "set", &here, "up"]));
                let inside = ["-n", name];
                let address = format!("10.{net}.{n}.2/24");
                assert!(ip(&[&inside[..], &["addr", "add", &address, "dev", &there]].concat()));
                assert!(ip(&[&inside[..], &["link", "set", &there, "up"]].concat()));
            }
        }
        networks
    }

    /// Cuts the line of a sidecar to the daemon in one direction, or mends it.
    pub(crate) fn cut(&self, sidecar: usize, lost: Lost, cut: bool) {
        let change = if cut { "add" } else { "del" };
        let done = match lost {
            Lost::Answers => ip(&["route", change, "blackhole", &format!("10.72.{sidecar}.2/32")]),
            Lost::Reports => {
                let daemon = format!("10.72.{sidecar}.1/32");
                ip(&["-n", &self.names[sidecar], "route", change, "blackhole", &daemon])
            }
        };
        assert!(done, "the line is as it was");
    }
}

impl Drop for Networks {
    fn drop(&mut self) {
        for name in &self.names {
            ip(&["netns", "del", name]);
        }
    }
}

fn ip(args: &[&str]) -> bool {
    let status = Command::new("ip").args(args).stderr(Stdio::null()).status();
    status.is_ok_and(|status| status.success())
}

/// A connection that is kept.
pub(crate) struct Client {
    stream: BufReader<TcpStream>,
    body: Vec<u8>,
}

impl Client {
    pub(crate) fn open(address: &str) -> Self {
        Self::try_open(address).expect("it listens")
    }

    fn try_open(address: &str) -> Option<Self> {
        let stream = TcpStream::connect(address).ok()?;
        stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
        stream.set_nodelay(true).expect("a socket");
        Some(Self { stream: BufReader::new(stream), body: Vec::new() })
    }

    pub(crate) fn get(&mut self, path: &str) -> u16 {
        self.send("GET", &format!("/{path}"), "", "")
    }

    /// Sends and waits; none if the connection ends.
    pub(crate) fn try_get(&mut self, path: &str) -> Option<u16> {
        let text = format!("GET /{path} HTTP/1.1\r\nhost: test\r\n\r\n");
        self.stream.get_mut().write_all(text.as_bytes()).ok()?;
        self.answer()
    }

    pub(crate) fn send(&mut self, method: &str, path: &str, headers: &str, body: &str) -> u16 {
        let length = body.len();
        let text = format!(
            "{method} {path} HTTP/1.1\r\nhost: test\r\n{headers}content-length: {length}\r\n\r\n{body}"
        );
        self.stream.get_mut().write_all(text.as_bytes()).expect("it reads");
        self.answer().expect("it answers")
    }

    fn answer(&mut self) -> Option<u16> {
        let (mut status, mut length) = (None, 0);
        loop {
            let mut line = String::new();
            self.stream.read_line(&mut line).ok().filter(|read| *read > 0)?;
            let line = line.trim_end().to_ascii_lowercase();
            if line.is_empty() {
                break;
            }
            if status.is_none() {
                status = line.split(' ').nth(1)?.parse().ok();
            } else if let Some(number) = line.strip_prefix("content-length:") {
                length = number.trim().parse().ok()?;
            }
        }
        self.body.resize(length, 0);
        self.stream.read_exact(&mut self.body).ok()?;
        status
    }
}

/// JSON, or any other success, of an admin port; none while nobody answers.
pub(crate) fn get(address: &str, path: &str) -> Option<Value> {
    let mut client = Client::try_open(address)?;
    let text = format!("GET /{path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n");
    client.stream.get_mut().write_all(text.as_bytes()).ok()?;
    let status = client.answer()?;
    assert_eq!(status, 200, "{path}");
    Some(serde_json::from_slice(&client.body).unwrap_or(Value::Null))
}

pub(crate) fn free() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("bound").to_string()
}

/// Answers everything, for as long as the test runs: its port.
fn service(host: &str) -> u16 {
    let listener = TcpListener::bind((host, 0)).expect("a free port");
    let port = listener.local_addr().expect("bound").port();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            thread::spawn(move || serve(stream));
        }
    });
    port
}

/// Requests for `/hold` that are at the service, and most that ever were.
pub(crate) static HELD: AtomicU64 = AtomicU64::new(0);
pub(crate) static MOST_HELD: AtomicU64 = AtomicU64::new(0);

fn serve(stream: TcpStream) {
    let _ = stream.set_nodelay(true);
    let mut stream = BufReader::new(stream);
    let mut line = String::new();
    let mut holds = false;
    while stream.read_line(&mut line).is_ok_and(|read| read > 0) {
        holds |= line.starts_with("GET /hold");
        if line == "\r\n" && holds {
            // No answer, until nobody waits for one.
            let now = HELD.fetch_add(1, Ordering::SeqCst) + 1;
            MOST_HELD.fetch_max(now, Ordering::SeqCst);
            while stream.get_mut().read(&mut [0; 64]).is_ok_and(|read| read > 0) {}
            HELD.fetch_sub(1, Ordering::SeqCst);
            return;
        }
        // Requests without a body end with an empty line.
        if line == "\r\n" {
            let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
            if stream.get_mut().write_all(answer).is_err() {
                return;
            }
        }
        line.clear();
    }
}
