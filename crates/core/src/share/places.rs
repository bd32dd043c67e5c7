//! The node side of leases of *places*: how many requests may be in flight over all nodes together.
//!
//! A rate is used up as time passes; a place is held by a request until it ends. So what a shrinking lease takes
//! back is not there at once, and a lease that is over leaves requests behind. The protocol is that of
//! [`lease`](super::lease), where the burst of a share counts places and its rate is nothing, with these additions:
//!
//! 1. A holder told to shrink gives no place away before fewer are held than it may. Until then it reports those held as
//!    what it uses, so that nobody gets them: a place moves when its request has ended.
//! 2. When a lease is over, requests beyond the safe places are *overdue*: the driver aborts them. Their places are free
//!    one [`allowance`](super::LeaseConfig::places) after the lease, here and at the granter: for the driver to notice,
//!    and for work that was abandoned to end.
//! 3. A safe place is held without a lease, and its request is never overdue. By default there are none: where nobody
//!    has a place without asking, nothing is set aside.
//! 4. A node asks for as many places as were held or asked for at once lately, and half as many again, so that one
//!    more finds one. What nobody asks for stays with the granter, for whoever asks next.
//!
//! Then at no moment are more places held than there are, whatever happens to nodes, messages and the granter. That does not
//! bound work that a service goes on with after the one who waited for it is gone, for longer than the allowance.

use super::history::Load;
use super::lease::{Grant, HolderId, OnLoss, Report};
use super::{Rate, Rules, Share};
use crate::limit::Shortage;
use crate::time::{Instant, Span};

/// One node's places of an agreement.
#[derive(Clone, Debug)]
pub struct Places {
    id: HolderId,
    period: Span,
    epoch: u64,
    whole: u64,
    /// Most that may be held without a lease, and most that are as long as it has shrunk and not as many are free.
    meant: u64,
    safe: u64,
    /// Most on top of that before `until`.
    leased: u64,
    until: Instant,
    term: Span,
    on_loss: OnLoss,
    rules: Rules,
    bound: Share,
    heard: bool,
    sequence: u64,
    sent: Instant,
    due: Instant,
    /// Requests that hold a place.
    held: u64,
    /// Places of requests that were aborted, until when they may go on.
    lost: u64,
    lost_until: Instant,
    /// Most that were held or asked for at once since the last report but one, and since the last.
    peaks: [u64; 2],
    /// Asked for in vain since the last report.
    missed: u64,
    now: Instant,
}

impl Places {
    /// A node that has just started, holds nothing and knows nothing of the agreement but how many places it may
    /// hold without having asked.
    pub fn unheard(now: Instant, id: HolderId, safe: u64, on_loss: OnLoss, period: Span) -> Self {
        Self {
            id,
            period,
            epoch: 0,
            whole: 0,
            meant: safe,
            safe,
            leased: 0,
            until: now,
            term: Span::ZERO,
            on_loss,
            rules: Rules::default(),
            bound: Share::NONE,
            heard: false,
            sequence: 0,
            sent: now,
            due: now,
            held: 0,
            lost: 0,
            lost_until: now,
            peaks: [0; 2],
            missed: 0,
            now,
        }
    }

    /// Takes a place; if there is none, says when to ask again.
    pub fn take(&mut self, now: Instant) -> Result<(), Shortage> {
        let now = self.settle(now);
        let lost = self.until <= now;
        let most = if lost && self.on_loss == OnLoss::Closed { 0 } else { self.most() };
        if self.taken() >= most && !(lost && self.on_loss == OnLoss::Open) {
            self.missed += 1;
            self.note();
            // Others may have some to spare: asks soon, but not with every request.
            self.due = self.due.min(self.sent + soon(self.period));
            return Err(Shortage::Until(now + self.period));
        }
        self.held += 1;
        self.note();
        Ok(())
    }

    /// A request has passed that nobody is held to: it holds a place, be there one or not.
    pub fn take_beyond(&mut self, now: Instant) {
        self.settle(now);
        self.held += 1;
        self.note();
    }

    /// A request has ended. One that is overdue was aborted: what it left keeps its place for the allowance.
    pub fn give_back(&mut self, now: Instant) {
        let now = self.settle(now);
        if self.is_overdue(now) {
            let allowance = self.rules.places.unwrap_or(Span::ZERO);
            self.lost += 1;
            self.lost_until = self.lost_until.max(self.until + allowance);
        }
        self.held = self.held.saturating_sub(1);
        self.shrink();
    }

    /// Whether requests hold places that are no longer this node's: they are to be aborted.
    pub fn is_overdue(&self, now: Instant) -> bool {
        now.max(self.now) >= self.until && self.held > self.safe && self.is_strict()
    }

    /// The report that is due, if one is.
    pub fn poll(&mut self, now: Instant) -> Option<Report> {
        let now = self.settle(now);
        if now < self.due {
            return None;
        }
        self.sequence += 1;
        (self.sent, self.due) = (now, now + self.period);
        let wanted = self.peaks[0].max(self.peaks[1]);
        let backlog = if wanted == 0 { 0 } else { wanted + wanted / 2 + 1 };
        self.peaks = [self.peaks[1], self.held];
        self.missed = 0;
        let load = Load { rate: Rate::ZERO, backlog, over: self.period };
        let (epoch, holder, sequence) = (self.epoch, self.id, self.sequence);
        let (safe, leased) = (places(self.safe), places(self.in_use()));
        Some(Report { epoch, holder, sequence, safe, leased, load })
    }

    /// Takes no more places; those held are reported as they are.
    pub fn leave(&mut self, now: Instant) -> Report {
        let now = self.settle(now);
        self.leased = 0;
        self.peaks = [0; 2];
        self.due = now;
        self.poll(now).expect("it is due")
    }

    /// An answer has come. Only one to the newest report counts, and only while its term runs.
    pub fn on_grant(&mut self, now: Instant, grant: &Grant) -> bool {
        let now = self.settle(now);
        let until = self.sent + grant.term;
        let answers = grant.holder == self.id && grant.sequence == self.sequence;
        if !answers || grant.epoch < self.epoch || until <= now || grant.rules.places.is_none() {
            return false;
        }
        (self.epoch, self.on_loss, self.rules) = (grant.epoch, grant.on_loss, grant.rules);
        (self.whole, self.bound, self.heard) = (grant.whole.burst, grant.bound, true);
        let shrunk = grant.leased.burst < self.leased;
        self.leased = grant.leased.burst;
        self.meant = grant.safe.burst;
        self.shrink();
        (self.until, self.term) = (until, grant.term);
        let again = if shrunk { now } else { now + grant.again };
        self.due = self.due.min(again);
        true
    }

    /// Places in all; none before it has heard.
    pub fn whole(&self) -> u64 {
        self.whole
    }

    /// What all nodes together are held to, as the granter said last; none before it has heard.
    pub fn bound(&self) -> Share {
        self.bound
    }

    /// Most that it may hold now.
    pub fn share(&self, now: Instant) -> u64 {
        self.meant + if now < self.until { self.leased } else { 0 }
    }

    /// Most that it may hold without the control plane.
    pub fn safe(&self) -> u64 {
        self.safe
    }

    /// When its lease is over.
    pub fn until(&self) -> Instant {
        self.until
    }

    /// Places that are held.
    pub fn held(&self) -> u64 {
        self.held
    }

    /// Most that were held or asked for at once lately.
    pub fn asked(&self) -> u64 {
        self.peaks[0].max(self.peaks[1])
    }

    /// Whether it has heard within a term.
    pub fn is_connected(&self, now: Instant) -> bool {
        self.heard && now < self.until
    }

    /// What it does when it has not.
    pub fn on_loss(&self) -> OnLoss {
        self.on_loss
    }

    /// How the agreement is applied.
    pub fn rules(&self) -> &Rules {
        &self.rules
    }

    /// Another id, before the first report.
    pub fn set_id(&mut self, id: HolderId) {
        debug_assert_eq!(self.sequence, 0, "nobody knows it yet");
        self.id = id;
    }

    /// Panics if the state contradicts itself.
    pub fn invariants(&self) {
        assert!(self.until <= self.sent + self.term, "a lease runs from its report");
    }

    /// Whether nothing may pass that there is no place for.
    fn is_strict(&self) -> bool {
        self.on_loss != OnLoss::Open && !self.rules.are_lax()
    }

    /// What is not free.
    fn taken(&self) -> u64 {
        self.held + self.lost
    }

    fn most(&self) -> u64 {
        self.meant + self.leased
    }

    /// A smaller safe share is taken up as its places become free.
    fn shrink(&mut self) {
        self.safe = self.meant.max(self.safe.min(self.taken().saturating_sub(self.leased)));
    }

    /// Step 1.
    fn in_use(&self) -> u64 {
        self.leased.max(self.taken().saturating_sub(self.safe))
    }

    fn note(&mut self) {
        self.peaks[1] = self.peaks[1].max(self.held + self.missed);
    }

    fn settle(&mut self, now: Instant) -> Instant {
        self.now = self.now.max(now);
        if self.until <= self.now {
            self.leased = 0;
        }
        if self.lost_until <= self.now {
            self.lost = 0;
        }
        self.now
    }
}

/// So many places as a share.
fn places(count: u64) -> Share {
    Share::new(Rate::ZERO, count)
}

/// Time after a report until the next, for one that has too few.
fn soon(period: Span) -> Span {
    Span::from_nanos((period.as_nanos() / 5).max(1))
}
