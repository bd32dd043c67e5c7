//! From the loads of all nodes to the share that each should have.
//!
//! A division that fits the load at one moment does not fit it for ever. SRTM's TB Adaptor (§V-D)
//! collects each broker's mean rate and largest backlog and divides
//!
//! 1. the rate in proportion to mean rates,
//! 2. the burst in proportion to largest backlogs.
//!
//! Ours is the same with these differences. There is no barrier: targets follow from what is known,
//! and a silent node counts as it last said until its lease is over (SRTM's code waits for every
//! broker). Nobody is skipped for being idle: what is divided here comes on top of a
//! safe share that everyone has. And nothing moves for noise: targets stay until a load has left what
//! they were made for by more than a tolerance, or is known from twice as long a past; and bursts go by
//! rates as long as backlogs do not clearly say otherwise, for a largest value scatters widely.
//!
//! This only says where to go. [`Granter`](super::Granter) sees to it that the way there is safe.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::history::Load;
use super::lease::HolderId;
use super::split::{Weight, apportion};
use super::{Rate, Share};
use crate::config::Problems;

/// Divides a pool by load.
#[derive(Clone, Debug)]
pub struct Adaptor {
    config: AdaptorConfig,
    nodes: BTreeMap<HolderId, Node>,
    /// What the targets divide.
    pool: Share,
    /// Whether they have to be made anew.
    stale: bool,
}

#[derive(Clone, Copy, Debug, Default)]
struct Node {
    /// What it said last.
    latest: Load,
    /// What the targets were made for.
    basis: Load,
    target: Share,
}

impl Adaptor {
    /// Nobody is there.
    pub fn new(config: AdaptorConfig) -> Self {
        Self { config, nodes: BTreeMap::new(), pool: Share::NONE, stale: false }
    }

    /// A node has said what its load is.
    pub fn on_load(&mut self, holder: HolderId, load: Load) {
        let config = self.config;
        let node = self.nodes.entry(holder).or_insert_with(|| {
            self.stale = true;
            Node::default()
        });
        node.latest = load;
        self.stale |= config.left(&node.basis, &load);
    }

    /// A node is gone.
    pub fn remove(&mut self, holder: HolderId) {
        self.stale |= self.nodes.remove(&holder).is_some();
    }

    /// What a node said last.
    pub fn load(&self, holder: HolderId) -> Option<Load> {
        self.nodes.get(&holder).map(|node| node.latest)
    }

    /// A node's part of `pool`; nothing for one that has said nothing. All parts together are the
    /// pool exactly.
    pub fn target(&mut self, pool: Share, holder: HolderId) -> Share {
        if std::mem::replace(&mut self.pool, pool) != pool || self.stale {
            self.stale = false;
            self.divide(pool);
        }
        self.nodes.get(&holder).map_or(Share::NONE, |node| node.target)
    }

    fn divide(&mut self, pool: Share) {
        let mut weights = Vec::with_capacity(self.nodes.len());
        for node in self.nodes.values_mut() {
            node.basis = node.latest;
            let Load { rate, backlog, .. } = node.basis;
            weights.push(Weight { rate: rate.millionths(), burst: backlog });
        }
        if self.config.by_need {
            let needs: Vec<u64> = weights.iter().map(|weight| weight.burst).collect();
            let parts = by_need(pool.burst, &needs);
            for (node, burst) in self.nodes.values_mut().zip(parts) {
                node.target = Share::new(Rate::ZERO, burst);
            }
            return;
        }
        if self.config.alike(&weights) {
            weights.iter_mut().for_each(|weight| weight.burst = weight.rate);
        }
        let by = |weight: fn(&Weight) -> u64| weights.iter().map(weight).collect::<Vec<_>>();
        // Only an empty list cannot be divided without a least.
        let rates = apportion(pool.rate.millionths(), &by(|weight| weight.rate), 0);
        let bursts = apportion(pool.burst, &by(|weight| weight.burst), 0);
        let parts = rates.into_iter().flatten().zip(bursts.into_iter().flatten());
        for (node, (rate, burst)) in self.nodes.values_mut().zip(parts) {
            node.target = Share::new(Rate::from_millionths(rate), burst);
        }
    }
}

/// Max-min fairness: who needs no more than an even part of what the others leave has what it needs.
fn by_need(total: u64, needs: &[u64]) -> Vec<u64> {
    let mut order: Vec<usize> = (0..needs.len()).collect();
    order.sort_by_key(|at| needs[*at]);
    let mut parts = vec![0; needs.len()];
    let mut left = total;
    for (served, at) in order.into_iter().enumerate() {
        // Who needs more comes later, and has what does not divide evenly.
        parts[at] = needs[at].min(left / (needs.len() - served) as u64);
        left -= parts[at];
    }
    parts
}

/// When targets move.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AdaptorConfig {
    /// How far a node's rate may be from what the targets were made for, as a share of it. More
    /// moves shares less often; less follows noise. Default 0.1 by judgement: three standard errors
    /// of a hundred messages a second over ten seconds.
    pub rate_tolerance: f64,
    /// The same for the largest backlog, which scatters more; and how far a backlog may exceed what
    /// rates let expect for bursts to go by rates. Default 1, a factor of two, by measurement: the
    /// largest backlog in ten seconds of a thousand messages a second scatters by a fifth, and among
    /// eight nodes one is soon half above the others.
    pub burst_tolerance: f64,
    /// Whether bursts go by need instead: who needs no more than an even part has what it needs, and nobody has more
    /// than that. So it is with places. Default false.
    pub by_need: bool,
}

impl AdaptorConfig {
    /// The paper's form: every report moves the targets.
    pub fn paper() -> Self {
        Self { rate_tolerance: 0.0, burst_tolerance: 0.0, by_need: false }
    }

    /// For places: a need that has changed by a tenth moves them.
    pub fn of_places() -> Self {
        Self { burst_tolerance: 0.1, by_need: true, ..Self::default() }
    }

    /// Notes what is wrong with it.
    pub fn validate(&self, problems: &mut Problems) {
        problems.range("rate_tolerance", self.rate_tolerance, 0.0, 10.0);
        problems.range("burst_tolerance", self.burst_tolerance, 0.0, 10.0);
    }

    /// Whether no backlog is clearly more than its node's rate lets expect.
    fn alike(&self, weights: &[Weight]) -> bool {
        let sum = |of: fn(&Weight) -> u64| weights.iter().map(|at| of(at) as f64).sum::<f64>();
        let (rates, backlogs) = (sum(|at| at.rate), sum(|at| at.burst));
        weights.iter().all(|at| {
            let expected = backlogs * at.rate as f64 / rates.max(1.0);
            at.burst as f64 <= (1.0 + self.burst_tolerance) * expected
        })
    }

    /// Whether targets made for `basis` are no longer right for `load`.
    fn left(&self, basis: &Load, load: &Load) -> bool {
        let off = |a: f64, b: f64, tolerance: f64| a.max(b) > (1.0 + tolerance) * a.min(b);
        off(basis.rate.as_f64(), load.rate.as_f64(), self.rate_tolerance)
            || off(basis.backlog as f64, load.backlog as f64, self.burst_tolerance)
            || load.over.as_nanos() / 2 >= basis.over.as_nanos().max(1)
    }
}

impl Default for AdaptorConfig {
    fn default() -> Self {
        Self { rate_tolerance: 0.1, burst_tolerance: 1.0, by_need: false }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::time::Span;

    const POOL: Share = Share::new(Rate::from_millionths(1_000), 100);

    fn load(rate: u64, backlog: u64) -> Load {
        Load { rate: Rate::from_millionths(rate), backlog, over: Span::from_secs(10) }
    }

    fn target(adaptor: &mut Adaptor, holder: u64) -> (u64, u64) {
        let share = adaptor.target(POOL, HolderId(holder));
        (share.rate.millionths(), share.burst)
    }

    #[test]
    fn rate_goes_by_rate_and_burst_by_backlog() {
        let mut adaptor = Adaptor::new(AdaptorConfig::default());
        adaptor.on_load(HolderId(1), load(300, 0));
        adaptor.on_load(HolderId(2), load(100, 0));
        assert_eq!(target(&mut adaptor, 1), (750, 75), "nobody has a backlog");
        adaptor.on_load(HolderId(2), load(100, 9));
        adaptor.on_load(HolderId(1), load(300, 1));
        assert_eq!(target(&mut adaptor, 1), (750, 10));
        assert_eq!(target(&mut adaptor, 3), (0, 0), "unknown");
        adaptor.remove(HolderId(1));
        assert_eq!(target(&mut adaptor, 2), (1_000, 100));
    }

    #[test]
    fn noise_moves_nothing_unless_it_is_the_papers_form() {
        for (config, expected, shifted) in [
            (AdaptorConfig::default(), (500, 50), (750, 75)),
            (AdaptorConfig::paper(), (524, 50), (750, 50)),
        ] {
            let mut adaptor = Adaptor::new(config);
            adaptor.on_load(HolderId(1), load(1_000, 10));
            adaptor.on_load(HolderId(2), load(1_000, 10));
            assert_eq!(target(&mut adaptor, 1), (500, 50));
            adaptor.on_load(HolderId(1), load(1_099, 10));
            assert_eq!(target(&mut adaptor, 1), expected);
            adaptor.on_load(HolderId(1), load(3_000, 10));
            assert_eq!(target(&mut adaptor, 1), shifted);
        }
    }

    #[test]
    fn a_load_known_better_moves_the_target() {
        let mut adaptor = Adaptor::new(AdaptorConfig::default());
        let young = Load { over: Span::from_secs(1), ..load(1_000, 10) };
        adaptor.on_load(HolderId(1), young);
        adaptor.on_load(HolderId(2), load(1_000, 10));
        assert_eq!(target(&mut adaptor, 1).0, 500);
        adaptor.on_load(HolderId(1), Load { over: Span::from_secs(2), ..load(1_050, 10) });
        assert_eq!(target(&mut adaptor, 1).0, 512);
    }

    #[test]
    fn places_go_by_need_and_nobody_is_starved_by_who_asks_for_more() {
        assert_eq!(by_need(100, &[8, 1_000_000, 0]), [8, 92, 0]);
        assert_eq!(by_need(100, &[8, 10, 0]), [8, 10, 0], "the rest is for whoever asks next");
        assert_eq!(by_need(10, &[9, 9, 9]), [3, 3, 4]);
        let mut adaptor = Adaptor::new(AdaptorConfig::of_places());
        adaptor.on_load(HolderId(1), load(0, 5));
        adaptor.on_load(HolderId(2), load(0, 500));
        assert_eq!((target(&mut adaptor, 1), target(&mut adaptor, 2)), ((0, 5), (0, 95)));
    }

    proptest! {
        #[test]
        fn targets_are_the_pool(
            ops in prop::collection::vec((0..6u64, prop::option::of((any::<u32>(), 0..99u64))), 1..40),
        ) {
            let mut adaptor = Adaptor::new(AdaptorConfig::default());
            for (holder, op) in ops {
                match op {
                    Some((rate, backlog)) => {
                        adaptor.on_load(HolderId(holder), load(rate.into(), backlog));
                    }
                    None => adaptor.remove(HolderId(holder)),
                }
                let all = (0..6).map(|holder| adaptor.target(POOL, HolderId(holder)));
                let sum = all.fold(Share::NONE, Share::plus);
                prop_assert!(sum == POOL || (sum == Share::NONE && adaptor.nodes.is_empty()));
            }
        }
    }
}
