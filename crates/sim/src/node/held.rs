//! What requests hold beside their thread while they need no core: permits of a semaphore, connections. A [`Pool`]
//! of the core, driven as a handler would drive it: acquire, wait for the turn, hold, release; and what each
//! workflow has held is told to the gate, for which it is a resource like its slots.

use tidegate_core::workflow::{Pool, PoolConfig, ResourceId};
use tidegate_core::{Gate, RequestId, Span};

use super::Node;
use crate::shared::{Event, Shared};

/// A node's pool, if its requests hold anything that is scarce.
#[derive(Debug)]
pub(super) struct Holding {
    pool: Pool,
    resource: Option<ResourceId>,
}

impl Holding {
    /// A pool of so many, in the gate's order of service; none if there is no bound.
    pub(super) fn new(limit: u32, gate: &mut Gate) -> Option<Self> {
        let schedule = gate.config().schedule.clone();
        (limit > 0).then(|| Self {
            pool: Pool::new(&PoolConfig { limit, schedule }),
            resource: gate.add_resource(f64::from(limit)),
        })
    }
}

impl Node {
    /// A request has done its step and holds something from now on, or as soon as there is one for it.
    pub(super) fn hold(&mut self, shared: &mut Shared, id: RequestId, time: Span) {
        let (now, holding) = (shared.now(), self.holding.as_mut());
        match holding.zip(self.gate.request(id)) {
            Some((holding, request)) => {
                holding.pool.acquire(now, request);
                self.hand_out(shared);
            }
            None => self.held_until(shared, id, time),
        }
    }

    /// A request gives it back.
    pub(super) fn give_back(&mut self, shared: &mut Shared, id: RequestId) {
        self.jobs[id.index()].hold = Span::ZERO;
        if let Some(holding) = &mut self.holding {
            holding.pool.release(shared.now(), id);
            self.hand_out(shared);
        }
    }

    /// The gate hears who has held how much, and the pool whose turn it is how often.
    pub(super) fn report_holding(&mut self, shared: &Shared) {
        let Some(holding) = &mut self.holding else { return };
        let now = shared.now();
        for (workflow, time) in holding.pool.take_usage(now) {
            let told = |resource| self.gate.on_use(now, resource, workflow, time);
            holding.resource.into_iter().for_each(told);
        }
        if let Some(control) = self.gate.workflows() {
            holding.pool.set_weights(&control.weights());
        }
    }

    fn hand_out(&mut self, shared: &mut Shared) {
        while let Some(id) = self.holding.as_mut().and_then(|holding| holding.pool.poll()) {
            let time = self.jobs[id.index()].hold;
            self.held_until(shared, id, time);
        }
    }

    fn held_until(&self, shared: &mut Shared, id: RequestId, time: Span) {
        let (node, life) = (self.index, self.trouble.life());
        shared.engine.after(time, Event::Held { node, request: id, life });
    }
}
