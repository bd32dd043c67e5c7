//! What an open loop is judged by, in the terms of the simulator's reports.

use tidegate_core::{Instant, Rank, Span};
use tidegate_sim::measure::{Histogram, Row};

/// User ranks are told apart in groups of 256.
const GROUPS: usize = 256;

/// A run with fewer requests says nothing.
const LEAST: u64 = 100;

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    Answered,
    Refused,
    Rejected,
    Failed,
}

/// Counts over the measured time.
pub(super) struct Tally {
    from: Instant,
    to: Instant,
    slo: Span,
    pub(super) offered: u64,
    pub(super) answered: u64,
    pub(super) good: u64,
    pub(super) refused: u64,
    pub(super) rejected: u64,
    pub(super) failed: u64,
    /// Frames in both directions, and requests among those that were sent.
    pub(super) sent: u64,
    pub(super) requests: u64,
    pub(super) received: u64,
    pub(super) latency: Histogram,
    pub(super) lag: Histogram,
    reject_delay: Histogram,
    /// Offered and good by user rank, and by caller.
    ranks: Vec<(u64, u64)>,
    callers: Vec<(u64, u64)>,
    series: Option<Series>,
}

struct Series {
    step: Span,
    start: Instant,
    rows: Vec<(Row, Histogram)>,
}

impl Tally {
    pub(super) fn new(from: Instant, to: Instant, slo: Span, callers: usize) -> Self {
        Self {
            from,
            to,
            slo,
            offered: 0,
            answered: 0,
            good: 0,
            refused: 0,
            rejected: 0,
            failed: 0,
            sent: 0,
            requests: 0,
            received: 0,
            latency: Histogram::default(),
            lag: Histogram::default(),
            reject_delay: Histogram::default(),
            ranks: vec![(0, 0); GROUPS],
            callers: vec![(0, 0); callers],
            series: None,
        }
    }

    /// Keeps a series in steps of this length, from `start` on.
    pub(super) fn with_series(mut self, start: Instant, step: Option<Span>) -> Self {
        self.series = step.map(|step| Series { step, start, rows: Vec::new() });
        self
    }

    pub(super) fn counts(&self, at: Instant) -> bool {
        self.from <= at && at < self.to
    }

    /// Whether there was enough to judge by: a load, and a server or callers that did something about
    /// it. That nothing was good is a result too.
    pub(super) fn is_enough(&self) -> bool {
        let ended = self.answered + self.refused + self.rejected + self.failed;
        self.offered >= LEAST && ended > 0
    }

    /// What could have left at `due` was written, or rejected, at `now`.
    pub(super) fn leave(&mut self, due: Instant, now: Instant) {
        if self.counts(due) {
            self.lag.add(now.since(due));
        }
    }

    /// A request was due at `due`.
    pub(super) fn offer(&mut self, due: Instant, rank: Rank, caller: usize) {
        if let Some(series) = &mut self.series {
            series.row(due).0.offered += 1;
        }
        if self.counts(due) {
            self.offered += 1;
            self.ranks[group(rank)].0 += 1;
            self.callers[caller].0 += 1;
        }
    }

    /// A request that was due at `due` has ended.
    pub(super) fn end(
        &mut self,
        due: Instant,
        now: Instant,
        ending: Ending,
        rank: Rank,
        caller: usize,
    ) {
        let latency = now.since(due);
        let good = ending == Ending::Answered && latency <= self.slo;
        if let Some(series) = &mut self.series {
            let (row, latencies) = series.row(now);
            row.good += u64::from(good);
            if ending == Ending::Answered {
                latencies.add(latency);
            }
        }
        // As the simulator does: rates by when something happened, success by when it was due.
        if self.counts(now) {
            match ending {
                Ending::Answered => {
                    self.answered += 1;
                    self.good += u64::from(good);
                    self.latency.add(latency);
                }
                Ending::Refused => {
                    self.refused += 1;
                    self.reject_delay.add(latency);
                }
                Ending::Rejected => self.rejected += 1,
                Ending::Failed => self.failed += 1,
            }
        }
        if self.counts(due) && good {
            self.ranks[group(rank)].1 += 1;
            self.callers[caller].1 += 1;
        }
    }

    pub(super) fn reject_delay_us(&self) -> f64 {
        self.reject_delay.mean() / 1e3
    }

    /// Good ÷ offered by quarters of the offered requests, the most important first.
    pub(super) fn success_by_quarter(&self) -> [f64; 4] {
        let all: u64 = self.ranks.iter().map(|(offered, _)| offered).sum();
        let (mut quarters, mut seen) = ([(0u64, 0u64); 4], 0u64);
        for (offered, good) in &self.ranks {
            let quarter = ((4 * seen).checked_div(all).unwrap_or(0) as usize).min(3);
            quarters[quarter].0 += offered;
            quarters[quarter].1 += good;
            seen += offered;
        }
        quarters.map(|(offered, good)| if offered > 0 { good as f64 / offered as f64 } else { 0.0 })
    }

    /// Jain's index of the callers' goodput.
    pub(super) fn jain(&self) -> f64 {
        let shares = || self.callers.iter().map(|(_, good)| *good as f64);
        let (sum, squares): (f64, f64) = (shares().sum(), shares().map(|x| x * x).sum());
        if squares > 0.0 { sum * sum / (squares * self.callers.len() as f64) } else { 0.0 }
    }

    /// The course, in steps that lie within the run: afterwards answers still come, but nothing is offered.
    pub(super) fn series(&mut self) -> Option<Vec<Row>> {
        let Series { step, start, rows } = self.series.take()?;
        let steps = self.to.since(start).as_nanos() / step.as_nanos().max(1);
        let finish =
            |(row, latencies): (Row, Histogram)| Row { p99: latencies.quantile(0.99), ..row };
        Some(rows.into_iter().take(steps as usize).map(finish).collect())
    }
}

impl Series {
    fn row(&mut self, at: Instant) -> &mut (Row, Histogram) {
        let place = (at.since(self.start).as_nanos() / self.step.as_nanos().max(1)) as usize;
        while self.rows.len() <= place {
            let at = Instant::ZERO + self.step.scale(self.rows.len() as f64);
            let zero = Span::ZERO;
            let row =
                Row { at, step: self.step, offered: 0, good: 0, p99: zero, reject_delay: zero };
            self.rows.push((row, Histogram::default()));
        }
        &mut self.rows[place]
    }
}

fn group(rank: Rank) -> usize {
    usize::from(rank.user()) * GROUPS / (1 << 16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_course_ends_with_its_load() {
        let at = |micros| Instant::ZERO + Span::from_micros(micros);
        let tally = Tally::new(at(50), at(350), Span::from_micros(100), 1);
        let mut tally = tally.with_series(at(50), Some(Span::from_micros(100)));
        let rank = Rank::new(24, 0);
        for due in [60, 160, 260, 340] {
            tally.offer(at(due), rank, 0);
            tally.end(at(due), at(due + 20), Ending::Answered, rank, 0);
        }
        let series = tally.series().expect("asked for");
        let told: Vec<_> = series.iter().map(|row| (row.offered, row.good)).collect();
        assert_eq!(told, [(1, 1), (1, 1), (2, 1)], "the last answer came too late to be in it");
    }

    #[test]
    fn what_is_good_and_for_whom() {
        let at = |micros| Instant::ZERO + Span::from_micros(micros);
        let mut tally = Tally::new(at(0), at(1_000), Span::from_micros(100), 2);
        for user in 0..64u16 {
            let (rank, caller) = (Rank::new(24, user * 1024), usize::from(user % 2));
            tally.offer(at(10), rank, caller);
            // The most important half in time, the rest late.
            let took = if user < 32 { 50 } else { 500 };
            tally.end(at(10), at(10 + took), Ending::Answered, rank, caller);
        }
        assert_eq!((tally.offered, tally.answered, tally.good), (64, 64, 32));
        assert_eq!(tally.success_by_quarter(), [1.0, 1.0, 0.0, 0.0]);
        assert!((tally.jain() - 1.0).abs() < 1e-9);
        tally.end(at(10), at(2_000), Ending::Refused, Rank::FIRST, 0);
        assert_eq!(tally.refused, 0, "after the end");
    }

    #[test]
    fn a_run_without_requests_or_without_an_end_is_not_enough() {
        let at = |micros| Instant::ZERO + Span::from_micros(micros);
        let mut tally = Tally::new(at(0), at(1_000), Span::from_micros(100), 1);
        assert!(!tally.is_enough());
        for _ in 0..LEAST {
            tally.offer(at(10), Rank::FIRST, 0);
        }
        assert!(!tally.is_enough(), "nothing came of them");
        tally.end(at(10), at(900), Ending::Answered, Rank::FIRST, 0);
        assert!(tally.is_enough() && tally.good == 0, "late, but it is a result");
    }
}
