//! The bucket itself against theory: Poisson arrivals wait for tokens as the unfinished work of an M/D/1 queue
//! exceeds b − 1.

use tidegate_core::limit::{Bucket, Limit};
use tidegate_core::rng::Rng;
use tidegate_core::{Instant, Span};

/// Utilization, burst, P(U > b − 1), SRTM's Eq. (1), and the exact mean delay in tokens' time: Crommelin's
/// distribution with 70 digits. Eq. (1) is exact for b = 1 and too large above.
const TABLE: [(f64, f64, f64, f64, f64); 10] = [
    (0.5, 1.0, 0.500000, 0.500000, 0.500000),
    (0.5, 2.0, 0.175639, 0.175639, 0.148721),
    (0.5, 5.0, 0.004342, 0.004342, 0.003455),
    (0.8, 1.0, 0.800000, 2.000000, 2.000000),
    (0.8, 2.0, 0.554892, 1.387230, 1.306385),
    (0.8, 5.0, 0.154625, 0.386562, 0.358878),
    (0.8, 10.0, 0.017935, 0.044838, 0.041628),
    (0.9, 1.0, 0.900000, 4.500000, 4.500000),
    (0.9, 5.0, 0.407545, 2.037727, 1.967401),
    (0.9, 10.0, 0.144663, 0.723317, 0.698361),
];

/// The share of arrivals that wait, and their mean delay in tokens' time; `count` Poisson arrivals at `rho` of the rate.
fn run(rho: f64, burst: f64, count: u32, seed: u64) -> (f64, f64) {
    const RATE: f64 = 1_000.0;
    let mut bucket = Bucket::full(Instant::ZERO, Limit::new(RATE, burst));
    let mut rng = Rng::new(seed);
    let (mut at, mut waited, mut delay) = (0.0, 0u32, 0.0);
    for _ in 0..count {
        at -= (1.0 - rng.unit()).ln() / (rho * RATE);
        let now = Instant::ZERO + Span::from_nanos((at * 1e9) as u64);
        let due = bucket.book(now, 1.0, Instant::FAR).expect("a token fits");
        waited += u32::from(due > now);
        delay += due.since(now).as_secs_f64() * RATE;
    }
    (f64::from(waited) / f64::from(count), delay / f64::from(count))
}

/// Twenty runs of 100,000 arrivals, the same whenever this is tested: each mean within four of its own standard errors of
/// the theory, and those within 6 % of it, which is what the rarest waits need.
#[test]
fn delays_of_poisson_arrivals_are_those_of_the_theory() {
    for (rho, burst, waits, first, exact) in TABLE {
        let runs: Vec<(f64, f64)> = (0..20).map(|seed| run(rho, burst, 100_000, seed)).collect();
        let check = |what: &str, values: Vec<f64>, theory: f64| {
            let count = values.len() as f64;
            let mean = values.iter().sum::<f64>() / count;
            let spread = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>();
            let error = (spread / (count - 1.0) / count).sqrt();
            assert!(error < 0.06 * theory, "{rho}, {burst}: {what} {mean} ± {error}");
            let near = (mean - theory).abs() < 4.0 * error;
            assert!(near, "{rho}, {burst}: {what} {mean} ± {error}, not {theory}");
        };
        check("waits", runs.iter().map(|run| run.0).collect(), waits);
        check("mean delay", runs.iter().map(|run| run.1).collect(), exact);
        // The paper's Eq. (1), of the share that waits: right for a burst of one, too large for more.
        let by_share = |run: &(f64, f64)| run.0 / (2.0 * (1.0 - rho));
        check("Eq. (1)", runs.iter().map(by_share).collect(), first);
        assert_eq!(first / exact > 1.02, burst > 1.0, "{rho}, {burst}");
    }
}
