//! Which requests are inside the guarded service now, so that a call it sends out is known for whose it is.
//!
//! A service does not say for which request it makes a call. But it copies something of the request:
//! `overload-context` if it knows us, `traceparent` if its calls are traced (whoever runs OpenTelemetry
//! copies that without a line of code), or `x-request-id`. So
//!
//! 1. a request that comes in has ids that are its own: those it lacks are made here, and at the edge those
//!    of strangers are replaced, or whoever learns an id could pass for another;
//! 2. it is listed by them until the last byte of its answer;
//! 3. a call that goes out is looked up by what it carries, the surest first.
//!
//! **Several requests can have one id**: a trace that passes here twice, a fan-out, a client that uses one
//! for ever. Then the least important rank and the shortest deadline of them count, so that nothing is gained by
//! sharing one. What is not listed is not matched: an id of yesterday, or of another process, means nothing.
//!
//! The table also knows for how long a request has waited for its own calls, so that the rest of its time
//! is the service's own, and whether one of them was refused for good.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use http::{HeaderMap, HeaderName, HeaderValue};
use tidegate_core::rng::Rng;
use tidegate_core::{Context, Instant, Rank, Rejection, RequestId, Span};
use tidegate_driver::SharedGate;
use tidegate_http::wire;

/// Requests that are listed at once. Each takes about 1 kB: 64 MB. Calls of those beyond are not matched.
const MOST: usize = 1 << 16;
/// Longest `x-request-id` that is listed, in bytes; longer ones are of no use as ids.
const LONGEST_ID: usize = 128;
/// Longest `overload-context` that is listed: ours have at most 420 bytes.
const LONGEST_CONTEXT: usize = 512;

const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// By what a call was matched to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum By {
    /// The service has copied `overload-context`, or written one.
    Context,
    /// The id of its trace.
    Trace,
    /// `x-request-id`.
    RequestId,
}

impl By {
    /// All of them, the surest first.
    pub(crate) const ALL: [Self; 3] = [Self::Context, Self::Trace, Self::RequestId];

    /// The field it stands in.
    pub(crate) const fn field(self) -> &'static str {
        match self {
            Self::Context => "overload-context",
            Self::Trace => "traceparent",
            Self::RequestId => "x-request-id",
        }
    }
}

/// The requests of one process. All its threads share it, as a call may come to another one than its request.
#[derive(Debug)]
pub(crate) struct InFlight {
    table: Mutex<Table>,
}

#[derive(Debug)]
struct Table {
    requests: BTreeMap<u64, Inside>,
    ids: BTreeMap<Id, Sharing>,
    next: u64,
    rng: Rng,
}

/// What a request is known by.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Id {
    Context(Box<[u8]>),
    Trace(u128),
    Request(Box<[u8]>),
}

impl Id {
    fn of(headers: &HeaderMap, by: By) -> Option<Self> {
        let bytes = |name: &HeaderName, longest: usize| {
            let value = only(headers, name)?.as_bytes();
            (1..=longest).contains(&value.len()).then(|| Box::from(value))
        };
        match by {
            By::Context => bytes(&wire::CONTEXT, LONGEST_CONTEXT).map(Self::Context),
            By::Trace => {
                let (trace, _) = trace_of(only(headers, &TRACEPARENT)?.as_bytes())?;
                Some(Self::Trace(trace))
            }
            By::RequestId => bytes(&REQUEST_ID, LONGEST_ID).map(Self::Request),
        }
    }
}

/// Requests that have one id, each by its number.
#[derive(Debug, Default)]
struct Sharing {
    ranks: BTreeSet<(Rank, u64)>,
    deadlines: BTreeSet<(Instant, u64)>,
}

#[derive(Debug)]
struct Inside {
    context: Context,
    /// Who it is in the gate; none if the gate was not asked.
    request: Option<RequestId>,
    ids: Vec<Id>,
    since: Instant,
    /// Calls of it that are on their way, since when there are any, and the most of them at once.
    calls: u32,
    calling_since: Instant,
    most_calls: u32,
    /// For how long it has waited for calls before.
    waited: Span,
    /// The last that was refused and not answered after all.
    refused: Option<Rejection>,
}

/// What is known of the request that a call is made for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Found {
    pub(crate) by: By,
    /// Of several with one id, the least important; with the shortest of their deadlines.
    pub(crate) context: Context,
    pub(crate) request: Option<RequestId>,
    number: u64,
}

impl InFlight {
    pub(crate) fn new(seed: u64) -> Self {
        let (requests, ids) = (BTreeMap::new(), BTreeMap::new());
        Self { table: Mutex::new(Table { requests, ids, next: 0, rng: Rng::new(seed) }) }
    }

    /// Sees to it that a request has ids: those it lacks are made, and of strangers all are. Of the traces that begin
    /// here a share `sample` is marked to be collected.
    pub(crate) fn identify(&self, headers: &mut HeaderMap, trusted: bool, sample: f64) {
        let known = only(headers, &TRACEPARENT).and_then(|told| trace_of(told.as_bytes()));
        // Whoever has begun a trace has decided whether it is collected.
        let sampled = known.map(|(_, sampled)| sampled);
        let new_trace = known.is_none() || !trusted;
        let new_id = !trusted || Id::of(headers, By::RequestId).is_none();
        if !new_trace && !new_id {
            return;
        }
        let mut table = self.lock();
        if new_trace {
            let sampled = sampled.unwrap_or_else(|| table.rng.unit() < sample);
            let (trace, span) = (table.draw(), table.rng.next_u64() | 1);
            headers.insert(
                TRACEPARENT,
                value(format!("00-{trace:032x}-{span:016x}-0{}", u8::from(sampled))),
            );
            // It belongs to the trace that was.
            headers.remove(TRACESTATE);
        }
        if new_id {
            let id = format!("{:032x}", table.draw());
            headers.insert(REQUEST_ID, value(id));
        }
    }

    /// Lists a request that goes to the service with these headers, until what is returned is dropped.
    pub(crate) fn list(
        self: &Arc<Self>,
        now: Instant,
        headers: &HeaderMap,
        context: &Context,
        request: Option<RequestId>,
    ) -> Listed {
        let ids: Vec<Id> = By::ALL.into_iter().filter_map(|by| Id::of(headers, by)).collect();
        let mut table = self.lock();
        if table.requests.len() >= MOST {
            return Listed { of: None };
        }
        let number = table.next;
        table.next += 1;
        for id in &ids {
            let sharing = table.ids.entry(id.clone()).or_default();
            sharing.ranks.insert((context.rank, number));
            sharing.deadlines.insert((context.deadline, number));
        }
        let inside = Inside {
            context: *context,
            request,
            ids,
            since: now,
            calls: 0,
            calling_since: now,
            most_calls: 0,
            waited: Span::ZERO,
            refused: None,
        };
        table.requests.insert(number, inside);
        Listed { of: Some(Box::new((Arc::clone(self), number))) }
    }

    /// The request that a call with these headers is made for.
    pub(crate) fn find(&self, headers: &HeaderMap) -> Option<Found> {
        let table = self.lock();
        By::ALL.into_iter().find_map(|by| {
            let sharing = table.ids.get(&Id::of(headers, by)?)?;
            let (_, number) = *sharing.ranks.last()?;
            let (deadline, _) = *sharing.deadlines.first()?;
            let Inside { context, request, .. } = *table.requests.get(&number)?;
            Some(Found { by, context: Context { deadline, ..context }, request, number })
        })
    }

    /// A call is made for a request: it waits until what is returned is dropped.
    pub(crate) fn begin(self: &Arc<Self>, gate: &SharedGate, found: &Found) -> Calling {
        if let Some(inside) = self.lock().requests.get_mut(&found.number) {
            if inside.calls == 0 {
                (inside.calling_since, inside.most_calls) = (gate.now(), 0);
            }
            inside.calls += 1;
            inside.most_calls = inside.most_calls.max(inside.calls);
        }
        Calling { table: Arc::clone(self), gate: gate.clone(), number: found.number }
    }

    /// How many are listed.
    pub(crate) fn count(&self) -> usize {
        self.lock().requests.len()
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    fn draw(&mut self) -> u128 {
        let (high, low) = (self.rng.next_u64(), self.rng.next_u64());
        // Zero is no id.
        (u128::from(high) << 64 | u128::from(low)) | 1
    }

    fn strike(&mut self, number: u64) {
        let Some(inside) = self.requests.remove(&number) else { return };
        for id in inside.ids {
            let Some(sharing) = self.ids.get_mut(&id) else { continue };
            sharing.ranks.remove(&(inside.context.rank, number));
            sharing.deadlines.remove(&(inside.context.deadline, number));
            if sharing.ranks.is_empty() {
                self.ids.remove(&id);
            }
        }
    }
}

/// A request in the table, until it is dropped.
#[derive(Debug, Default)]
pub(crate) struct Listed {
    /// None if it is in no table. In a box, as most answers have none and carry it all the same.
    of: Option<Box<(Arc<InFlight>, u64)>>,
}

/// What a request has done so far.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Done {
    /// Time that was the service's own: without what it waited for its calls.
    pub(crate) own: Span,
    /// Why a call of it was refused, if one was.
    pub(crate) refused: Option<Rejection>,
}

impl Listed {
    /// What the request has done by now.
    pub(crate) fn done(&self, now: Instant) -> Option<Done> {
        let (table, number) = self.of.as_deref()?;
        Some(table.lock().requests.get(number)?.done(now))
    }
}

impl Inside {
    fn done(&self, now: Instant) -> Done {
        let open = if self.calls > 0 { now.since(self.calling_since) } else { Span::ZERO };
        let own = now.since(self.since).saturating_sub(self.waited + open);
        Done { own, refused: self.refused }
    }
}

impl Drop for Listed {
    fn drop(&mut self) {
        if let Some(of) = self.of.take() {
            let (table, number) = *of;
            table.lock().strike(number);
        }
    }
}

/// A call that a request waits for.
#[derive(Debug)]
pub(crate) struct Calling {
    table: Arc<InFlight>,
    gate: SharedGate,
    number: u64,
}

impl Calling {
    /// How many calls the request has made at the same time as this one, this one included.
    pub(crate) fn parallel(&self) -> u32 {
        self.table.lock().requests.get(&self.number).map_or(1, |inside| inside.most_calls.max(1))
    }

    /// Time that was the service's own, so far.
    pub(crate) fn own(&self) -> Span {
        let (now, table) = (self.gate.now(), self.table.lock());
        table.requests.get(&self.number).map_or(Span::ZERO, |inside| inside.done(now).own)
    }

    /// It was refused, and will not be tried again here.
    pub(crate) fn refused(&self, rejection: &Rejection) {
        if let Some(inside) = self.table.lock().requests.get_mut(&self.number) {
            inside.refused = Some(*rejection);
        }
    }
}

impl Drop for Calling {
    fn drop(&mut self) {
        let (now, mut table) = (self.gate.now(), self.table.lock());
        if let Some(inside) = table.requests.get_mut(&self.number) {
            inside.calls = inside.calls.saturating_sub(1);
            if inside.calls == 0 {
                inside.waited += now.since(inside.calling_since);
            }
        }
    }
}

/// A field that stands there once; of several nobody knows which is meant.
fn only<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a HeaderValue> {
    let mut values = headers.get_all(name).iter();
    values.next().filter(|_| values.next().is_none())
}

/// The trace of a `traceparent` (W3C Trace Context), and whether it is collected: version, trace, span and
/// flags, of which a later version may have more behind.
fn trace_of(text: &[u8]) -> Option<(u128, bool)> {
    let hex = |from: usize, to: usize| {
        let digits = text.get(from..to)?;
        let lower = digits.iter().all(|it| it.is_ascii_digit() || (b'a'..=b'f').contains(it));
        let digits = std::str::from_utf8(digits).ok().filter(|_| lower)?;
        u128::from_str_radix(digits, 16).ok()
    };
    let dashes = [2, 35, 52].iter().all(|at| text.get(*at) == Some(&b'-'));
    let version = hex(0, 2)?;
    let length = if version == 0 { text.len() == 55 } else { text.len() >= 55 };
    let (trace, span, flags) = (hex(3, 35)?, hex(36, 52)?, hex(53, 55)?);
    let fine = dashes && length && version != 0xff && trace != 0 && span != 0;
    fine.then_some((trace, flags & 1 == 1))
}

fn value(text: String) -> HeaderValue {
    HeaderValue::try_from(text).expect("digits and dashes")
}

#[cfg(test)]
mod tests {
    use tidegate_core::gate::GateConfig;
    use tidegate_core::{Advice, Gate, Reason};

    use super::*;

    const TRACE: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    fn headers(fields: &[(&'static str, &str)]) -> HeaderMap {
        let field = |(name, text): &(&'static str, &str)| {
            (HeaderName::from_static(name), value((*text).to_owned()))
        };
        fields.iter().map(field).collect()
    }

    fn of_rank(business: u8, deadline: u64) -> Context {
        let deadline = Instant::ZERO + Span::from_millis(deadline);
        Context { rank: Rank::new(business, 1), deadline, ..Context::default() }
    }

    fn at(millis: u64) -> Instant {
        Instant::ZERO + Span::from_millis(millis)
    }

    #[test]
    fn the_surest_id_decides_and_only_while_its_request_is_inside() {
        let table = Arc::new(InFlight::new(1));
        let all = headers(&[("overload-context", "r=(3 1)"), ("traceparent", TRACE)]);
        let other = headers(&[("x-request-id", "b")]);
        let one = table.list(at(0), &all, &of_rank(3, 100), None);
        let two = table.list(at(0), &other, &of_rank(9, 100), None);
        let rank = |fields: &[(&'static str, &str)]| {
            let found = table.find(&headers(fields));
            found.map(|found| (found.by, found.context.rank.business()))
        };
        let child = "00-0af7651916cd43dd8448eb211c80319c-00f067aa0ba902b7-00";
        assert_eq!(rank(&[("traceparent", child)]), Some((By::Trace, 3)));
        assert_eq!(rank(&[("traceparent", child), ("x-request-id", "b")]), Some((By::Trace, 3)));
        assert_eq!(rank(&[("x-request-id", "b")]), Some((By::RequestId, 9)));
        let both = [("overload-context", "r=(3 1)"), ("x-request-id", "b")];
        assert_eq!(rank(&both), Some((By::Context, 3)));
        assert_eq!(rank(&[("x-request-id", "c")]), None);
        assert_eq!(rank(&[]), None);
        drop(one);
        assert_eq!(rank(&[("traceparent", child)]), None);
        assert_eq!(table.count(), 1);
        drop(two);
        assert!(table.lock().ids.is_empty(), "nothing is left of what has ended");
    }

    /// Also while a client uses one id for everything, and one of its requests is always inside.
    #[test]
    fn of_several_with_one_id_the_least_important_rank_and_the_shortest_deadline_count() {
        let table = Arc::new(InFlight::new(1));
        let trace = headers(&[("traceparent", TRACE)]);
        let found = || {
            let context = table.find(&trace).unwrap().context;
            (context.rank.business(), context.deadline)
        };
        let first = table.list(at(0), &trace, &of_rank(3, 500), None);
        let second = table.list(at(0), &trace, &of_rank(50, 900), None);
        assert_eq!(found(), (50, at(500)));
        drop(first);
        assert_eq!(found(), (50, at(900)), "what has ended counts no more");
        let third = table.list(at(0), &trace, &of_rank(3, 1_200), None);
        drop(second);
        assert_eq!(found(), (3, at(1_200)));
        drop(third);
        assert!(table.find(&trace).is_none());
    }

    #[test]
    fn a_full_table_lists_no_more_and_forgets_nobody() {
        let table = Arc::new(InFlight::new(1));
        let list = |id: usize| {
            let headers = headers(&[("x-request-id", &id.to_string())]);
            table.list(at(0), &headers, &of_rank(3, 1), None)
        };
        let mut inside: Vec<_> = (0..MOST).map(list).collect();
        let beyond = list(MOST);
        assert!(beyond.done(at(1)).is_none());
        assert!(table.find(&headers(&[("x-request-id", "7")])).is_some());
        assert!(table.find(&headers(&[("x-request-id", &MOST.to_string())])).is_none());
        inside.pop();
        assert!(list(MOST).done(at(1)).is_some());
    }

    #[test]
    fn strangers_get_other_ids_and_friends_keep_theirs() {
        let table = InFlight::new(1);
        let told =
            || headers(&[("traceparent", TRACE), ("tracestate", "a=b"), ("x-request-id", "x")]);
        let mut kept = told();
        table.identify(&mut kept, true, 0.0);
        assert_eq!(kept, told());
        let mut replaced = told();
        table.identify(&mut replaced, false, 0.0);
        let trace = |headers: &HeaderMap| trace_of(headers["traceparent"].as_bytes()).unwrap();
        assert_ne!(trace(&replaced).0, trace(&kept).0);
        assert!(trace(&replaced).1, "who begins a trace decides whether it is collected");
        assert!(!replaced.contains_key("tracestate"));
        assert_ne!(replaced["x-request-id"], "x");
        for sample in [0.0, 1.0] {
            let mut none = HeaderMap::new();
            table.identify(&mut none, true, sample);
            assert_eq!(trace(&none).1, sample > 0.5);
            assert_eq!(none["x-request-id"].len(), 32);
        }
    }

    /// What is none of the form is nobody's, and two of a field are nobody's either.
    #[test]
    fn only_well_formed_ids_are_ids() {
        let flags = |text: &str| trace_of(text.as_bytes()).map(|(_, sampled)| sampled);
        assert_eq!(flags(TRACE), Some(true));
        assert_eq!(flags(&TRACE.replace("-01", "-0a")), Some(false));
        assert_eq!(flags(&format!("cc{}-more", &TRACE[2..])), Some(true));
        for wrong in [
            "",
            "00",
            &TRACE[..54],
            &format!("{TRACE}-more"),
            &TRACE.replace("00-0af", "ff-0af"),
            &TRACE.to_uppercase(),
            &TRACE.replace('-', "_"),
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
            "00-+af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        ] {
            assert_eq!(flags(wrong), None, "{wrong}");
        }
        let mut twice = headers(&[("traceparent", TRACE)]);
        twice.append("traceparent", value(TRACE.to_owned()));
        assert!(Id::of(&twice, By::Trace).is_none());
        assert!(Id::of(&headers(&[("x-request-id", &"x".repeat(129))]), By::RequestId).is_none());
    }

    #[derive(Debug)]
    struct Hand(Arc<Mutex<Instant>>);

    impl tidegate_driver::Clock for Hand {
        fn now(&self) -> Instant {
            *self.0.lock().unwrap()
        }
    }

    #[test]
    fn time_that_is_waited_for_calls_is_not_the_services_own() {
        let hand = Arc::new(Mutex::new(at(0)));
        let config = GateConfig::from_toml("admission = { policy = 'open' }").unwrap();
        let gate = Gate::new(&config, at(0), 1).unwrap();
        let gate = SharedGate::with_clock(gate, Hand(Arc::clone(&hand)));
        let table = Arc::new(InFlight::new(1));
        let ids = headers(&[("x-request-id", "a")]);
        let listed = table.list(at(0), &ids, &of_rank(3, 1), None);
        let found = table.find(&ids).unwrap();
        let go_to = |millis| *hand.lock().unwrap() = at(millis);
        let own = |millis| listed.done(at(millis)).unwrap().own;
        go_to(10);
        let one = table.begin(&gate, &found);
        go_to(15);
        let two = table.begin(&gate, &found);
        assert_eq!((one.parallel(), two.parallel()), (2, 2));
        assert_eq!((own(15), two.own()), (Span::from_millis(10), Span::from_millis(10)));
        go_to(20);
        drop(one);
        go_to(30);
        assert_eq!(two.parallel(), 2, "as many as there were at the same time");
        two.refused(&Rejection::new(Reason::Rank, 0.0, 0.0, Advice::Never));
        drop(two);
        assert_eq!(own(40), Span::from_millis(20));
        assert_eq!(listed.done(at(40)).unwrap().refused.map(|it| it.reason), Some(Reason::Rank));
        assert_eq!(table.begin(&gate, &found).parallel(), 1);
    }
}
