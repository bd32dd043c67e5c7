//! One client connection: what it speaks, how long it may be idle, slow or old, and its end.
//!
//! A watcher looks at the connection a few times per timeout and asks what has changed since. So the
//! path of a request reads no clock for this and sets no timer.
//!
//! | nothing moves and… | then |
//! |---|---|
//! | a request's head has begun | dropped after `header_timeout`: a slow loris |
//! | no request is on its way | told to end (GOAWAY, `connection: close`) after `idle_timeout` |
//! | an answer is there that the client does not take | dropped after `body_timeout`; over HTTP/2 the request is reset, and the connection then idle |
//! | a request is on its way and the client has ended its side | dropped at once: the client is gone |
//! | it is older than `max_age` | told to end once what it has asked for is answered |

use std::convert::Infallible;
use std::future::pending;
use std::io::{self, IoSlice};
use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::header::CONNECTION;
use http::{HeaderValue, Request};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::unconstrained;
use tokio::time::{Instant, sleep, timeout};
use tokio_rustls::TlsAcceptor;

use crate::body::ProxyBody;
use crate::certificate::Certificate;
use crate::config::{ConnectionsConfig, Version};
use crate::h2::Flood;
use crate::headers::Peer;
use crate::inbound::Inbound;
use crate::metrics::Counters;
use crate::rarely::Rarely;
use crate::seats::Seat;
use crate::socket::{Look, Socket};
use crate::tls;
use crate::worker::{Phase, Settings, Worker};
use crate::{egress, forward, h2, proxy_protocol};

/// Fields that hyper takes of a request if it is told nothing else.
const HYPER_HEADERS: usize = 100;
/// Bytes of an answer that are written as one piece.
const SHORT: usize = 1024;
/// Looks per timeout: it is exact to a quarter.
const LOOKS: u32 = 4;
/// Longest time, and most bytes, that are read of a client that was answered before all of its request had
/// come: as much as an upload sends meanwhile whose client looks for answers only at its end.
const LINGER: (Duration, usize) = (Duration::from_secs(1), 16 << 20);
/// Pause between looks at a client that has ended its side and waits for nothing.
const END_PAUSE: Duration = Duration::from_millis(10);
/// Time for requests that have reached the machine to be read before connections are told to end.
const LAST_CALL: Duration = Duration::from_millis(100);

/// Serves a connection to its end.
pub(crate) async fn serve(
    worker: Arc<Worker>,
    mut stream: TcpStream,
    mut peer: IpAddr,
    seat: Arc<Seat>,
    mut phase: watch::Receiver<Phase>,
) {
    let settings = worker.settings();
    let limit = Duration::from(settings.header_timeout);
    if settings.proxy_protocol {
        // Rare, and not to be carried by every connection.
        let told = Box::pin(timeout(limit, whose(&settings, &mut stream, peer)));
        peer = tokio::select! {
            biased;
            told = told => match told {
                Ok(Ok(address)) => address,
                Ok(Err(_)) | Err(_) => return worker.counters.unnamed.add(1),
            },
            () = draining(&mut phase) => return,
            () = seat.leave() => return,
        };
        if !worker.name(&seat, peer, &settings) {
            return;
        }
    }
    // Silent for too long, or gone, or no TLS: how a connection ends is the client's business.
    match &settings.tls {
        None => {
            let version = tokio::select! {
                biased;
                version = timeout(limit, spoken_on(&stream)) => version,
                () = draining(&mut phase) => return,
                () = seat.leave() => return,
            };
            drop(settings);
            if let Ok(Ok(version)) = version {
                let (stream, look) = Socket::new(stream);
                speak(worker, (stream, look), version, Peer::new(peer).on(seat), phase).await;
            }
        }
        Some(config) => {
            let (stream, look) = Socket::new(stream);
            let accepted = tokio::select! {
                biased;
                accepted =
                    timeout(limit, TlsAcceptor::from(Arc::clone(config)).accept(stream)) => accepted,
                () = draining(&mut phase) => return,
                () = seat.leave() => return,
            };
            drop(settings);
            let Ok(Ok(stream)) = accepted else {
                worker.counters.tls_failures.add(1);
                return;
            };
            let h2 = stream.get_ref().1.alpn_protocol() == Some(tls::H2);
            let version = if h2 { Version::Two } else { Version::One };
            let certificate = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
            let certificate = certificate.and_then(|der| Certificate::read(der));
            let peer = Peer::secured(peer, certificate.map(|it| it.identity())).on(seat);
            speak(worker, (stream, look), version, peer, phase).await;
        }
    }
}

/// Whose a connection from `peer` is, where the proxies before us say so first.
async fn whose(settings: &Settings, stream: &mut TcpStream, peer: IpAddr) -> io::Result<IpAddr> {
    match settings.strangers.hops.trusts(peer) {
        true => Ok(proxy_protocol::read(stream).await?.unwrap_or(peer)),
        false => Err(io::ErrorKind::PermissionDenied.into()),
    }
}

async fn speak<S>(
    worker: Arc<Worker>,
    (stream, look): (S, Look),
    version: Version,
    peer: Peer,
    mut phase: watch::Receiver<Phase>,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let pulse = peer.pulse();
    // Frames of HTTP/2 come without a request, too: there only answers tell the busy from the idle.
    let heads = version == Version::One;
    let flood = (!heads).then(|| (Flood::new(Instant::now()), Arc::clone(&worker.counters)));
    let io = Watched { stream, heads, flood, pulse: Arc::clone(&pulse) };
    // HTTP/2 is read whatever waits.
    let seen = heads.then_some(&look);
    let limits = worker.settings().connections.clone();
    let (worker, peer) = (&worker, &peer);
    let answer = |request: Request<Inbound>| {
        let active = Active::new(&pulse);
        // Made inside, where it stays: its future is large, and would be copied on the way.
        async move {
            let mut answer = match &worker.way_out {
                None => forward::serve(worker, peer, request).await,
                // Not to be carried by what comes in.
                Some(way) => Box::pin(egress::serve(worker, way, peer, request)).await,
            };
            if active.pulse.old.load(Ordering::Relaxed) {
                let close = HeaderValue::from_static("close");
                answer.headers_mut().insert(CONNECTION, close);
            }
            Ok::<_, Infallible>(answer.map(|body| Tracked::new(body, active)))
        }
    };
    // A macro, as the two kinds of connection share no trait.
    macro_rules! to_the_end {
        ($connection:expr) => {{
            let mut connection = pin!($connection);
            let told = pin!(verdict(&mut phase, worker, peer, &pulse, seen));
            let verdict = tokio::select! {
                biased;
                _ = connection.as_mut() => Verdict::Over,
                // Not held to what a task may do in a turn, as a busy connection uses all of it.
                verdict = Rarely::new(unconstrained(told)) => verdict,
            };
            match verdict {
                Verdict::Over | Verdict::Gone => {}
                Verdict::Drop => drop(worker.counters.slow_clients.add(1)),
                Verdict::End => {
                    connection.as_mut().graceful_shutdown();
                    // Whoever was told to end has no more time than anybody else to send a head.
                    tokio::select! {
                        _ = connection.as_mut() => {}
                        () = quiet(worker, &pulse) => {}
                        () = gone(seen, &pulse) => {}
                    }
                }
            }
        }};
    }
    match version {
        Version::One => {
            let mut server = http1::Builder::new();
            server.max_buf_size(limits.header_bytes);
            // What is hyper's own limit has its place on the stack; any other is a list for each request.
            if limits.headers != HYPER_HEADERS {
                server.max_headers(limits.headers);
            }
            let service = service_fn(|request: Request<Incoming>| {
                pulse.note_unread(!request.body().is_end_stream());
                answer(request.map(|body| match body.is_end_stream() {
                    true => Inbound::Nothing,
                    false => Inbound::One(body, Arc::clone(&pulse)),
                }))
            });
            to_the_end!(server.serve_connection(TokioIo::new(io), service).with_upgrades());
            // A socket that is closed with bytes unread is reset, and an answer may be lost by that.
            if pulse.is_cut() {
                look.discard(LINGER).await;
            }
        }
        Version::Two => {
            let settings = worker.settings();
            let (head, body) = (settings.header_timeout.into(), settings.body_timeout.into());
            drop(settings);
            let accepted = tokio::select! {
                biased;
                accepted = timeout(head, h2::accept(io, &limits)) => accepted,
                () = draining(&mut phase) => return,
            };
            if let Ok(Ok(link)) = accepted {
                let patience =
                    h2::Patience { limit: body, given_up: &worker.counters.slow_clients };
                to_the_end!(h2::Connection::new(link, answer, patience));
            }
        }
    }
}

/// What a watcher has found.
enum Verdict {
    /// It has ended.
    Over,
    /// Ended in good order.
    End,
    /// Dropped: it was slow on purpose, or is stuck.
    Drop,
    /// Dropped: nobody waits for an answer.
    Gone,
}

/// Resolves when the connection should end, for whatever reason.
async fn verdict(
    phase: &mut watch::Receiver<Phase>,
    worker: &Worker,
    peer: &Peer,
    pulse: &Pulse,
    look: Option<&Look>,
) -> Verdict {
    tokio::select! {
        biased;
        () = draining(phase) => Verdict::End,
        verdict = watch(worker, pulse, look.is_some()) => verdict,
        () = gone(look, pulse) => Verdict::Gone,
        // Of a head that has begun there is no telling when it will be whole.
        () = peer.leave() => if pulse.read().reading { Verdict::Gone } else { Verdict::End },
    }
}

/// Resolves once a client has ended its side while a request of it is on its way. hyper sees that only
/// where it reads: not while an upload waits, nor once something has come behind the request.
async fn gone(look: Option<&Look>, pulse: &Pulse) {
    let Some(look) = look else { return pending().await };
    loop {
        look.end().await;
        if pulse.read().active > 0 {
            return;
        }
        sleep(END_PAUSE).await;
    }
}

/// Watches until the connection should end.
async fn watch(worker: &Worker, pulse: &Pulse, heads: bool) -> Verdict {
    let mut age = Duration::ZERO;
    let mut quiet = Duration::ZERO;
    let mut last = pulse.read();
    loop {
        let settings = worker.settings();
        let head = Duration::from(settings.header_timeout);
        let body = Duration::from(settings.body_timeout);
        let ConnectionsConfig { idle_timeout, max_age, .. } = settings.connections;
        drop(settings);
        let (idle, max_age) = (Duration::from(idle_timeout), Duration::from(max_age));
        let pause =
            head.min(body).min(idle).min(if max_age.is_zero() { idle } else { max_age }) / LOOKS;
        sleep(pause).await;
        age += pause;
        let now = pulse.read();
        quiet = if now == last { quiet + pause } else { Duration::ZERO };
        last = now;
        if !max_age.is_zero() && age >= max_age {
            match heads {
                // Told with its next answer, as a client that is told nothing may just be sending.
                true => pulse.old.store(true, Ordering::Relaxed),
                false => return Verdict::End,
            }
        }
        match (now.active, now.reading) {
            (0, true) if quiet >= head => return Verdict::Drop,
            (0, false) if quiet >= idle => return Verdict::End,
            (1.., _) if now.offered > 0 && quiet >= body => return Verdict::Drop,
            _ => {}
        }
    }
}

/// Resolves once nothing has been asked or answered for `header_timeout`, or nothing has been taken of an
/// answer for `body_timeout`.
async fn quiet(worker: &Worker, pulse: &Pulse) {
    let settings = worker.settings();
    let head = Duration::from(settings.header_timeout);
    let body = Duration::from(settings.body_timeout);
    drop(settings);
    let pause = head.min(body) / LOOKS;
    let (mut quiet, mut last) = (Duration::ZERO, pulse.read());
    loop {
        sleep(pause).await;
        let now = pulse.read();
        quiet = if now == last { quiet + pause } else { Duration::ZERO };
        last = now;
        if now.active == 0 && quiet >= head || now.offered > 0 && quiet >= body {
            return;
        }
    }
}

async fn draining(phase: &mut watch::Receiver<Phase>) {
    // The sender outlives every worker; were it gone, this would be the end too.
    let _ = phase.wait_for(|phase| *phase >= Phase::Draining).await;
    sleep(LAST_CALL).await;
}

/// What moves on a connection. One thread writes it.
#[derive(Debug, Default)]
pub(crate) struct Pulse {
    /// Requests that are not answered to the last byte.
    active: AtomicU32,
    /// Requests so far.
    requests: AtomicU32,
    /// Answers that wait for the client, and not for the upstream.
    offered: AtomicU32,
    /// Changes with everything that is taken of an answer.
    taken: AtomicU32,
    /// Whether bytes have come since the last request began.
    reading: AtomicBool,
    /// Whether the next answer is the last.
    old: AtomicBool,
    /// Whether something of the last request was not read.
    unread: AtomicBool,
    /// Whether nothing more will be sent.
    shut: AtomicBool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Beat {
    active: u32,
    requests: u32,
    offered: u32,
    taken: u32,
    reading: bool,
}

/// Changes a number that one thread writes: for that, the processor need not lock its place.
fn change(number: &AtomicU32, by: i32) {
    number.store(number.load(Ordering::Relaxed).wrapping_add_signed(by), Ordering::Relaxed);
}

impl Pulse {
    /// Something of an answer was taken.
    fn take(&self) {
        change(&self.taken, 1);
    }

    /// Whether nobody waits for anything here.
    pub(crate) fn is_idle(&self) -> bool {
        self.active.load(Ordering::Relaxed) == 0
    }

    /// Whether there is more of the last request to be read.
    pub(crate) fn note_unread(&self, unread: bool) {
        self.unread.store(unread, Ordering::Relaxed);
    }

    /// Whether it was closed before all of a request was read.
    fn is_cut(&self) -> bool {
        self.shut.load(Ordering::Relaxed) && self.unread.load(Ordering::Relaxed)
    }

    fn read(&self) -> Beat {
        Beat {
            active: self.active.load(Ordering::Relaxed),
            requests: self.requests.load(Ordering::Relaxed),
            offered: self.offered.load(Ordering::Relaxed),
            taken: self.taken.load(Ordering::Relaxed),
            reading: self.reading.load(Ordering::Relaxed),
        }
    }
}

/// A request on its way.
#[derive(Debug)]
struct Active {
    pulse: Arc<Pulse>,
    /// Whether there is something of its answer to be taken: until that is asked for, and again with each
    /// piece that was there.
    offered: bool,
}

impl Active {
    fn new(pulse: &Arc<Pulse>) -> Self {
        change(&pulse.active, 1);
        change(&pulse.requests, 1);
        pulse.reading.store(false, Ordering::Relaxed);
        Self { pulse: Arc::clone(pulse), offered: false }
    }

    /// Its answer is there, or somebody has asked for more of it and more is there, or not.
    fn offer(&mut self, offered: bool) {
        self.pulse.take();
        match (self.offered, offered) {
            (false, true) => change(&self.pulse.offered, 1),
            (true, false) => change(&self.pulse.offered, -1),
            _ => {}
        }
        self.offered = offered;
    }
}

impl Drop for Active {
    fn drop(&mut self) {
        self.offer(false);
        change(&self.pulse.active, -1);
        // The rest of its own body may have been read meanwhile: no head has begun.
        self.pulse.reading.store(false, Ordering::Relaxed);
        change(&self.pulse.requests, 1);
    }
}

/// An answer, which keeps its request active to the last byte.
#[derive(Debug)]
struct Tracked {
    body: ProxyBody,
    active: Active,
}

impl Tracked {
    fn new(body: ProxyBody, mut active: Active) -> Self {
        active.offer(true);
        Self { body, active }
    }
}

impl Body for Tracked {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let frame = Pin::new(&mut self.body).poll_frame(cx);
        self.active.offer(frame.is_ready());
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A stream that tells when bytes have come and gone.
struct Watched<S> {
    stream: S,
    /// Whether bytes between two requests are the head of the next.
    heads: bool,
    /// Frames of HTTP/2 that ask for nothing, and who counts those that send too many.
    flood: Option<(Flood, Arc<Counters>)>,
    pulse: Arc<Pulse>,
}

impl<S: Unpin> Watched<S> {
    fn written(
        &mut self,
        write: impl FnOnce(Pin<&mut S>) -> Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        let result = write(Pin::new(&mut self.stream));
        if let Poll::Ready(written) = &result {
            self.pulse.take();
            if let (Some((flood, _)), Ok(bytes)) = (&mut self.flood, written) {
                flood.on_taken(*bytes);
            }
        }
        result
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let result = Pin::new(&mut self.stream).poll_read(cx, buffer);
        if self.heads && buffer.filled().len() > before {
            self.pulse.reading.store(true, Ordering::Relaxed);
        }
        if let Some((flood, counters)) = &mut self.flood
            && buffer.filled().len() > before
            && !flood.on_sent(&buffer.filled()[before..], Instant::now())
        {
            counters.floods.add(1);
            return Poll::Ready(Err(io::ErrorKind::InvalidData.into()));
        }
        result
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Watched<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.written(|stream| stream.poll_write(cx, bytes))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        // To copy a short answer costs less than the kernel's way of taking several pieces.
        let mut whole = [0; SHORT];
        let mut length = 0;
        for slice in slices {
            let Some(place) = whole.get_mut(length..length + slice.len()) else {
                return self.written(|stream| stream.poll_write_vectored(cx, slices));
            };
            place.copy_from_slice(slice);
            length += slice.len();
        }
        self.written(|stream| stream.poll_write(cx, &whole[..length]))
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.pulse.shut.store(true, Ordering::Relaxed);
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// What an HTTP/2 client says first (RFC 9113, 3.4), and no HTTP/1.1 request begins with.
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Pauses between looks at a preface that comes in pieces, which hardly any does: the first, and the
/// longest, to which they double.
const PEEK_PAUSES: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(100));

/// The version that the client begins with; its bytes stay to be read.
async fn spoken_on(stream: &TcpStream) -> io::Result<Version> {
    let mut begin = [0; PREFACE.len()];
    let (mut pause, longest) = PEEK_PAUSES;
    loop {
        let length = stream.peek(&mut begin).await?;
        if length == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if begin[..length] != PREFACE[..length] {
            return Ok(Version::One);
        }
        if length == PREFACE.len() {
            return Ok(Version::Two);
        }
        // What was peeked at hides the end behind it.
        if stream.ready(Interest::READABLE).await?.is_read_closed() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        sleep(pause).await;
        pause = (pause * 2).min(longest);
    }
}
