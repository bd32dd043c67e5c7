//! What came of a plan, beside what was possible.
//!
//! *Possible* is the least of what was asked for, what `ideal` served, and what receiving and refusing leaves where
//! callers do not listen. Served is counted in core time: requests that cost more count for more, and who happened to
//! draw long ones has served fewer for it. Of a graph, requests are counted.

use super::draw::Drawn;
use crate::report::Report;

/// One plan.
#[derive(Clone, Debug)]
pub struct Judged {
    /// Which plan of the swarm.
    pub number: usize,
    /// The plan.
    pub drawn: Drawn,
    /// What could be served, of the capacity.
    pub possible: f64,
    /// Whether 99 in a hundred answers of `ideal` are in time.
    pub in_time: bool,
    /// Every policy, in the order in which they were asked for.
    pub seen: Vec<Seen>,
}

/// What a policy made of it.
#[derive(Clone, Debug)]
pub struct Seen {
    /// Its name.
    pub policy: String,
    /// Points of capacity served less than possible; nothing if more by chance.
    pub regret: f64,
    /// 99th percentile of answers, in SLOs.
    pub p99: f64,
    /// Below capacity, points refused beyond what `ideal` refuses or misses.
    pub refused: Option<f64>,
    /// Of plans with ranks, the share of the first quarter that was served, of what was possible.
    pub first_quarter: Option<f64>,
}

impl Judged {
    /// Judges the reports of a plan, of which the last is that of `ideal`.
    pub(super) fn new(number: usize, drawn: Drawn, slo_us: f64, reports: &[Report]) -> Self {
        let (ideal, others) = reports.split_last().expect("ideal is always there");
        let served = |report: &Report| {
            if drawn.graph {
                return report.goodput_rps / report.capacity_rps;
            }
            report.goodput_rps * (report.work_us / 1e6 + drawn.messages) / drawn.cores
        };
        let possible = served(ideal).min(drawn.left_by_refusals());
        let missed = |answered: f64, report: &Report| 1.0 - answered / report.offered_rps;
        let judge = |report: &Report| Seen {
            policy: report.policy.clone(),
            regret: (100.0 * (possible - served(report))).max(0.0),
            p99: report.p99_us / slo_us,
            refused: drawn.is_below_capacity().then(|| {
                let refused = missed(report.throughput_rps, report);
                (100.0 * (refused - missed(ideal.goodput_rps, ideal))).max(0.0)
            }),
            first_quarter: drawn.ranked.then(|| drawn.of_first_quarter(report, possible)),
        };
        Self {
            number,
            possible,
            in_time: ideal.p99_us <= slo_us,
            seen: others.iter().map(judge).collect(),
            drawn,
        }
    }

    /// Points by which the first policy is behind the best of the others.
    pub fn behind(&self) -> f64 {
        let others = self.seen[1..].iter().map(|seen| seen.regret).fold(f64::INFINITY, f64::min);
        if others.is_finite() { (self.seen[0].regret - others).max(0.0) } else { 0.0 }
    }
}

impl Drawn {
    /// Whether it never offers as much as the capacity.
    pub fn is_below_capacity(&self) -> bool {
        self.loads.iter().all(|load| *load < 1.0)
    }

    /// What can be served of the capacity if callers that ignore control are served and refused like all others, and
    /// what is refused takes receiving and answering: of *l* offered, by a share *i* of them, *x* with
    /// *x* + *i* (*l* − *x*) *m* = what is left of the capacity, *m* being the messages of a request in what it costs.
    fn left_by_refusals(&self) -> f64 {
        let each = self.ignoring * self.messages / self.core_time;
        self.phases(|load, health| {
            let left = (health - each * load) / (1.0 - each);
            if load <= health { load } else { left.max(0.0) }
        })
    }

    /// The mean over what is measured of something that goes with the load and with what is left of the capacity:
    /// both are another for the middle third.
    fn phases(&self, of: impl Fn(f64, f64) -> f64) -> f64 {
        (2.0 * of(self.loads[0], 1.0) + of(self.loads[1], self.health)) / 3.0
    }

    /// Served of the first quarter, of what is possible: all of it, unless it is more than can be served.
    fn of_first_quarter(&self, report: &Report, possible: f64) -> f64 {
        let asked = self.phases(|load, _| load * self.first_quarter);
        let most = self.phases(|load, health| (load * self.first_quarter).min(health));
        report.success_by_quarter[0] * asked / most.min(possible)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(load: f64, ignoring: f64) -> Drawn {
        Drawn {
            text: String::new(),
            loads: [load, load],
            health: 1.0,
            ranked: true,
            graph: false,
            ignoring,
            core_time: 1e-3,
            messages: 1e-4,
            first_quarter: 0.25,
            cores: 1.0,
        }
    }

    #[test]
    fn who_does_not_listen_takes_the_time_of_refusals() {
        let left = |load, ignoring| drawn(load, ignoring).left_by_refusals();
        // Of four capacities that come, three are refused at a tenth each: x + 0.1 (4 − x) = 1.
        for (load, ignoring, expected) in [(4.0, 0.0, 1.0), (0.7, 1.0, 0.7), (4.0, 1.0, 0.6 / 0.9)]
        {
            assert!((left(load, ignoring) - expected).abs() < 1e-9, "{load} {ignoring}");
        }
        let slow = Drawn { health: 0.5, ..drawn(2.0, 0.0) };
        assert!((slow.left_by_refusals() - 2.5 / 3.0).abs() < 1e-9, "half as fast for a third");
    }
}
