//! [`GateBody`]: a service's response body that keeps its slot to the last byte, or the short text
//! of a refusal.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;
use tidegate_core::{Cost, Outcome};
use tidegate_driver::Slot;

pin_project! {
    /// The body of every response that leaves a gate.
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
            held: Option<Held>,
        },
        Refusal { text: Option<Bytes> },
    }
}

/// A slot and what its request has cost so far.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) slot: Slot,
    pub(crate) cost: Cost,
    pub(crate) outcome: Outcome,
}

impl Held {
    pub(crate) fn finish(self) {
        self.slot.finish(self.outcome, self.cost);
    }
}

impl<B: Body> GateBody<B> {
    /// A body whose end gives back the slot; at once if there is nothing to send.
    pub(crate) fn served(body: B, held: Held) -> Self {
        let mut held = Some(held);
        if is_done(&body) {
            held.take().into_iter().for_each(Held::finish);
        }
        Self { kind: Kind::Served { body, held } }
    }

    /// A body that holds no slot.
    pub(crate) fn passed(body: B) -> Self {
        Self { kind: Kind::Served { body, held: None } }
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
        let (mut body, held) = match self.project().kind.project() {
            KindProj::Served { body, held } => (body, held),
            KindProj::Refusal { text } => {
                return Poll::Ready(text.take().map(|text| Ok(Frame::data(text))));
            }
        };
        let frame = ready!(body.as_mut().poll_frame(cx));
        let ended = match &frame {
            None => true,
            Some(Ok(_)) => is_done(&*body),
            Some(Err(_)) => {
                held.iter_mut().for_each(|held| held.outcome = Outcome::Fail);
                true
            }
        };
        if ended {
            held.take().into_iter().for_each(Held::finish);
        }
        Poll::Ready(frame)
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
