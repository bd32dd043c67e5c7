//! Connections: one per server, made when it is needed, shared by all calls.
//!
//! Calls append their frames to one buffer and a task writes it, so that calls made together leave
//! together. Another task reads, and hands each answer to who waits for it.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::{Buf, Bytes, BytesMut};
use tidegate_core::{Context, Feedback, Instant, Rejection};
use tidegate_driver::{Names, SharedCaller};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{Notify, oneshot};

use crate::error::Broken;
use crate::wire::{self, Failure, Frame, Goodbye, Kind, Limits, RequestHead, WireError};

/// A server, and the connection to it if there is one.
pub(super) struct Endpoint {
    address: SocketAddr,
    link: Mutex<Option<Arc<Link>>>,
    /// Held while somebody connects: others wait for the same connection.
    connecting: tokio::sync::Mutex<()>,
}

impl Endpoint {
    pub(super) fn new(address: SocketAddr) -> Self {
        Self { address, link: Mutex::default(), connecting: tokio::sync::Mutex::default() }
    }

    /// The connection, made now if need be.
    pub(super) async fn link(
        &self,
        caller: &SharedCaller,
        endpoint: usize,
        limits: Limits,
    ) -> Result<Arc<Link>, Broken> {
        if let Some(link) = self.usable() {
            return Ok(link);
        }
        let _connecting = self.connecting.lock().await;
        if let Some(link) = self.usable() {
            return Ok(link);
        }
        let stream = TcpStream::connect(self.address).await.map_err(Broken::Io)?;
        let _ = stream.set_nodelay(true);
        let (read, write) = stream.into_split();
        let link = Arc::new(Link::default());
        tokio::spawn(write_all(Arc::clone(&link), write));
        tokio::spawn(read_all(Arc::clone(&link), read, caller.clone(), endpoint, limits));
        *lock(&self.link) = Some(Arc::clone(&link));
        Ok(link)
    }

    /// Tells the server what waits here, if there is a connection.
    pub(super) fn report(&self, context: &Context) {
        if let Some(link) = self.usable() {
            lock(&link.state).out(|out| wire::write_report(out, context));
            link.written.notify_one();
        }
    }

    /// Says goodbye without waiting for it to be written.
    pub(super) fn leave(&self) -> Option<Arc<Link>> {
        let link = lock(&self.link).take()?;
        let mut state = lock(&link.state);
        state.out(|out| wire::write_goodbye(out, Goodbye::Leaving));
        state.leaving = true;
        drop(state);
        link.written.notify_one();
        Some(link)
    }

    pub(super) async fn close(&self) {
        let Some(link) = self.leave() else { return };
        loop {
            let over = link.over.notified();
            if lock(&link.state).over {
                return;
            }
            over.await;
        }
    }

    fn usable(&self) -> Option<Arc<Link>> {
        let link = lock(&self.link);
        link.as_ref().filter(|link| !lock(&link.state).closed()).map(Arc::clone)
    }
}

/// A connection.
#[derive(Default)]
pub(super) struct Link {
    state: Mutex<State>,
    /// There is something to write.
    written: Notify,
    /// The writer has ended.
    over: Notify,
}

#[derive(Default)]
struct State {
    out: Vec<u8>,
    /// The number of the last call.
    last: u64,
    waiting: HashMap<u64, oneshot::Sender<Received>>,
    /// The server has said goodbye, or the connection broke: no new calls.
    closed: bool,
    /// We have said goodbye: the writer ends when all is written and answered.
    leaving: bool,
    over: bool,
}

impl State {
    fn out(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        if !self.closed {
            write(&mut self.out);
        }
    }

    fn closed(&self) -> bool {
        self.closed || self.leaving
    }
}

/// What came back.
#[derive(Debug)]
pub(super) enum Received {
    Answer(Bytes, Option<Feedback>),
    Refusal(Rejection, Option<Feedback>),
    Failure(Failure, Option<Feedback>),
    Broken(Broken),
}

impl Link {
    /// Sends a request; none if the connection takes no more.
    pub(super) fn send(
        self: &Arc<Self>,
        head: &RequestHead,
        now: Instant,
        names: &Names,
        payload: &[u8],
    ) -> Option<Sent> {
        let (sender, receiver) = oneshot::channel();
        let mut state = lock(&self.state);
        if state.closed() {
            return None;
        }
        state.last += 1;
        let call = state.last;
        wire::write_request(&mut state.out, call, head, now, names, payload);
        state.waiting.insert(call, sender);
        drop(state);
        self.written.notify_one();
        Some(Sent { link: Arc::clone(self), call, receiver: Some(receiver) })
    }

    /// The connection is no more.
    fn fail(&self) {
        let waiting = {
            let mut state = lock(&self.state);
            state.closed = true;
            state.out = Vec::new();
            std::mem::take(&mut state.waiting)
        };
        // Whoever waits finds its sender gone.
        drop(waiting);
        self.written.notify_one();
    }

    /// Hands a frame to who waits for it, or to the caller.
    fn take(
        &self,
        frame: &Frame<'_>,
        caller: &SharedCaller,
        endpoint: usize,
    ) -> Result<(), WireError> {
        let feedback = wire::read_feedback(frame.fields)?;
        let received = match frame.kind {
            Some(Kind::Answer) => Received::Answer(Bytes::copy_from_slice(frame.payload), feedback),
            Some(Kind::Refusal) => Received::Refusal(wire::read_rejection(frame.fields)?, feedback),
            Some(Kind::Failure) => {
                Received::Failure(wire::read_failure(frame.fields, frame.payload)?, feedback)
            }
            Some(Kind::Feedback) => {
                if let Some(feedback) = feedback {
                    caller.input(|caller, now| caller.notice(now, endpoint, &feedback));
                }
                return Ok(());
            }
            Some(Kind::Goodbye) => {
                lock(&self.state).closed = true;
                return Ok(());
            }
            Some(Kind::Request | Kind::Report | Kind::Cancel) | None => return Ok(()),
        };
        let waiting = lock(&self.state).waiting.remove(&frame.call);
        match (waiting, feedback) {
            (Some(sender), _) => {
                // Nobody listens any more: it was cancelled just now.
                let _ = sender.send(received);
            }
            // The answer to a call that was given up still says how the gate is.
            (None, Some(feedback)) => {
                caller.input(|caller, now| caller.notice(now, endpoint, &feedback));
            }
            (None, None) => {}
        }
        Ok(())
    }
}

/// A request under way. Dropped before its answer came, it is cancelled at the server.
pub(super) struct Sent {
    link: Arc<Link>,
    call: u64,
    /// None once it was answered.
    receiver: Option<oneshot::Receiver<Received>>,
}

impl Sent {
    pub(super) async fn received(&mut self) -> Received {
        let Some(receiver) = &mut self.receiver else { return Received::Broken(Broken::Closed) };
        let received = receiver.await;
        self.receiver = None;
        received.unwrap_or(Received::Broken(Broken::Closed))
    }
}

impl Drop for Sent {
    fn drop(&mut self) {
        if self.receiver.is_none() {
            return;
        }
        let mut state = lock(&self.link.state);
        let sender = state.waiting.remove(&self.call);
        if sender.is_some() {
            state.out(|out| wire::write_cancel(out, self.call));
        }
        drop(state);
        self.link.written.notify_one();
        drop(sender);
    }
}

/// Writes whatever is to be written until the connection ends.
async fn write_all(link: Arc<Link>, mut stream: OwnedWriteHalf) {
    let mut bytes = Vec::new();
    loop {
        {
            let mut state = lock(&link.state);
            bytes.clear();
            std::mem::swap(&mut bytes, &mut state.out);
            let done = state.leaving && state.waiting.is_empty() || state.closed;
            if bytes.is_empty() && done && (state.leaving || state.waiting.is_empty()) {
                break;
            }
        }
        if bytes.is_empty() {
            link.written.notified().await;
        } else if stream.write_all(&bytes).await.is_err() {
            link.fail();
        }
    }
    let _ = stream.shutdown().await;
    lock(&link.state).over = true;
    link.over.notify_waiters();
}

/// Reads until the connection ends.
async fn read_all(
    link: Arc<Link>,
    stream: OwnedReadHalf,
    caller: SharedCaller,
    endpoint: usize,
    limits: Limits,
) {
    // How it ended is told to those who wait by the end itself.
    let _ended = read_frames(&link, stream, &caller, endpoint, limits).await;
    link.fail();
}

async fn read_frames(
    link: &Link,
    mut stream: OwnedReadHalf,
    caller: &SharedCaller,
    endpoint: usize,
    limits: Limits,
) -> io::Result<()> {
    let mut bytes = BytesMut::with_capacity(16 << 10);
    while stream.read_buf(&mut bytes).await? > 0 {
        let mut used = 0;
        let parsed = loop {
            match Frame::read(&bytes[used..], &limits) {
                Ok(Some((frame, length))) => {
                    used += length;
                    if let Err(error) = link.take(&frame, caller, endpoint) {
                        break Err(error);
                    }
                }
                Ok(None) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        bytes.advance(used);
        if let Err(error) = parsed {
            for (_, sender) in std::mem::take(&mut lock(&link.state).waiting) {
                let _ = sender.send(Received::Broken(Broken::Wire(error)));
            }
            return Ok(());
        }
        if lock(&link.state).waiting.is_empty() {
            // A writer that is leaving waits for the last answer.
            link.written.notify_one();
        }
    }
    Ok(())
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
