//! Choosing a replica: two choices by in-flight and latency, weighted by reported utilization.
//!
//! Refusals are fast, and a balancer that takes speed for health sends everything to the replica
//! that refuses everything. So only answers count towards latency, and each refusal raises the
//! endpoint's load for a while.

use crate::rng::Rng;
use crate::signal::Ewma;
use crate::time::{Instant, Span};

/// What a caller knows about the load of one endpoint.
#[derive(Clone, Debug)]
pub struct Load {
    in_flight: u32,
    latency: Ewma,
    utilization: Option<f32>,
    /// Recent refusals and failures, fading.
    penalty: f64,
    penalty_at: Instant,
}

/// Time in which a penalty fades to 1/e. Long enough to outlast a burst of refusals, short enough to
/// come back within a second.
const PENALTY_FADES: Span = Span::from_millis(200);
/// Load added by one refusal, in requests in flight.
const PENALTY: f64 = 1.0;
/// Latency assumed of an endpoint that has not answered yet, in nanoseconds: new endpoints are tried…
const UNKNOWN_LATENCY: f64 = 1.0;
/// …unless all they did lately was to refuse.
const REFUSES_LATENCY: f64 = 1e9;
/// Penalty above which an endpoint counts as having refused lately.
const LATELY: f64 = 0.1;

impl Load {
    /// An endpoint nobody has tried.
    pub fn new(now: Instant) -> Self {
        Self {
            in_flight: 0,
            latency: Ewma::new(0.1),
            utilization: None,
            penalty: 0.0,
            penalty_at: now,
        }
    }

    /// A request was sent.
    pub fn on_send(&mut self) {
        self.in_flight += 1;
    }

    /// A request was answered after `latency`.
    pub fn on_answer(&mut self, latency: Span) {
        self.in_flight = self.in_flight.saturating_sub(1);
        self.latency.add(latency.as_nanos_f64());
    }

    /// A request was refused or failed.
    pub fn on_refusal(&mut self, now: Instant) {
        self.in_flight = self.in_flight.saturating_sub(1);
        self.penalty = self.penalty_left(now) + PENALTY;
        self.penalty_at = now;
    }

    /// A request was given up: says nothing.
    pub fn on_cancel(&mut self) {
        self.in_flight = self.in_flight.saturating_sub(1);
    }

    /// The endpoint reported how busy it is, 1 being full.
    pub fn on_utilization(&mut self, utilization: f32) {
        if utilization.is_finite() && utilization >= 0.0 {
            self.utilization = Some(utilization);
        }
    }

    /// Requests outstanding at the endpoint.
    pub fn in_flight(&self) -> u32 {
        self.in_flight
    }

    /// Mean latency of answers.
    pub fn latency(&self) -> Option<Span> {
        self.latency.get().map(|nanos| Span::from_nanos(nanos as u64))
    }

    /// How loaded the endpoint is, for comparison with others: expected time to clear what is
    /// outstanding there, stretched by its reported utilization.
    pub fn score(&self, now: Instant) -> f64 {
        let unknown = || match self.penalty_left(now) > LATELY {
            true => REFUSES_LATENCY,
            false => UNKNOWN_LATENCY,
        };
        self.pressure(now) * self.latency.get().unwrap_or_else(unknown)
    }

    /// The same without latency: requests outstanding and refused lately, stretched by utilization.
    /// Compares endpoints of which one has never answered.
    pub fn pressure(&self, now: Instant) -> f64 {
        let waiting = f64::from(self.in_flight) + self.penalty_left(now) + 1.0;
        waiting * (1.0 + f64::from(self.utilization.unwrap_or(0.0)))
    }

    fn penalty_left(&self, now: Instant) -> f64 {
        if self.penalty == 0.0 {
            return 0.0;
        }
        let age = now.since(self.penalty_at).as_secs_f64() / PENALTY_FADES.as_secs_f64();
        self.penalty * (-age).exp()
    }
}

/// Two different candidates out of `0..count`, drawn at random; the same one twice if there is only
/// one. None if there is none.
pub fn two_choices(rng: &mut Rng, count: usize) -> Option<(usize, usize)> {
    match count {
        0 => None,
        1 => Some((0, 0)),
        _ => {
            let first = rng.below(count as u64) as usize;
            let other = rng.below(count as u64 - 1) as usize;
            Some((first, if other >= first { other + 1 } else { other }))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn millis(n: u64) -> Instant {
        Instant::ZERO + Span::from_millis(n)
    }

    /// A replica that refuses everything in a microsecond must not attract traffic.
    #[test]
    fn fast_refusals_do_not_look_like_speed() {
        let (mut serves, mut refuses) = (Load::new(millis(0)), Load::new(millis(0)));
        for load in [&mut serves, &mut refuses] {
            load.on_send();
            load.on_answer(Span::from_millis(5));
        }
        for n in 0..50 {
            refuses.on_send();
            refuses.on_refusal(millis(n));
        }
        assert!(refuses.score(millis(50)) > 10.0 * serves.score(millis(50)));
        // And it is forgiven when it has had time to recover.
        assert!(refuses.score(millis(3_000)) < 1.01 * serves.score(millis(3_000)));
    }

    #[test]
    fn a_replica_that_has_only_ever_refused_is_not_taken_for_a_new_one() {
        let (mut serves, mut refuses) = (Load::new(millis(0)), Load::new(millis(0)));
        serves.on_send();
        serves.on_answer(Span::from_millis(5));
        refuses.on_send();
        refuses.on_refusal(millis(0));
        assert!(refuses.score(millis(0)) > serves.score(millis(0)));
        // After a while it is tried again.
        assert!(refuses.score(millis(3_000)) < serves.score(millis(3_000)));
    }

    #[test]
    fn busier_and_slower_replicas_score_higher() {
        let mut busy = Load::new(millis(0));
        busy.on_answer(Span::from_millis(1));
        let idle = busy.clone();
        busy.on_send();
        assert!(busy.score(millis(0)) > idle.score(millis(0)));
        let mut utilized = idle.clone();
        utilized.on_utilization(0.9);
        utilized.on_utilization(f32::NAN);
        assert!(utilized.score(millis(0)) > idle.score(millis(0)));
    }

    #[test]
    fn two_choices_differ_and_cover_everything() {
        let mut rng = Rng::new(5);
        assert_eq!(two_choices(&mut rng, 0), None);
        assert_eq!(two_choices(&mut rng, 1), Some((0, 0)));
        let mut seen = [false; 4];
        for _ in 0..200 {
            let (a, b) = two_choices(&mut rng, 4).unwrap();
            assert_ne!(a, b);
            (seen[a], seen[b]) = (true, true);
        }
        assert_eq!(seen, [true; 4]);
    }
}
