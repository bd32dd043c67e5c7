//! Which upstreams are well: learned from their answers, and by asking those that give none.
//!
//! 1. Passive: an upstream that fails `eject_after` times in a row (no connection, broken off, no answer
//!    in time) is out for `eject_for`, the next time for twice as long, up to [`LONGEST_OUT`]. One answer
//!    and it is as good as new. Refusals are no failures: they are answers. Nor is what the client is to blame for: an upload
//!    that breaks off, or a deadline of its own: of a stranger's request nothing counts before `response_timeout`, of a
//!    peer's the `timeout` of a question is enough.
//! 2. Active, if there is a path to ask for: every `interval`, whoever has not answered a request since
//!    the last time is asked; busy ones show their health anyway. While no requests come at all,
//!    everybody is asked only every [`IDLE_INTERVAL`], so that many idle sidecars are no load.
//!    `fall` bad answers in a row and it is out, `rise` good ones and it is back.
//! 3. At most half of a group is ever out. Where more seem ill it is more likely us, or the network, and
//!    sending everything to the few that are left would fell these too.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};
use tidegate_core::{Instant, Span};

use crate::config::{Address, HealthConfig};
use crate::server::Shared;
use crate::upstream;

/// Longest time an upstream is out before it is tried again.
const LONGEST_OUT: Span = Span::from_secs(300);
/// Time between two questions while no requests come.
const IDLE_INTERVAL: Span = Span::from_secs(60);
/// Most upstreams asked at once.
const AT_ONCE: usize = 32;

/// What all threads know of an upstream.
#[derive(Debug)]
pub(crate) struct Peer {
    address: Address,
    in_flight: AtomicU64,
    answers: AtomicU64,
    failures: AtomicU64,
    /// Failures since the last answer or ejection.
    in_a_row: AtomicU32,
    /// Times it was put out since its last answer.
    ejections: AtomicU32,
    /// In nanoseconds of the gate's clock.
    out_until: AtomicU64,
    /// Whether it has not answered when asked.
    ill: AtomicBool,
    /// Why it did not answer the last time that it did not.
    why: Mutex<Option<String>>,
    /// How busy it last said it is, as the bits of an `f32`, and when, in nanoseconds of the gate's clock; 0 is never.
    busy: AtomicU32,
    said: AtomicU64,
}

impl Peer {
    fn new(address: Address) -> Self {
        Self {
            address,
            in_flight: AtomicU64::new(0),
            answers: AtomicU64::new(0),
            failures: AtomicU64::new(0),
            in_a_row: AtomicU32::new(0),
            ejections: AtomicU32::new(0),
            out_until: AtomicU64::new(0),
            ill: AtomicBool::new(false),
            why: Mutex::new(None),
            busy: AtomicU32::new(0),
            said: AtomicU64::new(0),
        }
    }

    /// Whether requests should be sent to it.
    pub(crate) fn is_in(&self, now: Instant) -> bool {
        !self.ill.load(Ordering::Relaxed)
            && now.as_nanos() >= self.out_until.load(Ordering::Relaxed)
    }

    /// Requests of all threads that it has.
    pub(crate) fn in_flight(&self) -> u64 {
        self.in_flight.load(Ordering::Relaxed)
    }

    pub(crate) fn on_send(&self) {
        self.in_flight.fetch_add(1, Ordering::Relaxed);
    }

    /// A request is not there any more, however it ended.
    pub(crate) fn on_end(&self) {
        self.in_flight.fetch_sub(1, Ordering::Relaxed);
    }

    /// It says how busy it is, 1 being full.
    pub(crate) fn on_report(&self, now: Instant, utilization: f32) {
        self.busy.store(utilization.to_bits(), Ordering::Relaxed);
        self.said.store(now.as_nanos().max(1), Ordering::Relaxed);
    }

    /// How busy it said it is, if that is not older than `age`.
    fn reported(&self, now: Instant, age: Span) -> Option<f64> {
        let said = Instant::from_nanos(self.said.load(Ordering::Relaxed));
        let fresh = said > Instant::ZERO && now.since(said) <= age;
        fresh.then(|| f64::from(f32::from_bits(self.busy.load(Ordering::Relaxed))))
    }

    /// It has answered: with whatever, it lives.
    pub(crate) fn on_answer(&self) {
        self.answers.fetch_add(1, Ordering::Relaxed);
        if self.in_a_row.load(Ordering::Relaxed) > 0 || self.ejections.load(Ordering::Relaxed) > 0 {
            self.in_a_row.store(0, Ordering::Relaxed);
            self.ejections.store(0, Ordering::Relaxed);
            self.out_until.store(0, Ordering::Relaxed);
        }
    }

    /// No answer. While it is out, what was sent before fails too, and is no news.
    pub(crate) fn on_failure(&self, now: Instant, config: &HealthConfig) {
        self.failures.fetch_add(1, Ordering::Relaxed);
        if now.as_nanos() < self.out_until.load(Ordering::Relaxed) {
            return;
        }
        let in_a_row = self.in_a_row.fetch_add(1, Ordering::Relaxed) + 1;
        if config.eject_after == 0 || in_a_row < config.eject_after {
            return;
        }
        self.in_a_row.store(0, Ordering::Relaxed);
        let times = self.ejections.fetch_add(1, Ordering::Relaxed).min(16);
        let nanos = config.eject_for.as_nanos().saturating_mul(1 << times);
        let until = now + Span::from_nanos(nanos).min(LONGEST_OUT);
        self.out_until.store(until.as_nanos(), Ordering::Relaxed);
    }

    /// Why it has not answered: for operators, as clients are not told.
    pub(crate) fn note(&self, why: &impl fmt::Display) {
        *self.why.lock().unwrap_or_else(PoisonError::into_inner) = Some(why.to_string());
    }

    fn why(&self) -> Option<String> {
        self.why.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn address(&self) -> &Address {
        &self.address
    }

    /// For the pages.
    pub(crate) fn report(&self, now: Instant) -> Value {
        let out = self.out_until.load(Ordering::Relaxed).saturating_sub(now.as_nanos());
        json!({
            "address": self.address.to_string(),
            "in": self.is_in(now),
            "answers_probes": !self.ill.load(Ordering::Relaxed),
            "out_for_ms": out / 1_000_000,
            "in_flight": self.in_flight(),
            "answers": self.answers.load(Ordering::Relaxed),
            "failures": self.failures.load(Ordering::Relaxed),
            "last_failure": self.why(),
        })
    }
}

/// All upstreams of a process. Clones are the same list.
#[derive(Clone, Debug, Default)]
pub(crate) struct Peers(Arc<Mutex<BTreeMap<Address, Arc<Peer>>>>);

impl Peers {
    /// The peer behind `address`, a new one if nobody knows it.
    pub(crate) fn get(&self, address: &Address) -> Arc<Peer> {
        let mut peers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let new = || Arc::new(Peer::new(address.clone()));
        Arc::clone(peers.entry(address.clone()).or_insert_with(new))
    }

    /// Forgets those that are not in use any more.
    pub(crate) fn keep(&self, used: impl Fn(&Address) -> bool) {
        let mut peers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        peers.retain(|address, _| used(address));
    }

    /// How busy those are that have said so within `age`: their mean, as replicas share what comes.
    pub(crate) fn reported(&self, now: Instant, age: Span) -> Option<f64> {
        let said = self.all().into_iter().filter_map(|peer| peer.reported(now, age));
        let (count, sum) = said.fold((0.0, 0.0), |(count, sum), busy| (count + 1.0, sum + busy));
        (count > 0.0).then(|| sum / count)
    }

    pub(crate) fn all(&self) -> Vec<Arc<Peer>> {
        let peers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        peers.values().cloned().collect()
    }
}

/// Of `members`, those that requests should be sent to: those that are in, or all if that were less
/// than half.
pub(crate) fn usable<'a, T>(
    members: &'a [T],
    peer: impl Fn(&T) -> &Peer + 'a,
    now: Instant,
) -> impl Iterator<Item = &'a T> {
    let well = members.iter().filter(|member| peer(member).is_in(now)).count();
    let all = well * 2 < members.len();
    members.iter().filter(move |member| all || peer(member).is_in(now))
}

/// Asks upstreams how they are, for ever.
pub(crate) async fn ask(shared: Arc<Shared>) {
    let mut known: BTreeMap<Address, Asked> = BTreeMap::new();
    let mut idle = Duration::ZERO;
    loop {
        let file = shared.file();
        let health = file.proxy.health.clone();
        let interval = Duration::from(health.interval);
        tokio::time::sleep(interval).await;
        let Some(path) = health.path.clone() else {
            shared.peers.all().iter().for_each(|peer| peer.ill.store(false, Ordering::Relaxed));
            known.clear();
            continue;
        };
        let peers = shared.peers.all();
        known.retain(|address, _| peers.iter().any(|peer| peer.address == *address));
        let mut due = Vec::new();
        let mut busy = false;
        for peer in peers {
            let (answers, failures) =
                (peer.answers.load(Ordering::Relaxed), peer.failures.load(Ordering::Relaxed));
            let asked = known.entry(peer.address.clone()).or_default();
            let answered = answers != std::mem::replace(&mut asked.answers, answers);
            let ill = peer.ill.load(Ordering::Relaxed);
            busy |= answered || failures != std::mem::replace(&mut asked.failures, failures);
            // What is in doubt is found out at the usual pace.
            busy |= ill || asked.against > 0;
            if !answered || ill {
                due.push(peer);
            }
        }
        idle = if busy { Duration::ZERO } else { idle + interval };
        // At first nobody has been asked, so everybody is.
        if idle >= Duration::from(IDLE_INTERVAL) {
            idle = interval;
        } else if idle > interval {
            continue;
        }
        for some in due.chunks(AT_ONCE) {
            let tasks: Vec<_> = some
                .iter()
                .map(|peer| {
                    let (tls, limit) = (shared.tls(), Duration::from(health.timeout));
                    let (address, path) = (peer.address.clone(), path.clone());
                    tokio::spawn(async move { upstream::probe(&address, tls, &path, limit).await })
                })
                .collect();
            for (peer, task) in some.iter().zip(tasks) {
                let good = task.await.is_ok_and(|good| good);
                let Some(asked) = known.get_mut(&peer.address) else { continue };
                if let Some(ill) = asked.learn(good, &health, peer.ill.load(Ordering::Relaxed)) {
                    peer.ill.store(ill, Ordering::Relaxed);
                    let how = if ill { "does not answer any more" } else { "answers again" };
                    shared.log(&format_args!("{} {how} on {path}", peer.address));
                }
            }
        }
    }
}

/// Time between two looks at who does not answer.
const OUTAGE_LOOK: Duration = Duration::from_millis(500);

/// Tells when an upstream does not answer requests, and when it does again: a line each.
pub(crate) async fn tell_outages(shared: Arc<Shared>) {
    let mut silent: BTreeMap<Address, Arc<Peer>> = BTreeMap::new();
    loop {
        tokio::time::sleep(OUTAGE_LOOK).await;
        for peer in shared.peers.all() {
            let never = peer.answers.load(Ordering::Relaxed) == 0;
            let fails = never && peer.failures.load(Ordering::Relaxed) > 0
                || peer.ejections.load(Ordering::Relaxed) > 0;
            let address = &peer.address;
            match (fails, silent.contains_key(address)) {
                (true, false) if never => shared.log(&format_args!(
                    "{address} has not answered a request yet: does it run, and is the address right?"
                )),
                (true, false) => {
                    let why = peer.why().unwrap_or_default();
                    shared.log(&format_args!("{address} does not answer requests: {why}"));
                }
                (false, true) => shared.log(&format_args!("{address} answers requests")),
                _ => continue,
            }
            match fails {
                true => drop(silent.insert(address.clone(), peer)),
                false => drop(silent.remove(address)),
            }
        }
        // One that was taken out of the file and comes back is a new one.
        let all = shared.peers.all();
        silent.retain(|_, peer| all.iter().any(|one| Arc::ptr_eq(one, peer)));
    }
}

/// What is remembered of an upstream between two questions.
#[derive(Debug, Default)]
struct Asked {
    answers: u64,
    failures: u64,
    /// Answers to questions that contradict what it is taken for, in a row.
    against: u32,
}

impl Asked {
    /// An answer: whether it is ill, if that has changed.
    fn learn(&mut self, good: bool, config: &HealthConfig, ill: bool) -> Option<bool> {
        if good != ill {
            self.against = 0;
            return None;
        }
        self.against += 1;
        let enough = if ill { config.rise } else { config.fall };
        (self.against >= enough).then(|| {
            self.against = 0;
            !ill
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(secs: u64) -> Instant {
        Instant::ZERO + Span::from_secs(secs)
    }

    fn peer(n: u16) -> Peer {
        Peer::new(format!("http://a:{n}").parse().expect("an address"))
    }

    #[test]
    fn failures_in_a_row_put_an_upstream_out_for_longer_each_time() {
        let (peer, config) = (peer(1), HealthConfig::default());
        let fail = |now| (0..config.eject_after).for_each(|_| peer.on_failure(now, &config));
        for _ in 0..20 {
            peer.on_failure(at(1), &config);
            peer.on_answer();
        }
        assert!(peer.is_in(at(1)), "never in a row");
        fail(at(1));
        assert!(!peer.is_in(at(10)) && peer.is_in(at(11)));
        (0..9).for_each(|_| fail(at(2)));
        assert!(peer.is_in(at(11)), "what was in flight fails with it");
        fail(at(11));
        assert!(!peer.is_in(at(30)) && peer.is_in(at(31)));
        (0..20).for_each(|n| fail(at(31 + 300 * n)));
        assert!(!peer.is_in(at(6_030)) && peer.is_in(at(6_031)), "never longer than that");
        fail(at(7_000));
        peer.on_answer();
        assert!(peer.is_in(at(7_000)), "one answer and it is as good as new");
        fail(at(7_000));
        assert!(peer.is_in(at(7_010)));
    }

    #[test]
    fn at_most_half_of_a_group_is_out() {
        let (peers, config) = ([1, 2, 3, 4].map(peer), HealthConfig::default());
        let usable = || usable(&peers, |peer| peer, at(1)).count();
        for (n, left) in [(0, 3), (1, 2), (2, 4), (3, 4)] {
            (0..config.eject_after).for_each(|_| peers[n].on_failure(at(1), &config));
            assert_eq!(usable(), left, "{n}");
        }
    }

    #[test]
    fn answers_to_questions_count_in_a_row() {
        let config = HealthConfig { fall: 3, rise: 2, ..HealthConfig::default() };
        let (mut asked, mut ill) = (Asked::default(), false);
        let told = [false, false, true, false, false, false, true, false, true, true];
        let states: Vec<bool> = told
            .into_iter()
            .map(|good| {
                ill = asked.learn(good, &config, ill).unwrap_or(ill);
                ill
            })
            .collect();
        let wanted = [false, false, false, false, false, true, true, true, true, false];
        assert_eq!(states, wanted);
    }
}
