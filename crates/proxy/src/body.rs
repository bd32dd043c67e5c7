//! [`ProxyBody`]: an upstream's answer, which keeps its slot and its connection to the last byte,
//! or a short text of our own.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll};

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};
use tidegate_core::{Instant, Outcome, RequestId, Span};
use tidegate_driver::{Charge, Slot};

use tokio::sync::mpsc;

use crate::exempt;
use crate::headers;
use crate::inflight::Listed;
use crate::sideline::Probe;
use crate::trace::Span as Traced;
use crate::upstream::{Call, Source};
use crate::worker::Worker;

/// The body of every response.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "nearly all are answers")]
pub(crate) enum ProxyBody {
    /// From the upstream.
    Answer {
        source: Source,
        /// None once the last byte has passed.
        held: Option<Held>,
    },
    /// Our own words.
    Text(Option<Bytes>),
    /// Pieces as they come, for a page that is open.
    Events(mpsc::Receiver<Bytes>),
}

impl ProxyBody {
    /// An answer whose end gives back what it holds; at once if there is nothing to send.
    pub(crate) fn answer(source: Source, held: Held) -> Self {
        let mut held = Some(held);
        if is_done(&source, held.as_ref()) {
            held.take().into_iter().for_each(Held::end);
        }
        Self::Answer { source, held }
    }

    pub(crate) fn text(text: impl Into<Bytes>) -> Self {
        Self::Text(Some(text.into()).filter(|text: &Bytes| !text.is_empty()))
    }

    pub(crate) fn empty() -> Self {
        Self::Text(None)
    }
}

/// Whether nothing is left to produce. Servers stop polling a body once its announced length is
/// written, so waiting for the final `None` would take a complete answer for one given up.
fn is_done(source: &Source, held: Option<&Held>) -> bool {
    match source {
        Source::Call => hint(source, held).exact() == Some(0),
        Source::Stream(body) => body.is_end_stream() || body.size_hint().exact() == Some(0),
    }
}

fn hint(source: &Source, held: Option<&Held>) -> SizeHint {
    match source {
        Source::Call => held.map_or_else(|| SizeHint::with_exact(0), |held| held.call.size_hint()),
        Source::Stream(body) => body.size_hint(),
    }
}

impl Body for ProxyBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let (source, held) = match self.get_mut() {
            Self::Answer { source, held } => (source, held),
            Self::Text(text) => return Poll::Ready(text.take().map(|text| Ok(Frame::data(text)))),
            Self::Events(events) => {
                return events.poll_recv(cx).map(|event| event.map(|event| Ok(Frame::data(event))));
            }
        };
        let mut frame = match (&mut *source, &mut *held) {
            (Source::Call, Some(held)) => held.call.poll_frame(cx),
            (Source::Call, None) => Poll::Ready(None),
            (Source::Stream(body), _) => Pin::new(body).poll_frame(cx).map_err(io::Error::other),
        };
        if let Poll::Ready(Some(Ok(frame))) = &mut frame {
            headers::clean_trailers(frame);
            if let (Some(trailers), Some(held)) = (frame.trailers_mut(), held.as_mut()) {
                held.hear_cost(trailers);
                headers::remove_reports(trailers, held.worker.settings().trust);
            }
        }
        match &frame {
            Poll::Ready(Some(Err(_))) => held.take().into_iter().for_each(Held::broken),
            Poll::Ready(None) => held.take().into_iter().for_each(Held::end),
            _ if is_done(source, held.as_ref()) => held.take().into_iter().for_each(Held::end),
            _ => held.iter_mut().for_each(Held::go_on),
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Answer { source: Source::Stream(body), .. } => body.is_end_stream(),
            Self::Answer { source, held } => is_done(source, held.as_ref()),
            Self::Text(text) => text.is_none(),
            Self::Events(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Answer { source, held } => hint(source, held.as_ref()),
            Self::Events(_) => SizeHint::default(),
            Self::Text(text) => SizeHint::with_exact(text.as_ref().map_or(0, Bytes::len) as u64),
        }
    }
}

/// What a request holds while its answer passes. Dropped before the end, because the client has
/// gone, it is cancelled: slot and connection are given up.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) worker: Arc<Worker>,
    pub(crate) place: Place,
    pub(crate) call: Call,
    /// When the head of the answer came.
    pub(crate) head: Instant,
    pub(crate) outcome: Outcome,
    /// Whether the answer is a refusal of the upstream's own.
    pub(crate) refused: bool,
    /// Calls that the service makes for it are known by it, to its end.
    pub(crate) listed: Listed,
    /// Ends with it.
    #[expect(dead_code, reason = "held for its end")]
    pub(crate) span: Traced,
}

impl Held {
    /// The last byte has passed.
    pub(crate) fn end(self) {
        let now = self.worker.gate.now();
        self.place.finish(now, self.outcome);
        self.listed.end();
        self.call.answered(now, self.head, self.refused);
    }

    /// The upstream broke off within the body.
    fn broken(self) {
        self.place.finish(self.worker.gate.now(), Outcome::Fail);
        // The call is dropped, and with it the connection.
    }

    /// What the request has cost may stand behind the answer.
    fn hear_cost(&mut self, trailers: &HeaderMap) {
        let Some(said) = self.worker.settings().costs.said(trailers) else { return };
        match &mut self.place {
            Place::Own(entry) => entry.charge(said),
            Place::Shared(shared) => {
                lock(shared).iter_mut().for_each(|(entry, _)| entry.charge(said));
            }
        }
    }

    /// The body does not come in one piece: from now on it may turn out to be a stream.
    fn go_on(&mut self) {
        if let Place::Own(entry) = &mut self.place {
            let entry = std::mem::replace(entry, Entry::Outside);
            let shared = Arc::new(Mutex::new(Some((entry, self.outcome))));
            self.worker.streams.watch(self.worker.gate.now(), &shared);
            self.place = Place::Shared(shared);
        }
    }
}

/// Where a request's entry is.
#[derive(Debug)]
pub(crate) enum Place {
    /// With its answer: most answers come in one piece.
    Own(Entry),
    /// [`Streams`] may take it.
    Shared(Arc<Watched>),
}

/// An entry and how it will end; none once it has.
type Watched = Mutex<Option<(Entry, Outcome)>>;

impl Place {
    fn finish(self, now: Instant, outcome: Outcome) {
        match self {
            Self::Own(entry) => entry.finish(now, outcome),
            Self::Shared(shared) => {
                let taken = lock(&shared).take();
                taken.into_iter().for_each(|(entry, _)| entry.finish(now, outcome));
            }
        }
    }
}

/// Answers of one thread that go on. One that lasts is a stream, or has a slow reader: it gives its
/// slot back, as it says nothing about how many requests the service can take at once.
#[derive(Debug, Default)]
pub(crate) struct Streams {
    /// Since when, the oldest first. Those that have ended are still here, for `stream_after`.
    going_on: Mutex<VecDeque<(Instant, Weak<Watched>)>>,
}

impl Streams {
    fn watch(&self, now: Instant, shared: &Arc<Watched>) {
        lock(&self.going_on).push_back((now, Arc::downgrade(shared)));
    }

    /// Ends in the gate what has gone on for longer than `after`.
    pub(crate) fn sweep(&self, now: Instant, after: Span) {
        loop {
            let mut going_on = lock(&self.going_on);
            if going_on.front().is_none_or(|(since, _)| now.since(*since) < after) {
                return;
            }
            let oldest = going_on.pop_front();
            drop(going_on);
            let shared = oldest.and_then(|(_, shared)| shared.upgrade());
            let taken = shared.and_then(|shared| lock(&shared).take());
            taken.into_iter().for_each(|(entry, outcome)| entry.finish(now, outcome));
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A request's place in the gate. Dropped, its client has gone.
#[derive(Debug)]
pub(crate) enum Entry {
    /// It has a slot; a probe too while models are played.
    Slot(Slot, Option<Probe>),
    /// The same, and the gate has heard how much of its time the service has worked.
    Measured(Slot, Option<Probe>),
    /// Nothing holds it: what the gate decides is not enforced for it.
    Watched(Probe),
    /// It passed the gate, in one of the places for that.
    Exempt(exempt::Place),
    /// Nothing holds it any more.
    Outside,
}

impl Entry {
    /// Whether the gate asks for a cheaper answer.
    pub(crate) fn degraded(&self) -> bool {
        matches!(self, Self::Slot(slot, _) if slot.degraded())
    }

    /// What the request will be taken to have cost.
    pub(crate) fn charge(&mut self, charge: Charge) {
        if let Self::Slot(slot, _) | Self::Measured(slot, _) = self {
            slot.charge(charge);
        }
    }

    /// Who it is in the gate.
    pub(crate) fn request(&self) -> Option<RequestId> {
        match self {
            Self::Slot(slot, _) | Self::Measured(slot, _) => Some(slot.request()),
            Self::Watched(_) | Self::Exempt(_) | Self::Outside => None,
        }
    }

    /// The gate has been told of its service time.
    pub(crate) fn measured(self) -> Self {
        match self {
            Self::Slot(slot, probe) => Self::Measured(slot, probe),
            other => other,
        }
    }

    /// The request has ended.
    pub(crate) fn finish(self, now: Instant, outcome: Outcome) {
        let probe = match self {
            Self::Measured(slot, probe) => {
                let held = now.since(slot.started()).max(Span::from_nanos(1));
                let cost = slot.cost(held);
                slot.finish(outcome, cost);
                probe
            }
            Self::Slot(slot, probe) => {
                if outcome == Outcome::Serve {
                    slot.serve();
                } else {
                    slot.fail();
                }
                probe
            }
            Self::Watched(probe) => Some(probe),
            Self::Exempt(place) => {
                place.end();
                None
            }
            Self::Outside => None,
        };
        probe.into_iter().for_each(|probe| probe.end(now, outcome));
    }
}
