//! Admission: may this request enter, and what do we tell its caller?
//!
//! An [`Admission`] policy hears facts (`on_…`) and answers one question, at arrival and again when
//! a request leaves the queue. One algorithm per file; [`AdmissionConfig`] lists them all.
//!
//! The life of a request, as a policy sees it:
//!
//! ```text
//! on_arrival ─► Refuse                                     (nothing more is heard of it)
//!            └► Admit, Degrade, Displace ─► on_dequeue ─► on_finish
//!                                        └► on_leave      (cancelled, expired, pushed out)
//! ```

mod breakwater;
mod chain;
mod codel;
mod dagor;
mod detector;
mod open;
mod random;
mod seda;
#[cfg(test)]
mod testing;
mod tide;
mod utilization;

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::config::Problems;
use crate::context::{CallerId, Context};
use crate::feedback::Feedback;
use crate::meter::Cost;
use crate::request::{Cx, Request};
use crate::signal::Backlog;
use crate::time::{Instant, Span};
use crate::verdict::{Outcome, Verdict};

pub use breakwater::{Breakwater, BreakwaterConfig, Demand};
pub use chain::{Chain, ChainConfig};
pub use codel::{Codel, CodelConfig, CodelForm};
pub use dagor::{Dagor, DagorConfig, DagorForm};
pub use detector::{DetectorConfig, LoadSignal};
pub use open::Open;
pub use random::{Random, RandomConfig};
pub use seda::{Seda, SedaConfig};
pub use tide::{Tide, TideConfig};
pub use utilization::{Thresholds, Utilization, UtilizationConfig};

/// A server-side policy.
///
/// Every call comes with a moment that is not before any earlier one. Before each fact the gate
/// calls [`settle`](Admission::settle), so a policy with periods finds itself up to date.
pub trait Admission: fmt::Debug + Send {
    /// The name used in configuration and figures.
    fn name(&self) -> &'static str;

    /// What the gate should keep track of for this policy.
    fn needs(&self) -> Needs {
        Needs::default()
    }

    /// A request has arrived: may it enter?
    fn on_arrival(&mut self, cx: &mut Cx, backlog: &Backlog, request: &Request) -> Verdict;

    /// A request leaves the queue after `sojourn`: may it start?
    fn on_dequeue(
        &mut self,
        _cx: &mut Cx,
        _backlog: &Backlog,
        _request: &Request,
        _sojourn: Span,
    ) -> Verdict {
        Verdict::Admit
    }

    /// A request that started has ended, at this cost.
    fn on_finish(
        &mut self,
        _cx: &mut Cx,
        _backlog: &Backlog,
        _request: &Request,
        _outcome: Outcome,
        _cost: Cost,
    ) {
    }

    /// A request that was let in has left without being served.
    fn on_leave(&mut self, _cx: &mut Cx, _request: &Request) {}

    /// A caller tells its demand and sheds without sending a request.
    fn on_report(&mut self, _cx: &mut Cx, _backlog: &Backlog, _context: &Context) {}

    /// The machine's utilization, 1 being full.
    fn on_utilization(&mut self, _cx: &mut Cx, _utilization: f64) {}

    /// A caller has gone; nothing of it is in flight any more, or soon will be.
    fn on_gone(&mut self, _cx: &mut Cx, _caller: CallerId) {}

    /// Brings all periods that ended up to now to their conclusion, each as of the moment it was
    /// due; any number of missed periods in bounded time.
    fn settle(&mut self, _cx: &mut Cx, _backlog: &Backlog) {}

    /// The first moment at which [`settle`](Admission::settle) would do anything, asked after each
    /// settling: until then the gate spares itself the call.
    fn next_settle(&self) -> Instant {
        Instant::ZERO
    }

    /// When the policy next has something to conclude or to tell.
    fn next_wakeup(&self) -> Option<Instant> {
        None
    }

    /// A message to `caller` is about to be written: fills in what it should know.
    fn feedback(
        &mut self,
        _cx: &mut Cx,
        _backlog: &Backlog,
        _caller: CallerId,
        _out: &mut Feedback,
    ) {
    }

    /// A caller that deserves a message although no response to it is due; asked after a
    /// [`settle`](Admission::settle).
    fn poll_notice(&mut self) -> Option<CallerId> {
        None
    }

    /// How long what callers were told holds, of policies that set a cursor by what callers say they shed. Asked after
    /// each settling.
    fn word_holds(&self) -> Span {
        Span::ZERO
    }

    /// The latency objective in force, of policies that have one.
    fn objective(&self) -> Option<Span> {
        None
    }

    /// The gate has learned the objective; for policies that ask for it in [`Needs`].
    fn set_objective(&mut self, _objective: Span) {}

    /// Takes new parameters in place; false if `config` is of another policy.
    fn reconfigure(&mut self, config: &AdmissionConfig) -> bool;

    /// Credits this policy has given out, for the policy that replaces it.
    fn issued(&self) -> Vec<Issued> {
        Vec::new()
    }

    /// Starts with the credits and in-flight requests there are, so that nothing is granted twice.
    fn take_over(&mut self, _cx: &mut Cx, _issued: &[Issued]) {}

    /// Panics if the state contradicts itself.
    fn invariants(&self) {}

    /// A copy that can be asked without effect on this one.
    fn clone_box(&self) -> Box<dyn Admission>;
}

impl Clone for Box<dyn Admission> {
    fn clone(&self) -> Self {
        self.clone_box()
    }
}

/// Bookkeeping a policy asks of the gate; what nobody asks for is not paid for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Needs {
    /// Arrival order of what waits, for the age of the oldest.
    pub ages: bool,
    /// Ranks of what waits, so that the least important can be pushed out.
    pub ranks: bool,
    /// The objective, learned.
    pub objective: bool,
}

/// Credits held by one caller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Issued {
    /// Whose.
    pub caller: CallerId,
    /// Its window, in flight included.
    pub window: u32,
    /// How many of its requests are in the gate.
    pub in_flight: u32,
    /// How many it said it has waiting.
    pub demand: u32,
    /// How many it said it has shed itself, since it was first heard of.
    pub sheds: u64,
}

/// Every admission policy with its parameters; in TOML the key `policy` chooses.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "policy", rename_all = "kebab-case")]
pub enum AdmissionConfig {
    /// No control.
    Open,
    /// Server-driven credits.
    Breakwater(BreakwaterConfig),
    /// Credits decide how much, ranks decide what.
    Tide(TideConfig),
    /// DAGOR: a cursor over ranks, moved once per window.
    Dagor(DagorConfig),
    /// Sheds a share of all requests by chance.
    Random(RandomConfig),
    /// CoDel: sheds what waited too long in a standing queue.
    Codel(CodelConfig),
    /// SEDA: token buckets whose rates follow a percentile of response times.
    Seda(SedaConfig),
    /// Thresholds of utilization by criticality.
    Utilization(UtilizationConfig),
    /// Several policies in a row.
    Chain(ChainConfig),
}

impl Default for AdmissionConfig {
    fn default() -> Self {
        Self::Tide(TideConfig::default())
    }
}

impl AdmissionConfig {
    /// Builds the policy.
    pub fn build(&self, now: Instant) -> Box<dyn Admission> {
        match self {
            Self::Open => Box::new(Open),
            Self::Breakwater(config) => Box::new(Breakwater::new(config, now)),
            Self::Tide(config) => Box::new(Tide::new(config, now)),
            Self::Dagor(config) => Box::new(Dagor::new(config, now)),
            Self::Random(config) => Box::new(Random::new(config, now)),
            Self::Codel(config) => Box::new(Codel::new(config, now)),
            Self::Seda(config) => Box::new(Seda::new(config, now)),
            Self::Utilization(config) => Box::new(Utilization::new(config, now)),
            Self::Chain(config) => Box::new(Chain::new(config, now)),
        }
    }

    /// Notes everything that is wrong with the parameters.
    pub fn validate(&self, problems: &mut Problems) {
        match self {
            Self::Open => {}
            Self::Breakwater(config) => config.validate(problems),
            Self::Tide(config) => config.validate(problems),
            Self::Dagor(config) => config.validate(problems),
            Self::Random(config) => config.validate(problems),
            Self::Codel(config) => config.validate(problems),
            Self::Seda(config) => config.validate(problems),
            Self::Utilization(config) => config.validate(problems),
            Self::Chain(config) => config.validate(problems),
        }
    }
}
