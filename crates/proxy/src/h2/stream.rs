//! [`Stream`]: one request, until the last of its answer is handed to the connection.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use h2::server::SendResponse;
use h2::{Reason, SendStream};
use http::header::{CONTENT_LENGTH, DATE};
use http::{HeaderValue, Response};
use http_body::Body;

use crate::headers;

/// A request on its way.
pub(super) struct Stream<F, B> {
    /// Resolves to the answer; none once it has.
    answer: Option<Pin<Box<F>>>,
    respond: SendResponse<Bytes>,
    /// Whether the request was HEAD, whose answer has no body.
    head: bool,
    sending: Option<Sending<B>>,
}

/// An answer whose head is sent.
struct Sending<B> {
    body: B,
    stream: SendStream<Bytes>,
    /// A piece that waits for the client to take more, and whether it is the last.
    held: Option<(Bytes, bool)>,
}

/// Steps that a stream may take at once, reading a piece of its upstream being one and handing it over
/// another. With as many streams as are polled in a turn that is half of what tokio lets a task do in one,
/// and the rest is for the socket.
const STEPS: usize = 4;

/// Nothing more is to be done for a stream: everything is handed over, or the client has given it up.
struct Done;

impl From<h2::Error> for Done {
    /// Errors of a stream are the client's: it has reset it, or is gone.
    fn from(_: h2::Error) -> Self {
        Self
    }
}

impl<F, B> Stream<F, B>
where
    F: Future<Output = Result<Response<B>, Infallible>>,
    B: Body<Data = Bytes> + Unpin,
{
    /// A request that `answer` answers.
    pub(super) fn new(answer: Pin<Box<F>>, respond: SendResponse<Bytes>, head: bool) -> Self {
        Self { answer: Some(answer), respond, head, sending: None }
    }

    /// Goes on; ready at the end.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if let Some(answer) = &mut self.answer {
            match answer.as_mut().poll(cx) {
                Poll::Ready(Ok(answer)) => {
                    self.answer = None;
                    match self.send_head(answer) {
                        Ok(sending) => self.sending = Some(sending),
                        Err(Done) => return Poll::Ready(()),
                    }
                }
                // A client that has given up waits no more: everything the request holds is dropped.
                Poll::Pending => return self.respond.poll_reset(cx).map(|_| ()),
            }
        }
        self.sending.as_mut().map_or(Poll::Ready(()), |sending| sending.poll(cx).map(|Done| ()))
    }

    /// Gives up: the client learns that it is the server's fault.
    pub(super) fn break_off(&mut self) {
        self.respond.send_reset(Reason::INTERNAL_ERROR);
    }

    fn send_head(&mut self, answer: Response<B>) -> Result<Sending<B>, Done> {
        let (mut head, body) = answer.into_parts();
        head.headers.entry(DATE).or_insert_with(headers::date);
        let length = body.size_hint().exact();
        let end = self.head || body.is_end_stream();
        if let Some(length) = length.filter(|length| *length > 0) {
            head.headers.entry(CONTENT_LENGTH).or_insert_with(|| HeaderValue::from(length));
        }
        let head = Response::from_parts(head, ());
        let stream = self.respond.send_response(head, end).inspect_err(|_| {
            // Of an upstream whose answer HTTP/2 cannot carry; nothing if the client has gone.
            self.break_off();
        })?;
        if end { Err(Done) } else { Ok(Sending { body, stream, held: None }) }
    }
}

impl<B: Body<Data = Bytes> + Unpin> Sending<B> {
    /// Goes on for a few pieces: they are written, and others have their turn, before there are more.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Done> {
        for _ in 0..STEPS {
            if let Err(done) = ready!(self.poll_piece(cx)) {
                return Poll::Ready(done);
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Hands over one piece. There is never more than one that the client cannot take yet, and then no
    /// more is read of the upstream.
    fn poll_piece(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Done>> {
        if let Some((piece, last)) = &mut self.held {
            while self.stream.capacity() == 0 {
                match ready!(self.stream.poll_capacity(cx)) {
                    Some(capacity) => drop(capacity.map_err(Done::from)?),
                    None => return Poll::Ready(Err(Done)),
                }
            }
            let (piece, last) = (std::mem::take(piece), *last);
            self.held = None;
            self.stream.send_data(piece, last)?;
            return Poll::Ready(if last { Err(Done) } else { Ok(()) });
        }
        let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(cx) else {
            return self.stream.poll_reset(cx).map(|_| Err(Done));
        };
        let frame = match frame {
            Some(Ok(frame)) => frame,
            Some(Err(_)) => {
                self.stream.send_reset(Reason::INTERNAL_ERROR);
                return Poll::Ready(Err(Done));
            }
            None => {
                self.stream.send_data(Bytes::new(), true)?;
                return Poll::Ready(Err(Done));
            }
        };
        match frame.into_data() {
            Ok(piece) if piece.is_empty() && !self.body.is_end_stream() => {}
            Ok(piece) if piece.is_empty() => {
                self.stream.send_data(piece, true)?;
                return Poll::Ready(Err(Done));
            }
            Ok(piece) => {
                // As little as can be: what is asked for and not used, others on the connection lack.
                self.stream.reserve_capacity(1);
                self.held = Some((piece, self.body.is_end_stream()));
            }
            Err(frame) => {
                if let Ok(trailers) = frame.into_trailers() {
                    self.stream.send_trailers(trailers)?;
                    return Poll::Ready(Err(Done));
                }
            }
        }
        Poll::Ready(Ok(()))
    }
}
