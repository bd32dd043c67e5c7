//! [`Pressure`]: what a handler can know of the load.

use http::Extensions;
use tidegate_core::Rank;
use tidegate_driver::context;

/// How the gate let a request in.
///
/// ```
/// # use tidegate_http::server::Pressure;
/// # fn handler(request: http::Request<()>) -> &'static str {
/// if Pressure::of(request.extensions()).degraded {
///     "the ten most popular"
/// } else {
///     "exactly what you like"
/// }
/// # }
/// ```
///
/// With the feature `axum` it is an extractor: `async fn handler(pressure: Pressure)`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pressure {
    /// Whether a cheaper answer is asked for.
    pub degraded: bool,
    /// How important the request is.
    pub rank: Rank,
}

impl Pressure {
    /// That of the request with these extensions. They have it only if a cheaper answer is asked for, since
    /// the first extension of a request costs three allocations; else the rank is that of this task's
    /// context.
    pub fn of(extensions: &Extensions) -> Self {
        extensions.get().copied().unwrap_or_else(|| {
            let rank = context::current().map_or(Rank::default(), |context| context.rank);
            Self { degraded: false, rank }
        })
    }
}

#[cfg(feature = "axum")]
impl<S: Sync> axum_core::extract::FromRequestParts<S> for Pressure {
    type Rejection = std::convert::Infallible;

    async fn from_request_parts(
        parts: &mut http::request::Parts,
        _state: &S,
    ) -> Result<Self, Self::Rejection> {
        Ok(Self::of(&parts.extensions))
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::future::{Ready, ready};
    use std::sync::{Arc, Mutex};
    use std::task::{Context, Poll};

    use http::{Request, Response};
    use http_body_util::Empty;
    use tidegate_core::Span;
    use tidegate_core::gate::GateConfig;
    use tidegate_driver::SharedGate;
    use tower_layer::Layer;
    use tower_service::Service;

    use super::*;
    use crate::{GateLayer, Trust};

    type Body = Empty<bytes::Bytes>;

    /// Notes the pressure it sees.
    #[derive(Clone, Default)]
    struct Notes(Arc<Mutex<Vec<Pressure>>>);

    impl Service<Request<Body>> for Notes {
        type Response = Response<Body>;
        type Error = Infallible;
        type Future = Ready<Result<Response<Body>, Infallible>>;

        fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
            Poll::Ready(Ok(()))
        }

        fn call(&mut self, request: Request<Body>) -> Self::Future {
            self.0.lock().unwrap().push(Pressure::of(request.extensions()));
            ready(Ok(Response::default()))
        }
    }

    #[tokio::test]
    async fn a_handler_sees_its_rank_and_whether_less_will_do() {
        for (degrade_delay, degraded) in [(Span::from_secs(1), false), (Span::ZERO, true)] {
            let config = GateConfig { degrade_delay, ..GateConfig::default() };
            let gate = SharedGate::build(&config).unwrap();
            let notes = Notes::default();
            let mut service = GateLayer::new(gate).trust(Trust::Inside).layer(notes.clone());
            let request = Request::get("/").header("overload-context", "r=(3 4)");
            let Ok(_response) = service.call(request.body(Body::new()).unwrap()).await;
            let seen = Pressure { degraded, rank: Rank::new(3, 4) };
            assert_eq!(*notes.0.lock().unwrap(), [seen]);
        }
        assert_eq!(Pressure::of(&Extensions::new()), Pressure::default(), "outside of any request");
    }
}
