//! How much more than it can do a service is offered, so that chance does not leave it idle.
//!
//! A queue that is offered just what it can serve wanders at random between empty and full. With room
//! for *K* requests, offered a share *x* more than it can serve, it is empty for *x* ÷ (e^(*xK*/σ²) − 1)
//! of the time: the loss of M/M/1/K, and of others by diffusion. σ² is the mean of the squared
//! variations of the times between arrivals and of costs. What is offered beyond the capacity is
//! refused, so a queue that is long anyway should be offered no more than it can serve, and a short one
//! much more.

/// Time for which chance may leave the service idle while there is overload, as a share.
const IDLE: f64 = 0.005;
/// Most that is offered beyond the capacity: at that, one in three is refused.
const MOST: f64 = 0.5;
/// Steps in which the share is found; the error shrinks by *K*·([`IDLE`] + share) ÷ σ² in each.
const STEPS: usize = 8;

/// The share to offer beyond the capacity. `room` is the number of mean requests that may wait,
/// `variability` the squared variation of their costs, and `dispersion` that of their arrivals.
pub(super) fn surplus(room: f64, variability: f64, dispersion: f64) -> f64 {
    let room = room.max(1.0) / f64::midpoint(dispersion, variability);
    (0..STEPS).fold(MOST, |share, _| ((share / IDLE).ln_1p() / room).min(MOST))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_much_more_as_leaves_the_service_idle_for_half_a_percent() {
        for room in [20.0, 30.0, 60.0, 100.0] {
            let share = surplus(room, 1.0, 1.0);
            let idle = share / (share * room).exp_m1();
            assert!((0.004..0.0055).contains(&idle), "{room}: {share} more leave {idle} idle");
        }
    }

    #[test]
    fn a_long_queue_needs_none_and_a_short_one_is_bounded() {
        assert!(surplus(1000.0, 1.0, 1.0) < 0.001);
        assert_eq!(surplus(0.0, 1.0, 1.0), MOST);
        assert!(surplus(60.0, 0.0, 1.0) < surplus(60.0, 1.0, 1.0));
        assert!(surplus(60.0, 1.0, 1.0) < surplus(60.0, 4.0, 1.0));
        assert!(surplus(60.0, 1.0, 1.0) < surplus(60.0, 1.0, 4.0));
    }
}
