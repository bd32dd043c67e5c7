//! [`Sender`]: a connection to send on, whichever version of HTTP it speaks.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::{fmt, io};

use bytes::Bytes;
use http::{Request, Response};
use http_body::{Body, Frame};
use hyper::body::Incoming;
use hyper::client::conn::{TrySendError, http2};

use super::call::Call;
use crate::h1::{Connection, Unanswered};
use crate::upload::Upload;

/// A connection to send on.
#[derive(Debug)]
pub(super) enum Sender {
    /// Takes one request at a time.
    One(Box<Connection>),
    /// Takes any number; others have it too.
    Two(Box<Own>),
}

/// One request's own part of a connection that others have too.
#[derive(Debug)]
pub(super) struct Own {
    /// Which connection it is.
    pub(super) number: u64,
    sender: http2::SendRequest<Upload>,
    /// The answer to what was begun.
    answering: Option<Answering>,
}

/// The answer to a request on a connection that others have too. Dropped, the request is reset.
struct Answering(Pin<Box<dyn Future<Output = Shared> + Send>>);

type Shared = Result<Response<Incoming>, TrySendError<Request<Upload>>>;

impl fmt::Debug for Answering {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Answering")
    }
}

/// Where the body of an answer comes from.
#[derive(Debug)]
pub(crate) enum Source {
    /// The connection of its [`Call`].
    Call,
    /// One stream of a connection that others have too.
    Stream(Incoming),
}

impl Source {
    /// The next piece of the answer to `call`; none at its end.
    pub(crate) fn poll_frame(
        &mut self,
        call: Option<&mut Call>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        match self {
            Self::Call => call.map_or(Poll::Ready(None), |call| call.poll_frame(cx)),
            Self::Stream(body) => Pin::new(body).poll_frame(cx).map_err(io::Error::other),
        }
    }
}

impl Sender {
    /// A part of the connection with this number.
    pub(super) fn shared(number: u64, sender: http2::SendRequest<Upload>) -> Self {
        Self::Two(Box::new(Own { number, sender, answering: None }))
    }

    /// Begins a request, which stays where it is if nothing of it is taken: it is large.
    pub(super) fn begin(&mut self, request: &mut Request<Upload>) {
        match self {
            Self::One(connection) => connection.begin(request),
            Self::Two(own) => {
                let sent = std::mem::replace(request, Request::new(Upload::empty()));
                if let Some(flow) = sent.body().flow() {
                    flow.share();
                }
                own.answering = Some(Answering(Box::pin(own.sender.try_send_request(sent))));
            }
        }
    }

    /// The head of the answer to what was begun.
    pub(super) fn poll_answer(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Response<Source>, Unanswered>> {
        match self {
            Self::One(connection) => {
                let answer = ready!(connection.poll_answer(cx));
                Poll::Ready(answer.map(|response| response.map(|()| Source::Call)))
            }
            Self::Two(own) => {
                let Some(Answering(answer)) = &mut own.answering else { return Poll::Pending };
                let answer = ready!(answer.as_mut().poll(cx));
                own.answering = None;
                Poll::Ready(answer.map(|response| response.map(Source::Stream)).map_err(
                    |mut error| {
                        let unsent = error.take_message().map(Box::new);
                        let error = io::Error::other(error.into_error());
                        Unanswered { error, again: unsent.is_some(), unsent }
                    },
                ))
            }
        }
    }
}
