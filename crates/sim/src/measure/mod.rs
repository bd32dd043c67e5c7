//! What a run is judged by. Memory does not grow with its length.

mod histogram;
mod series;

use std::collections::BTreeMap;

use tidegate_core::{Instant, Rank, Span, Workflow};

use crate::workload::WorkloadSpec;
use series::Series;

pub use histogram::Histogram;
pub use series::Row;

/// Things that are counted, over the whole run for conservation and in the measured window for the
/// report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Fact {
    /// The application submitted a request.
    Offered,
    /// The application got its answer.
    Answered,
    /// It got it within the SLO.
    Good,
    /// The application was told that a server refused it.
    Refused,
    /// The caller rejected it itself.
    Rejected,
    /// Its deadline passed, at the caller or at a server.
    Expired,
    /// It broke: timeout, crash, a call of its own that failed.
    Failed,
    /// A request reached a server's gate.
    Arrived,
    /// A server answered a request.
    Served,
    /// A server refused a request.
    Dropped,
    /// A server dropped a request whose deadline had passed.
    DroppedLate,
    /// A server gave up a request that it had let in, because a call it made failed, or a crash.
    Abandoned,
    /// A server received a message.
    Received,
    /// A server sent a message.
    Sent,
}

const FACTS: usize = Fact::Sent as usize + 1;

/// Counts by fact.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts([u64; FACTS]);

impl Counts {
    /// How often `fact` happened.
    pub fn get(&self, fact: Fact) -> u64 {
        self.0[fact as usize]
    }

    fn add(&mut self, fact: Fact) {
        self.0[fact as usize] += 1;
    }

    /// `fact` ÷ `of`, zero when there was none.
    pub fn ratio(&self, fact: Fact, of: Fact) -> f64 {
        ratio(self.get(fact) as f64, self.get(of) as f64)
    }
}

/// `a ÷ b`, zero when `b` is.
pub(crate) fn ratio(a: f64, b: f64) -> f64 {
    if b > 0.0 { a / b } else { 0.0 }
}

/// Everything measured in one run.
#[derive(Clone, Debug)]
pub struct Measure {
    /// Measured from here.
    pub from: Instant,
    /// To here.
    pub to: Instant,
    slo: Span,
    /// Counts over the whole run.
    pub total: Counts,
    /// Counts in the measured window.
    pub window: Counts,
    /// Latency of answers in the window, from submission.
    pub latency: Histogram,
    /// Sum of the time it took to learn of a server's refusal.
    reject_delay: u128,
    /// Requests submitted in the window, and those of them answered in time, by rank.
    ranks: Vec<Success>,
    /// The same by caller.
    callers: Vec<Success>,
    /// The same by workflow.
    workflows: Vec<Success>,
    /// What each service did in the window.
    pub services: Vec<ServiceMeasure>,
    /// More about each workflow, by number.
    pub flows: Vec<FlowMeasure>,
    /// Latency of answers and of failures ÷ deadline, for requests that have one: an LND of 1 is stored as
    /// a second.
    pub lnd: Histogram,
    /// Sums of announced rates by step of the series, service and workflow.
    announced: BTreeMap<(u64, usize, Workflow), f64>,
    series: Option<Series>,
    /// What tells apart runs that were offered different requests.
    pub offers: Digest,
}

/// A number that depends on all values it was fed, and on their order, in the manner of FNV.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Digest(u64);

impl Digest {
    const EMPTY: Self = Self(0xcbf2_9ce4_8422_2325);

    pub(crate) fn feed(&mut self, values: [u64; 5]) {
        for value in values {
            self.0 = (self.0 ^ value).wrapping_mul(0x0100_0000_01b3).rotate_left(29);
        }
    }
}

/// What is measured of one workflow.
#[derive(Clone, Debug, Default)]
pub struct FlowMeasure {
    /// Its requests are late this long after submission, if they have a deadline.
    deadline: Option<Span>,
    /// Requests submitted in the window.
    pub offered: u64,
    /// Answered in the window, late or not.
    pub answered: u64,
    /// Answered in time: by their deadline, or within the SLO if they have none.
    pub in_time: u64,
    /// Refused, rejected or expired in the window.
    pub turned_away: u64,
    /// Failed in the window: timed out, or broken.
    pub failed: u64,
    /// Latency of answers in the window.
    pub latency: Histogram,
    /// Over time, if a series is wanted.
    pub rows: Vec<FlowRow>,
}

/// One step of the series of a workflow.
#[derive(Clone, Debug, Default)]
pub struct FlowRow {
    /// Requests answered.
    pub answered: u64,
    /// Their latency.
    pub latency: Histogram,
}

/// What is measured of one service.
#[derive(Clone, Copy, Debug, Default)]
pub struct ServiceMeasure {
    /// Counts in the window.
    pub window: Counts,
    /// Core time spent, in nanoseconds.
    busy: u64,
    /// Core time spent on requests that were answered, and on others, without messages.
    useful: u64,
    wasted: u64,
    /// Arrivals by number of the attempt; the last counts all further ones.
    attempts: [u64; ATTEMPTS],
}

/// Attempts told apart.
pub const ATTEMPTS: usize = 4;

impl ServiceMeasure {
    /// Core time spent on requests that ended without an answer ÷ on all.
    pub fn wasted(&self) -> f64 {
        ratio(self.wasted as f64, (self.useful + self.wasted) as f64)
    }

    /// Mean core time of a request that was answered, without messages; zero if none was.
    pub fn work(&self) -> Span {
        Span::from_nanos(self.useful / self.window.get(Fact::Served).max(1))
    }

    /// Arrivals per thousand first attempts, by number of the attempt ("Handling Overload", Figure
    /// 21-1).
    pub fn attempts(&self) -> [f64; ATTEMPTS] {
        self.attempts.map(|count| 1e3 * ratio(count as f64, self.attempts[0] as f64))
    }
}

/// Requests of some kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Success {
    /// Submitted in the window.
    pub offered: u64,
    /// Those of them that were answered within the SLO.
    pub good: u64,
}

impl Success {
    /// Answered in time ÷ offered.
    pub fn rate(&self) -> f64 {
        ratio(self.good as f64, self.offered as f64)
    }
}

/// User ranks are counted in groups of 1,024.
const USERS: u32 = 10;
const RANKS: usize = (Rank::LAST.key() as usize >> USERS) + 1;

impl Measure {
    /// Nothing measured yet.
    pub fn new(from: Instant, to: Instant, slo: Span) -> Self {
        Self {
            from,
            to,
            slo,
            total: Counts::default(),
            window: Counts::default(),
            latency: Histogram::default(),
            reject_delay: 0,
            ranks: vec![Success::default(); RANKS],
            callers: Vec::new(),
            workflows: Vec::new(),
            services: Vec::new(),
            flows: Vec::new(),
            lnd: Histogram::default(),
            announced: BTreeMap::new(),
            series: None,
            offers: Digest::EMPTY,
        }
    }

    /// For so many callers, workflows (numbered from zero) and services.
    #[must_use]
    pub fn of(mut self, callers: usize, workflows: usize, services: usize) -> Self {
        self.callers = vec![Success::default(); callers];
        self.workflows = vec![Success::default(); workflows];
        self.services = vec![ServiceMeasure::default(); services];
        self.flows = vec![FlowMeasure::default(); workflows];
        self
    }

    /// With the deadlines of workflows that have one.
    #[must_use]
    pub(crate) fn with_deadlines(mut self, specs: &[&WorkloadSpec]) -> Self {
        for spec in specs {
            for (workflow, _) in &spec.mix {
                self.flows[usize::from(workflow.0)].deadline = spec.deadline_for(*workflow);
            }
        }
        self
    }

    /// With a row for every `step` too.
    #[must_use]
    pub fn with_series(mut self, step: Option<Span>) -> Self {
        self.series = step.map(Series::new);
        self
    }

    fn measured(&self, now: Instant) -> bool {
        self.from <= now && now < self.to
    }

    pub(crate) fn count(&mut self, now: Instant, fact: Fact) {
        self.total.add(fact);
        if self.measured(now) {
            self.window.add(fact);
        }
    }

    pub(crate) fn count_at(&mut self, now: Instant, service: usize, fact: Fact) {
        self.count(now, fact);
        if self.measured(now) {
            self.services[service].window.add(fact);
        }
    }

    /// A request has arrived at a service, as attempt number `attempt`.
    pub(crate) fn arrived(&mut self, now: Instant, service: usize, attempt: u8) {
        self.count_at(now, service, Fact::Arrived);
        if self.measured(now) {
            self.services[service].attempts[usize::from(attempt).min(ATTEMPTS - 1)] += 1;
        }
    }

    pub(crate) fn offered(&mut self, now: Instant, kind: &Kind) {
        self.count(now, Fact::Offered);
        if self.measured(now) {
            self.each(kind, |success| success.offered += 1);
            self.flows[usize::from(kind.workflow.0)].offered += 1;
        }
        if let Some(series) = &mut self.series {
            series.at(now).offered += 1;
        }
    }

    /// The application has its answer.
    pub(crate) fn answered(&mut self, now: Instant, submitted: Instant, kind: &Kind) {
        let latency = now.since(submitted);
        let flow = &mut self.flows[usize::from(kind.workflow.0)];
        let deadline = flow.deadline;
        let good = latency <= deadline.unwrap_or(self.slo);
        if let Some(series) = &self.series {
            let step = (now.as_nanos() / series.step.as_nanos()) as usize;
            if step >= flow.rows.len() {
                flow.rows.resize_with(step + 1, FlowRow::default);
            }
            flow.rows[step].answered += 1;
            flow.rows[step].latency.add(latency);
        }
        if self.from <= now && now < self.to {
            flow.answered += 1;
            flow.in_time += u64::from(good);
            flow.latency.add(latency);
            self.lnd.add_normalised(latency, deadline);
        }
        self.count(now, Fact::Answered);
        if good {
            self.count(now, Fact::Good);
            if self.measured(submitted) {
                self.each(kind, |success| success.good += 1);
            }
        }
        if self.measured(now) {
            self.latency.add(latency);
        }
        if let Some(series) = &mut self.series {
            let now = series.at(now);
            now.good += u64::from(good);
            now.latency.add(latency);
        }
    }

    fn each(&mut self, kind: &Kind, count: impl Fn(&mut Success)) {
        count(&mut self.ranks[kind.rank.key() as usize >> USERS]);
        count(&mut self.callers[kind.caller as usize]);
        count(&mut self.workflows[usize::from(kind.workflow.0)]);
    }

    /// The application has been told that a server refused its request.
    pub(crate) fn refused(&mut self, now: Instant, submitted: Instant) {
        self.count(now, Fact::Refused);
        let delay = now.since(submitted).as_nanos();
        if self.measured(now) {
            self.reject_delay += u128::from(delay);
        }
        if let Some(series) = &mut self.series {
            let step = series.at(now);
            step.refused += 1;
            step.reject_delay = step.reject_delay.saturating_add(delay);
        }
    }

    /// A request has failed: its caller has waited for nothing until now.
    pub(crate) fn failed(&mut self, now: Instant, submitted: Instant, workflow: Workflow) {
        if self.measured(now) {
            let flow = &mut self.flows[usize::from(workflow.0)];
            flow.failed += 1;
            self.lnd.add_normalised(now.since(submitted), flow.deadline);
        }
    }

    /// A request was refused, rejected or has expired.
    pub(crate) fn turned_away(&mut self, now: Instant, workflow: Workflow) {
        if self.measured(now) {
            self.flows[usize::from(workflow.0)].turned_away += 1;
        }
    }

    /// A gate of `service` announces a rate for a part of a second: requests per second × seconds.
    pub(crate) fn announced(
        &mut self,
        now: Instant,
        service: usize,
        workflow: Workflow,
        amount: f64,
    ) {
        if let Some(series) = &self.series {
            let step = now.as_nanos() / series.step.as_nanos();
            *self.announced.entry((step, service, workflow)).or_default() += amount;
        }
    }

    /// Rates that the gates of a service announce for a workflow, summed over them, by step of the series.
    pub fn rates(&self, service: usize, workflow: Workflow) -> Vec<(u64, f64)> {
        let step = self.series.as_ref().map_or(1.0, |series| series.step.as_secs_f64());
        let end = self.to.as_nanos() as f64 / 1e9;
        let own = |((at, of, name), sum): (&(u64, usize, Workflow), &f64)| {
            let whole = (*at + 1) as f64 * step <= end;
            (*of == service && *name == workflow && whole).then(|| (*at, sum / step))
        };
        self.announced.iter().filter_map(own).collect()
    }

    /// A core of `service` is busy from `start` to `end`.
    pub(crate) fn busy(&mut self, service: usize, start: Instant, end: Instant) {
        self.services[service].busy += self.within(start, end);
    }

    /// It is not, after all.
    pub(crate) fn not_busy(&mut self, service: usize, start: Instant, end: Instant) {
        self.services[service].busy -= self.within(start, end);
    }

    /// How much of the time from `start` to `end` is measured, in nanoseconds.
    fn within(&self, start: Instant, end: Instant) -> u64 {
        end.min(self.to).since(start.max(self.from)).as_nanos()
    }

    /// A request that took `spent` of core time has left `service`.
    pub(crate) fn worked(&mut self, now: Instant, service: usize, spent: Span, answered: bool) {
        if self.measured(now) {
            let service = &mut self.services[service];
            let account = if answered { &mut service.useful } else { &mut service.wasted };
            *account += spent.as_nanos();
        }
    }

    /// Core time used ÷ core time there was, for a service with so many cores in all.
    pub fn utilization(&self, service: usize, cores: u32) -> f64 {
        let time = f64::from(cores) * self.to.since(self.from).as_nanos() as f64;
        ratio(self.services[service].busy as f64, time)
    }

    /// Mean time until the application learned of a server's refusal.
    pub fn reject_delay(&self) -> Span {
        let mean = ratio(self.reject_delay as f64, self.window.get(Fact::Refused) as f64);
        Span::from_nanos(mean as u64)
    }

    /// Answered in time ÷ offered, for the quarters of the offered requests sorted by rank, the
    /// most important first.
    pub fn success_by_quarter(&self) -> [f64; 4] {
        let total: u64 = self.ranks.iter().map(|rank| rank.offered).sum();
        let quarter = total as f64 / 4.0;
        let (mut success, mut at) = ([0.0; 4], 0.0);
        for Success { offered, good } in self.ranks.iter().filter(|rank| rank.offered > 0) {
            // A group of ranks may lie in more than one quarter: then its successes are spread evenly.
            let (start, end) = (at, at + *offered as f64);
            for (n, part) in success.iter_mut().enumerate() {
                let (low, high) = (quarter * n as f64, quarter * (n + 1) as f64);
                let share = (end.min(high) - start.max(low)).max(0.0) / *offered as f64;
                *part += *good as f64 * share;
            }
            at = end;
        }
        success.map(|good| ratio(good, quarter))
    }

    /// Jain's index of the callers' goodput: 1 when all got the same, 1 ÷ callers when one got all.
    pub fn jain(&self) -> f64 {
        let sum: f64 = self.callers.iter().map(|caller| caller.good as f64).sum();
        let squares: f64 = self.callers.iter().map(|caller| (caller.good as f64).powi(2)).sum();
        ratio(sum * sum, squares * self.callers.len() as f64)
    }

    /// Success of some of the callers together.
    pub fn success_of(&self, callers: std::ops::Range<usize>) -> Success {
        self.callers[callers].iter().fold(Success::default(), |sum, caller| Success {
            offered: sum.offered + caller.offered,
            good: sum.good + caller.good,
        })
    }

    /// Success by number of the workflow.
    pub fn workflows(&self) -> &[Success] {
        &self.workflows
    }

    /// The finished series, if one was asked for.
    pub fn series(self) -> Option<Vec<Row>> {
        let end = self.to;
        self.series.map(|series| series.finish(end))
    }
}

/// What tells requests apart in the book.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kind {
    pub(crate) rank: Rank,
    pub(crate) caller: u32,
    pub(crate) workflow: Workflow,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn micros(n: u64) -> Instant {
        Instant::ZERO + Span::from_micros(n)
    }

    fn kind(rank: Rank, caller: u32) -> Kind {
        Kind { rank, caller, workflow: Workflow::NONE }
    }

    fn measure(from: u64, to: u64) -> Measure {
        Measure::new(micros(from), micros(to), Span::from_micros(10)).of(2, 1, 1)
    }

    #[test]
    fn quarters_split_ranks_that_straddle_them() {
        // Half of all on one rank, all answered; the other half far behind, none answered.
        let mut halves = measure(0, 100);
        for n in 0..8 {
            let kind = kind(Rank::new(1 + n / 4, 0), 0);
            halves.offered(micros(1), &kind);
            if n < 4 {
                halves.answered(micros(2), micros(1), &kind);
            }
        }
        assert_eq!(halves.success_by_quarter(), [1.0, 1.0, 0.0, 0.0]);
        // One rank for all: every quarter is the same.
        let mut one = measure(0, 100);
        for n in 0..8 {
            one.offered(micros(1), &kind(Rank::UNRANKED, 0));
            if n < 2 {
                one.answered(micros(2), micros(1), &kind(Rank::UNRANKED, 0));
            }
        }
        assert_eq!(one.success_by_quarter(), [0.25; 4]);
    }

    #[test]
    fn warm_up_is_not_measured_and_late_answers_are_not_good() {
        let mut measure = measure(50, 100);
        for (now, submitted, caller) in [(20, 15, 0), (60, 55, 1), (90, 70, 1)] {
            measure.offered(micros(submitted), &kind(Rank::FIRST, caller));
            measure.answered(micros(now), micros(submitted), &kind(Rank::FIRST, caller));
        }
        assert_eq!((measure.total.get(Fact::Good), measure.window.get(Fact::Good)), (2, 1));
        assert_eq!(measure.window.get(Fact::Answered), 2);
        assert_eq!(measure.jain(), 0.5);
        assert_eq!(measure.success_of(0..2), Success { offered: 2, good: 1 });
        measure.busy(0, micros(40), micros(60));
        assert_eq!(measure.utilization(0, 2), 0.1);
        measure.worked(micros(60), 0, Span::from_micros(3), true);
        measure.worked(micros(61), 0, Span::from_micros(1), false);
        assert_eq!(measure.services[0].wasted(), 0.25);
        assert_eq!(measure.services[0].work(), Span::from_micros(3));
    }

    #[test]
    fn attempts_are_counted_by_number() {
        let mut measure = measure(10, 100);
        measure.arrived(micros(5), 0, 0);
        for attempt in [0, 0, 1, 2, 9] {
            measure.arrived(micros(20), 0, attempt);
        }
        assert_eq!(measure.services[0].attempts(), [1000.0, 500.0, 500.0, 500.0]);
        assert_eq!(measure.window.get(Fact::Arrived), 5);
    }

    #[test]
    fn series_has_a_row_for_every_whole_step() {
        let mut measure = measure(0, 35).with_series(Some(Span::from_micros(10)));
        measure.offered(micros(5), &kind(Rank::FIRST, 0));
        measure.offered(micros(25), &kind(Rank::FIRST, 0));
        measure.answered(micros(27), micros(25), &kind(Rank::FIRST, 0));
        let rows = measure.series().unwrap();
        let seen: Vec<_> = rows.iter().map(|row| (row.offered, row.good)).collect();
        assert_eq!(seen, [(1, 0), (0, 0), (1, 1)]);
    }
}
