//! What becomes of a request whose client has left.
//!
//! Most services do not notice that a client has left: they work on. If its slot were free at once, clients that ask and
//! leave would fill the service behind a gate that believes it idle. So, unless the service is
//! [known to stop](crate::config::WhenLeft), or was [found to](tidegate_core::Gate::leave_or_end):
//!
//! 1. What was sent whole stays with the upstream. Its answer is awaited aside, for as long as any answer, and
//!    dropped; then the slot is free, and the connection too.
//! 2. An answer that has begun is read to its end if that is near ([`REST`]). Otherwise the connection is closed:
//!    whoever writes notices.
//! 3. What was not sent whole never will be: the connection is closed, and nobody will hear when the service has
//!    noticed. The gate [guesses](tidegate_core::gate::Gone::Lost).
//!
//! Each of these is in the gate's book of abandoned work, which bounds how much of it there is and charges it to whoever left.
//! A deadline that passes is the same: the client gets its 504, and the upstream goes on.
//!
//! Over HTTP/2 to end a request is to reset it, and [resets] are paced: until there is one, the request is kept. They are too few to
//! find anything out by them.
//!
//! [resets]: crate::resets

use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::{Instant, Outcome, Span};
use tokio::runtime::Handle;
use tokio::time::{sleep, timeout};

use crate::body::{Entry, Kept};
use crate::config::WhenLeft;
use crate::upstream::{Call, Source};
use crate::verdict::Verdict;
use crate::worker::Worker;

/// Most bytes and longest time of the rest of an answer that nobody wants any more.
const REST: (u64, Duration) = (1 << 20, Duration::from_secs(1));

/// A call for whose answer somebody waits. Dropped, nobody does any more.
pub(crate) struct UnderWay<'a> {
    worker: &'a Arc<Worker>,
    entry: &'a mut Entry,
    /// None once it was answered.
    call: Option<Call>,
}

impl<'a> UnderWay<'a> {
    pub(crate) fn new(worker: &'a Arc<Worker>, entry: &'a mut Entry, call: Call) -> Self {
        Self { worker, entry, call: Some(call) }
    }

    /// It, and what it has in the gate.
    pub(crate) fn parts(&mut self) -> (&mut Call, &mut Entry) {
        (self.call.as_mut().expect("nobody asks after its end"), self.entry)
    }

    /// It was answered, or never will be.
    pub(crate) fn answered(mut self) -> Call {
        self.call.take().expect("it ends once")
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        if let Some(call) = self.call.take().filter(Call::is_sent) {
            leave(self.worker, call, self.entry.take(), None);
        }
    }
}

/// The client of a call has left. Of an answer that has begun, where its rest comes from and when that was.
pub(crate) fn leave(
    worker: &Arc<Worker>,
    call: Call,
    entry: Entry,
    begun: Option<(Source, Instant, Verdict)>,
) {
    let (settings, now) = (worker.settings(), worker.gate.now());
    let (whole, stops) = (call.is_whole(), settings.when_left == WhenLeft::Stops);
    // Without a slot it waits for one, or is none of the gate's.
    // Or what it holds is no longer ours, and nothing may go on.
    let overdue = worker.counters.leashes.is_overdue(&worker.gate, entry.request());
    let over = !whole || !entry.has_slot() || overdue;
    if over {
        call.give_up();
    }
    if (stops || over) && call.may_end(now) {
        return if whole { drop(entry.keep()) } else { entry.lose() };
    }
    let learns = settings.when_left == WhenLeft::Learned && begun.is_none() && call.ends_freely();
    let kept = if learns && !over { entry.leave_or_end() } else { Some(entry.keep()) };
    // Otherwise it is ended: its connection is closed.
    let Some(kept) = kept else { return };
    // Without a runtime this is the end of the process, and of everything.
    let Ok(runtime) = Handle::try_current() else { return };
    let patience = settings.upstreams.response_timeout();
    let left = patience.saturating_sub(now.since(call.begun()).into());
    let worker = Arc::clone(worker);
    runtime.spawn(async move {
        let worker = &*worker;
        match begun {
            _ if over => end(worker, call, kept).await,
            Some((source, head, verdict)) => rest(worker, call, source, head, verdict, kept).await,
            None => answer(worker, call, kept, left).await,
        }
    });
}

/// Waits for an answer that nobody waits for.
async fn answer(worker: &Worker, mut call: Call, kept: Kept, patience: Duration) {
    match timeout(patience, poll_fn(|cx| call.poll_answer(cx))).await {
        Ok(Ok(response)) => {
            let head = worker.gate.now();
            let verdict = Verdict::of_head(response.status(), response.headers(), false);
            rest(worker, call, response.into_body(), head, verdict, kept).await;
        }
        Ok(Err(_)) => {
            let now = worker.gate.now();
            call.failed(now, worker.settings().upstreams.health());
            kept.finish(now, Outcome::Fail);
        }
        Err(_) => {
            worker.counters.late.add(1);
            end(worker, call, kept).await;
        }
    }
}

/// Reads the rest of an answer that nobody wants, if that is soon done.
async fn rest(
    worker: &Worker,
    mut call: Call,
    mut source: Source,
    head: Instant,
    mut verdict: Verdict,
    kept: Kept,
) {
    let (most, patience) = REST;
    let read = timeout(patience, async {
        let mut read = 0;
        while read <= most {
            match poll_fn(|cx| source.poll_frame(Some(&mut call), cx)).await {
                Some(Ok(piece)) => {
                    verdict.hear(&piece);
                    read += piece.data_ref().map_or(0, |data| data.len() as u64);
                }
                end => return end.is_none(),
            }
        }
        false
    });
    if read.await == Ok(true) {
        let now = worker.gate.now();
        call.answered(now, head, verdict.refused);
        kept.finish(now, verdict.outcome);
    } else {
        end(worker, call, kept).await;
    }
}

/// Ends a call as soon as that harms nobody else.
async fn end(worker: &Worker, call: Call, kept: Kept) {
    let wait = call.may_end_after(worker.gate.now());
    if wait > Span::ZERO {
        sleep(wait.into()).await;
    }
    drop((call, kept));
}
