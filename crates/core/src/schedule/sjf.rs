//! Shortest job first: by the whole size of a request, estimated when it came.
//!
//! Among orders that do not interrupt, none gives a smaller mean wait. The size is the total work that the
//! entry learned for the workflow (Wisp §4.2, Table 2), along the whole path; without one, the workflow's
//! mean cost (`Request::cost` when it arrives), so within one workflow it is first come, first
//! served. The size of a job does not shrink as it is worked on: a step that returns is again as
//! large as the request it belongs to, which is what tells this order from `srtf`.
//!
//! Large jobs can wait without end while small ones keep coming: use it with deadlines, or where
//! an admission policy keeps the queue short.

use super::keyed::Order;
use crate::request::Request;

/// Order by estimated cost of the whole request, the smallest first.
#[derive(Clone, Debug)]
pub struct Sjf;

impl Order for Sjf {
    const NAME: &'static str = "sjf";

    fn key(request: &Request) -> u64 {
        let total = u64::from(request.context.progress.total_work) * 1_000;
        if total > 0 {
            return total;
        }
        // `cost` is that of the present step: what earlier ones received was taken off.
        request.cost.0.saturating_add(request.attained.as_nanos())
    }
}
