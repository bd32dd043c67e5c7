//! [`Upload`]: a request's body on its way to an upstream.
//!
//! A slot is for work, and who waits for a body does none. So:
//!
//! 1. Before a request asks for a slot, a *part* of its body is awaited: all of it, or [`PART`] bytes. Of a body that is
//!    longer, or as long as it gets, whoever sends it may wait for an answer first, so after [`STREAM`] what there is is
//!    enough; but one address has only so many of these a second ([`Turns`]). A message of gRPC is enough, too.
//! 2. While it has its slot, a body that stands still for [`STILL`] before it is answered gives it back: it is
//!    *parked*, and nothing more is passed on. With its next part it asks for a slot again. It has had its turn, and other
//!    bodies of its address that are not whole wait for theirs.
//! 3. Every part, or the next piece of a body of unknown length, has `patience` to come. What is announced decides how
//!    fast that is: a few bytes from a slow sensor may take all of that time.
//!
//! A body that breaks off or is too slow never ends in an error while its answer is awaited: it stands still, and
//! whoever awaits the answer is told ([`News`]) and ends the call. Over HTTP/2 an error would be a reset at once, and
//! those are to be [few](crate::resets).

use std::collections::VecDeque;
use std::error::Error;
use std::future::poll_fn;
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};
use tokio::time::{Instant, Sleep, sleep_until};

use crate::inbound::Inbound;
use crate::places::{Lack, Place, Turns};

/// Bytes that are enough to work on.
const PART: usize = 64 * 1024;
/// Longest time to wait for them where the client may be waiting for us.
const STREAM: Duration = Duration::from_millis(50);
/// How long a body may stand still while it holds a slot.
const STILL: Duration = Duration::from_millis(10);
/// Bytes before a message of gRPC: whether it is compressed, and its length.
const MESSAGE: usize = 5;

/// A body that may be as long as it likes.
#[derive(Debug)]
pub(crate) struct Upload {
    body: Inbound,
    /// None where there is nothing to pass on.
    rest: Option<Box<Rest>>,
}

/// What is known of a body that is not passed on whole.
#[derive(Debug)]
struct Rest {
    flow: Arc<Flow>,
    patience: Duration,
    /// How long its client says it is.
    announced: Option<u64>,
    /// Whether it consists of messages of gRPC.
    grpc: bool,
    /// Pieces that were read and not passed on, and how long they are.
    held: VecDeque<Frame<Bytes>>,
    bytes: usize,
    /// Whether the end was read.
    ended: bool,
    /// Since when more is awaited.
    since: Option<Instant>,
    /// When what there is is enough, once that is known.
    turn: Option<Instant>,
    timer: Option<Pin<Box<Sleep>>>,
    phase: Phase,
    /// Who is to take turns with whom.
    turns: Option<(Arc<Turns>, IpAddr)>,
    /// While it is not whole.
    place: Option<Place>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// It is passed on.
    Passes,
    /// It waits for its next part.
    Parked,
    /// That is there, and a slot was asked for.
    Asks,
}

/// What there is to tell of an upload before it is answered.
#[derive(Debug)]
pub(crate) enum News {
    /// It stands still: it needs no slot.
    Still,
    /// It goes on as soon as it has a slot.
    Again,
    /// It is too slow.
    Slow,
    /// The client broke it off, or sent what is no body.
    Broken(io::Error),
    /// There are too many that are not whole.
    Lack(Lack),
}

/// Between an upload and whoever awaits the answer.
#[derive(Debug, Default)]
pub(crate) struct Flow {
    /// Set whenever a piece was passed on.
    moved: AtomicBool,
    /// Whether all of it is here.
    whole: AtomicBool,
    /// Whether nothing more of it is to be passed on.
    given_up: AtomicBool,
    /// Whether the answer has begun.
    answered: AtomicBool,
    /// Whether an error would be a reset.
    shared: AtomicBool,
    /// Whether it has a slot.
    has_slot: AtomicBool,
    /// Whether it has given one back.
    parked: AtomicBool,
    told: Mutex<Told>,
}

#[derive(Debug, Default)]
struct Told {
    news: VecDeque<News>,
    /// Whoever waits for the answer.
    waker: Option<Waker>,
    /// Whoever passes the body on, while it waits for a slot.
    upload: Option<Waker>,
}

impl Flow {
    /// Whether it is not the upstream that is awaited: the body, or that something was passed on since the last call.
    pub(crate) fn moves(&self) -> bool {
        let parked = self.parked.load(Ordering::Relaxed);
        self.moved.swap(false, Ordering::Relaxed) || parked
    }

    /// Whether all of it is here, if not passed on.
    pub(crate) fn is_whole(&self) -> bool {
        self.whole.load(Ordering::Relaxed)
    }

    /// Nobody is to take what is there for all of it: from now on nothing is passed on.
    pub(crate) fn give_up(&self) {
        self.given_up.store(true, Ordering::Relaxed);
    }

    /// It goes by a connection that others have too.
    pub(crate) fn share(&self) {
        self.shared.store(true, Ordering::Relaxed);
    }

    /// Whether it has a slot, which it is to give back if it stands still.
    pub(crate) fn hold_slot(&self, has_slot: bool) {
        self.has_slot.store(has_slot, Ordering::Relaxed);
        self.parked.store(false, Ordering::Relaxed);
        if has_slot {
            let waker = self.lock().upload.take();
            waker.into_iter().for_each(Waker::wake);
        }
    }

    /// The answer has begun: from now on both sides may take the time they like, as where they talk to each other.
    pub(crate) fn on_answer(&self) {
        self.answered.store(true, Ordering::Relaxed);
        let waker = self.lock().upload.take();
        waker.into_iter().for_each(Waker::wake);
    }

    /// The next thing to tell.
    pub(crate) fn poll_news(&self, cx: &mut Context<'_>) -> Poll<News> {
        let mut told = self.lock();
        if let Some(news) = told.news.pop_front() {
            return Poll::Ready(news);
        }
        told.waker = Some(cx.waker().clone());
        Poll::Pending
    }

    fn tell(&self, news: News) {
        let mut told = self.lock();
        told.news.push_back(news);
        let waker = told.waker.take();
        drop(told);
        waker.into_iter().for_each(Waker::wake);
    }

    fn is(&self, what: &AtomicBool) -> bool {
        what.load(Ordering::Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, Told> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Upload {
    /// A body of which every part may take `patience`.
    pub(crate) fn new(body: Inbound, patience: Duration, grpc: bool) -> Self {
        let rest = (!body.is_end_stream()).then(|| {
            Box::new(Rest {
                flow: Arc::default(),
                patience,
                announced: body.size_hint().exact(),
                grpc,
                held: VecDeque::new(),
                bytes: 0,
                ended: false,
                since: None,
                turn: None,
                timer: None,
                phase: Phase::Passes,
                turns: None,
                place: None,
            })
        });
        Self { body, rest }
    }

    /// Nothing.
    pub(crate) fn empty() -> Self {
        Self { body: Inbound::Nothing, rest: None }
    }

    /// What was read before, and so is never late.
    pub(crate) fn kept(body: Bytes, trailers: Option<HeaderMap>) -> Self {
        let body = match body.is_empty() && trailers.is_none() {
            true => Inbound::Nothing,
            false => Inbound::Kept(Box::new((body, trailers))),
        };
        // A day: there is nothing to wait for.
        Self::new(body, Duration::from_secs(86_400), false)
    }

    /// What is told of it.
    pub(crate) fn flow(&self) -> Option<Arc<Flow>> {
        self.rest.as_ref().map(|rest| Arc::clone(&rest.flow))
    }

    /// Reads what is there. Where that is not all, it takes a place until all of it is.
    pub(crate) async fn begin(
        &mut self,
        turns: &Arc<Turns>,
        address: IpAddr,
        place: impl FnOnce() -> Result<Place, Lack>,
    ) -> Result<(), News> {
        let Self { body, rest: Some(rest) } = self else { return Ok(()) };
        rest.turns = Some((Arc::clone(turns), address));
        let Poll::Ready(Err(trouble)) = rest.poll_once(body).await else {
            if !rest.ended {
                rest.place = Some(place().map_err(News::Lack)?);
            }
            return Ok(());
        };
        Err(trouble)
    }

    /// Awaits a part that is enough to work on.
    pub(crate) async fn part(&mut self) -> Result<(), News> {
        let Self { body, rest: Some(rest) } = self else { return Ok(()) };
        poll_fn(|cx| rest.poll_part(body, cx)).await
    }
}

impl Rest {
    async fn poll_once(&mut self, body: &mut Inbound) -> Poll<Result<(), News>> {
        poll_fn(|cx| Poll::Ready(self.poll_part(body, cx))).await
    }

    /// Reads on until there is enough to work on.
    fn poll_part(&mut self, body: &mut Inbound, cx: &mut Context<'_>) -> Poll<Result<(), News>> {
        loop {
            if self.is_enough() {
                // Who has stood still with a slot has to wait for another, unless all is here.
                let now = Instant::now();
                let turns = self.turns.as_ref().filter(|_| !self.ended);
                let owed = turns.map_or(Duration::ZERO, |(turns, own)| turns.owed(*own, now));
                if owed.is_zero() || self.poll_timer(now + owed, cx) {
                    break;
                }
                return Poll::Pending;
            }
            match Pin::new(&mut *body).poll_frame(cx) {
                Poll::Ready(Some(Ok(piece))) => {
                    self.bytes += piece.data_ref().map_or(0, Bytes::len);
                    self.held.push_back(piece);
                    self.note_end(body.is_end_stream());
                    if self.announced.is_none() {
                        self.since = None;
                    }
                }
                Poll::Ready(None) => self.note_end(true),
                Poll::Ready(Some(Err(error))) => return Poll::Ready(Err(News::Broken(error))),
                Poll::Pending => {
                    let now = Instant::now();
                    let since = *self.since.get_or_insert(now);
                    let late = since + self.patience;
                    let due = self.turn_after(since, now).map_or(late, |turn| turn.min(late));
                    if !self.poll_timer(due, cx) {
                        return Poll::Pending;
                    }
                    if self.turn.is_some_and(|turn| turn <= now) {
                        break;
                    }
                    if now >= late {
                        return Poll::Ready(Err(News::Slow));
                    }
                }
            }
        }
        (self.since, self.turn, self.timer) = (None, None, None);
        Poll::Ready(Ok(()))
    }

    /// Whether there is enough to work on, however long it took.
    fn is_enough(&self) -> bool {
        self.ended || self.bytes >= PART || self.grpc && self.has_message()
    }

    /// Whether a whole message of gRPC is there.
    fn has_message(&self) -> bool {
        let bytes = self.held.iter().filter_map(Frame::data_ref).flatten();
        let mut head = [0; MESSAGE];
        let read = head.iter_mut().zip(bytes).map(|(to, from)| *to = *from).count();
        let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize;
        read == MESSAGE && self.bytes >= MESSAGE + length
    }

    fn note_end(&mut self, ended: bool) {
        self.ended = ended;
        if ended {
            self.flow.whole.store(true, Ordering::Relaxed);
            self.place = None;
        }
    }

    /// When what there is is enough, where its client may wait for an answer since then: not within what is announced,
    /// but that service may not want to see all of it.
    fn turn_after(&mut self, since: Instant, now: Instant) -> Option<Instant> {
        let parked = self.phase == Phase::Parked;
        let comes = self.announced.is_some_and(|length| parked || length <= PART as u64);
        let (turns, address) = self.turns.as_ref().filter(|_| !comes)?;
        // What is parked has been sent the beginning already.
        if parked && self.held.is_empty() {
            return None;
        }
        if self.turn.is_none() && now >= since + STREAM {
            self.turn = Some(now + turns.book(*address, now));
        }
        Some(self.turn.unwrap_or(since + STREAM))
    }

    /// Whether it is `due`. Otherwise the task is woken when it is.
    fn poll_timer(&mut self, due: Instant, cx: &mut Context<'_>) -> bool {
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(due)));
        if timer.deadline() != due {
            timer.as_mut().reset(due);
        }
        timer.as_mut().poll(cx).is_ready()
    }

    /// The next piece, if it may be passed on.
    fn poll_next(
        &mut self,
        body: &mut Inbound,
        cx: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let flow = Arc::clone(&self.flow);
        if self.phase != Phase::Passes {
            if !flow.is(&flow.has_slot) && !flow.is(&flow.answered) {
                self.poll_parked(body, cx);
                return Poll::Pending;
            }
            (self.phase, self.since, self.timer) = (Phase::Passes, None, None);
        }
        if let Some(piece) = self.held.pop_front() {
            self.bytes -= piece.data_ref().map_or(0, Bytes::len);
            return Poll::Ready(Some(Ok(piece)));
        }
        if self.ended {
            return Poll::Ready(None);
        }
        let piece = Pin::new(&mut *body).poll_frame(cx);
        match &piece {
            Poll::Ready(Some(Err(_))) => {}
            Poll::Ready(piece) => {
                self.note_end(piece.is_none() || body.is_end_stream());
                self.since = None;
            }
            Poll::Pending if flow.is(&flow.answered) => {}
            Poll::Pending => {
                let now = Instant::now();
                let since = *self.since.get_or_insert(now);
                let parks = flow.is(&flow.has_slot);
                let patience = if parks { STILL } else { self.patience };
                if !self.poll_timer(since + patience, cx) {
                    return Poll::Pending;
                }
                if parks {
                    flow.has_slot.store(false, Ordering::Relaxed);
                    flow.parked.store(true, Ordering::Relaxed);
                    flow.tell(News::Still);
                    if let Some((turns, address)) = &self.turns {
                        turns.book(*address, now);
                    }
                    self.phase = Phase::Parked;
                    self.poll_parked(body, cx);
                } else {
                    flow.give_up();
                    flow.tell(News::Slow);
                }
            }
        }
        piece
    }

    /// Without a slot: waits for the next part, and then for a slot.
    fn poll_parked(&mut self, body: &mut Inbound, cx: &mut Context<'_>) {
        let flow = Arc::clone(&self.flow);
        flow.lock().upload = Some(cx.waker().clone());
        if self.phase == Phase::Asks {
            return;
        }
        match self.poll_part(body, cx) {
            Poll::Pending => {}
            Poll::Ready(Ok(())) => {
                self.phase = Phase::Asks;
                flow.tell(News::Again);
            }
            Poll::Ready(Err(trouble)) => {
                flow.give_up();
                flow.tell(trouble);
            }
        }
    }
}

impl Body for Upload {
    type Data = Bytes;
    type Error = Box<dyn Error + Send + Sync>;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let Self { body, rest: Some(rest) } = self.get_mut() else { return Poll::Ready(None) };
        let flow = Arc::clone(&rest.flow);
        if flow.is(&flow.given_up) {
            return Poll::Pending;
        }
        match rest.poll_next(body, cx) {
            Poll::Ready(Some(Err(error))) => {
                if flow.is(&flow.answered) && !flow.is(&flow.shared) {
                    return Poll::Ready(Some(Err(error.into())));
                }
                flow.give_up();
                flow.tell(News::Broken(error));
                Poll::Pending
            }
            Poll::Ready(piece) => {
                flow.moved.store(true, Ordering::Relaxed);
                Poll::Ready(piece.map(|piece| piece.map_err(Into::into)))
            }
            Poll::Pending => Poll::Pending,
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.rest {
            Some(rest) => rest.held.is_empty() && (rest.ended || self.body.is_end_stream()),
            None => true,
        }
    }

    fn size_hint(&self) -> SizeHint {
        let held = self.rest.as_ref().map_or(0, |rest| rest.bytes as u64);
        let announced = self.rest.as_ref().is_none_or(|rest| rest.announced.is_some());
        match self.body.size_hint().exact().filter(|_| announced) {
            Some(left) => SizeHint::with_exact(held + left),
            None => SizeHint::default(),
        }
    }
}
