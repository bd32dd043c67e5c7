//! The services behind: which one takes a request, and the connections to it.
//!
//! Each thread has its own list and its own connections, so nothing here is fought over. A
//! connection of HTTP/1.1 carries one request at a time; one that is free lies on a stack, the
//! freshest on top, so that those at the bottom grow old and are closed when the load falls. One of
//! HTTP/2 carries all requests of its thread.

use std::collections::VecDeque;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;
use std::{fmt, io};

use bytes::Bytes;
use http::{Request, Response};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use hyper::client::conn::{TrySendError, http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tidegate_core::balance::{Load, two_choices};
use tidegate_core::rng::Rng;
use tidegate_core::{Instant, Span};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::config::{Address, ProxyConfig, Version};

/// A connection to send on.
#[derive(Debug)]
enum Sender {
    /// Takes one request at a time.
    One(http1::SendRequest<Upload>),
    /// Takes any number; others have it too.
    Two(http2::SendRequest<Upload>),
}

impl Sender {
    async fn send(
        &mut self,
        request: Request<Upload>,
    ) -> Result<Response<Incoming>, TrySendError<Request<Upload>>> {
        match self {
            Self::One(sender) => sender.try_send_request(request).await,
            Self::Two(sender) => sender.try_send_request(request).await,
        }
    }
}

/// Free connections kept per upstream and thread. Beyond, they are closed: at some 10 kB each,
/// 10 MB.
const MOST_IDLE: usize = 1024;
/// Free connections looked at for one that is ready. A connection is not when the upstream has
/// answered before it read the whole request.
const MOST_LOOKED_AT: usize = 4;
/// Upstreams tried for one request while none of it has been sent.
const MOST_TRIED: usize = 3;

/// The upstreams as one thread sees them.
#[derive(Debug)]
pub(crate) struct Upstreams {
    list: Vec<Arc<Upstream>>,
    rng: Mutex<Rng>,
    connect_timeout: Duration,
    response_timeout: Duration,
    idle_timeout: Span,
}

/// Why a request was not answered.
#[derive(Debug)]
pub(crate) enum Failure {
    /// No upstream could be connected to.
    Connect(io::Error),
    /// The connection broke, or what came was not HTTP.
    Broken(hyper::Error),
    /// No answer in time.
    Late,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connect(error) => write!(f, "cannot connect to the upstream: {error}"),
            Self::Broken(error) => write!(f, "the upstream broke off: {error}"),
            Self::Late => f.write_str("the upstream did not answer in time"),
        }
    }
}

impl Upstreams {
    /// The upstreams of `config`. Those that were there before keep their connections.
    pub(crate) fn new(
        config: &ProxyConfig,
        before: &[Arc<Upstream>],
        now: Instant,
        seed: u64,
    ) -> Self {
        let known = |address: &Address| {
            before.iter().find(|upstream| upstream.address == *address).cloned()
        };
        let list = config
            .upstreams
            .iter()
            .map(|address| known(address).unwrap_or_else(|| Arc::new(Upstream::new(address, now))))
            .collect();
        Self {
            list,
            rng: Mutex::new(Rng::new(seed)),
            connect_timeout: config.connect_timeout.into(),
            response_timeout: config.response_timeout.into(),
            idle_timeout: config.idle_timeout,
        }
    }

    /// What upstreams speak; they are replicas, and so all the same.
    pub(crate) fn version(&self) -> Version {
        self.list.first().map_or(Version::One, |upstream| upstream.address.version)
    }

    pub(crate) fn list(&self) -> &[Arc<Upstream>] {
        &self.list
    }

    /// Sends a request and waits for the head of its answer, at most for `limit`. Until something
    /// of it was sent, another connection and another upstream may be tried.
    pub(crate) async fn send(
        &self,
        now: Instant,
        mut request: Request<Upload>,
        limit: Option<Duration>,
    ) -> Result<(Response<Incoming>, Call), Failure> {
        let first = self.choose(now);
        let mut failure = None;
        for step in 0..self.list.len().min(MOST_TRIED) {
            let upstream = &self.list[(first + step) % self.list.len()];
            let mut call = upstream.begin(now, self.idle_timeout);
            loop {
                let fresh = call.sender.is_none();
                let sender = match &mut call.sender {
                    Some(sender) => sender,
                    none => match upstream.connect(self.connect_timeout).await {
                        Ok(sender) => none.insert(sender),
                        Err(error) => {
                            failure = Some(Failure::Connect(error));
                            break;
                        }
                    },
                };
                match self.exchange(sender, request, limit).await {
                    Ok(response) => return Ok((response, call)),
                    Err((Some(unsent), error)) => {
                        request = unsent;
                        failure = Some(error);
                        if fresh {
                            break;
                        }
                        call.sender = upstream.lane().take(now, self.idle_timeout);
                    }
                    Err((None, error)) => {
                        call.refused(now);
                        return Err(error);
                    }
                }
            }
            call.refused(now);
        }
        Err(failure.unwrap_or_else(|| Failure::Connect(io::ErrorKind::AddrNotAvailable.into())))
    }

    async fn exchange(
        &self,
        sender: &mut Sender,
        request: Request<Upload>,
        limit: Option<Duration>,
    ) -> Result<Response<Incoming>, (Option<Request<Upload>>, Failure)> {
        let moved = request.body().moved.clone();
        let mut answer = pin!(sender.send(request));
        let wait = limit.map_or(self.response_timeout, |limit| limit.min(self.response_timeout));
        loop {
            match timeout(wait, answer.as_mut()).await {
                Ok(Ok(response)) => return Ok(response),
                Ok(Err(mut error)) => {
                    let unsent = error.take_message();
                    return Err((unsent, Failure::Broken(error.into_error())));
                }
                // A long upload is not a slow answer, unless the request has a deadline.
                Err(_) if limit.is_none() && took_place(&moved) => {}
                Err(_) => return Err((None, Failure::Late)),
            }
        }
    }

    /// Two drawn at random, the less loaded of them. One that has never answered counts as quick as
    /// the other: not slower, so that it is tried, and not quicker, as it may do nothing but refuse.
    fn choose(&self, now: Instant) -> usize {
        if self.list.len() < 2 {
            return 0;
        }
        let drawn = two_choices(&mut lock(&self.rng), self.list.len());
        let Some((one, other)) = drawn else { return 0 };
        let look = |index: usize| {
            let lane = self.list[index].lane();
            (lane.load.pressure(now), lane.load.latency())
        };
        let ((pressure, latency), (other_pressure, other_latency)) = (look(one), look(other));
        let seconds = |known: Option<Span>, assumed: Option<Span>| {
            known.or(assumed).map_or(1.0, Span::as_secs_f64)
        };
        let score = pressure * seconds(latency, other_latency);
        let other_score = other_pressure * seconds(other_latency, latency);
        if other_score < score { other } else { one }
    }

    /// Closes connections that have been free for too long.
    pub(crate) fn sweep(&self, now: Instant) {
        for upstream in &self.list {
            upstream.lane().sweep(now, self.idle_timeout);
        }
    }
}

fn took_place(moved: &Option<Arc<AtomicBool>>) -> bool {
    moved.as_ref().is_some_and(|moved| moved.swap(false, Ordering::Relaxed))
}

/// One upstream as one thread sees it.
#[derive(Debug)]
pub(crate) struct Upstream {
    address: Address,
    lane: Mutex<Lane>,
}

/// What changes about an upstream.
#[derive(Debug)]
struct Lane {
    load: Load,
    /// Free connections and since when, the freshest last.
    idle: VecDeque<(http1::SendRequest<Upload>, Instant)>,
    /// The connection that all requests share, where the upstream speaks HTTP/2.
    shared: Option<http2::SendRequest<Upload>>,
}

impl Upstream {
    fn new(address: &Address, now: Instant) -> Self {
        let lane = Lane { load: Load::new(now), idle: VecDeque::new(), shared: None };
        Self { address: address.clone(), lane: Mutex::new(lane) }
    }

    /// Its address, how many requests it has, and how long its answers take.
    pub(crate) fn tell(&self) -> (String, u32, Option<Span>) {
        let lane = self.lane();
        (self.address.to_string(), lane.load.in_flight(), lane.load.latency())
    }

    fn lane(&self) -> MutexGuard<'_, Lane> {
        lock(&self.lane)
    }

    /// A request goes here, on a free connection if there is one.
    fn begin(self: &Arc<Self>, now: Instant, idle_timeout: Span) -> Call {
        let mut lane = self.lane();
        lane.load.on_send();
        let sender = lane.take(now, idle_timeout);
        drop(lane);
        Call { upstream: Arc::clone(self), sender, begun: now, ended: false }
    }

    async fn connect(&self, limit: Duration) -> io::Result<Sender> {
        let Address { version, host, port } = &self.address;
        let stream = timeout(limit, TcpStream::connect((host.as_str(), *port)))
            .await
            .map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
        stream.set_nodelay(true)?;
        let stream = TokioIo::new(stream);
        // How a connection ends is told to whoever waits for an answer, and nobody else's business.
        match version {
            Version::One => {
                let (sender, connection) =
                    http1::handshake(stream).await.map_err(io::Error::other)?;
                tokio::spawn(connection.with_upgrades());
                Ok(Sender::One(sender))
            }
            Version::Two => {
                let (sender, connection) = http2::Builder::new(TokioExecutor::new())
                    .timer(TokioTimer::new())
                    .handshake(stream)
                    .await
                    .map_err(io::Error::other)?;
                tokio::spawn(connection);
                // Of several made at once, the last is kept, and the others end with their requests.
                self.lane().shared = Some(sender.clone());
                Ok(Sender::Two(sender))
            }
        }
    }
}

impl Lane {
    fn take(&mut self, now: Instant, idle_timeout: Span) -> Option<Sender> {
        if let Some(shared) = &self.shared {
            if !shared.is_closed() {
                return Some(Sender::Two(shared.clone()));
            }
            self.shared = None;
        }
        self.sweep(now, idle_timeout);
        let mut at = self.idle.len();
        for _ in 0..MOST_LOOKED_AT {
            at = at.checked_sub(1)?;
            let sender = &self.idle[at].0;
            if sender.is_ready() {
                return self.idle.remove(at).map(|(sender, _)| Sender::One(sender));
            }
            if sender.is_closed() {
                self.idle.remove(at);
            }
        }
        None
    }

    fn put(&mut self, sender: Sender, now: Instant) {
        let Sender::One(sender) = sender else { return };
        if !sender.is_closed() && self.idle.len() < MOST_IDLE {
            self.idle.push_back((sender, now));
        }
    }

    fn sweep(&mut self, now: Instant, idle_timeout: Span) {
        while self.idle.front().is_some_and(|(_, since)| now.since(*since) >= idle_timeout) {
            self.idle.pop_front();
        }
    }
}

/// A request outstanding at an upstream. Dropped without a word it was given up: its connection is
/// closed, so that the upstream learns of it.
#[derive(Debug)]
pub(crate) struct Call {
    upstream: Arc<Upstream>,
    sender: Option<Sender>,
    begun: Instant,
    ended: bool,
}

impl Call {
    /// The last byte of the answer is here, and its head was at `head`. Only answers count as fast
    /// or slow; a refusal makes an upstream look loaded, however quick it is.
    pub(crate) fn answered(mut self, now: Instant, head: Instant, refused: bool) {
        self.ended = true;
        let mut lane = self.upstream.lane();
        if refused {
            lane.load.on_refusal(now);
        } else {
            lane.load.on_answer(head.since(self.begun));
        }
        if let Some(sender) = self.sender.take() {
            lane.put(sender, now);
        }
    }

    /// No answer.
    fn refused(mut self, now: Instant) {
        self.ended = true;
        self.upstream.lane().load.on_refusal(now);
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        if !self.ended {
            self.upstream.lane().load.on_cancel();
        }
    }
}

/// A request's body on its way to an upstream.
#[derive(Debug)]
pub(crate) struct Upload {
    body: Incoming,
    /// Set whenever a piece was passed on; none where there is nothing to pass on.
    moved: Option<Arc<AtomicBool>>,
}

impl Upload {
    pub(crate) fn new(body: Incoming) -> Self {
        let moved = (!body.is_end_stream()).then(Arc::default);
        Self { body, moved }
    }
}

impl Body for Upload {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let frame = Pin::new(&mut self.body).poll_frame(cx);
        if let (Poll::Ready(_), Some(moved)) = (&frame, &self.moved) {
            moved.store(true, Ordering::Relaxed);
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A panic elsewhere leaves counters and connections as they were.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
