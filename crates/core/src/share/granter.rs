//! The control side of leases: commits the pool, and never more than the pool.
//!
//! The protocol and why it is safe is in [`lease`](super::lease). Here are its steps 3 to 5: one entry
//! per holder, with what is committed to it and until when.

use std::collections::BTreeMap;

use super::Share;
use super::adaptor::{Adaptor, AdaptorConfig};
use super::lease::{Bound, Grant, HolderId, LeaseConfig, Report};
use super::split::SplitError;
use crate::time::{Instant, Span};

/// Grants leases of one agreement.
#[derive(Clone, Debug)]
pub struct Granter {
    config: LeaseConfig,
    whole: Share,
    /// Set aside for each node: the largest safe share that one may have.
    aside: Share,
    /// What can be leased: the whole without what is set aside for everyone.
    pool: Share,
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
    /// What was answered to that report: the agreement, and the lease.
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
        Ok(Self {
            config,
            whole,
            aside,
            pool: whole.minus(aside.times(u64::from(config.nodes))),
            committed: Share::NONE,
            quiet_until: Instant::ZERO,
            forgotten: None,
            holders: BTreeMap::new(),
            adaptor: Adaptor::new(adaptor),
        })
    }

    /// A granter whose predecessor is gone, and its memory with it. It grants nothing until every
    /// lease that may be out is over; holders keep what they have, then their safe share. If the
    /// agreement has changed, this is the largest that a node may know of, and the one in force is
    /// told afterwards ([`set_whole`](Self::set_whole)).
    pub fn after_loss(
        now: Instant,
        whole: Share,
        config: LeaseConfig,
        adaptor: AdaptorConfig,
    ) -> Result<Self, SplitError> {
        let mut granter = Self::new(whole, config, adaptor)?;
        granter.quiet_until = now + config.kept();
        granter.forgotten = Some(granter.pool);
        Ok(granter)
    }

    /// Another agreement from now on. Tell the granter of a larger one before any node; nodes hear of
    /// it with their grants. Shares in use are never more than the larger of both (but for safe shares
    /// being rounded, less than a token each), and no more than a smaller one as soon as each lease
    /// was renewed or is over and each node has heard.
    pub fn set_whole(&mut self, whole: Share) -> Result<(), SplitError> {
        self.aside = self.aside.most(self.config.safe_share(whole)?);
        self.whole = whole;
        self.pool = whole.minus(self.reserved());
        Ok(())
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
        self.pool = self.whole.minus(self.reserved());
    }

    /// A report has come. The answer, if it deserves one.
    pub fn on_report(&mut self, now: Instant, report: &Report) -> Option<Grant> {
        self.expire(now);
        if now < self.quiet_until {
            return None;
        }
        self.forgotten = None;
        let entry = self.holders.get(&report.holder).copied();
        match entry {
            Some(entry) if report.sequence < entry.sequence => None,
            // Repeated: so is the answer. It may be of a process that has just been started with the id of
            // another, and counts its term from now.
            Some(entry) if report.sequence == entry.sequence => {
                let until = now + self.config.kept();
                self.commit(report.holder, entry.committed, Entry { until, ..entry });
                Some(self.answer(report, entry.told, entry.granted))
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
            None => Some(self.answer(report, report.whole, Share::NONE)),
        }
    }

    /// Forgets leases that are over; before each report this is done anyway.
    pub fn expire(&mut self, now: Instant) {
        let over = |entry: &Entry| entry.until <= now;
        if !self.holders.values().any(over) {
            return;
        }
        let gone: Vec<HolderId> =
            self.holders.iter().filter(|(_, entry)| over(entry)).map(|(id, _)| *id).collect();
        for holder in gone {
            if let Some(entry) = self.holders.remove(&holder) {
                self.committed = self.committed.minus(entry.committed);
            }
            self.adaptor.remove(holder);
        }
        self.invariants();
    }

    /// The agreement.
    pub fn whole(&self) -> Share {
        self.whole
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

    /// What is guaranteed: of the agreement, or of what is still committed of a larger one.
    pub fn bound(&self) -> Bound {
        self.config.bound(self.whole.most(self.committed()))
    }

    /// Panics if the state contradicts itself.
    pub fn invariants(&self) {
        let sum = self.holders.values().map(|entry| entry.committed).fold(Share::NONE, Share::plus);
        assert_eq!(sum, self.committed, "the sum is kept");
        assert!(self.holders.len() <= self.most_holders(), "holders are bounded");
    }

    fn reserved(&self) -> Share {
        self.aside.times(u64::from(self.config.nodes))
    }

    /// Twice as many as can be there at once: a node that crashed and its successor.
    fn most_holders(&self) -> usize {
        2 * self.config.nodes as usize
    }

    /// Step 3 for a holder that now uses `confirmed`.
    fn grant(&mut self, now: Instant, report: &Report, confirmed: Share) -> Grant {
        self.adaptor.on_load(report.holder, report.load);
        let target = self.adaptor.target(self.pool, report.holder);
        let free = self.pool.minus(self.committed);
        let granted = target.least(confirmed.plus(free));
        let safe_of = |whole| self.config.safe_share(whole).unwrap_or(self.aside);
        // Whatever it says, it knows of no larger one than there was.
        let (known, meant) = (safe_of(report.whole).least(self.aside), safe_of(self.whole));
        // Shrink, confirm, grow: a larger safe share is for when nothing is leased that it needs.
        let fits = known.covers(meant) || self.pool.covers(self.committed);
        let told = if fits { self.whole } else { report.whole };
        let entry = Entry {
            sequence: report.sequence,
            committed: confirmed,
            told,
            granted,
            safe: known.most(safe_of(told)),
            until: now + self.config.kept(),
        };
        // It may or may not hear of this.
        self.commit(report.holder, confirmed.most(granted), entry);
        self.answer(report, told, granted)
    }

    fn commit(&mut self, holder: HolderId, committed: Share, entry: Entry) {
        let before = self.holders.insert(holder, Entry { committed, ..entry });
        let before = before.map_or(Share::NONE, |entry| entry.committed);
        let most = self.pool.most(self.committed);
        self.committed = self.committed.minus(before).plus(committed);
        assert!(most.covers(self.committed), "never more than the pool, or nearer to it");
        self.invariants();
    }

    fn answer(&mut self, report: &Report, whole: Share, leased: Share) -> Grant {
        let target = self.adaptor.target(self.pool, report.holder);
        // More is meant for it as soon as others have confirmed that they use less.
        let again = if leased.covers(target) { self.config.period } else { self.soon() };
        Grant { holder: report.holder, sequence: report.sequence, whole, leased, again }
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
        Report { holder: HolderId(holder), sequence, whole: WHOLE, leased, load }
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
        assert_eq!(granter.on_report(at(9), &old), answer);
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
        let heard = Report { whole: half, ..report(1, 4, renewed.leased, 500) };
        assert_eq!(granter.on_report(at(3), &heard).unwrap().leased, share(300_000, 30));
        granter.settle_whole();
        let again = Report { whole: half, sequence: 5, ..heard };
        assert_eq!(granter.on_report(at(4), &again).unwrap().leased, share(400_000, 40));
        granter.set_whole(WHOLE).unwrap();
        let raised = Report { whole: half, sequence: 6, leased: share(400_000, 40), ..heard };
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
        assert_eq!(granter.on_report(at(9_000), &first), granted);
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
        assert_eq!(granter.on_report(at(15_021), &asks).unwrap().leased, share(800_000, 80));
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
}
