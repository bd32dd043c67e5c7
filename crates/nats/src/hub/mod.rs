//! What the gate does, without a socket: bytes and moments go in, bytes and things to do come out.
//!
//! ```text
//!            one link per client and broker that it needs
//!  client ──► hub ──────────────► link to its home ──► broker 0      publishes there
//!         ◄──  │  ◄────────────── link             ──► broker 1      subscribed there too
//!              └─ topics: a queue and a bucket per broker
//! ```
//!
//! 1. **A client has one home**, the broker that everything it publishes goes to, so that its messages keep their
//!    order; and a link of its own to every broker once it subscribes, so that brokers see each client as it is:
//!    its credentials, permissions, queue groups and `no_echo` are theirs to judge, and hold.
//! 2. **A PONG is a promise**: a client's PING is answered when all its links have answered one. What it had subscribed to
//!    before then stands everywhere. Only messages that wait for tokens are not waited for.
//!    And what it publishes goes after what it has subscribed to stands everywhere: an answer may come by any broker.
//! 3. **A broker is open for publishers** when all subscriptions stand there (`broker`).
//! 4. **A home changes** without loss, doubles or disorder (`moves`).
//! 5. **A limited message** that finds no token waits (`topic`); then its publisher goes on being read.
//! 6. **What is for streams goes to the one broker that has them** (`streams`).
//! 7. **Nothing is sent twice.** What a broker had not confirmed by a PONG when it went is in doubt, and counted.
//!
//! A driver calls the methods named for what happened, then [`Hub::dispatch`] once, then does all that
//! [`Hub::todo`] says and writes what [`Hub::output`] holds.

mod agenda;
mod arrivals;
mod broker;
mod buffer;
mod client;
mod delays;
mod link;
mod moves;
mod recording;
mod refusals;
mod report;
mod streams;
mod topic;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use tidegate_core::{Instant, Span};

use crate::config::{NatsConfig, TopicConfig};
use crate::leases::Leases;
use crate::users::Users;
use crate::wire::Bounds;
use crate::wire::hello::Info;
use agenda::Agenda;
use broker::Broker;
use buffer::Buffer;
use client::Client;
use link::Link;
use moves::Moves;
use topic::{Topic, Topics};

/// A client, by a number that is never used again.
pub type ClientId = u64;
/// A connection to a broker, likewise.
pub type LinkId = u64;

/// A connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Conn {
    /// Of a client.
    Client(ClientId),
    /// To a broker.
    Link(LinkId),
}

/// What a driver is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Todo {
    /// Connect to a broker.
    Open(LinkId, usize),
    /// Write what is there if that is possible at once, then close.
    Close(Conn, Buffered),
    /// Read the client again: it was not to be read for a while.
    Read(ClientId),
    /// Find out whether a broker is there, and what it says of itself.
    Probe(usize),
    /// Tell the operator.
    Say(String),
}

/// Last bytes of a connection.
pub type Buffered = Vec<u8>;

/// How often is looked after what is seldom due.
const SELDOM: Span = Span::from_millis(1_000);
/// How often shares follow loads: as often as a history has steps.
const ADAPT: Span = Span::from_millis(100);
/// A link that has more to write than this stops its client from being read.
const HIGH: usize = 1 << 20;
/// And at this it is read again.
const LOW: usize = HIGH / 4;

/// All clients, links, brokers and topics.
#[derive(Debug)]
pub struct Hub {
    config: NatsConfig,
    /// Those whose nkeys are checked here.
    users: Users,
    /// The broker that has streams.
    streams: Option<usize>,
    /// What clients are told of the server that they are connected to, but for what differs from one to the next.
    id: String,
    clients: BTreeMap<ClientId, Client>,
    links: BTreeMap<LinkId, Link>,
    brokers: Vec<Broker>,
    topics: Topics,
    moves: Moves,
    next_id: u64,
    todo: VecDeque<Todo>,
    /// Connections that have something to write.
    dirty: BTreeSet<Conn>,
    /// When the heads of queues have their tokens.
    due: Agenda,
    seldom_at: Instant,
    adapt_at: Instant,
    draining: bool,
    totals: Totals,
}

/// What is counted of all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Totals {
    /// Clients ever accepted.
    accepted: u64,
    /// Messages published on.
    published: u64,
    /// Messages handed to subscribers.
    delivered: u64,
    /// Messages sent to a broker that went without confirming them.
    in_doubt: u64,
    /// Messages that never left: their client, or its last broker, was gone.
    abandoned: u64,
    /// Changes of a client's home.
    moves: u64,
    /// Clients closed because they did not read.
    slow: u64,
    /// Clients closed for what they sent.
    faults: u64,
}

impl Hub {
    /// A gate before these brokers, whose INFOs are known as far as they could be reached.
    pub fn new(
        now: Instant,
        config: NatsConfig,
        id: String,
        brokers: Vec<Result<Info, String>>,
    ) -> Self {
        let count = brokers.len();
        let streams = config.jetstream.as_ref();
        let streams_at =
            streams.and_then(|at| config.brokers.iter().position(|one| *one == at.broker));
        let topic = |topic: &TopicConfig| {
            let only = streams.filter(|at| at.takes(topic.subject.as_bytes())).and(streams_at);
            Topic::new(now, topic.clone(), (count, only), config.adaptor, config.history)
        };
        let topics = Topics::new(config.topics.iter().map(topic).collect());
        let mut hub = Self {
            brokers: config.brokers.iter().map(|at| Broker::new(at.to_string())).collect(),
            config,
            users: Users::new(),
            streams: streams_at,
            id,
            clients: BTreeMap::new(),
            links: BTreeMap::new(),
            topics,
            moves: Moves::default(),
            next_id: 0,
            todo: VecDeque::new(),
            dirty: BTreeSet::new(),
            due: Agenda::default(),
            seldom_at: now + SELDOM,
            adapt_at: now + ADAPT,
            draining: false,
            totals: Totals::default(),
        };
        for (at, answer) in brokers.into_iter().enumerate() {
            hub.on_probe(now, at, answer);
        }
        hub
    }

    /// Leases of topics that several gates share.
    pub(crate) fn leases(&self) -> Leases {
        Leases(self.topics.list.iter().filter_map(|topic| topic.lease.clone()).collect())
    }

    /// Whose nkeys are checked here, from now on.
    pub fn set_users(&mut self, users: Users) {
        self.users = users;
    }

    /// All inputs of a round are in: lets go what may go.
    pub fn dispatch(&mut self, now: Instant) {
        if now >= self.adapt_at {
            self.adapt_at = now + ADAPT;
            self.topics.list.iter_mut().for_each(|topic| topic.adapt(now));
            // Another share may be due earlier.
            self.due.hurry(now);
        }
        while let Some((topic, broker)) = self.due.take(now) {
            self.serve(now, topic, broker);
        }
        if now >= self.seldom_at {
            self.seldom_at = now + SELDOM;
            self.look_after_links(now);
            self.look_after_clients(now);
            self.look_after_brokers();
        }
        self.launch_fences(now);
    }

    /// When to dispatch again without an input.
    pub fn next_wakeup(&self) -> Instant {
        self.due.first().min(self.seldom_at).min(self.adapt_at)
    }

    /// The next thing to do.
    pub fn todo(&mut self) -> Option<Todo> {
        self.todo.pop_front()
    }

    /// The next connection that has something to write.
    pub fn dirty(&mut self) -> Option<Conn> {
        self.dirty.pop_first()
    }

    /// What it has to write, if it is there.
    pub fn output(&mut self, conn: Conn) -> Option<&mut Buffer> {
        match conn {
            Conn::Client(id) => {
                let client = self.clients.get_mut(&id).filter(|client| !client.is_gone());
                client.map(|client| &mut client.out)
            }
            Conn::Link(id) => self.links.get_mut(&id).map(|link| &mut link.out),
        }
    }

    /// Some of it was written.
    pub fn on_written(&mut self, conn: Conn) {
        if let Conn::Link(id) = conn
            && let Some(link) = self.links.get(&id)
            && link.out.len() <= LOW
        {
            self.resume(link.client);
        }
    }

    /// Another configuration: topics, importance and bounds.
    pub fn reload(&mut self, now: Instant, config: NatsConfig) -> Result<(), String> {
        if config.brokers != self.config.brokers {
            return Err("brokers cannot be changed while the gate runs".to_owned());
        }
        if config.jetstream != self.config.jetstream {
            return Err("jetstream cannot be changed while the gate runs".to_owned());
        }
        let fixed = |topics: &[_]| topics.iter().map(subject_of).collect::<Vec<_>>();
        if fixed(&config.topics) != fixed(&self.config.topics) {
            return Err("subjects of topics cannot be changed while the gate runs".to_owned());
        }
        let leased =
            |topics: &[TopicConfig]| topics.iter().map(TopicConfig::leased).collect::<Vec<_>>();
        if leased(&config.topics) != leased(&self.config.topics) {
            let what = "where agreements of topics are kept cannot be changed while the gate runs";
            return Err(what.to_owned());
        }
        for (topic, new) in self.topics.list.iter_mut().zip(&config.topics) {
            topic.change(now, new.clone());
        }
        for client in self.clients.values_mut() {
            client.rank = config.rank(client.name(), client.user());
        }
        self.config = config;
        Ok(())
    }

    /// Nobody new is to come: clients are told to go elsewhere.
    pub fn drain(&mut self, now: Instant) {
        self.draining = true;
        for id in self.clients.keys().copied().collect::<Vec<_>>() {
            let info = self.greeting(id);
            if self.clients[&id].protocol() >= 1 {
                self.write(Conn::Client(id), |out| out.extend_from_slice(&info));
            }
        }
        // So that what is not in doubt is known soon.
        self.ask_doubtful(now);
    }

    /// Whether nothing waits for tokens, and all that was sent to brokers is known to have been read.
    pub fn is_drained(&self) -> bool {
        let waits = |topic: &Topic| (0..self.brokers.len()).any(|at| topic.waiting(at) > 0);
        !self.topics.list.iter().any(waits)
            && self.moves.count() == 0
            && self.clients.values().all(|client| client.out.is_empty())
            && self.links.values().all(|link| link.doubt() == 0 && link.out.is_empty())
    }

    /// Lets go what has its token for one broker, and notes when the next has.
    fn serve(&mut self, now: Instant, topic: usize, broker: usize) {
        loop {
            match self.topics.list[topic].next(now, broker) {
                Ok(Some(departure)) => self.depart(now, broker, departure),
                Ok(None) => {
                    self.due.clear((topic, broker));
                    return;
                }
                Err(due) => {
                    self.due.set((topic, broker), due);
                    return;
                }
            }
        }
    }

    /// Appends to what a connection has to write.
    fn write(&mut self, conn: Conn, bytes: impl FnOnce(&mut Vec<u8>)) {
        if let Some(out) = self.output(conn) {
            bytes(out.end());
            self.dirty.insert(conn);
        }
    }

    fn new_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    fn say(&mut self, line: String) {
        self.todo.push_back(Todo::Say(line));
    }

    /// What clients may send.
    fn bounds(&self) -> Bounds {
        Bounds { line: self.config.control_line, payload: self.max_payload() }
    }
}

fn subject_of(topic: &TopicConfig) -> String {
    topic.subject.clone()
}
