//! Which endpoints may be used: circuit breaking and outlier ejection in the choice of a replica.

use super::{Caller, ejection};
use crate::event::Event;
use crate::throttle::Answer;
use crate::time::Instant;
use crate::verdict::{Advice, Reason, Rejection};

impl Caller {
    /// A pair drawn at random, each that is not to be used replaced by the next that is. When all that
    /// could be used are outliers, they are; when every circuit is open, nothing is.
    pub(super) fn usable(
        &self,
        now: Instant,
        pair: (usize, usize),
    ) -> Result<(usize, usize), Rejection> {
        if self.config.breaker.is_none() && self.config.ejection.is_none() {
            return Ok(pair);
        }
        let count = self.endpoints.len();
        let open = |at: &usize| self.endpoints[*at].breaker.allows(now);
        let good = |at: &usize| open(at) && !self.endpoints[*at].tally.is_out(now);
        let from = |at: usize| (0..count).map(move |step| (at + step) % count);
        let first = from(pair.0).find(good).or_else(|| from(pair.0).find(open));
        let Some(first) = first else { return Err(self.broken(now)) };
        let second = from(pair.1).filter(|at| *at != first).find(good);
        Ok((first, second.unwrap_or(first)))
    }

    /// When the first circuit that is open after `now` may be tried. Outliers are asked before a call
    /// has to wait, so nobody waits for the end of an ejection.
    pub(super) fn back_after(&self, now: Instant) -> Option<Instant> {
        let untils = self.endpoints.iter().filter_map(|endpoint| endpoint.breaker.until());
        untils.filter(|until| *until > now).min()
    }

    /// A call to `endpoint` has ended: what that says about its health.
    pub(super) fn judge(&mut self, now: Instant, endpoint: usize, answer: &Answer) {
        if let Some(config) = &self.config.breaker {
            let breaker = &mut self.endpoints[endpoint].breaker;
            if breaker.on_answer(now, answer, config, &mut self.cx.rng) {
                let up = breaker.allows(now);
                self.cx.events.push(now, || Event::Endpoint { endpoint, up });
            }
        }
        let Some(config) = self.config.ejection else { return };
        self.endpoints[endpoint].tally.on_answer(answer);
        if now < self.ejection_ends {
            return;
        }
        let mut tallies: Vec<_> = self.endpoints.iter_mut().map(|it| &mut it.tally).collect();
        let before: Vec<bool> = tallies.iter().map(|tally| tally.is_out(now)).collect();
        ejection::conclude(now, &mut tallies, &config);
        for (endpoint, tally) in tallies.iter().enumerate() {
            if tally.is_out(now) && !before[endpoint] {
                self.cx.events.push(now, || Event::Endpoint { endpoint, up: false });
            }
        }
        self.ejection_ends = now + config.every;
    }

    /// Every endpoint is left alone: until the first is tried again.
    fn broken(&self, now: Instant) -> Rejection {
        let breakers = || self.endpoints.iter().map(|endpoint| &endpoint.breaker);
        let failures = breakers().map(|breaker| breaker.failures()).min().unwrap_or(0);
        let limit = self.config.breaker.map_or(0, |config| config.failures);
        let until = breakers().filter_map(|breaker| breaker.until()).min().unwrap_or(now);
        let advice = Advice::Later(until.since(now));
        Rejection::new(Reason::Broken, f64::from(failures), f64::from(limit), advice)
    }
}
