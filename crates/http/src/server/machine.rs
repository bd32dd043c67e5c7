//! Signals of the machine and of the runtime, told to the gate about once a second.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use tidegate_core::signal::{ExecutorLoad, SignalsConfig};
use tidegate_core::{Instant, Span};
use tidegate_driver::SharedGate;
use tidegate_driver::machine::{Machine, lag};
use tokio::runtime::Handle;
use tokio::time::sleep;

/// How often the runtime is asked how late it is.
const TICK: Span = Span::from_millis(100);
/// The runtime's timers are no finer, so that a millisecond is not late.
const TIMER: Span = Span::from_millis(1);
/// Time over which the executor's load is smoothed.
const SMOOTHING: Span = Span::from_secs(1);
/// What lag is compared with where the policy has no objective.
const USUAL_OBJECTIVE: Span = Span::from_millis(50);

/// Tells an operator something once.
pub(super) type Warn = dyn Fn(&str) + Send + Sync;

/// Starts the task that samples, once, with the first request: then there is a runtime.
#[derive(Default)]
pub(super) struct Sampler {
    pub(super) started: AtomicBool,
    /// Whoever wants to hear of signals that are off; stderr if nobody does.
    pub(super) warn: Option<Arc<Warn>>,
}

impl Sampler {
    pub(super) fn start(self: &Arc<Self>, gate: &SharedGate) {
        if self.started.load(Ordering::Relaxed) || self.started.swap(true, Ordering::Relaxed) {
            return;
        }
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(sample(gate.clone(), Arc::downgrade(self)));
        }
    }

    fn warn(&self, warning: &str) {
        match &self.warn {
            Some(warn) => warn(warning),
            None => eprintln!("tidegate: {warning}"),
        }
    }
}

/// Samples until nothing is left of the layer that started it.
async fn sample(gate: SharedGate, sampler: Weak<Sampler>) {
    let mut config = config_of(&gate);
    let mut machine = Machine::new(&config);
    let mut workers = Workers::new(gate.now());
    loop {
        let latest = late(&gate, &config, &mut workers).await;
        let Some(sampler) = sampler.upgrade() else { return };
        let (now, objective) = (gate.now(), gate.read(|gate| gate.objective()));
        let objective = objective.map_or(USUAL_OBJECTIVE, |(objective, _)| objective);
        machine.add("lag", lag(Instant::ZERO, Instant::ZERO + latest, objective));
        workers.load.utilization().into_iter().for_each(|load| machine.add("executor", load));
        if let Some(utilization) = machine.sample(now) {
            gate.input(|gate, now| gate.on_utilization(now, utilization));
        }
        machine.take_warnings().iter().for_each(|warning| sampler.warn(warning));
        let current = config_of(&gate);
        if current != config {
            machine = Machine::new(&current);
            config = current;
        }
    }
}

/// Waits for the next sample, and says how late this task was at worst meanwhile.
async fn late(gate: &SharedGate, config: &SignalsConfig, workers: &mut Workers) -> Span {
    let end = gate.now() + config.every;
    let mut worst = Span::ZERO;
    loop {
        let now = gate.now();
        let nap = end.since(now).min(TICK);
        if nap == Span::ZERO {
            return worst;
        }
        sleep(Duration::from(nap)).await;
        worst = worst.max(gate.now().since(now + nap + TIMER));
        workers.look(gate.now());
    }
}

fn config_of(gate: &SharedGate) -> SignalsConfig {
    gate.read(|gate| gate.config().signals.clone())
}

/// How busy the runtime's workers are: what runs, by their own count of busy time, and what is ready
/// in the queue that they share.
struct Workers {
    load: ExecutorLoad,
    at: Instant,
    busy: Duration,
}

impl Workers {
    fn new(now: Instant) -> Self {
        let workers = Handle::current().metrics().num_workers();
        let workers = u32::try_from(workers).unwrap_or(u32::MAX);
        Self { load: ExecutorLoad::new(workers, SMOOTHING), at: now, busy: busy() }
    }

    fn look(&mut self, now: Instant) {
        let (elapsed, busy) = (now.since(self.at), busy());
        let runs = (busy.saturating_sub(self.busy)).as_secs_f64() / elapsed.as_secs_f64().max(1e-9);
        (self.at, self.busy) = (now, busy);
        let ready = Handle::current().metrics().global_queue_depth();
        self.load.add(now, runs, u32::try_from(ready).unwrap_or(u32::MAX));
    }
}

fn busy() -> Duration {
    let metrics = Handle::current().metrics();
    (0..metrics.num_workers()).map(|worker| metrics.worker_total_busy_duration(worker)).sum()
}
