//! What is measured before the runs: round trip and capacity, both without control.

use std::io;
use std::time::Duration;

use tidegate_core::Span;
use tidegate_core::gate::GateConfig;
use tidegate_core::rng::Rng;
use tidegate_sim::dist::Service;

use super::super::Error;
use super::child::Process;
use super::closed;
use super::serve::{KEYS, Work};

/// What was measured before the runs.
pub(super) struct Ground {
    pub(super) capacity: f64,
    pub(super) rtt: Span,
    pub(super) slo: Span,
}

/// Where nothing is measured before: an SLO that a closed loop does not come near.
pub(super) const ASSUMED: Ground =
    Ground { capacity: 1e6, rtt: Span::from_micros(20), slo: Span::from_millis(50) };

/// No control, one at a time.
const OPEN: &str = "admission = { policy = 'open' }\nslots = { slots = 'fixed', count = 1 }";

/// The median round trip of a server that does nothing.
pub(super) fn round_trip(service: &Service, core: usize, time: Duration) -> Result<Span, Error> {
    let server = Process::start(&open(), Work::None, service, core)?;
    let idle = closed::run(server.address, 1, 1, time, |_| (1, Vec::new()), || ());
    Ok(idle.map_err(broken)?.latency.quantile(0.5))
}

/// Answers per second with so many callers, each with one request outstanding.
pub(super) fn capacity(
    work: Work,
    service: &Service,
    core: usize,
    callers: usize,
    time: Duration,
) -> Result<f64, Error> {
    // The middle of three: what disturbs one of them does not decide.
    let mut rates = [0.0; 3];
    for rate in &mut rates {
        let server = Process::start(&open(), work, service, core)?;
        let mut drawn = Drawn::default();
        let mut payload = payload_of(work, service.clone());
        let payload = |rng: &mut Rng| drawn.note(payload(rng));
        let found = closed::run(server.address, callers, 1, time, payload, || ());
        let found = found.map_err(broken)?.rate;
        *rate = if work == Work::Spin { drawn.at(service.mean, found) } else { found };
    }
    rates.sort_by(f64::total_cmp);
    Ok(rates[1])
}

fn open() -> GateConfig {
    GateConfig::from_toml(OPEN).expect("our own")
}

pub(super) fn broken(error: io::Error) -> Error {
    Error::Failed(format!("the connection to the server: {error}"))
}

/// What the services drawn for a closed loop take. Chance makes some thousands of them a percent shorter
/// or longer than their mean, which is no matter of capacity.
#[derive(Default)]
struct Drawn {
    nanos: f64,
    count: f64,
}

impl Drawn {
    fn note(&mut self, request: (u32, Vec<u8>)) -> (u32, Vec<u8>) {
        if let Ok(nanos) = request.1[..].try_into() {
            self.nanos += u64::from_le_bytes(nanos) as f64;
            self.count += 1.0;
        }
        request
    }

    /// The rate of one server that was `rate` with these services, had they been as long as their mean.
    fn at(&self, mean: Span, rate: f64) -> f64 {
        1.0 / (1.0 / rate + (mean.as_nanos() as f64 - self.nanos / self.count) / 1e9)
    }
}

/// Requests of the closed loop.
pub(super) fn payload_of(work: Work, service: Service) -> impl FnMut(&mut Rng) -> (u32, Vec<u8>) {
    move |rng| match work {
        Work::Spin => (1, service.sample(rng, 1.0).as_nanos().to_le_bytes().to_vec()),
        Work::None => (1, Vec::new()),
        Work::Kv => (1, (rng.below(KEYS.into()) as u32).to_le_bytes().to_vec()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capacity_is_not_a_matter_of_what_was_drawn() {
        let mut drawn = Drawn::default();
        for micros in [80_u64, 100] {
            drawn.note((1, (micros * 1000).to_le_bytes().to_vec()));
        }
        // 90 µs of work and 10 of messages: with 100 µs of work it is 110 in all.
        let rate = drawn.at(Span::from_micros(100), 10_000.0);
        assert!((rate - 1e6 / 110.0).abs() < 1e-6, "{rate}");
    }
}
