//! The leased limits of a gate in a program of one's own, behind whatever layer.
//!
//! ```no_run
//! use tidegate_control::Link;
//! use tidegate_core::gate::GateConfig;
//! use tidegate_driver::{Names, SharedGate};
//!
//! # async fn start() -> Result<(), Box<dyn std::error::Error>> {
//! let config = GateConfig::from_toml(
//!     "limits = [{ limit = 'leased', agreement = 'api', control = 'http://127.0.0.1:9911' }]",
//! )?;
//! let gate = SharedGate::build(&config)?;
//! let link = Link::of_gate(&gate, &Names::process(), "shop-1");
//! tokio::spawn(link.clone().run(|line| eprintln!("{line}")));
//! // … a `GateLayer::new(gate)` before the service, and when the process ends:
//! link.leave().await;
//! # Ok(())
//! # }
//! ```
//!
//! A limit about places needs a driver that aborts what is [overdue](tidegate_core::Gate::is_overdue). A layer cannot end
//! the handler of a request, so here such a request goes on, and its place is another's one allowance later.

use std::sync::Arc;

use tidegate_core::Instant;
use tidegate_core::context::Workflow;
use tidegate_core::limit::Leased;
use tidegate_driver::{Names, SharedGate};

use crate::link::{Holders, Link};

/// The leased limits of one gate.
#[derive(Debug)]
struct InGate {
    gate: SharedGate,
    names: Names,
}

impl Link {
    /// A link for the leased limits of a gate, whose workflows have these names. `node` is what the process is
    /// called unless its configuration says something else.
    pub fn of_gate(gate: &SharedGate, names: &Names, node: impl Into<String>) -> Self {
        let holders = InGate { gate: gate.clone(), names: names.clone() };
        Self::new(Arc::new(holders), node.into())
    }
}

impl Holders for InGate {
    fn each(&self, look: &mut dyn FnMut(&mut Leased, Instant)) {
        self.gate.input(|gate, now| gate.leased().for_each(|leased| look(leased, now)));
    }

    fn name(&self, workflow: Workflow) -> String {
        self.names.name(workflow).unwrap_or_default()
    }
}
