//! No throttling: everything is sent.

use super::{Throttle, ThrottleConfig};
use crate::context::Context;
use crate::request::Cx;
use crate::verdict::Passage;

/// Sends everything.
#[derive(Clone, Copy, Debug)]
pub struct Open;

impl Throttle for Open {
    fn name(&self) -> &'static str {
        "open"
    }

    fn on_submit(&mut self, _cx: &mut Cx, _context: &Context) -> Passage {
        Passage::Send
    }

    fn reconfigure(&mut self, config: &ThrottleConfig) -> bool {
        matches!(config, ThrottleConfig::Open)
    }

    fn clone_box(&self) -> Box<dyn Throttle> {
        Box::new(*self)
    }
}
