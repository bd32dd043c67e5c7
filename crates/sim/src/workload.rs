//! What is offered: when requests come, from whom, how important they are and what they cost.

use std::sync::Arc;

use tidegate_core::rng::Rng;
use tidegate_core::{Context, Instant, Rank, Span, Workflow};

use crate::dist::Service;
use crate::random::{exponential, stream};

/// When requests come.
#[derive(Clone, Debug, PartialEq)]
pub enum Arrivals {
    /// Independently of each other.
    Poisson,
    /// At equal distances.
    Periodic,
    /// So many at once, bursts independently of each other.
    Bursts {
        /// Requests per burst.
        size: u32,
    },
    /// Each caller has so many outstanding and thinks between the end of one and the next.
    Closed {
        /// Requests that each caller has outstanding.
        outstanding: u32,
        /// Mean time it thinks, exponential.
        think: Span,
    },
    /// As recorded.
    Replay(Arc<[Recorded]>),
}

/// One line of a recorded log.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Recorded {
    /// When, from the start of the log.
    pub at: Instant,
    /// Which workflow.
    pub workflow: Workflow,
    /// How important.
    pub rank: Rank,
    /// How long serving took.
    pub service: Span,
}

/// How important requests are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Ranks {
    /// Every user rank of one business rank equally likely.
    Uniform,
    /// Nobody ranks anything: one rank that names no user, so that lots are drawn.
    One,
    /// All from one user: a rank that cannot be cut.
    Same,
    /// Business rank n with weight 1 ÷ (n + 1)^exponent, user ranks uniform.
    Zipf {
        /// The exponent; 1 is the classic.
        exponent: f64,
    },
}

/// How cost goes with rank. One quarter of the requests costs seven times as much as the rest, at the same mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CostByRank {
    /// Not at all.
    Independent,
    /// The most important quarter costs more.
    Falling,
    /// The least important quarter costs more.
    Rising,
}

impl CostByRank {
    /// What the costly quarter costs, and what the rest costs, in means.
    pub(crate) const MORE: f64 = 2.8;
    pub(crate) const LESS: f64 = 0.4;
}

/// Parameters of a workload.
#[derive(Clone, Debug, PartialEq)]
pub struct WorkloadSpec {
    /// When requests come.
    pub arrivals: Arrivals,
    /// How many per second, over time; without meaning for closed loops and replays.
    pub profile: Profile,
    /// How important.
    pub ranks: Ranks,
    /// How cost goes with rank.
    pub cost: CostByRank,
    /// Share of each workflow; the shares sum to one.
    pub mix: Vec<(Workflow, f64)>,
    /// Answers are worthless this long after submission, if so.
    pub deadline: Option<Span>,
    /// The same of some workflows.
    pub deadline_of: Vec<(Workflow, Span)>,
}

impl WorkloadSpec {
    /// The deadline of requests of `workflow`.
    pub fn deadline_for(&self, workflow: Workflow) -> Option<Span> {
        let own = self.deadline_of.iter().find(|(name, _)| *name == workflow);
        own.map(|(_, deadline)| *deadline).or(self.deadline)
    }

    /// Requests per second of an open loop whose rate does not change.
    pub fn steady_rate(&self) -> Option<f64> {
        let open = !matches!(self.arrivals, Arrivals::Closed { .. } | Arrivals::Replay(_));
        match self.profile.points[..] {
            [(_, rate)] if open && rate > 0.0 => Some(rate * 1e9),
            _ => None,
        }
    }
}

/// One of several groups of callers with a workflow of their own.
#[derive(Clone, Debug, PartialEq)]
pub struct Tenant {
    /// How many callers it has.
    pub callers: u32,
    /// What they send.
    pub spec: WorkloadSpec,
    /// They begin then.
    pub from: Instant,
    /// And end then.
    pub until: Instant,
}

/// A rate over time: straight lines between points, the last one for ever.
#[derive(Clone, Debug, PartialEq)]
pub struct Profile {
    /// Nanoseconds and requests per nanosecond, in order of time, the first at zero.
    points: Vec<(f64, f64)>,
}

impl Profile {
    /// The same rate for ever, per second.
    pub fn constant(rate: f64) -> Self {
        Self { points: vec![(0.0, rate / 1e9)] }
    }

    /// From `at` on the rate moves to `rate` per second, within `over`.
    pub fn then(&mut self, at: Instant, rate: f64, over: Span) {
        let before = self.points[self.points.len() - 1].1;
        let at = at.as_nanos() as f64;
        self.points.push((at, before));
        self.points.push((at + over.as_nanos() as f64, rate / 1e9));
    }

    /// Requests per second at `at`.
    pub(crate) fn rate(&self, at: Instant) -> f64 {
        let time = at.as_nanos() as f64;
        let next = self.points.partition_point(|(at, _)| *at <= time);
        let (start, rate) = self.points[next - 1];
        let slope = |(end, end_rate): &(f64, f64)| (end_rate - rate) / (end - start);
        (rate + self.points.get(next).map_or(0.0, slope) * (time - start)) * 1e9
    }

    /// When the rate changes, or begins or ends to.
    pub(crate) fn changes(&self) -> impl Iterator<Item = Instant> {
        self.points[1..].iter().map(|(at, _)| Instant::from_nanos(*at as u64))
    }

    /// When `requests` more have come after `time`, infinity if never.
    fn advance(&self, mut time: f64, mut requests: f64) -> f64 {
        let mut next = self.points.partition_point(|(at, _)| *at <= time);
        loop {
            let (start, rate) = self.points[next - 1];
            let Some((end, end_rate)) = self.points.get(next).copied() else {
                return time + requests / rate;
            };
            let slope = (end_rate - rate) / (end - start);
            let now = rate + slope * (time - start);
            let rest = (now + end_rate) / 2.0 * (end - time);
            if requests <= rest {
                // The root of now·x + slope·x²÷2 = requests, in the form that is exact for a slope
                // of zero.
                let root = (now * now + 2.0 * slope * requests).max(0.0).sqrt();
                return time + 2.0 * requests / (now + root);
            }
            requests -= rest;
            time = end;
            next = self.points.partition_point(|(at, _)| *at <= time);
        }
    }
}

/// One request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Offer {
    pub(crate) client: u32,
    /// Its place among all requests sorted by rank, those of one rank in any order; in a replay unknown, and zero.
    pub(crate) place: f64,
    pub(crate) context: Context,
    pub(crate) service: Span,
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
    /// Requests that have come.
    count: u64,
    arrivals: Rng,
    callers: Rng,
    ranks: Rng,
    services: Rng,
    workflows: Rng,
}

impl Workload {
    pub(crate) fn new(spec: WorkloadSpec, service: Service, clients: u32, seed: u64) -> Self {
        Self {
            business: business_weights(spec.ranks),
            spec,
            service,
            clients,
            time: 0.0,
            count: 0,
            arrivals: stream(seed, "arrivals"),
            callers: stream(seed, "callers"),
            ranks: stream(seed, "ranks"),
            services: stream(seed, "service"),
            workflows: stream(seed, "workflows"),
        }
    }

    /// When the next request of an open loop comes; never in a closed one.
    pub(crate) fn next_arrival(&mut self) -> Instant {
        let requests = match &self.spec.arrivals {
            Arrivals::Poisson => exponential(&mut self.arrivals),
            Arrivals::Periodic => 1.0,
            Arrivals::Bursts { size } if self.count.is_multiple_of(u64::from(*size)) => {
                exponential(&mut self.arrivals) * f64::from(*size)
            }
            Arrivals::Bursts { .. } => 0.0,
            Arrivals::Closed { .. } => return Instant::FAR,
            Arrivals::Replay(log) => {
                return log.get(self.count as usize).map_or(Instant::FAR, |line| line.at);
            }
        };
        self.time = self.spec.profile.advance(self.time, requests);
        // `as` saturates: infinity is far away.
        Instant::from_nanos(self.time as u64)
    }

    /// In a closed loop, how many each caller has outstanding.
    pub(crate) fn outstanding(&self) -> u32 {
        match self.spec.arrivals {
            Arrivals::Closed { outstanding, .. } => outstanding,
            _ => 0,
        }
    }

    /// In a closed loop, how long a caller thinks.
    pub(crate) fn think(&mut self) -> Option<Span> {
        match self.spec.arrivals {
            Arrivals::Closed { think, .. } => Some(think.scale(exponential(&mut self.arrivals))),
            _ => None,
        }
    }

    /// What the request that comes now is, of `client` if it is a closed loop.
    pub(crate) fn draw(&mut self, now: Instant, client: Option<u32>) -> Offer {
        let client = client.unwrap_or_else(|| self.callers.below(u64::from(self.clients)) as u32);
        let recorded = match &self.spec.arrivals {
            Arrivals::Replay(log) => Some(log[self.count as usize]),
            _ => None,
        };
        self.count += 1;
        let (place, rank, workflow, service) = match recorded {
            Some(line) => (0.0, line.rank, line.workflow, line.service),
            None => self.draw_kind(),
        };
        let deadline = self.spec.deadline_for(workflow);
        let deadline = deadline.map_or(Instant::FAR, |deadline| now + deadline);
        let context = Context { rank, workflow, deadline, ..Context::default() };
        Offer { client, place, context, service }
    }

    fn draw_kind(&mut self) -> (f64, Rank, Workflow, Span) {
        // The place among all requests sorted by rank decides both rank and cost.
        let place = self.ranks.unit();
        let factor = match self.spec.cost {
            CostByRank::Independent => 1.0,
            CostByRank::Falling => seven_fold(place < 0.25),
            CostByRank::Rising => seven_fold(place >= 0.75),
        };
        let service = self.service.sample(&mut self.services, factor);
        (place, self.rank(place), self.workflow(), service)
    }

    fn rank(&self, place: f64) -> Rank {
        match self.spec.ranks {
            Ranks::One => Rank::UNRANKED,
            Ranks::Same => Rank::new(Rank::UNRANKED.business(), 7),
            Ranks::Uniform => Rank::new(Rank::UNRANKED.business(), (place * 65_536.0) as u16),
            Ranks::Zipf { .. } => {
                let business = self.business.partition_point(|below| *below <= place);
                let business = business.min(self.business.len() - 1);
                let low = if business == 0 { 0.0 } else { self.business[business - 1] };
                let within = (place - low) / (self.business[business] - low);
                Rank::new(business as u8, (within * 65_536.0) as u16)
            }
        }
    }

    fn workflow(&mut self) -> Workflow {
        let [(only, _)] = self.spec.mix[..] else {
            let mut left = self.workflows.unit();
            for (workflow, share) in &self.spec.mix {
                left -= share;
                if left < 0.0 {
                    return *workflow;
                }
            }
            return self.spec.mix[self.spec.mix.len() - 1].0;
        };
        only
    }
}

fn seven_fold(heavy: bool) -> f64 {
    if heavy { CostByRank::MORE } else { CostByRank::LESS }
}

fn business_weights(ranks: Ranks) -> Vec<f64> {
    let Ranks::Zipf { exponent } = ranks else { return Vec::new() };
    let weights: Vec<f64> = (1..=Rank::BUSINESS).map(|n| f64::from(n).powf(-exponent)).collect();
    let total: f64 = weights.iter().sum();
    let mut sum = 0.0;
    let cumulate = |weight: &f64| {
        sum += weight / total;
        sum
    };
    weights.iter().map(cumulate).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dist::Dist;

    fn spec(arrivals: Arrivals, ranks: Ranks, cost: CostByRank) -> WorkloadSpec {
        let mix = vec![(Workflow(1), 0.25), (Workflow(2), 0.75)];
        let (profile, deadline_of) = (Profile::constant(1e6), Vec::new());
        WorkloadSpec { arrivals, profile, ranks, cost, mix, deadline: None, deadline_of }
    }

    fn workload(spec: WorkloadSpec) -> Workload {
        let service = Service { dist: Dist::Constant, mean: Span::from_micros(10) };
        Workload::new(spec, service, 4, 9)
    }

    #[test]
    fn open_loops_have_their_rate() {
        for arrivals in [Arrivals::Poisson, Arrivals::Periodic, Arrivals::Bursts { size: 20 }] {
            let mut workload = workload(spec(arrivals, Ranks::One, CostByRank::Independent));
            let mut last = Instant::ZERO;
            for _ in 0..100_000 {
                last = workload.next_arrival();
                workload.draw(last, None);
            }
            let seconds = last.as_nanos() as f64 / 1e9;
            assert!((seconds / 0.1 - 1.0).abs() < 0.04, "{:?} {seconds}", workload.spec.arrivals);
        }
    }

    #[test]
    fn a_profile_steps_and_ramps() {
        let mut profile = Profile::constant(1e9);
        profile.then(Instant::from_nanos(10), 3e9, Span::ZERO);
        profile.then(Instant::from_nanos(20), 1e9, Span::from_nanos(10));
        // Areas: 10 by 10 ns, 30 more by 20 ns, 20 more by 30 ns, then one per nanosecond.
        for (requests, time) in
            [(5.0, 5.0), (10.0, 10.0), (25.0, 15.0), (40.0, 20.0), (60.0, 30.0), (65.0, 35.0)]
        {
            assert!((profile.advance(0.0, requests) - time).abs() < 1e-9, "{requests}");
        }
        for (time, rate) in
            [(0, 1e9), (9, 1e9), (10, 3e9), (20, 3e9), (25, 2e9), (30, 1e9), (99, 1e9)]
        {
            assert!((profile.rate(Instant::from_nanos(time)) - rate).abs() < 1.0, "{time}");
        }
        assert_eq!(profile.changes().map(Instant::as_nanos).collect::<Vec<_>>(), [10, 10, 20, 30]);
        // On the ramp: 3x − x²÷10 = 12.5 at x = 5.
        assert!((profile.advance(20.0, 12.5) - 25.0).abs() < 1e-9);
        let mut stops = Profile::constant(1e9);
        stops.then(Instant::from_nanos(10), 0.0, Span::ZERO);
        assert!(stops.advance(0.0, 11.0).is_infinite());
    }

    #[test]
    fn ranks_costs_and_workflows_are_as_asked() {
        for (ranks, cost) in [
            (Ranks::Uniform, CostByRank::Falling),
            (Ranks::Zipf { exponent: 1.0 }, CostByRank::Rising),
        ] {
            let mut workload = workload(spec(Arrivals::Poisson, ranks, cost));
            let mut offers: Vec<Offer> =
                (0..40_000).map(|_| workload.draw(Instant::ZERO, None)).collect();
            let mean = offers.iter().map(|o| o.service.as_nanos()).sum::<u64>() / 40_000;
            assert!(mean.abs_diff(10_000) < 200, "{mean}");
            let first = offers.iter().filter(|o| o.context.workflow == Workflow(1)).count();
            assert!(first.abs_diff(10_000) < 300, "{first}");
            offers.sort_by_key(|offer| offer.context.rank);
            let heavy = |o: &[Offer]| o.iter().filter(|o| o.service.as_nanos() > 20_000).count();
            let (top, bottom) = (heavy(&offers[..9_000]), heavy(&offers[31_000..]));
            match cost {
                CostByRank::Falling => assert_eq!((top, bottom), (9_000, 0)),
                _ => assert_eq!((top, bottom), (0, 9_000)),
            }
        }
    }
}
