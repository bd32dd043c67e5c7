//! One call, through all its attempts.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tidegate_core::caller::Next;
use tidegate_core::throttle::Answer;
use tidegate_core::{Advice, Context, Feedback, Outcome, Progress, Rank, Reason, Rejection, Span};
use tidegate_driver::context::Parent;
use tidegate_driver::timer::before;
use tidegate_driver::{self as driver, Departure};

use super::Inner;
use super::link::Received;
use crate::error::{Broken, CallError};
use crate::wire::{self, RequestHead};

/// A call that has not been sent yet. Dropping its future at any point cancels it, at the server too.
#[must_use = "a call does nothing until it is sent"]
pub struct Call {
    inner: Arc<Inner>,
    method: u32,
    payload: Bytes,
    context: Context,
    /// Whom it is made for, and what that one has done until now.
    parent: Option<Parent>,
}

impl Call {
    pub(super) fn new(inner: Arc<Inner>, method: u32, payload: Bytes) -> Self {
        let context = driver::context::current().map(|context| context.inherit());
        let mut context = context.unwrap_or_default();
        let parent = driver::context::parent().map(|parent| parent.as_of(inner.caller.now()));
        parent.iter().for_each(|parent| context.progress.add_step(parent.worked));
        Self { inner, method, payload, context, parent }
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
        if self.payload.len() > inner.bounds.limits.payload.min(wire::LARGEST) {
            return Err(CallError::Broken(Broken::TooLarge));
        }
        if let Some((gate, callee)) = &inner.upstream {
            let sheds = gate.on_call(*callee, self.context.workflow);
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
                gate.on_downstream(*callee, self.context.workflow, self.parent.as_ref(), feedback);
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
        let progress = self.progress(inner).unwrap_or(departure.context.progress);
        let context = Context { progress, ..departure.context };
        let head = RequestHead { method: self.method, context };
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

    /// How far the request has come that it is made for, if its gate is known: what was called for it before
    /// counts too.
    fn progress(&self, inner: &Inner) -> Option<Progress> {
        let ((gate, _), parent) = inner.upstream.as_ref().zip(self.parent.as_ref())?;
        gate.progress(parent)
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
