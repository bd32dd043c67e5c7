//! Messages that found no room: their connection hears of it, and whoever waits for an answer gets one.

use serde_json::json;
use tidegate_core::Instant;

use super::client::Subscription;
use super::{ClientId, Conn, Hub};
use crate::wire::client::{self, Op};
use crate::wire::{Body, Bounds, subject, write};

/// A refused request is answered if its reply is among so many subscriptions; to look through more would cost
/// the gate more than the answer is worth.
const SEARCHED: usize = 64;

impl Hub {
    /// A message found no room. Its connection hears of it, and a request is answered.
    pub(super) fn refuse(&mut self, now: Instant, id: ClientId, topic: usize, bytes: &[u8]) {
        let client = self.clients.get_mut(&id).filter(|client| !client.is_gone());
        let Some(client) = client else { return };
        client.refused = (client.refused.0 + 1, topic);
        let endless = Bounds { line: usize::MAX / 2, payload: usize::MAX / 2 };
        if let Ok(Some((Op::Publish(Body { reply: Some(reply), .. }), _))) =
            client::read(bytes, endless)
        {
            let topic = &self.topics.list[topic];
            if topic.only.is_some() {
                let why = format!("over the rate of topic {}", topic.config.name());
                let error = json!({ "code": 429, "description": why });
                let answer = json!({ "error": error, "stream": "", "seq": 0 }).to_string();
                self.answer(id, reply, None, answer.as_bytes());
            } else {
                let payload = b"NATS/1.0 429 Too Many Requests\r\n\r\n";
                self.answer(id, reply, Some(payload.len()), payload);
            }
        }
        let told = self.clients.get(&id).and_then(|client| client.told);
        if told.is_none_or(|told| now.since(told) >= super::SELDOM) {
            self.tell_refused(now, id);
        }
    }

    /// Answers a request in somebody's stead, if it is among the client's own subscriptions that it waits for that.
    pub(super) fn answer(
        &mut self,
        id: ClientId,
        reply: &[u8],
        headers: Option<usize>,
        payload: &[u8],
    ) {
        let known = self.clients.get_mut(&id).filter(|client| {
            client.subscriptions.len() <= SEARCHED && (headers.is_none() || client.connect.headers)
        });
        let Some(client) = known else { return };
        let fits = |one: &(&Vec<u8>, &Subscription)| subject::matches(&one.1.pattern, reply);
        if let Some((name, _)) = client.subscriptions.iter().find(fits) {
            let (name, body) =
                (name.clone(), Body { subject: reply, reply: None, headers, payload });
            write::message(client.out.end(), &name, &body);
            self.dirty.insert(Conn::Client(id));
            // It counts as any other answer.
            self.count_answer(id, &name);
        }
    }

    fn count_answer(&mut self, id: ClientId, name: &[u8]) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        let Some(known) = client.subscriptions.get_mut(name) else { return };
        known.delivered += 1;
        if known.max.is_some_and(|max| known.delivered >= max) {
            client.subscriptions.remove(name);
            self.unsubscribe_links(id, name, None);
        }
    }

    /// At most once in a second. Clients close their connection at any error but those that begin so.
    pub(super) fn tell_refused(&mut self, now: Instant, id: ClientId) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        let (count, topic) = std::mem::take(&mut client.refused);
        client.told = Some(now);
        let config = &self.topics.list[topic].config;
        let text = format!(
            "Permissions Violation for Publish to \"{}\": over the rate of topic {}, {count} messages refused",
            config.subject,
            config.name()
        );
        write::error(client.out.end(), &text);
        self.dirty.insert(Conn::Client(id));
    }
}
