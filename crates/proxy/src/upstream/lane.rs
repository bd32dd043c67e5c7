//! [`Upstream`]: one of the services behind as one thread sees it, and its connections.
//!
//! One of HTTP/1.1 carries one request at a time; one that is free lies on a stack, the freshest on top, so that those at
//! the bottom grow old and are closed when the load falls. Those of HTTP/2 carry all requests of their thread, one for each
//! address of the name in turn, as each is a replica.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use std::{io, iter};

use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tidegate_core::balance::Load;
use tidegate_core::{Instant, Span};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::ClientConfig;
use tokio_rustls::rustls::pki_types::ServerName;

use super::call::Call;
use super::lock;
use super::sender::Sender;
use crate::config::{Address, Version};
use crate::connect::connect;
use crate::h1::{Connection, Stream};
use crate::health::Peer;
use crate::resets::Resets;
use crate::upload::Upload;

/// Free connections kept per upstream and thread. Beyond, they are closed: at some 10 kB each,
/// 10 MB.
const MOST_IDLE: usize = 1024;
/// How long a connection is used at least, and by how many steps some are used longer, up to twice as long: by judgement, a
/// minute or two after its name has got another address.
const AGE: Duration = Duration::from_secs(60);
const AGES: usize = 16;

/// One upstream as one thread sees it.
#[derive(Debug)]
pub(crate) struct Upstream {
    pub(super) peer: Arc<Peer>,
    lane: Mutex<Lane>,
    /// Whose turn it is of the addresses that its name has.
    turn: AtomicUsize,
    /// How many of these there are, as far as is known: requests share so many connections of HTTP/2.
    addresses: AtomicUsize,
    /// Of the connections that all requests share.
    pub(super) resets: Resets,
}

/// What changes about an upstream.
#[derive(Debug)]
pub(super) struct Lane {
    pub(super) load: Load,
    /// Free connections and since when, the freshest last.
    pub(super) idle: VecDeque<(Box<Connection>, Instant)>,
    /// The connections that all requests share where the upstream speaks HTTP/2, one for each address of its name; the next
    /// to be used first.
    shared: VecDeque<Shared>,
    /// Connections of that kind that were made.
    made: u64,
    /// Answers that came, for whoever wonders whether connections still live.
    pub(super) answers: u64,
}

/// A connection that requests share.
#[derive(Debug)]
struct Shared {
    number: u64,
    sender: http2::SendRequest<Upload>,
    until: tokio::time::Instant,
}

impl Upstream {
    pub(super) fn new(peer: Arc<Peer>, now: Instant) -> Self {
        let lane = Lane {
            load: Load::new(now),
            idle: VecDeque::new(),
            shared: VecDeque::new(),
            made: 0,
            answers: 0,
        };
        let (turn, addresses) = (AtomicUsize::new(0), AtomicUsize::new(1));
        Self { peer, lane: Mutex::new(lane), turn, addresses, resets: Resets::new(now) }
    }

    /// Its address, and how long its answers take.
    pub(crate) fn latency(&self) -> (String, Option<Span>) {
        (self.peer.address().to_string(), self.lane().load.latency())
    }

    pub(super) fn lane(&self) -> MutexGuard<'_, Lane> {
        lock(&self.lane)
    }

    /// A request goes here, on a free connection if there is one.
    pub(super) fn begin(self: &Arc<Self>, now: Instant, idle_timeout: Span) -> Call {
        let mut lane = self.lane();
        lane.load.on_send();
        let sender = lane.take(now, idle_timeout, self.addresses());
        let answers = lane.answers;
        drop(lane);
        self.peer.on_send();
        Call::begun_at(Arc::clone(self), sender, now, answers)
    }

    /// Another part of a connection that requests share, if there is one for each address.
    pub(super) fn share(&self) -> Option<Sender> {
        self.lane().share(self.addresses())
    }

    fn addresses(&self) -> usize {
        self.addresses.load(Ordering::Relaxed)
    }

    /// A call on this connection was not answered, and no other since it began, when there were so many answers: whoever comes next
    /// does not share the connection. One that a firewall has forgotten swallows what is sent for a quarter of an hour.
    pub(super) fn doubt(&self, number: u64, answers: u64) {
        let mut lane = self.lane();
        if lane.answers == answers {
            lane.shared.retain(|shared| shared.number != number);
        }
    }

    pub(super) async fn connect(
        &self,
        limit: Duration,
        tls: Option<&Arc<ClientConfig>>,
    ) -> io::Result<Sender> {
        let late = |_| io::Error::from(io::ErrorKind::TimedOut);
        let Address { scheme, host, port } = self.peer.address();
        timeout(limit, async {
            let (stream, addresses) = connect(host, *port, &self.turn).await?;
            self.addresses.store(addresses, Ordering::Relaxed);
            stream.set_nodelay(true)?;
            let stream = match tls.filter(|_| scheme.is_secure()) {
                None => Stream::Plain(stream),
                Some(config) => {
                    let name = ServerName::try_from(host.clone()).map_err(io::Error::other)?;
                    let connector = TlsConnector::from(Arc::clone(config));
                    Stream::Secure(Box::new(connector.connect(name, stream).await?))
                }
            };
            match scheme.version() {
                Version::One => {
                    Ok(Sender::One(Box::new(Connection::new(stream, self.end_of_age()))))
                }
                Version::Two => self.shake_hands(stream).await,
            }
        })
        .await
        .map_err(late)?
    }

    /// Until when a connection that is made now is used: not all of them end at once.
    fn end_of_age(&self) -> tokio::time::Instant {
        let spread = self.turn.load(Ordering::Relaxed) % AGES;
        tokio::time::Instant::now() + AGE * u32::try_from(AGES + spread).unwrap_or(1) / AGES as u32
    }

    /// How a connection ends is told to whoever waits for an answer, and nobody else's business.
    async fn shake_hands(&self, stream: Stream) -> io::Result<Sender> {
        let (sender, connection) = http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .handshake(TokioIo::new(stream))
            .await
            .map_err(io::Error::other)?;
        tokio::spawn(connection);
        Ok(self.lane().keep(sender, self.end_of_age(), self.addresses()))
    }
}

impl Lane {
    /// Keeps a connection that requests share, and begins with it. Of several made at once, the last are kept, and the others end
    /// with their requests.
    fn keep(
        &mut self,
        sender: http2::SendRequest<Upload>,
        until: tokio::time::Instant,
        addresses: usize,
    ) -> Sender {
        self.made += 1;
        let number = self.made;
        self.shared.push_back(Shared { number, sender: sender.clone(), until });
        while self.shared.len() > addresses {
            self.shared.pop_front();
        }
        Sender::shared(number, sender)
    }

    /// A part of a connection that requests share, each in its turn, if there are as many as addresses.
    fn share(&mut self, addresses: usize) -> Option<Sender> {
        let now = tokio::time::Instant::now();
        self.shared.retain(|shared| !shared.sender.is_closed() && now < shared.until);
        if self.shared.len() < addresses {
            return None;
        }
        self.shared.rotate_left(1);
        self.shared.back().map(|shared| Sender::shared(shared.number, shared.sender.clone()))
    }

    fn take(&mut self, now: Instant, idle_timeout: Span, addresses: usize) -> Option<Sender> {
        self.close_old(now, idle_timeout);
        self.share(addresses).or_else(|| {
            // One that the upstream has closed meanwhile is dropped.
            iter::from_fn(|| self.idle.pop_back())
                .map(|(connection, _)| connection)
                .find(|connection| connection.is_ready())
                .map(Sender::One)
        })
    }

    /// Keeps a connection for the next request, if it is certain that nothing of the last answer is to come. After HEAD it is not:
    /// some services send a body all the same, however late, and the next answer would begin with it.
    pub(super) fn put(&mut self, sender: Sender, now: Instant) {
        let Sender::One(connection) = sender else { return };
        let kept = connection.is_free() && !connection.is_old() && !connection.is_in_doubt();
        if kept && self.idle.len() < MOST_IDLE {
            self.idle.push_back((connection, now));
        }
    }

    pub(super) fn close_old(&mut self, now: Instant, idle_timeout: Span) {
        while self.idle.front().is_some_and(|(_, since)| now.since(*since) >= idle_timeout) {
            self.idle.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::health::Peers;

    /// A connection as one to an upstream that says nothing, and what keeps it open.
    async fn connection() -> (http2::SendRequest<Upload>, tokio::io::DuplexStream) {
        let (near, far) = tokio::io::duplex(1 << 16);
        let made = http2::Builder::new(TokioExecutor::new()).handshake(TokioIo::new(near)).await;
        let (sender, connection) = made.expect("it asks nobody");
        tokio::spawn(connection);
        (sender, far)
    }

    /// Else all requests of a thread would go to one replica of several behind a name.
    #[tokio::test]
    async fn requests_take_turns_on_a_connection_for_each_address() {
        let address: Address = "h2c://shop:80".parse().expect("an address");
        let upstream = Upstream::new(Peers::default().get(&address), Instant::ZERO);
        upstream.addresses.store(2, Ordering::Relaxed);
        let until = tokio::time::Instant::now() + AGE;
        let number = |sender: Option<Sender>| match sender {
            Some(Sender::Two(own)) => own.number,
            _ => 0,
        };
        let mut ends = Vec::new();
        for made in 1..=2 {
            assert_eq!(number(upstream.share()), 0, "there is a connection to be made");
            let (sender, end) = connection().await;
            ends.push(end);
            assert_eq!(number(Some(upstream.lane().keep(sender, until, 2))), made);
        }
        let taken: Vec<u64> = (0..4).map(|_| number(upstream.share())).collect();
        assert_eq!(taken, [1, 2, 1, 2]);
        // One that does not answer is left out, and another is made in its place.
        let answers = upstream.lane().answers;
        upstream.doubt(1, answers);
        assert_eq!(number(upstream.share()), 0);
        let (sender, end) = connection().await;
        ends.push(end);
        upstream.lane().keep(sender, until, 2);
        assert_eq!([(); 2].map(|()| number(upstream.share())), [2, 3]);
        // Of several made at once the last are kept.
        let (sender, end) = connection().await;
        ends.push(end);
        upstream.lane().keep(sender, until, 2);
        assert_eq!(upstream.lane().shared.len(), 2);
    }
}
