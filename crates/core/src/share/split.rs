//! Dividing a whole into parts that sum to it exactly.
//!
//! An agreement (r, b) over k nodes becomes k buckets (rᵢ, bᵢ) with Σ rᵢ = r and Σ bᵢ = b (SRTM §I-B).
//! Parts that were rounded one by one would sum to a little more, and admit it, or to a little less,
//! and waste it. So whole numbers are divided, by largest remainder:
//!
//! 1. a part whose proportional share is below the least allowed gets the least;
//! 2. the others divide the rest in proportion to their weights, rounded down;
//! 3. what is left goes, one each, to those that lost most by rounding, of equals to the first.
//!
//! Rate and burst are divided separately. A bucket below one token never lets
//! anything pass, so every burst is at least one, and more parts than tokens is an error.

use std::fmt;

use super::{Rate, Share};

/// How much a part counts; only the proportions matter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Weight {
    /// For its part of the rate.
    pub rate: u64,
    /// For its part of the burst.
    pub burst: u64,
}

impl Weight {
    /// The same for rate and burst.
    pub const fn both(weight: u64) -> Self {
        Self { rate: weight, burst: weight }
    }
}

/// Why a whole cannot be divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SplitError {
    /// There is nobody to divide it among.
    NoParts,
    /// Every part needs a burst of one.
    BurstTooSmall {
        /// How many parts there would be.
        parts: usize,
        /// Tokens there are.
        burst: u64,
    },
    /// Every part needs a millionth of a token per second.
    RateTooSmall {
        /// How many parts there would be.
        parts: usize,
        /// What there is.
        rate: Rate,
    },
}

impl fmt::Display for SplitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoParts => write!(f, "there are no parts to divide a limit into"),
            Self::BurstTooSmall { parts, burst } => write!(
                f,
                "a burst of {burst} cannot be divided into {parts} parts of at least one token: \
                 use {burst} parts or fewer, or a larger burst"
            ),
            Self::RateTooSmall { parts, rate } => {
                write!(f, "a rate of {rate} cannot be divided into {parts} parts")
            }
        }
    }
}

impl std::error::Error for SplitError {}

/// Divides `whole` by `weights`: as many shares, in their order, that sum to it exactly. Without any
/// weight all parts are alike.
pub fn split(whole: Share, weights: &[Weight]) -> Result<Vec<Share>, SplitError> {
    let parts = weights.len();
    if parts == 0 {
        return Err(SplitError::NoParts);
    }
    let by = |weight: fn(&Weight) -> u64| weights.iter().map(weight).collect::<Vec<_>>();
    let rates = apportion(whole.rate.millionths(), &by(|weight| weight.rate), 1)
        .ok_or(SplitError::RateTooSmall { parts, rate: whole.rate })?;
    let bursts = apportion(whole.burst, &by(|weight| weight.burst), 1)
        .ok_or(SplitError::BurstTooSmall { parts, burst: whole.burst })?;
    let share = |(rate, burst)| Share::new(Rate::from_millionths(rate), burst);
    Ok(rates.into_iter().zip(bursts).map(share).collect())
}

/// Divides `total` in proportion to `weights`, none below `least`; none if that is not possible.
/// Without any weight all parts are alike.
pub fn apportion(total: u64, weights: &[u64], least: u64) -> Option<Vec<u64>> {
    let count = u64::try_from(weights.len()).ok()?;
    if count == 0 || least.checked_mul(count)? > total {
        return None;
    }
    let alike = weights.iter().all(|weight| *weight == 0);
    let weight = |at: usize| if alike { 1 } else { u128::from(weights[at]) };
    let mut parts = vec![least; weights.len()];
    // Smallest first: once one reaches the least by itself, all after it do.
    let mut order: Vec<usize> = (0..weights.len()).collect();
    order.sort_by_key(|at| weight(*at));
    let (mut rest, mut sum) = (u128::from(total), order.iter().map(|at| weight(*at)).sum::<u128>());
    let mut first = 0;
    while first < order.len() {
        let smallest = weight(order[first]);
        if smallest.saturating_mul(rest) >= u128::from(least).saturating_mul(sum) && sum > 0 {
            break;
        }
        rest -= u128::from(least);
        sum -= smallest;
        first += 1;
    }
    share_out(rest, sum, &order[first..], weight, &mut parts);
    debug_assert_eq!(parts.iter().sum::<u64>(), total, "the parts are the whole");
    Some(parts)
}

/// Steps 2 and 3 among those in `open`, whose weights sum to `sum`.
fn share_out(
    rest: u128,
    sum: u128,
    open: &[usize],
    weight: impl Fn(usize) -> u128,
    parts: &mut [u64],
) {
    let mut left = rest;
    let mut lost: Vec<(u128, usize)> = Vec::with_capacity(open.len());
    for &at in open {
        let exact = weight(at) * rest;
        let part = exact / sum;
        parts[at] = u64::try_from(part).expect("a part is at most the whole");
        left -= part;
        lost.push((exact % sum, at));
    }
    lost.sort_by_key(|(remainder, at)| (std::cmp::Reverse(*remainder), *at));
    for (_, at) in lost.into_iter().take(usize::try_from(left).unwrap_or(usize::MAX)) {
        parts[at] += 1;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn largest_remainders_get_what_is_left() {
        // 10 by 3 : 3 : 1 is 4.29, 4.29, 1.43: the third lost most, and the one left is its.
        assert_eq!(apportion(10, &[3, 3, 1], 0), Some(vec![4, 4, 2]));
        assert_eq!(apportion(10, &[1, 1, 1], 1), Some(vec![4, 3, 3]));
        assert_eq!(apportion(10, &[0, 0, 0, 0], 1), Some(vec![3, 3, 2, 2]));
    }

    #[test]
    fn the_smallest_get_the_least_and_the_others_share_the_rest() {
        assert_eq!(apportion(10, &[0, 90, 10], 1), Some(vec![1, 8, 1]));
        assert_eq!(apportion(100, &[1, 2, 997], 10), Some(vec![10, 10, 80]));
        assert_eq!(apportion(6, &[5, 0, 0], 2), Some(vec![2, 2, 2]));
    }

    #[test]
    fn what_cannot_be_divided_is_an_error_that_says_why() {
        let whole = Share::new(Rate::from_millionths(10), 3);
        assert_eq!(split(whole, &[]), Err(SplitError::NoParts));
        let error = split(whole, &[Weight::both(1); 4]).unwrap_err();
        assert_eq!(error, SplitError::BurstTooSmall { parts: 4, burst: 3 });
        assert!(error.to_string().contains("use 3 parts or fewer"), "{error}");
        let slow = Share::new(Rate::from_millionths(2), 30);
        let error = SplitError::RateTooSmall { parts: 4, rate: slow.rate };
        assert_eq!(split(slow, &[Weight::both(1); 4]), Err(error));
    }

    /// (10/s, 2) in two halves is (5/s, 1) twice.
    #[test]
    fn halves_are_halves() {
        let rate = |tokens| Rate::per_second(tokens).unwrap();
        let halves = split(Share::new(rate(10.0), 2), &[Weight::both(7); 2]).unwrap();
        assert_eq!(halves, [Share::new(rate(5.0), 1); 2]);
    }

    proptest! {
        #[test]
        fn parts_sum_to_the_whole_and_are_fair(
            total in prop_oneof![0..100u64, any::<u64>()],
            weights in prop::collection::vec(prop_oneof![0..5u64, any::<u64>()], 0..12),
            least in 0..12u64,
        ) {
            let parts = apportion(total, &weights, least);
            let possible = !weights.is_empty() && least * weights.len() as u64 <= total;
            prop_assert_eq!(parts.is_some(), possible);
            let Some(parts) = parts else { return Ok(()) };
            let sum: u128 = parts.iter().map(|part| u128::from(*part)).sum();
            prop_assert_eq!(sum, u128::from(total));
            prop_assert!(parts.iter().all(|part| *part >= least));
            let alike = weights.iter().all(|weight| *weight == 0);
            for (a, x) in weights.iter().zip(&parts) {
                for (b, y) in weights.iter().zip(&parts) {
                    // More weight, never less; and in proportion, but for rounding and the least.
                    prop_assert!(a <= b || x >= y, "{} {} {} {}", a, b, x, y);
                    if *x > least && *y > least && !alike {
                        let (a, b, x, y) = (*a as f64, *b as f64, *x as f64, *y as f64);
                        prop_assert!((x - 1.0) * b <= (y + 1.0) * a * (1.0 + 1e-9));
                    }
                }
            }
        }
    }
}
