//! Publishers that send as Poisson's do, and one subscriber that says how long messages took.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant as Clock};

use serde_json::{Value, json};
use tidegate_core::Instant;
use tidegate_core::limit::{Bucket, Limit};
use tidegate_core::rng::Rng;
use tidegate_sim::broker::exact;

/// What is sent, and what is agreed.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) publishers: usize,
    /// Messages per second of all of them together.
    pub(crate) arrivals: f64,
    pub(crate) seconds: f64,
    /// Seconds at the start that are not measured.
    pub(crate) warmup: f64,
    /// The agreement: tokens per second, tokens at once, and into how many parts it is split.
    pub(crate) rate: f64,
    pub(crate) burst: u64,
    pub(crate) parts: u64,
}

/// Runs the plan and reports what was measured, beside what theory says.
pub(crate) fn poisson(to: SocketAddr, plan: &Plan) -> Result<Value, String> {
    let failed = |error: std::io::Error| format!("{to}: {error}");
    let begun = Clock::now();
    let mut subscriber = connect(to).map_err(failed)?;
    subscriber.write_all(b"SUB load 1\r\nPING\r\n").map_err(failed)?;
    let mut subscriber = BufReader::new(subscriber);
    until_pong(&mut subscriber).map_err(failed)?;
    let mut publishers =
        (0..plan.publishers).map(|_| connect(to)).collect::<Result<Vec<_>, _>>().map_err(failed)?;
    let (mut rng, start) = (Rng::new(4), begun.elapsed().as_secs_f64());
    let mut at = start;
    let mut due = Vec::new();
    while at < start + plan.seconds {
        at += -(1.0 - rng.unit()).ln() / plan.arrivals;
        due.push((at, rng.below(plan.publishers as u64) as usize));
    }
    let count = due.len();
    let hears = thread::spawn(move || hear(&mut subscriber, count, begun));
    let mut sent = Vec::with_capacity(count);
    for (at, who) in due {
        let wait = at - begun.elapsed().as_secs_f64();
        if wait > 0.0 {
            thread::sleep(Duration::from_secs_f64(wait));
        }
        let now = begun.elapsed().as_nanos() as u64;
        sent.push((now, who));
        publishers[who]
            .write_all(format!("PUB load 20\r\n{now:020}\r\n").as_bytes())
            .map_err(failed)?;
    }
    let heard = hears.join().map_err(|_| "the subscriber failed".to_owned())?.map_err(failed)?;
    let from = ((start + plan.warmup) * 1e9) as u64;
    let mut took: Vec<f64> =
        heard.iter().filter(|one| one.0 >= from).map(|one| one.1 as f64 / 1e6).collect();
    took.sort_unstable_by(f64::total_cmp);
    let quantile = |share: f64| {
        let rank = (share * took.len() as f64).ceil().max(1.0) as usize - 1;
        took.get(rank).copied()
    };
    let (parts, rho) = (plan.parts as f64, plan.arrivals / plan.rate);
    let burst = plan.burst / plan.parts;
    let waits = exact::exceeds(rho, burst as f64 - 1.0);
    Ok(json!({
        "messages": took.len(),
        "mean_ms": took.iter().sum::<f64>() / took.len().max(1) as f64,
        "p50_ms": quantile(0.5),
        "p95_ms": quantile(0.95),
        "p99_ms": quantile(0.99),
        "replayed_ms": replayed(plan, &sent),
        // SRTM's Eq. (1), of each part.
        "eq1_ms": waits / (2.0 * (1.0 - rho)) / (plan.rate / parts) * 1e3,
        "exact_ms": exact::mean_delay(plan.arrivals / parts, plan.rate / parts, burst) * 1e3,
    }))
}

/// The mean delay of what was really sent, in milliseconds, at as many even parts of the agreement. A busy machine sends
/// in bursts what was to be sent one by one, and no formula knows how it did.
fn replayed(plan: &Plan, sent: &[(u64, usize)]) -> f64 {
    ideal(sent, plan.rate, plan.burst, plan.parts as usize)
}

/// The same of what has arrived, as the gate has recorded it: what the two differ by came before the gate.
pub(crate) fn arrived(trace: &str, rate: f64, burst: u64, parts: usize) -> Result<f64, String> {
    let (mut arrivals, mut names) = (Vec::new(), Vec::new());
    for line in trace.lines().skip(1) {
        let mut columns = line.split(',');
        let seconds = columns.next().and_then(|at| at.parse::<f64>().ok());
        let (Some(seconds), Some(name)) = (seconds, columns.next()) else {
            return Err(format!("no arrival: {line}"));
        };
        // Publishers are dealt to brokers as they come.
        let who = names.iter().position(|known| *known == name).unwrap_or_else(|| {
            names.push(name);
            names.len() - 1
        });
        arrivals.push(((seconds * 1e9) as u64, who));
    }
    arrivals.sort_unstable();
    Ok(ideal(&arrivals, rate, burst, parts))
}

fn ideal(sent: &[(u64, usize)], rate: f64, burst: u64, parts: usize) -> f64 {
    let limit = Limit::new(rate / parts as f64, (burst / parts as u64) as f64);
    let mut buckets = vec![Bucket::full(Instant::ZERO, limit); parts];
    let delays = sent.iter().map(|(at, who)| {
        let at = Instant::from_nanos(*at);
        let due = buckets[who % parts].book(at, 1.0, Instant::FAR).unwrap_or(at);
        due.since(at).as_millis_f64()
    });
    delays.sum::<f64>() / sent.len().max(1) as f64
}

fn connect(to: SocketAddr) -> std::io::Result<TcpStream> {
    let mut stream = TcpStream::connect(to)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(Duration::from_secs(60)))?;
    stream.write_all(b"CONNECT {\"verbose\":false,\"name\":\"load\"}\r\n")?;
    Ok(stream)
}

fn until_pong(stream: &mut BufReader<TcpStream>) -> std::io::Result<()> {
    let mut line = String::new();
    while line != "PONG\r\n" {
        line.clear();
        stream.read_line(&mut line)?;
    }
    Ok(())
}

/// When each message was sent and how long it took, in nanoseconds.
fn hear(
    stream: &mut BufReader<TcpStream>,
    count: usize,
    begun: Clock,
) -> std::io::Result<Vec<(u64, u64)>> {
    let mut heard = Vec::with_capacity(count);
    let mut line = String::new();
    while heard.len() < count {
        line.clear();
        stream.read_line(&mut line)?;
        if line.starts_with("MSG ") {
            let mut payload = [0; 22];
            stream.read_exact(&mut payload)?;
            let now = begun.elapsed().as_nanos() as u64;
            let sent = String::from_utf8_lossy(&payload[..20]).parse().unwrap_or(now);
            heard.push((sent, now.saturating_sub(sent)));
        }
    }
    Ok(heard)
}
