//! Least slack time first (Wisp §4.2): who can afford to wait least.
//!
//! ```text
//! slack = deadline − now − remaining service along the path
//! ```
//!
//! `now` is the same for all that wait, so the order is that of *deadline − remaining*: the latest
//! moment at which a request can start and still be in time. It does not change while the request
//! waits, so a heap holds it. Remaining service is the total that the entry learned for the
//! workflow less what was received so far: service time, not latency, or congestion would look like
//! work.
//!
//! The subtraction stops at the driver's epoch. Requests that would have had to start before it are
//! late by any count, and the gate refuses those.
//!
//! A request without a deadline has all the slack there is: it goes last, in order of arrival.

use super::keyed::{Order, remaining};
use crate::request::Request;
use crate::time::Instant;

/// Order by deadline less remaining service, the earliest first.
#[derive(Clone, Debug)]
pub struct Lstf;

impl Order for Lstf {
    const NAME: &'static str = "lstf";

    fn key(request: &Request) -> u64 {
        let deadline = request.context.deadline;
        if deadline == Instant::FAR {
            return u64::MAX;
        }
        (deadline - remaining(request)).as_nanos()
    }
}
