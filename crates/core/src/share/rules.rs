//! How an agreement is applied to requests, beside how much there is of it.
//!
//! A node decides alone, so it has to know: whether a limit is enforced always or only in an overload, for how
//! many of the users (none is a shadow: everything is counted and nothing refused), and what each criticality may
//! have at most. It hears that with its share. A criticality's limit is divided as the whole is: who has a third of
//! the rate has a third of it, so all parts together are within it.

use super::Share;
use crate::limit::{Enforce, Limit};
use crate::rank::{Criticality, Rank};
use crate::rng::mix;
use crate::time::Span;

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// What shares are parts of: the agreement, or a larger one before it of which shares are still in use.
    pub of: Share,
    /// Whether always, or only in an overload.
    pub enforce: Enforce,
    /// How many of a hundred users are held to it; for the others it is counted only.
    pub percent: u8,
    /// What each criticality may have of the whole at most.
    pub caps: [Option<Share>; Criticality::ALL.len()],
    /// Where it is about requests in flight, and not about tokens: how long the place of one that was aborted at the
    /// end of a lease is kept for what goes on of it.
    pub places: Option<Span>,
}

impl Default for Rules {
    /// Everybody is held to it, always.
    fn default() -> Self {
        Self {
            of: Share::NONE,
            enforce: Enforce::Always,
            percent: 100,
            caps: [None; Criticality::ALL.len()],
            places: None,
        }
    }
}

impl Rules {
    /// Whether something may pass that there is no share for.
    pub fn are_lax(&self) -> bool {
        self.percent < 100 || self.enforce != Enforce::Always
    }

    /// Whether who has this rank is held to it. A user is, or is not, with all requests and at every node, and who is
    /// at one percentage is at all larger ones.
    pub fn hold(&self, rank: Rank) -> bool {
        mix(u64::from(rank.user())) % 100 < u64::from(self.percent)
    }

    /// What a criticality may have at most with this share.
    pub fn cap(&self, band: usize, share: Share) -> Option<Limit> {
        let cap = self.caps[band]?;
        let part =
            |of: u64, own: u64| if of == 0 { 0.0 } else { (own as f64 / of as f64).min(1.0) };
        let rate = cap.rate.as_f64() * part(self.of.rate.millionths(), share.rate.millionths());
        let burst = cap.burst as f64 * part(self.of.burst, share.burst);
        Some(Limit::new(rate, burst))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::share::Rate;

    #[test]
    fn who_is_held_to_it_stays_so_as_it_grows() {
        let held = |percent| {
            let rules = Rules { percent, ..Rules::default() };
            (0..10_000u16).filter(|user| rules.hold(Rank::new(24, *user))).collect::<Vec<_>>()
        };
        assert!(held(0).is_empty());
        let (few, more) = (held(10), held(30));
        assert!((900..1_100).contains(&few.len()), "{}", few.len());
        assert!(few.iter().all(|user| more.contains(user)));
        assert_eq!(held(100).len(), 10_000);
    }

    #[test]
    fn parts_of_a_cap_are_within_it() {
        let share = |rate, burst| Share::new(Rate::from_millionths(rate), burst);
        let mut rules = Rules { of: share(900, 90), ..Rules::default() };
        assert_eq!(rules.cap(3, share(300, 30)), None);
        rules.caps[3] = Some(share(300, 30));
        let parts = [share(300, 30), share(500, 10), share(100, 50)];
        let parts = parts.map(|part| rules.cap(3, part).expect("there is one"));
        let rate: f64 = parts.iter().map(|part| part.rate).sum();
        let burst: f64 = parts.iter().map(|part| part.burst).sum();
        assert!(rate <= 300e-6 * 1.000_001 && burst <= 30.000_1, "{parts:?}");
        let unheard = Rules { of: Share::NONE, ..rules };
        assert_eq!(unheard.cap(3, share(5, 5)).map(|cap| cap.burst), Some(0.0));
    }
}
