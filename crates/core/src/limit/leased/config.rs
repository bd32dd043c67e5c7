//! Parameters of `leased`.

use serde::{Deserialize, Serialize};

use super::super::bucket::Limit;
use super::super::{Each, Unit, check_factor};
use crate::config::Problems;
use crate::meter::Cost;
use crate::share::wire::LONGEST_NAME;
use crate::share::{OnLoss, Rate, Share};
use crate::time::Span;

/// Parameters of a leased limit. Rate and burst are the agreement's, and the daemon has that.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LeasedConfig {
    /// The agreement, by the name it has at the daemon.
    pub agreement: String,
    /// Where the daemon is: `http://host:port`. All leased limits of a gate have the same one.
    pub control: String,
    /// File with the token that the daemon asks of nodes. Without it none is shown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_file: Option<String>,
    /// What this process is called at the daemon, which may have a token for each. Default: what the driver
    /// finds, for a sidecar the host's name and its port.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// Who has a part of the agreement for itself: `all` share it, or each `workflow`, `user`, value of a `header`, or
    /// `descriptor` (a workflow and a value of the header) has one. The agreement says the same. Default all.
    pub each: Each,
    /// What a token is: `requests`, `cpu-seconds`, `cost` as the driver counts it, or `tokens`, `bytes` or
    /// an `own` unit as the service tells. The agreement says the same. Default requests.
    pub unit: Unit,
    /// Whether it is about how many requests are in flight at once, and not about tokens; the agreement gives
    /// `places` then. Default false.
    pub places: bool,
    /// Work this machine does in a second, as a multiple of a standard machine's. Default 1.
    pub factor: f64,
    /// Tokens per second that this process has before it has heard from the daemon for the first
    /// time. More admits something while a node starts without the daemon; the bound holds if the
    /// agreement sets aside as much for each node. Default 0: nothing passes until the first answer,
    /// which takes milliseconds.
    pub safe_rate: f64,
    /// Tokens at once, likewise. Default 0.
    pub safe_burst: f64,
    /// What to do while nothing was ever heard: `safe` has `safe_rate`, `open` lets everything pass,
    /// `closed` nothing. The daemon's word counts after that. Default safe.
    pub on_loss: OnLoss,
    /// Delay of the gate from which on it is overloaded, for agreements that are enforced only then. Default
    /// 10 ms, as for `quota`.
    pub overload_delay: Span,
    /// Most keys; more share one part. Default 1,024.
    pub keys: usize,
}

impl Default for LeasedConfig {
    fn default() -> Self {
        Self {
            agreement: String::new(),
            control: "http://127.0.0.1:9911".to_owned(),
            token_file: None,
            node: None,
            each: Each::All,
            unit: Unit::Requests,
            places: false,
            factor: 1.0,
            safe_rate: 0.0,
            safe_burst: 0.0,
            on_loss: OnLoss::Safe,
            overload_delay: Span::from_millis(10),
            keys: 1024,
        }
    }
}

impl LeasedConfig {
    pub(super) fn safe(&self) -> Share {
        let rate = Rate::per_second(self.safe_rate).unwrap_or(Rate::ZERO);
        Share::new(rate, self.safe_burst.max(0.0) as u64)
    }

    /// Tokens of a request that costs so much.
    pub(super) fn tokens(&self, cost: Cost) -> f64 {
        self.unit.amount(cost, self.factor) * self.unit.tokens()
    }

    /// Whether another is about the same.
    pub(in crate::limit) fn is_same(&self, other: &Self) -> bool {
        let of =
            |config: &Self| (config.agreement.clone(), config.each, config.unit, config.places);
        of(self) == of(other)
    }

    /// Notes everything that is wrong with the parameters.
    pub fn validate(&self, problems: &mut Problems) {
        let name = &self.agreement;
        problems.check(
            "agreement",
            name,
            is_agreement(name),
            "the agreement's name at the daemon: 1 to 64 letters, digits, `-`, `_` and `.`",
        );
        let host = self.control.strip_prefix("http://").unwrap_or_default();
        problems.check(
            "control",
            &self.control,
            host.contains(':') && !host.contains(['/', ' ', '@']),
            "where the daemon is: http://host:port",
        );
        let node = self.node.as_deref().unwrap_or("-");
        problems.check(
            "node",
            node,
            is_agreement(node),
            "1 to 64 letters, digits, `-`, `_` and `.`",
        );
        let each = format!("{:?}", self.each).to_lowercase();
        let fine = !matches!(self.each, Each::Caller | Each::Address);
        problems.check("each", each, fine, "all, workflow, user, header or descriptor");
        let unit = format!("{:?}", self.unit).to_lowercase();
        let fine = !self.places || self.unit == Unit::Requests;
        problems.check("unit", unit, fine, "requests, where it is about places");
        check_factor(problems, self.factor);
        problems.range("safe_rate", self.safe_rate, 0.0, Limit::RATES.1);
        problems.range("safe_burst", self.safe_burst, 0.0, Limit::BURSTS.1);
        let both = self.places || (self.safe_rate > 0.0) == (self.safe_burst >= 1.0);
        problems.check(
            "safe_burst",
            self.safe_burst,
            both,
            "at least 1 with a safe_rate, and 0 without",
        );
        problems.check("keys", self.keys, (1..=65_536).contains(&self.keys), "1 to 65536");
    }
}

/// Whether `name` can be an agreement's.
pub fn is_agreement(name: &str) -> bool {
    let fits = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    (1..=LONGEST_NAME).contains(&name.len()) && name.chars().all(fits)
}
