//! [`GateService`]: decides each arrival.

use std::task::{Context, Poll};

use http::{Request, Response};
use tidegate_core::{Context as RequestContext, Instant};
use tower_service::Service;

use super::future::ResponseFuture;
use super::layer::GateLayer;
use crate::body::GateBody;

/// A service behind a gate. Always ready: a decision needs the request, and a queue in front of
/// `poll_ready` would be one the gate cannot see.
#[derive(Clone, Debug)]
pub struct GateService<S> {
    pub(super) inner: S,
    pub(super) layer: GateLayer,
}

impl<S, Q, B> Service<Request<Q>> for GateService<S>
where
    S: Service<Request<Q>, Response = Response<B>> + Clone,
    B: http_body::Body,
{
    type Response = Response<GateBody<B>>;
    type Error = S::Error;
    type Future = ResponseFuture<S, Q>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        Poll::Ready(Ok(()))
    }

    /// The request arrives here and now, not when its future is first polled.
    fn call(&mut self, request: Request<Q>) -> Self::Future {
        let gate = &self.layer.gate;
        let now = gate.now();
        let deadline = self.layer.patience.map_or(Instant::FAR, |patience| now + patience);
        let context = RequestContext { deadline, ..RequestContext::default() };
        match gate.arrive_at(now, &context) {
            Ok(ticket) => {
                let service = self.inner.clone();
                ResponseFuture::admitted(ticket, context, service, request)
            }
            Err(rejection) => ResponseFuture::refused(rejection),
        }
    }
}
