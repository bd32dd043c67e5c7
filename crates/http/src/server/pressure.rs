//! [`Pressure`]: what a handler can know of the load.

use tidegate_core::Rank;

/// How the gate let a request in; in the extensions of every request that a handler gets.
///
/// ```
/// # use tidegate_http::server::Pressure;
/// # fn handler(request: http::Request<()>) -> &'static str {
/// match request.extensions().get::<Pressure>() {
///     Some(Pressure { degraded: true, .. }) => "the ten most popular",
///     _ => "exactly what you like",
/// }
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pressure {
    /// Whether a cheaper answer is asked for.
    pub degraded: bool,
    /// How important the request is.
    pub rank: Rank,
}
