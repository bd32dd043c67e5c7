//! The plain services of `tidegate figure plain` on real sockets: the same rows, workers that sleep for what the
//! simulator would have them work, and a queue of their own that nobody sees.
//!
//! What was abandoned is worked on, unless the row says that the service notices. A service tells at `/tally` what it has done.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tidegate_core::Span;
use tidegate_core::rng::Rng;
use tidegate_sim::dist::{Dist, Service};
use tidegate_sim::plain::{Forecast, Plain, Row, possible, rows, run};
use tokio::sync::oneshot;

use crate::service;

/// How often a service that notices looks whether its client is there.
const LOOK: Duration = Duration::from_millis(1);

/// The row of this name.
pub(crate) fn row(name: &str) -> Result<Row, String> {
    let known = || rows().iter().map(|row| row.name).collect::<Vec<_>>().join("; ");
    let found = rows().into_iter().find(|row| row.name == name);
    found.ok_or_else(|| format!("there is no row {name}; there are {}", known()))
}

/// One worker with exponential times of this mean, which goes on with what was abandoned.
pub(crate) fn one_worker(mean: Span) -> Plain {
    let usual = rows().swap_remove(0).plain;
    Plain { service: Service { dist: Dist::Exponential, mean }, workers: 1, ..usual }
}

/// Requests per second that it can do.
pub(crate) fn capacity(plain: &Plain) -> f64 {
    f64::from(plain.workers) / plain.service.mean.as_secs_f64()
}

/// All rows of one service, for whoever starts the processes; several in a row are `peers tiers`.
pub(crate) fn list() -> Value {
    let row = |row: &Row| {
        let Plain { workers, service, slo, load, before, .. } = &row.plain;
        json!({
            "name": row.name,
            "workers": workers,
            "mean_ms": service.mean.as_secs_f64() * 1e3,
            "slo_ms": slo.as_secs_f64() * 1e3,
            "rate": load.max(*before) * capacity(&row.plain),
            "learned": row.learned,
        })
    };
    rows().iter().filter(|row| row.plain.around.is_none()).map(row).collect()
}

/// What the simulator says of a row: what is possible, and what the sidecar's defaults have.
pub(crate) fn expect(row: &Row) -> Value {
    let seen = run(&row.plain, &row.defaults(), 1);
    json!({ "possible": possible(&row.plain, 1), "good": seen.good, "p99": seen.p99 })
}

/// Its workers, what they have to do and what they have done.
#[derive(Debug)]
pub(crate) struct Workers {
    plain: Plain,
    state: Mutex<State>,
    more: Condvar,
}

#[derive(Debug)]
struct State {
    waiting: VecDeque<oneshot::Sender<()>>,
    works: Rng,
    weather: Forecast,
    since: Instant,
    done: u64,
    work: Duration,
}

impl State {
    /// The moment, as the forecast counts.
    fn now(&self) -> tidegate_core::Instant {
        tidegate_core::Instant::ZERO + Span::from_nanos(self.since.elapsed().as_nanos() as u64)
    }
}

impl Workers {
    pub(crate) fn start(plain: Plain) -> Arc<Self> {
        let state = State {
            waiting: VecDeque::new(),
            works: Rng::new(1),
            weather: plain.weather.forecast(Rng::new(2)),
            since: Instant::now(),
            done: 0,
            work: Duration::ZERO,
        };
        let all = Arc::new(Self { plain, state: Mutex::new(state), more: Condvar::new() });
        for _ in 0..all.plain.workers {
            let all = Arc::clone(&all);
            std::thread::spawn(move || all.work());
        }
        all
    }

    /// Works for whoever asked first. What was to be done is done when it should have been: a sleep that lasts longer is made up for
    /// by the next.
    fn work(&self) {
        let mut free = tidegate_core::Instant::ZERO;
        let mut state = self.state.lock().expect("nobody panics");
        loop {
            let Some(turn) = state.waiting.pop_front() else {
                state = self.more.wait(state).expect("nobody panics");
                continue;
            };
            if !self.plain.goes_on && turn.is_closed() {
                continue;
            }
            let work = self.plain.service.sample(&mut state.works, 1.0);
            let begin = free.max(state.now());
            free = state.weather.ends(begin, work);
            state.done += 1;
            state.work += Duration::from_nanos(work.as_nanos());
            let until = state.since + Duration::from_nanos(free.as_nanos());
            drop(state);
            let ended = self.wait(until, &turn);
            let _ = turn.send(());
            state = self.state.lock().expect("nobody panics");
            if ended {
                free = state.now();
            }
        }
    }

    /// Whether its client has left before the end, where that ends the work.
    fn wait(&self, until: Instant, turn: &oneshot::Sender<()>) -> bool {
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() || !self.plain.goes_on && turn.is_closed() {
                return !left.is_zero();
            }
            std::thread::sleep(if self.plain.goes_on { left } else { left.min(LOOK) });
        }
    }

    /// Waits until it is done.
    pub(crate) async fn done(&self) {
        let (sender, done) = oneshot::channel();
        self.state.lock().expect("nobody panics").waiting.push_back(sender);
        self.more.notify_one();
        let _ = done.await;
    }

    /// What was done so far, and for how long the workers could work.
    pub(crate) fn tally(&self) -> Value {
        let mut state = self.state.lock().expect("nobody panics");
        let now = state.now();
        let able = state.weather.worked(tidegate_core::Instant::ZERO, now) / 1e9;
        json!({
            "done": state.done,
            "work_s": state.work.as_secs_f64(),
            "able_s": able * f64::from(self.plain.workers),
        })
    }
}

/// Serves for ever.
pub(crate) async fn serve(at: SocketAddr, name: &str) -> Result<(), String> {
    service::serve(at, service::Work::Plain(Workers::start(row(name)?.plain))).await
}
