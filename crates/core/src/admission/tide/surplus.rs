//! How much more than it can do a service is offered, so that chance does not leave it idle.
//!
//! A queue that is offered just what it can serve wanders at random between empty and full. With room
//! for *K* requests, offered a share *x* more than it can serve, it is empty for *x* ÷ (e^(*xK*/σ²) − 1)
//! of the time: the loss of M/M/1/K, and of others by diffusion. σ² is the mean of the squared
//! variations of the times between arrivals and of costs. What is offered beyond the capacity is
//! refused, so a queue that is long anyway should be offered no more than it can serve, and a short one
//! much more. Yet a refusal has its price: beyond some *x* more is spent on refusing than is won.

/// Time for which chance may leave the service idle while there is overload, as a share.
const IDLE: f64 = 0.005;
/// Most that is offered beyond the capacity: at that, one in three is refused.
const MOST: f64 = 0.5;
/// Largest squared variation of costs that counts. With heavier tails it is a few requests that make it, each of
/// which keeps one core busy for long; to offer more does not keep the others from being idle, and is refused: with
/// no bound, a lognormal service of σ = 2 has 91 % of its goodput at twice the capacity instead of 92.6.
const VARIED_MOST: f64 = 8.0;
/// Steps in which the share is found; the error shrinks by *K*·([`IDLE`] + share) ÷ σ² in each.
const STEPS: usize = 8;
/// Largest *xK*/σ² that is ever worth its price.
const WORTH_MOST: f64 = 16.0;
/// Halvings in which that is found, to 1 in 4,000.
const HALVINGS: usize = 16;

/// The share to offer beyond the capacity. `room` is the number of mean requests that may wait,
/// `variability` the squared variation of their costs, `dispersion` that of their arrivals, and
/// `price` what is lost with a refusal, as a share of what it takes to serve.
pub(super) fn surplus(room: f64, variability: f64, dispersion: f64, price: f64) -> f64 {
    let room = room.max(1.0) / f64::midpoint(dispersion, variability.min(VARIED_MOST));
    let most = MOST.min(worth(price) / room);
    (0..STEPS).fold(most, |share, _| ((share / IDLE).ln_1p() / room).min(most))
}

/// The *y* = *xK*/σ² at which one more refusal costs as much as it saves: idle time is *y* ÷ (e^*y* − 1)
/// and refusals are *y* more than that, all in σ² ÷ *K*, so idle time must fall by price ÷ (1 + price).
fn worth(price: f64) -> f64 {
    let share = price / (1.0 + price);
    let falls = |y: f64| {
        let grown = y.exp_m1();
        (y * (grown + 1.0) - grown) / (grown * grown)
    };
    let (mut low, mut high) = (0.0, WORTH_MOST);
    for _ in 0..HALVINGS {
        let middle = f64::midpoint(low, high);
        *(if falls(middle) > share { &mut low } else { &mut high }) = middle;
    }
    low
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_much_more_as_leaves_the_service_idle_for_half_a_percent() {
        for room in [20.0, 30.0, 60.0, 100.0] {
            let share = surplus(room, 1.0, 1.0, 0.0);
            let idle = share / (share * room).exp_m1();
            assert!((0.004..0.0055).contains(&idle), "{room}: {share} more leave {idle} idle");
        }
    }

    #[test]
    fn the_heaviest_tails_count_no_more_than_heavy_ones() {
        let share = |variability| surplus(100.0, variability, 1.0, 0.0);
        assert!(share(4.0) < share(8.0));
        assert_eq!(share(8.0), share(50.0));
    }

    #[test]
    fn a_long_queue_needs_none_and_a_short_one_is_bounded() {
        assert!(surplus(1000.0, 1.0, 1.0, 0.0) < 0.001);
        assert_eq!(surplus(0.0, 1.0, 1.0, 0.0), MOST);
        assert!(surplus(60.0, 0.0, 1.0, 0.0) < surplus(60.0, 1.0, 1.0, 0.0));
        assert!(surplus(60.0, 1.0, 1.0, 0.0) < surplus(60.0, 4.0, 1.0, 0.0));
        assert!(surplus(60.0, 1.0, 1.0, 0.0) < surplus(60.0, 1.0, 4.0, 0.0));
    }

    #[test]
    fn no_more_is_offered_than_is_worth_its_price() {
        // Idle and refused, the latter times their price, are the least at the worth.
        let loss = |y: f64, price: f64| {
            let idle = y / y.exp_m1();
            idle + price * (y + idle)
        };
        for price in [0.01, 0.1, 0.5] {
            let best = worth(price);
            let [less, more] = [0.8, 1.25].map(|part| loss(part * best, price));
            assert!(loss(best, price) < less.min(more), "{price}: {best}");
        }
        assert!(surplus(20.0, 1.0, 1.0, 0.5) < 0.5 * surplus(20.0, 1.0, 1.0, 0.0));
        assert_eq!(surplus(20.0, 1.0, 1.0, 2.0), 0.0, "a refusal costs more than to serve");
    }
}
