//! What `cargo xtask peers` puts around a proxy, as one small program: services with a known
//! capacity behind it, and loads before it.
//!
//! ```text
//! lab upstream ADDR reply | cpu:MICROS | lock:MICROS   a service
//! lab rows                                             the plain services there are; one JSON array
//! lab plain ADDR ROW                                   one of them
//! lab expect ROW                                       what the simulator says of it; one JSON object
//! lab ask ADDR SERVICE ROW SECONDS WARMUP              its load, sent to ADDR; one JSON object
//! lab tier ADDR http|grpc MEAN_MS [CALLEE]             a plain service that hands on what it has done
//! lab through ADDR SERVICE http|grpc RATE SECONDS WARMUP SLO_MS   a load, judged by what SERVICE could do; one JSON object
//! lab caller ADDR CALLEE MICROS                        a service that calls another, /1 to /4 times
//! lab tower ADDR UPSTREAM LIMIT                        a proxy of tower's load_shed and concurrency limit
//! lab capacity ADDR CONNECTIONS SECONDS                requests per second of a closed loop
//! lab nats ADDR PUBLISHERS RATE SECONDS WARMUP AGREED BURST PARTS   Poisson messages; one JSON object
//! lab nats-trace FILE AGREED BURST PARTS               mean delay at ideal buckets of what a gate has recorded, in ms
//! lab load ADDR RATE SECONDS WARMUP SLO_MS [PATH…]     an open loop; one JSON object
//! ```

#![allow(clippy::disallowed_methods, reason = "it measures real time")]

mod client;
mod connection;
mod load;
mod nats;
mod plain;
mod service;
mod shed;

use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("a runtime starts");
    match runtime.block_on(run(&words)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("lab: {message}");
            ExitCode::FAILURE
        }
    }
}

async fn run(words: &[&str]) -> Result<(), String> {
    match words {
        ["upstream", at, kind] => service::serve(address(at)?, service::Work::parse(kind)?).await,
        ["rows"] => {
            println!("{}", plain::list());
            Ok(())
        }
        ["expect", name] => {
            println!("{}", plain::expect(&plain::row(name)?));
            Ok(())
        }
        ["plain", at, name] => plain::serve(address(at)?, name).await,
        ["ask", to, service, name, seconds, warmup] => {
            let plan = load::Plan::of(&plain::row(name)?, number(seconds)?, number(warmup)?);
            println!("{}", load::judged(address(to)?, address(service)?, plan).await?);
            Ok(())
        }
        ["tier", at, way, mean_ms, callee @ ..] => {
            let mean = tidegate_core::Span::from_nanos_f64(number(mean_ms)? * 1e6);
            let callee = callee.first().map(|callee| address(callee)).transpose()?;
            service::tier(address(at)?, mean, callee, *way == "grpc").await
        }
        ["through", to, service, way, rate, seconds, warmup, slo_ms] => {
            let plan = load::Plan {
                rate: number(rate)?,
                before: number(rate)?,
                patience: load::Patience::Long,
                grpc: *way == "grpc",
                seconds: number(seconds)?,
                warmup: number(warmup)?,
                slo: Duration::from_secs_f64(number(slo_ms)? / 1e3),
                paths: Vec::new(),
            };
            println!("{}", load::judged(address(to)?, address(service)?, plan).await?);
            Ok(())
        }
        ["caller", at, callee, micros] => {
            let work = service::Work::Cpu(Duration::from_micros(number(micros)? as u64));
            service::call(address(at)?, address(callee)?, work).await
        }
        ["tower", at, upstream, limit] => {
            shed::serve(address(at)?, address(upstream)?, number(limit)? as usize).await
        }
        ["capacity", to, connections, seconds] => {
            let seconds = Duration::from_secs_f64(number(seconds)?);
            let rate = load::closed(address(to)?, number(connections)? as usize, seconds).await;
            println!("{}", serde_json::json!({ "requests_per_s": rate }));
            Ok(())
        }
        ["load", to, rate, seconds, warmup, slo_ms, paths @ ..] => {
            let plan = load::Plan {
                rate: number(rate)?,
                before: number(rate)?,
                patience: load::Patience::Long,
                grpc: false,
                seconds: number(seconds)?,
                warmup: number(warmup)?,
                slo: Duration::from_secs_f64(number(slo_ms)? / 1e3),
                paths: paths.iter().map(ToString::to_string).collect(),
            };
            println!("{}", load::open(address(to)?, plan).await);
            Ok(())
        }
        ["nats", to, publishers, arrivals, seconds, warmup, rate, burst, parts] => {
            let plan = nats::Plan {
                publishers: number(publishers)? as usize,
                arrivals: number(arrivals)?,
                seconds: number(seconds)?,
                warmup: number(warmup)?,
                rate: number(rate)?,
                burst: number(burst)? as u64,
                parts: number(parts)? as u64,
            };
            println!("{}", nats::poisson(address(to)?, &plan)?);
            Ok(())
        }
        ["nats-trace", file, rate, burst, parts] => {
            let trace =
                std::fs::read_to_string(file).map_err(|error| format!("{file}: {error}"))?;
            let (burst, parts) = (number(burst)? as u64, number(parts)? as usize);
            println!("{}", nats::arrived(&trace, number(rate)?, burst, parts.max(1))?);
            Ok(())
        }
        _ => Err("see the first lines of xtask/lab/src/main.rs".to_owned()),
    }
}

fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| format!("{text} is no address"))
}

fn number(text: &str) -> Result<f64, String> {
    text.parse().map_err(|_| format!("{text} is no number"))
}
