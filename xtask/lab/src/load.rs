//! Loads. The open loop draws the times of its requests beforehand and sends them whatever became of
//! those before; a latency counts from the time a request was to be sent.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use serde_json::{Value, json};
use tidegate_core::rng::Rng;
use tidegate_sim::plain::Row;
use tokio::task::{JoinSet, LocalSet};
use tokio::time::{Instant, sleep_until, timeout_at};

use crate::client::Client;
use crate::connection::Connection;

/// An open loop.
#[derive(Debug)]
pub(crate) struct Plan {
    /// Requests per second, Poisson.
    pub(crate) rate: f64,
    /// The same while nothing is measured yet.
    pub(crate) before: f64,
    pub(crate) seconds: f64,
    /// Seconds at the start that are not measured.
    pub(crate) warmup: f64,
    /// An answer later than this is worth nothing.
    pub(crate) slo: Duration,
    pub(crate) patience: Patience,
    /// Over gRPC instead of HTTP/1.1.
    pub(crate) grpc: bool,
    /// Paths, drawn with equal chance; `/` if there is none.
    pub(crate) paths: Vec<String>,
}

/// For how long callers wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Patience {
    /// Four times as long as an answer is worth anything.
    Long,
    /// As long as it is worth anything, and the request says so, as Envoy's do.
    Told,
    /// As long, and nobody is told.
    Untold,
}

impl Plan {
    /// The load of a plain service.
    pub(crate) fn of(row: &Row, seconds: f64, warmup: f64) -> Self {
        let plain = &row.plain;
        let able = crate::plain::capacity(plain);
        Self {
            rate: plain.load * able,
            before: plain.before * able,
            seconds,
            warmup,
            slo: plain.slo.into(),
            patience: match plain.patience {
                None => Patience::Long,
                Some(_) if plain.told => Patience::Told,
                Some(_) => Patience::Untold,
            },
            paths: Vec::new(),
            grpc: false,
        }
    }
}

/// Runs the plan and compares what was answered in time with what the service behind could do.
pub(crate) async fn judged(
    to: SocketAddr,
    service: SocketAddr,
    plan: Plan,
) -> Result<Value, String> {
    let warmup = Duration::from_secs_f64(plan.warmup);
    let tally = async |wait: Duration| {
        tokio::time::sleep(wait).await;
        let mut connection = Connection::open(service).await?;
        let request = format!("GET /tally HTTP/1.1\r\nhost: {service}\r\n\r\n");
        connection.ask_for_body(request.as_bytes()).await
    };
    let seconds = plan.seconds;
    let length = warmup + Duration::from_secs_f64(seconds);
    let (mut seen, before, after) = tokio::join!(open(to, plan), tally(warmup), tally(length));
    let read = |tally: std::io::Result<Vec<u8>>| {
        let bytes = tally.map_err(|error| format!("{service}: {error}"))?;
        serde_json::from_slice::<Value>(&bytes).map_err(|error| format!("{service}: {error}"))
    };
    let (before, after) = (read(before)?, read(after)?);
    let grown =
        |name: &str| after[name].as_f64().unwrap_or(0.0) - before[name].as_f64().unwrap_or(0.0);
    // Capacity from the work that was drawn: so many of these requests could have been done.
    let could = grown("able_s") / (grown("work_s") / grown("done").max(1.0));
    seen["done"] = grown("done").into();
    seen["of_capacity"] =
        seen["goodput_rps"].as_f64().map(|goodput| goodput * seconds / could).into();
    Ok(seen)
}

/// One request and what became of it.
#[derive(Debug)]
struct Record {
    path: usize,
    /// How important among all, from 0, the most, to 1.
    place: f64,
    latency: Duration,
    /// None: no answer.
    status: Option<u16>,
}

impl Record {
    fn is_good(&self, slo: Duration) -> bool {
        self.status == Some(200) && self.latency <= slo
    }
}

/// Runs the plan and reports what was measured.
pub(crate) async fn open(to: SocketAddr, plan: Plan) -> Value {
    let paths = if plan.paths.is_empty() { vec!["/".to_owned()] } else { plan.paths.clone() };
    let records = Rc::new(RefCell::new(Vec::new()));
    let client = Rc::new(Client::new(to, plan.grpc));
    let mut rng = Rng::new(1);
    let start = Instant::now();
    let (measured, end) = (plan.warmup, plan.warmup + plan.seconds);
    let tasks = LocalSet::new();
    tasks
        .run_until(async {
            let mut running = JoinSet::new();
            let mut at = 0.0;
            loop {
                let rate = if at < measured { plan.before } else { plan.rate };
                at += -(1.0 - rng.unit()).ln() / rate;
                if at >= end {
                    break;
                }
                let due = start + Duration::from_secs_f64(at);
                sleep_until(due).await;
                let (place, path) = (rng.unit(), (rng.unit() * paths.len() as f64) as usize);
                let told = (plan.patience == Patience::Told).then_some(plan.slo);
                let (asked, fields) = (paths[path].clone(), fields(place, told));
                let (records, client) = (Rc::clone(&records), Rc::clone(&client));
                let times = if plan.patience == Patience::Long { 4 } else { 1 };
                let patience = due + times * plan.slo;
                running.spawn_local(async move {
                    let answer = timeout_at(patience, client.ask(&asked, &fields)).await;
                    let status = answer.ok().and_then(Result::ok);
                    if at >= measured {
                        let latency = Instant::now() - due;
                        records.borrow_mut().push(Record { path, place, latency, status });
                    }
                });
                while running.try_join_next().is_some() {}
            }
            while running.join_next().await.is_some() {}
        })
        .await;
    report(&plan, &paths, &records.take())
}

fn report(plan: &Plan, paths: &[String], records: &[Record]) -> Value {
    let good = |record: &&Record| record.is_good(plan.slo);
    let share = |part: Vec<&Record>| {
        part.iter().filter(|record| record.is_good(plan.slo)).count() as f64
            / part.len().max(1) as f64
    };
    let mut served: Vec<f64> = records
        .iter()
        .filter(|record| record.status == Some(200))
        .map(|record| record.latency.as_secs_f64() * 1e3)
        .collect();
    served.sort_by(f64::total_cmp);
    let percentile = |part: f64| served.get((served.len() as f64 * part) as usize).copied();
    let success: BTreeMap<&str, f64> = paths
        .iter()
        .enumerate()
        .map(|(n, path)| (&**path, share(records.iter().filter(|r| r.path == n).collect())))
        .collect();
    let refused = |record: &&Record| matches!(record.status, Some(429 | 503));
    json!({
        "offered_rps": records.len() as f64 / plan.seconds,
        "goodput_rps": records.iter().filter(good).count() as f64 / plan.seconds,
        "p50_ms": percentile(0.50),
        "p99_ms": percentile(0.99),
        "success_top_quarter": share(records.iter().filter(|r| r.place < 0.25).collect()),
        "success_by_path": success,
        "refused": records.iter().filter(refused).count(),
        "errors": records.iter().filter(|r| r.status != Some(200) && !refused(r)).count(),
    })
}

/// A gate that trusts us knows by them how important a request is, and for how long somebody waits.
fn fields(place: f64, told: Option<Duration>) -> Vec<(&'static str, String)> {
    let user = (place * 65_536.0) as u32;
    let within = told.map(|within| within.as_millis().to_string());
    let within = within.map(|within| ("x-envoy-expected-rq-timeout-ms", within));
    // Whatever is traced has a trace of its own.
    let trace = format!("00-{:032x}-{:016x}-01", place.to_bits() | 1, 1);
    [("overload-context", format!("r=(24 {user})"))]
        .into_iter()
        .chain(within)
        .chain([("traceparent", trace)])
        .collect()
}

/// Requests per second of `connections` that always have one outstanding.
pub(crate) async fn closed(to: SocketAddr, connections: usize, length: Duration) -> f64 {
    let end = Instant::now() + length;
    let asks = (0..connections).map(|_| async move {
        let request = format!("GET / HTTP/1.1\r\nhost: {to}\r\n\r\n");
        let mut served = 0_u64;
        while let Ok(mut connection) = Connection::open(to).await {
            while let Ok(Ok((status, keep))) =
                timeout_at(end, connection.ask(request.as_bytes())).await
            {
                served += u64::from(status == 200);
                if !keep {
                    break;
                }
            }
            if Instant::now() >= end {
                break;
            }
        }
        served
    });
    let tasks = LocalSet::new();
    let mut all = JoinSet::new();
    for ask in asks {
        all.spawn_local_on(ask, &tasks);
    }
    let served: u64 = tasks.run_until(all.join_all()).await.into_iter().sum();
    served as f64 / length.as_secs_f64()
}
