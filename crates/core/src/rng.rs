//! Randomness from a seed: every draw of a run can be repeated.

/// A small fast generator (SplitMix64: an additive Weyl sequence through a mixing function). Not
/// for secrets.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// A generator whose whole future is decided by `seed`.
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// 64 random bits.
    pub const fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// Uniform in `[0, 1)`.
    pub const fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Uniform in `0..bound`, 0 for a zero bound. The bias is below `bound / 2⁶⁴`.
    pub const fn below(&mut self, bound: u64) -> u64 {
        ((self.next_u64() as u128 * bound as u128) >> 64) as u64
    }
}

/// Spreads every input bit over all output bits.
pub(crate) const fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_repeat_and_are_spread() {
        let (mut a, mut b) = (Rng::new(7), Rng::new(7));
        let mut buckets = [0u32; 10];
        for _ in 0..10_000 {
            let x = a.below(10);
            assert_eq!(x, b.below(10));
            buckets[x as usize] += 1;
        }
        assert!(buckets.iter().all(|n| (900..1100).contains(n)), "{buckets:?}");
        assert_eq!(a.below(0), 0);
    }
}
