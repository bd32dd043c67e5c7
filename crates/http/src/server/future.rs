//! [`ResponseFuture`]: waits for a slot, goes round once, runs the handler.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use http::{HeaderMap, Request, Response, StatusCode};
use http_body::Body;
use pin_project_lite::pin_project;
use tidegate_core::{Cost, Outcome, Rejection};
use tidegate_driver::{Slot, Ticket, context};
use tower_service::Service;

use super::arrival::Asked;
use super::layer::GateLayer;
use super::meter::Metered;
use super::turn::Turn;
use super::{Pressure, drain};
use crate::body::{GateBody, Held, Tail};
use crate::wire::{self, Refusal};

pin_project! {
    /// The way of one request. Dropped at any point it gives back what it holds.
    pub struct ResponseFuture<S, Q>
    where
        S: Service<Request<Q>>,
    {
        #[pin]
        state: State<S::Future>,
        // The service and the request, until the handler runs.
        inner: Option<(S, Request<Q>)>,
        layer: Arc<GateLayer>,
        asked: Asked,
        // What the service's polls have taken.
        metered: Metered,
    }
}

pin_project! {
    #[project = StateProj]
    enum State<F> {
        Refused { rejection: Rejection },
        // In the gate's queue.
        Waiting { ticket: Ticket },
        // May run, and lets others be read first. Without a slot if it is exempt.
        Starting { slot: Option<Slot>, turn: Turn },
        // The handler runs.
        Running { slot: Option<Slot>, #[pin] future: F },
        Over,
    }
}

impl<S, Q> ResponseFuture<S, Q>
where
    S: Service<Request<Q>>,
{
    pub(super) fn admitted(
        layer: Arc<GateLayer>,
        asked: Asked,
        ticket: Ticket,
        service: S,
        request: Request<Q>,
    ) -> Self {
        let (state, metered) = (State::Waiting { ticket }, layer.meter.begin());
        Self { state, inner: Some((service, request)), layer, asked, metered }
    }

    pub(super) fn exempt(
        layer: Arc<GateLayer>,
        asked: Asked,
        service: S,
        request: Request<Q>,
    ) -> Self {
        let state = State::Starting { slot: None, turn: Turn::Done };
        let metered = layer.meter.begin();
        Self { state, inner: Some((service, request)), layer, asked, metered }
    }

    pub(super) fn refused(layer: Arc<GateLayer>, asked: Asked, rejection: Rejection) -> Self {
        let state = State::Refused { rejection };
        Self { state, inner: None, layer, asked, metered: Metered::NOTHING }
    }
}

impl<S, Q, B> Future for ResponseFuture<S, Q>
where
    S: Service<Request<Q>, Response = Response<B>>,
    Q: Body + Send + 'static,
    B: Body,
{
    type Output = Result<Response<GateBody<B>>, S::Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        loop {
            match this.state.as_mut().project() {
                StateProj::Refused { rejection } => {
                    return Poll::Ready(Ok(refuse(this.layer, this.asked, rejection)));
                }
                StateProj::Waiting { ticket } => {
                    let state = match ready!(Pin::new(ticket).poll(cx)) {
                        Ok(slot) => {
                            note_pressure(&slot, this.asked, this.inner);
                            State::Starting { slot: Some(slot), turn: Turn::default() }
                        }
                        Err(rejection) => {
                            this.inner.take().into_iter().for_each(|(_, it)| drain::forget(it));
                            State::Refused { rejection }
                        }
                    };
                    this.state.set(state);
                }
                StateProj::Starting { slot, turn } => {
                    let now = this.layer.meter.now();
                    ready!(turn.poll(now, cx));
                    let parent = slot.as_ref().map(Slot::parent);
                    let _entered = context::enter_for(this.asked.context, parent);
                    let (service, _) = this.inner.as_mut().expect("kept until the handler runs");
                    if let Err(error) = ready!(service.poll_ready(cx)) {
                        slot.take().into_iter().for_each(Slot::fail);
                        this.state.set(State::Over);
                        return Poll::Ready(Err(error));
                    }
                    let (slot, inner) = (slot.take(), this.inner.take());
                    let (mut service, request) = inner.expect("looked at above");
                    // The call and the first poll, which for most is the only one, are measured as one.
                    let answer = this.layer.meter.measure_from(now, this.metered, || {
                        let future = service.call(request);
                        this.state.set(State::Running { slot, future });
                        this.state.as_mut().poll_handler(cx)
                    });
                    let (mut slot, answer) = ready!(answer);
                    slot.iter_mut().for_each(|slot| slot.step(this.metered.time()));
                    this.state.set(State::Over);
                    let cost = this.layer.meter.settle(this.metered);
                    return Poll::Ready(end(this.layer, this.asked, slot, cost, answer));
                }
                StateProj::Running { slot, .. } => {
                    let parent = slot.as_ref().map(Slot::parent);
                    let _entered = context::enter_for(this.asked.context, parent);
                    let state = this.state.as_mut();
                    let answer = this.layer.meter.measure(this.metered, || state.poll_handler(cx));
                    let (mut slot, answer) = ready!(answer);
                    slot.iter_mut().for_each(|slot| slot.step(this.metered.time()));
                    this.state.set(State::Over);
                    let cost = this.layer.meter.settle(this.metered);
                    return Poll::Ready(end(this.layer, this.asked, slot, cost, answer));
                }
                StateProj::Over => panic!("a response future is not polled after it has resolved"),
            }
        }
    }
}

impl<F: Future> State<F> {
    /// Polls the handler: its slot and what it says.
    fn poll_handler(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<(Option<Slot>, F::Output)> {
        match self.project() {
            StateProj::Running { slot, future } => {
                let answer = ready!(future.poll(cx));
                Poll::Ready((slot.take(), answer))
            }
            _ => panic!("only what runs is polled"),
        }
    }
}

/// Lets the handler see that a cheaper answer will do.
fn note_pressure<S, Q>(slot: &Slot, asked: &Asked, inner: &mut Option<(S, Request<Q>)>) {
    if let Some((_, request)) = inner.as_mut().filter(|_| slot.degraded()) {
        let pressure = Pressure { degraded: true, rank: asked.context.rank };
        request.extensions_mut().insert(pressure);
    }
}

/// The handler is done.
fn end<B: Body, E>(
    layer: &Arc<GateLayer>,
    asked: &Asked,
    slot: Option<Slot>,
    cost: Cost,
    answer: Result<Response<B>, E>,
) -> Result<Response<GateBody<B>>, E> {
    match answer {
        Ok(response) => Ok(pass(layer, asked, slot, cost, response)),
        Err(error) => {
            slot.into_iter().for_each(|slot| slot.finish(Outcome::Fail, cost));
            Err(error)
        }
    }
}

/// The handler's answer, with feedback for who understands it; the slot goes with the body.
fn pass<B: Body>(
    layer: &Arc<GateLayer>,
    asked: &Asked,
    slot: Option<Slot>,
    cost: Cost,
    mut response: Response<B>,
) -> Response<GateBody<B>> {
    wire::forget_reports(response.headers_mut());
    let Some(mut slot) = slot else { return response.map(GateBody::passed) };
    tell(layer, asked, Said::Served(&mut slot), response.headers_mut());
    let tail = asked.grpc.then(|| Trailer::for_whom(layer, asked)).flatten();
    // A handler may know better what an answer has cost, also in units of its own.
    let cost = response.extensions().get::<Cost>().copied().unwrap_or(cost);
    let held = Held { slot, cost, outcome: outcome_of(response.status()) };
    response.map(|body| GateBody::served(body, held, &layer.streams, tail))
}

/// A server error says that the service failed; everything else is an answer.
fn outcome_of(status: StatusCode) -> Outcome {
    if status.is_server_error() { Outcome::Fail } else { Outcome::Serve }
}

/// A refusal is a response: the connection stays, and the caller reads why.
fn refuse<B: Body>(
    layer: &GateLayer,
    asked: &Asked,
    rejection: &Rejection,
) -> Response<GateBody<B>> {
    let mut response = Response::new(());
    let cursor = tell(layer, asked, Said::Refused(rejection), response.headers_mut());
    let refusal = Refusal {
        rejection,
        rank: asked.trusted.then_some((asked.context.rank, cursor)),
        grpc: asked.grpc,
        jitter: layer.counts.jitter(),
    };
    let (status, headers, text) = refusal.response();
    *response.status_mut() = status;
    response.headers_mut().extend(headers);
    response.map(|()| GateBody::refusal(text))
}

/// What feedback goes with.
enum Said<'a> {
    Served(&'a mut Slot),
    Refused(&'a Rejection),
    /// The end of an answer that began before.
    More,
}

/// Writes feedback to whoever sent a context and is trusted, and returns the cursor in it; to others
/// that may know, how busy we are.
fn tell(
    layer: &GateLayer,
    asked: &Asked,
    said: Said<'_>,
    headers: &mut HeaderMap,
) -> Option<tidegate_core::Cursor> {
    if !asked.listens {
        if layer.report_load.unwrap_or(asked.trusted) {
            let (application, cpu) = layer.gate.read(|gate| (gate.busy(), gate.utilization()));
            wire::LoadReport { application, cpu }.write(headers, asked.grpc);
        }
        return None;
    }
    let (told, rejection) = match said {
        Said::Served(slot) => (slot.feedback(), None),
        Said::Refused(rejection) => (None, Some(rejection)),
        Said::More => (None, None),
    };
    let now = || layer.gate.feedback(asked.context.caller, asked.context.workflow);
    let feedback = told.unwrap_or_else(now);
    if let Some(field) = wire::write_feedback(&feedback, rejection) {
        headers.insert(wire::FEEDBACK, field);
    }
    feedback.last
}

/// Tells the state of the gate once more when the work is done: of a stream, headers left long ago.
#[derive(Debug)]
struct Trailer {
    layer: Arc<GateLayer>,
    asked: Asked,
}

impl Trailer {
    /// None if there is nobody to tell.
    fn for_whom(layer: &Arc<GateLayer>, asked: &Asked) -> Option<Box<dyn Tail>> {
        let listens = asked.listens || layer.report_load.unwrap_or(asked.trusted);
        listens.then(|| Box::new(Self { layer: Arc::clone(layer), asked: *asked }) as Box<dyn Tail>)
    }
}

impl Tail for Trailer {
    fn pass(&mut self, trailers: &mut HeaderMap) {
        tell(&self.layer, &self.asked, Said::More, trailers);
    }
}
