//! What leaves towards upstreams that run a gate of their own: the block `[caller]`.
//!
//! A request that has its slot here asks the throttle before it is sent: it goes, is held until the
//! upstream lets more in, or is rejected without touching the network. What the upstream's gate says in
//! its answers is what the throttle learns from. A sidecar never sends anything twice, so it does not
//! retry whatever the block says: that is the client's business, who is told what to do.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Poll, ready};

use http::Response;
use tidegate_core::caller::CallerConfig;
use tidegate_core::config::ConfigError;
use tidegate_core::throttle::{Answer, ThrottleConfig};
use tidegate_core::{Caller, Context, Outcome, Rejection};
use tidegate_driver::{Call, Clock, Monotonic, SharedCaller};
use tidegate_http::wire;
use tokio::time::{Sleep, sleep};

/// The caller of a sidecar; none where everything is sent.
pub(crate) fn build(
    config: &CallerConfig,
    clock: Monotonic,
    seed: u64,
) -> Result<Option<SharedCaller>, ConfigError> {
    if config.throttle == ThrottleConfig::Open && config.breaker.is_none() {
        return Ok(None);
    }
    let mut config = config.clone();
    config.retry.attempts = 1;
    // Replicas are chosen by connections and health elsewhere: for the throttle they are one.
    let caller = Caller::new(&config, 1, clock.now(), seed)?;
    Ok(Some(SharedCaller::with_clock(caller, clock)))
}

/// A request that has left; it has to be told how it ended. In a box, as few are throttled and all would carry it.
#[derive(Debug)]
pub(crate) struct Sent(Option<Box<Call>>);

impl Sent {
    /// What nobody throttles.
    pub(crate) const FREE: Self = Self(None);

    /// The head of an answer has come.
    pub(crate) fn answered<B>(self, response: &Response<B>) {
        let Some(mut call) = self.0 else { return };
        let (status, headers) = (response.status(), response.headers());
        let message = wire::feedback_of(headers).and_then(Result::ok);
        let told = message.and_then(|message| message.rejection);
        let answer = match told.or_else(|| wire::refusal_of(status, headers)) {
            Some(rejection) => Answer::Refused(rejection),
            None if status.is_server_error() => Answer::Done(Outcome::Fail),
            None => Answer::Done(Outcome::Serve),
        };
        call.respond(answer, message.map(|message| message.feedback).as_ref());
    }

    /// None will come.
    pub(crate) fn failed(self) {
        if let Some(mut call) = self.0 {
            call.respond(Answer::Done(Outcome::Fail), None);
        }
    }
}

/// Waits until a request may leave: what it says of itself to the upstream, or why it may not.
pub(crate) async fn leave(
    caller: Option<&SharedCaller>,
    context: &Context,
) -> Result<(Context, Sent), Rejection> {
    let own = context.inherit();
    let Some(caller) = caller else { return Ok((own, Sent::FREE)) };
    let mut call = caller.submit(&own)?;
    let mut timer: Option<Pin<Box<Sleep>>> = None;
    // Whoever waits sees to the caller's timers: when nobody waits they do not matter.
    let departure = poll_fn(|cx| {
        loop {
            if let Poll::Ready(departure) = call.poll_leave(cx) {
                return Poll::Ready(departure);
            }
            let Some(wakeup) = caller.next_wakeup() else { return Poll::Pending };
            let until = wakeup.since(caller.now());
            let sleeping = timer.get_or_insert_with(|| Box::pin(sleep(until.into())));
            ready!(sleeping.as_mut().poll(cx));
            timer = None;
            caller.dispatch();
        }
    })
    .await?;
    Ok((departure.context, Sent(Some(Box::new(call)))))
}
