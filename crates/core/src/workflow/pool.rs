//! Thread pools, semaphores and connection pools as resources (Wisp §5): so many at once, a queue of their
//! own under any order of service, and busy time by workflow.
//!
//! A gate's slots are one such resource. A handler that needs another one in the middle of its work (a lock,
//! a connection) waits in that one's queue, by the same order, and what its workflow holds there counts
//! for the rates as well: hand [`Pool::take_usage`] to the gate, period by period.

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};

use super::usage::Usage;
use crate::config::Problems;
use crate::context::Workflow;
use crate::request::{Request, RequestId};
use crate::schedule::{ScheduleConfig, Scheduler};
use crate::time::{Instant, Span};

/// Something that only so many requests can hold at once.
#[derive(Clone, Debug)]
pub struct Pool {
    limit: usize,
    schedule: Box<dyn Scheduler>,
    /// Workflow of everybody who waits or holds.
    workflows: BTreeMap<RequestId, Workflow>,
    holders: BTreeMap<RequestId, Instant>,
    /// Who got it and has not been told.
    granted: VecDeque<RequestId>,
    usage: Usage,
}

impl Pool {
    /// Nobody holds or waits.
    pub fn new(config: &PoolConfig) -> Self {
        Self {
            limit: config.limit as usize,
            schedule: config.schedule.build(),
            workflows: BTreeMap::new(),
            holders: BTreeMap::new(),
            granted: VecDeque::new(),
            usage: Usage::default(),
        }
    }

    /// A request wants it: waits, and perhaps gets it at once; [`poll`](Self::poll) tells. Asking twice is
    /// asking once.
    pub fn acquire(&mut self, now: Instant, request: &Request) {
        if self.workflows.contains_key(&request.id) {
            return;
        }
        self.workflows.insert(request.id, request.context.workflow);
        self.schedule.push(now, request);
        self.hand_on(now);
    }

    /// A request has done with it, or has given up waiting. How long it held it, if it did.
    pub fn release(&mut self, now: Instant, id: RequestId) -> Option<Span> {
        let workflow = self.workflows.remove(&id)?;
        let since = self.holders.remove(&id);
        match since {
            Some(_) => self.usage.end(now, workflow),
            None => drop(self.schedule.remove(id)),
        }
        self.granted.retain(|granted| *granted != id);
        self.hand_on(now);
        since.map(|since| now.since(since))
    }

    /// The next request that has got it.
    pub fn poll(&mut self) -> Option<RequestId> {
        self.granted.pop_front()
    }

    /// How many hold it.
    pub fn holding(&self) -> usize {
        self.holders.len()
    }

    /// How many wait.
    pub fn waiting(&self) -> usize {
        self.schedule.len()
    }

    /// How many can hold it at once.
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// Turns by workflow, for orders that have them.
    pub fn set_weights(&mut self, weights: &[u32]) {
        self.schedule.set_weights(weights);
    }

    /// Busy time by workflow since the last time it was taken; those without any are left out.
    pub fn take_usage(&mut self, now: Instant) -> Vec<(Workflow, Span)> {
        let all = (0..self.usage.len()).map(|place| Workflow(place as u16));
        all.map(|workflow| (workflow, self.usage.take(now, workflow)))
            .filter(|(_, time)| *time > Span::ZERO)
            .collect()
    }

    /// Panics if the state contradicts itself.
    pub fn invariants(&self) {
        assert!(self.holders.len() <= self.limit, "no more than there are");
        assert_eq!(self.workflows.len(), self.holders.len() + self.schedule.len());
        let idle = self.holders.len() < self.limit && !self.schedule.is_empty();
        assert!(!idle, "nobody waits for what is free");
    }

    fn hand_on(&mut self, now: Instant) {
        while self.holders.len() < self.limit {
            let Some(id) = self.schedule.pop(now) else { break };
            self.holders.insert(id, now);
            self.granted.push_back(id);
            if let Some(workflow) = self.workflows.get(&id) {
                self.usage.begin(now, *workflow);
            }
        }
    }
}

/// Parameters of [`Pool`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PoolConfig {
    /// How many can hold it at once: threads, permits, connections. Default 1, a lock.
    pub limit: u32,
    /// Who is next. Default first come, first served.
    pub schedule: ScheduleConfig,
}

impl Default for PoolConfig {
    fn default() -> Self {
        Self { limit: 1, schedule: ScheduleConfig::default() }
    }
}

impl PoolConfig {
    /// Notes everything that is wrong with the parameters.
    pub fn validate(&self, problems: &mut Problems) {
        problems.check("limit", self.limit, (1..=1 << 20).contains(&self.limit), "1 to 1048576");
        problems.within("schedule", |problems| self.schedule.validate(problems));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::context::Context;
    use crate::meter::Cost;

    fn at(millis: u64) -> Instant {
        Instant::ZERO + Span::from_millis(millis)
    }

    fn request(n: u64, workflow: u16, deadline: u64) -> Request {
        let context =
            Context { workflow: Workflow(workflow), deadline: at(deadline), ..Context::default() };
        let id = RequestId::from_u64(n);
        let (arrived, enqueued) = (at(0), at(0));
        Request { id, context, arrived, enqueued, cost: Cost(1), attained: Span::ZERO }
    }

    #[test]
    fn the_order_of_service_decides_who_is_next() {
        let config = PoolConfig { limit: 1, schedule: ScheduleConfig::Edf };
        let mut pool = Pool::new(&config);
        for (n, deadline) in [(0, 50), (1, 90), (2, 70)] {
            pool.acquire(at(0), &request(n, 1, deadline));
        }
        assert_eq!(pool.poll(), Some(RequestId::from_u64(0)));
        assert_eq!((pool.poll(), pool.waiting()), (None, 2));
        let held = pool.release(at(5), RequestId::from_u64(0));
        assert_eq!(held, Some(Span::from_millis(5)));
        assert_eq!(pool.poll(), Some(RequestId::from_u64(2)));
        assert_eq!(pool.release(at(6), RequestId::from_u64(1)), None, "gave up waiting");
        assert_eq!(pool.release(at(6), RequestId::from_u64(9)), None, "was never there");
        pool.invariants();
    }

    #[test]
    fn hold_time_is_counted_by_workflow() {
        let mut pool = Pool::new(&PoolConfig { limit: 2, ..PoolConfig::default() });
        pool.acquire(at(0), &request(0, 1, 1_000));
        pool.acquire(at(10), &request(1, 2, 1_000));
        pool.acquire(at(20), &request(2, 2, 1_000));
        pool.release(at(40), RequestId::from_u64(1));
        let millis = |usage: Vec<(Workflow, Span)>| -> Vec<(u16, f64)> {
            usage.iter().map(|(workflow, time)| (workflow.0, time.as_millis_f64())).collect()
        };
        assert_eq!(millis(pool.take_usage(at(100))), [(1, 100.0), (2, 90.0)]);
        assert_eq!(millis(pool.take_usage(at(200))), [(1, 100.0), (2, 100.0)]);
    }

    proptest! {
        /// Against a list: no more than the limit hold, nobody is forgotten, none is left idle.
        #[test]
        fn equals_a_list(ops in prop::collection::vec((any::<bool>(), 0..8u64), 0..200), limit in 1..4u32) {
            let mut pool = Pool::new(&PoolConfig { limit, ..PoolConfig::default() });
            let mut model: Vec<u64> = Vec::new();
            let mut told = Vec::new();
            for (acquire, n) in ops {
                let id = RequestId::from_u64(n);
                if acquire && !model.contains(&n) {
                    pool.acquire(at(0), &request(n, 1, 1));
                    model.push(n);
                } else if !acquire {
                    pool.release(at(0), id);
                    model.retain(|known| *known != n);
                    told.retain(|known| *known != id);
                }
                told.extend(std::iter::from_fn(|| pool.poll()));
                pool.invariants();
                prop_assert_eq!(pool.holding(), model.len().min(limit as usize));
                // First come, first served: the oldest hold.
                let holders: Vec<u64> = model.iter().take(limit as usize).copied().collect();
                for holder in holders {
                    prop_assert!(told.contains(&RequestId::from_u64(holder)));
                }
            }
        }
    }
}
