//! One call, through all its attempts.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use tidegate_core::caller::Next;
use tidegate_core::throttle::Answer;
use tidegate_core::{Advice, Context, Feedback, Instant, Outcome, Rank, Reason, Rejection, Span};
use tidegate_driver::{self as driver, Departure, SharedCaller};
use tokio::time::{Sleep, sleep};

use super::Inner;
use super::link::Received;
use crate::error::{Broken, CallError};
use crate::wire::RequestHead;

/// A call that has not been sent yet. Dropping its future at any point cancels it, at the server too.
#[must_use = "a call does nothing until it is sent"]
pub struct Call {
    inner: Arc<Inner>,
    method: u32,
    payload: Bytes,
    context: Context,
}

impl Call {
    pub(super) fn new(inner: Arc<Inner>, method: u32, payload: Bytes) -> Self {
        let context = driver::context::current().map(|context| context.inherit());
        Self { inner, method, payload, context: context.unwrap_or_default() }
    }

    /// Another rank than that of the request it is made for.
    pub fn rank(mut self, rank: Rank) -> Self {
        self.context.rank = rank;
        self
    }

    /// The workflow it counts as.
    pub fn workflow(mut self, name: &str) -> Self {
        self.context.workflow = self.inner.names.number(name);
        self
    }

    /// A deadline so long from now, unless the inherited one is earlier.
    pub fn deadline(mut self, patience: Duration) -> Self {
        let deadline = self.inner.caller.now() + Span::from(patience);
        self.context.deadline = self.context.deadline.min(deadline);
        self
    }

    /// Sends it when the caller lets it, as often as the caller says.
    pub async fn send(mut self) -> Result<Bytes, CallError> {
        let inner = Arc::clone(&self.inner);
        if let Some(patience) = inner.patience {
            let deadline = inner.caller.now() + patience;
            self.context.deadline = self.context.deadline.min(deadline);
        }
        if self.payload.len() > inner.limits.payload {
            return Err(CallError::Broken(Broken::TooLarge));
        }
        if let Some((gate, callee)) = &inner.upstream {
            let sheds = gate.take_sheds(*callee);
            if sheds.count > 0 {
                inner.caller.input(|caller, _| caller.note_sheds(sheds));
            }
        }
        let mut call = inner.caller.submit(&self.context).map_err(CallError::Refused)?;
        loop {
            let departure = leave(&inner.caller, &mut call).await.map_err(CallError::Refused)?;
            let (attempt, feedback) = self.attempt(&inner, &departure).await;
            if let (Some((gate, callee)), Some(feedback)) = (&inner.upstream, &feedback) {
                gate.on_downstream(*callee, self.context.workflow, feedback);
            }
            let next = call.respond(attempt.answer(), feedback.as_ref());
            match next {
                Next::Retry => {}
                Next::Over(answer) => return attempt.into_result(answer),
            }
        }
    }

    /// One attempt at one server.
    async fn attempt(&self, inner: &Inner, departure: &Departure) -> (Attempt, Option<Feedback>) {
        let link = match inner.endpoints[departure.endpoint]
            .link(&inner.caller, departure.endpoint, inner.limits)
            .await
        {
            Ok(link) => link,
            Err(error) => return (Attempt::Unsent(error), None),
        };
        let head = RequestHead { method: self.method, context: departure.context };
        let Some(mut sent) = link.send(&head, inner.caller.now(), &inner.names, &self.payload)
        else {
            return (Attempt::Unsent(Broken::Closed), None);
        };
        match before(&inner.caller, departure.context.deadline, sent.received()).await {
            None => (Attempt::TimedOut, None),
            Some(Received::Answer(payload, feedback)) => (Attempt::Served(payload), feedback),
            Some(Received::Refusal(rejection, feedback)) => (Attempt::Refused(rejection), feedback),
            Some(Received::Failure(failure, feedback)) => {
                (Attempt::Ended(CallError::Failed(failure)), feedback)
            }
            Some(Received::Broken(broken)) => (Attempt::Ended(CallError::Broken(broken)), None),
        }
    }
}

impl std::fmt::Debug for Call {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Call")
            .field("method", &self.method)
            .field("context", &self.context)
            .finish_non_exhaustive()
    }
}

/// What became of an attempt.
enum Attempt {
    Served(Bytes),
    Refused(Rejection),
    /// It never left, for want of a connection: as good as refused, and another server may do.
    Unsent(Broken),
    TimedOut,
    Ended(CallError),
}

impl Attempt {
    /// The same as the caller's state machine knows it.
    fn answer(&self) -> Answer {
        match self {
            Self::Served(_) => Answer::Done(Outcome::Serve),
            Self::Refused(rejection) => Answer::Refused(*rejection),
            Self::Unsent(_) => {
                Answer::Refused(Rejection::new(Reason::Draining, 1.0, 0.0, Advice::Elsewhere))
            }
            Self::TimedOut | Self::Ended(_) => Answer::Done(Outcome::Fail),
        }
    }

    fn into_result(self, answer: Answer) -> Result<Bytes, CallError> {
        match (self, answer) {
            (Self::Served(payload), _) => Ok(payload),
            // The caller may have changed the advice: no second layer is to retry.
            (Self::Refused(_), Answer::Refused(rejection)) => Err(CallError::Refused(rejection)),
            (Self::Refused(rejection), Answer::Done(_)) => Err(CallError::Refused(rejection)),
            (Self::Unsent(broken), _) => Err(CallError::Broken(broken)),
            (Self::TimedOut, _) => Err(CallError::TimedOut),
            (Self::Ended(error), _) => Err(error),
        }
    }
}

/// Waits until the call may leave. Meanwhile it sees to the caller's timers: whoever waits is who
/// wants them to fire, and when nobody waits they do not matter.
async fn leave(caller: &SharedCaller, call: &mut driver::Call) -> Result<Departure, Rejection> {
    let mut timer: Option<Pin<Box<Sleep>>> = None;
    poll_fn(|cx| {
        loop {
            if let Poll::Ready(departure) = call.poll_leave(cx) {
                return Poll::Ready(departure);
            }
            let Some(wakeup) = caller.next_wakeup() else { return Poll::Pending };
            let sleep = timer.get_or_insert_with(|| Box::pin(until(caller, wakeup)));
            ready!(sleep.as_mut().poll(cx));
            timer = None;
            caller.dispatch();
        }
    })
    .await
}

/// What `future` gives, none if the deadline passes before.
async fn before<F: Future>(
    caller: &SharedCaller,
    deadline: Instant,
    future: F,
) -> Option<F::Output> {
    if deadline == Instant::FAR {
        return Some(future.await);
    }
    let (mut future, mut timer) = (pin!(future), pin!(until(caller, deadline)));
    poll_fn(|cx| match future.as_mut().poll(cx) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending => timer.as_mut().poll(cx).map(|()| None),
    })
    .await
}

fn until(caller: &SharedCaller, moment: Instant) -> Sleep {
    sleep(moment.since(caller.now()).into())
}
