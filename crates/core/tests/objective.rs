//! A gate that was told no objective finds one.

use tidegate_core::event::Event;
use tidegate_core::gate::{Action, GateConfig};
use tidegate_core::objective::Because;
use tidegate_core::{Context, Cost, Gate, Instant, Outcome, Span};

fn at(micros: u64) -> Instant {
    Instant::ZERO + Span::from_micros(micros)
}

/// Serves one request after the other, `gap` apart, each for `takes`; what comes meanwhile waits.
fn serve(gate: &mut Gate, from: u64, count: u64, gap: u64, takes: u64) -> (u64, u64) {
    let (mut refused, mut now) = (0, from);
    let (mut free_at, mut running) = (from, None);
    for n in 0..count {
        let arrives = from + n * gap;
        while let Some(id) = running.filter(|_| free_at <= arrives) {
            gate.finish(at(free_at), id, Outcome::Serve, Cost::from(Span::from_micros(takes)));
            running = next(gate, free_at);
            now = free_at;
            free_at += takes;
        }
        now = now.max(arrives);
        refused += u64::from(gate.arrive(at(now), &Context::default()).is_err());
        if running.is_none() {
            running = next(gate, now);
            free_at = now + takes;
        }
        gate.invariants();
    }
    (now + takes, refused)
}

fn next(gate: &mut Gate, now: u64) -> Option<tidegate_core::RequestId> {
    gate.dispatch(at(now));
    let mut started = None;
    while let Some(action) = gate.poll() {
        if let Action::Start { id, .. } = action {
            started = Some(id);
        }
    }
    started
}

fn objective(gate: &Gate) -> (Span, Because) {
    gate.objective().expect("tide has one")
}

#[test]
fn it_is_learned_in_calm_times_and_frozen_under_overload() {
    let config = GateConfig::from_toml("slots = { slots = 'fixed', count = 1 }").unwrap();
    let mut gate = Gate::new(&config, Instant::ZERO, 1).unwrap();
    gate.events().keep(true);
    assert_eq!(objective(&gate), (Span::from_millis(50), Because::Unknown));
    let (now, refused) = serve(&mut gate, 0, 200, 10_000, 4_000);
    assert_eq!(refused, 0);
    let calm = objective(&gate);
    let mean = Span::from_millis(4);
    assert_eq!(calm, (Span::from_millis(40), Because::Service { mean }));
    let changes =
        gate.events().drain().filter(|(_, event)| matches!(event, Event::Objective { .. }));
    assert_eq!(changes.count(), 1);

    // Twice the load, and the service has become twice as slow as well.
    let (_, refused) = serve(&mut gate, now, 5_000, 4_000, 8_000);
    assert!(refused > 2_000, "{refused}");
    assert_eq!(objective(&gate), calm, "what is slow under overload is not usual");
}

#[test]
fn one_that_is_given_stays() {
    let text = "admission = { policy = 'tide', objective = '70ms' }";
    let mut gate = Gate::new(&GateConfig::from_toml(text).unwrap(), Instant::ZERO, 1).unwrap();
    serve(&mut gate, 0, 200, 10_000, 4_000);
    assert_eq!(objective(&gate), (Span::from_millis(70), Because::Given));
    // Told to learn from now on, it does; told again, it is what is told.
    gate.reconfigure(at(3_000_000), &GateConfig::default()).unwrap();
    serve(&mut gate, 3_000_000, 200, 10_000, 4_000);
    assert_eq!(objective(&gate).0, Span::from_millis(40));
    gate.reconfigure(at(9_000_000), &GateConfig::from_toml(text).unwrap()).unwrap();
    assert_eq!(objective(&gate), (Span::from_millis(70), Because::Given));
    // Another policy may have none.
    let open = GateConfig::from_toml("admission = { policy = 'open' }").unwrap();
    gate.reconfigure(at(9_000_000), &open).unwrap();
    assert_eq!(gate.objective(), None);
}
