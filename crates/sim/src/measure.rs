//! What a run is judged by. Memory does not grow with its length.

use tidegate_core::{Instant, Rank, Span};

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
    /// Core time spent in the window.
    busy: u64,
    /// Requests submitted in the window, and those of them answered in time, by rank.
    ranks: Vec<(u64, u64)>,
    /// Requests of each caller answered in time in the window.
    callers: Vec<u64>,
    series: Option<Series>,
}

/// User ranks are counted in groups of 1,024.
const USERS: u32 = 10;
const RANKS: usize = (Rank::LAST.key() as usize >> USERS) + 1;

impl Measure {
    /// Nothing measured yet.
    pub fn new(
        from: Instant,
        to: Instant,
        slo: Span,
        callers: usize,
        series: Option<Span>,
    ) -> Self {
        Self {
            from,
            to,
            slo,
            total: Counts::default(),
            window: Counts::default(),
            latency: Histogram::default(),
            reject_delay: 0,
            busy: 0,
            ranks: vec![(0, 0); RANKS],
            callers: vec![0; callers],
            series: series.map(Series::new),
        }
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

    pub(crate) fn offered(&mut self, now: Instant, rank: Rank) {
        self.count(now, Fact::Offered);
        if self.measured(now) {
            self.ranks[rank.key() as usize >> USERS].0 += 1;
        }
        if let Some(series) = &mut self.series {
            series.at(now).offered += 1;
        }
    }

    /// The application has its answer.
    pub(crate) fn answered(&mut self, now: Instant, submitted: Instant, rank: Rank, caller: usize) {
        let latency = now.since(submitted);
        self.count(now, Fact::Answered);
        let good = latency <= self.slo;
        if good {
            self.count(now, Fact::Good);
            if self.measured(submitted) {
                self.ranks[rank.key() as usize >> USERS].1 += 1;
            }
        }
        if self.measured(now) {
            self.latency.add(latency);
            self.callers[caller] += u64::from(good);
        }
        if let Some(series) = &mut self.series {
            let now = series.at(now);
            now.good += u64::from(good);
            now.latency.add(latency);
        }
    }

    /// The application has been told that a server refused its request.
    pub(crate) fn refused(&mut self, now: Instant, submitted: Instant) {
        self.count(now, Fact::Refused);
        if self.measured(now) {
            self.reject_delay += u128::from(now.since(submitted).as_nanos());
        }
    }

    /// A core is busy from `start` to `end`.
    pub(crate) fn busy(&mut self, start: Instant, end: Instant) {
        self.busy += end.min(self.to).since(start.max(self.from)).as_nanos();
    }

    /// Core time used ÷ core time there was.
    pub fn utilization(&self, cores: u32) -> f64 {
        ratio(self.busy as f64, f64::from(cores) * self.to.since(self.from).as_nanos() as f64)
    }

    /// Mean time until the application learned of a server's refusal.
    pub fn reject_delay(&self) -> Span {
        let mean = ratio(self.reject_delay as f64, self.window.get(Fact::Refused) as f64);
        Span::from_nanos(mean as u64)
    }

    /// Answered in time ÷ offered, for the quarters of the offered requests sorted by rank, the
    /// most important first.
    pub fn success_by_quarter(&self) -> [f64; 4] {
        let total: u64 = self.ranks.iter().map(|(offered, _)| offered).sum();
        let quarter = total as f64 / 4.0;
        let (mut success, mut at) = ([0.0; 4], 0.0);
        for (offered, good) in self.ranks.iter().filter(|(offered, _)| *offered > 0) {
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
        let sum: f64 = self.callers.iter().map(|n| *n as f64).sum();
        let squares: f64 = self.callers.iter().map(|n| (*n as f64).powi(2)).sum();
        ratio(sum * sum, squares * self.callers.len() as f64)
    }

    /// Goodput of a share of the callers, from `first` on, in requests.
    pub fn good_of(&self, callers: std::ops::Range<usize>) -> u64 {
        self.callers[callers].iter().sum()
    }

    /// The finished series, if one was asked for.
    pub fn series(self) -> Option<Vec<Row>> {
        let end = self.to;
        self.series.map(|series| series.finish(end))
    }
}

/// Counts by logarithmic bucket: every value is known to less than one percent.
#[derive(Clone, Debug, Default)]
pub struct Histogram {
    counts: Vec<u64>,
    total: u64,
    sum: u128,
}

/// Each doubling is cut into 128 buckets.
const FINE: u32 = 7;

impl Histogram {
    /// Counts one value.
    pub fn add(&mut self, value: Span) {
        let bucket = bucket(value.as_nanos());
        if bucket >= self.counts.len() {
            self.counts.resize(bucket + 1, 0);
        }
        self.counts[bucket] += 1;
        self.total += 1;
        self.sum += u128::from(value.as_nanos());
    }

    /// How many values there are.
    pub fn len(&self) -> u64 {
        self.total
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.total == 0
    }

    /// Mean in nanoseconds, zero when empty. Exact.
    pub fn mean(&self) -> f64 {
        ratio(self.sum as f64, self.total as f64)
    }

    /// The value that a share `q` of all values do not exceed, zero when empty.
    pub fn quantile(&self, q: f64) -> Span {
        let wanted = (q * self.total as f64).ceil().max(1.0) as u64;
        let mut seen = 0;
        for (bucket, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= wanted {
                return Span::from_nanos(middle(bucket));
            }
        }
        Span::ZERO
    }

    fn clear(&mut self) {
        self.counts.fill(0);
        (self.total, self.sum) = (0, 0);
    }
}

fn bucket(nanos: u64) -> usize {
    if nanos < 1 << (FINE + 1) {
        return nanos as usize;
    }
    let shift = nanos.ilog2() - FINE;
    ((shift as usize) << FINE) + (nanos >> shift) as usize
}

fn middle(bucket: usize) -> u64 {
    if bucket < 1 << (FINE + 1) {
        return bucket as u64;
    }
    let shift = (bucket >> FINE) - 1;
    let low = ((bucket - (shift << FINE)) as u64) << shift;
    low + (1 << (shift - 1))
}

/// One step of a series.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Row {
    /// Start of the step.
    pub at: Instant,
    /// Its length.
    pub step: Span,
    /// Requests submitted.
    pub offered: u64,
    /// Requests answered within the SLO.
    pub good: u64,
    /// 99th percentile of the latency of answers.
    pub p99: Span,
}

/// Rows over time, warm-up included.
#[derive(Clone, Debug)]
struct Series {
    step: Span,
    rows: Vec<Row>,
    current: Step,
    /// Start of the current step.
    start: Instant,
}

#[derive(Clone, Debug, Default)]
struct Step {
    offered: u64,
    good: u64,
    latency: Histogram,
}

impl Series {
    fn new(step: Span) -> Self {
        Self { step, rows: Vec::new(), current: Step::default(), start: Instant::ZERO }
    }

    fn at(&mut self, now: Instant) -> &mut Step {
        while now >= self.start + self.step {
            self.close();
        }
        &mut self.current
    }

    fn close(&mut self) {
        self.rows.push(Row {
            at: self.start,
            step: self.step,
            offered: self.current.offered,
            good: self.current.good,
            p99: self.current.latency.quantile(0.99),
        });
        self.start += self.step;
        (self.current.offered, self.current.good) = (0, 0);
        self.current.latency.clear();
    }

    /// All whole steps up to `end`.
    fn finish(mut self, end: Instant) -> Vec<Row> {
        while self.start + self.step <= end {
            self.close();
        }
        self.rows.retain(|row| row.at + row.step <= end);
        self.rows
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn micros(n: u64) -> Instant {
        Instant::ZERO + Span::from_micros(n)
    }

    proptest! {
        #[test]
        fn quantiles_are_within_one_percent(mut values in prop::collection::vec(0u64..1 << 40, 1..300), q in 0.01f64..1.0) {
            let mut histogram = Histogram::default();
            for value in &values {
                histogram.add(Span::from_nanos(*value));
            }
            values.sort_unstable();
            let exact = values[((q * values.len() as f64).ceil() as usize).max(1) - 1];
            let found = histogram.quantile(q).as_nanos();
            prop_assert!(found.abs_diff(exact) as f64 <= exact as f64 * 0.01, "{found} {exact}");
        }
    }

    #[test]
    fn quarters_split_ranks_that_straddle_them() {
        let mut measure = Measure::new(Instant::ZERO, micros(100), Span::from_micros(10), 1, None);
        // Half of all on one rank, all answered; the other half far behind, none answered.
        for n in 0..8 {
            let rank = if n < 4 { Rank::new(1, 0) } else { Rank::new(2, 0) };
            measure.offered(micros(1), rank);
            if n < 4 {
                measure.answered(micros(2), micros(1), rank, 0);
            }
        }
        assert_eq!(measure.success_by_quarter(), [1.0, 1.0, 0.0, 0.0]);
        // One rank for all: every quarter is the same.
        let mut one = Measure::new(Instant::ZERO, micros(100), Span::from_micros(10), 1, None);
        for n in 0..8 {
            one.offered(micros(1), Rank::UNRANKED);
            if n < 2 {
                one.answered(micros(2), micros(1), Rank::UNRANKED, 0);
            }
        }
        assert_eq!(one.success_by_quarter(), [0.25; 4]);
    }

    #[test]
    fn warm_up_is_not_measured_and_late_answers_are_not_good() {
        let mut measure = Measure::new(micros(50), micros(100), Span::from_micros(10), 2, None);
        measure.answered(micros(20), micros(15), Rank::FIRST, 0);
        measure.answered(micros(60), micros(55), Rank::FIRST, 1);
        measure.answered(micros(90), micros(70), Rank::FIRST, 1);
        assert_eq!((measure.total.get(Fact::Good), measure.window.get(Fact::Good)), (2, 1));
        assert_eq!(measure.window.get(Fact::Answered), 2);
        assert_eq!(measure.jain(), 0.5);
        measure.busy(micros(40), micros(60));
        assert_eq!(measure.utilization(2), 0.1);
    }

    #[test]
    fn series_has_a_row_for_every_whole_step() {
        let step = Span::from_micros(10);
        let mut measure = Measure::new(Instant::ZERO, micros(35), step, 1, Some(step));
        measure.offered(micros(5), Rank::FIRST);
        measure.offered(micros(25), Rank::FIRST);
        measure.answered(micros(27), micros(25), Rank::FIRST, 0);
        let rows = measure.series().unwrap();
        let seen: Vec<_> = rows.iter().map(|row| (row.offered, row.good)).collect();
        assert_eq!(seen, [(1, 0), (0, 0), (1, 1)]);
    }
}
