//! How much more than it can do, or less, a service is offered: between being idle by chance and refusing.
//!
//! A queue that is offered just what it can serve wanders at random between empty and full. With room
//! for *K* requests, offered a share *x* more than it can serve, it is empty for *x* ÷ (e^(*xK*/σ²) − 1)
//! of the time: the loss of M/M/1/K, and of others by diffusion. σ² is the mean of the squared
//! variations of the times between arrivals and of costs. It is full, and refuses, for *x* more than that.
//!
//! So there is a choice: of all *x*, the one at which idle time plus refusals, the latter times their *weight*, are least.
//! The weight is what a refusal costs the service, beside what it takes to serve, and the round trip that it has cost its caller, which a
//! refusal by the caller itself would not have taken. What it costs the service makes it weigh no more than to be idle. Where the queue is long, both losses are small
//! and refusals weigh more than idle time: a little less is offered than can be served. The shorter the queue and the more costs and arrivals vary, the more is
//! lost, and then what can be served has to be: round trips weigh less, and more is offered. So the service is idle
//! for about the same share of its time, however long the queue.

/// Most that is offered beyond the capacity: at that, one in three is refused.
const MOST: f64 = 0.5;
/// Largest squared variation of costs that counts. With heavier tails it is a few requests that make it, each of
/// which keeps one core busy for long; to offer more does not keep the others from being idle, and is refused: with
/// no bound, a lognormal service of σ = 2 has 91 % of its goodput at twice the capacity instead of 92.6.
const VARIED_MOST: f64 = 8.0;
/// Loss at which the round trip of a refusal weighs as much as to be idle, if each is so large at *x* = 0 and σ² is that of Breakwater's
/// testbed: where refusals cost next to nothing (with twice as much, 100 callers of 1 ms with bimodal costs and no ranks have 99.4 % of what CoDel has at 1.2 times
/// the capacity instead of 99.5)…
const EVEN_CHEAP: f64 = 0.0003;
/// …and where one costs at least [`DEAR`] of a request. By simulation: 10,000 callers of 10 µs are refused
/// about 1 % and have 98.8 % of the capacity, as much as is possible (figure tide-frontier); with bimodal costs 1.7 % at twice the
/// demand, as many as by Breakwater, which has 88 % of the capacity.
const EVEN: f64 = 0.0093;
const DEAR: f64 = 0.02;
/// The most that round trips weigh. By simulation: a key-value store of 1 µs, where a refusal takes two thirds of the time of a request, is
/// refused 1.0 % with it, with half of it 1.3, and has 0.1 points less of the capacity.
const TRIP_MOST: f64 = 3.5;
/// σ² of that testbed: exponential costs of 10 µs with messages of 1.76, Poisson arrivals.
const TESTBED: f64 = 0.86;
/// How much more round trips weigh where σ² is less than that, beside that the queue is as good as longer: as a power. By simulation: with 0,
/// 10,000 callers that begin with ten times what a service of 1 µs can do have 91.7 % of it after 1.2 million requests instead of 94.3.
const EVEN_POWER: f64 = 0.3;
/// How much less round trips weigh where many are sent at once, as a power of the dispersion of arrivals. By simulation: with 0, bursts of
/// ten of 10 µs at twice the capacity have 96.4 % of it instead of 96.7, and are refused 4.0 % instead of 4.5.
const BURSTS_POWER: f64 = -0.3;
/// Between these *xK*/σ² the best is found, in so many halvings, to 1 in 3,000.
const WORTH: (f64, f64) = (-4.0, 16.0);
const HALVINGS: usize = 16;

/// The share to offer beyond the capacity. `room` is the number of mean requests that may wait,
/// `variability` the squared variation of their costs, `dispersion` that of their arrivals, and
/// `price` what is lost with a refusal, as a share of what it takes to serve.
pub(super) fn surplus(room: f64, variability: f64, dispersion: f64, price: f64) -> f64 {
    let varied = f64::midpoint(dispersion, variability.min(VARIED_MOST));
    let room = room.max(1.0) / varied;
    let even = EVEN_CHEAP + (EVEN - EVEN_CHEAP) * (price / DEAR).min(1.0);
    let even_costs = (TESTBED / varied).powf(EVEN_POWER).max(1.0);
    let trip = (even * room * even_costs * dispersion.powf(BURSTS_POWER)).min(TRIP_MOST);
    let weight = trip.max((trip + price).min(1.0));
    (worth(weight) / room).min(MOST)
}

/// The *y* = *xK*/σ² at which one more refusal costs as much as it saves: idle time is *y* ÷ (e^*y* − 1)
/// and refusals are *y* more than that, all in σ² ÷ *K*, so idle time must fall by weight ÷ (1 + weight).
fn worth(weight: f64) -> f64 {
    let share = weight / (1.0 + weight);
    let falls = |y: f64| {
        let grown = y.exp_m1();
        if grown.abs() < 1e-4 { 0.5 } else { (y * (grown + 1.0) - grown) / (grown * grown) }
    };
    let (mut low, mut high) = WORTH;
    for _ in 0..HALVINGS {
        let middle = f64::midpoint(low, high);
        *(if falls(middle) > share { &mut low } else { &mut high }) = middle;
    }
    low
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Idle time and refusals with a share offered beyond what fits into `room`.
    fn lost(share: f64, room: f64) -> (f64, f64) {
        let idle = share / (share * room).exp_m1();
        (idle, idle + share)
    }

    #[test]
    fn where_refusals_cost_nothing_the_service_is_idle_for_less_than_one_in_a_thousand_however_long_the_queue()
     {
        for room in [30.0, 60.0, 100.0, 300.0] {
            let (idle, _) = lost(surplus(room, 1.0, 1.0, 0.0), room);
            assert!((0.0003..0.0004).contains(&idle), "{room}: {idle}");
        }
    }

    /// The testbed of Breakwater §5.1: room for 105 requests, and two messages of 1.76 µs beside 10 µs, with which
    /// exponential costs vary by 0.72 squared means.
    #[test]
    fn where_they_cost_something_no_more_than_one_in_a_hundred_is_refused_if_the_queue_is_long() {
        let lost = |room: f64| lost(surplus(room, 0.72, 1.0, 0.2), room / TESTBED);
        let (idle, refused) = lost(105.0);
        assert!(idle < 0.009 && refused < 0.009, "{idle} {refused}");
        let (idle, refused) = lost(42.0);
        assert!(idle < 0.016 && refused > 0.02, "a short one is kept busy: {idle} {refused}");
    }

    #[test]
    fn the_heaviest_tails_count_no_more_than_heavy_ones() {
        let share = |variability| surplus(100.0, variability, 1.0, 0.0);
        assert!(share(4.0) < share(8.0));
        assert_eq!(share(8.0), share(50.0));
    }

    #[test]
    fn the_more_costs_vary_the_less_a_round_trip_weighs() {
        let lost = |varied: f64| {
            let (room, variability) = (100.0, 2.0 * varied - 1.0);
            lost(surplus(room, variability, 1.0, DEAR), room / varied)
        };
        let ((idle, refused), (idle_varied, refused_varied)) = (lost(1.0), lost(2.0));
        assert!(
            idle_varied < 1.3 * idle && refused_varied > 2.0 * refused,
            "{idle_varied} {refused_varied} for {idle} {refused}"
        );
    }

    #[test]
    fn a_long_queue_needs_none_and_a_short_one_is_bounded() {
        assert!(surplus(1000.0, 1.0, 1.0, 0.0).abs() < 0.002);
        assert_eq!(surplus(0.0, 1.0, 1.0, 0.0), MOST);
        assert!(surplus(60.0, 0.0, 1.0, 0.0) < surplus(60.0, 1.0, 1.0, 0.0));
        assert!(surplus(60.0, 1.0, 1.0, 0.0) < surplus(60.0, 4.0, 1.0, 0.0));
        assert!(surplus(60.0, 1.0, 1.0, 0.0) < surplus(60.0, 1.0, 4.0, 0.0));
    }

    #[test]
    fn no_more_is_offered_than_is_worth_its_weight() {
        // Idle and refused, the latter times their weight, are the least at the worth.
        let loss = |y: f64, weight: f64| {
            let (idle, refused) = lost(y, 1.0);
            idle + weight * refused
        };
        for weight in [0.01, 0.1, 0.5, 1.0001, 2.0] {
            let best = worth(weight);
            let [less, more] = [-0.2, 0.2].map(|step| loss(best + step, weight));
            assert!(loss(best, weight) < less.min(more), "{weight}: {best}");
        }
        assert!(surplus(20.0, 1.0, 1.0, 0.5) < 0.5 * surplus(20.0, 1.0, 1.0, 0.0));
        // However dear a refusal is, a service with little room is offered what it can do.
        assert!(surplus(20.0, 1.0, 1.0, 9.0).abs() < 1e-3);
    }
}
