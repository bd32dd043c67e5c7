//! Faults of a node.

use tidegate_core::{Instant, Span};

use super::{Node, Process, Work};
use crate::client::Client;
use crate::fault::FaultKind;
use crate::measure::Fact;
use crate::shared::{Event, Shared};

/// What is wrong with a node now.
#[derive(Debug)]
pub(super) struct Trouble {
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

    pub(super) fn loses_feedback(&self, shared: &mut Shared) -> bool {
        shared.network.chance(self.mute)
    }
}

impl Node {
    /// How often it has crashed.
    pub(crate) fn life(&self) -> u16 {
        self.trouble.life
    }

    /// Number of the first client it has, or would have.
    pub(crate) fn first_client(&self) -> u32 {
        self.first_client
    }

    /// A fault of this node begins.
    pub(crate) fn suffer(&mut self, shared: &mut Shared, kind: FaultKind, until: Instant) {
        match kind {
            FaultKind::Slow(factor) => self.trouble.slowness = factor,
            FaultKind::Pause => self.trouble.paused_until = until,
            FaultKind::Crash => self.crash(shared),
            FaultKind::Cores(cores) => {
                self.trouble.online = u16::try_from(cores).unwrap_or(u16::MAX);
                let idle = std::mem::take(&mut self.idle);
                self.idle = idle.into_iter().filter(|core| !self.trouble.parks(*core)).collect();
            }
            FaultKind::LoseFeedback(share) => self.trouble.mute = share,
            FaultKind::Partition(_) | FaultKind::Loss(_) | FaultKind::Jitter(_) => {}
        }
    }

    /// It ends. After a crash, `process` is what starts anew.
    pub(crate) fn recover(&mut self, shared: &mut Shared, kind: FaultKind, process: Process) {
        match kind {
            FaultKind::Slow(_) => self.trouble.slowness = 1.0,
            FaultKind::Pause => {}
            FaultKind::Crash => self.restart(shared, process),
            FaultKind::Cores(_) => {
                self.trouble.online = self.cores.len() as u16;
                self.idle.append(&mut self.trouble.parked);
            }
            FaultKind::LoseFeedback(_) => self.trouble.mute = 0.0,
            FaultKind::Partition(_) | FaultKind::Loss(_) | FaultKind::Jitter(_) => {}
        }
        self.use_idle_core(shared);
    }

    /// Everything inside is lost, and what arrives is lost too.
    fn crash(&mut self, shared: &mut Shared) {
        self.trouble.life += 1;
        self.trouble.down = true;
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
        self.trouble.down = false;
        self.stage_delay = Span::ZERO;
        self.news = false;
        let cores = 0..self.cores.len() as u16;
        self.idle = cores.rev().filter(|core| !self.trouble.parks(*core)).collect();
        self.arm(shared);
    }
}
