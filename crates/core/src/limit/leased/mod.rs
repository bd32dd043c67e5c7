//! `leased`: this process's share of an agreement that holds over many.
//!
//! The agreement is kept by a granter elsewhere (`tidegate control`); here is a
//! [holder](crate::share::Holder) for each key, and every request is decided by it at once: nobody is asked. A driver carries
//! reports and answers ([`Leased::poll`], [`Leased::on_answer`]) whenever it can. The protocol and why it is
//! safe is in [`share`](crate::share).
//!
//! 1. A holder is there for each key from its first request on. It is as if it had been there since the
//!    process began: its safe share has been saving up since then.
//! 2. A key that nobody asks for is let go of after a while, with a last report, so that others can have
//!    its lease at once. A key that comes back begins without tokens.
//! 3. There is room for so many keys. Those beyond share the place of requests without a key.
//! 4. Until the driver has said who this process is, nobody is reported to.
//! 5. It may be about requests in flight, and not about tokens: [`places`](crate::share::Places).
//! 6. Of a share that runs out the least critical requests are refused first ([`order`](super::order)); the agreement may
//!    give each criticality a limit of its own. It may be enforced only in an overload, or only for some users; then what
//!    passes beyond is still counted, down to no tokens.

mod bands;
mod config;
mod part;

use std::collections::BTreeMap;

use self::part::{Beginning, CAPPED, Part};
use super::{Ask, CarryOver, Each, Enforce, LimitConfig, Limiter, Receipt};
use crate::context::{Context, Workflow};
use crate::meter::Cost;
use crate::rng::mix;
use crate::share::wire::Answer;
use crate::share::{Holder, HolderId, Load, OnLoss, Report, Rules, Share};
use crate::time::{Instant, Span};
use crate::verdict::Rejection;

pub use config::{LeasedConfig, is_agreement};

/// How often is reported when nothing changes: the default of
/// [`LeaseConfig::period`](crate::share::LeaseConfig::period).
const PERIOD: Span = Span::from_millis(500);
/// Who has a part of an agreement for itself, as this process counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseKey {
    /// The workflow, where each has one.
    pub workflow: Workflow,
    /// The user, or what the header says, where each of these has one: a part of [`Sender`](crate::Sender).
    pub value: u32,
}

impl LeaseKey {
    /// Requests without a key, and those of keys that there is no room for.
    pub const NONE: Self = Self { workflow: Workflow::NONE, value: 0 };
}

/// This process's part of an agreement.
#[derive(Clone, Debug)]
pub struct Leased {
    config: LeasedConfig,
    /// Who this process is, at random; none before the driver has said so.
    identity: Option<u64>,
    /// Whether it decides; a model of a gate does not.
    aside: bool,
    parts: BTreeMap<LeaseKey, Part>,
    /// What a part made now begins with.
    begin: Beginning,
    /// Holders made so far: none has the id, and no receipt is taken for one, of another.
    made: u32,
    /// Last words of keys that were let go of.
    farewells: Vec<(LeaseKey, Report)>,
    complaint: Option<Complaint>,
    /// Requests that there was no share for and that passed, as it is not enforced for them.
    beyond: u64,
}

/// Why the granter gives nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Complaint {
    /// It knows no such agreement.
    Unknown,
    /// The agreement has as many keys as it may.
    Full,
    /// One of the two is about requests in flight, and the other is not.
    Other,
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
    /// Tokens there are, or free places.
    pub tokens: f64,
    /// Places that are held, where it is about these.
    pub held: u64,
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
            parts: BTreeMap::new(),
            begin: Beginning {
                since: now,
                safe: config.safe(),
                on_loss: config.on_loss,
                rules: Rules::default(),
            },
            made: 0,
            farewells: Vec::new(),
            complaint: None,
            beyond: 0,
        };
        // The key that is there in any case asks before the first request does.
        leased.part(now, LeaseKey::NONE);
        leased
    }

    /// Requests that there was no share for and that passed, as it is not enforced for them.
    pub fn beyond(&self) -> u64 {
        self.beyond
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
            for part in self.parts.values_mut() {
                part.set_id(id(identity, part.number));
            }
        }
    }

    /// Lets everything pass from now on: it is part of a model, and what a model is not granted says
    /// nothing.
    pub fn stand_aside(&mut self) {
        self.aside = true;
    }

    /// Reports that are due, each with its key; [`LeaseKey::NONE`] is for requests without one. They are
    /// added to `reports`.
    pub fn poll(&mut self, now: Instant, reports: &mut Vec<(LeaseKey, Report)>) {
        if self.identity.is_none() || self.aside {
            return;
        }
        self.forget_idle(now);
        reports.append(&mut self.farewells);
        for (key, part) in &mut self.parts {
            reports.extend(part.poll(now).map(|report| (*key, report)));
        }
    }

    /// A report was answered; says whether that told anything new to be acted on.
    pub fn on_answer(&mut self, now: Instant, key: LeaseKey, answer: &Answer) -> bool {
        self.complaint = match answer {
            Answer::Grant(_) | Answer::Wait => None,
            Answer::Unknown => Some(Complaint::Unknown),
            Answer::Full => Some(Complaint::Full),
        };
        let Answer::Grant(grant) = answer else { return false };
        if grant.rules.places.is_some() != self.config.places {
            self.complaint = Some(Complaint::Other);
            return false;
        }
        let Some(part) = self.parts.get_mut(&key) else { return false };
        let taken = part.on_grant(now, grant);
        if taken {
            let since = self.begin.since;
            let (safe, on_loss, rules) = (grant.safe, grant.on_loss, grant.rules);
            self.begin = Beginning { since, safe, on_loss, rules };
        }
        taken
    }

    /// Uses nothing more, and says so for all keys.
    pub fn leave(&mut self, now: Instant) -> Vec<(LeaseKey, Report)> {
        let leave = |(key, part): (&LeaseKey, &mut Part)| (*key, part.leave(now));
        if self.identity.is_some() {
            self.parts.iter_mut().map(leave).collect()
        } else {
            Vec::new()
        }
    }

    /// How each key stands.
    pub fn standings(&self, now: Instant) -> impl Iterator<Item = (LeaseKey, Standing)> + '_ {
        self.parts.iter().map(move |(key, part)| (*key, part.standing(now)))
    }

    /// Keys that it has a holder for; [`LeaseKey::NONE`] is for requests without one.
    pub fn keys(&self) -> impl Iterator<Item = LeaseKey> + '_ {
        self.parts.keys().copied()
    }

    /// Whether requests hold places that are no longer this process's: those that are
    /// [overdue](crate::Gate::is_overdue) are to be aborted.
    pub fn is_overdue(&self, now: Instant) -> bool {
        self.parts.values().any(|part| part.is_overdue(now))
    }

    /// The part of what has no key, for whoever makes wait instead of refusing.
    ///
    /// # Panics
    ///
    /// If it is about places: whoever waits for tokens does not configure these.
    pub fn unkeyed(&mut self, now: Instant) -> &mut Holder {
        self.part(now, LeaseKey::NONE).holder().expect("it is about tokens")
    }

    /// What the granter has to complain about.
    pub fn complaint(&self) -> Option<Complaint> {
        self.complaint
    }

    fn key(&self, context: &Context) -> LeaseKey {
        let Context { workflow, sender, .. } = *context;
        let none = LeaseKey::NONE;
        match self.config.each {
            Each::Workflow => LeaseKey { workflow, ..none },
            Each::User => LeaseKey { value: sender.user, ..none },
            Each::Header => LeaseKey { value: sender.header, ..none },
            Each::Descriptor => LeaseKey { workflow, value: sender.header },
            Each::All | Each::Caller | Each::Address => none,
        }
    }

    /// Steps 1 and 3.
    fn part(&mut self, now: Instant, key: LeaseKey) -> &mut Part {
        let full = self.parts.len() >= self.config.keys && !self.parts.contains_key(&key);
        let key = if full { LeaseKey::NONE } else { key };
        let Self { config, identity, begin, made, .. } = self;
        let part = self.parts.entry(key).or_insert_with(|| {
            *made = made.wrapping_add(1) & !CAPPED;
            let id = id(identity.unwrap_or_default(), *made);
            Part::new(config.places, id, *made, begin)
        });
        part.asked = now;
        part
    }

    /// Step 2.
    fn forget_idle(&mut self, now: Instant) {
        let farewells = &mut self.farewells;
        let before = self.parts.len();
        self.parts.retain(|key, part| {
            let idle = *key != LeaseKey::NONE && part.is_idle(now);
            if idle {
                farewells.push((*key, part.leave(now)));
            }
            !idle
        });
        if self.parts.len() < before {
            self.begin.since = now;
        }
    }

    /// The key whose part a receipt is from, if there is one still.
    fn payer(&self, context: &Context, receipt: Receipt) -> Option<LeaseKey> {
        let number = receipt.to & !CAPPED;
        let is_from =
            |key: &LeaseKey| self.parts.get(key).is_some_and(|part| part.number == number);
        [self.key(context), LeaseKey::NONE].into_iter().find(is_from)
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
        let key = self.key(ask.context);
        self.part(now, key);
        let key = if self.parts.contains_key(&key) { key } else { LeaseKey::NONE };
        let part = self.parts.get_mut(&key).expect("it was asked for above");
        let (receipt, beyond) = part.ask(now, ask, &self.config)?;
        self.beyond += u64::from(beyond);
        Ok(receipt)
    }

    fn refund(&mut self, now: Instant, context: &Context, receipt: Receipt) {
        let payer = self.payer(context, receipt);
        if let Some(part) = payer.and_then(|key| self.parts.get_mut(&key)) {
            part.refund(now, context, receipt);
        }
    }

    fn on_finish(&mut self, now: Instant, context: &Context, receipt: Receipt, cost: Cost) {
        let payer = self.payer(context, receipt);
        if let Some(part) = payer.and_then(|key| self.parts.get_mut(&key)) {
            part.finish(now, receipt, &self.config, cost);
        }
    }

    fn is_overdue(&self, now: Instant, context: &Context, receipt: Receipt) -> bool {
        let payer = self.payer(context, receipt);
        payer.and_then(|key| self.parts.get(&key)).is_some_and(|part| part.is_overdue(now))
    }

    fn reconfigure(&mut self, _now: Instant, config: &LimitConfig) -> CarryOver {
        let LimitConfig::Leased(config) = config else { return CarryOver::Nothing };
        self.config = config.clone();
        CarryOver::Whole
    }

    fn needs_delay(&self) -> bool {
        let overload = |part: &Part| part.rules().enforce == Enforce::Overload;
        self.parts.get(&LeaseKey::NONE).is_some_and(overload)
    }

    fn leased(&self) -> Option<&Leased> {
        Some(self)
    }

    fn leased_mut(&mut self) -> Option<&mut Leased> {
        Some(self)
    }

    fn invariants(&self) {
        self.parts.values().for_each(Part::invariants);
        assert!(self.parts.len() <= self.config.keys.max(1), "keys are bounded");
    }

    fn clone_box(&self) -> Box<dyn Limiter> {
        Box::new(self.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Problems;
    use crate::rank::{Criticality, Rank};
    use crate::share::{Granter, LeaseConfig, Rate, Rules};

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
            |leased: &Leased| leased.standings(at(1)).map(|(key, _)| key).collect::<Vec<_>>();
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
        let left = reports.iter().filter(|(key, _)| *key != LeaseKey::NONE);
        assert_eq!(left.filter(|(_, report)| report.safe == Share::NONE).count(), 2);
        assert_eq!(keys(&leased).len(), 1);
        leased.invariants();
    }

    /// A granter with `rules` and a limiter that has all there is: 18 of 20 tokens.
    fn under(rules: Rules) -> Leased {
        let mut leased = Leased::new(&config(Each::All), at(0));
        leased.identify(7);
        let mut granter = granter();
        granter.set_rules(rules);
        exchange(&mut leased, &mut granter, at(1));
        leased
    }

    fn ranked(criticality: Criticality) -> Context {
        let rank = Rank::UNRANKED.with_criticality(criticality);
        Context { rank, ..Context::default() }
    }

    #[test]
    fn the_least_critical_are_refused_first() {
        let mut leased = under(Rules::default());
        let [plus, low] = [Criticality::CriticalPlus, Criticality::Sheddable].map(ranked);
        assert!(passes(&mut leased, at(1), &plus).is_some());
        let of = |leased: &mut Leased, context| {
            (0..50).filter(|_| passes(leased, at(1), context).is_some()).count()
        };
        assert_eq!(of(&mut leased, &low), 14, "an eighth of 19 and more are left to the other");
        assert_eq!(of(&mut leased, &plus), 3);
    }

    #[test]
    fn a_criticality_has_no_more_than_its_own_limit_and_gets_it_back() {
        let mut rules = Rules::default();
        let low = ranked(Criticality::Sheddable);
        rules.caps[3] = Some(Share::new(Rate::per_second(10.0).unwrap(), 4));
        let mut leased = under(rules);
        let of = |leased: &mut Leased, context, millis| {
            let passed = (0..50).filter_map(|_| passes(leased, at(millis), context));
            passed.collect::<Vec<_>>()
        };
        assert_eq!(of(&mut leased, &low, 1).len(), 0, "it begins without tokens");
        let passed = of(&mut leased, &low, 1_001);
        assert_eq!(passed.len(), 3, "19 of 20 tokens are its share, and so are 3.8 of 4");
        leased.refund(at(1_001), &low, passed[0]);
        assert_eq!(of(&mut leased, &low, 1_001).len(), 1);
        assert!(of(&mut leased, &ranked(Criticality::Critical), 1_001).len() > 10);
        leased.invariants();
    }

    #[test]
    fn what_is_not_enforced_passes_and_is_counted() {
        let shadow = Rules { percent: 0, ..Rules::default() };
        let overload = Rules { enforce: Enforce::Overload, ..Rules::default() };
        for rules in [shadow, overload] {
            let mut leased = under(rules);
            let context = of(0);
            assert_eq!(leased.needs_delay(), rules.enforce == Enforce::Overload);
            let receipts: Vec<_> =
                (0..30).filter_map(|_| passes(&mut leased, at(1), &context)).collect();
            assert_eq!((receipts.len(), leased.beyond()), (30, 12));
            let paid: f64 = receipts.iter().map(|receipt| receipt.paid).sum();
            assert!((paid - 18.0).abs() < 1e-6, "{paid}");
            receipts.iter().for_each(|receipt| leased.refund(at(1), &context, *receipt));
            let standing = leased.standings(at(1)).next().unwrap().1;
            let given = standing.tokens;
            assert!((given - 18.0).abs() < 1e-6, "nothing is given back that was not paid");
            let ask = Ask { context: &context, cost: Cost(1), delay: Span::from_secs(1) };
            let hard = (0..30).filter(|_| leased.on_arrival(at(1), &ask).is_ok()).count();
            assert_eq!(hard, if rules == shadow { 30 } else { 18 });
        }
    }

    #[test]
    fn users_and_pairs_of_workflow_and_header_have_their_own() {
        use crate::Sender;
        let context = |workflow, user, header| Context {
            workflow: Workflow(workflow),
            sender: Sender { user, header, ..Sender::UNKNOWN },
            ..Context::default()
        };
        let (a, b) = (context(1, 10, 20), context(2, 11, 20));
        for (each, keys) in [
            (Each::User, [(0, 10), (0, 11)]),
            (Each::Descriptor, [(1, 20), (2, 20)]),
            (Each::Header, [(0, 20), (0, 20)]),
        ] {
            let mut leased = Leased::new(&config(each), at(0));
            for context in [&a, &b] {
                passes(&mut leased, at(1), context);
            }
            let mut expected = keys.map(|(workflow, value)| (workflow, value)).to_vec();
            expected.insert(0, (0, 0));
            expected.dedup();
            let found: Vec<_> = leased.keys().map(|key| (key.workflow.0, key.value)).collect();
            assert_eq!(found, expected, "{each:?}");
        }
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
        for (key, report) in reports.into_iter().filter(|(key, _)| key.workflow.0 == 5) {
            let grant = granter.on_report(at(1), &report).unwrap();
            assert!(leased.on_answer(at(1), key, &Answer::Grant(grant)));
        }
        let receipt = passes(&mut leased, at(2), &of(5)).expect("granted");
        leased.poll(at(40_000), &mut Vec::new());
        passes(&mut leased, at(40_001), &of(5));
        leased.refund(at(40_001), &of(5), receipt);
        let standing = leased.standings(at(40_001)).find(|(key, _)| key.workflow.0 == 5).unwrap().1;
        assert!(standing.tokens < 1.0, "{}", standing.tokens);
    }

    #[test]
    fn wrong_parameters_are_told() {
        let config = LeasedConfig {
            agreement: "a b".to_owned(),
            control: "https://there".to_owned(),
            each: Each::Address,
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
