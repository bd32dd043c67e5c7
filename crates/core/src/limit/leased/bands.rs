//! Criticalities within a share: the least critical are refused first, and each may have a limit of its own.

use super::super::bucket::{Bucket, Limit, Shortage};
use super::super::order::{BANDS, Order};
use crate::share::Holder;
use crate::time::Instant;

/// What is known of the criticalities that one key's requests have.
#[derive(Clone, Debug, Default)]
pub(super) struct Bands {
    order: Order,
    caps: [Option<Bucket>; BANDS],
}

impl Bands {
    /// Takes what a request of `band` needs from its own limit and from the share, both or none; says whether there
    /// is one of its own.
    pub(super) fn take(
        &mut self,
        now: Instant,
        holder: &mut Holder,
        band: usize,
        amount: f64,
        prepaid: bool,
    ) -> Result<bool, Shortage> {
        let share = holder.share(now);
        self.follow(holder.changed(now), band, holder.rules().cap(band, share));
        let needed = self.order.needed(now, band, share.limit(), amount, prepaid);
        let Some(cap) = &mut self.caps[band] else {
            return holder.take_leaving(now, amount, needed).map(|()| false);
        };
        let own = if prepaid { amount } else { amount.min(cap.limit().burst) };
        cap.take_cost(now, own)?;
        holder.take_leaving(now, amount, needed).inspect_err(|_| cap.refund(now, own))?;
        Ok(true)
    }

    /// A request that paid its own limit was refused further on.
    pub(super) fn refund(&mut self, now: Instant, band: usize, amount: f64) {
        self.caps[band].iter_mut().for_each(|cap| cap.refund(now, amount));
    }

    /// A limit that is new begins without tokens: what it limits has been used all along.
    fn follow(&mut self, since: Instant, band: usize, limit: Option<Limit>) {
        match (&mut self.caps[band], limit) {
            (Some(cap), Some(limit)) if cap.limit() == limit => {}
            (Some(cap), Some(limit)) => cap.set_limit(since, limit),
            (cap, limit) => *cap = limit.map(|limit| Bucket::empty(since, limit)),
        }
    }
}
