//! `tree`: limits within limits, organisation → team → user, with borrowing.
//!
//! A workflow's name is its path: `acme/search/alice` is charged to the node of that path, whose
//! parent is the nearest one above that exists. Each node has a rate of its own. Workflows without
//! a node are charged to the one called `others`.
//!
//! 1. A request within its node's rate passes, and is charged to every node above too. Those may
//!    owe for it, up to their burst: what others borrowed does not take away what is one's own.
//! 2. A request beyond it borrows from the node above, if that has tokens, or may borrow in turn from
//!    the one above it. The lender and those above it are charged, not the borrower.
//! 3. Nothing borrows from a node without tokens; so in the long run no node gives more than its
//!    rate, and in any stretch of time no more than rate × time and twice its burst.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::bucket::{Bucket, Limit, Shortage};
use super::{Ask, CarryOver, LimitConfig, Limiter, Receipt, Unit, check_factor, refusal};
use crate::config::Problems;
use crate::context::{Context, Workflow};
use crate::meter::Cost;
use crate::table;
use crate::time::{Instant, Span};
use crate::verdict::Rejection;

/// Most nodes: a table that is looked at, not searched, per request.
const MOST_NODES: usize = 4096;

/// Limits within limits.
#[derive(Clone, Debug)]
pub struct Tree {
    config: TreeConfig,
    /// As in the configuration.
    nodes: Vec<State>,
    /// Workflow numbers and the node each is charged to.
    named: Vec<Option<u32>>,
}

#[derive(Clone, Debug)]
struct State {
    bucket: Bucket,
    parent: Option<usize>,
    borrow: bool,
}

impl Tree {
    /// A tree of which nothing is used.
    pub fn new(config: &TreeConfig, now: Instant) -> Self {
        let node = |node: &Node| State {
            bucket: Bucket::full(now, node.limit()),
            parent: config.parent(&node.path),
            borrow: node.borrow,
        };
        let nodes = config.nodes.iter().map(node).collect();
        Self { config: config.clone(), nodes, named: Vec::new() }
    }

    /// The node that is charged for `workflow`.
    fn node(&self, workflow: Workflow) -> Option<usize> {
        let own = self.named.get(usize::from(workflow.0)).copied().flatten();
        own.map(|at| at as usize).or_else(|| self.config.find(&self.config.others))
    }

    /// The node and those above it.
    fn upward(&self, from: Option<usize>) -> impl Iterator<Item = usize> {
        std::iter::successors(from, |at| self.nodes[*at].parent)
    }

    /// Who pays for a request at `leaf`: itself, or whoever it may borrow from.
    fn payer(&self, now: Instant, leaf: usize, amount: f64) -> Option<usize> {
        let mut path = self.upward(Some(leaf));
        path.find_map(|at| {
            let node = &self.nodes[at];
            let has = node.bucket.tokens(now) >= amount.min(node.bucket.limit().burst);
            // Found, or the end of the search, or on to the one above.
            if has { Some(Some(at)) } else { (!node.borrow).then_some(None) }
        })
        .flatten()
    }

    /// The first node above `payer` that may not owe more.
    fn exhausted(&self, now: Instant, payer: usize, amount: f64) -> Option<usize> {
        self.upward(self.nodes[payer].parent).find(|at| {
            let bucket = &self.nodes[*at].bucket;
            bucket.tokens(now) - amount < -bucket.limit().burst
        })
    }

    fn refusal(&self, now: Instant, node: usize, needed: f64) -> Rejection {
        let bucket = &self.nodes[node].bucket;
        let (limit, missing) = (bucket.limit(), needed - bucket.tokens(now));
        let due = now + Span::from_nanos((missing.max(0.0) / limit.rate * 1e9).ceil() as u64);
        refusal(now, limit, missing, Shortage::Until(due))
    }
}

impl Limiter for Tree {
    fn name(&self) -> &'static str {
        "tree"
    }

    fn on_arrival(&mut self, now: Instant, ask: &Ask<'_>) -> Result<Receipt, Rejection> {
        let Some(leaf) = self.node(ask.context.workflow) else { return Ok(Receipt::default()) };
        let paid = self.config.unit.amount(ask.cost, self.config.factor);
        let Some(payer) = self.payer(now, leaf, paid) else {
            return Err(self.refusal(now, leaf, paid));
        };
        if let Some(full) = self.exhausted(now, payer, paid) {
            return Err(self.refusal(now, full, paid - self.nodes[full].bucket.limit().burst));
        }
        let path: Vec<usize> = self.upward(Some(payer)).collect();
        for at in path {
            let bucket = &mut self.nodes[at].bucket;
            bucket.settle_cost(now, 0.0, paid, bucket.limit().burst.max(paid));
        }
        Ok(Receipt { paid, to: payer as u32 + 1, ..Receipt::default() })
    }

    fn refund(&mut self, now: Instant, _context: &Context, receipt: Receipt) {
        let payer = (receipt.to as usize).checked_sub(1).filter(|at| *at < self.nodes.len());
        let path: Vec<usize> = self.upward(payer).collect();
        path.into_iter().for_each(|at| self.nodes[at].bucket.refund(now, receipt.paid));
    }

    fn on_finish(&mut self, now: Instant, context: &Context, receipt: Receipt, cost: Cost) {
        if self.config.unit.is_prepaid() {
            return;
        }
        let actual = self.config.unit.amount(cost, self.config.factor);
        // A void receipt names nobody: it is its own node's.
        let payer = (receipt.to as usize).checked_sub(1).filter(|at| *at < self.nodes.len());
        let payer = payer.or_else(|| self.node(context.workflow));
        let path: Vec<usize> = self.upward(payer).collect();
        for at in path {
            let bucket = &mut self.nodes[at].bucket;
            let burst = bucket.limit().burst;
            bucket.settle_cost(now, receipt.paid, actual, burst);
        }
    }

    fn name_workflows(&mut self, number: &mut dyn FnMut(&str) -> Workflow) {
        self.named.clear();
        for (at, node) in self.config.nodes.iter().enumerate() {
            let workflow = usize::from(number(&node.path).0);
            if workflow > 0 {
                *table::at(&mut self.named, workflow, || None) = Some(at as u32);
            }
        }
    }

    /// Nodes are known by their paths: who was there keeps what it has, who is new starts empty.
    fn reconfigure(&mut self, now: Instant, config: &LimitConfig) -> CarryOver {
        let LimitConfig::Tree(config) = config else { return CarryOver::Nothing };
        let before = std::mem::replace(&mut self.config, config.clone());
        let states = std::mem::take(&mut self.nodes);
        let known: BTreeMap<&str, &State> =
            before.nodes.iter().map(|node| node.path.as_str()).zip(&states).collect();
        let node = |node: &Node| {
            let limit = node.limit();
            let known = known.get(node.path.as_str());
            let mut bucket = known.map_or(Bucket::empty(now, limit), |state| state.bucket.clone());
            if config.unit == before.unit {
                bucket.set_limit(now, limit);
            } else {
                bucket.restart(now, limit);
            }
            State { bucket, parent: config.parent(&node.path), borrow: node.borrow }
        };
        self.nodes = config.nodes.iter().map(node).collect();
        if config.paths().eq(before.paths()) {
            return if config.unit == before.unit { CarryOver::Whole } else { CarryOver::Level };
        }
        let place: BTreeMap<&str, usize> = config.paths().zip(0..).collect();
        for named in self.named.iter_mut() {
            let path = named.map(|at| before.nodes[at as usize].path.as_str());
            *named = path.and_then(|path| place.get(path)).map(|at| *at as u32);
        }
        CarryOver::Level
    }

    fn start_empty(&mut self, now: Instant) {
        let limits = self.config.nodes.iter().map(Node::limit);
        for (state, limit) in self.nodes.iter_mut().zip(limits) {
            state.bucket = Bucket::empty(now, limit);
        }
    }

    fn invariants(&self) {
        self.nodes.iter().for_each(|node| node.bucket.invariants());
    }

    fn clone_box(&self) -> Box<dyn Limiter> {
        Box::new(self.clone())
    }
}

/// Parameters of limits within limits.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TreeConfig {
    /// What is counted: `requests`, `cpu-seconds`, or `cost` as the driver counts it. Default
    /// requests.
    pub unit: Unit,
    /// Work this machine does in a second, as a multiple of a standard machine's. Default 1.
    pub factor: f64,
    /// The path of the node that workflows without one are charged to. Default: none, they pass.
    pub others: String,
    /// Who has a limit, in any order.
    pub nodes: Vec<Node>,
}

impl Default for TreeConfig {
    fn default() -> Self {
        Self { unit: Unit::Requests, factor: 1.0, others: String::new(), nodes: Vec::new() }
    }
}

/// One limit of a tree.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Node {
    /// Where it is, such as `acme/search/alice`: the name of the workflow that is charged to it.
    pub path: String,
    /// What it may use of its own, per second. Default 100 (judgement, as for `rate`).
    pub rate: f64,
    /// What it may use at once after a pause. Default 33, as for `rate`.
    pub burst: f64,
    /// Whether it may use what the one above has left. Default true.
    pub borrow: bool,
}

impl Default for Node {
    fn default() -> Self {
        Self { path: String::new(), rate: 100.0, burst: 33.0, borrow: true }
    }
}

impl Node {
    fn limit(&self) -> Limit {
        Limit::new(self.rate, self.burst)
    }
}

impl TreeConfig {
    /// What it counts, and for whom: the topmost node stands for all of them.
    pub(super) fn counts(&self) -> (Unit, Option<&str>) {
        (self.unit, self.paths().min_by_key(|path| path.len()))
    }

    fn paths(&self) -> impl Iterator<Item = &str> {
        self.nodes.iter().map(|node| node.path.as_str())
    }

    fn find(&self, path: &str) -> Option<usize> {
        self.nodes.iter().position(|node| node.path == path)
    }

    /// The nearest node above `path`.
    fn parent(&self, path: &str) -> Option<usize> {
        let mut above = path;
        while let Some((shorter, _)) = above.rsplit_once('/') {
            if let Some(at) = self.find(shorter) {
                return Some(at);
            }
            above = shorter;
        }
        None
    }

    /// Notes everything that is wrong with the parameters.
    pub fn validate(&self, problems: &mut Problems) {
        check_factor(problems, self.factor);
        let (others, count) = (&self.others, self.nodes.len());
        let fine = others.is_empty() || self.find(others).is_some();
        problems.check("others", format!("{others:?}"), fine, "the path of a node, or nothing");
        problems.check("nodes", count, (1..=MOST_NODES).contains(&count), "1 to 4096 of them");
        for (at, node) in self.nodes.iter().enumerate().take(MOST_NODES) {
            problems.within_item("nodes", at, |problems| {
                let fine =
                    !node.path.is_empty() && node.path.split('/').all(|part| !part.is_empty());
                let name = format!("{:?}", node.path);
                problems.check("path", &name, fine, "names with a / between them");
                let fresh = !self.nodes[..at].iter().any(|other| other.path == node.path);
                problems.check("path", name, fresh, "each path once");
                node.limit().validate(problems, self.unit.least_burst());
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(millis: u64) -> Instant {
        Instant::ZERO + Span::from_millis(millis)
    }

    /// acme 100/s, its team search 60/s and ads 40/s, alice in search 20/s, carol who may not borrow.
    fn acme() -> Tree {
        let node =
            |path: &str, rate, borrow| Node { path: path.to_owned(), rate, burst: 10.0, borrow };
        let nodes = vec![
            node("acme", 100.0, true),
            node("acme/search", 60.0, true),
            node("acme/search/alice", 20.0, true),
            node("acme/ads", 40.0, true),
            node("acme/ads/carol", 5.0, false),
        ];
        let config = TreeConfig { nodes, others: "acme".to_owned(), ..Default::default() };
        let mut tree = Tree::new(&config, at(0));
        let mut last = 0;
        tree.name_workflows(&mut |_| {
            last += 1;
            Workflow(last)
        });
        tree
    }

    const ALICE: u16 = 3;
    const ADS: u16 = 4;
    const CAROL: u16 = 5;

    fn ask(tree: &mut Tree, now: Instant, workflow: u16) -> Option<Receipt> {
        let context = Context { workflow: Workflow(workflow), ..Context::default() };
        tree.on_arrival(now, &Ask { context: &context, cost: Cost(1), delay: Span::ZERO }).ok()
    }

    /// Requests a second that pass from second 10 on, of `rates` offered by workflow.
    fn served(rates: &[(u16, u64)]) -> Vec<u64> {
        let mut tree = acme();
        let mut counts = vec![0; rates.len()];
        for milli in 0..20_000 {
            for (who, (workflow, rate)) in rates.iter().enumerate() {
                let due = milli * rate / 1_000 - (milli.max(1) - 1) * rate / 1_000;
                for _ in 0..due {
                    let passed = ask(&mut tree, at(milli), *workflow).is_some();
                    counts[who] += u64::from(passed && milli >= 10_000);
                }
            }
            tree.invariants();
        }
        counts.iter().map(|count| count / 10).collect()
    }

    #[test]
    fn alone_one_may_borrow_all_there_is() {
        let alone = served(&[(ALICE, 1_000)])[0];
        assert!((98..=102).contains(&alone), "{alone}");
        let carol = served(&[(CAROL, 1_000)])[0];
        assert!((5..=6).contains(&carol), "{carol}");
    }

    #[test]
    fn what_is_ones_own_is_not_lent_away() {
        // Alice borrows as hard as she can; ads gets its forty all the same, and the whole its hundred.
        let both = served(&[(ALICE, 1_000), (ADS, 40)]);
        assert!(both[1] >= 38, "{both:?}");
        assert!(both[0] + both[1] <= 102, "{both:?}");
        assert!(both[0] >= 55, "{both:?}");
        // Those without a node are charged to the organisation.
        let stranger = served(&[(77, 1_000)])[0];
        assert!((98..=102).contains(&stranger), "{stranger}");
    }

    proptest! {
        /// No node gives more than rate × time and twice its burst in any stretch of time, whoever it is
        /// and whoever borrows from it, and a refund leaves no trace.
        #[test]
        fn no_node_gives_more_than_it_has(
            ops in prop::collection::vec((1..6u16, 0..30u64, any::<bool>()), 1..400),
        ) {
            let mut tree = acme();
            let mut now = 0;
            // Of each node a bucket of twice its burst, which sees all that the node pays for.
            let mut allowed = vec![20.0; tree.nodes.len()];
            for (workflow, step, give_back) in ops {
                now += step;
                for (allowed, node) in allowed.iter_mut().zip(&tree.nodes) {
                    let limit = node.bucket.limit();
                    *allowed = (*allowed + limit.rate * step as f64 / 1e3).min(2.0 * limit.burst);
                }
                let before: Vec<f64> =
                    tree.nodes.iter().map(|node| node.bucket.tokens(at(now))).collect();
                let Some(receipt) = ask(&mut tree, at(now), workflow) else { continue };
                if give_back {
                    tree.refund(at(now), &Context::default(), receipt);
                    let after = tree.nodes.iter().map(|node| node.bucket.tokens(at(now)));
                    for (before, after) in before.iter().zip(after) {
                        prop_assert!((before - after).abs() < 1e-6);
                    }
                } else {
                    let path: Vec<usize> = tree.upward(Some(receipt.to as usize - 1)).collect();
                    for at in path {
                        allowed[at] -= 1.0;
                        let node = &tree.config.nodes[at].path;
                        prop_assert!(allowed[at] > -1e-6, "{node}: {} too many", -allowed[at]);
                    }
                }
                tree.invariants();
            }
        }
    }
}
