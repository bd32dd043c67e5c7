//! JetStream: streams live at one broker, so what is for them goes there, wherever its publisher lives.
//!
//! 1. That are the subjects of the API, of key-value and object stores, and those that streams are said to take in. A
//!    subject always goes the same way, so a publisher's messages to it keep their order.
//! 2. What streams deliver comes like any message: everybody's subscriptions stand at every broker.
//! 3. Who publishes to a stream waits for its answer, and publishes again when there is none. So a message that would
//!    wait for its token longer than [`patience`](crate::config::StreamsConfig::patience) is refused at once, and the
//!    answer is an error of JetStream; and one whose broker is gone is answered as if nobody listened.

use tidegate_core::Instant;
use tidegate_core::share::Message;

use super::broker::State;
use super::{ClientId, Hub};
use crate::wire::client::{self, Op};
use crate::wire::{Body, Bounds, write};

/// Nobody listens, as nats-server says it.
const NOBODY: &[u8] = b"NATS/1.0 503\r\n\r\n";

impl Hub {
    /// The broker that a subject has to go to, if it is one of streams.
    pub(super) fn streams_at(&self, subject: &[u8]) -> Option<usize> {
        let streams = self.config.jetstream.as_ref()?;
        streams.takes(subject).then_some(self.streams).flatten()
    }

    /// A message for streams at the broker `at`; false if it has to be said again.
    pub(super) fn publish_to_streams(
        &mut self,
        now: Instant,
        id: ClientId,
        arrived: Instant,
        body: &Body<'_>,
        at: usize,
    ) -> bool {
        if !self.may_publish(now, id) {
            return false;
        }
        self.acknowledge(id);
        if self.brokers[at].state != State::Up {
            self.totals.abandoned += 1;
            self.tell_nobody(id, body.reply);
            return true;
        }
        let Some(client) = self.clients.get_mut(&id) else { return true };
        client.streams = true;
        let rank = client.rank;
        self.open_link(now, id, at);
        let link = self.clients.get(&id).and_then(|client| client.links[at]);
        let topic = self.topics.find(body.subject);
        self.record(topic, id, arrived);
        let passes = topic.is_none_or(|topic| self.topics.list[topic].arrive(now, at, arrived));
        if let (true, Some(link)) = (passes, link) {
            self.send(now, link, |out| write::publish(out, body));
            return true;
        }
        let Some(topic) = topic else { return true };
        let mut what = Vec::with_capacity(body.payload.len() + body.subject.len() + 64);
        write::publish(&mut what, body);
        let patience = self.config.jetstream.as_ref().map(|streams| streams.patience);
        if patience.is_some_and(|patience| self.topics.list[topic].wait_ahead(at) > patience) {
            self.topics.list[topic].stats.refused += 1;
            self.refuse(now, id, topic, &what);
            return true;
        }
        let message = Message { arrived, bytes: what.len(), what };
        for (client, bytes) in self.topics.list[topic].wait(now, at, id, rank, message) {
            self.refuse(now, client, topic, &bytes);
        }
        self.serve(now, topic, at);
        true
    }

    /// The broker of streams is gone: nothing waits for it.
    pub(super) fn give_up_streams(&mut self, now: Instant, at: usize) {
        if self.streams != Some(at) {
            return;
        }
        let endless = Bounds { line: usize::MAX / 2, payload: usize::MAX / 2 };
        for id in self.clients.keys().copied().collect::<Vec<_>>() {
            let topics = self.topics.list.iter_mut().filter(|topic| topic.only == Some(at));
            let gone: Vec<_> = topics.flat_map(|topic| topic.withdraw(at, id)).collect();
            self.totals.abandoned += gone.len() as u64;
            for Message { what, .. } in gone {
                if let Ok(Some((Op::Publish(body), _))) = client::read(&what, endless) {
                    self.tell_nobody(id, body.reply);
                }
            }
            self.bury(now, id);
        }
    }

    fn tell_nobody(&mut self, id: ClientId, reply: Option<&[u8]>) {
        if let Some(reply) = reply {
            self.answer(id, reply, Some(NOBODY.len()), NOBODY);
        }
    }
}
