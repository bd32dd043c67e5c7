//! How much of a topic each broker gets.
//!
//! 1. Residual capacities are what is left of a benchmark; the fewest brokers are the shortest prefix,
//!    largest residual first, that covers the topic's rate (SRTM §IV-B, step 1).
//! 2. *Max-min*: from the last to the first, each gets the smaller of its residual and an even share
//!    of what is left (step 2), so that the smallest part, whose bucket makes messages wait longest,
//!    is as large as can be.
//!
//! The baselines equalise the *total* load of brokers instead, the topic's and what was there:
//! load balancing over all of them, concentration over the fewest.

use super::Broker;

/// How a topic is divided among brokers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Division {
    /// All brokers end with the same total load, as far as can be.
    Level,
    /// The smallest part of the topic is as large as can be.
    MaxMin,
}

/// The fewest of `brokers` whose residual capacities together cover `rate`, largest residual first,
/// of equals the first; all of them if not even all do.
pub fn fewest(brokers: &[Broker], among: &[usize], rate: f64) -> Vec<usize> {
    let mut order = among.to_vec();
    order.sort_by(|a, b| brokers[*b].residual().total_cmp(&brokers[*a].residual()));
    let mut covered = 0.0;
    let mut count = 0;
    while count < order.len() && (count == 0 || covered < rate) {
        covered += brokers[order[count]].residual();
        count += 1;
    }
    order.truncate(count);
    order
}

/// What each of `chosen` gets of `rate`, in their order. What exceeds all residuals is divided evenly
/// on top: better late everywhere than lost.
pub fn quotas(division: Division, brokers: &[Broker], chosen: &[usize], rate: f64) -> Vec<f64> {
    match division {
        Division::Level => level(brokers, chosen, rate),
        Division::MaxMin => max_min(brokers, chosen, rate),
    }
}

fn max_min(brokers: &[Broker], chosen: &[usize], rate: f64) -> Vec<f64> {
    // The smallest residual first: what it leaves to the others is known before they are filled.
    let mut order: Vec<usize> = (0..chosen.len()).collect();
    let residual = |at: usize| brokers[chosen[at]].residual();
    order.sort_by(|a, b| residual(*a).total_cmp(&residual(*b)));
    let mut parts = vec![0.0; chosen.len()];
    let mut left = rate;
    for (filled, &at) in order.iter().enumerate() {
        parts[at] = residual(at).min(left / (order.len() - filled) as f64);
        left -= parts[at];
    }
    if left > 0.0 {
        parts.iter_mut().for_each(|part| *part += left / chosen.len() as f64);
    }
    parts
}

fn level(brokers: &[Broker], chosen: &[usize], rate: f64) -> Vec<f64> {
    let mut loads: Vec<f64> = chosen.iter().map(|at| brokers[*at].load).collect();
    loads.sort_by(f64::total_cmp);
    // The level to which the lowest `count` are filled; right when it stays below the next.
    let mut below = 0.0;
    let mut height = 0.0;
    for (at, load) in loads.iter().enumerate() {
        below += load;
        height = (rate + below) / (at + 1) as f64;
        if loads.get(at + 1).is_none_or(|next| height <= *next) {
            break;
        }
    }
    chosen.iter().map(|at| (height - brokers[*at].load).max(0.0)).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn residuals(residuals: &[f64]) -> Vec<Broker> {
        residuals.iter().map(|&capacity| Broker { capacity, load: 0.0 }).collect()
    }

    /// SRTM §IV-B, the rule by hand: rate 60 over residuals 50, 30, 20 takes two brokers and gives 30 to each.
    #[test]
    fn fewest_brokers_and_equal_quotas() {
        let brokers = residuals(&[20.0, 50.0, 30.0]);
        let chosen = fewest(&brokers, &[0, 1, 2], 60.0);
        assert_eq!(chosen, [1, 2]);
        assert_eq!(quotas(Division::MaxMin, &brokers, &chosen, 60.0), [30.0, 30.0]);
    }

    /// SRTM §VI-C: 80 k over loads of 10, 40 and 50 k. Levelling leaves the third an eighth, max-min a
    /// third.
    #[test]
    fn max_min_gives_the_loaded_broker_more_than_levelling() {
        let broker = |load| Broker { capacity: 110.0, load };
        let brokers = [broker(10.0), broker(40.0), broker(50.0)];
        let all = [0, 1, 2];
        assert_eq!(quotas(Division::Level, &brokers, &all, 80.0), [50.0, 20.0, 10.0]);
        let even = quotas(Division::MaxMin, &brokers, &all, 80.0);
        assert!(even.iter().all(|part| (part - 80.0 / 3.0).abs() < 1e-9), "{even:?}");
    }

    #[test]
    fn with_too_little_capacity_all_are_used_and_nothing_is_lost() {
        let brokers = residuals(&[5.0, 3.0]);
        assert_eq!(fewest(&brokers, &[0, 1], 20.0), [0, 1]);
        assert_eq!(quotas(Division::MaxMin, &brokers, &[0, 1], 20.0), [11.0, 9.0]);
        assert_eq!(quotas(Division::Level, &brokers, &[0, 1], 20.0), [10.0, 10.0]);
    }

    proptest! {
        #[test]
        fn quotas_sum_to_the_rate_and_the_smallest_is_largest(
            brokers in prop::collection::vec((1.0..100.0f64, 0.0..100.0f64), 1..8),
            share in 0.01..1.0f64,
        ) {
            let brokers: Vec<Broker> =
                brokers.iter().map(|(room, load)| Broker { capacity: room + load, load: *load }).collect();
            let all: Vec<usize> = (0..brokers.len()).collect();
            let rate = share * brokers.iter().map(Broker::residual).sum::<f64>();
            for division in [Division::Level, Division::MaxMin] {
                let parts = quotas(division, &brokers, &all, rate);
                prop_assert!((parts.iter().sum::<f64>() - rate).abs() < 1e-6);
                prop_assert!(parts.iter().all(|part| *part >= 0.0));
            }
            let parts = quotas(Division::MaxMin, &brokers, &all, rate);
            let largest = parts.iter().copied().fold(0.0, f64::max);
            for (part, broker) in parts.iter().zip(&brokers) {
                prop_assert!(*part <= broker.residual() + 1e-6);
                // Below the largest only because it is full: no smaller part could be raised.
                prop_assert!(*part > largest - 1e-6 || *part > broker.residual() - 1e-6);
            }
        }
    }
}
