//! Ranks at an entry: where requests come in from outside, they get their rank, and what a stranger
//! claims is dropped.
//!
//! 1. The business rank comes from a table of actions (DAGOR §4.2.1). An action that is missing
//!    from it gets the last business rank: what nobody thought important enough to list is shed
//!    first. Without a table everything is business 24, the middle of critical.
//! 2. The user rank is a keyed hash of the user (DAGOR §4.2.2): the same for all requests of a
//!    user, so that tasks succeed or fail as a whole, and another one every hour, so that nobody is
//!    unlucky for long.
//!
//! The key is derived from a secret, shared by the replicas of the entry, and from the hour. It
//! never leaves them: only the rank travels, unchanged through the whole call tree, retries
//! included: hops that hashed for themselves would disagree when the hour turns. Without the key
//! nobody can find a user name with a good rank.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::config::Problems;
use crate::rank::Rank;
use crate::siphash::siphash;

/// Assigns ranks to requests that come in from outside.
#[derive(Clone)]
pub struct Entry {
    config: EntryConfig,
    secret: [u64; 2],
}

impl Entry {
    /// An entry with a secret of 16 random bytes, the same on every replica.
    pub fn new(config: &EntryConfig, secret: [u8; 16]) -> Self {
        let (low, high) = secret.split_at(8);
        let word =
            |bytes: &[u8]| bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
        Self { config: config.clone(), secret: [word(low), word(high)] }
    }

    /// The rank of a request for `action` by `user` in the hour `hour`, counted by the wall clock
    /// since any epoch that the replicas agree on.
    pub fn rank(&self, hour: u64, action: &str, user: Option<&[u8]>) -> Rank {
        self.rank_of(action, user.map(|user| self.hour_key(hour).user(user)))
    }

    /// The same where the user rank is known already, by the key of the hour. Nobody gains by not
    /// telling who they are: without a user it is the last user rank.
    pub fn rank_of(&self, action: &str, user: Option<u16>) -> Rank {
        Rank::new(self.business(action), user.unwrap_or(Rank::LAST.user()))
    }

    /// The key of an hour, for drivers that ask for many ranks in it. SipHash is a pseudo-random
    /// function, so a key tells nothing of the secret.
    pub fn hour_key(&self, hour: u64) -> HourKey {
        let key = [0, 1].map(|half: u8| {
            let mut input = [half; 9];
            input[..8].copy_from_slice(&hour.to_le_bytes());
            siphash(self.secret, &input)
        });
        HourKey { secret: self.secret, hour, key }
    }

    /// Whether `key` is the one of `hour` here, and not an older one or another entry's.
    pub fn made(&self, key: &HourKey, hour: u64) -> bool {
        (key.secret, key.hour) == (self.secret, hour)
    }

    /// Whether actions matter: without a table of them all are the same.
    pub fn has_actions(&self) -> bool {
        self.config.actions.is_some()
    }

    fn business(&self, action: &str) -> u8 {
        match &self.config.actions {
            None => Rank::UNRANKED.business(),
            Some(actions) => actions.get(action).copied().unwrap_or(Rank::LAST.business()),
        }
    }
}

/// Turns users into ranks for an hour.
#[derive(Clone, Copy)]
pub struct HourKey {
    /// Whose it is.
    secret: [u64; 2],
    hour: u64,
    key: [u64; 2],
}

impl HourKey {
    /// The user rank of `user`.
    pub fn user(&self, user: &[u8]) -> u16 {
        (siphash(self.key, user) >> 48) as u16
    }
}

impl std::fmt::Debug for HourKey {
    /// Without the secrets.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HourKey").field("hour", &self.hour).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Entry {
    /// Without the secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Entry").field("config", &self.config).finish_non_exhaustive()
    }
}

/// Parameters of [`Entry`]. The secret is not among them: it belongs where secrets are kept.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EntryConfig {
    /// Business rank by name of action, 0 (refused last) to 63 (refused first). Actions that are
    /// not listed get 63. Default: no table, everything gets 24. WeChat lists some tens, login and
    /// payment before all others (DAGOR §4.2.1).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub actions: Option<BTreeMap<String, u8>>,
}

impl EntryConfig {
    /// Notes everything that is wrong with the parameters.
    pub fn validate(&self, problems: &mut Problems) {
        problems.within("actions", |problems| {
            for (action, business) in self.actions.iter().flatten() {
                problems.check(action, business, *business < Rank::BUSINESS, "0 to 63");
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: [u8; 16] = *b"0123456789abcdef";

    fn entry(actions: &[(&str, u8)]) -> Entry {
        let table =
            actions.iter().map(|(name, business)| ((*name).to_owned(), *business)).collect();
        Entry::new(&EntryConfig { actions: Some(table) }, SECRET)
    }

    #[test]
    fn actions_are_looked_up_and_missing_ones_come_last() {
        let listed = entry(&[("login", 0), ("pay", 1)]);
        for (action, business) in [("login", 0), ("pay", 1), ("poke", 63), ("", 63)] {
            assert_eq!(listed.rank(1, action, Some(b"ann")).business(), business, "{action}");
        }
        assert_eq!(entry(&[]).rank(1, "login", None), Rank::LAST, "an empty table is a table");
        let open = Entry::new(&EntryConfig::default(), SECRET);
        assert_eq!(open.rank(1, "login", Some(b"ann")).business(), 24);
        assert!(!open.has_actions() && listed.has_actions());
    }

    #[test]
    fn a_user_has_one_rank_an_hour_on_every_replica() {
        let (one, replica) = (entry(&[("a", 3)]), entry(&[("a", 3), ("b", 4)]));
        let stranger = Entry::new(&EntryConfig::default(), *b"another secret..");
        let (mut changed, mut other) = (0, 0);
        for user in 0..1_000u32 {
            let name = user.to_be_bytes();
            let user = Some(&name[..]);
            let rank = one.rank(7, "a", user);
            assert_eq!(rank, replica.rank(7, "a", user));
            assert_eq!(rank.user(), replica.rank(7, "b", user).user(), "for all actions");
            changed += usize::from(rank.user() != one.rank(8, "a", user).user());
            other += usize::from(rank.user() != stranger.rank(7, "a", user).user());
        }
        // One in 65,536 stays the same by chance.
        assert!(changed > 990 && other > 990, "{changed} {other}");
    }

    /// Chi-square over DAGOR's 128 levels: 127 degrees of freedom, so 127 ± 16; beyond 220 by
    /// chance once in a million.
    #[test]
    fn user_ranks_are_uniform_in_every_hour() {
        let entry = entry(&[]);
        for hour in 0..5 {
            let mut levels = [0u32; 128];
            for user in 0..12_800u32 {
                let rank = entry.rank(hour, "a", Some(format!("user-{user}").as_bytes()));
                levels[usize::from(rank.user() >> 9)] += 1;
            }
            let square = |count: &u32| (f64::from(*count) - 100.0).powi(2) / 100.0;
            let chi: f64 = levels.iter().map(square).sum();
            assert!((70.0..220.0).contains(&chi), "hour {hour}: {chi}");
        }
    }

    #[test]
    fn the_table_is_written_as_toml_and_checked() {
        let text = "[actions]\n\"GET /pay\" = 1\nlogin = 0\n";
        let config = crate::config::read(text, EntryConfig::validate).unwrap();
        assert_eq!(crate::config::print(&config), text);
        let wrong = "[actions]\nlogin = 64\npay = 99\nfine = 63\n";
        let error = crate::config::read(wrong, EntryConfig::validate).unwrap_err();
        let fields: Vec<_> = error.problems().iter().map(|problem| &*problem.field).collect();
        assert_eq!(fields, ["actions.login", "actions.pay"]);
    }

    #[test]
    fn a_key_serves_its_entry_for_its_hour() {
        let (one, stranger) = (entry(&[]), Entry::new(&EntryConfig::default(), [7; 16]));
        let key = one.hour_key(7);
        assert!(one.made(&key, 7) && !one.made(&key, 8) && !stranger.made(&key, 7));
        assert_eq!(one.rank_of("a", Some(key.user(b"ann"))), one.rank(7, "a", Some(b"ann")));
        assert_eq!(one.rank_of("a", None), one.rank(7, "a", None));
    }

    #[test]
    fn the_secret_is_not_shown() {
        let entry = entry(&[]);
        let shown = format!("{entry:?} {:?}", entry.hour_key(1));
        assert!(shown.contains("config") && !shown.contains("secret"), "{shown}");
    }
}
