//! Circuit breaking and outlier ejection in the choice of an endpoint.

use tidegate_core::caller::{BreakerConfig, CallerConfig, EjectionConfig};
use tidegate_core::event::Event;
use tidegate_core::throttle::{Answer, ThrottleConfig, WindowConfig};
use tidegate_core::{Advice, Caller, Context, Instant, Outcome, Reason, Span};

use crate::{SERVED, at, drain, refused, sent};

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

/// A caller that may have one request outstanding per endpoint, and leaves one alone that failed once.
fn cautious(endpoints: usize) -> Caller {
    let slo = Span::from_secs(60);
    let window = WindowConfig { increase: 0.0, slo, ..WindowConfig::default() };
    let config = CallerConfig {
        throttle: ThrottleConfig::Window(window),
        breaker: Some(BreakerConfig { failures: 1, ..BreakerConfig::default() }),
        hold_time: Span::from_secs(60),
        ..CallerConfig::default()
    };
    Caller::new(&config, endpoints, at(0), 5).unwrap()
}

/// Nobody has to make another call for those who wait to leave when a circuit is tried.
#[test]
fn who_waits_leaves_when_a_circuit_is_tried_again() {
    for endpoints in [1, 2] {
        let mut caller = cautious(endpoints);
        for _ in 0..endpoints + 2 {
            caller.submit(at(0), &Context::default()).unwrap();
        }
        let under_way = sent(&mut caller);
        assert_eq!((under_way.len(), caller.held()), (endpoints, 2));
        caller.respond(at(1), under_way[0].0, FAILED, None);
        assert_eq!(drain(&mut caller), []);
        let back = caller.next_wakeup().unwrap();
        assert!((at(1_001)..=at(1_201)).contains(&back), "{back:?}");
        caller.dispatch(back - Span::from_nanos(1));
        assert_eq!(drain(&mut caller), []);
        caller.dispatch(back);
        let tried = sent(&mut caller);
        assert_eq!((tried.len(), caller.held()), (1, 1), "one call at a time");
        assert_eq!(tried[0].1, under_way[0].1);
        // What waits has not been told anything, and the next pause is waited for too.
        caller.respond(back, tried[0].0, FAILED, None);
        let again = caller.next_wakeup().unwrap();
        assert!(again > back && caller.held() == 1);
        caller.dispatch(again);
        let tried = sent(&mut caller);
        assert_eq!((tried.len(), caller.held()), (1, 0));
        caller.respond(again, tried[0].0, SERVED, None);
        assert!(caller.next_wakeup().is_none(), "nobody waits");
    }
}
