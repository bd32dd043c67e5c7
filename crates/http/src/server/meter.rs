//! [`Meter`]: what requests cost, in CPU time.
//!
//! A clock of CPU time costs ten times as much to read as one of time (244 ns and 23 ns where this was
//! planned), and neither sees what is spent on a request outside of its handler: in the kernel, in
//! parsers, in the runtime. So:
//!
//! 1. The time inside every poll of every handler is measured.
//! 2. For one request in [`ONE_IN`] the thread's CPU clock is read as well. How much of the time in
//!    polls was CPU in those, smoothed, turns the time of the others into CPU: a thread that was
//!    preempted, or that blocks, does not count as work.
//! 3. Every second the sum is compared with what the process has used. The ratio of the two scales
//!    every cost from then on, so that what is spent outside of handlers is borne by all in
//!    proportion, and the sum of all costs is the CPU time of the process.
//!
//! There is one meter per process, as there is one CPU time of it.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex};

use tidegate_core::{Cost, Instant, Span};
use tidegate_driver::{Clock, Monotonic};

/// One request in so many is measured by the thread's clock.
const ONE_IN: u64 = 64;
/// A request that takes as long looks whether a comparison is due; of others only those that are sampled do.
const LONG: Span = Span::from_micros(100);
/// Time between two comparisons with the process's clock.
const EVERY: Span = Span::from_secs(1);
/// Weight of the latest second in the scale. A change of load is followed within three.
const GAIN: f64 = 0.5;
/// What is left of the samples of a second after another one: the ratio rests on some five seconds,
/// since in one there may be few.
const FADES: f64 = 0.8;
/// Less CPU than this in a second, in polls or in all, is not compared: too little to know.
const LEAST: Span = Span::from_millis(1);
/// Bounds of the scale. Handlers that do next to nothing take a tenth of what their requests cost; a
/// process that works on something else all the time must not bill its few requests for it.
const SCALE: (f64, f64) = (0.1, 32.0);

/// Clocks of CPU time.
pub trait CpuClocks: std::fmt::Debug + Send + Sync {
    /// CPU time of this thread.
    fn thread(&self) -> Span;
    /// CPU time of this process.
    fn process(&self) -> Span;
    /// The time.
    fn now(&self) -> Instant;
}

/// Those of the operating system.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClocks;

#[cfg(unix)]
impl CpuClocks for SystemClocks {
    fn thread(&self) -> Span {
        read(rustix::time::ClockId::ThreadCPUTime)
    }

    fn process(&self) -> Span {
        read(rustix::time::ClockId::ProcessCPUTime)
    }

    fn now(&self) -> Instant {
        Monotonic::process().now()
    }
}

#[cfg(unix)]
fn read(clock: rustix::time::ClockId) -> Span {
    let time = rustix::time::clock_gettime(clock);
    let seconds = Span::from_secs(u64::try_from(time.tv_sec).unwrap_or(0));
    seconds + Span::from_nanos(u64::try_from(time.tv_nsec).unwrap_or(0))
}

/// Where there is no such clock, time in polls is taken for CPU time.
#[cfg(not(unix))]
impl CpuClocks for SystemClocks {
    fn thread(&self) -> Span {
        Span::ZERO
    }

    fn process(&self) -> Span {
        Span::ZERO
    }

    fn now(&self) -> Instant {
        Monotonic::process().now()
    }
}

thread_local! {
    /// Requests begun on this thread.
    static BEGUN: Cell<u64> = const { Cell::new(0) };
}

/// Turns time in polls into CPU time.
#[derive(Debug)]
pub struct Meter {
    clocks: Box<dyn CpuClocks>,
    /// Time and CPU time in polls of requests that were sampled, since the last comparison.
    sampled: (AtomicU64, AtomicU64),
    /// Time in polls of all others since then.
    unsampled: AtomicU64,
    /// CPU per time in polls, and CPU of the process per CPU in polls: bits of `f64`.
    ratio: AtomicU64,
    scale: AtomicU64,
    last: Mutex<Comparison>,
}

#[derive(Debug)]
struct Comparison {
    at: Instant,
    process: Span,
    /// Time and CPU time of samples so far, in nanoseconds, the older the less.
    samples: (f64, f64),
    /// Whether a scale was ever measured; the first counts in full.
    known: bool,
}

impl Meter {
    /// A meter with clocks of one's own.
    pub fn new(clocks: impl CpuClocks + 'static) -> Self {
        let last = Comparison {
            at: clocks.now(),
            process: clocks.process(),
            samples: (0.0, 0.0),
            known: false,
        };
        let one = || AtomicU64::new(1f64.to_bits());
        Self {
            clocks: Box::new(clocks),
            sampled: Default::default(),
            unsampled: AtomicU64::new(0),
            ratio: one(),
            scale: one(),
            last: Mutex::new(last),
        }
    }

    /// The meter of this process.
    pub fn process() -> Arc<Self> {
        static PROCESS: LazyLock<Arc<Meter>> = LazyLock::new(|| Arc::new(Meter::new(SystemClocks)));
        Arc::clone(&PROCESS)
    }

    /// A request begins.
    pub fn begin(&self) -> Metered {
        let number = BEGUN.replace(BEGUN.get().wrapping_add(1));
        let cpu = number.is_multiple_of(ONE_IN).then_some(Span::ZERO);
        Metered { cpu, ..Metered::NOTHING }
    }

    /// Runs a part of the request's work: one poll.
    pub fn measure<T>(&self, metered: &mut Metered, work: impl FnOnce() -> T) -> T {
        let begun = self.begin_poll(self.clocks.now(), metered);
        let result = work();
        self.end_poll(begun, self.clocks.now(), metered);
        result
    }

    /// A poll of a request begins at `now`, by whichever clock its reader needs for other reasons too.
    pub fn begin_poll(&self, now: Instant, metered: &Metered) -> BegunPoll {
        BegunPoll { at: now, cpu: metered.cpu.map(|_| self.clocks.thread()) }
    }

    /// It ends at `now`, by the same clock and on the same thread.
    pub fn end_poll(&self, begun: BegunPoll, now: Instant, metered: &mut Metered) {
        metered.ended = now;
        metered.time += now.since(begun.at);
        if let (Some(before), Some(sum)) = (begun.cpu, &mut metered.cpu) {
            *sum += self.clocks.thread().saturating_sub(before);
        }
    }

    /// What the request has cost. Ask once, when it has ended.
    pub fn settle(&self, metered: &Metered) -> Cost {
        let cpu = match metered.cpu {
            Some(cpu) => {
                self.sampled.0.fetch_add(metered.time.as_nanos(), Ordering::Relaxed);
                self.sampled.1.fetch_add(cpu.as_nanos(), Ordering::Relaxed);
                cpu
            }
            None => {
                self.unsampled.fetch_add(metered.time.as_nanos(), Ordering::Relaxed);
                metered.time.scale(load(&self.ratio))
            }
        };
        if metered.cpu.is_some() || metered.time >= LONG {
            self.compare();
        }
        Cost::from(cpu.scale(load(&self.scale)).max(Span::from_nanos(1)))
    }

    /// CPU per time in polls, and CPU of the process per CPU in polls.
    pub fn calibration(&self) -> (f64, f64) {
        (load(&self.ratio), load(&self.scale))
    }

    /// Compares with the process's clock, if it is time and nobody else does.
    fn compare(&self) {
        let (now, Ok(mut last)) = (self.clocks.now(), self.last.try_lock()) else { return };
        if now.since(last.at) < EVERY {
            return;
        }
        let process = self.clocks.process();
        let used = process.saturating_sub(last.process);
        (last.at, last.process) = (now, process);
        let take = |sum: &AtomicU64| sum.swap(0, Ordering::Relaxed) as f64;
        let (time, cpu, others) =
            (take(&self.sampled.0), take(&self.sampled.1), take(&self.unsampled));
        let (times, cpus) = last.samples;
        last.samples = (times * FADES + time, cpus * FADES + cpu);
        let ratio = match last.samples {
            (times, cpus) if times > 0.0 && cpus > 0.0 => (cpus / times).min(1.0),
            _ => load(&self.ratio),
        };
        // By the ratio that will be used, so that an error of it does not show in the sum.
        let spent = cpu + others * ratio;
        let least = LEAST.as_nanos() as f64;
        if used >= LEAST && spent >= least {
            let scale = (used.as_nanos() as f64 / spent).clamp(SCALE.0, SCALE.1);
            let before = load(&self.scale) * load(&self.ratio) / ratio;
            let gain = if std::mem::replace(&mut last.known, true) { GAIN } else { 1.0 };
            store(&self.scale, (before + gain * (scale - before)).clamp(SCALE.0, SCALE.1));
        }
        store(&self.ratio, ratio);
    }
}

/// When a poll has begun, and at which CPU time of its thread if that is sampled.
#[derive(Clone, Copy, Debug)]
pub struct BegunPoll {
    at: Instant,
    cpu: Option<Span>,
}

/// What was measured of one request.
#[derive(Clone, Copy, Debug)]
pub struct Metered {
    time: Span,
    /// Of requests that are sampled.
    cpu: Option<Span>,
    /// When its last poll ended.
    ended: Instant,
}

impl Metered {
    /// Of a request that does no work.
    pub const NOTHING: Self = Self { time: Span::ZERO, cpu: None, ended: Instant::ZERO };

    /// What its polls have taken so far.
    pub fn time(&self) -> Span {
        self.time
    }

    /// When the last of them ended.
    pub fn ended(&self) -> Instant {
        self.ended
    }
}

fn load(bits: &AtomicU64) -> f64 {
    f64::from_bits(bits.load(Ordering::Relaxed))
}

fn store(bits: &AtomicU64, value: f64) {
    bits.store(value.to_bits(), Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    /// A machine in which work takes what a test says.
    #[derive(Clone, Debug)]
    struct Fake(Arc<Mutex<(Instant, Span, Span)>>);

    impl Fake {
        fn new() -> Self {
            Self(Arc::new(Mutex::new((Instant::ZERO, Span::ZERO, Span::ZERO))))
        }

        /// Lets time pass, some of it in this thread, some of it elsewhere in the process.
        fn pass(&self, micros: u64, thread: u64, elsewhere: u64) {
            let mut clocks = self.0.lock().unwrap();
            clocks.0 += Span::from_micros(micros);
            clocks.1 += Span::from_micros(thread);
            clocks.2 += Span::from_micros(thread + elsewhere);
        }
    }

    impl CpuClocks for Fake {
        fn thread(&self) -> Span {
            self.0.lock().unwrap().1
        }

        fn process(&self) -> Span {
            self.0.lock().unwrap().2
        }

        fn now(&self) -> Instant {
            self.0.lock().unwrap().0
        }
    }

    /// Requests whose handlers take `micros`, of which `cpu`, and `around` outside of polls.
    fn run(meter: &Meter, fake: &Fake, seconds: u64, kinds: &[(u64, u64, u64)]) -> f64 {
        let (mut costs, before) = (0, fake.process());
        let end = fake.now() + Span::from_secs(seconds);
        // A fixed disorder, so that no kind falls together with the sampled ones.
        let mut draw = 1u64;
        while fake.now() < end {
            draw = draw.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let (micros, cpu, around) = kinds[(draw >> 33) as usize % kinds.len()];
            let mut metered = meter.begin();
            meter.measure(&mut metered, || fake.pass(micros / 2, cpu / 2, 0));
            fake.pass(around, 0, around);
            meter.measure(&mut metered, || fake.pass(micros - micros / 2, cpu - cpu / 2, 0));
            costs += meter.settle(&metered).0;
        }
        costs as f64 / fake.process().saturating_sub(before).as_nanos() as f64
    }

    /// The sum of all costs is the CPU time of the process, within 5 %, under a mix of handlers that
    /// compute, block and do next to nothing, and again when the mix has changed.
    #[test]
    fn after_calibration_the_costs_sum_to_what_the_process_used() {
        let fake = Fake::new();
        let meter = Meter::new(fake.clone());
        let mixed = [(2_000, 2_000, 20), (200, 180, 20), (10, 10, 20), (1_000, 20, 20)];
        run(&meter, &fake, 4, &mixed);
        let sum = run(&meter, &fake, 20, &mixed);
        assert!((0.95..1.05).contains(&sum), "{sum} {:?}", meter.calibration());
        let other = [(50, 50, 100), (1_000, 500, 20)];
        run(&meter, &fake, 6, &other);
        let sum = run(&meter, &fake, 20, &other);
        assert!((0.95..1.05).contains(&sum), "{sum} {:?}", meter.calibration());
    }

    #[test]
    fn a_process_busy_with_something_else_does_not_bill_its_requests_without_bound() {
        let fake = Fake::new();
        let meter = Meter::new(fake.clone());
        for _ in 0..100 {
            let mut metered = meter.begin();
            meter.measure(&mut metered, || fake.pass(1_000, 1_000, 0));
            fake.pass(99_000, 0, 99_000);
            meter.settle(&metered);
        }
        assert_eq!(meter.calibration(), (1.0, SCALE.1));
    }

    #[test]
    fn one_request_in_sixty_four_is_sampled() {
        let meter = Meter::new(Fake::new());
        let sampled = (0..640).filter(|_| meter.begin().cpu.is_some()).count();
        assert_eq!(sampled, 10);
    }
}
