//! Sizing a bucket from a recorded trace (SRTM §III-A): a rate a tenth above the mean, and the
//! smallest burst with which 99 of 100 requests find their token at once.
//!
//! SRTM searches the burst by replaying the trace. That is not needed: how far the trace runs ahead
//! of the rate, the backlog `U` in tokens before each arrival, does not depend on the burst, and an
//! arrival waits exactly if `U > b − 1`. So the burst is one above a percentile of `U`, found in one
//! pass and a selection.

use std::fmt;

use super::bucket::{Bucket, Limit};
use crate::time::Instant;

/// Rate above the mean rate of the trace (SRTM §III-A).
const HEADROOM: f64 = 1.1;
/// Share of requests that must find a token at once.
const AT_ONCE: f64 = 0.99;

/// A bucket that fits a trace.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sizing {
    /// Arrivals in the trace.
    pub requests: usize,
    /// Mean arrivals per second.
    pub mean_rate: f64,
    /// The bucket: 1.1 times the mean rate, and the smallest whole burst.
    pub limit: Limit,
    /// Share of requests that wait for a token of that bucket.
    pub delayed: f64,
    /// Longest wait for a token, in seconds.
    pub longest: f64,
}

/// A trace of less than two moments has no rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooFew;

impl fmt::Display for TooFew {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a rate needs arrivals at two different moments at least")
    }
}

impl std::error::Error for TooFew {}

/// Sizes a bucket for `arrivals`, in any order.
pub fn size(arrivals: &[Instant]) -> Result<Sizing, TooFew> {
    let mut arrivals = arrivals.to_vec();
    arrivals.sort_unstable();
    let (Some(first), Some(last)) = (arrivals.first(), arrivals.last()) else { return Err(TooFew) };
    let seconds = last.since(*first).as_secs_f64();
    if seconds <= 0.0 {
        return Err(TooFew);
    }
    let mean_rate = (arrivals.len() - 1) as f64 / seconds;
    let rate = (mean_rate * HEADROOM).clamp(Limit::RATES.0, Limit::RATES.1);
    let limit = Limit::new(rate, burst(&arrivals, rate));
    let (mut delayed, mut longest) = (0, 0.0f64);
    let mut bucket = Bucket::full(*first, limit);
    for arrival in &arrivals {
        let due = bucket.book(*arrival, 1.0, Instant::FAR).unwrap_or(Instant::FAR);
        delayed += usize::from(due > *arrival);
        longest = longest.max(due.since(*arrival).as_secs_f64());
    }
    let (requests, delayed) = (arrivals.len(), delayed as f64 / arrivals.len() as f64);
    Ok(Sizing { requests, mean_rate, limit, delayed, longest })
}

/// The smallest whole burst with which at least 99 of 100 sorted arrivals find a token.
fn burst(arrivals: &[Instant], rate: f64) -> f64 {
    // A bucket of one token: what each finds missing is the backlog of all before it.
    let mut one = Bucket::full(arrivals[0], Limit::new(rate, 1.0));
    let mut backlogs: Vec<f64> = arrivals
        .iter()
        .map(|arrival| {
            one.settle(*arrival);
            let backlog = 1.0 - one.tokens(*arrival);
            // Always given: one token fits.
            let _ = one.book(*arrival, 1.0, Instant::FAR);
            backlog
        })
        .collect();
    let at = ((backlogs.len() as f64 * AT_ONCE).ceil() as usize).clamp(1, backlogs.len()) - 1;
    let (_, backlog, _) = backlogs.select_nth_unstable_by(at, f64::total_cmp);
    (*backlog + 1.0).ceil().clamp(1.0, Limit::BURSTS.1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::rng::Rng;

    fn at(nanos: u64) -> Instant {
        Instant::from_nanos(nanos)
    }

    fn delayed(arrivals: &[Instant], limit: Limit) -> f64 {
        let mut bucket = Bucket::full(arrivals[0], limit);
        let late = arrivals
            .iter()
            .filter(|at| bucket.book(**at, 1.0, Instant::FAR).is_ok_and(|due| due > **at));
        late.count() as f64 / arrivals.len() as f64
    }

    #[test]
    fn regular_arrivals_need_no_burst_and_batches_need_their_size() {
        let regular: Vec<Instant> = (0..1_000).map(|n| at(n * 1_000_000)).collect();
        let sizing = size(&regular).unwrap();
        assert!((sizing.mean_rate - 1_000.0).abs() < 1e-6);
        assert!((sizing.limit.rate - 1_100.0).abs() < 1e-6);
        assert_eq!((sizing.limit.burst, sizing.delayed), (1.0, 0.0));
        let batches: Vec<Instant> = (0..1_000).map(|n| at(n / 20 * 20_000_000)).collect();
        assert_eq!(size(&batches).unwrap().limit.burst, 20.0);
        assert_eq!(size(&[]), Err(TooFew));
        assert_eq!(size(&[at(5), at(5)]), Err(TooFew));
    }

    /// Poisson arrivals at a load of 1/1.1: the share that waits with burst b is P(U > b − 1), which
    /// falls by exp(−2(1 − ρ)/ρ) per token in heavy traffic; 1 % of it is at about 23.
    #[test]
    fn poisson_arrivals_need_what_the_formula_says() {
        let mut rng = Rng::new(5);
        let mut now = 0.0;
        let mut next = || {
            now += -(1.0 - rng.unit()).ln() * 1e6;
            at(now as u64)
        };
        let arrivals: Vec<Instant> = (0..400_000).map(|_| next()).collect();
        let burst = size(&arrivals).unwrap().limit.burst;
        assert!((20.0..=27.0).contains(&burst), "{burst}");
    }

    proptest! {
        /// One less would delay more than one in a hundred.
        #[test]
        fn the_burst_is_the_smallest(
            gaps in prop::collection::vec((0..6u8, 0..50_000_000u64), 2..400),
        ) {
            let mut now = 1;
            let arrivals: Vec<Instant> = gaps
                .iter()
                .map(|(kind, gap)| {
                    now += if *kind < 4 { gap / 100 } else { *gap };
                    at(now)
                })
                .chain([at(100_000_000_000)])
                .collect();
            let sizing = size(&arrivals).unwrap();
            prop_assert!(delayed(&arrivals, sizing.limit) <= 0.01);
            prop_assert_eq!(delayed(&arrivals, sizing.limit), sizing.delayed);
            if sizing.limit.burst > 1.0 {
                let smaller = Limit { burst: sizing.limit.burst - 1.0, ..sizing.limit };
                prop_assert!(delayed(&arrivals, smaller) > 0.01);
            }
        }
    }
}
