//! How far callers are: the round trips of connections that were accepted lately, for a learned objective.
//!
//! Whoever accepts connections has the socket, and the kernel has measured its handshake: one line there is
//! all it takes. A tower layer alone sees requests and no socket.
//!
//! The gate is told the least of the last [`PERIOD`]: a caller that is far away, or slow to acknowledge, says
//! nothing about the others, and a service must not become patient with all because of one.

use tidegate_core::{Instant, Span};

use crate::SharedGate;
use crate::sync::{Mutex, lock};

/// How long the least round trip is kept. Long enough that a service with few new connections hears of more
/// than one, short against the life of a network path.
const PERIOD: Span = Span::from_secs(10);

/// The least round trip of the connections accepted lately.
#[derive(Debug, Default)]
pub struct RoundTrips {
    current: Mutex<Option<Current>>,
}

/// What was heard in the present period.
#[derive(Clone, Copy, Debug)]
struct Current {
    ends: Instant,
    least: Span,
}

impl RoundTrips {
    /// A connection was accepted: tells `gate` what its kernel knows of it.
    #[cfg(target_os = "linux")]
    pub fn accepted(&self, gate: &SharedGate, socket: &impl std::os::fd::AsFd) {
        let known = crate::stamp::round_trip(socket);
        known.into_iter().for_each(|round_trip| self.heard(gate, round_trip));
    }

    /// A connection was accepted. Nothing is known of it on this platform.
    #[cfg(not(target_os = "linux"))]
    pub fn accepted<S>(&self, _gate: &SharedGate, _socket: &S) {}

    /// The same for who knows the round trip of a connection otherwise.
    pub fn heard(&self, gate: &SharedGate, round_trip: Span) {
        let now = gate.now();
        let told = self.least(now, round_trip);
        told.into_iter().for_each(|least| gate.input(|gate, now| gate.on_round_trip(now, least)));
    }

    /// What to tell the gate: the first at once, then the least of each period.
    fn least(&self, now: Instant, round_trip: Span) -> Option<Span> {
        let mut current = lock(&self.current);
        match &mut *current {
            Some(current) if now < current.ends => {
                current.least = current.least.min(round_trip);
                None
            }
            over => {
                let before = over.replace(Current { ends: now + PERIOD, least: round_trip });
                Some(before.map_or(round_trip, |before| before.least))
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use tidegate_core::gate::{Gate, GateConfig};

    use super::*;

    #[test]
    fn the_least_of_each_period_counts() {
        let trips = RoundTrips::default();
        let at = |seconds| Instant::ZERO + Span::from_secs(seconds);
        let millis = Span::from_millis;
        for (seconds, heard, told) in [
            (0, 30, Some(30)),
            (1, 90, None),
            (2, 20, None),
            (11, 70, Some(20)),
            (12, 80, None),
            (40, 5, Some(70)),
        ] {
            assert_eq!(trips.least(at(seconds), millis(heard)), told.map(millis), "{seconds} s");
        }
    }

    /// From the kernel to the objective: what a service takes is 4 ms, so 100 ms and the round trip.
    #[test]
    fn a_learned_objective_includes_it() {
        let mut now = Instant::ZERO;
        let gate = SharedGate::new(Gate::new(&GateConfig::default(), now, 1).expect("valid"));
        let mut learn = |gate: &mut Gate| {
            for _ in 0..64 {
                let id = gate.arrive(now, &Default::default()).expect("it is idle");
                gate.dispatch(now);
                while gate.poll().is_some() {}
                now += Span::from_millis(4);
                let cost = Span::from_millis(4).into();
                gate.finish(now, id, tidegate_core::Outcome::Serve, cost);
            }
            gate.objective().expect("tide has one").0
        };
        assert_eq!(gate.input(|gate, _| learn(gate)), Span::from_millis(40));
        RoundTrips::default().heard(&gate, Span::from_millis(30));
        assert_eq!(gate.input(|gate, _| learn(gate)), Span::from_millis(70));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn the_kernel_is_asked_when_a_connection_is_accepted() {
        let gate = SharedGate::build(&GateConfig::default()).expect("valid");
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        let _client = std::net::TcpStream::connect(listener.local_addr().expect("bound"));
        let (socket, _) = listener.accept().expect("accepts");
        let trips = RoundTrips::default();
        trips.accepted(&gate, &socket);
        assert!(lock(&trips.current).is_some_and(|current| current.least < Span::from_secs(1)));
    }
}
