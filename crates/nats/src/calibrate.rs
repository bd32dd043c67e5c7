//! What a broker's work costs, measured: a publisher and a subscriber of our own, on a subject of their own.
//!
//! 1. *Alone*: a message, and the next when it has come; the median.
//! 2. *Each*: many messages in one go, over how many they were; the best of a few, since what else the machine does
//!    can only be too much.
//!
//! Both include what a client's side costs, so a plan with them errs towards more brokers. Of the time of one alone what
//! is not work of a message is taken to be half the broker's, waking up, and half on the way.

use std::io::{BufReader, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tidegate_core::Span;
use tidegate_core::config::{self, ConfigError};
use tidegate_core::placement::replay::Costs;

use crate::config::Address;

/// Messages one after the other.
const ALONE: usize = 500;
/// Messages in one go, and how often.
const MANY: usize = 20_000;
const TIMES: usize = 5;
/// Longest time without a word.
const PATIENCE: Duration = Duration::from_secs(5);

/// What was measured of one broker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Calibration {
    /// Which one.
    pub broker: Address,
    /// Bytes in a message.
    pub payload: usize,
    /// From a publisher to a subscriber, with nothing else to do, in microseconds.
    pub alone_us: f64,
    /// What each of many costs, in microseconds.
    pub each_us: f64,
}

/// A file of them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Calibrations {
    /// All of them.
    pub brokers: Vec<Calibration>,
}

impl Calibrations {
    /// Reads and checks a file.
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        config::read(text, |file: &Self, problems| {
            problems.check("brokers", file.brokers.len(), !file.brokers.is_empty(), "one at least");
            for (at, broker) in file.brokers.iter().enumerate() {
                problems.within_item("brokers", at, |problems| {
                    problems.range("alone_us", broker.alone_us, 0.001, 1e9);
                    problems.range("each_us", broker.each_us, 0.001, 1e9);
                });
            }
        })
    }

    /// As it is stored.
    pub fn to_toml(&self) -> String {
        config::print(self)
    }
}

impl Calibration {
    /// As the planner counts.
    pub fn costs(&self) -> Costs {
        let micros = |micros: f64| Span::from_nanos_f64(micros * 1e3);
        let rest = (self.alone_us - self.each_us).max(0.0);
        let half = micros(self.each_us / 2.0);
        Costs {
            cores: 1,
            wake: micros(rest / 2.0),
            read: half,
            forward: half,
            network: micros(rest / 2.0),
        }
    }

    /// Measures a broker, for messages with so many bytes. Takes a second or so.
    pub fn measure(broker: &Address, payload: usize) -> Result<Self, String> {
        if broker.is_tls() {
            return Err(format!("{broker}: only brokers in clear can be measured"));
        }
        let told = |error: String| format!("{broker}: {error}");
        let mut pair = Pair::connect(broker, payload).map_err(|error| told(error.to_string()))?;
        let mut measure = |count: usize| {
            let begun = Instant::now();
            pair.carry(count).map(|()| begun.elapsed().as_secs_f64() * 1e6)
        };
        let result = (|| {
            measure(MANY / 10)?;
            let mut alone =
                (0..ALONE).map(|_| measure(1)).collect::<std::io::Result<Vec<f64>>>()?;
            alone.sort_by(f64::total_cmp);
            let many = (0..TIMES).map(|_| measure(MANY)).collect::<std::io::Result<Vec<f64>>>()?;
            let best = many.into_iter().fold(f64::INFINITY, f64::min);
            Ok::<_, std::io::Error>((alone[ALONE / 2], best / MANY as f64))
        })();
        let (alone_us, each_us) =
            result.map_err(|error| told(format!("it does not carry messages: {error}")))?;
        // A hundredth of a microsecond: a clock tells no more.
        let rounded = |micros: f64| (micros * 100.0).round().max(1.0) / 100.0;
        let (alone_us, each_us) = (rounded(alone_us), rounded(each_us));
        Ok(Self { broker: broker.clone(), payload, alone_us, each_us })
    }
}

/// A publisher and a subscriber.
struct Pair {
    publisher: TcpStream,
    subscriber: BufReader<TcpStream>,
    message: Vec<u8>,
    /// What comes of it: as long as that.
    arrives: usize,
}

impl Pair {
    fn connect(broker: &Address, payload: usize) -> std::io::Result<Self> {
        let subject = format!("_tidegate.{:016x}", tidegate_driver::random_seed());
        let (publisher, _) = greet(broker, "")?;
        let (_, subscriber) = greet(broker, &format!("SUB {subject} 1\r\n"))?;
        let body = "x".repeat(payload);
        let message = format!("PUB {subject} {payload}\r\n{body}\r\n").into_bytes();
        let arrives = format!("MSG {subject} 1 {payload}\r\n{body}\r\n").len();
        Ok(Self { publisher, subscriber, message, arrives })
    }

    /// Sends so many, and waits until all have come.
    fn carry(&mut self, count: usize) -> std::io::Result<()> {
        let bytes = self.message.repeat(count);
        let mut publisher = self.publisher.try_clone()?;
        let left = count * self.arrives;
        std::thread::scope(|scope| {
            let sent = (count > 1).then(|| scope.spawn(move || publisher.write_all(&bytes)));
            if sent.is_none() {
                self.publisher.write_all(&self.message)?;
            }
            let mut buffer = vec![0; left.min(64 << 10)];
            let mut left = left;
            while left > 0 {
                let most = left.min(buffer.len());
                self.subscriber.read_exact(&mut buffer[..most])?;
                left -= most;
            }
            sent.map_or(Ok(()), |sent| {
                sent.join().unwrap_or_else(|_| Err(std::io::ErrorKind::Other.into()))
            })
        })
    }
}

/// A connection that has been greeted, and has said `more`.
fn greet(broker: &Address, more: &str) -> std::io::Result<(TcpStream, BufReader<TcpStream>)> {
    use std::io::BufRead;
    let none = || std::io::Error::other("its name has no address");
    let at = broker.authority().to_socket_addrs()?.next().ok_or_else(none)?;
    let mut stream = TcpStream::connect_timeout(&at, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.set_nodelay(true)?;
    let mut answers = BufReader::new(stream.try_clone()?);
    stream.write_all(format!("CONNECT {{\"verbose\":false}}\r\n{more}PING\r\n").as_bytes())?;
    for _ in 0..4 {
        let mut line = String::new();
        // A line without an end is no greeting.
        answers.by_ref().take(1 << 20).read_line(&mut line)?;
        match line.trim_end() {
            "PONG" => return Ok((stream, answers)),
            said if said.starts_with("INFO") || said.starts_with("+OK") => {}
            said => return Err(std::io::Error::other(format!("it says {said}"))),
        }
    }
    Err(std::io::Error::other("it does not answer a PING"))
}
