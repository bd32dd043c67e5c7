//! The services behind: which one takes a request, and the connections to it.
//!
//! Each thread has its own list and its own connections, so nothing here is fought over. A
//! connection of HTTP/1.1 carries one request at a time; one that is free lies on a stack, the
//! freshest on top, so that those at the bottom grow old and are closed when the load falls. One of
//! HTTP/2 carries all requests of its thread.

use std::collections::VecDeque;
use std::ops::Range;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;
use std::{fmt, io, iter};

use bytes::Bytes;
use http::header::{HOST, USER_AGENT};
use http::{Request, Response};
use http_body::{Frame, SizeHint};
use hyper::body::Incoming;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tidegate_core::balance::{Load, two_choices};
use tidegate_core::rng::Rng;
use tidegate_core::{Instant, Span};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::ClientConfig;
use tokio_rustls::rustls::pki_types::ServerName;

use crate::config::{Address, HealthConfig, ProxyConfig, Scheme, Trust, Version};
use crate::connect::connect;
use crate::h1::{Connection, Stream, Unanswered};
use crate::headers;
use crate::health::{self, Peer, Peers};
use crate::upload::Upload;

/// A connection to send on.
#[derive(Debug)]
enum Sender {
    /// Takes one request at a time.
    One(Box<Connection>),
    /// Takes any number; others have it too.
    Two(http2::SendRequest<Upload>),
}

/// Where the body of an answer comes from.
#[derive(Debug)]
pub(crate) enum Source {
    /// The connection of its [`Call`].
    Call,
    /// One stream of a connection that others have too.
    Stream(Incoming),
}

impl Sender {
    /// Sends a request, which stays where it is: it is large, and may have to be sent again.
    async fn send(
        &mut self,
        request: &mut Request<Upload>,
    ) -> Result<Response<Source>, Unanswered> {
        match self {
            Self::One(connection) => {
                connection.send(request).await.map(|response| response.map(|()| Source::Call))
            }
            // What is carried here is not to be carried by every request of HTTP/1.1.
            Self::Two(sender) => Box::pin(share(sender, request)).await,
        }
    }
}

/// Sends a request on a connection that others have too.
async fn share(
    sender: &mut http2::SendRequest<Upload>,
    request: &mut Request<Upload>,
) -> Result<Response<Source>, Unanswered> {
    let sent = std::mem::replace(request, Request::new(Upload::empty()));
    match sender.try_send_request(sent).await {
        Ok(response) => Ok(response.map(Source::Stream)),
        Err(mut error) => {
            let unsent = error.take_message();
            let again = unsent.is_some();
            unsent.into_iter().for_each(|unsent| *request = unsent);
            Err(Unanswered { error: io::Error::other(error.into_error()), again })
        }
    }
}

/// Free connections kept per upstream and thread. Beyond, they are closed: at some 10 kB each,
/// 10 MB.
const MOST_IDLE: usize = 1024;
/// How long a connection is used at least, and by how many steps some are used longer, up to twice as long: by judgement, a
/// minute or two after its name has got another address.
const AGE: Duration = Duration::from_secs(60);
const AGES: usize = 16;
/// For how long a connection waits for a body that HEAD should not have, which the next answer would begin with. Bodies come right
/// behind their heads.
const DOUBT: Span = Span::from_millis(500);
/// Most of these: whoever sends HEAD after HEAD must not open any number of connections to a service.
const MOST_IN_DOUBT: usize = 64;
/// Upstreams tried for one request while none of it has been sent.
const MOST_TRIED: usize = 3;

/// The upstreams as one thread sees them.
#[derive(Debug)]
pub(crate) struct Upstreams {
    list: Vec<Arc<Upstream>>,
    groups: Vec<Group>,
    health: HealthConfig,
    rng: Mutex<Rng>,
    tls: Option<Arc<ClientConfig>>,
    connect_timeout: Duration,
    response_timeout: Duration,
    /// For how long a request must have waited in vain to say something of an upstream.
    witness: Duration,
    idle_timeout: Span,
}

/// Why a request was not answered.
#[derive(Debug)]
pub(crate) enum Failure {
    /// No upstream could be connected to.
    Connect(io::Error),
    /// The connection broke, or what came was not HTTP.
    Broken(io::Error),
    /// No answer in time.
    Late,
    /// The client did not send its request in time.
    Slow,
    /// The client broke off, or what it sent was not HTTP.
    Client(io::Error),
}

impl Failure {
    /// Whether it says nothing about the upstream.
    pub(crate) fn is_the_clients(&self) -> bool {
        matches!(self, Self::Slow | Self::Client(_))
    }
}

impl Failure {
    /// What a client is told.
    pub(crate) fn told(&self) -> &'static str {
        match self {
            Self::Connect(_) => "cannot connect to the upstream\n",
            Self::Broken(_) => "the upstream broke off\n",
            Self::Late => "the upstream did not answer in time\n",
            Self::Slow => "the request did not come in time\n",
            Self::Client(_) => "the request broke off\n",
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connect(error) => write!(f, "cannot connect to the upstream: {error}"),
            Self::Broken(error) => write!(f, "the upstream broke off: {error}"),
            Self::Late => f.write_str("the upstream did not answer in time"),
            Self::Slow => f.write_str("the request did not come in time"),
            Self::Client(error) => write!(f, "the request broke off: {error}"),
        }
    }
}

impl Upstreams {
    /// The upstreams of `config`. Those that were there before keep their connections.
    pub(crate) fn new(
        config: &ProxyConfig,
        tls: Option<Arc<ClientConfig>>,
        before: &[Arc<Upstream>],
        peers: &Peers,
        (now, seed): (Instant, u64),
    ) -> Self {
        let known = |address: &Address| {
            before.iter().find(|upstream| upstream.peer.address() == address).cloned()
        };
        let new = |address| Arc::new(Upstream::new(peers.get(address), now));
        let list = config.addresses().map(|address| known(address).unwrap_or_else(|| new(address)));
        let list: Vec<Arc<Upstream>> = list.collect();
        let spill = config.spill.iter().map(|spill| (spill.upstreams.len(), spill.capacity));
        let mut start = 0;
        let groups = [(config.upstreams.len(), config.capacity)].into_iter().chain(spill);
        let groups = groups.map(|(count, capacity)| {
            start += count;
            Group { members: start - count..start, capacity }
        });
        Self {
            groups: groups.collect(),
            list,
            health: config.health.clone(),
            rng: Mutex::new(Rng::new(seed)),
            tls,
            connect_timeout: config.connect_timeout.into(),
            response_timeout: config.response_timeout.into(),
            // Strangers could have any upstream put out by asking for more than it can do in their time.
            witness: match config.trust {
                Trust::Edge => config.response_timeout.into(),
                Trust::Inside => config.response_timeout.min(config.health.timeout).into(),
            },
            idle_timeout: config.idle_timeout,
        }
    }

    /// How upstreams are spoken to; they are replicas, and so all the same.
    pub(crate) fn scheme(&self) -> Scheme {
        self.list.first().map_or(Scheme::Http, |upstream| upstream.peer.address().scheme)
    }

    pub(crate) fn list(&self) -> &[Arc<Upstream>] {
        &self.list
    }

    /// Which of the list has `call`.
    pub(crate) fn position(&self, call: &Call) -> Option<usize> {
        self.list.iter().position(|upstream| Arc::ptr_eq(upstream, &call.upstream))
    }

    /// Sends a request and waits for the head of its answer, at most for `limit`. Until something
    /// of it was sent, another connection and another upstream may be tried; `first` is the one to begin with,
    /// if it is well.
    pub(crate) async fn send(
        &self,
        clock: impl Fn() -> Instant,
        request: &mut Request<Upload>,
        limit: Option<Duration>,
        first: Option<u8>,
    ) -> Result<(Response<Source>, Call), Failure> {
        let mut failure = None;
        let now = clock();
        for upstream in self.order(now, first) {
            let mut call = upstream.begin(now, self.idle_timeout);
            loop {
                let fresh = call.sender.is_none();
                let sender = match &mut call.sender {
                    Some(sender) => sender,
                    // Rare, and large with all of TLS in it: not to be carried by every request.
                    none => {
                        match Box::pin(upstream.connect(self.connect_timeout, self.tls.as_ref()))
                            .await
                        {
                            Ok(sender) => none.insert(sender),
                            Err(error) => {
                                failure = Some(Failure::Connect(error));
                                break;
                            }
                        }
                    }
                };
                match self.exchange(sender, request, limit).await {
                    Ok(response) => return Ok((response, call)),
                    Err((true, error)) => {
                        failure = Some(error);
                        if fresh {
                            break;
                        }
                        call.sender = upstream.lane().shared();
                    }
                    // The call is dropped.
                    Err((false, error)) if error.is_the_clients() => return Err(error),
                    Err((false, error)) => {
                        upstream.peer.note(&error);
                        let now = clock();
                        let late = matches!(error, Failure::Late);
                        let patience = Duration::from(now.since(call.begun));
                        if late && patience >= self.response_timeout.min(self.health.timeout.into())
                        {
                            upstream.doubt(&call);
                        }
                        if !late || patience >= self.witness {
                            call.failed(now, &self.health);
                        }
                        return Err(error);
                    }
                }
            }
            failure.iter().for_each(|failure| upstream.peer.note(failure));
            call.failed(clock(), &self.health);
        }
        Err(failure.unwrap_or_else(|| Failure::Connect(io::ErrorKind::AddrNotAvailable.into())))
    }

    /// One try, and whether another is allowed.
    async fn exchange(
        &self,
        sender: &mut Sender,
        request: &mut Request<Upload>,
        limit: Option<Duration>,
    ) -> Result<Response<Source>, (bool, Failure)> {
        let flow = request.body().flow();
        let mut answer = pin!(sender.send(request));
        let wait = limit.map_or(self.response_timeout, |limit| limit.min(self.response_timeout));
        loop {
            match timeout(wait, answer.as_mut()).await {
                Ok(Ok(response)) => {
                    flow.iter().for_each(|flow| flow.on_answer());
                    return Ok(response);
                }
                Ok(Err(Unanswered { error, again })) => {
                    return Err(match flow {
                        Some(flow) if flow.is_slow() => (false, Failure::Slow),
                        Some(flow) if flow.is_broken() => (false, Failure::Client(error)),
                        _ => (again, Failure::Broken(error)),
                    });
                }
                // A long upload is not a slow answer, unless the request has a deadline.
                Err(_) if limit.is_none() && flow.as_ref().is_some_and(|flow| flow.moved()) => {}
                Err(_) => return Err((false, Failure::Late)),
            }
        }
    }

    /// Upstreams to try, the best first: of the first group with room two drawn at random, the less
    /// loaded of them; then others of that group; then those of the groups after it.
    fn order(&self, now: Instant, first: Option<u8>) -> impl Iterator<Item = &Arc<Upstream>> {
        let mut order = [None; MOST_TRIED];
        if let [only] = &*self.list {
            order[0] = Some(only);
        } else {
            self.fill(&mut order, now);
            let first = first.and_then(|first| self.list.get(usize::from(first)));
            if let Some(first) = first.filter(|first| first.peer.is_in(now)) {
                let same =
                    |it: &Option<&Arc<Upstream>>| it.is_some_and(|it| Arc::ptr_eq(it, first));
                let at = order.iter().position(same).unwrap_or(MOST_TRIED - 1);
                order[..=at].rotate_right(1);
                order[0] = Some(first);
            }
        }
        order.into_iter().flatten()
    }

    fn fill<'a>(&'a self, order: &mut [Option<&'a Arc<Upstream>>; MOST_TRIED], now: Instant) {
        let first = self.group(now);
        let mut places = order.iter_mut();
        for group in self.groups.iter().cycle().skip(first).take(self.groups.len()) {
            let members = &self.list[group.members.clone()];
            let usable: Vec<_> = health::usable(members, |upstream| &upstream.peer, now).collect();
            let chosen = self.choose(&usable, now);
            for upstream in usable.iter().cycle().skip(chosen).take(usable.len()) {
                let Some(place) = places.next() else { return };
                *place = Some(*upstream);
            }
        }
    }

    /// The first group that has room and somebody who is well; if none has, the least full.
    fn group(&self, now: Instant) -> usize {
        let full = |group: &Group| {
            let members = &self.list[group.members.clone()];
            let in_flight: u64 = members.iter().map(|upstream| upstream.peer.in_flight()).sum();
            let full = if group.capacity > 0.0 { in_flight as f64 / group.capacity } else { 0.0 };
            let well = members.iter().any(|upstream| upstream.peer.is_in(now));
            if well { full } else { f64::INFINITY }
        };
        let full: Vec<f64> = self.groups.iter().map(full).collect();
        let least = || full.iter().enumerate().min_by(|(_, one), (_, other)| one.total_cmp(other));
        let room = full.iter().position(|full| *full < 1.0);
        room.or_else(|| least().map(|(at, _)| at)).unwrap_or(0)
    }

    /// Two drawn at random, the less loaded of them. One that has never answered counts as quick as
    /// the other: not slower, so that it is tried, and not quicker, as it may do nothing but refuse.
    fn choose(&self, among: &[&Arc<Upstream>], now: Instant) -> usize {
        let drawn = two_choices(&mut lock(&self.rng), among.len());
        let Some((one, other)) = drawn.filter(|(one, other)| one != other) else { return 0 };
        let look = |index: usize| {
            let lane = among[index].lane();
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

    /// Closes connections that have been free for too long, or that the upstream has closed.
    pub(crate) fn sweep(&self, now: Instant) {
        for upstream in &self.list {
            let mut lane = upstream.lane();
            lane.close_old(now, self.idle_timeout);
            lane.idle.retain(|(connection, _)| connection.is_ready());
        }
    }
}

/// Upstreams that share a capacity.
#[derive(Clone, Debug)]
struct Group {
    /// Which of the list.
    members: Range<usize>,
    /// In requests at once; 0 is no limit.
    capacity: f64,
}

/// Asks an upstream for `path` on a connection of its own: whether the answer is good.
pub(crate) async fn probe(
    address: &Address,
    tls: Option<Arc<ClientConfig>>,
    path: &str,
    limit: Duration,
) -> bool {
    let upstream = Upstream::new(Peers::default().get(address), Instant::ZERO);
    let ask = async {
        let mut sender = upstream.connect(limit, tls.as_ref()).await.ok()?;
        let mut request = Request::get(path).header(HOST, address.authority());
        request = request.header(USER_AGENT, "tidegate-health");
        let mut request = request.body(Upload::empty()).ok()?;
        let two = address.scheme.version() == Version::Two;
        if two {
            headers::move_to_http2(&mut request, address.scheme.is_secure()).ok()?;
        }
        let answer = sender.send(&mut request).await.ok()?;
        Some((200..400).contains(&answer.status().as_u16()))
    };
    timeout(limit, ask).await.ok().flatten().unwrap_or(false)
}

/// One upstream as one thread sees it.
#[derive(Debug)]
pub(crate) struct Upstream {
    peer: Arc<Peer>,
    lane: Mutex<Lane>,
    /// Whose turn it is of the addresses that its name has.
    turn: AtomicUsize,
}

/// What changes about an upstream.
#[derive(Debug)]
struct Lane {
    load: Load,
    /// Free connections and since when, the freshest last.
    idle: VecDeque<(Box<Connection>, Instant)>,
    /// Those of which a body may come that none should, and since when, the last at the end.
    in_doubt: VecDeque<(Box<Connection>, Instant)>,
    /// The connection that all requests share, and until when, where the upstream speaks HTTP/2.
    shared: Option<(http2::SendRequest<Upload>, tokio::time::Instant)>,
    /// Answers that came, for whoever wonders whether the connection still lives.
    answers: u64,
}

impl Upstream {
    fn new(peer: Arc<Peer>, now: Instant) -> Self {
        let lane = Lane {
            load: Load::new(now),
            idle: VecDeque::new(),
            in_doubt: VecDeque::new(),
            shared: None,
            answers: 0,
        };
        Self { peer, lane: Mutex::new(lane), turn: AtomicUsize::new(0) }
    }

    /// Its address, and how long its answers take.
    pub(crate) fn latency(&self) -> (String, Option<Span>) {
        (self.peer.address().to_string(), self.lane().load.latency())
    }

    fn lane(&self) -> MutexGuard<'_, Lane> {
        lock(&self.lane)
    }

    /// A request goes here, on a free connection if there is one.
    fn begin(self: &Arc<Self>, now: Instant, idle_timeout: Span) -> Call {
        let mut lane = self.lane();
        lane.load.on_send();
        let sender = lane.take(now, idle_timeout);
        let answers = lane.answers;
        drop(lane);
        self.peer.on_send();
        Call { upstream: Arc::clone(self), sender, begun: now, answers, ended: false }
    }

    /// A call was not answered, and none since it began: whoever comes next does not share its connection. One that a firewall
    /// has forgotten swallows what is sent for a quarter of an hour.
    fn doubt(&self, call: &Call) {
        let mut lane = self.lane();
        if lane.answers == call.answers {
            lane.shared = None;
        }
    }

    async fn connect(
        &self,
        limit: Duration,
        tls: Option<&Arc<ClientConfig>>,
    ) -> io::Result<Sender> {
        let late = |_| io::Error::from(io::ErrorKind::TimedOut);
        let Address { scheme, host, port } = self.peer.address();
        timeout(limit, async {
            let stream = connect(host, *port, &self.turn).await?;
            stream.set_nodelay(true)?;
            let stream = match tls.filter(|_| scheme.is_secure()) {
                None => Stream::Plain(stream),
                Some(config) => {
                    let name = ServerName::try_from(host.clone()).map_err(io::Error::other)?;
                    let connector = TlsConnector::from(Arc::clone(config));
                    Stream::Secure(Box::new(connector.connect(name, stream).await?))
                }
            };
            match scheme.version() {
                Version::One => {
                    Ok(Sender::One(Box::new(Connection::new(stream, self.end_of_age()))))
                }
                Version::Two => self.shake_hands(stream).await,
            }
        })
        .await
        .map_err(late)?
    }

    /// Until when a connection that is made now is used: not all of them end at once.
    fn end_of_age(&self) -> tokio::time::Instant {
        let spread = self.turn.load(Ordering::Relaxed) % AGES;
        tokio::time::Instant::now() + AGE * u32::try_from(AGES + spread).unwrap_or(1) / AGES as u32
    }

    /// How a connection ends is told to whoever waits for an answer, and nobody else's business.
    async fn shake_hands(&self, stream: Stream) -> io::Result<Sender> {
        let (sender, connection) = http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .handshake(TokioIo::new(stream))
            .await
            .map_err(io::Error::other)?;
        tokio::spawn(connection);
        // Of several made at once, the last is kept, and the others end with their requests.
        self.lane().shared = Some((sender.clone(), self.end_of_age()));
        Ok(Sender::Two(sender))
    }
}

impl Lane {
    /// The connection that all share, if there is one.
    fn shared(&mut self) -> Option<Sender> {
        let now = tokio::time::Instant::now();
        self.shared.take_if(|(shared, until)| shared.is_closed() || now >= *until);
        self.shared.clone().map(|(shared, _)| Sender::Two(shared))
    }

    fn take(&mut self, now: Instant, idle_timeout: Span) -> Option<Sender> {
        self.close_old(now, idle_timeout);
        self.shared().or_else(|| {
            // One that the upstream has closed meanwhile is dropped.
            iter::from_fn(|| self.idle.pop_back())
                .map(|(connection, _)| connection)
                .find(|connection| connection.is_ready())
                .map(Sender::One)
        })
    }

    fn put(&mut self, sender: Sender, now: Instant) {
        let Sender::One(connection) = sender else { return };
        if !connection.is_free() || connection.is_old() {
            return;
        }
        let (free, most) = match connection.is_in_doubt() {
            true => (&mut self.in_doubt, MOST_IN_DOUBT),
            false => (&mut self.idle, MOST_IDLE),
        };
        if free.len() < most {
            free.push_back((connection, now));
        }
    }

    fn close_old(&mut self, now: Instant, idle_timeout: Span) {
        while self.idle.front().is_some_and(|(_, since)| now.since(*since) >= idle_timeout) {
            self.idle.pop_front();
        }
        while self.in_doubt.front().is_some_and(|(_, since)| now.since(*since) >= DOUBT) {
            let connection = self.in_doubt.pop_front().map(|(connection, _)| connection);
            let ready = connection.filter(|connection| connection.is_ready());
            self.idle.extend(ready.map(|connection| (connection, now)));
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
    /// Answers that had come by then.
    answers: u64,
    ended: bool,
}

impl Call {
    /// The last byte of the answer is here, and its head was at `head`. Only answers count as fast
    /// or slow; a refusal makes an upstream look loaded, however quick it is.
    pub(crate) fn answered(mut self, now: Instant, head: Instant, refused: bool) {
        self.ended = true;
        self.upstream.peer.on_end();
        self.upstream.peer.on_answer();
        let mut lane = self.upstream.lane();
        lane.answers += 1;
        if refused {
            lane.load.on_refusal(now);
        } else {
            lane.load.on_answer(head.since(self.begun));
        }
        if let Some(sender) = self.sender.take() {
            lane.put(sender, now);
        }
    }

    fn connection(&mut self) -> Option<&mut Connection> {
        match &mut self.sender {
            Some(Sender::One(connection)) => Some(connection),
            _ => None,
        }
    }

    /// The next piece of an answer whose source is this call.
    pub(crate) fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        self.connection().map_or(Poll::Ready(None), |connection| connection.poll_frame(cx))
    }

    /// What is known of the length of such an answer; exactly nothing at its end.
    pub(crate) fn size_hint(&self) -> SizeHint {
        match &self.sender {
            Some(Sender::One(connection)) => connection.size_hint(),
            _ => SizeHint::with_exact(0),
        }
    }

    /// The connection itself, for whatever is spoken on it from now on.
    pub(crate) fn take_connection(&mut self) -> Option<Connection> {
        match self.sender.take() {
            Some(Sender::One(connection)) => Some(*connection),
            _ => None,
        }
    }

    /// Where it went.
    pub(crate) fn address(&self) -> &Address {
        self.upstream.peer.address()
    }

    /// The upstream has told how busy it is.
    pub(crate) fn report(&self, now: Instant, utilization: f32) {
        self.upstream.peer.on_report(now, utilization);
        self.upstream.lane().load.on_utilization(utilization);
    }

    /// No answer.
    fn failed(mut self, now: Instant, health: &HealthConfig) {
        self.ended = true;
        self.upstream.peer.on_end();
        self.upstream.peer.on_failure(now, health);
        self.upstream.lane().load.on_refusal(now);
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        if !self.ended {
            self.upstream.peer.on_end();
            self.upstream.lane().load.on_cancel();
        }
    }
}

/// A panic elsewhere leaves counters and connections as they were.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
