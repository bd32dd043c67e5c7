//! [`GateBody`]: a service's response body that keeps its slot to the last byte, or the short text
//! of a refusal.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;
use tidegate_core::{Cost, Instant, Outcome};
use tidegate_driver::Slot;

use crate::server::GateLayer;
use crate::server::exempt::Place;
use crate::server::streams::Lease;

pin_project! {
    /// The body of every response that leaves a gate or a caller.
    #[derive(Debug)]
    pub struct GateBody<B> {
        #[pin]
        kind: Kind<B>,
    }
}

pin_project! {
    #[project = KindProj]
    #[derive(Debug)]
    enum Kind<B> {
        Served {
            #[pin]
            body: B,
            hold: Hold,
            tail: Option<Box<dyn Tail>>,
        },
        Refusal { text: Option<Bytes> },
    }
}

/// What is told or heard in trailers: of gRPC, where headers leave before the work is done.
pub(crate) trait Tail: std::fmt::Debug + Send + Sync {
    /// The body's trailers are passing.
    fn pass(&mut self, trailers: &mut HeaderMap);
}

/// What a body holds until its last byte.
#[derive(Debug)]
enum Hold {
    Nothing,
    /// A place beside the gate.
    Place(#[expect(dead_code, reason = "held until the end")] Place),
    /// Not polled yet. Most bodies end with their first poll and are never anything else.
    Fresh {
        held: Held,
        layer: Arc<GateLayer>,
    },
    Lease(Lease),
}

/// A slot and what its request has cost so far.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) slot: Slot,
    pub(crate) cost: Cost,
    pub(crate) outcome: Outcome,
    /// When the handler had answered.
    pub(crate) answered: Instant,
}

impl Held {
    pub(crate) fn finish(self) {
        self.slot.finish(self.outcome, self.cost);
    }

    /// Its body was all there when the handler answered: that was the end, and no other clock is read.
    fn finish_as_answered(self) {
        self.slot.finish_as_of(self.answered, self.outcome, self.cost);
    }
}

impl Hold {
    /// The body goes on: from now on it may become a stream.
    fn go_on(&mut self) {
        *self = match std::mem::replace(self, Self::Nothing) {
            Self::Fresh { held, layer } => Self::Lease(Lease::new(held, &layer.streams)),
            other => other,
        };
    }

    /// The body has ended, well or not.
    fn end(&mut self, broke: Option<Outcome>) {
        match std::mem::replace(self, Self::Nothing) {
            Self::Nothing | Self::Place(_) => {}
            Self::Fresh { mut held, .. } => {
                held.outcome = broke.unwrap_or(held.outcome);
                held.finish_as_answered();
            }
            Self::Lease(lease) => lease.finish(broke),
        }
    }
}

impl<B: Body> GateBody<B> {
    /// A body whose end gives back the slot; at once if there is nothing to send.
    pub(crate) fn served(
        body: B,
        held: Held,
        layer: Arc<GateLayer>,
        tail: Option<Box<dyn Tail>>,
    ) -> Self {
        let mut hold = Hold::Fresh { held, layer };
        if is_done(&body) {
            hold.end(None);
        }
        Self { kind: Kind::Served { body, hold, tail } }
    }

    /// A body that holds no slot, but a place.
    pub(crate) fn exempt(body: B, place: Option<Place>) -> Self {
        let place = place.filter(|_| !is_done(&body));
        let hold = place.map_or(Hold::Nothing, Hold::Place);
        Self { kind: Kind::Served { body, hold, tail: None } }
    }

    /// The same, and somebody listens to its trailers.
    pub(crate) fn heard(body: B, tail: Option<Box<dyn Tail>>) -> Self {
        Self { kind: Kind::Served { body, hold: Hold::Nothing, tail } }
    }

    pub(crate) fn refusal(text: Bytes) -> Self {
        Self { kind: Kind::Refusal { text: Some(text).filter(|text| !text.is_empty()) } }
    }
}

/// Whether nothing is left to produce. Servers stop polling a body once its announced length is
/// written, so waiting for the final `None` would take a complete answer for a cancelled one.
fn is_done<B: Body>(body: &B) -> bool {
    body.is_end_stream() || body.size_hint().exact() == Some(0)
}

impl<B: Body<Data = Bytes>> Body for GateBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let (mut body, hold, tail) = match self.project().kind.project() {
            KindProj::Served { body, hold, tail } => (body, hold, tail),
            KindProj::Refusal { text } => {
                return Poll::Ready(text.take().map(|text| Ok(Frame::data(text))));
            }
        };
        let mut frame = body.as_mut().poll_frame(cx);
        if let (Poll::Ready(Some(Ok(frame))), Some(tail)) = (&mut frame, tail)
            && let Some(trailers) = frame.trailers_mut()
        {
            tail.pass(trailers);
        }
        match &frame {
            Poll::Pending => hold.go_on(),
            Poll::Ready(Some(Err(_))) => hold.end(Some(Outcome::Fail)),
            Poll::Ready(None) => hold.end(None),
            Poll::Ready(Some(Ok(_))) if is_done(&*body) => hold.end(None),
            Poll::Ready(Some(Ok(_))) => hold.go_on(),
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        match &self.kind {
            Kind::Served { body, .. } => body.is_end_stream(),
            Kind::Refusal { text } => text.is_none(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            Kind::Served { body, .. } => body.size_hint(),
            Kind::Refusal { text } => {
                SizeHint::with_exact(text.as_ref().map_or(0, |text| text.len() as u64))
            }
        }
    }
}
