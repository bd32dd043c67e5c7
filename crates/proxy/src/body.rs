//! [`ProxyBody`]: an upstream's answer, which keeps its slot and its connection to the last byte,
//! or a short text of our own.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tidegate_core::{Instant, Outcome, Progress, Span};
use tidegate_driver::{Abandoned, Paused, Slot, Ticket};
use tidegate_http::wire;

use tokio::sync::mpsc;

use crate::abandoned;
use crate::headers;
use crate::sideline::Probe;
use crate::trace::Span as Traced;
use crate::upstream::{Call, Source};
use crate::worker::Worker;

/// The body of every response.
#[derive(Debug)]
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
        let mut frame = source.poll_frame(held.as_mut().map(|held| &mut held.call), cx);
        if let Poll::Ready(Some(Ok(frame))) = &mut frame {
            headers::clean_trailers(frame);
            // What the service's gate says is for us, not for our clients.
            frame.trailers_mut().map(|trailers| trailers.remove(wire::FEEDBACK));
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

impl Drop for ProxyBody {
    /// Before the end of an answer: its client has left.
    fn drop(&mut self) {
        let Self::Answer { source, held } = self else { return };
        if let Some(held) = held.take() {
            let begun = (std::mem::replace(source, Source::Call), held.head, held.outcome);
            abandoned::leave(&held.worker, held.call, held.place.into_entry(), Some(begun));
        }
    }
}

/// What a request holds while its answer passes.
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
    /// Ends with it.
    #[expect(dead_code, reason = "held for its end")]
    pub(crate) span: Traced,
}

impl Held {
    /// The last byte has passed.
    pub(crate) fn end(self) {
        let now = self.worker.gate.now();
        self.place.finish(now, self.outcome);
        self.call.answered(now, self.head, self.refused);
    }

    /// The upstream broke off within the body.
    fn broken(self) {
        self.place.finish(self.worker.gate.now(), Outcome::Fail);
        // The call is dropped, and with it the connection.
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
    /// What it has in the gate, for a request that ends otherwise than it should.
    fn into_entry(self) -> Entry {
        match self {
            Self::Own(entry) => entry,
            Self::Shared(shared) => lock(&shared).take().map_or(Entry::Outside, |(entry, _)| entry),
        }
    }

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
    /// It had one, and waits for its body.
    Paused(Paused, Option<Probe>),
    /// Nothing holds it: what the gate decides is not enforced for it.
    Watched(Probe),
    /// The gate was not asked.
    Outside,
}

impl Entry {
    /// What is here, and from then on nothing.
    pub(crate) fn take(&mut self) -> Self {
        std::mem::replace(self, Self::Outside)
    }

    pub(crate) fn has_slot(&self) -> bool {
        matches!(self, Self::Slot(..))
    }

    /// Its body is not there: it gives back its slot.
    pub(crate) fn pause(&mut self) {
        *self = match self.take() {
            Self::Slot(slot, probe) => Self::Paused(slot.pause(), probe),
            other => other,
        };
    }

    /// Its body is there again: it waits for a slot, and then [goes on](Self::go_on).
    pub(crate) fn resume(&mut self, progress: Progress) -> Option<Ticket> {
        let Self::Paused(paused, probe) = self.take() else { return None };
        *self = probe.map_or(Self::Outside, Self::Watched);
        Some(paused.resume(progress))
    }

    /// It has a slot again.
    pub(crate) fn go_on(&mut self, slot: Slot) {
        let probe = match self.take() {
            Self::Watched(probe) => Some(probe),
            _ => None,
        };
        *self = Self::Slot(slot, probe);
    }

    /// The client has left and the upstream goes on: what it holds until that has ended.
    pub(crate) fn keep(self) -> Kept {
        match self {
            Self::Slot(slot, probe) => {
                let started = slot.started();
                Kept { slot: Some((slot.abandon(), started)), probe }
            }
            Self::Watched(probe) => Kept { slot: None, probe: Some(probe) },
            Self::Paused(..) | Self::Outside => Kept { slot: None, probe: None },
        }
    }

    /// The client has left, and nobody will hear when the upstream is done.
    pub(crate) fn lose(self) {
        if let Self::Slot(slot, _) = self {
            slot.lose();
        }
    }

    /// The request has ended.
    pub(crate) fn finish(self, now: Instant, outcome: Outcome) {
        let probe = match self {
            Self::Slot(slot, probe) => {
                if outcome == Outcome::Serve {
                    slot.serve();
                } else {
                    slot.fail();
                }
                probe
            }
            Self::Paused(paused, probe) => {
                paused.finish(outcome);
                probe
            }
            Self::Watched(probe) => Some(probe),
            Self::Outside => None,
        };
        probe.into_iter().for_each(|probe| probe.end(now, outcome));
    }
}

/// What abandoned work holds. Dropped, the upstream is done with it, or was told to be.
#[derive(Debug)]
pub(crate) struct Kept {
    /// And since when.
    slot: Option<(Abandoned, Instant)>,
    probe: Option<Probe>,
}

impl Kept {
    /// The upstream has ended it, so.
    pub(crate) fn finish(self, now: Instant, outcome: Outcome) {
        if let Some((slot, started)) = self.slot {
            let cost = now.since(started).max(Span::from_nanos(1));
            slot.finish(outcome, cost.into());
        }
        self.probe.into_iter().for_each(|probe| probe.end(now, outcome));
    }
}
