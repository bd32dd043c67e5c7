//! [`Inbound`]: the body of a client's request, in either version.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use h2::RecvStream;
use http::header::CONTENT_LENGTH;
use http::{HeaderMap, Method, Request};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;

use crate::connection::Pulse;
use crate::headers;

/// What a client sends behind the head of its request.
#[derive(Debug)]
pub(crate) enum Inbound {
    Nothing,
    /// Of an HTTP/1.1 connection, which is to know whether all of it was read.
    One(Incoming, Arc<Pulse>),
    /// Of an HTTP/2 connection.
    Two {
        stream: RecvStream,
        /// Bytes to come, if the client has said so; `h2` holds it to its word.
        left: Option<u64>,
    },
    /// Read before, all of it, with its trailers. In a box, as it is rare.
    Kept(Box<(Bytes, Option<HeaderMap>)>),
}

impl Inbound {
    /// A request of HTTP/2.
    pub(crate) fn of_stream(request: Request<RecvStream>) -> Request<Self> {
        let (head, stream) = request.into_parts();
        // What follows CONNECT is a tunnel's, and there are none here.
        let body = match head.method == Method::CONNECT || stream.is_end_stream() {
            true => Self::Nothing,
            false => Self::Two { stream, left: length(&head.headers) },
        };
        Request::from_parts(head, body)
    }
}

impl Body for Inbound {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let mut frame = match self.get_mut() {
            Self::Nothing => return Poll::Ready(None),
            Self::Kept(kept) => {
                let (body, trailers) = &mut **kept;
                let data = Some(std::mem::take(body)).filter(|body| !body.is_empty());
                let frame = data.map(Frame::data).or_else(|| trailers.take().map(Frame::trailers));
                return Poll::Ready(frame.map(Ok));
            }
            Self::One(body, pulse) => {
                let frame = Pin::new(&mut *body).poll_frame(cx).map_err(io::Error::other);
                let more = match &frame {
                    Poll::Pending => true,
                    Poll::Ready(piece) => {
                        matches!(piece, Some(Ok(piece)) if piece.is_data()) && !body.is_end_stream()
                    }
                };
                pulse.note_unread(more);
                frame
            }
            Self::Two { stream, left } => poll_stream(stream, left, cx).map_err(io::Error::other),
        };
        if let Poll::Ready(Some(Ok(frame))) = &mut frame {
            headers::clean_request_trailers(frame);
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Nothing => true,
            Self::One(body, _) => body.is_end_stream(),
            Self::Two { stream, .. } => stream.is_end_stream(),
            Self::Kept(kept) => kept.0.is_empty() && kept.1.is_none(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Nothing => SizeHint::with_exact(0),
            Self::One(body, _) => body.size_hint(),
            Self::Kept(kept) => SizeHint::with_exact(kept.0.len() as u64),
            Self::Two { left, .. } => left.map_or_else(SizeHint::default, SizeHint::with_exact),
        }
    }
}

/// The length that all fields agree on.
fn length(headers: &HeaderMap) -> Option<u64> {
    let mut told = headers.get_all(CONTENT_LENGTH).iter();
    let first = told.next()?;
    told.all(|other| other == first).then(|| first.to_str().ok()?.parse().ok())?
}

/// The next piece. Its client may send as much again at once: it is the upstream that holds it back.
fn poll_stream(
    stream: &mut RecvStream,
    left: &mut Option<u64>,
    cx: &mut Context<'_>,
) -> Poll<Option<Result<Frame<Bytes>, h2::Error>>> {
    if let Some(piece) = ready!(stream.poll_data(cx)) {
        let piece = piece?;
        stream.flow_control().release_capacity(piece.len())?;
        *left = left.map(|left| left.saturating_sub(piece.len() as u64));
        return Poll::Ready(Some(Ok(Frame::data(piece))));
    }
    stream.poll_trailers(cx).map(|trailers| trailers.transpose().map(|it| it.map(Frame::trailers)))
}
