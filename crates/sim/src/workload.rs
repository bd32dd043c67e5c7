//! What is offered: when requests come, from whom, how important they are and what they cost.

use tidegate_core::rng::Rng;
use tidegate_core::{Context, Instant, Rank, Span};

use crate::dist::Service;
use crate::random::{exponential, stream};

/// How important requests are.
#[derive(Clone, Debug, PartialEq)]
pub enum Ranks {
    /// Every user rank of one business rank equally likely.
    Uniform,
    /// All the same.
    One,
    /// Business rank n with weight 1 ÷ (n + 1)^exponent, user ranks uniform.
    Zipf {
        /// The exponent; 1 is the classic.
        exponent: f64,
    },
}

/// How cost goes with rank. One quarter of the requests costs 2.8 times the mean, the rest 0.4
/// times: seven times as much, at the same mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CostByRank {
    /// Not at all.
    Independent,
    /// The most important quarter costs more.
    Falling,
    /// The least important quarter costs more.
    Rising,
}

/// One request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Offer {
    pub(crate) client: u32,
    pub(crate) context: Context,
    pub(crate) service: Span,
}

/// Parameters of a workload.
#[derive(Clone, Debug, PartialEq)]
pub struct WorkloadSpec {
    /// Requests per second, all callers together.
    pub rate: f64,
    /// How important.
    pub ranks: Ranks,
    /// How cost goes with rank.
    pub cost: CostByRank,
    /// Answers are worthless this long after submission, if so.
    pub deadline: Option<Span>,
}

/// A source of requests. Every property is drawn from a stream of its own.
#[derive(Clone, Debug)]
pub(crate) struct Workload {
    spec: WorkloadSpec,
    service: Service,
    clients: u32,
    /// Cumulative weights of business ranks, for Zipf.
    business: Vec<f64>,
    /// Exact time of the last arrival, so that rounding does not add up.
    time: f64,
    arrivals: Rng,
    callers: Rng,
    ranks: Rng,
    services: Rng,
}

impl Workload {
    pub(crate) fn new(spec: WorkloadSpec, service: Service, clients: u32, seed: u64) -> Self {
        Self {
            business: business_weights(&spec.ranks),
            spec,
            service,
            clients,
            time: 0.0,
            arrivals: stream(seed, "arrivals"),
            callers: stream(seed, "callers"),
            ranks: stream(seed, "ranks"),
            services: stream(seed, "service"),
        }
    }

    /// When the next request comes.
    pub(crate) fn next_arrival(&mut self) -> Instant {
        self.time += exponential(&mut self.arrivals) * 1e9 / self.spec.rate;
        Instant::from_nanos(self.time as u64)
    }

    /// What that request is.
    pub(crate) fn draw(&mut self, now: Instant) -> Offer {
        // The position among all requests sorted by rank decides both rank and cost.
        let position = self.ranks.unit();
        let factor = match self.spec.cost {
            CostByRank::Independent => 1.0,
            CostByRank::Falling => seven_fold(position < 0.25),
            CostByRank::Rising => seven_fold(position >= 0.75),
        };
        Offer {
            client: self.callers.below(u64::from(self.clients)) as u32,
            context: Context {
                rank: self.rank(position),
                deadline: self.spec.deadline.map_or(Instant::FAR, |deadline| now + deadline),
                ..Context::default()
            },
            service: self.service.sample(&mut self.services, factor),
        }
    }

    fn rank(&self, position: f64) -> Rank {
        match self.spec.ranks {
            Ranks::One => Rank::UNRANKED,
            Ranks::Uniform => Rank::new(Rank::UNRANKED.business(), (position * 65_536.0) as u16),
            Ranks::Zipf { .. } => {
                let business = self.business.partition_point(|below| *below <= position);
                let business = business.min(self.business.len() - 1);
                let low = if business == 0 { 0.0 } else { self.business[business - 1] };
                let within = (position - low) / (self.business[business] - low);
                Rank::new(business as u8, (within * 65_536.0) as u16)
            }
        }
    }
}

fn seven_fold(heavy: bool) -> f64 {
    if heavy { 2.8 } else { 0.4 }
}

fn business_weights(ranks: &Ranks) -> Vec<f64> {
    let Ranks::Zipf { exponent } = ranks else { return Vec::new() };
    let weights: Vec<f64> = (1..=Rank::BUSINESS).map(|n| f64::from(n).powf(-exponent)).collect();
    let total: f64 = weights.iter().sum();
    weights
        .iter()
        .scan(0.0, |sum, weight| {
            *sum += weight / total;
            Some(*sum)
        })
        .collect()
}
