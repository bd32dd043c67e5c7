//! Moving a publisher from one broker to another, while it publishes.
//!
//! What it sends next must not overtake what it sent before, at any subscriber; none of it may be lost or come
//! twice. The publisher hears nothing of it.
//!
//! 1. It is no longer read, and what waits of it for tokens is taken out of the old broker's queues.
//! 2. *Flush*: a PING on its old link. The PONG says that the broker has read all it sent, and nats-server has then
//!    put each message into the output of every subscriber.
//! 3. *Fence*: a PING on each link of a subscriber to the old broker. That PONG stands behind those messages, so
//!    they have been received, and written for the subscriber before anything else. And one on each link to the
//!    new broker: the subscriptions that a subscriber has made there are known to stand.
//! 4. What was taken out is put in at the new broker, and the publisher is read again.
//!
//! A link that ends answers nothing, and brings nothing either: it counts as answered. So a publisher moves away
//! from a dead broker in the same way, without a flush; what was not confirmed there is in doubt and never sent
//! again. Moves that wait for a fence between the same two brokers share one.

use std::collections::BTreeMap;

use tidegate_core::Instant;
use tidegate_core::share::Message;

use super::broker::State;
use super::client::Client;
use super::link::Why;
use super::topic::Topic;
use super::{ClientId, Hub, LinkId};

/// Moves under way.
#[derive(Debug, Default)]
pub(super) struct Moves {
    list: BTreeMap<ClientId, Move>,
    /// Those that are flushed, by the brokers between which they need a fence.
    flushed: BTreeMap<(usize, usize), Vec<ClientId>>,
    fences: BTreeMap<u64, Fence>,
}

#[derive(Debug)]
struct Move {
    from: usize,
    /// None while there is no broker to go to.
    to: Option<usize>,
    /// What waited for tokens, by topic.
    held: Vec<(usize, Message<Vec<u8>>)>,
}

#[derive(Debug)]
struct Fence {
    between: (usize, usize),
    left: usize,
    clients: Vec<ClientId>,
}

impl Moves {
    /// Whether a client is on its way.
    pub(super) fn has(&self, id: ClientId) -> bool {
        self.list.contains_key(&id)
    }

    /// How many are on their way.
    pub(super) fn count(&self) -> usize {
        self.list.len()
    }
}

impl Hub {
    /// Moves a publisher to another broker.
    pub fn move_publisher(&mut self, now: Instant, id: ClientId, to: usize) -> Result<(), String> {
        let broker = self.brokers.get(to).ok_or_else(|| {
            format!(
                "there is no broker {to}: they have the numbers 0 to {}",
                self.brokers.len() - 1
            )
        })?;
        if broker.state != State::Up || broker.leaving {
            return Err(format!("broker {to} ({}) is not up", broker.address));
        }
        let client = self.clients.get(&id).filter(|client| client.is_known());
        let client = client.ok_or_else(|| format!("there is no client {id}"))?;
        if self.moves.has(id) {
            return Err(format!("client {id} is on its way to another broker already"));
        }
        match client.home {
            Some(home) if home == to => Ok(()),
            Some(_) => {
                self.begin_move(now, id, Some(to));
                Ok(())
            }
            None => Err(format!("client {id} has no broker at the moment")),
        }
    }

    /// Moves a publisher to wherever it fits best.
    pub(super) fn move_away(&mut self, now: Instant, id: ClientId) {
        let Some(client) = self.clients.get(&id) else { return };
        let to = self.place(client);
        if to.is_some() && to != client.home && !self.moves.has(id) {
            self.begin_move(now, id, to);
        }
    }

    /// A client lives nowhere, or without a link to its home.
    pub(super) fn find_home(&mut self, now: Instant, id: ClientId) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        if self.moves.has(id) {
            return;
        }
        if !client.is_known() {
            if client.is_checked() {
                self.unsettle(id);
                self.check(now, id);
            }
            return;
        }
        client.held = true;
        let to = self.place(&self.clients[&id]);
        self.begin_move(now, id, to);
    }

    /// A publisher's link has been flushed, or has ended.
    pub(super) fn on_flushed(&mut self, id: ClientId) {
        let Some(Move { from, to: Some(to), .. }) = self.moves.list.get(&id) else { return };
        self.moves.flushed.entry((*from, *to)).or_default().push(id);
    }

    /// A subscriber's link has answered, or has ended.
    pub(super) fn on_fenced(&mut self, now: Instant, fence: u64) {
        let Some(one) = self.moves.fences.get_mut(&fence) else { return };
        one.left = one.left.saturating_sub(1);
        if one.left == 0
            && let Some(fence) = self.moves.fences.remove(&fence)
        {
            fence.clients.into_iter().for_each(|id| self.finish_move(now, id));
        }
    }

    /// Asks all that have to be asked, for all that wait for it; one fence at a time between two brokers.
    pub(super) fn launch_fences(&mut self, now: Instant) {
        let under_way =
            |pair: &(usize, usize)| self.moves.fences.values().any(|at| at.between == *pair);
        let ready: Vec<(usize, usize)> =
            self.moves.flushed.keys().filter(|pair| !under_way(pair)).copied().collect();
        for between in ready {
            let clients = self.moves.flushed.remove(&between).unwrap_or_default();
            let mut links: Vec<LinkId> =
                clients.iter().filter_map(|id| self.clients.get(id)?.links[between.1]).collect();
            for client in self.clients.values().filter(|client| client.subscribes()) {
                links.extend([between.0, between.1].iter().filter_map(|at| client.links[*at]));
            }
            links.sort_unstable();
            links.dedup();
            let fence = self.new_id();
            // One more, that is answered here: there may be no link.
            let left = links.len() + 1;
            self.moves.fences.insert(fence, Fence { between, left, clients });
            links.into_iter().for_each(|link| self.ask(now, link, Why::Fence(fence)));
            self.on_fenced(now, fence);
        }
    }

    /// Moves that had nowhere to go try again.
    pub(super) fn retry_moves(&mut self, now: Instant) {
        let stuck = |(id, one): (&ClientId, &Move)| one.to.is_none().then_some(*id);
        for id in self.moves.list.iter().filter_map(stuck).collect::<Vec<_>>() {
            let to = self.clients.get(&id).and_then(|client| self.place(client));
            self.aim(now, id, to);
        }
    }

    /// How many messages of a client are on their way with it.
    pub(super) fn held(&self, id: ClientId) -> usize {
        self.moves.list.get(&id).map_or(0, |one| one.held.len())
    }

    /// Steps 1 and 2. Without a broker to go to it waits for one.
    pub(super) fn begin_move(&mut self, now: Instant, id: ClientId, to: Option<usize>) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        client.held = true;
        // Whoever lives nowhere comes from where it goes.
        let Some(from) = client.home.or(to) else {
            return;
        };
        let link = client.links[from];
        let mut held = Vec::new();
        let moving = |topic: &&mut Topic| topic.only.is_none();
        for (at, topic) in self.topics.list.iter_mut().enumerate().filter(|at| moving(&at.1)) {
            held.extend(topic.withdraw(from, id).map(|message| (at, message)));
        }
        self.moves.list.insert(id, Move { from, to: None, held });
        match link {
            Some(link) if Some(from) != to => {
                // Where to is said first: an answer without it would be lost.
                self.name_target(now, id, to);
                self.ask(now, link, Why::Flush(id));
            }
            _ => self.aim(now, id, to),
        }
    }

    fn name_target(&mut self, now: Instant, id: ClientId, to: Option<usize>) {
        if let (Some(one), Some(to)) = (self.moves.list.get_mut(&id), to) {
            one.to = Some(to);
            self.open_link(now, id, to);
        }
    }

    /// The flushed move of a client goes to this broker.
    fn aim(&mut self, now: Instant, id: ClientId, to: Option<usize>) {
        self.name_target(now, id, to);
        self.on_flushed(id);
    }

    fn finish_move(&mut self, now: Instant, id: ClientId) {
        let Some(one) = self.moves.list.get(&id) else { return };
        let (from, Some(to)) = (one.from, one.to) else { return };
        let Some(client) = self.clients.get(&id) else {
            self.moves.list.remove(&id);
            return;
        };
        if self.brokers[to].state != State::Up || client.links[to].is_none() {
            // Gone meanwhile. The fence is needed again: somebody may have subscribed since.
            let again = self.place(client);
            if let Some(one) = self.moves.list.get_mut(&id) {
                one.to = None;
            }
            return self.aim(now, id, again);
        }
        let Some(Move { held, .. }) = self.moves.list.remove(&id) else { return };
        self.unsettle(id);
        self.settle(id, to);
        let leaves = from != to && self.clients.get(&id).is_some_and(|at| !self.needs(at, from));
        let Some(client) = self.clients.get_mut(&id) else { return };
        client.held = false;
        let rank = client.rank;
        let idle = leaves.then(|| client.links[from].take()).flatten();
        for (topic, message) in held {
            self.topics.list[topic].restore(to, id, rank, message);
            self.due.set((topic, to), now);
        }
        idle.into_iter().for_each(|link| self.end_link(now, link));
        self.totals.moves += 1;
        self.resume(id);
    }

    /// A client lives nowhere.
    fn unsettle(&mut self, id: ClientId) {
        if let Some(mut client) = self.clients.remove(&id) {
            self.leave_home(&client);
            client.home = None;
            self.clients.insert(id, client);
        }
    }

    /// Whether nothing of a client waits for tokens any more, and its brokers have read all it sent.
    pub(super) fn is_over(&self, id: ClientId, client: &Client) -> bool {
        let waits = |home: usize| self.topics.list.iter().any(|topic| topic.has(home, id));
        let doubtful = |id: &LinkId| self.links.get(id).is_some_and(|link| link.doubt() > 0);
        !client.home.into_iter().chain(self.streams).any(waits)
            && !client.links.iter().flatten().any(doubtful)
            && self.held(id) == 0
    }
}
