//! `tidegate demo`: two policies side by side under a load that the page sets.
//!
//! Each lane has a service, a sidecar and a sender of its own; the generator sends the same
//! requests to both. Once a second the page is told what became of them.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};
use tidegate_core::Rank;

use super::lane::{POLICIES, Stage};
use super::load::{Fate, Mix, OBJECTIVE, Record, Wanted};
use super::once::quantile;
use super::service::CAPACITY;

/// Time between two messages to the page.
pub(crate) const TICK: Duration = Duration::from_secs(1);
/// Rows of the heat map: parts of all requests, by importance.
const ROWS: usize = 16;
/// Ticks that percentiles and successes are taken over, so that there is enough to count.
const WINDOW: usize = 2;
/// The largest load that can be asked for, as a multiple of the capacity.
const MOST: f64 = 10.0;
/// The most that the service can be slowed down.
const SLOWEST: f64 = 5.0;

/// What the page sets.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Controls {
    pub(crate) wanted: Wanted,
    /// How many times as long as it should a request takes.
    slowness: f64,
    policies: [String; 2],
}

impl Controls {
    /// Twice the capacity, without control and with ours: one look is enough.
    fn new(load: f64) -> Self {
        let policies = ["open".to_owned(), "tide".to_owned()];
        Self { wanted: Wanted::new(load), slowness: 1.0, policies }
    }

    /// Takes one setting; what is not allowed changes nothing.
    fn set(&mut self, key: &str, value: &str) -> Result<(), String> {
        let wrong = |allowed: &str| format!("{key} = {value} is not allowed: {allowed}");
        let within = |least: f64, most: f64, words: &str| {
            let number = value.parse::<f64>().ok().filter(|n| (least..=most).contains(n));
            number.ok_or_else(|| wrong(words))
        };
        let flag = || match value {
            "on" => Ok(true),
            "off" => Ok(false),
            _ => Err(wrong("on or off")),
        };
        let policy = || {
            let known = POLICIES.contains(&value);
            if known { Ok(value.to_owned()) } else { Err(wrong(&POLICIES.join(", "))) }
        };
        match key {
            "load" => self.wanted.load = within(0.0, MOST, "0 to 10")?,
            "slow" => self.slowness = within(1.0, SLOWEST, "1 to 5")?,
            "mix" => {
                self.wanted.mix =
                    Mix::named(value).ok_or_else(|| wrong("users, bands, important or same"))?;
            }
            "tenant" => self.wanted.tenant = flag()?,
            "retries" => self.wanted.retries = flag()?,
            "a" => self.policies[0] = policy()?,
            "b" => self.policies[1] = policy()?,
            _ => return Err(wrong("load, slow, mix, tenant, retries, a, b")),
        }
        Ok(())
    }

    fn json(&self) -> Value {
        let Wanted { load, mix, tenant, retries } = self.wanted;
        json!({
            "load": load, "slow": self.slowness, "mix": mix.name(), "tenant": tenant,
            "retries": retries, "a": self.policies[0], "b": self.policies[1],
        })
    }
}

/// Everything that is on show.
#[derive(Debug)]
pub(crate) struct Show {
    stages: [Stage; 2],
    controls: Mutex<Controls>,
    windows: Mutex<[VecDeque<Vec<Record>>; 2]>,
    /// The latest message, and what makes a new one.
    told: tokio::sync::watch::Sender<Value>,
}

impl Show {
    pub(crate) fn new(load: f64) -> Result<Self, tidegate_proxy::StartError> {
        let controls = Controls::new(load);
        let [first, second] = &controls.policies;
        Ok(Self {
            stages: [Stage::start(first, false, 1)?, Stage::start(second, false, 1)?],
            controls: Mutex::new(controls),
            windows: Mutex::default(),
            told: tokio::sync::watch::Sender::new(Value::Null),
        })
    }

    pub(crate) fn lanes(&self) -> Vec<Arc<super::load::Lane>> {
        self.stages.iter().map(|stage| Arc::clone(&stage.lane)).collect()
    }

    pub(crate) fn wanted(&self) -> Wanted {
        lock(&self.controls).wanted
    }

    /// Hears every message from now on.
    pub(crate) fn hear(&self) -> tokio::sync::watch::Receiver<Value> {
        self.told.subscribe()
    }

    /// Settings as a query: all of them, or nothing. Answers with what is set now.
    pub(crate) fn set(&self, query: &str) -> Result<Value, String> {
        let mut controls = lock(&self.controls);
        let mut next = controls.clone();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            next.set(key, value)?;
        }
        for (stage, policy) in self.stages.iter().zip(&next.policies) {
            stage.slow((next.slowness * 100.0) as u32);
            if stage.policy() != *policy {
                stage.choose(policy).map_err(|error| error.to_string())?;
            }
        }
        *controls = next;
        Ok(controls.json())
    }

    /// Tells everybody who listens what happened, every second, for ever.
    pub(crate) async fn tell(&self) {
        let mut tick = tokio::time::interval(TICK);
        loop {
            tick.tick().await;
            self.told.send_replace(self.message());
        }
    }

    fn message(&self) -> Value {
        let controls = lock(&self.controls).clone();
        let mut windows = lock(&self.windows);
        let lanes = self.stages.iter().zip(windows.iter_mut()).map(|(stage, window)| {
            window.push_back(stage.lane.take());
            if window.len() > WINDOW {
                window.pop_front();
            }
            let records: Vec<Record> = window.iter().flatten().copied().collect();
            let latest = window.back().map_or(&[][..], |latest| latest);
            lane(stage, latest, &records, controls.wanted.mix)
        });
        json!({
            "unix_ms": unix_ms(),
            "capacity": CAPACITY,
            "objective_ms": OBJECTIVE.as_millis() as u64,
            "controls": controls.json(),
            "lanes": lanes.collect::<Vec<_>>(),
        })
    }
}

/// What became of a lane's requests. Rates are those of the `latest` tick; successes and
/// percentiles need more `records`.
fn lane(stage: &Stage, latest: &[Record], records: &[Record], mix: Mix) -> Value {
    let rate = |is: &dyn Fn(&Record) -> bool| {
        latest.iter().filter(|record| is(record)).count() as f64 / TICK.as_secs_f64()
    };
    let success = |is: &dyn Fn(&Record) -> bool| {
        let (mut all, mut good) = (0u32, 0u32);
        for record in records.iter().filter(|record| is(record)) {
            all += 1;
            good += u32::from(record.is_good());
        }
        (all > 0).then(|| f64::from(good) / f64::from(all))
    };
    let row = |record: &Record| record.place.map(|place| (place * ROWS as f64) as usize);
    let rows: Vec<_> = (0..ROWS).map(|n| success(&|record| row(record) == Some(n))).collect();
    let mut latencies: Vec<Duration> = records
        .iter()
        .filter(|record| record.fate != Fate::Refused)
        .map(|record| record.latency)
        .collect();
    latencies.sort_unstable();
    let ms = |part| {
        let latency = quantile(&latencies, part);
        (!latencies.is_empty()).then(|| (latency.as_secs_f64() * 1e4).round() / 10.0)
    };
    let sidecar = stage.sidecar();
    let state = sidecar.state();
    let last = state["last_rank"].as_array().and_then(|rank| {
        let part = |n: usize| rank.get(n)?.as_u64();
        Some(Rank::new(part(0)? as u8, part(1)? as u16))
    });
    json!({
        "policy": stage.policy(),
        "admin": format!("http://{}/dashboard", sidecar.admin()),
        "offered": stage.lane.sent() as f64 / TICK.as_secs_f64(),
        "goodput": rate(&|record| record.is_good()),
        "late": rate(&|record| record.fate == Fate::Served && !record.is_good()),
        "refused": rate(&|record| record.fate == Fate::Refused),
        "gave_up": rate(&|record| record.fate == Fate::GaveUp),
        "failed": rate(&|record| record.fate == Fate::Failed),
        "p50_ms": ms(0.5),
        "p95_ms": ms(0.95),
        "p99_ms": ms(0.99),
        "success_top_quarter": success(&|record| record.place.is_some_and(|place| place < 0.25)),
        "success_tenant": success(&|record| record.place.is_none()),
        "rows": rows,
        "cursor": last.map(|last| mix.place(last) * ROWS as f64),
        "state": state,
    })
}

fn unix_ms() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(0, |since| since.as_millis() as u64)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_checked() {
        let mut controls = Controls::new(2.0);
        for (key, value) in [
            ("load", "10"),
            ("slow", "2.5"),
            ("mix", "bands"),
            ("tenant", "on"),
            ("retries", "on"),
            ("a", "codel"),
            ("b", "dagor"),
        ] {
            assert_eq!(controls.set(key, value), Ok(()), "{key}");
            assert!(controls.set(key, "nonsense").is_err(), "{key}");
        }
        for (key, value) in [("load", "10.1"), ("load", "-1"), ("load", "NaN"), ("slow", "0.5")] {
            assert!(controls.set(key, value).is_err(), "{key}={value}");
        }
        assert!(controls.set("colour", "red").is_err());
        assert_eq!(controls.json()["a"], "codel");
        assert_eq!(controls.json()["load"], 10.0);
    }
}
