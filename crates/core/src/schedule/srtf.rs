//! Shortest remaining time first: who is done soonest (Wisp §4.2).
//!
//! Like `sjf`, but a request moves up as it progresses: one that has passed most of its path is
//! finished before another is begun, so fewer are half done at any time and the mean latency is the
//! smallest there is. Remaining time is total − elapsed of the request's progress, along the whole
//! path; without a total it is the estimated cost of what is left here.

use super::keyed::{Order, remaining};
use crate::request::Request;

/// Order by remaining service, the least first.
#[derive(Clone, Debug)]
pub struct Srtf;

impl Order for Srtf {
    const NAME: &'static str = "srtf";

    fn key(request: &Request) -> u64 {
        remaining(request).as_nanos()
    }
}
