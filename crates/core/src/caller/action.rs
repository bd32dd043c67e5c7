//! What a caller tells its driver.

use crate::context::Context;
use crate::request::RequestId;
use crate::throttle::Answer;
use crate::verdict::Rejection;

/// What a driver of a caller must do.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum CallAction {
    /// Send this call to this endpoint with this context.
    Transmit {
        /// Which call.
        id: RequestId,
        /// Index of the endpoint.
        endpoint: usize,
        /// What travels with it.
        context: Context,
    },
    /// Tell the application that this call was rejected here; its id has ended.
    Fail {
        /// Which call.
        id: RequestId,
        /// Why.
        rejection: Rejection,
    },
    /// Tell this endpoint what waits here, if the driver can; otherwise drop it.
    Report {
        /// Index of the endpoint.
        endpoint: usize,
        /// A context without a request: caller, demand and sheds.
        context: Context,
    },
}

/// What follows from a response: the call is over, or is tried again.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Next {
    /// The call is over; this is what the application should be told.
    Over(Answer),
    /// Another attempt is under way or will be made; the call keeps its id. If that attempt may not
    /// leave after all, a [`CallAction::Fail`] follows.
    Retry,
}
