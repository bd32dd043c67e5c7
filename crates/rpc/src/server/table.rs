//! What the gate's ids stand for: the requests that wait and run, by their places.

use std::sync::Arc;

use bytes::Bytes;
use tidegate_core::{Context, Instant, RequestId};
use tokio::task::AbortHandle;

use super::conn::Conn;

/// The requests in a gate. The gate gives a place away again only after the one who had it has ended.
#[derive(Default)]
pub(super) struct Table {
    entries: Vec<Entry>,
}

pub(super) enum Entry {
    Free,
    Waiting(Waiting),
    Running(Running),
}

/// A request in the gate.
pub(super) struct Waiting {
    pub(super) conn: Arc<Conn>,
    pub(super) call: u64,
    pub(super) method: u32,
    pub(super) context: Context,
    pub(super) payload: Bytes,
    pub(super) arrived: Instant,
}

/// A request that runs, and whom to answer. Whoever takes it out of the table ends it.
pub(super) struct Running {
    pub(super) id: RequestId,
    pub(super) conn: Arc<Conn>,
    pub(super) call: u64,
    pub(super) context: Context,
    /// As a task it can be told to stop.
    pub(super) task: Option<AbortHandle>,
    /// Whether it is to be stopped as soon as it is a task.
    pub(super) unwanted: bool,
}

impl Table {
    /// A request waits in the gate.
    pub(super) fn wait(&mut self, id: RequestId, request: Waiting) {
        if self.entries.len() <= id.index() {
            self.entries.resize_with(id.index() + 1, || Entry::Free);
        }
        self.entries[id.index()] = Entry::Waiting(request);
    }

    /// A request that waited runs.
    pub(super) fn run(&mut self, running: Running) {
        let place = running.id.index();
        self.entries[place] = Entry::Running(running);
    }

    /// The request that waits as `id`, if it does.
    pub(super) fn waiting(&self, id: RequestId) -> Option<&Waiting> {
        match self.entries.get(id.index())? {
            Entry::Waiting(waiting) => Some(waiting),
            _ => None,
        }
    }

    /// How many places there are.
    pub(super) fn places(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn at(&mut self, place: usize) -> &mut Entry {
        &mut self.entries[place]
    }

    /// The request that runs as `id`, if it has not ended.
    pub(super) fn running(&mut self, id: RequestId) -> Option<&mut Running> {
        match self.entries.get_mut(id.index())? {
            Entry::Running(running) if running.id == id => Some(running),
            _ => None,
        }
    }

    pub(super) fn take_running(&mut self, id: RequestId) -> Option<Running> {
        self.running(id)?;
        match std::mem::replace(&mut self.entries[id.index()], Entry::Free) {
            Entry::Running(running) => Some(running),
            _ => None,
        }
    }

    pub(super) fn take_waiting(&mut self, id: RequestId) -> Waiting {
        let entry = std::mem::replace(&mut self.entries[id.index()], Entry::Free);
        let Entry::Waiting(waiting) = entry else {
            unreachable!("what the gate has not started waits");
        };
        waiting
    }
}
