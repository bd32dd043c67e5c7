//! The client side: a caller before a tower service that makes HTTP requests.
//!
//! 1. In `call` itself the request inherits the context of the request it is made for, and the
//!    caller is asked: a rejection, or a place.
//! 2. When it may leave, it goes out with `overload-context`; `Endpoint` in its extensions says
//!    where to.
//! 3. The answer's `overload-feedback` goes to the throttle, whatever else the answer says.
//! 4. A refusal, in our words or in those of HTTP, Envoy or gRPC, is retried if the budget allows it
//!    and the request can be repeated. A request that may be done twice and takes longer than most is
//!    hedged, if the configuration says so, from the same budget. The application gets a response in any case: what was
//!    rejected here looks like what is refused there.

mod future;
mod layer;
mod service;

pub use layer::{CallerLayer, Cloned, Once, Repeat};
pub use service::{CallerService, Endpoint};
