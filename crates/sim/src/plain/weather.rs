//! What keeps the workers of a plain service from working: stalls, and a neighbour on its machine.

use tidegate_core::rng::Rng;
use tidegate_core::{Instant, Span};

/// Stalls of all workers: a garbage collection, a pause, a lock.
#[derive(Clone, Copy, Debug)]
pub struct Stalls {
    /// How long one lasts.
    pub lasts: Span,
    /// From the beginning of one to that of the next.
    pub every: Span,
}

/// Somebody else on the machine who takes part of it, again and again.
#[derive(Clone, Copy, Debug)]
pub struct Neighbour {
    /// How fast the workers are meanwhile.
    pub speed: f64,
    /// Shortest and longest time for which it does; in all, a quarter of the time.
    pub lasts: (Span, Span),
}

/// What befalls the workers.
#[derive(Clone, Copy, Debug, Default)]
pub struct Weather {
    /// Stalls, if there are any.
    pub stalls: Option<Stalls>,
    /// A neighbour, if there is one.
    pub neighbour: Option<Neighbour>,
}

/// Part of the time that the neighbour takes.
const BUSY: f64 = 0.25;

impl Weather {
    /// When what befalls them, by lot.
    pub fn forecast(self, rng: Rng) -> Forecast {
        Forecast { weather: self, rng, slow: Vec::new(), known: Instant::ZERO }
    }
}

/// When it is slow, as far as anybody has asked.
#[derive(Debug)]
pub struct Forecast {
    weather: Weather,
    rng: Rng,
    /// Beginning, end and speed, one after the other.
    slow: Vec<(Instant, Instant, f64)>,
    known: Instant,
}

impl Forecast {
    /// When work that begins now ends.
    pub fn ends(&mut self, now: Instant, work: Span) -> Instant {
        let mut at = now;
        let mut left = work.as_nanos_f64();
        loop {
            self.look(at + Span::from_nanos_f64(left));
            let next = self.slow.iter().rev().take_while(|slow| slow.1 > at).last().copied();
            let Some((from, to, speed)) = next else { return at + Span::from_nanos_f64(left) };
            let fast = from.since(at).as_nanos_f64();
            if fast >= left {
                return at + Span::from_nanos_f64(left);
            }
            let begin = at.max(from);
            left -= begin.since(at).as_nanos_f64();
            let possible = to.since(begin).as_nanos_f64() * speed;
            if possible > left {
                return begin + Span::from_nanos_f64(left / speed);
            }
            left -= possible;
            at = to;
        }
    }

    /// Nanoseconds that a worker can work from `from` to `to`.
    pub fn worked(&mut self, from: Instant, to: Instant) -> f64 {
        self.look(to);
        let lost = |(begin, end, speed): &(Instant, Instant, f64)| {
            to.min(*end).since(from.max(*begin)).as_nanos_f64() * (1.0 - speed)
        };
        to.since(from).as_nanos_f64() - self.slow.iter().map(lost).sum::<f64>()
    }

    /// Makes the weather up to a moment.
    fn look(&mut self, until: Instant) {
        while self.known <= until {
            if let Some(Stalls { lasts, every }) = self.weather.stalls {
                let from = self.known + every.saturating_sub(lasts);
                self.slow.push((from, from + lasts, 0.0));
                self.known = from + lasts;
            } else if let Some(Neighbour { speed, lasts: (least, most) }) = self.weather.neighbour {
                let spread = most.saturating_sub(least).as_nanos_f64();
                let lasts = least + Span::from_nanos_f64(self.rng.unit() * spread);
                let rest = 2.0 * self.rng.unit() * (1.0 / BUSY - 1.0);
                let mean = (least.as_nanos_f64() + spread / 2.0) * rest;
                let from = self.known + Span::from_nanos_f64(mean);
                self.slow.push((from, from + lasts, speed));
                self.known = from + lasts;
            } else {
                self.known = Instant::FAR;
                return;
            }
        }
    }
}
