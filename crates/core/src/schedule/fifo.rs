//! First come, first served.

use super::Scheduler;
use crate::list::{Links, List};
use crate::request::{Request, RequestId};
use crate::time::Instant;

/// A queue in order of arrival. Push, pop and removal take constant time.
#[derive(Clone, Debug, Default)]
pub struct Fifo {
    list: List,
    links: Links,
    /// The id that waits at each place.
    ids: Vec<Option<RequestId>>,
    len: usize,
}

impl Scheduler for Fifo {
    fn name(&self) -> &'static str {
        "fifo"
    }

    fn push(&mut self, _now: Instant, request: &Request) {
        let place = request.id.index();
        if place >= self.ids.len() {
            self.ids.resize(place + 1, None);
        }
        self.ids[place] = Some(request.id);
        self.links.push_back(&mut self.list, place);
        self.len += 1;
    }

    fn pop(&mut self, _now: Instant) -> Option<RequestId> {
        let place = self.links.pop_front(&mut self.list)?;
        self.len -= 1;
        self.ids[place].take()
    }

    fn remove(&mut self, id: RequestId) -> bool {
        let place = id.index();
        if self.ids.get(place).copied().flatten() != Some(id) {
            return false;
        }
        self.links.remove(&mut self.list, place);
        self.ids[place] = None;
        self.len -= 1;
        true
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
