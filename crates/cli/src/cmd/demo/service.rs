//! The sample service: a few workers, each busy for an exponentially distributed time per request.
//!
//! It waits instead of working, so that ten times its load fits on a small machine beside a browser.
//! Requests are given to workers in the order they come; a worker's time is booked the moment a
//! request arrives, so that late timers delay an answer but cost no capacity. Work goes on
//! when whoever asked has gone, as in most services.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use std::{io, thread};

use tidegate_core::rng::Rng;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::time::Instant;

/// How many requests are worked on at once.
pub(crate) const WORKERS: usize = 4;
/// Mean time of a request.
pub(crate) const MEAN: Duration = Duration::from_millis(20);
/// Requests per second that it can serve: 200.
pub(crate) const CAPACITY: f64 = WORKERS as f64 * 1000.0 / MEAN.as_millis() as f64;

/// Longest head of a request that is read: the generator's are a tenth of it.
const LONGEST_HEAD: usize = 4096;

const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\ndone\n";

/// The service, to be slowed down while it runs.
#[derive(Debug)]
pub(crate) struct Service {
    /// Time a request takes, in hundredths of what it should.
    slowness: AtomicU32,
    workers: Mutex<Workers>,
}

#[derive(Debug)]
struct Workers {
    /// When each has done what it was given.
    free_at: [Instant; WORKERS],
    times: Rng,
}

impl Service {
    pub(crate) fn new(seed: u64) -> Self {
        let workers = Workers { free_at: [Instant::now(); WORKERS], times: Rng::new(seed) };
        Self { slowness: AtomicU32::new(100), workers: Mutex::new(workers) }
    }

    /// From now on requests take `hundredths` of their usual time.
    pub(crate) fn slow(&self, hundredths: u32) {
        self.slowness.store(hundredths, Ordering::Relaxed);
    }

    /// In hundredths of their usual time.
    pub(crate) fn slowness(&self) -> u32 {
        self.slowness.load(Ordering::Relaxed)
    }

    /// Serves on a thread of its own, so that the generator cannot hold it up, until the other end of
    /// `over` is dropped. Tells where.
    pub(crate) fn start(self: Arc<Self>, over: oneshot::Receiver<()>) -> io::Result<SocketAddr> {
        // By the standard library: whoever starts it may be in a runtime, where nothing may block on another.
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let run = move || {
            runtime.block_on(async {
                let Ok(listener) = TcpListener::from_std(listener) else { return };
                tokio::select! {
                    () = self.serve(listener) => {}
                    _ = over => {}
                }
            });
        };
        thread::Builder::new().name("service".to_owned()).spawn(run)?;
        Ok(address)
    }

    async fn serve(self: Arc<Self>, listener: TcpListener) {
        loop {
            match listener.accept().await {
                Ok((stream, _)) => drop(tokio::spawn(Arc::clone(&self).connection(stream))),
                Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        }
    }

    /// Ends with its client, however that goes.
    async fn connection(self: Arc<Self>, mut stream: TcpStream) {
        let _ = stream.set_nodelay(true);
        let mut head = Vec::with_capacity(512);
        loop {
            if head.len() > LONGEST_HEAD || stream.read_buf(&mut head).await.unwrap_or(0) == 0 {
                return;
            }
            if !head.ends_with(b"\r\n\r\n") {
                continue;
            }
            head.clear();
            tokio::time::sleep_until(self.book(Instant::now())).await;
            if stream.write_all(ANSWER).await.is_err() {
                return;
            }
        }
    }

    /// Gives a request that has come to the worker that is free first; tells when it is done.
    fn book(&self, now: Instant) -> Instant {
        let mut workers = self.workers.lock().unwrap_or_else(PoisonError::into_inner);
        let slowness = f64::from(self.slowness.load(Ordering::Relaxed)) / 100.0;
        let time = MEAN.mul_f64(exponential(&mut workers.times) * slowness);
        let free = workers.free_at.iter_mut().min().expect("there are workers");
        *free = (*free).max(now) + time;
        *free
    }
}

/// Exponentially distributed with mean 1.
pub(crate) fn exponential(rng: &mut Rng) -> f64 {
    -(1.0 - rng.unit()).ln()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// However late it is looked at, what is booked back to back takes the mean time.
    #[test]
    fn it_serves_its_capacity() {
        let service = Service::new(3);
        let begin = Instant::now();
        let requests = 100_000;
        let mut last = begin;
        for _ in 0..requests {
            last = last.max(service.book(begin));
        }
        let rate = f64::from(requests) / (last - begin).as_secs_f64();
        assert!((rate / CAPACITY - 1.0).abs() < 0.02, "{rate}");
        service.slow(200);
        let mut later = last;
        for _ in 0..requests {
            later = later.max(service.book(begin));
        }
        let rate = f64::from(requests) / (later - last).as_secs_f64();
        assert!((rate / CAPACITY - 0.5).abs() < 0.01, "{rate}");
    }

    #[test]
    fn an_idle_worker_is_taken_before_a_busy_one() {
        let service = Service::new(3);
        let now = Instant::now() + Duration::from_secs(1);
        let done: Vec<Instant> = (0..WORKERS).map(|_| service.book(now)).collect();
        let first = *done.iter().min().expect("four");
        let fifth = service.book(now);
        assert!(fifth > first, "it waits for the first of them");
        let times = Rng::new(3);
        let mut times = times;
        let drawn: Vec<f64> = (0..=WORKERS).map(|_| exponential(&mut times)).collect();
        assert_eq!(fifth, first + MEAN.mul_f64(drawn[WORKERS]));
    }
}
