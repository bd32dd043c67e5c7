//! [`Stream`]: one request, until the last of its answer is handed to the connection.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use h2::server::SendResponse;
use h2::{Reason, SendStream};
use http::header::{CONTENT_LENGTH, DATE};
use http::{HeaderValue, Response};
use http_body::Body;
use tokio::time::{Sleep, sleep};

use crate::headers;
use crate::metrics::Counter;

/// How long a client may leave a piece of an answer, and who counts those that leave it longer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience<'a> {
    pub(crate) limit: Duration,
    pub(crate) given_up: &'a Counter,
}

/// What resolves to an answer; empty once it has.
pub(super) type Answer<F> = Pin<Box<Option<F>>>;

/// A request on its way.
pub(super) struct Stream<'a, F, B> {
    answer: Answer<F>,
    respond: SendResponse<Bytes>,
    /// Whether the request was HEAD, whose answer has no body.
    head: bool,
    patience: Patience<'a>,
    sending: Option<Sending<'a, B>>,
}

/// An answer whose head is sent.
struct Sending<'a, B> {
    body: B,
    stream: SendStream<Bytes>,
    /// A piece that waits for the client to take more, and whether it is the last.
    held: Option<(Bytes, bool)>,
    patience: Patience<'a>,
    /// Set while the client takes nothing: pings keep a connection, and not what it leaves lying.
    limit: Option<Pin<Box<Sleep>>>,
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

impl<'a, F, B> Stream<'a, F, B>
where
    F: Future<Output = Result<Response<B>, Infallible>>,
    B: Body<Data = Bytes> + Unpin,
{
    /// A request that `answer` answers.
    pub(super) fn new(
        answer: Answer<F>,
        respond: SendResponse<Bytes>,
        head: bool,
        patience: Patience<'a>,
    ) -> Self {
        Self { answer, respond, head, patience, sending: None }
    }

    /// Ends; room for another answer is left.
    pub(super) fn into_room(mut self) -> Answer<F> {
        self.answer.set(None);
        self.answer
    }

    /// Goes on; ready at the end.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if let Some(answer) = self.answer.as_mut().as_pin_mut() {
            match answer.poll(cx) {
                Poll::Ready(Ok(answer)) => {
                    self.answer.set(None);
                    let Ok(mut sending) = self.send_head(answer) else { return Poll::Ready(()) };
                    // Kept only if it does not end at once, as most do: it is large.
                    let polled = sending.poll(cx);
                    if polled.is_pending() {
                        self.sending = Some(sending);
                    }
                    return polled.map(|Done| ());
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

    fn send_head(&mut self, answer: Response<B>) -> Result<Sending<'a, B>, Done> {
        let (mut head, body) = answer.into_parts();
        if !head.headers.contains_key(DATE) {
            head.headers.insert(DATE, headers::date());
        }
        let length = body.size_hint().exact();
        let end = self.head || body.is_end_stream();
        if let Some(length) = length.filter(|length| *length > 0)
            && !head.headers.contains_key(CONTENT_LENGTH)
        {
            head.headers.insert(CONTENT_LENGTH, HeaderValue::from(length));
        }
        let head = Response::from_parts(head, ());
        let stream = self.respond.send_response(head, end).inspect_err(|_| {
            // Of an upstream whose answer HTTP/2 cannot carry; nothing if the client has gone.
            self.break_off();
        })?;
        let patience = self.patience;
        if end {
            Err(Done)
        } else {
            Ok(Sending { body, stream, held: None, patience, limit: None })
        }
    }
}

impl<B: Body<Data = Bytes> + Unpin> Sending<'_, B> {
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
        if self.held.is_some() {
            return self.poll_held(cx);
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
                self.stream.reserve_capacity(piece.len());
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

    /// Hands over as much of what is held as the client takes now. What it leaves for too long is given
    /// up, with the request's place and all it holds; a few bytes now and then do not prolong that.
    fn poll_held(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Done>> {
        let Some((piece, last)) = &mut self.held else { return Poll::Ready(Ok(())) };
        while self.stream.capacity() == 0 {
            match self.stream.poll_capacity(cx) {
                Poll::Ready(Some(capacity)) => drop(capacity?),
                Poll::Ready(None) => return Poll::Ready(Err(Done)),
                Poll::Pending => {
                    let Patience { limit, given_up } = self.patience;
                    let limit = self.limit.get_or_insert_with(|| Box::pin(sleep(limit)));
                    ready!(limit.as_mut().poll(cx));
                    given_up.add(1);
                    self.stream.send_reset(Reason::CANCEL);
                    return Poll::Ready(Err(Done));
                }
            }
        }
        let part = piece.split_to(self.stream.capacity().min(piece.len()));
        let (whole, last) = (piece.is_empty(), *last);
        self.stream.send_data(part, whole && last)?;
        if whole {
            (self.held, self.limit) = (None, None);
        } else {
            self.stream.reserve_capacity(piece.len());
        }
        Poll::Ready(if whole && last { Err(Done) } else { Ok(()) })
    }
}
