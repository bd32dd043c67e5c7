//! [`GateService`]: decides each arrival.

use std::sync::Arc;
use std::task::{Context, Poll};

use http::{Request, Response};
use tower_service::Service;

use super::arrival::Head;
use super::drain;
use super::future::{Case, ResponseFuture, Wait};
use super::layer::GateLayer;
use crate::body::GateBody;
use crate::wire;

/// A service behind a gate. Always ready: a decision needs the request, and a queue in front of
/// `poll_ready` would be one the gate cannot see.
#[derive(Clone, Debug)]
pub struct GateService<S> {
    pub(super) inner: S,
    pub(super) layer: Arc<GateLayer>,
}

impl<S, Q, B> Service<Request<Q>> for GateService<S>
where
    S: Service<Request<Q>, Response = Response<B>> + Clone,
    Q: http_body::Body + Send + 'static,
    B: http_body::Body,
{
    type Response = Response<GateBody<B>>;
    type Error = S::Error;
    type Future = ResponseFuture<S, Q>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        Poll::Ready(Ok(()))
    }

    /// The request arrives here and now, not when its future is first polled.
    fn call(&mut self, mut request: Request<Q>) -> Self::Future {
        let layer = Arc::clone(&self.layer);
        layer.sampler.start(&layer.gate);
        let now = layer.gate.now();
        let asked = layer.ask(now, &Head::of(&request));
        if asked.claims {
            // A handler that passes headers on must not pass on a stranger's claim.
            request.headers_mut().remove(wire::CONTEXT);
        }
        let answer = match layer.place_of(&Head::of(&request)) {
            Some(place) => Err(place),
            None => Ok(layer.gate.arrive_at(now, &asked.context)),
        };
        let mut case = Case::new(layer, asked);
        let wait = match answer {
            Err(place) => case.exempt(place),
            Ok(Ok(ticket)) => case.admit(ticket, &mut request),
            Ok(Err(rejection)) => {
                drain::forget(request);
                return ResponseFuture::new(case, Wait::Refused(rejection), None);
            }
        };
        ResponseFuture::new(case, wait, Some((self.inner.clone(), request)))
    }
}

#[cfg(feature = "tonic")]
impl<S: tonic::server::NamedService> tonic::server::NamedService for GateService<S> {
    const NAME: &'static str = S::NAME;
}
