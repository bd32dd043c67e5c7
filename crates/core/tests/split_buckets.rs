//! What splitting a bucket costs: SRTM's Proposition 1 as a property, and its examples.

use proptest::prelude::*;
use tidegate_core::limit::Bucket;
use tidegate_core::share::{Rate, Share, Weight, split};
use tidegate_core::{Instant, Span};

/// When each message may go. `arrivals` are in order, each with the bucket it goes to.
fn departures(shares: &[Share], arrivals: &[(Instant, usize)]) -> Vec<Instant> {
    let full = |share: &Share| Bucket::full(Instant::ZERO, share.limit());
    let mut buckets: Vec<Bucket> = shares.iter().map(full).collect();
    let mut book = |(at, bucket): &(Instant, usize)| buckets[*bucket].book(*at, 1.0, Instant::FAR);
    arrivals.iter().map(|arrival| book(arrival).expect("a burst of one or more")).collect()
}

fn delays(shares: &[Share], arrivals: &[(Instant, usize)]) -> Vec<f64> {
    let delay = |((at, _), out): (&(Instant, usize), Instant)| out.since(*at).as_secs_f64();
    arrivals.iter().zip(departures(shares, arrivals)).map(delay).collect()
}

/// Delay accrued by all messages up to `now`.
fn accrued(arrivals: &[(Instant, usize)], departures: &[Instant], now: Instant) -> f64 {
    let wait = |((at, _), out): (&(Instant, usize), &Instant)| now.min(*out).since(*at);
    arrivals.iter().zip(departures).map(wait).map(Span::as_secs_f64).sum()
}

fn share(rate: f64, burst: u64) -> Share {
    Share::new(Rate::per_second(rate).unwrap(), burst)
}

/// Four at once, by hand.
#[test]
fn four_at_once_wait_longer_in_two_halves() {
    let whole = share(10.0, 2);
    let one = delays(&[whole], &[(Instant::ZERO, 0); 4]);
    assert_eq!(one, [0.0, 0.0, 0.1, 0.2]);
    let halves = split(whole, &[Weight::both(1); 2]).unwrap();
    let arrivals = [0, 0, 1, 1].map(|bucket| (Instant::ZERO, bucket));
    assert_eq!(delays(&halves, &arrivals), [0.0, 0.2, 0.0, 0.2]);
}

/// The last of a batch of m at an empty bucket waits for m tokens.
#[test]
fn the_last_of_a_batch_waits_for_all_of_it() {
    let mut arrivals = vec![(Instant::ZERO, 0); 5];
    arrivals.extend([(Instant::ZERO + Span::from_micros(1), 0); 10]);
    let last = delays(&[share(1_000.0, 5)], &arrivals).pop().unwrap();
    assert!((last - 0.01).abs() < 2e-6, "{last}");
}

proptest! {
    /// SRTM Proposition 1: whatever arrives, wherever it goes and however rate and burst are split,
    /// at no time is the delay accrued in the parts less than in the whole. (Not message by message:
    /// a single one may do better after a split.)
    #[test]
    fn a_split_never_saves_delay(
        gaps in prop::collection::vec((0..20_000u64, 0..5usize), 1..80),
        weights in prop::collection::vec((0..9u64, 0..9u64), 1..5),
        (rate, spare) in (1..2_000u32, 0..30u64),
    ) {
        let parts = weights.len();
        let whole = share(f64::from(rate), parts as u64 + spare);
        let weights: Vec<Weight> =
            weights.iter().map(|(rate, burst)| Weight { rate: *rate, burst: *burst }).collect();
        let shares = split(whole, &weights).unwrap();
        let mut now = Instant::ZERO;
        let mut arrivals = Vec::new();
        for (gap, bucket) in gaps {
            now += Span::from_micros(gap);
            arrivals.push((now, bucket % parts));
        }
        let together: Vec<_> = arrivals.iter().map(|(at, _)| (*at, 0)).collect();
        let (one, many) = (departures(&[whole], &together), departures(&shares, &arrivals));
        // Both sums are straight between these moments.
        for now in one.iter().chain(&many).chain(arrivals.iter().map(|(at, _)| at)) {
            let (one, many) = (accrued(&together, &one, *now), accrued(&arrivals, &many, *now));
            // A bucket counts in whole nanoseconds, and its interval in 1/64 of one.
            prop_assert!(many >= one * (1.0 - 1e-6) - 1e-8 * arrivals.len() as f64, "{many} < {one}");
        }
    }
}
