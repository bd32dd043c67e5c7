//! [`Model`]: what a gate would do to the traffic, worked out beside it and without holding anything
//! back.
//!
//! A gate that only watches sees the service as it is without a gate: requests that would have been
//! refused are inside, and those that would have waited are served at once. Told the real ends of
//! requests it would believe in an overload that it could have prevented, or in one where there is
//! none because its few slots seem always taken. So a model keeps its own time:
//!
//! 1. every arrival is put to the model's gate, which lets it in or refuses it;
//! 2. what the gate starts ends after the time that the service *would have* taken, had only the
//!    model's requests been inside ([`Pace`]);
//! 3. these ends are told to the gate in their order, each at its moment, before the next arrival
//!    is. Nothing waits for a timer, so the model is exact however seldom it is looked at.
//!
//! What it leaves out: service times are those of the mean request, and clients that leave stay.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use tidegate_core::config::ConfigError;
use tidegate_core::event::Event;
use tidegate_core::gate::{Action, GateConfig};
use tidegate_core::limit::Leased;
use tidegate_core::signal::{Ewma, Extremum};
use tidegate_core::{Context, Cost, Gate, Instant, Outcome, Rejection, RequestId, Span};
use tidegate_http::wire::Names;

use crate::server::inform;

/// A gate and the service behind it, as they would be.
#[derive(Clone, Debug)]
pub(crate) struct Model {
    gate: Gate,
    /// When what runs will have ended, and when it began.
    ends: BinaryHeap<Reverse<(Instant, RequestId, Instant)>>,
    /// What began before anything was known of the service.
    unpaced: Vec<(Instant, RequestId)>,
}

impl Model {
    pub(crate) fn new(
        config: &GateConfig,
        names: &Names,
        now: Instant,
        seed: u64,
    ) -> Result<Self, ConfigError> {
        let mut gate = Gate::new(config, now, seed)?;
        inform(&mut gate, now, names);
        gate.leased().for_each(Leased::stand_aside);
        gate.events().keep(true);
        Ok(Self { gate, ends: BinaryHeap::new(), unpaced: Vec::new() })
    }

    /// The verdict on a request that arrives now.
    pub(crate) fn arrive(
        &mut self,
        now: Instant,
        context: &Context,
        pace: &Pace,
    ) -> Result<(), Rejection> {
        self.advance(now, pace);
        let answer = self.gate.arrive(now, context).map(drop);
        self.dispatch(now, pace);
        answer
    }

    /// Ends what will have ended by `now`.
    pub(crate) fn advance(&mut self, now: Instant, pace: &Pace) {
        if let Some(service) = pace.service(now, self.gate.running()) {
            for (began, id) in self.unpaced.drain(..) {
                self.ends.push(Reverse(((began + service).max(now), id, began)));
            }
        }
        while self.ends.peek().is_some_and(|Reverse((at, ..))| *at <= now) {
            let Some(Reverse((at, id, began))) = self.ends.pop() else { break };
            self.gate.finish(at, id, Outcome::Serve, Cost::from(at.since(began)));
            self.dispatch(at, pace);
        }
        self.dispatch(now, pace);
    }

    fn dispatch(&mut self, now: Instant, pace: &Pace) {
        self.gate.dispatch(now);
        while let Some(action) = self.gate.poll() {
            let Action::Start { id, .. } = action else { continue };
            match pace.service(now, self.gate.running()) {
                Some(service) => self.ends.push(Reverse((now + service, id, now))),
                None => self.unpaced.push((now, id)),
            }
        }
    }

    /// The machine is as full as that, 1 being full.
    pub(crate) fn utilize(&mut self, now: Instant, utilization: f64) {
        self.gate.on_utilization(now, utilization);
    }

    /// Requests let in and refused since the last call; the rest of a model's events is of no use.
    pub(crate) fn verdicts(&mut self) -> impl Iterator<Item = (Instant, Event)> {
        let events = self.gate.events().drain();
        events.filter(|(_, event)| matches!(event, Event::Admit { .. } | Event::Refuse { .. }))
    }

    /// Another configuration from now on; all that was learned and can be kept is.
    pub(crate) fn reconfigure(
        &mut self,
        now: Instant,
        config: &GateConfig,
        names: &Names,
    ) -> Result<(), ConfigError> {
        if config == self.gate.config() {
            return Ok(());
        }
        self.gate.reconfigure(now, config)?;
        inform(&mut self.gate, now, names);
        Ok(())
    }

    pub(crate) fn gate(&self) -> &Gate {
        &self.gate
    }

    /// Parts of agreements over many processes.
    pub(crate) fn leased(&mut self) -> impl Iterator<Item = &mut Leased> {
        self.gate.leased()
    }

    /// The gate with all that it has learned, and nothing inside.
    pub(crate) fn emptied(&self, now: Instant) -> Gate {
        let mut gate = self.gate.clone();
        let running = self.ends.iter().map(|Reverse((_, id, _))| *id);
        let mut running: Vec<RequestId> =
            running.chain(self.unpaced.iter().map(|(_, id)| *id)).collect();
        while !running.is_empty() {
            running.drain(..).for_each(|id| gate.cancel(now, id));
            gate.dispatch(now);
            while let Some(action) = gate.poll() {
                if let Action::Start { id, .. } = action {
                    running.push(id);
                }
            }
        }
        gate.events().drain().for_each(drop);
        gate
    }
}

/// How quickly the service behind answers, measured on real requests.
///
/// A request that finds N inside, itself included, and takes L shows that the service needs L ÷ N per
/// request, if it is saturated: it worked off N in that time. Had only n been inside, it would have
/// taken n · L ÷ N. If it is not saturated, that is too little, so nothing is taken to be quicker than the
/// quickest answer of the last hour: long enough to remember the time before an overload. A limit
/// that is too low errs on the safe side, as L ÷ N never claims less than what is served already. And
/// nothing is slower with fewer beside it than it was.
#[derive(Clone, Debug)]
pub(crate) struct Pace {
    /// Mean of L ÷ N in nanoseconds.
    share: Ewma,
    /// Mean of L in nanoseconds.
    latency: Ewma,
    quickest: Extremum,
}

/// Weight of one answer: the pace follows within some tens of answers.
const GAIN: f64 = 1.0 / 32.0;
/// For how long the quickest answer is remembered.
const REMEMBERED: Span = Span::from_secs(3600);

impl Default for Pace {
    fn default() -> Self {
        Self {
            share: Ewma::new(GAIN),
            latency: Ewma::new(GAIN),
            quickest: Extremum::min(REMEMBERED),
        }
    }
}

impl Pace {
    /// A request was answered after `latency`; when it was sent, `inside` were, itself included.
    pub(crate) fn on_answer(&mut self, now: Instant, latency: Span, inside: u64) {
        let nanos = latency.as_nanos() as f64;
        self.share.add(nanos / inside.max(1) as f64);
        self.latency.add(nanos);
        self.quickest.add(now, nanos);
    }

    /// How long a request would take beside which `running` are, itself included. None before the
    /// first answer.
    fn service(&self, now: Instant, running: u32) -> Option<Span> {
        let (share, latency) = (self.share.get()?, self.latency.get()?);
        // Without an answer in the last hour, the last mean is all there is.
        let least = self.quickest.get(now).map_or(latency, |least| least.min(latency));
        let nanos = (share * f64::from(running)).clamp(least, latency);
        Some(Span::from_nanos(nanos.max(1.0) as u64))
    }
}

#[cfg(test)]
mod tests {
    use tidegate_core::Rank;
    use tidegate_core::slots::SlotsConfig;

    use super::*;
    use crate::config::gate_defaults;

    /// A service that works off its requests one after another on `servers` servers, without a gate
    /// before it: the time a request ends and how many were inside when it came.
    struct Service {
        free: Vec<Instant>,
        inside: BinaryHeap<Reverse<Instant>>,
    }

    impl Service {
        fn new(servers: usize) -> Self {
            Self { free: vec![Instant::ZERO; servers], inside: BinaryHeap::new() }
        }

        fn take(&mut self, now: Instant, work: Span) -> (Instant, u64) {
            while self.inside.peek().is_some_and(|Reverse(end)| *end <= now) {
                self.inside.pop();
            }
            let first = self.free.iter_mut().min().expect("there is a server");
            *first = (*first).max(now) + work;
            let end = *first;
            self.inside.push(Reverse(end));
            (end, self.inside.len() as u64)
        }
    }

    /// Share of requests that a model would refuse, of a service with `servers` servers of 10 ms,
    /// `load` times its capacity being sent for 20 s, the first half of which is not counted.
    fn refused(config: &GateConfig, servers: usize, load: f64) -> f64 {
        let mut model = Model::new(config, &Names::default(), Instant::ZERO, 7).expect("valid");
        let (mut pace, mut service) = (Pace::default(), Service::new(servers));
        let mut rng = tidegate_core::rng::Rng::new(5);
        let work = Span::from_millis(10);
        let gap = work.as_nanos() as f64 / servers as f64 / load;
        let (mut now, mut counted, mut refused) = (Instant::ZERO, 0u32, 0u32);
        let mut answers: BinaryHeap<Reverse<(Instant, Span, u64)>> = BinaryHeap::new();
        while now < Instant::ZERO + Span::from_secs(20) {
            now += Span::from_nanos((-(1.0 - rng.unit()).ln() * gap) as u64);
            while answers.peek().is_some_and(|Reverse((end, ..))| *end <= now) {
                let Some(Reverse((end, latency, inside))) = answers.pop() else { break };
                pace.on_answer(end, latency, inside);
            }
            let (end, inside) = service.take(now, work);
            answers.push(Reverse((end, end.since(now), inside)));
            let rank = Rank::new(24, rng.next_u64() as u16);
            let _ = model.arrive(now, &Context { rank, ..Context::default() }, &pace);
            // At arrival, or pushed out later.
            let turned_away = model.verdicts().filter(|(_, e)| matches!(e, Event::Refuse { .. }));
            let turned_away = turned_away.count() as u32;
            if now >= Instant::ZERO + Span::from_secs(10) {
                counted += 1;
                refused += turned_away;
            }
        }
        model.gate.invariants();
        f64::from(refused) / f64::from(counted)
    }

    /// Watching is the first step in production: what it says must be what enforcing would do. Before,
    /// a service that was never held back looked overloaded with few slots, and stayed overloaded
    /// for ever once it was.
    #[test]
    fn a_model_refuses_what_exceeds_the_capacity_and_nothing_else() {
        let config = gate_defaults();
        for servers in [1, 4, 32] {
            let calm = refused(&config, servers, 0.7);
            assert!(calm < 0.01, "{servers} servers at 0.7: {calm}");
            for load in [1.5, 2.0, 4.0] {
                let (share, excess) = (refused(&config, servers, load), 1.0 - 1.0 / load);
                let near = (share - excess).abs() < 0.05;
                assert!(near, "{servers} servers at {load}: {share} where {excess} is due");
            }
        }
    }

    #[test]
    fn before_the_first_answer_nothing_ends() {
        let slots = SlotsConfig::fixed(1);
        let config = GateConfig { slots, queue_limit: 1, ..gate_defaults() };
        let mut model = Model::new(&config, &Names::default(), Instant::ZERO, 7).expect("valid");
        let mut pace = Pace::default();
        let context = Context::default();
        let at = |millis| Instant::ZERO + Span::from_millis(millis);
        assert!(model.arrive(at(0), &context, &pace).is_ok());
        assert!(model.arrive(at(1), &context, &pace).is_ok());
        model.advance(at(50), &pace);
        assert_eq!((model.gate().running(), model.gate().waiting()), (1, 1));
        pace.on_answer(at(51), Span::from_millis(5), 1);
        model.advance(at(51), &pace);
        model.advance(at(60), &pace);
        assert_eq!((model.gate().running(), model.gate().waiting()), (0, 0));
        let emptied = model.emptied(at(60));
        assert_eq!((emptied.running(), emptied.waiting()), (0, 0));
    }

    #[test]
    fn an_emptied_gate_has_nothing_inside_and_keeps_what_it_learned() {
        let mut model =
            Model::new(&gate_defaults(), &Names::default(), Instant::ZERO, 7).expect("valid");
        let mut pace = Pace::default();
        pace.on_answer(Instant::ZERO, Span::from_secs(1), 1);
        for _ in 0..20 {
            let _ = model.arrive(Instant::ZERO, &Context::default(), &pace);
        }
        assert!(model.gate().running() > 0 && model.gate().waiting() > 0);
        let mut emptied = model.emptied(Instant::ZERO);
        assert_eq!((emptied.running(), emptied.waiting()), (0, 0));
        assert_eq!((emptied.slots(), emptied.events().kept()), (model.gate().slots(), true));
        emptied.invariants();
    }
}
