//! What has been learned about throughput by number of slots.
//!
//! Throughput measured over a window of finishes is noisy: with exponential service times a window
//! of n finishes is off by 1/√n. So a number of slots is judged by the mean over several windows,
//! with the noise itself measured and taken into account: a number counts as better, or as worse,
//! when it is so by more than noise explains.

/// Standard deviations of a difference by which a number must be better to be moved to. A move that
/// was an error is found out and taken back.
const BETTER: f64 = 1.0;
/// Standard deviations by which it must be worse to be tried no more for a while: that is not found
/// out soon.
const WORSE: f64 = 2.0;
/// How many count as a change of the service itself: one false alarm in 370 windows.
const SURPRISE: f64 = 3.0;
/// Windows after which old evidence about the number in force fades.
const MEMORY: f64 = 64.0;
/// Windows after which more of them tell nothing new about another number.
const ENOUGH: f64 = 24.0;
/// Windows that old evidence counts as when a number is looked at again after a rest.
const OLD: f64 = 6.0;
/// Weight of a window in the noise.
const NOISE_GAIN: f64 = 1.0 / 32.0;

/// Throughput at each number of slots that may be tried. Numbers are addressed by *level*, their
/// index in increasing order: one apart up to eight, a quarter or less above.
#[derive(Clone, Debug)]
pub(super) struct Curve {
    levels: Vec<Level>,
    /// Share of the best throughput that may be given up for fewer slots.
    tolerance: f64,
    /// Variance of a window's throughput, relative to its mean.
    noise: f64,
}

#[derive(Clone, Copy, Debug)]
struct Level {
    slots: u32,
    /// Mean finishes per nanosecond, while `windows` is positive.
    rate: f64,
    /// Windows it rests on.
    windows: f64,
}

impl Curve {
    /// Nothing known about the numbers from `least` to `most`; windows have `window` finishes.
    pub(super) fn new(least: u32, most: u32, window: u32, tolerance: f64) -> Self {
        let mut levels = Vec::new();
        let mut slots = least.max(1);
        while slots < most {
            levels.push(Level { slots, rate: 0.0, windows: 0.0 });
            // A quarter of the power of two below: 8, 10, 12, 14, 16, 20, …
            slots += ((1 << slots.ilog2()) / 4).max(1);
        }
        levels.push(Level { slots: most.max(1), rate: 0.0, windows: 0.0 });
        Self { levels, tolerance, noise: 1.0 / f64::from(window) }
    }

    /// The highest level.
    pub(super) fn top(&self) -> usize {
        self.levels.len() - 1
    }

    /// The lowest level with at least so many slots.
    pub(super) fn level_of(&self, slots: u32) -> usize {
        self.levels.partition_point(|level| level.slots < slots).min(self.top())
    }

    /// Slots at `level`.
    pub(super) fn slots(&self, level: usize) -> u32 {
        self.levels[level].slots
    }

    /// Mean throughput at `level`, zero while unknown.
    pub(super) fn rate(&self, level: usize) -> f64 {
        self.levels[level].rate
    }

    /// Takes the throughput of a window at `level`, where `base` is the number in force.
    pub(super) fn record(&mut self, level: usize, base: usize, rate: f64) {
        let Level { rate: before, windows, .. } = self.levels[level];
        if windows == 0.0 {
            self.set(level, rate, 1.0);
            return;
        }
        let apart = rate / before - 1.0;
        let deviation = (self.noise * (1.0 + 1.0 / windows)).sqrt();
        let surprise = apart.abs() > SURPRISE * deviation;
        self.learn_noise(apart.abs().min(SURPRISE * deviation), windows);
        if surprise {
            // The service has changed. Seen at the number in force, that goes for all numbers.
            if level == base {
                self.levels.iter_mut().for_each(|level| level.windows = 0.0);
            }
            self.set(level, rate, 1.0);
            return;
        }
        let mean = before + (rate - before) / (windows + 1.0);
        self.set(level, mean, (windows + 1.0).min(MEMORY));
        // While the mean is young it still finds itself; later it moves because the service does.
        if level == base && windows >= MEMORY {
            self.follow(base, mean / before);
        }
    }

    /// `level` is looked at again after a rest: new evidence counts more than what is remembered.
    pub(super) fn age(&mut self, level: usize) {
        self.levels[level].windows = self.levels[level].windows.min(OLD);
    }

    /// The level to be at: the lowest whose throughput is within the tolerance of the best.
    pub(super) fn choose(&self, base: usize) -> usize {
        let others = (0..self.levels.len()).filter(|level| *level != base);
        let best = others.map(|level| self.surely(level, base)).fold(self.rate(base), f64::max);
        let good = best * (1.0 - self.tolerance);
        if self.rate(base) < good {
            let mut levels = 0..self.levels.len();
            return levels.find(|level| self.surely(*level, base) >= good).unwrap_or(base);
        }
        let fair = best * (1.0 - 2.0 * self.tolerance);
        let fits = |level: &usize| self.rate(*level) >= good && self.surely(*level, base) >= fair;
        (0..base).find(fits).unwrap_or(base)
    }

    /// Whether more windows at `level` would decide nothing: it surely is no improvement, or as
    /// much is known of it as is ever remembered.
    pub(super) fn known(&self, level: usize, base: usize) -> bool {
        self.levels[level].windows >= ENOUGH
            || if level < base {
                self.surely_worse(level, base)
            } else {
                self.levels[level].windows > 0.0
                    && self.at_most(level, base) * (1.0 - self.tolerance) < self.rate(base)
            }
    }

    /// Whether `level` is within the tolerance of `other`, as far as is known.
    pub(super) fn as_good(&self, level: usize, other: usize) -> bool {
        self.rate(level) >= (1.0 - self.tolerance) * self.rate(other)
    }

    /// Whether `level` gives up more than the tolerance, beyond doubt.
    pub(super) fn surely_worse(&self, level: usize, base: usize) -> bool {
        self.levels[level].windows > 0.0
            && self.at_most(level, base) < (1.0 - self.tolerance) * self.rate(base)
    }

    /// Whether `level` is short of slots: surely worse, and nearer to losing throughput in
    /// proportion to slots than to losing none.
    pub(super) fn starved(&self, level: usize, base: usize) -> bool {
        let slots = f64::from(self.slots(level)) / f64::from(self.slots(base));
        let halfway = self.rate(base) * (1.0 + slots) / 2.0;
        level < base && self.surely_worse(level, base) && self.rate(level) < halfway
    }

    /// Throughput that `level` does not exceed, beyond doubt, compared with that of `base`.
    fn at_most(&self, level: usize, base: usize) -> f64 {
        self.rate(level) * (1.0 + WORSE * self.deviation(level, base))
    }

    /// Throughput that `level` has beyond doubt, compared with that of `base`; zero if unknown.
    fn surely(&self, level: usize, base: usize) -> f64 {
        if self.levels[level].windows == 0.0 {
            return 0.0;
        }
        self.rate(level) * (1.0 - BETTER * self.deviation(level, base))
    }

    /// Standard deviation of the difference of two means, relative.
    fn deviation(&self, a: usize, b: usize) -> f64 {
        let share = |level: usize| 1.0 / self.levels[level].windows.max(1.0);
        (self.noise * (share(a) + share(b))).sqrt()
    }

    fn set(&mut self, level: usize, rate: f64, windows: f64) {
        (self.levels[level].rate, self.levels[level].windows) = (rate, windows);
    }

    /// Slow changes, of the mix of requests for instance, go for all numbers alike: what is known
    /// of the others follows the one in force, which is the best known.
    fn follow(&mut self, base: usize, factor: f64) {
        for (n, level) in self.levels.iter_mut().enumerate() {
            if n != base {
                level.rate *= factor;
            }
        }
    }

    fn learn_noise(&mut self, apart: f64, windows: f64) {
        let sample = apart * apart / (1.0 + 1.0 / windows);
        // Differences below half the tolerance decide nothing, so they need not be told apart.
        let least = self.tolerance * self.tolerance / 4.0;
        self.noise = (self.noise + NOISE_GAIN * (sample - self.noise)).max(least);
    }

    /// Panics if the state contradicts itself.
    pub(super) fn invariants(&self) {
        assert!(self.levels.is_sorted_by(|a, b| a.slots < b.slots), "numbers increase");
        let sane = |level: &Level| level.rate.is_finite() && level.rate >= 0.0;
        assert!(self.levels.iter().all(sane) && self.noise.is_finite());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn curve() -> Curve {
        Curve::new(1, 100, 256, 0.02)
    }

    fn record(curve: &mut Curve, slots: u32, base: u32, rate: f64, windows: u32) {
        for _ in 0..windows {
            curve.record(curve.level_of(slots), curve.level_of(base), rate);
        }
    }

    #[test]
    fn numbers_are_dense_below_and_a_quarter_apart_above() {
        let slots: Vec<u32> = curve().levels.iter().map(|level| level.slots).collect();
        assert_eq!(slots[..12], [1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16]);
        assert_eq!(slots[slots.len() - 4..], [64, 80, 96, 100]);
        let curve = curve();
        assert_eq!(curve.slots(curve.level_of(9)), 10);
        assert_eq!(curve.slots(curve.level_of(1_000)), 100);
        assert_eq!(Curve::new(5, 5, 256, 0.02).top(), 0);
    }

    #[test]
    fn moves_down_only_on_evidence_and_never_below_the_knee() {
        let mut curve = curve();
        let (four, eight) = (curve.level_of(4), curve.level_of(8));
        record(&mut curve, 8, 8, 4.0, 10);
        record(&mut curve, 4, 8, 4.0, 1);
        assert_eq!(curve.choose(eight), eight, "one window may be luck");
        record(&mut curve, 4, 8, 4.0, 7);
        assert_eq!(curve.choose(eight), four);
        record(&mut curve, 3, 4, 3.0, 8);
        assert!(curve.surely_worse(four - 1, four) && curve.starved(four - 1, four));
        assert_eq!(curve.choose(four), four);
    }

    #[test]
    fn moves_up_when_more_is_surely_better() {
        let mut curve = curve();
        let (four, five) = (curve.level_of(4), curve.level_of(5));
        record(&mut curve, 4, 4, 4.0, 8);
        record(&mut curve, 5, 4, 4.2, 1);
        assert_eq!(curve.choose(four), four, "5 % in one window may be noise");
        record(&mut curve, 5, 4, 5.0, 3);
        assert_eq!(curve.choose(four), five);
    }

    /// A slide by small steps, each within the tolerance of the one before, ends within the
    /// tolerance of the best.
    #[test]
    fn small_losses_do_not_add_up() {
        let mut curve = curve();
        let rate = |slots: u32| f64::from(slots) / f64::from(slots + 1);
        for slots in [64, 56, 48, 40, 32, 28, 24, 20, 16, 14, 12, 10, 8] {
            record(&mut curve, slots, 64, rate(slots), 60);
        }
        let chosen = curve.slots(curve.choose(curve.level_of(64)));
        assert!((0.979..0.99).contains(&(rate(chosen) / rate(64))), "{chosen} slots");
    }

    /// Service times that spread more than exponentially make windows noisier than 1/√n.
    #[test]
    fn noise_is_measured() {
        let mut curve = curve();
        for n in 0..100 {
            record(&mut curve, 8, 8, if n % 2 == 0 { 7.0 } else { 9.0 }, 1);
        }
        let eight = curve.level_of(8);
        assert!((curve.noise.sqrt() - 0.125).abs() < 0.02, "{}", curve.noise.sqrt());
        record(&mut curve, 7, 8, 7.0, 1);
        assert!(!curve.known(eight - 1, eight), "an eighth less may be noise here");
    }

    #[test]
    fn a_changed_service_makes_all_evidence_void() {
        let mut curve = curve();
        record(&mut curve, 8, 8, 8.0, 10);
        record(&mut curve, 7, 8, 7.0, 10);
        record(&mut curve, 8, 8, 4.0, 1);
        assert_eq!(curve.rate(7), 4.0);
        assert!(!curve.known(6, 7), "what seven slots gave before says nothing now");
    }
}
