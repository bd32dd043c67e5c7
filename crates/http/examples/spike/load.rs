//! The load: a closed loop to find the capacity, or open-loop Poisson arrivals.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Empty};
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tidegate_core::Rank;
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::task::LocalSet;

use crate::callers::{Callers, Wired};
use crate::report::{Answer, Row};

/// Ignored at the start of every run: connections open, estimates settle.
const WARM_UP: Duration = Duration::from_millis(500);
/// How long after the last arrival answers are waited for.
const PATIENCE: Duration = Duration::from_secs(1);
/// Most HTTP/1.1 connections at once; an arrival that finds none free is lost.
const CONNECTIONS: usize = 1024;
/// HTTP/2 connections.
const SHARED: usize = 4;
/// Requests outstanding in the closed loop.
const OUTSTANDING: usize = 64;

/// What to send.
pub(crate) enum Load {
    /// [`OUTSTANDING`] requests at a time.
    Closed { seconds: Duration },
    /// Arrivals that do not wait for answers, at `rate` per second; through the client layer if
    /// they have a throttle.
    Poisson { rate: f64, seconds: Duration, throttle: Option<String> },
}

/// Loads the server at `address` and tells what came back after the warm-up.
pub(crate) fn run(load: &Load, address: SocketAddr, h2: bool) -> Row {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().expect("built");
    LocalSet::new().block_on(&runtime, async {
        let pool = Rc::new(Pool::new(address, h2).await);
        let begin = Instant::now() + WARM_UP;
        match load {
            &Load::Closed { seconds } => {
                closed_loop(&pool, begin + seconds).await;
                Row::ended(pool.take_answers(), begin, seconds)
            }
            Load::Poisson { rate, seconds, throttle } => {
                let callers = |throttle| Rc::new(Callers::new(&pool, throttle));
                let callers = throttle.as_deref().map(callers);
                open_loop(&pool, callers.as_ref(), *rate, begin + *seconds).await;
                Row::due(pool.take_answers(), begin, *seconds)
            }
        }
    })
}

async fn closed_loop(pool: &Rc<Pool>, end: Instant) {
    let loops: Vec<_> = (0..OUTSTANDING)
        .map(|_| {
            let pool = Rc::clone(pool);
            tokio::task::spawn_local(async move {
                while Instant::now() < end {
                    pool.request(None, Instant::now()).await;
                }
            })
        })
        .collect();
    for each in loops {
        each.await.expect("a loop does not panic");
    }
}

async fn open_loop(pool: &Rc<Pool>, callers: Option<&Rc<Callers>>, rate: f64, end: Instant) {
    let (sender, mut arrivals) = mpsc::unbounded_channel();
    // A thread of its own sleeps far more exactly than the runtime's millisecond timer.
    let clock = std::thread::spawn(move || {
        let mut random = Random(0x9e37_79b9_7f4a_7c15);
        let mut next = Instant::now();
        while next < end {
            std::thread::sleep(next.saturating_duration_since(Instant::now()));
            if sender.send(next).is_err() {
                return;
            }
            next += Duration::from_secs_f64(-random.unit().ln() / rate);
        }
    });
    while let Some(due) = arrivals.recv().await {
        let (pool, callers) = (Rc::clone(pool), callers.cloned());
        tokio::task::spawn_local(async move { pool.request(callers.as_deref(), due).await });
    }
    clock.join().expect("the clock does not panic");
    let late = Instant::now() + PATIENCE;
    while pool.outstanding.get() > 0 && Instant::now() < late {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    pool.count_outstanding_as_lost();
}

/// xorshift64*: enough for arrival times.
struct Random(u64);

impl Random {
    /// In (0, 1].
    fn unit(&mut self) -> f64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let bits = self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11;
        (bits + 1) as f64 / (1u64 << 53) as f64
    }
}

type Http1 = http1::SendRequest<Empty<Bytes>>;
type Http2 = http2::SendRequest<Empty<Bytes>>;

/// Connections and what came back over them.
pub(crate) struct Pool {
    address: SocketAddr,
    /// Idle HTTP/1.1 connections.
    idle: RefCell<Vec<Http1>>,
    opened: Cell<usize>,
    /// HTTP/2 connections, none for HTTP/1.1.
    shared: Vec<Http2>,
    /// The connection to use next.
    next: Cell<usize>,
    turn: Cell<usize>,
    outstanding: Cell<usize>,
    /// Due times of requests without an answer yet, by number.
    pending: RefCell<std::collections::BTreeMap<usize, Instant>>,
    answers: RefCell<Vec<Answer>>,
}

impl Pool {
    async fn new(address: SocketAddr, h2: bool) -> Self {
        let mut shared = Vec::new();
        while h2 && shared.len() < SHARED {
            shared.push(connect2(address).await.expect("the server is there"));
        }
        Self {
            address,
            shared,
            idle: RefCell::default(),
            opened: Cell::new(0),
            next: Cell::new(0),
            turn: Cell::new(0),
            outstanding: Cell::new(0),
            pending: RefCell::default(),
            answers: RefCell::default(),
        }
    }

    /// One request that was due at `due`, from sending to the end of its answer.
    async fn request(&self, callers: Option<&Callers>, due: Instant) {
        let number = self.turn.replace(self.turn.get() + 1);
        self.outstanding.set(self.outstanding.get() + 1);
        self.pending.borrow_mut().insert(number, due);
        let response = match callers {
            Some(callers) => callers.send(number, rank(number), request()).await,
            None => self.exchange(with_rank(request(), rank(number))).await.map(|it| it.map(drop)),
        };
        self.outstanding.set(self.outstanding.get() - 1);
        self.pending.borrow_mut().remove(&number);
        let status = response.as_ref().map(Response::status);
        let delay = response.as_ref().map_or(Duration::MAX, delay_of);
        let sent = callers.is_none()
            || response.is_some_and(|response| response.extensions().get::<Wired>().is_some());
        let (top, latency) = (is_top(number), due.elapsed());
        self.answers.borrow_mut().push(Answer { due, status, latency, delay, top, sent });
    }

    /// Sends a request and reads its answer to the end.
    pub(crate) async fn exchange(
        &self,
        request: Request<Empty<Bytes>>,
    ) -> Option<Response<Empty<Bytes>>> {
        if self.shared.is_empty() {
            self.over_http1(request).await
        } else {
            self.over_http2(request).await
        }
    }

    async fn over_http1(&self, request: Request<Empty<Bytes>>) -> Option<Response<Empty<Bytes>>> {
        let idle = self.idle.borrow_mut().pop();
        let mut connection = match idle {
            Some(connection) => connection,
            None if self.opened.get() < CONNECTIONS => {
                self.opened.set(self.opened.get() + 1);
                connect1(self.address).await?
            }
            None => return None,
        };
        let (head, body) = connection.send_request(request).await.ok()?.into_parts();
        body.collect().await.ok()?;
        if connection.ready().await.is_ok() {
            self.idle.borrow_mut().push(connection);
        } else {
            self.opened.set(self.opened.get() - 1);
        }
        Some(Response::from_parts(head, Empty::new()))
    }

    async fn over_http2(&self, request: Request<Empty<Bytes>>) -> Option<Response<Empty<Bytes>>> {
        let next = self.next.replace(self.next.get() + 1);
        let mut connection = self.shared[next % self.shared.len()].clone();
        let (head, body) = connection.send_request(request).await.ok()?.into_parts();
        body.collect().await.ok()?;
        Some(Response::from_parts(head, Empty::new()))
    }

    fn count_outstanding_as_lost(&self) {
        let lost = self.pending.take().into_iter();
        self.answers.borrow_mut().extend(lost.map(|(number, due)| Answer {
            top: is_top(number),
            due,
            status: None,
            latency: Duration::MAX,
            delay: Duration::MAX,
            sent: true,
        }));
    }

    fn take_answers(&self) -> Vec<Answer> {
        self.answers.take()
    }
}

/// The user rank of a request: spread evenly, by the golden ratio.
fn user(number: usize) -> u16 {
    ((number as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48) as u16
}

/// Whether a request is of the most important quarter.
fn is_top(number: usize) -> bool {
    user(number) < 1 << 14
}

fn rank(number: usize) -> Rank {
    Rank::new(24, user(number))
}

fn with_rank(mut request: Request<Empty<Bytes>>, rank: Rank) -> Request<Empty<Bytes>> {
    let context = format!("r=({} {})", rank.business(), rank.user());
    let context = context.try_into().expect("printable ASCII");
    request.headers_mut().insert("overload-context", context);
    request
}

fn request() -> Request<Empty<Bytes>> {
    let sent = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_micros());
    Request::get("http://localhost/")
        .header("host", "localhost")
        .header("x-sent-us", sent.to_string())
        .body(Empty::new())
        .expect("a valid request")
}

fn delay_of<B>(response: &http::Response<B>) -> Duration {
    let delay = response.headers().get("x-delay-us").and_then(|value| value.to_str().ok());
    delay.and_then(|text| text.parse().ok()).map_or(Duration::MAX, Duration::from_micros)
}

async fn connect1(address: SocketAddr) -> Option<Http1> {
    let stream = TcpStream::connect(address).await.ok()?;
    stream.set_nodelay(true).ok()?;
    let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.ok()?;
    tokio::task::spawn_local(connection);
    Some(sender)
}

async fn connect2(address: SocketAddr) -> Option<Http2> {
    let stream = TcpStream::connect(address).await.ok()?;
    stream.set_nodelay(true).ok()?;
    let (sender, connection) = http2::Builder::new(TokioExecutor::new())
        .initial_max_send_streams(10_000)
        .handshake(TokioIo::new(stream))
        .await
        .ok()?;
    tokio::task::spawn_local(connection);
    Some(sender)
}
