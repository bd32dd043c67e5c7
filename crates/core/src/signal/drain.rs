//! How fast a queue drains: weight started per time, seen while every slot is taken.
//!
//! What is known is the mean of some two hundred starts, so that a decision is not by chance. A service that is suddenly half as
//! fast would be taken to be as fast as before for as many, and all that is let in meanwhile is late. So the last few dozen
//! starts are looked at by themselves: where they took longer than chance explains, only they count.
//!
//! Evidence is forgotten where there is no more of it: who refuses by a rate that was slow in a storm of messages would
//! keep the queue too short for the gate to be saturated ever again, and the rate would never be known better.

use crate::meter::Weight;
use crate::time::{Span, float};

/// Starts after which old evidence is halved. At 256 the rate is known to about
/// 7 % with exponential service times, and follows a change of capacity within as many starts.
const STARTS: u32 = 256;
/// Evidence is also halved after this much saturated time, if it holds at least
/// [`FEW_STARTS`]: a slow service must not need minutes to notice that it became slower.
const TIME: Span = Span::from_secs(1);
const FEW_STARTS: u32 = 16;
/// Starts that are looked at by themselves, and how much longer than expected they take if that is no chance: five
/// standard deviations of the mean of so many exponential times. By simulation: 10 µs with half of the cores gone loses 0.2
/// points less over 125 SLOs. With half as many starts, or four deviations, chance is believed where costs differ much.
const LATELY: u32 = 64;
const SLOWER: f64 = 1.0 + 5.0 / 8.0;
/// They are looked at no sooner than after so long: for some microseconds cores may be busy with messages alone. By simulation:
/// without it, 10,000 callers of 1 µs at 1.1 times the capacity have 0.1 points less of it.
const LATELY_TIME: Span = Span::from_micros(50);

/// How fast a queue drains, as far as is known.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Drain {
    known: Evidence,
    lately: Evidence,
    /// What was known before those.
    expected: f64,
    /// Starts since the last that was evidence.
    other_starts: u32,
    /// By what is known, kept so that a decision needs no division. Zero when unknown.
    time_per_weight: f64,
}

/// Weight that was started, in how much saturated time, in how many starts.
#[derive(Clone, Copy, Debug, Default)]
struct Evidence {
    weight: f64,
    time: f64,
    starts: u32,
}

impl Evidence {
    fn add(&mut self, weight: Weight, time: Span) {
        self.weight += f64::from(weight.0);
        self.time += time.as_nanos_f64();
        self.starts += 1;
    }

    fn halve(&mut self) {
        self.weight /= 2.0;
        self.time /= 2.0;
        self.starts /= 2;
    }
}

impl Drain {
    /// How long so much weight takes to drain; zero when unknown.
    pub(super) fn time_for(&self, weight: u64) -> Span {
        Span::from_nanos_f64(float(weight) * self.time_per_weight)
    }

    /// A request started, so long after the gate was saturated or the start before.
    #[inline(never)]
    pub(super) fn count(&mut self, weight: Weight, time: Span) {
        self.other_starts = 0;
        self.known.add(weight, time);
        self.lately.add(weight, time);
        if self.lately.starts >= LATELY && self.lately.time >= LATELY_TIME.as_nanos_f64() {
            let lately = std::mem::take(&mut self.lately);
            if self.expected > 0.0 && lately.time > SLOWER * self.expected * lately.weight {
                self.known = lately;
            }
            self.expected = self.known.time / self.known.weight.max(1.0);
        }
        let long = self.known.time >= TIME.as_nanos_f64() && self.known.starts >= FEW_STARTS;
        if self.known.starts >= STARTS || long {
            self.known.halve();
        }
        if self.known.weight > 0.0 && self.known.starts > 1 {
            self.time_per_weight = self.known.time / self.known.weight;
        }
    }

    /// A request started while slots were free, which says nothing. After as many as evidence is of, nothing is known any more.
    #[inline] // Every request that does not wait comes here.
    pub(super) fn forget(&mut self) {
        self.other_starts += 1;
        if self.other_starts >= STARTS {
            *self = Self::default();
        }
    }

    pub(super) fn invariants(&self) {
        assert!(self.time_per_weight >= 0.0 && self.time_per_weight.is_finite());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    /// So many starts with exponential times of this mean.
    fn starts(drain: &mut Drain, rng: &mut Rng, micros: f64, starts: u32) {
        for _ in 0..starts {
            let time = -(1.0 - rng.unit()).ln() * micros;
            drain.count(Weight::ONE, Span::from_nanos_f64(1e3 * time));
        }
    }

    fn micros(drain: &Drain) -> f64 {
        drain.time_for(u64::from(Weight::ONE.0)).as_nanos_f64() / 1e3
    }

    #[test]
    fn a_service_that_is_suddenly_half_as_fast_is_known_to_be_so_after_some_hundred_starts() {
        let after = |seed| {
            let (mut drain, mut rng) = (Drain::default(), Rng::new(seed));
            starts(&mut drain, &mut rng, 10.0, 2_000);
            starts(&mut drain, &mut rng, 20.0, 2 * LATELY);
            micros(&drain)
        };
        let mean = (0..400).map(after).sum::<f64>() / 400.0;
        assert!((17.0..21.0).contains(&mean), "{mean}; by the mean of all it would be 15");
    }

    #[test]
    fn chance_is_not_believed() {
        let (mut drain, mut rng) = (Drain::default(), Rng::new(1));
        starts(&mut drain, &mut rng, 10.0, 1_000);
        for n in 0..200_000 {
            starts(&mut drain, &mut rng, 10.0, 1);
            assert!((6.0..14.5).contains(&micros(&drain)), "{n}: {}", micros(&drain));
        }
    }
}
