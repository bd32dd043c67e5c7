//! Loads. The open loop draws the times of its requests beforehand and sends them whatever became of
//! those before; a latency counts from the time a request was to be sent.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use serde_json::{Value, json};
use tidegate_core::rng::Rng;
use tokio::task::{JoinSet, LocalSet};
use tokio::time::{Instant, sleep_until, timeout_at};

use crate::connection::Connection;

/// An open loop.
#[derive(Debug)]
pub(crate) struct Plan {
    /// Requests per second, Poisson.
    pub(crate) rate: f64,
    pub(crate) seconds: f64,
    /// Seconds at the start that are not measured.
    pub(crate) warmup: f64,
    /// An answer later than this is worth nothing; whoever asked waits four times as long.
    pub(crate) slo: Duration,
    /// Paths, drawn with equal chance; `/` if there is none.
    pub(crate) paths: Vec<String>,
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
    let idle = Rc::new(RefCell::new(Vec::<Connection>::new()));
    let mut rng = Rng::new(1);
    let start = Instant::now();
    let (measured, end) = (plan.warmup, plan.warmup + plan.seconds);
    let tasks = LocalSet::new();
    tasks
        .run_until(async {
            let mut running = JoinSet::new();
            let mut at = 0.0;
            loop {
                at += -(1.0 - rng.unit()).ln() / plan.rate;
                if at >= end {
                    break;
                }
                let due = start + Duration::from_secs_f64(at);
                sleep_until(due).await;
                let (place, path) = (rng.unit(), (rng.unit() * paths.len() as f64) as usize);
                let request = request(to, &paths[path], place);
                let (records, idle) = (Rc::clone(&records), Rc::clone(&idle));
                let patience = due + 4 * plan.slo;
                running.spawn_local(async move {
                    let answer = timeout_at(patience, exchange(to, &idle, &request)).await;
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

/// A request of which a gate that trusts us knows how important it is.
fn request(to: SocketAddr, path: &str, place: f64) -> Vec<u8> {
    let user = (place * 65_536.0) as u32;
    format!("GET {path} HTTP/1.1\r\nhost: {to}\r\noverload-context: r=(24 {user})\r\n\r\n")
        .into_bytes()
}

async fn exchange(
    to: SocketAddr,
    idle: &RefCell<Vec<Connection>>,
    request: &[u8],
) -> std::io::Result<u16> {
    // A kept connection may have been closed in the meantime; then a new one is opened, once.
    let kept = idle.borrow_mut().pop();
    if let Some(mut connection) = kept
        && let Ok((status, keep)) = connection.ask(request).await
    {
        if keep {
            idle.borrow_mut().push(connection);
        }
        return Ok(status);
    }
    let mut connection = Connection::open(to).await?;
    let (status, keep) = connection.ask(request).await?;
    if keep {
        idle.borrow_mut().push(connection);
    }
    Ok(status)
}

/// Requests per second of `connections` that always have one outstanding.
pub(crate) async fn closed(to: SocketAddr, connections: usize, length: Duration) -> f64 {
    let end = Instant::now() + length;
    let asks = (0..connections).map(|_| async move {
        let request = request(to, "/", 0.0);
        let mut served = 0_u64;
        while let Ok(mut connection) = Connection::open(to).await {
            while let Ok(Ok((status, keep))) = timeout_at(end, connection.ask(&request)).await {
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
