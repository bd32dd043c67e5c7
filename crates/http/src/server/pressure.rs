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
