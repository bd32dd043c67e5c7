//! How long a request may wait: as long as leaves most of those behind it the time they need.
//!
//! A wait of 0.7 of the objective is fine where service takes a twentieth of it. Where one request in a
//! hundred takes half of the objective, those that waited for the longest are late, and their work was
//! in vain. So it is steered by what came late how old a request may be at its start ([`Lateness`]), and what is older
//! is refused then, if it had to wait at all. The queue is shorter by the error of a wait that is predicted: that is for how
//! much longer some wait.
//!
//! With a request that others on its path have worked for, their work is lost too if it is refused here.
//! While its own deadline leaves the time, it waits a little longer, and is started a little later.

use super::messages::REFUSAL_NS;
use crate::context::Context;
use crate::request::Request;
use crate::signal::{Ewma, Lateness, allowed};
use crate::time::{Instant, Span};
use crate::verdict::Outcome;

/// What is known of service times, and how long a request may wait for that.
#[derive(Clone, Debug)]
pub(super) struct Waits {
    /// The age at which requests are too old to start.
    lateness: Lateness,
    /// The latency objective.
    objective: Span,
    /// The longest predicted wait at which a request is let in.
    longest: Span,
    /// Mean time for which a request holds a slot, and for which those before us worked on it, in
    /// nanoseconds.
    service: Ewma,
    before: Ewma,
}

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
/// A change of the objective beyond which what was learned for the other one is forgotten.
const CHANGE: f64 = 0.3;

impl Waits {
    /// Nothing is known yet but the objective and the longest wait.
    pub(super) fn new(objective: Span, longest: Span) -> Self {
        let mean = || Ewma::new(SERVICE_GAIN);
        let lateness = Lateness::new(longest.ratio(objective));
        Self { lateness, objective, longest, service: mean(), before: mean() }
    }

    /// There is another objective, and another longest wait until more is learned.
    pub(super) fn set_objective(&mut self, objective: Span, longest: Span) {
        // What was late for another objective says little of this one.
        if (objective.ratio(self.objective) - 1.0).abs() > CHANGE {
            self.lateness = Lateness::new(longest.ratio(objective));
        }
        (self.objective, self.longest) = (objective, longest);
    }

    /// Sets the longest wait, until more is learned.
    pub(super) fn set_longest(&mut self, longest: Span) {
        self.longest = longest;
    }

    /// A request has ended while so many ran.
    pub(super) fn on_end(
        &mut self,
        now: Instant,
        request: &Request,
        outcome: Outcome,
        running: u32,
    ) {
        let late = now.since(request.arrived) >= allowed(request, self.objective);
        self.lateness.on_end(late, outcome, running);
        if outcome != Outcome::Serve {
            return;
        }
        self.service.add(request.attained.as_nanos_f64());
        let before = request.context.progress.elapsed;
        if before > Span::ZERO || self.before.get().is_some() {
            self.before.add(before.as_nanos_f64());
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
        let in_time = self.lateness.latest_start(self.objective);
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

    /// The age up to which it makes sense to start a request that waited for so long. One that did not wait is not
    /// refused for what others were.
    pub(super) fn latest_start(&self, request: &Request, waited: Span) -> Span {
        let allowed = allowed(request, self.objective);
        if waited == Span::ZERO {
            return allowed;
        }
        let latest = self.lateness.latest_start(allowed.min(self.objective));
        let Some(own) = self.own_latest_start(request) else { return latest };
        latest.max(self.objective.scale(WORKED_FOR).min(own))
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

    /// After so many answers, all late or none.
    fn after(answers: u32, late: bool) -> Waits {
        let mut waits = Waits::new(OBJECTIVE, MOST);
        for _ in 0..answers {
            let ended = Instant::ZERO + OBJECTIVE.scale(if late { 1.1 } else { 0.9 });
            let request = request(Span::from_micros(10), Instant::FAR, Span::ZERO);
            waits.on_end(ended, &request, Outcome::Serve, 1);
        }
        waits
    }

    fn longest(mut waits: Waits, pace: f64, variability: f64) -> Span {
        waits.learn(MOST, pace, variability, 1.0);
        waits.longest()
    }

    #[test]
    fn what_came_late_shortens_the_wait() {
        let certain = longest(after(10, true), 1.0, 0.0);
        assert!(certain < MOST.scale(0.8), "{certain}");
        let rounding = longest(after(1_000, false), 1.0, 0.0).as_nanos().abs_diff(MOST.as_nanos());
        assert!(rounding <= 1, "{rounding}");
        assert!(longest(after(10, true), PACE, 0.2) < certain, "a wait is never certain");
    }

    #[test]
    fn a_wait_is_as_much_shorter_as_it_is_uncertain() {
        let waits = |variability| longest(after(1_000, false), PACE, variability).ratio(MOST);
        // Seventy may wait: that is off by one of them at least.
        assert!((waits(0.0) - 70.0 / 71.0).abs() < 1e-6);
        let [exponential, bimodal] = [1.0, 2.25].map(waits);
        assert!((0.88..0.9).contains(&exponential), "{exponential}");
        assert!((0.84..0.86).contains(&bimodal), "{bimodal}");
    }

    #[test]
    fn a_third_of_the_most_may_always_be_waited_for_and_sixteen_always_wait() {
        let waits = after(1_000, true);
        assert_eq!(longest(waits.clone(), PACE, 1.0), MOST.scale(LEAST));
        let sixteen = longest(waits.clone(), 16.0 / 5.5e6, 1.0);
        assert!(sixteen.as_nanos().abs_diff(5_500_000) < 10, "{sixteen}");
        assert_eq!(longest(waits, 0.0, 1.0), MOST, "nothing is known yet");
    }

    #[test]
    fn what_waited_is_too_late_sooner_than_what_did_not() {
        let waits = after(10, true);
        let request = request(Span::ZERO, Instant::ZERO + OBJECTIVE.scale(0.5), Span::ZERO);
        assert_eq!(waits.latest_start(&request, Span::ZERO), OBJECTIVE.scale(0.5));
        assert!(waits.latest_start(&request, Span::from_nanos(1)) < OBJECTIVE.scale(0.3));
    }

    #[test]
    fn another_objective_is_learned_anew() {
        let mut waits = after(1_000, true);
        waits.set_objective(OBJECTIVE.scale(1.2), MOST);
        assert!(waits.lateness.share() < 0.2);
        waits.set_objective(OBJECTIVE.scale(2.0), MOST);
        assert!(waits.lateness.share() > 0.3);
    }

    #[test]
    fn bursts_wait_longer_if_that_leaves_the_time() {
        let at_once = |answers, requests| {
            let mut waits = after(answers, false);
            waits.learn(MOST, CERTAIN, 0.0, requests);
            waits.longest()
        };
        assert_eq!(at_once(10_000, 1.0 + AT_ONCE / 2.0), MOST.scale(1.0 + LONGER / 2.0));
        assert_eq!(at_once(10_000, 1_000.0), MOST.scale(1.0 + LONGER));
        assert!(at_once(0, 1_000.0) <= MOST, "it is not known that they are in time");
    }

    #[test]
    fn what_others_have_worked_for_waits_longer_while_its_deadline_allows() {
        let waits = after(100, false);
        let (worked, far) = (Span::from_millis(1), Instant::ZERO + OBJECTIVE.scale(3.0));
        let later = |deadline, before| {
            let request = request(Span::ZERO, deadline, before);
            let latest = waits.latest_start(&request, Span::from_nanos(1));
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
        let (mut waits, at) = (Waits::new(OBJECTIVE, MOST), Instant::ZERO);
        assert_eq!((waits.price(), waits.messages()), (1.0, 2.0), "nothing is known");
        let end = |waits: &mut Waits, request| waits.on_end(at, &request, Outcome::Serve, 1);
        end(&mut waits, request(Span::from_millis(1), Instant::FAR, Span::ZERO));
        assert_eq!((waits.price(), waits.messages()), (0.002, 1002.0));
        for _ in 0..1000 {
            let request = request(Span::from_millis(1), Instant::FAR, Span::from_millis(2));
            end(&mut waits, request);
        }
        assert!((waits.price() - 2.002).abs() < 1e-6);
    }
}
