//! One call, through all its attempts.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tidegate_core::caller::Next;
use tidegate_core::throttle::Answer;
use tidegate_core::{Advice, Context, Feedback, Outcome, Rank, Reason, Rejection, Span};
use tidegate_driver::timer::before;
use tidegate_driver::{self as driver, Departure};

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
        if self.payload.len() > inner.bounds.limits.payload {
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
            let departure = inner.timer.leave(&inner.caller, &mut call).await;
            let departure = departure.map_err(CallError::Refused)?;
            let attempt = self.attempt(&inner, &departure);
            let attempted = before(&inner.caller, departure.context.deadline, attempt).await;
            // Dropping the attempt has cancelled it.
            let (attempt, feedback) = attempted.unwrap_or((Attempt::TimedOut, None));
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

    /// One attempt at one server, connecting included.
    async fn attempt(&self, inner: &Inner, departure: &Departure) -> (Attempt, Option<Feedback>) {
        let number = departure.endpoint;
        let link = inner.endpoints[number].link(&inner.caller, number, inner.bounds);
        let head = RequestHead { method: self.method, context: departure.context };
        match link.call(head, self.payload.clone()).await {
            Received::Answer(payload, feedback) => (Attempt::Served(payload), feedback),
            Received::Refusal(rejection, feedback) => (Attempt::Refused(rejection), feedback),
            Received::Failure(failure, feedback) => {
                (Attempt::Ended(CallError::Failed(failure)), feedback)
            }
            Received::Unsent(broken) => (Attempt::Unsent(broken), None),
            Received::Broken(broken) => (Attempt::Ended(CallError::Broken(broken)), None),
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
