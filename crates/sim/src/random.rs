//! Named streams of randomness from one seed.
//!
//! Each source of chance draws from a stream of its own, so adding a source, or drawing more often
//! from one, leaves all others as they were. In particular every policy meets the very same
//! requests: differences between two runs are differences between the policies.

use tidegate_core::rng::Rng;

/// The stream `name` of a run with `seed`.
pub fn stream(seed: u64, name: &str) -> Rng {
    Rng::new(stream_seed(seed, name))
}

/// A seed for whatever is called `name` in a run with `seed`.
pub fn stream_seed(seed: u64, name: &str) -> u64 {
    // FNV-1a over the name, then one step of the generator, which mixes all bits.
    let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    Rng::new(hash ^ Rng::new(seed).next_u64()).next_u64()
}

/// An exponential number with mean 1.
pub fn exponential(rng: &mut Rng) -> f64 {
    // 1 − u is in (0, 1], so the logarithm is finite.
    -(1.0 - rng.unit()).ln()
}

/// A standard normal number (Box and Muller's transform; the second one is thrown away so that
/// each sample costs the same two draws).
pub fn normal(rng: &mut Rng) -> f64 {
    let radius = (2.0 * exponential(rng)).sqrt();
    radius * (std::f64::consts::TAU * rng.unit()).cos()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_differ_by_name_and_by_seed() {
        let draw = |seed, name| stream(seed, name).next_u64();
        assert_eq!(draw(1, "arrivals"), draw(1, "arrivals"));
        assert_ne!(draw(1, "arrivals"), draw(1, "service"));
        assert_ne!(draw(1, "arrivals"), draw(2, "arrivals"));
    }

    #[test]
    fn moments_are_right() {
        let mut rng = stream(3, "moments");
        let n = 200_000;
        let (mut sum, mut normal_sum, mut squares) = (0.0, 0.0, 0.0);
        for _ in 0..n {
            sum += exponential(&mut rng);
            let x = normal(&mut rng);
            normal_sum += x;
            squares += x * x;
        }
        let n = f64::from(n);
        assert!((sum / n - 1.0).abs() < 0.01);
        assert!((normal_sum / n).abs() < 0.01);
        assert!((squares / n - 1.0).abs() < 0.02);
    }
}
