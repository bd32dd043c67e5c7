//! A cache that a service looks into: cheap when warm, and what warms it is served requests.
//!
//! Capacity that depends on past success is one of the two ways into a metastable failure: a cold
//! cache makes requests expensive, expensive requests are late, and late ones warm nothing that
//! anybody waits for.

use tidegate_core::Span;
use tidegate_core::rng::Rng;

/// Parameters of a cache.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CacheSpec {
    /// Share of requests that hit when it is warm.
    pub hit: f64,
    /// Core time that a miss costs beyond a hit.
    pub miss: Span,
    /// Misses after which an empty cache has all but 1/e of its warmth.
    pub fill: f64,
}

impl CacheSpec {
    /// Mean core time that a request costs beyond a hit, with a warm cache.
    pub fn mean_miss(&self) -> Span {
        self.miss.scale(1.0 - self.hit)
    }
}

/// A cache of one node.
#[derive(Clone, Debug)]
pub(super) struct Cache {
    spec: CacheSpec,
    /// From 0, empty, to 1.
    warmth: f64,
    rng: Rng,
}

impl Cache {
    pub(super) fn warm(spec: CacheSpec, rng: Rng) -> Self {
        Self { spec, warmth: 1.0, rng }
    }

    pub(super) fn empty(&mut self) {
        self.warmth = 0.0;
    }

    /// Looks something up: what it costs beyond a hit. A miss brings it in.
    pub(super) fn look_up(&mut self) -> Span {
        if self.rng.unit() < self.spec.hit * self.warmth {
            return Span::ZERO;
        }
        self.warmth += (1.0 - self.warmth) / self.spec.fill;
        self.spec.miss
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::stream;

    #[test]
    fn misses_warm_it() {
        let spec = CacheSpec { hit: 0.9, miss: Span::from_millis(1), fill: 100.0 };
        let mut cache = Cache::warm(spec, stream(1, "cache"));
        let misses = |cache: &mut Cache| (0..2000).filter(|_| cache.look_up() > Span::ZERO).count();
        assert!(misses(&mut cache).abs_diff(200) < 60);
        cache.empty();
        assert_eq!(cache.look_up(), Span::from_millis(1));
        let cold = misses(&mut cache);
        assert!(cold > 350, "{cold}");
        assert!(misses(&mut cache).abs_diff(200) < 60);
        assert_eq!(spec.mean_miss(), Span::from_micros(100));
    }
}
