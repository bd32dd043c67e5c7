//! The node side of leases: a bucket whose limit is the share the node has right now.
//!
//! The protocol is in [`lease`](super::lease). A holder starts with its safe share and an *empty*
//! bucket: whatever its predecessor had saved up died with it, so that a node that restarts ever
//! again admits no more than one that does not. While the control plane answers, its share follows
//! its load; without, it keeps its lease to the end, and then its safe share.
//!
//! A driver tells it of arrivals, takes tokens, and sends [`Holder::poll`]'s reports:
//!
//! ```
//! use tidegate_core::share::{Granter, Holder, HolderId, LeaseConfig, Rate, Share};
//! use tidegate_core::{Instant, Span};
//!
//! let whole = Share::new(Rate::per_second(1_000.0).unwrap(), 100);
//! let terms = LeaseConfig { nodes: 2, ..LeaseConfig::default() };
//! let mut granter = Granter::new(whole, terms, Default::default()).unwrap();
//!
//! let mut now = Instant::ZERO;
//! let mut holder = Holder::new(now, HolderId(7), whole, terms, Default::default()).unwrap();
//! let report = holder.poll(now).expect("the first report is due at once");
//! let grant = granter.on_report(now, &report).expect("nothing is leased yet");
//! holder.on_grant(now, &grant);
//!
//! now = now + Span::from_millis(10);
//! holder.on_arrival(now, 1);
//! assert!(holder.take(now).is_ok());
//! ```

use super::Share;
use super::history::{History, HistoryConfig, Load};
use super::lease::{Grant, HolderId, LeaseConfig, OnLoss, Report};
use super::rules::Rules;
use super::split::SplitError;
use crate::limit::{Bucket, Limit, Shortage};
use crate::time::{Instant, Span};

/// One node's share of an agreement.
#[derive(Clone, Debug)]
pub struct Holder {
    id: HolderId,
    /// How often it reports.
    period: Span,
    /// The largest epoch of a granter it has heard of.
    epoch: u64,
    /// The agreement it knows of, and what is guaranteed of it; none before it has heard.
    whole: Share,
    bound: Share,
    /// What it may use without having asked.
    safe: Share,
    /// What it may use on top, before `until`.
    leased: Share,
    until: Instant,
    /// The term of that.
    term: Span,
    on_loss: OnLoss,
    rules: Rules,
    /// The report whose answer has brought tokens.
    filled: u64,
    /// Number of the newest report, and when it was sent.
    sequence: u64,
    sent: Instant,
    /// When the next report is due.
    due: Instant,
    bucket: Bucket,
    history: History,
    /// The latest moment heard of.
    now: Instant,
}

impl Holder {
    /// A node that has just started: its safe share of `whole`, nothing saved up.
    pub fn new(
        now: Instant,
        id: HolderId,
        whole: Share,
        config: LeaseConfig,
        history: HistoryConfig,
    ) -> Result<Self, SplitError> {
        let safe = config.safe_share(whole)?;
        let holder = Self::unheard(now, id, safe, config.on_loss, config.period, history);
        Ok(Self { whole, ..holder })
    }

    /// A node that has just started and knows nothing of the agreement but what its safe share is,
    /// perhaps nothing, and what to do while it hears nothing.
    pub fn unheard(
        now: Instant,
        id: HolderId,
        safe: Share,
        on_loss: OnLoss,
        period: Span,
        history: HistoryConfig,
    ) -> Self {
        Self {
            id,
            period,
            epoch: 0,
            whole: Share::NONE,
            bound: Share::NONE,
            safe,
            leased: Share::NONE,
            until: now,
            term: Span::ZERO,
            on_loss,
            rules: Rules::default(),
            filled: 0,
            sequence: 0,
            sent: now,
            due: now,
            bucket: Bucket::empty(now, safe.limit()),
            history: History::new(now, history),
            now,
        }
    }

    /// `count` messages have arrived, whether or not they will pass.
    pub fn on_arrival(&mut self, now: Instant, count: u64) {
        let now = self.settle(now);
        self.history.on_arrival(now, count);
    }

    /// One has arrived that costs so many tokens.
    pub fn on_cost(&mut self, now: Instant, cost: f64) {
        let now = self.settle(now);
        self.history.on_cost(now, cost);
    }

    /// So many messages wait for a token.
    pub fn on_waiting(&mut self, now: Instant, waiting: u64) {
        let now = self.settle(now);
        let missing = (self.share_now().burst as f64 - self.bucket.tokens(now)).max(0.0);
        self.history.on_backlog(now, (missing.ceil() as u64).saturating_add(waiting));
    }

    /// Takes a token; if there is none, says when the next one comes.
    pub fn take(&mut self, now: Instant) -> Result<(), Shortage> {
        self.take_cost(now, 1.0)
    }

    /// The same for a request that costs so many tokens.
    pub fn take_cost(&mut self, now: Instant, cost: f64) -> Result<(), Shortage> {
        let now = self.settle(now);
        if self.until <= now {
            match self.on_loss {
                OnLoss::Safe => {}
                OnLoss::Open => return Ok(()),
                OnLoss::Closed => return Err(Shortage::Until(now + self.period)),
            }
        }
        match self.bucket.take_cost(now, cost) {
            // More than its share can ever hold may be had of a larger share.
            Err(Shortage::Never) if self.may_hold(cost) => Err(Shortage::Until(now + self.period)),
            taken => taken,
        }
    }

    /// The same, if at least `needed` tokens are there: the rest is left to others.
    pub fn take_leaving(&mut self, now: Instant, cost: f64, needed: f64) -> Result<(), Shortage> {
        let short = needed > cost && self.tokens(now) < needed;
        if short && (self.until > now || self.on_loss == OnLoss::Safe) {
            let missing = needed - self.bucket.tokens(now);
            let rate = self.bucket.limit().rate.max(Limit::RATES.0);
            return Err(Shortage::Until(
                now + Span::from_nanos((missing / rate * 1e9).ceil() as u64),
            ));
        }
        self.take_cost(now, cost)
    }

    /// Takes as many of `count` tokens as there are, and says how many.
    pub fn take_batch(&mut self, now: Instant, count: u32) -> u32 {
        let now = self.settle(now);
        self.bucket.take_batch(now, count)
    }

    /// Gives back what a request paid that was never served.
    pub fn refund(&mut self, now: Instant, cost: f64) {
        let now = self.settle(now);
        self.bucket.refund(now, cost);
    }

    /// Settles a request that paid `paid` tokens and cost `actual`, as [`Bucket::settle_cost`] does.
    pub fn settle_cost(&mut self, now: Instant, paid: f64, actual: f64, debt: f64) -> f64 {
        let now = self.settle(now);
        self.bucket.settle_cost(now, paid, actual, debt)
    }

    /// The report that is due, if one is. Send it; should it be lost, there will be another.
    pub fn poll(&mut self, now: Instant) -> Option<Report> {
        let now = self.settle(now);
        if self.history.shifted(now) {
            self.due = self.due.min(now);
        }
        if now < self.due {
            return None;
        }
        self.sequence += 1;
        self.sent = now;
        self.due = now + self.period;
        let load = self.history.load(now);
        let (epoch, holder, sequence) = (self.epoch, self.id, self.sequence);
        let (safe, leased) = (self.safe, self.leased);
        Some(Report { epoch, holder, sequence, safe, leased, load })
    }

    /// Uses no more from now on, and says so: what it had is for others as soon as that has arrived.
    pub fn leave(&mut self, now: Instant) -> Report {
        let now = self.settle(now);
        (self.safe, self.leased, self.until) = (Share::NONE, Share::NONE, now);
        self.on_loss = OnLoss::Closed;
        self.bucket = Bucket::empty(now, Share::NONE.limit());
        self.history = History::new(now, *self.history.config());
        self.due = now;
        self.poll(now).expect("it is due")
    }

    /// An answer has come. Only one to the newest report counts, and only while its term runs.
    pub fn on_grant(&mut self, now: Instant, grant: &Grant) -> bool {
        let now = self.settle(now);
        let until = self.sent + grant.term;
        let answers = grant.holder == self.id && grant.sequence == self.sequence;
        if !answers || grant.epoch < self.epoch || until <= now || grant.rules.places.is_some() {
            return false;
        }
        let shrunk = !grant.leased.covers(self.leased);
        (self.epoch, self.on_loss, self.rules) = (grant.epoch, grant.on_loss, grant.rules);
        (self.whole, self.bound) = (grant.whole, grant.bound);
        (self.safe, self.leased) = (grant.safe, grant.leased);
        (self.until, self.term) = (until, grant.term);
        self.bucket.set_limit(now, self.share_now().limit());
        if self.filled < grant.sequence {
            self.filled = grant.sequence;
            self.bucket.refund(now, grant.fill as f64);
        }
        // What it no longer uses is for others as soon as it has said so.
        let again = if shrunk { now } else { now + grant.again };
        self.due = self.due.min(again);
        true
    }

    /// The agreement it knows of; none before it has heard.
    pub fn whole(&self) -> Share {
        self.whole
    }

    /// The share in use at `now`.
    pub fn share(&self, now: Instant) -> Share {
        if now < self.until { self.share_now() } else { self.safe }
    }

    /// When its share changed last without a word: at the end of a lease that is over.
    pub fn changed(&self, now: Instant) -> Instant {
        self.until.min(now)
    }

    /// How the agreement is applied, as the granter said last.
    pub fn rules(&self) -> &Rules {
        &self.rules
    }

    /// The share it has without the control plane.
    pub fn safe(&self) -> Share {
        self.safe
    }

    /// What all nodes together are held to, as the granter said last; none before it has heard.
    pub fn bound(&self) -> Share {
        self.bound
    }

    /// How the agreement is applied, before the first report.
    pub fn set_rules(&mut self, rules: Rules) {
        self.rules = rules;
    }

    /// Another id, before the first report.
    pub fn set_id(&mut self, id: HolderId) {
        debug_assert_eq!(self.sequence, 0, "nobody knows it yet");
        self.id = id;
    }

    /// Whether what passes now is charged to nobody: it was told to let everything pass when it hears
    /// nothing.
    pub fn is_open(&self, now: Instant) -> bool {
        self.on_loss == OnLoss::Open && !self.is_connected(now)
    }

    /// Whether it has heard within a term.
    pub fn is_connected(&self, now: Instant) -> bool {
        now < self.until
    }

    /// What it does when it has not.
    pub fn on_loss(&self) -> OnLoss {
        self.on_loss
    }

    /// Tokens there are.
    pub fn tokens(&mut self, now: Instant) -> f64 {
        let now = self.settle(now);
        self.bucket.tokens(now)
    }

    /// Its load.
    pub fn load(&mut self, now: Instant) -> Load {
        let now = self.settle(now);
        self.history.load(now)
    }

    /// When to poll next.
    pub fn next_wakeup(&self) -> Instant {
        self.due.min(self.history.next_wakeup())
    }

    /// Panics if the state contradicts itself.
    pub fn invariants(&self) {
        self.bucket.invariants();
        self.history.invariants();
        assert!(self.until <= self.sent + self.term, "a lease runs from its report");
    }

    /// Whether a request of `cost` may pass one day, as far as is known.
    fn may_hold(&self, cost: f64) -> bool {
        let burst = self.whole.burst as f64;
        cost >= 0.0 && (burst == 0.0 || cost <= burst)
    }

    fn share_now(&self) -> Share {
        self.safe.plus(self.leased)
    }

    /// Ends a lease as of the moment it was over, however late this is.
    fn settle(&mut self, now: Instant) -> Instant {
        self.now = self.now.max(now);
        if self.leased != Share::NONE && self.until <= self.now {
            self.leased = Share::NONE;
            self.bucket.set_limit(self.until, self.safe.limit());
        }
        self.now
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::share::Rate;

    const WHOLE: Share = Share::new(Rate::from_millionths(100_000_000), 100);

    fn at(millis: u64) -> Instant {
        Instant::ZERO + Span::from_millis(millis)
    }

    fn holder() -> Holder {
        let config = LeaseConfig { nodes: 1, ..LeaseConfig::default() };
        Holder::new(at(0), HolderId(1), WHOLE, config, HistoryConfig::default()).unwrap()
    }

    fn grant(sequence: u64, burst: u64) -> Grant {
        let leased = Share::new(Rate::from_millionths(90_000_000), burst);
        let again = Span::from_millis(500);
        let safe = LeaseConfig { nodes: 1, ..LeaseConfig::default() }.safe_share(WHOLE).unwrap();
        let (holder, term, on_loss) = (HolderId(1), Span::from_secs(10), OnLoss::Safe);
        Grant {
            epoch: 1,
            holder,
            sequence,
            whole: WHOLE,
            bound: WHOLE,
            safe,
            leased,
            fill: 0,
            term,
            again,
            on_loss,
            rules: Rules::default(),
        }
    }

    fn taken(holder: &mut Holder, now: Instant) -> usize {
        (0..1_000).take_while(|_| holder.take(now).is_ok()).count()
    }

    #[test]
    fn it_starts_with_nothing_and_earns_its_safe_share() {
        let mut holder = holder();
        assert_eq!(taken(&mut holder, at(0)), 0);
        assert_eq!(taken(&mut holder, at(500)), 5);
        assert_eq!(taken(&mut holder, at(9_000)), 10, "the safe burst");
    }

    #[test]
    fn costs_batches_and_refunds_are_the_buckets() {
        let mut holder = holder();
        assert!(holder.take_cost(at(500), 3.0).is_ok(), "five are there");
        assert_eq!(holder.take_batch(at(500), 9), 2);
        holder.refund(at(500), 2.0);
        assert_eq!(taken(&mut holder, at(500)), 2);
        assert_eq!(holder.settle_cost(at(500), 1.0, 4.0, 3.0), 0.0, "three are owed");
        assert_eq!(taken(&mut holder, at(800)), 0, "and paid first");
        assert_eq!(taken(&mut holder, at(900)), 1);
    }

    #[test]
    fn a_lease_ends_when_it_ends_even_if_nobody_looks() {
        let mut holder = holder();
        assert_eq!(holder.poll(at(0)).unwrap().sequence, 1);
        assert!(holder.on_grant(at(100), &grant(1, 90)));
        assert_eq!(holder.share(at(9_999)), WHOLE);
        assert_eq!(holder.share(at(10_000)), holder.safe());
        // A full bucket of 100 is clipped to 10 at the end of the lease.
        assert_eq!(taken(&mut holder, at(10_000)), 10);
        assert_eq!(taken(&mut holder, at(10_100)), 1);
    }

    #[test]
    fn only_the_newest_answer_in_time_counts() {
        let mut holder = holder();
        holder.poll(at(0)).unwrap();
        holder.poll(at(500)).unwrap();
        assert!(!holder.on_grant(at(501), &grant(1, 90)), "overtaken");
        assert!(!holder.on_grant(at(501), &grant(3, 90)), "never sent");
        assert!(!holder.on_grant(at(10_500), &grant(2, 90)), "too late");
        assert_eq!(holder.share(at(10_500)), holder.safe());
    }

    #[test]
    fn what_shrinks_is_confirmed_at_once() {
        let mut holder = holder();
        holder.poll(at(0)).unwrap();
        holder.on_grant(at(1), &grant(1, 90));
        assert_eq!(holder.poll(at(2)), None);
        let report = holder.poll(at(500)).unwrap();
        assert_eq!(report.leased.burst, 90);
        holder.on_grant(at(501), &grant(2, 20));
        assert_eq!(holder.poll(at(501)).unwrap().leased.burst, 20);
    }

    #[test]
    fn tokens_come_once_with_a_grant_and_none_of_an_earlier_epoch() {
        let mut holder = holder();
        holder.poll(at(0)).unwrap();
        let filled = Grant { fill: 20, ..grant(1, 90) };
        assert!(holder.on_grant(at(0), &filled));
        assert!(holder.on_grant(at(0), &filled), "repeated");
        assert_eq!(taken(&mut holder, at(0)), 20);
        assert_eq!(holder.poll(at(500)).unwrap().epoch, 1);
        let past = Grant { epoch: 0, ..grant(2, 50) };
        assert!(!holder.on_grant(at(501), &past), "of a granter of the past");
        assert_eq!(holder.share(at(501)), WHOLE);
    }

    #[test]
    fn without_word_it_does_as_it_was_told() {
        let unheard = |safe, on_loss| {
            let (period, history) = (Span::from_millis(500), HistoryConfig::default());
            Holder::unheard(at(0), HolderId(1), safe, on_loss, period, history)
        };
        let safe = Share::new(Rate::from_millionths(10_000_000), 1);
        let later = Shortage::Until(at(1_500));
        assert_eq!(unheard(Share::NONE, OnLoss::Safe).take(at(1_000)), Err(later));
        assert_eq!(taken(&mut unheard(safe, OnLoss::Safe), at(1_000)), 1);
        assert_eq!(unheard(safe, OnLoss::Closed).take(at(1_000)), Err(later));
        assert_eq!(taken(&mut unheard(safe, OnLoss::Open), at(1_000)), 1_000);
        // Connected, it is held to its share whatever it would do without.
        let mut holder = unheard(safe, OnLoss::Open);
        holder.poll(at(1_000)).unwrap();
        assert!(holder.on_grant(at(1_001), &Grant { on_loss: OnLoss::Closed, ..grant(1, 90) }));
        assert!(taken(&mut holder, at(1_001)) < 3);
        assert!(holder.is_connected(at(10_999)) && !holder.is_connected(at(11_000)));
        assert_eq!(taken(&mut holder, at(11_000)), 0, "the last word was: closed");
    }

    #[test]
    fn who_leaves_uses_nothing_more_and_says_so() {
        let mut holder = holder();
        holder.poll(at(0)).unwrap();
        holder.on_grant(at(1), &grant(1, 90));
        holder.on_arrival(at(2), 50);
        let report = holder.leave(at(300));
        assert_eq!((report.safe, report.leased, report.sequence), (Share::NONE, Share::NONE, 2));
        assert_eq!((report.load.rate, report.load.backlog), (Rate::ZERO, 0));
        assert_eq!(taken(&mut holder, at(5_000)), 0);
    }
}
