//! Reports and grants as bytes: one message holds what a node has to say of all its agreements at once,
//! another what it is answered.
//!
//! ```text
//! message = "TGL" kind version count entry*           kind = 'R' reports, 'G' grants
//! entry   = length agreement key field*               length counts what follows it in the entry
//! name    = length bytes                              agreement: 1 to 64 bytes; key: 0 to 128; UTF-8
//! report  = epoch holder sequence safe leased rate backlog over
//! grant   = status [epoch holder sequence whole bound safe leased fill term again on_loss rules]
//! rules   = of enforce percent places cap cap cap cap  places: 0, or 1 and a time; cap: 0, or 1 and a share
//! share   = rate burst                                rate in millionths of a token per second
//! ```
//!
//! All numbers are unsigned LEB128, times in nanoseconds; holders are eight bytes. A reader skips what
//! follows the fields it knows in an entry, so that fields can be added; what cannot be understood without being
//! known needs another version, and a message of another version is refused as a whole, by name. The reader takes any
//! bytes: it never panics, and it allocates no more than a small multiple of what it was given.

use std::fmt;

use super::history::Load;
use super::lease::{Grant, HolderId, OnLoss, Report};
use super::rules::Rules;
use super::{Rate, Share};
use crate::limit::Enforce;
use crate::time::Span;

/// The version that is written, and the only one that is read.
pub const VERSION: u8 = 1;
/// Most entries of a message.
pub const MOST_ENTRIES: usize = 4_096;
/// Longest message, in bytes: as many of the longest entries.
pub const LONGEST_MESSAGE: usize = 16 + MOST_ENTRIES * LONGEST_ENTRY;
/// Longest name of an agreement, in bytes.
pub const LONGEST_NAME: usize = 64;
/// Longest key, in bytes.
pub const LONGEST_KEY: usize = 128;
/// Longest entry that is written, in bytes.
const LONGEST_ENTRY: usize = 600;

/// Which limit it is about.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Subject {
    /// The agreement's name.
    pub agreement: String,
    /// Whose part of it, where each key has one; else empty.
    pub key: String,
}

/// What a report is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::large_enum_variant, reason = "most answers are the large one")]
pub enum Answer {
    /// What may be used.
    Grant(Grant),
    /// Nothing, for now: who has a lease keeps it.
    Wait,
    /// There is no such agreement.
    Unknown,
    /// The agreement has as many keys as it may.
    Full,
}

/// Why a message was not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WireError {
    /// It begins with something else.
    Foreign,
    /// It is of another version.
    Version(u8),
    /// It has more entries than a message may.
    TooMany(u64),
    /// This entry cannot be understood; the first is 0.
    Entry(usize),
    /// Something follows the last entry.
    Rest,
}

impl fmt::Display for WireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Foreign => write!(f, "this is no message about leases"),
            Self::Version(version) => write!(
                f,
                "the message is of version {version}, and version {VERSION} is spoken here: \
                 run the same release on both sides"
            ),
            Self::TooMany(count) => write!(f, "{count} entries, and {MOST_ENTRIES} are allowed"),
            Self::Entry(at) => write!(f, "entry {at} cannot be understood"),
            Self::Rest => write!(f, "something follows the last entry"),
        }
    }
}

impl std::error::Error for WireError {}

/// Writes what a node has to say; of more than [`MOST_ENTRIES`] the first.
pub fn write_reports(reports: &[(Subject, Report)]) -> Vec<u8> {
    let reports = &reports[..reports.len().min(MOST_ENTRIES)];
    write(b'R', reports, |bytes, report| {
        let Report { epoch, holder, sequence, safe, leased, load } = report;
        number(bytes, *epoch);
        bytes.extend_from_slice(&holder.0.to_le_bytes());
        number(bytes, *sequence);
        share(bytes, *safe);
        share(bytes, *leased);
        number(bytes, load.rate.millionths());
        number(bytes, load.backlog);
        number(bytes, load.over.as_nanos());
    })
}

/// Writes what it is answered; of more than [`MOST_ENTRIES`] the first.
pub fn write_answers(answers: &[(Subject, Answer)]) -> Vec<u8> {
    let answers = &answers[..answers.len().min(MOST_ENTRIES)];
    write(b'G', answers, |bytes, answer| match answer {
        Answer::Wait => bytes.push(0),
        Answer::Unknown => bytes.push(1),
        Answer::Full => bytes.push(2),
        Answer::Grant(grant) => {
            bytes.push(3);
            number(bytes, grant.epoch);
            bytes.extend_from_slice(&grant.holder.0.to_le_bytes());
            number(bytes, grant.sequence);
            share(bytes, grant.whole);
            share(bytes, grant.bound);
            share(bytes, grant.safe);
            share(bytes, grant.leased);
            number(bytes, grant.fill);
            number(bytes, grant.term.as_nanos());
            number(bytes, grant.again.as_nanos());
            bytes.push(grant.on_loss as u8);
            rules(bytes, &grant.rules);
        }
    })
}

/// Reads what a node has to say.
pub fn read_reports(bytes: &[u8]) -> Result<Vec<(Subject, Report)>, WireError> {
    read(b'R', bytes, |from| {
        let (epoch, holder, sequence) = (from.number()?, from.holder()?, from.number()?);
        let (safe, leased) = (from.share()?, from.share()?);
        let (rate, backlog, over) = (from.rate()?, from.number()?, from.span()?);
        let load = Load { rate, backlog, over };
        Some(Report { epoch, holder, sequence, safe, leased, load })
    })
}

/// Reads what it is answered.
pub fn read_answers(bytes: &[u8]) -> Result<Vec<(Subject, Answer)>, WireError> {
    read(b'G', bytes, |from| {
        Some(match from.byte()? {
            0 => Answer::Wait,
            1 => Answer::Unknown,
            2 => Answer::Full,
            3 => Answer::Grant(Grant {
                epoch: from.number()?,
                holder: from.holder()?,
                sequence: from.number()?,
                whole: from.share()?,
                bound: from.share()?,
                safe: from.share()?,
                leased: from.share()?,
                fill: from.number()?,
                term: from.span()?,
                again: from.span()?,
                on_loss: match from.byte()? {
                    0 => OnLoss::Safe,
                    1 => OnLoss::Open,
                    2 => OnLoss::Closed,
                    _ => return None,
                },
                rules: from.rules()?,
            }),
            _ => return None,
        })
    })
}

// === writing ===

fn write<T>(kind: u8, items: &[(Subject, T)], fields: impl Fn(&mut Vec<u8>, &T)) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(16 + items.len() * 96);
    bytes.extend_from_slice(&[b'T', b'G', b'L', kind, VERSION]);
    number(&mut bytes, items.len() as u64);
    let mut entry = Vec::new();
    for (subject, item) in items {
        entry.clear();
        name(&mut entry, &subject.agreement);
        name(&mut entry, &subject.key);
        fields(&mut entry, item);
        number(&mut bytes, entry.len() as u64);
        bytes.extend_from_slice(&entry);
    }
    bytes
}

fn number(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

fn name(bytes: &mut Vec<u8>, name: &str) {
    number(bytes, name.len() as u64);
    bytes.extend_from_slice(name.as_bytes());
}

fn share(bytes: &mut Vec<u8>, share: Share) {
    number(bytes, share.rate.millionths());
    number(bytes, share.burst);
}

fn rules(bytes: &mut Vec<u8>, rules: &Rules) {
    share(bytes, rules.of);
    bytes.extend([u8::from(rules.enforce == Enforce::Overload), rules.percent]);
    bytes.push(u8::from(rules.places.is_some()));
    rules.places.into_iter().for_each(|allowance| number(bytes, allowance.as_nanos()));
    for cap in rules.caps {
        bytes.push(u8::from(cap.is_some()));
        cap.into_iter().for_each(|cap| share(bytes, cap));
    }
}

// === reading ===

fn read<T>(
    kind: u8,
    bytes: &[u8],
    fields: impl Fn(&mut Reader<'_>) -> Option<T>,
) -> Result<Vec<(Subject, T)>, WireError> {
    let mut from = Reader(bytes);
    if from.take(4) != Some(&[b'T', b'G', b'L', kind]) {
        return Err(WireError::Foreign);
    }
    match from.byte() {
        Some(VERSION) => {}
        Some(version) => return Err(WireError::Version(version)),
        None => return Err(WireError::Foreign),
    }
    let count = from.number().ok_or(WireError::Foreign)?;
    if count > MOST_ENTRIES as u64 {
        return Err(WireError::TooMany(count));
    }
    let mut items = Vec::new();
    for at in 0..count as usize {
        items.push(entry(&mut from, &fields).ok_or(WireError::Entry(at))?);
    }
    if from.0.is_empty() { Ok(items) } else { Err(WireError::Rest) }
}

fn entry<T>(
    from: &mut Reader<'_>,
    fields: impl Fn(&mut Reader<'_>) -> Option<T>,
) -> Option<(Subject, T)> {
    let length = usize::try_from(from.number()?).ok()?;
    let mut entry = Reader(from.take(length)?);
    let agreement = entry.name(LONGEST_NAME).filter(|name| !name.is_empty())?;
    let subject = Subject { agreement, key: entry.name(LONGEST_KEY)? };
    Some((subject, fields(&mut entry)?))
}

/// What is left to be read.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn byte(&mut self) -> Option<u8> {
        self.take(1).map(|byte| byte[0])
    }

    fn number(&mut self) -> Option<u64> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let byte = u64::from(self.byte()?);
            // The tenth byte has room for one bit.
            if shift == 63 && byte > 1 {
                return None;
            }
            number |= (byte & 0x7F) << shift;
            if byte < 0x80 {
                return Some(number);
            }
        }
        None
    }

    fn name(&mut self, longest: usize) -> Option<String> {
        let length = usize::try_from(self.number()?).ok().filter(|length| *length <= longest)?;
        std::str::from_utf8(self.take(length)?).ok().map(str::to_owned)
    }

    fn holder(&mut self) -> Option<HolderId> {
        self.take(8)?.try_into().ok().map(|bytes| HolderId(u64::from_le_bytes(bytes)))
    }

    fn span(&mut self) -> Option<Span> {
        self.number().map(Span::from_nanos)
    }

    fn rate(&mut self) -> Option<Rate> {
        self.number().map(Rate::from_millionths)
    }

    /// A granter of an earlier release says nothing of them.
    fn rules(&mut self) -> Option<Rules> {
        if self.0.is_empty() {
            return Some(Rules::default());
        }
        let mut rules = Rules { of: self.share()?, ..Rules::default() };
        rules.enforce = if self.flag()? { Enforce::Overload } else { Enforce::Always };
        rules.percent = self.byte().filter(|percent| *percent <= 100)?;
        rules.places = if self.flag()? { Some(self.span()?) } else { None };
        for cap in &mut rules.caps {
            *cap = if self.flag()? { Some(self.share()?) } else { None };
        }
        Some(rules)
    }

    fn flag(&mut self) -> Option<bool> {
        self.byte().filter(|byte| *byte <= 1).map(|byte| byte == 1)
    }

    fn share(&mut self) -> Option<Share> {
        Some(Share::new(self.rate()?, self.number()?))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn any_share() -> impl Strategy<Value = Share> {
        any::<(u64, u64)>().prop_map(|(rate, burst)| Share::new(Rate::from_millionths(rate), burst))
    }

    fn any_subject() -> impl Strategy<Value = Subject> {
        ("[a-z]{1,64}", "\\PC{0,20}").prop_map(|(agreement, key)| Subject { agreement, key })
    }

    fn any_report() -> impl Strategy<Value = Report> {
        (any::<[u64; 6]>(), any_share(), any_share()).prop_map(|(numbers, safe, leased)| {
            let [epoch, holder, sequence, rate, backlog, over] = numbers;
            let over = Span::from_nanos(over);
            let load = Load { rate: Rate::from_millionths(rate), backlog, over };
            Report { epoch, holder: HolderId(holder), sequence, safe, leased, load }
        })
    }

    fn any_rules() -> impl Strategy<Value = Rules> {
        let caps = prop::array::uniform4(prop::option::of(any_share()));
        let places = prop::option::of(any::<u64>().prop_map(Span::from_nanos));
        let all = (any_share(), any::<bool>(), places, 0..=100u8, caps);
        all.prop_map(|(of, overload, places, percent, caps)| {
            let enforce = if overload { Enforce::Overload } else { Enforce::Always };
            Rules { of, enforce, percent, caps, places }
        })
    }

    fn any_answer() -> impl Strategy<Value = Answer> {
        let on_loss = prop_oneof![Just(OnLoss::Safe), Just(OnLoss::Open), Just(OnLoss::Closed)];
        let shares = (any_share(), any_share(), any_share());
        let grant = (any::<[u64; 6]>(), shares, on_loss, any_rules());
        let grant = grant.prop_map(|(numbers, (whole, safe, leased), on_loss, rules)| {
            let [epoch, holder, sequence, fill, term, again] = numbers;
            let (term, again) = (Span::from_nanos(term), Span::from_nanos(again));
            let holder = HolderId(holder);
            Answer::Grant(Grant {
                epoch,
                holder,
                sequence,
                whole,
                bound: safe,
                safe,
                leased,
                fill,
                term,
                again,
                on_loss,
                rules,
            })
        });
        prop_oneof![Just(Answer::Wait), Just(Answer::Unknown), Just(Answer::Full), grant]
    }

    proptest! {
        #[test]
        fn what_is_written_reads_back(
            reports in prop::collection::vec((any_subject(), any_report()), 0..5),
            answers in prop::collection::vec((any_subject(), any_answer()), 0..5),
        ) {
            prop_assert_eq!(read_reports(&write_reports(&reports)), Ok(reports.clone()));
            prop_assert_eq!(read_answers(&write_answers(&answers)), Ok(answers.clone()));
            prop_assert_eq!(read_answers(&write_reports(&reports)), Err(WireError::Foreign));
        }

        #[test]
        fn any_bytes_are_read_or_refused(
            mut bytes in prop::collection::vec(any::<u8>(), 0..200),
            answers in prop::collection::vec((any_subject(), any_answer()), 0..3),
            broken in any::<prop::sample::Index>(),
            with in any::<u8>(),
        ) {
            let _ = (read_reports(&bytes), read_answers(&bytes));
            bytes.splice(0..0, *b"TGLR\x01");
            let _ = read_reports(&bytes);
            let mut message = write_answers(&answers);
            let at = broken.index(message.len());
            message[at] = with;
            let _ = read_answers(&message);
            message.truncate(at);
            prop_assert!(read_answers(&message).is_err(), "a part is no message");
        }
    }

    #[test]
    fn other_versions_and_too_many_entries_are_named() {
        assert_eq!(read_reports(b"TGLR\x02"), Err(WireError::Version(2)));
        assert!(WireError::Version(2).to_string().contains("version 2"));
        assert_eq!(read_reports(b"TGLR\x01\xFF\xFF\x7F"), Err(WireError::TooMany(0x1F_FFFF)));
        assert_eq!(read_reports(b"TGLR\x01\x00x"), Err(WireError::Rest));
        assert_eq!(read_reports(b"GET / HTTP/1.1"), Err(WireError::Foreign));
    }

    #[test]
    fn fields_that_are_added_later_are_skipped() {
        let subject = Subject { agreement: "api".to_owned(), key: String::new() };
        let mut bytes = write_answers(&[(subject.clone(), Answer::Wait)]);
        let length = bytes.len() - 6 - 1;
        bytes[6] += 3;
        bytes.extend_from_slice(b"new");
        assert_eq!(length, 6);
        assert_eq!(read_answers(&bytes), Ok(vec![(subject, Answer::Wait)]));
    }

    #[test]
    fn the_longest_entry_fits() {
        let subject = Subject { agreement: "a".repeat(LONGEST_NAME), key: "k".repeat(LONGEST_KEY) };
        let share = Share::new(Rate::from_millionths(u64::MAX), u64::MAX);
        let grant = Grant {
            epoch: u64::MAX,
            holder: HolderId(u64::MAX),
            sequence: u64::MAX,
            whole: share,
            bound: share,
            safe: share,
            leased: share,
            fill: u64::MAX,
            term: Span::MAX,
            again: Span::MAX,
            on_loss: OnLoss::Closed,
            rules: Rules {
                of: share,
                caps: [Some(share); 4],
                places: Some(Span::MAX),
                ..Rules::default()
            },
        };
        let all = vec![(subject, Answer::Grant(grant)); MOST_ENTRIES + 1];
        let bytes = write_answers(&all);
        assert!(bytes.len() <= LONGEST_MESSAGE);
        assert_eq!(read_answers(&bytes), Ok(all[..MOST_ENTRIES].to_vec()));
    }
}
