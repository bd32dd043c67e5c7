//! The sockets of the gate: one thread reads, asks the [`Hub`], and writes; another hears signals and operators.
//!
//! Each round: wait for sockets or the timer; read each ready socket once; dispatch; do what is to be done; write
//! what there is. Reading comes before deciding, so that what waits does so in the hub's queues, and not in sockets.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::sync::mpsc::{Receiver as Inbox, Sender};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token, Waker};
use tidegate_core::{Instant, Span};
use tidegate_driver::stamp::{Receiver, Stamps};
use tidegate_driver::{Clock, Monotonic, random_seed};
use tokio::sync::oneshot;

use crate::config::{File, NatsConfig};
use crate::hub::{Conn, Hub, LinkId, Todo};
use crate::leases::Leases;
use crate::probe;
use crate::stream::Stream;
use crate::timer::Timer;
use crate::tls::{self, Tls};
use crate::users::{self, Users};

const LISTENER: Token = Token(0);
const WAKER: Token = Token(1);
const TIMER: Token = Token(2);
/// Tokens of connections begin here.
const FIRST: usize = 16;
/// Most bytes of one read: small enough that its stamp tells when what it brought arrived.
const READ: usize = 16 << 10;
/// Most connections accepted in one round, so that those that are there are served too.
const ACCEPTS: usize = 64;
/// How long a connection that was closed here may take to read its last bytes.
const LINGER: Span = Span::from_secs(2);

/// A question to the thread that serves, or news for it.
#[derive(Debug)]
pub(crate) enum Ask {
    /// All numbers.
    State(oneshot::Sender<serde_json::Value>),
    /// All clients.
    Clients(oneshot::Sender<serde_json::Value>),
    /// Numbers as Prometheus reads them.
    Metrics(oneshot::Sender<String>),
    /// The latest arrivals of a topic.
    Trace(String, oneshot::Sender<Option<String>>),
    /// The configuration in force.
    Config(oneshot::Sender<String>),
    /// A publisher is to move to a broker.
    Move(u64, usize, oneshot::Sender<Result<(), String>>),
    /// Another configuration.
    Reload(Box<File>, oneshot::Sender<Result<(), String>>),
    /// What a probe found.
    Probed(usize, probe::Found),
    /// To end when all is drained; the second time at once.
    Stop,
}

/// Where questions go.
#[derive(Clone, Debug)]
pub(crate) struct Line {
    sender: Sender<Ask>,
    waker: Arc<Waker>,
}

impl Line {
    /// Asks; false if nobody is there any more.
    pub(crate) fn ask(&self, ask: Ask) -> bool {
        self.sender.send(ask).is_ok() && self.waker.wake().is_ok()
    }
}

/// The serving thread.
#[derive(Debug)]
pub(crate) struct Serving {
    hub: Hub,
    file: File,
    poll: Poll,
    timer: Timer,
    listener: Option<TcpListener>,
    accepts: bool,
    sockets: BTreeMap<Conn, Socket>,
    /// Connections that may have more to read.
    ready: Vec<Conn>,
    /// Connections that end when their last bytes are written.
    closing: BTreeMap<usize, Closing>,
    addresses: Vec<Option<SocketAddr>>,
    inbox: Inbox<Ask>,
    line: Line,
    clock: Monotonic,
    receiver: Receiver,
    stamps: Stamps,
    scratch: Vec<u8>,
    /// What was read by TLS.
    plain: Vec<u8>,
    tls: Tls,
    log: fn(&str),
    /// When to end whatever is left.
    end: Option<Instant>,
}

#[derive(Debug)]
struct Socket {
    stream: Stream,
    readable: bool,
    writable: bool,
    /// Whether its end has been announced: what can be read ends with nothing.
    ends: bool,
    connecting: bool,
}

#[derive(Debug)]
struct Closing {
    stream: TcpStream,
    rest: Vec<u8>,
    until: Instant,
}

fn token(conn: Conn) -> Token {
    Token(
        FIRST
            + match conn {
                Conn::Client(id) => id as usize * 2,
                Conn::Link(id) => id as usize * 2 + 1,
            },
    )
}

fn conn(Token(token): Token) -> Conn {
    let id = (token - FIRST) as u64 / 2;
    if (token - FIRST).is_multiple_of(2) { Conn::Client(id) } else { Conn::Link(id) }
}

impl Serving {
    pub(crate) fn new(
        file: File,
        listener: std::net::TcpListener,
        id: String,
        probed: Vec<probe::Found>,
        (tls, users): (Tls, Users),
        log: fn(&str),
    ) -> io::Result<Self> {
        let poll = Poll::new()?;
        listener.set_nonblocking(true)?;
        let mut listener = TcpListener::from_std(listener);
        let waker = Arc::new(Waker::new(poll.registry(), WAKER)?);
        poll.registry().register(&mut listener, LISTENER, Interest::READABLE)?;
        let timer = Timer::new(poll.registry(), TIMER)?;
        let clock = Monotonic::process();
        let (sender, inbox) = mpsc::channel();
        let addresses = probed.iter().map(|at| at.as_ref().ok().map(|(_, at)| *at)).collect();
        let infos = probed.into_iter().map(|at| at.map(|(info, _)| info)).collect();
        let mut hub = Hub::new(clock.now(), file.nats.clone(), id, infos);
        hub.set_users(users);
        Ok(Self {
            hub,
            file,
            poll,
            timer,
            listener: Some(listener),
            accepts: true,
            sockets: BTreeMap::new(),
            ready: Vec::new(),
            closing: BTreeMap::new(),
            addresses,
            inbox,
            line: Line { sender, waker },
            clock,
            receiver: Receiver::new(),
            stamps: Stamps::default(),
            scratch: vec![0; READ],
            plain: Vec::new(),
            tls,
            log,
            end: None,
        })
    }

    pub(crate) fn line(&self) -> Line {
        self.line.clone()
    }

    /// What it has of topics that several gates share.
    pub(crate) fn leases(&self) -> Leases {
        self.hub.leases()
    }

    /// Serves until it is told to end.
    pub(crate) fn run(mut self) -> io::Result<()> {
        let mut events = Events::with_capacity(1_024);
        loop {
            let now = self.clock.now();
            let wait = if self.ready.is_empty() {
                self.timer.set(self.hub.next_wakeup().since(now).into())
            } else {
                Some(Duration::ZERO)
            };
            match self.poll.poll(&mut events, wait) {
                Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
                _ => {}
            }
            for event in &events {
                self.note(event);
            }
            self.answer();
            self.accept();
            let ready = std::mem::take(&mut self.ready);
            ready.into_iter().for_each(|conn| self.read(conn));
            self.act();
            let now = self.clock.now();
            self.hub.dispatch(now);
            self.act();
            while let Some(conn) = self.hub.dirty() {
                self.write(conn);
            }
            self.act();
            let now = self.clock.now();
            self.closing.retain(|_, closing| closing.until > now);
            if self.end.is_some_and(|end| now >= end || self.hub.is_drained()) {
                return Ok(());
            }
        }
    }

    fn note(&mut self, event: &mio::event::Event) {
        match event.token() {
            LISTENER => self.accepts = true,
            WAKER | TIMER => {}
            Token(at) if self.closing.contains_key(&at) => self.finish(at),
            token => {
                let conn = conn(token);
                let Some(socket) = self.sockets.get_mut(&conn) else { return };
                socket.ends |= event.is_read_closed() || event.is_error();
                socket.writable |= event.is_writable();
                if event.is_readable() || event.is_read_closed() || event.is_error() {
                    socket.readable = true;
                    self.ready.push(conn);
                }
                if event.is_writable() {
                    self.connected(conn);
                    self.write(conn);
                }
            }
        }
    }

    /// A connection to a broker may have come to be.
    fn connected(&mut self, conn: Conn) {
        let (Conn::Link(id), Some(socket)) = (conn, self.sockets.get_mut(&conn)) else { return };
        if !socket.connecting {
            return;
        }
        let fails = socket.stream.tcp.take_error().unwrap_or_else(Some).is_some();
        if fails || socket.stream.tcp.peer_addr().is_err() {
            return self.gone(conn);
        }
        socket.connecting = false;
        self.hub.on_link_open(self.clock.now(), id);
    }

    fn accept(&mut self) {
        let Some(listener) = self.listener.as_ref().filter(|_| self.accepts) else { return };
        for _ in 0..ACCEPTS {
            let mut stream = match listener.accept() {
                Ok((stream, _)) => stream,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.accepts = false;
                    return;
                }
                // One that is gone already, or too many open files: the next round tries again.
                Err(_) => return,
            };
            // A peer that is gone already is found out when it is read.
            let _ = stream.set_nodelay(true);
            Receiver::enable(&stream);
            let nonce = format!("{:016x}{:016x}", random_seed(), random_seed());
            match self.hub.accept(self.clock.now(), nonce) {
                Ok(id) => {
                    let conn = Conn::Client(id);
                    let interest = Interest::READABLE | Interest::WRITABLE;
                    let registry = self.poll.registry();
                    let greeting = self.hub.output(conn).map_or(0, |out| out.len());
                    let stream =
                        registry.register(&mut stream, token(conn), interest).and_then(|()| {
                            match &self.tls.clients {
                                Some(tls) => Stream::of_client(stream, tls.clone(), greeting),
                                None => Ok(Stream::new(stream)),
                            }
                        });
                    let Ok(stream) = stream else {
                        self.hub.on_client_gone(self.clock.now(), id);
                        continue;
                    };
                    let socket = Socket {
                        stream,
                        readable: false,
                        writable: true,
                        ends: false,
                        connecting: false,
                    };
                    self.sockets.insert(conn, socket);
                }
                // Whether it hears why is its own business.
                Err(last) => drop(stream.write(&last)),
            }
        }
    }

    /// One read.
    fn read(&mut self, conn: Conn) {
        let Some(socket) = self.sockets.get_mut(&conn) else { return };
        if !socket.readable || matches!(conn, Conn::Client(id) if !self.hub.reads(id)) {
            return;
        }
        let receiver = matches!(conn, Conn::Client(_)).then_some(&mut self.receiver);
        let result = socket.stream.read(receiver, &mut self.scratch, &mut self.plain);
        let now = self.clock.now();
        match result {
            Ok((0, ..)) => self.gone(conn),
            Ok((count, stamp, plain)) => {
                // Less than asked for is all there is, unless the end is still to be read.
                socket.readable = count == self.scratch.len() || socket.ends;
                if socket.readable {
                    self.ready.push(conn);
                }
                let bytes = if plain { &self.plain } else { &self.scratch[..count] };
                match conn {
                    _ if bytes.is_empty() => {}
                    Conn::Client(id) => {
                        let arrived = self.stamps.arrived(stamp, now, &self.clock);
                        self.hub.on_client(now, id, arrived, bytes);
                    }
                    Conn::Link(id) => self.hub.on_link(now, id, bytes),
                }
                if plain {
                    // Either side of TLS answers for itself, and a broker's greeting lets its client speak.
                    self.write(conn);
                }
            }
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock => socket.readable = false,
                io::ErrorKind::Interrupted => self.ready.push(conn),
                _ => self.gone(conn),
            },
        }
    }

    /// Writes what can be written.
    fn write(&mut self, conn: Conn) {
        let Some(socket) = self.sockets.get_mut(&conn) else { return };
        let Some(out) = self.hub.output(conn) else { return };
        let mut broken = false;
        let Socket { stream, writable, connecting, .. } = socket;
        while *writable
            && !*connecting
            && stream.may_write()
            && (!out.is_empty() || stream.wants_write())
        {
            match stream.write(out.bytes()) {
                Ok(0) if !out.is_empty() => break,
                Ok(count) => out.wrote(count),
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => *writable = false,
                    io::ErrorKind::Interrupted => {}
                    _ => {
                        broken = true;
                        break;
                    }
                },
            }
        }
        if broken {
            // What can still be read may say why.
            socket.ends = true;
            socket.readable = true;
            self.ready.push(conn);
            socket.writable = false;
        }
        self.hub.on_written(conn);
    }

    /// Does all that the hub wants.
    fn act(&mut self) {
        while let Some(todo) = self.hub.todo() {
            match todo {
                Todo::Open(id, broker) => self.open(id, broker),
                Todo::Close(conn, rest) => self.close(conn, rest),
                Todo::Read(id) => {
                    self.hub.on_resumed(self.clock.now(), id);
                    self.ready.push(Conn::Client(id));
                }
                Todo::Probe(broker) => self.probe(broker),
                Todo::Say(line) => (self.log)(&line),
            }
        }
    }

    fn open(&mut self, id: LinkId, broker: usize) {
        let conn = Conn::Link(id);
        let connect = |address| {
            let mut stream = TcpStream::connect(address)?;
            let interest = Interest::READABLE | Interest::WRITABLE;
            self.poll.registry().register(&mut stream, token(conn), interest)?;
            // Not every platform takes it before the connection is there.
            let _ = stream.set_nodelay(true);
            let address = &self.file.nats.brokers[broker];
            match &self.tls.brokers {
                Some(tls) if address.is_tls() => {
                    let name = tls::name(address).map_err(io::Error::other)?;
                    Stream::to_broker(stream, tls.clone(), name)
                }
                _ => Ok::<_, io::Error>(Stream::new(stream)),
            }
        };
        match self.addresses[broker].map(connect) {
            Some(Ok(stream)) => {
                let socket = Socket {
                    stream,
                    readable: false,
                    writable: false,
                    ends: false,
                    connecting: true,
                };
                self.sockets.insert(conn, socket);
            }
            _ => self.hub.on_link_gone(self.clock.now(), id),
        }
    }

    /// Ends a connection after its last bytes.
    fn close(&mut self, conn: Conn, rest: Vec<u8>) {
        let Some(Socket { stream, connecting, .. }) = self.sockets.remove(&conn) else { return };
        if connecting && rest.is_empty() {
            return;
        }
        let (Token(at), until) = (token(conn), self.clock.now() + LINGER);
        let (stream, rest) = stream.end(rest);
        self.closing.insert(at, Closing { stream, rest, until });
        self.finish(at);
    }

    /// Writes last bytes, then says so, and waits for the peer to end: closing at once would take what it has not read
    /// away from it.
    fn finish(&mut self, at: usize) {
        let Some(closing) = self.closing.get_mut(&at) else { return };
        let result = loop {
            if closing.rest.is_empty() {
                let _ = closing.stream.shutdown(Shutdown::Write);
                // What still comes is of no interest but for its end.
                match closing.stream.read(&mut self.scratch) {
                    Ok(0) => break Ok(()),
                    Ok(_) => continue,
                    Err(error) => break Err(error),
                }
            }
            match closing.stream.write(&closing.rest) {
                Ok(count) => drop(closing.rest.drain(..count)),
                Err(error) => break Err(error),
            }
        };
        let waits = |error: &io::Error| {
            matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::NotConnected)
        };
        if !result.as_ref().is_err_and(waits) {
            self.closing.remove(&at);
        }
    }

    fn gone(&mut self, conn: Conn) {
        self.sockets.remove(&conn);
        let now = self.clock.now();
        match conn {
            Conn::Client(id) => self.hub.on_client_gone(now, id),
            Conn::Link(id) => self.hub.on_link_gone(now, id),
        }
    }

    /// Names are looked up and servers waited for elsewhere.
    fn probe(&mut self, broker: usize) {
        let NatsConfig { brokers, broker_timeout, .. } = &self.file.nats;
        let (address, patience) = (brokers[broker].clone(), Duration::from(*broker_timeout));
        let (line, tls) = (self.line.clone(), self.tls.brokers.clone());
        let ask = move || {
            let found = probe::ask(&address, tls.as_ref(), patience);
            line.ask(Ask::Probed(broker, found));
        };
        if let Err(error) = thread::Builder::new().name("tidegate-probe".to_owned()).spawn(ask) {
            let why = Err(format!("cannot ask it: {error}"));
            self.hub.on_probe(self.clock.now(), broker, why);
        }
    }

    /// All of it, or nothing.
    fn reload(&mut self, now: Instant, file: Box<File>) -> Result<(), String> {
        let (tls, users) = (Tls::new(&file.nats)?, users::read(&file.nats)?);
        self.hub.reload(now, file.nats.clone())?;
        self.hub.set_users(users);
        (self.tls, self.file) = (tls, *file);
        Ok(())
    }

    /// Answers questions and takes news. Who asked and went away is not told.
    fn answer(&mut self) {
        while let Ok(ask) = self.inbox.try_recv() {
            let now = self.clock.now();
            match ask {
                Ask::State(to) => drop(to.send(self.hub.state(now))),
                Ask::Clients(to) => drop(to.send(self.hub.clients())),
                Ask::Metrics(to) => drop(to.send(self.hub.metrics(now))),
                Ask::Trace(topic, to) => drop(to.send(self.hub.trace(&topic))),
                Ask::Config(to) => drop(to.send(self.file.to_toml())),
                Ask::Move(id, broker, to) => {
                    drop(to.send(self.hub.move_publisher(now, id, broker)));
                }
                Ask::Reload(mut file, to) => {
                    // Sockets stay where they are, whatever the file says now.
                    (file.nats.listen, file.nats.admin) =
                        (self.file.nats.listen, self.file.nats.admin);
                    drop(to.send(self.reload(now, file)));
                }
                Ask::Probed(broker, found) => {
                    if let Ok((_, address)) = &found {
                        self.addresses[broker] = Some(*address);
                    }
                    self.hub.on_probe(now, broker, found.map(|(info, _)| info));
                }
                Ask::Stop => {
                    self.end = Some(match self.end {
                        None => now + self.file.nats.drain_timeout,
                        Some(_) => now,
                    });
                    self.listener = None;
                    self.hub.drain(now);
                }
            }
        }
    }
}
