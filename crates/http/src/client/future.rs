//! The way of one call: wait to leave, send, learn from the answer, and perhaps again.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Poll, ready};

use http::{HeaderValue, Request, Response};
use http_body::Body;
use tidegate_core::caller::Next;
use tidegate_core::throttle::Answer;
use tidegate_core::{Advice, Context, Feedback, Instant, Outcome, Reason, Rejection};
use tidegate_driver::{Call, Departure, SharedCaller};
use tokio::time::{Sleep, sleep};
use tower_service::Service;

use super::layer::{CallerLayer, Repeat};
use super::service::Endpoint;
use crate::body::GateBody;
use crate::wire::{self, Refusal};

/// Sends `request` when the caller lets it, as often as the caller says.
pub(super) async fn send<S, R, Q, B>(
    layer: Arc<CallerLayer<R>>,
    mut service: S,
    mut request: Request<Q>,
    context: Context,
    call: Result<Call, Rejection>,
) -> Result<Response<GateBody<B>>, S::Error>
where
    S: Service<Request<Q>, Response = Response<B>>,
    R: Repeat<Q>,
    B: Body,
{
    let grpc = wire::is_grpc(request.headers());
    let reject = |rejection: &Rejection| Ok(refuse(rejection, &context, grpc));
    let mut call = match call {
        Ok(call) => call,
        Err(rejection) => return reject(&rejection),
    };
    loop {
        let departure = match leave(&layer.caller, &mut call).await {
            Ok(departure) => departure,
            Err(rejection) => return reject(&rejection),
        };
        let again = layer.repeat.repeat(&request);
        layer.label(&mut request, &departure, grpc);
        let attempt = async {
            poll_fn(|cx| service.poll_ready(cx)).await?;
            service.call(request).await
        };
        let answered = before(&layer.caller, departure.context.deadline, attempt).await;
        let (answer, feedback) = match &answered {
            None | Some(Err(_)) => (Answer::Done(Outcome::Fail), None),
            Some(Ok(response)) => layer.read(response),
        };
        feedback.iter().for_each(|feedback| layer.pass_up(&context, feedback));
        // What was refused was not done, and can be sent again; what broke may have been done.
        let again = again
            .filter(|again| matches!(answer, Answer::Refused(_)) || again.method().is_idempotent());
        let next = call.respond(final_unless(again.is_some(), answer), feedback.as_ref());
        match (next, again) {
            (Next::Retry, Some(again)) => request = again,
            // A failure that the caller would try again but must not: to drop the call cancels that.
            _ => {
                return match answered {
                    Some(answered) => answered.map(|response| response.map(GateBody::passed)),
                    None => reject(&passed_deadline(layer.caller.now(), &context)),
                };
            }
        }
    }
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

/// Waits until the call may leave. Meanwhile it sees to the caller's timers: whoever waits is who
/// wants them to fire, and when nobody waits they do not matter.
async fn leave(caller: &SharedCaller, call: &mut Call) -> Result<Departure, Rejection> {
    let mut timer: Option<Pin<Box<Sleep>>> = None;
    poll_fn(|cx| {
        loop {
            if let Poll::Ready(departure) = call.poll_leave(cx) {
                return Poll::Ready(departure);
            }
            let Some(wakeup) = caller.next_wakeup() else { return Poll::Pending };
            let sleep = timer.get_or_insert_with(|| Box::pin(until(caller, wakeup)));
            ready!(sleep.as_mut().poll(cx));
            timer = None;
            caller.dispatch();
        }
    })
    .await
}

/// What `future` gives, none if the deadline passes before.
async fn before<F: Future>(
    caller: &SharedCaller,
    deadline: Instant,
    future: F,
) -> Option<F::Output> {
    if deadline == Instant::FAR {
        return Some(future.await);
    }
    let (mut future, mut timer) = (pin!(future), pin!(until(caller, deadline)));
    poll_fn(|cx| match future.as_mut().poll(cx) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending => timer.as_mut().poll(cx).map(|()| None),
    })
    .await
}

fn until(caller: &SharedCaller, moment: Instant) -> Sleep {
    sleep(moment.since(caller.now()).into())
}

impl<R> CallerLayer<R> {
    /// Writes on the request what travels with it.
    fn label<Q>(&self, request: &mut Request<Q>, departure: &Departure, grpc: bool) {
        let (now, context) = (self.caller.now(), &departure.context);
        let field = wire::write_context(context, now, &self.names);
        request.headers_mut().insert(wire::CONTEXT, field);
        if grpc && context.deadline != Instant::FAR {
            let timeout = wire::grpc_timeout_text(context.deadline.since(now));
            let timeout = HeaderValue::try_from(timeout).expect("digits and a letter");
            request.headers_mut().insert(wire::GRPC_TIMEOUT, timeout);
        }
        request.extensions_mut().insert(Endpoint(departure.endpoint));
    }

    /// What a response says: how the call ended, and the state of the gate that wrote it.
    fn read<B>(&self, response: &Response<B>) -> (Answer, Option<Feedback>) {
        let (status, headers) = (response.status(), response.headers());
        let message = wire::feedback_of(headers).and_then(|message| {
            if message.is_err() {
                self.malformed.fetch_add(1, Ordering::Relaxed);
            }
            message.ok()
        });
        let told = message.and_then(|message| message.rejection);
        let answer = match told.or_else(|| wire::refusal_of(status, headers)) {
            Some(rejection) => Answer::Refused(rejection),
            None if status.is_server_error() => Answer::Done(Outcome::Fail),
            None => Answer::Done(Outcome::Serve),
        };
        (answer, message.map(|message| message.feedback))
    }

    /// What the callee lets in goes up the path, to the gate of this service.
    fn pass_up(&self, context: &Context, feedback: &Feedback) {
        if let Some((gate, callee)) = &self.upstream {
            gate.input(|gate, now| gate.on_downstream(now, *callee, context.workflow, feedback));
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
