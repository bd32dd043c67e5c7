//! Leased limits of the gate, and what there is to say of them.
//!
//! Whatever decides is a node of its agreements: the live gate, or where it is not fully enforced the
//! model that stands for it. A model that decides nothing takes no share, and refuses nothing for the lack of one.

use std::sync::Arc;

use serde_json::{Value, json};
use tidegate_control::link::Health;
use tidegate_control::{Holders, key_name};
use tidegate_core::context::Workflow;
use tidegate_core::limit::{Complaint, Leased, Limits, Standing};
use tidegate_core::share::Rate;
use tidegate_core::{Gate, Instant};
use tidegate_driver::{SharedGate, random_seed};
use tidegate_http::wire::Names;

use crate::config::Percent;
use crate::metrics::Counters;
use crate::sideline::Sideline;

/// See the module.
#[derive(Debug)]
pub(crate) struct Leases {
    pub(crate) gate: SharedGate,
    pub(crate) sideline: Arc<Sideline>,
    pub(crate) names: Names,
    pub(crate) counters: Arc<Counters>,
}

impl Holders for Leases {
    fn each(&self, look: &mut dyn FnMut(&mut Leased, Instant)) {
        let has_any = |gate: &Gate| {
            gate.limits().is_some_and(|limits| limits.iter().any(|limit| limit.leased().is_some()))
        };
        if !self.gate.read(has_any) {
            return;
        }
        let live = self.sideline.percent() == Percent::ALL;
        if live {
            self.gate.input(|gate, now| {
                gate.leased().for_each(|leased| {
                    if leased.config().places {
                        self.counters.leashes.needed();
                    }
                    look(leased, now);
                });
            });
        }
        let now = self.gate.now();
        self.sideline.leased(&mut |leased, stands_for_gate| {
            if stands_for_gate && !live {
                // It is another node than the gate was, with reports of its own.
                leased.identify(random_seed());
                look(leased, now);
            } else {
                leased.stand_aside();
            }
        });
    }

    fn overdue(&self) {
        self.counters.leashes.pull();
    }

    fn name(&self, workflow: Workflow) -> String {
        self.names.name(workflow).unwrap_or_default()
    }
}

/// One agreement as this process has it; of all keys together.
#[derive(Clone, Debug)]
pub(crate) struct Lease {
    pub(crate) agreement: String,
    keys: Vec<(String, Standing)>,
    /// Tokens in one of its unit.
    tokens: f64,
    /// Whether it is about requests in flight.
    places: bool,
    complaint: Option<Complaint>,
    /// Requests beyond it that passed, as it is not enforced for them.
    beyond: u64,
}

/// Keys that `/state` tells of.
const MOST_KEYS: usize = 100;

impl Lease {
    /// All of a gate.
    pub(crate) fn all(gate: &Gate, now: Instant, names: &Names) -> Vec<Self> {
        let leased = gate.limits().into_iter().flat_map(Limits::iter);
        let leased = leased.filter_map(|limit| limit.leased());
        leased
            .map(|leased| {
                let each = leased.config().each;
                let workflow = |workflow| names.name(workflow).unwrap_or_default();
                let name = |key| key_name(workflow, each, key).unwrap_or_default();
                Self {
                    agreement: leased.config().agreement.clone(),
                    keys: leased.standings(now).map(|(key, at)| (name(key), at)).collect(),
                    tokens: leased.config().unit.tokens(),
                    places: leased.config().places,
                    complaint: leased.complaint(),
                    beyond: leased.beyond(),
                }
            })
            .collect()
    }

    fn sum(&self, of: impl Fn(&Standing) -> f64) -> f64 {
        self.keys.iter().map(|(_, standing)| of(standing)).sum::<f64>() / self.tokens
    }

    /// Requests beyond it that passed, as it is not enforced for them.
    pub(crate) fn beyond(&self) -> f64 {
        self.beyond as f64
    }

    /// Requests in flight that it may have now, where it is about these.
    pub(crate) fn places(&self) -> f64 {
        if self.places { self.sum(|standing| standing.share.burst as f64) } else { 0.0 }
    }

    /// Those that it has.
    pub(crate) fn held(&self) -> f64 {
        self.sum(|standing| standing.held as f64)
    }

    /// What it may use now, per second.
    pub(crate) fn share(&self) -> f64 {
        self.sum(|standing| standing.share.rate.as_f64())
    }

    /// What it may use without being told, per second.
    pub(crate) fn safe(&self) -> f64 {
        self.sum(|standing| standing.safe.rate.as_f64())
    }

    /// What it is asked for, per second.
    pub(crate) fn asked(&self) -> f64 {
        self.sum(|standing| standing.load.rate.as_f64())
    }

    /// Whether it has heard of all its keys within a term.
    pub(crate) fn connected(&self) -> bool {
        self.keys.iter().all(|(_, standing)| standing.connected)
    }

    /// Most that all processes together let pass above the agreement, per second: of the key of which it is
    /// most. Without a bound until one has been heard of.
    pub(crate) fn over(&self) -> f64 {
        let heard = self.keys.iter().map(|(_, at)| at).filter(|at| at.whole.burst > 0);
        let over = heard.map(|at| match at.bound.rate {
            Rate::MAX => f64::INFINITY,
            bound => (bound.as_f64() - at.whole.rate.as_f64()) / self.tokens,
        });
        over.reduce(f64::max).unwrap_or(f64::INFINITY)
    }

    pub(crate) fn json(&self) -> Value {
        let share = |share: tidegate_core::share::Share| json!({ "rate": share.rate.as_f64() / self.tokens, "burst": share.burst as f64 / self.tokens });
        let keys = self.keys.iter().take(MOST_KEYS).map(|(key, at)| {
            json!({
                "key": key,
                "agreed": share(at.whole),
                "bound": share(at.bound),
                "share": share(at.share),
                "safe": share(at.safe),
                "tokens": at.tokens / self.tokens,
                "held": at.held,
                "asked_rate": at.load.rate.as_f64() / self.tokens,
                "connected": at.connected,
                "on_loss": at.on_loss,
            })
        });
        json!({
            "agreement": self.agreement,
            "connected": self.connected(),
            "share_rate": self.share(),
            "places": self.places(),
            "held": self.held(),
            "safe_rate": self.safe(),
            "asked_rate": self.asked(),
            "over_admission_bound": finite(self.over()),
            "beyond": self.beyond,
            "problem": self.complaint.map(|complaint| match complaint {
                Complaint::Unknown => "the daemon knows no such agreement",
                Complaint::Full => "the agreement has as many keys as it may",
                Complaint::Other => {
                    "the agreement is about requests in flight and this limit is not, or the other way round"
                }
            }),
            "keys": keys.collect::<Vec<_>>(),
        })
    }
}

/// How the way to the daemon is.
pub(crate) fn health(health: &Health) -> Value {
    json!({
        "connected": health.connected,
        "answered": health.answered,
        "failed": health.failed,
        "problem": health.problem,
    })
}

/// JSON has no infinity: null is no bound.
fn finite(number: f64) -> Value {
    if number.is_finite() { number.into() } else { Value::Null }
}

/// What a process is called where its configuration says nothing: its host and port.
pub(crate) fn node_name(port: u16) -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").ok();
    let host = host.or_else(|| std::env::var("HOSTNAME").ok()).unwrap_or_default();
    let fits = |c: &char| c.is_ascii_alphanumeric() || "-_.".contains(*c);
    let host: String = host.trim().chars().filter(fits).take(48).collect();
    if host.is_empty() { format!("node-{port}") } else { format!("{host}-{port}") }
}
