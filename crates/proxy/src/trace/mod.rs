//! A span for each request that is traced, sent to a collector of OpenTelemetry.
//!
//! Whether a request is traced is decided by whoever began its trace: `traceparent` (W3C Trace Context)
//! says so. Of requests without one a share is chosen, and a trace begins here. A traced request goes on
//! with a `traceparent` that names our span; all others pass as they came, so that the service may decide
//! for itself.
//!
//! Without the feature `otel` all of this is empty, and the compiler leaves nothing of it.

#[cfg(feature = "otel")]
mod collector;
#[cfg(not(feature = "otel"))]
mod off;
#[cfg(feature = "otel")]
mod on;

#[cfg(not(feature = "otel"))]
use off::Span as Traced;
#[cfg(not(feature = "otel"))]
pub(crate) use off::Traces;
#[cfg(feature = "otel")]
use on::Span as Traced;
#[cfg(feature = "otel")]
pub(crate) use on::Traces;

use http::{Request, StatusCode};
use tidegate_core::{Context, Instant, Rejection};

use crate::config::Address;
use crate::journal::Line;
use crate::worker::Settings;

/// What is told of a request to its end: its span, and its line in a log.
#[derive(Debug)]
pub(crate) struct Span {
    traced: Traced,
    line: Option<Box<Line>>,
}

impl Span {
    /// Of a request of which nothing is told.
    pub(crate) const NONE: Self = Self { traced: Traced::NONE, line: None };

    /// What will be told of this request. The next hop is told of its span.
    pub(crate) fn begin<B>(
        settings: &Settings,
        now: Instant,
        request: &mut Request<B>,
        context: &Context,
    ) -> Self {
        let traced = settings.traces.begin(request, context);
        Self { traced, line: settings.journals.begin(now, request, context) }
    }

    /// Of a request that is made for many, each of which has a line of its own.
    pub(crate) fn of_many<B>(
        settings: &Settings,
        request: &mut Request<B>,
        context: &Context,
    ) -> Self {
        Self { traced: settings.traces.begin(request, context), line: None }
    }

    /// The gate was not asked.
    pub(crate) fn passed(&mut self) {
        self.traced.passed();
        self.line.iter_mut().for_each(|line| line.passed());
    }

    /// It has its slot, now.
    pub(crate) fn admitted(&mut self) {
        self.traced.admitted();
        self.line.iter_mut().for_each(|line| line.admitted());
    }

    /// It was turned away.
    pub(crate) fn refused(&mut self, rejection: &Rejection) {
        self.traced.refused(rejection);
        self.line.iter_mut().for_each(|line| line.refused(rejection));
    }

    /// An upstream has answered.
    pub(crate) fn answered(&mut self, upstream: &Address, status: StatusCode) {
        self.traced.answered(upstream, status);
        self.line.iter_mut().for_each(|line| line.answered(status));
    }

    /// It was refused, or not answered by an upstream, and this is what the client gets.
    pub(crate) fn failed(&mut self, status: StatusCode) {
        self.traced.failed(status);
        self.line.iter_mut().for_each(|line| line.failed(status));
    }
}
