//! [`Call`]: a request outstanding at an upstream.

use std::io;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::{Request, Response};
use http_body::{Frame, SizeHint};
use tidegate_core::{Instant, Span};

use super::lane::Upstream;
use super::sender::{Sender, Source};
use crate::config::{Address, HealthConfig};
use crate::h1::{Connection, Unanswered};
use crate::upload::{Flow, Upload};

/// A request outstanding at an upstream. Dropped without a word it was given up: its connection is
/// closed, or over HTTP/2 the request reset, so that the upstream learns of it.
#[derive(Debug)]
pub(crate) struct Call {
    pub(super) upstream: Arc<Upstream>,
    pub(super) sender: Option<Sender>,
    begun: Instant,
    /// Answers that had come by then.
    answers: u64,
    /// Of the body of what was begun.
    flow: Option<Arc<Flow>>,
    /// Whether the upstream has something of it, and has not begun to answer.
    is_sent: bool,
    ended: bool,
}

impl Call {
    /// One that goes to `upstream`, on this connection if there is one already.
    pub(super) fn begun_at(
        upstream: Arc<Upstream>,
        sender: Option<Sender>,
        begun: Instant,
        answers: u64,
    ) -> Self {
        Self { upstream, sender, begun, answers, flow: None, is_sent: false, ended: false }
    }

    pub(super) fn begin(&mut self, request: &mut Request<Upload>) {
        self.flow = request.body().flow();
        self.is_sent = true;
        self.sender.iter_mut().for_each(|sender| sender.begin(request));
    }

    /// The head of the answer.
    pub(crate) fn poll_answer(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Response<Source>, Unanswered>> {
        let Some(sender) = &mut self.sender else { return Poll::Pending };
        let answer = ready!(sender.poll_answer(cx));
        self.is_sent = false;
        Poll::Ready(answer)
    }

    /// Whether the upstream has something of it, and has not begun to answer.
    pub(crate) fn is_sent(&self) -> bool {
        self.is_sent
    }

    /// Whether all of it was sent, or can be. Otherwise it never will.
    pub(crate) fn is_whole(&self) -> bool {
        match &self.sender {
            Some(Sender::One(connection)) if !connection.is_uploading() => true,
            _ => self.flow.as_ref().is_none_or(|flow| flow.is_whole()),
        }
    }

    /// Nothing more of it is to be sent.
    pub(crate) fn give_up(&self) {
        self.flow.iter().for_each(|flow| flow.give_up());
    }

    /// When it was begun.
    pub(crate) fn begun(&self) -> Instant {
        self.begun
    }

    /// It was not answered in time: nor may others be that share its connection.
    pub(super) fn doubt(&self) {
        if let Some(Sender::Two(own)) = &self.sender {
            self.upstream.doubt(own.number, self.answers);
        }
    }

    /// Whether it can be dropped now without harm to others.
    pub(crate) fn may_end(&self, now: Instant) -> bool {
        self.ends_freely() || self.upstream.resets.take(now)
    }

    /// Whether it can be ended at any time.
    pub(crate) fn ends_freely(&self) -> bool {
        !matches!(self.sender, Some(Sender::Two(..)))
    }

    /// For how long to wait until it can.
    pub(crate) fn may_end_after(&self, now: Instant) -> Span {
        match self.sender {
            Some(Sender::Two(..)) => self.upstream.resets.book(now),
            _ => Span::ZERO,
        }
    }

    /// The last byte of the answer is here, and its head was at `head`. Only answers count as fast
    /// or slow; a refusal makes an upstream look loaded, however quick it is.
    pub(crate) fn answered(mut self, now: Instant, head: Instant, refused: bool) {
        self.ended = true;
        self.upstream.peer.on_end();
        self.upstream.peer.on_answer();
        let mut lane = self.upstream.lane();
        lane.answers += 1;
        if refused {
            lane.load.on_refusal(now);
        } else {
            lane.load.on_answer(head.since(self.begun));
        }
        if let Some(sender) = self.sender.take() {
            lane.put(sender, now);
        }
    }

    fn connection(&mut self) -> Option<&mut Connection> {
        match &mut self.sender {
            Some(Sender::One(connection)) => Some(connection),
            _ => None,
        }
    }

    /// The next piece of an answer whose source is this call.
    pub(crate) fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        self.connection().map_or(Poll::Ready(None), |connection| connection.poll_frame(cx))
    }

    /// What is known of the length of such an answer; exactly nothing at its end.
    pub(crate) fn size_hint(&self) -> SizeHint {
        match &self.sender {
            Some(Sender::One(connection)) => connection.size_hint(),
            _ => SizeHint::with_exact(0),
        }
    }

    /// The connection itself, for whatever is spoken on it from now on.
    pub(crate) fn take_connection(&mut self) -> Option<Connection> {
        match self.sender.take() {
            Some(Sender::One(connection)) => Some(*connection),
            _ => None,
        }
    }

    /// Where it went.
    pub(crate) fn address(&self) -> &Address {
        self.upstream.peer.address()
    }

    /// The upstream has told how busy it is.
    pub(crate) fn report(&self, now: Instant, utilization: f32) {
        self.upstream.peer.on_report(now, utilization);
        self.upstream.lane().load.on_utilization(utilization);
    }

    /// No answer.
    pub(crate) fn failed(mut self, now: Instant, health: &HealthConfig) {
        self.ended = true;
        self.upstream.peer.on_end();
        self.upstream.peer.on_failure(now, health);
        self.upstream.lane().load.on_refusal(now);
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        if !self.ended {
            self.upstream.peer.on_end();
            self.upstream.lane().load.on_cancel();
        }
    }
}
