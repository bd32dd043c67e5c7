//! [`CallerLayer`]: configuration.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use http::Request;
use tidegate_core::Span;
use tidegate_core::gate::CalleeId;
use tidegate_driver::timer::Timer;
use tidegate_driver::{SharedCaller, SharedGate};
use tower_layer::Layer;

use super::service::CallerService;
use crate::wire::Names;

/// Puts a caller before a service that sends requests. Services made by one layer share the caller.
#[derive(Clone, Debug)]
pub struct CallerLayer<R = Cloned> {
    pub(super) caller: SharedCaller,
    pub(super) patience: Option<Span>,
    pub(super) upstream: Option<(SharedGate, CalleeId)>,
    pub(super) names: Names,
    pub(super) repeat: R,
    pub(super) malformed: Arc<AtomicU64>,
    pub(super) timer: Arc<Timer>,
}

impl CallerLayer {
    /// A layer that asks `caller`. Requests must be `Clone` to be repeated; see
    /// [`once`](Self::once).
    pub fn new(caller: SharedCaller) -> Self {
        Self {
            caller,
            patience: None,
            upstream: None,
            names: Names::process(),
            repeat: Cloned,
            malformed: Arc::default(),
            timer: Arc::default(),
        }
    }

    /// Sends every request once: for bodies that cannot be cloned, such as those that stream.
    #[must_use]
    pub fn once(self) -> CallerLayer<Once> {
        let Self { caller, patience, upstream, names, malformed, timer, .. } = self;
        CallerLayer { caller, patience, upstream, names, malformed, timer, repeat: Once }
    }
}

impl<R> CallerLayer<R> {
    /// Gives every request a deadline at most so long from now.
    #[must_use]
    pub fn patience(mut self, patience: Span) -> Self {
        self.patience = Some(patience);
        self
    }

    /// The gate of this service, which then refuses what `callee`, the service called here, would
    /// refuse: before anything was done for it.
    #[must_use]
    pub fn upstream(mut self, gate: SharedGate, callee: CalleeId) -> Self {
        self.upstream = Some((gate, callee));
        self
    }

    /// The table of workflow names to use. Default: that of the process.
    #[must_use]
    pub fn names(mut self, names: Names) -> Self {
        self.names = names;
        self
    }

    /// The caller it asks.
    pub fn caller(&self) -> &SharedCaller {
        &self.caller
    }

    /// How many feedback fields could not be read, and were ignored.
    pub fn malformed(&self) -> u64 {
        self.malformed.load(Ordering::Relaxed)
    }
}

impl<S, R: Clone> Layer<S> for CallerLayer<R> {
    type Service = CallerService<S, R>;

    fn layer(&self, inner: S) -> CallerService<S, R> {
        CallerService { inner, layer: Arc::new(self.clone()) }
    }
}

/// Whether and how a request can be sent again.
pub trait Repeat<B> {
    /// The same request once more, asked for before it is sent; none if it can be sent only once.
    fn repeat(&self, request: &Request<B>) -> Option<Request<B>>;
}

/// Every request can be sent again: it is cloned.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cloned;

impl<B: Clone> Repeat<B> for Cloned {
    fn repeat(&self, request: &Request<B>) -> Option<Request<B>> {
        Some(request.clone())
    }
}

/// No request is sent again.
#[derive(Clone, Copy, Debug, Default)]
pub struct Once;

impl<B> Repeat<B> for Once {
    fn repeat(&self, _request: &Request<B>) -> Option<Request<B>> {
        None
    }
}
