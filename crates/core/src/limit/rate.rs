//! `rate`: so much a second and so much at once, for all together or for each workflow, caller, user, address or
//! value of a header.
//!
//! All of them are keys of one bounded table ([`Keyed`]), so a flood of new callers costs no
//! memory and gains nothing. Costs that are known only afterwards are charged as estimated and
//! settled at the end; what is missing then is owed, up to one burst.

use serde::{Deserialize, Serialize};

use super::bucket::Limit;
use super::heavy::HeavyHitters;
use super::keyed::Keyed;
use super::{Ask, CarryOver, LimitConfig, Limiter, Receipt, Unit, check_factor, refusal};
use crate::config::Problems;
use crate::context::{CallerId, Context, Sender};
use crate::meter::Cost;
use crate::time::Instant;
use crate::verdict::Rejection;

/// Marks the keys of those that are known by their address only.
const STRANGER: u64 = 1 << 63;

/// A rate for each key.
#[derive(Clone, Debug)]
pub struct RateLimit {
    config: RateLimitConfig,
    buckets: Keyed,
    /// Who asks most; nobody in particular where all share a bucket.
    heavy: HeavyHitters,
}

impl RateLimit {
    /// A limit with all its tokens.
    pub fn new(config: &RateLimitConfig, now: Instant) -> Self {
        let buckets = Keyed::new(now, config.limit(), config.places());
        Self { config: config.clone(), buckets, heavy: HeavyHitters::default() }
    }

    fn key(&self, context: &Context) -> u64 {
        let Sender { address, user, header, .. } = context.sender;
        match self.config.each {
            Each::All => 0,
            Each::Workflow => u64::from(context.workflow.0),
            Each::Caller if context.caller == CallerId::UNKNOWN => STRANGER | u64::from(address),
            Each::Caller => context.caller.0,
            Each::Address => u64::from(address),
            Each::User if user == 0 => STRANGER | u64::from(address),
            Each::User => u64::from(user),
            Each::Header => u64::from(header),
            Each::Descriptor => u64::from(context.workflow.0) << 32 | u64::from(header),
        }
    }
}

impl Limiter for RateLimit {
    fn name(&self) -> &'static str {
        "rate"
    }

    fn on_arrival(&mut self, now: Instant, ask: &Ask<'_>) -> Result<Receipt, Rejection> {
        let key = self.key(ask.context);
        let amount = self.config.unit.amount(ask.cost, self.config.factor);
        if self.config.each != Each::All {
            self.heavy.add(key, amount);
        }
        // An estimate above the burst is no reason to refuse for ever: the rest is owed afterwards.
        let paid = amount.min(self.config.burst);
        match self.buckets.take(now, key, paid) {
            Ok(()) => Ok(Receipt { paid, ..Receipt::default() }),
            Err(shortage) => {
                let missing = paid - self.buckets.tokens(now, key);
                Err(refusal(now, self.config.limit(), missing, shortage))
            }
        }
    }

    fn refund(&mut self, _now: Instant, context: &Context, receipt: Receipt) {
        self.buckets.refund(self.key(context), receipt.paid);
    }

    fn on_finish(&mut self, now: Instant, context: &Context, receipt: Receipt, cost: Cost) {
        if self.config.unit.is_prepaid() {
            return;
        }
        let more = self.config.unit.amount(cost, self.config.factor) - receipt.paid;
        let key = self.key(context);
        if more > 0.0 {
            self.buckets.charge(now, key, more, self.config.burst);
        } else {
            self.buckets.refund(key, -more);
        }
    }

    fn heavy_hitters(&self) -> Option<&HeavyHitters> {
        (self.config.each != Each::All).then_some(&self.heavy)
    }

    fn reconfigure(&mut self, now: Instant, config: &LimitConfig) -> CarryOver {
        let LimitConfig::Rate(config) = config else { return CarryOver::Nothing };
        let before = std::mem::replace(&mut self.config, config.clone());
        if config.each != before.each {
            // Whose debt it was cannot be told of other keys: it is everybody's.
            self.buckets.restart(now, config.limit(), config.places());
            self.heavy = HeavyHitters::default();
            return CarryOver::Level;
        }
        let same_unit = config.unit == before.unit;
        if same_unit {
            self.buckets.set_limit(now, config.limit());
        } else {
            self.buckets.recount(now, config.limit());
            self.heavy = HeavyHitters::default();
        }
        self.buckets.resize(now, config.places());
        if same_unit { CarryOver::Whole } else { CarryOver::Level }
    }

    fn start_empty(&mut self, now: Instant) {
        self.buckets.restart(now, self.config.limit(), self.config.places());
    }

    fn invariants(&self) {
        self.buckets.invariants();
    }

    fn clone_box(&self) -> Box<dyn Limiter> {
        Box::new(self.clone())
    }
}

/// Who has a bucket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Each {
    /// All requests share one.
    #[default]
    All,
    /// Each workflow has its own; requests without one share one.
    Workflow,
    /// Each calling process has its own. Strangers are calling processes that nobody vouches for: each
    /// address has its own.
    Caller,
    /// Each user has its own, as the entry tells users apart; those without a name by their address.
    User,
    /// Each address has its own; of IPv6 each network of 64 bits.
    Address,
    /// Each value of the header that the driver was told to look at has its own; requests without it share
    /// one.
    Header,
    /// Each pair of a workflow and a value of that header has its own.
    Descriptor,
}

/// Parameters of the limit by rate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RateLimitConfig {
    /// Tokens per second. Default 100 (judgement: small enough to be noticed and set).
    pub rate: f64,
    /// Most tokens saved up: what may pass at once after a pause. At least 1 where tokens are
    /// requests. More takes bursts, and lets them through to the service. Default 33: at nine tenths
    /// of its rate, 999 of 1,000 Poisson arrivals find a token (waits of M/D/1).
    pub burst: f64,
    /// Who has a bucket: `all`, or each `workflow`, `caller`, `user`, `address`, value of a `header`, or
    /// `descriptor`, a pair of workflow and value. Default all.
    pub each: Each,
    /// Buckets kept, rounded up to eight times a power of two, about 17 bytes each. With fewer than
    /// there are busy keys, those that share a cell are treated more strictly. Default 4,096.
    pub keys: usize,
    /// What a token is: `requests`, `cpu-seconds`, or `cost` as the driver counts it. Default
    /// requests.
    pub unit: Unit,
    /// Work this machine does in a second, as a multiple of a standard machine's: costs are
    /// multiplied by it, so that a limit means the same everywhere ("Handling Overload", The
    /// Pitfalls of "Queries per Second"). Default 1.
    pub factor: f64,
}

impl Default for RateLimitConfig {
    fn default() -> Self {
        Self {
            rate: 100.0,
            burst: 33.0,
            each: Each::All,
            keys: 4096,
            unit: Unit::Requests,
            factor: 1.0,
        }
    }
}

impl RateLimitConfig {
    fn limit(&self) -> Limit {
        Limit::new(self.rate, self.burst)
    }

    /// What it counts, and for whom.
    pub(super) fn counts(&self) -> (Each, Unit) {
        (self.each, self.unit)
    }

    fn places(&self) -> usize {
        if self.each == Each::All { 1 } else { self.keys }
    }

    /// Notes everything that is wrong with the parameters.
    pub fn validate(&self, problems: &mut Problems) {
        self.limit().validate(problems, self.unit.least_burst());
        let (keys, most) = (self.keys, Keyed::MOST_KEYS);
        problems.check("keys", keys, (1..=most).contains(&keys), "1 to 1048576");
        check_factor(problems, self.factor);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One caller owes a burst of ten seconds when the unit changes; the others pay nothing for it.
    #[test]
    fn a_debt_stays_with_who_owes_it() {
        let config = RateLimitConfig {
            rate: 1.0,
            burst: 10.0,
            each: Each::Caller,
            unit: Unit::Cost,
            ..RateLimitConfig::default()
        };
        let mut limit = RateLimit::new(&config, at(0));
        let [one, other] =
            [1, 2].map(|caller| Context { caller: CallerId(caller), ..Context::default() });
        let receipt = limit.on_arrival(at(0), &ask(&one, 10)).unwrap();
        limit.on_finish(at(0), &one, receipt, Cost(30));
        limit.on_arrival(at(0), &ask(&other, 1)).unwrap();
        let config = RateLimitConfig { unit: Unit::Requests, ..config };
        let carried = limit.reconfigure(at(0), &LimitConfig::Rate(config));
        assert_eq!(carried, CarryOver::Level);
        let stranger = Context { caller: CallerId(3), ..Context::default() };
        let mut passes =
            |context: &Context, millis| limit.on_arrival(at(millis), &ask(context, 1)).is_ok();
        assert!(!passes(&other, 999) && !passes(&stranger, 999), "nobody has tokens");
        assert!(passes(&other, 1_000) && passes(&stranger, 1_000));
        assert!(!passes(&one, 10_999), "its debt is paid for as long as before");
        assert!(passes(&one, 11_000));
    }
    use crate::context::Workflow;
    use crate::time::Span;
    use crate::verdict::{Advice, Reason};

    fn at(millis: u64) -> Instant {
        Instant::ZERO + Span::from_millis(millis)
    }

    fn ask(context: &Context, cost: u64) -> Ask<'_> {
        Ask { context, cost: Cost(cost), delay: Span::ZERO }
    }

    fn from(caller: u64) -> Context {
        Context {
            caller: CallerId(caller),
            workflow: Workflow(caller as u16),
            ..Context::default()
        }
    }

    #[test]
    fn each_caller_has_its_own_and_the_busiest_is_known() {
        let config = RateLimitConfig { each: Each::Caller, burst: 2.0, ..Default::default() };
        let mut limit = RateLimit::new(&config, at(0));
        for caller in [1, 1, 2, 2] {
            assert!(limit.on_arrival(at(0), &ask(&from(caller), 0)).is_ok());
        }
        let refused = limit.on_arrival(at(0), &ask(&from(1), 0)).unwrap_err();
        assert_eq!((refused.reason, refused.limit), (Reason::Quota, 100.0));
        assert_eq!(refused.advice, Advice::Later(Span::from_millis(10)));
        assert!(limit.on_arrival(at(10), &ask(&from(1), 0)).is_ok());
        assert_eq!(limit.heavy_hitters().unwrap().top()[0].key, 1);
    }

    /// Strangers give no id: they once shared one bucket, and one of them kept out all.
    #[test]
    fn strangers_are_told_apart_by_what_the_driver_saw_of_them() {
        let [ann, bob] = [1, 2].map(|n| Context {
            sender: Sender { peer: n, address: n, user: 10 + n, header: 20 + n },
            ..Context::default()
        });
        let nobody =
            |context: Context| Context { sender: Sender { user: 0, ..context.sender }, ..context };
        for each in [Each::Caller, Each::User, Each::Address, Each::Header] {
            let config = RateLimitConfig { each, burst: 2.0, ..Default::default() };
            let mut limit = RateLimit::new(&config, at(0));
            let mut passes = |context: &Context| limit.on_arrival(at(0), &ask(context, 1)).is_ok();
            assert_eq!([ann, ann, ann].map(|ann| passes(&ann)), [true, true, false], "{each:?}");
            assert!(passes(&bob) && passes(&bob) && !passes(&bob), "{each:?}");
            let by_address = each == Each::User;
            assert_eq!(passes(&nobody(ann)), by_address, "{each:?}");
        }
    }

    #[test]
    fn processor_time_is_settled_and_counted_in_standard_machines() {
        let config = RateLimitConfig {
            rate: 1.0,
            burst: 0.1,
            unit: Unit::CpuSeconds,
            factor: 2.0,
            ..Default::default()
        };
        let mut limit = RateLimit::new(&config, at(0));
        let (who, ms) = (from(0), 1_000_000);
        // Expected 5 ms, on a machine twice as fast as the standard one: 10 ms of 100.
        let receipt = limit.on_arrival(at(0), &ask(&who, 5 * ms)).unwrap();
        assert_eq!(receipt.paid, 0.01);
        limit.on_finish(at(0), &who, receipt, Cost(60 * ms));
        // 120 ms of 100 were used: nothing passes for the next 20.
        assert!(limit.on_arrival(at(19), &ask(&who, 0)).is_err());
        assert!(limit.on_arrival(at(21), &ask(&who, 0)).is_ok());
        // A request far above the burst passes a full bucket, and is owed for at most a burst.
        let receipt = limit.on_arrival(at(500), &ask(&who, 10_000 * ms)).unwrap();
        limit.on_finish(at(500), &who, receipt, Cost(10_000 * ms));
        assert!(limit.on_arrival(at(599), &ask(&who, 0)).is_err());
        assert!(limit.on_arrival(at(601), &ask(&who, 0)).is_ok());
    }

    #[test]
    fn another_rate_changes_in_place() {
        let config = RateLimitConfig { burst: 2.0, ..Default::default() };
        let mut limit = RateLimit::new(&config, at(0));
        while limit.on_arrival(at(0), &ask(&from(0), 0)).is_ok() {}
        let faster = RateLimitConfig { rate: 1_000.0, burst: 50.0, ..config.clone() };
        assert_eq!(limit.reconfigure(at(0), &LimitConfig::Rate(faster)), CarryOver::Whole);
        assert!(limit.on_arrival(at(0), &ask(&from(0), 0)).is_err());
        assert!(limit.on_arrival(at(1), &ask(&from(0), 0)).is_ok());
    }

    /// A table of another size knows who has used what.
    #[test]
    fn keys_keep_their_level_in_a_table_of_another_size() {
        let config = RateLimitConfig { each: Each::Caller, burst: 2.0, ..Default::default() };
        let mut limit = RateLimit::new(&config, at(0));
        assert!((0..2).all(|_| limit.on_arrival(at(0), &ask(&from(1), 0)).is_ok()));
        assert!(limit.on_arrival(at(0), &ask(&from(2), 0)).is_ok());
        for keys in [8, 65_536, 512] {
            let config = RateLimitConfig { keys, ..config.clone() };
            assert_eq!(limit.reconfigure(at(0), &LimitConfig::Rate(config)), CarryOver::Whole);
            assert!(limit.on_arrival(at(0), &ask(&from(1), 0)).is_err(), "{keys}");
        }
        assert!(limit.on_arrival(at(0), &ask(&from(2), 0)).is_ok(), "one of two was left");
        assert!(limit.on_arrival(at(0), &ask(&from(2), 0)).is_err());
        assert!(limit.on_arrival(at(0), &ask(&from(3), 0)).is_ok(), "who is new has its burst");
    }

    /// Counting something else, nothing is there at first, and a debt is paid as long as before.
    #[test]
    fn other_keys_or_units_start_empty() {
        let config = RateLimitConfig { rate: 10.0, burst: 5.0, ..Default::default() };
        let owing = RateLimitConfig { unit: Unit::Cost, ..config.clone() };
        for (before, other, wait) in [
            (config.clone(), RateLimitConfig { each: Each::Caller, ..config.clone() }, 100),
            (config.clone(), RateLimitConfig { unit: Unit::CpuSeconds, ..config.clone() }, 1),
            // Five are owed at ten a second.
            (owing, RateLimitConfig { rate: 1_000.0, ..config }, 501),
        ] {
            let mut limit = RateLimit::new(&before, at(0));
            let receipt = limit.on_arrival(at(0), &ask(&from(0), 5)).unwrap();
            limit.on_finish(at(0), &from(0), receipt, Cost(100));
            let carried = limit.reconfigure(at(0), &LimitConfig::Rate(other));
            assert_eq!(carried, CarryOver::Level);
            let ms = 1_000_000;
            assert!(limit.on_arrival(at(wait - 1), &ask(&from(7), ms)).is_err(), "{before:?}");
            assert!(limit.on_arrival(at(wait), &ask(&from(7), ms)).is_ok(), "{before:?}");
        }
    }
}
