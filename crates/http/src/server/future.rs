//! [`ResponseFuture`]: waits for a slot, goes round once, runs the handler.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Request, Response, StatusCode};
use http_body::Body;
use pin_project_lite::pin_project;
use tidegate_core::{Context as RequestContext, Cost, Outcome, Rejection, Span};
use tidegate_driver::{Slot, Ticket, context};
use tower_service::Service;

use super::turn::Turn;
use crate::body::{GateBody, Held};

pin_project! {
    /// The way of one request. Dropped at any point it gives back what it holds.
    pub struct ResponseFuture<S, Q>
    where
        S: Service<Request<Q>>,
    {
        #[pin]
        state: State<S, Q, S::Future>,
        context: RequestContext,
        // Time spent inside the service's polls.
        busy: Span,
    }
}

pin_project! {
    #[project = StateProj]
    #[project_replace = StateOwned]
    enum State<S, Q, F> {
        Refused { rejection: Rejection },
        // In the gate's queue.
        Waiting { ticket: Ticket, service: S, request: Request<Q> },
        // Has a slot, and lets others be read first.
        Starting { slot: Slot, turn: Turn, service: S, request: Request<Q> },
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
        ticket: Ticket,
        context: RequestContext,
        service: S,
        request: Request<Q>,
    ) -> Self {
        let state = State::Waiting { ticket, service, request };
        Self { state, context, busy: Span::ZERO }
    }

    pub(super) fn refused(rejection: Rejection) -> Self {
        Self {
            state: State::Refused { rejection },
            context: RequestContext::default(),
            busy: Span::ZERO,
        }
    }
}

impl<S, Q, B> Future for ResponseFuture<S, Q>
where
    S: Service<Request<Q>, Response = Response<B>>,
    B: Body,
{
    type Output = Result<Response<GateBody<B>>, S::Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        loop {
            match this.state.as_mut().project() {
                StateProj::Refused { rejection } => return Poll::Ready(Ok(refuse(rejection))),
                StateProj::Waiting { ticket, .. } => match ready!(Pin::new(ticket).poll(cx)) {
                    Ok(slot) => this.state.as_mut().start(slot),
                    Err(rejection) => this.state.set(State::Refused { rejection }),
                },
                StateProj::Starting { turn, service, .. } => {
                    ready!(turn.poll(cx));
                    let _entered = context::enter(*this.context);
                    if let Err(error) = ready!(service.poll_ready(cx)) {
                        this.state.as_mut().take_slot().into_iter().for_each(Slot::fail);
                        return Poll::Ready(Err(error));
                    }
                    let begun = Instant::now();
                    this.state.as_mut().call();
                    *this.busy += begun.elapsed().into();
                }
                StateProj::Running { slot, future } => {
                    let _entered = context::enter(*this.context);
                    let begun = Instant::now();
                    let answer = future.poll(cx);
                    *this.busy += begun.elapsed().into();
                    let answer = ready!(answer);
                    let slot = slot.take().expect("a running request has its slot");
                    let cost = Cost::from(*this.busy);
                    this.state.set(State::Over);
                    return Poll::Ready(match answer {
                        Ok(response) => {
                            let outcome = outcome_of(response.status());
                            let held = Held { slot, cost, outcome };
                            Ok(response.map(|body| GateBody::served(body, held)))
                        }
                        Err(error) => {
                            slot.finish(Outcome::Fail, cost);
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
    fn start(mut self: Pin<&mut Self>, slot: Slot) {
        if let StateOwned::Waiting { service, request, .. } =
            self.as_mut().project_replace(Self::Over)
        {
            self.set(Self::Starting { slot, turn: Turn::default(), service, request });
        }
    }

    /// From starting to running.
    fn call(mut self: Pin<&mut Self>) {
        if let StateOwned::Starting { slot, mut service, request, .. } =
            self.as_mut().project_replace(Self::Over)
        {
            let future = service.call(request);
            self.set(Self::Running { slot: Some(slot), future });
        }
    }

    fn take_slot(self: Pin<&mut Self>) -> Option<Slot> {
        match self.project_replace(Self::Over) {
            StateOwned::Starting { slot, .. } => Some(slot),
            _ => None,
        }
    }
}

/// A server error says that the service failed; everything else is an answer.
fn outcome_of(status: StatusCode) -> Outcome {
    if status.is_server_error() { Outcome::Fail } else { Outcome::Serve }
}

/// A refusal is a response: the connection stays, and the caller reads why.
fn refuse<B: Body>(rejection: &Rejection) -> Response<GateBody<B>> {
    let text = Bytes::from(format!("{rejection}\n"));
    let mut response = Response::new(GateBody::refusal(text));
    *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
    let plain = HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, plain);
    response
}
