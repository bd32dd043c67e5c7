//! The daemon without its sockets: a granter for each agreement and key, and who holds what.
//!
//! A granter is made when somebody reports to it, and forgotten when a new one would be as good. Made after a
//! restart, it begins as one that has lost its memory did when the daemon began: whatever leases its
//! predecessor may have granted are over a term later. What nodes may know of agreements of the past is
//! in the ledger, and every granter is told of it.

use std::collections::BTreeMap;

use tidegate_core::limit::{Each, Unit};
use tidegate_core::share::wire::{Answer, Subject};
use tidegate_core::share::{
    AdaptorConfig, Bound, Granter, HolderId, Legacy, Load, Report, Share, SplitError,
};
use tidegate_core::{Instant, Span};

use crate::agreement::Agreement;

/// Most holders whose nodes' names are remembered.
const MOST_PARTIES: usize = 262_144;
/// Holders that a node with a token of its own may have of one limit: itself and its successor.
const MOST_OF_A_NODE: usize = 2;

/// All agreements and what is leased of them.
#[derive(Debug)]
pub struct Book {
    epoch: u64,
    /// Leases of a daemon before this one.
    before: Past,
    /// What it has left, until it is asked for.
    will: BTreeMap<Subject, Vec<Legacy>>,
    pages: BTreeMap<String, Entry>,
    /// Agreements that are gone, and since when: leases of them may be out.
    gone: BTreeMap<String, Instant>,
    /// Which node a holder belongs to, and when it was heard last.
    parties: BTreeMap<HolderId, (String, Instant)>,
    /// Reports that came in, and those that got an answer.
    pub reports: u64,
    /// See `reports`.
    pub answered: u64,
}

#[derive(Debug)]
struct Entry {
    agreement: Agreement,
    /// What nodes may know of it besides, the newest last.
    past: Vec<Agreement>,
    granters: BTreeMap<String, Granter>,
    /// What its granters begin with.
    past_leases: Past,
}

/// What is known of leases that other granters than ours have given.
#[derive(Clone, Copy, Debug)]
enum Past {
    /// There never were any.
    None,
    /// Nothing, but that all were given before this moment.
    Lost(Instant),
    /// All that there were at this moment are known.
    Known(Instant),
}

/// What a daemon leaves to the next: of each agreement and key, who has what.
pub type Will = Vec<(Subject, Vec<Legacy>)>;

/// Whom a report is from.
#[derive(Clone, Copy, Debug)]
pub struct Node<'a> {
    /// What it calls itself.
    pub name: &'a str,
    /// Whether that has been proven.
    pub proven: bool,
}

/// What there is to say of a key.
#[derive(Clone, Debug)]
pub struct KeyStatus {
    /// Whose.
    pub key: String,
    /// What has been agreed.
    pub whole: Share,
    /// What is leased of it, safe shares included.
    pub committed: Share,
    /// What is guaranteed.
    pub bound: Bound,
    /// For how long nothing will be granted, because of leases of a forgotten past.
    pub quiet: Span,
    /// Who has leases.
    pub holders: Vec<HolderStatus>,
}

/// What a node has and wants.
#[derive(Clone, Debug)]
pub struct HolderStatus {
    /// Its id.
    pub id: HolderId,
    /// Its node.
    pub node: String,
    /// What is committed to it on top of its safe share.
    pub leased: Share,
    /// What it was asked for.
    pub load: Load,
}

/// What is known of a daemon before this one.
#[derive(Debug)]
pub enum Before {
    /// There was none.
    Nobody,
    /// It may have leased anything.
    Unknown,
    /// It ended in order, and this was leased.
    Known(Will),
}

impl Book {
    /// Of no agreements yet, and of a daemon that may have had one before it.
    pub fn new(epoch: u64, now: Instant, before: Before) -> Self {
        let (before, will) = match before {
            Before::Nobody => (Past::None, BTreeMap::new()),
            Before::Unknown => (Past::Lost(now), BTreeMap::new()),
            Before::Known(will) => (Past::Known(now), will.into_iter().collect()),
        };
        Self {
            epoch,
            before,
            will,
            pages: BTreeMap::new(),
            gone: BTreeMap::new(),
            parties: BTreeMap::new(),
            reports: 0,
            answered: 0,
        }
    }

    /// From now on these are the agreements; `past` is what nodes may know of each besides.
    pub fn agree(
        &mut self,
        now: Instant,
        agreements: &[Agreement],
        past: &BTreeMap<String, Vec<Agreement>>,
    ) {
        let gone = &mut self.gone;
        self.pages.retain(|name, _| {
            let stays = agreements.iter().any(|agreement| agreement.name == *name);
            if !stays {
                gone.insert(name.clone(), now);
            }
            stays
        });
        for agreement in agreements {
            let past = past.get(&agreement.name).cloned().unwrap_or_default();
            let gone = self.gone.get(&agreement.name);
            let past_leases = gone.map_or(self.before, |gone| Past::Lost(*gone));
            let fresh = || {
                let (agreement, past) = (agreement.clone(), Vec::new());
                Entry { agreement, past, granters: BTreeMap::new(), past_leases }
            };
            let entry = self.pages.entry(agreement.name.clone()).or_insert_with(fresh);
            let settled = past.is_empty() && !entry.past.is_empty();
            (entry.agreement, entry.past) = (agreement.clone(), past);
            for (key, granter) in &mut entry.granters {
                granter.expire(now);
                // It was validated: it can be divided.
                let _ = granter.set_terms(agreement.whole(key), agreement.terms());
                granter.set_rules(agreement.rules());
                if settled {
                    granter.settle_whole();
                }
            }
        }
    }

    /// A node's reports have come: each with its answer.
    pub fn on_reports(
        &mut self,
        now: Instant,
        node: Node<'_>,
        reports: &[(Subject, Report)],
    ) -> Vec<(Subject, Answer)> {
        let answer = |(subject, report): &(Subject, Report)| {
            (subject.clone(), self.on_report(now, node, subject, report))
        };
        reports.iter().map(answer).collect()
    }

    fn on_report(
        &mut self,
        now: Instant,
        node: Node<'_>,
        subject: &Subject,
        report: &Report,
    ) -> Answer {
        self.reports += 1;
        let Some(entry) = self.pages.get_mut(&subject.agreement) else { return Answer::Unknown };
        if entry.agreement.each == Each::All && !subject.key.is_empty() {
            return Answer::Unknown;
        }
        if !entry.granters.contains_key(&subject.key) {
            if entry.granters.len() >= entry.agreement.keys {
                entry.forget_unused(now);
            }
            if entry.granters.len() >= entry.agreement.keys {
                return Answer::Full;
            }
            let legacy = self.will.remove(subject).unwrap_or_default();
            let Ok(granter) = entry.granter(now, &subject.key, self.epoch, &legacy) else {
                return Answer::Unknown;
            };
            entry.granters.insert(subject.key.clone(), granter);
        }
        let granter = entry.granters.get_mut(&subject.key).expect("it was made above");
        if node.proven {
            granter.expire(now);
            let others = granter.holders().filter(|(id, _)| *id != report.holder);
            let parties = &self.parties;
            let own = others.filter(|(id, _)| parties.get(id).is_some_and(|at| at.0 == node.name));
            if own.count() >= MOST_OF_A_NODE {
                return Answer::Wait;
            }
        }
        if self.parties.len() < MOST_PARTIES {
            self.parties.insert(report.holder, (node.name.to_owned(), now));
        }
        match granter.on_report(now, report) {
            Some(grant) => {
                self.answered += 1;
                Answer::Grant(grant)
            }
            None => Answer::Wait,
        }
    }

    /// Forgets what is over. Due now and then.
    pub fn tidy(&mut self, now: Instant) {
        const REMEMBERED: Span = Span::from_secs(120);
        self.parties.retain(|_, (_, heard)| now.since(*heard) < REMEMBERED);
        self.pages.values_mut().for_each(|entry| entry.forget_unused(now));
    }

    /// Every key of an agreement that somebody uses, at most `most` of them.
    pub fn status(&self, now: Instant, agreement: &str, most: usize) -> Vec<KeyStatus> {
        let Some(entry) = self.pages.get(agreement) else { return Vec::new() };
        let status = |(key, granter): (&String, &Granter)| {
            let mut granter = granter.clone();
            granter.expire(now);
            let holders = granter.holders().map(|(id, leased)| HolderStatus {
                id,
                node: self.parties.get(&id).map_or_else(String::new, |at| at.0.clone()),
                leased,
                load: granter.load(id).unwrap_or_default(),
            });
            KeyStatus {
                key: key.clone(),
                whole: granter.whole(),
                committed: granter.committed(),
                bound: granter.bound(),
                quiet: granter.quiet_until().since(now),
                holders: holders.collect(),
            }
        };
        entry.granters.iter().take(most).map(status).collect()
    }

    /// Everything that is leased, for the next daemon; none if this one does not know it all. Nobody is
    /// answered after this.
    pub fn bequeath(&mut self, now: Instant) -> Option<Will> {
        let mut will: Will = std::mem::take(&mut self.will).into_iter().collect();
        for (agreement, entry) in &mut self.pages {
            // Of keys without a granter nothing is known before leases of the past are over.
            if let Past::Lost(begun) = entry.past_leases {
                let kept = entry.agreement.terms().kept();
                let longest =
                    entry.past.iter().map(|past| past.terms().kept()).fold(kept, Span::max);
                if now <= begun + longest {
                    return None;
                }
            }
            for (key, granter) in &mut entry.granters {
                let subject = Subject { agreement: agreement.clone(), key: key.clone() };
                will.push((subject, granter.bequeath(now)?));
            }
        }
        // Agreements that are gone and may come back.
        if self.gone.is_empty() { Some(will) } else { None }
    }

    /// How many keys of an agreement somebody uses.
    pub fn keys(&self, agreement: &str) -> usize {
        self.pages.get(agreement).map_or(0, |entry| entry.granters.len())
    }

    /// What is guaranteed of an agreement's `key` even if nobody has used it.
    pub fn bound(&self, now: Instant, agreement: &str, key: &str) -> Option<Bound> {
        let entry = self.pages.get(agreement)?;
        let made = entry.granters.get(key).map(Granter::bound);
        made.or_else(|| Some(entry.granter(now, key, self.epoch, &[]).ok()?.bound()))
    }

    /// The unit of an agreement's tokens.
    pub fn unit(&self, agreement: &str) -> Unit {
        self.pages.get(agreement).map_or(Unit::Requests, |entry| entry.agreement.unit)
    }

    /// This daemon's epoch.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Panics if the state contradicts itself.
    pub fn invariants(&self) {
        for entry in self.pages.values() {
            assert!(entry.granters.len() <= entry.agreement.keys.max(1), "keys are bounded");
            entry.granters.values().for_each(Granter::invariants);
        }
    }
}

impl Entry {
    /// A granter for `key`, as if it had been there all the time and nobody had asked.
    fn granter(
        &self,
        now: Instant,
        key: &str,
        epoch: u64,
        legacy: &[Legacy],
    ) -> Result<Granter, SplitError> {
        let (whole, terms) = (self.agreement.whole(key), self.agreement.terms());
        let adaptor = match terms.places {
            Some(_) => AdaptorConfig::of_places(),
            None => AdaptorConfig::default(),
        };
        let mut granter = match self.past_leases {
            Past::None => Granter::new(whole, terms, adaptor)?,
            Past::Lost(begun) => Granter::after_loss(begun, whole, terms, adaptor)?,
            Past::Known(begun) => Granter::inherit(begun, whole, terms, adaptor, legacy)?,
        };
        for past in &self.past {
            let (whole, terms) = (past.whole(key), past.terms());
            match self.past_leases {
                Past::Lost(begun) => granter.remember(begun, whole, terms)?,
                Past::None | Past::Known(_) => granter.set_terms(whole, terms)?,
            }
            granter.set_rules(past.rules());
        }
        granter.set_terms(whole, terms)?;
        granter.set_rules(self.agreement.rules());
        // Since leases of the past are over nobody has one.
        granter.expire(granter.quiet_until().min(now));
        Ok(granter.of_epoch(epoch))
    }

    fn forget_unused(&mut self, now: Instant) {
        self.granters.retain(|_, granter| {
            granter.expire(now);
            !granter.is_unused()
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_core::share::{HistoryConfig, Holder, Rate};

    const NODE: Node<'_> = Node { name: "a", proven: true };

    fn at(millis: u64) -> Instant {
        Instant::ZERO + Span::from_millis(millis)
    }

    fn api(rate: f64) -> Agreement {
        let (name, each) = ("api".to_owned(), Each::Workflow);
        Agreement { name, each, rate, burst: 40.0, nodes: 4, keys: 2, ..Agreement::default() }
    }

    fn subject(agreement: &str, key: &str) -> Subject {
        Subject { agreement: agreement.to_owned(), key: key.to_owned() }
    }

    fn book(forgotten: bool) -> Book {
        let before = if forgotten { Before::Unknown } else { Before::Nobody };
        let mut book = Book::new(1, at(0), before);
        book.agree(at(0), &[api(100.0)], &BTreeMap::new());
        book
    }

    fn holder(id: u64, now: Instant) -> Holder {
        let (period, history) = (Span::from_millis(500), HistoryConfig::default());
        let on_loss = Default::default();
        Holder::unheard(now, HolderId(id), Share::NONE, on_loss, period, history)
    }

    fn ask(book: &mut Book, node: Node<'_>, holder: &mut Holder, now: Instant) -> Answer {
        let report = holder.poll(now).expect("it is due");
        let answer = book.on_reports(now, node, &[(subject("api", ""), report)]).remove(0).1;
        if let Answer::Grant(grant) = &answer {
            holder.on_grant(now, grant);
        }
        book.invariants();
        answer
    }

    #[test]
    fn the_first_daemon_leases_at_once_and_a_later_one_after_a_term() {
        let mut holder_of_first = holder(1, at(0));
        let Answer::Grant(first) = ask(&mut book(false), NODE, &mut holder_of_first, at(1)) else {
            panic!("nothing was granted");
        };
        assert_eq!((first.leased.burst, first.fill, first.epoch), (36, 36, 1));
        let mut later = book(true);
        let mut newcomer = holder(2, at(0));
        let Answer::Grant(told) = ask(&mut later, NODE, &mut newcomer, at(1)) else {
            panic!("its safe share was not told");
        };
        assert_eq!((told.leased, told.safe.burst), (Share::NONE, 1));
        // Who has a lease of the first keeps it.
        let report = holder_of_first.poll(at(501)).expect("due");
        let answers = later.on_reports(at(501), NODE, &[(subject("api", ""), report)]);
        assert_eq!(answers[0].1, Answer::Wait);
        let Answer::Grant(granted) = ask(&mut later, NODE, &mut newcomer, at(11_000)) else {
            panic!("nothing was granted");
        };
        assert_eq!(granted.leased.burst, 36);
    }

    #[test]
    fn unknown_agreements_and_too_many_keys_are_told() {
        let mut book = book(false);
        let report = holder(1, at(0)).poll(at(0)).expect("due");
        let mut answer = |name: &str, key: &str| {
            book.on_reports(at(0), NODE, &[(subject(name, key), report)]).remove(0).1
        };
        assert_eq!(answer("other", ""), Answer::Unknown);
        assert!(matches!(answer("api", "a"), Answer::Grant(_)));
        assert!(matches!(answer("api", "b"), Answer::Grant(_)));
        assert_eq!(answer("api", "c"), Answer::Full);
        // Their leases are over, and what they used is there again.
        book.tidy(at(60_000));
        assert_eq!(book.keys("api"), 0);
    }

    /// A node that reports under many names has no more than one and its successor.
    #[test]
    fn a_node_with_a_token_of_its_own_cannot_crowd_out_the_others() {
        let mut book = book(false);
        for id in 0..50 {
            let answer = ask(&mut book, NODE, &mut holder(id, at(0)), at(1));
            assert_eq!(matches!(answer, Answer::Grant(_)), id < 2, "{id}");
        }
        let other = Node { name: "b", proven: true };
        assert!(matches!(ask(&mut book, other, &mut holder(99, at(0)), at(2)), Answer::Grant(_)));
    }

    #[test]
    fn an_edit_reaches_nodes_with_their_next_report_and_mints_nothing() {
        let mut book = book(false);
        let mut holder = holder(1, at(0));
        ask(&mut book, NODE, &mut holder, at(1));
        let all = holder.share(at(1));
        let past = BTreeMap::from([("api".to_owned(), vec![api(100.0)])]);
        book.agree(at(100), &[api(50.0)], &past);
        ask(&mut book, NODE, &mut holder, at(501));
        let rate = |share: Share| share.rate.as_f64();
        assert!(rate(all) > 97.0 && rate(holder.share(at(501))) < 50.0);
        assert_eq!(
            book.bound(at(1_001), "api", "").expect("agreed").whole.rate,
            Rate::per_second(100.0).expect("a rate")
        );
        ask(&mut book, NODE, &mut holder, at(1_001));
        let bound = book.bound(at(1_001), "api", "").expect("agreed");
        assert_eq!(bound.whole.rate, Rate::per_second(50.0).expect("a rate"));
        book.agree(at(1_100), &[], &BTreeMap::new());
        assert_eq!(ask(&mut book, NODE, &mut holder, at(1_501)), Answer::Unknown);
        // Back again: what was leased of it may still be in use.
        book.agree(at(1_600), &[api(50.0)], &past);
        assert_eq!(ask(&mut book, NODE, &mut holder, at(2_001)), Answer::Wait);
        let mut other = self::holder(2, at(2_002));
        let answer = ask(&mut book, Node { name: "b", proven: true }, &mut other, at(2_002));
        assert!(
            matches!(answer, Answer::Grant(grant) if grant.leased == Share::NONE),
            "{answer:?}"
        );
    }

    /// A daemon that is ended and started again goes on as if it had been there all the time.
    #[test]
    fn what_a_daemon_leaves_is_taken_up_by_the_next() {
        let mut first = book(false);
        let mut holder = holder(1, at(0));
        ask(&mut first, NODE, &mut holder, at(1));
        let will = first.bequeath(at(300)).expect("it knows everything");
        let mut next = Book::new(2, at(400), Before::Known(will));
        next.agree(at(400), &[api(100.0)], &BTreeMap::new());
        let mut other = self::holder(2, at(400));
        let node = Node { name: "b", proven: true };
        let answer = ask(&mut next, node, &mut other, at(401));
        assert!(
            matches!(answer, Answer::Grant(grant) if grant.leased == Share::NONE),
            "{answer:?}"
        );
        let Answer::Grant(renewed) = ask(&mut next, NODE, &mut holder, at(501)) else {
            panic!("it has to wait");
        };
        assert!(renewed.leased.rate.as_f64() > 40.0);
        // One that began without knowing cannot tell before a term is over.
        let mut lost = book(true);
        assert!(lost.bequeath(at(9_000)).is_none());
        assert!(lost.bequeath(at(11_000)).is_some());
    }
}
