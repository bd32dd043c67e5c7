//! The yardstick for callers that hear late: a server that knows everything, but has to tell it.
//!
//! Callers of [`crate::ideal`] know what is inside when they send. Real ones hear with their answers, and meanwhile
//! act on what they heard last. Here the server knows, without measuring anything, what it can do now and what is
//! offered now. Each caller sends the most important share of its requests that was right when it last heard, and
//! what does not fit is refused at the server, at the price of its messages. Three things remain to be chosen:
//! how much is let in, of what can be served; how long may be waited; and whether all callers are sent a message
//! of their own when demand or capacity changes. The best choice is what is possible by telling ranks; to follow the
//! queue, or to push out the less important, may win a little beyond it.
//!
//! It is generous: a caller hears what is right when the message reaches it, not when it was sent.

use tidegate_core::{Instant, Span};

use crate::workload::{CostByRank, Profile, Ranks, WorkloadSpec};
use crate::world::Scenario;

/// What there is to choose.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ToldSpec {
    /// What is let in, of what can be served.
    pub offer: f64,
    /// How long may be waited, of the SLO.
    pub room: f64,
    /// Whether everybody hears of a change by a message of its own.
    pub notices: bool,
}

/// What callers were told, and what is right.
#[derive(Debug)]
pub(crate) struct Told {
    spec: ToldSpec,
    /// By caller, the share of its requests that it sends.
    heard: Vec<f64>,
    profile: Profile,
    /// Cost of the requests before and after a place among all of them sorted by rank, in means.
    costs: (f64, f64, f64),
    /// Whether requests are cut by lot, as nobody ranks them: what they cost cannot be told by that.
    lots: bool,
    /// Requests per second that can be served while all is well, and the share of that which is left.
    capacity: f64,
    health: f64,
    slo: Span,
}

impl Told {
    pub(crate) fn new(scenario: &Scenario) -> Option<Self> {
        let entry = &scenario.topology.services[scenario.topology.entry];
        let WorkloadSpec { profile, ranks, cost, .. } = &scenario.workload;
        let lots = matches!(ranks, Ranks::One | Ranks::Same);
        let messages = (entry.messages.receive + entry.messages.send).as_nanos() as f64;
        let service = entry.time.mean.as_nanos() as f64;
        let in_means = |factor: f64| (factor * service + messages) / (service + messages);
        let costs = match cost {
            _ if lots => (0.5, 1.0, 1.0),
            CostByRank::Independent => (0.5, 1.0, 1.0),
            CostByRank::Falling => (0.25, in_means(CostByRank::MORE), in_means(CostByRank::LESS)),
            CostByRank::Rising => (0.75, in_means(CostByRank::LESS), in_means(CostByRank::MORE)),
        };
        Some(Self {
            spec: scenario.told?,
            heard: vec![1.0; scenario.callers as usize],
            profile: profile.clone(),
            costs,
            lots,
            capacity: scenario.capacity(),
            health: 1.0,
            slo: scenario.slo,
        })
    }

    /// Whether the caller sends a request at this place among all of them sorted by rank.
    pub(crate) fn sends(&self, caller: u32, place: f64) -> bool {
        // The last digits of a place say nothing of the first ones, nor of the cost that goes with them.
        let place = if self.lots { (place * 65_536.0).fract() } else { place };
        place < self.heard[caller as usize]
    }

    /// A message has reached the caller.
    pub(crate) fn hear(&mut self, now: Instant, caller: u32) {
        self.heard[caller as usize] = self.share(now);
    }

    /// Such a share of the capacity is left. Whether to send notices.
    pub(crate) fn change(&mut self, health: f64) -> bool {
        self.health = health;
        self.spec.notices
    }

    /// Requests that may wait now.
    pub(crate) fn room(&self) -> usize {
        (self.spec.room * self.slo.as_secs_f64() * self.capacity * self.health) as usize
    }

    /// The share of all requests, the most important ones, that costs what is to be let in.
    fn share(&self, now: Instant) -> f64 {
        let most = self.spec.offer * self.health * self.capacity / self.profile.rate(now);
        let (place, before, after) = self.costs;
        let share = if most <= place * before {
            most / before
        } else {
            place + (most - place * before) / after
        };
        share.min(1.0)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::figures::erlang::bounded;
    use crate::{Plan, run_plan};

    fn told(costs: (f64, f64, f64)) -> Told {
        let mut profile = Profile::constant(2000.0);
        profile.then(Instant::from_nanos(1_000_000_000), 500.0, Span::ZERO);
        Told {
            spec: ToldSpec { offer: 1.0, room: 0.5, notices: false },
            heard: vec![1.0; 2],
            profile,
            costs,
            lots: false,
            capacity: 1000.0,
            health: 1.0,
            slo: Span::from_millis(100),
        }
    }

    #[test]
    fn each_caller_does_what_was_right_when_it_heard() {
        let mut told = told((0.5, 1.0, 1.0));
        assert!(told.sends(0, 0.9), "nobody has told it otherwise");
        told.hear(Instant::ZERO, 0);
        assert!(told.sends(0, 0.49) && !told.sends(0, 0.51));
        assert!(!told.change(0.5));
        assert!(told.sends(0, 0.49), "it has not heard yet");
        told.hear(Instant::ZERO, 1);
        assert!(told.sends(1, 0.24) && !told.sends(1, 0.26));
        told.hear(Instant::from_nanos(2_000_000_000), 0);
        assert!(told.sends(0, 0.99), "half of the capacity is enough for a quarter of the demand");
        assert_eq!(told.room(), 25);
    }

    /// Half is told: of the requests of any quarter, and so of any cost, half are sent.
    #[test]
    fn lots_know_nothing_of_costs() {
        let mut told = Told { lots: true, ..told((0.5, 1.0, 1.0)) };
        told.hear(Instant::ZERO, 0);
        let sent = |quarter: u32| {
            let places = (0..10_000).map(|n| (f64::from(quarter) + f64::from(n) / 10_000.0) / 4.0);
            places.filter(|place| told.sends(0, *place)).count()
        };
        for quarter in 0..4 {
            assert!(sent(quarter).abs_diff(5_000) < 200, "{}", sent(quarter));
        }
    }

    #[test]
    fn shares_are_by_cost() {
        let share = |costs| told(costs).share(Instant::ZERO);
        // Half of the demand is a mean cost of 0.5: of the dear quarter 0.5 ÷ 2.8, or all of the cheap 0.3 and a
        // part of the rest.
        assert!((share((0.25, 2.8, 0.4)) - 0.5 / 2.8).abs() < 1e-9);
        assert!((share((0.75, 0.4, 2.8)) - (0.75 + 0.2 / 2.8)).abs() < 1e-9);
    }

    /// Ten cores, exponential service, 10,000 callers that all know how much to send and nothing of the queue: that is
    /// M/M/10 with bounded room, whose losses are known exactly.
    #[test]
    fn in_a_steady_state_it_is_the_loss_formula() {
        let plan = "policy = \"told\"\nload = 2.0\ncallers = 10000\nrequests = 400000\n\
                    warmup_requests = 200000\n[told]\noffer = 1.05\nroom = 0.1\n[service]\ncores = 10\n\
                    time = \"100us\"\ndistribution = \"exponential\"\n[network]\nrtt = \"10us\"\n";
        let plan = Plan::parse("told", plan, &[], Path::new("")).expect("a plan");
        let run = &run_plan(&plan, 1, |_, _| {})[0];
        // Ten times service and round trip; a tenth of that is room for eleven.
        let exact = bounded(1.05, &[1.0], &[1.0; 10 + 11]);
        assert!((run.drop_rate - exact.dropped).abs() < 0.01, "{} {exact:?}", run.drop_rate);
        let good = run.throughput_rps / run.capacity_rps;
        assert!((good - exact.good).abs() < 0.01, "{good} {exact:?}");
    }
}
