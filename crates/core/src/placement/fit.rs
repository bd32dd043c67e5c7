//! The paper's way: place, measure, shed, place again (SRTM §IV-B).
//!
//! Residual capacity counts messages and knows nothing of bursts, so a placement by quotas has to be
//! tried. An iteration is
//!
//! 1. **Step 1**: the fewest further brokers whose residuals cover what is not placed;
//! 2. **Step 2**: quotas among them, and publishers dealt by quota;
//! 3. **Step 3**: a measurement. A broker whose tail is within the objective keeps what it has. One
//!    whose tail is not searches by halving, all of them in parallel and with one measurement per
//!    halving, for how many of its publishers it can keep: until its tail is within the objective
//!    and at most a fifth below it, or there is nothing left to halve. What it sheds is placed by the
//!    next iteration; it is full.
//! 4. A last remainder smaller than an even part is topped up from the others, to keep max-min (in
//!    SRTM's code, not in the paper).
//!
//! A broker that has publishers and of which nothing was heard has proved nothing: it is measured once
//! more with what it has. If it is silent again, as where messages are rare, it keeps that for now, and
//! [`Fitting::unproven`] names it; who knows that it has disappeared says so.
//!
//! When brokers run out, what is left is dealt to those in use, in proportion to what they keep: the
//! best there is, and [`Fitting::wanted`] says how many brokers would do.
//!
//! Each measurement takes as long as a tail needs to show, a minute in the paper, up to 18 times.
//! [`Planner`](super::Planner) is the faster way.

use super::deal::{Order, deal};
use super::quota::{Division, fewest, quotas};
use super::{Broker, Measured, PlaceError, Placement, Publisher, check};
use crate::time::Span;

/// Measurements in a row in which nothing is heard of a broker that then keeps what it has, unproven.
const SILENT: u32 = 2;

/// A search for a placement, one measurement after the other.
#[derive(Clone, Debug)]
pub struct Fitting {
    config: FitConfig,
    publishers: Vec<Publisher>,
    brokers: Vec<Broker>,
    /// What each broker has on trial or keeps, in an order whose beginnings are in proportion.
    hands: Vec<Vec<usize>>,
    states: Vec<State>,
    /// How often in a row nothing was heard of a broker that has publishers.
    silent: Vec<u32>,
    /// Measurements of each iteration so far.
    rounds: Vec<u32>,
    placement: Placement,
    done: bool,
    /// Brokers ran out: what could not be kept, in messages per second.
    short: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Serves none of the topic.
    Fresh,
    /// Tries the first so many of its hand: `fits` are known to fit, `over` are known not to.
    Trial { tries: usize, fits: usize, over: usize },
    /// Keeps the first so many of its hand.
    Keeps(usize),
    /// Has disappeared.
    Gone,
}

impl Fitting {
    /// The first trial.
    pub fn new(
        publishers: &[Publisher],
        brokers: &[Broker],
        config: FitConfig,
    ) -> Result<Self, PlaceError> {
        check(publishers, brokers)?;
        let mut fitting = Self {
            config,
            publishers: publishers.to_vec(),
            brokers: brokers.to_vec(),
            hands: vec![Vec::new(); brokers.len()],
            states: vec![State::Fresh; brokers.len()],
            silent: vec![0; brokers.len()],
            rounds: Vec::new(),
            placement: Placement::none(publishers.len()),
            done: false,
            short: 0.0,
        };
        fitting.iterate((0..publishers.len()).collect());
        Ok(fitting)
    }

    /// What to measure, or what it came to.
    pub fn placement(&self) -> &Placement {
        &self.placement
    }

    /// Whether nothing more is to be measured.
    pub fn is_done(&self) -> bool {
        self.done
    }

    /// Measurements, by iteration.
    pub fn rounds(&self) -> &[u32] {
        &self.rounds
    }

    /// How many brokers would do, if there were not enough: those in use, and as many like them as
    /// what is left over asks for. None if there were enough, or if nothing at all could be kept.
    pub fn wanted(&self) -> Option<usize> {
        let kept: f64 = self.publishers.iter().map(|at| at.rate).sum::<f64>() - self.short;
        if self.short <= 0.0 || kept <= 0.0 {
            return None;
        }
        let used = self.placement.used().len();
        Some(used + (self.short * used as f64 / kept).ceil() as usize)
    }

    /// Brokers that have publishers and of which nothing was heard again and again.
    pub fn unproven(&self) -> Vec<usize> {
        (0..self.brokers.len()).filter(|at| self.silent[*at] >= SILENT).collect()
    }

    /// The placement was measured: what came of each broker.
    pub fn on_measured(&mut self, measured: &[Measured]) {
        if self.done {
            return;
        }
        if let Some(rounds) = self.rounds.last_mut() {
            *rounds += 1;
        }
        let mut left = Vec::new();
        for broker in 0..self.brokers.len() {
            let measured = measured.get(broker).copied().unwrap_or(Measured::Idle);
            let heard = measured != Measured::Idle || self.hands[broker].is_empty();
            // Heard at last: on trial again.
            if heard && self.silent[broker] >= SILENT {
                self.try_all(broker);
            }
            self.silent[broker] = if heard { 0 } else { self.silent[broker] + 1 };
            match measured {
                Measured::Tail(tail) => self.judge(broker, tail),
                Measured::Idle => {
                    if let State::Trial { tries, .. } = self.states[broker]
                        && self.silent[broker] >= SILENT
                    {
                        self.states[broker] = State::Keeps(tries);
                    }
                }
                Measured::Gone => {
                    self.states[broker] = State::Gone;
                    left.append(&mut self.hands[broker]);
                }
            }
        }
        if left.is_empty() && self.states.iter().any(|at| matches!(at, State::Trial { .. })) {
            self.show();
            return;
        }
        for broker in 0..self.brokers.len() {
            left.extend(self.shed(broker));
        }
        if left.is_empty() { self.finish() } else { self.iterate(left) }
    }

    /// Step 3 for one broker.
    fn judge(&mut self, broker: usize, tail: Span) {
        let State::Trial { tries, mut fits, mut over } = self.states[broker] else { return };
        let near = self.config.slo.scale(1.0 - self.config.slack);
        if tail <= self.config.slo {
            fits = tries;
            if tail >= near || tries == self.hands[broker].len() {
                over = tries + 1;
            }
        } else {
            over = tries;
        }
        // To one in a hundred: finer than a tail can be measured.
        let step = (self.hands[broker].len() / 100).max(1);
        self.states[broker] = if over - fits <= step {
            State::Keeps(fits)
        } else {
            State::Trial { tries: fits + (over - fits) / 2, fits, over }
        };
    }

    /// What a broker does not keep. A trial cut short, because another broker has gone, keeps what is
    /// known to fit.
    fn shed(&mut self, broker: usize) -> Vec<usize> {
        match self.states[broker] {
            State::Trial { fits: keeps, .. } | State::Keeps(keeps) => {
                self.states[broker] = State::Keeps(keeps);
                self.hands[broker].split_off(keeps)
            }
            State::Fresh | State::Gone => Vec::new(),
        }
    }

    /// Steps 1 and 2 for what is not placed.
    fn iterate(&mut self, left: Vec<usize>) {
        let rate: f64 = left.iter().map(|at| self.publishers[*at].rate).sum();
        let fresh: Vec<usize> =
            (0..self.brokers.len()).filter(|at| self.states[*at] == State::Fresh).collect();
        if fresh.is_empty() {
            self.run_out(&left, rate);
            return;
        }
        let chosen = fewest(&self.brokers, &fresh, rate);
        let parts = quotas(self.config.division, &self.brokers, &chosen, rate);
        let hands = deal(&self.publishers, &left, &parts, self.config.order);
        for (&broker, hand) in chosen.iter().zip(hands) {
            self.hands[broker] = hand;
        }
        self.top_up(&chosen);
        self.rounds.push(0);
        self.show();
    }

    /// Step 4: the newest brokers get an even part of the topic if what was left is less.
    fn top_up(&mut self, newest: &[usize]) {
        let keeping = self.keeping();
        let total: f64 = self.publishers.iter().map(|at| at.rate).sum();
        let even = total / (keeping.len() + newest.len()) as f64;
        for &broker in newest {
            while self.rate(broker) < even {
                let richest = keeping.iter().rev().copied();
                let richest = richest.max_by(|a, b| self.rate(*a).total_cmp(&self.rate(*b)));
                let Some(from) = richest.filter(|from| self.rate(*from) > even) else { break };
                let Some(publisher) = self.hands[from].pop() else { break };
                self.states[from] = State::Keeps(self.hands[from].len());
                self.hands[broker].push(publisher);
            }
            self.try_all(broker);
        }
    }

    /// Puts all that a broker was dealt on trial. Who was dealt nobody has nothing to prove.
    fn try_all(&mut self, broker: usize) {
        let tries = self.hands[broker].len();
        let trial = State::Trial { tries, fits: 0, over: tries + 1 };
        self.states[broker] = if tries == 0 { State::Fresh } else { trial };
    }

    fn keeping(&self) -> Vec<usize> {
        let keeps = |at: &usize| matches!(self.states[*at], State::Keeps(_));
        (0..self.brokers.len()).filter(keeps).collect()
    }

    fn rate(&self, broker: usize) -> f64 {
        self.hands[broker].iter().map(|at| self.publishers[*at].rate).sum()
    }

    /// Everyone in use gets a part of what nobody can keep.
    fn run_out(&mut self, left: &[usize], rate: f64) {
        self.short = rate;
        let keeping = self.keeping();
        let kept: Vec<f64> = keeping.iter().map(|at| self.rate(*at)).collect();
        let hands = deal(&self.publishers, left, &kept, self.config.order);
        for (broker, mut hand) in keeping.into_iter().zip(hands) {
            self.hands[broker].append(&mut hand);
        }
        self.finish();
    }

    fn finish(&mut self) {
        self.done = true;
        self.show();
    }

    /// What the brokers try or keep, as a placement.
    fn show(&mut self) {
        self.placement = Placement::none(self.publishers.len());
        for (broker, hand) in self.hands.iter().enumerate() {
            let count = match self.states[broker] {
                State::Trial { tries, .. } => tries,
                _ => hand.len(),
            };
            for &publisher in &hand[..count] {
                self.placement.broker_of[publisher] = Some(broker);
            }
        }
    }
}

/// How placements are searched for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FitConfig {
    /// The objective: the 99th percentile of the topic's latency, on every broker. SRTM has 1 ms.
    pub slo: Span,
    /// How far below the objective a tail may be for a search to stop, as a share of it. More stops
    /// sooner and leaves more room unused. Default 0.2 (SRTM §VI-E).
    pub slack: f64,
    /// How quotas are made. Default max-min.
    pub division: Division,
    /// How publishers are dealt. Default by group.
    pub order: Order,
}

impl FitConfig {
    /// The paper's values, for this objective.
    pub fn new(slo: Span) -> Self {
        Self { slo, slack: 0.2, division: Division::MaxMin, order: Order::ByGroup }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLO: Span = Span::from_millis(1);

    fn publishers(count: usize) -> Vec<Publisher> {
        vec![Publisher { rate: 10.0, group: None }; count]
    }

    fn brokers(count: usize, capacity: f64) -> Vec<Broker> {
        vec![Broker { capacity, load: 0.0 }; count]
    }

    /// Measures until it is done: a broker's tail grows by `each` per publisher. Brokers in `gone`
    /// disappear at that round.
    fn fit(fitting: &mut Fitting, brokers: usize, each: Span, gone: &[(u32, usize)]) {
        let mut round = 0;
        while !fitting.is_done() {
            round += 1;
            assert!(round < 100, "it ends");
            let count = |broker| {
                fitting.placement().broker_of.iter().filter(|at| **at == Some(broker)).count()
            };
            let measure = |broker| match count(broker) {
                _ if gone.iter().any(|at| at.0 <= round && at.1 == broker) => Measured::Gone,
                0 => Measured::Idle,
                count => Measured::Tail(Span::from_nanos(each.as_nanos() * count as u64)),
            };
            let measured: Vec<Measured> = (0..brokers).map(measure).collect();
            fitting.on_measured(&measured);
        }
    }

    fn counts(fitting: &Fitting, brokers: usize) -> Vec<f64> {
        let rates = fitting.placement().rates(&fitting.publishers, brokers);
        rates.into_iter().map(|rate| rate / 10.0).collect()
    }

    #[test]
    fn what_fits_takes_one_measurement() {
        let mut fitting =
            Fitting::new(&publishers(50), &brokers(3, 1e6), FitConfig::new(SLO)).unwrap();
        fit(&mut fitting, 3, Span::from_micros(20), &[]);
        assert_eq!(fitting.rounds(), [1]);
        assert_eq!(counts(&fitting, 3), [50.0, 0.0, 0.0]);
    }

    #[test]
    fn what_does_not_fit_is_halved_and_shed_and_topped_up() {
        // 50 fit on a broker. Of 90, a first try of 90, then 45: within a fifth of the objective.
        let mut fitting =
            Fitting::new(&publishers(90), &brokers(3, 1e6), FitConfig::new(SLO)).unwrap();
        fit(&mut fitting, 3, Span::from_micros(20), &[]);
        assert_eq!(fitting.rounds(), [2, 1]);
        assert_eq!(counts(&fitting, 3), [45.0, 45.0, 0.0]);
        // 60: tries 60, 30, 45. The remaining 15 are topped up to an even part.
        let mut fitting =
            Fitting::new(&publishers(60), &brokers(3, 1e6), FitConfig::new(SLO)).unwrap();
        fit(&mut fitting, 3, Span::from_micros(20), &[]);
        assert_eq!(fitting.rounds(), [3, 1]);
        assert_eq!(counts(&fitting, 3), [30.0, 30.0, 0.0]);
    }

    /// One publisher, and two brokers of which neither has room for it: one of them is dealt nobody.
    #[test]
    fn who_is_dealt_nobody_keeps_nobody_waiting() {
        let topic = [Publisher { rate: 100.0, group: None }];
        let mut fitting = Fitting::new(&topic, &brokers(2, 60.0), FitConfig::new(SLO)).unwrap();
        fit(&mut fitting, 2, Span::from_micros(20), &[]);
        assert_eq!(fitting.rounds(), [1]);
        assert_eq!(fitting.placement().used().len(), 1);
        // It is there to be tried when the other fails.
        let mut fitting = Fitting::new(&topic, &brokers(2, 60.0), FitConfig::new(SLO)).unwrap();
        let first = fitting.placement().used();
        let mut measured = [Measured::Idle; 2];
        measured[first[0]] = Measured::Gone;
        fitting.on_measured(&measured);
        assert_eq!(fitting.placement().used(), [1 - first[0]]);
    }

    #[test]
    fn without_enough_brokers_it_does_its_best_and_says_how_many_would_do() {
        let mut fitting =
            Fitting::new(&publishers(400), &brokers(2, 1e6), FitConfig::new(SLO)).unwrap();
        fit(&mut fitting, 2, Span::from_micros(20), &[]);
        assert_eq!(counts(&fitting, 2).iter().sum::<f64>(), 400.0, "nobody is left out");
        assert_eq!(fitting.wanted(), Some(9), "50 and 43 were kept, 307 were not");
    }

    /// Of the first broker nothing is heard: messages are rare, or it is gone and nobody has noticed.
    #[test]
    fn a_silent_broker_keeps_what_it_has_unproven() {
        let mut fitting =
            Fitting::new(&publishers(60), &brokers(3, 1e6), FitConfig::new(SLO)).unwrap();
        assert_eq!(fitting.placement().used(), [0]);
        fitting.on_measured(&[Measured::Idle; 3]);
        assert!(!fitting.is_done() && fitting.unproven().is_empty());
        assert_eq!(fitting.placement().used(), [0], "the same once more");
        let mut gone = fitting.clone();
        fitting.on_measured(&[]);
        assert!(fitting.is_done());
        assert_eq!(counts(&fitting, 3), [60.0, 0.0, 0.0]);
        assert_eq!(fitting.unproven(), [0]);
        // Who is known to be gone is replaced.
        fit(&mut gone, 3, Span::from_micros(20), &[(1, 0)]);
        assert_eq!(counts(&gone, 3), [0.0, 30.0, 30.0]);
        assert!(gone.unproven().is_empty());
    }

    /// While another is still being halved, one that was silent twice is heard, and is late.
    #[test]
    fn who_is_heard_at_last_is_on_trial() {
        let mut fitting =
            Fitting::new(&publishers(120), &brokers(2, 600.0), FitConfig::new(SLO)).unwrap();
        assert_eq!(counts(&fitting, 2), [60.0, 60.0]);
        let late = Measured::Tail(SLO + SLO);
        fitting.on_measured(&[Measured::Idle, late]);
        fitting.on_measured(&[Measured::Idle, late]);
        assert_eq!(fitting.unproven(), [0]);
        fitting.on_measured(&[late, late]);
        assert!(fitting.unproven().is_empty() && !fitting.is_done());
        assert_eq!(counts(&fitting, 2)[0], 30.0, "half of what was too much");
    }

    /// Tails that follow rates: what is kept is counted in messages, not in publishers.
    #[test]
    fn publishers_differ() {
        let topic: Vec<Publisher> = (0..60)
            .map(|at| Publisher { rate: if at % 3 == 0 { 40.0 } else { 10.0 }, group: None })
            .collect();
        let mut fitting = Fitting::new(&topic, &brokers(4, 1e6), FitConfig::new(SLO)).unwrap();
        while !fitting.is_done() {
            let rates = fitting.placement().rates(&topic, 4);
            // 500 messages a second take the objective.
            let tail = |rate: &f64| match *rate {
                0.0 => Measured::Idle,
                rate => Measured::Tail(Span::from_nanos((rate * 2e3) as u64)),
            };
            fitting.on_measured(&rates.iter().map(tail).collect::<Vec<_>>());
        }
        let rates = fitting.placement().rates(&topic, 4);
        assert!(fitting.placement().broker_of.iter().all(Option::is_some));
        assert!(rates.iter().all(|rate| *rate <= 500.0), "{rates:?}");
        assert_eq!(fitting.placement().used().len(), 3, "1,200 a second: {rates:?}");
    }

    #[test]
    fn a_broker_that_disappears_is_replaced() {
        let mut fitting =
            Fitting::new(&publishers(60), &brokers(3, 1e6), FitConfig::new(SLO)).unwrap();
        fit(&mut fitting, 3, Span::from_micros(20), &[(2, 0)]);
        assert_eq!(counts(&fitting, 3)[0], 0.0);
        assert_eq!(counts(&fitting, 3).iter().sum::<f64>(), 60.0);
        assert_eq!(fitting.wanted(), None);
        // All of them: nobody is placed, and it ends.
        let mut fitting =
            Fitting::new(&publishers(60), &brokers(2, 1e6), FitConfig::new(SLO)).unwrap();
        fit(&mut fitting, 2, Span::from_micros(20), &[(1, 0), (1, 1)]);
        assert_eq!(fitting.placement().used(), [0usize; 0]);
    }
}
