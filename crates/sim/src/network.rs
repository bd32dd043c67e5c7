//! Messages between callers and nodes, and the network that delays them.

use std::ops::Range;

use tidegate_core::rng::Rng;
use tidegate_core::throttle::Answer;
use tidegate_core::{Context, Feedback, Instant, Progress, RequestId, Span, Workflow};

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

impl Message {
    /// The gate's state, if the message tells it.
    pub(crate) fn feedback(&self) -> Option<Feedback> {
        match self.body {
            Body::Replies { feedback } => feedback,
            Body::Request { .. } | Body::Report { .. } => None,
        }
    }
}

/// What a message says.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Body {
    /// To a node: please serve this.
    Request { call: RequestId, context: Context, service: Span, life: u16 },
    /// To a node: demand has vanished.
    Report { context: Context },
    /// To a client: responses, possibly none, and the gate's state.
    Replies { feedback: Option<Feedback> },
}

/// One response.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reply {
    pub(crate) call: RequestId,
    pub(crate) attempt: u8,
    /// How often the calling process had crashed when it made the call: a later life does not
    /// know of it.
    pub(crate) life: u16,
    pub(crate) answer: Answer,
    pub(crate) workflow: Workflow,
    /// What was done for it.
    pub(crate) progress: Progress,
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
}

/// How long messages take, and which never arrive.
#[derive(Clone, Debug)]
pub struct Network {
    spec: NetworkSpec,
    /// Clients below this number and these nodes cannot reach each other.
    cuts: Vec<(u32, Range<u32>)>,
    rng: Rng,
}

/// Parameters of a network.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct NetworkSpec {
    /// Time from sending to receiving and back, without jitter.
    pub rtt: Span,
    /// Each message takes up to this much longer, uniformly; so messages can overtake each other.
    pub jitter: Span,
    /// Share of messages that never arrive.
    pub loss: f64,
}

impl Network {
    /// A network without partitions.
    pub fn new(spec: NetworkSpec, rng: Rng) -> Self {
        Self { spec, cuts: Vec::new(), rng }
    }

    /// How long the next message between `client` and `node` takes, none if it is lost.
    pub(crate) fn next(&mut self, client: u32, node: u32) -> Option<Span> {
        if self.cuts.iter().any(|(clients, nodes)| client < *clients && nodes.contains(&node)) {
            return None;
        }
        if self.spec.loss > 0.0 && self.rng.unit() < self.spec.loss {
            return None;
        }
        let jitter = match self.spec.jitter.as_nanos() {
            0 => 0,
            nanos => self.rng.below(nanos + 1),
        };
        Some(Span::from_nanos(self.spec.rtt.as_nanos() / 2 + jitter))
    }

    /// The parameters in force.
    pub(crate) fn spec(&mut self) -> &mut NetworkSpec {
        &mut self.spec
    }

    /// The first `clients` clients and `nodes` cannot reach each other, or can again.
    pub(crate) fn cut(&mut self, clients: u32, nodes: Range<u32>, cut: bool) {
        if cut {
            self.cuts.push((clients, nodes));
        } else if let Some(place) =
            self.cuts.iter().position(|entry| *entry == (clients, nodes.clone()))
        {
            // Two equal cuts may overlap: one of them ends.
            self.cuts.remove(place);
        }
    }

    /// Whether a share of what is chosen by chance happens now.
    pub(crate) fn chance(&mut self, share: f64) -> bool {
        share > 0.0 && self.rng.unit() < share
    }
}
