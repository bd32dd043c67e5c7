//! [`Limits`]: several limiters as one stage, all or nothing.
//!
//! A request asks each in the order of the configuration. If one refuses, those that had said yes
//! give back what they took, and the request was charged by none. What each took is kept by the
//! request's place in the gate, so that it can be given back when a later stage refuses, and settled
//! when the request ends.
//!
//! Through a change of configuration each new limit takes over from the old one it is most like; one
//! that takes over from none starts empty, a window with nothing used. Of buckets that are always
//! enforced, nobody's level rises by that, and every request lowers the level of all it passes, so the
//! largest level there is bounds what passes through any number of changes: the largest burst, and the
//! largest rate × time. A window that is taken out and put back has forgotten what was used.

use super::{Ask, CarryOver, Leased, LimitConfig, Limiter, Receipt};
use crate::config::Problems;
use crate::context::{Context, Workflow};
use crate::meter::Cost;
use crate::request::RequestId;
use crate::time::{Instant, Span};
use crate::verdict::Rejection;

/// The limiters of a gate.
#[derive(Clone, Debug)]
pub struct Limits {
    configs: Vec<LimitConfig>,
    /// One of each of them.
    limiters: Vec<Box<dyn Limiter>>,
    /// Receipts of the request that has passed and has no place yet.
    passing: Vec<Receipt>,
    /// By place of the request, one of each limiter.
    receipts: Vec<Receipt>,
    /// The request at each place, so that one which came before a change of limits is known.
    owners: Vec<RequestId>,
}

impl Limits {
    /// The stage, or none without limits.
    pub fn build(configs: &[LimitConfig], now: Instant) -> Option<Box<Self>> {
        Self::build_by(configs, |config| config.build(now))
    }

    /// The stage of a gate that had no limits so far, or none without limits.
    pub(crate) fn join(configs: &[LimitConfig], now: Instant) -> Option<Box<Self>> {
        Self::build_by(configs, |config| build_empty(config, now))
    }

    fn build_by(
        configs: &[LimitConfig],
        build: impl Fn(&LimitConfig) -> Box<dyn Limiter>,
    ) -> Option<Box<Self>> {
        let (passing, receipts, owners) = (Vec::new(), Vec::new(), Vec::new());
        let limiters = configs.iter().map(build).collect();
        let stage = Self { configs: configs.to_vec(), limiters, passing, receipts, owners };
        (!configs.is_empty()).then(|| Box::new(stage))
    }

    /// Asks every limiter. After a yes comes [`keep`](Self::keep) or [`give_back`](Self::give_back).
    pub fn pass(&mut self, now: Instant, ask: &Ask<'_>) -> Result<(), Rejection> {
        self.passing.clear();
        for at in 0..self.limiters.len() {
            match self.limiters[at].on_arrival(now, ask) {
                Ok(receipt) => self.passing.push(receipt),
                Err(rejection) => {
                    self.give_back(now, ask.context);
                    return Err(Rejection { place: u8::try_from(at).ok(), ..rejection });
                }
            }
        }
        Ok(())
    }

    /// The request that passed last was refused by a later stage.
    pub fn give_back(&mut self, now: Instant, context: &Context) {
        for (limiter, receipt) in self.limiters.iter_mut().zip(self.passing.drain(..)) {
            limiter.refund(now, context, receipt);
        }
    }

    /// The request that passed last is in, at the place of `id`.
    pub fn keep(&mut self, id: RequestId) {
        let (at, width) = (id.index(), self.limiters.len());
        if self.owners.len() <= at {
            self.owners.resize(at + 1, RequestId::NOWHERE);
            self.receipts.resize((at + 1) * width, Receipt::default());
        }
        self.owners[at] = id;
        self.receipts[at * width..][..width].copy_from_slice(&self.passing);
        self.passing.clear();
    }

    /// A request that was in has been refused or has left before its work began.
    pub fn refund(&mut self, now: Instant, id: RequestId, context: &Context) {
        self.close(id, |limiter, receipt| limiter.refund(now, context, receipt));
    }

    /// A request that was in has ended and cost this much.
    pub fn finish(&mut self, now: Instant, id: RequestId, context: &Context, cost: Cost) {
        self.close(id, |limiter, receipt| limiter.on_finish(now, context, receipt, cost));
    }

    fn close(&mut self, id: RequestId, mut tell: impl FnMut(&mut dyn Limiter, Receipt)) {
        let (at, width) = (id.index(), self.limiters.len());
        let Some(owner) = self.owners.get_mut(at).filter(|owner| **owner == id) else { return };
        *owner = RequestId::NOWHERE;
        let receipts = self.receipts[at * width..][..width].iter();
        for (limiter, receipt) in self.limiters.iter_mut().zip(receipts) {
            tell(&mut **limiter, *receipt);
        }
    }

    /// Whether a request that is in holds a place that is no longer this process's.
    pub fn is_overdue(&self, now: Instant, id: RequestId, context: &Context) -> bool {
        let (at, width) = (id.index(), self.limiters.len());
        if self.owners.get(at) != Some(&id) {
            return false;
        }
        let mut both = self.limiters.iter().zip(&self.receipts[at * width..][..width]);
        both.any(|(limiter, receipt)| limiter.is_overdue(now, context, *receipt))
    }

    /// Whether any limiter wants to know the delay.
    pub fn needs_delay(&self) -> bool {
        self.limiters.iter().any(|limiter| limiter.needs_delay())
    }

    /// Tells all limiters the numbers of the workflows they name.
    pub fn name_workflows(&mut self, number: &mut dyn FnMut(&str) -> Workflow) {
        self.limiters.iter_mut().for_each(|limiter| limiter.name_workflows(number));
    }

    /// Tells all limiters what the calendar says.
    pub fn on_calendar(&mut self, now: Instant, unix: Span) {
        self.limiters.iter_mut().for_each(|limiter| limiter.on_calendar(now, unix));
    }

    /// Takes another configuration: what carries over does, and nothing is minted.
    pub fn reconfigure(&mut self, now: Instant, configs: &[LimitConfig]) {
        let heirs = heirs(&self.configs, configs);
        let mut before: Vec<_> = std::mem::take(&mut self.limiters).into_iter().map(Some).collect();
        // Of each limiter, the place at which its receipts were until now, if they hold.
        let mut columns = Vec::with_capacity(configs.len());
        for (config, heir) in configs.iter().zip(heirs) {
            let mut limiter = heir.and_then(|at| before[at].take());
            let carried = limiter.as_mut().map(|limiter| limiter.reconfigure(now, config));
            columns.push(heir.filter(|_| carried == Some(CarryOver::Whole)));
            self.limiters.push(limiter.unwrap_or_else(|| build_empty(config, now)));
        }
        let receipts = std::mem::take(&mut self.receipts);
        let receipt = |row: usize, at: usize| receipts[row * before.len() + at];
        for row in 0..self.owners.len() {
            let moved =
                columns.iter().map(|at| at.map_or(Receipt::default(), |at| receipt(row, at)));
            self.receipts.extend(moved);
        }
        self.configs = configs.to_vec();
    }

    /// The limiters in the order they are asked.
    pub fn iter(&self) -> impl Iterator<Item = &dyn Limiter> {
        self.limiters.iter().map(|limiter| &**limiter)
    }

    /// Those that are parts of agreements over many processes, to carry their reports.
    pub fn leased_mut(&mut self) -> impl Iterator<Item = &mut Leased> {
        self.limiters.iter_mut().filter_map(|limiter| limiter.leased_mut())
    }

    /// Panics if the state contradicts itself.
    pub fn invariants(&self) {
        assert_eq!(self.receipts.len(), self.owners.len() * self.limiters.len(), "a receipt each");
        self.limiters.iter().for_each(|limiter| limiter.invariants());
    }
}

/// A limiter that joins a gate in use.
fn build_empty(config: &LimitConfig, now: Instant) -> Box<dyn Limiter> {
    let mut limiter = config.build(now);
    limiter.start_empty(now);
    limiter
}

/// For each of `configs`, the place of the one before that it takes over from: the most alike first,
/// and of those the one at the same place if none came or went, else the first. One that counts
/// something else, or for others, is the same limit only at the same place; but a window is any, as
/// one that starts anew has nothing used.
fn heirs(before: &[LimitConfig], configs: &[LimitConfig]) -> Vec<Option<usize>> {
    let mut heirs = vec![None; configs.len()];
    let mut taken = vec![false; before.len()];
    let same_places = before.len() == configs.len();
    for likeness in (1..=3).rev() {
        for (at, config) in configs.iter().enumerate() {
            if heirs[at].is_some() {
                continue;
            }
            let alike = |old: &usize| !taken[*old] && before[*old].likeness(config) >= likeness;
            let own = same_places.then_some(at).filter(alike);
            let anywhere = likeness > 1 || matches!(config, LimitConfig::Window(_));
            let first = || (0..before.len()).find(alike).filter(|_| anywhere);
            heirs[at] = own.or_else(first);
            if let Some(old) = heirs[at] {
                taken[old] = true;
            }
        }
    }
    heirs
}

/// Notes everything that is wrong with a list of limits.
pub(crate) fn validate(configs: &[LimitConfig], problems: &mut Problems) {
    /// A request pays at each: a bound on its cost.
    const MOST: usize = 64;
    problems.check("limits", configs.len(), configs.len() <= MOST, "at most 64 of them");
    let mut controls = configs.iter().filter_map(|config| match config {
        LimitConfig::Leased(leased) => Some((&leased.control, &leased.token_file)),
        _ => None,
    });
    if let Some(first) = controls.next() {
        let one = controls.all(|other| other == first);
        problems.check("limits", first.0, one, "one control and token_file for all leased limits");
    }
    for (at, config) in configs.iter().enumerate() {
        problems.within_item("limits", at, |problems| config.validate(problems));
    }
}
