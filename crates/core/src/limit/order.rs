//! Out of tokens, a criticality is refused only when all lower ones already are ("Handling Overload",
//! Criticality).
//!
//! A request leaves an eighth of the burst untouched for each more critical band that asked within the time a
//! burst takes to fill. So tokens run out for the least critical band first, and those above it find what
//! they need. Whose requests all have one criticality, which is most, has the whole burst.

use super::bucket::Limit;
use crate::rank::Criticality;
use crate::time::Instant;

/// How many criticalities there are.
pub(super) const BANDS: usize = Criticality::ALL.len();
/// Share of the burst left to each more critical band. More keeps the order more strictly when many
/// come at once, and leaves lower bands less of a burst (judgement: at nine tenths of its rate and a
/// burst of 33 the lowest of four bands still has 20 tokens).
const RESERVE: f64 = 0.125;

/// Which bands have asked lately.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Order {
    seen: [Option<Instant>; BANDS],
}

impl Order {
    /// A request of `band` asks: the tokens that have to be there for it, of a bucket with `limit`. Costs known only
    /// afterwards need no more than one band's reserve to begin with, so that no expensive request is refused
    /// where a cheap one of a lower band passes.
    pub(super) fn needed(
        &mut self,
        now: Instant,
        band: usize,
        limit: Limit,
        amount: f64,
        prepaid: bool,
    ) -> f64 {
        let Limit { rate, burst } = limit;
        let reserve = burst * RESERVE;
        let recent = |seen: &&Option<Instant>| {
            seen.is_some_and(|seen| now.since(seen).as_secs_f64() * rate < burst)
        };
        let above = self.seen[..band].iter().filter(recent).count();
        self.seen[band] = Some(now);
        let needed = if prepaid { amount } else { amount.min(reserve) };
        (needed + reserve * above as f64).min(burst)
    }
}
