//! Callers that obey: what the gate says decides what they send.
//!
//! Breakwater waits at the caller for a credit (§3.3), DAGOR does not send what the callee would refuse
//! (§4.2.4). Here a few callers are the clients of one sidecar; each request is one of them's, drawn by
//! its rank's hash like a user who always comes by the same front end.

use std::sync::atomic::{AtomicUsize, Ordering};

use tidegate_core::caller::CallerConfig;
use tidegate_core::throttle::Answer;
use tidegate_core::{Context, Outcome, Rank};
use tidegate_driver::timer::Timer;
use tidegate_driver::{Call, SharedCaller};
use tidegate_http::wire::{Message, Names, write_context};

/// How many there are: ten or so front ends of one service.
const CALLERS: usize = 10;

/// The throttle that belongs to a policy; none where the gate tells its callers nothing.
///
/// Who waits for a credit does so for a twentieth of the objective, as in our figures.
fn block(policy: &str) -> Option<&'static str> {
    match policy {
        "tide" | "breakwater" => Some(
            "hold_time = '20ms'\nhold_limit = 64\nretry = { attempts = 1 }\nthrottle = { throttle = 'credit' }\n",
        ),
        "dagor" => Some("retry = { attempts = 1 }\nthrottle = { throttle = 'cursor' }\n"),
        _ => None,
    }
}

/// The callers of one sidecar.
#[derive(Debug)]
pub(crate) struct Callers {
    all: Vec<(SharedCaller, Timer)>,
    next: AtomicUsize,
    names: Names,
}

impl Callers {
    /// Those of a policy; none if it has nothing to tell them.
    pub(crate) fn of(policy: &str) -> Option<Self> {
        let config = CallerConfig::from_toml(block(policy)?).expect("our own");
        let caller = || SharedCaller::build(&config, 1).expect("our own");
        let all = (0..CALLERS).map(|_| (caller(), Timer::default())).collect();
        Some(Self { all, next: AtomicUsize::new(0), names: Names::default() })
    }

    /// Waits until a request may leave: its call, and what it says of itself. None if it is rejected.
    pub(crate) async fn leave(&self, rank: Rank) -> Option<(Call, Vec<u8>)> {
        let next = self.next.fetch_add(1, Ordering::Relaxed);
        let (caller, timer) = &self.all[next % self.all.len()];
        let context = Context { rank, ..Context::default() };
        let mut call = caller.submit(&context).ok()?;
        let departure = timer.leave(caller, &mut call).await.ok()?;
        let text = write_context(&departure.context, caller.now(), &self.names);
        Some((call, text.as_bytes().to_vec()))
    }
}

/// A request has been answered with this status.
pub(crate) fn answered(mut call: Call, status: u16, message: Option<Message>) {
    let answer = match message.and_then(|message| message.rejection) {
        Some(rejection) => Answer::Refused(rejection),
        None if status == 200 => Answer::Done(Outcome::Serve),
        None => Answer::Done(Outcome::Fail),
    };
    call.respond(answer, message.map(|message| message.feedback).as_ref());
}

#[cfg(test)]
mod tests {
    use super::super::lane::OBEYED;
    use super::*;

    #[tokio::test]
    async fn every_policy_that_is_obeyed_has_callers_whose_first_request_may_leave() {
        for policy in OBEYED {
            let callers = Callers::of(policy).expect(policy);
            let (call, context) = callers.leave(Rank::new(24, 7)).await.expect("may leave");
            assert!(String::from_utf8_lossy(&context).contains("r=(24 7)"), "{policy}");
            answered(call, 200, None);
        }
        assert!(Callers::of("codel").is_none());
    }
}
