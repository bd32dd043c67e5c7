//! What everything in a run shares: time, the network, and the book of what happened.

use std::collections::VecDeque;

use tidegate_core::{CallerId, Instant, RequestId};

use crate::client::Ended;
use crate::engine::Engine;
use crate::measure::{Fact, Measure};
use crate::network::{Body, MessageId, Messages, Network, Reply};
use crate::told::Told;

/// Something that happens.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Event {
    /// The next request of an open loop is submitted.
    Offer { source: u16 },
    /// A caller of a closed loop submits its next request.
    Again { client: u32 },
    /// A message reaches a node, as a request.
    ToNode { message: MessageId },
    /// A message reaches a client, or the node it belongs to.
    ToClient { message: MessageId },
    /// A core is done, unless its node has crashed meanwhile.
    Core { node: u32, core: u16, life: u16 },
    /// A request has held its thread for long enough, unless its node has crashed meanwhile.
    Held { node: u32, request: RequestId, life: u16 },
    /// A gate's wake-up.
    Gate { node: u32 },
    /// A node's utilization is sampled.
    Sample { node: u32 },
    /// A caller's wake-up.
    Client { client: u32 },
    /// An attempt may have been under way for too long.
    Timeout { client: u32, call: RequestId },
    /// Demand changes, and the yardstick knows.
    Change,
    /// A fault begins or ends.
    Fault { fault: u16, begins: bool },
}

/// Time, network, book, and what a client wants its owner to do.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) engine: Engine<Event>,
    pub(crate) messages: Messages,
    pub(crate) measure: Measure,
    pub(crate) network: Network,
    /// Messages of the client that acted last, for its owner to send.
    pub(crate) outgoing: VecDeque<MessageId>,
    /// Its calls that have ended, for its owner to deal with.
    pub(crate) ended: VecDeque<Ended>,
    /// Attempts of which nothing is under way any more, by client and call: the message that carried
    /// them was lost. Nobody is told, but `ideal` knows.
    pub(crate) lost: Vec<(u32, RequestId, u8)>,
    /// What the callers of the yardstick `told` were told.
    pub(crate) told: Option<Told>,
    /// Which client has which id, sorted by id.
    pub(crate) ids: Vec<(CallerId, u32)>,
}

impl Shared {
    pub(crate) fn now(&self) -> Instant {
        self.engine.now()
    }

    pub(crate) fn count(&mut self, fact: Fact) {
        self.measure.count(self.engine.now(), fact);
    }

    pub(crate) fn count_at(&mut self, service: usize, fact: Fact) {
        self.measure.count_at(self.engine.now(), service, fact);
    }

    pub(crate) fn launch_to_node(&mut self, message: MessageId) {
        self.launch(message, Event::ToNode { message });
    }

    pub(crate) fn launch_to_client(&mut self, message: MessageId) {
        self.launch(message, Event::ToClient { message });
    }

    fn launch(&mut self, message: MessageId, arrival: Event) {
        let (client, node) = {
            let message = self.messages.get(message);
            (message.client, message.node)
        };
        match self.network.next(client, node) {
            Some(delay) => self.engine.after(delay, arrival),
            None => self.lose(message),
        }
    }

    /// A message is lost, with all that it carries.
    pub(crate) fn lose(&mut self, message: MessageId) {
        let gone = self.messages.get(message);
        if let Body::Request { call, context, .. } = gone.body {
            self.lost.push((gone.client, call, context.attempt));
        }
        let attempt = |reply: &Reply| (gone.client, reply.call, reply.attempt);
        self.lost.extend(gone.replies.iter().map(attempt));
        self.messages.free(message);
    }

    pub(crate) fn client_of(&self, caller: CallerId) -> Option<u32> {
        let place = self.ids.binary_search_by_key(&caller, |(id, _)| *id).ok()?;
        Some(self.ids[place].1)
    }

    /// A restarted client has a new id.
    pub(crate) fn rename_client(&mut self, old: CallerId, new: CallerId) {
        if let Some(entry) = self.ids.iter_mut().find(|(id, _)| *id == old) {
            entry.0 = new;
            self.ids.sort_unstable();
        }
    }
}
