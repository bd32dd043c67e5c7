//! Changing a placement when loads have shifted, with as few moves as possible.
//!
//! Buckets follow a shift by themselves ([`share`](crate::share)); publishers have to be moved only
//! when a broker has more than it can serve (left open in SRTM §V-D). A move closes a connection and
//! opens another, so the fewest are best:
//!
//! 1. nobody moves whose broker is there and within its limit;
//! 2. a broker above its limit gives up its largest publishers, as few as bring it below, and of
//!    these the last as small as suffices;
//! 3. each goes to the broker that already serves the topic and has the least room that is enough; to
//!    a fresh one only if there is none, the one with the most room first: concentration;
//! 4. among brokers that are equal, to the one with the fewest of its group.

use super::{Placement, Publisher};

/// One publisher that changes its broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    /// Who moves.
    pub publisher: usize,
    /// From here; none if it had no broker.
    pub from: Option<usize>,
    /// To here; none if no broker has room.
    pub to: Option<usize>,
}

/// A changed placement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Moves {
    /// In the order in which they are to be made.
    pub moves: Vec<Move>,
    /// What it comes to. Publishers without room stay where they are, if that broker is there.
    pub placement: Placement,
}

/// Brings every broker within its limit: `limits` has the messages per second that each can serve, none
/// for one that has disappeared.
pub fn moves(publishers: &[Publisher], current: &Placement, limits: &[Option<f64>]) -> Moves {
    let mut placement = current.clone();
    placement.broker_of.resize(publishers.len(), None);
    let mut rates = placement.rates(publishers, limits.len());
    let mut leaving = homeless(&placement, limits);
    for (broker, limit) in limits.iter().enumerate() {
        let excess = limit.map_or(0.0, |limit| rates[broker] - limit);
        for publisher in give_up(publishers, &placement, broker, excess) {
            leaving.push((publisher, Some(broker)));
        }
    }
    // The largest first: they are the hardest to find room for.
    leaving.sort_by(|a, b| publishers[b.0].rate.total_cmp(&publishers[a.0].rate).then(a.cmp(b)));
    for (publisher, from) in &leaving {
        placement.broker_of[*publisher] = None;
        if let Some(from) = from {
            rates[*from] -= publishers[*publisher].rate;
        }
    }
    let mut moves = Vec::with_capacity(leaving.len());
    for (publisher, from) in leaving {
        let to = receiver(publishers, &placement, limits, &rates, publisher);
        let stays = from.filter(|_| to.is_none());
        let home = to.or(stays);
        if let Some(home) = home {
            rates[home] += publishers[publisher].rate;
        }
        placement.broker_of[publisher] = home;
        if to != from || to.is_none() {
            let from = from.or(current.broker_of.get(publisher).copied().flatten());
            moves.push(Move { publisher, from, to });
        }
    }
    Moves { moves, placement }
}

/// Who has no broker, or one that has disappeared.
fn homeless(placement: &Placement, limits: &[Option<f64>]) -> Vec<(usize, Option<usize>)> {
    let there = |broker: usize| limits.get(broker).copied().flatten().is_some();
    let homes = placement.broker_of.iter().enumerate();
    homes.filter(|(_, at)| !at.is_some_and(there)).map(|(publisher, _)| (publisher, None)).collect()
}

/// Step 2.
fn give_up(
    publishers: &[Publisher],
    placement: &Placement,
    broker: usize,
    mut excess: f64,
) -> Vec<usize> {
    let mut given = Vec::new();
    // Rates are sums of floating-point numbers: what is within rounding of the limit is within it.
    if excess <= 1e-9 {
        return given;
    }
    let here = |at: &usize| placement.broker_of[*at] == Some(broker);
    let mut here: Vec<usize> = (0..publishers.len()).filter(here).collect();
    here.sort_by(|a, b| publishers[*a].rate.total_cmp(&publishers[*b].rate).then(b.cmp(a)));
    while excess > 1e-9 {
        // The smallest that is enough, or the largest there is.
        let enough = here.partition_point(|at| publishers[*at].rate < excess - 1e-9);
        if here.is_empty() {
            break;
        }
        let publisher = here.remove(enough.min(here.len() - 1));
        excess -= publishers[publisher].rate;
        given.push(publisher);
    }
    given
}

/// Steps 3 and 4.
fn receiver(
    publishers: &[Publisher],
    placement: &Placement,
    limits: &[Option<f64>],
    rates: &[f64],
    publisher: usize,
) -> Option<usize> {
    let Publisher { rate, group } = publishers[publisher];
    let room = |broker: usize| limits[broker].map_or(0.0, |limit| limit - rates[broker]);
    let fits = |broker: &usize| room(*broker) >= rate - 1e-9;
    let fellows = |broker: usize| {
        let same = |at: &usize| group.is_some() && publishers[*at].group == group;
        let homes = placement.broker_of.iter().enumerate();
        homes.filter(|(at, home)| **home == Some(broker) && same(at)).count()
    };
    let used = |broker: &usize| rates[*broker] > 1e-9;
    let least_room = (0..limits.len())
        .filter(|at| fits(at) && used(at))
        .min_by(|a, b| room(*a).total_cmp(&room(*b)).then_with(|| fellows(*a).cmp(&fellows(*b))));
    least_room.or_else(|| {
        let fresh = (0..limits.len()).rev().filter(|at| fits(at) && !used(at));
        fresh.max_by(|a, b| room(*a).total_cmp(&room(*b)))
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::placement::GroupId;

    fn topic(rates: &[f64]) -> Vec<Publisher> {
        rates.iter().map(|&rate| Publisher { rate, group: None }).collect()
    }

    fn on(brokers: &[usize]) -> Placement {
        Placement { broker_of: brokers.iter().map(|at| Some(*at)).collect() }
    }

    #[test]
    fn nobody_moves_without_need() {
        let publishers = topic(&[1.0, 5.0, 2.0]);
        let current = on(&[0, 1, 0]);
        let result = moves(&publishers, &current, &[Some(3.0), Some(5.0), Some(100.0)]);
        assert_eq!(result, Moves { moves: Vec::new(), placement: current });
    }

    #[test]
    fn as_few_as_suffice_go_to_brokers_in_use_first() {
        // Four too many: the 5 alone is enough, and the smallest that is.
        let publishers = topic(&[1.0, 5.0, 2.0, 6.0, 1.0]);
        let result =
            moves(&publishers, &on(&[0, 0, 0, 0, 1]), &[Some(10.0), Some(6.0), Some(50.0)]);
        assert_eq!(result.moves, [Move { publisher: 1, from: Some(0), to: Some(1) }]);
        // No room there: a fresh one.
        let result =
            moves(&publishers, &on(&[0, 0, 0, 0, 1]), &[Some(10.0), Some(2.0), Some(50.0)]);
        assert_eq!(result.moves, [Move { publisher: 1, from: Some(0), to: Some(2) }]);
    }

    #[test]
    fn a_broker_that_disappeared_is_left_by_all_and_nobody_is_forgotten() {
        let publishers = topic(&[3.0, 3.0, 3.0]);
        let result = moves(&publishers, &on(&[0, 0, 1]), &[None, Some(6.0)]);
        assert_eq!(result.placement.broker_of, [Some(1), None, Some(1)]);
        let from = Some(0);
        assert_eq!(result.moves[1], Move { publisher: 1, from, to: None }, "and it is told");
        assert_eq!(moves(&publishers, &on(&[0, 0, 1]), &[]).placement.used(), [0usize; 0]);
    }

    #[test]
    fn a_group_is_kept_apart_where_brokers_are_alike() {
        let mut publishers = topic(&[1.0; 5]);
        for at in [0, 1, 4] {
            publishers[at].group = Some(GroupId(1));
        }
        let current = Placement { broker_of: vec![Some(0), Some(0), Some(1), Some(1), None] };
        let result = moves(&publishers, &current, &[Some(9.0), Some(9.0)]);
        assert_eq!(result.placement.broker_of[4], Some(1));
    }

    /// Fewest publishers whose rates together are `excess`, by trying all sets.
    fn fewest(rates: &[f64], excess: f64) -> usize {
        let sum = |set: u32| -> f64 {
            rates
                .iter()
                .enumerate()
                .filter(|(at, _)| set >> at & 1 == 1)
                .map(|(_, rate)| rate)
                .sum()
        };
        let sets = (0..1u32 << rates.len()).filter(|set| sum(*set) >= excess - 1e-9);
        sets.map(u32::count_ones).min().unwrap_or(rates.len() as u32) as usize
    }

    proptest! {
        /// With room elsewhere, no placement within the limits is nearer to the current one.
        #[test]
        fn no_fewer_moves_would_do(
            topic in prop::collection::vec((1..20u32, 0..3usize), 1..12),
            limits in prop::collection::vec(5..60u32, 3),
        ) {
            let publishers: Vec<Publisher> =
                topic.iter().map(|at| Publisher { rate: f64::from(at.0), group: None }).collect();
            let current = on(&topic.iter().map(|at| at.1).collect::<Vec<_>>());
            let mut limits: Vec<Option<f64>> =
                limits.iter().map(|limit| Some(f64::from(*limit))).collect();
            limits.push(Some(1e6));
            let result = moves(&publishers, &current, &limits);
            let rates = result.placement.rates(&publishers, 4);
            prop_assert!(rates.iter().zip(&limits).all(|(rate, limit)| *rate <= limit.unwrap() + 1e-6));
            let needed: usize = (0..3)
                .map(|broker| {
                    let here = topic.iter().filter(|at| at.1 == broker);
                    let here: Vec<f64> = here.map(|at| f64::from(at.0)).collect();
                    let excess = here.iter().sum::<f64>() - limits[broker].unwrap();
                    if excess > 0.0 { fewest(&here, excess) } else { 0 }
                })
                .sum();
            prop_assert_eq!(result.moves.len(), needed);
            for at in &result.moves {
                prop_assert_eq!(result.placement.broker_of[at.publisher], at.to);
            }
        }
    }
}
