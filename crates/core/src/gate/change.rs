//! Changes of a gate that is in use: another configuration. Nothing that is inside is lost, nothing is
//! granted twice.

use super::{Gate, GateConfig, State};
use crate::admission::Issued;
use crate::config::ConfigError;
use crate::levels::RankIndex;
use crate::limit::Limits;
use crate::objective::Learner;
use crate::request::Request;
use crate::signal::Backlog;
use crate::time::Instant;

impl Gate {
    /// Changes the configuration. Parameters change in place; another policy starts with the
    /// in-flight requests and issued credits there are.
    pub fn reconfigure(&mut self, now: Instant, config: &GateConfig) -> Result<(), ConfigError> {
        config.check()?;
        let now = self.advance(now);
        if !self.admission.reconfigure(&config.admission) {
            let issued = self.issued();
            self.admission = config.admission.build(now);
            self.admission.take_over(&mut self.cx, &issued);
        }
        match &mut self.limits {
            Some(limits) if !config.limits.is_empty() => limits.reconfigure(now, &config.limits),
            limits => *limits = Limits::join(&config.limits, now),
        }
        if config.schedule != self.config.schedule {
            let mut schedule = config.schedule.build();
            while let Some(id) = self.schedule.pop(now) {
                schedule
                    .push(now, &self.entries.get(id).expect("scheduled ids are stored").request);
            }
            self.schedule = schedule;
        }
        if config.slots != self.config.slots {
            self.slots = config.slots.build(now);
            (self.limit, self.adapts) = (self.slots.limit(), self.slots.adapts());
        }
        self.objective = match self.admission.needs().objective {
            true => self.objective.take().or_else(|| Some(Learner::new())),
            false => None,
        };
        if let Some(learner) = &self.objective {
            self.admission.set_objective(learner.current().0);
        }
        self.next_settle = Instant::ZERO;
        self.attempts.set_share(config.retry_share);
        self.config = config.clone();
        self.rebuild_indexes(now);
        self.reconfigure_workflows(now, config.workflow.as_ref());
        Ok(())
    }

    /// Credits and in-flight requests by caller, whether or not the policy keeps such accounts.
    fn issued(&self) -> Vec<Issued> {
        let mut issued = self.admission.issued();
        issued.sort_by_key(|entry| entry.caller);
        for entry in &mut issued {
            entry.in_flight = 0;
        }
        for (_, entry) in self.entries.iter().filter(|(_, entry)| entry.state != State::Refused) {
            let caller = entry.request.context.caller;
            match issued.binary_search_by_key(&caller, |entry| entry.caller) {
                Ok(at) => issued[at].in_flight += 1,
                Err(at) => issued.insert(at, Issued { caller, in_flight: 1, ..Issued::default() }),
            }
        }
        for entry in &mut issued {
            entry.window = entry.window.max(entry.in_flight);
        }
        issued
    }

    /// Keeps just the indexes the policy in force needs.
    fn rebuild_indexes(&mut self, now: Instant) {
        let needs = self.admission.needs();
        let mut waiting: Vec<Request> = self
            .entries
            .iter()
            .filter(|(_, entry)| entry.state == State::Waiting)
            .map(|(_, entry)| entry.request)
            .collect();
        waiting.sort_by_key(|request| (request.arrived, request.id));
        self.ranks = needs.ranks.then(RankIndex::default);
        self.unranked.clear();
        self.backlog = Backlog::new(needs.ages);
        self.backlog.set_stages_before(self.driver_stages);
        self.backlog.on_free(self.running);
        for request in waiting {
            let weight = self.costs.weight(request.cost);
            self.backlog.on_enqueue(now, request.id.index(), request.arrived, weight);
            if let Some(ranks) = &mut self.ranks {
                ranks.insert(request.id.index(), request.context.rank);
            }
        }
    }
}
