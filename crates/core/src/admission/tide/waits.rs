//! How long a request may wait: as long as leaves most of those behind it the time they need.
//!
//! A wait of 0.7 of the objective is fine where service takes a twentieth of it. Where one request in a
//! hundred takes half of the objective, those that waited for the longest are late, and their work was
//! in vain. So the gate learns how long before the objective a request has to start, to be in time
//! ninety-nine times in a hundred, and keeps the queue that much shorter. And it is shorter by the error of a wait that is
//! predicted: that is for how much longer some wait. A request with a deadline of its
//! own needs to be in time for that, not for the objective.
//!
//! With a request that others on its path have worked for, their work is lost too if it is refused here.
//! While its own deadline leaves the time, it waits a little longer, and is started a little later.

use super::messages::REFUSAL_NS;
use crate::context::Context;
use crate::request::Request;
use crate::signal::Ewma;
use crate::time::{Instant, Span};

/// What is known of service times, and how long a request may wait for that.
#[derive(Clone, Debug)]
pub(super) struct Waits {
    /// How long before the objective requests have to start, in objectives; [`IN_TIME`] of those that
    /// start then are in time.
    lead: f64,
    /// The latency objective, also in nanoseconds.
    objective: Span,
    objective_ns: f64,
    /// The longest predicted wait at which a request is let in.
    longest: Span,
    /// Mean time for which a request holds a slot, and for which those before us worked on it, in
    /// nanoseconds.
    service: Ewma,
    before: Ewma,
}

/// Requests that start with the lead and are in time.
const IN_TIME: f64 = 0.99;
/// Step by which the lead follows what requests need, in objectives: it is known to some 0.03 and
/// follows a change of service times within a few hundred requests.
const STEP: f64 = 0.02;
/// However long service takes, this part of the most may be waited for. By simulation: with twice as much,
/// seven more in a hundred of those that cost much are late; with half, no more than chance changes.
const LEAST: f64 = 0.35;
/// As many requests may always wait, and more where they come in bursts: a shorter queue is empty by chance
/// more often than it saves work.
const ROOM: f64 = 16.0;
/// How much more than the most may be waited for, if that leaves the time, where arrivals vary as if so many came at once, and
/// in proportion where fewer do: a burst is there as a whole, and how long it takes is known better than
/// how long a queue will be. By simulation: bursts of 50 of 10 µs have 1.0 to 1.6 points more of the capacity; with half
/// as much again it is the same.
const LONGER: f64 = 0.15;
const AT_ONCE: f64 = 20.0;
/// How much longer a request waits that others have worked for, and how much later it is started. By
/// simulation: the last of three hops refuses half of what it refused without; half as long again saves
/// little more.
const WORKED_FOR: f64 = 1.25;
/// Weight of a finish in the mean service time: a slow start is soon forgotten.
const SERVICE_GAIN: f64 = 1.0 / 32.0;

impl Waits {
    /// Nothing is known yet but the objective and the longest wait.
    pub(super) fn new(objective: Span, longest: Span) -> Self {
        let mean = || Ewma::new(SERVICE_GAIN);
        let objective_ns = objective.as_nanos_f64().max(1.0);
        Self { lead: 0.0, objective, objective_ns, longest, service: mean(), before: mean() }
    }

    /// There is another objective, and another longest wait until more is learned.
    pub(super) fn set_objective(&mut self, objective: Span, longest: Span) {
        (self.objective, self.objective_ns) = (objective, objective.as_nanos_f64().max(1.0));
        self.longest = longest;
    }

    /// Sets the longest wait, until more is learned.
    pub(super) fn set_longest(&mut self, longest: Span) {
        self.longest = longest;
    }

    /// A request was served that held a slot for `request.attained`.
    pub(super) fn add(&mut self, request: &Request) {
        let Request { context: Context { deadline, progress, .. }, arrived, attained, .. } =
            request;
        let attained = attained.as_nanos_f64();
        let mut needed = attained / self.objective_ns;
        if *deadline != Instant::FAR {
            needed -= deadline.since(*arrived).as_nanos_f64() / self.objective_ns - 1.0;
        }
        let step = if needed > self.lead { IN_TIME } else { IN_TIME - 1.0 };
        self.lead = (self.lead + STEP * step).clamp(0.0, 1.0);
        self.service.add(attained);
        if progress.elapsed > Span::ZERO || self.before.get().is_some() {
            self.before.add(progress.elapsed.as_nanos_f64());
        }
    }

    /// Works out what is allowed from what was seen. The longest wait is at most `most`, but for bursts, where `pace`
    /// requests are served per nanosecond. The wait that is predicted for one behind n that differ by
    /// `variability` is off by √(variability ÷ n) of itself, and by one request, as nobody knows how far those are that
    /// are being served. Where arrivals vary by `dispersion`, the queue does by its root.
    pub(super) fn learn(&mut self, most: Span, pace: f64, variability: f64, dispersion: f64) {
        let burst = ((dispersion - 1.0) / AT_ONCE).clamp(0.0, 1.0);
        let room = (pace * most.as_nanos_f64()).max(1.0);
        let error = (variability / room + (1.0 / room).powi(2)).sqrt().min(1.0);
        let in_time = self.objective.scale(1.0 - self.lead);
        let least = most.scale(LEAST.max(ROOM * dispersion.sqrt() / room));
        let longest = in_time.min(most.scale(1.0 + LONGER * burst)).scale(1.0 / (1.0 + error));
        self.longest = longest.max(least.min(most));
    }

    /// The longest wait of most requests.
    pub(super) fn longest(&self) -> Span {
        self.longest
    }

    /// The longest wait of this one.
    pub(super) fn longest_for(&self, request: &Request) -> Span {
        let Some(own) = self.own_latest_start(request) else { return self.longest };
        self.longest.max(self.longest.scale(WORKED_FOR).min(own))
    }

    /// The age up to which it makes sense to start a request.
    pub(super) fn latest_start(&self, request: &Request) -> Span {
        let objective = self.objective;
        let Some(own) = self.own_latest_start(request) else { return objective };
        objective.max(objective.scale(WORKED_FOR).min(own))
    }

    /// The age at which a mean request that others have worked for must start to meet its own deadline; none
    /// for all others, who have the objective.
    fn own_latest_start(&self, request: &Request) -> Option<Span> {
        let Context { deadline, progress, .. } = request.context;
        if progress.elapsed == Span::ZERO || deadline == Instant::FAR {
            return None;
        }
        let service = Span::from_nanos_f64(self.service.get().unwrap_or(0.0));
        Some(deadline.since(request.arrived).saturating_sub(service))
    }

    /// Messages that can be sent in the time that a request takes with its own two.
    pub(super) fn messages(&self) -> f64 {
        self.service.get().map_or(2.0, |service| 2.0 * (1.0 + service / REFUSAL_NS))
    }

    /// What is lost with a request that is refused here, as a share of what it takes to serve it.
    pub(super) fn price(&self) -> f64 {
        let before = self.before.get().unwrap_or(0.0);
        self.service.get().map_or(1.0, |service| (REFUSAL_NS + before) / service.max(1.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::context::Progress;
    use crate::meter::Cost;
    use crate::rng::Rng;
    use crate::slab::Key;

    const OBJECTIVE: Span = Span::from_millis(10);
    const MOST: Span = Span::from_micros(7_000);
    /// Ten a millisecond, per nanosecond.
    const PACE: f64 = 1e-5;
    /// So many that a wait is certain.
    const CERTAIN: f64 = 1e9;

    fn request(attained: Span, deadline: Instant, before: Span) -> Request {
        let progress = Progress { elapsed: before, ..Progress::default() };
        let context = Context { deadline, progress, ..Context::default() };
        let (arrived, enqueued) = (Instant::ZERO, Instant::ZERO);
        Request { id: Key::NOWHERE, context, arrived, enqueued, cost: Cost(1), attained }
    }

    /// After requests that take `mean` on average, exponentially.
    fn after(mean: Span, deadline: Instant) -> Waits {
        let (mut waits, mut rng) = (Waits::new(OBJECTIVE, MOST), Rng::new(1));
        for _ in 0..20_000 {
            let took = mean.scale(-(1.0 - rng.unit()).ln());
            waits.add(&request(took, deadline, Span::ZERO));
        }
        waits
    }

    fn longest(mut waits: Waits, pace: f64, variability: f64) -> Span {
        waits.learn(MOST, pace, variability, 1.0);
        waits.longest()
    }

    #[test]
    fn ninety_nine_in_a_hundred_have_the_time_they_need() {
        // The 99th percentile of an exponential time is 4.6 means.
        let waits = after(Span::from_millis(1), Instant::FAR);
        assert!((0.38..0.56).contains(&waits.lead), "{waits:?}");
        let certain = longest(waits.clone(), 1.0, 1.0);
        assert!((4_900..MOST.as_nanos() / 1_000).contains(&(certain.as_nanos() / 1_000)));
        assert!(longest(waits, PACE, 0.2) < certain, "a wait is never certain");
    }

    #[test]
    fn a_wait_is_as_much_shorter_as_it_is_uncertain() {
        let waits = |variability| {
            let waits = after(Span::from_micros(10), Instant::FAR);
            longest(waits, PACE, variability).ratio(MOST)
        };
        // Seventy may wait: that is off by one of them at least.
        assert!((waits(0.0) - 70.0 / 71.0).abs() < 1e-6);
        let [exponential, bimodal] = [1.0, 2.25].map(waits);
        assert!((0.88..0.9).contains(&exponential), "{exponential}");
        assert!((0.84..0.86).contains(&bimodal), "{bimodal}");
        let long = after(Span::from_millis(1), Instant::ZERO + OBJECTIVE.scale(2.0));
        assert_eq!(longest(long, CERTAIN, 0.0), MOST, "they have the time");
    }

    #[test]
    fn a_third_of_the_most_may_always_be_waited_for_and_sixteen_always_wait() {
        let waits = after(Span::from_millis(50), Instant::FAR);
        assert_eq!(longest(waits.clone(), PACE, 1.0), MOST.scale(LEAST));
        let sixteen = longest(waits.clone(), 16.0 / 5.5e6, 1.0);
        assert!(sixteen.as_nanos().abs_diff(5_500_000) < 10, "{sixteen}");
        assert_eq!(longest(waits, 0.0, 1.0), MOST, "nothing is known yet");
    }

    #[test]
    fn bursts_wait_longer_if_that_leaves_the_time() {
        let at_once = |mean, requests| {
            let mut waits = after(Span::from_micros(mean), Instant::FAR);
            waits.learn(MOST, CERTAIN, 0.0, requests);
            waits.longest()
        };
        assert_eq!(at_once(400, 1.0 + AT_ONCE / 2.0), MOST.scale(1.0 + LONGER / 2.0));
        assert_eq!(at_once(10, 1_000.0), MOST.scale(1.0 + LONGER));
        assert!(at_once(1_000, 1_000.0) <= MOST, "one in a hundred takes half of the objective");
    }

    #[test]
    fn what_others_have_worked_for_waits_longer_while_its_deadline_allows() {
        let waits = after(Span::from_micros(100), Instant::FAR);
        let (worked, far) = (Span::from_millis(1), Instant::ZERO + OBJECTIVE.scale(3.0));
        let later = |deadline, before| {
            let request = request(Span::ZERO, deadline, before);
            let latest = waits.latest_start(&request);
            (waits.longest_for(&request) > MOST, latest > OBJECTIVE)
        };
        assert_eq!(later(far, worked), (true, true));
        assert_eq!(later(far, Span::ZERO), (false, false), "nobody has worked for it");
        assert_eq!(later(Instant::FAR, worked), (false, false), "it has the objective");
        let near = Instant::ZERO + OBJECTIVE.scale(0.5);
        assert_eq!(later(near, worked), (false, false), "its deadline is sooner");
    }

    #[test]
    fn a_refusal_costs_what_was_done_before_it() {
        let mut waits = Waits::new(OBJECTIVE, MOST);
        assert_eq!((waits.price(), waits.messages()), (1.0, 2.0), "nothing is known");
        waits.add(&request(Span::from_millis(1), Instant::FAR, Span::ZERO));
        assert_eq!((waits.price(), waits.messages()), (0.002, 1002.0));
        for _ in 0..1000 {
            let request = request(Span::from_millis(1), Instant::FAR, Span::from_millis(2));
            waits.add(&request);
        }
        assert!((waits.price() - 2.002).abs() < 1e-6);
    }
}
