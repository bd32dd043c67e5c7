//! A saturating closed loop: what a server can do, and how long a round trip takes.
//!
//! Every connection has so many requests outstanding and sends another for each answer. Nothing
//! throttles them.

use std::io::{self, ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token};
use tidegate_core::rng::Rng;
use tidegate_core::{CallerId, Context, Span};
use tidegate_driver::Names;
use tidegate_rpc::wire::{self, Frame, Kind, Limits, RequestHead};
use tidegate_sim::measure::Histogram;

/// What a closed loop found.
pub(super) struct Closed {
    /// Answers per second.
    pub(super) rate: f64,
    /// Answers in all, and requests that were refused.
    pub(super) served: u64,
    pub(super) refused: u64,
    pub(super) latency: Histogram,
}

struct Conn {
    stream: TcpStream,
    context: Context,
    call: u64,
    input: Vec<u8>,
    out: Vec<u8>,
    written: usize,
    /// When each outstanding request was written, in the order of their answers.
    sent: std::collections::VecDeque<Instant>,
}

/// Runs `connections` with `pipeline` requests each for so long, of which the first fifth is not
/// counted. `payload` makes the method and payload of a request. `counted` is called when counting begins.
pub(super) fn run(
    address: SocketAddr,
    connections: usize,
    pipeline: usize,
    duration: Duration,
    mut payload: impl FnMut(&mut Rng) -> (u32, Vec<u8>),
    mut counted: impl FnMut(),
) -> io::Result<Closed> {
    let mut poll = Poll::new()?;
    let mut events = Events::with_capacity(1024);
    let (mut rng, names) = (Rng::new(1), Names::process());
    let mut conns = Vec::new();
    for number in 0..connections {
        let stream = std::net::TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        let mut stream = TcpStream::from_std(stream);
        poll.registry().register(&mut stream, Token(number), Interest::READABLE)?;
        let context = Context { caller: CallerId(number as u64 + 1), ..Context::default() };
        let (input, out, sent) = Default::default();
        conns.push(Conn { stream, context, call: 0, input, out, written: 0, sent });
    }
    let begun = Instant::now();
    let (from, to) = (begun + duration / 5, begun + duration);
    let mut result = Closed { rate: 0.0, served: 0, refused: 0, latency: Histogram::default() };
    let mut counting = false;
    for conn in &mut conns {
        conn.send(pipeline, begun, &mut rng, &names, &mut payload)?;
    }
    let mut buffer = vec![0; 64 << 10];
    loop {
        poll.poll(&mut events, Some(Duration::from_millis(100)))?;
        let now = Instant::now();
        if !counting && now >= from {
            counting = true;
            counted();
        }
        if now >= to {
            break;
        }
        for event in &events {
            let conn = &mut conns[event.token().0];
            let answers = conn.receive(&mut buffer, now, counting, &mut result)?;
            conn.send(answers, now, &mut rng, &names, &mut payload)?;
        }
    }
    result.rate = result.served as f64 / (to - from).as_secs_f64();
    Ok(result)
}

impl Conn {
    fn send(
        &mut self,
        count: usize,
        now: Instant,
        rng: &mut Rng,
        names: &Names,
        payload: &mut impl FnMut(&mut Rng) -> (u32, Vec<u8>),
    ) -> io::Result<()> {
        for _ in 0..count {
            self.call += 1;
            let (method, payload) = payload(rng);
            let head = RequestHead { method, context: self.context };
            let at = tidegate_core::Instant::ZERO;
            wire::write_request(&mut self.out, self.call, &head, at, names, &payload);
            self.sent.push_back(now);
        }
        while self.written < self.out.len() {
            match self.stream.write(&self.out[self.written..]) {
                Ok(count) => self.written += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        self.out.clear();
        self.written = 0;
        Ok(())
    }

    /// How many answers came.
    fn receive(
        &mut self,
        buffer: &mut [u8],
        now: Instant,
        counting: bool,
        result: &mut Closed,
    ) -> io::Result<usize> {
        let mut answers = 0;
        loop {
            let count = match self.stream.read(buffer) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(count) => count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            };
            self.input.extend_from_slice(&buffer[..count]);
            let mut used = 0;
            while let Ok(Some((frame, length))) =
                Frame::read(&self.input[used..], &Limits::default())
            {
                used += length;
                let ends = [Some(Kind::Answer), Some(Kind::Refusal), Some(Kind::Failure)];
                if !ends.contains(&frame.kind) {
                    continue;
                }
                let served = frame.kind == Some(Kind::Answer);
                answers += 1;
                let sent = self.sent.pop_front().unwrap_or(now);
                if counting && served {
                    result.served += 1;
                    result.latency.add(Span::from(now - sent));
                } else if counting {
                    result.refused += 1;
                }
            }
            self.input.drain(..used);
            if count < buffer.len() {
                break;
            }
        }
        Ok(answers)
    }
}
