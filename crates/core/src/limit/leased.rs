//! `leased`: this process's share of an agreement that holds over many.
//!
//! The agreement is kept by a granter elsewhere (`tidegate control`); here is a
//! [`Holder`] for each key, and every request is decided by it at once: nobody is asked. A driver carries
//! reports and answers ([`Leased::poll`], [`Leased::on_answer`]) whenever it can. The protocol and why it is
//! safe is in [`share`](crate::share).
//!
//! 1. A holder is there for each key from its first request on. It is as if it had been there since the
//!    process began: its safe share has been saving up since then.
//! 2. A key that nobody asks for is let go of after a while, with a last report, so that others can have
//!    its lease at once. A key that comes back begins without tokens.
//! 3. There is room for so many keys. Those beyond share the place of requests without a key.
//! 4. Until the driver has said who this process is, nobody is reported to.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::bucket::{Limit, Shortage};
use super::{Ask, CarryOver, Each, LimitConfig, Limiter, Receipt, Unit, check_factor, refusal};
use crate::config::Problems;
use crate::context::{Context, Workflow};
use crate::meter::Cost;
use crate::rng::mix;
use crate::share::wire::{Answer, LONGEST_NAME};
use crate::share::{HistoryConfig, Holder, HolderId, Load, OnLoss, Rate, Report, Share};
use crate::time::{Instant, Span};
use crate::verdict::Rejection;

/// How often is reported when nothing changes: the default of
/// [`LeaseConfig::period`](crate::share::LeaseConfig::period).
const PERIOD: Span = Span::from_millis(500);
/// How long a key is kept that nobody asks for.
const IDLE: Span = Span::from_secs(30);

/// This process's part of an agreement.
#[derive(Clone, Debug)]
pub struct Leased {
    config: LeasedConfig,
    /// Who this process is, at random; none before the driver has said so.
    identity: Option<u64>,
    /// Whether it decides; a model of a gate does not.
    aside: bool,
    places: BTreeMap<Workflow, Place>,
    /// What a holder made now begins with: the safe share each key has, and since when it saves up.
    safe: Share,
    on_loss: OnLoss,
    since: Instant,
    /// Holders made so far: none has the id, and no receipt is taken for one, of another.
    made: u32,
    /// Last words of keys that were let go of.
    farewells: Vec<(Workflow, Report)>,
    complaint: Option<Complaint>,
}

#[derive(Clone, Debug)]
struct Place {
    holder: Holder,
    number: u32,
    /// When somebody asked last.
    asked: Instant,
}

/// Why the granter gives nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Complaint {
    /// It knows no such agreement.
    Unknown,
    /// The agreement has as many keys as it may.
    Full,
}

/// How a key stands, for those who look.
#[derive(Clone, Copy, Debug)]
pub struct Standing {
    /// The agreement; none before it was heard of.
    pub whole: Share,
    /// What all processes together are held to; none before that.
    pub bound: Share,
    /// What this process may use now.
    pub share: Share,
    /// What it may use without being told.
    pub safe: Share,
    /// Tokens there are.
    pub tokens: f64,
    /// Whether it has heard within a term.
    pub connected: bool,
    /// What it does when it has not.
    pub on_loss: OnLoss,
    /// What it is asked for.
    pub load: Load,
}

impl Leased {
    /// Nobody has asked, nobody has told anything.
    pub fn new(config: &LeasedConfig, now: Instant) -> Self {
        let mut leased = Self {
            config: config.clone(),
            identity: None,
            aside: false,
            places: BTreeMap::new(),
            safe: config.safe(),
            on_loss: config.on_loss,
            since: now,
            made: 0,
            farewells: Vec::new(),
            complaint: None,
        };
        // The key that is there in any case asks before the first request does.
        leased.place(now, Workflow::NONE);
        leased
    }

    /// Its parameters.
    pub fn config(&self) -> &LeasedConfig {
        &self.config
    }

    /// What this process is called in reports: drawn at random when it starts. Only the first counts.
    pub fn identify(&mut self, identity: u64) {
        self.aside = false;
        if self.identity.is_none() {
            self.identity = Some(identity);
            for place in self.places.values_mut() {
                place.holder.set_id(id(identity, place.number));
            }
        }
    }

    /// Lets everything pass from now on: it is part of a model, and what a model is not granted says
    /// nothing.
    pub fn stand_aside(&mut self) {
        self.aside = true;
    }

    /// Reports that are due, each with its key; [`Workflow::NONE`] is for requests without one. They are
    /// added to `reports`.
    pub fn poll(&mut self, now: Instant, reports: &mut Vec<(Workflow, Report)>) {
        if self.identity.is_none() || self.aside {
            return;
        }
        self.forget_idle(now);
        reports.append(&mut self.farewells);
        for (key, place) in &mut self.places {
            reports.extend(place.holder.poll(now).map(|report| (*key, report)));
        }
    }

    /// A report was answered; says whether that told anything new to be acted on.
    pub fn on_answer(&mut self, now: Instant, key: Workflow, answer: &Answer) -> bool {
        self.complaint = match answer {
            Answer::Grant(_) | Answer::Wait => None,
            Answer::Unknown => Some(Complaint::Unknown),
            Answer::Full => Some(Complaint::Full),
        };
        let Answer::Grant(grant) = answer else { return false };
        let Some(place) = self.places.get_mut(&key) else { return false };
        let taken = place.holder.on_grant(now, grant);
        if taken {
            (self.safe, self.on_loss) = (grant.safe, grant.on_loss);
        }
        taken
    }

    /// Uses nothing more, and says so for all keys.
    pub fn leave(&mut self, now: Instant) -> Vec<(Workflow, Report)> {
        let leave = |(key, place): (&Workflow, &mut Place)| (*key, place.holder.leave(now));
        if self.identity.is_some() {
            self.places.iter_mut().map(leave).collect()
        } else {
            Vec::new()
        }
    }

    /// How each key stands.
    pub fn standings(&self, now: Instant) -> impl Iterator<Item = (Workflow, Standing)> + '_ {
        self.places.iter().map(move |(key, place)| {
            let mut holder = place.holder.clone();
            let standing = Standing {
                whole: holder.whole(),
                bound: holder.bound(),
                tokens: holder.tokens(now),
                share: holder.share(now),
                safe: holder.safe(),
                connected: holder.is_connected(now),
                on_loss: holder.on_loss(),
                load: holder.load(now),
            };
            (*key, standing)
        })
    }

    /// Keys that it has a holder for; [`Workflow::NONE`] is for requests without one.
    pub fn keys(&self) -> impl Iterator<Item = Workflow> + '_ {
        self.places.keys().copied()
    }

    /// The part of what has no key, for whoever makes wait instead of refusing.
    pub fn unkeyed(&mut self, now: Instant) -> &mut Holder {
        &mut self.place(now, Workflow::NONE).holder
    }

    /// What the granter has to complain about.
    pub fn complaint(&self) -> Option<Complaint> {
        self.complaint
    }

    fn key(&self, context: &Context) -> Workflow {
        match self.config.each {
            Each::Workflow => context.workflow,
            _ => Workflow::NONE,
        }
    }

    /// Steps 1 and 3.
    fn place(&mut self, now: Instant, key: Workflow) -> &mut Place {
        let full = self.places.len() >= self.config.keys && !self.places.contains_key(&key);
        let key = if full { Workflow::NONE } else { key };
        let Self { identity, safe, on_loss, since, made, .. } = self;
        let place = self.places.entry(key).or_insert_with(|| {
            *made = made.wrapping_add(1);
            let id = id(identity.unwrap_or_default(), *made);
            let history = HistoryConfig::default();
            let holder = Holder::unheard(*since, id, *safe, *on_loss, PERIOD, history);
            Place { holder, number: *made, asked: now }
        });
        place.asked = now;
        place
    }

    /// Step 2.
    fn forget_idle(&mut self, now: Instant) {
        let farewells = &mut self.farewells;
        let before = self.places.len();
        self.places.retain(|key, place| {
            let idle = *key != Workflow::NONE && now.since(place.asked) > IDLE;
            if idle {
                farewells.push((*key, place.holder.leave(now)));
            }
            !idle
        });
        if self.places.len() < before {
            self.since = now;
        }
    }

    /// The place a receipt is from, if it is still that one.
    fn payer(&mut self, context: &Context, receipt: Receipt) -> Option<&mut Place> {
        let key = self.key(context);
        let known = self.places.get(&key).is_some_and(|place| place.number == receipt.to);
        let key = if known { key } else { Workflow::NONE };
        self.places.get_mut(&key).filter(|place| place.number == receipt.to)
    }
}

fn id(identity: u64, number: u32) -> HolderId {
    HolderId(mix(identity ^ u64::from(number).rotate_left(32)))
}

impl Limiter for Leased {
    fn name(&self) -> &'static str {
        "leased"
    }

    fn on_arrival(&mut self, now: Instant, ask: &Ask<'_>) -> Result<Receipt, Rejection> {
        if self.aside {
            return Ok(Receipt::default());
        }
        let amount = self.config.tokens(ask.cost);
        let prepaid = self.config.unit.is_prepaid();
        let key = self.key(ask.context);
        let Place { holder, number, .. } = self.place(now, key);
        let to = *number;
        holder.on_cost(now, amount);
        if holder.is_open(now) {
            return Ok(Receipt { paid: 0.0, to, ..Receipt::default() });
        }
        let share = holder.share(now);
        // An estimate above the burst is no reason to refuse for ever: the rest is owed afterwards.
        let paid = if prepaid { amount } else { amount.min((share.burst as f64).max(1.0)) };
        let taken = holder.take_cost(now, paid);
        holder.on_waiting(now, u64::from(taken.is_err()));
        taken.map(|()| Receipt { paid, to, ..Receipt::default() }).map_err(|shortage| {
            let missing = paid - holder.tokens(now);
            refusal(now, share.limit(), missing, soon(now, shortage))
        })
    }

    fn refund(&mut self, now: Instant, context: &Context, receipt: Receipt) {
        if let Some(place) = self.payer(context, receipt) {
            place.holder.refund(now, receipt.paid);
        }
    }

    fn on_finish(&mut self, now: Instant, context: &Context, receipt: Receipt, cost: Cost) {
        if self.config.unit.is_prepaid() {
            return;
        }
        let actual = self.config.tokens(cost);
        let payer = self.payer(context, receipt).map(|place| &mut place.holder);
        if let Some(holder) = payer.filter(|holder| !holder.is_open(now)) {
            let debt = holder.whole().burst as f64;
            holder.settle_cost(now, receipt.paid, actual, debt);
        }
    }

    fn reconfigure(&mut self, _now: Instant, config: &LimitConfig) -> CarryOver {
        let LimitConfig::Leased(config) = config else { return CarryOver::Nothing };
        self.config = config.clone();
        CarryOver::Whole
    }

    fn leased(&self) -> Option<&Leased> {
        Some(self)
    }

    fn leased_mut(&mut self) -> Option<&mut Leased> {
        Some(self)
    }

    fn invariants(&self) {
        self.places.values().for_each(|place| place.holder.invariants());
        assert!(self.places.len() <= self.config.keys.max(1), "keys are bounded");
    }

    fn clone_box(&self) -> Box<dyn Limiter> {
        Box::new(self.clone())
    }
}

/// With a share of next to nothing the next token is hours away; another share may be there within two
/// periods.
fn soon(now: Instant, shortage: Shortage) -> Shortage {
    match shortage {
        Shortage::Until(due) => Shortage::Until(due.min(now + PERIOD + PERIOD)),
        Shortage::Never => Shortage::Never,
    }
}

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
    /// Who has a part of the agreement for itself: `all` share it, or each `workflow` has one. The
    /// agreement says the same. Default all.
    pub each: Each,
    /// What a token is: `requests`, `cpu-seconds`, or `cost` as the driver counts it. The agreement
    /// says the same. Default requests.
    pub unit: Unit,
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
            factor: 1.0,
            safe_rate: 0.0,
            safe_burst: 0.0,
            on_loss: OnLoss::Safe,
            keys: 1024,
        }
    }
}

impl LeasedConfig {
    fn safe(&self) -> Share {
        let rate = Rate::per_second(self.safe_rate).unwrap_or(Rate::ZERO);
        Share::new(rate, self.safe_burst.max(0.0) as u64)
    }

    /// Tokens of a request that costs so much.
    fn tokens(&self, cost: Cost) -> f64 {
        self.unit.amount(cost, self.factor) * self.unit.tokens()
    }

    /// Whether another is about the same.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        let of = |config: &Self| (config.agreement.clone(), config.each, config.unit);
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
        let fine = matches!(self.each, Each::All | Each::Workflow);
        problems.check("each", each, fine, "all or workflow");
        check_factor(problems, self.factor);
        problems.range("safe_rate", self.safe_rate, 0.0, Limit::RATES.1);
        problems.range("safe_burst", self.safe_burst, 0.0, Limit::BURSTS.1);
        let both = (self.safe_rate > 0.0) == (self.safe_burst >= 1.0);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::share::{Granter, LeaseConfig};

    fn at(millis: u64) -> Instant {
        Instant::ZERO + Span::from_millis(millis)
    }

    fn config(each: Each) -> LeasedConfig {
        LeasedConfig { agreement: "api".to_owned(), each, keys: 3, ..LeasedConfig::default() }
    }

    fn of(workflow: u16) -> Context {
        Context { workflow: Workflow(workflow), ..Context::default() }
    }

    fn passes(leased: &mut Leased, now: Instant, context: &Context) -> Option<Receipt> {
        let ask = Ask { context, cost: Cost(1), delay: Span::ZERO };
        leased.on_arrival(now, &ask).ok()
    }

    fn granter() -> Granter {
        let terms = LeaseConfig { nodes: 2, ..LeaseConfig::default() };
        let whole = Share::new(Rate::per_second(100.0).unwrap(), 20);
        Granter::new(whole, terms, Default::default()).unwrap()
    }

    /// Reports and answers, all in a moment.
    fn exchange(leased: &mut Leased, granter: &mut Granter, now: Instant) {
        let mut reports = Vec::new();
        leased.poll(now, &mut reports);
        for (key, report) in reports {
            if let Some(grant) = granter.on_report(now, &report) {
                leased.on_answer(now, key, &Answer::Grant(grant));
            }
        }
    }

    #[test]
    fn what_was_leased_passes_and_nothing_before() {
        let mut leased = Leased::new(&config(Each::All), at(0));
        assert_eq!(passes(&mut leased, at(1), &of(0)), None, "it has heard nothing");
        let mut granter = granter();
        exchange(&mut leased, &mut granter, at(2));
        assert_eq!(passes(&mut leased, at(2), &of(0)), None, "it has no name to report by");
        leased.identify(7);
        exchange(&mut leased, &mut granter, at(3));
        let passed = (0..100).filter_map(|_| passes(&mut leased, at(3), &of(0)));
        let receipts: Vec<_> = passed.collect();
        assert_eq!(receipts.len(), 18, "the burst, less the safe shares of two nodes");
        leased.refund(at(3), &of(0), receipts[0]);
        assert!(passes(&mut leased, at(3), &of(0)).is_some());
        let (_, standing) = leased.standings(at(3)).next().unwrap();
        assert!(standing.connected && standing.share.rate.as_f64() > 90.0);
        leased.invariants();
    }

    #[test]
    fn each_key_has_its_own_and_those_beyond_share_one() {
        let mut leased = Leased::new(&config(Each::Workflow), at(0));
        leased.identify(7);
        for workflow in 1..9 {
            passes(&mut leased, at(1), &of(workflow));
        }
        let keys =
            |leased: &Leased| leased.standings(at(1)).map(|(key, _)| key.0).collect::<Vec<_>>();
        assert_eq!(keys(&leased).len(), 3);
        let mut reports = Vec::new();
        leased.poll(at(2), &mut reports);
        let mut ids: Vec<_> = reports.iter().map(|(_, report)| report.holder).collect();
        ids.sort();
        ids.dedup();
        assert_eq!(ids.len(), 3, "each key reports for itself");
        // Nobody asks for half a minute: they say farewell, once.
        reports.clear();
        leased.poll(at(40_000), &mut reports);
        let left = reports.iter().filter(|(key, _)| *key != Workflow::NONE);
        assert_eq!(left.filter(|(_, report)| report.safe == Share::NONE).count(), 2);
        assert_eq!(keys(&leased).len(), 1);
        leased.invariants();
    }

    #[test]
    fn a_model_refuses_nothing() {
        let mut leased = Leased::new(&config(Each::All), at(0));
        leased.stand_aside();
        leased.identify(1);
        leased.stand_aside();
        let receipt = passes(&mut leased, at(1), &of(0)).expect("it stands aside");
        leased.refund(at(1), &of(0), receipt);
        let mut reports = Vec::new();
        leased.poll(at(2), &mut reports);
        assert!(reports.is_empty());
    }

    #[test]
    fn a_receipt_of_another_holder_gives_nothing_back() {
        let mut leased = Leased::new(&config(Each::Workflow), at(0));
        leased.identify(7);
        let mut granter = granter();
        passes(&mut leased, at(1), &of(5));
        let mut reports = Vec::new();
        leased.poll(at(1), &mut reports);
        for (key, report) in reports.into_iter().filter(|(key, _)| key.0 == 5) {
            let grant = granter.on_report(at(1), &report).unwrap();
            assert!(leased.on_answer(at(1), key, &Answer::Grant(grant)));
        }
        let receipt = passes(&mut leased, at(2), &of(5)).expect("granted");
        leased.poll(at(40_000), &mut Vec::new());
        passes(&mut leased, at(40_001), &of(5));
        leased.refund(at(40_001), &of(5), receipt);
        let standing = leased.standings(at(40_001)).find(|(key, _)| key.0 == 5).unwrap().1;
        assert!(standing.tokens < 1.0, "{}", standing.tokens);
    }

    #[test]
    fn wrong_parameters_are_told() {
        let config = LeasedConfig {
            agreement: "a b".to_owned(),
            control: "https://there".to_owned(),
            each: Each::Caller,
            factor: 0.0,
            safe_rate: 1.0,
            keys: 0,
            ..LeasedConfig::default()
        };
        let mut problems = Problems::default();
        config.validate(&mut problems);
        assert_eq!(problems.into_result().unwrap_err().problems().len(), 6);
    }
}
