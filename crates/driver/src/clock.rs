//! From the machine's clock to the gate's, and from its randomness to seeds.

use std::fmt;
use std::hash::BuildHasher;
use std::sync::OnceLock;

use tidegate_core::{Instant, Span};

/// Tells the moment as the gate counts it. A driver has one clock per process, so that deadlines
/// mean the same to every gate and caller in it.
pub trait Clock: fmt::Debug + Send + Sync {
    /// The present moment; never earlier than any it told before.
    fn now(&self) -> Instant;
}

/// The monotonic clock of the machine, counted from a moment of one's choice.
#[derive(Clone, Copy, Debug)]
pub struct Monotonic {
    epoch: std::time::Instant,
    /// The same moment as the system counts, in nanoseconds: to ask it directly takes a third less time.
    #[cfg(target_os = "linux")]
    origin: u64,
}

impl Monotonic {
    /// Counts from this moment on.
    #[cfg(not(target_os = "linux"))]
    #[expect(clippy::new_without_default, reason = "two clocks are two epochs: ask for it by name")]
    pub fn new() -> Self {
        Self { epoch: std::time::Instant::now() }
    }

    /// Counts from this moment on.
    #[cfg(target_os = "linux")]
    #[expect(clippy::new_without_default, reason = "two clocks are two epochs: ask for it by name")]
    pub fn new() -> Self {
        // One clock read in two ways; of a few pairs the closest, should something come between.
        let pairs = (0..8).map(|_| {
            let (before, epoch, after) = (system(), std::time::Instant::now(), system());
            (after - before, Self { epoch, origin: before + (after - before) / 2 })
        });
        pairs.min_by_key(|(apart, _)| *apart).expect("eight pairs").1
    }

    /// The clock of this process: counts from when it was first asked for. Gates and callers share it
    /// unless they are given another, so that a deadline that came in by one goes out by the other.
    pub fn process() -> Self {
        static PROCESS: OnceLock<Monotonic> = OnceLock::new();
        *PROCESS.get_or_init(Self::new)
    }

    /// A moment of the machine's clock as the gate counts it, zero if it lies before the epoch.
    pub fn at(&self, moment: std::time::Instant) -> Instant {
        Instant::ZERO + Span::from(moment.saturating_duration_since(self.epoch))
    }

    /// The moment of the machine's clock that `moment` means, for timers; none if too far away.
    pub fn to_std(&self, moment: Instant) -> Option<std::time::Instant> {
        self.epoch.checked_add(moment.since(Instant::ZERO).into())
    }
}

impl Clock for Monotonic {
    #[cfg(not(target_os = "linux"))]
    fn now(&self) -> Instant {
        self.at(std::time::Instant::now())
    }

    #[cfg(target_os = "linux")]
    fn now(&self) -> Instant {
        Instant::ZERO + Span::from_nanos(system().saturating_sub(self.origin))
    }
}

/// What the system's clock counts, the one that std reads.
#[cfg(target_os = "linux")]
fn system() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    // Seconds and nanoseconds since the machine was started are never negative.
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// What the calendar says: time since 1970 began, in UTC. For limits by calendar, never for delays.
pub fn unix_time() -> Span {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(Span::ZERO, Span::from)
}

/// A number that nobody can guess, from the keys that the standard library draws for its hash maps:
/// the seed of a gate that nobody wants to replay, or half a secret.
#[allow(clippy::disallowed_types, reason = "a driver draws the seed for the core")]
pub fn random_seed() -> u64 {
    std::hash::RandomState::new().hash_one(0u8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_convert_both_ways() {
        let clock = Monotonic::new();
        let moment = clock.epoch + std::time::Duration::from_micros(1_500);
        assert_eq!(clock.at(moment), Instant::ZERO + Span::from_micros(1_500));
        assert_eq!(clock.to_std(clock.at(moment)), Some(moment));
        assert_eq!(clock.at(clock.epoch - std::time::Duration::from_secs(1)), Instant::ZERO);
    }
}
