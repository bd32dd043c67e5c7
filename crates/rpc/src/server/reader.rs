//! Reading: whatever became ready is read and parsed in one pass, by one thread at a time.
//!
//! A pass is bounded: [`READS`] reads of [`stamp::READ`] bytes. What is ready beyond that stays on a
//! list, and its age, counted from the moment it was seen to be ready, is part of the delay that the
//! gate is told, as is the age of what was read by the kernel's stamps.
//!
//! Bytes are parsed where they were read, in one buffer for all connections; only the beginning of a
//! frame whose end has not come is kept with its connection. So an idle connection costs a few
//! hundred bytes.

use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use mio::event::Event;
use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token};
use socket2::SockRef;
use tidegate_core::{Instant, Sender, Span};
use tidegate_driver::stamp::{self, Receiver, Stamps};
use tidegate_driver::{Clock, Names, sender};

use super::bounds::Bounds;
use super::conn::Conn;
use super::half::{Half, Input};
use crate::watch::watch;
use crate::wire::{self, Goodbye, Limits};

/// Most reads between two looks at the gate: a fraction of a millisecond's work.
const READS: usize = 256;
/// Most connections accepted in one pass, so that a storm of them does not keep others waiting.
const ACCEPTS: usize = 64;
/// Events taken from the kernel at once.
const EVENTS: usize = 1024;
/// How often idle connections are looked for.
const SWEEP: Span = Span::from_millis(500);
/// Connections that are asked for their round trips each time.
const ASKED: usize = 16;

/// How long a connection has to be silent after our goodbye before it is closed, if its peer does not
/// do so itself: what it sent before it heard us has come by then, from anywhere on earth.
const LINGER: Span = Span::from_secs(1);

/// After so long a silence the kernel asks whether a peer is still there, or after `idle` if that is
/// shorter: what runs for one that is gone keeps its slot until then.
const SILENCE: Duration = Duration::from_secs(30);

pub(super) const LISTENER: Token = Token(usize::MAX);
pub(super) const WAKER: Token = Token(usize::MAX - 1);

pub(super) struct Settings {
    pub(super) limits: Limits,
    pub(super) idle: Span,
    pub(super) frame_time: Span,
    pub(super) connections: usize,
    pub(super) stamps: bool,
    /// Whether what callers say about themselves is believed.
    pub(super) trust: bool,
    /// Peers that speak for many.
    pub(super) gateways: Vec<IpAddr>,
}

impl Settings {
    /// Who sends what comes from `peer`.
    fn sender(&self, peer: IpAddr) -> Sender {
        let sender = sender::at(peer);
        let is_gateway = self.gateways.contains(&peer.to_canonical());
        if is_gateway { Sender { peer: Sender::GATEWAY, ..sender } } else { sender }
    }
}

/// The reading half of a server.
pub(super) struct Reader {
    poll: Poll,
    events: Events,
    listener: Option<TcpListener>,
    accepting: bool,
    conns: Vec<Option<Half>>,
    vacant: Vec<usize>,
    /// Connections that may have more to read.
    unread: VecDeque<usize>,
    /// Connections that are not read although they may have something: too much of them is open, or
    /// they do not take their answers.
    parked: Vec<usize>,
    receiver: Receiver,
    stamps: Stamps,
    buffer: Vec<u8>,
    settings: Settings,
    bounds: Arc<Bounds>,
    swept: Instant,
    /// When we said it.
    goodbye: Instant,
    names: Names,
}

impl Reader {
    pub(super) fn new(
        poll: Poll,
        mut listener: TcpListener,
        settings: Settings,
        bounds: Arc<Bounds>,
        now: Instant,
    ) -> io::Result<Self> {
        poll.registry().register(&mut listener, LISTENER, Interest::READABLE)?;
        Ok(Self {
            poll,
            events: Events::with_capacity(EVENTS),
            listener: Some(listener),
            accepting: false,
            conns: Vec::new(),
            vacant: Vec::new(),
            unread: VecDeque::new(),
            parked: Vec::new(),
            receiver: Receiver::new(),
            stamps: Stamps::default(),
            buffer: vec![0; stamp::READ],
            // The names of strangers are not to fill the table of this process.
            names: if settings.trust { Names::process() } else { Names::default() },
            settings,
            bounds,
            swept: now,
            goodbye: now,
        })
    }

    /// One pass: waits for something to happen, `timeout` at most, then reads what is ready. Returns
    /// the moment of the pass and the delay of what was read and of what was left unread.
    pub(super) fn pass(
        &mut self,
        timeout: Duration,
        clock: &dyn Clock,
        inputs: &mut Vec<Input>,
    ) -> (Instant, Span) {
        let waits = self.unread.is_empty() && !self.accepting;
        let timeout = if waits { timeout } else { Duration::ZERO };
        // Interrupted by a signal: then nothing is ready.
        let _ = self.poll.poll(&mut self.events, Some(timeout));
        let now = clock.now();
        self.sort(now);
        if self.bounds.take_room() {
            self.unpark(now);
        }
        if self.accepting {
            self.accept(now, inputs);
        }
        let mut delay = Span::ZERO;
        // Once each: what fills its read has more, and waits for its next turn.
        for _ in 0..self.unread.len().min(READS) {
            let Some(token) = self.unread.pop_front() else { break };
            delay = delay.max(self.read(token, now, clock, inputs));
        }
        if let Some(oldest) = self.unread.front().and_then(|token| self.half(*token)?.listed) {
            delay = delay.max(now.since(oldest));
        }
        if now.since(self.swept) >= SWEEP {
            self.sweep(now, inputs);
        }
        (now, delay)
    }

    /// Accepts nothing any more, and tells everybody.
    pub(super) fn say_goodbye(&mut self, now: Instant) {
        self.goodbye = now;
        self.stop_listening();
        for half in self.conns.iter().flatten() {
            half.conn.lock().append(|out| wire::write_goodbye(out, Goodbye::Leaving));
            half.conn.flush();
        }
    }

    /// Closes connections on which nothing is open or comes any more. Whether all are closed.
    pub(super) fn part(&self, now: Instant) -> bool {
        self.conns.iter().flatten().fold(true, |parted, half| {
            let silent = now.since(half.heard.max(self.goodbye)) >= LINGER;
            if silent && half.conn.lock().is_idle() {
                half.conn.end();
            }
            parted && half.conn.is_gone()
        })
    }

    /// Whether everything has been written that can be.
    pub(super) fn is_clean(&self) -> bool {
        self.conns.iter().flatten().all(|half| half.conn.is_gone() || half.conn.lock().is_clean())
    }

    /// Ends all connections.
    pub(super) fn close(&mut self) {
        self.stop_listening();
        for half in self.conns.iter().flatten() {
            half.conn.end();
        }
    }

    fn stop_listening(&mut self) {
        if let Some(mut listener) = self.listener.take() {
            let _ = self.poll.registry().deregister(&mut listener);
            self.accepting = false;
        }
    }

    fn half(&self, token: usize) -> Option<&Half> {
        self.conns.get(token)?.as_ref()
    }

    /// What the events say: who is to be read, who can be written to.
    fn sort(&mut self, now: Instant) {
        for event in &self.events {
            let token = match event.token() {
                LISTENER => {
                    self.accepting = true;
                    continue;
                }
                WAKER => continue,
                Token(token) => token,
            };
            let Some(Some(half)) = self.conns.get_mut(token) else { continue };
            if event.is_writable() && !half.conn.lock().is_clean() {
                half.conn.flush();
            }
            if event.is_error() && half.parked {
                // It is not read, so nobody else would notice.
                half.conn.end();
            }
            half.ending |= event.is_read_closed();
            if wants_reading(event) && half.listed.is_none() && !half.parked {
                half.listed = Some(now);
                self.unread.push_back(token);
            }
        }
    }

    /// Lists those again that are to be read again.
    fn unpark(&mut self, now: Instant) {
        let mut parked = std::mem::take(&mut self.parked);
        parked.retain(|token| {
            let Some(Some(half)) = self.conns.get_mut(*token) else { return false };
            if half.is_full(&self.bounds) {
                return true;
            }
            half.parked = false;
            half.listed = Some(now);
            // Until now it was us who did not go on.
            half.begun = now;
            self.unread.push_back(*token);
            false
        });
        self.parked = parked;
    }

    fn accept(&mut self, now: Instant, inputs: &mut Vec<Input>) {
        let Some(listener) = &self.listener else { return };
        for _ in 0..ACCEPTS {
            let (stream, peer) = match listener.accept() {
                Ok(accepted) => accepted,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.accepting = false;
                    return;
                }
                // Out of file descriptors, or the peer is gone already: others may do better later.
                Err(_) => {
                    self.accepting = false;
                    return;
                }
            };
            if self.conns.len() - self.vacant.len() >= self.settings.connections {
                continue;
            }
            let token = self.vacant.pop().unwrap_or_else(|| {
                self.conns.push(None);
                self.conns.len() - 1
            });
            self.conns[token] = self.greet(stream, peer.ip(), token, now);
            match self.conns[token] {
                Some(_) => inputs.push(Input::Accepted),
                None => self.vacant.push(token),
            }
        }
    }

    fn greet(
        &self,
        mut stream: TcpStream,
        peer: IpAddr,
        token: usize,
        now: Instant,
    ) -> Option<Half> {
        // Answers leave when they are written; waiting for more is what coalescing does.
        let _ = stream.set_nodelay(true);
        let _ = watch(SockRef::from(&stream), SILENCE.min(self.settings.idle.into()));
        if self.settings.stamps {
            Receiver::enable(&stream);
        }
        let interest = Interest::READABLE | Interest::WRITABLE;
        self.poll.registry().register(&mut stream, Token(token), interest).ok()?;
        let conn = Arc::new(Conn::new(stream, Arc::clone(&self.bounds)));
        Some(Half::new(conn, self.settings.sender(peer), now))
    }

    /// One read of one connection. How long what it brought has waited.
    fn read(
        &mut self,
        token: usize,
        now: Instant,
        clock: &dyn Clock,
        inputs: &mut Vec<Input>,
    ) -> Span {
        let Some(Some(half)) = self.conns.get_mut(token) else { return Span::ZERO };
        half.listed = None;
        if half.is_full(&self.bounds) {
            half.parked = true;
            self.parked.push(token);
            return Span::ZERO;
        }
        let (count, wall) = match self.receiver.read(&half.conn.stream, &mut self.buffer) {
            Ok((0, _)) => return self.lose(token, inputs),
            Ok(read) => read,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                // The end was that of a connection that had this token before, and still has a handler.
                half.ending = false;
                return Span::ZERO;
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => (0, None),
            Err(_) => return self.lose(token, inputs),
        };
        // A read that did not fill the buffer has emptied the socket; what comes then is an event,
        // unless that was the end and came with the event that brought us here.
        if count == self.buffer.len() || count == 0 || half.ending {
            half.listed = Some(now);
            self.unread.push_back(token);
        }
        half.heard = now;
        let arrived = self.stamps.arrived(wall, now, clock);
        let bytes = &self.buffer[..count];
        let (settings, names) = (&self.settings, &self.names);
        let parsed = if half.partial.is_empty() {
            half.begun = now;
            half.parse(bytes, arrived, settings, names, inputs).map(|used| {
                half.partial.extend_from_slice(&bytes[used..]);
            })
        } else {
            let mut partial = std::mem::take(&mut half.partial);
            partial.extend_from_slice(bytes);
            let used = half.parse(&partial, arrived, settings, names, inputs);
            used.map(|used| {
                if used > 0 {
                    half.begun = now;
                }
                if used < partial.len() {
                    partial.drain(..used);
                    half.partial = partial;
                }
            })
        };
        if parsed.is_err() {
            inputs.push(Input::Malformed);
            half.conn.part(Goodbye::Malformed);
            return self.lose(token, inputs);
        }
        self.bounds.count(&mut half.counted, half.partial.len());
        if half.counted > 0 && self.bounds.is_crowded() {
            self.part_with_oldest(now, inputs);
        }
        now.since(arrived)
    }

    /// Parts with those whose frames began longest ago, or who have taken none of their answers for
    /// longest. A few at once: to look for them takes time.
    fn part_with_oldest(&mut self, now: Instant, inputs: &mut Vec<Input>) {
        let since = |half: &Half| {
            let begun = (half.counted > 0).then_some(half.begun);
            begun.into_iter().chain(half.conn.lock().stuck(now)).min()
        };
        let waits = |(token, half): (usize, &Option<Half>)| Some((since(half.as_ref()?)?, token));
        let mut oldest: Vec<_> = self.conns.iter().enumerate().filter_map(waits).collect();
        oldest.sort_unstable();
        for (_, token) in oldest {
            if self.bounds.has_room() {
                break;
            }
            if let Some(half) = &self.conns[token] {
                half.conn.part(Goodbye::Violation);
            }
            self.lose(token, inputs);
        }
    }

    /// A connection is no more.
    fn lose(&mut self, token: usize, inputs: &mut Vec<Input>) -> Span {
        if let Some(mut half) = self.conns[token].take() {
            half.conn.end();
            half.conn.lock().abandon();
            self.bounds.count(&mut half.counted, 0);
            inputs.push(Input::Gone(half.caller, Arc::clone(&half.conn)));
            inputs.push(Input::Dead(half.conn));
            self.vacant.push(token);
        }
        Span::ZERO
    }

    /// The shortest round trip of some connections that were heard of lately: what delayed
    /// acknowledgements add to others says nothing about the network.
    fn round_trip(&self, now: Instant) -> Option<Span> {
        let heard = |half: &&Half| now.since(half.heard) < SWEEP;
        let asked = self.conns.iter().flatten().filter(heard).take(ASKED);
        asked.filter_map(|half| stamp::round_trip(&half.conn.stream)).min()
    }

    /// Ends connections that have been silent, have not gone on with a frame, or have not taken their
    /// answers, for too long, and those whose peers have said goodbye and wait for nothing.
    fn sweep(&mut self, now: Instant, inputs: &mut Vec<Input>) {
        // After a stall of ours ends of frames are there, and not all are read yet.
        let stalled = now.since(self.swept) >= self.settings.frame_time.max(SWEEP + SWEEP);
        self.swept = now;
        inputs.extend(self.round_trip(now).map(Input::RoundTrip));
        // What could not be accepted, for want of file descriptors say, may be now.
        self.accepting = self.listener.is_some();
        let mut lost = Vec::new();
        for (token, half) in self.conns.iter_mut().enumerate() {
            let Some(half) = half else { continue };
            let mut state = half.conn.lock();
            let silent = now.since(half.heard);
            state.stuck(now);
            let waits_for_us = state.open() > 0 && state.is_clean();
            // What was read in this pass has not begun yet.
            let over = half.left && silent >= SWEEP && state.is_idle();
            if half.conn.is_gone() || over {
                lost.push(token);
            } else if silent > self.settings.idle && !waits_for_us
                || !stalled && half.lags(now, self.settings.frame_time)
            {
                state.append(|out| wire::write_goodbye(out, Goodbye::Idle));
                lost.push(token);
            } else if silent >= SWEEP {
                state.rest();
                half.partial.shrink_to_fit();
            }
        }
        for token in lost {
            if let Some(half) = &self.conns[token] {
                half.conn.flush();
            }
            self.lose(token, inputs);
        }
        if self.bounds.is_crowded() {
            self.part_with_oldest(now, inputs);
        }
    }
}

fn wants_reading(event: &Event) -> bool {
    event.is_readable() || event.is_read_closed() || event.is_error()
}

#[cfg(test)]
mod tests {
    use tidegate_driver::Monotonic;

    use super::*;

    /// Who goes without a word while a task runs for it is noticed by the kernel, or not at all.
    #[test]
    fn who_is_accepted_is_watched() {
        for (idle, asks) in [(300, 30), (10, 10)] {
            let listener = TcpListener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
            let address = listener.local_addr().unwrap();
            let (limits, idle) = (Limits::default(), Span::from_secs(idle));
            let settings = Settings {
                limits,
                idle,
                frame_time: idle,
                connections: 1,
                stamps: false,
                trust: true,
                gateways: Vec::new(),
            };
            let bounds = Arc::new(Bounds::for_tests(1000));
            let poll = Poll::new().unwrap();
            let mut reader = Reader::new(poll, listener, settings, bounds, Instant::ZERO).unwrap();
            let _peer = std::net::TcpStream::connect(address).unwrap();
            while reader.conns.is_empty() {
                reader.pass(Duration::from_secs(1), &Monotonic::new(), &mut Vec::new());
            }
            let half = reader.half(0).unwrap();
            let socket = SockRef::from(&half.conn.stream);
            assert!(socket.keepalive().unwrap());
            assert_eq!(socket.tcp_keepalive_time().unwrap(), Duration::from_secs(asks));
        }
    }
}
