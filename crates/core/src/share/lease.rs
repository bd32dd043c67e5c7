//! What granter and holders tell each other, the terms they agree on, and what that guarantees.
//!
//! # The problem
//!
//! Nodes enforce their shares alone. To move some of node A's share to node B, A must have stopped
//! using it before B starts: a plain push of new shares lets both use it for as long as the messages
//! differ in delay, and for ever if A's is lost. And a node that cannot be
//! reached must not keep its share for ever.
//!
//! # The idea
//!
//! Every node has a small **safe share** that nobody can take: what it may use without having asked.
//! The rest of the agreement, the *pool*, is **leased**: a leased part has an end, after which the
//! node is back at its safe share by itself. Only nodes ask; the granter answers.
//!
//! 1. A holder sends a *report* with a new sequence number: the lease it uses now, and its load.
//! 2. It takes only the answer to its newest report. So when a report has arrived, every earlier
//!    answer is void, and all that its sender can use is what the report says, or what is answered
//!    now. That is the confirmation of a shrunk share.
//! 3. The granter *commits* the larger of both to that holder, and never commits more than the pool.
//!    A share that is to shrink is answered smaller at once; one that is to grow gets what is
//!    committed to nobody. Shrink, confirm, grow.
//! 4. A lease runs from the moment its holder sent the report; a commitment runs from the later
//!    moment at which the granter answered, and longer by what two clocks may differ in. So a lease
//!    is over before its commitment is, and what is no longer committed is used by nobody.
//! 5. A granter that has lost its memory grants nothing until all leases it may have granted are over.
//!    Meanwhile it tells those without a lease of their safe share, which was set aside all the time.
//! 6. The agreement itself can change. Nodes hear of it with their grants. A smaller one is in force
//!    as soon as every lease was renewed or is over; a larger one is leased with the next reports.
//!    Until it is told that nobody has a safe share of an earlier agreement any more, the granter sets
//!    aside the largest there was, because it cannot know who has not heard.
//! 7. A granter that others may follow has *authority* until a moment that it learnt from whoever elects
//!    granters, counted from before it asked. It answers nobody after that, and its successor, which
//!    begins no earlier, begins like one that has lost its memory. Successors have larger *epochs*:
//!    a holder takes no grant of a smaller one than it knows, and reports the largest, so that a
//!    granter of the past is told apart even if nobody elects.
//! 8. What nobody has leased saves up tokens at the granter, as it would in a node's bucket, and a lease
//!    that grows brings them along: the granter is one more node with the rest of the pool. So a limit
//!    that nobody has used for a while has its burst, whichever node it is needed on.
//!
//! Messages may be lost, repeated, late or out of order; nodes may crash, stop and come back (as a
//! new holder, with an empty bucket); clocks may differ by any amount, but not in speed by more than
//! [`LeaseConfig::drift`]. Whoever runs two granters for one agreement at once, both with authority, has
//! two agreements.
//!
//! Doorman's leases (`youtube/doorman`) grant at most what others do not *have*, which is step 3; steps
//! 2, 4 and 5 are ours.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::history::Load;
use super::rules::Rules;
use super::split::SplitError;
use super::{Rate, Share};
use crate::config::Problems;
use crate::limit::bucket::FRACTION;
use crate::time::Span;

/// A process that holds a share: random, and another one after each start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HolderId(pub u64);

/// From a holder: what it uses and what it sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// The largest epoch of a granter it has heard of.
    pub epoch: u64,
    /// Who reports.
    pub holder: HolderId,
    /// Its number: larger is newer.
    pub sequence: u64,
    /// Its safe share, but for an answer.
    pub safe: Share,
    /// The leased part of its share as it sends this. It will not use more, but for an answer to
    /// this report.
    pub leased: Share,
    /// Its load.
    pub load: Load,
}

/// What a granter leaves to its successor about a holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Legacy {
    /// Whose.
    pub holder: HolderId,
    /// The newest report heard of it.
    pub sequence: u64,
    /// Most that it may be using of the pool.
    pub committed: Share,
    /// The largest safe share that it may have.
    pub safe: Share,
}

/// What a holder does that has not heard from a granter for a term.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OnLoss {
    /// It has its safe share.
    #[default]
    Safe,
    /// It lets everything pass: nothing is guaranteed then.
    Open,
    /// It lets nothing pass.
    Closed,
}

/// From the granter: what a holder may use on top of its safe share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Which granter says so: of two, the later one counts.
    pub epoch: u64,
    /// Who may.
    pub holder: HolderId,
    /// The report that this answers.
    pub sequence: u64,
    /// The agreement: nothing follows from it, but it is good to know.
    pub whole: Share,
    /// What is guaranteed, as a rate and a burst: good to know as well.
    pub bound: Share,
    /// Its safe share from now on.
    pub safe: Share,
    /// The leased part of its share from now on, for a term from when it sent that report.
    pub leased: Share,
    /// Tokens that come with a lease that grows.
    pub fill: u64,
    /// How long the lease is.
    pub term: Span,
    /// When to report again, after this has arrived. Soon, if more is meant for it.
    pub again: Span,
    /// What to do when nothing more is heard.
    pub on_loss: OnLoss,
    /// How it is applied to requests.
    pub rules: Rules,
}

/// The terms of leases. They are the granter's, and holders hear of them with their grants; of a
/// holder's own only `period` counts, and what its safe share is before it has heard.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LeaseConfig {
    /// Most processes that use the agreement at the same time. More leaves each a smaller safe
    /// share; fewer than there are lets the others' safe shares pass on top ([`Bound::intruder`]).
    /// Default 16.
    pub nodes: u32,
    /// What part of the agreement is set aside for safe shares, from 0 to 1. More serves better
    /// without the control plane and for the first moments after being idle; less leaves more to be
    /// moved to where the load is. Default 0.1 by judgement. A safe burst is at least one token.
    pub safe: f64,
    /// How long a lease is. More bridges longer outages of the control plane; less gives a crashed
    /// node's share to others sooner. Default 10 s: longer than a control plane's restart.
    pub term: Span,
    /// How often a holder reports when nothing changes. Less follows faster and sends more. Default
    /// 500 ms: two reports of everyone are the slowest shift, within a second.
    pub period: Span,
    /// How much two clocks may differ in speed, as a share, below 0.1. More is safer and returns
    /// shares later. Default 0.001: twice what NTP slews at most.
    pub drift: f64,
    /// What nodes do that hear nothing for a term: `safe`, `open` or `closed`. With `open` there is no
    /// bound, and [`Bound`] says so. Default safe.
    pub on_loss: OnLoss,
    /// Where it is about requests in flight (a rate of nothing, and places as burst): how long places are kept for
    /// requests that are aborted at the end of a lease. More gives work that was abandoned longer to end; less
    /// gives its place to others sooner. Then nothing is set aside that `safe` does not ask for. Default none: it is
    /// about tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub places: Option<Span>,
}

impl LeaseConfig {
    /// The safe share of each node of `whole`: divided evenly, rounded down.
    pub fn safe_share(&self, whole: Share) -> Result<Share, SplitError> {
        let nodes = u64::from(self.nodes);
        if nodes == 0 {
            return Err(SplitError::NoParts);
        }
        let rate = (whole.rate.millionths() as f64 * self.safe.clamp(0.0, 1.0)) as u64 / nodes;
        let burst = (whole.burst as f64 * self.safe.clamp(0.0, 1.0)) as u64 / nodes;
        let safe = match self.places {
            Some(_) => Share::new(Rate::ZERO, burst),
            None => Share::new(Rate::from_millionths(rate.max(LEAST_RATE)), burst.max(1)),
        };
        let parts = self.nodes as usize;
        let reserved = safe.times(nodes);
        if reserved.burst > whole.burst {
            return Err(SplitError::BurstTooSmall { parts, burst: whole.burst });
        }
        if reserved.rate > whole.rate {
            return Err(SplitError::RateTooSmall { parts, rate: whole.rate });
        }
        Ok(safe)
    }

    /// How long a commitment is kept: a term, and the allowance for what is aborted at its end, as the slowest clock counts it, measured with the
    /// fastest.
    pub fn kept(&self) -> Span {
        let drift = self.drift();
        let term = self.term + self.places.unwrap_or(Span::ZERO);
        term.scale((1.0 + drift) / (1.0 - drift)) + Span::from_nanos(1)
    }

    /// What makes no sense counts as clocks that differ widely: then shares return late, never early.
    fn drift(&self) -> f64 {
        self.drift.abs().min(MOST_DRIFT)
    }

    /// What is guaranteed for `whole`.
    pub fn bound(&self, whole: Share) -> Bound {
        // A bucket counts whole fractions of a nanosecond per token: at most half of one too few.
        let rounding = whole.rate.as_f64() / (1e9 * FRACTION as f64);
        let excess = match self.on_loss {
            OnLoss::Open => f64::INFINITY,
            OnLoss::Safe | OnLoss::Closed => (1.0 + self.drift()) * (1.0 + rounding) - 1.0,
        };
        let intruder = self.safe_share(whole).unwrap_or(Share::NONE);
        Bound { whole, excess, intruder }
    }

    /// Notes what is wrong with it.
    pub fn validate(&self, problems: &mut Problems) {
        problems.check("nodes", self.nodes, self.nodes >= 1, "at least 1");
        problems.range("safe", self.safe, 0.0, 1.0);
        problems.check("period", self.period, self.period > Span::ZERO, "above zero");
        problems.check(
            "term",
            self.term,
            self.term.as_nanos() >= self.period.as_nanos().saturating_mul(2),
            "at least two periods, so that one lost report does no harm",
        );
        problems.range("drift", self.drift, 0.0, 0.1);
    }
}

/// The largest drift that is believed: a commitment is kept for 19 terms.
const MOST_DRIFT: f64 = 0.9;

/// The slowest rate that a bucket keeps, in millionths.
const LEAST_RATE: u64 = 10;

impl Default for LeaseConfig {
    fn default() -> Self {
        Self {
            nodes: 16,
            safe: 0.1,
            term: Span::from_secs(10),
            period: Span::from_millis(500),
            drift: 0.001,
            on_loss: OnLoss::Safe,
            places: None,
        }
    }
}

/// How much all nodes together let pass, at most, whatever happens to nodes and messages.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bound {
    /// The agreement.
    pub whole: Share,
    /// How much more than the agreed rate, as a share: clocks that run fast, and rounding. Infinite
    /// where nodes let everything pass that hear nothing.
    pub excess: f64,
    /// What each process beyond [`LeaseConfig::nodes`] may add: it has a safe share that nobody set
    /// aside.
    pub intruder: Share,
}

impl Bound {
    /// Most tokens taken in any stretch of time `over`, by a true clock.
    pub fn most(&self, over: Span) -> f64 {
        let rate = self.whole.rate.as_f64() * (1.0 + self.excess);
        self.whole.burst as f64 + rate * over.as_secs_f64()
    }

    /// The same as a share: what passes in any stretch of time is its burst and its rate × time at most.
    /// What is unbounded is the fastest rate there is.
    pub fn share(&self) -> Share {
        let millionths = self.whole.rate.millionths() as f64 * (1.0 + self.excess);
        let most = Rate::MAX.millionths();
        let rate = Rate::from_millionths((millionths.min(most as f64).ceil() as u64).min(most));
        Share::new(rate, self.whole.burst)
    }

    /// Most tokens above the agreement in any stretch of time `over`.
    pub fn over_admission(&self, over: Span) -> f64 {
        self.whole.rate.as_f64() * self.excess * over.as_secs_f64()
    }
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.excess {
            excess if excess.is_finite() => {
                write!(f, "{}, at most {:.4} % above the rate", self.whole, excess * 100.0)
            }
            _ => write!(f, "{}, unbounded while a node hears nothing", self.whole),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole(rate: f64, burst: u64) -> Share {
        Share::new(Rate::per_second(rate).unwrap(), burst)
    }

    #[test]
    fn safe_shares_fit_or_it_is_an_error() {
        let config = LeaseConfig { nodes: 4, ..LeaseConfig::default() };
        assert_eq!(config.safe_share(whole(1_000.0, 100)), Ok(whole(25.0, 2)));
        // A tenth of ten is no token each: the least is set aside instead.
        assert_eq!(config.safe_share(whole(1_000.0, 10)), Ok(whole(25.0, 1)));
        let error = SplitError::BurstTooSmall { parts: 4, burst: 3 };
        assert_eq!(config.safe_share(whole(1_000.0, 3)), Err(error));
        let none = Share::new(Rate::from_millionths(5), 100);
        let error = SplitError::RateTooSmall { parts: 4, rate: none.rate };
        assert_eq!(config.safe_share(none), Err(error));
    }

    #[test]
    fn the_bound_is_a_number() {
        let bound = LeaseConfig::default().bound(whole(10_000.0, 100));
        assert!((bound.excess - 0.001).abs() < 1e-6, "{bound}");
        assert!((bound.over_admission(Span::from_secs(60)) - 600.0).abs() < 0.2);
        assert!((bound.most(Span::from_secs(1)) - 10_110.0).abs() < 0.1);
    }

    #[test]
    fn wrong_terms_are_told() {
        let config = LeaseConfig {
            nodes: 0,
            safe: f64::NAN,
            term: Span::from_secs(1),
            period: Span::from_secs(1),
            drift: 1.0,
            on_loss: OnLoss::Safe,
            places: None,
        };
        let mut problems = Problems::default();
        config.validate(&mut problems);
        assert_eq!(problems.into_result().unwrap_err().problems().len(), 4);
        let mut problems = Problems::default();
        LeaseConfig::default().validate(&mut problems);
        assert_eq!(problems.into_result(), Ok(()));
    }
}
