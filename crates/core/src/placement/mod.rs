//! Placement: which broker serves which publishers of a rate-limited topic.
//!
//! Spreading a topic over more brokers gives it more processing capacity and cuts its bucket into more
//! parts, and a part makes messages wait that the whole would have let pass (SRTM's Proposition 1).
//! So there is a number of brokers that is just enough, and three principles for using them (SRTM
//! §III): *concentration*, as few as meet the objective; *max-min*, the smallest part as large as can
//! be; *correlation-awareness*, publishers that send together go to different brokers, so that bursts
//! are cut as buckets are.
//!
//! Read in this order: [`quotas`] says how much each broker gets; [`deal()`] which publishers;
//! [`Fitting`] is the paper's search by measurement; [`replay`] predicts what a measurement
//! would show; [`Planner`] plans with it and measures to verify; [`moves()`] changes a placement
//! when loads shift. None of them measures or moves anything itself: they say what to try, and are
//! told what came of it.

mod deal;
mod fit;
mod moves;
mod plan;
mod quota;
pub mod replay;

use std::fmt;

pub use deal::{Order, deal};
pub use fit::{FitConfig, Fitting};
pub use moves::{Move, Moves, moves};
pub use plan::{Host, Planner, PlannerConfig};
pub use quota::{Division, fewest, quotas};

use crate::share::{Share, SplitError, Weight, split};
use crate::time::Span;

/// Publishers with the same key tend to send at the same moments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupId(pub u32);

/// Someone who sends messages of the topic.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Publisher {
    /// Messages per second.
    pub rate: f64,
    /// With whom it sends together. Without a group it is taken to send on its own.
    pub group: Option<GroupId>,
}

/// A broker as far as placement goes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Broker {
    /// Messages per second that it can process within the objective, from a benchmark.
    pub capacity: f64,
    /// Messages per second that it processes already.
    pub load: f64,
}

impl Broker {
    /// Messages per second that it can still take.
    pub fn residual(&self) -> f64 {
        (self.capacity - self.load).max(0.0)
    }
}

/// Which broker serves each publisher.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Placement {
    /// By publisher, in the order of the topic; none is not placed.
    pub broker_of: Vec<Option<usize>>,
}

impl Placement {
    /// Nobody is placed yet.
    pub fn none(publishers: usize) -> Self {
        Self { broker_of: vec![None; publishers] }
    }

    /// Messages per second at each of `brokers` brokers.
    pub fn rates(&self, publishers: &[Publisher], brokers: usize) -> Vec<f64> {
        let mut rates = vec![0.0; brokers];
        for (publisher, broker) in publishers.iter().zip(&self.broker_of) {
            if let Some(rate) = broker.and_then(|broker| rates.get_mut(broker)) {
                *rate += publisher.rate;
            }
        }
        rates
    }

    /// Brokers that serve some, in order.
    pub fn used(&self) -> Vec<usize> {
        let mut used: Vec<usize> = self.broker_of.iter().flatten().copied().collect();
        used.sort_unstable();
        used.dedup();
        used
    }

    /// Each used broker's part of the topic's bucket, in proportion to the rates placed there.
    pub fn shares(
        &self,
        whole: Share,
        publishers: &[Publisher],
    ) -> Result<Vec<(usize, Share)>, SplitError> {
        let used = self.used();
        let rates = self.rates(publishers, used.last().map_or(0, |last| last + 1));
        // Millionths, so that slow publishers count.
        let weight = |broker: &usize| Weight::both((rates[*broker] * 1e6).round() as u64);
        let shares = split(whole, &used.iter().map(weight).collect::<Vec<_>>())?;
        Ok(used.into_iter().zip(shares).collect())
    }
}

/// What a measurement round said of one broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measured {
    /// The 99th percentile of the topic's latency there.
    Tail(Span),
    /// It served none of the topic, or said nothing: no proof of anything.
    Idle,
    /// It has disappeared.
    Gone,
}

/// Why nothing can be placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlaceError {
    /// There is no broker.
    NoBrokers,
    /// There is no publisher.
    NoPublishers,
    /// A publisher's rate is negative, zero or no number.
    Rate {
        /// Which one.
        publisher: usize,
    },
    /// A broker's capacity or load is negative or no number.
    Capacity {
        /// Which one.
        broker: usize,
    },
}

impl fmt::Display for PlaceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoBrokers => write!(f, "there is no broker to place publishers on"),
            Self::NoPublishers => write!(f, "there is no publisher to place"),
            Self::Rate { publisher } => {
                write!(f, "the rate of publisher {publisher} is not a number above zero")
            }
            Self::Capacity { broker } => {
                write!(f, "capacity and load of broker {broker} must be numbers, zero or more")
            }
        }
    }
}

impl std::error::Error for PlaceError {}

/// Whether these can be placed at all.
pub fn check(publishers: &[Publisher], brokers: &[Broker]) -> Result<(), PlaceError> {
    if brokers.is_empty() {
        return Err(PlaceError::NoBrokers);
    }
    if publishers.is_empty() {
        return Err(PlaceError::NoPublishers);
    }
    let sound = |rate: f64| rate.is_finite() && rate >= 0.0;
    if let Some(publisher) = publishers.iter().position(|at| !sound(at.rate) || at.rate == 0.0) {
        return Err(PlaceError::Rate { publisher });
    }
    match brokers.iter().position(|at| !sound(at.capacity) || !sound(at.load)) {
        Some(broker) => Err(PlaceError::Capacity { broker }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::share::Rate;

    #[test]
    fn what_cannot_be_placed_is_an_error() {
        let broker = Broker { capacity: 1.0, load: 0.0 };
        let publisher = Publisher { rate: 1.0, group: None };
        assert_eq!(check(&[publisher], &[]), Err(PlaceError::NoBrokers));
        assert_eq!(check(&[], &[broker]), Err(PlaceError::NoPublishers));
        for rate in [0.0, -1.0, f64::NAN] {
            let error = check(&[publisher, Publisher { rate, group: None }], &[broker]);
            assert_eq!(error, Err(PlaceError::Rate { publisher: 1 }));
        }
        let error = check(&[publisher], &[Broker { capacity: f64::INFINITY, load: 0.0 }]);
        assert_eq!(error, Err(PlaceError::Capacity { broker: 0 }));
        assert_eq!(check(&[publisher], &[broker]), Ok(()));
    }

    #[test]
    fn shares_go_by_rate_and_are_the_whole() {
        let publisher = |rate| Publisher { rate, group: None };
        let publishers = [publisher(1.0), publisher(3.0), publisher(2.0)];
        let placement = Placement { broker_of: vec![Some(4), Some(1), Some(4)] };
        let whole = Share::new(Rate::per_second(12.0).unwrap(), 7);
        let half = |burst| Share::new(Rate::per_second(6.0).unwrap(), burst);
        assert_eq!(placement.shares(whole, &publishers), Ok(vec![(1, half(4)), (4, half(3))]));
        assert_eq!(
            Placement::none(3).shares(whole, &publishers),
            Err(SplitError::NoParts),
            "nobody is placed"
        );
    }
}
