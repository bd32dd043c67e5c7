//! What all allocators have in common, and the numbers that others published.

use proptest::prelude::*;

use super::*;

fn all() -> Vec<AllocatorConfig> {
    vec![
        AllocatorConfig::MaxMin,
        AllocatorConfig::Weighted,
        AllocatorConfig::Proportional(ProportionalConfig { guarantee: false }),
        AllocatorConfig::Proportional(ProportionalConfig { guarantee: true }),
        AllocatorConfig::Dominant,
        AllocatorConfig::Bottleneck,
        AllocatorConfig::Banded(BandedConfig::default()),
        AllocatorConfig::Banded(BandedConfig { within: Box::new(AllocatorConfig::Dominant) }),
    ]
}

fn divide(config: &AllocatorConfig, capacity: &[f64], asks: &[Ask]) -> Vec<f64> {
    allocate(&*config.build(), capacity, asks).unwrap()
}

fn of_one(config: &AllocatorConfig, capacity: f64, demands: &[f64]) -> Vec<f64> {
    let asks: Vec<Ask> = demands.iter().map(|demand| Ask::of_one(*demand)).collect();
    divide(config, &[capacity], &asks)
}

fn assert_near(found: &[f64], expected: &[f64], within: f64) {
    assert_eq!(found.len(), expected.len());
    for (found, expected) in found.iter().zip(expected) {
        assert!((found - expected).abs() <= within, "{found} is not {expected}");
    }
}

/// Doorman (`algorithm.go`), capacity 120, wants 1000, 60 and 10.
#[test]
fn doormans_example() {
    let wants = [1000.0, 60.0, 10.0];
    let proportional = AllocatorConfig::Proportional(ProportionalConfig { guarantee: true });
    assert_near(&of_one(&proportional, 120.0, &wants), &[69.39, 40.61, 10.0], 0.005);
    assert_near(&of_one(&AllocatorConfig::MaxMin, 120.0, &wants), &[55.0, 55.0, 10.0], 1e-9);
}

/// Dominant resource fairness (Ghodsi et al. 2011, §4.1): 9 CPUs and 18 GB; A needs (1, 4) per task, B (3, 1): 3 and 2 tasks, 2/3 each.
#[test]
fn the_example_of_dominant_resource_fairness() {
    let ask = |uses: [f64; 2]| Ask { uses: uses.to_vec(), ..Ask::of_one(f64::INFINITY) };
    let asks = [ask([1.0, 4.0]), ask([3.0, 1.0])];
    assert_near(&divide(&AllocatorConfig::Dominant, &[9.0, 18.0], &asks), &[3.0, 2.0], 1e-9);
}

/// Wisp §4.1.2, Figure 3: loads of 400, 100 and 100 at e2, which can do 500.
#[test]
fn wisps_bottleneck() {
    for config in [AllocatorConfig::MaxMin, AllocatorConfig::Bottleneck, AllocatorConfig::Dominant]
    {
        let shares = of_one(&config, 500.0, &[400.0, 100.0, 100.0]);
        assert_near(&shares, &[300.0, 100.0, 100.0], 1e-9);
    }
}

#[test]
fn weights_count_only_where_they_should() {
    let mut asks = vec![Ask::of_one(100.0); 3];
    asks[0].weight = 3.0;
    assert_near(&divide(&AllocatorConfig::Weighted, &[100.0], &asks), &[60.0, 20.0, 20.0], 1e-9);
    assert_near(&divide(&AllocatorConfig::Dominant, &[100.0], &asks), &[60.0, 20.0, 20.0], 1e-9);
    let third = 100.0 / 3.0;
    assert_near(&divide(&AllocatorConfig::MaxMin, &[100.0], &asks), &[third; 3], 1e-9);
}

#[test]
fn a_free_resource_holds_nobody_back() {
    // The first uses only the second resource, of which there is enough.
    let asks = [
        Ask { uses: vec![0.0, 1.0], ..Ask::of_one(50.0) },
        Ask { uses: vec![1.0, 1.0], ..Ask::of_one(30.0) },
        Ask { uses: vec![1.0, 0.0], ..Ask::of_one(90.0) },
    ];
    let shares = divide(&AllocatorConfig::Bottleneck, &[60.0, 100.0], &asks);
    assert_near(&shares, &[50.0, 30.0, 30.0], 1e-9);
}

#[test]
fn the_important_band_goes_first() {
    let mut asks = vec![Ask::of_one(40.0); 4];
    for (ask, band) in asks.iter_mut().zip([2, 0, 0, 1]) {
        ask.band = band;
    }
    let banded = AllocatorConfig::Banded(BandedConfig::default());
    assert_near(&divide(&banded, &[100.0], &asks), &[0.0, 40.0, 40.0, 20.0], 1e-9);
}

#[test]
fn questions_without_an_answer_are_told_so() {
    let bad = |change: fn(&mut Vec<f64>, &mut Vec<Ask>)| {
        let (mut capacity, mut asks) = (vec![10.0], vec![Ask::of_one(1.0), Ask::of_one(2.0)]);
        change(&mut capacity, &mut asks);
        allocate(&MaxMin, &capacity, &asks).unwrap_err().to_string()
    };
    assert!(bad(|_, asks| asks[1].demand = f64::NAN).contains("demand NaN of claimant 1"));
    assert!(bad(|_, asks| asks[0].demand = -1.0).contains("demand -1 of claimant 0"));
    assert!(bad(|_, asks| asks[0].weight = 0.0).contains("weight 0"));
    assert!(bad(|_, asks| asks[0].uses = vec![]).contains("names 0 resources, there are 1"));
    assert!(bad(|_, asks| asks[1].uses = vec![-2.0]).contains("use -2"));
    assert!(bad(|capacity, _| capacity[0] = f64::INFINITY).contains("capacity inf"));
    assert!(bad(|capacity, _| capacity[0] = -1.0).contains("capacity -1"));
}

#[test]
fn nobody_and_nothing() {
    for config in all() {
        assert!(divide(&config, &[10.0], &[]).is_empty());
        assert_eq!(of_one(&config, 0.0, &[1.0, 0.0]), [0.0, 0.0]);
        let free = Ask { uses: vec![0.0], ..Ask::of_one(7.0) };
        assert_eq!(divide(&config, &[1.0], &[free]), [7.0], "{config:?}");
    }
}

#[test]
fn names_are_those_of_the_configuration() {
    for config in all() {
        let text = toml::to_string(&config).unwrap();
        assert!(text.contains(&format!("allocator = \"{}\"", config.build().name())), "{text}");
        assert_eq!(toml::from_str::<AllocatorConfig>(&text).unwrap(), config);
    }
    let nested =
        BandedConfig { within: Box::new(AllocatorConfig::Banded(BandedConfig::default())) };
    let mut problems = Problems::default();
    AllocatorConfig::Banded(nested).validate(&mut problems);
    assert!(problems.into_result().is_err());
}

/// Max-min as it is defined: rounds of equal parts for those who still want something.
fn naive_max_min(capacity: f64, demands: &[f64]) -> Vec<f64> {
    let (mut shares, mut left) = (vec![0.0; demands.len()], capacity);
    loop {
        let open: Vec<usize> =
            (0..demands.len()).filter(|n| demands[*n] - shares[*n] > 1e-9).collect();
        if open.is_empty() || left <= 1e-9 {
            return shares;
        }
        let part = left / open.len() as f64;
        for n in open {
            let more = part.min(demands[n] - shares[n]);
            shares[n] += more;
            left -= more;
        }
    }
}

fn asks(resources: usize) -> impl Strategy<Value = Vec<Ask>> {
    let uses = prop::collection::vec(prop_oneof![Just(0.0), 0.01..5.0f64], resources);
    let ask =
        (prop_oneof![Just(0.0), 0.0..200.0f64, Just(f64::INFINITY)], 0.1..5.0f64, 0..3u8, uses);
    prop::collection::vec(
        ask.prop_map(|(demand, weight, band, uses)| Ask { demand, weight, band, uses }),
        0..9,
    )
}

fn used(asks: &[Ask], grants: &[f64], resource: usize) -> f64 {
    let granted = asks.iter().zip(grants).filter(|(ask, _)| ask.uses[resource] > 0.0);
    granted.map(|(ask, grant)| ask.uses[resource] * grant).sum()
}

proptest! {
    #[test]
    fn every_division_is_feasible(
        capacity in prop::collection::vec(0.0..300.0f64, 3), asks in asks(3),
    ) {
        for config in all() {
            let grants = divide(&config, &capacity, &asks);
            for (grant, ask) in grants.iter().zip(&asks) {
                prop_assert!(*grant >= 0.0 && *grant <= ask.demand, "{config:?} {grant} {ask:?}");
            }
            for (resource, there) in capacity.iter().enumerate() {
                let used = used(&asks, &grants, resource);
                prop_assert!(used <= there * (1.0 + 1e-6) + 1e-9, "{config:?}: {used} of {there}");
            }
        }
    }

    /// Whoever got less than it wants uses something of which nothing is left.
    #[test]
    fn nothing_is_left_over_in_vain(
        capacity in prop::collection::vec(1.0..300.0f64, 3), asks in asks(3),
    ) {
        for config in [AllocatorConfig::Dominant, AllocatorConfig::Bottleneck] {
            let grants = divide(&config, &capacity, &asks);
            for (grant, ask) in grants.iter().zip(&asks) {
                let full = |n: usize| {
                    ask.uses[n] > 0.0 && used(&asks, &grants, n) >= capacity[n] * (1.0 - 1e-6)
                };
                let content = *grant >= ask.demand * (1.0 - 1e-6);
                prop_assert!(content || (0..3).any(full), "{config:?} {ask:?} {grant}");
            }
        }
    }

    #[test]
    fn one_resource_is_used_up_if_it_is_wanted(capacity in 0.1..300.0f64, asks in asks(1)) {
        for config in all() {
            let grants = divide(&config, &[capacity], &asks);
            let used = used(&asks, &grants, 0);
            let wanted: f64 = asks
                .iter()
                .filter(|ask| ask.uses[0] > 0.0)
                .map(|ask| (ask.demand * ask.uses[0]).min(capacity))
                .sum();
            let expected = wanted.min(capacity);
            prop_assert!((used - expected).abs() <= 1e-6 * capacity, "{config:?}: {used} {expected}");
        }
    }

    #[test]
    fn max_min_is_what_it_is_defined_to_be(
        capacity in 0.0..500.0f64, demands in prop::collection::vec(0.0..200.0f64, 1..9),
    ) {
        for config in [AllocatorConfig::MaxMin, AllocatorConfig::Bottleneck, AllocatorConfig::Dominant] {
            let (found, naive) = (of_one(&config, capacity, &demands), naive_max_min(capacity, &demands));
            for (found, naive) in found.iter().zip(&naive) {
                prop_assert!((found - naive).abs() < 1e-6, "{config:?}: {found} {naive}");
            }
        }
    }

    /// Weight 3 is what three claimants of weight 1 with a third of the demand get together.
    #[test]
    fn a_weight_is_a_number_of_claimants(
        capacity in 1.0..500.0f64, wants in prop::collection::vec((0.0..200.0f64, 1..4u8), 1..6),
    ) {
        let asks: Vec<Ask> = wants
            .iter()
            .map(|(demand, weight)| Ask { weight: f64::from(*weight), ..Ask::of_one(*demand) })
            .collect();
        let split: Vec<f64> = wants
            .iter()
            .flat_map(|(demand, weight)| vec![demand / f64::from(*weight); usize::from(*weight)])
            .collect();
        let found = divide(&AllocatorConfig::Weighted, &[capacity], &asks);
        let parts = naive_max_min(capacity, &split);
        let mut at = 0;
        for (found, (_, weight)) in found.iter().zip(&wants) {
            let sum: f64 = parts[at..at + usize::from(*weight)].iter().sum();
            at += usize::from(*weight);
            prop_assert!((found - sum).abs() < 1e-6, "{found} {sum}");
        }
    }

    /// More to divide takes from nobody; asking for more never gets less.
    #[test]
    fn more_is_never_less(
        capacity in 1.0..300.0f64, more in 0.0..100.0f64, who in 0..8usize,
        demands in prop::collection::vec(0.0..200.0f64, 1..8),
    ) {
        for config in all() {
            let before = of_one(&config, capacity, &demands);
            for (before, after) in before.iter().zip(of_one(&config, capacity + more, &demands)) {
                prop_assert!(after >= before - 1e-6, "{config:?}: {before} {after}");
            }
            let mut greedy = demands.clone();
            let who = who % demands.len();
            greedy[who] += more;
            let after = of_one(&config, capacity, &greedy);
            prop_assert!(after[who] >= before[who] - 1e-6, "{config:?}: {before:?} {after:?}");
        }
    }
}
