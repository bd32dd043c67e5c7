//! Signals of the service and of the serving threads, told to the gate about once a second.
//!
//! What a sidecar sees of its own machine says little about a service in another container, or on another host. So a
//! service that reports how busy it is ([ORCA](crate::orca), or the feedback of its own gate) is believed in the place of what the sidecar
//! sees; and a control group of the service may be named, which is then watched instead of the sidecar's own.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tidegate_core::signal::{ExecutorLoad, SignalsConfig};
use tidegate_core::{Instant, Span};
use tidegate_driver::machine::{Machine, lag};
use tokio::runtime::Handle;
use tokio::time::sleep;

use crate::server::Shared;

/// How often serving threads are asked how late and how busy they are.
const TICK: Span = Span::from_millis(100);
/// The runtime's timers are no finer, so that a millisecond is not late.
const TIMER: Duration = Duration::from_millis(1);
/// Time over which the threads' load is smoothed.
const SMOOTHING: Span = Span::from_secs(1);
/// What lag is compared with where the policy has no objective.
const USUAL_OBJECTIVE: Span = Span::from_millis(50);

/// The signal that upstreams give themselves.
const REPORTED: &str = "reported";

/// The latest sample.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sample {
    /// All signals as one, 1 being full; none if there are none.
    pub(crate) utilization: Option<f64>,
    /// Each of them.
    pub(crate) signals: Vec<(String, f64)>,
}

/// Samples for as long as the process serves.
pub(crate) async fn sample(shared: Arc<Shared>) {
    let mut config = config_of(&shared);
    let mut machine = Machine::new(&config);
    let runtimes = loop {
        sleep(TICK.into()).await;
        if let Some(runtimes) = shared.runtimes() {
            break runtimes;
        }
    };
    let mut threads = Threads::new(runtimes, shared.gate.now());
    loop {
        threads.watch(&shared, config.every).await;
        let (now, objective) = (shared.gate.now(), shared.gate.read(|gate| gate.objective()));
        let objective = objective.map_or(USUAL_OBJECTIVE, |(objective, _)| objective);
        machine.add("lag", lag(Instant::ZERO, Instant::ZERO + threads.latest(), objective));
        threads.load.utilization().into_iter().for_each(|load| machine.add("executor", load));
        let reported = shared.peers.reported(now, config.stale_after);
        machine.look(reported.is_none() || config.cgroup.is_some());
        reported.into_iter().for_each(|busy| machine.add(REPORTED, busy));
        let utilization = machine.sample(now);
        if let Some(utilization) = utilization {
            shared.gate.input(|gate, now| gate.on_utilization(now, utilization));
            shared.sideline.utilize(now, utilization);
        }
        let parts = machine.parts(now);
        let signals = parts.filter_map(|part| Some((part.name.to_owned(), part.value?))).collect();
        shared.sampled(Sample { utilization, signals });
        machine.take_warnings().iter().for_each(|warning| shared.log(warning));
        let current = config_of(&shared);
        if current != config {
            machine = Machine::new(&current);
            config = current;
        }
    }
}

/// The signals of the configuration, and what upstreams report.
fn config_of(shared: &Shared) -> SignalsConfig {
    let mut config = shared.gate.read(|gate| gate.config().signals.clone());
    config.read.push(REPORTED.to_owned());
    config
}

/// The serving threads: what runs, by their own count of busy time, what is ready, and how late both are.
struct Threads {
    runtimes: Vec<Handle>,
    load: ExecutorLoad,
    at: Instant,
    busy: Duration,
    /// The worst since the last sample, in nanoseconds.
    late: Arc<AtomicU64>,
}

impl Threads {
    fn new(runtimes: Vec<Handle>, now: Instant) -> Self {
        let late = Arc::new(AtomicU64::new(0));
        for runtime in &runtimes {
            // Ends with its runtime.
            runtime.spawn(tell_lateness(Arc::clone(&late)));
        }
        let workers = u32::try_from(runtimes.len()).unwrap_or(u32::MAX);
        let busy = busy(&runtimes);
        Self { load: ExecutorLoad::new(workers, SMOOTHING), runtimes, at: now, busy, late }
    }

    /// Looks at them for `span`.
    async fn watch(&mut self, shared: &Shared, span: Span) {
        let end = shared.gate.now() + span;
        loop {
            let nap = end.since(shared.gate.now()).min(TICK);
            if nap == Span::ZERO {
                return;
            }
            sleep(nap.into()).await;
            self.look(shared.gate.now());
        }
    }

    fn look(&mut self, now: Instant) {
        let (elapsed, busy) = (now.since(self.at), busy(&self.runtimes));
        let runs = (busy.saturating_sub(self.busy)).as_secs_f64() / elapsed.as_secs_f64().max(1e-9);
        (self.at, self.busy) = (now, busy);
        let ready = |runtime: &Handle| runtime.metrics().global_queue_depth();
        let ready: usize = self.runtimes.iter().map(ready).sum();
        self.load.add(now, runs, u32::try_from(ready).unwrap_or(u32::MAX));
    }

    fn latest(&self) -> Span {
        Span::from_nanos(self.late.swap(0, Ordering::Relaxed))
    }
}

/// Tells how late this runtime's tasks are polled.
async fn tell_lateness(late: Arc<AtomicU64>) {
    loop {
        let due = std::time::Instant::now() + Duration::from(TICK) + TIMER;
        sleep(TICK.into()).await;
        let by = std::time::Instant::now().saturating_duration_since(due);
        late.fetch_max(u64::try_from(by.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }
}

fn busy(runtimes: &[Handle]) -> Duration {
    let of = |runtime: &Handle| runtime.metrics().worker_total_busy_duration(0);
    runtimes.iter().map(of).sum()
}
