//! Overloaded or not, answered once per window: the detector that `dagor` and `random` share.
//!
//! DAGOR §4.1 judges load by the mean *queueing time*, from a request's arrival to the start of its
//! processing, over a window of one second or 2,000 requests, whichever ends first. The response
//! time would also count the time spent in services further down, and a cpu threshold would be
//! crossed long before requests wait.
//!
//! Deviations:
//! - The mean needs requests that *started*, and a stalled server starts none. So the oldest
//!   request that still waits counts as one more sample, of its age so far.
//! - A window in which nothing arrived concludes nothing: there is no traffic to judge.
//! - A third signal is that of Breakwater's re-implementation (its code): the age of the oldest
//!   request, sampled every 10 µs and smoothed.

use serde::{Deserialize, Serialize};

use crate::config::Problems;
use crate::request::Request;
use crate::signal::{Backlog, DelaySignal};
use crate::time::{Instant, Span};
use crate::verdict::Outcome;

/// Samples of a load signal over the present window.
#[derive(Clone, Debug)]
pub(super) struct Detector {
    config: DetectorConfig,
    /// Start of the present window.
    since: Instant,
    /// Requests that arrived in it.
    arrivals: u32,
    /// Sum and number of its samples.
    sum: Span,
    samples: u32,
    /// The smoothed delay of [`LoadSignal::Sampled`], nanoseconds, and when it is sampled next.
    smoothed: f64,
    next_sample: Instant,
}

/// What a window showed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reading {
    pub(super) overloaded: bool,
    /// The load it was judged by.
    pub(super) load: Span,
}

impl Detector {
    /// Time between two samples of [`LoadSignal::Sampled`] (Breakwater's code).
    const SAMPLE_EVERY: Span = Span::from_micros(10);
    /// Weight of a new sample among them.
    const SAMPLE_GAIN: f64 = 0.2;
    /// Samples that still matter: what is older has a weight below 0.8⁶⁴ = 6·10⁻⁷, so any number
    /// of missed samples takes bounded time.
    const SAMPLE_MEMORY: u64 = 64;

    pub(super) fn new(config: &DetectorConfig, now: Instant) -> Self {
        Self {
            config: *config,
            since: now,
            arrivals: 0,
            sum: Span::ZERO,
            samples: 0,
            smoothed: 0.0,
            next_sample: now + Self::SAMPLE_EVERY,
        }
    }

    pub(super) fn reconfigure(&mut self, config: &DetectorConfig) {
        self.config = *config;
        // A window that would be full already ends with the next arrival.
        self.arrivals = self.arrivals.min(config.requests.saturating_sub(1));
    }

    pub(super) fn config(&self) -> &DetectorConfig {
        &self.config
    }

    pub(super) fn on_arrival(&mut self) {
        self.arrivals = self.arrivals.saturating_add(1);
    }

    pub(super) fn on_start(&mut self, now: Instant, request: &Request) {
        if self.config.signal == LoadSignal::Queueing {
            self.add(now.since(request.arrived));
        }
    }

    pub(super) fn on_finish(&mut self, now: Instant, request: &Request, outcome: Outcome) {
        if self.config.signal == LoadSignal::Response && outcome != Outcome::Cancel {
            self.add(now.since(request.arrived));
        }
    }

    /// What the window showed that has ended by `now`, as of the moment it ended; none if it has
    /// not or if nothing arrived in it.
    pub(super) fn conclude(&mut self, now: Instant, backlog: &Backlog) -> Option<Reading> {
        let due = self.since + self.config.window;
        let full = self.arrivals >= self.config.requests;
        if !full && now < due {
            self.sample(now, backlog);
            return None;
        }
        let end = due.min(now);
        self.sample(end, backlog);
        let reading = (self.arrivals > 0).then(|| self.read(end, backlog));
        // Empty windows in between concluded nothing and are passed over at once.
        let window = self.config.window.as_nanos().max(1);
        let missed = now.since(end).as_nanos() / window;
        self.since = end + Span::from_nanos(missed * window);
        (self.arrivals, self.sum, self.samples) = (0, Span::ZERO, 0);
        self.sample(now, backlog);
        reading
    }

    /// When the present window ends, none while there is nothing to judge.
    pub(super) fn next_wakeup(&self) -> Option<Instant> {
        (self.arrivals > 0).then(|| self.since + self.config.window)
    }

    pub(super) fn invariants(&self) {
        assert!(self.arrivals < self.config.requests.max(1), "a full window has not ended");
        assert!(self.smoothed.is_finite() && self.smoothed >= 0.0);
    }

    fn add(&mut self, sample: Span) {
        self.sum += sample;
        self.samples = self.samples.saturating_add(1);
    }

    fn read(&self, end: Instant, backlog: &Backlog) -> Reading {
        let threshold = self.config.threshold;
        if self.config.signal == LoadSignal::Sampled {
            let load = Span::from_nanos(self.smoothed as u64);
            return Reading { overloaded: load >= threshold, load };
        }
        let (mut sum, mut samples) = (self.sum, u64::from(self.samples));
        if backlog.waiting() > 0 {
            sum += backlog.delay(end, DelaySignal::Oldest);
            samples += 1;
        }
        let load = Span::from_nanos(sum.as_nanos() / samples.max(1));
        Reading { overloaded: load > threshold, load }
    }

    /// Takes the delay samples that were due up to `until`. Nothing has happened since the last
    /// call, so the age at each of those moments is known now.
    fn sample(&mut self, until: Instant, backlog: &Backlog) {
        if self.config.signal != LoadSignal::Sampled || until < self.next_sample {
            return;
        }
        let every = Self::SAMPLE_EVERY.as_nanos();
        let due = until.since(self.next_sample).as_nanos() / every + 1;
        for n in due.saturating_sub(Self::SAMPLE_MEMORY)..due {
            let at = self.next_sample + Span::from_nanos(n.saturating_mul(every));
            let delay = backlog.delay(at, DelaySignal::Oldest).as_nanos_f64();
            self.smoothed += Self::SAMPLE_GAIN * (delay - self.smoothed);
        }
        self.next_sample += Span::from_nanos(due.saturating_mul(every));
    }
}

/// Which load a window is judged by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LoadSignal {
    /// Mean time from arrival to start (DAGOR §4.1).
    #[default]
    Queueing,
    /// Mean time from arrival to end: the variant of DAGOR §5.2, there with a threshold of 250 ms.
    /// It also rises when a service further down is slow.
    Response,
    /// Smoothed age of the oldest waiting request, as in Breakwater's re-implementation.
    Sampled,
}

/// Parameters of the overload detector.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DetectorConfig {
    /// Which load is measured. Default: queueing time.
    pub signal: LoadSignal,
    /// Longest window. Shorter reacts sooner to fewer samples. Default 1 s (DAGOR §4.1);
    /// Breakwater's re-implementation has 1 ms.
    pub window: Span,
    /// Requests after which a window ends early. Fewer reacts sooner under load. Default 2,000
    /// (DAGOR §4.1).
    pub requests: u32,
    /// Load above which a window counts as overloaded. More lets requests wait longer before
    /// anything is shed. Default 20 ms (DAGOR §4.1, for tasks that time out after 500 ms).
    pub threshold: Span,
}

impl Default for DetectorConfig {
    fn default() -> Self {
        Self {
            signal: LoadSignal::Queueing,
            window: Span::from_secs(1),
            requests: 2_000,
            threshold: Span::from_millis(20),
        }
    }
}

impl DetectorConfig {
    /// Notes everything that is wrong with the parameters.
    pub fn validate(&self, problems: &mut Problems) {
        let Self { window, requests, threshold, .. } = *self;
        let hour = Span::from_secs(3600);
        let fine = (Span::from_micros(1)..=hour).contains(&window);
        problems.check("window", window, fine, "1us to 1h");
        problems.check("requests", requests, (1..=1 << 24).contains(&requests), "1 to 16777216");
        let fine = (Span::from_nanos(1)..=hour).contains(&threshold);
        problems.check("threshold", threshold, fine, "1ns to 1h");
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{at, request};
    use super::*;
    use crate::meter::Weight;

    const CALM: Option<Reading> = Some(Reading { overloaded: false, load: Span::ZERO });

    fn detector(signal: LoadSignal) -> Detector {
        Detector::new(&DetectorConfig { signal, ..DetectorConfig::default() }, Instant::ZERO)
    }

    /// One request that has waited since `arrived`.
    fn one_waits(arrived: Instant) -> Backlog {
        let mut backlog = Backlog::new(true);
        backlog.on_enqueue(arrived, 0, arrived, Weight::ONE);
        backlog
    }

    #[test]
    fn a_window_ends_after_its_time_or_its_requests() {
        let (mut detector, empty) = (detector(LoadSignal::Queueing), Backlog::new(true));
        detector.on_arrival();
        assert_eq!(detector.next_wakeup(), Some(at(1_000_000)));
        assert_eq!(detector.conclude(at(999_999), &empty), None);
        assert_eq!(detector.conclude(at(1_000_000), &empty), CALM);
        for _ in 0..2_000 {
            assert_eq!(detector.conclude(at(1_500_000), &empty), None);
            detector.on_arrival();
        }
        assert_eq!(detector.conclude(at(1_500_000), &empty), CALM);
        detector.on_arrival();
        assert_eq!(detector.next_wakeup(), Some(at(2_500_000)));
    }

    #[test]
    fn windows_without_arrivals_conclude_nothing_and_cost_nothing() {
        let (mut detector, empty) = (detector(LoadSignal::Queueing), Backlog::new(true));
        assert_eq!(detector.conclude(at(1_000_000_700_000), &empty), None);
        assert_eq!(detector.next_wakeup(), None);
        detector.on_arrival();
        assert_eq!(detector.next_wakeup(), Some(at(1_000_001_000_000)));
    }

    #[test]
    fn the_mean_of_queueing_times_is_compared_with_the_threshold() {
        let (mut detector, empty) = (detector(LoadSignal::Queueing), Backlog::new(true));
        for (waited, overloaded) in [(39_000, false), (41_000, false), (61_000, true)] {
            let start = detector.since + Span::from_micros(100_000);
            for wait in [0, waited, 0].into_iter().take(2 + usize::from(waited == 41_000)) {
                let request = request(start - Span::from_micros(wait));
                detector.on_arrival();
                detector.on_start(start, &request);
            }
            let reading = detector.conclude(start + Span::from_secs(1), &empty).unwrap();
            assert_eq!(reading.overloaded, overloaded, "{waited} {reading:?}");
        }
    }

    /// A server that starts nothing is seen by the age of what waits.
    #[test]
    fn a_stall_is_an_overload() {
        for signal in [LoadSignal::Queueing, LoadSignal::Response, LoadSignal::Sampled] {
            let mut detector = detector(signal);
            let backlog = one_waits(at(900_000));
            detector.on_arrival();
            assert!(detector.conclude(at(1_000_000), &backlog).unwrap().overloaded, "{signal:?}");
        }
    }

    #[test]
    fn response_times_count_to_the_end_and_cancels_say_nothing() {
        let (mut detector, empty) = (detector(LoadSignal::Response), Backlog::new(true));
        detector.on_arrival();
        let request = request(at(0));
        detector.on_start(at(30_000), &request);
        detector.on_finish(at(500_000), &request, Outcome::Cancel);
        detector.on_finish(at(10_000), &request, Outcome::Serve);
        let reading = detector.conclude(at(1_000_000), &empty).unwrap();
        assert_eq!(reading, Reading { overloaded: false, load: Span::from_millis(10) });
    }

    /// Breakwater's code: 0.8 old + 0.2 new every 10 µs; here ages 10, 20, 30 µs.
    #[test]
    fn sampled_delay_is_smoothed() {
        let mut detector = detector(LoadSignal::Sampled);
        detector.conclude(at(30), &one_waits(at(0)));
        let expected = ((0.2 * 10.0) * 0.8 + 0.2 * 20.0) * 0.8 + 0.2 * 30.0;
        assert!((detector.smoothed / 1e3 - expected).abs() < 1e-9, "{}", detector.smoothed);
        detector.conclude(at(500_000), &Backlog::new(true));
        assert!(detector.smoothed < 1.0, "gone after 64 samples");
    }
}
