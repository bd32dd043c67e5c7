//! First come, first served.

use super::Scheduler;
use crate::list::{Links, List};
use crate::request::{Request, RequestId};
use crate::table;
use crate::time::Instant;

/// A queue in order of arrival. Push, pop and removal take constant time.
#[derive(Clone, Debug, Default)]
pub struct Fifo {
    list: List,
    links: Links,
    /// Who waits at each place that is in the list.
    ids: Vec<RequestId>,
    len: usize,
}

impl Scheduler for Fifo {
    fn name(&self) -> &'static str {
        "fifo"
    }

    fn push(&mut self, _now: Instant, request: &Request) {
        let place = request.id.index();
        *table::at(&mut self.ids, place, || RequestId::NOWHERE) = request.id;
        self.links.push_back(&mut self.list, place);
        self.len += 1;
    }

    fn pop(&mut self, _now: Instant) -> Option<RequestId> {
        let place = self.links.pop_front(&mut self.list)?;
        self.len -= 1;
        Some(self.ids[place])
    }

    fn remove(&mut self, id: RequestId) -> bool {
        let place = id.index();
        let waits = self.ids.get(place) == Some(&id) && self.links.remove(&mut self.list, place);
        self.len -= usize::from(waits);
        waits
    }

    fn len(&self) -> usize {
        self.len
    }

    fn keeps_arrival_order(&self) -> bool {
        true
    }

    fn clone_box(&self) -> Box<dyn Scheduler> {
        Box::new(self.clone())
    }
}
