//! Messages between callers and nodes, and the network that delays them.

use tidegate_core::rng::Rng;
use tidegate_core::throttle::Answer;
use tidegate_core::{Context, Feedback, Instant, RequestId, Span};

/// Place of a message on its way.
pub(crate) type MessageId = u32;

/// One message on its way, or waiting to be received.
#[derive(Clone, Debug)]
pub(crate) struct Message {
    /// The client at one end.
    pub(crate) client: u32,
    /// The node at the other.
    pub(crate) node: u32,
    /// When it reached its destination.
    pub(crate) arrived: Instant,
    /// What it says.
    pub(crate) body: Body,
    /// Responses it carries, for [`Body::Replies`].
    pub(crate) replies: Vec<Reply>,
}

/// What a message says.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Body {
    /// To a node: please serve this.
    Request { call: RequestId, context: Context, service: Span },
    /// To a node: demand has vanished.
    Report { context: Context },
    /// To a client: responses, possibly none, and the gate's state.
    Replies { feedback: Option<Feedback> },
}

/// One response.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reply {
    pub(crate) call: RequestId,
    pub(crate) answer: Answer,
}

/// All messages on their way. Places and their buffers are used again, so a long run needs no more
/// memory than a short one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Messages {
    places: Vec<Message>,
    free: Vec<MessageId>,
}

impl Messages {
    pub(crate) fn put(&mut self, client: u32, node: u32, body: Body) -> MessageId {
        if let Some(id) = self.free.pop() {
            let message = &mut self.places[id as usize];
            (message.client, message.node, message.body) = (client, node, body);
            return id;
        }
        self.places.push(Message {
            client,
            node,
            arrived: Instant::ZERO,
            body,
            replies: Vec::new(),
        });
        u32::try_from(self.places.len() - 1).expect("far fewer messages are on their way")
    }

    pub(crate) fn get(&self, id: MessageId) -> &Message {
        &self.places[id as usize]
    }

    pub(crate) fn get_mut(&mut self, id: MessageId) -> &mut Message {
        &mut self.places[id as usize]
    }

    pub(crate) fn free(&mut self, id: MessageId) {
        self.places[id as usize].replies.clear();
        self.free.push(id);
    }

    /// Messages that are still on their way or wait to be received.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Message> {
        let mut free = vec![false; self.places.len()];
        for id in &self.free {
            free[*id as usize] = true;
        }
        self.places.iter().zip(free).filter_map(|(message, free)| (!free).then_some(message))
    }
}

/// How long messages take.
#[derive(Clone, Debug)]
pub struct Network {
    /// One way, without jitter.
    pub delay: Span,
    /// Each message takes up to this much longer, uniformly; so messages can overtake each other.
    pub jitter: Span,
    /// Share of messages that never arrive.
    pub loss: f64,
    rng: Rng,
}

impl Network {
    /// A network with this round-trip time.
    pub fn new(rtt: Span, jitter: Span, loss: f64, rng: Rng) -> Self {
        Self { delay: rtt.scale(0.5), jitter, loss, rng }
    }

    /// How long the next message takes, none if it is lost.
    pub(crate) fn next(&mut self) -> Option<Span> {
        if self.loss > 0.0 && self.rng.unit() < self.loss {
            return None;
        }
        let jitter = match self.jitter.as_nanos() {
            0 => 0,
            nanos => self.rng.below(nanos + 1),
        };
        Some(self.delay + Span::from_nanos(jitter))
    }
}
