//! The way of one call that the guarded service sends out: whose it is, whether it may leave, and what its
//! answer teaches.
//!
//! 1. The call is matched to the request it is made for ([`InFlight`]) and goes on with its rank, its
//!    workflow and its attempt, and with what is left of its deadline.
//! 2. The caller of that service says when it leaves and to which replica, and the gate in front hears that it
//!    was wanted.
//! 3. What the replica's gate says goes to the caller, and to the gate in front: cursors, rates and
//!    progress. So a request that will be refused below is refused at the entry.
//! 4. What a gate refused with the advice *elsewhere* was not begun. It goes to another replica at once, if there is no body or
//!    it was kept, and the budget of retries allows it. Nothing else is sent twice.
//!
//! A call that is matched to nothing leaves all the same, unranked, and is counted.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, PoisonError, RwLock};
use std::task::{Context as TaskContext, Poll, ready};
use std::time::Duration;
use std::{io, mem};

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response};
use http_body::Body;
use tidegate_core::caller::Next;
use tidegate_core::config::ConfigError;
use tidegate_core::gate::CalleeId;
use tidegate_core::throttle::Answer as Told;
use tidegate_core::{Advice, Caller, Context, Feedback, Instant, Outcome, Progress, Rejection};
use tidegate_driver::timer::Timer;
use tidegate_driver::{Clock, Departure, Monotonic, SharedCaller};
use tidegate_http::wire;
use tokio::time::timeout;

use crate::body::{Entry, ProxyBody};
use crate::config::{Egress, Version};
use crate::forward::{self, Asked};
use crate::headers::{self, Peer};
use crate::inbound::Inbound;
use crate::inflight::{By, Calling, Found, InFlight, Listed};
use crate::metrics::Counter;
use crate::trace::Span;
use crate::upload::{Flow, News, Upload};
use crate::upstream::{Call, Failure, Source};
use crate::worker::{Settings, Worker};

type Answer = Response<ProxyBody>;

const GRPC_TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");

/// Longest time for the rest of a refusal that nobody wants any more, so that its connection can be used again.
const REST: Duration = Duration::from_secs(1);

/// A service that is called, as all threads see it.
#[derive(Debug)]
pub(crate) struct WayOut {
    /// Who it is to the gate in front: counted from 1, in the order of the file.
    pub(crate) callee: CalleeId,
    pub(crate) inside: Arc<InFlight>,
    pub(crate) counts: Counts,
    terms: RwLock<Arc<Terms>>,
    timer: Timer,
}

/// What a reload changes.
#[derive(Debug)]
pub(crate) struct Terms {
    pub(crate) egress: Egress,
    caller: SharedCaller,
}

/// What happened to calls.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    /// As in [`By::ALL`].
    pub(crate) matched: [Counter; By::ALL.len()],
    /// Matched to no request.
    pub(crate) unranked: Counter,
    /// Rejected here: they were not sent.
    pub(crate) rejected: Counter,
    /// Refused by the service, and not answered by another replica after all.
    pub(crate) refused: Counter,
    /// Sent to another replica.
    pub(crate) retries: Counter,
}

/// The call itself, without the request that carries it.
struct Outgoing<'a> {
    worker: &'a Arc<Worker>,
    way: &'a WayOut,
    settings: &'a Settings,
    terms: Arc<Terms>,
    context: Context,
    found: Option<Found>,
    calling: Option<Calling>,
    grpc: bool,
}

impl WayOut {
    pub(crate) fn new(
        callee: CalleeId,
        egress: &Egress,
        inside: Arc<InFlight>,
        clock: Monotonic,
        seed: u64,
    ) -> Result<Self, ConfigError> {
        let terms = RwLock::new(Arc::new(Terms::new(egress, clock, seed)?));
        Ok(Self { callee, inside, counts: Counts::default(), terms, timer: Timer::default() })
    }

    /// What the file says of it.
    pub(crate) fn terms(&self) -> Arc<Terms> {
        Arc::clone(&self.terms.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Calls from now on go by `egress`. What is known of its replicas stays if they do.
    pub(crate) fn reconfigure(&self, egress: &Egress, clock: Monotonic) -> Result<(), ConfigError> {
        let before = self.terms();
        let terms = if before.egress.upstreams == egress.upstreams {
            before.caller.input(|caller, now| caller.reconfigure(now, &egress.caller))?;
            Terms { egress: egress.clone(), caller: before.caller.clone() }
        } else {
            Terms::new(egress, clock, clock.now().as_nanos())?
        };
        *self.terms.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(terms);
        Ok(())
    }
}

impl Terms {
    fn new(egress: &Egress, clock: Monotonic, seed: u64) -> Result<Self, ConfigError> {
        let caller = Caller::new(&egress.caller, egress.upstreams.len(), clock.now(), seed)?;
        Ok(Self { egress: egress.clone(), caller: SharedCaller::with_clock(caller, clock) })
    }
}

/// Sends a call out: never an error, always a response.
pub(crate) async fn serve(
    worker: &Arc<Worker>,
    way: &WayOut,
    peer: &Peer,
    request: Request<Inbound>,
) -> Answer {
    let settings = worker.settings();
    let patience: Duration = settings.body_timeout.into();
    let grpc = wire::is_grpc(request.headers());
    let mut request = request.map(|body| Upload::new(body, patience, grpc));
    let outgoing = Outgoing::of(worker, way, &settings, &request);
    let asked = Asked::of_call(outgoing.context, peer.ip, &request);
    if let Err((status, why)) = prepare(&mut request, peer, &settings) {
        return forward::plain(status, why);
    }
    let kept = match Kept::of(&mut request, outgoing.terms.egress.keep_body).await {
        Ok(kept) => kept,
        Err(failure) => return forward::fail(worker, &failure),
    };
    match outgoing.send(&mut request, kept).await {
        Ok(answer) => answer,
        Err(rejection) => {
            way.counts.rejected.add(1);
            outgoing.calling.iter().for_each(|calling| calling.refused(&rejection));
            let mut answer = forward::refuse(worker, &settings, &rejection, &asked);
            tell(&mut answer, &rejection);
            answer
        }
    }
}

fn prepare(
    request: &mut Request<Upload>,
    peer: &Peer,
    settings: &Settings,
) -> Result<(), headers::Unfit> {
    let scheme = settings.upstreams.scheme();
    headers::prepare_request(request, peer, None)?;
    match scheme.version() {
        Version::One => Ok(()),
        Version::Two => headers::move_to_http2(request, scheme.is_secure()),
    }
}

impl<'a> Outgoing<'a> {
    /// Matches the call to the request it is made for.
    fn of(
        worker: &'a Arc<Worker>,
        way: &'a WayOut,
        settings: &'a Settings,
        request: &Request<Upload>,
    ) -> Self {
        let (headers, now) = (request.headers(), worker.gate.now());
        let found = way.inside.find(headers);
        // A service that knows us may have changed what it copied, or call for nobody in particular.
        let told = wire::context_of(headers, now, &worker.names).and_then(Result::ok);
        let matched = match (&found, told) {
            (_, Some(_)) => Some(By::Context),
            (Some(found), None) => Some(found.by),
            (None, None) => None,
        };
        match matched {
            Some(by) => way.counts.matched[by as usize].add(1),
            None => way.counts.unranked.add(1),
        }
        let own =
            |found: Found| Context { attempt: found.context.attempt, ..found.context.inherit() };
        let context = match (found, told) {
            // Of a copy that is as it was written, what stands in the table is more exact.
            (Some(found), Some(_)) if found.by == By::Context => own(found),
            (found, Some(told)) => {
                let of = found.map_or_else(Context::default, |found| found.context);
                Context {
                    deadline: told.deadline.min(of.deadline),
                    attempt: told.attempt.max(of.attempt),
                    ..told.inherit()
                }
            }
            (Some(found), None) => own(found),
            (None, None) => Context::default(),
        };
        let patience = wire::timeout_of(headers).map_or(Instant::FAR, |patience| now + patience);
        let context = Context {
            rank: settings.ranks.stamp(context.rank),
            deadline: context.deadline.min(patience),
            attempt: context.attempt.max(wire::attempt_of(headers).unwrap_or(0)),
            ..context
        };
        let calling = found.as_ref().map(|found| way.inside.begin(found));
        let (terms, grpc) = (way.terms(), wire::is_grpc(headers));
        Self { worker, way, settings, terms, context, found, calling, grpc }
    }

    /// Sends the call as often as its caller says, and answers with the last answer; with a rejection if it may not leave.
    async fn send(
        &self,
        request: &mut Request<Upload>,
        kept: Option<Kept>,
    ) -> Result<Answer, Rejection> {
        let Self { worker, way, settings, context, .. } = self;
        let caller = &self.terms.caller;
        self.want();
        let mut call = caller.submit(context)?;
        loop {
            let departure = way.timer.leave(caller, &mut call).await?;
            self.label(request, &departure.context);
            let deadline = departure.context.deadline;
            let left = deadline.since(worker.gate.now());
            let limit = (deadline != Instant::FAR).then(|| Duration::from(left));
            // There are at most 64.
            let to = u8::try_from(departure.endpoint).ok();
            // Outside of the gate that stands before the service: nothing there waits for it.
            let (mut outside, progress) = (Entry::Outside, context.progress);
            let send = settings.upstreams.send(worker, request, limit, to, progress, &mut outside);
            let sent = send.await;
            let (response, upstream) = match sent {
                Ok(answered) => answered,
                Err(failure) => {
                    if !failure.is_the_clients() {
                        call.respond(Told::Done(Outcome::Fail), None);
                    }
                    return Ok(forward::fail(worker, &failure));
                }
            };
            let (heard, feedback) = self.learn(&departure, &response, &upstream);
            let again = kept.as_ref().filter(|_| heard.may_go_elsewhere());
            let last = if again.is_some() { heard.answer } else { without_retry(heard.answer) };
            match (call.respond(last, feedback.as_ref()), again) {
                (Next::Retry, Some(kept)) => {
                    way.counts.retries.add(1);
                    finish(worker, response, upstream);
                    *request = kept.request();
                }
                // That the budget is spent is news; that this request cannot be sent twice is its service's to know.
                (Next::Over(spent), Some(_)) => {
                    return Ok(self.answer(request, response, upstream, spent));
                }
                _ => return Ok(self.answer(request, response, upstream, heard.answer)),
            }
        }
    }

    /// The gate in front hears that the call is wanted, whether or not it leaves; and the service below, with the
    /// call, of requests that were refused in its name.
    fn want(&self) {
        let (callee, workflow) = (self.way.callee, self.context.workflow);
        let sheds = self.worker.gate.input(|gate, now| {
            gate.on_call(now, callee, workflow);
            gate.take_sheds(callee)
        });
        if sheds.count > 0 {
            self.terms.caller.input(|caller, _| caller.note_sheds(sheds));
        }
    }

    /// Writes on the call what travels with it.
    fn label(&self, request: &mut Request<Upload>, context: &Context) {
        let now = self.worker.gate.now();
        let context = Context { progress: self.progress().unwrap_or(context.progress), ..*context };
        let headers = request.headers_mut();
        headers.insert(wire::CONTEXT, wire::write_context(&context, now, &self.worker.names));
        if context.deadline == Instant::FAR {
            return;
        }
        let left = context.deadline.since(now);
        wire::shorten_timeouts(headers, left);
        if self.grpc && !headers.contains_key(GRPC_TIMEOUT) {
            let text = HeaderValue::try_from(wire::grpc_timeout_text(left));
            headers.insert(GRPC_TIMEOUT, text.expect("digits and a letter"));
        }
        let named = self.terms.egress.deadline_header.as_ref();
        if let Some(Ok(name)) = named.map(|name| name.parse::<HeaderName>()) {
            headers.insert(name, HeaderValue::from(left.as_nanos() / 1_000_000));
        }
    }

    /// How far the request has come that the call is made for.
    fn progress(&self) -> Option<Progress> {
        let (request, calling) = (self.found?.request?, self.calling.as_ref()?);
        let mut progress = self.worker.gate.read(|gate| gate.progress(request))?;
        progress.add_step(calling.own());
        Some(progress)
    }

    /// What an answer says: to the caller, and to the gate in front. Progress of calls made at the same time is
    /// divided by how many they were.
    fn learn<B>(
        &self,
        departure: &Departure,
        response: &Response<B>,
        upstream: &Call,
    ) -> (Heard, Option<Feedback>) {
        let (status, headers) = (response.status(), response.headers());
        let message = wire::feedback_of(headers);
        self.worker.counters.malformed.add(u64::from(matches!(message, Some(Err(_)))));
        let message = message.and_then(Result::ok);
        let feedback = message.map(|message| message.feedback);
        feedback.iter().for_each(|feedback| self.pass_up(feedback));
        let rejection = message.and_then(|message| message.rejection);
        let answer = match rejection.or_else(|| wire::refusal_of(status, headers)) {
            Some(rejection) => Told::Refused(rejection),
            None if status.is_server_error() => Told::Done(Outcome::Fail),
            None => Told::Done(Outcome::Serve),
        };
        let caller = &self.terms.caller;
        let at = self.settings.upstreams.position(upstream).unwrap_or(departure.endpoint);
        if let (None, Some(load)) = (&feedback, wire::load_of(headers)) {
            caller.input(|caller, now| caller.on_load(now, at, load));
        }
        if at == departure.endpoint {
            return (Heard { answer, by_a_gate: rejection.is_some() }, feedback);
        }
        // The one it was meant for could not be reached, and another has answered.
        feedback.iter().for_each(|it| caller.input(|caller, now| caller.notice(now, at, it)));
        (Heard { answer, by_a_gate: false }, None)
    }

    fn pass_up(&self, feedback: &Feedback) {
        let (callee, workflow) = (self.way.callee, self.context.workflow);
        let request = self.found.and_then(|found| found.request);
        let parallel = self.calling.as_ref().map_or(1, Calling::parallel);
        self.worker.gate.input(|gate, now| {
            gate.on_downstream(now, callee, workflow, feedback);
            if let Some(request) = request.filter(|it| gate.request(*it).is_some()) {
                gate.on_child(now, request, &feedback.progress, parallel);
            }
        });
    }

    /// The answer for the service, which is told of a refusal whether to try again.
    fn answer(
        &self,
        request: &Request<Upload>,
        response: Response<Source>,
        upstream: Call,
        told: Told,
    ) -> Answer {
        let head = request.method() == Method::HEAD;
        let response = forward::complete(response, head, self.settings.body_timeout.into());
        let mut answer = forward::answer(self.worker, response, upstream, untied());
        if let Told::Refused(rejection) = told {
            self.way.counts.refused.add(1);
            self.calling.iter().for_each(|calling| calling.refused(&rejection));
            tell(&mut answer, &rejection);
        }
        answer
    }
}

/// How a call ended, and whether a gate of ours says so.
#[derive(Clone, Copy, Debug)]
struct Heard {
    answer: Told,
    by_a_gate: bool,
}

impl Heard {
    /// Whether it was refused before it was begun, and another replica may do it: only a gate knows both.
    fn may_go_elsewhere(&self) -> bool {
        let advice = match self.answer {
            Told::Refused(rejection) => Some(rejection.advice),
            Told::Done(_) => None,
        };
        self.by_a_gate && advice == Some(Advice::Elsewhere)
    }
}

/// The same answer where nothing will be sent again.
fn without_retry(answer: Told) -> Told {
    match answer {
        Told::Refused(rejection) => Told::Refused(Rejection { advice: Advice::Never, ..rejection }),
        done @ Told::Done(_) => done,
    }
}

/// Says in our words why a call was refused, and what its service should do. Windows and cursors of the gates
/// below are for this sidecar, and for nobody else.
fn tell(answer: &mut Answer, rejection: &Rejection) {
    let then = match rejection.advice {
        Advice::Elsewhere => "elsewhere".to_owned(),
        Advice::Later(after) => format!("later, after={}", after.as_nanos() / 1_000_000),
        Advice::Never => "never".to_owned(),
    };
    let text = format!("why={}, then={then}", rejection.reason.token());
    answer.headers_mut().insert(wire::FEEDBACK, HeaderValue::try_from(text).expect("plain words"));
}

/// What an answer holds to its end that no gate has let in: nothing.
fn untied() -> (Entry, Listed, Span) {
    (Entry::Outside, Listed::default(), Span::NONE)
}

/// Reads the rest of an answer that is not wanted, so that its connection can be used again.
fn finish(worker: &Arc<Worker>, response: Response<Source>, upstream: Call) {
    let answer = forward::answer(worker, response, upstream, untied());
    let mut body = answer.into_body();
    tokio::spawn(timeout(REST, async move {
        while let Some(Ok(_)) = poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {}
    }));
}

/// Ready when the body will not come; that it stands still is no news where nothing is held for it.
fn poll_failure(flow: &Flow, cx: &mut TaskContext<'_>) -> Poll<Failure> {
    loop {
        match ready!(flow.poll_news(cx)) {
            News::Still | News::Again => {}
            news => return Poll::Ready(Failure::of(news)),
        }
    }
}

/// A request that can be sent once more.
#[derive(Debug)]
struct Kept {
    head: http::request::Parts,
    body: Bytes,
    trailers: Option<HeaderMap>,
}

impl Kept {
    /// Reads the body if it says that it is short; none if the request can be sent once only.
    async fn of(request: &mut Request<Upload>, most: u64) -> Result<Option<Self>, Failure> {
        let length = request.body().size_hint().exact();
        if !request.body().is_end_stream() && length.is_none_or(|length| length > most) {
            return Ok(None);
        }
        let (mut body, mut trailers) = (BytesMut::new(), None);
        let flow = request.body().flow();
        loop {
            let mut upload = Pin::new(request.body_mut());
            let next = poll_fn(|cx| {
                let piece = upload.as_mut().poll_frame(cx).map(Ok);
                match flow.as_ref().filter(|_| piece.is_pending()) {
                    Some(flow) => poll_failure(flow, cx).map(Err),
                    None => piece,
                }
            });
            let frame = match next.await? {
                None => break,
                Some(Ok(frame)) => frame,
                Some(Err(error)) => return Err(Failure::Client(io::Error::other(error))),
            };
            match frame.into_data() {
                Ok(piece) => body.extend_from_slice(&piece),
                Err(frame) => trailers = frame.into_trailers().ok(),
            }
        }
        let (head, _) = mem::replace(request, Request::new(Upload::empty())).into_parts();
        let kept = Self { head, body: body.freeze(), trailers };
        *request = kept.request();
        Ok(Some(kept))
    }

    fn request(&self) -> Request<Upload> {
        let body = Upload::kept(self.body.clone(), self.trailers.clone());
        Request::from_parts(self.head.clone(), body)
    }
}
