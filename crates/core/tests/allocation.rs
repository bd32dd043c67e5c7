//! The hot path does not allocate: counted, not guessed.

#![allow(unsafe_code, reason = "counting allocations means being the allocator")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use tidegate_core::admission::AdmissionConfig;
use tidegate_core::gate::{Action, Gate, GateConfig};
use tidegate_core::rng::Rng;
use tidegate_core::slots::SlotsConfig;
use tidegate_core::{CallerId, Context, Cost, Instant, Outcome, Rank, Span};

struct Counting;

thread_local! {
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: every call is passed on to the system's allocator as it came; only a number is added up.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the contract of `dealloc`.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Offers 1.5 times what four slots can serve, with feedback for every answer, for `steps` µs.
struct Overload {
    gate: Gate,
    rng: Rng,
    now: Instant,
    running: Vec<(Instant, tidegate_core::RequestId, CallerId)>,
}

impl Overload {
    fn new(policy: &str) -> Self {
        let text = format!("[admission]\n{policy}");
        let config = GateConfig {
            slots: SlotsConfig::fixed(4),
            queue_limit: 256,
            ..GateConfig::from_toml(&text).unwrap()
        };
        assert_ne!(config.admission, AdmissionConfig::Open);
        let gate = Gate::new(&config, Instant::ZERO, 1).unwrap();
        Self { gate, rng: Rng::new(5), now: Instant::ZERO, running: Vec::with_capacity(16) }
    }

    fn run(&mut self, steps: u32) {
        for step in 0..steps {
            self.now += Span::from_micros(1);
            let now = self.now;
            while let Some(at) = self.running.iter().position(|(until, ..)| *until <= now) {
                let (_, id, caller) = self.running.swap_remove(at);
                self.gate.finish(now, id, Outcome::Serve, Cost(20_000));
                self.gate.feedback(now, caller, Default::default());
            }
            if step % 10 < 3 {
                let context = Context {
                    rank: Rank::new(self.rng.below(64) as u8, self.rng.next_u64() as u16),
                    caller: CallerId(1 + self.rng.below(32)),
                    demand: self.rng.below(3) as u32,
                    ..Context::default()
                };
                if self.gate.arrive(now, &context).is_err() {
                    self.gate.feedback(now, context.caller, Default::default());
                }
            }
            self.gate.dispatch(now);
            while let Some(action) = self.gate.poll() {
                if let Action::Start { id, .. } = action {
                    let caller = self.gate.request(id).unwrap().context.caller;
                    self.running.push((now + Span::from_micros(20), id, caller));
                }
            }
        }
    }
}

#[test]
fn nothing_is_allocated_in_steady_state() {
    for policy in [
        "policy = 'tide'\nobjective = '400us'",
        "policy = 'breakwater'",
        "policy = 'dagor'",
        "policy = 'codel'",
        "policy = 'random'",
        "policy = 'utilization'",
    ] {
        let mut overload = Overload::new(policy);
        overload.run(300_000);
        let before = COUNT.with(Cell::get);
        overload.run(100_000);
        let allocated = COUNT.with(Cell::get) - before;
        assert_eq!(allocated, 0, "{policy}");
        overload.gate.invariants();
    }
}
