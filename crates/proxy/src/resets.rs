//! How often requests on a connection that others have too may be given up.
//!
//! Over HTTP/2 a request is ended by a reset, and servers take many of them for an attack (CVE-2023-44487): they
//! close the connection, and with it the requests of everybody else. So resets are paced: whoever has none left keeps its
//! request until it has, or until it is answered.

use tidegate_core::limit::Limit;
use tidegate_core::{Instant, Span};
use tidegate_driver::AtomicBucket;

/// Resets per second of one connection: less than the 200 in 30 s of Netty and the 33 a second of nghttp2, the
/// strictest that count by time.
const PER_SECOND: f64 = 5.0;
/// As many at once: half of the 20 that the crate `h2` takes of requests that it has not begun.
const AT_ONCE: f64 = 10.0;

/// The resets that are left.
#[derive(Debug)]
pub(crate) struct Resets(AtomicBucket);

impl Resets {
    pub(crate) fn new(now: Instant) -> Self {
        Self(AtomicBucket::full(now, Limit { rate: PER_SECOND, burst: AT_ONCE }))
    }

    /// Takes one, if there is one.
    pub(crate) fn take(&self, now: Instant) -> bool {
        self.0.take(now).is_ok()
    }

    /// For how long to wait for the next, which is then taken.
    pub(crate) fn book(&self, now: Instant) -> Span {
        self.0.book(now, 1.0, Instant::FAR).map_or(Span::ZERO, |due| due.since(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ten_at_once_and_five_a_second_are_within() {
        let at = |millis| Instant::ZERO + Span::from_millis(millis);
        let resets = Resets::new(at(0));
        assert_eq!((0..100).filter(|_| resets.take(at(0))).count(), 10);
        assert_eq!((1..=2_000).filter(|n| resets.take(at(*n))).count(), 10);
        assert!(!resets.take(at(2_000)));
        assert_eq!(resets.book(at(2_000)), Span::from_millis(200));
        assert_eq!(resets.book(at(2_000)), Span::from_millis(400));
    }
}
