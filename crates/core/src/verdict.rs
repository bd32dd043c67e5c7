//! Answers: the gate's [`Verdict`], the throttle's [`Passage`], the [`Rejection`] both may carry,
//! and the [`Outcome`] of work that was let in.

use std::fmt;

use crate::rank::Rank;
use crate::time::Span;

/// A gate's answer to an arrival.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Verdict {
    /// Let it in.
    Admit,
    /// Let it in, but ask the handler for its cheaper answer.
    Degrade,
    /// Let it in if a less important request that waits can be pushed out for it, else turn it
    /// away.
    Displace(Rejection),
    /// Turn it away.
    Refuse(Rejection),
}

/// A throttle's answer to a request that wants to leave.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Passage {
    /// Send it now.
    Send,
    /// Keep it until a credit or token comes.
    Hold,
    /// Turn it away here, without touching the network.
    Reject(Rejection),
}

/// A refusal that explains itself.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rejection {
    /// Why.
    pub reason: Reason,
    /// What was measured, in the unit [`Reason::unit`] names.
    pub measured: f64,
    /// The limit it exceeded, in the same unit.
    pub limit: f64,
    /// What the caller should do.
    pub advice: Advice,
    /// Which of the gate's limits said no, by its place in the list `limits`; none if something else did.
    pub place: Option<u8>,
}

impl Rejection {
    /// A refusal because `measured` exceeds `limit`.
    pub const fn new(reason: Reason, measured: f64, limit: f64, advice: Advice) -> Self {
        Self { reason, measured, limit, advice, place: None }
    }

    /// The limit that said no, as problems of the configuration call it: `limits.1`.
    pub fn which(&self) -> Option<String> {
        self.place.map(|place| format!("limits.{place}"))
    }
}

impl fmt::Display for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let reason = self.reason;
        f.write_str(reason.describe())?;
        if let Some(which) = self.which() {
            write!(f, " ({which})")?;
        }
        write!(f, ": {}, limit {}; ", reason.show(self.measured), reason.show(self.limit))?;
        match self.advice {
            Advice::Elsewhere => f.write_str("retry elsewhere"),
            Advice::Later(span) => write!(f, "retry after {span}"),
            Advice::Never => f.write_str("do not retry"),
        }
    }
}

/// What a caller should do about a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advice {
    /// Another replica may well take it: retry at once, elsewhere.
    Elsewhere,
    /// Not before this time has passed.
    Later(Span),
    /// Overloaded; don't retry ("Handling Overload", Deciding to Retry).
    Never,
}

/// Why a request was turned away. A closed list: metrics, wire and documentation follow it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reason {
    /// Queueing delay above the drop threshold (active queue management).
    Delay,
    /// Less important than the cursor.
    Rank,
    /// Less important than the cursor of a service further down the path.
    Downstream,
    /// The predicted wait is longer than this rank may wait.
    Wait,
    /// The deadline has passed.
    Expired,
    /// The deadline cannot be met.
    Infeasible,
    /// The bounded queue is full.
    Full,
    /// A more important request took its place.
    PushedOut,
    /// Neither a credit nor the free cursor allows it.
    Credit,
    /// Above a rate that was granted or found.
    Rate,
    /// Above a quota.
    Quota,
    /// Utilization above the threshold of its criticality.
    Utilization,
    /// The caller throttles itself by chance, in proportion to refusals.
    Throttle,
    /// Shed at random.
    Chance,
    /// The retry budget is spent, or a layer below said not to retry.
    Budget,
    /// Too much of what its source gave up is still being worked on.
    Abandoned,
    /// The gate is closing down.
    Draining,
    /// Every endpoint fails, and is left alone for a while.
    Broken,
    /// More than may pass in a window of the calendar.
    Window,
}

impl Reason {
    /// All reasons.
    pub const ALL: [Self; 19] = [
        Self::Delay,
        Self::Rank,
        Self::Downstream,
        Self::Wait,
        Self::Expired,
        Self::Infeasible,
        Self::Full,
        Self::PushedOut,
        Self::Credit,
        Self::Rate,
        Self::Quota,
        Self::Utilization,
        Self::Throttle,
        Self::Chance,
        Self::Budget,
        Self::Abandoned,
        Self::Draining,
        Self::Broken,
        Self::Window,
    ];

    /// The word used on the wire and in metrics.
    pub const fn token(self) -> &'static str {
        match self {
            Self::Delay => "delay",
            Self::Rank => "rank",
            Self::Downstream => "downstream",
            Self::Wait => "wait",
            Self::Expired => "expired",
            Self::Infeasible => "infeasible",
            Self::Full => "full",
            Self::PushedOut => "pushed-out",
            Self::Credit => "credit",
            Self::Rate => "rate",
            Self::Quota => "quota",
            Self::Utilization => "utilization",
            Self::Throttle => "throttle",
            Self::Chance => "chance",
            Self::Budget => "budget",
            Self::Abandoned => "abandoned",
            Self::Draining => "draining",
            Self::Broken => "broken",
            Self::Window => "window",
        }
    }

    /// The reason behind a token of [`Reason::token`].
    pub fn from_token(token: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|reason| reason.token() == token)
    }

    /// Whether such a refusal is a sign that there is more work than can be done. The others would be given however idle the
    /// service is: an agreement is used up, a source has left too much behind, or the end has come.
    pub const fn is_overload(self) -> bool {
        !matches!(self, Self::Quota | Self::Window | Self::Abandoned | Self::Draining)
    }

    /// The unit of a rejection's `measured` and `limit`.
    pub const fn unit(self) -> &'static str {
        match self {
            Self::Delay | Self::Wait | Self::Expired | Self::Infeasible => "ns",
            Self::Rank | Self::Downstream | Self::PushedOut => "ranks",
            Self::Full
            | Self::Credit
            | Self::Budget
            | Self::Abandoned
            | Self::Draining
            | Self::Broken => "requests",
            Self::Rate | Self::Quota => "per second",
            Self::Window => "in its window",
            Self::Utilization | Self::Throttle | Self::Chance => "of one",
        }
    }

    /// A quantity in its unit, for a person: the first three digits of a time, a rank as its two parts.
    fn show(self, value: f64) -> String {
        match self.unit() {
            "ns" => {
                let last = 10f64.powf(value.abs().max(1.0).log10().floor() - 2.0).max(1.0);
                Span::from_nanos_f64((value / last).round() * last).to_string()
            }
            "ranks" => Rank::from_key(value as u32).to_string(),
            unit => format!("{} {unit}", (value * 1e3).round() / 1e3),
        }
    }

    /// One clause for a person.
    pub const fn describe(self) -> &'static str {
        match self {
            Self::Delay => "queueing delay is above the drop threshold",
            Self::Rank => "less important than what is let in now",
            Self::Downstream => "less important than what a service further down lets in",
            Self::Wait => "would wait longer than its rank may",
            Self::Expired => "its deadline has passed",
            Self::Infeasible => "its deadline cannot be met",
            Self::Full => "the queue is full",
            Self::PushedOut => "a more important request took its place",
            Self::Credit => "the caller has no credit left",
            Self::Rate => "above the granted rate",
            Self::Quota => "above its quota",
            Self::Utilization => "utilization is above the threshold of its criticality",
            Self::Throttle => "the callee refuses too many, so the caller holds back",
            Self::Chance => "shed at random",
            Self::Budget => "no retry is left",
            Self::Abandoned => "too much that its source gave up is still being worked on",
            Self::Draining => "closing down",
            Self::Broken => "every endpoint only fails, and is left alone for a while",
            Self::Window => "all that may pass in this window of the calendar has passed",
        }
    }
}

/// How work that was let in ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Answered, be it that the caller was in the wrong.
    Serve,
    /// Broke: a server error, timeout, crash, unreachable. May be a sign of load.
    Fail,
    /// Given up by the caller: says nothing about load.
    Cancel,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_have_distinct_tokens_that_read_back() {
        for reason in Reason::ALL {
            assert_eq!(Reason::from_token(reason.token()), Some(reason));
        }
        assert_eq!(Reason::from_token("because"), None);
    }

    #[test]
    fn a_rejection_tells_reason_limit_and_advice() {
        let rejection = Rejection::new(
            Reason::Delay,
            200_000.0,
            160_000.0,
            Advice::Later(Span::from_millis(3)),
        );
        let text = rejection.to_string();
        assert!(text.ends_with("drop threshold: 200us, limit 160us; retry after 3ms"), "{text}");
        let second = Rejection { place: Some(1), ..rejection };
        assert!(second.to_string().contains("drop threshold (limits.1): "), "{second}");
        let told = |reason, measured, limit| {
            let text = Rejection::new(reason, measured, limit, Advice::Never).to_string();
            text.split_once(": ").map(|(_, told)| told.to_owned()).expect("both are told")
        };
        let (wait, longest) = (12_345_678.9, 6_200_000.0);
        assert_eq!(told(Reason::Wait, wait, longest), "12.3ms, limit 6.2ms; do not retry");
        let [rank, last] = [Rank::new(40, 7), Rank::new(24, 9)].map(|rank| f64::from(rank.key()));
        assert_eq!(told(Reason::Rank, rank, last), "(40, 7), limit (24, 9); do not retry");
        let share = told(Reason::Utilization, 0.923_456, 0.9);
        assert_eq!(share, "0.923 of one, limit 0.9 of one; do not retry");
        for odd in [f64::NAN, f64::INFINITY, -1.0, 0.0] {
            Reason::ALL.iter().for_each(|reason| drop(told(*reason, odd, odd)));
        }
    }
}
