//! Messages to callers that the gate wants sent although no response to them is due.

use std::collections::VecDeque;
use std::fmt;
use std::task::{self, Poll, Waker};

use tidegate_core::{CallerId, Feedback};

use crate::shared::Shared;
use crate::sync::Arc;

/// Feedback for a caller, unasked.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Notice {
    /// To whom.
    pub caller: CallerId,
    /// What.
    pub feedback: Feedback,
}

/// Notices kept for a listener that is slow; the oldest go first, as the latest word of a gate wins.
/// At 136 bytes each, about 140 kB.
const OUTBOX: usize = 1024;

/// Notices on their way.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    listeners: usize,
    queue: VecDeque<Notice>,
    waker: Option<Waker>,
}

impl Outbox {
    /// Keeps a notice if anybody listens, and returns the waker of the listener.
    pub(crate) fn push(&mut self, caller: CallerId, feedback: Feedback) -> Option<Waker> {
        if self.listeners == 0 {
            return None;
        }
        if self.queue.len() == OUTBOX {
            self.queue.pop_front();
        }
        self.queue.push_back(Notice { caller, feedback });
        self.waker.take()
    }
}

/// Listens to a gate's notices; where there are several listeners, each notice goes to one, and
/// only the last to have polled is woken.
pub struct Notices {
    shared: Arc<Shared>,
}

impl Notices {
    pub(crate) fn new(shared: &Arc<Shared>) -> Self {
        shared.locked(|state, _, _| {
            state.outbox.listeners += 1;
            state.gate.set_notifies(true);
        });
        Self { shared: Arc::clone(shared) }
    }

    /// The next notice.
    pub fn poll_next(&mut self, cx: &mut task::Context<'_>) -> Poll<Notice> {
        let (answer, _old_waker) = self.shared.locked(|state, _, _| {
            let outbox = &mut state.outbox;
            match outbox.queue.pop_front() {
                Some(notice) => (Poll::Ready(notice), None),
                None => (Poll::Pending, outbox.waker.replace(cx.waker().clone())),
            }
        });
        answer
    }
}

impl Drop for Notices {
    fn drop(&mut self) {
        let _old_waker = self.shared.locked(|state, _, _| {
            state.outbox.listeners -= 1;
            if state.outbox.listeners > 0 {
                return None;
            }
            state.gate.set_notifies(false);
            state.outbox.queue.clear();
            state.outbox.waker.take()
        });
    }
}

impl fmt::Debug for Notices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Notices").finish_non_exhaustive()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use tidegate_core::gate::{Gate, GateConfig};
    use tidegate_core::{GateId, Instant};

    use super::*;
    use crate::SharedGate;

    fn push(gate: &SharedGate, number: u64) {
        gate.shared.locked(|state, _, wakers| {
            let feedback = Feedback::silent(GateId(1), number);
            wakers.extend(state.outbox.push(CallerId(number), feedback));
        });
    }

    #[test]
    fn a_listener_is_woken_and_the_latest_are_kept() {
        let gate = Gate::new(&GateConfig::default(), Instant::ZERO, 1).expect("valid");
        let gate = SharedGate::new(gate);
        push(&gate, 0);
        let mut notices = gate.notices();
        let mut cx = task::Context::from_waker(Waker::noop());
        assert!(notices.poll_next(&mut cx).is_pending(), "sent before anybody listened");
        for number in 1..=OUTBOX as u64 + 1 {
            push(&gate, number);
        }
        let mut heard = Vec::new();
        while let Poll::Ready(notice) = notices.poll_next(&mut cx) {
            heard.push(notice.caller.0);
        }
        assert_eq!(heard, (2..=OUTBOX as u64 + 1).collect::<Vec<_>>());
        push(&gate, 9);
        drop(notices);
        assert!(gate.notices().poll_next(&mut cx).is_pending(), "kept for nobody");
    }
}
