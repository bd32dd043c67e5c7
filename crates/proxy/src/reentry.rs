//! Requests that come back: of a service that calls itself through its own gate, or calls one that calls it.
//!
//! Whoever waits for a slot behind its own request waits for ever: that holds the slot until this one is answered. So a
//! request that was made for one that has a slot here takes a place of a small *reserve* if it would have to wait.
//!
//! 1. Each request gets a number, and `overload-context` carries those of its path (`i`), the latest last. Services that
//!    pass it on with their own calls are known exactly.
//! 2. Else the trace of `traceparent` tells. Others of the same trace are taken for its children, too, so all of a trace
//!    have no more than the reserve but one place, and those that are known exactly always find theirs.
//!
//! A stranger may choose a trace, and gains no more by it than that.

use std::array;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use http::{HeaderMap, HeaderName, HeaderValue};
use tidegate_core::rng::Rng;
use tidegate_driver::random_seed;
use tidegate_http::wire;

const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
/// Where the trace is in it, and how much of that is random (W3C Trace Context, 3.2.2.3 and Level 2, 3.3).
const TRACE: std::ops::Range<usize> = 19..35;
/// Numbers of requests: what a structured field can carry (RFC 9651, 3.3.1: 15 digits).
const NUMBERS: u64 = 1 << 48;
/// Parts that are locked one by one.
const SHARDS: usize = 16;
/// Requests of a path that are known: as many gates may be between a service and itself.
const PATH: usize = 4;
/// One more for so many slots, and in any case one for a trace and one beside it.
const RESERVE_OF: u32 = 8;

/// Who has a slot here, by origin, and who came back.
#[derive(Debug)]
pub(crate) struct Reentry {
    holders: [Mutex<Vec<u64>>; SHARDS],
    /// How many have come back and are in the reserve.
    reserved: AtomicU32,
    /// How many of them by a trace alone.
    by_trace: Mutex<BTreeMap<u64, u32>>,
    next: AtomicU64,
}

/// Where a request comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Origin {
    own: u64,
    /// Of those that it was made for, the latest first; 0 is none.
    path: [u64; PATH],
    trace: Option<u64>,
}

impl Origin {
    /// The same, for the upstream, which may pass it on.
    pub(crate) fn add_to(self, context: HeaderValue) -> HeaderValue {
        let mut value = String::from_utf8_lossy(context.as_bytes()).into_owned();
        value.push_str(", i=(");
        let before = self.path[..PATH - 1].iter().rev().filter(|number| **number > 0);
        before.for_each(|number| value.push_str(&format!("{number} ")));
        value.push_str(&format!("{})", self.own));
        HeaderValue::try_from(value).unwrap_or(context)
    }

    /// What it is known by.
    fn numbers(&self) -> impl Iterator<Item = u64> {
        std::iter::once(self.own).chain(self.trace)
    }
}

impl Default for Reentry {
    fn default() -> Self {
        Self {
            holders: array::from_fn(|_| Mutex::default()),
            reserved: AtomicU32::new(0),
            by_trace: Mutex::default(),
            next: AtomicU64::new(random_seed()),
        }
    }
}

impl Reentry {
    /// Whether it was made for a request that has a slot.
    pub(crate) fn comes_back(&self, origin: Origin) -> bool {
        let path = origin.path.into_iter().filter(|number| *number > 0);
        // Who carries a path would have named it.
        let trace = origin.trace.filter(|_| origin.path[0] == 0);
        path.chain(trace).any(|number| self.shard(number).contains(&number))
    }

    /// Where a request comes from.
    pub(crate) fn origin(&self, headers: &HeaderMap) -> Origin {
        let own = Rng::new(self.next.fetch_add(1, Ordering::Relaxed)).next_u64() % NUMBERS;
        let path = carried(headers).unwrap_or_default();
        Origin { own: own.max(1), path, trace: traced(headers) }
    }

    /// A place in the reserve for a request that has come back.
    pub(crate) fn reserve(self: &Arc<Self>, origin: Origin, slots: u32) -> Option<Reserved> {
        if !self.comes_back(origin) {
            return None;
        }
        let most = 2 + slots / RESERVE_OF;
        // Who carries a path was named by it.
        let trace = origin.trace.filter(|_| origin.path[0] == 0);
        let mut by_trace = self.by_trace();
        let others = trace.and_then(|trace| by_trace.get(&trace)).copied().unwrap_or(0);
        if trace.is_some() && others + 1 >= most {
            return None;
        }
        let more = |taken: u32| (taken < most).then_some(taken + 1);
        self.reserved.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?;
        if let Some(trace) = trace {
            by_trace.insert(trace, others + 1);
        }
        drop(by_trace);
        Some(Reserved { reentry: Arc::clone(self), trace })
    }

    fn by_trace(&self) -> MutexGuard<'_, BTreeMap<u64, u32>> {
        self.by_trace.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A request has a slot, until what is returned is dropped.
    pub(crate) fn hold(self: &Arc<Self>, origin: Origin) -> Holding {
        origin.numbers().for_each(|number| self.shard(number).push(number));
        Holding { reentry: Arc::clone(self), origin }
    }

    /// How many are in the reserve.
    pub(crate) fn reserved(&self) -> u32 {
        self.reserved.load(Ordering::Relaxed)
    }

    fn shard(&self, number: u64) -> MutexGuard<'_, Vec<u64>> {
        let shard = &self.holders[(number % SHARDS as u64) as usize];
        shard.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What says that a request has a slot.
#[derive(Debug)]
pub(crate) struct Holding {
    reentry: Arc<Reentry>,
    origin: Origin,
}

impl Drop for Holding {
    fn drop(&mut self) {
        for number in self.origin.numbers() {
            let mut shard = self.reentry.shard(number);
            if let Some(at) = shard.iter().position(|known| *known == number) {
                shard.swap_remove(at);
            }
        }
    }
}

/// A place in the reserve, until it is dropped.
#[derive(Debug)]
pub(crate) struct Reserved {
    reentry: Arc<Reentry>,
    /// By which alone it is known.
    trace: Option<u64>,
}

impl Drop for Reserved {
    fn drop(&mut self) {
        self.reentry.reserved.fetch_sub(1, Ordering::Relaxed);
        let Some(trace) = self.trace else { return };
        let mut by_trace = self.reentry.by_trace();
        match by_trace.get_mut(&trace) {
            Some(count @ 2..) => *count -= 1,
            _ => drop(by_trace.remove(&trace)),
        }
    }
}

/// The numbers in `overload-context`, the latest first.
fn carried(headers: &HeaderMap) -> Option<[u64; PATH]> {
    let context = headers.get(wire::CONTEXT)?.to_str().ok()?;
    let list = context.split(',').find_map(|member| member.trim().strip_prefix("i=("))?;
    let mut path = [0; PATH];
    for (number, place) in list.strip_suffix(')')?.split(' ').rev().zip(&mut path) {
        *place = number.parse().ok().filter(|number| *number < NUMBERS)?;
    }
    Some(path)
}

/// The trace in `traceparent`.
fn traced(headers: &HeaderMap) -> Option<u64> {
    let trace = headers.get(TRACEPARENT)?.to_str().ok()?.get(TRACE)?;
    u64::from_str_radix(trace, 16).ok().filter(|trace| *trace > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(name: &'static str, value: &str) -> HeaderMap {
        let value = HeaderValue::from_bytes(value.as_bytes()).expect("a value");
        HeaderMap::from_iter([(HeaderName::from_static(name), value)])
    }

    #[test]
    fn who_passes_its_context_on_is_known_over_other_gates_too() {
        let [here, there] = [(); 2].map(|()| Arc::<Reentry>::default());
        let pass_on = |origin: Origin| {
            let value = origin.add_to(HeaderValue::from_static("r=(24 1), u=1"));
            with("overload-context", value.to_str().expect("text"))
        };
        let first = here.origin(&HeaderMap::new());
        let slot = here.hold(first);
        assert!(!here.comes_back(first), "it came from nobody");
        let beside = [(); 2].map(|()| there.origin(&pass_on(first)));
        let _slot = there.hold(beside[0]);
        assert!(!there.comes_back(beside[1]), "they have a parent in common, and no more");
        let mut last = beside[0];
        for _ in 0..PATH - 1 {
            let back = here.origin(&pass_on(last));
            assert!(here.comes_back(back) && there.comes_back(back), "{last:?}");
            last = there.origin(&pass_on(last));
        }
        drop(slot);
        assert!(!here.comes_back(here.origin(&pass_on(first))));
    }

    #[test]
    fn a_trace_is_known_and_the_reserve_is_small() {
        let reentry = Arc::<Reentry>::default();
        let trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        let origin = || reentry.origin(&with("traceparent", trace));
        assert!(reentry.reserve(origin(), 1).is_none(), "nobody has a slot");
        let slot = reentry.hold(origin());
        let place = reentry.reserve(origin(), 1).expect("a place");
        assert!(reentry.reserve(origin(), 1).is_none(), "one is all there is for a trace");
        // A child that is known exactly, of a request without a trace, has the other.
        let parent = reentry.origin(&HeaderMap::new());
        let own = reentry.hold(parent);
        let path = parent.add_to(HeaderValue::from_static("u=1"));
        let child = reentry.origin(&HeaderMap::from_iter([(wire::CONTEXT, path)]));
        let beside = reentry.reserve(child, 1).expect("siblings of a trace have not used it up");
        assert!(reentry.reserve(child, 1).is_none(), "two are all there are");
        drop(beside);
        assert!(reentry.reserve(origin(), 8).is_some(), "of eight slots two");
        drop((place, slot, own));
        assert!(reentry.reserved() == 0 && reentry.by_trace().is_empty());
        assert!(reentry.reserve(origin(), 1).is_none());
    }

    #[test]
    fn what_is_malformed_is_nobodys() {
        let reentry = Reentry::default();
        for (name, value) in [
            ("traceparent", "00-short"),
            ("traceparent", "00-0af7651916cd43dd0000000000000000-b7ad6b7169203331-01"),
            ("traceparent", "00-0af7651916cd43ddäöüß"),
            ("overload-context", "r=(1 2), i=5"),
            ("overload-context", "i=(x)"),
            ("overload-context", "i=(-1)"),
            ("overload-context", "i=(1"),
            ("overload-context", "i=(18446744073709551615)"),
        ] {
            let origin = reentry.origin(&with(name, value));
            assert_eq!((origin.path, origin.trace), ([0; PATH], None), "{name}: {value:?}");
        }
    }
}
