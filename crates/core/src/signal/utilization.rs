//! Several signals as one utilization, each one's part visible.
//!
//! Cpu against the container's limit, memory, executor load, pressure, in-flight requests: none is
//! right for every service ("Handling Overload", Utilization Signals). Each is reported as a
//! fraction, 1 being full, and all together become the number a gate acts upon.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::config::Problems;
use crate::time::{Instant, Span};

/// Named signals and how they combine.
#[derive(Clone, Debug)]
pub struct Signals {
    config: SignalsConfig,
    /// In the order they were registered.
    signals: Vec<Signal>,
}

#[derive(Clone, Debug)]
struct Signal {
    name: String,
    weight: f64,
    /// The latest sample and when it came; none until the first.
    latest: Option<(Instant, f64)>,
}

/// A signal registered with [`Signals`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SignalId(usize);

/// What one signal adds to the whole.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Part<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its latest sample, none if it is missing or too old to count.
    pub value: Option<f64>,
    /// Its part of the utilization: all of it for the signal that decides a maximum, its weighted
    /// share of a sum, zero for the others.
    pub part: f64,
}

impl Signals {
    /// Most signals there can be; more than that is a leak of names.
    pub const LIMIT: usize = 64;

    /// No signals yet.
    pub fn new(config: &SignalsConfig) -> Self {
        Self { config: config.clone(), signals: Vec::new() }
    }

    /// The signal of that name, a new one if there is none; none beyond [`Self::LIMIT`] names.
    pub fn register(&mut self, name: &str) -> Option<SignalId> {
        if let Some(at) = self.signals.iter().position(|signal| signal.name == name) {
            return Some(SignalId(at));
        }
        if self.signals.len() >= Self::LIMIT {
            return None;
        }
        let weight = self.config.weights.get(name).copied().unwrap_or(1.0);
        self.signals.push(Signal { name: name.to_owned(), weight, latest: None });
        Some(SignalId(self.signals.len() - 1))
    }

    /// Takes a sample, 1 being full. What is not a number, or negative, is ignored: the signal then
    /// ages until it is missing.
    pub fn add(&mut self, now: Instant, signal: SignalId, value: f64) {
        if let Some(signal) = self.signals.get_mut(signal.0)
            && value.is_finite()
            && value >= 0.0
        {
            signal.latest = Some((now, value));
        }
    }

    /// All signals as one number, none if every one is missing.
    pub fn utilization(&self, now: Instant) -> Option<f64> {
        let present = self.signals.iter().any(|signal| self.value(now, signal).is_some());
        present.then(|| self.parts(now).map(|part| part.part).sum())
    }

    /// What each signal adds, in the order they were registered.
    pub fn parts(&self, now: Instant) -> impl Iterator<Item = Part<'_>> {
        let present = || {
            let valued = |signal| self.value(now, signal).map(|value| (signal, value));
            self.signals.iter().filter_map(valued)
        };
        let weight: f64 = present().map(|(signal, _)| signal.weight).sum();
        // The first of equals decides, so that just one is shown to.
        let highest = present().fold(None, |highest: Option<(&Signal, f64)>, (signal, value)| {
            highest.filter(|(_, most)| *most >= value).or(Some((signal, value)))
        });
        self.signals.iter().map(move |signal| {
            let value = self.value(now, signal);
            let part = match (self.config.combine, value) {
                (_, None) => 0.0,
                (Combine::Maximum, Some(value)) => {
                    let decides = highest.is_some_and(|(most, _)| std::ptr::eq(most, signal));
                    if decides { value } else { 0.0 }
                }
                (Combine::Weights, Some(value)) if weight > 0.0 => value * signal.weight / weight,
                (Combine::Weights, Some(_)) => 0.0,
            };
            Part { name: &signal.name, value, part }
        })
    }

    fn value(&self, now: Instant, signal: &Signal) -> Option<f64> {
        let fresh = |(at, _): &(Instant, f64)| now.since(*at) <= self.config.stale_after;
        signal.latest.filter(fresh).map(|(_, value)| value)
    }
}

/// How several signals become one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Combine {
    /// The fullest resource decides.
    #[default]
    Maximum,
    /// The weighted mean over the signals that are there, so that a missing one neither loosens nor
    /// tightens.
    Weights,
}

/// Parameters of [`Signals`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SignalsConfig {
    /// Which of [`SignalsConfig::KNOWN`] the driver reads from the machine. Default cpu and memory,
    /// what containers are limited in. Pressure is worth reading where machines are shared; lag and
    /// executor where handlers may block their runtime.
    pub read: Vec<String>,
    /// The control group whose limits, cpu, memory and pressure are read, as `/proc/PID/cgroup` of the service names it:
    /// for a driver in a process beside the service. Default: none, and it is the driver's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cgroup: Option<String>,
    /// Time between two samples. Less follows faster and is noisier: cpu time of processes is counted
    /// in hundredths of a second. Default 1 s.
    pub every: Span,
    /// How signals combine. Default: maximum, since one exhausted resource is enough to fail.
    pub combine: Combine,
    /// Age from which on a sample counts as missing. Default 10 s, some ten samples of a usual
    /// driver.
    pub stale_after: Span,
    /// Weights by name, for `combine = "weights"`; 1 for signals not listed.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub weights: BTreeMap<String, f64>,
}

impl Default for SignalsConfig {
    fn default() -> Self {
        Self {
            read: ["cpu", "memory"].map(str::to_owned).to_vec(),
            cgroup: None,
            every: Span::from_secs(1),
            combine: Combine::Maximum,
            stale_after: Span::from_secs(10),
            weights: BTreeMap::new(),
        }
    }
}

impl SignalsConfig {
    /// What drivers know how to measure: cpu and memory of the container against its limits, cpu of the
    /// process against the same, the share of time in which something waited for a resource, how late
    /// tasks are polled, how many want to be.
    pub const KNOWN: [&str; 8] = [
        "cpu",
        "memory",
        "process",
        "pressure-cpu",
        "pressure-memory",
        "pressure-io",
        "lag",
        "executor",
    ];

    /// Notes everything that is wrong with the parameters.
    pub fn validate(&self, problems: &mut Problems) {
        for name in &self.read {
            let known = Self::KNOWN.contains(&name.as_str());
            problems.check("read", name, known, &format!("any of {}", Self::KNOWN.join(", ")));
        }
        let group = self.cgroup.as_deref().unwrap_or("/");
        let fine = group.starts_with('/') && !group.split('/').any(|part| part == "..");
        problems.check("cgroup", group, fine, "a group such as /system.slice/shop.service");
        let sane = Span::from_millis(10)..=Span::from_secs(3600);
        problems.check("every", self.every, sane.contains(&self.every), "10ms to 1h");
        let fine = self.stale_after > Span::ZERO;
        problems.check("stale_after", self.stale_after, fine, "more than 0s");
        problems.within("weights", |problems| {
            for (name, weight) in &self.weights {
                problems.range(name, *weight, 0.0, 1e6);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Instant = Instant::from_nanos(5);

    fn signals(combine: Combine) -> (Signals, [SignalId; 3]) {
        let weights = BTreeMap::from([("cpu".to_owned(), 3.0)]);
        let config = SignalsConfig { combine, weights, ..SignalsConfig::default() };
        let mut signals = Signals::new(&config);
        let ids = ["cpu", "memory", "pressure"].map(|name| signals.register(name).unwrap());
        (signals, ids)
    }

    fn parts(signals: &Signals) -> Vec<f64> {
        signals.parts(NOW).map(|part| part.part).collect()
    }

    #[test]
    fn the_fullest_decides_a_maximum() {
        let (mut signals, [cpu, memory, pressure]) = signals(Combine::Maximum);
        assert_eq!(signals.utilization(NOW), None);
        signals.add(NOW, cpu, 0.5);
        signals.add(NOW, memory, 0.8);
        signals.add(NOW, pressure, 0.8);
        assert_eq!(signals.utilization(NOW), Some(0.8));
        assert_eq!(parts(&signals), [0.0, 0.8, 0.0]);
        assert_eq!(signals.parts(NOW).next().unwrap().value, Some(0.5));
    }

    #[test]
    fn weights_are_those_of_the_signals_that_are_there() {
        let (mut signals, [cpu, memory, pressure]) = signals(Combine::Weights);
        signals.add(NOW, cpu, 0.5);
        signals.add(NOW, memory, 0.9);
        signals.add(NOW, pressure, f64::NAN);
        assert!((signals.utilization(NOW).unwrap() - 0.6).abs() < 1e-12);
        assert_eq!(parts(&signals), [0.375, 0.225, 0.0]);
    }

    #[test]
    fn old_samples_are_missing() {
        let (mut signals, [cpu, memory, _]) = signals(Combine::Maximum);
        signals.add(NOW, cpu, 0.9);
        signals.add(NOW + Span::from_secs(5), memory, 0.1);
        assert_eq!(signals.utilization(NOW + Span::from_secs(10)), Some(0.9));
        assert_eq!(signals.utilization(NOW + Span::from_secs(11)), Some(0.1));
        assert_eq!(signals.utilization(NOW + Span::from_secs(16)), None);
    }

    #[test]
    fn names_are_registered_once_and_bounded() {
        let (mut signals, [cpu, ..]) = signals(Combine::Maximum);
        assert_eq!(signals.register("cpu"), Some(cpu));
        for n in 0..Signals::LIMIT {
            signals.register(&n.to_string());
        }
        assert_eq!(signals.register("one too many"), None);
    }
}
