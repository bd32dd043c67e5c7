//! HTTP/1.1 towards an upstream: a connection that is driven by whoever waits for its answer.
//!
//! There is no task and no channel between a request and its connection, so the thread is woken once
//! per answer, and mostly finds head and body in one read. One request at a time is on its way; what
//! came of an answer and was not asked for yet stays in the socket, which is how a slow client holds
//! back its upstream.
//!
//! What an upstream may do, RFC 9112 says: it may answer before it has read the whole request, end
//! bodies by length, by chunks or by closing, and send 1xx before its answer. All else is an error, and
//! no connection on which anything is unclear carries a second request.

mod body;
mod connection;
mod head;
mod spare;
mod stream;

pub(crate) use connection::{Connection, Unanswered};
pub(crate) use stream::Stream;

/// What an upstream sent is not HTTP/1.1, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Malformed(&'static str);

impl std::fmt::Display for Malformed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "its answer is not HTTP/1.1: {}", self.0)
    }
}

impl std::error::Error for Malformed {}

impl From<Malformed> for std::io::Error {
    fn from(malformed: Malformed) -> Self {
        Self::new(std::io::ErrorKind::InvalidData, malformed)
    }
}
