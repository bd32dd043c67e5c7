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
        state: State<S, Q, S::Future>,
        layer: Arc<GateLayer>,
        asked: Asked,
        // What the service's polls have taken.
        metered: Metered,
    }
}

pin_project! {
    #[project = StateProj]
    #[project_replace = StateOwned]
    enum State<S, Q, F> {
        Refused { rejection: Rejection },
        // In the gate's queue.
        Waiting { ticket: Ticket, service: S, request: Request<Q> },
        // May run, and lets others be read first. Without a slot if it is exempt.
        Starting { slot: Option<Slot>, turn: Turn, service: S, request: Request<Q> },
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
        let metered = layer.meter.begin();
        Self::new(layer, asked, metered, State::Waiting { ticket, service, request })
    }

    pub(super) fn exempt(
        layer: Arc<GateLayer>,
        asked: Asked,
        service: S,
        request: Request<Q>,
    ) -> Self {
        let state = State::Starting { slot: None, turn: Turn::Done, service, request };
        let metered = layer.meter.begin();
        Self::new(layer, asked, metered, state)
    }

    pub(super) fn refused(layer: Arc<GateLayer>, asked: Asked, rejection: Rejection) -> Self {
        Self::new(layer, asked, Metered::NOTHING, State::Refused { rejection })
    }

    fn new(
        layer: Arc<GateLayer>,
        asked: Asked,
        metered: Metered,
        state: State<S, Q, S::Future>,
    ) -> Self {
        Self { state, layer, asked, metered }
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
                StateProj::Waiting { ticket, .. } => match ready!(Pin::new(ticket).poll(cx)) {
                    Ok(slot) => this.state.as_mut().start(slot, this.asked),
                    Err(rejection) => this.state.as_mut().refuse(rejection),
                },
                StateProj::Starting { slot, turn, service, .. } => {
                    ready!(turn.poll(cx));
                    let parent = slot.as_ref().map(Slot::parent);
                    let _entered = context::enter_for(this.asked.context, parent);
                    if let Err(error) = ready!(service.poll_ready(cx)) {
                        this.state.as_mut().take_slot().into_iter().for_each(Slot::fail);
                        return Poll::Ready(Err(error));
                    }
                    this.layer.meter.measure(this.metered, || this.state.as_mut().call());
                }
                StateProj::Running { slot, future } => {
                    let parent = slot.as_ref().map(Slot::parent);
                    let _entered = context::enter_for(this.asked.context, parent);
                    let answer = ready!(this.layer.meter.measure(this.metered, || future.poll(cx)));
                    let cost = this.layer.meter.settle(this.metered);
                    let mut slot = slot.take();
                    slot.iter_mut().for_each(|slot| slot.step(this.metered.time()));
                    this.state.set(State::Over);
                    return Poll::Ready(match answer {
                        Ok(response) => Ok(pass(this.layer, this.asked, slot, cost, response)),
                        Err(error) => {
                            slot.into_iter().for_each(|slot| slot.finish(Outcome::Fail, cost));
                            Err(error)
                        }
                    });
                }
                StateProj::Over => panic!("a response future is not polled after it has resolved"),
            }
        }
    }
}

impl<S, Q> State<S, Q, S::Future>
where
    S: Service<Request<Q>>,
{
    /// From waiting to starting.
    fn start(mut self: Pin<&mut Self>, slot: Slot, asked: &Asked) {
        if let StateOwned::Waiting { service, mut request, .. } =
            self.as_mut().project_replace(Self::Over)
        {
            let pressure = Pressure { degraded: slot.degraded(), rank: asked.context.rank };
            request.extensions_mut().insert(pressure);
            let (slot, turn) = (Some(slot), Turn::default());
            self.set(Self::Starting { slot, turn, service, request });
        }
    }

    /// From waiting to refused.
    fn refuse(mut self: Pin<&mut Self>, rejection: Rejection)
    where
        Q: Body + Send + 'static,
    {
        let refused = Self::Refused { rejection };
        if let StateOwned::Waiting { request, .. } = self.as_mut().project_replace(refused) {
            drain::forget(request);
        }
    }

    /// From starting to running.
    fn call(mut self: Pin<&mut Self>) {
        if let StateOwned::Starting { slot, mut service, request, .. } =
            self.as_mut().project_replace(Self::Over)
        {
            let future = service.call(request);
            self.set(Self::Running { slot, future });
        }
    }

    fn take_slot(self: Pin<&mut Self>) -> Option<Slot> {
        match self.project_replace(Self::Over) {
            StateOwned::Starting { slot, .. } => slot,
            _ => None,
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
    // What a service behind us told us is not for our callers.
    for field in [wire::FEEDBACK, wire::LOAD, wire::LOAD_BIN] {
        response.headers_mut().remove(field);
    }
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
