//! Requests that hold a place of a fleet's ([`Places`](tidegate_core::share::Places)) are aborted when its lease is over.
//!
//! Whoever waits for such a request, for the head of its answer or for the rest, waits for a word beside that: look whether
//! you are overdue. It costs requests nothing where no limit is about places.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll};

use tidegate_core::RequestId;
use tidegate_driver::SharedGate;
use tokio::sync::watch;

/// All of them.
#[derive(Debug, Default)]
pub(crate) struct Leashes {
    /// Whether any limit of the gate is about places.
    any: AtomicBool,
    /// Counts how often there was something overdue.
    word: watch::Sender<u64>,
    /// Requests that were aborted.
    aborted: AtomicU64,
}

impl Leashes {
    /// A limit is about places.
    pub(crate) fn needed(&self) {
        self.any.store(true, Ordering::Relaxed);
    }

    /// Something is overdue: everybody looks.
    pub(crate) fn pull(&self) {
        self.word.send_modify(|count| *count += 1);
    }

    /// Requests that were aborted so far.
    pub(crate) fn aborted(&self) -> u64 {
        self.aborted.load(Ordering::Relaxed)
    }

    /// Whether a request of the gate's is to be aborted.
    pub(crate) fn is_overdue(&self, gate: &SharedGate, request: Option<RequestId>) -> bool {
        let request = request.filter(|_| self.any.load(Ordering::Relaxed));
        request.is_some_and(|request| gate.read(|at| at.is_overdue(gate.now(), request)))
    }

    /// For a request of the gate's, where it may need one.
    pub(crate) fn of(&self, gate: &SharedGate, request: Option<RequestId>) -> Option<Leash> {
        let request = request.filter(|_| self.any.load(Ordering::Relaxed))?;
        let (gate, mut word) = (gate.clone(), self.word.subscribe());
        let over = Box::pin(async move {
            while !gate.read(|at| at.is_overdue(gate.now(), request)) {
                if word.changed().await.is_err() {
                    // The end of the process, and of everything.
                    std::future::pending::<()>().await;
                }
            }
        });
        Some(Leash { over, is_over: false })
    }

    /// Waits for an answer, unless the lease is over before.
    pub(crate) async fn hold<T>(
        &self,
        leash: &mut Leash,
        answer: impl Future<Output = T>,
    ) -> Option<T> {
        tokio::select! {
            biased;
            answer = answer => Some(answer),
            () = std::future::poll_fn(|cx| leash.poll_over(self, cx)) => None,
        }
    }
}

/// One request's.
pub(crate) struct Leash {
    over: Pin<Box<dyn Future<Output = ()> + Send>>,
    is_over: bool,
}

impl std::fmt::Debug for Leash {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Leash").field("is_over", &self.is_over).finish_non_exhaustive()
    }
}

impl Leash {
    /// Ready when its request is to be aborted.
    pub(crate) fn poll_over(&mut self, all: &Leashes, cx: &mut Context<'_>) -> Poll<()> {
        if !self.is_over {
            std::task::ready!(self.over.as_mut().poll(cx));
            self.is_over = true;
            all.aborted.fetch_add(1, Ordering::Relaxed);
        }
        Poll::Ready(())
    }

    /// Whether it was aborted.
    pub(crate) fn is_over(&self) -> bool {
        self.is_over
    }
}

/// What a reader of an answer finds that was cut off.
pub(crate) fn cut() -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionAborted, "the lease of its place is over")
}
