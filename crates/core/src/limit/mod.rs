//! Limits: how much of what may pass, whatever the load. The first stage of a gate.
//!
//! A [`Limiter`] answers one question per request, may it pass, and takes what it costs. It hears
//! when the request was refused further on, and gives everything back; and what it really cost, and
//! settles the difference. [`Limits`] holds several: a request passes all of them or is charged by
//! none. One algorithm per file; [`LimitConfig`] lists them all.

pub mod bucket;
pub mod gcra;
mod heavy;
mod keyed;
mod leased;
mod order;
mod quota;
mod rate;
#[cfg(test)]
mod reloads;
mod size;
mod stage;
mod tree;
mod window;

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::config::Problems;
use crate::context::{Context, Workflow};
use crate::meter::Cost;
use crate::time::{Instant, Span};
use crate::verdict::{Advice, Reason, Rejection};

pub use bucket::{Bucket, Limit, Shortage};
pub use gcra::Gcra;
pub use heavy::{Heavy, HeavyHitters};
pub use keyed::Keyed;
pub use leased::{Complaint, LeaseKey, Leased, LeasedConfig, Standing, is_agreement};
pub use quota::{Enforce, Guaranteed, Quota, QuotaConfig, Quotas};
pub use rate::{Each, RateLimit, RateLimitConfig};
pub use size::{Sizing, TooFew, size};
pub use stage::Limits;
pub(crate) use stage::validate as validate_all;
pub use tree::{Node, Tree, TreeConfig};
pub use window::{Period, Window, WindowConfig};

/// A limit that requests pass, or do not.
pub trait Limiter: fmt::Debug + Send {
    /// The name used in configuration.
    fn name(&self) -> &'static str;

    /// A request wants to pass. If it may, what it is expected to cost has been taken.
    fn on_arrival(&mut self, now: Instant, ask: &Ask<'_>) -> Result<Receipt, Rejection>;

    /// A request that passed was refused further on: everything it paid is given back.
    fn refund(&mut self, now: Instant, context: &Context, receipt: Receipt);

    /// A request that passed has ended and cost this much.
    fn on_finish(&mut self, _now: Instant, _context: &Context, _receipt: Receipt, _cost: Cost) {}

    /// Learns the numbers of the workflows its configuration names.
    fn name_workflows(&mut self, _number: &mut dyn FnMut(&str) -> Workflow) {}

    /// Learns what the calendar says: `unix` has passed since 1970 began, in UTC.
    fn on_calendar(&mut self, _now: Instant, _unix: Span) {}

    /// Whether it wants to know the delay, which takes a moment to work out.
    fn needs_delay(&self) -> bool {
        false
    }

    /// Who asks most, for those who look.
    fn heavy_hitters(&self) -> Option<&HeavyHitters> {
        None
    }

    /// The part of an agreement that holds over many processes, if it is one.
    fn leased(&self) -> Option<&Leased> {
        None
    }

    /// The same, to carry its reports.
    fn leased_mut(&mut self) -> Option<&mut Leased> {
        None
    }

    /// Whether a request that passed holds a place that is no longer this process's: it is to be aborted.
    fn is_overdue(&self, _now: Instant, _context: &Context, _receipt: Receipt) -> bool {
        false
    }

    /// Takes another configuration, minting nothing: what was used stays used, and what cannot be
    /// told in the new terms starts without tokens.
    fn reconfigure(&mut self, now: Instant, config: &LimitConfig) -> CarryOver;

    /// Begins without tokens: it joins a gate that has been in use.
    fn start_empty(&mut self, _now: Instant) {}

    /// Panics if the state contradicts itself.
    fn invariants(&self) {}

    /// A copy that can be asked without effect on this one.
    fn clone_box(&self) -> Box<dyn Limiter>;
}

impl Clone for Box<dyn Limiter> {
    fn clone(&self) -> Self {
        self.clone_box()
    }
}

/// What a limiter keeps when it is given another configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CarryOver {
    /// All: parameters change in place, and receipts hold.
    Whole,
    /// What was used or is owed. It counts something else now, so receipts from before are void.
    Level,
    /// Nothing changed: the configuration is that of another limiter.
    Nothing,
}

/// What a limiter is told of a request.
#[derive(Clone, Copy, Debug)]
pub struct Ask<'a> {
    /// What it came with.
    pub context: &'a Context,
    /// What it is expected to cost.
    pub cost: Cost,
    /// The gate's delay; zero unless a limiter [needs](Limiter::needs_delay) it.
    pub delay: Span,
}

/// What a request paid to one limiter. The default is void: nothing was paid, nothing is given back,
/// and what is settled afterwards is charged in full.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Receipt {
    /// How much, in the limiter's unit.
    pub paid: f64,
    /// How much more it would have paid, had it been there to be paid: charged to nobody.
    pub forgiven: f64,
    /// To whom, as the limiter counts.
    pub to: u32,
}

/// What a limit counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Unit {
    /// One for each request.
    #[default]
    Requests,
    /// Seconds of processor time: the cost that a driver reports in nanoseconds.
    CpuSeconds,
    /// The cost as the driver reports it, whatever it counts.
    Cost,
    /// Tokens of a language model: what the service tells that a request took.
    Tokens,
    /// Bytes, likewise.
    Bytes,
    /// A unit of the service's own, likewise.
    Own,
}

impl Unit {
    /// What a request of `cost` takes, on a machine that does `factor` of a standard one's work.
    fn amount(self, cost: Cost, factor: f64) -> f64 {
        match self {
            Self::Requests => 1.0,
            Self::CpuSeconds => cost.0 as f64 * 1e-9 * factor,
            Self::Cost => cost.0 as f64 * factor,
            // Costs are told in units and kept in billionths of one, as seconds are.
            Self::Tokens | Self::Bytes | Self::Own => cost.0 as f64 * 1e-9 * factor,
        }
    }

    /// Whether only the service knows it, and has to tell.
    pub fn is_told(self) -> bool {
        matches!(self, Self::Tokens | Self::Bytes | Self::Own)
    }

    /// Whether the amount is known before the work is done.
    fn is_prepaid(self) -> bool {
        self == Self::Requests
    }

    /// Tokens in one, where tokens are whole: a burst of a tenth of a second of processor time is one of
    /// a hundred milliseconds.
    pub fn tokens(self) -> f64 {
        match self {
            Self::CpuSeconds => 1_000.0,
            _ => 1.0,
        }
    }

    /// The smallest burst that makes sense.
    fn least_burst(self) -> f64 {
        if self.is_prepaid() { 1.0 } else { 0.0 }
    }
}

/// The refusal of a bucket that is short of tokens. As `measured` it says the rate at which the
/// bucket would have had them, had it been filling for a second more.
fn refusal(now: Instant, limit: Limit, missing: f64, shortage: Shortage) -> Rejection {
    let advice = match shortage {
        Shortage::Until(due) => Advice::Later(due.since(now)),
        Shortage::Never => Advice::Never,
    };
    Rejection::new(Reason::Quota, limit.rate + missing.max(0.0), limit.rate, advice)
}

/// Checks a factor between machine types.
fn check_factor(problems: &mut Problems, factor: f64) {
    problems.range("factor", factor, 1e-3, 1e3);
}

/// Every limiter with its parameters; in TOML the key `limit` chooses.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "limit", rename_all = "kebab-case")]
pub enum LimitConfig {
    /// A rate and a burst, for all together or for each workflow, caller, user, address or value of a header.
    Rate(RateLimitConfig),
    /// Agreements with workflows, the least critical refused first ("Handling Overload").
    Quota(QuotaConfig),
    /// Organisations, teams, users: each its own rate, and the unused part of those above.
    Tree(TreeConfig),
    /// So much per minute, hour, day, week or month of the calendar.
    Window(WindowConfig),
    /// A share of an agreement that holds over many processes, kept by `tidegate control`.
    Leased(LeasedConfig),
}

impl LimitConfig {
    /// Builds the limiter.
    pub fn build(&self, now: Instant) -> Box<dyn Limiter> {
        match self {
            Self::Rate(config) => Box::new(RateLimit::new(config, now)),
            Self::Quota(config) => Box::new(Quotas::new(config)),
            Self::Tree(config) => Box::new(Tree::new(config, now)),
            Self::Window(config) => Box::new(Window::new(config, now)),
            Self::Leased(config) => Box::new(Leased::new(config, now)),
        }
    }

    /// How much it is like another, from 0 to 3: of another kind, of the same kind, counting the same
    /// things, equal.
    fn likeness(&self, other: &Self) -> u8 {
        let counts_the_same = match (self, other) {
            (Self::Rate(one), Self::Rate(other)) => one.counts() == other.counts(),
            (Self::Quota(one), Self::Quota(other)) => one.unit == other.unit,
            (Self::Tree(one), Self::Tree(other)) => one.counts() == other.counts(),
            (Self::Window(one), Self::Window(other)) => one.counts() == other.counts(),
            (Self::Leased(one), Self::Leased(other)) if one.is_same(other) => true,
            _ => return 0,
        };
        1 + u8::from(counts_the_same) + u8::from(self == other)
    }

    /// Notes everything that is wrong with the parameters.
    pub fn validate(&self, problems: &mut Problems) {
        match self {
            Self::Rate(config) => config.validate(problems),
            Self::Quota(config) => config.validate(problems),
            Self::Tree(config) => config.validate(problems),
            Self::Window(config) => config.validate(problems),
            Self::Leased(config) => config.validate(problems),
        }
    }
}
