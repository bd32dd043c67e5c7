//! A client: what it sends, what it is told.

use std::collections::{BTreeMap, VecDeque};

use serde_json::json;
use tidegate_core::share::Message;
use tidegate_core::{Instant, Rank};

use super::arrivals::Arrivals;
use super::broker::State;
use super::buffer::Buffer;
use super::link::Why;
use super::topic::Departure;
use super::{Buffered, ClientId, Conn, HIGH, Hub, LinkId, Todo};
use crate::wire::client::{self, Op};
use crate::wire::hello::Connect;
use crate::wire::nkey::UserKey;
use crate::wire::{Body, Fault, subject, write};

/// PINGs of ours without an answer after which a client is gone, as nats-server.
const UNANSWERED: u32 = 2;
/// PINGs of its own that may wait for brokers; with more it is not read.
const MOST_PINGS: usize = 1_024;

/// One of them.
#[derive(Debug)]
pub(super) struct Client {
    pub(super) out: Buffer,
    /// What was read and not yet acted upon, and when it arrived.
    input: Vec<u8>,
    arrivals: Arrivals,
    /// What it has to sign, if it has an nkey.
    nonce: String,
    phase: Phase,
    pub(super) connect: Connect,
    pub(super) rank: Rank,
    /// The broker that it publishes to.
    pub(super) home: Option<usize>,
    /// Whether it has ever published.
    pub(super) publishes: bool,
    /// Whether it has, to streams.
    pub(super) streams: bool,
    /// By broker.
    pub(super) links: Vec<Option<LinkId>>,
    pub(super) subscriptions: BTreeMap<Vec<u8>, Subscription>,
    /// PINGs that wait for brokers: from how many.
    pings: VecDeque<usize>,
    /// The number of the first of them.
    first_ping: u64,
    /// Why it is not read: it changes its home, or has none.
    pub(super) held: bool,
    /// Whether it has subscribed to something that is not known to stand at all brokers.
    unsettled: bool,
    /// The PING whose answer will say that it does.
    settled_by: Option<u64>,
    /// Links that were asked whether it does, because the client wants to publish; it is not read until they answer.
    asked: usize,
    since: Instant,
    heard: Instant,
    unanswered: u32,
    /// Messages refused since it was told, of the topic with this number.
    pub(super) refused: (u64, usize),
    pub(super) told: Option<Instant>,
}

/// How far it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// It has not said who it is.
    Greeted,
    /// Its home is being asked whether it is.
    Checked,
    /// It is.
    Known,
    /// It has gone, and something it sent still waits for tokens.
    Gone,
}

/// What it has subscribed to.
#[derive(Debug)]
pub(super) struct Subscription {
    pub(super) pattern: Vec<u8>,
    queue: Option<Vec<u8>>,
    /// After so many in all it is over.
    pub(super) max: Option<usize>,
    pub(super) delivered: usize,
}

impl Client {
    pub(super) fn name(&self) -> Option<&str> {
        self.connect.name.as_deref()
    }

    pub(super) fn user(&self) -> Option<&str> {
        self.connect.user.as_deref()
    }

    pub(super) fn protocol(&self) -> i64 {
        self.connect.protocol
    }

    /// With whom it is taken to send together: clients of one name are replicas of one service.
    pub(super) fn group(&self) -> &str {
        self.name().or(self.user()).unwrap_or_default()
    }

    pub(super) fn connect_line(&self) -> Vec<u8> {
        self.connect.line()
    }

    /// Whether its broker has taken it for who it says it is; also after it has gone.
    pub(super) fn is_known(&self) -> bool {
        matches!(self.phase, Phase::Known | Phase::Gone)
    }

    pub(super) fn is_checked(&self) -> bool {
        self.phase == Phase::Checked
    }

    pub(super) fn is_gone(&self) -> bool {
        self.phase == Phase::Gone
    }

    pub(super) fn subscribes(&self) -> bool {
        !self.subscriptions.is_empty()
    }

    pub(super) fn all_links(&self) -> Vec<LinkId> {
        self.links.iter().flatten().copied().collect()
    }

    /// All it has subscribed to, for a link that begins.
    pub(super) fn subscribe_all(&self, out: &mut Vec<u8>) {
        for (id, Subscription { pattern, queue, max, delivered }) in &self.subscriptions {
            write::subscribe(out, pattern, queue.as_deref(), id);
            if let Some(max) = max {
                write::unsubscribe(out, id, Some(max - delivered));
            }
        }
    }
}

impl Hub {
    /// Somebody has connected: its number, or what to tell it before it is closed. `nonce` is what nobody knew before.
    pub fn accept(&mut self, now: Instant, nonce: String) -> Result<ClientId, Buffered> {
        if self.draining || self.clients.len() >= self.config.connections {
            let mut out = Vec::new();
            write::error(&mut out, "maximum connections exceeded");
            return Err(out);
        }
        let id = self.new_id();
        let client = Client {
            out: Buffer::default(),
            input: Vec::new(),
            arrivals: Arrivals::default(),
            nonce,
            phase: Phase::Greeted,
            connect: Connect::default(),
            rank: Rank::UNRANKED,
            home: None,
            publishes: false,
            streams: false,
            links: vec![None; self.brokers.len()],
            subscriptions: BTreeMap::new(),
            pings: VecDeque::new(),
            first_ping: 0,
            held: false,
            unsettled: false,
            settled_by: None,
            asked: 0,
            since: now,
            heard: now,
            unanswered: 0,
            refused: (0, 0),
            told: None,
        };
        self.clients.insert(id, client);
        let greeting = self.greeting(id);
        self.write(Conn::Client(id), |out| out.extend_from_slice(&greeting));
        self.totals.accepted += 1;
        Ok(id)
    }

    /// Whether a client is to be read now.
    pub fn reads(&self, id: ClientId) -> bool {
        self.clients.get(&id).is_some_and(|client| self.listens(client))
    }

    /// A client has sent something, which the machine received at `arrived`.
    pub fn on_client(&mut self, now: Instant, id: ClientId, arrived: Instant, bytes: &[u8]) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        client.heard = now;
        client.unanswered = 0;
        client.arrivals.on_read(bytes.len(), arrived);
        if client.input.is_empty() {
            let used = self.act(now, id, bytes);
            let Some(client) = self.clients.get_mut(&id) else { return };
            client.input = bytes[used..].to_vec();
        } else {
            client.input.extend_from_slice(bytes);
            self.act_on_input(now, id);
        }
    }

    /// A client has gone. What waits of it for tokens is not forgotten: a program that publishes, flushes and ends
    /// has been told that all is well.
    pub fn on_client_gone(&mut self, now: Instant, id: ClientId) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        self.dirty.remove(&Conn::Client(id));
        client.out = Buffer::default();
        client.input = Vec::new();
        if client.is_known() {
            let subscriptions = std::mem::take(&mut client.subscriptions);
            for name in subscriptions.keys() {
                self.unsubscribe_links(id, name, None);
            }
        }
        for at in 0..self.brokers.len() {
            self.on_joined(now, at, id);
        }
        if let Some(client) = self.clients.get_mut(&id) {
            client.phase = Phase::Gone;
            for link in client.all_links() {
                if self.links.get(&link).is_some_and(|link| link.doubt() > 0) {
                    self.ask(now, link, Why::Doubt);
                }
            }
        }
        self.bury(now, id);
    }

    /// Forgets a client that has gone, once nothing waits of it and nothing is in doubt.
    pub(super) fn bury(&mut self, now: Instant, id: ClientId) {
        let Some(client) = self.clients.get(&id) else { return };
        if client.phase == Phase::Gone && self.is_over(id, client) {
            let links = client.all_links();
            if let Some(client) = self.clients.remove(&id) {
                self.leave_home(&client);
            }
            links.into_iter().for_each(|link| self.end_link(now, link));
        }
    }

    /// Ends a client after what it was told last.
    pub(super) fn close_client(&mut self, now: Instant, id: ClientId) {
        if let Some(client) = self.clients.get(&id) {
            let rest = client.out.bytes().to_vec();
            self.todo.push_back(Todo::Close(Conn::Client(id), rest));
            self.on_client_gone(now, id);
        }
    }

    /// Hands a message of a broker to a client.
    pub(super) fn deliver(&mut self, now: Instant, id: ClientId, subscription: &[u8], raw: &[u8]) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        let Some(known) = client.subscriptions.get_mut(subscription) else { return };
        known.delivered += 1;
        let over = known.max.is_some_and(|max| known.delivered >= max);
        client.out.end().extend_from_slice(raw);
        self.dirty.insert(Conn::Client(id));
        self.totals.delivered += 1;
        if over {
            client.subscriptions.remove(subscription);
            self.unsubscribe_links(id, subscription, None);
        }
        self.close_if_slow(now, id);
    }

    /// Closes a client that does not read, whatever it is that waits for it: messages, or answers to what it sends.
    fn close_if_slow(&mut self, now: Instant, id: ClientId) {
        let waits = self.clients.get(&id).map_or(0, |client| client.out.len());
        if waits > self.config.pending {
            self.totals.slow += 1;
            self.write(Conn::Client(id), |out| write::error(out, "Slow Consumer"));
            self.close_client(now, id);
        }
    }

    /// Its home has taken it for who it says it is.
    pub(super) fn on_hello(&mut self, now: Instant, id: ClientId) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        let link = client.home.and_then(|home| client.links[home]);
        let known = link.is_some_and(|link| self.links.get(&link).is_some_and(|link| link.known));
        if client.phase == Phase::Checked && known {
            client.phase = Phase::Known;
            self.act_on_input(now, id);
            self.todo.push_back(Todo::Read(id));
        }
    }

    /// One of its brokers has answered a PING of its own.
    pub(super) fn on_client_answer(&mut self, id: ClientId, number: u64) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        let full = client.pings.len() >= MOST_PINGS;
        let at = number.checked_sub(client.first_ping).map(|at| at as usize);
        if let Some(left) = at.and_then(|at| client.pings.get_mut(at)) {
            *left = left.saturating_sub(1);
        }
        while client.pings.front() == Some(&0) && !client.is_gone() {
            client.pings.pop_front();
            if client.settled_by == Some(client.first_ping) {
                client.unsettled = false;
            }
            client.first_ping += 1;
            client.out.end().extend_from_slice(b"PONG\r\n");
            self.dirty.insert(Conn::Client(id));
        }
        if full && client.pings.len() < MOST_PINGS {
            self.resume(id);
        }
    }

    /// A link has answered whether what its client has subscribed to stands.
    pub(super) fn on_settled(&mut self, id: ClientId) {
        if let Some(client) = self.clients.get_mut(&id) {
            client.asked = client.asked.saturating_sub(1);
            if client.asked == 0 {
                self.resume(id);
            }
        }
    }

    /// Whether a client may publish: what follows from its message may come back by any broker, so what it has
    /// subscribed to has to stand at all of them. At its home it does, for what one link carries keeps its order.
    pub(super) fn may_publish(&mut self, now: Instant, id: ClientId) -> bool {
        let Some(client) = self.clients.get_mut(&id) else { return false };
        if !std::mem::take(&mut client.unsettled) {
            return client.asked == 0;
        }
        let home = client.home.and_then(|home| client.links[home]);
        let others: Vec<LinkId> =
            client.all_links().into_iter().filter(|link| Some(*link) != home).collect();
        client.asked += others.len();
        let free = client.asked == 0;
        others.into_iter().for_each(|link| self.ask(now, link, Why::Settled));
        free
    }

    /// A message has got its token.
    pub(super) fn depart(&mut self, now: Instant, broker: usize, departure: Departure) {
        let Departure { client, bytes } = departure;
        if self.streams == Some(broker) && self.brokers[broker].state == State::Up {
            // To streams publishes also who does not live there.
            self.open_link(now, client, broker);
        }
        let link = self.clients.get(&client).and_then(|client| client.links[broker]);
        match link {
            Some(link) => self.send(now, link, |out| out.extend_from_slice(&bytes)),
            // A broker's link can end between two rounds: what had its token then was never sent.
            None => self.totals.abandoned += 1,
        }
        self.bury(now, client);
    }

    /// Reads on, if there is no reason left not to.
    pub(super) fn resume(&mut self, id: ClientId) {
        if self.reads(id) {
            self.todo.push_back(Todo::Read(id));
        }
    }

    /// Acts on what was read of a client before, and reads on.
    pub fn on_resumed(&mut self, now: Instant, id: ClientId) {
        self.act_on_input(now, id);
    }

    pub(super) fn look_after_clients(&mut self, now: Instant) {
        let (patience, interval) = (self.config.auth_timeout, self.config.ping_interval);
        let mut ended = Vec::new();
        let (mut told, mut gone) = (Vec::new(), Vec::new());
        for (id, client) in &mut self.clients {
            if client.is_gone() {
                gone.push(*id);
                continue;
            }
            if !client.is_known() {
                if now.since(client.since) > patience && client.phase == Phase::Greeted {
                    ended.push((*id, "Authentication Timeout"));
                }
            } else if now.since(client.heard) > interval {
                if client.unanswered >= UNANSWERED {
                    ended.push((*id, "Stale Connection"));
                } else {
                    client.unanswered += 1;
                    client.heard = now;
                    client.out.end().extend_from_slice(b"PING\r\n");
                    self.dirty.insert(Conn::Client(*id));
                }
            }
            if client.refused.0 > 0 {
                told.push(*id);
            }
        }
        for (id, why) in ended {
            self.write(Conn::Client(id), |out| write::error(out, why));
            self.close_client(now, id);
        }
        told.into_iter().for_each(|id| self.tell_refused(now, id));
        gone.into_iter().for_each(|id| self.bury(now, id));
    }

    fn listens(&self, client: &Client) -> bool {
        let full = |id: &LinkId| self.links.get(id).is_some_and(|link| link.out.len() > HIGH);
        matches!(client.phase, Phase::Greeted | Phase::Known)
            && !client.held
            && client.asked == 0
            && client.pings.len() < MOST_PINGS
            && !client.links.iter().flatten().any(full)
    }

    /// Acts on all operations that are there; how many bytes they were.
    fn act(&mut self, now: Instant, id: ClientId, bytes: &[u8]) -> usize {
        let bounds = self.bounds();
        let mut at = 0;
        while self.reads(id) {
            match client::read(&bytes[at..], bounds) {
                Ok(Some((op, used))) => {
                    let arrived = self.clients.get(&id).and_then(|client| client.arrivals.of(used));
                    let arrived = arrived.unwrap_or(now);
                    // A client that publishes and finds itself without a home says it again later.
                    if !self.on_client_op(now, id, arrived, op) {
                        break;
                    }
                    at += used;
                    if let Some(client) = self.clients.get_mut(&id) {
                        client.arrivals.on_used(used);
                    }
                    self.close_if_slow(now, id);
                }
                Ok(None) => break,
                Err(fault) => {
                    self.on_fault(now, id, fault);
                    break;
                }
            }
        }
        at
    }

    fn act_on_input(&mut self, now: Instant, id: ClientId) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        let mut input = std::mem::take(&mut client.input);
        let used = self.act(now, id, &input);
        if let Some(client) = self.clients.get_mut(&id) {
            input.drain(..used);
            client.input = input;
        }
    }

    fn on_fault(&mut self, now: Instant, id: ClientId, fault: Fault) {
        self.totals.faults += 1;
        self.write(Conn::Client(id), |out| write::error(out, &fault.to_string()));
        self.close_client(now, id);
    }

    /// False if it has to be said again.
    fn on_client_op(&mut self, now: Instant, id: ClientId, arrived: Instant, op: Op<'_>) -> bool {
        let phase = self.clients.get(&id).map(|client| client.phase);
        match (op, phase) {
            (Op::Connect(json), Some(Phase::Greeted)) => self.on_connect(now, id, json),
            (Op::Ping, Some(Phase::Greeted)) => {
                self.write(Conn::Client(id), |out| out.extend_from_slice(b"PONG\r\n"));
            }
            (Op::Pong, _) => {}
            (_, Some(Phase::Greeted)) => {
                self.write(Conn::Client(id), |out| write::error(out, "Authorization Violation"));
                self.close_client(now, id);
            }
            (Op::Connect(_), _) => self.on_fault(now, id, Fault::Unknown),
            (Op::Ping, _) => self.on_ping(now, id),
            (Op::Publish(body), _) => return self.on_publish(now, id, arrived, &body),
            (Op::Subscribe { pattern, queue, id: name }, _) => {
                self.on_subscribe(now, id, pattern, queue, name);
            }
            (Op::Unsubscribe { id: name, max }, _) => self.on_unsubscribe(id, name, max),
        }
        true
    }

    fn on_connect(&mut self, now: Instant, id: ClientId, json: &[u8]) {
        let Some(mut connect) = Connect::read(json) else {
            return self.on_fault(now, id, Fault::Unknown);
        };
        if !self.vouches(id, &mut connect) {
            self.write(Conn::Client(id), |out| write::error(out, "Authorization Violation"));
            return self.close_client(now, id);
        }
        let rank = self.config.rank(connect.name.as_deref(), connect.user.as_deref());
        let Some(client) = self.clients.get_mut(&id) else { return };
        (client.connect, client.rank, client.phase) = (connect, rank, Phase::Checked);
        self.acknowledge(id);
        self.check(now, id);
    }

    /// Whether a client's nkey, if it has one, has signed its nonce. Where no users are given, there is nothing to check.
    fn vouches(&self, id: ClientId, connect: &mut Connect) -> bool {
        let Some((nkey, signature)) = connect.nkey.clone().filter(|_| !self.users.is_empty())
        else {
            return true;
        };
        let Ok(key) = nkey.parse::<UserKey>() else { return false };
        let known = self.users.get(&key).zip(self.clients.get(&id));
        let Some((credentials, client)) = known else { return false };
        if !key.has_signed(client.nonce.as_bytes(), &signature) {
            return false;
        }
        connect.vouch(credentials.user.as_deref(), credentials.password.as_deref());
        true
    }

    /// Asks a broker whether a client is who it says it is.
    pub(super) fn check(&mut self, now: Instant, id: ClientId) {
        let Some(broker) = self.clients.get(&id).and_then(|client| self.place(client)) else {
            self.write(Conn::Client(id), |out| write::error(out, "no broker is reachable"));
            return self.close_client(now, id);
        };
        self.settle(id, broker);
        self.open_link(now, id, broker);
    }

    fn on_ping(&mut self, now: Instant, id: ClientId) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        let number = client.first_ping + client.pings.len() as u64;
        let links = client.all_links();
        client.pings.push_back(links.len() + 1);
        client.settled_by = Some(number);
        links.into_iter().for_each(|link| self.ask(now, link, Why::Client(number)));
        // And one that is answered by itself, should there be no link.
        self.on_client_answer(id, number);
    }

    fn on_publish(
        &mut self,
        now: Instant,
        id: ClientId,
        arrived: Instant,
        body: &Body<'_>,
    ) -> bool {
        if let Some(at) = self.streams_at(body.subject) {
            return self.publish_to_streams(now, id, arrived, body, at);
        }
        let Some(client) = self.clients.get(&id) else { return true };
        if !client.publishes {
            self.first_publish(now, id);
        }
        let Some(client) = self.clients.get(&id) else { return true };
        let home = client.home.and_then(|home| Some((home, client.links[home]?)));
        let Some((home, link)) = home else {
            self.find_home(now, id);
            return false;
        };
        let rank = client.rank;
        if !self.may_publish(now, id) {
            return false;
        }
        self.acknowledge(id);
        let topic = self.topics.find(body.subject);
        self.record(topic, id, arrived);
        let passes = topic.is_none_or(|topic| self.topics.list[topic].arrive(now, home, arrived));
        if passes {
            self.send(now, link, |out| write::publish(out, body));
            return true;
        }
        let Some(topic) = topic else { return true };
        let mut what = Vec::with_capacity(body.payload.len() + body.subject.len() + 64);
        write::publish(&mut what, body);
        let message = Message { arrived, bytes: what.len(), what };
        for (client, bytes) in self.topics.list[topic].wait(now, home, id, rank, message) {
            self.refuse(now, client, topic, &bytes);
        }
        // Whoever is first now may have its token before the one that was.
        self.serve(now, topic, home);
        true
    }

    /// Notes an arrival where that is wanted.
    pub(super) fn record(&mut self, topic: Option<usize>, id: ClientId, arrived: Instant) {
        let topic = topic.and_then(|topic| self.topics.list.get_mut(topic));
        if let Some(topic) = topic.filter(|topic| topic.config.record > 0)
            && let Some(client) = self.clients.get(&id)
        {
            topic.recording.add(topic.config.record, arrived, id, client.group());
        }
    }

    fn on_subscribe(
        &mut self,
        now: Instant,
        id: ClientId,
        pattern: &[u8],
        queue: Option<&[u8]>,
        name: &[u8],
    ) {
        let most = self.config.subscriptions;
        let Some(client) = self.clients.get_mut(&id) else { return };
        let wrong = if !subject::is_pattern(pattern) {
            Some("Invalid Subject")
        } else if client.subscriptions.len() >= most {
            Some("maximum subscriptions exceeded")
        } else {
            None
        };
        if let Some(wrong) = wrong {
            return self.write(Conn::Client(id), |out| write::error(out, wrong));
        }
        // As nats-server: the first of a name counts.
        if !client.subscriptions.contains_key(name) {
            self.tell_links(id, |out| write::subscribe(out, pattern, queue, name));
            let subscription = Subscription {
                pattern: pattern.to_vec(),
                queue: queue.map(<[u8]>::to_vec),
                max: None,
                delivered: 0,
            };
            if let Some(client) = self.clients.get_mut(&id) {
                client.subscriptions.insert(name.to_vec(), subscription);
                client.unsettled = true;
                client.settled_by = None;
            }
            for broker in self.reachable() {
                self.open_link(now, id, broker);
            }
        }
        self.acknowledge(id);
    }

    fn on_unsubscribe(&mut self, id: ClientId, name: &[u8], max: Option<usize>) {
        self.acknowledge(id);
        let Some(client) = self.clients.get_mut(&id) else { return };
        let Some(known) = client.subscriptions.get_mut(name) else { return };
        known.max = max.filter(|max| *max > known.delivered);
        let rest = known.max;
        if rest.is_none() {
            client.subscriptions.remove(name);
        }
        self.unsubscribe_links(id, name, rest);
    }

    pub(super) fn acknowledge(&mut self, id: ClientId) {
        if self.clients.get(&id).is_some_and(|client| client.connect.verbose) {
            self.write(Conn::Client(id), |out| out.extend_from_slice(b"+OK\r\n"));
        }
    }

    /// INFO for a client.
    pub(super) fn greeting(&self, id: ClientId) -> Vec<u8> {
        let info = self.common_info();
        let (host, port) = (self.config.listen.ip().to_string(), self.config.listen.port());
        let mut told = json!({
            "server_id": self.id, "server_name": "tidegate", "version": info.version, "proto": 1,
            "host": host, "port": port, "headers": info.headers, "client_id": id,
            "max_payload": info.max_payload,
        });
        if self.streams.is_some() {
            told["jetstream"] = json!(true);
        }
        if info.auth_required || !self.users.is_empty() {
            told["auth_required"] = json!(true);
        }
        if let Some(client) = self.clients.get(&id).filter(|_| !self.users.is_empty()) {
            told["nonce"] = json!(client.nonce);
        }
        if self.config.tls.cert_file.is_some() {
            told["tls_required"] = json!(true);
        }
        if self.draining {
            told["ldm"] = json!(true);
        }
        format!("INFO {told}\r\n").into_bytes()
    }
}
