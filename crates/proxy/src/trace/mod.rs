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
pub(crate) use off::{Span, Traces};
#[cfg(feature = "otel")]
pub(crate) use on::{Span, Traces};
