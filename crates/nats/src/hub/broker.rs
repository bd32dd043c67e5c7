//! Brokers: which are there, and which of them a client publishes to.
//!
//! 1. A broker is *down* until a probe has heard a fit INFO of it.
//! 2. It is *joining* until every subscription of every client stands there: what is published there then reaches
//!    whom it would have reached elsewhere.
//! 3. It is *up* until a probe fails. A connection that is lost causes a probe, and only what the probe finds
//!    decides: one lost connection is no lost broker.
//! 4. A broker in lame duck takes no new publishers, and gives up those it has.
//!
//! Publishers are placed one by one as they first publish: on the broker with fewest of their group, so that those who
//! send together are cut as buckets are (SRTM §IV-C), and of equals on the one with fewest in all (max-min).

use std::collections::{BTreeMap, BTreeSet};

use tidegate_core::Instant;

use super::client::Client;
use super::link::Why;
use super::{ClientId, Hub, Todo};
use crate::wire::hello::Info;

/// One of them.
#[derive(Debug)]
pub(super) struct Broker {
    pub(super) address: String,
    pub(super) state: State,
    info: Option<Info>,
    /// Whether it asks its clients to go.
    pub(super) leaving: bool,
    probing: bool,
    /// Clients whose subscriptions are not known to stand there, while it joins.
    joining: BTreeSet<ClientId>,
    /// Publishers by group.
    groups: BTreeMap<String, usize>,
    pub(super) publishers: usize,
    /// Clients that would publish here.
    homes: usize,
    pub(super) published: u64,
    pub(super) in_doubt: u64,
}

/// How far it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Why.
    Down(String),
    Joining,
    Up,
}

impl Broker {
    pub(super) fn new(address: String) -> Self {
        Self {
            address,
            state: State::Down("it was not asked yet".to_owned()),
            info: None,
            leaving: false,
            probing: false,
            joining: BTreeSet::new(),
            groups: BTreeMap::new(),
            publishers: 0,
            homes: 0,
            published: 0,
            in_doubt: 0,
        }
    }
}

impl Hub {
    /// What a probe of a broker found.
    pub fn on_probe(&mut self, now: Instant, at: usize, answer: Result<Info, String>) {
        self.brokers[at].probing = false;
        let tls = self.config.brokers[at].is_tls();
        let fit = answer.and_then(|info| info.unfit(tls).map_or(Ok(info), Err));
        let address = self.brokers[at].address.clone();
        match fit {
            Ok(info) => {
                self.brokers[at].leaving = info.ldm;
                self.brokers[at].info = Some(info);
                if matches!(self.brokers[at].state, State::Down(_)) {
                    self.say(format!("broker {address} is there"));
                    self.brokers[at].state = State::Joining;
                }
            }
            Err(why) => {
                let down = State::Down(why.clone());
                if self.brokers[at].state != down {
                    self.say(format!("broker {address} is not used: {why}"));
                    self.brokers[at].state = down;
                    self.topics.list.iter_mut().for_each(|topic| topic.open(now, at, false));
                    self.give_up_streams(now, at);
                }
            }
        }
        if !matches!(self.brokers[at].state, State::Down(_)) {
            self.subscribe_everybody(now, at);
        }
        self.find_homes(now, at);
    }

    /// A connection to a broker was lost: is it there? What waits of a client that lives there waits no longer there, for
    /// a token would send it nowhere.
    pub(super) fn on_broker_lost(&mut self, now: Instant, at: usize, id: ClientId) {
        if let Some(client) = self.clients.get(&id)
            && client.home == Some(at)
            && client.is_known()
            && !self.moves.has(id)
        {
            self.begin_move(now, id, None);
        }
        self.probe(at);
    }

    /// A broker says something new of itself.
    pub(super) fn on_info(&mut self, now: Instant, at: usize, info: Info) {
        if let Some(why) = info.unfit(self.config.brokers[at].is_tls()) {
            return self.on_probe(now, at, Err(why));
        }
        let leaves = info.ldm && !self.brokers[at].leaving;
        self.brokers[at].leaving = info.ldm;
        self.brokers[at].info = Some(info);
        if leaves {
            let line =
                format!("broker {} is in lame duck: its publishers move", self.brokers[at].address);
            self.say(line);
            for id in self.clients_at(at) {
                self.move_away(now, id);
            }
        }
    }

    /// Subscriptions of one more client stand, or nobody asks for them any more. A connection that was lost is neither: it is
    /// made again if the broker is there.
    pub(super) fn on_joined(&mut self, now: Instant, at: usize, id: ClientId) {
        if self.brokers[at].joining.remove(&id) {
            self.open_if_joined(now, at);
        }
    }

    pub(super) fn look_after_brokers(&mut self) {
        for at in 0..self.brokers.len() {
            if matches!(self.brokers[at].state, State::Down(_)) {
                self.probe(at);
            }
        }
    }

    /// Brokers that subscriptions are to stand at.
    pub(super) fn reachable(&self) -> Vec<usize> {
        let there = |at: &usize| !matches!(self.brokers[*at].state, State::Down(_));
        (0..self.brokers.len()).filter(there).collect()
    }

    /// Where a client is to publish; none if there is no broker.
    pub(super) fn place(&self, client: &Client) -> Option<usize> {
        let open = |at: &usize| {
            let broker = &self.brokers[*at];
            broker.state == State::Up && !broker.leaving
        };
        let load = |at: &usize| {
            let broker = &self.brokers[*at];
            // Itself it does not count.
            let own = usize::from(client.publishes && client.home == Some(*at));
            let group = broker.groups.get(client.group()).copied().unwrap_or(0);
            (group - own.min(group), broker.publishers - own.min(broker.publishers), broker.homes)
        };
        (0..self.brokers.len()).filter(open).min_by_key(load)
    }

    /// A client lives at a broker from now on.
    pub(super) fn settle(&mut self, id: ClientId, at: usize) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        client.home = Some(at);
        let broker = &mut self.brokers[at];
        broker.homes += 1;
        if client.publishes {
            broker.publishers += 1;
            *broker.groups.entry(client.group().to_owned()).or_default() += 1;
        }
    }

    /// And from now on it does not.
    pub(super) fn leave_home(&mut self, client: &Client) {
        let Some(at) = client.home else { return };
        let broker = &mut self.brokers[at];
        broker.homes -= 1;
        if client.publishes {
            broker.publishers -= 1;
            if let Some(count) = broker.groups.get_mut(client.group()) {
                *count -= 1;
                if *count == 0 {
                    broker.groups.remove(client.group());
                }
            }
        }
    }

    /// A client publishes for the first time: nothing of it has an order yet, so it may go where it fits best.
    pub(super) fn first_publish(&mut self, now: Instant, id: ClientId) {
        let Some(mut client) = self.clients.remove(&id) else { return };
        self.leave_home(&client);
        client.publishes = true;
        let old = client.home;
        let best = self.place(&client).or(old);
        let idle = old.filter(|old| Some(*old) != best && !self.needs(&client, *old));
        let idle = idle.and_then(|old| client.links[old].take());
        self.clients.insert(id, client);
        if let Some(best) = best {
            self.settle(id, best);
            self.open_link(now, id, best);
        }
        idle.into_iter().for_each(|link| self.end_link(now, link));
    }

    /// Whether a client needs its link to a broker also where it does not live.
    pub(super) fn needs(&self, client: &Client, at: usize) -> bool {
        client.subscribes() || (client.streams && self.streams == Some(at))
    }

    /// Clients that publish to a broker.
    pub(super) fn clients_at(&self, at: usize) -> Vec<ClientId> {
        let here = |client: &Client| client.home == Some(at) && client.publishes;
        self.clients.iter().filter(|(_, client)| here(client)).map(|(id, _)| *id).collect()
    }

    /// Largest payload that all brokers take.
    pub(super) fn max_payload(&self) -> usize {
        let known = self.brokers.iter().filter_map(|broker| broker.info.as_ref());
        known.map(|info| info.max_payload).min().unwrap_or(0) as usize
    }

    /// What is true of all brokers that were ever heard of.
    pub(super) fn common_info(&self) -> Info {
        let mut known = self.brokers.iter().filter_map(|broker| broker.info.as_ref());
        let Some(first) = known.next() else { return Info::default() };
        known.fold(first.clone(), |common, info| Info {
            max_payload: common.max_payload.min(info.max_payload),
            headers: common.headers && info.headers,
            auth_required: common.auth_required || info.auth_required,
            ..common
        })
    }

    fn probe(&mut self, at: usize) {
        if !std::mem::replace(&mut self.brokers[at].probing, true) {
            self.todo.push_back(Todo::Probe(at));
        }
    }

    /// Opens what links are missing, and the broker when all that is subscribed to stands there.
    fn subscribe_everybody(&mut self, now: Instant, at: usize) {
        let subscribes = |client: &Client| client.subscribes() && client.is_known();
        let all: Vec<ClientId> =
            self.clients.iter().filter(|(_, at)| subscribes(at)).map(|(id, _)| *id).collect();
        for id in &all {
            self.open_link(now, *id, at);
        }
        if self.brokers[at].state == State::Joining {
            let links: Vec<_> = all.iter().filter_map(|id| self.clients[id].links[at]).collect();
            self.brokers[at].joining = all.into_iter().collect();
            links.into_iter().for_each(|link| self.ask(now, link, Why::Joining(at)));
            self.open_if_joined(now, at);
        }
    }

    fn open_if_joined(&mut self, now: Instant, at: usize) {
        if self.brokers[at].state == State::Joining && self.brokers[at].joining.is_empty() {
            self.brokers[at].state = State::Up;
            self.topics.list.iter_mut().for_each(|topic| topic.open(now, at, true));
            self.find_homes(now, at);
        }
    }

    /// After news of a broker: whoever lives there without a link, and whoever lives nowhere.
    fn find_homes(&mut self, now: Instant, at: usize) {
        let homeless: Vec<ClientId> = self
            .clients
            .iter()
            .filter(|(_, client)| match client.home {
                Some(home) => home == at && client.links[home].is_none(),
                None => true,
            })
            .map(|(id, _)| *id)
            .collect();
        for id in homeless {
            self.find_home(now, id);
        }
        self.retry_moves(now);
    }
}
