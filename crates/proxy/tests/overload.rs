//! Overload over real sockets. Alone in its file, and under nextest alone on the machine
//! (`.config/nextest.toml`), so that no other test takes its time.

#![allow(clippy::disallowed_methods, reason = "real sockets, real threads, real time")]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use support::{Sidecar, Upstream, Workers, ok};

/// A client that sends a request every `pause`, every fourth an important one.
fn customer(
    sidecar: &Sidecar,
    pause: Duration,
    end: Instant,
    score: &Arc<Score>,
) -> thread::JoinHandle<()> {
    let (mut client, score) = (sidecar.client(), Arc::clone(score));
    thread::spawn(move || {
        let mut due = Instant::now();
        for n in 0u64.. {
            if due >= end {
                return;
            }
            thread::sleep(due.saturating_duration_since(Instant::now()));
            due += pause;
            let important = n % 4 == 0;
            let business = if important { 5 } else { 40 };
            let reply = client.get("/", &format!("overload-context: r=({business} {n})\r\n"));
            let class = &score.classes[usize::from(!important)];
            class.sent.fetch_add(1, Ordering::Relaxed);
            match reply.status() {
                200 => drop(class.served.fetch_add(1, Ordering::Relaxed)),
                503 => {
                    assert!(
                        reply.header("retry-after").is_some() || reply.text().contains("never")
                    );
                    let feedback = reply.header("overload-feedback").expect("a caller is told");
                    assert!(feedback.contains("why="), "{feedback}");
                }
                status => panic!("{status}: {}", reply.text()),
            }
        }
    })
}

#[derive(Default)]
struct Score {
    /// Important ones, then the others.
    classes: [Class; 2],
}

#[derive(Default)]
struct Class {
    sent: AtomicU64,
    served: AtomicU64,
}

impl Class {
    fn share(&self) -> f64 {
        self.served.load(Ordering::Relaxed) as f64 / self.sent.load(Ordering::Relaxed) as f64
    }
}

/// Four workers that take 20 ms each can serve 200 requests per second; a thousand are sent.
#[test]
fn at_five_times_the_load_capacity_is_used_and_the_important_are_served() {
    const WORKERS: usize = 4;
    const WORK: Duration = Duration::from_millis(20);
    const CLIENTS: u32 = 50;
    const SECONDS: u64 = 5;
    let workers = Workers::new(WORKERS);
    let watched = workers.clone();
    let upstream = Upstream::start(move |_| {
        workers.work(WORK);
        ok("done")
    });
    let config =
        "[proxy]\ntrust = 'inside'\n[gate.admission]\npolicy = 'tide'\nobjective = '200ms'\n";
    let sidecar = Sidecar::start(config, &[upstream.address]);
    let score = Arc::new(Score::default());
    let begun = Instant::now();
    let end = begun + Duration::from_secs(SECONDS);
    let pause = WORK * CLIENTS / WORKERS as u32 / 5;
    let customers: Vec<_> = (0..CLIENTS).map(|_| customer(&sidecar, pause, end, &score)).collect();
    customers.into_iter().for_each(|customer| customer.join().expect("no panic"));
    let [important, others] = &score.classes;
    let served = important.served.load(Ordering::Relaxed) + others.served.load(Ordering::Relaxed);
    // The last answers come a little later.
    let time = begun.elapsed();
    let capacity = (time.as_millis() / WORK.as_millis()) as u64 * WORKERS as u64;
    let busy = watched.worked().as_secs_f64() / (time.as_secs_f64() * WORKERS as f64);
    eprintln!(
        "capacity {capacity}, served {served}, workers busy {busy:.3}; important {:.3}, others {:.3}; {} slots",
        important.share(),
        others.share(),
        sidecar.state()["slots"],
    );
    // On an idle machine all of it. On one that is busy with other things threads wake late, and work
    // takes longer than it should (crates/core/tests/cold_start.rs): so what counts is that workers
    // had work. This is no measurement: it finds a gate that serves next to nothing, or does not know
    // who is who.
    assert!(busy > 0.5, "workers had work {busy:.2} of the time");
    assert!(important.share() > 3.0 * others.share());
    assert!(others.share() < 0.5, "five times the load cannot be served");
    sidecar.wait_until_empty();
}
