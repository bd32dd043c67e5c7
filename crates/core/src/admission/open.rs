//! No control: everything is let in. The baseline of every figure.

use super::{Admission, AdmissionConfig};
use crate::request::{Cx, Request};
use crate::signal::Backlog;
use crate::time::Instant;
use crate::verdict::Verdict;

/// Lets everything in.
#[derive(Clone, Copy, Debug)]
pub struct Open;

impl Admission for Open {
    fn name(&self) -> &'static str {
        "open"
    }

    fn on_arrival(&mut self, _cx: &mut Cx, _backlog: &Backlog, _request: &Request) -> Verdict {
        Verdict::Admit
    }

    fn next_settle(&self) -> Instant {
        Instant::FAR
    }

    fn reconfigure(&mut self, config: &AdmissionConfig) -> bool {
        matches!(config, AdmissionConfig::Open)
    }

    fn clone_box(&self) -> Box<dyn Admission> {
        Box::new(*self)
    }
}
