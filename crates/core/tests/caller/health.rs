//! Circuit breaking and outlier ejection in the choice of an endpoint.

use tidegate_core::caller::{BreakerConfig, CallerConfig, EjectionConfig};
use tidegate_core::event::Event;
use tidegate_core::throttle::Answer;
use tidegate_core::{Advice, Caller, Context, Instant, Outcome, Reason, Span};

use crate::{SERVED, at, refused, sent};

const FAILED: Answer = Answer::Done(Outcome::Fail);

/// A caller that makes a call every second: whatever a refusal adds to a load has faded by then.
struct Bench {
    caller: Caller,
    now: Instant,
}

impl Bench {
    fn new(endpoints: usize) -> Self {
        let pause = Span::from_secs(100);
        let breaker = BreakerConfig { pause, longest: pause, ..BreakerConfig::default() };
        let ejection =
            EjectionConfig { every: Span::from_secs(200), pause, ..EjectionConfig::default() };
        let config = CallerConfig {
            breaker: Some(breaker),
            ejection: Some(ejection),
            ..CallerConfig::default()
        };
        let mut caller = Caller::new(&config, endpoints, at(0), 5).unwrap();
        caller.events().keep(true);
        Self { caller, now: at(0) }
    }

    /// Makes `count` calls, answered by what `of` says of their endpoint and of how many it has had.
    /// How many went to each?
    fn calls(&mut self, count: usize, of: impl Fn(usize, usize) -> Answer) -> [usize; 4] {
        let mut seen = [0; 4];
        for _ in 0..count {
            self.now += Span::from_secs(1);
            let Ok(_) = self.caller.submit(self.now, &Context::default()) else { continue };
            for (id, endpoint, _) in sent(&mut self.caller) {
                seen[endpoint] += 1;
                let answered = self.now + Span::from_millis(1);
                self.caller.respond(answered, id, of(endpoint, seen[endpoint]), None);
                self.caller.invariants();
            }
        }
        seen
    }

    /// Whether `endpoint` went down or up, in order.
    fn told(&mut self, endpoint: usize) -> Vec<bool> {
        let told = self.caller.events().drain().filter_map(|(_, event)| match event {
            Event::Endpoint { endpoint: at, up } if at == endpoint => Some(up),
            _ => None,
        });
        told.collect()
    }
}

#[test]
fn an_endpoint_that_only_fails_is_left_alone_and_tried_again() {
    let mut bench = Bench::new(3);
    let broken = |endpoint, _| if endpoint == 1 { FAILED } else { SERVED };
    assert_eq!(bench.calls(60, broken)[1], 5);
    let tried = bench.calls(200, broken)[1];
    assert!((1..=2).contains(&tried), "one call in a hundred seconds, not {tried}");
    let again = bench.calls(300, |_, _| SERVED)[1];
    assert!(again > 30, "{again}");
    let told = bench.told(1);
    assert_eq!(told.first(), Some(&false));
    assert_eq!(told.last(), Some(&true));
}

#[test]
fn when_every_circuit_is_open_calls_are_rejected_at_once_and_told_when_to_come_back() {
    let mut bench = Bench::new(2);
    let seen = bench.calls(40, |_, _| FAILED);
    assert_eq!(seen[..2], [5, 5]);
    let rejection = bench.caller.submit(bench.now, &Context::default()).unwrap_err();
    assert_eq!((rejection.reason, rejection.measured), (Reason::Broken, 5.0));
    let Advice::Later(pause) = rejection.advice else { panic!("{rejection}") };
    assert!((Span::from_secs(60)..=Span::from_secs(120)).contains(&pause), "{pause}");
}

/// Overload refusals are no failures: an endpoint that refuses everything is neither broken nor an
/// outlier, or its load would go to the others and overload them too.
#[test]
fn refusals_never_break_a_circuit_nor_make_an_outlier() {
    let mut bench = Bench::new(2);
    let seen = bench.calls(1_000, |endpoint, number| match (endpoint, number) {
        (0, number) if number > 1 => refused(Advice::Never),
        _ => SERVED,
    });
    assert!(seen[0] > 50, "{seen:?}");
    assert_eq!(bench.told(0), [], "{seen:?}");
}

#[test]
fn an_endpoint_that_fails_now_and_then_is_left_out_as_an_outlier() {
    let mut bench = Bench::new(4);
    // Never often enough in a row for the circuit.
    let seen = bench.calls(450, |endpoint, number| match endpoint {
        2 if number % 3 > 0 => FAILED,
        _ => SERVED,
    });
    assert_eq!(bench.told(2), [false], "{seen:?}");
    assert!(bench.calls(300, |_, _| SERVED)[2] > 0, "back after a while");
}
