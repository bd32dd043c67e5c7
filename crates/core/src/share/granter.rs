//! The control side of leases: commits the pool, and never more than the pool.
//!
//! The protocol and why it is safe is in [`lease`](super::lease). Here are its steps 3 to 8: one entry
//! per holder, with what is committed to it and until when, and a bucket for what is committed to nobody.

use std::collections::BTreeMap;

use super::Share;
use super::adaptor::{Adaptor, AdaptorConfig};
use super::history::Load;
use super::lease::{Bound, Grant, HolderId, LeaseConfig, Legacy, OnLoss, Report};
use super::rules::Rules;
use super::spare::Spare;
use super::split::SplitError;
use crate::time::{Instant, Span};

/// Grants leases of one agreement.
#[derive(Clone, Debug)]
pub struct Granter {
    config: LeaseConfig,
    /// Larger than that of every granter before.
    epoch: u64,
    /// When it stops unless it is told of a later moment.
    authority: Instant,
    whole: Share,
    /// How it is applied.
    rules: Rules,
    /// Whether a node may let pass what it has no share for, by what it knows of an agreement or of an earlier one.
    lax: bool,
    /// Set aside for each node: the largest safe share that one may have.
    aside: Share,
    /// For so many nodes: the most there may be.
    nodes: u32,
    /// What can be leased: the whole without what is set aside for everyone.
    pool: Share,
    /// The least that was since it was looked at last.
    least_pool: Share,
    /// What the part of the pool has saved up that is leased to nobody.
    spare: Spare,
    /// Sum of all commitments; within the pool, or after it shrank on the way there.
    committed: Share,
    /// Nothing is granted before this moment: leases of a forgotten past may run until then.
    quiet_until: Instant,
    /// What those may be using.
    forgotten: Option<Share>,
    holders: BTreeMap<HolderId, Entry>,
    adaptor: Adaptor,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    /// The newest report heard.
    sequence: u64,
    /// Most that the holder may be using of the pool.
    committed: Share,
    /// What was answered to that report: the safe share, and the lease.
    told: Share,
    granted: Share,
    /// The largest safe share that the holder may have.
    safe: Share,
    /// When the holder is at its safe share for sure.
    until: Instant,
}

impl Granter {
    /// A granter of an agreement of which no lease is out: the first of its kind.
    pub fn new(
        whole: Share,
        config: LeaseConfig,
        adaptor: AdaptorConfig,
    ) -> Result<Self, SplitError> {
        let aside = config.safe_share(whole)?;
        let pool = whole.minus(aside.times(u64::from(config.nodes)));
        Ok(Self {
            config,
            epoch: 0,
            authority: Instant::FAR,
            whole,
            rules: Rules::default(),
            lax: config.on_loss == OnLoss::Open,
            aside,
            nodes: config.nodes,
            pool,
            least_pool: pool,
            spare: Spare::full(pool),
            committed: Share::NONE,
            quiet_until: Instant::ZERO,
            forgotten: None,
            holders: BTreeMap::new(),
            adaptor: Adaptor::new(adaptor),
        })
    }

    /// A granter whose predecessor is gone, and its memory with it. It grants nothing until every
    /// lease that may be out is over; holders keep what they have, then their safe share. If the
    /// agreement or its terms have changed, these are the largest that a node may know of, and those in
    /// force are told afterwards ([`set_terms`](Self::set_terms)).
    pub fn after_loss(
        now: Instant,
        whole: Share,
        config: LeaseConfig,
        adaptor: AdaptorConfig,
    ) -> Result<Self, SplitError> {
        let mut granter = Self::new(whole, config, adaptor)?;
        granter.quiet_until = now + config.kept();
        granter.forgotten = Some(granter.pool);
        granter.spare = Spare::empty(now);
        Ok(granter)
    }

    /// A granter that has lost its memory is told what else the past may have agreed on, before anything
    /// else: leases and safe shares of that may be out.
    pub fn remember(
        &mut self,
        now: Instant,
        whole: Share,
        config: LeaseConfig,
    ) -> Result<(), SplitError> {
        let safe = config.safe_share(whole)?;
        let pool = whole.minus(safe.times(u64::from(config.nodes)));
        self.aside = self.aside.most(safe);
        self.nodes = self.nodes.max(config.nodes);
        self.lax |= config.on_loss == OnLoss::Open;
        self.quiet_until = self.quiet_until.max(now + config.kept());
        self.forgotten = self.forgotten.map(|forgotten| forgotten.most(pool));
        self.divide();
        Ok(())
    }

    /// What a successor has to know to go on at once: all of it, or it has lost its memory. This granter
    /// may answer nobody any more.
    pub fn bequeath(&mut self, now: Instant) -> Option<Vec<Legacy>> {
        self.expire(now);
        self.authority = now;
        let legacy = |(id, entry): (&HolderId, &Entry)| {
            let Entry { sequence, committed, safe, .. } = *entry;
            Legacy { holder: *id, sequence, committed, safe }
        };
        // Leases of a past that it does not know itself cannot be told of.
        self.forgotten.is_none().then(|| self.holders.iter().map(legacy).collect())
    }

    /// A granter whose predecessor, of the same agreement and terms, has left all it knew. Leases began before
    /// `now`, so they are over a term later; of what was saved up nothing is told, so it is gone.
    pub fn inherit(
        now: Instant,
        whole: Share,
        config: LeaseConfig,
        adaptor: AdaptorConfig,
        legacy: &[Legacy],
    ) -> Result<Self, SplitError> {
        let mut granter = Self::new(whole, config, adaptor)?;
        granter.spare = Spare::empty(now);
        for Legacy { holder, sequence, committed, safe } in legacy.iter().copied() {
            let until = now + config.kept();
            let (told, granted) = (safe, committed);
            let entry = Entry { sequence, committed, told, granted, safe, until };
            granter.holders.insert(holder, entry);
            granter.committed = granter.committed.plus(committed);
            granter.aside = granter.aside.most(safe);
        }
        granter.divide();
        Ok(granter)
    }

    /// One of several granters in turn, each with a larger epoch than the one before.
    #[must_use]
    pub fn of_epoch(mut self, epoch: u64) -> Self {
        self.epoch = epoch;
        self
    }

    /// It may grant before `until`: a moment counted from before whoever elects granters was asked.
    /// Without being told, for ever.
    pub fn set_authority(&mut self, until: Instant) {
        self.authority = until;
    }

    /// Another agreement from now on. Tell the granter of a larger one before any node; nodes hear of
    /// it with their grants. Shares in use are never more than the larger of both (but for safe shares
    /// being rounded, less than a token each), and no more than a smaller one as soon as each lease
    /// was renewed or is over and each node has heard.
    pub fn set_whole(&mut self, whole: Share) -> Result<(), SplitError> {
        self.set_terms(whole, self.config)
    }

    /// The same with other terms: of leases granted from now on, and of safe shares as nodes hear of it.
    pub fn set_terms(&mut self, whole: Share, config: LeaseConfig) -> Result<(), SplitError> {
        self.aside = self.aside.most(config.safe_share(whole)?);
        self.nodes = self.nodes.max(config.nodes);
        (self.whole, self.config) = (whole, config);
        self.lax |= config.on_loss == OnLoss::Open;
        self.divide();
        Ok(())
    }

    /// How it is applied from now on; nodes hear of it with their grants.
    pub fn set_rules(&mut self, rules: Rules) {
        self.rules = rules;
        self.lax |= rules.are_lax();
    }

    /// No process runs, or will be started, that knows only of an earlier agreement: what was set aside
    /// for its safe share can be leased. Without effect while leases of a forgotten past may run.
    pub fn settle_whole(&mut self) {
        if self.forgotten.is_some() {
            return;
        }
        let safe = self.config.safe_share(self.whole).unwrap_or(self.aside);
        // Answers that are under way may still tell of another.
        self.aside = self.holders.values().map(|entry| entry.safe).fold(safe, Share::most);
        self.nodes = self.config.nodes;
        self.lax = self.rules.are_lax() || self.config.on_loss == OnLoss::Open;
        self.divide();
    }

    /// A report has come. The answer, if it deserves one.
    pub fn on_report(&mut self, now: Instant, report: &Report) -> Option<Grant> {
        self.expire(now);
        // Step 7: its time is over, or this is a granter of the past.
        if self.authority <= now || report.epoch > self.epoch {
            return None;
        }
        // Step 5: until then, who has a lease keeps it.
        let quiet = now < self.quiet_until;
        if quiet && report.leased != Share::NONE {
            return None;
        }
        let entry = self.holders.get(&report.holder).copied();
        match entry {
            Some(entry) if report.sequence < entry.sequence => None,
            // Repeated: so is the answer, but for tokens that came with it. It may be of a process that has
            // just been started with the id of another, and counts its term from now.
            Some(entry) if report.sequence == entry.sequence => {
                let until = now + self.config.kept();
                self.commit(report.holder, entry.committed, Entry { until, ..entry });
                Some(self.answer(report, entry.told, entry.granted, 0))
            }
            Some(entry) => {
                // Step 2: it uses no more than it says. Nor more than was granted, whatever it says.
                let confirmed = entry.committed.least(report.leased);
                self.commit(report.holder, confirmed, entry);
                Some(self.grant(now, report, confirmed))
            }
            // Unknown, so without a lease that still runs, whatever it says.
            None if self.holders.len() < self.most_holders() => {
                Some(self.grant(now, report, Share::NONE))
            }
            None => Some(self.answer(report, report.safe, Share::NONE, 0)),
        }
    }

    /// Forgets leases that are over, each as of when it was; before each report this is done anyway.
    pub fn expire(&mut self, now: Instant) {
        // When the pool became larger is not known, so until now it counts as it was before.
        if self.forgotten.is_some() && self.quiet_until <= now {
            self.spare.settle(self.quiet_until);
            self.forgotten = None;
            self.spare.set_free(self.free_of(self.least_pool));
        }
        let over = self.holders.iter().filter(|(_, entry)| entry.until <= now);
        let mut over: Vec<_> = over.map(|(id, entry)| (entry.until, *id)).collect();
        over.sort();
        for (until, holder) in over {
            self.spare.settle(until);
            if let Some(entry) = self.holders.remove(&holder) {
                self.committed = self.committed.minus(entry.committed);
            }
            self.adaptor.remove(holder);
            self.spare.set_free(self.free_of(self.least_pool));
        }
        self.spare.settle(now);
        self.least_pool = self.pool;
        self.spare.set_free(self.free());
        self.invariants();
    }

    /// The agreement.
    pub fn whole(&self) -> Share {
        self.whole
    }

    /// The terms.
    pub fn terms(&self) -> &LeaseConfig {
        &self.config
    }

    /// Whether a new granter of the same would be as good: nothing is leased, and all is saved up.
    pub fn is_unused(&self) -> bool {
        // Places save up nothing.
        let is_full = self.config.places.is_some() || self.spare.is_full(self.pool);
        self.holders.is_empty() && self.forgotten.is_none() && is_full
    }

    /// Until when it grants nothing, because of leases of a forgotten past.
    pub fn quiet_until(&self) -> Instant {
        self.quiet_until
    }

    /// What holders may be using now, safe shares included. More than the agreement only while that
    /// has shrunk and not everyone has confirmed it.
    pub fn committed(&self) -> Share {
        let leased = self.committed.plus(self.forgotten.unwrap_or(Share::NONE));
        self.reserved().plus(leased)
    }

    /// Holders with a lease.
    pub fn holders(&self) -> impl Iterator<Item = (HolderId, Share)> + '_ {
        self.holders.iter().map(|(id, entry)| (*id, entry.committed))
    }

    /// What a holder said its load is, if it is known.
    pub fn load(&self, holder: HolderId) -> Option<Load> {
        self.adaptor.load(holder)
    }

    /// What is guaranteed: of the agreement, or of what is still committed of a larger one.
    pub fn bound(&self) -> Bound {
        let bound = self.config.bound(self.whole.most(self.committed()));
        Bound { excess: if self.lax { f64::INFINITY } else { bound.excess }, ..bound }
    }

    /// Panics if the state contradicts itself.
    pub fn invariants(&self) {
        let sum = self.holders.values().map(|entry| entry.committed).fold(Share::NONE, Share::plus);
        assert_eq!(sum, self.committed, "the sum is kept");
        assert!(self.holders.len() <= self.most_holders(), "holders are bounded");
        self.spare.invariants(self.pool);
    }

    fn reserved(&self) -> Share {
        self.aside.times(u64::from(self.nodes))
    }

    /// What can be leased now.
    fn free(&self) -> Share {
        self.free_of(self.pool)
    }

    fn free_of(&self, pool: Share) -> Share {
        pool.minus(self.committed).minus(self.forgotten.unwrap_or(Share::NONE))
    }

    fn divide(&mut self) {
        self.pool = self.whole.minus(self.reserved());
        self.least_pool = self.least_pool.least(self.pool);
        self.spare.tighten(self.free_of(self.least_pool));
    }

    /// Twice as many as can be there at once: a node that crashed and its successor.
    fn most_holders(&self) -> usize {
        2 * self.nodes as usize
    }

    /// Step 3 for a holder that now uses `confirmed`.
    fn grant(&mut self, now: Instant, report: &Report, confirmed: Share) -> Grant {
        self.adaptor.on_load(report.holder, report.load);
        let target = self.adaptor.target(self.pool, report.holder);
        let granted = target.least(confirmed.plus(self.free()));
        let meant = self.config.safe_share(self.whole).unwrap_or(self.aside);
        // Whatever it says, it has no larger one than there was.
        let known = report.safe.least(self.aside);
        // Shrink, confirm, grow: a larger safe share is for when nothing is leased that it needs.
        let leased = self.committed.plus(self.forgotten.unwrap_or(Share::NONE));
        let told =
            if known.covers(meant) || self.pool.covers(leased) { meant } else { report.safe };
        // Step 8: what it gains comes with what that has saved up.
        let fill = self.spare.take(granted.minus(confirmed).burst);
        let entry = Entry {
            sequence: report.sequence,
            committed: confirmed,
            told,
            granted,
            safe: known.most(told.least(self.aside)),
            until: now + self.config.kept(),
        };
        // It may or may not hear of this.
        self.commit(report.holder, confirmed.most(granted), entry);
        self.answer(report, told, granted, fill)
    }

    fn commit(&mut self, holder: HolderId, committed: Share, entry: Entry) {
        let before = self.holders.insert(holder, Entry { committed, ..entry });
        let before = before.map_or(Share::NONE, |entry| entry.committed);
        let most = self.pool.most(self.committed);
        self.committed = self.committed.minus(before).plus(committed);
        assert!(most.covers(self.committed), "never more than the pool, or nearer to it");
        self.spare.tighten(self.free());
        self.invariants();
    }

    fn answer(&mut self, report: &Report, safe: Share, leased: Share, fill: u64) -> Grant {
        let target = self.adaptor.target(self.pool, report.holder);
        // More is meant for it as soon as others have confirmed that they use less.
        let again = if leased.covers(target) { self.config.period } else { self.soon() };
        Grant {
            epoch: self.epoch,
            holder: report.holder,
            sequence: report.sequence,
            whole: self.whole,
            bound: self.bound().share(),
            safe,
            leased,
            fill,
            term: self.config.term,
            again,
            on_loss: self.config.on_loss,
            rules: Rules {
                of: self.whole.most(self.committed()),
                places: self.config.places,
                ..self.rules
            },
        }
    }

    fn soon(&self) -> Span {
        Span::from_nanos((self.config.period.as_nanos() / 5).max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::share::{Load, Rate};

    const WHOLE: Share = Share::new(Rate::from_millionths(1_000_000), 100);

    fn config() -> LeaseConfig {
        LeaseConfig { nodes: 2, safe: 0.2, ..LeaseConfig::default() }
    }

    fn granter() -> Granter {
        Granter::new(WHOLE, config(), AdaptorConfig::default()).unwrap()
    }

    fn at(millis: u64) -> Instant {
        Instant::ZERO + Span::from_millis(millis)
    }

    fn report(holder: u64, sequence: u64, leased: Share, rate: u64) -> Report {
        let rate = Rate::from_millionths(rate);
        let load = Load { rate, backlog: 0, over: Span::from_secs(10) };
        Report { epoch: 0, holder: HolderId(holder), sequence, safe: safe(WHOLE), leased, load }
    }

    fn safe(whole: Share) -> Share {
        config().safe_share(whole).unwrap()
    }

    fn share(rate: u64, burst: u64) -> Share {
        Share::new(Rate::from_millionths(rate), burst)
    }

    #[test]
    fn a_newcomer_gets_its_part_when_the_other_has_confirmed() {
        let mut granter = granter();
        let all = share(800_000, 80);
        let first = granter.on_report(at(0), &report(1, 1, Share::NONE, 500)).unwrap();
        assert_eq!((first.leased, first.again), (all, config().period));
        // Nothing is free: the newcomer waits, and asks again soon.
        let second = granter.on_report(at(1), &report(2, 1, Share::NONE, 500)).unwrap();
        assert_eq!(second.leased, Share::NONE);
        assert!(second.again < config().period);
        // The first is told to shrink; until it has confirmed, what it had is not given away.
        let shrunk = granter.on_report(at(2), &report(1, 2, all, 500)).unwrap();
        assert_eq!(shrunk.leased, share(400_000, 40));
        assert_eq!(granter.committed(), WHOLE);
        let second = granter.on_report(at(3), &report(2, 2, Share::NONE, 500)).unwrap();
        assert_eq!(second.leased, Share::NONE);
        granter.on_report(at(4), &report(1, 3, shrunk.leased, 500)).unwrap();
        let second = granter.on_report(at(5), &report(2, 3, Share::NONE, 500)).unwrap();
        assert_eq!(second.leased, share(400_000, 40));
    }

    #[test]
    fn repeated_and_overtaken_reports_change_nothing() {
        let mut granter = granter();
        let old = report(1, 7, Share::NONE, 500);
        let answer = granter.on_report(at(0), &old);
        let again = answer.map(|grant| Grant { fill: 0, ..grant });
        assert_eq!(granter.on_report(at(9), &old), again, "but its tokens come once");
        granter.on_report(at(10), &report(1, 8, answer.unwrap().leased, 500));
        assert_eq!(granter.on_report(at(11), &old), None);
    }

    #[test]
    fn a_smaller_whole_is_leased_when_it_is_renewed_and_a_larger_one_at_once() {
        let mut granter = granter();
        let all = granter.on_report(at(0), &report(1, 1, Share::NONE, 500)).unwrap().leased;
        let half = share(500_000, 50);
        granter.set_whole(half).unwrap();
        assert_eq!(granter.committed(), WHOLE, "it may be using that");
        assert_eq!(granter.bound().whole, WHOLE);
        let renewed = granter.on_report(at(1), &report(1, 2, all, 500)).unwrap();
        // Less the safe shares of the old whole, until nobody has one.
        assert_eq!((renewed.whole, renewed.leased), (half, share(300_000, 30)));
        granter.on_report(at(2), &report(1, 3, renewed.leased, 500)).unwrap();
        assert_eq!(granter.committed(), half);
        granter.settle_whole();
        let heard = Report { safe: safe(half), ..report(1, 4, renewed.leased, 500) };
        assert_eq!(granter.on_report(at(3), &heard).unwrap().leased, share(300_000, 30));
        granter.settle_whole();
        let again = Report { safe: safe(half), sequence: 5, ..heard };
        assert_eq!(granter.on_report(at(4), &again).unwrap().leased, share(400_000, 40));
        granter.set_whole(WHOLE).unwrap();
        let raised = Report { safe: safe(half), sequence: 6, leased: share(400_000, 40), ..heard };
        let raised = granter.on_report(at(5), &raised).unwrap();
        assert_eq!((raised.whole, raised.leased), (WHOLE, share(800_000, 80)));
        let none = SplitError::BurstTooSmall { parts: 2, burst: 1 };
        assert_eq!(granter.set_whole(share(1_000, 1)), Err(none), "and nothing has changed");
        assert_eq!(granter.whole(), WHOLE);
    }

    #[test]
    fn a_silent_holders_part_comes_back_after_its_term_and_not_before() {
        let mut granter = granter();
        granter.on_report(at(0), &report(1, 1, Share::NONE, 500)).unwrap();
        let asks = |granter: &mut Granter, now, sequence| {
            granter.on_report(now, &report(2, sequence, Share::NONE, 500)).unwrap().leased
        };
        assert_eq!(asks(&mut granter, at(10_000), 1), Share::NONE);
        assert_eq!(asks(&mut granter, at(10_021), 2), share(800_000, 80));
    }

    /// It ought to have another id, and gets the lease of its predecessor for a term of its own.
    #[test]
    fn a_lease_is_not_given_away_while_it_is_used_by_a_restarted_holder() {
        let mut granter = granter();
        let first = report(1, 1, Share::NONE, 500);
        let granted = granter.on_report(at(0), &first);
        let again = granted.map(|grant| Grant { fill: 0, ..grant });
        assert_eq!(granter.on_report(at(9_000), &first), again);
        let asks = |granter: &mut Granter, now, sequence| {
            granter.on_report(now, &report(2, sequence, Share::NONE, 500)).unwrap().leased
        };
        assert_eq!(asks(&mut granter, at(10_021), 1), Share::NONE);
        assert_eq!(asks(&mut granter, at(19_000), 2), Share::NONE);
        assert_eq!(asks(&mut granter, at(19_021), 3), share(800_000, 80));
    }

    /// Whatever is said about clocks, no part is given away before its term is over.
    #[test]
    fn drifts_that_make_no_sense_return_nothing_too_soon() {
        for drift in [f64::NAN, f64::INFINITY, 1.0, 2.0, -1.0, -0.001] {
            let config = LeaseConfig { drift, ..config() };
            let mut granter = Granter::new(WHOLE, config, AdaptorConfig::default()).unwrap();
            granter.on_report(at(0), &report(1, 1, Share::NONE, 500)).unwrap();
            let other = granter.on_report(at(10_000), &report(2, 1, Share::NONE, 500)).unwrap();
            assert_eq!(other.leased, Share::NONE, "{drift}");
            assert!(granter.bound().excess.is_finite(), "{drift}");
        }
    }

    #[test]
    fn what_a_holder_claims_to_have_gives_it_nothing() {
        let mut granter = granter();
        granter.on_report(at(0), &report(1, 1, Share::NONE, 500)).unwrap();
        let claim = report(2, 1, share(800_000, 80), 500);
        assert_eq!(granter.on_report(at(1), &claim).unwrap().leased, Share::NONE);
        let claim = report(2, 2, share(800_000, 80), 500);
        assert_eq!(granter.on_report(at(2), &claim).unwrap().leased, Share::NONE);
        granter.invariants();
    }

    #[test]
    fn a_granter_without_memory_is_quiet_for_a_term() {
        let mut granter =
            Granter::after_loss(at(5_000), WHOLE, config(), AdaptorConfig::default()).unwrap();
        let asks = report(1, 1, share(800_000, 80), 500);
        assert_eq!(granter.on_report(at(15_000), &asks), None);
        let newcomer = Report { safe: Share::NONE, ..report(2, 1, Share::NONE, 500) };
        let told = granter.on_report(at(15_000), &newcomer).unwrap();
        assert_eq!((told.safe, told.leased), (safe(WHOLE), Share::NONE));
        let granted = granter.on_report(at(15_021), &asks).unwrap();
        assert_eq!((granted.leased, granted.fill), (share(400_000, 40), 0), "nothing was saved up");
    }

    #[test]
    fn a_lease_brings_along_what_nobody_used() {
        let mut granter = granter();
        let first = granter.on_report(at(0), &report(1, 1, Share::NONE, 500)).unwrap();
        assert_eq!(first.fill, 80, "an agreement begins with its burst");
        let renewed = granter.on_report(at(500), &report(1, 2, first.leased, 500)).unwrap();
        assert_eq!(renewed.fill, 0, "what grows by nothing brings nothing");
        // 0.8 tokens a second are free from 10.521 s on: the first is whole after 1.25 s.
        let late = granter.on_report(at(12_000), &report(2, 1, Share::NONE, 500)).unwrap();
        assert_eq!((late.leased, late.fill), (share(800_000, 80), 1));
        assert!(!granter.is_unused());
        let mut granter = granter.clone();
        granter.expire(at(200_000));
        assert!(granter.is_unused());
    }

    #[test]
    fn a_granter_without_authority_or_of_the_past_answers_nobody() {
        let mut granter = granter().of_epoch(3);
        granter.set_authority(at(1_000));
        let asks = |sequence, epoch| Report { epoch, ..report(1, sequence, Share::NONE, 500) };
        assert_eq!(granter.on_report(at(1), &asks(1, 4)), None, "there is a later one");
        assert_eq!(granter.on_report(at(2), &asks(2, 2)).unwrap().epoch, 3);
        assert_eq!(granter.on_report(at(1_000), &asks(3, 3)), None);
        granter.set_authority(at(2_000));
        assert!(granter.on_report(at(1_000), &asks(3, 3)).is_some());
    }

    #[test]
    fn holders_beyond_the_bound_have_their_safe_share_only() {
        let mut granter = granter();
        for holder in 0..9 {
            let answer = granter.on_report(at(0), &report(holder, 1, Share::NONE, 500)).unwrap();
            assert!(holder == 0 || answer.leased == Share::NONE);
        }
        assert_eq!(granter.holders().count(), 4);
    }

    #[test]
    fn a_successor_goes_on_with_what_it_was_left() {
        let mut before = granter();
        let granted = before.on_report(at(0), &report(1, 1, Share::NONE, 500)).unwrap();
        let legacy = before.bequeath(at(100)).expect("it knows everything");
        assert_eq!(before.on_report(at(100), &report(1, 2, granted.leased, 500)), None);
        let adaptor = AdaptorConfig::default();
        let mut next = Granter::inherit(at(200), WHOLE, config(), adaptor, &legacy).unwrap();
        let other = next.on_report(at(201), &report(2, 1, Share::NONE, 500)).unwrap();
        assert_eq!((other.leased, other.fill), (Share::NONE, 0), "the first has it");
        let renewed = next.on_report(at(202), &report(1, 2, granted.leased, 500)).unwrap();
        assert_eq!((renewed.leased, renewed.fill), (share(400_000, 40), 0));
        // Who had lost its memory cannot tell.
        let mut lost = Granter::after_loss(at(0), WHOLE, config(), adaptor).unwrap();
        assert_eq!(lost.bequeath(at(10_020)), None);
        assert_eq!(lost.bequeath(at(10_021)), Some(Vec::new()));
    }
}
