//! Ways to drive a gate that the library does not take.

use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use tidegate_core::Context as RequestContext;
use tidegate_driver::SharedGate;
use tokio::sync::Notify;
use tower_service::Service;

use crate::serve::{Handler, patience};

/// What starts a request, and what comes between its start and its handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// Arrivals dispatch, and nothing is between: the handler runs in the poll of its arrival.
    Inline,
    /// Arrivals dispatch; then once to the back of the run queue.
    Park,
    /// Arrivals dispatch; then once around the loop, through the I/O driver.
    Yield,
    /// Arrivals only enter; one task dispatches each time it has come around the loop.
    Starter,
}

impl Way {
    pub(crate) fn from_name(name: &str) -> Self {
        match name {
            "inline" => Self::Inline,
            "park" => Self::Park,
            "yield" => Self::Yield,
            "starter" => Self::Starter,
            other => panic!("no way is called {other}"),
        }
    }
}

/// A handler behind a gate. Finishing always hands the slot straight on.
#[derive(Clone)]
pub(crate) struct Gated {
    way: Way,
    gate: SharedGate,
    entered: Arc<Notify>,
    inner: Handler,
}

impl Gated {
    pub(crate) fn new(way: Way, gate: SharedGate, inner: Handler) -> Self {
        let this = Self { way, gate, entered: Arc::new(Notify::new()), inner };
        if way == Way::Starter {
            let starter = this.clone();
            tokio::spawn(async move {
                loop {
                    starter.entered.notified().await;
                    tokio::task::yield_now().await;
                    starter.gate.dispatch();
                }
            });
        }
        this
    }
}

impl Service<Request<Incoming>> for Gated {
    type Response = Response<Full<Bytes>>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Incoming>) -> Self::Future {
        let now = self.gate.now();
        let context = RequestContext { deadline: now + patience(), ..RequestContext::default() };
        let ticket = if self.way == Way::Starter {
            self.entered.notify_one();
            self.gate.enter(now, &context)
        } else {
            self.gate.arrive_at(now, &context)
        };
        let (way, mut inner) = (self.way, self.inner.clone());
        Box::pin(async move {
            let slot = match ticket {
                Ok(ticket) => ticket.await,
                Err(rejection) => Err(rejection),
            };
            let Ok(slot) = slot else {
                let mut refusal = Response::new(Full::from("refused\n"));
                *refusal.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
                return Ok(refusal);
            };
            match way {
                Way::Inline | Way::Starter => {}
                Way::Park => park().await,
                Way::Yield => tokio::task::yield_now().await,
            }
            let response = inner.call(request).await;
            slot.serve();
            response
        })
    }
}

/// Once to the back of the run queue.
async fn park() {
    let mut parked = false;
    poll_fn(|cx| {
        if std::mem::replace(&mut parked, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}
