//! What could be had of a plain service by who sees its queue.
//!
//! Exactly as many are sent to it as it has workers; the others wait in a queue, first come first served, of
//! the best length, and are dropped at their start when they have waited for longer than the best
//! wait. Nothing is known of how long a request will take.

use std::collections::VecDeque;

use tidegate_core::{Instant, Span};

use super::Plain;
use crate::engine::Engine;
use crate::random::{exponential, stream};

/// The best share of the capacity that is answered in time. Of several services in a row nobody sees all queues: there it is all
/// that is asked for, or that the one in the middle can do.
pub fn possible(plain: &Plain, seed: u64) -> f64 {
    if plain.around.is_some() {
        return plain.load.min(1.0);
    }
    let per_worker = plain.slo.as_nanos_f64() / plain.service.mean.as_nanos_f64();
    let full = (per_worker * f64::from(plain.workers)).ceil() as usize;
    let lengths = [0.1_f64, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.5]
        .map(|part| (part * full as f64).ceil() as usize);
    let waits = [0.5, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 1.0];
    let tries = lengths.iter().flat_map(|length| waits.map(|wait| (*length, wait)));
    tries.map(|(length, wait)| once(plain, seed, length, plain.slo.scale(wait))).fold(0.0, f64::max)
}

#[derive(Clone, Copy, Debug)]
enum Event {
    Arrive,
    Done(Instant),
}

fn once(plain: &Plain, seed: u64, length: usize, wait: Span) -> f64 {
    let (mut arrivals, mut works) = (stream(seed, "arrivals"), stream(seed, "works"));
    let mut weather = plain.weather.forecast(stream(seed, "weather"));
    let mut engine = Engine::new();
    let mut queue: VecDeque<(Instant, Span)> = VecDeque::new();
    let rate = plain.load * f64::from(plain.workers) / plain.service.mean.as_nanos_f64();
    let (mut idle, mut good, mut done, mut drawn, mut started) = (plain.workers, 0, 0, 0.0, 0.0);
    engine.at(Instant::ZERO, Event::Arrive);
    while done < plain.answers
        && let Some(event) = engine.next_before(Instant::FAR)
    {
        let now = engine.now();
        match event {
            Event::Arrive => {
                engine
                    .after(Span::from_nanos_f64(exponential(&mut arrivals) / rate), Event::Arrive);
                let work = plain.service.sample(&mut works, 1.0);
                if queue.len() <= length {
                    queue.push_back((now, work));
                }
            }
            Event::Done(came) => {
                idle += 1;
                done += 1;
                good += u32::from(now.since(came) <= plain.slo);
            }
        }
        while idle > 0
            && let Some((came, work)) = queue.pop_front()
        {
            if now.since(came) <= wait {
                idle -= 1;
                drawn += work.as_nanos_f64();
                started += 1.0;
                engine.at(weather.ends(now, work), Event::Done(came));
            }
        }
    }
    let able = weather.worked(Instant::ZERO, engine.now()) * f64::from(plain.workers);
    f64::from(good) * drawn / started / able
}
