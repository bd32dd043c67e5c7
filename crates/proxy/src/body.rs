//! [`ProxyBody`]: an upstream's answer, which keeps its slot and its connection until all of it is here,
//! or a short text of our own.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tidegate_core::{Instant, Outcome, Progress, RequestId, Span};
use tidegate_driver::{Abandoned, Charge, Paused, Slot, Ticket};

use tokio::sync::mpsc;

use crate::abandoned;
use crate::ahead::Ahead;
use crate::exempt;
use crate::headers;
use crate::inflight::Listed;
use crate::leash::{self, Leash};
use crate::places::Place;
use crate::reentry::{Holding, Reserved};
use crate::sideline::Probe;
use crate::trace::Span as Traced;
use crate::upstream::{Call, Source};
use crate::verdict::Verdict;
use crate::worker::Worker;

/// The body of every response.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "most answers are the large one, and want no box")]
pub(crate) enum ProxyBody {
    /// From the upstream, as it comes.
    Answer {
        source: Source,
        /// None once the last byte has passed.
        held: Option<Held>,
    },
    /// From the upstream, in pieces of which some may be here already.
    Ahead(Arc<Ahead>),
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

    /// There is more than one piece: what holds a slot is not to wait for its reader.
    fn read_ahead(&mut self) {
        let Self::Answer { source, held } = self else { return };
        if let Some(held) = held.take_if(|held| held.entry.has_slot()) {
            let left = hint(source, Some(&held));
            let source = std::mem::replace(source, Source::Call);
            *self = Self::Ahead(Ahead::begin(source, held, left));
        }
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
        let this = self.get_mut();
        let frame = match this {
            Self::Answer { source, held: Some(held) } => {
                let mut frame = match held.poll_over(cx) {
                    Poll::Ready(()) => Poll::Ready(Some(Err(leash::cut()))),
                    Poll::Pending => source.poll_frame(Some(&mut held.call), cx),
                };
                if let Poll::Ready(Some(Ok(piece))) = &mut frame {
                    held.hear(piece);
                }
                frame
            }
            Self::Answer { source, held: None } => source.poll_frame(None, cx),
            Self::Ahead(ahead) => ahead.poll_frame(cx),
            Self::Text(text) => return Poll::Ready(text.take().map(|text| Ok(Frame::data(text)))),
            Self::Events(events) => {
                return events.poll_recv(cx).map(|event| event.map(|event| Ok(Frame::data(event))));
            }
        };
        let Self::Answer { source, held } = this else { return frame };
        match &frame {
            Poll::Ready(Some(Err(_))) => held.take().into_iter().for_each(Held::broken),
            Poll::Ready(None) => held.take().into_iter().for_each(Held::end),
            _ if is_done(source, held.as_ref()) => held.take().into_iter().for_each(Held::end),
            Poll::Ready(Some(Ok(_))) => this.read_ahead(),
            Poll::Pending => {}
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Answer { source: Source::Stream(body), .. } => body.is_end_stream(),
            Self::Answer { source, held } => is_done(source, held.as_ref()),
            Self::Ahead(ahead) => ahead.is_at_end(),
            Self::Text(text) => text.is_none(),
            Self::Events(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Answer { source, held } => hint(source, held.as_ref()),
            Self::Ahead(ahead) => ahead.size_hint(),
            Self::Events(_) => SizeHint::default(),
            Self::Text(text) => SizeHint::with_exact(text.as_ref().map_or(0, Bytes::len) as u64),
        }
    }
}

impl Drop for ProxyBody {
    /// Before the end of an answer: its client has left.
    fn drop(&mut self) {
        match self {
            Self::Answer { source, held } => {
                if let Some(held) = held.take() {
                    let begun = (std::mem::replace(source, Source::Call), held.head, held.verdict);
                    abandoned::leave(&held.worker, held.call, held.entry, Some(begun));
                }
            }
            Self::Ahead(ahead) => ahead.end_early(),
            Self::Text(_) | Self::Events(_) => {}
        }
    }
}

/// What a request holds while its answer passes.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) worker: Arc<Worker>,
    /// Where it holds a place of a fleet's.
    pub(crate) leash: Option<Leash>,
    pub(crate) entry: Entry,
    pub(crate) call: Call,
    /// When the head of the answer came.
    pub(crate) head: Instant,
    pub(crate) verdict: Verdict,
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
        self.entry.finish(now, self.verdict.outcome);
        self.listed.end();
        self.call.answered(now, self.head, self.verdict.refused);
    }

    /// Ready when it is to be aborted.
    pub(crate) fn poll_over(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(leash) = &mut self.leash else { return Poll::Pending };
        leash.poll_over(&self.worker.counters.leashes, cx)
    }

    /// The upstream broke off within the body, or was cut off.
    pub(crate) fn broken(self) {
        let is_cut = self.leash.as_ref().is_some_and(Leash::is_over);
        let outcome = if is_cut { Outcome::Cancel } else { Outcome::Fail };
        self.entry.finish(self.worker.gate.now(), outcome);
        // The call is dropped, and with it the connection.
    }

    /// A piece of the answer: what it says of the request is for us, and not all of it for our clients.
    pub(crate) fn hear(&mut self, piece: &mut Frame<Bytes>) {
        self.verdict.hear(piece);
        headers::clean_trailers(piece);
        let Some(trailers) = piece.trailers_mut() else { return };
        let settings = self.worker.settings();
        // What the request has cost may stand behind the answer.
        let said = settings.costs.said(trailers);
        said.into_iter().for_each(|said| self.entry.charge(said));
        headers::remove_reports(trailers, settings.trust);
    }

    /// Whatever is still to come waits for its reader, and is no work.
    pub(crate) fn give_back(&mut self) {
        self.entry.take().finish(self.worker.gate.now(), self.verdict.outcome);
    }
}

/// A request's place in the gate. Dropped, its client has gone.
#[derive(Debug)]
pub(crate) enum Entry {
    /// It has a slot.
    Slot(Slot, Beside),
    /// It had one, and waits for its body.
    Paused(Paused, Beside),
    /// It has asked for another.
    Asks(Beside),
    /// It came back while its origin has a slot.
    Reserved(#[expect(dead_code, reason = "held until it ends")] Reserved),
    /// It lasts long, and is counted with its like.
    Long(#[expect(dead_code, reason = "held until it ends")] Place),
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
        if let Self::Slot(slot, _) = self {
            slot.charge(charge);
        }
    }

    /// Who it is in the gate.
    pub(crate) fn request(&self) -> Option<RequestId> {
        match self {
            Self::Slot(slot, _) => Some(slot.request()),
            _ => None,
        }
    }

    /// The gate has been told of its service time.
    pub(crate) fn measured(mut self) -> Self {
        if let Self::Slot(_, beside) = &mut self {
            beside.measured = true;
        }
        self
    }

    /// What is here, and from then on nothing.
    pub(crate) fn take(&mut self) -> Self {
        std::mem::replace(self, Self::Outside)
    }

    /// Whether the gate counts it.
    pub(crate) fn is_the_gates(&self) -> bool {
        matches!(self, Self::Slot(..) | Self::Paused(..) | Self::Asks(_))
    }

    pub(crate) fn has_slot(&self) -> bool {
        matches!(self, Self::Slot(..))
    }

    /// Its body is not there: it gives back its slot.
    pub(crate) fn pause(&mut self) {
        *self = match self.take() {
            Self::Slot(slot, beside) => Self::Paused(slot.pause(), beside),
            other => other,
        };
    }

    /// Its body is there again: it waits for a slot, and then [goes on](Self::go_on).
    pub(crate) fn resume(&mut self, progress: Progress) -> Option<Ticket> {
        let Self::Paused(paused, beside) = self.take() else { return None };
        *self = Self::Asks(beside);
        Some(paused.resume(progress))
    }

    /// It has a slot again.
    pub(crate) fn go_on(&mut self, slot: Slot) {
        if let Self::Asks(beside) = self.take() {
            *self = Self::Slot(slot, beside);
        }
    }

    /// The client has left and the upstream goes on: what it holds until that has ended.
    pub(crate) fn keep(self) -> Kept {
        match self {
            Self::Slot(slot, beside) => {
                let started = slot.started();
                Kept { slot: Some((slot.abandon(), started)), beside }
            }
            Self::Watched(probe) => {
                Kept { slot: None, beside: Beside { probe: Some(probe), ..Beside::default() } }
            }
            _ => Kept { slot: None, beside: Beside::default() },
        }
    }

    /// The client has left, and the request can be ended at the upstream. What it holds until the upstream has
    /// ended, unless it shall be ended now.
    pub(crate) fn leave_or_end(self) -> Option<Kept> {
        let Self::Slot(slot, beside) = self else { return Some(self.keep()) };
        let started = slot.started();
        Some(Kept { slot: Some((slot.leave_or_end()?, started)), beside })
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
            Self::Slot(slot, beside) if beside.measured => {
                let held = now.since(slot.started()).max(Span::from_nanos(1));
                let cost = slot.cost(held);
                slot.finish(outcome, cost);
                beside.probe
            }
            Self::Slot(slot, beside) => {
                if outcome == Outcome::Serve {
                    slot.serve();
                } else {
                    slot.fail();
                }
                beside.probe
            }
            Self::Paused(paused, beside) => {
                paused.finish(outcome);
                beside.probe
            }
            Self::Watched(probe) => Some(probe),
            Self::Exempt(place) => {
                place.end();
                None
            }
            Self::Asks(_) | Self::Long(_) | Self::Reserved(_) | Self::Outside => None,
        };
        probe.into_iter().for_each(|probe| probe.end(now, outcome));
    }
}

/// What goes with a slot.
#[derive(Debug, Default)]
pub(crate) struct Beside {
    /// While models are played.
    pub(crate) probe: Option<Probe>,
    /// Whether the gate has heard how much of its time the service has worked.
    pub(crate) measured: bool,
    /// So that what comes back does not wait behind it.
    #[expect(dead_code, reason = "held until it ends")]
    pub(crate) holding: Option<Holding>,
}

/// What abandoned work holds. Dropped, the upstream is done with it, or was told to be.
#[derive(Debug)]
pub(crate) struct Kept {
    /// And since when.
    slot: Option<(Abandoned, Instant)>,
    beside: Beside,
}

impl Kept {
    /// The upstream has ended it, so.
    pub(crate) fn finish(self, now: Instant, outcome: Outcome) {
        if let Some((slot, started)) = self.slot {
            let cost = now.since(started).max(Span::from_nanos(1));
            slot.finish(outcome, cost.into());
        }
        self.beside.probe.into_iter().for_each(|probe| probe.end(now, outcome));
    }
}
