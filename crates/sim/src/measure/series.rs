//! What happened in each step of a run, one row for each.

use tidegate_core::{Instant, Span};

use super::Histogram;

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
    /// Mean time from the submission of a request until its refusal by a server was heard; zero of none.
    pub reject_delay: Span,
}

/// Rows over time, warm-up included.
#[derive(Clone, Debug)]
pub(super) struct Series {
    pub(super) step: Span,
    rows: Vec<Row>,
    current: Step,
    /// Start of the current step.
    start: Instant,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Step {
    pub(super) offered: u64,
    pub(super) good: u64,
    pub(super) latency: Histogram,
    /// Requests refused by a server, and how long that took in all, in nanoseconds.
    pub(super) refused: u64,
    pub(super) reject_delay: u64,
}

impl Series {
    pub(super) fn new(step: Span) -> Self {
        Self { step, rows: Vec::new(), current: Step::default(), start: Instant::ZERO }
    }

    pub(super) fn at(&mut self, now: Instant) -> &mut Step {
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
            reject_delay: Span::from_nanos(self.current.reject_delay / self.current.refused.max(1)),
        });
        self.start += self.step;
        (self.current.offered, self.current.good) = (0, 0);
        (self.current.refused, self.current.reject_delay) = (0, 0);
        self.current.latency.clear();
    }

    /// All whole steps up to `end`.
    pub(super) fn finish(mut self, end: Instant) -> Vec<Row> {
        while self.start + self.step <= end {
            self.close();
        }
        self.rows.retain(|row| row.at + row.step <= end);
        self.rows
    }
}
