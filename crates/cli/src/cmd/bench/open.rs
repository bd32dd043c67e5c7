//! The load: callers that do not wait for each other, each with a `Caller` and a connection of its own.
//!
//! Requests come by a Poisson process at moments that were drawn beforehand, and latency counts from
//! those moments, whenever the request really left: a generator that falls behind does not flatter the
//! server. How far behind it is, is measured. It never sleeps; it has a core to itself.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::io::{self, ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::time::Duration;

use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token};
use tidegate_core::caller::{CallAction, Caller, CallerConfig, Next};
use tidegate_core::rng::Rng;
use tidegate_core::throttle::Answer;
use tidegate_core::{Context, Instant, Outcome, Rank, RequestId, Span};
use tidegate_driver::{Clock, Monotonic, Names};
use tidegate_rpc::wire::{self, Frame, Kind, Limits, RequestHead};
use tidegate_sim::dist::Service;
use tidegate_sim::random::{exponential, stream, stream_seed};

use super::serve::{KEYS, Work};
use super::tally::{Ending, Tally};

/// What is offered.
pub(super) struct Load {
    pub(super) callers: usize,
    pub(super) caller: CallerConfig,
    pub(super) work: Work,
    pub(super) service: Service,
    /// Requests per second from each moment on, by time since the beginning.
    pub(super) rates: Vec<(Span, f64)>,
    pub(super) length: Span,
    pub(super) seed: u64,
}

/// The callers with their connections, and what is under way.
pub(super) struct Generator {
    poll: Poll,
    events: Events,
    clock: Monotonic,
    peers: Vec<Peer>,
    /// When a caller wants to be looked at.
    timers: BinaryHeap<Reverse<(Instant, usize)>>,
    dirty: Vec<usize>,
    names: Names,
    buffer: Vec<u8>,
    work: Work,
}

struct Peer {
    caller: Caller,
    stream: TcpStream,
    input: Vec<u8>,
    out: Vec<u8>,
    written: usize,
    /// Where requests in it end, and when they could have been written.
    leaving: VecDeque<(usize, Instant)>,
    dirty: bool,
    /// The number of the last call.
    call: u64,
    /// Calls on the wire, in order of their numbers.
    sent: Vec<(u64, RequestId)>,
    /// What the caller's calls are, by place.
    calls: Vec<Option<Pending>>,
    /// The earliest timer that is set.
    timer: Instant,
}

#[derive(Clone, Copy)]
struct Pending {
    due: Instant,
    /// How long after that it was submitted.
    late: Span,
    rank: Rank,
    payload: Payload,
}

#[derive(Clone, Copy)]
enum Payload {
    Spin(Span),
    Get(u32),
    Set(u32),
    None,
}

impl Generator {
    /// Connects all callers.
    pub(super) fn connect(address: SocketAddr, load: &Load) -> io::Result<Self> {
        let (poll, clock) = (Poll::new()?, Monotonic::process());
        let mut peers = Vec::new();
        for number in 0..load.callers {
            let stream = std::net::TcpStream::connect(address)?;
            stream.set_nodelay(true)?;
            stream.set_nonblocking(true)?;
            let mut stream = TcpStream::from_std(stream);
            let interest = Interest::READABLE | Interest::WRITABLE;
            poll.registry().register(&mut stream, Token(number), interest)?;
            let seed = stream_seed(load.seed, &format!("caller {number}"));
            let caller = Caller::new(&load.caller, 1, clock.now(), seed)
                .map_err(|error| io::Error::other(error.to_string()))?;
            peers.push(Peer {
                caller,
                stream,
                input: Vec::new(),
                out: Vec::new(),
                written: 0,
                leaving: VecDeque::new(),
                dirty: false,
                call: 0,
                sent: Vec::new(),
                calls: Vec::new(),
                timer: Instant::FAR,
            });
        }
        Ok(Self {
            poll,
            events: Events::with_capacity(1024),
            clock,
            peers,
            timers: BinaryHeap::new(),
            dirty: Vec::new(),
            names: Names::process(),
            buffer: vec![0; 64 << 10],
            work: load.work,
        })
    }

    pub(super) fn now(&self) -> Instant {
        self.clock.now()
    }

    /// Offers the load from `begin` on; `at_window` is called when the measured time begins and ends.
    pub(super) fn run(
        &mut self,
        load: &Load,
        begin: Instant,
        tally: &mut Tally,
        mut at_window: impl FnMut(),
    ) -> io::Result<()> {
        let mut arrivals = stream(load.seed, "arrivals");
        let mut requests = stream(load.seed, "requests");
        let end = begin + load.length;
        let mut due = begin;
        let mut inside = false;
        loop {
            let now = self.clock.now();
            if tally.counts(now) != inside {
                inside = !inside;
                at_window();
            }
            if now >= end {
                break;
            }
            // A few at a time, so that answers are read while a burst goes out.
            for _ in 0..32 {
                if due > now {
                    break;
                }
                let at = self.clock.now();
                self.offer(&mut requests, load, due, at, tally);
                let rate = rate_at(&load.rates, due.since(begin));
                due += Span::from_nanos((exponential(&mut arrivals) / rate * 1e9) as u64);
            }
            self.step(now, tally)?;
        }
        // What is under way may still come back: the callers' credits are not to be lost.
        let last = end + Span::from_millis(20);
        while self.clock.now() < last {
            self.step(self.clock.now(), tally)?;
        }
        if inside {
            at_window();
        }
        Ok(())
    }

    /// Reads what has come, lets timers fire, writes.
    fn step(&mut self, now: Instant, tally: &mut Tally) -> io::Result<()> {
        self.poll.poll(&mut self.events, Some(Duration::ZERO))?;
        let tokens: Vec<(usize, bool)> =
            self.events.iter().map(|e| (e.token().0, e.is_writable())).collect();
        for (number, writable) in tokens {
            self.receive(number, tally)?;
            if writable {
                self.touch(number);
            }
        }
        while let Some(Reverse((at, number))) = self.timers.peek().copied().filter(|t| t.0.0 <= now)
        {
            self.timers.pop();
            if self.peers[number].timer == at {
                self.peers[number].timer = Instant::FAR;
                self.peers[number].caller.dispatch(now);
                self.drain(number, now, tally);
            }
        }
        for number in std::mem::take(&mut self.dirty) {
            self.peers[number].flush(&self.clock, tally)?;
        }
        Ok(())
    }

    fn offer(&mut self, rng: &mut Rng, load: &Load, due: Instant, now: Instant, tally: &mut Tally) {
        let number = rng.below(load.callers as u64) as usize;
        let rank = Rank::new(24, rng.below(1 << 16) as u16);
        let payload = match self.work {
            Work::Spin => Payload::Spin(load.service.sample(rng, 1.0)),
            Work::None => Payload::None,
            Work::Kv => {
                let key = rng.below(KEYS.into()) as u32;
                // Facebook's USR, as in Breakwater §5.4: 99.8 % reads.
                if rng.unit() < 0.998 { Payload::Get(key) } else { Payload::Set(key) }
            }
        };
        tally.offer(due, rank, number);
        let context = Context { rank, ..Context::default() };
        match self.peers[number].caller.submit(now, &context) {
            Ok(id) => {
                let calls = &mut self.peers[number].calls;
                if calls.len() <= id.index() {
                    calls.resize(id.index() + 1, None);
                }
                calls[id.index()] = Some(Pending { due, late: now.since(due), rank, payload });
            }
            Err(_) => {
                tally.leave(due, now);
                tally.end(due, now, Ending::Rejected, rank, number);
            }
        }
        self.drain(number, now, tally);
    }

    /// Does what a caller decided.
    fn drain(&mut self, number: usize, now: Instant, tally: &mut Tally) {
        let peer = &mut self.peers[number];
        while let Some(action) = peer.caller.poll() {
            match action {
                CallAction::Transmit { id, context, .. } => {
                    let Some(pending) = peer.calls[id.index()] else { continue };
                    peer.call += 1;
                    let (method, payload) = pending.payload.bytes();
                    let head = RequestHead { method, context };
                    let names = &self.names;
                    wire::write_request(&mut peer.out, peer.call, &head, now, names, &payload);
                    // What the throttle held is the throttle's; being late to ask it is ours.
                    peer.leaving.push_back((peer.out.len(), now - pending.late));
                    peer.sent.push((peer.call, id));
                    if tally.counts(now) {
                        tally.sent += 1;
                        tally.requests += 1;
                    }
                }
                CallAction::Fail { id, .. } => {
                    if let Some(pending) = peer.calls[id.index()].take() {
                        tally.end(pending.due, now, Ending::Rejected, pending.rank, number);
                    }
                }
                CallAction::Report { context, .. } => {
                    wire::write_report(&mut peer.out, &context);
                    tally.sent += u64::from(tally.counts(now));
                }
            }
        }
        if let Some(at) = peer.caller.next_wakeup()
            && at < peer.timer
        {
            peer.timer = at;
            self.timers.push(Reverse((at, number)));
        }
        if peer.written < peer.out.len() {
            self.touch(number);
        }
    }

    fn touch(&mut self, number: usize) {
        if !std::mem::replace(&mut self.peers[number].dirty, true) {
            self.dirty.push(number);
        }
    }

    /// Reads what has come for a caller and tells it.
    fn receive(&mut self, number: usize, tally: &mut Tally) -> io::Result<()> {
        loop {
            let peer = &mut self.peers[number];
            let count = match peer.stream.read(&mut self.buffer) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(count) => count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            };
            let now = self.clock.now();
            let mut input = std::mem::take(&mut peer.input);
            input.extend_from_slice(&self.buffer[..count]);
            let mut used = 0;
            let malformed = |error| io::Error::new(ErrorKind::InvalidData, format!("{error}"));
            while let Some((frame, length)) =
                Frame::read(&input[used..], &Limits::default()).map_err(malformed)?
            {
                used += length;
                tally.received += u64::from(tally.counts(now));
                self.take(number, &frame, now, tally).map_err(malformed)?;
            }
            input.drain(..used);
            self.peers[number].input = input;
            self.drain(number, now, tally);
            if count < self.buffer.len() {
                return Ok(());
            }
        }
    }

    fn take(
        &mut self,
        number: usize,
        frame: &Frame<'_>,
        now: Instant,
        tally: &mut Tally,
    ) -> Result<(), wire::WireError> {
        let peer = &mut self.peers[number];
        let feedback = wire::read_feedback(frame.fields)?;
        let (answer, ending) = match frame.kind {
            Some(Kind::Answer) => (Answer::Done(Outcome::Serve), Ending::Answered),
            Some(Kind::Failure) => (Answer::Done(Outcome::Fail), Ending::Failed),
            Some(Kind::Refusal) => {
                (Answer::Refused(wire::read_rejection(frame.fields)?), Ending::Refused)
            }
            Some(Kind::Feedback) => {
                feedback.iter().for_each(|feedback| peer.caller.notice(now, 0, feedback));
                return Ok(());
            }
            _ => return Ok(()),
        };
        let Ok(place) = peer.sent.binary_search_by_key(&frame.call, |(call, _)| *call) else {
            return Ok(());
        };
        let (_, id) = peer.sent.remove(place);
        if let Next::Over(_) = peer.caller.respond(now, id, answer, feedback.as_ref())
            && let Some(pending) = peer.calls[id.index()].take()
        {
            tally.end(pending.due, now, ending, pending.rank, number);
        }
        Ok(())
    }
}

impl Peer {
    fn flush(&mut self, clock: &Monotonic, tally: &mut Tally) -> io::Result<()> {
        self.dirty = false;
        while self.written < self.out.len() {
            match self.stream.write(&self.out[self.written..]) {
                Ok(count) => self.written += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        let now = clock.now();
        while let Some((_, due)) = self.leaving.pop_front_if(|(end, _)| *end <= self.written) {
            tally.leave(due, now);
        }
        if self.written == self.out.len() {
            self.out.clear();
            self.written = 0;
        }
        Ok(())
    }
}

impl Payload {
    fn bytes(self) -> (u32, Vec<u8>) {
        match self {
            Self::Spin(span) => (1, span.as_nanos().to_le_bytes().to_vec()),
            Self::Get(key) => (1, key.to_le_bytes().to_vec()),
            Self::Set(key) => (2, [&key.to_le_bytes()[..], &[7; 64]].concat()),
            Self::None => (1, Vec::new()),
        }
    }
}

/// The rate in force so long after the beginning.
fn rate_at(rates: &[(Span, f64)], since: Span) -> f64 {
    let current = rates.iter().rev().find(|(from, _)| *from <= since).or(rates.first());
    current.map_or(1.0, |(_, rate)| rate.max(1e-6))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_change_when_they_are_due() {
        let millis = Span::from_millis;
        let rates = [(millis(0), 1.0), (millis(10), 5.0), (millis(20), 2.0)];
        let at = |ms| rate_at(&rates, millis(ms));
        assert_eq!((at(0), at(9), at(10), at(25)), (1.0, 1.0, 5.0, 2.0));
    }

    /// A request is late until it is written, not only until somebody thought of it.
    #[test]
    fn lag_counts_until_a_request_is_written() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let service = Service { dist: tidegate_sim::dist::Dist::Constant, mean: Span::ZERO };
        let load = Load {
            callers: 1,
            caller: CallerConfig::from_toml("throttle = { throttle = 'open' }").unwrap(),
            work: Work::None,
            service,
            rates: Vec::new(),
            length: Span::ZERO,
            seed: 1,
        };
        let mut generator = Generator::connect(listener.local_addr().unwrap(), &load).unwrap();
        let due = generator.now();
        let mut tally = Tally::new(due, Instant::FAR, Span::from_secs(1), 1);
        let submitted = generator.now();
        generator.offer(&mut Rng::new(1), &load, due, submitted, &mut tally);
        assert_eq!((tally.offered, tally.lag.len()), (1, 0), "it has not left");
        let waited = generator.now();
        generator.step(waited, &mut tally).unwrap();
        assert_eq!(tally.lag.len(), 1);
        assert!(tally.lag.mean() >= waited.since(due).as_nanos() as f64);
    }
}
