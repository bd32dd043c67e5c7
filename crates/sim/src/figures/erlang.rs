//! What queueing theory says of a service of several cores with bounded room, for figures that show what
//! is possible: exponential service, requests that come alone or many at once.

/// Cores of the plans' services, what messages cost per request, and the round trip, in microseconds.
const CORES: u32 = 10;
pub(super) const MESSAGES: f64 = 1.76;
const RTT: f64 = 10.0;
/// Answers that may be late: the 99th percentile is within the SLO.
pub(super) const LATE: f64 = 0.01;

/// What such a service does: dropped ÷ offered, answered in time ÷ capacity, late ÷ answered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounded {
    pub(crate) dropped: f64,
    pub(crate) good: f64,
    pub(crate) late: f64,
}

/// `offered` is a share of the capacity. It comes in batches, at least k + 1 in one with the probability
/// `at_least[k]`; `in_time[n]` is the probability that who finds n there is answered in time. Who finds as
/// many as that list is long is dropped.
pub(crate) fn bounded(offered: f64, at_least: &[f64], in_time: &[f64]) -> Bounded {
    let cores = f64::from(CORES);
    let batches = offered * cores / at_least.iter().sum::<f64>();
    let mut weights = vec![1.0];
    for n in 0..in_time.len() {
        // As often as n departures leave n behind, a batch comes to n or fewer and makes them more.
        let passed: f64 = (0..=n).map(|i| weights[i] * at_least.get(n - i).unwrap_or(&0.0)).sum();
        weights.push(batches * passed / ((n + 1) as f64).min(cores));
    }
    let (mut entered, mut good) = (0.0, 0.0);
    for (i, weight) in weights.iter().enumerate() {
        for (at_least, in_time) in at_least.iter().zip(&in_time[i..]) {
            entered += weight * at_least;
            good += weight * at_least * in_time;
        }
    }
    let total: f64 = weights.iter().sum();
    let share = |sum: f64| batches * sum / total / cores;
    let (entered, good) = (share(entered), share(good));
    Bounded { dropped: 1.0 - entered / offered, good, late: 1.0 - good / entered }
}

/// The probability to be answered within the SLO, ten times service and round trip, by how many are there on
/// arrival, if so many may wait. `micros` is the mean service time. Who finds k more than there are cores waits
/// for an Erlang time of k + 1 departures, then is served.
pub(super) fn in_time(room: u32, micros: f64) -> Vec<f64> {
    in_time_within(room, micros + MESSAGES, 10.0 * (micros + RTT) - RTT)
}

fn in_time_within(room: u32, mean: f64, slo: f64) -> Vec<f64> {
    let (one, all) = (slo / mean, slo / mean * f64::from(CORES));
    let late = |n: u32| {
        let departures = (n + 1).saturating_sub(CORES);
        if departures == 0 {
            return (-one).exp();
        }
        // Still waiting when the time is over; or served then, which began before.
        let ratio = all / (all - one);
        let begun = 1.0 - fewer(departures, all - one);
        fewer(departures, all) + (f64::from(departures) * ratio.ln() - one).exp() * begun
    };
    (0..CORES + room).map(|n| 1.0 - late(n)).collect()
}

/// The probability that fewer than `count` of something come that is expected `mean` times.
fn fewer(count: u32, mean: f64) -> f64 {
    let mut term = (-mean).exp();
    let mut sum = term;
    for n in 1..count {
        term *= mean / f64::from(n);
        sum += term;
    }
    sum.min(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Without a queue this is Erlang's loss formula: ten cores, ten erlangs, 21.46 % lost.
    #[test]
    fn no_room_is_the_loss_formula() {
        let lost = bounded(1.0, &[1.0], &in_time_within(0, 1.0, 1e9));
        assert!((lost.dropped - 0.214_58).abs() < 1e-4, "{lost:?}");
        assert!((lost.good - (1.0 - lost.dropped)).abs() < 1e-9 && lost.late.abs() < 1e-9);
    }

    /// With endless room and one free core nothing waits: late is who takes longer than the SLO.
    #[test]
    fn who_finds_a_free_core_is_late_only_by_its_own_service() {
        let alone = in_time_within(1, 10.0, 46.05);
        assert!((alone[0] - 0.99).abs() < 1e-4);
        assert!(alone[10] < alone[9], "the first that waits is late more often");
    }

    /// Ten at once, all cores free and no room: all find a core, and all of the next batch that comes while
    /// they are busy do not.
    #[test]
    fn batches_are_lost_more_often_than_as_many_alone() {
        let places = in_time_within(0, 1.0, 1e9);
        let [alone, together] = [1, 10].map(|size| bounded(0.5, &vec![1.0; size], &places));
        assert!(alone.dropped < 0.02, "{alone:?}");
        // Half of the capacity in batches of ten is a batch every two service times, and who is served
        // for longer than that is in the way of the next.
        assert!((0.2..0.4).contains(&together.dropped), "{together:?}");
        assert!((together.good - 0.5 * (1.0 - together.dropped)).abs() < 1e-9);
    }
}
