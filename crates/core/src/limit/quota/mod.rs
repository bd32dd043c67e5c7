//! `quota`: what a service has agreed with each workflow ("Handling Overload", Per-Customer Limits).
//!
//! 1. Each workflow has a rate and a burst, in requests, CPU-seconds or own units; those not named
//!    have the default, each for itself. Agreements may sum to more than there is: not everybody
//!    comes at once.
//! 2. A request takes its estimated cost and settles at the end; what is missing is owed.
//! 3. **Out of quota, a criticality is refused only when all lower ones already are**
//!    ("Handling Overload", Criticality): see [`order`](super::order).
//! 4. Enforced always, or only while the gate is overloaded. Then what passes beyond the quota is
//!    still counted, down to no tokens: at the first sign of overload who is above its quota is
//!    held to it, and who kept within has its burst.
//! 5. A *guarantee* is a rate that passes even in an overload; beyond it, best effort (Wisp §4.3).

mod config;

use super::bucket::{Bucket, Limit, Shortage};
use super::order::{BANDS, Order};
use super::{Ask, CarryOver, LimitConfig, Limiter, Receipt, refusal};
use crate::context::{Context, Workflow, Workflows};
use crate::meter::Cost;
use crate::rank::Criticality;
use crate::time::{Instant, Span};
use crate::verdict::Rejection;

pub use config::{Enforce, Guaranteed, Quota, QuotaConfig};

/// In `Receipt::to`, of a request that was paid from the guarantee too. The other bits are the
/// account's [`parts`](Account::parts).
const GUARANTEED: u32 = 1;

/// Quotas by workflow.
#[derive(Clone, Debug)]
pub struct Quotas {
    config: QuotaConfig,
    /// Which workflow number has which entry of the configuration.
    named: Vec<(Workflow, usize)>,
    /// By workflow number, made when first asked for; at most one more than workflows have numbers.
    accounts: Vec<Option<Account>>,
    /// When quotas last changed, if they ever did. Who is seen for the first time after that starts
    /// empty as of then: nobody knows what it has used.
    changed: Option<Instant>,
}

#[derive(Clone, Debug)]
struct Account {
    /// The entry of the configuration that it follows; none if the default.
    of: Option<usize>,
    /// Whether it is to follow another since.
    moved: bool,
    whole: Bucket,
    /// The rate that passes even in an overload.
    guarantee: Option<Bucket>,
    /// Own limits of criticalities.
    bands: [Option<Bucket>; BANDS],
    /// Counts, by two, the changes after which a guarantee or a criticality's own limit could give back
    /// more than it took: to them, receipts from before are void.
    parts: u32,
    order: Order,
}

impl Quotas {
    /// Quotas of which nothing is used.
    pub fn new(config: &QuotaConfig) -> Self {
        Self { config: config.clone(), named: Vec::new(), accounts: Vec::new(), changed: None }
    }

    /// Tokens of `workflow` at `now`, none if it has no quota or was never seen.
    pub fn tokens(&self, now: Instant, workflow: Workflow) -> Option<f64> {
        let account = self.accounts.get(usize::from(workflow.0))?.as_ref()?;
        Some(account.whole.tokens(now))
    }

    /// The entry of the configuration that names `workflow`.
    fn place(&self, workflow: Workflow) -> Option<usize> {
        self.named.iter().find(|(known, _)| *known == workflow).map(|(_, at)| *at)
    }

    fn account(&mut self, now: Instant, workflow: Workflow) -> Option<&mut Account> {
        let at = usize::from(workflow.0).min(Workflows::LIMIT);
        if self.accounts.len() <= at {
            self.accounts.resize(at + 1, None);
        }
        if self.accounts[at].as_ref().is_none_or(|account| account.moved) {
            self.follow(now, at, Bucket::set_limit);
        }
        self.accounts[at].as_mut()
    }

    /// Has the account of a workflow follow the entry that is for it now, each bucket by `change`.
    fn follow(&mut self, now: Instant, at: usize, change: Change) {
        let of = self.place(Workflow(u16::try_from(at).unwrap_or(u16::MAX)));
        let quota = of.map(|of| &self.config.quotas[of]).or(self.config.default.as_ref());
        match (&mut self.accounts[at], quota) {
            (Some(account), Some(quota)) => account.set(now, of, quota, change),
            (account @ None, Some(quota)) => {
                let start = |limit| match self.changed {
                    Some(then) => Bucket::empty(then, limit),
                    None => Bucket::full(now, limit),
                };
                *account = Some(Account::new(of, quota, start));
            }
            (account, None) => *account = None,
        }
    }
}

/// How a bucket takes another limit: in the same unit, or in another.
type Change = fn(&mut Bucket, Instant, Limit);

/// How a request is judged.
#[derive(Clone, Copy, Debug)]
struct Terms {
    enforced: bool,
    overloaded: bool,
    prepaid: bool,
}

impl Account {
    fn new(of: Option<usize>, quota: &Quota, start: impl Fn(Limit) -> Bucket) -> Self {
        let mut bands = [const { None }; BANDS];
        for (band, limit) in quota.bands() {
            bands[band.index()] = Some(start(limit));
        }
        Self {
            of,
            moved: false,
            whole: start(quota.limit()),
            guarantee: quota.guaranteed().map(start),
            bands,
            parts: 0,
            order: Order::default(),
        }
    }

    fn ask(
        &mut self,
        now: Instant,
        band: usize,
        amount: f64,
        terms: Terms,
    ) -> Result<Receipt, Rejection> {
        if let Some(own) = &mut self.bands[band] {
            let paid = amount.min(own.limit().burst);
            own.take_cost(now, paid).map_err(|short| refusal(now, own.limit(), paid, short))?;
        }
        let passed = self.ask_whole(now, band, amount, terms);
        if let (Err(_), Some(own)) = (&passed, &mut self.bands[band]) {
            own.refund(now, amount.min(own.limit().burst));
        }
        passed.map(|(to, forgiven)| Receipt {
            paid: amount - forgiven,
            forgiven,
            to: self.parts | to,
        })
    }

    /// Whether the guarantee paid too, and how much was charged to nobody.
    fn ask_whole(
        &mut self,
        now: Instant,
        band: usize,
        amount: f64,
        terms: Terms,
    ) -> Result<(u32, f64), Rejection> {
        let burst = self.whole.limit().burst;
        if let Some(guarantee) = &mut self.guarantee {
            match guarantee.take_cost(now, amount.min(guarantee.limit().burst)) {
                Ok(()) => {
                    let forgiven = self.whole.settle_cost(now, 0.0, amount, burst);
                    return Ok((GUARANTEED, forgiven));
                }
                Err(short) if terms.overloaded => {
                    return Err(refusal(now, guarantee.limit(), amount, short));
                }
                Err(_) => {}
            }
        }
        let forgiven = if terms.enforced {
            self.enforce(now, band, amount, terms.prepaid)?
        } else {
            self.whole.settle_cost(now, 0.0, amount, 0.0)
        };
        Ok((0, forgiven))
    }

    /// Rule 3.
    fn enforce(
        &mut self,
        now: Instant,
        band: usize,
        amount: f64,
        prepaid: bool,
    ) -> Result<f64, Rejection> {
        let limit = self.whole.limit();
        let needed = self.order.needed(now, band, limit, amount, prepaid);
        let missing = needed - self.whole.tokens(now);
        if missing > 0.0 {
            let due = now + Span::from_nanos((missing / limit.rate * 1e9).ceil() as u64);
            return Err(refusal(now, limit, missing, Shortage::Until(due)));
        }
        Ok(self.whole.settle_cost(now, 0.0, amount, limit.burst))
    }

    /// The guarantee and the band's own limit, if the request paid them or was to, and what it paid.
    fn parts_of(
        &mut self,
        band: usize,
        receipt: Receipt,
    ) -> impl Iterator<Item = (&mut Bucket, f64)> {
        let valid = receipt.to & !GUARANTEED == self.parts;
        let guaranteed = receipt.to & GUARANTEED != 0;
        let amount = if valid { receipt.paid + receipt.forgiven } else { 0.0 };
        let guarantee = self.guarantee.as_mut().filter(|_| guaranteed);
        [self.bands[band].as_mut(), guarantee].into_iter().flatten().map(move |part| {
            let took = amount.min(part.limit().burst);
            (part, took)
        })
    }

    fn set(&mut self, now: Instant, of: Option<usize>, quota: &Quota, change: Change) {
        (self.of, self.moved) = (of, false);
        change(&mut self.whole, now, quota.limit());
        let mut more = set_bucket(now, &mut self.guarantee, quota.guaranteed(), change);
        for band in Criticality::ALL {
            let limit = quota.bands().find(|(own, _)| *own == band).map(|(_, limit)| limit);
            more |= set_bucket(now, &mut self.bands[band.index()], limit, change);
        }
        if more {
            self.parts = self.parts.wrapping_add(2);
        }
    }
}

/// Gives a bucket other terms, or takes it away; a new one starts empty, because what it limits has
/// been used all along. Whether a request can pay it more than before.
fn set_bucket(
    now: Instant,
    bucket: &mut Option<Bucket>,
    limit: Option<Limit>,
    change: Change,
) -> bool {
    let burst = |limit: Option<Limit>| limit.map_or(0.0, |limit| limit.burst);
    let more = burst(limit) > burst(bucket.as_ref().map(Bucket::limit));
    match (bucket.as_mut(), limit) {
        (Some(bucket), Some(limit)) => change(bucket, now, limit),
        (None, Some(limit)) => *bucket = Some(Bucket::empty(now, limit)),
        (_, None) => *bucket = None,
    }
    more
}

impl Limiter for Quotas {
    fn name(&self) -> &'static str {
        "quota"
    }

    fn on_arrival(&mut self, now: Instant, ask: &Ask<'_>) -> Result<Receipt, Rejection> {
        let overloaded = ask.delay >= self.config.overload_delay;
        let enforced = self.config.enforce == Enforce::Always || overloaded;
        let terms = Terms { enforced, overloaded, prepaid: self.config.unit.is_prepaid() };
        let amount = self.config.unit.amount(ask.cost, self.config.factor);
        let band = ask.context.rank.criticality().index();
        match self.account(now, ask.context.workflow) {
            Some(account) => account.ask(now, band, amount, terms),
            None => Ok(Receipt::default()),
        }
    }

    fn refund(&mut self, now: Instant, context: &Context, receipt: Receipt) {
        let Some(account) = self.account(now, context.workflow) else { return };
        account.whole.refund(now, receipt.paid);
        let band = context.rank.criticality().index();
        account.parts_of(band, receipt).for_each(|(part, took)| part.refund(now, took));
    }

    fn on_finish(&mut self, now: Instant, context: &Context, receipt: Receipt, cost: Cost) {
        if self.config.unit.is_prepaid() {
            return;
        }
        let actual = self.config.unit.amount(cost, self.config.factor);
        let Some(account) = self.account(now, context.workflow) else { return };
        // What was forgiven is neither charged now nor given back.
        let settled = receipt.paid.max(actual.min(receipt.paid + receipt.forgiven));
        let burst = account.whole.limit().burst;
        account.whole.settle_cost(now, settled, actual, burst);
        for (part, took) in account.parts_of(context.rank.criticality().index(), receipt) {
            let burst = part.limit().burst;
            part.settle_cost(now, took, actual, burst);
        }
    }

    fn name_workflows(&mut self, number: &mut dyn FnMut(&str) -> Workflow) {
        let numbered = self.config.quotas.iter().enumerate();
        let named = numbered.map(|(at, quota)| (number(&quota.workflow), at));
        // A name that got no number is that of nobody in particular.
        self.named = named.filter(|(workflow, _)| *workflow != Workflow::NONE).collect();
        for at in 0..self.accounts.len() {
            let of = self.place(Workflow(u16::try_from(at).unwrap_or(u16::MAX)));
            if let Some(account) = &mut self.accounts[at] {
                account.moved = account.of != of;
            }
        }
    }

    fn needs_delay(&self) -> bool {
        self.config.enforce == Enforce::Overload
            || self
                .config
                .quotas
                .iter()
                .chain(&self.config.default)
                .any(|quota| quota.guarantee.is_some())
    }

    fn reconfigure(&mut self, now: Instant, config: &LimitConfig) -> CarryOver {
        let LimitConfig::Quota(config) = config else { return CarryOver::Nothing };
        if *config == self.config {
            return CarryOver::Whole;
        }
        let before = std::mem::replace(&mut self.config, config.clone());
        let same_unit = config.unit == before.unit;
        let change: Change = if same_unit { Bucket::set_limit } else { Bucket::restart };
        self.changed = Some(now);
        let place = |name: &str| config.quotas.iter().position(|quota| quota.workflow == name);
        let names = self.named.iter();
        let named = names
            .filter_map(|(workflow, at)| Some((*workflow, place(&before.quotas[*at].workflow)?)));
        self.named = named.collect();
        for at in 0..self.accounts.len() {
            if self.accounts[at].is_some() {
                self.follow(now, at, change);
            }
        }
        if same_unit { CarryOver::Whole } else { CarryOver::Level }
    }

    fn start_empty(&mut self, now: Instant) {
        self.changed = Some(now);
    }

    fn invariants(&self) {
        assert!(self.accounts.len() <= Workflows::LIMIT + 1, "accounts are bounded");
        for account in self.accounts.iter().flatten() {
            account.whole.invariants();
        }
    }

    fn clone_box(&self) -> Box<dyn Limiter> {
        Box::new(self.clone())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::config::Problems;
    use crate::limit::Unit;
    use crate::rank::Rank;
    use crate::verdict::{Advice, Reason};

    const NONE: Span = Span::ZERO;

    fn at(millis: u64) -> Instant {
        Instant::ZERO + Span::from_millis(millis)
    }

    fn of(workflow: u16, band: Criticality) -> Context {
        let rank = Rank::UNRANKED.with_criticality(band);
        Context { workflow: Workflow(workflow), rank, ..Context::default() }
    }

    fn quotas(text: &str) -> Quotas {
        let LimitConfig::Quota(config) = toml::from_str(text).unwrap() else { panic!("a quota") };
        let mut quotas = Quotas::new(&config);
        let mut last = 0;
        quotas.name_workflows(&mut |_| {
            last += 1;
            Workflow(last)
        });
        quotas
    }

    fn ask(quotas: &mut Quotas, now: Instant, context: &Context, delay: Span) -> bool {
        quotas.on_arrival(now, &Ask { context, cost: Cost(1_000_000), delay }).is_ok()
    }

    const TWO: &str = "
        limit = 'quota'
        overload_delay = '10ms'
        default = { rate = 10, burst = 2 }
        [[quotas]]
        workflow = 'mail'
        rate = 1000
        burst = 8
    ";

    /// Who was seen under the default and is named by a change gets its own quota from then on, and no
    /// burst of it as a present.
    #[test]
    fn a_workflow_that_is_named_later_has_its_own_quota() {
        let mut quotas = quotas(TWO);
        let shop = of(2, Criticality::Critical);
        let passed = |quotas: &mut Quotas, from: u64, to: u64| {
            (from..to).filter(|now| ask(quotas, at(*now), &shop, NONE)).count()
        };
        assert_eq!(passed(&mut quotas, 0, 1_000), 11, "two at once and ten a second");
        let text = format!("{TWO}[[quotas]]\nworkflow = 'shop'\nrate = 100\nburst = 50");
        let carried = quotas.reconfigure(at(1_000), &toml::from_str(&text).unwrap());
        assert_eq!(carried, CarryOver::Whole);
        let number = |name: &str| Workflow(if name == "mail" { 1 } else { 2 });
        quotas.name_workflows(&mut |name| number(name));
        assert_eq!(passed(&mut quotas, 1_001, 2_001), 100);
        quotas.reconfigure(at(2_001), &toml::from_str(TWO).unwrap());
        quotas.name_workflows(&mut |name| number(name));
        let after = passed(&mut quotas, 2_002, 3_002);
        assert!((10..=11).contains(&after), "the default again, and what was left: {after}");
    }

    #[test]
    fn a_guarantee_of_the_default_wants_to_know_of_overload_too() {
        assert!(!quotas(TWO).needs_delay());
        let text = TWO.replace("burst = 2 }", "burst = 2, guarantee = { rate = 1, burst = 1 } }");
        assert!(quotas(&text).needs_delay());
    }

    /// "Handling Overload", Per-Customer Limits: quotas that sum above capacity on purpose, in CPU-seconds per second.
    #[test]
    fn quotas_may_sum_above_capacity() {
        let text = "
            limit = 'quota'
            unit = 'cpu-seconds'
            capacity = 10000
            default = { rate = 500, burst = 50 }
            quotas = [
                { workflow = 'mail', rate = 4000, burst = 400 },
                { workflow = 'calendar', rate = 4000, burst = 400 },
                { workflow = 'phones', rate = 3000, burst = 300 },
                { workflow = 'people', rate = 2000, burst = 200 },
            ]
        ";
        let quotas = quotas(text);
        let mut problems = Problems::default();
        quotas.config.validate(&mut problems);
        assert!(problems.into_result().is_ok());
        assert_eq!(quotas.config.promised(), 13_000.0);
    }

    #[test]
    fn the_default_is_for_each_that_is_not_named() {
        let mut quotas = quotas(TWO);
        let critical = |workflow| of(workflow, Criticality::Critical);
        let passed = |quotas: &mut Quotas, workflow| {
            (0..20).filter(|_| ask(quotas, at(0), &critical(workflow), NONE)).count()
        };
        assert_eq!(passed(&mut quotas, 1), 8);
        assert_eq!(passed(&mut quotas, 7), 2);
        assert_eq!(passed(&mut quotas, 8), 2);
        let refused = quotas
            .on_arrival(at(0), &Ask { context: &critical(1), cost: Cost(1), delay: NONE })
            .unwrap_err();
        assert_eq!((refused.reason, refused.limit), (Reason::Quota, 1_000.0));
        assert_eq!(refused.advice, Advice::Later(Span::from_millis(1)));
    }

    #[test]
    fn only_under_overload_and_then_at_once() {
        let mut quotas = quotas(&format!("enforce = 'overload'\n{TWO}"));
        let (mail, calm, busy) = (of(1, Criticality::Sheddable), NONE, Span::from_millis(10));
        for n in 0..10_000 {
            assert!(ask(&mut quotas, at(n / 10), &mail, calm), "ten times its rate, nobody minds");
        }
        assert!(!ask(&mut quotas, at(999), &mail, busy), "its tokens were counted");
        // Nothing is owed for what was there to be used.
        assert!(ask(&mut quotas, at(1_001), &mail, busy));
    }

    #[test]
    fn a_guarantee_passes_in_overload_and_the_rest_is_best_effort() {
        let text = TWO.replace("burst = 8", "burst = 8\nguarantee = { rate = 100, burst = 2 }");
        let mut quotas = quotas(&text);
        let (mail, busy) = (of(1, Criticality::Critical), Span::from_millis(20));
        let mut passed = |from: u64, delay| {
            (0..1_000).filter(|n| ask(&mut quotas, at(from + n), &mail, delay)).count()
        };
        assert_eq!(passed(0, busy), 2 + 99);
        assert!(passed(2_000, NONE) >= 990);
    }

    #[test]
    fn a_criticality_can_have_a_limit_of_its_own() {
        let text = TWO.replace("burst = 8", "burst = 8\nsheddable = { rate = 10, burst = 1 }");
        let mut quotas = quotas(&text);
        assert!(ask(&mut quotas, at(0), &of(1, Criticality::Sheddable), NONE));
        assert!(!ask(&mut quotas, at(0), &of(1, Criticality::Sheddable), NONE));
        assert!(ask(&mut quotas, at(0), &of(1, Criticality::SheddablePlus), NONE));
    }

    /// A larger quota helps at once and gives no tokens.
    #[test]
    fn a_change_mints_nothing() {
        let mut quotas = quotas(TWO);
        let mail = of(1, Criticality::Sheddable);
        while ask(&mut quotas, at(0), &mail, NONE) {}
        let mut config = quotas.config.clone();
        config.quotas[0].burst = 100.0;
        config.quotas[0].rate = 10_000.0;
        quotas.reconfigure(at(0), &LimitConfig::Quota(config.clone()));
        assert!(!ask(&mut quotas, at(0), &mail, NONE));
        assert!((0..5).all(|_| ask(&mut quotas, at(1), &mail, NONE)));
        // Nor does another unit, or who was never seen before the change.
        config.unit = Unit::Cost;
        config.default = Some(Quota::default());
        let carried = quotas.reconfigure(at(90), &LimitConfig::Quota(config));
        assert_eq!(carried, CarryOver::Level);
        assert!(!ask(&mut quotas, at(90), &mail, NONE));
        assert!(!ask(&mut quotas, at(90), &of(9, Criticality::Critical), NONE));
    }

    #[test]
    fn what_is_wrong_is_named() {
        let text = "
            limit = 'quota'
            factor = -1
            default = { workflow = 'x', rate = nan, burst = 1 }
            [[quotas]]
            rate = -5
            burst = 0
            [[quotas]]
            workflow = 'mail'
            guarantee = { rate = 200, burst = 1 }
            [[quotas]]
            workflow = 'mail'
        ";
        let config: LimitConfig = toml::from_str(text).unwrap();
        let mut problems = Problems::default();
        config.validate(&mut problems);
        let told = problems.into_result().unwrap_err();
        let fields: Vec<&str> = told.problems().iter().map(|at| at.field.as_str()).collect();
        assert_eq!(
            fields,
            [
                "factor",
                "default.workflow",
                "default.rate",
                "quotas.0.workflow",
                "quotas.0.rate",
                "quotas.0.burst",
                "quotas.1.guarantee.rate",
                "quotas.2.workflow",
            ]
        );
    }

    proptest! {
        /// With interleaved classes: whenever one is refused, every lower one
        /// would be too; and in all no more passes than rate and burst.
        #[test]
        fn lower_criticalities_are_refused_first(
            ops in prop::collection::vec((0..4usize, 0..3u64), 1..600),
        ) {
            let mut quotas = quotas(TWO);
            let (mut now, mut passed) = (0, 0u64);
            for (band, step) in ops {
                now += step / 2;
                let context = of(1, Criticality::ALL[band]);
                if ask(&mut quotas, at(now), &context, NONE) {
                    passed += 1;
                    continue;
                }
                for lower in &Criticality::ALL[band..] {
                    let mut copy = quotas.clone();
                    prop_assert!(!ask(&mut copy, at(now), &of(1, *lower), NONE), "{lower:?}");
                }
                quotas.invariants();
            }
            prop_assert!(passed <= 8 + now, "{passed} in {now} ms");
        }

        /// What is given back leaves no trace in tokens: neither of the whole, nor of its parts, whatever
        /// was there to be paid, and whether it is a refund or a cost of nothing.
        #[test]
        fn a_refund_is_whole(
            enforce in prop_oneof![Just("always"), Just("overload")],
            ops in prop::collection::vec((0..4usize, 0..30u64, 0..20u64, 0..3u8), 1..40),
        ) {
            let mut quotas = quotas(&PARTS.replace("always", enforce));
            let tokens = |quotas: &Quotas, now| {
                let account = quotas.accounts[1].as_ref().unwrap();
                let parts = account.bands.iter().chain([&account.guarantee]).flatten();
                parts.chain([&account.whole]).map(|part| part.tokens(now)).collect::<Vec<_>>()
            };
            let mut now = at(0);
            quotas.account(now, Workflow(1));
            for (band, cost, delay, end) in ops {
                now += Span::from_millis(5);
                let before = tokens(&quotas, now);
                let context = of(1, Criticality::ALL[band]);
                let delay = Span::from_millis(delay);
                let ask = Ask { context: &context, cost: Cost(cost), delay };
                let Ok(receipt) = quotas.on_arrival(now, &ask) else { continue };
                match end {
                    0 => continue,
                    1 => quotas.refund(now, &context, receipt),
                    _ => quotas.on_finish(now, &context, receipt, Cost(0)),
                }
                for (after, before) in tokens(&quotas, now).iter().zip(&before) {
                    prop_assert!((after - before).abs() < 1e-6, "{after} after {before}");
                }
            }
        }
    }

    const PARTS: &str = "
        limit = 'quota'
        unit = 'cost'
        enforce = 'always'
        [[quotas]]
        workflow = 'mail'
        rate = 100
        burst = 8
        sheddable = { rate = 50, burst = 4 }
        guarantee = { rate = 20, burst = 2 }
    ";

    /// While nobody minds, what is beyond the quota is charged to nobody, also when it ends.
    #[test]
    fn what_was_forgiven_is_not_charged_at_the_end() {
        let text = PARTS.replace("always", "overload").replace("guarantee", "critical_plus");
        let mut quotas = quotas(&text);
        let context = of(1, Criticality::Critical);
        let ask = Ask { context: &context, cost: Cost(10), delay: NONE };
        let receipt = quotas.on_arrival(at(0), &ask).unwrap();
        assert_eq!((receipt.paid, receipt.forgiven), (8.0, 2.0));
        let tokens = |cost| {
            let mut quotas = quotas.clone();
            quotas.on_finish(at(0), &context, receipt, Cost(cost));
            quotas.tokens(at(0), Workflow(1)).unwrap()
        };
        assert_eq!([7, 9, 10, 13].map(tokens), [1.0, 0.0, 0.0, -3.0]);
    }

    /// A part that came, or grew, after a request had passed gives back nothing that it never took.
    #[test]
    fn a_new_part_gives_back_nothing() {
        let without =
            PARTS.lines().filter(|line| !line.contains("{")).collect::<Vec<_>>().join("\n");
        let (small, context) =
            (PARTS.replace("burst = 4", "burst = 1"), of(1, Criticality::Sheddable));
        for before in [without, small] {
            let mut quotas = quotas(&before);
            let ask = Ask { context: &context, cost: Cost(4), delay: NONE };
            let receipt = quotas.on_arrival(at(0), &ask).unwrap();
            let carried = quotas.reconfigure(at(0), &toml::from_str(PARTS).unwrap());
            assert_eq!(carried, CarryOver::Whole);
            quotas.refund(at(0), &context, receipt);
            assert_eq!(quotas.tokens(at(0), Workflow(1)), Some(8.0));
            let account = quotas.accounts[1].as_ref().unwrap();
            assert_eq!(
                account.bands[context.rank.criticality().index()].as_ref().unwrap().tokens(at(0)),
                0.0
            );
        }
    }
}
