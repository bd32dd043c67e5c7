//! A topic over two gates and a daemon: real processes and a real nats-server. What passes is held against the bound
//! that the daemon tells.

#![cfg(all(feature = "nats", unix))]
#![allow(clippy::disallowed_methods, reason = "real processes, real sockets")]

#[path = "support/fleet.rs"]
#[allow(dead_code, reason = "sidecars have tests of their own")]
mod fleet;

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use fleet::{Daemon, TOKEN, free, get, wait};
use serde_json::Value;

/// A bound on tests that hang, not a measurement.
const PATIENCE: Duration = Duration::from_secs(60);
/// Messages between two looks at how things are.
const BATCH: usize = 50;

/// A process, ended when it is dropped.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn broker() -> Option<(Process, String)> {
    let mut command = Command::new("nats-server");
    command.args(["-a", "127.0.0.1", "-p", "-1"]).stderr(Stdio::piped());
    let Ok(mut child) = command.spawn() else {
        eprintln!("skipped: there is no nats-server (apt-get install nats-server)");
        return None;
    };
    let mut lines = BufReader::new(child.stderr.take().expect("piped")).lines();
    let process = Process(child);
    let said = |line: &String| line.contains("Listening for client connections on");
    let line = lines.by_ref().map_while(Result::ok).find(said).expect("it starts");
    thread::spawn(move || lines.for_each(drop));
    Some((process, format!("nats://{}", line.rsplit(' ').next().expect("an address").trim())))
}

/// Somebody who speaks NATS.
struct Client {
    stream: TcpStream,
    answers: BufReader<TcpStream>,
}

impl Client {
    fn connect(listen: &str) -> Self {
        let stream = TcpStream::connect(listen).expect("it listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a time-out");
        let answers = BufReader::new(stream.try_clone().expect("a socket"));
        let mut client = Self { stream, answers };
        client.say("CONNECT {\"verbose\":false}\r\n");
        client
    }

    /// Says so, and waits until all of it was read.
    fn say(&mut self, text: &str) {
        self.stream.write_all(format!("{text}PING\r\n").as_bytes()).expect("it reads");
        let mut line = String::new();
        while line != "PONG\r\n" {
            line.clear();
            assert!(self.answers.read_line(&mut line).expect("it answers") > 0, "it ended");
        }
    }
}

/// A gate, and a publisher at it.
struct Gate {
    process: Process,
    listen: String,
    admin: String,
    client: Client,
}

impl Gate {
    fn start(folder: &Path, number: usize, urls: &[String], control: &str) -> Self {
        let (listen, admin) = (free(), free());
        let config = folder.join(format!("gate-{number}.toml"));
        let token = folder.join("node.token");
        let text = format!(
            "[nats]\nlisten = '{listen}'\nadmin = '{admin}'\nbrokers = {urls:?}\n\
             [[nats.topics]]\nsubject = 'orders.>'\nqueue = 100\nagreement = 'orders'\n\
             control = 'http://{control}'\ntoken_file = '{}'\n",
            token.display()
        );
        fs::write(&config, text).expect("writable");
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        command.args(["nats", "--config", config.to_str().expect("text")]);
        let process = Process(command.stderr(Stdio::null()).spawn().expect("it was built"));
        let up = |broker: &Value| broker["state"] == "up";
        let ready =
            |state: Value| state["brokers"].as_array().is_some_and(|all| all.iter().all(up));
        wait("all brokers are up", || get(&admin, "state").is_some_and(ready));
        let client = Client::connect(&listen);
        Self { process, listen, admin, client }
    }

    fn topic(&self) -> Value {
        get(&self.admin, "state").expect("it answers")["topics"][0].clone()
    }

    fn share(&self) -> f64 {
        self.topic()["lease"]["rate"].as_f64().expect("a number")
    }

    fn connected(&self) -> bool {
        self.topic()["lease"]["connected"].as_bool().expect("told")
    }

    fn passed(&self) -> u64 {
        self.topic()["passed"].as_u64().expect("a number")
    }
}

/// Publishes by these gates, more than they may, until `done`.
fn load(gates: &mut [Gate], which: &[usize], what: &str, done: impl Fn(&[Gate]) -> bool) {
    wait(what, || {
        for at in which {
            gates[*at].client.say(&"PUB orders.new 1\r\nx\r\n".repeat(BATCH));
        }
        done(gates)
    });
}

#[test]
fn two_gates_share_a_topic_whatever_happens_to_the_daemon() {
    let Some(brokers) = (0..2).map(|_| broker()).collect::<Option<Vec<_>>>() else { return };
    let urls: Vec<String> = brokers.iter().map(|(_, url)| url.clone()).collect();
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let folder = folder.join(format!("topics-{}", std::process::id()));
    fs::create_dir_all(&folder).expect("a folder of its own");
    fs::write(folder.join("node.token"), TOKEN).expect("writable");
    let config = folder.join("control.toml");
    let (listen, admin) = (free(), free());
    let (state, token) = (folder.join("state.json"), folder.join("node.token"));
    let text = format!(
        "[control]\nlisten = '{listen}'\nadmin = '{admin}'\nstore = 'file:{}'\ntoken_file = '{}'\n\
         [[agreements]]\nname = 'orders'\nrate = 300.0\nburst = 30.0\nnodes = 2\nterm = '2s'\n",
        state.display(),
        token.display()
    );
    fs::write(&config, text).expect("writable");
    let mut daemon = Daemon::start(&config);
    let begun = Instant::now();
    let mut gates: Vec<Gate> = (0..2).map(|n| Gate::start(&folder, n, &urls, &listen)).collect();

    // Somebody who hears all that passes, by either gate.
    let heard = Arc::new(AtomicU64::new(0));
    let mut listener = Client::connect(&gates[0].listen);
    listener.say("SUB orders.> 1\r\n");
    let counted = Arc::clone(&heard);
    thread::spawn(move || {
        for line in listener.answers.lines().map_while(Result::ok) {
            counted.fetch_add(u64::from(line.starts_with("MSG ")), Ordering::Relaxed);
        }
    });

    load(&mut gates, &[0, 1], "both have a part", |gates| gates.iter().all(|at| at.share() > 50.0));
    let bound = daemon.state()["agreements"][0]["keys"][0]["bound"].clone();
    let bound = |of: &str| bound[of].as_f64().expect("bounded");
    let within = |gates: &[Gate]| {
        let passed: u64 = gates.iter().map(Gate::passed).sum();
        let most = bound("burst") + bound("rate") * begun.elapsed().as_secs_f64();
        assert!(passed as f64 <= most, "{passed} of at most {most}");
    };
    assert!((300.0..301.0).contains(&bound("rate")));
    load(&mut gates, &[0], "one has nearly all", |gates| gates[0].share() > 250.0);
    within(&gates);
    daemon.kill();
    let lost = |gates: &[Gate]| gates.iter().all(|at| !at.connected());
    load(&mut gates, &[0, 1], "leases have ended", lost);
    let shares: f64 = gates.iter().map(Gate::share).sum();
    assert!(shares < 30.0, "safe shares are left: {shares}");
    let before = gates[1].passed();
    load(&mut gates, &[0, 1], "and pass", |gates| gates[1].passed() > before);
    within(&gates);
    daemon = Daemon::start(&config);
    load(&mut gates, &[0, 1], "shares are leased again", |gates| {
        gates.iter().all(|at| at.share() > 50.0)
    });
    within(&gates);
    // What has passed comes, and once.
    let waits = |gate: &Gate| gate.topic()["waiting"] != 0;
    wait("nothing waits", || !gates.iter().any(waits));
    let passed: u64 = gates.iter().map(Gate::passed).sum();
    wait("all were heard", || heard.load(Ordering::Relaxed) >= passed);
    assert_eq!(heard.load(Ordering::Relaxed), passed);
    within(&gates);

    // One that ends in order leaves what it had to the other at once, and nothing to wait for.
    let id = gates[1].process.0.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &id]).status().expect("kill").success());
    assert!(gates[1].process.0.wait().expect("it ends").success());
    gates.truncate(1);
    load(&mut gates, &[0], "the other has all", |gates| gates[0].share() > 280.0);
    drop(daemon);
    fs::remove_dir_all(folder).expect("it was there");
}
