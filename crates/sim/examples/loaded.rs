//! Plans for topics on brokers that serve others already: how many miss the objective, and by how much.
//! `cargo run --release -p tidegate-sim --example loaded` prints the numbers of docs/policies/placement.md.

use tidegate_core::Span;
use tidegate_core::placement::{Order, Placement, deal};
use tidegate_sim::broker::testbed::{SLO, Testbed};
use tidegate_sim::broker::traffic::{Pattern, Topic};

/// Messages per second that the six brokers serve besides.
const LOADS: [[f64; 6]; 2] = [
    [10_000.0, 30_000.0, 30_000.0, 30_000.0, 40_000.0, 50_000.0],
    [10_000.0, 40_000.0, 50_000.0, 60_000.0, 70_000.0, 80_000.0],
];
/// Batches, and publishers of a group.
const SHAPES: [(u32, u32); 7] = [(1, 1), (10, 1), (1, 15), (1, 30), (10, 5), (10, 15), (10, 30)];

fn bed(topic: Topic, loads: &[f64], seed: u64) -> Testbed {
    Testbed::new(topic, loads, seed, Span::from_secs(3))
}

fn main() {
    for loads in &LOADS {
        let (mut plans, mut misses) = (0, Vec::new());
        for pattern in [Pattern::Poisson, Pattern::Periodic] {
            for (batch, group) in SHAPES {
                for (publishers, seed) in
                    [1_000, 4_000, 8_000].into_iter().flat_map(|n| [(n, 1), (n, 2), (n, 3)])
                {
                    let topic = Topic { group, ..Topic::alone(publishers, batch, pattern) };
                    let worst = bed(topic, loads, seed).plan().latency.worst;
                    plans += 1;
                    misses.extend((worst > SLO).then_some(worst.as_millis_f64()));
                }
            }
        }
        let mean = misses.iter().sum::<f64>() / misses.len().max(1) as f64;
        println!("{loads:?}: {} of {plans} miss, mean {mean:.2} ms", misses.len());
    }
    one_or_two();
}

/// A topic that the planner puts on one broker, a little late, and the same on two.
fn one_or_two() {
    let topic = Topic::alone(8_000, 10, Pattern::Periodic);
    let bed = bed(topic, &LOADS[1], 1);
    let publishers = topic.publishers();
    let everyone: Vec<usize> = (0..publishers.len()).collect();
    let parts = [0.58, 0.42].map(|part| part * topic.total());
    let mut halves = Placement::none(publishers.len());
    for (broker, hand) in deal(&publishers, &everyone, &parts, Order::ByGroup).iter().enumerate() {
        hand.iter().for_each(|&at| halves.broker_of[at] = Some(broker));
    }
    // Rounds that no plan was chosen by.
    let mean = |placement: &Placement| {
        let worst = (20..24).map(|round| bed.measure(placement, round).worst.as_millis_f64());
        worst.sum::<f64>() / 4.0
    };
    let planned = bed.plan();
    let (ours, theirs) = (mean(&planned.placement), mean(&halves));
    println!("planned on {}: {ours:.2} ms; on two: {theirs:.2} ms", planned.brokers);
}
