//! The load: an open-loop generator. Requests are sent at times drawn beforehand, whatever became of
//! those before, to every lane alike; a latency counts from the time a request was to be sent.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tidegate_core::Rank;
use tidegate_core::rng::Rng;
use tidegate_http::wire::{FEEDBACK, read_feedback};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::Instant;

use super::callers::{self, Callers};
use super::service::{CAPACITY, exponential};

/// An answer later than this is worth nothing to whoever asked.
pub(crate) const OBJECTIVE: Duration = Duration::from_millis(400);
/// When whoever asked gives up and closes the connection.
pub(crate) const PATIENCE: Duration = Duration::from_secs(1);
/// Connections kept for the next request: more than are ever in use at ten times the load.
const IDLE_LIMIT: usize = 4096;
/// How often those who retry without a budget send a request in all.
const ATTEMPTS: u8 = 4;
/// The longest that they wait before they try again.
const IMPATIENCE: Duration = Duration::from_millis(100);
/// Rank of the tenant that misbehaves: of no importance to anybody else.
pub(crate) const TENANT: Rank = Rank::new(48, 0);
/// Requests per second of a tenant that misbehaves.
const TENANT_RATE: f64 = 3.0 * CAPACITY;

/// What is sent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Wanted {
    /// Requests per second, as a multiple of what the service can do.
    pub(crate) load: f64,
    pub(crate) mix: Mix,
    /// One tenant sends three times the capacity beside the others.
    pub(crate) tenant: bool,
    /// Who is refused or gives up sends again, up to three times.
    pub(crate) retries: bool,
}

impl Wanted {
    pub(crate) fn new(load: f64) -> Self {
        Self { load, mix: Mix::Users, tenant: false, retries: false }
    }
}

/// How important the requests are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mix {
    /// One kind of request from many users, all different in rank.
    Users,
    /// The four criticalities in equal parts.
    Bands,
    /// Nine in ten are critical-plus, one in ten sheddable.
    Important,
    /// Everybody has the same rank.
    Same,
}

impl Mix {
    pub(crate) const ALL: [(Self, &'static str); 4] = [
        (Self::Users, "users"),
        (Self::Bands, "bands"),
        (Self::Important, "important"),
        (Self::Same, "same"),
    ];

    pub(crate) fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|(_, known)| *known == name).map(|(mix, _)| *mix)
    }

    pub(crate) fn name(self) -> &'static str {
        Self::ALL.iter().find(|(mix, _)| *mix == self).expect("all are listed").1
    }

    /// The rank of a request at `place`, from 0, the most important, to 1.
    fn rank(self, place: f64) -> Rank {
        let user = |within: f64| (within * 65536.0).clamp(0.0, 65535.0) as u16;
        match self {
            Self::Users => Rank::new(24, user(place)),
            Self::Bands => {
                let band = (place * 4.0).clamp(0.0, 3.0).floor();
                Rank::new(8 + 16 * band as u8, user(place * 4.0 - band))
            }
            Self::Important if place < 0.9 => Rank::new(8, user(place / 0.9)),
            Self::Important => Rank::new(56, user((place - 0.9) * 10.0)),
            Self::Same => Rank::new(24, 0),
        }
    }

    /// The part of all requests that a cursor lets in: the place of the last.
    pub(crate) fn place(self, last: Rank) -> f64 {
        let steps = 256;
        let inside = (0..steps)
            .filter(|n| self.rank((f64::from(*n) + 0.5) / f64::from(steps)).key() <= last.key());
        inside.count() as f64 / f64::from(steps)
    }
}

/// One request and what became of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Record {
    /// When it was to be sent.
    pub(crate) due: Instant,
    /// How important it is among all, from 0 to 1; none for the tenant that misbehaves.
    pub(crate) place: Option<f64>,
    pub(crate) fate: Fate,
    /// From the time it was to be sent to the last byte, or until whoever asked gave up.
    pub(crate) latency: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Served,
    /// By the sidecar.
    Refused,
    /// No answer in time.
    GaveUp,
    /// Another status, or no connection.
    Failed,
}

impl Record {
    /// Whether it was of use.
    pub(crate) fn is_good(&self) -> bool {
        self.fate == Fate::Served && self.latency <= OBJECTIVE
    }
}

/// A sidecar, and what belongs to it alone.
#[derive(Debug)]
struct Target {
    address: SocketAddr,
    idle: Mutex<Vec<Connection>>,
    callers: Option<Callers>,
}

/// Sends requests to one sidecar, and keeps what became of them.
#[derive(Debug)]
pub(crate) struct Lane {
    /// Where to; another one after [`turn_to`](Self::turn_to).
    to: Mutex<Arc<Target>>,
    /// Whether its clients obey what they are told, where the policy tells something.
    obeys: bool,
    records: Mutex<VecDeque<Record>>,
    waits: Mutex<Rng>,
    /// Requests sent since somebody asked.
    sent: AtomicU64,
}

impl Lane {
    /// Records kept until somebody takes them: a minute at ten times the load.
    const RECORDS: usize = 120_000;

    pub(crate) fn new(obeys: bool) -> Self {
        let nowhere = Target {
            address: (std::net::Ipv4Addr::UNSPECIFIED, 0).into(),
            idle: Mutex::default(),
            callers: None,
        };
        Self {
            to: Mutex::new(Arc::new(nowhere)),
            obeys,
            records: Mutex::default(),
            waits: Mutex::new(Rng::new(1)),
            sent: AtomicU64::new(0),
        }
    }

    /// From now on everything goes to the sidecar at `address`, which runs `policy`. What is still under way to the one
    /// before is nobody's business any more.
    pub(crate) fn turn_to(&self, address: SocketAddr, policy: &str) {
        let callers = if self.obeys { Callers::of(policy) } else { None };
        *lock(&self.to) = Arc::new(Target { address, idle: Mutex::default(), callers });
        lock(&self.records).clear();
    }

    /// What has ended since the last time.
    pub(crate) fn take(&self) -> Vec<Record> {
        lock(&self.records).drain(..).collect()
    }

    /// How many were sent since the last time.
    pub(crate) fn sent(&self) -> u64 {
        self.sent.swap(0, Ordering::Relaxed)
    }

    /// Unless it went to a sidecar that is gone.
    fn keep(&self, target: &Arc<Target>, record: Record) {
        if !Arc::ptr_eq(target, &lock(&self.to)) {
            return;
        }
        let mut records = lock(&self.records);
        if records.len() == Self::RECORDS {
            records.pop_front();
        }
        records.push_back(record);
    }

    async fn send(self: Arc<Self>, due: Instant, rank: Rank, place: Option<f64>, retries: bool) {
        let mut due = due;
        for attempt in 0..ATTEMPTS {
            let target = Arc::clone(&lock(&self.to));
            let fate = tokio::time::timeout_at(due + PATIENCE, self.exchange(&target, rank)).await;
            let fate = fate.unwrap_or(Fate::GaveUp);
            self.keep(&target, Record { due, place, fate, latency: Instant::now() - due });
            if !retries || fate == Fate::Served || attempt + 1 == ATTEMPTS {
                return;
            }
            let pause = IMPATIENCE.mul_f64(lock(&self.waits).unit());
            due = Instant::now() + pause;
            tokio::time::sleep_until(due).await;
        }
    }

    async fn exchange(&self, target: &Target, rank: Rank) -> Fate {
        let Some(callers) = &target.callers else {
            let context = format!("r=({} {})", rank.business(), rank.user());
            let answer = self.ask(target, context.as_bytes()).await;
            return answer.map_or(Fate::Failed, |answer| Fate::of(answer.status));
        };
        let Some((call, context)) = callers.leave(rank).await else { return Fate::Refused };
        let answer = self.ask(target, &context).await;
        let status = answer.as_ref().map_or(0, |answer| answer.status);
        let feedback = answer.as_ref().ok().and_then(|answer| answer.feedback.as_deref());
        callers::answered(call, status, feedback.and_then(|field| read_feedback(field).ok()));
        Fate::of(status)
    }

    async fn ask(&self, target: &Target, context: &[u8]) -> std::io::Result<Head> {
        self.sent.fetch_add(1, Ordering::Relaxed);
        // A connection that was kept may have been closed by now; a new one is not.
        let kept = lock(&target.idle).pop();
        if let Some(connection) = kept
            && let Ok(answer) = target.ask(connection, context).await
        {
            return Ok(answer);
        }
        let stream = TcpStream::connect(target.address).await?;
        target.ask(Connection::new(stream), context).await
    }
}

impl Fate {
    fn of(status: u16) -> Self {
        match status {
            200 => Self::Served,
            503 | 429 => Self::Refused,
            _ => Self::Failed,
        }
    }
}

impl Target {
    async fn ask(&self, mut connection: Connection, context: &[u8]) -> std::io::Result<Head> {
        connection.send(context).await?;
        let (answer, again) = connection.answer().await?;
        let mut idle = lock(&self.idle);
        if again && idle.len() < IDLE_LIMIT {
            connection.kept = true;
            idle.push(connection);
        }
        Ok(answer)
    }
}

/// What is read of an answer.
#[derive(Debug)]
struct Head {
    status: u16,
    /// The field by which a gate tells its callers.
    feedback: Option<Vec<u8>>,
}

/// A connection with what was read from it. It is reset when it is given up: closed in the usual
/// way its port would stay in use for a minute, and ports would run out within seconds.
#[derive(Debug)]
struct Connection {
    stream: TcpStream,
    buffer: Vec<u8>,
    /// Whether it was left in good order.
    kept: bool,
}

impl Connection {
    fn new(stream: TcpStream) -> Self {
        let _ = stream.set_nodelay(true);
        Self { stream, buffer: Vec::with_capacity(512), kept: false }
    }

    async fn send(&mut self, context: &[u8]) -> std::io::Result<()> {
        self.kept = false;
        self.buffer.clear();
        self.buffer.extend_from_slice(b"GET /work HTTP/1.1\r\nhost: demo\r\noverload-context: ");
        self.buffer.extend_from_slice(context);
        self.buffer.extend_from_slice(b"\r\n\r\n");
        self.stream.write_all(&self.buffer).await?;
        self.buffer.clear();
        Ok(())
    }

    /// What is read of the answer, and whether another request can be sent.
    async fn answer(&mut self) -> std::io::Result<(Head, bool)> {
        loop {
            if self.stream.read_buf(&mut self.buffer).await? == 0 {
                return Err(std::io::ErrorKind::UnexpectedEof.into());
            }
            let Some(end) = find(&self.buffer, b"\r\n\r\n") else { continue };
            let fields = &self.buffer[..end];
            let length = field(fields, "content-length");
            let length = length.and_then(|text| std::str::from_utf8(text).ok()?.parse().ok());
            if length.is_some_and(|length: usize| self.buffer.len() < end + 4 + length) {
                continue;
            }
            let feedback = field(fields, FEEDBACK.as_str()).map(<[u8]>::to_vec);
            let head = Head { status: status(&self.buffer).unwrap_or(0), feedback };
            return Ok((head, length.is_some()));
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        if !self.kept {
            let _ = self.stream.set_zero_linger();
        }
    }
}

fn find(text: &[u8], part: &[u8]) -> Option<usize> {
    text.windows(part.len()).position(|window| window == part)
}

/// Of `HTTP/1.1 200 OK`.
fn status(head: &[u8]) -> Option<u16> {
    std::str::from_utf8(head.get(9..12)?).ok()?.parse().ok()
}

/// A field of a head as the sidecar writes it: names in lower case.
fn field<'a>(head: &'a [u8], name: &str) -> Option<&'a [u8]> {
    let start = format!("\r\n{name}: ");
    let rest = &head[find(head, start.as_bytes())? + start.len()..];
    Some(&rest[..find(rest, b"\r").unwrap_or(rest.len())])
}

/// Sends what is wanted to all lanes, the same to each, until the task is dropped.
pub(crate) async fn generate(lanes: Vec<Arc<Lane>>, wanted: impl Fn() -> Wanted, seed: u64) {
    let (mut gaps, mut places) = (Rng::new(seed), Rng::new(!seed));
    // Looked at so often when nothing is to be sent, or little.
    let look = Duration::from_millis(50);
    let mut due = Instant::now();
    loop {
        let Wanted { load, mix, tenant, retries } = wanted();
        let others = load * CAPACITY;
        let rate = others + if tenant { TENANT_RATE } else { 0.0 };
        let gap = Duration::from_secs_f64((exponential(&mut gaps) / rate.max(1e-9)).min(3600.0));
        if gap > look && rate < 1.0 {
            due = Instant::now() + look;
            tokio::time::sleep_until(due).await;
            continue;
        }
        due += gap;
        tokio::time::sleep_until(due).await;
        let place = Some(places.unit()).filter(|_| places.unit() * rate < others);
        let rank = place.map_or(TENANT, |place| mix.rank(place));
        for lane in &lanes {
            tokio::spawn(Arc::clone(lane).send(due, rank, place, retries));
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_follow_places() {
        for (mix, name) in Mix::ALL {
            let keys: Vec<u32> = (0..=100).map(|n| mix.rank(f64::from(n) / 100.0).key()).collect();
            assert!(keys.is_sorted(), "{name}");
            assert_eq!(Mix::named(name), Some(mix));
        }
        assert_eq!(Mix::Bands.rank(0.5), Rank::new(40, 0));
        assert_eq!(Mix::Important.rank(0.95).business(), 56);
    }

    #[test]
    fn the_place_of_a_cursor_is_the_share_it_lets_in() {
        assert!((Mix::Users.place(Rank::new(24, 16384)) - 0.25).abs() < 0.01);
        assert!((Mix::Bands.place(Rank::new(31, 0)) - 0.5).abs() < 0.01);
        assert!((Mix::Important.place(Rank::new(40, 0)) - 0.9).abs() < 0.01);
        assert_eq!(
            (Mix::Same.place(Rank::new(24, 0)), Mix::Same.place(Rank::new(8, 0))),
            (1.0, 0.0)
        );
    }
}
