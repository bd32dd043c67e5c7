//! Which publishers go where, once it is known how much goes where.
//!
//! Publishers of one group send together. If a broker with a third of the bucket got whole groups, each
//! burst would meet a third of the bucket; if it gets a third of each group, it meets a third of the
//! burst (SRTM §IV-C). So groups are dealt out like cards: every broker is owed its part of each group
//! as the group comes up, and each publisher goes to the broker that is owed most. What is still owed
//! carries over to the next group, so that the whole comes out right as well. (SRTM's code rounds
//! each group down and tops up at random.)
//!
//! Who knows nothing of groups deals publishers in a random order.

use std::collections::BTreeMap;

use super::Publisher;
use crate::rng::Rng;

/// In which order publishers are dealt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Group by group; publishers without one come last, as if they were one.
    ByGroup,
    /// In an order that this seed decides, blind to groups.
    Random(u64),
}

/// Deals `which` of the `publishers` to as many brokers as there are quotas, in proportion. Each
/// broker's list is such that any beginning of it has its groups in proportion, too.
pub fn deal(
    publishers: &[Publisher],
    which: &[usize],
    quotas: &[f64],
    order: Order,
) -> Vec<Vec<usize>> {
    let total: f64 = quotas.iter().sum();
    if quotas.is_empty() {
        return Vec::new();
    }
    // Each with its place among those of its group here.
    let mut hands = vec![Vec::new(); quotas.len()];
    let mut owed = vec![0.0; quotas.len()];
    for group in groups(publishers, which, order) {
        let rate: f64 = group.iter().map(|at| publishers[*at].rate).sum();
        for (owed, quota) in owed.iter_mut().zip(quotas) {
            let part = if total > 0.0 { quota / total } else { 1.0 / quotas.len() as f64 };
            *owed += rate * part;
        }
        let mut place = vec![0; quotas.len()];
        for at in group {
            let to = most(&owed);
            owed[to] -= publishers[at].rate;
            hands[to].push((place[to], at));
            place[to] += 1;
        }
    }
    // Round robin over groups: the first of each, then the second of each.
    let list = |mut hand: Vec<(usize, usize)>| {
        hand.sort_by_key(|(place, _)| *place);
        hand.into_iter().map(|(_, at)| at).collect()
    };
    hands.into_iter().map(list).collect()
}

fn most(owed: &[f64]) -> usize {
    (0..owed.len()).rev().max_by(|a, b| owed[*a].total_cmp(&owed[*b])).unwrap_or(0)
}

/// Who is dealt together. The largest of a group come first, so that the small ones even out.
fn groups(publishers: &[Publisher], which: &[usize], order: Order) -> Vec<Vec<usize>> {
    match order {
        Order::ByGroup => {
            let mut groups: BTreeMap<(bool, Option<u32>), Vec<usize>> = BTreeMap::new();
            for &at in which {
                let group = publishers[at].group.map(|group| group.0);
                groups.entry((group.is_none(), group)).or_default().push(at);
            }
            let mut groups: Vec<Vec<usize>> = groups.into_values().collect();
            for group in &mut groups {
                group.sort_by(|a, b| publishers[*b].rate.total_cmp(&publishers[*a].rate));
            }
            groups
        }
        Order::Random(seed) => {
            let mut rng = Rng::new(seed);
            let mut shuffled = which.to_vec();
            for last in (1..shuffled.len()).rev() {
                shuffled.swap(last, rng.below(last as u64 + 1) as usize);
            }
            shuffled.into_iter().map(|at| vec![at]).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::placement::GroupId;

    fn topic(groups: u32, size: u32) -> Vec<Publisher> {
        let publisher = |at| Publisher { rate: 10.0, group: Some(GroupId(at / size)) };
        (0..groups * size).map(publisher).collect()
    }

    /// Most publishers of one group in a hand.
    fn together(publishers: &[Publisher], hand: &[usize]) -> usize {
        let mut sizes = BTreeMap::new();
        for at in hand {
            *sizes.entry(publishers[*at].group).or_insert(0) += 1;
        }
        sizes.into_values().max().unwrap_or(0)
    }

    #[test]
    fn groups_are_cut_as_the_quotas_are() {
        let publishers = topic(10, 30);
        let all: Vec<usize> = (0..300).collect();
        let hands = deal(&publishers, &all, &[1.0, 1.0, 1.0], Order::ByGroup);
        for hand in &hands {
            assert_eq!((hand.len(), together(&publishers, hand)), (100, 10));
            assert_eq!(together(&publishers, &hand[..50]), 5, "and so is any beginning");
        }
        let blind = deal(&publishers, &all, &[1.0, 1.0, 1.0], Order::Random(1));
        assert!(blind.iter().any(|hand| together(&publishers, hand) > 12));
    }

    #[test]
    fn groups_that_do_not_divide_even_out() {
        let publishers = topic(100, 3);
        let all: Vec<usize> = (0..300).collect();
        let hands = deal(&publishers, &all, &[1.0, 1.0], Order::ByGroup);
        assert_eq!(hands.iter().map(Vec::len).collect::<Vec<_>>(), [150, 150]);
        assert!(hands.iter().all(|hand| together(&publishers, hand) == 2));
    }

    #[test]
    fn publishers_without_a_group_are_dealt_too() {
        let mut publishers = topic(2, 2);
        publishers.extend([Publisher { rate: 30.0, group: None }; 3]);
        let hands = deal(&publishers, &[0, 1, 2, 3, 4, 5, 6], &[1.0, 1.0], Order::ByGroup);
        let rate = |hand: &Vec<usize>| hand.iter().map(|at| publishers[*at].rate).sum::<f64>();
        let (a, b) = (rate(&hands[0]), rate(&hands[1]));
        assert!((a - b).abs() <= 30.0 && a + b == 130.0, "{a} {b}");
    }

    proptest! {
        #[test]
        fn everyone_is_dealt_once_and_quotas_are_met_to_one_publisher(
            rates in prop::collection::vec((1.0..20.0f64, prop::option::of(0..4u32)), 1..60),
            quotas in prop::collection::vec(0.1..9.0f64, 1..5),
            seed in prop::option::of(any::<u64>()),
        ) {
            let publishers: Vec<Publisher> = rates
                .iter()
                .map(|(rate, group)| Publisher { rate: *rate, group: group.map(GroupId) })
                .collect();
            let all: Vec<usize> = (0..publishers.len()).collect();
            let order = seed.map_or(Order::ByGroup, Order::Random);
            let hands = deal(&publishers, &all, &quotas, order);
            let mut dealt: Vec<usize> = hands.concat();
            dealt.sort_unstable();
            prop_assert_eq!(dealt, all);
            let total: f64 = publishers.iter().map(|at| at.rate).sum();
            let sum: f64 = quotas.iter().sum();
            for (hand, quota) in hands.iter().zip(&quotas) {
                let rate: f64 = hand.iter().map(|at| publishers[*at].rate).sum();
                // Nobody gets more than it is owed and one publisher.
                prop_assert!(rate <= total * quota / sum + 20.0 + 1e-6);
            }
        }
    }
}
