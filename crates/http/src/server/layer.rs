//! [`GateLayer`]: configuration.

use tidegate_core::Span;
use tidegate_driver::SharedGate;
use tower_layer::Layer;

use super::service::GateService;

/// Puts a gate before a service. Services made by one layer share the gate.
#[derive(Clone, Debug)]
pub struct GateLayer {
    pub(super) gate: SharedGate,
    pub(super) patience: Option<Span>,
}

impl GateLayer {
    /// A layer that asks `gate`.
    pub fn new(gate: SharedGate) -> Self {
        Self { gate, patience: None }
    }

    /// Gives every request a deadline so long after its arrival. Without, the gate's policy alone
    /// bounds the wait.
    #[must_use]
    pub fn patience(mut self, patience: Span) -> Self {
        self.patience = Some(patience);
        self
    }

    /// The gate it asks.
    pub fn gate(&self) -> &SharedGate {
        &self.gate
    }
}

impl<S> Layer<S> for GateLayer {
    type Service = GateService<S>;

    fn layer(&self, inner: S) -> GateService<S> {
        GateService { inner, layer: self.clone() }
    }
}
