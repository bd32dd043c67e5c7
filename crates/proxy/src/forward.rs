//! The way of one request: into the gate, to an upstream, and back.

use std::future::poll_fn;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use http::header::{CONNECTION, CONTENT_TYPE, EXPECT, UPGRADE};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Version};
use http_body::Body;
use hyper_util::rt::TokioIo;
use tidegate_core::rng::Rng;
use tidegate_core::{
    Advice, Context, Feedback, Gate, Instant, Outcome, Progress, Rejection, Workflow,
};
use tidegate_driver::context;
use tidegate_http::identity;
use tidegate_http::wire::{self, Refusal};
use tokio::io::AsyncWriteExt;
use tokio::time::timeout;

use crate::abandoned;
use crate::body::{Beside, Entry, Held, ProxyBody};
use crate::config::{self, Percent, Trust};
use crate::entry::{Client, Known};
use crate::headers::{self, Peer};
use crate::inbound::Inbound;
use crate::inflight::{InFlight, Listed};
use crate::metrics::Counters;
use crate::reentry::{Origin, Reserved};
use crate::seats::Seat;
use crate::trace::Span;
use crate::upload::Upload;
use crate::upstream::{Call, Failure, Source};
use crate::verdict::Verdict;
use crate::worker::{Settings, Worker};
use crate::{edge, exempt, orca, outbound, spare, tunnel};

type Answer = Response<ProxyBody>;

/// What there is to know of a request before the gate is asked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    context: Context,
    /// Whose it is, through the proxies that we trust.
    address: IpAddr,
    /// Whether it came with a context that was taken, so that its sender understands feedback.
    listens: bool,
    /// Whether anything but an address says who the user is.
    named: bool,
    grpc: bool,
    origin: Origin,
    /// Whether its connection must end if nobody reads its body.
    long: bool,
}

impl Asked {
    /// A call of the guarded service.
    pub(crate) fn of_call(context: Context, address: IpAddr, request: &Request<Upload>) -> Self {
        let (grpc, long) = (wire::is_grpc(request.headers()), is_long(request));
        let origin = Origin::default();
        Self { context, address, listens: false, named: true, grpc, origin, long }
    }
}

/// Bytes of a body that hyper mostly has read with its head, and drops where nobody else reads them. What is
/// longer, or of unknown length, ends the connection, which its client then should hear.
const SHORT_BODY: u64 = 4 * 1024;

/// Answers a request: never an error, always a response.
pub(crate) async fn serve(worker: &Arc<Worker>, peer: &Peer, request: Request<Inbound>) -> Answer {
    let settings = worker.settings();
    let patience = settings.body_timeout.into();
    // From here on it stays where it is: it is large.
    let grpc = wire::is_grpc(request.headers());
    let mut request = request.map(|body| Upload::new(body, patience, grpc));
    if let Err(answer) = edge::clean(worker, &settings, peer, &mut request) {
        return *answer;
    }
    let now = worker.gate.now();
    let asked = ask(worker, &settings, &request, peer, now);
    if let Some(inside) = &worker.inside {
        inside.identify(request.headers_mut(), settings.trusts_ids, settings.sample);
    }
    let mut span = Span::begin(&settings, now, &mut request, &asked.context);
    if settings.ranks.is_exempt(request.uri().path()) {
        // Rare, and not to be carried by every request.
        match Box::pin(exempt::pass(worker, &settings, peer, &mut request, &asked, span)).await {
            Ok(answer) => return answer,
            Err(back) => span = back,
        }
    }
    if identity::is_exempt(&settings.long_paths, request.uri().path()) {
        return match last(worker, &settings, asked.address) {
            Ok(entry) => {
                span.passed();
                forward(worker, &settings, peer, &mut request, &asked, entry, span).await
            }
            Err(failure) => fail(worker, &failure),
        };
    }
    let entry = match admit(worker, &settings, &mut request, &asked, now).await {
        Ok(entry) => entry,
        Err(Failure::Refused(rejection)) => {
            span.refused(&rejection);
            spare::time().await;
            let answer = refuse(worker, &settings, &rejection, &asked);
            span.failed(answer.status());
            return answer;
        }
        Err(failure) => {
            let answer = fail(worker, &failure);
            span.failed(answer.status());
            return answer;
        }
    };
    span.admitted();
    let mut answer = forward(worker, &settings, peer, &mut request, &asked, entry, span).await;
    if asked.listens && !answer.headers().contains_key(wire::FEEDBACK) {
        let extensions = answer.extensions_mut();
        let behind = extensions.remove::<Behind>().map(|Behind(why)| why);
        let said = extensions.remove::<Said>().unwrap_or_default();
        let said = Said { rejection: said.rejection.or(behind), ..said };
        tell(worker, &mut answer, &asked.context, &said);
    }
    answer
}

/// Why a gate behind us refused: for whoever understands it.
#[derive(Clone, Copy)]
struct Behind(Rejection);
/// Asks an upstream in the name of many, with what `entry` holds.
pub(crate) async fn ask_for(
    worker: &Arc<Worker>,
    settings: &Settings,
    peer: &Peer,
    mut request: Request<Upload>,
    entry: Entry,
) -> Answer {
    let asked = ask(worker, settings, &request, peer, worker.gate.now());
    let mut span = Span::of_many(settings, &mut request, &asked.context);
    span.passed();
    forward(worker, settings, peer, &mut request, &asked, entry, span).await
}

/// Reads what the request says, as far as the client's word is taken. A timeout always is: it only
/// says when the client stops waiting.
fn ask(
    worker: &Worker,
    settings: &Settings,
    request: &Request<Upload>,
    peer: &Peer,
    now: Instant,
) -> Asked {
    let headers = request.headers();
    let trusted = settings.trust == Trust::Inside;
    let mentioned = wire::mentions_load(headers);
    let client = Client::of(&settings.strangers, headers, peer);
    let sender = settings.ranks.sender(headers, &client, peer.ip);
    let told = match trusted && mentioned {
        true => wire::context_of(headers, now, &worker.names.of(sender)),
        false => None,
    };
    let listens = matches!(told, Some(Ok(_)));
    let rule = settings.ranks.rule(request, client.address);
    let mut context = match told {
        Some(Ok(context)) => context,
        told => {
            worker.counters.malformed.add(u64::from(told.is_some()));
            let workflow = settings.ranks.workflow(rule, headers);
            let heard = |name| worker.names.of(sender).hear(now, name);
            let workflow = workflow.map_or(Workflow::NONE, heard);
            let rank = settings.ranks.rank(rule, headers, &client);
            Context { rank, workflow, ..Context::default() }
        }
    };
    context.rank = settings.ranks.stamp(context.rank);
    context.sender = sender;
    context.label = rule.map_or(0, Known::label);
    if trusted && mentioned {
        context.attempt = context.attempt.max(wire::attempt_of(headers).unwrap_or(0));
    }
    if let Some(patience) = mentioned.then(|| wire::timeout_of(headers)).flatten() {
        context.deadline = context.deadline.min(now + patience);
    }
    // Asked for only where a share is enforced.
    let named = worker.sideline.plays() && (listens || settings.ranks.names_user(headers, &client));
    let (grpc, long) = (wire::is_grpc(headers), is_long(request));
    let (context, origin) = (context::draw(context), worker.counters.reentry.origin(headers));
    Asked { context, address: client.address, listens, named, grpc, origin, long }
}

fn is_long(request: &Request<Upload>) -> bool {
    let length = request.body().size_hint().upper();
    request.version() <= Version::HTTP_11 && length.is_none_or(|it| it > SHORT_BODY)
}

/// Waits for a slot, and before that for as much of the body as is worth one.
async fn admit(
    worker: &Worker,
    settings: &Settings,
    request: &mut Request<Upload>,
    asked: &Asked,
    now: Instant,
) -> Result<Entry, Failure> {
    let enforced = worker.sideline.percent() == Percent::ALL;
    if !enforced || request.body().flow().is_none() || request.headers().contains_key(UPGRADE) {
        return Ok(enter(worker, now, asked).await?);
    }
    // Not to be carried by every request.
    Box::pin(async {
        // A client that waits for our word before it sends its body has it with a slot, which is then given back.
        if request.headers().contains_key(EXPECT) {
            let mut entry = enter(worker, now, asked).await?;
            entry.pause();
            await_body(worker, settings, asked.address, request.body_mut()).await?;
            if let Some(ticket) = entry.resume(asked.context.progress) {
                entry.go_on(ticket.await?);
            }
            return Ok(entry);
        }
        await_body(worker, settings, asked.address, request.body_mut()).await?;
        Ok(enter(worker, worker.gate.now(), asked).await?)
    })
    .await
}

/// A place for a request that lasts long.
fn last(worker: &Worker, settings: &Settings, address: IpAddr) -> Result<Entry, Failure> {
    let place = worker.counters.long.take(address, settings.places);
    place.map(Entry::Long).map_err(|lack| Failure::Lack("that last long", lack))
}

async fn await_body(
    worker: &Worker,
    settings: &Settings,
    address: IpAddr,
    body: &mut Upload,
) -> Result<(), Failure> {
    let Counters { uploads, turns, .. } = &*worker.counters;
    let place = || uploads.take(address, settings.places);
    body.begin(turns, address, place).await.map_err(Failure::of)?;
    body.part().await.map_err(Failure::of)
}

/// Waits for a slot. Where the gate is not fully enforced nothing waits, and what its model refuses
/// is refused only if this request is within the share.
async fn enter(worker: &Worker, now: Instant, asked: &Asked) -> Result<Entry, Rejection> {
    let (sideline, context) = (&worker.sideline, &asked.context);
    let reentry = &worker.counters.reentry;
    if let Some(reserved) = reserve(worker, now, asked) {
        return Ok(Entry::Reserved(reserved));
    }
    let beside =
        |probe| Beside { probe, holding: Some(reentry.hold(asked.origin)), measured: false };
    if !sideline.plays() {
        let slot = worker.gate.arrive_at(now, context)?.await?;
        return Ok(Entry::Slot(slot, beside(None)));
    }
    let percent = sideline.percent();
    let enforced = percent == Percent::ALL || within(percent, worker, asked);
    let verdict = sideline.arrive(now, context, enforced);
    if percent != Percent::ALL {
        return match verdict {
            Err(rejection) if enforced => Err(rejection),
            _ => Ok(Entry::Watched(sideline.begin(now, context, true))),
        };
    }
    let arrived = worker.gate.arrive_at(now, context);
    sideline.compare(verdict.is_err(), arrived.is_err());
    let slot = arrived?.await.inspect_err(|_| sideline.refused_from_queue())?;
    let probe = sideline.begin(worker.gate.now(), context, false);
    Ok(Entry::Slot(slot, beside(Some(probe))))
}

/// A place in the reserve, for a request that would wait behind itself.
fn reserve(worker: &Worker, now: Instant, asked: &Asked) -> Option<Reserved> {
    let reentry = &worker.counters.reentry;
    if !reentry.comes_back(asked.origin) || asked.context.deadline <= now {
        return None;
    }
    let waits = |gate: &Gate| gate.waiting() > 0 || gate.running() >= gate.slots();
    let slots = worker.gate.read(|gate| waits(gate).then(|| gate.slots()))?;
    reentry.reserve(asked.origin, slots)
}

/// Whether a request is within the share that is enforced. A user is, or is not, with all requests
/// and at every replica, as the user rank decides; a share that grows takes more users and loses
/// none. Requests of nobody in particular are taken one by one, evenly.
fn within(percent: Percent, worker: &Worker, asked: &Asked) -> bool {
    let drawn = match asked.named {
        // The rank itself would pick the least important users.
        true => Rng::new(u64::from(asked.context.rank.user())).unit(),
        false => worker.counters.jitter(),
    };
    percent.takes(drawn)
}

/// From the slot to the head of the answer; the body follows by itself.
pub(crate) async fn forward(
    worker: &Arc<Worker>,
    settings: &Settings,
    peer: &Peer,
    request: &mut Request<Upload>,
    asked: &Asked,
    mut entry: Entry,
    mut span: Span,
) -> Answer {
    let context = &asked.context;
    let scheme = settings.upstreams.scheme();
    let version = scheme.version();
    // HTTP/2 has other means for that, and no service speaks them without TLS.
    let upgrade = match version {
        config::Version::One => headers::upgrade(request, &settings.upgrades),
        config::Version::Two => None,
    };
    if upgrade.is_some() && worker.counters.tunnels.get() >= settings.connections.tunnels {
        // Nothing was asked of the service: the entry is dropped.
        worker.counters.tunnels_refused.add(1);
        span.failed(StatusCode::SERVICE_UNAVAILABLE);
        return plain(StatusCode::SERVICE_UNAVAILABLE, "there are too many tunnels\n");
    }
    // Rare, and not to be carried by every request.
    let client = upgrade.is_some().then(|| Upgrading::of(request, peer));
    let mut prepared = headers::prepare_request(request, peer, upgrade);
    if version == config::Version::Two {
        prepared = prepared.and_then(|()| headers::move_to_http2(request, scheme.is_secure()));
    }
    if let Err((status, why)) = prepared {
        // The request says nothing about the service's load: the entry is dropped.
        span.failed(status);
        return plain(status, why);
    }
    // The rank it has here is the one it keeps: calls that the service makes for it can pass it on.
    let (own, sent) = match outbound::leave(settings.outbound.as_ref(), context).await {
        Ok(left) => left,
        // Nothing was asked of the service: the entry is dropped.
        Err(rejection) => {
            span.refused(&rejection);
            let answer = refuse(worker, settings, &rejection, asked);
            span.failed(answer.status());
            return answer;
        }
    };
    let now = worker.gate.now();
    let passed_on = wire::write_context(&own, now, &worker.names);
    request.headers_mut().insert(wire::CONTEXT, asked.origin.add_to(passed_on));
    ask_for_less(settings, request.headers_mut(), entry.degraded());
    settings.ranks.name_rule(request.headers_mut(), context.label);
    let headers = request.headers();
    let list = |inside: &Arc<InFlight>| inside.list(headers, context, entry.request());
    let listed = worker.inside.as_ref().map_or_else(Listed::default, list);
    let left = (context.deadline != Instant::FAR).then(|| context.deadline.since(now));
    left.into_iter().for_each(|left| wire::shorten_timeouts(request.headers_mut(), left));
    let limit = left.map(Duration::from);
    let head = request.method() == Method::HEAD;
    let upstreams = &settings.upstreams;
    let leash = worker.counters.leashes.of(&worker.gate, entry.request());
    let sent_to = upstreams.send(worker, request, limit, None, context.progress, &mut entry);
    let leashes = &worker.counters.leashes;
    // Rare, and not to be carried by every request.
    let answered = match leash {
        None => sent_to.await,
        Some(mut leash) => {
            Box::pin(leashes.hold(&mut leash, sent_to)).await.unwrap_or(Err(Failure::Overdue))
        }
    };
    match answered {
        Ok((response, call)) => {
            sent.answered(&response);
            let status = response.status();
            span.answered(call.address(), response.status());
            let changes = status == StatusCode::SWITCHING_PROTOCOLS;
            entry.charge(settings.costs.unsaid());
            let cost = settings.costs.said(response.headers());
            cost.into_iter().for_each(|cost| entry.charge(cost));
            let (mut entry, said) = Said::of(worker, entry, &listed, status);
            // The work is done with the head: what follows lasts, and says nothing about how much the service can do.
            if changes || entry.is_the_gates() && lasts(&response, &call) {
                let place = last(worker, settings, asked.address);
                let outcome = Verdict::of_head(status, response.headers(), false).outcome;
                entry.take().finish(worker.gate.now(), outcome);
                match place {
                    Ok(place) => entry = place,
                    Err(failure) => {
                        abandoned::leave(worker, call, entry, None);
                        return fail(worker, &failure);
                    }
                }
            }
            match client.filter(|_| changes) {
                Some(client) => begin_tunnel(worker, *client, response, call, (entry, listed)),
                None => {
                    let response = complete(response, head, settings.body_timeout.into());
                    let mut answer = answer(worker, response, call, (entry, listed, span));
                    if let Some(said) = said {
                        answer.extensions_mut().insert(said);
                    }
                    answer
                }
            }
        }
        Err(failure) => {
            sent.failed();
            // A client that does not send its request says nothing about the service: the entry is dropped.
            if !failure.is_the_clients() {
                entry.finish(worker.gate.now(), Outcome::Fail);
            }
            let answer = match &failure {
                Failure::Refused(rejection) => refuse(worker, settings, rejection, asked),
                _ => fail(worker, &failure),
            };
            span.failed(answer.status());
            answer
        }
    }
}

/// Asks the service for a cheaper answer, if the gate does. What a stranger asks for in its name is dropped.
fn ask_for_less(settings: &Settings, headers: &mut HeaderMap, degraded: bool) {
    if settings.trust == Trust::Edge {
        headers.remove(wire::DEGRADE);
    }
    if degraded {
        headers.insert(wire::DEGRADE, wire::DEGRADED);
    }
}

/// What an answer says of what was done for it.
#[derive(Clone, Copy, Debug, Default)]
struct Said {
    progress: Progress,
    /// Why it is no answer.
    rejection: Option<Rejection>,
}

impl Said {
    /// What there is to say where calls are known for whose they are; also the entry, which has heard how long the
    /// service itself has worked. A failure because a call was refused is passed on as that refusal, and
    /// as one that nobody tries again: the layer right above it, this service, has been told what to do.
    fn of(
        worker: &Worker,
        entry: Entry,
        listed: &Listed,
        status: StatusCode,
    ) -> (Entry, Option<Self>) {
        let Some(done) = listed.done() else {
            return (entry, None);
        };
        let refused = done.refused.filter(|_| status.is_server_error());
        let rejection = refused.map(|it| Rejection { advice: Advice::Never, ..it });
        let progress = entry.request().and_then(|request| {
            worker.gate.input(|gate, now| {
                gate.on_step(now, request, done.own);
                gate.done(request)
            })
        });
        let said = Self { progress: progress.unwrap_or_default(), rejection };
        (entry.measured(), Some(said))
    }
}

/// Whether what follows the head of an answer lasts long by nature: a stream of events, or the answer to a request that is
/// not whole, so that both sides talk to each other.
fn lasts(response: &Response<Source>, call: &Call) -> bool {
    let kind = response.headers().get(CONTENT_TYPE).map(HeaderValue::as_bytes);
    let events = b"text/event-stream";
    let kind = kind.and_then(|kind| kind.get(..events.len()));
    kind.is_some_and(|kind| kind.eq_ignore_ascii_case(events)) || !call.is_whole()
}

/// The answer of an upstream, which gives back what it holds with its last byte.
pub(crate) fn answer(
    worker: &Arc<Worker>,
    response: Response<Source>,
    call: Call,
    (entry, listed, span): (Entry, Listed, Span),
) -> Answer {
    let status = response.status();
    let (mut parts, source) = response.into_parts();
    headers::remove_hop_by_hop(&mut parts.headers);
    let mentioned = wire::mentions_load(&parts.headers);
    let told = mentioned.then(|| wire::feedback_of(&parts.headers)).flatten().and_then(Result::ok);
    let busy = || told.as_ref().and_then(|told| told.feedback.utilization);
    if let Some(busy) = mentioned.then(|| orca::utilization(&parts.headers).or_else(busy)).flatten()
    {
        call.report(worker.gate.now(), busy);
    }
    if let Some(why) = told.and_then(|told| told.rejection) {
        parts.extensions.insert(Behind(why));
    }
    // The version is that of one connection too: HTTP/1.0 behind us must not close ours.
    parts.version = Version::HTTP_11;
    // What an upstream's own gate says is for us, not for our clients.
    if mentioned {
        headers::remove_reports(&mut parts.headers, worker.settings().trust);
    }
    let leash = worker.counters.leashes.of(&worker.gate, entry.request());
    let held = Held {
        worker: Arc::clone(worker),
        leash,
        entry,
        call,
        head: worker.gate.now(),
        verdict: Verdict::of_head(status, &parts.headers, mentioned),
        listed,
        span,
    };
    Response::from_parts(parts, ProxyBody::answer(source, held))
}

/// Of an answer that has no body, whatever follows its head: some servers tell its end by an empty frame.
/// That is waited for aside, as a stream that is given up looks like an attack to its server.
pub(crate) fn complete(
    response: Response<Source>,
    head: bool,
    patience: Duration,
) -> Response<Source> {
    let bodiless =
        head || [StatusCode::NO_CONTENT, StatusCode::NOT_MODIFIED].contains(&response.status());
    if !bodiless {
        return response;
    }
    response.map(|source| {
        if let Source::Stream(mut body) = source
            && !body.is_end_stream()
        {
            tokio::spawn(timeout(patience, async move {
                let mut next = async || poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await;
                while let Some(Ok(_)) = next().await {}
            }));
        }
        // Of which nothing is to come.
        Source::Call
    })
}

/// A client whose connection may change its protocol.
struct Upgrading {
    client: hyper::upgrade::OnUpgrade,
    seat: Option<Arc<Seat>>,
}

impl Upgrading {
    fn of<B>(request: &mut Request<B>, peer: &Peer) -> Box<Self> {
        Box::new(Self { client: hyper::upgrade::on(request), seat: peer.seat.clone() })
    }
}

/// Joins both sides of a connection that has changed its protocol.
fn begin_tunnel(
    worker: &Arc<Worker>,
    Upgrading { client, seat }: Upgrading,
    response: Response<Source>,
    mut call: Call,
    (entry, listed): (Entry, Listed),
) -> Answer {
    let worker = Arc::clone(worker);
    seat.iter().for_each(|seat| seat.become_tunnel());
    let limit = worker.settings().connections.tunnel_idle_timeout.into();
    tokio::spawn(async move {
        // Held to its end: it is a connection of its client's, and lasts long.
        let (_seat, _inside, _place) = (seat, listed, entry);
        let _open = worker.counters.tunnels.hold();
        if let (Ok(client), Some(upstream)) = (client.await, call.take_connection()) {
            let (mut client, (upstream, read)) = (TokioIo::new(client), upstream.into_parts());
            if client.write_all(&read).await.is_ok() && tunnel::join(client, upstream, limit).await
            {
                worker.counters.tunnels_idle.add(1);
            }
        }
    });
    let (parts, _) = response.into_parts();
    Response::from_parts(parts, ProxyBody::empty())
}

/// Our own 502, 504, 408 or 400.
pub(crate) fn fail(worker: &Worker, failure: &Failure) -> Answer {
    let (status, counter) = match failure {
        Failure::Connect(_) => (StatusCode::BAD_GATEWAY, &worker.counters.connect_failures),
        Failure::Broken(_) => (StatusCode::BAD_GATEWAY, &worker.counters.broken),
        Failure::Late => (StatusCode::GATEWAY_TIMEOUT, &worker.counters.late),
        Failure::Slow => (StatusCode::REQUEST_TIMEOUT, &worker.counters.slow_clients),
        Failure::Client(_) => (StatusCode::BAD_REQUEST, &worker.counters.broken_uploads),
        Failure::Lack(..) | Failure::Refused(_) | Failure::Overdue => {
            (StatusCode::SERVICE_UNAVAILABLE, &worker.counters.too_many_waiting)
        }
    };
    counter.add(1);
    // Addresses and errors are for operators (`/state`).
    plain(status, failure.told())
}

/// A refusal is a response, given before anything of the body was read.
pub(crate) fn refuse(
    worker: &Worker,
    settings: &Settings,
    rejection: &Rejection,
    asked: &Asked,
) -> Answer {
    let context = &asked.context;
    // Who learns ranks could look for a name that has a good one, so strangers do not.
    let rank = (settings.trust == Trust::Inside).then_some((context.rank, None));
    let jitter = worker.counters.jitter();
    let refusal = Refusal { rejection, rank, grpc: asked.grpc, jitter };
    let (status, headers, body) = refusal.response();
    let mut answer = Response::new(ProxyBody::text(body));
    *answer.status_mut() = status;
    *answer.headers_mut() = headers;
    if asked.long {
        answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    if asked.listens {
        let said = Said { rejection: Some(*rejection), ..Said::default() };
        tell(worker, &mut answer, context, &said);
    }
    settings.ranks.name_rule_of_refusal(answer.headers_mut(), settings.trust, context.label);
    answer
}

/// Feedback goes to callers that sent a context, and to nobody else.
fn tell(worker: &Worker, answer: &mut Answer, context: &Context, said: &Said) {
    let feedback = worker.gate.feedback(context.caller, context.workflow);
    let feedback = Feedback { progress: said.progress, ..feedback };
    if let Some(value) = wire::write_feedback(&feedback, said.rejection.as_ref()) {
        answer.headers_mut().insert(wire::FEEDBACK, value);
    }
}

pub(crate) fn plain(status: StatusCode, text: impl Into<bytes::Bytes>) -> Answer {
    let mut answer = Response::new(ProxyBody::text(text));
    *answer.status_mut() = status;
    let kind = HeaderValue::from_static("text/plain; charset=utf-8");
    answer.headers_mut().insert(CONTENT_TYPE, kind);
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The server copies it whole when a request comes; what is rare belongs in a box.
    #[test]
    fn the_future_of_a_request_is_small() {
        fn size<A, F: Future>(_of: impl FnOnce(A) -> F) -> usize {
            size_of::<F>()
        }
        type Call<'a> = (&'a Arc<Worker>, &'a Peer, Request<Inbound>);
        let bytes = size(|(worker, peer, request): Call<'_>| serve(worker, peer, request));
        assert!(bytes <= 2700, "{bytes} bytes");
    }
}
