//! Throttling at the caller: send, hold, or reject before touching the network.
//!
//! A [`Throttle`] stands before one endpoint. It hears what came back and answers one question per
//! request. One algorithm per file; [`ThrottleConfig`] lists them all.

mod adaptive;
mod credit;
mod cursor;
mod open;
mod rate;
mod seda;
mod silence;
#[cfg(test)]
mod testing;
mod window;

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::config::Problems;
use crate::context::Context;
use crate::feedback::Feedback;
use crate::request::Cx;
use crate::time::{Instant, Span};
use crate::verdict::{Outcome, Passage, Rejection};

pub use adaptive::{Adaptive, AdaptiveConfig};
pub use credit::{Credit, CreditConfig};
pub use cursor::{CursorConfig, CursorThrottle};
pub use open::Open;
pub use rate::{Rate, RateConfig};
pub use seda::{Seda, SedaConfig};
pub use window::{WindowConfig, WindowThrottle};

/// A client-side policy for one endpoint.
pub trait Throttle: fmt::Debug + Send {
    /// The name used in configuration and figures.
    fn name(&self) -> &'static str;

    /// A request wants to leave. `Send` takes whatever credit or token it needed.
    fn on_submit(&mut self, cx: &mut Cx, context: &Context) -> Passage;

    /// A request that was sent has been answered, refused or given up.
    fn on_response(&mut self, _cx: &mut Cx, _response: &Response) {}

    /// The callee tells its state, with a response or unasked. True if more may be sent than
    /// before, so that held requests deserve another look.
    fn on_feedback(&mut self, _cx: &mut Cx, _feedback: &Feedback) -> bool {
        false
    }

    /// Brings all periods that ended up to now to their conclusion.
    fn settle(&mut self, _cx: &mut Cx) {}

    /// When the throttle next has something to conclude, such as a token coming due.
    fn next_wakeup(&self) -> Option<Instant> {
        None
    }

    /// The last rank this throttle would send now, for choosing where a refused request goes next.
    fn cursor(&self, _now: Instant) -> crate::rank::Cursor {
        crate::rank::Cursor::OPEN
    }

    /// Whether a request that must wait means that all behind it must wait too. If not, the whole
    /// holding queue is looked through when something may leave.
    fn in_order(&self) -> bool {
        true
    }

    /// Whether the callee wants to be told of demand by messages of their own.
    fn synchronises(&self) -> bool {
        false
    }

    /// Takes over from another throttle that had `outstanding` requests at the endpoint: their
    /// responses will come here.
    fn adopt(&mut self, _outstanding: u32) {}

    /// Takes new parameters in place; false if `config` is of another throttle.
    fn reconfigure(&mut self, config: &ThrottleConfig) -> bool;

    /// Panics if the state contradicts itself.
    fn invariants(&self) {}

    /// A copy that can be asked without effect on this one.
    fn clone_box(&self) -> Box<dyn Throttle>;
}

impl Clone for Box<dyn Throttle> {
    fn clone(&self) -> Self {
        self.clone_box()
    }
}

/// What became of a request that was sent.
#[derive(Clone, Copy, Debug)]
pub struct Response {
    /// What it was sent with.
    pub context: Context,
    /// From sending to answer.
    pub latency: Span,
    /// How it ended.
    pub answer: Answer,
}

/// How a call ended.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Answer {
    /// The callee took it.
    Done(Outcome),
    /// The callee turned it away.
    Refused(Rejection),
}

/// Every throttle with its parameters; in TOML the key `throttle` chooses.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(tag = "throttle", rename_all = "kebab-case")]
pub enum ThrottleConfig {
    /// Sends everything.
    #[default]
    Open,
    /// Sends by the window and the cursors that gates announce (Breakwater and tide).
    Credit(CreditConfig),
    /// Rejects what is beyond the callee's cursor (DAGOR).
    Cursor(CursorConfig),
    /// Rejects by chance, in proportion to refusals ("Handling Overload").
    Adaptive(AdaptiveConfig),
    /// Sends at a rate that follows response times (SEDA, as in Breakwater's evaluation).
    Seda(SedaConfig),
    /// Keeps a window of outstanding requests that follows response times (ORCA).
    Window(WindowConfig),
    /// Sends at a granted or configured rate.
    Rate(RateConfig),
}

impl ThrottleConfig {
    /// Builds the throttle of one endpoint. `seed` decides its random start values.
    pub fn build(&self, now: Instant, seed: u64) -> Box<dyn Throttle> {
        match self {
            Self::Open => Box::new(Open),
            Self::Credit(config) => Box::new(Credit::new(config)),
            Self::Cursor(config) => Box::new(CursorThrottle::new(config, now)),
            Self::Adaptive(config) => Box::new(Adaptive::new(config, now)),
            Self::Seda(config) => Box::new(Seda::new(config, now, seed)),
            Self::Window(config) => Box::new(WindowThrottle::new(config, now)),
            Self::Rate(config) => Box::new(Rate::new(config, now)),
        }
    }

    /// Notes everything that is wrong with the parameters.
    pub fn validate(&self, problems: &mut Problems) {
        match self {
            Self::Open => {}
            Self::Credit(config) => config.validate(problems),
            Self::Cursor(config) => config.validate(problems),
            Self::Adaptive(config) => config.validate(problems),
            Self::Seda(config) => config.validate(problems),
            Self::Window(config) => config.validate(problems),
            Self::Rate(config) => config.validate(problems),
        }
    }
}
