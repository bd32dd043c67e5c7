//! [`ResponseFuture`]: waits for a slot, goes round once, runs the handler.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use http::{HeaderMap, Request, Response, StatusCode};
use http_body::Body;
use pin_project_lite::pin_project;
use tidegate_core::{Cost, Instant, Outcome, Rejection};
use tidegate_driver::{Slot, Ticket, context};
use tower_service::Service;

use super::arrival::Asked;
use super::exempt::Place;
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
        // Until it is answered.
        case: Option<Case>,
    }
}

pin_project! {
    #[project = StateProj]
    enum State<S, Q, F> {
        // The service and the request, until the handler runs; none if it never will.
        Before { wait: Wait, inner: Option<(S, Request<Q>)> },
        // The handler runs.
        Running { #[pin] future: F },
        Over,
    }
}

/// What a request waits for before its handler runs.
pub(super) enum Wait {
    Refused(Rejection),
    /// In the gate's queue.
    Slot(Ticket),
    /// May run, and lets others be read first.
    Turn(Turn),
}

/// What is known of a request, and what it holds.
pub(super) struct Case {
    layer: Arc<GateLayer>,
    asked: Asked,
    /// While it runs, unless it is exempt.
    slot: Option<Slot>,
    /// Then it has a place beside the gate.
    place: Option<Place>,
    /// What the service's polls have taken.
    metered: Metered,
}

impl<S, Q> ResponseFuture<S, Q>
where
    S: Service<Request<Q>>,
{
    #[inline]
    pub(super) fn new(case: Case, wait: Wait, inner: Option<(S, Request<Q>)>) -> Self {
        Self { state: State::Before { wait, inner }, case: Some(case) }
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
        const RESOLVED: &str = "a response future is not polled after it has resolved";
        const KEPT: &str = "service and request are kept until the handler runs";
        let mut this = self.project();
        let case = this.case.as_mut().expect(RESOLVED);
        let now = match this.state.as_mut().project() {
            StateProj::Before { wait, inner } => match ready!(case.wait(wait, inner, cx)) {
                Ok(now) => now,
                Err(rejection) => {
                    let refusal = case.refuse(&rejection);
                    *this.case = None;
                    return Poll::Ready(Ok(refusal));
                }
            },
            StateProj::Running { .. } | StateProj::Over => case.layer.gate.now(),
        };
        let _entered = case.enter(now);
        // The call and the first poll, which for most is the only one, are measured as one.
        let begun = case.layer.meter.begin_poll(now, &case.metered);
        if let StateProj::Before { inner, .. } = this.state.as_mut().project() {
            let (service, _) = inner.as_mut().expect(KEPT);
            if let Err(error) = ready!(service.poll_ready(cx)) {
                case.slot.take().into_iter().for_each(Slot::fail);
                *this.case = None;
                return Poll::Ready(Err(error));
            }
            let (mut service, request) = inner.take().expect(KEPT);
            this.state.set(State::Running { future: service.call(request) });
        }
        let StateProj::Running { future } = this.state.as_mut().project() else {
            panic!("{RESOLVED}");
        };
        let answer = future.poll(cx);
        case.layer.meter.end_poll(begun, case.layer.gate.now(), &mut case.metered);
        let answer = ready!(answer);
        this.state.set(State::Over);
        Poll::Ready(this.case.take().expect(RESOLVED).end(answer))
    }
}

impl Case {
    pub(super) fn new(layer: Arc<GateLayer>, asked: Asked) -> Self {
        Self { layer, asked, slot: None, place: None, metered: Metered::NOTHING }
    }

    /// It will run some day. What to wait for if it must not wait in the gate.
    pub(super) fn exempt(&mut self, place: Place) -> Wait {
        self.place = Some(place);
        self.metered = self.layer.meter.begin();
        Wait::Turn(Turn::Done)
    }

    /// The same after the gate has let it in.
    pub(super) fn admit<Q>(&mut self, ticket: Ticket, request: &mut Request<Q>) -> Wait {
        self.metered = self.layer.meter.begin();
        match ticket.slot_at_once() {
            Ok(slot) => self.start(slot, request),
            Err(ticket) => Wait::Slot(ticket),
        }
    }

    /// It has a slot. Lets the handler see if a cheaper answer will do.
    fn start<Q>(&mut self, slot: Slot, request: &mut Request<Q>) -> Wait {
        let asked =
            || self.asked.trusted && request.headers().get(wire::DEGRADE) == Some(&wire::DEGRADED);
        if slot.degraded() || asked() {
            let pressure = Pressure { degraded: true, rank: self.asked.context.rank };
            request.extensions_mut().insert(pressure);
        }
        self.slot = Some(slot);
        Wait::Turn(Turn::default())
    }

    /// Ready when the handler may run, with the time, or when it never will.
    fn wait<S, Q>(
        &mut self,
        wait: &mut Wait,
        inner: &mut Option<(S, Request<Q>)>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Instant, Rejection>>
    where
        Q: Body + Send + 'static,
    {
        if let Wait::Slot(ticket) = wait {
            *wait = match (ready!(Pin::new(ticket).poll(cx)), &mut *inner) {
                (Ok(slot), Some((_, request))) => self.start(slot, request),
                (Ok(slot), None) => panic!("{slot:?} is for a request that is gone"),
                (Err(rejection), _) => {
                    inner.take().into_iter().for_each(|(_, request)| drain::forget(request));
                    Wait::Refused(rejection)
                }
            };
        }
        match wait {
            Wait::Refused(rejection) => Poll::Ready(Err(*rejection)),
            Wait::Slot(_) => Poll::Pending,
            Wait::Turn(turn) => {
                let now = self.layer.gate.now();
                ready!(turn.poll(now, cx));
                Poll::Ready(Ok(now))
            }
        }
    }

    /// What runs from `now` on runs for this request.
    fn enter(&self, now: Instant) -> context::Entered {
        let parent = self.slot.as_ref().map(|slot| slot.parent(self.metered.time(), now));
        context::enter_for(self.asked.context, parent)
    }

    /// The handler is done.
    fn end<B: Body, E>(
        mut self,
        answer: Result<Response<B>, E>,
    ) -> Result<Response<GateBody<B>>, E> {
        self.slot.iter_mut().for_each(|slot| slot.step(self.metered.time()));
        let cost = self.layer.meter.settle(&self.metered);
        match answer {
            Ok(response) => Ok(self.pass(cost, response)),
            Err(error) => {
                self.slot.into_iter().for_each(|slot| slot.finish(Outcome::Fail, cost));
                Err(error)
            }
        }
    }

    /// The handler's answer, with feedback for who understands it; the slot goes with the body.
    fn pass<B: Body>(self, cost: Cost, mut response: Response<B>) -> Response<GateBody<B>> {
        let Self { layer, asked, slot, place, metered } = self;
        wire::forget_reports(response.headers_mut());
        let Some(mut slot) = slot else {
            return response.map(|body| GateBody::exempt(body, place));
        };
        tell(&layer, &asked, Said::Served(&mut slot), response.headers_mut());
        let tail = asked.grpc.then(|| Trailer::for_whom(&layer, &asked)).flatten();
        // A handler may know better what an answer has cost, also in units of its own.
        let cost = response.extensions().get::<Cost>().copied().unwrap_or(cost);
        let outcome = outcome_of(response.status());
        let held = Held { slot, cost, outcome, answered: metered.ended() };
        response.map(|body| GateBody::served(body, held, layer, tail))
    }

    /// A refusal is a response: the connection stays, and the caller reads why.
    fn refuse<B: Body>(&self, rejection: &Rejection) -> Response<GateBody<B>> {
        let Self { layer, asked, .. } = self;
        let mut headers = HeaderMap::with_capacity(8);
        let cursor = tell(layer, asked, Said::Refused(rejection), &mut headers);
        let refusal = Refusal {
            rejection,
            rank: asked.trusted.then_some((asked.context.rank, cursor)),
            grpc: asked.grpc,
            jitter: layer.counts.jitter(),
        };
        let (status, text) = refusal.write(&mut headers);
        let mut response = Response::new(GateBody::refusal(text));
        (*response.status_mut(), *response.headers_mut()) = (status, headers);
        response
    }
}

/// A server error says that the service failed; everything else is an answer.
fn outcome_of(status: StatusCode) -> Outcome {
    if status.is_server_error() { Outcome::Fail } else { Outcome::Serve }
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
