//! A plain service behind a gate: some workers, and a queue of its own that nobody else sees.
//!
//! Most services are this: a thread pool, an event loop, a process with one core. What they are given
//! they queue, first come first served, and they go on with it whether or not somebody still waits
//! for the answer. Here such a service is driven by the very [`Gate`] that a sidecar puts before it, with
//! nothing between the two that costs time, so that what is lost is lost by the gate's decisions.
//!
//! Load is open: requests come at random, however late the answers are. Capacity is the time there was, in requests
//! of the mean work of those that were done. [`possible()`] is what could be had by who can see the queue: a queue of
//! the best length, with those dropped at their start that have waited for the best time.

mod possible;
mod rows;
mod weather;

use std::collections::VecDeque;

use tidegate_core::gate::{Action, GateConfig};
use tidegate_core::rng::Rng;
use tidegate_core::{Context, Cost, Gate, Instant, Outcome, Rank, RequestId, Span};

use crate::dist::Service;
use crate::engine::Engine;
use crate::random::{exponential, stream, stream_seed};

pub use possible::possible;
pub use rows::{Row, rows};
pub use weather::{Forecast, Neighbour, Stalls, Weather};

/// A plain service and its callers.
#[derive(Clone, Debug)]
pub struct Plain {
    /// Requests that it works on at once.
    pub workers: u32,
    /// How long it works on one.
    pub service: Service,
    /// What is done for a request before and after that, elsewhere, by as many workers with queues of their own: the
    /// services that this one calls, as far as the gate can tell.
    pub around: Option<[Service; 2]>,
    /// Answers later than this are worth nothing.
    pub slo: Span,
    /// Offered load, in capacities.
    pub load: f64,
    /// Load before what is measured begins, for the time that comes before.
    pub before: f64,
    /// When callers leave, if they do.
    pub patience: Option<Span>,
    /// Whether that is told with the request, as a deadline.
    pub told: bool,
    /// Whether the service goes on with what was abandoned.
    pub goes_on: bool,
    /// What keeps its workers from working.
    pub weather: Weather,
    /// Time before anything is measured.
    pub warm_up: Span,
    /// Answers that are measured.
    pub answers: u32,
}

impl Plain {
    /// What a request takes where nothing waits, on the mean.
    pub fn takes(&self) -> Span {
        let around = self.around.iter().flatten().map(|service| service.mean);
        around.fold(self.service.mean, |sum, mean| sum + mean)
    }
}

/// What came of it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Seen {
    /// Answers in time, as a share of what the service could do.
    pub good: f64,
    /// Answers in time, as a share of what was asked for.
    pub served: f64,
    /// 99th percentile of what was answered while its caller was there, in objectives.
    pub p99: f64,
    /// Share of requests that were refused.
    pub refused: f64,
    /// Mean number of slots.
    pub slots: f64,
    /// Most work that was ever inside the service, in slots of that moment.
    pub most_inside: f64,
    /// The objective at the end.
    pub objective: Span,
    /// Whether the gate takes the service to end what was abandoned, at the end.
    pub stops: bool,
    /// Answers in time in each second, from the first on.
    pub seconds: Vec<u32>,
}

#[derive(Clone, Copy, Debug)]
enum Event {
    Arrive,
    Done { station: usize, worker: u32, number: u64 },
    Leave { place: usize, number: u64 },
    Wake,
}

/// A request that the gate has let in, by the place of its id.
#[derive(Clone, Copy, Debug)]
struct Job {
    id: RequestId,
    number: u64,
    arrived: Instant,
    /// At each station.
    work: [Span; STATIONS],
    began: Instant,
    started: bool,
    gone: bool,
}

/// Where work is done, the service in the middle.
const STATIONS: usize = 3;
const SERVICE: usize = 1;

#[derive(Debug)]
struct Run<'a> {
    plain: &'a Plain,
    gate: Gate,
    engine: Engine<Event>,
    arrivals: Rng,
    works: Rng,
    ranks: Rng,
    weather: Forecast,
    jobs: Vec<Option<Job>>,
    /// Each station's own queue, and what its workers work on.
    queues: [VecDeque<Job>; STATIONS],
    workers: [Vec<Option<Job>>; STATIONS],
    number: u64,
    /// The next wake-up that was planned.
    wakes: Option<Instant>,
    since: Option<Instant>,
    tally: Tally,
}

/// What is counted from `since` on.
#[derive(Debug, Default)]
struct Tally {
    arrived: u64,
    refused: u64,
    good: u64,
    /// What the service has done, and how much work that was.
    done: u64,
    work: f64,
    latencies: Vec<f32>,
    slots: f64,
    looks: u64,
    most_inside: f64,
    seconds: Vec<u32>,
}

/// Drives a gate of this configuration before `plain`.
pub fn run(plain: &Plain, config: &GateConfig, seed: u64) -> Seen {
    let gate = Gate::new(config, Instant::ZERO, stream_seed(seed, "gate")).expect("valid");
    let mut run = Run {
        plain,
        gate,
        engine: Engine::new(),
        arrivals: stream(seed, "arrivals"),
        works: stream(seed, "works"),
        ranks: stream(seed, "ranks"),
        weather: plain.weather.forecast(stream(seed, "weather")),
        jobs: Vec::new(),
        queues: Default::default(),
        workers: std::array::from_fn(|_| vec![None; plain.workers as usize]),
        number: 0,
        wakes: None,
        since: None,
        tally: Tally::default(),
    };
    run.engine.at(Instant::ZERO, Event::Arrive);
    // Where nothing is answered any more that ends, too.
    let end = Instant::ZERO
        + plain.warm_up
        + plain.service.mean.scale(f64::from(4 * plain.answers) / f64::from(plain.workers));
    while run.tally.latencies.len() < plain.answers as usize
        && let Some(event) = run.engine.next_before(end)
    {
        run.on_event(event);
    }
    run.seen()
}

impl Run<'_> {
    fn on_event(&mut self, event: Event) {
        let now = self.engine.now();
        if self.since.is_none() && now.since(Instant::ZERO) >= self.plain.warm_up {
            self.since = Some(now);
        }
        match event {
            Event::Arrive => self.arrive(now),
            Event::Done { station, worker, number } => self.done(now, station, worker, number),
            Event::Leave { place, number } => self.leave(now, place, number),
            Event::Wake => {}
        }
        self.gate.dispatch(now);
        while let Some(action) = self.gate.poll() {
            match action {
                Action::Start { id, .. } => self.start(now, id),
                Action::Refuse { id, .. } => {
                    self.jobs[id.index()] = None;
                    self.refused();
                }
                Action::Notify { .. } => {}
            }
        }
        if let Some(wake) = self.gate.next_wakeup() {
            let wake = wake.max(now + Span::from_nanos(1));
            if self.wakes.is_none_or(|planned| wake < planned || planned <= now) {
                self.wakes = Some(wake);
                self.engine.at(wake, Event::Wake);
            }
        }
    }

    fn rate(&self) -> f64 {
        let load = if self.since.is_some() { self.plain.load } else { self.plain.before };
        load * f64::from(self.plain.workers) / self.plain.service.mean.as_nanos_f64()
    }

    fn arrive(&mut self, now: Instant) {
        let gap = exponential(&mut self.arrivals) / self.rate();
        self.engine.after(Span::from_nanos_f64(gap), Event::Arrive);
        let service = self.plain.service.sample(&mut self.works, 1.0);
        let mut around = |at: usize| match &self.plain.around {
            Some(around) => around[at].sample(&mut self.works, 1.0),
            None => Span::ZERO,
        };
        let work = [around(0), service, around(1)];
        let user = 1 + self.ranks.below(u64::from(u16::MAX)) as u16;
        if self.since.is_some() {
            self.tally.arrived += 1;
            self.tally.slots += f64::from(self.gate.slots());
            self.tally.looks += 1;
        }
        let leaves = self.plain.patience.map(|patience| now + patience);
        let deadline = leaves.filter(|_| self.plain.told).unwrap_or(Instant::FAR);
        let context = Context { rank: Rank::new(24, user), deadline, ..Context::default() };
        match self.gate.arrive(now, &context) {
            Err(_) => self.refused(),
            Ok(id) => {
                self.number += 1;
                let number = self.number;
                let job =
                    Job { id, number, arrived: now, work, began: now, started: false, gone: false };
                if self.jobs.len() <= id.index() {
                    self.jobs.resize(id.index() + 1, None);
                }
                self.jobs[id.index()] = Some(job);
                if let Some(at) = leaves {
                    self.engine.at(at, Event::Leave { place: id.index(), number });
                }
            }
        }
    }

    fn refused(&mut self) {
        self.tally.refused += u64::from(self.since.is_some());
    }

    /// The gate has given it a slot: it joins the service's own queue.
    fn start(&mut self, now: Instant, id: RequestId) {
        let Some(job) = self.jobs[id.index()].as_mut() else { return };
        (job.started, job.began) = (true, now);
        let job = *job;
        self.enter(now, 0, job);
        let inside = self.queues.iter().map(VecDeque::len).sum::<usize>()
            + self.workers.iter().flatten().flatten().count();
        let ratio = inside as f64 / f64::from(self.gate.slots());
        self.tally.most_inside = self.tally.most_inside.max(ratio);
    }

    /// A job comes to a station that has something to do for it.
    fn enter(&mut self, now: Instant, station: usize, job: Job) {
        let has_work = |at: &usize| self.plain.around.is_some() || *at == SERVICE;
        match (station..STATIONS).find(has_work) {
            Some(station) => {
                self.queues[station].push_back(job);
                self.work(now, station);
            }
            None => self.leave_service(now, job),
        }
    }

    /// Whoever is idle takes the next of the station's queue.
    fn work(&mut self, now: Instant, station: usize) {
        while let Some(idle) = self.workers[station].iter().position(Option::is_none) {
            let Some(job) = self.queues[station].pop_front() else { return };
            let work = job.work[station];
            let ends = if station == SERVICE { self.weather.ends(now, work) } else { now + work };
            self.workers[station][idle] = Some(job);
            let done = Event::Done { station, worker: idle as u32, number: job.number };
            self.engine.at(ends, done);
        }
    }

    fn done(&mut self, now: Instant, station: usize, worker: u32, number: u64) {
        let working = &mut self.workers[station][worker as usize];
        let Some(job) = working.take_if(|working| working.number == number) else { return };
        if station == SERVICE && self.since.is_some() {
            self.tally.done += 1;
            self.tally.work += job.work[SERVICE].as_nanos_f64();
        }
        self.enter(now, station + 1, job);
        self.work(now, station);
    }

    fn leave_service(&mut self, now: Instant, job: Job) {
        // It may have left meanwhile, and its place may be another's.
        let known = self.jobs[job.id.index()].filter(|known| known.number == job.number);
        let Some(known) = known else { return };
        self.jobs[job.id.index()] = None;
        // Like a sidecar, the gate is told how long it took, not how much of that was work.
        let cost = Cost::from(now.since(job.began));
        self.gate.finish(now, job.id, Outcome::Serve, cost);
        if !known.gone {
            self.answered(now, job.arrived);
        }
    }

    fn answered(&mut self, now: Instant, arrived: Instant) {
        if self.since.is_none() {
            return;
        }
        let latency = now.since(arrived);
        let tally = &mut self.tally;
        tally.latencies.push((latency.as_nanos_f64() / self.plain.slo.as_nanos_f64()) as f32);
        if latency <= self.plain.slo {
            tally.good += 1;
            let second = now.since(Instant::ZERO).as_secs_f64() as usize;
            if tally.seconds.len() <= second {
                tally.seconds.resize(second + 1, 0);
            }
            tally.seconds[second] += 1;
        }
    }

    fn leave(&mut self, now: Instant, place: usize, number: u64) {
        let Some(job) = self.jobs[place].as_mut().filter(|job| job.number == number && !job.gone)
        else {
            return;
        };
        let started = job.started;
        if started && !self.gate.leave_or_end(now, job.id) {
            job.gone = true;
            return;
        }
        if !started {
            self.gate.cancel(now, job.id);
        } else if !self.plain.goes_on {
            // The service is told, ends it, and has its worker back.
            for station in 0..STATIONS {
                self.queues[station].retain(|queued| queued.number != number);
                for worker in &mut self.workers[station] {
                    worker.take_if(|working| working.number == number);
                }
                self.work(now, station);
            }
        }
        self.jobs[place] = None;
    }

    fn seen(mut self) -> Seen {
        let now = self.engine.now();
        let since = self.since.unwrap_or(now);
        let tally = &mut self.tally;
        tally.latencies.sort_by(f32::total_cmp);
        let at = (tally.latencies.len() as f64 * 0.99) as usize;
        let mean = tally.work / (tally.done as f64).max(1.0);
        let able = self.weather.worked(since, now) * f64::from(self.plain.workers) / mean;
        Seen {
            good: tally.good as f64 / able,
            served: tally.good as f64 / (tally.arrived as f64).max(1.0),
            p99: tally.latencies.get(at).copied().unwrap_or(f32::INFINITY).into(),
            refused: tally.refused as f64 / (tally.arrived as f64).max(1.0),
            slots: tally.slots / (tally.looks as f64).max(1.0),
            most_inside: tally.most_inside,
            objective: self.gate.objective().map(|(objective, _)| objective).unwrap_or_default(),
            stops: self.gate.when_left().stops,
            seconds: std::mem::take(&mut tally.seconds),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dist::Dist;

    /// Every caller leaves after four service times and says so to nobody.
    fn impatient(workers: u32, goes_on: bool, seed: u64) -> Seen {
        let plain = Plain {
            workers,
            service: Service { dist: Dist::Exponential, mean: Span::from_millis(5) },
            around: None,
            slo: Span::from_millis(80),
            load: 2.0,
            before: 2.0,
            patience: Some(Span::from_millis(20)),
            told: false,
            goes_on,
            weather: Weather::default(),
            warm_up: Span::from_secs(600),
            answers: 2_000,
        };
        let row = Row { name: "impatient", plain, learned: false };
        run(&row.plain, &row.defaults(), seed)
    }

    /// Within ten minutes, and if it is taken back once in a while it is found again.
    #[test]
    fn learns_that_a_service_ends_what_was_abandoned() {
        for workers in [1, 4] {
            let stops = |seed: &u64| impatient(workers, false, *seed).stops;
            assert!((0..5).filter(stops).count() >= 3, "{workers} workers");
        }
    }

    /// Not once in an hour and a half altogether.
    #[test]
    fn never_believes_that_a_service_stops_which_goes_on() {
        for workers in [1, 4] {
            assert!((0..5).all(|seed| !impatient(workers, true, seed).stops), "{workers} workers");
        }
    }
}
