//! HTTP/2 towards a client: all requests of a connection in one task.
//!
//! Frames, header compression, flow control and the limits on what a client may begin and abandon are
//! those of the crate `h2`. Around it there is no task and no channel per request: whoever is
//! woken on behalf of a connection, by the client's socket or by an upstream's, polls what was woken
//! and then writes everything there is to write at once.
//!
//! ```text
//!  client ──► link ──request──► stream: forward::serve ──► upstream
//!               ▲                  │
//!               └──head, pieces────┘     wakes: which of them to poll
//! ```

mod flood;
mod stream;
mod wakes;

use std::convert::Infallible;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use h2::server::{Builder, Connection as Link, SendResponse};
use http::{Method, Request, Response};
use http_body::Body;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::config::ConnectionsConfig;
use crate::inbound::Inbound;
pub(crate) use flood::Flood;
pub(crate) use stream::Patience;
use stream::{Answer, Stream};
use wakes::{Turn, Wakes};

/// Bytes of a request's body that a client may send before they are passed on. Default of hyper's
/// servers: a round trip of 80 ms at 100 Mbit/s.
const WINDOW: u32 = 1024 * 1024;
/// Bytes of all bodies on a connection: uploads that wait for their turn leave room for others.
const ALL_WINDOWS: u32 = 8 * WINDOW;
/// Bytes of an answer that are held for a client that takes them slowly.
const SEND_BUFFER: usize = 64 * 1024;
/// Requests that are polled before others on the thread have their turn, and as many may begin. Of a
/// connection with few of them one or two are woken at a time.
const POLLS: usize = 16;

/// Waits for the client's first words.
pub(crate) async fn accept<S>(
    io: S,
    limits: &ConnectionsConfig,
) -> Result<Link<S, Bytes>, h2::Error>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    Builder::new()
        .initial_window_size(WINDOW)
        .initial_connection_window_size(ALL_WINDOWS)
        .max_send_buffer_size(SEND_BUFFER)
        .max_header_list_size(u32::try_from(limits.header_bytes).unwrap_or(u32::MAX))
        .max_concurrent_streams(limits.streams)
        .handshake(io)
        .await
}

/// A connection, which is served to its end by whoever polls it.
pub(crate) struct Connection<'a, S, A, F, B> {
    link: Link<S, Bytes>,
    /// What answers a request.
    answer: A,
    patience: Patience<'a>,
    streams: Streams<'a, F, B>,
    wakes: Wakes,
}

/// The requests that are on their way, each in its place.
struct Streams<'a, F, B> {
    places: Vec<Option<Stream<'a, F, B>>>,
    free: Vec<usize>,
    /// Room for the next, left by the last that ended: it is large.
    room: Option<Answer<F>>,
}

impl<'a, S, A, F, B> Connection<'a, S, A, F, B>
where
    S: AsyncRead + AsyncWrite + Unpin,
    A: Fn(Request<Inbound>) -> F,
    F: Future<Output = Result<Response<B>, Infallible>>,
    B: Body<Data = Bytes> + Unpin,
{
    pub(crate) fn new(link: Link<S, Bytes>, answer: A, patience: Patience<'a>) -> Self {
        let streams = Streams { places: Vec::new(), free: Vec::new(), room: None };
        Self { link, answer, patience, streams, wakes: Wakes::new() }
    }

    /// Tells the client to begin nothing more, and ends once everything is answered.
    pub(crate) fn graceful_shutdown(self: Pin<&mut Self>)
    where
        A: Unpin,
    {
        let me = self.get_mut();
        me.link.graceful_shutdown();
        me.wakes.wake_link();
    }

    /// Reads and writes frames, and begins what is asked for: it is polled once all that came together
    /// has begun, and what they answer at once is written together. Ready at the end of the connection.
    fn poll_link(&mut self) -> Poll<()> {
        let Self { link, answer, patience, streams, wakes } = self;
        for _ in 0..POLLS {
            match link.poll_accept(&mut wakes.of_link()) {
                Poll::Ready(Some(Ok((request, respond)))) => {
                    let head = *request.method() == Method::HEAD;
                    let answer = answer(Inbound::of_stream(request));
                    wakes.start(streams.begin(answer, respond, head, *patience));
                }
                // How a connection ends is the client's business.
                Poll::Ready(Some(Err(_)) | None) => return Poll::Ready(()),
                Poll::Pending => return Poll::Pending,
            }
        }
        wakes.wake_link();
        Poll::Pending
    }
}

impl<S, A, F, B> Future for Connection<'_, S, A, F, B>
where
    S: AsyncRead + AsyncWrite + Unpin,
    A: Fn(Request<Inbound>) -> F + Unpin,
    F: Future<Output = Result<Response<B>, Infallible>>,
    B: Body<Data = Bytes> + Unpin,
{
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let me = self.get_mut();
        me.wakes.begin();
        let mut polls = POLLS;
        while polls > 0 {
            // The link comes last: it writes for all of them.
            while polls > 0
                && let Some(place) = me.wakes.next()
            {
                me.streams.poll(place, &me.wakes);
                polls -= 1;
            }
            if me.wakes.take_link() {
                polls = polls.saturating_sub(1);
                if me.poll_link().is_ready() {
                    return Poll::Ready(());
                }
            }
            if me.wakes.end(cx) == Turn::Over {
                return Poll::Pending;
            }
        }
        me.wakes.leave(cx);
        Poll::Pending
    }
}

impl<'a, F, B> Streams<'a, F, B>
where
    F: Future<Output = Result<Response<B>, Infallible>>,
    B: Body<Data = Bytes> + Unpin,
{
    /// The place of a new stream.
    fn begin(
        &mut self,
        answer: F,
        respond: SendResponse<Bytes>,
        head: bool,
        patience: Patience<'a>,
    ) -> usize {
        let answer = match self.room.take() {
            Some(mut room) => {
                room.set(Some(answer));
                room
            }
            None => Box::pin(Some(answer)),
        };
        let place = self.free.pop().unwrap_or_else(|| {
            self.places.push(None);
            self.places.len() - 1
        });
        self.places[place] = Some(Stream::new(answer, respond, head, patience));
        place
    }

    /// Lets a stream go on; its place is free once it is done.
    fn poll(&mut self, place: usize, wakes: &Wakes) {
        // Woken once more after its end, perhaps.
        let Some(stream) = self.places.get_mut(place).and_then(Option::as_mut) else { return };
        // What panics in one request must not end the others.
        let mut cx = wakes.of_stream(place);
        let polled = catch_unwind(AssertUnwindSafe(|| stream.poll(&mut cx)));
        if polled.is_err() {
            stream.break_off();
        }
        if !matches!(polled, Ok(Poll::Pending)) {
            self.room = self.places[place].take().map(Stream::into_room);
            self.free.push(place);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Counter;
    use http_body_util::Full;
    use std::time::Duration;
    use tokio::io::duplex;

    /// The one that panics is told so; those beside it and after it are answered.
    #[tokio::test]
    async fn a_panic_ends_its_own_request_alone() {
        let (ours, theirs) = duplex(1 << 16);
        let answer = async |request: Request<Inbound>| {
            tokio::task::yield_now().await;
            assert_ne!(request.uri().path(), "/panic", "on purpose");
            Ok(Response::new(Full::new(Bytes::from_static(b"fine"))))
        };
        let serve = async {
            let link = accept(ours, &ConnectionsConfig::default()).await.expect("HTTP/2");
            let given_up = Counter::default();
            let patience = Patience { limit: Duration::MAX, given_up: &given_up };
            Connection::new(link, answer, patience).await;
        };
        let ask = async {
            let (client, connection) = h2::client::handshake(theirs).await.expect("HTTP/2");
            let driven = tokio::spawn(connection);
            let mut client = client.ready().await.expect("open");
            let mut ask = |path: &str| {
                let request =
                    Request::get(format!("http://a{path}")).body(()).expect("well formed");
                client.send_request(request, true).expect("open").0
            };
            let (beside, bad) = (ask("/beside"), ask("/panic"));
            let error = bad.await.expect_err("it panicked");
            assert_eq!(error.reason(), Some(h2::Reason::INTERNAL_ERROR));
            assert_eq!(beside.await.expect("an answer").status(), 200);
            assert_eq!(ask("/after").await.expect("an answer").status(), 200);
            drop(client);
            driven.abort();
        };
        tokio::join!(serve, ask);
    }
}
