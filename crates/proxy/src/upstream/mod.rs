//! The services behind: which one takes a request, and the connections to it.
//!
//! Each thread has its own list and its own connections, so nothing here is fought over.

mod call;
mod failure;
mod lane;
mod sender;

use std::future::poll_fn;
use std::io;
use std::ops::Range;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::Duration;

use http::header::{HOST, USER_AGENT};
use http::{Request, Response};
use tidegate_core::balance::two_choices;
use tidegate_core::rng::Rng;
use tidegate_core::{Instant, Progress, Rejection, Span};
use tidegate_driver::{Slot, Ticket};
use tokio::time::{Instant as Deadline, timeout, timeout_at};
use tokio_rustls::rustls::ClientConfig;

pub(crate) use self::call::Call;
pub(crate) use self::failure::Failure;
pub(crate) use self::lane::Upstream;
pub(crate) use self::sender::Source;
use crate::abandoned::UnderWay;
use crate::body::Entry;
use crate::config::{Address, HealthConfig, ProxyConfig, Scheme, Trust, Version};
use crate::h1::Unanswered;
use crate::headers;
use crate::health::{self, Peers};
use crate::upload::{Flow, News, Upload};
use crate::worker::Worker;

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
                        call.sender = upstream.share();
                    }
                    // What it has of the request is of no use.
                    Err((false, error)) if error.is_the_clients() => return Err(error),
                    Err((false, Failure::Late)) => {
                        upstream.peer.note(&Failure::Late);
                        call.doubt();
                        let now = worker.gate.now();
                        let patience = Duration::from(now.since(call.begun()));
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

/// A panic elsewhere leaves counters and connections as they were.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
