//! A build without traces.

use http::{Request, StatusCode};
use tidegate_core::{Context, Rejection};

use crate::config::{Address, TracesConfig};
use crate::log::Log;

/// No traces.
#[derive(Clone, Debug)]
pub(crate) struct Traces;

impl Traces {
    /// An error if traces are asked for.
    pub(crate) fn new(config: &TracesConfig, _: Log) -> Result<Self, String> {
        match config.collector {
            None => Ok(Self),
            Some(_) => Err("proxy.traces.collector: this build makes no traces, build with \
                            --features otel"
                .to_owned()),
        }
    }

    pub(crate) fn begin<B>(&self, _: &mut Request<B>, _: &Context) -> Span {
        Span
    }

    pub(crate) fn finish(&self) {}
}

/// No span.
#[derive(Debug)]
pub(crate) struct Span;

impl Span {
    pub(crate) const NONE: Self = Self;

    pub(crate) fn passed(&mut self) {}
    pub(crate) fn admitted(&mut self) {}
    pub(crate) fn refused(&mut self, _: &Rejection) {}
    pub(crate) fn answered(&mut self, _: &Address, _: StatusCode) {}
    pub(crate) fn failed(&mut self, _: StatusCode) {}
}
