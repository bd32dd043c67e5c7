//! What the numbers of users and header values stand for, where limits hold over a fleet.
//!
//! Inside a process a user or a value is a [mark](crate::sender::mark), keyed by chance: nothing is kept that tells users
//! apart. Processes that share an agreement have to mean the same by a key, so where one has a part for each user or
//! value ([`want`]), its text is kept for as long as it is heard now and then.
//!
//! 1. What the limit's header says, and a user whom a header or a certificate names, goes by that text, so that an
//!    agreement can name it. Credentials, session cookies and addresses never leave the process: a hash stands for them,
//!    the same everywhere, of which short inputs could be guessed.
//! 2. There is room for a bounded number. They are kept in two generations: when the younger is full it becomes
//!    the older, and what is heard again comes back.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

use tidegate_core::siphash::siphash;

use crate::sender;

/// Tables, so that threads seldom meet.
const TABLES: usize = 16;
/// Values in a generation of a table: two of them in all tables are as many keys as all limits of a gate may have.
const GENERATION: usize = 2_048;
/// Longest text: the longest key of an agreement. A hash stands for longer ones.
const LONGEST: usize = 100;

static HEADERS: AtomicBool = AtomicBool::new(false);
static USERS: AtomicBool = AtomicBool::new(false);
static VALUES: LazyLock<[Mutex<Table>; TABLES]> = LazyLock::new(Default::default);

#[derive(Default)]
struct Table {
    young: BTreeMap<u32, Arc<str>>,
    old: BTreeMap<u32, Arc<str>>,
}

/// From now on values of the limit's header are kept, or users, or both.
pub fn want(headers: bool, users: bool) {
    HEADERS.fetch_or(headers, Ordering::Relaxed);
    USERS.fetch_or(users, Ordering::Relaxed);
}

/// The number of what the limit's header says.
pub fn header(value: &[u8]) -> u32 {
    let mark = sender::mark(value);
    if HEADERS.load(Ordering::Relaxed) {
        hear(mark, || text_of(value, true));
    }
    mark
}

/// The number of a user; `named` if what tells it from others is a name, and not a secret or an address.
pub fn user(user: &[u8], named: bool) -> u32 {
    let mark = sender::mark(user);
    if USERS.load(Ordering::Relaxed) {
        hear(mark, || text_of(user, named));
    }
    mark
}

/// What a number stands for, if it was heard lately.
pub fn text(mark: u32) -> Option<String> {
    let table = table(mark);
    table.young.get(&mark).or_else(|| table.old.get(&mark)).map(|text| text.to_string())
}

fn hear(mark: u32, text: impl FnOnce() -> String) {
    let table = &mut *table(mark);
    if table.young.contains_key(&mark) {
        return;
    }
    let text = table.old.remove(&mark).unwrap_or_else(|| text().into());
    if table.young.len() >= GENERATION {
        table.old = std::mem::take(&mut table.young);
    }
    table.young.insert(mark, text);
}

fn table(mark: u32) -> MutexGuard<'static, Table> {
    VALUES[mark as usize % TABLES].lock().unwrap_or_else(PoisonError::into_inner)
}

fn text_of(value: &[u8], named: bool) -> String {
    let plain = |text: &&str| {
        let fits = (1..=LONGEST).contains(&text.len()) && !text.starts_with('#');
        named && fits && !text.chars().any(char::is_control)
    };
    match std::str::from_utf8(value).ok().filter(plain) {
        Some(text) => text.to_owned(),
        None => {
            // Not a secret: processes of a fleet have to agree.
            let mut text = "#".to_owned();
            for key in [[1, 2], [3, 4]] {
                let _ = write!(text, "{:016x}", siphash(key, value));
            }
            text
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_themselves_and_secrets_are_not() {
        assert_eq!(text(header(b"before anybody wants it")), None);
        want(true, true);
        assert_eq!(text(header(b"acme")).as_deref(), Some("acme"));
        assert_eq!(text(user(b"ann", true)).as_deref(), Some("ann"));
        let secret = text(user(b"Bearer abc", false)).expect("it is heard");
        assert!(secret.starts_with('#') && secret.len() == 33, "{secret}");
        for value in [&b"#forged"[..], b"", b"\xFF", b"a\tb", &[b'x'; 200]] {
            let text = text(header(value)).expect("it is heard");
            assert!(text.starts_with('#') && text.len() == 33, "{text}");
        }
    }

    #[test]
    fn a_flood_of_values_costs_no_memory_and_forgets_nobody_who_comes_back() {
        want(true, false);
        let regular = header(b"a regular of the flood");
        for n in 0..3 * TABLES * GENERATION {
            hear(n as u32, || n.to_string());
            if n % GENERATION == 0 {
                header(b"a regular of the flood");
            }
        }
        assert!(text(regular).is_some());
        for at in 0..TABLES as u32 {
            let table = table(at);
            assert!(table.young.len().max(table.old.len()) <= GENERATION);
        }
    }
}
