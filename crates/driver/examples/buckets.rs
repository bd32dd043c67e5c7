//! Token buckets beside those of the `governor` crate, in one run.
//!
//! `buckets` lists operations and `buckets NAME N` does one N times, for `cargo xtask bench`.
//! `buckets compare` measures nanoseconds per decision, ours and theirs in turns, and tells the
//! ratios. Both read the time from one atomic word, so that no clock is measured.
#![cfg_attr(not(loom), allow(clippy::disallowed_methods, reason = "a comparison reads the clock"))]

use std::hint::black_box;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant as WallInstant;

use governor::clock::Clock;
use governor::middleware::NoOpMiddleware;
use governor::nanos::Nanos;
use governor::state::{InMemoryState, NotKeyed};
use governor::{Quota, RateLimiter};
use tidegate_core::Instant;
use tidegate_core::limit::{Bucket, Limit};
use tidegate_driver::AtomicBucket;

/// A million a second and a burst of a thousand, for everybody.
const RATE: u32 = 1_000_000;
const BURST: u32 = 1_000;

/// The time, advanced by the measuring loop.
#[derive(Clone, Debug, Default)]
struct Hand(Arc<AtomicU64>);

impl Hand {
    fn nanos(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    fn advance(&self, nanos: u64) {
        self.0.store(self.nanos() + nanos, Ordering::Relaxed);
    }
}

impl Clock for Hand {
    type Instant = Nanos;
    fn now(&self) -> Nanos {
        Nanos::from(self.nanos())
    }
}

type Governor = RateLimiter<NotKeyed, InMemoryState, Hand, NoOpMiddleware<Nanos>>;

fn governor(hand: &Hand) -> Governor {
    let (rate, burst) = (NonZeroU32::new(RATE), NonZeroU32::new(BURST));
    let quota = Quota::per_second(rate.expect("not zero")).allow_burst(burst.expect("not zero"));
    RateLimiter::direct_with_clock(quota, hand.clone())
}

fn limit() -> Limit {
    Limit::new(f64::from(RATE), f64::from(BURST))
}

/// Does a decision `times`, `step` nanoseconds apart; returns how many passed.
fn repeat(times: u64, step: u64, hand: &Hand, mut decide: impl FnMut() -> bool) -> u64 {
    let mut passed = 0;
    for _ in 0..times {
        hand.advance(step);
        passed += u64::from(black_box(decide()));
    }
    passed
}

/// Nanoseconds between two requests: at 1,000 every one passes, at 1 nearly none does.
const STEPS: &[(&str, u64)] = &[("pass", 1_000), ("refuse", 1)];
const WHO: &[&str] = &["plain", "atomic", "governor"];

fn run(who: &str, step: u64, times: u64) -> u64 {
    let hand = Hand::default();
    let now = || Instant::from_nanos(hand.nanos());
    match who {
        "plain" => {
            let mut bucket = Bucket::full(now(), limit());
            repeat(times, step, &hand, || bucket.take(now()))
        }
        "atomic" => {
            let bucket = AtomicBucket::full(now(), limit());
            repeat(times, step, &hand, || bucket.take(now()).is_ok())
        }
        _ => {
            let limiter = governor(&hand);
            repeat(times, step, &hand, || limiter.check().is_ok())
        }
    }
}

/// Two threads at one bucket, each with its own time: what contention costs.
fn contend(who: &str, times: u64) {
    let hand = Hand::default();
    let (atomic, limiter) = (AtomicBucket::full(Instant::ZERO, limit()), governor(&hand));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                if who == "atomic" {
                    let now = || Instant::from_nanos(hand.nanos());
                    repeat(times / 2, 500, &hand, || atomic.take(now()).is_ok())
                } else {
                    repeat(times / 2, 500, &hand, || limiter.check().is_ok())
                }
            });
        }
    });
}

/// Median nanoseconds per decision over several rounds in turns.
fn compare() {
    const ROUNDS: usize = 15;
    const TIMES: u64 = 2_000_000;
    let timed = |work: &dyn Fn()| {
        let start = WallInstant::now();
        work();
        start.elapsed().as_nanos() as f64 / TIMES as f64
    };
    let mut cases: Vec<(String, String, Vec<f64>)> = Vec::new();
    for case in ["pass", "refuse", "two threads"] {
        for who in WHO.iter().filter(|who| case != "two threads" || **who != "plain") {
            cases.push((case.to_owned(), (*who).to_owned(), Vec::new()));
        }
    }
    for _ in 0..ROUNDS {
        for (case, who, times) in &mut cases {
            let step = STEPS.iter().find(|(name, _)| name == case).map(|(_, step)| *step);
            times.push(match step {
                Some(step) => timed(&|| {
                    black_box(run(who, step, TIMES));
                }),
                None => timed(&|| contend(who, TIMES)),
            });
        }
    }
    let median = |times: &mut Vec<f64>| {
        times.sort_by(f64::total_cmp);
        times[times.len() / 2]
    };
    let mut found: Vec<(String, String, f64)> = Vec::new();
    for (case, who, mut times) in cases {
        found.push((case, who, median(&mut times)));
    }
    println!("{:<14}{:<12}{:>8}{:>18}", "case", "bucket", "ns", "of governor's");
    for (case, who, nanos) in &found {
        let theirs = found.iter().find(|(same, other, _)| same == case && other == "governor");
        let theirs = theirs.expect("measured beside").2;
        println!("{case:<14}{who:<12}{nanos:>8.2}{:>18.2}", nanos / theirs);
    }
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match &args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => {
            for (step, _) in STEPS {
                WHO.iter().for_each(|who| println!("bucket/{step}/{who}"));
            }
        }
        ["compare"] => compare(),
        [name, times] => {
            let mut parts = name.split('/').skip(1);
            let (step, who) = (parts.next(), parts.next().expect("NAME is one of the list"));
            let step = STEPS.iter().find(|(name, _)| Some(*name) == step);
            let (_, step) = step.expect("NAME is one of the list");
            let times = times.parse().expect("N is a whole number");
            let passed = run(who, *step, times);
            let expected = if *step == 1 { passed < times / 4 + 2_000 } else { passed == times };
            assert!(expected, "{passed} of {times} passed: this measures something else");
        }
        _ => panic!("usage: buckets [compare | NAME N]"),
    }
}
