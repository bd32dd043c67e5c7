//! Real servers, the gate before them, and a client that is nothing but a socket.

#![allow(dead_code, reason = "not every test needs all of it")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::Value;
use tidegate_nats::wire::server::{Op, read};
use tidegate_nats::wire::{Bounds, Fault};
use tidegate_nats::{File, Gate, Handle};

/// A bound on tests that hang, not a measurement.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A nats-server of its own, ended when it is dropped.
pub(crate) struct Broker {
    child: Child,
    pub(crate) url: String,
}

impl Broker {
    /// None where there is no nats-server: `cargo xtask test` says so by name.
    pub(crate) fn start(args: &[&str]) -> Option<Self> {
        Self::start_at("-1", args)
    }

    pub(crate) fn start_at(port: &str, args: &[&str]) -> Option<Self> {
        let mut command = Command::new("nats-server");
        command.args(["-a", "127.0.0.1", "-p", port]).args(args);
        let Ok(mut child) = command.stderr(Stdio::piped()).stdout(Stdio::null()).spawn() else {
            eprintln!("skipped: there is no nats-server (apt-get install nats-server)");
            return None;
        };
        let mut lines = BufReader::new(child.stderr.take().expect("piped")).lines();
        let said = |line: &String| line.contains("Listening for client connections on");
        let line = lines.by_ref().map_while(Result::ok).find(said).expect("it starts");
        let at = line.rsplit(' ').next().expect("an address");
        let url = format!("nats://{}", at.trim());
        // Only once it is ready does it say all it has to say.
        let ready = |line: &String| line.contains("Server is ready");
        lines.by_ref().map_while(Result::ok).find(ready).expect("it is ready");
        std::thread::spawn(move || lines.for_each(drop));
        Some(Self { child, url })
    }

    pub(crate) fn port(&self) -> String {
        self.url.rsplit(':').next().expect("a port").to_owned()
    }

    /// As if it had lost its power.
    pub(crate) fn kill(&mut self) {
        self.child.kill().expect("it runs");
        self.child.wait().expect("it ends");
    }

    /// A signal by name: STOP, CONT, USR2 (lame duck).
    pub(crate) fn signal(&self, name: &str) {
        let id = self.child.id().to_string();
        let done = Command::new("kill").args([&format!("-{name}"), &id]).status();
        assert!(done.is_ok_and(|status| status.success()), "kill -{name} {id}");
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A gate in this process, before brokers of its own.
pub(crate) struct World {
    pub(crate) brokers: Vec<Broker>,
    pub(crate) handle: Handle,
    pub(crate) listen: SocketAddr,
    pub(crate) admin: SocketAddr,
    thread: Option<JoinHandle<()>>,
}

impl World {
    /// So many brokers, and a gate with `more` in its block.
    pub(crate) fn new(count: usize, more: &str) -> Option<Self> {
        let brokers = (0..count).map(|_| Broker::start(&[])).collect::<Option<Vec<_>>>()?;
        Some(Self::before(brokers, more))
    }

    pub(crate) fn before(brokers: Vec<Broker>, more: &str) -> Self {
        let urls: Vec<String> = brokers.iter().map(|broker| broker.url.clone()).collect();
        let world = Self::at(&urls, brokers, more);
        world.until_all_are_up();
        world
    }

    /// Of these brokers some are there.
    pub(crate) fn at(urls: &[String], brokers: Vec<Broker>, more: &str) -> Self {
        let text = format!(
            "[nats]\nlisten = '127.0.0.1:0'\nadmin = '127.0.0.1:0'\nbrokers = {urls:?}\n{more}"
        );
        let file = File::parse(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
        let gate = Gate::bind(file, |line| eprintln!("{line}")).expect("it starts");
        let (handle, listen) = (gate.handle(), gate.listen());
        let admin = gate.admin().expect("an address");
        let thread = std::thread::spawn(move || gate.run(None).expect("it ends well"));
        Self { brokers, handle, listen, admin, thread: Some(thread) }
    }

    pub(crate) fn until_all_are_up(&self) {
        let up = |state: &Value| {
            let brokers = state["brokers"].as_array();
            brokers.is_some_and(|all| all.iter().all(|broker| broker["state"] == "up"))
        };
        self.until("all brokers", up);
    }

    pub(crate) fn state(&self) -> Value {
        self.handle.state().expect("it runs")
    }

    /// Waits until the numbers are as wanted.
    pub(crate) fn until(&self, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let end = Instant::now() + PATIENCE;
        loop {
            let state = self.state();
            if wanted(&state) {
                return state;
            }
            assert!(Instant::now() < end, "{what} did not come: {state:#}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub(crate) fn client(&self) -> Client {
        Client::connect(self.listen, "{\"verbose\":false,\"headers\":true,\"no_responders\":true}")
    }

    /// A client that can be told apart.
    pub(crate) fn named(&self, name: &str) -> Client {
        let options = format!("{{\"verbose\":false,\"headers\":true,\"name\":\"{name}\"}}");
        Client::connect(self.listen, &options)
    }

    /// The number that the gate has given to a client with this name.
    pub(crate) fn id(&self, name: &str) -> u64 {
        self.of(name)["id"].as_u64().expect("a number")
    }

    pub(crate) fn of(&self, name: &str) -> Value {
        let clients = self.handle.clients().expect("it runs");
        let named = |client: &&Value| client["name"] == name;
        clients.as_array().and_then(|list| list.iter().find(named)).cloned().unwrap_or_default()
    }

    /// Ends the gate and waits for it.
    pub(crate) fn end(&mut self) {
        self.handle.stop();
        if let Some(thread) = self.thread.take() {
            thread.join().expect("it ended well");
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.handle.stop();
        self.handle.stop();
    }
}

/// What a client reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Heard {
    Message {
        id: String,
        subject: String,
        reply: Option<String>,
        payload: Vec<u8>,
    },
    Pong,
    Ok,
    Error(String),
    /// The connection has ended.
    End,
}

impl Heard {
    /// A message's payload.
    pub(crate) fn text(&self) -> String {
        match self {
            Self::Message { payload, .. } => String::from_utf8_lossy(payload).into_owned(),
            other => panic!("no message: {other:?}"),
        }
    }
}

pub(crate) struct Client {
    pub(crate) stream: TcpStream,
    bytes: Vec<u8>,
    at: usize,
}

impl Client {
    pub(crate) fn connect(at: SocketAddr, options: &str) -> Self {
        let mut client = Self::raw(at);
        client.send(format!("CONNECT {options}\r\nPING\r\n"));
        assert_eq!(client.hear(), Heard::Pong);
        client
    }

    /// Without a word.
    pub(crate) fn raw(at: SocketAddr) -> Self {
        let stream = TcpStream::connect(at).expect("it listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a time-out");
        stream.set_nodelay(true).expect("no delay");
        Self { stream, bytes: Vec::new(), at: 0 }
    }

    pub(crate) fn send(&mut self, text: impl AsRef<[u8]>) {
        self.stream.write_all(text.as_ref()).expect("it reads");
    }

    pub(crate) fn publish(&mut self, subject: &str, payload: &str) {
        self.send(format!("PUB {subject} {}\r\n{payload}\r\n", payload.len()));
    }

    pub(crate) fn subscribe(&mut self, subject: &str, id: &str) {
        self.send(format!("SUB {subject} {id}\r\n"));
    }

    /// Everything before is read by all brokers; what was heard meanwhile is given back.
    pub(crate) fn flush(&mut self) -> Vec<Heard> {
        self.send("PING\r\n");
        let mut heard = Vec::new();
        loop {
            match self.hear() {
                Heard::Pong => return heard,
                Heard::End => panic!("it was closed after {heard:?}"),
                other => heard.push(other),
            }
        }
    }

    /// The next thing; INFO and PING are not worth a word.
    pub(crate) fn hear(&mut self) -> Heard {
        const BOUNDS: Bounds = Bounds { line: 1 << 20, payload: 64 << 20 };
        loop {
            let heard = match read(&self.bytes[self.at..], BOUNDS) {
                Ok(Some((op, used))) => {
                    let heard = match op {
                        Op::Message { id, body, .. } => Some(Heard::Message {
                            id: text(id),
                            subject: text(body.subject),
                            reply: body.reply.map(text),
                            payload: body.payload.to_vec(),
                        }),
                        Op::Pong => Some(Heard::Pong),
                        Op::Ok => Some(Heard::Ok),
                        Op::Error(told) => Some(Heard::Error(text(told))),
                        Op::Info(_) | Op::Ping => None,
                    };
                    self.at += used;
                    heard
                }
                Ok(None) => {
                    self.bytes.drain(..self.at);
                    self.at = 0;
                    let mut buffer = [0; 65_536];
                    match self.stream.read(&mut buffer) {
                        Ok(0) => Some(Heard::End),
                        Ok(count) => {
                            self.bytes.extend_from_slice(&buffer[..count]);
                            None
                        }
                        Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => {
                            Some(Heard::End)
                        }
                        Err(error) => panic!("nothing came: {error}"),
                    }
                }
                Err(fault @ (Fault::Line | Fault::Payload | Fault::Unknown)) => {
                    panic!("the gate sent what is not NATS: {fault}")
                }
            };
            if let Some(heard) = heard {
                return heard;
            }
        }
    }

    /// Reads to the end.
    pub(crate) fn hear_end(&mut self) -> Heard {
        while self.hear() != Heard::End {}
        Heard::End
    }

    /// The next messages.
    pub(crate) fn messages(&mut self, count: usize) -> Vec<Heard> {
        let message = |_| loop {
            match self.hear() {
                message @ Heard::Message { .. } => return message,
                Heard::Error(_) | Heard::Ok => {}
                other => panic!("{other:?} instead of a message"),
            }
        };
        (0..count).map(message).collect()
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
