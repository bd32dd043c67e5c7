//! The way of one call: wait to leave, send, learn from the answer, and perhaps again.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;

use http::{HeaderMap, HeaderValue, Request, Response};
use http_body::Body;
use tidegate_core::caller::Next;
use tidegate_core::throttle::Answer;
use tidegate_core::{Advice, Context, Feedback, Instant, Outcome, Progress, Reason, Rejection};
use tidegate_driver::context::Parent;
use tidegate_driver::timer::{before, until};
use tidegate_driver::{Call, Departure, SharedCaller};
use tower_service::Service;

use super::layer::{CallerLayer, Repeat};
use super::service::Endpoint;
use crate::body::{GateBody, Tail};
use crate::wire::{self, Message, Refusal};

/// What a call is about, and for which request of a gate of ours it is made.
#[derive(Clone, Copy)]
pub(super) struct Asked {
    pub(super) context: Context,
    pub(super) parent: Option<Parent>,
}

/// Sends `request` when the caller lets it, as often as the caller says.
pub(super) async fn send<S, R, Q, B>(
    layer: Arc<CallerLayer<R>>,
    service: S,
    mut request: Request<Q>,
    asked: Asked,
    call: Result<Call, Rejection>,
) -> Result<Response<GateBody<B>>, S::Error>
where
    S: Service<Request<Q>, Response = Response<B>> + Clone,
    R: Repeat<Q>,
    B: Body,
{
    let grpc = wire::is_grpc(request.headers());
    let Asked { context, parent } = asked;
    let reject = |rejection: &Rejection| Ok(refuse(rejection, &context, grpc));
    let mut call = match call {
        Ok(call) => call,
        Err(rejection) => return reject(&rejection),
    };
    loop {
        let departure = match layer.timer.leave(&layer.caller, &mut call).await {
            Ok(departure) => departure,
            Err(rejection) => return reject(&rejection),
        };
        let again = layer.repeat.repeat(&request);
        layer.label(&mut request, &departure, parent, grpc);
        let hedge = again.as_ref().filter(|again| again.method().is_idempotent());
        let hedge = hedge.and_then(|again| Some((call.hedge_at()?, layer.repeat.repeat(again)?)));
        let first = attempt(service.clone(), request);
        let answered = match hedge {
            None => before(&layer.caller, departure.context.deadline, first).await,
            Some((at, copy)) => {
                let second = hedge_at(&layer, &call, at, service.clone(), copy, grpc, parent);
                let race = race(&layer, first, second);
                match before(&layer.caller, departure.context.deadline, race).await {
                    // To drop the first call says nothing about who it was sent to.
                    Some(Won::Second(answered)) => return answered,
                    Some(Won::First(answered)) => Some(answered),
                    None => None,
                }
            }
        };
        let (answer, feedback) = match &answered {
            None | Some(Err(_)) => (Answer::Done(Outcome::Fail), None),
            Some(Ok(response)) => layer.read(departure.endpoint, response),
        };
        feedback.iter().for_each(|feedback| layer.pass_up(&context, parent, feedback));
        // What was refused was not done, and can be sent again; what broke may have been done.
        let again = again
            .filter(|again| matches!(answer, Answer::Refused(_)) || again.method().is_idempotent());
        let next = call.respond(final_unless(again.is_some(), answer), feedback.as_ref());
        match (next, again) {
            (Next::Retry, Some(again)) => request = again,
            // A failure that the caller would try again but must not: to drop the call cancels that.
            _ => {
                return match answered {
                    Some(answered) => {
                        answered.map(|response| layer.listen(departure.endpoint, response))
                    }
                    None => reject(&passed_deadline(layer.caller.now(), &context)),
                };
            }
        }
    }
}

/// One request, when the service is ready for it.
async fn attempt<S, Q>(mut service: S, request: Request<Q>) -> Result<S::Response, S::Error>
where
    S: Service<Request<Q>>,
{
    poll_fn(|cx| service.poll_ready(cx)).await?;
    service.call(request).await
}

/// The same request once more, when it is time for it and if the caller allows it. None if it was not
/// sent, or has come to nothing.
async fn hedge_at<S, R, Q, B>(
    layer: &Arc<CallerLayer<R>>,
    call: &Call,
    at: Instant,
    service: S,
    mut request: Request<Q>,
    grpc: bool,
    parent: Option<Parent>,
) -> Option<Response<GateBody<B>>>
where
    S: Service<Request<Q>, Response = Response<B>>,
    B: Body,
{
    until(&layer.caller, at).await;
    let mut hedge = call.hedge()?;
    let departure = hedge.leave().await.ok()?;
    layer.label(&mut request, &departure, parent, grpc);
    let answered = attempt(service, request).await;
    let (answer, feedback) = match &answered {
        Err(_) => (Answer::Done(Outcome::Fail), None),
        Ok(response) => layer.read(departure.endpoint, response),
    };
    feedback.iter().for_each(|feedback| layer.pass_up(&departure.context, parent, feedback));
    // It is not tried again: the first attempt is still there.
    hedge.respond(final_unless(false, answer), feedback.as_ref());
    let served = answer == Answer::Done(Outcome::Serve);
    answered.ok().filter(|_| served).map(|response| layer.listen(departure.endpoint, response))
}

enum Won<B, E> {
    First(Result<Response<B>, E>),
    Second(Result<Response<GateBody<B>>, E>),
}

/// The first good answer of the two; else whatever the first attempt came to.
async fn race<R, B, E>(
    layer: &CallerLayer<R>,
    first: impl Future<Output = Result<Response<B>, E>>,
    second: impl Future<Output = Option<Response<GateBody<B>>>>,
) -> Won<B, E> {
    let (mut first, mut second) = (pin!(first), pin!(second));
    let (mut failed, mut alone) = (None, false);
    poll_fn(|cx| {
        if failed.is_none()
            && let Poll::Ready(answered) = first.as_mut().poll(cx)
        {
            let good = matches!(&answered, Ok(response) if layer.is_served(response));
            if good || alone {
                return Poll::Ready(Won::First(answered));
            }
            failed = Some(answered);
        }
        if !alone && let Poll::Ready(answered) = second.as_mut().poll(cx) {
            if let Some(response) = answered {
                return Poll::Ready(Won::Second(Ok(response)));
            }
            alone = true;
        }
        match failed.take_if(|_| alone) {
            Some(failed) => Poll::Ready(Won::First(failed)),
            None => Poll::Pending,
        }
    })
    .await
}

/// A refusal of a request that cannot be repeated is not to be retried, whatever the callee advises.
fn final_unless(repeatable: bool, answer: Answer) -> Answer {
    match answer {
        Answer::Refused(rejection) if !repeatable => {
            Answer::Refused(Rejection { advice: Advice::Never, ..rejection })
        }
        answer => answer,
    }
}

impl<R> CallerLayer<R> {
    /// Writes on the request what travels with it.
    fn label<Q>(
        &self,
        request: &mut Request<Q>,
        departure: &Departure,
        parent: Option<Parent>,
        grpc: bool,
    ) {
        let (now, context) = (self.caller.now(), &departure.context);
        let progress = self.progress(now, parent).unwrap_or_else(|| {
            let mut progress = context.progress;
            parent.iter().for_each(|parent| progress.add_step(parent.worked));
            progress
        });
        let field = wire::write_context(&Context { progress, ..*context }, now, &self.names);
        request.headers_mut().insert(wire::CONTEXT, field);
        if grpc && context.deadline != Instant::FAR {
            let timeout = wire::grpc_timeout_text(context.deadline.since(now));
            let timeout = HeaderValue::try_from(timeout).expect("digits and a letter");
            request.headers_mut().insert(wire::GRPC_TIMEOUT, timeout);
        }
        request.extensions_mut().insert(Endpoint(departure.endpoint));
    }

    /// What a response says: how the call ended, and the state of the gate that wrote it.
    fn read<B>(&self, endpoint: usize, response: &Response<B>) -> (Answer, Option<Feedback>) {
        let message = self.message(response.headers());
        if message.is_none()
            && let Some(load) = wire::load_of(response.headers())
        {
            self.caller.input(|caller, now| caller.on_load(now, endpoint, load));
        }
        (answer_of(response, message.as_ref()), message.map(|message| message.feedback))
    }

    fn is_served<B>(&self, response: &Response<B>) -> bool {
        let message = wire::feedback_of(response.headers()).and_then(Result::ok);
        answer_of(response, message.as_ref()) == Answer::Done(Outcome::Serve)
    }

    fn message(&self, headers: &HeaderMap) -> Option<Message> {
        let message = wire::feedback_of(headers)?;
        if message.is_err() {
            self.malformed.fetch_add(1, Ordering::Relaxed);
        }
        message.ok()
    }

    /// The response for the application. Of gRPC, trailers tell the state of the gate once more.
    fn listen<B: Body>(&self, endpoint: usize, response: Response<B>) -> Response<GateBody<B>> {
        let tail = wire::is_grpc(response.headers()).then(|| {
            let (caller, malformed) = (self.caller.clone(), Arc::clone(&self.malformed));
            Box::new(Ear { caller, malformed, endpoint }) as Box<dyn Tail>
        });
        response.map(|body| GateBody::heard(body, tail))
    }

    /// What the callee lets in goes up the path, to the gate of this service, and so does what it has done for
    /// the request. Of calls at the same time each counts in full: nobody says here which are.
    fn pass_up(&self, context: &Context, parent: Option<Parent>, feedback: &Feedback) {
        let Some((gate, callee)) = &self.upstream else { return };
        gate.input(|gate, now| {
            gate.on_downstream(now, *callee, context.workflow, feedback);
            let ours = parent.filter(|parent| parent.is_in(gate));
            ours.into_iter().for_each(|it| gate.on_child(now, it.request, &feedback.progress, 1));
        });
    }

    /// How far the request has come that a call is made for, if its gate is known: what was called for it
    /// before counts too.
    fn progress(&self, now: Instant, parent: Option<Parent>) -> Option<Progress> {
        let ((gate, _), parent) = self.upstream.as_ref().zip(parent)?;
        gate.read(|gate| parent.progress(gate, now))
    }
}

/// How a call ended, by its response.
fn answer_of<B>(response: &Response<B>, message: Option<&Message>) -> Answer {
    let status = response.status();
    let told = message.and_then(|message| message.rejection);
    match told.or_else(|| wire::refusal_of(status, response.headers())) {
        Some(rejection) => Answer::Refused(rejection),
        None if status.is_server_error() => Answer::Done(Outcome::Fail),
        None => Answer::Done(Outcome::Serve),
    }
}

/// Listens to trailers.
#[derive(Debug)]
struct Ear {
    caller: SharedCaller,
    malformed: Arc<AtomicU64>,
    endpoint: usize,
}

impl Tail for Ear {
    fn pass(&mut self, trailers: &mut HeaderMap) {
        let endpoint = self.endpoint;
        match wire::feedback_of(trailers) {
            Some(Ok(message)) => {
                self.caller.input(|caller, now| caller.notice(now, endpoint, &message.feedback));
            }
            Some(Err(_)) => drop(self.malformed.fetch_add(1, Ordering::Relaxed)),
            None => {
                if let Some(load) = wire::load_of(trailers) {
                    self.caller.input(|caller, now| caller.on_load(now, endpoint, load));
                }
            }
        }
    }
}

fn passed_deadline(now: Instant, context: &Context) -> Rejection {
    let late = now.since(context.deadline).as_nanos() as f64;
    Rejection::new(Reason::Expired, late, 0.0, Advice::Never)
}

/// What was rejected here looks to the application like what is refused there.
fn refuse<B: Body>(rejection: &Rejection, context: &Context, grpc: bool) -> Response<GateBody<B>> {
    let rank = Some((context.rank, None));
    let (status, headers, text) = Refusal { rejection, rank, grpc, jitter: 0.0 }.response();
    let mut response = Response::new(GateBody::refusal(text));
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    response
}
