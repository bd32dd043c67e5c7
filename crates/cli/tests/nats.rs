//! `tidegate nats` as a process: how it starts, hears signals and ends. What it does meanwhile is tested where it is
//! written.

#![cfg(all(feature = "nats", unix))]
#![allow(clippy::disallowed_methods, reason = "real processes, real sockets")]

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

/// A bound on tests that hang, not a measurement.
const PATIENCE: Duration = Duration::from_secs(60);

/// A process, ended when it is dropped, and the lines of its stderr.
struct Process {
    child: Child,
    lines: Receiver<String>,
}

impl Process {
    fn start(command: &mut Command) -> Option<Self> {
        let mut child = command.stderr(Stdio::piped()).stdout(Stdio::null()).spawn().ok()?;
        let (sender, lines) = channel();
        let stderr = BufReader::new(child.stderr.take().expect("piped"));
        thread::spawn(move || {
            stderr.lines().map_while(Result::ok).try_for_each(|line| sender.send(line))
        });
        Some(Self { child, lines })
    }

    /// The first line that says so.
    fn line(&self, part: &str) -> String {
        loop {
            let line = self.lines.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("no {part}"));
            if line.contains(part) {
                return line;
            }
        }
    }

    fn signal(&self, name: &str) {
        let id = self.child.id().to_string();
        let done = Command::new("kill").args([name, &id]).status().expect("kill is there");
        assert!(done.success());
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn gate() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    command.args(["nats", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]);
    command
}

/// Exit code and what was said.
fn refused(command: &mut Command) -> (Option<i32>, String) {
    let output = command.output().expect("the binary was built");
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn what_is_wrong_is_said_before_anything_is_served() {
    let (code, told) = refused(&mut gate());
    assert!(code == Some(2) && told.contains("--broker nats://host:port"), "{told}");
    let (code, told) = refused(gate().args(["--broker", "ws://a:4222"]));
    assert!(code == Some(2) && told.contains("no address of a broker"), "{told}");
    let (code, told) = refused(gate().args(["--broker", "nats://127.0.0.1:1"]));
    assert!(code == Some(2) && told.contains("no broker is reachable"), "{told}");
    // Something that is no NATS server, and something of a NATS that is not known yet.
    for (hello, why) in [
        ("HTTP/1.1 200 OK\r\n\r\n", "is it a NATS server?"),
        ("INFO {\"proto\":7,\"version\":\"9.0.0\"}\r\n", "protocol 7 (version `9.0.0`)"),
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("nats://{}", listener.local_addr().expect("an address"));
        let says = thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("it connects");
            stream.write_all(hello.as_bytes()).expect("it reads");
            drop(stream.read(&mut [0; 1]));
        });
        let (code, told) = refused(gate().args(["--broker", &url]));
        assert!(code == Some(2) && told.contains(why) && told.contains(&url), "{told}");
        says.join().expect("it was asked");
    }
}

/// From a recording of a gate, and brokers that were measured, to a placement.
#[test]
fn a_recorded_topic_is_sized_and_placed_on_brokers_that_were_measured() {
    let mut server = Command::new("nats-server");
    let Some(broker) = Process::start(server.args(["-a", "127.0.0.1", "-p", "-1"])) else {
        return eprintln!("skipped: there is no nats-server (apt-get install nats-server)");
    };
    let line = broker.line("Listening for client connections on");
    let url = format!("nats://{}", line.rsplit(' ').next().expect("an address"));
    let folder = std::env::temp_dir().join(format!("tidegate-place-{}", std::process::id()));
    fs::create_dir_all(&folder).expect("a folder of its own");
    let at = |name: &str| folder.join(name).display().to_string();
    let topic = "[[nats.topics]]\nsubject = 'a.>'\nrate = 1e6\nburst = 1000\nrecord = 1000\n";
    fs::write(at("gate.toml"), format!("[nats]\nbrokers = ['{url}']\n{topic}")).expect("a file");
    let process =
        Process::start(gate().args(["--config", &at("gate.toml")])).expect("it was built");
    let line = process.line("serving ");
    let words: Vec<&str> = line.split(' ').collect();
    let admin = words.last().expect("an address").trim_start_matches("http://").trim_matches('/');
    for name in ["one", "two"] {
        let mut client = TcpStream::connect(words[2]).expect("it listens");
        let text = format!("CONNECT {{\"verbose\":false,\"name\":\"{name}\"}}\r\n");
        client.write_all(text.as_bytes()).expect("it reads");
        for _ in 0..20 {
            client.write_all(b"PUB a.b 1\r\nx\r\nPING\r\n").expect("it reads");
            let mut answer = BufReader::new(client.try_clone().expect("a socket")).lines();
            assert!(answer.by_ref().map_while(Result::ok).any(|line| line == "PONG"));
        }
    }
    let mut stream = TcpStream::connect(admin).expect("it listens");
    let request = "GET /trace?topic=a.%3E HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n";
    stream.write_all(request.as_bytes()).expect("it reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("text");
    let (_, log) = answer.split_once("\r\n\r\n").expect("a body");
    assert_eq!(log.lines().count(), 41, "{log}");
    fs::write(at("log"), log).expect("a file");
    let run = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        let output = command.arg("nats").args(args).output().expect("the binary was built");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("text")
    };
    let sized = run(&["size", &at("log")]);
    assert!(sized.starts_with("[[nats.topics]]") && sized.contains("# 40 messages"), "{sized}");
    fs::write(at("brokers"), run(&["calibrate", "--broker", &url])).expect("a file");
    let args = ["place", &at("log"), "--brokers", &at("brokers"), "--slo", "1s"];
    let placed = run(&args);
    assert!(
        placed.contains("2 publishers, 40 messages") && placed.contains("is predicted to be met"),
        "{placed}"
    );
    let json = run(&[&args[..], &["--format", "json"]].concat());
    let json: serde_json::Value = serde_json::from_str(&json).expect("an object");
    assert_eq!(
        (&json["meets"], &json["brokers"][0]["broker"]),
        (&true.into(), &url.as_str().into())
    );
    fs::remove_dir_all(folder).expect("it was there");
}

#[test]
fn it_serves_reads_its_file_again_and_ends_when_told() {
    let mut server = Command::new("nats-server");
    let Some(broker) = Process::start(server.args(["-a", "127.0.0.1", "-p", "-1"])) else {
        return eprintln!("skipped: there is no nats-server (apt-get install nats-server)");
    };
    let line = broker.line("Listening for client connections on");
    let url = format!("nats://{}", line.rsplit(' ').next().expect("an address"));
    let path = std::env::temp_dir().join(format!("tidegate-nats-{}.toml", std::process::id()));
    let write = |rate: f64| {
        let topic = format!("[[nats.topics]]\nsubject = 'a'\nrate = {rate}\nburst = 1\n");
        fs::write(&path, format!("[nats]\nbrokers = ['{url}']\n{topic}")).expect("a file");
    };
    write(0.01);
    let mut process = Process::start(gate().arg("--config").arg(&path)).expect("it was built");
    let line = process.line("serving ");
    let at = line.split(' ').nth(2).expect("an address").to_owned();
    let mut client = TcpStream::connect(&at).expect("it listens");
    client.set_read_timeout(Some(PATIENCE)).expect("a time-out");
    let mut answers =
        BufReader::new(client.try_clone().expect("a socket")).lines().map_while(Result::ok);
    // Its message waits for a token that would come in a hundred seconds.
    client
        .write_all(b"CONNECT {\"verbose\":false}\r\nSUB a 1\r\nPUB a 1\r\nx\r\nPING\r\n")
        .expect("it reads");
    assert!(answers.by_ref().any(|line| line == "PONG"));
    fs::write(&path, "[nats]\nbrokers = 7\n").expect("a file");
    process.signal("-HUP");
    process.line("not reloaded: ");
    write(1_000.0);
    process.signal("-HUP");
    process.line("reloaded");
    assert!(answers.by_ref().any(|line| line == "MSG a 1 1"));
    process.signal("-TERM");
    process.line("ended");
    assert!(process.child.wait().expect("it ends").success());
    fs::remove_file(path).expect("it was there");
}
