//! Least attained service first (Wisp §4.2, Table 2): who has received least so far.
//!
//! It needs no estimate at all. Where sizes vary widely, a request that has already taken long will
//! probably take long still, so preferring the young comes close to `srtf`. Only steps make it
//! differ from first come, first served: a gate does not interrupt a running step.
//!
//! Attained service is the work, or else the service time, that the request's progress says it has received
//! over all hops. A driver
//! that reports no progress leaves that at what it was on arrival; then what was attained here
//! counts, if it is more.

use super::keyed::Order;
use crate::request::Request;

/// Order by service received so far, the least first.
#[derive(Clone, Debug)]
pub struct Lasf;

impl Order for Lasf {
    const NAME: &'static str = "lasf";

    fn key(request: &Request) -> u64 {
        // Not the sum: a progress handed over at a resume includes what was received here.
        let progress = &request.context.progress;
        let work = u64::from(progress.work) * 1_000;
        progress.elapsed.max(request.attained).as_nanos().max(work)
    }
}
