//! Our way: predict, place, verify.
//!
//! The paper's [`Fitting`](super::Fitting) learns by measuring what a placement is worth, a minute at a
//! time. Most of that can be computed beforehand:
//!
//! 1. A broker's room for this topic is its idle cores' time divided by what the topic's own messages
//!    cost, batches as recorded; not a benchmark of other messages.
//! 2. For k from the fewest brokers whose rooms cover the topic, max-min quotas are made and publishers
//!    dealt group by group; the recording is replayed through each broker's bucket and queue. If
//!    somebody is predicted to be late, parts are levelled by their tails and tried again. The
//!    first k whose predicted tails are all within the objective, less a margin, is it. The recording
//!    is longer than a measurement, and every stretch of it as long as one has to pass.
//! 3. One measurement verifies it. If it fails, all predictions are taken to be wrong by as much as the
//!    worst one was, but no more than [`PlannerConfig::distrust`]; the first larger k that passes then is
//!    measured, and that is the last measurement: at most two.
//!
//! If no k passes, the placement with the smallest predicted worst tail is tried: the best there is.
//! [`Planner::wanted`] then says how many brokers like the emptiest would do, found by replaying on.
//! A broker that disappears during the measurement is left out of the next plan. One that was to serve
//! some of the topic and of which nothing was heard has proved nothing: the same is measured again,
//! and if it is silent then too, the objective was not met.

use super::deal::{Order, deal};
use super::quota::{Division, fewest, quotas};
use super::replay::{Arrival, Costs, tail};
use super::{Broker, Measured, PlaceError, Placement, Publisher, check};
use crate::share::Share;
use crate::time::Span;

/// How many divisions are tried on the same brokers.
const SHIFTS: usize = 8;
/// How much more a broker is given at a time, at most.
const MORE: f64 = 1.5;

/// A broker as the planner knows it.
#[derive(Clone, Debug, PartialEq)]
pub struct Host {
    /// What its work costs, from a benchmark of it: another machine, other costs.
    pub costs: Costs,
    /// What it serves already, in order of arrival, over the same time as the topic's recording.
    pub serves: Vec<Arrival>,
}

/// Plans a topic's placement from a recording of it.
#[derive(Clone, Debug)]
pub struct Planner {
    config: PlannerConfig,
    topic: Vec<Publisher>,
    whole: Share,
    /// The topic, in order of arrival.
    recording: Vec<Arrival>,
    brokers: Vec<Host>,
    /// Rooms as capacities, so that quotas can be made of them.
    rooms: Vec<Broker>,
    gone: Vec<bool>,
    /// The plan, and each broker's predicted tail.
    placement: Placement,
    predicted: Vec<Option<Span>>,
    /// By how much measured tails exceed predicted ones, at worst; 1 before the first.
    error: f64,
    /// Plans use more brokers than this.
    failed: usize,
    /// What failed verification, with its measured and predicted tails, if it was nearest.
    nearest: Option<(Span, Placement, Vec<Option<Span>>)>,
    rounds: u32,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Measure,
    Done { met: bool },
}

impl Planner {
    /// Plans `topic`, of which `recording` was made, on `brokers`.
    pub fn new(
        topic: &[Publisher],
        whole: Share,
        recording: &[Arrival],
        brokers: &[Host],
        config: PlannerConfig,
    ) -> Result<Self, PlaceError> {
        let rate: f64 = topic.iter().map(|at| at.rate).sum();
        // Room in this topic's messages: the idle part of the cores over what its messages take there.
        let room = |broker: &Host| {
            let all = broker.costs.utilization(recording, config.over);
            let idle = (1.0 - broker.costs.utilization(&broker.serves, config.over)).max(0.0);
            Broker { capacity: rate * idle / all.max(f64::MIN_POSITIVE), load: 0.0 }
        };
        let rooms: Vec<Broker> = brokers.iter().map(room).collect();
        check(topic, &rooms)?;
        let mut planner = Self {
            config,
            topic: topic.to_vec(),
            whole,
            recording: recording.to_vec(),
            brokers: brokers.to_vec(),
            gone: vec![false; rooms.len()],
            placement: Placement::none(topic.len()),
            predicted: Vec::new(),
            rooms,
            error: 1.0,
            failed: 0,
            nearest: None,
            rounds: 0,
            state: State::Measure,
        };
        planner.plan();
        Ok(planner)
    }

    /// What to measure, or what it came to.
    pub fn placement(&self) -> &Placement {
        &self.placement
    }

    /// What each broker's tail is expected to be there.
    pub fn predicted(&self) -> &[Option<Span>] {
        &self.predicted
    }

    /// Whether nothing more is to be measured.
    pub fn is_done(&self) -> bool {
        self.state != State::Measure
    }

    /// Whether the last measurement met the objective.
    pub fn met(&self) -> bool {
        self.state == State::Done { met: true }
    }

    /// Measurements so far; never more than two.
    pub fn rounds(&self) -> u32 {
        self.rounds
    }

    /// The placement was measured: what came of each broker.
    pub fn on_measured(&mut self, measured: &[Measured]) {
        if self.is_done() {
            return;
        }
        self.rounds += 1;
        let (mut lost, mut silent) = (false, false);
        let mut worst = Span::ZERO;
        for broker in 0..self.rooms.len() {
            let used = self.placement.broker_of.contains(&Some(broker));
            match measured.get(broker).copied().unwrap_or(Measured::Idle) {
                Measured::Gone => {
                    lost |= used;
                    self.gone[broker] = true;
                }
                Measured::Tail(tail) => {
                    worst = worst.max(tail);
                    let expected = self.predicted[broker].unwrap_or(tail).as_secs_f64();
                    self.error = self.error.max(tail.as_secs_f64() / expected.max(1e-9));
                }
                Measured::Idle => silent |= used,
            }
        }
        let late = worst > self.config.slo;
        let placed = self.placement.broker_of.iter().all(Option::is_some);
        let met = placed && !lost && !silent && !late;
        self.error = self.error.min(self.config.distrust);
        if !lost && late {
            self.failed = self.placement.used().len();
            if self.nearest.as_ref().is_none_or(|nearest| worst < nearest.0) {
                self.nearest = Some((worst, self.placement.clone(), self.predicted.clone()));
            }
        }
        if lost || (late && self.rounds < 2) {
            self.plan();
        }
        if met || self.rounds >= 2 || self.there().is_empty() {
            self.state = State::Done { met };
        }
        // Of two that failed, the better one stays, unless a broker of it has gone.
        if let State::Done { met: false } = self.state
            && let Some((_, placement, predicted)) = self.nearest.take()
            && !placement.used().iter().any(|at| self.gone[*at])
            && !lost
        {
            (self.placement, self.predicted) = (placement, predicted);
        }
    }

    /// How many brokers would do if these do not: as many more, like the emptiest one, as replaying
    /// asks for. None if these do, or if not even [`PlannerConfig::most`] would.
    pub fn wanted(&self) -> Option<usize> {
        if self.passes(&self.predicted) {
            return None;
        }
        let emptiest = (0..self.rooms.len())
            .max_by(|a, b| self.rooms[*a].capacity.total_cmp(&self.rooms[*b].capacity))?;
        let mut more = self.clone();
        while more.rooms.len() < self.config.most {
            more.rooms.push(self.rooms[emptiest]);
            more.brokers.push(self.brokers[emptiest].clone());
            more.gone.push(false);
            let there: Vec<usize> = more.there();
            let (_, predicted) = more.try_on(&there);
            if more.passes(&predicted) {
                return Some(there.len());
            }
        }
        None
    }

    /// Step 2.
    fn plan(&mut self) {
        let there = self.there();
        let rate: f64 = self.topic.iter().map(|at| at.rate).sum();
        let least = fewest(&self.rooms, &there, rate).len();
        // `fewest` of an endless rate is all of them, in the order of their rooms.
        let order = fewest(&self.rooms, &there, f64::INFINITY);
        let mut best: Option<(Span, Placement, Vec<Option<Span>>)> = None;
        let first = least.max(self.failed + 1).min(order.len()).max(1);
        for count in first..=order.len() {
            let (placement, predicted) = self.try_on(&order[..count]);
            let worst = predicted.iter().flatten().copied().max().unwrap_or(Span::MAX);
            let passes = self.passes(&predicted);
            if best.as_ref().is_none_or(|best| worst < best.0) || passes {
                best = Some((worst, placement, predicted));
            }
            if passes {
                break;
            }
        }
        (self.placement, self.predicted) = best.map_or_else(
            || (Placement::none(self.topic.len()), vec![None; self.rooms.len()]),
            |(_, placement, predicted)| (placement, predicted),
        );
    }

    fn there(&self) -> Vec<usize> {
        (0..self.rooms.len()).filter(|at| !self.gone[*at]).collect()
    }

    /// The objective, less the margin, as predictions have to meet it.
    fn limit(&self) -> Span {
        self.config.slo.scale((1.0 - self.config.margin) / self.error)
    }

    fn passes(&self, predicted: &[Option<Span>]) -> bool {
        let limit = self.limit();
        let mut tails = predicted.iter().flatten().peekable();
        tails.peek().is_some() && tails.all(|tail| *tail <= limit)
    }

    /// A placement on these brokers, and what is to be expected of it: max-min parts, if nobody is late with them. Else
    /// parts are levelled by their tails, since a broker that serves others is late long before it has no idle
    /// time. Of all that were tried, the best.
    fn try_on(&self, chosen: &[usize]) -> (Placement, Vec<Option<Span>>) {
        let rate: f64 = self.topic.iter().map(|at| at.rate).sum();
        let mut parts = quotas(Division::MaxMin, &self.rooms, chosen, rate);
        let mut best: Option<(Span, Placement, Vec<Option<Span>>)> = None;
        for _ in 0..SHIFTS {
            let placement = self.deal(chosen, &parts);
            let predicted = self.predict(&placement);
            let worst = predicted.iter().flatten().copied().max().unwrap_or(Span::MAX);
            level(&mut parts, chosen.iter().map(|at| predicted[*at]), worst);
            if best.as_ref().is_none_or(|best| worst < best.0) {
                best = Some((worst, placement, predicted));
            }
            if worst <= self.limit() {
                break;
            }
        }
        let (_, placement, predicted) = best.expect("tried at least once");
        (placement, predicted)
    }

    /// Each of the chosen gets its part of the publishers.
    fn deal(&self, chosen: &[usize], parts: &[f64]) -> Placement {
        let all: Vec<usize> = (0..self.topic.len()).collect();
        let mut placement = Placement::none(self.topic.len());
        let hands = deal(&self.topic, &all, parts, Order::ByGroup);
        for (&broker, hand) in chosen.iter().zip(hands) {
            hand.into_iter().for_each(|at| placement.broker_of[at] = Some(broker));
        }
        placement
    }

    /// The tail of each broker; none where there is no message or no token for every broker.
    fn predict(&self, placement: &Placement) -> Vec<Option<Span>> {
        let mut parts = vec![Vec::new(); self.rooms.len()];
        for arrival in &self.recording {
            let broker = placement.broker_of.get(arrival.publisher as usize).copied().flatten();
            if let Some(broker) = broker {
                parts[broker].push(*arrival);
            }
        }
        let mut tails = vec![None; self.rooms.len()];
        match placement.shares(self.whole, &self.topic) {
            Ok(shares) => {
                for (at, share) in shares {
                    let Host { costs, serves } = &self.brokers[at];
                    tails[at] = tail(*costs, share, &parts[at], serves, self.config.window);
                }
            }
            // More brokers than tokens: nothing would pass some of them.
            Err(_) => placement.used().into_iter().for_each(|at| tails[at] = Some(Span::MAX)),
        }
        tails
    }
}

/// Gives more to brokers with short tails and so less to the others; all together stay the same. By the root of
/// their ratio, because a tail follows its part and so would go too far otherwise.
fn level(parts: &mut [f64], tails: impl Iterator<Item = Option<Span>>, worst: Span) {
    let all: f64 = parts.iter().sum();
    for (part, tail) in parts.iter_mut().zip(tails) {
        let ratio = tail.map_or(1.0, |tail| worst.as_secs_f64() / tail.as_secs_f64().max(1e-9));
        *part *= ratio.sqrt().min(MORE);
    }
    let now: f64 = parts.iter().sum();
    parts.iter_mut().for_each(|part| *part *= all / now);
}

/// How a placement is planned.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PlannerConfig {
    /// The objective: the 99th percentile of the topic's latency, on every broker.
    pub slo: Span,
    /// How long the recordings are.
    pub over: Span,
    /// How long a measurement is.
    pub window: Span,
    /// How far below the objective a prediction has to be, as a share of it. More uses more brokers
    /// and is verified more often. Default 0.05 by judgement: measured tails differ by as much from minute to minute.
    pub margin: f64,
    /// How much worse than predicted everything is taken to be after a failed verification, at most. A
    /// tail that waits for tokens can be many times what was predicted and still be cured by one
    /// more broker. Default 1.25 by judgement.
    pub distrust: f64,
    /// Most brokers that [`Planner::wanted`] thinks of. Default 64.
    pub most: usize,
}

impl PlannerConfig {
    /// For this objective, and recordings and measurements of these lengths.
    pub fn new(slo: Span, over: Span, window: Span) -> Self {
        Self { slo, over, window, margin: 0.05, distrust: 1.25, most: 64 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::placement::GroupId;
    use crate::share::Rate;
    use crate::time::Instant;

    const COSTS: Costs = Costs {
        cores: 2,
        wake: Span::from_micros(18),
        read: Span::from_micros(7),
        forward: Span::from_micros(8),
        network: Span::ZERO,
    };

    /// 40 groups of `size`, each sending 10 messages per publisher at once, one group after the other.
    fn topic(size: u32) -> (Vec<Publisher>, Vec<Arrival>) {
        let publishers =
            (0..40 * size).map(|at| Publisher { rate: 10.0, group: Some(GroupId(at / size)) });
        let arrival = |at: u32| Arrival {
            at: Instant::ZERO + Span::from_millis(25 * u64::from(at / size)),
            publisher: at,
            messages: 10,
        };
        (publishers.collect(), (0..40 * size).map(arrival).collect())
    }

    fn config() -> PlannerConfig {
        PlannerConfig::new(Span::from_millis(1), Span::from_secs(1), Span::from_secs(1))
    }

    fn planner(size: u32, brokers: usize) -> Planner {
        planner_on(size, &vec![COSTS; brokers])
    }

    fn planner_on(size: u32, brokers: &[Costs]) -> Planner {
        let (publishers, recording) = topic(size);
        let whole = Share::new(Rate::per_second(440.0 * f64::from(size)).unwrap(), 1_000);
        let hosts: Vec<Host> =
            brokers.iter().map(|costs| Host { costs: *costs, serves: Vec::new() }).collect();
        Planner::new(&publishers, whole, &recording, &hosts, config()).unwrap()
    }

    /// A measurement in which everything takes `factor` times as long as predicted.
    fn measure(planner: &Planner, factor: f64) -> Vec<Measured> {
        let tail = |tail: &Option<Span>| {
            tail.map_or(Measured::Idle, |at| Measured::Tail(at.scale(factor)))
        };
        planner.predicted().iter().map(tail).collect()
    }

    #[test]
    fn as_few_brokers_as_the_bursts_allow() {
        // Of seven that send together two are read at a time, for 88 µs, until the topic's task takes a core: 824 µs.
        for (size, brokers) in [(5, 1), (7, 1), (8, 2), (14, 2), (15, 3), (21, 3)] {
            let mut planner = planner(size, 6);
            assert_eq!(planner.placement().used().len(), brokers, "groups of {size}");
            planner.on_measured(&measure(&planner, 1.05));
            assert!(planner.is_done() && planner.met());
            assert_eq!(planner.rounds(), 1);
        }
    }

    #[test]
    fn a_failed_verification_corrects_the_plan_once() {
        let mut planner = planner(20, 6);
        planner.on_measured(&measure(&planner, 1.25));
        assert!(!planner.is_done());
        assert!(planner.placement().used().len() > 3, "more brokers than before");
        planner.on_measured(&measure(&planner, 1.25));
        assert!(planner.met());
        assert_eq!(planner.rounds(), 2);
        // What no number of brokers can cure is given up after two.
        let mut planner = self::planner(20, 6);
        for _ in 0..2 {
            planner.on_measured(&measure(&planner, 50.0));
        }
        assert!(planner.is_done() && !planner.met());
    }

    #[test]
    fn too_few_brokers_give_the_best_there_is_and_how_many_would_do() {
        let planner = planner(21, 2);
        assert_eq!(planner.placement().used().len(), 2);
        assert_eq!(planner.wanted(), Some(3));
        assert_eq!(self::planner(21, 3).wanted(), None);
    }

    #[test]
    fn a_broker_that_disappears_is_left_out() {
        let mut planner = planner(20, 4);
        let mut measured = measure(&planner, 1.0);
        let lost = planner.placement().used()[0];
        measured[lost] = Measured::Gone;
        planner.on_measured(&measured);
        assert!(!planner.is_done());
        assert!(!planner.placement().used().contains(&lost));
        assert!(planner.placement().broker_of.iter().all(Option::is_some));
        planner.on_measured(&measure(&planner, 1.0));
        assert!(planner.met());
    }

    /// With nobody left there is nothing to measure, and nothing that nobody does is in time.
    #[test]
    fn when_all_disappear_it_ends_unmet() {
        let mut planner = planner(20, 4);
        planner.on_measured(&[Measured::Gone; 4]);
        assert!(planner.is_done() && !planner.met());
        assert!(planner.placement().used().is_empty());
        assert_eq!(planner.rounds(), 1);
    }

    #[test]
    fn no_brokers_is_an_error() {
        let (publishers, recording) = topic(1);
        let whole = Share::new(Rate::per_second(1.0).unwrap(), 1);
        let planner = Planner::new(&publishers, whole, &recording, &[], config());
        assert_eq!(planner.err(), Some(PlaceError::NoBrokers));
    }

    /// Two old machines that take twice as long, and a new one with four cores.
    #[test]
    fn machines_differ() {
        let twice = |span: Span| span + span;
        let slow = Costs {
            wake: twice(COSTS.wake),
            read: twice(COSTS.read),
            forward: twice(COSTS.forward),
            ..COSTS
        };
        let fast = Costs { cores: 4, ..COSTS };
        // What one alone can take is what decides whether it is enough.
        for (costs, enough) in [(slow, false), (COSTS, true), (fast, true)] {
            assert_eq!(planner_on(7, &[costs]).wanted().is_none(), enough, "{costs:?}");
        }
        // The one that has most room is asked first, wherever it stands.
        assert_eq!(planner_on(7, &[slow, slow, fast]).placement().used(), [2]);
        // Together the slow one has the smaller part, and all tails are predicted to be in time.
        let planner = planner_on(12, &[slow, COSTS, COSTS]);
        let rates = planner.placement().rates(&planner.topic, 3);
        assert!(planner.wanted().is_none() && rates[0] < rates[1].max(rates[2]), "{rates:?}");
    }

    /// One publisher in four sends ten times as much as the others.
    #[test]
    fn publishers_differ() {
        let heavy = |at: u32| at.is_multiple_of(4);
        let rate = |at: u32| if heavy(at) { 100.0 } else { 10.0 };
        let publishers: Vec<Publisher> = (0..400)
            .map(|at| Publisher { rate: rate(at), group: Some(GroupId(at / 20)) })
            .collect();
        // Batches of ten; each group at its moment, those who send more ten times as often.
        let mut recording: Vec<Arrival> = (0..400u32)
            .flat_map(|at| {
                let times = if heavy(at) { 10 } else { 1 };
                (0..times).map(move |time| Arrival {
                    at: Instant::ZERO + Span::from_millis(u64::from(at / 20 * 5 + time * 100)),
                    publisher: at,
                    messages: 10,
                })
            })
            .collect();
        recording.sort_by_key(|at| (at.at, at.publisher));
        let total: f64 = publishers.iter().map(|at| at.rate).sum();
        let whole = Share::new(Rate::per_second(1.1 * total).unwrap(), 4_000);
        let hosts = vec![Host { costs: COSTS, serves: Vec::new() }; 6];
        let mut planner = Planner::new(&publishers, whole, &recording, &hosts, config()).unwrap();
        assert!(planner.placement().broker_of.iter().all(Option::is_some));
        let used = planner.placement().used();
        let rates = planner.placement().rates(&publishers, 6);
        // Dealt by what they send: even parts, to within one of the largest.
        for &at in &used {
            let part = total / used.len() as f64;
            assert!((rates[at] - part).abs() <= 100.0, "{rates:?}");
        }
        planner.on_measured(&measure(&planner, 1.0));
        assert!(planner.met(), "{:?}", planner.predicted());
    }

    /// Of one broker in use nothing is heard, though what is heard is in time.
    #[test]
    fn silence_proves_nothing() {
        let mut planner = planner(20, 6);
        let (placement, mut measured) = (planner.placement().clone(), measure(&planner, 1.0));
        measured[placement.used()[0]] = Measured::Idle;
        planner.on_measured(&measured);
        assert!(!planner.is_done());
        assert_eq!(*planner.placement(), placement, "the same again");
        let mut heard = planner.clone();
        heard.on_measured(&measure(&planner, 1.0));
        assert!(heard.met());
        // Silent again, or no answer at all.
        for measured in [measured, Vec::new()] {
            let mut planner = planner.clone();
            planner.on_measured(&measured);
            assert!(planner.is_done() && !planner.met());
        }
    }
}
