//! A client's connection to a broker.

use std::collections::VecDeque;

use tidegate_core::{Instant, Span};

use super::buffer::Buffer;
use super::client::Client;
use super::{ClientId, Conn, Hub, LinkId, Todo};
use crate::wire::hello::Info;
use crate::wire::server::{self, Op};
use crate::wire::{Bounds, write};

/// What is read of brokers, which are trusted with more than clients: their INFO may be long, and their largest
/// payload is 64 MiB by nats-server's own bound.
const BOUNDS: Bounds = Bounds { line: 1 << 20, payload: 64 << 20 };
/// After so long without a word a broker is asked.
const SILENCE: Span = Span::from_secs(10);

/// One of them.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) client: ClientId,
    pub(super) broker: usize,
    pub(super) out: Buffer,
    /// What was read of an operation that is not all there.
    input: Vec<u8>,
    /// PINGs that were sent and not answered, in order.
    awaits: VecDeque<Await>,
    /// Messages sent.
    sent: u64,
    /// Of these, those before the last PING that was answered.
    confirmed: u64,
    /// What the broker complained of last.
    complaint: Option<Vec<u8>>,
    /// Whether the broker has taken the client for who it says it is.
    pub(super) known: bool,
    heard: Instant,
}

/// A PING.
#[derive(Debug)]
struct Await {
    why: Why,
    /// Messages sent before it.
    sent: u64,
    since: Instant,
}

/// What a PING was sent for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Why {
    /// To hear whether the credentials are right.
    Hello,
    /// For a PING of the client's own, by its number.
    Client(u64),
    /// To know that all that was published has been read.
    Flush(ClientId),
    /// To know that all that was delivered has been received, and all subscriptions stand.
    Fence(u64),
    /// The same before a broker is opened.
    Joining(usize),
    /// To know that what its client has subscribed to stands, before it publishes.
    Settled,
    /// To know what is not in doubt, and whether anybody is there.
    Doubt,
}

impl Link {
    /// Messages that were sent and may have been lost.
    pub(super) fn doubt(&self) -> u64 {
        self.sent - self.confirmed
    }
}

impl Hub {
    /// A connection to a broker is there.
    pub fn on_link_open(&mut self, now: Instant, id: LinkId) {
        if let Some(link) = self.links.get_mut(&id) {
            link.heard = now;
            self.dirty.insert(Conn::Link(id));
        }
    }

    /// A broker has sent something.
    pub fn on_link(&mut self, now: Instant, id: LinkId, bytes: &[u8]) {
        let Some(link) = self.links.get_mut(&id) else { return };
        link.heard = now;
        let mut kept = std::mem::take(&mut link.input);
        let rest = if kept.is_empty() {
            let used = self.act_on_link(now, id, bytes);
            bytes[used..].to_vec()
        } else {
            kept.extend_from_slice(bytes);
            let used = self.act_on_link(now, id, &kept);
            kept.drain(..used);
            kept
        };
        if let Some(link) = self.links.get_mut(&id) {
            link.input = rest;
        }
    }

    /// Acts on all operations that are there; how many bytes they were.
    fn act_on_link(&mut self, now: Instant, id: LinkId, bytes: &[u8]) -> usize {
        let mut at = 0;
        while let Some(broker) = self.links.get(&id).map(|link| link.broker) {
            match server::read(&bytes[at..], BOUNDS) {
                Ok(Some((op, used))) => {
                    at += used;
                    self.on_op(now, id, op);
                }
                Ok(None) => break,
                Err(fault) => {
                    let address = &self.brokers[broker].address;
                    self.say(format!("broker {address} sent what is not NATS: {fault}"));
                    self.drop_link(now, id);
                }
            }
        }
        at
    }

    /// A connection to a broker has ended, or never came to be.
    pub fn on_link_gone(&mut self, now: Instant, id: LinkId) {
        let Some(link) = self.links.remove(&id) else { return };
        self.dirty.remove(&Conn::Link(id));
        let doubt = link.doubt();
        self.totals.in_doubt += doubt;
        self.brokers[link.broker].in_doubt += doubt;
        if let Some(client) = self.clients.get_mut(&link.client) {
            client.links[link.broker] = None;
        }
        for awaited in link.awaits {
            self.on_answer(now, link.client, awaited.why, false);
        }
        if !self.clients.contains_key(&link.client) {
            return;
        }
        match link.complaint {
            // The broker has sent this client away; it is told why.
            Some(complaint) => {
                self.write(Conn::Client(link.client), |out| {
                    out.extend_from_slice(b"-ERR ");
                    out.extend_from_slice(&complaint);
                    out.extend_from_slice(b"\r\n");
                });
                self.close_client(now, link.client);
            }
            None => self.on_broker_lost(now, link.broker, link.client),
        }
    }

    /// Begins a connection in a client's name, with all it has subscribed to.
    pub(super) fn open_link(&mut self, now: Instant, client: ClientId, broker: usize) {
        let Some(of) = self.clients.get(&client) else { return };
        if of.links[broker].is_some() {
            return;
        }
        let mut out = Buffer::default();
        out.end().extend_from_slice(&of.connect_line());
        let id = self.new_id();
        let link = Link {
            client,
            broker,
            out,
            input: Vec::new(),
            awaits: VecDeque::new(),
            sent: 0,
            confirmed: 0,
            complaint: None,
            known: false,
            heard: now,
        };
        self.links.insert(id, link);
        self.ask(now, id, Why::Hello);
        let Some(of) = self.clients.get_mut(&client) else { return };
        of.links[broker] = Some(id);
        if let Some(link) = self.links.get_mut(&id) {
            of.subscribe_all(link.out.end());
        }
        self.todo.push_back(Todo::Open(id, broker));
    }

    /// Ends a connection of our own accord.
    pub(super) fn drop_link(&mut self, now: Instant, id: LinkId) {
        self.todo.push_back(Todo::Close(Conn::Link(id), Vec::new()));
        self.on_link_gone(now, id);
    }

    /// Ends a connection that nobody needs any more, after all that is to be written.
    pub(super) fn end_link(&mut self, now: Instant, id: LinkId) {
        let Some(link) = self.links.remove(&id) else { return };
        self.dirty.remove(&Conn::Link(id));
        self.todo.push_back(Todo::Close(Conn::Link(id), link.out.bytes().to_vec()));
        if let Some(client) = self.clients.get_mut(&link.client)
            && client.links[link.broker] == Some(id)
        {
            client.links[link.broker] = None;
        }
        for awaited in link.awaits {
            self.on_answer(now, link.client, awaited.why, true);
        }
    }

    /// Sends a message on.
    pub(super) fn send(&mut self, now: Instant, id: LinkId, message: impl FnOnce(&mut Vec<u8>)) {
        let Some(link) = self.links.get_mut(&id) else { return };
        message(link.out.end());
        link.sent += 1;
        self.totals.published += 1;
        self.brokers[link.broker].published += 1;
        self.dirty.insert(Conn::Link(id));
        if link.out.len() > self.config.pending {
            let address = &self.brokers[link.broker].address;
            let line = format!("broker {address} reads nothing: its connection is closed");
            self.say(line);
            self.drop_link(now, id);
        }
    }

    /// Sends a PING.
    pub(super) fn ask(&mut self, now: Instant, id: LinkId, why: Why) {
        if let Some(link) = self.links.get_mut(&id) {
            link.awaits.push_back(Await { why, sent: link.sent, since: now });
            link.out.end().extend_from_slice(b"PING\r\n");
            self.dirty.insert(Conn::Link(id));
        }
    }

    /// Drops links that do not answer, and asks others.
    pub(super) fn look_after_links(&mut self, now: Instant) {
        let late = |link: &Link| {
            let oldest = link.awaits.front().map(|awaited| awaited.since);
            oldest.is_some_and(|since| now.since(since) > self.config.broker_timeout)
        };
        let gone: Vec<LinkId> =
            self.links.iter().filter(|(_, link)| late(link)).map(|(id, _)| *id).collect();
        gone.into_iter().for_each(|id| self.drop_link(now, id));
        self.ask_doubtful(now);
    }

    /// Asks links that are silent, or of which something is in doubt.
    pub(super) fn ask_doubtful(&mut self, now: Instant) {
        let doubtful = |link: &Link| {
            link.awaits.is_empty() && (link.doubt() > 0 || now.since(link.heard) > SILENCE)
        };
        let asked: Vec<LinkId> =
            self.links.iter().filter(|(_, link)| doubtful(link)).map(|(id, _)| *id).collect();
        asked.into_iter().for_each(|id| self.ask(now, id, Why::Doubt));
    }

    fn on_op(&mut self, now: Instant, id: LinkId, op: Op<'_>) {
        let Some(link) = self.links.get_mut(&id) else { return };
        let (client, broker) = (link.client, link.broker);
        match op {
            Op::Message { id: subscription, raw, .. } => {
                self.deliver(now, client, subscription, raw);
            }
            Op::Ping => self.write(Conn::Link(id), |out| out.extend_from_slice(b"PONG\r\n")),
            Op::Pong => {
                let Some(awaited) = link.awaits.pop_front() else { return };
                link.confirmed = awaited.sent;
                link.known = true;
                self.on_answer(now, client, awaited.why, true);
            }
            Op::Ok => {}
            Op::Info(json) => {
                if let Ok(info) = Info::read(json) {
                    self.on_info(now, broker, info);
                }
            }
            Op::Error(text) => self.on_complaint(id, text),
        }
    }

    /// Complaints about one operation are passed on; after others the broker closes, and the client is told then.
    fn on_complaint(&mut self, id: LinkId, text: &[u8]) {
        let Some(link) = self.links.get_mut(&id) else { return };
        let lower = text.to_ascii_lowercase();
        let says = |what: &[u8]| lower.windows(what.len()).any(|at| at == what);
        if says(b"server shutdown") {
            return;
        }
        let goes_on = [
            &b"permissions violation"[..],
            b"invalid subject",
            b"invalid publish subject",
            b"maximum subscriptions",
        ];
        if goes_on.iter().any(|what| says(what)) {
            let (client, broker) = (link.client, link.broker);
            let home = self.clients.get(&client).and_then(|client| client.home);
            // Every broker says the same of a subscription: one word is enough.
            if home.is_some_and(|home| home != broker) {
                return;
            }
            let client = Conn::Client(client);
            return self.write(client, |out| {
                out.extend_from_slice(b"-ERR ");
                out.extend_from_slice(text);
                out.extend_from_slice(b"\r\n");
            });
        }
        link.complaint = Some(text.to_vec());
    }

    /// A PING was answered, or nobody waits for that any more; or it never will be, as its connection was lost.
    fn on_answer(&mut self, now: Instant, client: ClientId, why: Why, answered: bool) {
        match why {
            Why::Hello => self.on_hello(now, client),
            Why::Client(number) => self.on_client_answer(client, number),
            Why::Flush(client) => self.on_flushed(client),
            Why::Fence(fence) => self.on_fenced(now, fence),
            Why::Joining(broker) if answered => self.on_joined(now, broker, client),
            Why::Joining(_) => {}
            Why::Settled => self.on_settled(client),
            Why::Doubt => self.bury(now, client),
        }
    }

    /// Says to all links of a client what it has subscribed to, or no more.
    pub(super) fn tell_links(&mut self, client: ClientId, tell: impl Fn(&mut Vec<u8>)) {
        let links = self.clients.get(&client).map(Client::all_links).unwrap_or_default();
        for id in links {
            self.write(Conn::Link(id), &tell);
        }
    }

    /// Ends a subscription on all links.
    pub(super) fn unsubscribe_links(&mut self, client: ClientId, id: &[u8], max: Option<usize>) {
        self.tell_links(client, |out| write::unsubscribe(out, id, max));
    }
}
