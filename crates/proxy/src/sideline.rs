//! What is played beside the traffic: the model of the live gate while it is not fully enforced, and
//! a candidate beside it.
//!
//! ```text
//! enforced 100 %   the gate itself holds and refuses; a model is played only for a candidate's sake
//! 0 < N < 100      every request is put to the model; N % of what it refuses is refused, and the rest
//!                  is forwarded at once
//! 0                nothing is refused or held: observing, and the kill switch
//! ```
//!
//! Both policies of a comparison are models that are fed the same arrivals and the same pace of the
//! service, the candidate being a copy of the other under its own configuration: what differs is
//! the policy, not the model. Under the same configuration nothing differs.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::{Map, Value, json};
use tidegate_core::config::ConfigError;
use tidegate_core::event::{Event, Events};
use tidegate_core::gate::GateConfig;
use tidegate_core::limit::Leased;
use tidegate_core::rng::Rng;
use tidegate_core::{
    Context, Criticality, Gate, Instant, Outcome, Rank, Reason, Rejection, Workflow,
};

use tidegate_http::wire::Names;

use crate::config::Percent;
use crate::metrics::{BANDS, REASONS};
use crate::model::{Model, Pace};

/// An event of a gate or of its model, and whether what it says was done.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Told {
    pub(crate) at: Instant,
    pub(crate) event: Event,
    /// False for a refusal that was not enforced.
    pub(crate) enforced: bool,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Sideline {
    percent: AtomicU8,
    /// Whether any model is played: requests pass by in one look if not.
    plays: AtomicBool,
    /// Requests that are with the service now.
    inside: AtomicU64,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// The configuration of the live gate.
    config: GateConfig,
    /// Numbers of the workflows that limits name.
    names: Names,
    pace: Pace,
    live: Option<Model>,
    shadow: Option<Shadow>,
    told: Vec<Told>,
    lost: u64,
    seeds: Rng,
}

impl Sideline {
    pub(crate) fn new(
        config: &GateConfig,
        names: Names,
        percent: Percent,
        now: Instant,
        seed: u64,
    ) -> Self {
        let state = State {
            config: config.clone(),
            names,
            pace: Pace::default(),
            live: None,
            shadow: None,
            told: Vec::new(),
            lost: 0,
            seeds: Rng::new(seed),
        };
        let sideline = Self {
            percent: AtomicU8::new(Percent::ALL.get()),
            plays: AtomicBool::new(false),
            inside: AtomicU64::new(0),
            state: Mutex::new(state),
        };
        sideline.set_percent(now, percent);
        sideline
    }

    // === requests ===

    /// How much is enforced.
    pub(crate) fn percent(&self) -> Percent {
        Percent::of(self.percent.load(Ordering::Relaxed))
    }

    /// Whether requests have to be put to a model.
    pub(crate) fn plays(&self) -> bool {
        self.plays.load(Ordering::Relaxed)
    }

    /// A request arrives: what the model of the live gate says. `enforced` is whether that will be
    /// done.
    pub(crate) fn arrive(
        &self,
        now: Instant,
        context: &Context,
        enforced: bool,
    ) -> Result<(), Rejection> {
        let counts = self.percent() != Percent::ALL;
        let mut state = self.lock();
        let State { pace, live, shadow, told, lost, .. } = &mut *state;
        let Some(live) = live else { return Ok(()) };
        let verdict = live.arrive(now, context, pace);
        if counts {
            let mut verdicts = live.verdicts().peekable();
            while let Some((at, event)) = verdicts.next() {
                // The last is this request's own. The others waited in the model alone.
                let own = verdicts.peek().is_none() && verdict.is_err();
                let queue = u64::from(is_from_queue(&event));
                shadow.iter_mut().for_each(|shadow| shadow.live_refuses += queue);
                note(told, lost, Told { at, event, enforced: own && enforced });
            }
        } else {
            let queue = live.verdicts().filter(|(_, event)| is_from_queue(event)).count() as u64;
            shadow.iter_mut().for_each(|shadow| shadow.live_refuses += queue);
        }
        if let Some(shadow) = shadow {
            shadow.arrive(now, context, pace, verdict.err().map(|rejection| rejection.reason));
        }
        verdict
    }

    /// The live gate itself has decided about a request that the model was asked about too.
    pub(crate) fn compare(&self, model_refuses: bool, gate_refuses: bool) {
        if let Some(shadow) = &mut self.lock().shadow {
            shadow.model_errs += u64::from(model_refuses != gate_refuses);
            shadow.compared += 1;
            shadow.really_refused += u64::from(gate_refuses);
        }
    }

    /// And has refused one from its queue.
    pub(crate) fn refused_from_queue(&self) {
        self.lock().shadow.iter_mut().for_each(|shadow| shadow.really_refused += 1);
    }

    /// A request goes to the service. `alone` is whether no gate holds it, so that nobody else counts
    /// its end.
    pub(crate) fn begin(self: &Arc<Self>, now: Instant, context: &Context, alone: bool) -> Probe {
        let inside = self.inside.fetch_add(1, Ordering::Relaxed) + 1;
        let inside = u32::try_from(inside).unwrap_or(u32::MAX);
        let (sideline, Context { rank, workflow, label, .. }) = (Arc::clone(self), *context);
        Probe { sideline, sent: now, inside, rank, workflow, label, alone, ended: false }
    }

    // === operations ===

    /// Enforces another share from now on.
    pub(crate) fn set_percent(&self, now: Instant, percent: Percent) {
        let mut state = self.lock();
        self.percent.store(percent.get(), Ordering::Relaxed);
        if percent != Percent::ALL {
            state.play(now);
        } else if state.shadow.is_none() {
            state.live = None;
        }
        self.plays.store(state.live.is_some(), Ordering::Relaxed);
    }

    /// The live gate has another configuration.
    pub(crate) fn reconfigure(&self, now: Instant, config: &GateConfig) -> Result<(), ConfigError> {
        let mut state = self.lock();
        let names = state.names.clone();
        if let Some(live) = &mut state.live {
            live.reconfigure(now, config, &names)?;
        }
        state.config = config.clone();
        Ok(())
    }

    /// Puts `candidate` beside the live policy, in place of any other.
    pub(crate) fn shadow(&self, now: Instant, candidate: &GateConfig) -> Result<(), ConfigError> {
        let mut state = self.lock();
        state.play(now);
        let mut model = state.live.clone().expect("it plays since the line before");
        model.reconfigure(now, candidate, &state.names)?;
        state.shadow = Some(Shadow::new(candidate.clone(), model, now));
        self.plays.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Ends the comparison: the candidate, if there was one.
    pub(crate) fn end_shadow(&self) -> Option<GateConfig> {
        let mut state = self.lock();
        let shadow = state.shadow.take();
        if self.percent() == Percent::ALL {
            state.live = None;
        }
        self.plays.store(state.live.is_some(), Ordering::Relaxed);
        shadow.map(|shadow| shadow.config)
    }

    /// The candidate, if there is one.
    pub(crate) fn candidate(&self) -> Option<GateConfig> {
        self.lock().shadow.as_ref().map(|shadow| shadow.config.clone())
    }

    /// Keeps the models' time.
    pub(crate) fn look(&self, now: Instant) {
        if !self.plays() {
            return;
        }
        let mut state = self.lock();
        let State { pace, live, shadow, .. } = &mut *state;
        live.iter_mut().for_each(|live| live.advance(now, pace));
        shadow.iter_mut().for_each(|shadow| shadow.model.advance(now, pace));
    }

    /// The machine is as full as that, 1 being full.
    pub(crate) fn utilize(&self, now: Instant, utilization: f64) {
        let mut state = self.lock();
        let State { live, shadow, .. } = &mut *state;
        let models = live.iter_mut().chain(shadow.iter_mut().map(|shadow| &mut shadow.model));
        models.for_each(|model| model.utilize(now, utilization));
    }

    /// Shows the leased limits of all models, and whether each is of the one that stands for the live gate.
    pub(crate) fn leased(&self, look: &mut dyn FnMut(&mut Leased, bool)) {
        let mut state = self.lock();
        let State { live, shadow, .. } = &mut *state;
        live.iter_mut().flat_map(Model::leased).for_each(|leased| look(leased, true));
        let candidate = shadow.iter_mut().map(|shadow| &mut shadow.model);
        candidate.flat_map(Model::leased).for_each(|leased| look(leased, false));
    }

    /// The model's gate while it stands for the live one.
    pub(crate) fn read<R>(&self, look: impl FnOnce(&Gate) -> R) -> Option<R> {
        let state = self.lock();
        let live = state.live.as_ref().filter(|_| self.percent() != Percent::ALL);
        live.map(|live| look(live.gate()))
    }

    /// The model's gate with what it has learned and nothing inside, to begin enforcing with.
    pub(crate) fn learned(&self, now: Instant) -> Option<Gate> {
        self.lock().live.as_ref().map(|live| live.emptied(now))
    }

    /// What the model decided and how requests ended that no gate held, since the last call, and
    /// how much of it was lost so far.
    pub(crate) fn drain(&self) -> (Vec<Told>, u64) {
        let mut state = self.lock();
        (std::mem::take(&mut state.told), state.lost)
    }

    /// The comparison in numbers.
    pub(crate) fn report(&self, now: Instant) -> Value {
        match &self.lock().shadow {
            None => json!({ "candidate": null }),
            Some(shadow) => shadow.report(now),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Plays the live policy, if nobody does yet.
    fn play(&mut self, now: Instant) {
        if self.live.is_none() {
            let model = Model::new(&self.config, &self.names, now, self.seeds.next_u64());
            self.live = Some(model.expect("the live gate has this configuration"));
        }
    }
}

/// Whether a request was refused that had been let in before.
fn is_from_queue(event: &Event) -> bool {
    matches!(event, Event::Refuse { admitted: true, .. })
}

/// As long as the gate's own log of events, and for the same reason.
fn note(told: &mut Vec<Told>, lost: &mut u64, what: Told) {
    if told.len() < Events::LIMIT { told.push(what) } else { *lost += 1 }
}

/// A request that is with the service while models are played. Dropped without a word, its client
/// has gone.
#[derive(Debug)]
pub(crate) struct Probe {
    sideline: Arc<Sideline>,
    sent: Instant,
    /// How many were with the service when it came, itself included.
    inside: u32,
    rank: Rank,
    workflow: Workflow,
    label: u16,
    alone: bool,
    ended: bool,
}

impl Probe {
    /// It has ended.
    pub(crate) fn end(mut self, now: Instant, outcome: Outcome) {
        self.note(now, outcome);
    }

    fn note(&mut self, now: Instant, outcome: Outcome) {
        self.ended = true;
        self.sideline.inside.fetch_sub(1, Ordering::Relaxed);
        let latency = now.since(self.sent);
        let mut state = self.sideline.lock();
        if outcome == Outcome::Serve {
            state.pace.on_answer(now, latency, self.inside.into());
        }
        if self.alone {
            let Self { rank, workflow, label, .. } = *self;
            let event = Event::Finish { rank, workflow, label, outcome, latency };
            let State { told, lost, .. } = &mut *state;
            note(told, lost, Told { at: now, event, enforced: true });
        }
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        if !self.ended {
            // How long it took says nothing, so no clock is read.
            self.note(self.sent, Outcome::Cancel);
        }
    }
}

/// A candidate and how it compares.
#[derive(Debug)]
struct Shadow {
    config: GateConfig,
    model: Model,
    since: Instant,
    arrivals: [u64; BANDS],
    /// Refused by either, at arrival or from its queue.
    live_refuses: u64,
    candidate_refuses: u64,
    /// Refused by the live policy and let in by the candidate, by band and the live one's reason.
    live_only: [[u64; REASONS]; BANDS],
    /// Refused by the candidate and let in by the live policy, by band and the candidate's reason.
    candidate_only: [[u64; REASONS]; BANDS],
    /// Arrivals where the model of the live policy and the live gate itself decided differently.
    model_errs: u64,
    /// Arrivals that the live gate itself has decided about, and how many of those it has refused, at once or later.
    compared: u64,
    really_refused: u64,
}

impl Shadow {
    fn new(config: GateConfig, model: Model, since: Instant) -> Self {
        let none = [[0; REASONS]; BANDS];
        Self {
            config,
            model,
            since,
            arrivals: [0; BANDS],
            live_refuses: 0,
            candidate_refuses: 0,
            live_only: none,
            candidate_only: none,
            model_errs: 0,
            compared: 0,
            really_refused: 0,
        }
    }

    fn arrive(&mut self, now: Instant, context: &Context, pace: &Pace, live: Option<Reason>) {
        let candidate = self.model.arrive(now, context, pace).err().map(|why| why.reason);
        let queue = self.model.verdicts().filter(|(_, event)| is_from_queue(event));
        self.candidate_refuses += queue.count() as u64;
        let band = context.rank.criticality().index();
        self.arrivals[band] += 1;
        self.live_refuses += u64::from(live.is_some());
        self.candidate_refuses += u64::from(candidate.is_some());
        match (live, candidate) {
            (Some(reason), None) => self.live_only[band][reason as usize] += 1,
            (None, Some(reason)) => self.candidate_only[band][reason as usize] += 1,
            _ => {}
        }
    }

    /// Whether the model of the live policy refused about as much as the live gate did: where it did not, what it says of the candidate
    /// is worth nothing. None while nothing tells.
    fn is_known(&self, arrivals: u64) -> Option<bool> {
        const ENOUGH: u64 = 100;
        /// Of all arrivals: what is believed to be a difference of policies must not be one of the model.
        const NEAR: f64 = 0.05;
        let share = |refused: u64, of: u64| refused as f64 / of as f64;
        let differ =
            || share(self.live_refuses, arrivals) - share(self.really_refused, self.compared);
        (self.compared >= ENOUGH && arrivals > 0).then(|| differ().abs() <= NEAR)
    }

    fn report(&self, now: Instant) -> Value {
        let sum = |table: &[[u64; REASONS]; BANDS]| table.iter().flatten().sum::<u64>();
        let arrivals: u64 = self.arrivals.iter().sum();
        let (live_only, candidate_only) = (sum(&self.live_only), sum(&self.candidate_only));
        let bands: Map<String, Value> = Criticality::ALL
            .iter()
            .map(|band| {
                let at = band.index();
                let counts = json!({
                    "arrivals": self.arrivals[at],
                    "live_only": self.live_only[at].iter().sum::<u64>(),
                    "candidate_only": self.candidate_only[at].iter().sum::<u64>(),
                });
                (band.name().to_owned(), counts)
            })
            .collect();
        json!({
            "candidate": candidate_toml(&self.config),
            "since_ms": now.since(self.since).as_nanos() / 1_000_000,
            "arrivals": arrivals,
            "same": arrivals - live_only - candidate_only,
            "differ": live_only + candidate_only,
            "really_refused": (self.compared > 0).then_some(self.really_refused),
            "known": self.is_known(arrivals),
            "live_refuses": self.live_refuses,
            "candidate_refuses": self.candidate_refuses,
            "live_only": live_only,
            "candidate_only": candidate_only,
            "by_band": bands,
            "by_reason": {
                "live_only": by_reason(&self.live_only),
                "candidate_only": by_reason(&self.candidate_only),
            },
            "model_errs": self.model_errs,
        })
    }
}

/// A candidate as it would stand in a file.
pub(crate) fn candidate_toml(config: &GateConfig) -> String {
    crate::config::Candidate { gate: config.clone() }.to_toml()
}

fn by_reason(table: &[[u64; REASONS]; BANDS]) -> Value {
    let sum = |reason: usize| table.iter().map(|counts| counts[reason]).sum::<u64>();
    Reason::ALL
        .iter()
        .enumerate()
        .map(|(at, reason)| (reason.token().to_owned(), sum(at)))
        .filter(|(_, count)| *count > 0)
        .map(|(token, count)| (token, count.into()))
        .collect::<Map<_, _>>()
        .into()
}

#[cfg(test)]
mod tests {
    use tidegate_core::Span;
    use tidegate_core::slots::SlotsConfig;

    use super::*;
    use crate::config::gate_defaults;

    fn at(micros: u64) -> Instant {
        Instant::ZERO + Span::from_micros(micros)
    }

    /// One server of 1 ms, twice its capacity for four seconds.
    fn play(sideline: &Arc<Sideline>, enforced: bool) -> (u64, u64) {
        let mut rng = Rng::new(3);
        let (mut free, mut refused, mut sent) = (at(0), 0, 0);
        let mut inside: std::collections::VecDeque<(Instant, Probe)> = Default::default();
        for n in 0..8_000u64 {
            let now = at(n * 500);
            while inside.front().is_some_and(|(end, _)| *end <= now) {
                let (end, probe) = inside.pop_front().expect("looked at");
                probe.end(end, Outcome::Serve);
            }
            let rank = Rank::new(if n % 4 == 0 { 5 } else { 40 }, rng.next_u64() as u16);
            let context = Context { rank, ..Context::default() };
            sent += 1;
            let verdict = sideline.arrive(now, &context, enforced);
            refused += u64::from(verdict.is_err());
            if verdict.is_err() && enforced {
                continue;
            }
            free = free.max(now) + Span::from_millis(1);
            inside.push_back((free, sideline.begin(now, &context, true)));
        }
        (sent, refused)
    }

    fn sideline(percent: u8) -> Arc<Sideline> {
        let percent = Percent::of(percent);
        Arc::new(Sideline::new(&gate_defaults(), Names::default(), percent, Instant::ZERO, 9))
    }

    #[test]
    fn a_candidate_like_the_live_policy_never_differs() {
        let sideline = sideline(0);
        sideline.shadow(Instant::ZERO, &gate_defaults()).expect("valid");
        let (sent, refused) = play(&sideline, false);
        assert!(refused > sent / 4, "{refused} of {sent}");
        let report = sideline.report(at(4_000_000));
        assert_eq!((report["arrivals"].as_u64(), report["differ"].as_u64()), (Some(sent), Some(0)));
        assert_eq!(report["same"], report["arrivals"]);
        // Those that are pushed out of the queue later are among them.
        assert_eq!(report["candidate_refuses"], report["live_refuses"]);
        assert!(report["candidate_refuses"].as_u64() >= Some(refused), "{report}");
        assert_eq!(report["since_ms"], 4_000);
        let read = crate::config::Candidate::parse(report["candidate"].as_str().expect("TOML"));
        assert_eq!(read.expect("reads back").gate, gate_defaults());
    }

    #[test]
    fn differences_are_counted_in_both_directions_by_band_and_reason() {
        let sideline = sideline(0);
        let one = SlotsConfig::fixed(1);
        let tight = GateConfig { slots: one, queue_limit: 1, ..gate_defaults() };
        sideline.shadow(Instant::ZERO, &tight).expect("valid");
        let (sent, _) = play(&sideline, false);
        let report = sideline.report(at(0));
        let number = |value: &Value| value.as_u64().expect("a number");
        let (live, candidate) = (number(&report["live_only"]), number(&report["candidate_only"]));
        assert!(candidate > 0, "{report:#}");
        assert_eq!(number(&report["differ"]), live + candidate);
        assert_eq!(number(&report["same"]) + live + candidate, sent);
        let banded = |side: &str| -> u64 {
            let bands = report["by_band"].as_object().expect("bands");
            bands.values().map(|band| number(&band[side])).sum()
        };
        let reasoned = |side: &str| -> u64 {
            report["by_reason"][side].as_object().expect("reasons").values().map(number).sum()
        };
        assert_eq!((banded("live_only"), reasoned("live_only")), (live, live));
        assert_eq!((banded("candidate_only"), reasoned("candidate_only")), (candidate, candidate));
        assert_eq!(banded("arrivals"), sent);
        assert_eq!(sideline.end_shadow(), Some(tight));
        assert_eq!(sideline.report(at(0)), json!({ "candidate": null }));
        assert!(sideline.plays(), "observing goes on");
    }

    /// What the model says is right also when it is obeyed, and the load is what it lets in. What it
    /// would have turned out again after a wait is served.
    #[test]
    fn an_enforced_model_refuses_about_the_excess() {
        let sideline = sideline(50);
        let (sent, refused) = play(&sideline, true);
        let (told, lost) = sideline.drain();
        let refusals = told.iter().filter(|told| matches!(told.event, Event::Refuse { .. }));
        let (enforced, others): (Vec<&Told>, Vec<_>) = refusals.partition(|told| told.enforced);
        assert_eq!((enforced.len() as u64, lost), (refused, 0));
        let share = (enforced.len() + others.len()) as f64 / sent as f64;
        assert!((0.45..0.55).contains(&share), "{share}");
    }

    /// CoDel lets in what it refuses later: told by arrivals alone it refused nothing, while it refused half when live.
    #[test]
    fn what_a_candidate_refuses_from_its_queue_is_told() {
        let codel = "[gate.admission]\npolicy = 'codel'\ntarget = '2ms'\n\
                     [gate.slots]\nslots = 'fixed'\ncount = 1\n";
        let codel = crate::config::Candidate::parse(codel).expect("valid").gate;
        let sideline = sideline(0);
        sideline.shadow(at(0), &codel).expect("valid");
        let (sent, _) = play(&sideline, false);
        let report = sideline.report(at(4_000_000));
        let refused = report["candidate_refuses"].as_u64().expect("a number") as f64 / sent as f64;
        assert!((0.4..0.6).contains(&refused), "{refused} of twice the capacity: {report}");
        assert_eq!(report["known"], Value::Null, "nothing was enforced that could tell");
        for _ in 0..200 {
            sideline.compare(false, false);
        }
        assert_eq!(sideline.report(at(4_000_000))["known"], false, "in truth nothing was refused");
    }

    #[test]
    fn fully_enforced_and_without_a_candidate_nothing_is_played() {
        let sideline = sideline(100);
        assert!(!sideline.plays());
        sideline.set_percent(at(1), Percent::of(10));
        assert!(sideline.plays() && sideline.learned(at(1)).is_some());
        sideline.set_percent(at(2), Percent::ALL);
        assert!(!sideline.plays());
        sideline.shadow(at(3), &gate_defaults()).expect("valid");
        assert!(sideline.plays());
        sideline.end_shadow();
        assert!(!sideline.plays());
    }
}
