//! Faults of a node.

use tidegate_core::{Instant, Span};

use super::{Node, Process, Work};
use crate::client::Client;
use crate::fault::FaultKind;
use crate::measure::Fact;
use crate::shared::{Event, Shared};

/// What is wrong with a node now. Faults may overlap: the sum of those that are on decides.
#[derive(Debug)]
pub(super) struct Trouble {
    active: Vec<FaultKind>,
    /// How many times longer everything takes than it should.
    slowness: f64,
    /// Nothing goes on before this.
    paused_until: Instant,
    /// How often it has crashed.
    life: u16,
    down: bool,
    /// Cores in service; the others are parked as they become free.
    online: u16,
    parked: Vec<u16>,
    /// Share of responses that lose their feedback.
    mute: f64,
}

impl Trouble {
    pub(super) fn none(cores: u16) -> Self {
        Self {
            active: Vec::new(),
            slowness: 1.0,
            paused_until: Instant::ZERO,
            life: 0,
            down: false,
            online: cores,
            parked: Vec::new(),
            mute: 0.0,
        }
    }

    pub(super) fn life(&self) -> u16 {
        self.life
    }

    pub(super) fn is_down(&self) -> bool {
        self.down
    }

    pub(super) fn is_paused(&self, now: Instant) -> bool {
        now < self.paused_until
    }

    pub(super) fn stretch(&self, cost: Span) -> Span {
        if self.slowness == 1.0 { cost } else { cost.scale(self.slowness) }
    }

    /// In a pause, what a core does ends when the pause ends.
    pub(super) fn defers(&self, shared: &mut Shared, node: u32, core: u16) -> bool {
        let paused = self.is_paused(shared.now());
        if paused {
            let event = Event::Core { node, core, life: self.life };
            shared.engine.at(self.paused_until, event);
        }
        paused
    }

    /// Takes a core out of service if it should be.
    pub(super) fn parks(&mut self, core: u16) -> bool {
        let parks = core >= self.online;
        if parks {
            self.parked.push(core);
        }
        parks
    }

    /// Works out what all active faults together do.
    fn add_up(&mut self, cores: u16) {
        (self.slowness, self.online, self.mute, self.down) = (1.0, cores, 0.0, false);
        for kind in &self.active {
            match *kind {
                FaultKind::Slow(factor) => self.slowness *= factor,
                FaultKind::Crash => self.down = true,
                FaultKind::Cores(left) => {
                    self.online = self.online.min(u16::try_from(left).unwrap_or(u16::MAX));
                }
                FaultKind::LoseFeedback(share) => self.mute = self.mute.max(share),
                FaultKind::Pause
                | FaultKind::ColdCache
                | FaultKind::Partition(_)
                | FaultKind::Loss(_)
                | FaultKind::Jitter(_) => {}
            }
        }
    }

    pub(super) fn loses_feedback(&self, shared: &mut Shared) -> bool {
        shared.network.chance(self.mute)
    }
}

impl Node {
    /// How often it has crashed.
    pub(crate) fn life(&self) -> u16 {
        self.trouble.life
    }

    /// The share of its capacity that is left.
    pub(crate) fn health(&self) -> f64 {
        f64::from(self.trouble.online) / self.cores.len() as f64 / self.trouble.slowness
    }

    /// Its clients, by number.
    pub(crate) fn clients(&self) -> &[Client] {
        &self.clients
    }

    /// Number of the first client it has, or would have.
    pub(crate) fn first_client(&self) -> u32 {
        self.first_client
    }

    /// A fault of this node begins.
    pub(crate) fn suffer(&mut self, shared: &mut Shared, kind: FaultKind, until: Instant) {
        let was_down = self.trouble.down;
        self.trouble.active.push(kind);
        self.trouble.add_up(self.cores.len() as u16);
        if let (FaultKind::ColdCache, Some(cache)) = (kind, &mut self.cache) {
            cache.empty();
        }
        if kind == FaultKind::Pause {
            self.trouble.paused_until = self.trouble.paused_until.max(until);
        }
        if self.trouble.down && !was_down {
            return self.crash(shared);
        }
        let idle = std::mem::take(&mut self.idle);
        self.idle = idle.into_iter().filter(|core| !self.trouble.parks(*core)).collect();
    }

    /// It ends. After a crash, `process` is what starts anew.
    pub(crate) fn recover(&mut self, shared: &mut Shared, kind: FaultKind, process: Process) {
        let was_down = self.trouble.down;
        let active = &mut self.trouble.active;
        if let Some(place) = active.iter().position(|active| *active == kind) {
            active.remove(place);
        }
        self.trouble.add_up(self.cores.len() as u16);
        match (was_down, self.trouble.down) {
            (true, true) => return,
            (true, false) => self.restart(shared, process),
            (false, _) => {
                // Another fault may go on to keep them out of service.
                let parked = std::mem::take(&mut self.trouble.parked);
                self.idle.extend(parked.into_iter().filter(|core| !self.trouble.parks(*core)));
            }
        }
        self.use_idle_core(shared);
    }

    /// Everything inside is lost, and what arrives is lost too.
    fn crash(&mut self, shared: &mut Shared) {
        self.trouble.life += 1;
        for _ in 0..self.inside {
            shared.count_at(self.service, Fact::Abandoned);
        }
        (self.inside, self.paused) = (0, 0);
        for work in &mut self.cores {
            match std::mem::replace(work, Work::Nothing) {
                Work::Receive(id) | Work::Call(id) => shared.lose(id),
                Work::Nothing | Work::Run(_) | Work::Send { .. } => {}
            }
        }
        let now = shared.now();
        for until in &mut self.until {
            self.given = self.given.saturating_sub(until.since(now));
            shared.measure.not_busy(self.service, now, *until);
            *until = (*until).min(now);
        }
        for id in self.packets.drain(..) {
            shared.lose(id);
        }
        for out in self.outgoing.drain(..) {
            if let super::Out::Call(id) = out {
                shared.lose(id);
            }
        }
        self.ready.clear();
        self.outboxes.clear();
        self.idle.clear();
        self.trouble.parked.clear();
        self.alarm.clear();
    }

    fn restart(&mut self, shared: &mut Shared, process: Process) {
        for (old, new) in self.clients.iter().zip(&process.clients) {
            shared.rename_client(old.caller().id(), new.caller().id());
        }
        (self.gate, self.clients) = (process.gate, process.clients);
        self.first_client = self.clients.first().map_or(0, Client::index);
        self.holding = super::held::Holding::new(self.spec.pool, &mut self.gate);
        self.stage_delay = Span::ZERO;
        self.news = false;
        if let Some(cache) = &mut self.cache {
            cache.empty();
        }
        let cores = 0..self.cores.len() as u16;
        self.idle = cores.rev().filter(|core| !self.trouble.parks(*core)).collect();
        self.arm(shared);
    }
}
