//! The services behind: which one takes a request, and the connections to it.
//!
//! Each thread has its own list and its own connections, so nothing here is fought over. A
//! connection of HTTP/1.1 carries one request at a time; one that is free lies on a stack, the
//! freshest on top, so that those at the bottom grow old and are closed when the load falls. One of
//! HTTP/2 carries all requests of its thread.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::ops::Range;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use std::{fmt, io, iter};

use bytes::Bytes;
use http::header::{HOST, USER_AGENT};
use http::{Request, Response};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use hyper::client::conn::{TrySendError, http2};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tidegate_core::balance::{Load, two_choices};
use tidegate_core::rng::Rng;
use tidegate_core::{Instant, Progress, Rejection, Span};
use tidegate_driver::{Slot, Ticket};
use tokio::time::{Instant as Deadline, timeout, timeout_at};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::ClientConfig;
use tokio_rustls::rustls::pki_types::ServerName;

use crate::abandoned::UnderWay;
use crate::body::Entry;
use crate::config::{Address, HealthConfig, ProxyConfig, Scheme, Trust, Version};
use crate::connect::connect;
use crate::h1::{Connection, Stream, Unanswered};
use crate::headers;
use crate::health::{self, Peer, Peers};
use crate::places::Lack;
use crate::resets::Resets;
use crate::upload::{Flow, News, Upload};
use crate::worker::Worker;

/// A connection to send on.
#[derive(Debug)]
enum Sender {
    /// Takes one request at a time.
    One(Box<Connection>),
    /// Takes any number; others have it too. With it the answer to what was begun.
    Two(Box<(http2::SendRequest<Upload>, Option<Answering>)>),
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
    /// Begins a request, which stays where it is if nothing of it is taken: it is large.
    fn begin(&mut self, request: &mut Request<Upload>) {
        match self {
            Self::One(connection) => connection.begin(request),
            Self::Two(own) => {
                let (sender, answering) = &mut **own;
                let sent = std::mem::replace(request, Request::new(Upload::empty()));
                if let Some(flow) = sent.body().flow() {
                    flow.share();
                }
                *answering = Some(Answering(Box::pin(sender.try_send_request(sent))));
            }
        }
    }

    /// The head of the answer to what was begun.
    fn poll_answer(&mut self, cx: &mut Context<'_>) -> Poll<Result<Response<Source>, Unanswered>> {
        match self {
            Self::One(connection) => {
                let answer = ready!(connection.poll_answer(cx));
                Poll::Ready(answer.map(|response| response.map(|()| Source::Call)))
            }
            Self::Two(own) => {
                let (_, answering) = &mut **own;
                let Some(Answering(answer)) = answering else { return Poll::Pending };
                let answer = ready!(answer.as_mut().poll(cx));
                *answering = None;
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
    /// There are too many requests like this that hold no slot.
    Lack(&'static str, Lack),
    /// It had to ask again for a slot, and got none.
    Refused(Box<Rejection>),
    /// Its place is no longer this process's.
    Overdue,
}

impl From<Rejection> for Failure {
    fn from(rejection: Rejection) -> Self {
        Self::Refused(Box::new(rejection))
    }
}

impl Failure {
    /// What is wrong with a body that was awaited.
    pub(crate) fn of(news: News) -> Self {
        match news {
            News::Broken(error) => Self::Client(error),
            News::Lack(lack) => Self::Lack("whose bodies are not there", lack),
            News::Slow | News::Still | News::Again => Self::Slow,
        }
    }

    /// Whether it says nothing about the upstream.
    pub(crate) fn is_the_clients(&self) -> bool {
        !matches!(self, Self::Connect(_) | Self::Broken(_) | Self::Late)
    }
}

impl Failure {
    /// What a client is told.
    pub(crate) fn told(&self) -> String {
        match self {
            Self::Connect(_) => "cannot connect to the upstream\n".to_owned(),
            Self::Broken(_) => "the upstream broke off\n".to_owned(),
            Self::Client(_) => "the request broke off\n".to_owned(),
            _ => format!("{self}\n"),
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
            Self::Lack(what, lack) => write!(f, "too many requests {what}: {lack}"),
            Self::Refused(rejection) => rejection.fmt(f),
            Self::Overdue => f.write_str("aborted: the lease of its place is over"),
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

    /// Longest time for the head of an answer.
    pub(crate) fn response_timeout(&self) -> Duration {
        self.response_timeout
    }

    /// When an upstream counts as well.
    pub(crate) fn health(&self) -> &HealthConfig {
        &self.health
    }

    /// Sends a request and waits for the head of its answer, at most for `limit`. Until something
    /// of it was sent, another connection and another upstream may be tried; `first` is the one to begin with,
    /// if it is well. If nobody waits any more, the upstream may go on, and `entry` with it.
    pub(crate) async fn send(
        &self,
        worker: &Arc<Worker>,
        request: &mut Request<Upload>,
        limit: Option<Duration>,
        first: Option<u8>,
        progress: Progress,
        entry: &mut Entry,
    ) -> Result<(Response<Source>, Call), Failure> {
        let mut failure = None;
        let now = worker.gate.now();
        for upstream in self.order(now, first) {
            let mut under_way =
                UnderWay::new(worker, entry, upstream.begin(now, self.idle_timeout));
            loop {
                let (call, _) = under_way.parts();
                let fresh = call.sender.is_none();
                if fresh {
                    // Rare, and large with all of TLS in it: not to be carried by every request.
                    let connect = upstream.connect(self.connect_timeout, self.tls.as_ref());
                    match Box::pin(connect).await {
                        Ok(sender) => call.sender = Some(sender),
                        Err(error) => {
                            failure = Some(Failure::Connect(error));
                            break;
                        }
                    }
                }
                let answer = self.exchange(under_way.parts(), request, limit, progress).await;
                let (call, _) = under_way.parts();
                match answer {
                    Ok(response) => return Ok((response, under_way.answered())),
                    Err((true, error)) => {
                        failure = Some(error);
                        if fresh {
                            break;
                        }
                        call.sender = upstream.lane().shared();
                    }
                    // What it has of the request is of no use.
                    Err((false, error)) if error.is_the_clients() => return Err(error),
                    Err((false, Failure::Late)) => {
                        upstream.peer.note(&Failure::Late);
                        upstream.doubt(call);
                        let now = worker.gate.now();
                        let patience = Duration::from(now.since(call.begun));
                        if patience >= self.response_timeout {
                            under_way.answered().failed(now, &self.health);
                        } else if patience >= self.witness {
                            upstream.peer.on_failure(now, &self.health);
                            upstream.lane().load.on_refusal(now);
                        }
                        return Err(Failure::Late);
                    }
                    Err((false, error)) => {
                        upstream.peer.note(&error);
                        under_way.answered().failed(worker.gate.now(), &self.health);
                        return Err(error);
                    }
                }
            }
            failure.iter().for_each(|failure| upstream.peer.note(failure));
            under_way.answered().failed(worker.gate.now(), &self.health);
        }
        Err(failure.unwrap_or_else(|| Failure::Connect(io::ErrorKind::AddrNotAvailable.into())))
    }

    /// One try, and whether another is allowed.
    async fn exchange(
        &self,
        (call, entry): (&mut Call, &mut Entry),
        request: &mut Request<Upload>,
        limit: Option<Duration>,
        progress: Progress,
    ) -> Result<Response<Source>, (bool, Failure)> {
        let flow = request.body().flow();
        flow.iter().for_each(|flow| flow.hold_slot(entry.has_slot()));
        call.begin(request);
        let wait = limit.map_or(self.response_timeout, |limit| limit.min(self.response_timeout));
        let answer = match flow {
            None => timeout(wait, poll_fn(|cx| call.poll_answer(cx))).await,
            // Not to be carried by those that have no body.
            Some(flow) => {
                let patience = (wait, limit.is_some());
                Ok(Box::pin(converse((call, entry), &flow, patience, progress))
                    .await
                    .map_err(|why| (false, why))?)
            }
        };
        match answer {
            Ok(Ok(response)) => Ok(response),
            Ok(Err(Unanswered { error, again, unsent })) => {
                unsent.into_iter().for_each(|unsent| *request = *unsent);
                Err((again, Failure::Broken(error)))
            }
            Err(_) => Err((false, Failure::Late)),
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

/// What happens while an answer is awaited.
enum Step {
    Answer(Result<Response<Source>, Unanswered>),
    News(News),
    /// For a body that goes on.
    Slot(Result<Slot, Rejection>),
}

/// Awaits the answer to a request whose body may still be coming. While that stands still it has no slot.
async fn converse(
    (call, entry): (&mut Call, &mut Entry),
    flow: &Flow,
    (wait, is_deadline): (Duration, bool),
    progress: Progress,
) -> Result<Result<Response<Source>, Unanswered>, Failure> {
    let mut end = Deadline::now() + wait;
    let mut ticket: Option<Ticket> = None;
    loop {
        let step = poll_fn(|cx| {
            if let Poll::Ready(answer) = call.poll_answer(cx) {
                return Poll::Ready(Step::Answer(answer));
            }
            if let Some(waits) = &mut ticket
                && let Poll::Ready(slot) = Pin::new(waits).poll(cx)
            {
                return Poll::Ready(Step::Slot(slot));
            }
            flow.poll_news(cx).map(Step::News)
        });
        match timeout_at(end, step).await {
            Ok(Step::Answer(answer)) => {
                flow.on_answer();
                return Ok(answer);
            }
            Ok(Step::Slot(slot)) => {
                ticket = None;
                entry.go_on(slot?);
                flow.hold_slot(true);
                if !is_deadline {
                    end = Deadline::now() + wait;
                }
            }
            Ok(Step::News(News::Still)) => entry.pause(),
            Ok(Step::News(News::Again)) => ticket = entry.resume(progress),
            Ok(Step::News(trouble)) => return Err(Failure::of(trouble)),
            // A long upload is not a slow answer, unless the request has a deadline.
            Err(_) if !is_deadline && flow.moves() => end = Deadline::now() + wait,
            Err(_) => return Err(Failure::Late),
        }
    }
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
        sender.begin(&mut request);
        let answer = poll_fn(|cx| sender.poll_answer(cx)).await.ok()?;
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
    /// Of the connection that all requests share.
    resets: Resets,
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
        let (lane, turn) = (Mutex::new(lane), AtomicUsize::new(0));
        Self { peer, lane, turn, resets: Resets::new(now) }
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
        let upstream = Arc::clone(self);
        Call { upstream, sender, begun: now, answers, flow: None, is_sent: false, ended: false }
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
        Ok(Sender::Two(Box::new((sender, None))))
    }
}

impl Lane {
    /// The connection that all share, if there is one.
    fn shared(&mut self) -> Option<Sender> {
        let now = tokio::time::Instant::now();
        self.shared.take_if(|(shared, until)| shared.is_closed() || now >= *until);
        self.shared.clone().map(|(shared, _)| Sender::Two(Box::new((shared, None))))
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
/// closed, or over HTTP/2 the request reset, so that the upstream learns of it.
#[derive(Debug)]
pub(crate) struct Call {
    upstream: Arc<Upstream>,
    sender: Option<Sender>,
    begun: Instant,
    /// Answers that had come by then.
    answers: u64,
    /// Of the body of what was begun.
    flow: Option<Arc<Flow>>,
    /// Whether the upstream has something of it, and has not begun to answer.
    is_sent: bool,
    ended: bool,
}

impl Call {
    fn begin(&mut self, request: &mut Request<Upload>) {
        self.flow = request.body().flow();
        self.is_sent = true;
        self.sender.iter_mut().for_each(|sender| sender.begin(request));
    }

    /// The head of the answer.
    pub(crate) fn poll_answer(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Response<Source>, Unanswered>> {
        let Some(sender) = &mut self.sender else { return Poll::Pending };
        let answer = ready!(sender.poll_answer(cx));
        self.is_sent = false;
        Poll::Ready(answer)
    }

    /// Whether the upstream has something of it, and has not begun to answer.
    pub(crate) fn is_sent(&self) -> bool {
        self.is_sent
    }

    /// Whether all of it was sent, or can be. Otherwise it never will.
    pub(crate) fn is_whole(&self) -> bool {
        match &self.sender {
            Some(Sender::One(connection)) if !connection.is_uploading() => true,
            _ => self.flow.as_ref().is_none_or(|flow| flow.is_whole()),
        }
    }

    /// Nothing more of it is to be sent.
    pub(crate) fn give_up(&self) {
        self.flow.iter().for_each(|flow| flow.give_up());
    }

    /// When it was begun.
    pub(crate) fn begun(&self) -> Instant {
        self.begun
    }

    /// Whether it can be dropped now without harm to others.
    pub(crate) fn may_end(&self, now: Instant) -> bool {
        self.ends_freely() || self.upstream.resets.take(now)
    }

    /// Whether it can be ended at any time.
    pub(crate) fn ends_freely(&self) -> bool {
        !matches!(self.sender, Some(Sender::Two(..)))
    }

    /// For how long to wait until it can.
    pub(crate) fn may_end_after(&self, now: Instant) -> Span {
        match self.sender {
            Some(Sender::Two(..)) => self.upstream.resets.book(now),
            _ => Span::ZERO,
        }
    }

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
    pub(crate) fn failed(mut self, now: Instant, health: &HealthConfig) {
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
