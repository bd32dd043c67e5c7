//! Connections: one per server, made when it is needed, shared by all calls.
//!
//! Calls leave their requests here, also while the connection is being made, and [`stream`] writes what
//! has come together. A request becomes bytes when they are written: what is left until its deadline
//! does not include the time it waited here, and one that was given up before leaves no trace.
//!
//! [`stream`]: super::stream

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tidegate_core::{Context, Feedback, Instant, Rejection, Span};
use tidegate_driver::{Names, SharedCaller};
use tokio::sync::{Notify, oneshot};

use super::stream;
use crate::error::{Broken, full};
use crate::wire::{self, Failure, Frame, Goodbye, Kind, Limits, RequestHead, WireError};

/// After a server could not be reached, or has ended a connection without an answer to anything, calls fail for so
/// long without another try: long beside a round trip, short beside the time in which a server starts.
const PAUSE: Span = Span::from_millis(100);
/// Bytes written at once. What is on its way to the kernel is not to wait long for it.
const BATCH: usize = 64 << 10;

/// What a client bears with its connections.
#[derive(Clone, Copy)]
pub(super) struct Bounds {
    pub(super) limits: Limits,
    /// How long a server may take to be reached and to take what is written, and give no sign of life
    /// while calls to it time out.
    pub(super) silence: Duration,
    /// Most bytes that wait to be written on a connection.
    pub(super) out: usize,
}

/// A server, and the connection to it if there is one.
pub(super) struct Endpoint {
    address: SocketAddr,
    link: Mutex<Option<Arc<Link>>>,
}

impl Endpoint {
    pub(super) fn new(address: SocketAddr) -> Self {
        Self { address, link: Mutex::default() }
    }

    /// The connection, begun now if need be.
    pub(super) fn link(&self, caller: &SharedCaller, number: usize, bounds: Bounds) -> Arc<Link> {
        let now = caller.now();
        let mut current = lock(&self.link);
        if let Some(link) = current.as_ref().filter(|link| lock(&link.state).stands(now)) {
            return Arc::clone(link);
        }
        let link = Arc::new(Link::new(caller.clone(), number, bounds));
        tokio::spawn(stream::run(Arc::clone(&link), self.address));
        *current = Some(Arc::clone(&link));
        link
    }

    /// Tells the server what waits here, if there is a connection. Where nothing is taken any more, a
    /// report would not help.
    pub(super) fn report(&self, context: &Context) {
        let Some(link) = lock(&self.link).clone() else { return };
        let mut state = lock(&link.state);
        if state.is_open() && state.bytes() < link.bounds.out {
            wire::write_report(&mut state.out, context);
            link.wake.notify_one();
        }
    }

    /// Says goodbye without waiting for it to be written.
    pub(super) fn leave(&self) -> Option<Arc<Link>> {
        let link = lock(&self.link).take()?;
        let mut state = lock(&link.state);
        if state.parting == Parting::Not {
            state.parting = Parting::Wanted;
        }
        drop(state);
        link.wake.notify_one();
        Some(link)
    }
}

/// A connection, from before it is made until after it ended.
pub(super) struct Link {
    pub(super) caller: SharedCaller,
    /// The caller's number for the server.
    number: usize,
    pub(super) bounds: Bounds,
    names: Names,
    state: Mutex<State>,
    /// There is something to write, or nothing more to come.
    pub(super) wake: Notify,
    /// Goodbye has been said.
    parted: Notify,
}

#[derive(Default)]
struct State {
    /// The number of the last call.
    last: u64,
    waiting: HashMap<u64, oneshot::Sender<Received>>,
    /// Those of them that have not been written, and their bytes.
    unsent: BTreeMap<u64, Unsent>,
    unsent_bytes: usize,
    /// Reports and cancellations. Of the latter there are never more than requests were written.
    out: Vec<u8>,
    /// The first request since something was heard was written then.
    unanswered: Option<Instant>,
    /// Whether a call was ever ended by the server.
    met: bool,
    /// The server has said goodbye, or the connection broke: no new calls.
    closed: Option<End>,
    /// Not to be tried again before.
    retry: Instant,
    parting: Parting,
}

struct Unsent {
    head: RequestHead,
    payload: Bytes,
}

impl Unsent {
    /// What it takes here, which is not nothing without a payload.
    fn bytes(&self) -> usize {
        size_of::<Self>() + self.payload.len()
    }
}

/// How far we are with saying goodbye. Then the connection ends with the last answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Parting {
    #[default]
    Not,
    Wanted,
    Writing,
    Done,
}

/// How a connection ended.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum End {
    Io(io::ErrorKind),
    Wire(WireError),
    Closed,
}

impl End {
    /// Nothing was heard or taken for too long.
    pub(super) const SILENT: Self = Self::Io(io::ErrorKind::TimedOut);

    fn told(self) -> Broken {
        match self {
            Self::Io(kind) => Broken::Io(kind.into()),
            Self::Wire(error) => Broken::Wire(error),
            Self::Closed => Broken::Closed,
        }
    }
}

impl State {
    fn is_open(&self) -> bool {
        self.closed.is_none() && self.parting == Parting::Not
    }

    /// Whether calls go by this connection, were it only to fail at once.
    fn stands(&self, now: Instant) -> bool {
        self.is_open() || now < self.retry
    }

    fn bytes(&self) -> usize {
        self.unsent_bytes + self.out.len()
    }
}

/// What came back.
#[derive(Debug)]
pub(super) enum Received {
    Answer(Bytes, Option<Feedback>),
    Refusal(Rejection, Option<Feedback>),
    Failure(Failure, Option<Feedback>),
    /// The connection ended before the request was written.
    Unsent(Broken),
    Broken(Broken),
}

impl Link {
    fn new(caller: SharedCaller, number: usize, bounds: Bounds) -> Self {
        Self {
            caller,
            number,
            bounds,
            names: Names::process(),
            state: Mutex::default(),
            wake: Notify::new(),
            parted: Notify::new(),
        }
    }

    /// Sends a request and waits for what comes back.
    pub(super) async fn call(&self, head: RequestHead, payload: Bytes) -> Received {
        let (sender, receiver) = oneshot::channel();
        let call = {
            let mut state = lock(&self.state);
            if !state.is_open() {
                return Received::Unsent(state.closed.unwrap_or(End::Closed).told());
            }
            if state.bytes() >= self.bounds.out {
                return Received::Refusal(full(state.waiting.len()), None);
            }
            state.last += 1;
            let call = state.last;
            let unsent = Unsent { head, payload };
            state.unsent_bytes += unsent.bytes();
            state.unsent.insert(call, unsent);
            state.waiting.insert(call, sender);
            call
        };
        self.wake.notify_one();
        let _sent = Sent { link: self, call, deadline: head.context.deadline };
        receiver.await.unwrap_or(Received::Broken(Broken::Closed))
    }

    /// Fills in what is to be written next, which was written when this is asked again. False once
    /// there will never be more.
    pub(super) fn fill(&self, bytes: &mut Vec<u8>) -> bool {
        let now = self.caller.now();
        let mut state = lock(&self.state);
        bytes.clear();
        std::mem::swap(bytes, &mut state.out);
        while bytes.len() < BATCH
            && let Some((call, unsent)) = state.unsent.pop_first()
        {
            state.unsent_bytes -= unsent.bytes();
            state.unanswered.get_or_insert(now);
            wire::write_request(bytes, call, &unsent.head, now, &self.names, &unsent.payload);
        }
        match state.parting {
            Parting::Wanted if bytes.is_empty() => {
                wire::write_goodbye(bytes, Goodbye::Leaving);
                state.parting = Parting::Writing;
            }
            Parting::Writing => {
                state.parting = Parting::Done;
                self.parted.notify_waiters();
            }
            _ => {}
        }
        let last = state.closed.is_some() || state.parting == Parting::Done;
        !(last && bytes.is_empty() && state.waiting.is_empty())
    }

    /// The server lives.
    pub(super) fn hear(&self) {
        lock(&self.state).unanswered = None;
    }

    /// The connection has ended, or there never was one. Where nothing came of it others are not to try
    /// the same at once: the server cannot be reached, or does not want more connections.
    pub(super) fn ended(&self, end: End) {
        let mut state = lock(&self.state);
        if !state.met {
            state.retry = self.caller.now() + PAUSE;
        }
        drop(state);
        self.fail(end);
    }

    /// The connection is no more.
    pub(super) fn fail(&self, end: End) {
        let (waiting, unsent) = {
            let mut state = lock(&self.state);
            state.closed.get_or_insert(end);
            state.parting = Parting::Done;
            state.out = Vec::new();
            state.unsent_bytes = 0;
            (std::mem::take(&mut state.waiting), std::mem::take(&mut state.unsent))
        };
        for (call, sender) in waiting {
            let told = if unsent.contains_key(&call) { Received::Unsent } else { Received::Broken };
            // Nobody listens any more: it was cancelled just now.
            let _ = sender.send(told(end.told()));
        }
        self.wake.notify_one();
        self.parted.notify_waiters();
    }

    /// Waits until goodbye was said, or cannot be.
    pub(super) async fn parted(&self) {
        loop {
            let parted = self.parted.notified();
            if lock(&self.state).parting == Parting::Done {
                return;
            }
            parted.await;
        }
    }

    /// Hands a frame to who waits for it, or to the caller.
    pub(super) fn take(&self, frame: &Frame<'_>) -> Result<(), WireError> {
        let notice = |feedback: &Feedback| {
            self.caller.input(|caller, now| caller.notice(now, self.number, feedback));
        };
        let feedback = wire::read_feedback(frame.fields)?;
        let received = match frame.kind {
            Some(Kind::Answer) => Received::Answer(Bytes::copy_from_slice(frame.payload), feedback),
            Some(Kind::Refusal) => Received::Refusal(wire::read_rejection(frame.fields)?, feedback),
            Some(Kind::Failure) => {
                Received::Failure(wire::read_failure(frame.fields, frame.payload)?, feedback)
            }
            Some(Kind::Feedback) => {
                feedback.iter().for_each(notice);
                return Ok(());
            }
            Some(Kind::Goodbye) => {
                lock(&self.state).closed = Some(End::Closed);
                // Perhaps there is nothing to wait for.
                self.wake.notify_one();
                return Ok(());
            }
            Some(Kind::Request | Kind::Report | Kind::Cancel) | None => return Ok(()),
        };
        let mut state = lock(&self.state);
        state.met = true;
        let waiting = state.waiting.remove(&frame.call);
        let was_last = state.waiting.is_empty();
        drop(state);
        if was_last {
            // Who leaves waits for the last answer.
            self.wake.notify_one();
        }
        match waiting {
            Some(sender) => {
                // Nobody listens any more: it was cancelled just now.
                let _ = sender.send(received);
            }
            // The answer to a call that was given up still says how the gate is.
            None => feedback.iter().for_each(notice),
        }
        Ok(())
    }
}

/// A request under way. Given up before its answer came, it is cancelled, at the server if it was
/// written.
struct Sent<'a> {
    link: &'a Link,
    call: u64,
    deadline: Instant,
}

impl Drop for Sent<'_> {
    fn drop(&mut self) {
        let (link, now) = (self.link, self.link.caller.now());
        let mut state = lock(&link.state);
        if state.waiting.remove(&self.call).is_none() {
            // Answered.
            return;
        }
        match state.unsent.remove(&self.call) {
            Some(unsent) => state.unsent_bytes -= unsent.bytes(),
            None => wire::write_cancel(&mut state.out, self.call),
        }
        // A server that stalls, or is gone and nobody says so: TCP would go on for a quarter of an hour.
        let since = state.unanswered.filter(|_| now >= self.deadline);
        let silent = since.is_some_and(|since| now.since(since) >= link.bounds.silence.into());
        drop(state);
        if silent {
            link.fail(End::SILENT);
        } else {
            link.wake.notify_one();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
