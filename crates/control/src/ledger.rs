//! What has to outlive the daemon, and nothing else: its epoch, the agreements, what they were before, and
//! what nodes may still know of. Not what is leased: after a crash that is waited out. A daemon that ends in order
//! leaves it to the next, which takes it up once.
//!
//! The ledger is one JSON file, written whole: to a new file beside it, to the disk, and then renamed, so that
//! there is the old one or the new one at any moment. It is written *before* anything is said
//! that follows from it. A lock beside it keeps a second daemon from using it.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use tidegate_core::config::Problems;
use tidegate_core::share::wire::Subject;
use tidegate_core::share::{HolderId, Legacy, Rate, Share};

use crate::agreement::{Agreement, Agreements, Store};
use crate::book::{Before, Will};

/// The form of the file that is written and read.
const FORMAT: u32 = 1;
/// Changes that are kept, to be looked at and gone back to.
pub const MOST_CHANGES: usize = 100;
/// What nodes may know of one agreement besides the one in force.
const MOST_PAST: usize = 32;
/// Longest file that is read: the largest agreements, a hundred times.
const LONGEST: u64 = 256 << 20;

/// See the module.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ledger {
    format: u32,
    /// Larger than that of every daemon before, by this ledger and by the calendar.
    pub epoch: u64,
    /// Counts changes.
    pub version: u64,
    /// What is in force.
    pub agreements: Vec<Agreement>,
    /// By name, what nodes may know of besides: what was in force and has not been settled.
    pub past: BTreeMap<String, Vec<Agreement>>,
    /// The latest changes, oldest first.
    pub changes: Vec<Change>,
    /// The agreements of the configuration file as they were when it was read last.
    pub seed: Vec<Agreement>,
    /// What the daemon left that ended in order, and when; gone as soon as the next one has begun.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub will: Option<Testament>,
}

/// What is leased, as one daemon leaves it to the next.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Testament {
    /// When it ended, in milliseconds since 1970.
    pub unix_ms: u64,
    /// Each lease.
    pub leases: Vec<LeaseLeft>,
}

/// One lease of it; rates in millionths of a token per second.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LeaseLeft {
    agreement: String,
    key: String,
    holder: u64,
    sequence: u64,
    committed: (u64, u64),
    safe: (u64, u64),
}

impl Testament {
    /// Of what a book knows.
    pub fn new(unix_ms: u64, will: &Will) -> Self {
        let of = |share: Share| (share.rate.millionths(), share.burst);
        let leases = will.iter().flat_map(|(subject, legacies)| {
            legacies.iter().map(move |legacy| LeaseLeft {
                agreement: subject.agreement.clone(),
                key: subject.key.clone(),
                holder: legacy.holder.0,
                sequence: legacy.sequence,
                committed: of(legacy.committed),
                safe: of(legacy.safe),
            })
        });
        Self { unix_ms, leases: leases.collect() }
    }

    /// What a book understands; none if it is older than a minute, or from the future: then it may be a
    /// copy of long ago.
    fn read(&self, unix_ms: u64) -> Option<Will> {
        let share = |(rate, burst)| Share::new(Rate::from_millionths(rate), burst);
        let fresh = (self.unix_ms..=self.unix_ms.saturating_add(60_000)).contains(&unix_ms);
        let mut will = BTreeMap::<Subject, Vec<Legacy>>::new();
        for left in &self.leases {
            let subject = Subject { agreement: left.agreement.clone(), key: left.key.clone() };
            will.entry(subject).or_default().push(Legacy {
                holder: HolderId(left.holder),
                sequence: left.sequence,
                committed: share(left.committed),
                safe: share(left.safe),
            });
        }
        fresh.then(|| will.into_iter().collect())
    }
}

/// Who changed what, and when.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Change {
    /// What the change made.
    pub version: u64,
    /// When, in milliseconds since 1970.
    pub unix_ms: u64,
    /// Who: an address, or the configuration file.
    pub who: String,
    /// In words, one for each agreement that changed.
    pub what: Vec<String>,
    /// What was in force from then on.
    pub agreements: Vec<Agreement>,
}

impl Ledger {
    /// Of nothing.
    fn new() -> Self {
        Self {
            format: FORMAT,
            epoch: 0,
            version: 0,
            agreements: Vec::new(),
            past: BTreeMap::new(),
            changes: Vec::new(),
            seed: Vec::new(),
            will: None,
        }
    }

    /// The same with other agreements, or why not. None if nothing changes.
    pub fn changed(
        &self,
        agreements: Vec<Agreement>,
        who: &str,
        unix_ms: u64,
    ) -> Result<Option<Self>, String> {
        let what = differences(&self.agreements, &agreements);
        if what.is_empty() {
            return Ok(None);
        }
        let mut next = self.clone();
        for old in &self.agreements {
            if agreements.contains(old) {
                continue;
            }
            let new = agreements.iter().find(|new| new.name == old.name);
            let counts = |of: &Agreement| (of.each, of.unit, of.places.is_some());
            if new.is_some_and(|new| counts(new) != counts(old)) {
                return Err(format!(
                    "agreement {} cannot count something else, or for others, while nodes use it: \
                     give the new one another name",
                    old.name
                ));
            }
            let past = next.past.entry(old.name.clone()).or_default();
            past.retain(|past| past != old);
            past.push(old.clone());
            if past.len() > MOST_PAST {
                return Err(format!(
                    "agreement {} has changed {MOST_PAST} times since it was settled: nodes may know of \
                     any of them. Settle it once all nodes have heard (POST /v1/settle?agreement={})",
                    old.name, old.name
                ));
            }
        }
        next.version += 1;
        next.agreements.clone_from(&agreements);
        let (version, who) = (next.version, who.to_owned());
        next.changes.push(Change { version, unix_ms, who, what, agreements });
        let many = next.changes.len().saturating_sub(MOST_CHANGES);
        next.changes.drain(..many);
        Ok(Some(next))
    }

    /// No node knows of anything of `name` but what is in force.
    pub fn settled(&self, name: &str) -> Self {
        let mut next = self.clone();
        next.past.remove(name);
        next
    }

    /// The same as it is left to the next daemon.
    pub fn leaving(&self, will: Option<Testament>) -> Self {
        Self { will, ..self.clone() }
    }

    /// What was in force at `version`, if that is still known.
    pub fn at(&self, version: u64) -> Option<&[Agreement]> {
        let change = self.changes.iter().find(|change| change.version == version)?;
        Some(&change.agreements)
    }

    fn check(&self) -> Result<(), String> {
        let list = Agreements { agreements: self.agreements.clone() };
        let text = tidegate_core::config::print(&list);
        let parsed = Agreements::parse(&text).map_err(|error| error.to_string())?;
        let mut problems = Problems::default();
        problems.check("agreements", "", parsed == list, "what reads back as it was");
        problems.into_result().map_err(|error| error.to_string())
    }
}

/// In words, what is different.
fn differences(before: &[Agreement], after: &[Agreement]) -> Vec<String> {
    let find = |list: &[Agreement], name: &str| list.iter().find(|at| at.name == name).cloned();
    let made = after.iter().filter_map(|new| match find(before, &new.name) {
        None => match new.places {
            Some(places) => Some(format!("{}: new, {places} in flight", new.name)),
            None => Some(format!("{}: new, {}/s, burst {}", new.name, new.rate, new.burst)),
        },
        Some(old) if old == *new => None,
        Some(old) if old.places != new.places => Some(format!(
            "{}: {} in flight instead of {}",
            new.name,
            new.places.unwrap_or_default(),
            old.places.unwrap_or_default()
        )),
        Some(old) if (old.rate, old.burst) != (new.rate, new.burst) => Some(format!(
            "{}: {}/s, burst {} instead of {}/s, burst {}",
            new.name, new.rate, new.burst, old.rate, old.burst
        )),
        Some(_) => Some(format!("{}: other terms", new.name)),
    });
    let gone = before.iter().filter(|old| find(after, &old.name).is_none());
    made.chain(gone.map(|old| format!("{}: gone", old.name))).collect()
}

/// Where a ledger is kept.
#[derive(Debug)]
pub struct Keeper {
    path: Option<PathBuf>,
    /// Held as long as the daemon runs.
    _lock: Option<fs::File>,
}

impl Keeper {
    /// Opens the store: the ledger as this daemon begins with it, already durable, and what is known of
    /// leases of another.
    pub fn open(store: &Store, unix_ms: u64) -> Result<(Self, Ledger, Before), String> {
        let (keeper, found) = match store {
            Store::Memory => (Self { path: None, _lock: None }, None),
            Store::File(path) => {
                let path = PathBuf::from(path);
                let lock = lock(&path)?;
                let found = read(&path)?;
                (Self { path: Some(path), _lock: Some(lock) }, found)
            }
        };
        let known = found.is_some() || keeper.path.is_none();
        let mut ledger = found.unwrap_or_else(Ledger::new);
        // Taken up once: after the next line that is durable.
        let will = ledger.will.take().and_then(|will| will.read(unix_ms));
        let before = match will {
            Some(will) => Before::Known(will),
            None if known => Before::Unknown,
            None => Before::Nobody,
        };
        ledger.epoch = unix_ms.max(ledger.epoch.saturating_add(1));
        keeper.save(&ledger)?;
        Ok((keeper, ledger, before))
    }

    /// Makes a ledger durable. After an error the one before is.
    pub fn save(&self, ledger: &Ledger) -> Result<(), String> {
        let Some(path) = &self.path else { return Ok(()) };
        let told = |error: io::Error| {
            format!("cannot write the state to {}: {error}; nothing has changed", path.display())
        };
        let text = serde_json::to_vec_pretty(ledger).map_err(|error| error.to_string())?;
        let new = beside(path, "new");
        let write = || {
            let mut file = fs::File::create(&new)?;
            file.write_all(&text)?;
            file.sync_all()?;
            fs::rename(&new, path)?;
            // The name too has to be on the disk.
            fs::File::open(folder(path))?.sync_all()
        };
        write().map_err(told)
    }
}

fn read(path: &Path) -> Result<Option<Ledger>, String> {
    let name = path.display();
    let text = match fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(format!("cannot read the state in {name}: {error}")),
        Ok(data) if data.len() > LONGEST => {
            return Err(format!("{name} is too long to be a state"));
        }
        Ok(_) => fs::read_to_string(path)
            .map_err(|error| format!("cannot read the state in {name}: {error}"))?,
    };
    let value: serde_json::Value = serde_json::from_str(&text)
        .map_err(|error| format!("{name} is no state of tidegate control: {error}"))?;
    match value["format"].as_u64() {
        Some(format) if format == u64::from(FORMAT) => {}
        Some(format) if format > u64::from(FORMAT) => {
            return Err(format!(
                "the state in {name} is of format {format}, and this tidegate reads {FORMAT}: \
                 a newer release has written it, so run that one"
            ));
        }
        _ => return Err(format!("{name} is no state of tidegate control: it has no format")),
    }
    let ledger: Ledger = serde_json::from_value(value)
        .map_err(|error| format!("{name} is no state of tidegate control: {error}"))?;
    ledger.check().map_err(|error| format!("the state in {name} is not valid\n{error}"))?;
    Ok(Some(ledger))
}

/// One daemon at a time.
fn lock(path: &Path) -> Result<fs::File, String> {
    let name = beside(path, "lock");
    let open = OpenOptions::new().create(true).truncate(false).write(true).open(&name);
    let file = open.map_err(|error| format!("cannot open {}: {error}", name.display()))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => {
            Err(format!("another tidegate control uses the state in {}", path.display()))
        }
        Err(TryLockError::Error(error)) => Err(format!("cannot lock {}: {error}", name.display())),
    }
}

fn beside(path: &Path, end: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".");
    name.push(end);
    PathBuf::from(name)
}

fn folder(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn api(rate: f64) -> Agreement {
        Agreement { name: "api".to_owned(), rate, ..Agreement::default() }
    }

    /// A file of this test's own, gone at its end.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            let name = format!("tidegate-ledger-{name}-{}", std::process::id());
            let folder = std::env::temp_dir().join(name);
            fs::create_dir_all(&folder).expect("a folder of its own");
            Self(folder)
        }

        fn path(&self) -> String {
            self.0.join("state.json").to_str().expect("text").to_owned()
        }

        fn store(&self) -> Store {
            Store::File(self.path())
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn what_is_saved_is_there_after_a_restart_with_a_larger_epoch() {
        let scratch = Scratch::new("restart");
        let (keeper, ledger, before) = Keeper::open(&scratch.store(), 1_000).expect("new");
        assert!(matches!(before, Before::Nobody) && ledger.epoch == 1_000);
        let next = ledger.changed(vec![api(5.0)], "me", 1).expect("fits").expect("a change");
        keeper.save(&next).expect("writable");
        drop(keeper);
        // The calendar was set back meanwhile.
        let (_, ledger, before) = Keeper::open(&scratch.store(), 10).expect("there");
        assert!(matches!(before, Before::Unknown));
        assert_eq!((ledger.epoch, ledger.version), (1_001, 1));
        assert_eq!(ledger.agreements, [api(5.0)]);
    }

    /// What is left is believed once, and only soon after.
    #[test]
    fn a_will_is_taken_up_once() {
        let scratch = Scratch::new("will");
        let share = Share::new(Rate::from_millionths(7), 5);
        let legacy =
            Legacy { holder: HolderId(u64::MAX), sequence: 3, committed: share, safe: share };
        let subject = Subject { agreement: "api".to_owned(), key: "k".to_owned() };
        let will = vec![(subject, vec![legacy])];
        let left = |at| {
            let (keeper, ledger, _) = Keeper::open(&scratch.store(), 1).expect("there");
            let will = Some(Testament::new(at, &will));
            keeper.save(&Ledger { will, ..ledger }).expect("writable");
        };
        let open = |at| Keeper::open(&scratch.store(), at).expect("there").2;
        left(1_000);
        assert!(matches!(open(2_000), Before::Known(found) if found == will));
        assert!(matches!(open(2_000), Before::Unknown), "it is gone");
        for opened in [999, 61_001] {
            left(1_000);
            assert!(matches!(open(opened), Before::Unknown), "a copy of another time");
        }
    }

    #[test]
    fn one_daemon_uses_a_state_at_a_time() {
        let scratch = Scratch::new("lock");
        let (keeper, _, _) = Keeper::open(&scratch.store(), 1).expect("new");
        let error = Keeper::open(&scratch.store(), 1).expect_err("it is in use");
        assert!(error.contains("another tidegate control"), "{error}");
        drop(keeper);
        assert!(Keeper::open(&scratch.store(), 1).is_ok());
    }

    #[test]
    fn what_is_no_state_is_named_and_left_alone() {
        let scratch = Scratch::new("bad");
        for (text, part) in [
            ("", "is no state"),
            ("{}", "it has no format"),
            ("{\"format\": 2}", "a newer release"),
            ("{\"format\": 1}", "missing field"),
        ] {
            fs::write(scratch.path(), text).expect("writable");
            let error = Keeper::open(&scratch.store(), 1).expect_err(text);
            assert!(error.contains(part), "{error}");
            assert_eq!(fs::read_to_string(scratch.path()).expect("there"), text);
        }
        let nowhere = Store::File(format!("{}/none/state", scratch.path()));
        assert!(Keeper::open(&nowhere, 1).is_err());
    }

    #[test]
    fn what_was_in_force_is_remembered_until_it_is_settled() {
        let ledger = Ledger::new();
        let change = |ledger: &Ledger, agreements| {
            ledger.changed(agreements, "me", 7).expect("fits").expect("a change")
        };
        let one = change(&ledger, vec![api(100.0)]);
        assert_eq!(one.changed(vec![api(100.0)], "me", 7), Ok(None));
        let two = change(&one, vec![api(10.0)]);
        let gone = change(&two, Vec::new());
        assert_eq!(gone.past["api"], [api(100.0), api(10.0)]);
        assert_eq!(gone.changes[2].what, ["api: gone"]);
        assert_eq!(gone.at(1), Some(&[api(100.0)][..]));
        assert!(gone.settled("api").past.is_empty());
        let mut many = gone;
        for rate in 0..40 {
            match many.changed(vec![api(1.0 + f64::from(rate))], "me", 7) {
                Ok(next) => many = next.expect("a change"),
                Err(error) => {
                    assert!(error.contains("/v1/settle"), "{error}");
                    return;
                }
            }
        }
        panic!("nothing bounds the past");
    }
}
