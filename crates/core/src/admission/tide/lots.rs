//! Who decides among requests that drew lots: a cut through the lots, or credits.
//!
//! A lot means nothing, so the one is as just as the other, and what counts is how even the queue is. A cut lets in a random stream, and
//! callers follow the queue as often as they hear of it. A credit that comes back with an answer is a request as soon as its caller
//! has one: what is inside and what rests at callers are a constant number together, so the queue varies by no more than the root of what rests.
//! That is better where callers are asked often and what rests is little beside the room there is. But a caller without a credit has to be
//! granted one by a message of its own, and where messages are most of the work that is dear.

use crate::signal::Ewma;
use crate::time::Span;

/// How often callers are answered.
#[derive(Clone, Debug)]
pub(super) struct Lots {
    /// Time between two answers to a caller, in nanoseconds. Unasked messages do not count: there are many when something
    /// has changed.
    between: Ewma,
}

/// What is asked of a service, and what it can do.
pub(super) struct Demand<'a> {
    pub(super) objective: Span,
    /// Messages in the time of a mean request with its own two.
    pub(super) messages: f64,
    /// Mean requests that may wait.
    pub(super) room: f64,
    /// Credits that are at callers until these have their next request.
    pub(super) resting: f64,
    /// Mean of the squared variations of arrivals and costs.
    pub(super) varied: f64,
    /// Whether more is offered than so many times what the service can do.
    pub(super) exceeds: &'a dyn Fn(f64) -> bool,
    /// Whether credits decide now.
    pub(super) already: bool,
}

/// Weight of a round in the time between answers: it decides for long.
const GAIN: f64 = 0.05;
/// Objectives between two answers to a caller up to which credits decide. By simulation: with 2,000 callers of 10 µs, which
/// are answered every twelve, one is as good as the other; with 3,000 twice as many are refused with credits.
const OFTEN: f64 = 10.0;
/// Messages in the time of a request below which it is less often, by the third power. By simulation: 255 callers of 1 µs, where it is 3, have
/// 95.6 % of the capacity at ten times the demand with credits instead of 99.9; ten have 109 % at four times with them, as
/// answers that are ready together share messages.
const DEAR: f64 = 11.0;
/// Most of the variance of the queue that what rests may make, in squares of the room. By simulation: with 1,000 callers of 1 ms, bimodal, it is
/// 0.26 at twice the demand, and the service has 98.6 % of the capacity instead of 99.5.
const UNEVEN: f64 = 0.15;
/// Least that is offered, in what can be done. By simulation: at 1.2 times the capacity, 100 callers of 100 µs are refused
/// twice as often with credits.
const MUCH: f64 = 1.5;
/// How far beyond these it must be for credits to decide no longer, and how far with what rests, of which little is known then: to
/// change often is worse than either. By simulation: without it, 255 callers of 10 µs have 94 % of the capacity at ten times the demand instead of 99.
const MARGIN: f64 = 1.3;
const MARGIN_RESTING: f64 = 2.2;

impl Lots {
    pub(super) fn new() -> Self {
        Self { between: Ewma::new(GAIN) }
    }

    /// So many of the requests of `callers` were answered in `elapsed`.
    pub(super) fn answered(&mut self, elapsed: Span, callers: f64, answers: u32) {
        self.between.add(elapsed.as_nanos_f64() * callers / f64::from(answers.max(1)));
    }

    /// Whether credits are to decide.
    pub(super) fn suit_credits(&self, demand: &Demand<'_>) -> bool {
        let (margin, margin_resting) =
            if demand.already { (MARGIN, MARGIN_RESTING) } else { (1.0, 1.0) };
        let often = OFTEN * (demand.messages / DEAR).min(1.0).powi(3) * margin;
        let longest = demand.objective.as_nanos_f64() * often;
        let uneven = demand.resting * demand.varied / (demand.room * demand.room).max(1.0);
        self.between.get().is_some_and(|between| between < longest)
            && uneven < UNEVEN * margin_resting
            && (demand.exceeds)(MUCH / margin)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OBJECTIVE: Span = Span::from_micros(200);

    /// Whether credits suit `callers` of a service of so many microseconds, `load` times what ten cores can serve.
    fn suit(micros: f64, callers: f64, load: f64, already: bool) -> bool {
        let objective = Span::from_nanos_f64(1e4 * (micros + 10.0));
        let per_nano = 10.0 / (1e3 * (micros + 2.0));
        let mut lots = Lots::new();
        let elapsed = OBJECTIVE.scale(50.0);
        lots.answered(elapsed, callers, (elapsed.as_nanos_f64() * per_nano) as u32);
        lots.suit_credits(&Demand {
            objective,
            messages: micros + 2.0,
            room: 0.6 * objective.as_nanos_f64() * per_nano,
            resting: callers / load,
            varied: 1.0,
            exceeds: &|more| load > more,
            already,
        })
    }

    #[test]
    fn credits_suit_callers_that_are_answered_often() {
        assert!(suit(10.0, 1_000.0, 2.0, false));
        assert!(!suit(10.0, 3_000.0, 10.0, false));
    }

    #[test]
    fn where_messages_are_most_of_the_work_they_suit_few() {
        assert!(suit(1.0, 10.0, 2.0, false));
        assert!(!suit(1.0, 100.0, 2.0, false));
    }

    #[test]
    fn they_do_not_where_what_rests_makes_the_queue_uneven() {
        assert!(suit(1_000.0, 900.0, 10.0, false));
        assert!(!suit(1_000.0, 900.0, 1.6, false));
    }

    #[test]
    fn to_go_back_takes_a_margin() {
        for (callers, load) in [(2_000.0, 4.0), (100.0, 1.3)] {
            assert_eq!(
                [false, true].map(|already| suit(10.0, callers, load, already)),
                [false, true]
            );
        }
        assert!(!suit(10.0, 100.0, 1.1, true), "all can be served");
    }
}
