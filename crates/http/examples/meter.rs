//! Do the costs of requests sum to the CPU time of the process, and what does it cost to know them?
//!
//! ```text
//! cargo run --release -p tidegate-http --example meter
//! ```
//!
//! Eight tasks call a service behind a gate, without sockets: handlers that compute for a while, that
//! block their thread, that await, that do next to nothing. After two seconds for calibration the costs
//! that the gate hears of are summed for four and compared with the process's clock. Then a request that
//! does nothing is measured with a meter and without.

#![allow(clippy::disallowed_methods, reason = "a program that measures real time")]

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tidegate_core::Span;
use tidegate_http::server::{CpuClocks, Meter, Metered, SystemClocks};

fn main() {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("built").block_on(async {
        sums().await;
        price();
    });
}

/// Compares the sum of costs with the process's clock.
async fn sums() {
    let meter = Meter::process();
    let costs = Arc::new(AtomicU64::new(0));
    for task in 0..8u64 {
        let (meter, costs) = (Arc::clone(&meter), Arc::clone(&costs));
        tokio::spawn(async move {
            for number in task.. {
                let cost = request(&meter, number).await;
                costs.fetch_add(cost, Ordering::Relaxed);
            }
        });
    }
    tokio::time::sleep(Duration::from_secs(2)).await;
    let (before, used) = (costs.load(Ordering::Relaxed), SystemClocks.process());
    tokio::time::sleep(Duration::from_secs(4)).await;
    let sum = Span::from_nanos(costs.load(Ordering::Relaxed) - before).as_secs_f64();
    let used = SystemClocks.process().saturating_sub(used).as_secs_f64();
    println!("costs {sum:.3} s, process {used:.3} s: {:.3}", sum / used);
    println!("cpu per time in polls, process per cpu in polls: {:.3?}", meter.calibration());
}

/// A request of one kind or another, metered around each of its polls. Returns its cost.
async fn request(meter: &Meter, number: u64) -> u64 {
    let kind = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 62;
    let mut metered = meter.begin();
    let mut work = std::pin::pin!(async move {
        match kind {
            0 => compute(500),
            1 => std::thread::sleep(Duration::from_micros(200)),
            2 => {
                compute(50);
                tokio::time::sleep(Duration::from_millis(1)).await;
                compute(50);
            }
            _ => compute(5),
        }
    });
    std::future::poll_fn(|cx| meter.measure(&mut metered, || work.as_mut().poll(cx))).await;
    meter.settle(&metered).0
}

/// Keeps the thread busy for about so many microseconds of its own time.
fn compute(micros: u64) {
    let end = SystemClocks.thread() + Span::from_micros(micros);
    while SystemClocks.thread() < end {
        std::hint::spin_loop();
    }
}

/// What metering adds to a request of one poll.
fn price() {
    const REQUESTS: u32 = 2_000_000;
    let meter = Meter::process();
    let per_request = |work: &dyn Fn()| {
        let best = (0..5).map(|_| {
            let begun = Instant::now();
            (0..REQUESTS).for_each(|_| work());
            begun.elapsed() / REQUESTS
        });
        best.min().unwrap_or_default().as_nanos()
    };
    let metered = per_request(&|| {
        let mut metered: Metered = meter.begin();
        meter.measure(&mut metered, || std::hint::black_box(1));
        std::hint::black_box(meter.settle(&metered));
    });
    let clocks = per_request(&|| {
        std::hint::black_box((Instant::now(), Instant::now()));
    });
    println!("a request of one poll: {metered} ns, two readings of the clock alone {clocks} ns");
}
