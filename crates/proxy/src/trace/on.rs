//! A build with traces: [`Traces`] chooses, [`Span`] collects what happens to a request.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use http::{Request, StatusCode};
use opentelemetry::propagation::TextMapPropagator;
use opentelemetry::trace::{SpanContext, SpanId, SpanKind, Status, TraceContextExt, TraceFlags};
use opentelemetry::{Context as Carried, InstrumentationScope, KeyValue};
use opentelemetry_http::{HeaderExtractor, HeaderInjector};
use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{
    BatchSpanProcessor, IdGenerator, RandomIdGenerator, Sampler, SamplingDecision, ShouldSample,
    SpanData, SpanProcessor,
};
use tidegate_core::{Context, Rejection};

use super::collector::Collector;
use crate::config::{Address, TracesConfig};
use crate::log::Log;

const TRACEPARENT: &str = "traceparent";
/// Longest time to send what is left when the process ends.
const LAST_SPANS: Duration = Duration::from_secs(2);

/// Chooses what is traced. Clones send to the same collector.
#[derive(Clone, Debug)]
pub(crate) struct Traces {
    /// None if nobody collects.
    inner: Option<Arc<Inner>>,
}

#[derive(Debug)]
struct Inner {
    sampler: Sampler,
    scope: InstrumentationScope,
    /// Collects spans and sends them, in a thread of its own. It holds 2,048; what comes while it is full
    /// is lost.
    processor: BatchSpanProcessor,
}

impl Traces {
    pub(crate) fn new(config: &TracesConfig, log: Log) -> Result<Self, String> {
        let Some(address) = &config.collector else { return Ok(Self { inner: None }) };
        let wrong = |error: &dyn std::fmt::Display| format!("proxy.traces: {error}");
        let exporter = SpanExporter::builder()
            .with_http()
            .with_http_client(Collector::new(log).map_err(|error| wrong(&error))?)
            .with_endpoint(format!("{address}/v1/traces"))
            .with_protocol(Protocol::HttpJson)
            .build()
            .map_err(|error| wrong(&error))?;
        let mut processor = BatchSpanProcessor::builder(exporter).build();
        let resource = Resource::builder().with_service_name(config.service.clone()).build();
        processor.set_resource(&resource);
        let root = Sampler::TraceIdRatioBased(config.sample);
        let scope =
            InstrumentationScope::builder("tidegate").with_version(env!("CARGO_PKG_VERSION"));
        let sampler = Sampler::ParentBased(Box::new(root));
        let inner = Inner { sampler, scope: scope.build(), processor };
        Ok(Self { inner: Some(Arc::new(inner)) })
    }

    /// A span, if this request is traced. The next hop is told of it.
    pub(crate) fn begin<B>(&self, request: &mut Request<B>, context: &Context) -> Span {
        let Some(inner) = &self.inner else { return Span(None) };
        let propagator = TraceContextPropagator::new();
        let carried = match request.headers().contains_key(TRACEPARENT) {
            true => propagator
                .extract_with_context(&Carried::new(), &HeaderExtractor(request.headers())),
            false => Carried::new(),
        };
        let span = carried.span();
        let parent = Some(span.span_context()).filter(|parent| parent.is_valid());
        let ids = RandomIdGenerator::default();
        let trace = parent.map_or_else(|| ids.new_trace_id(), SpanContext::trace_id);
        let decided =
            inner.sampler.should_sample(Some(&carried), trace, "", &SpanKind::Server, &[], &[]);
        if decided.decision != SamplingDecision::RecordAndSample {
            return Span(None);
        }
        let own = SpanContext::new(
            trace,
            ids.new_span_id(),
            TraceFlags::SAMPLED,
            false,
            decided.trace_state,
        );
        let told = Carried::new().with_remote_span_context(own.clone());
        propagator.inject_context(&told, &mut HeaderInjector(request.headers_mut()));
        let now = SystemTime::now();
        let data = SpanData {
            span_context: own,
            parent_span_id: parent.map_or(SpanId::INVALID, SpanContext::span_id),
            parent_span_is_remote: parent.is_some(),
            span_kind: SpanKind::Server,
            name: request.method().to_string().into(),
            start_time: now,
            end_time: now,
            attributes: attributes(request, context),
            dropped_attributes_count: 0,
            events: Default::default(),
            links: Default::default(),
            status: Status::Unset,
            instrumentation_scope: inner.scope.clone(),
        };
        Span(Some(Box::new(Open { data, begun: Instant::now(), inner: Arc::clone(inner) })))
    }

    /// Sends what is left, and no more.
    pub(crate) fn finish(&self) {
        if let Some(inner) = &self.inner {
            // That it did not succeed was told by the way to the collector.
            let _ = inner.processor.shutdown_with_timeout(LAST_SPANS);
        }
    }
}

/// What is known before the gate is asked. Nothing that says who the user is, beyond the rank.
fn attributes<B>(request: &Request<B>, context: &Context) -> Vec<KeyValue> {
    let rank = context.rank;
    vec![
        KeyValue::new("http.request.method", request.method().to_string()),
        KeyValue::new("url.path", request.uri().path().to_owned()),
        KeyValue::new("tidegate.rank.business", i64::from(rank.business())),
        KeyValue::new("tidegate.rank.user", i64::from(rank.user())),
    ]
}

/// The span of a request, sent when it is dropped; none if the request is not traced.
#[derive(Debug)]
pub(crate) struct Span(Option<Box<Open>>);

#[derive(Debug)]
struct Open {
    data: SpanData,
    begun: Instant,
    inner: Arc<Inner>,
}

impl Drop for Span {
    fn drop(&mut self) {
        if let Some(open) = self.0.take() {
            let Open { mut data, begun, inner } = *open;
            data.end_time = data.start_time + begun.elapsed();
            inner.processor.on_end(data);
        }
    }
}

impl Span {
    /// Of a request that is not traced.
    pub(crate) const NONE: Self = Self(None);

    /// The gate was not asked.
    pub(crate) fn passed(&mut self) {
        self.note(|open| open.add("tidegate.verdict", "pass"));
    }

    /// It has its slot, now.
    pub(crate) fn admitted(&mut self) {
        self.note(|open| {
            open.add("tidegate.verdict", "admit");
            open.add("tidegate.sojourn_ms", open.begun.elapsed().as_secs_f64() * 1e3);
        });
    }

    /// It was turned away.
    pub(crate) fn refused(&mut self, rejection: &Rejection) {
        self.note(|open| {
            open.add("tidegate.verdict", "refuse");
            open.add("tidegate.reason", rejection.reason.token());
            open.add("tidegate.sojourn_ms", open.begun.elapsed().as_secs_f64() * 1e3);
            open.data.status = Status::error(rejection.to_string());
        });
    }

    /// An upstream has answered.
    pub(crate) fn answered(&mut self, upstream: &Address, status: StatusCode) {
        self.note(|open| {
            open.add("tidegate.upstream", upstream.to_string());
            open.ended(status);
        });
    }

    /// It was refused, or not answered by an upstream, and this is what the client gets.
    pub(crate) fn failed(&mut self, status: StatusCode) {
        self.note(|open| open.ended(status));
    }

    fn note(&mut self, what: impl FnOnce(&mut Open)) {
        if let Some(open) = &mut self.0 {
            what(open);
        }
    }
}

impl Open {
    fn add(&mut self, name: &'static str, value: impl Into<opentelemetry::Value>) {
        self.data.attributes.push(KeyValue::new(name, value));
    }

    fn ended(&mut self, status: StatusCode) {
        self.add("http.response.status_code", i64::from(status.as_u16()));
        // Why it was refused is known better.
        if status.is_server_error() && self.data.status == Status::Unset {
            self.data.status = Status::error("");
        }
    }
}
