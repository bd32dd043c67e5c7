//! Earliest deadline first.
//!
//! If any order can meet all deadlines of one server, this one does; it needs to know nothing about
//! the work. Two weaknesses to know. It looks at the end of the path but not at its length: a
//! request with more hops to come looks as if it could wait (Wisp §4.2, Figure 4; see `lstf`). And
//! in overload it prefers whatever is about to fail anyway, so it needs an admission policy in front
//! and the gate's refusal of what can no longer make it.
//!
//! A request without a deadline goes last, in order of arrival.

use super::keyed::Order;
use crate::request::Request;

/// Order by deadline, the earliest first.
#[derive(Clone, Debug)]
pub struct Edf;

impl Order for Edf {
    const NAME: &'static str = "edf";

    fn key(request: &Request) -> u64 {
        request.context.deadline.as_nanos()
    }
}
