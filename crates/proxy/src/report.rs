//! The numbers as text: Prometheus for machines that collect, JSON for whoever looks.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;

use serde_json::{Map, Value, json};
use tidegate_control::link::Health;
use tidegate_core::admission::Issued;
use tidegate_core::objective::Because;
use tidegate_core::{CallerId, Criticality, Cursor, Gate, Instant, Reason, Span, Workflow};
use tidegate_http::wire::Names;

use crate::config::{Percent, WhenLeft};
use crate::dashboard::detail::Detail;
use crate::health::Peer;
use crate::leases::{self, Lease};
use crate::machine::Sample;
use crate::metrics::{Counters, Histogram, Metrics, OUTCOMES, REASONS};
use crate::outlets::Report;
use crate::process;

/// One moment of a sidecar.
#[derive(Debug)]
pub(crate) struct Snapshot<'a> {
    pub(crate) metrics: Metrics,
    pub(crate) detail: Detail,
    pub(crate) names: &'a Names,
    /// How long upstreams take to answer, the slowest thread's view, by address.
    pub(crate) latencies: BTreeMap<String, Span>,
    /// For how long the process has served.
    pub(crate) uptime: Span,
    pub(crate) counters: &'a Counters,
    pub(crate) level: Level,
    /// Who asks most of which limit.
    pub(crate) heavy: Value,
    /// Parts of agreements over many processes, and the way to their daemon.
    pub(crate) leases: Vec<Lease>,
    pub(crate) link: Health,
    pub(crate) enforce: Percent,
    pub(crate) draining: bool,
    pub(crate) when_left: WhenLeft,
    pub(crate) peers: Vec<Arc<Peer>>,
    /// What the guarded service sends out, where that goes by us.
    pub(crate) egress: Vec<Report>,
    /// Requests that its calls can be matched to.
    pub(crate) inside: usize,
    /// When the certificate for clients is no longer good, in seconds since 1970; none without one.
    pub(crate) certificate_until: Option<i64>,
    pub(crate) sample: Sample,
    /// For how long there has been an overload; none if there is none.
    pub(crate) overload: Option<Span>,
    /// Lines of the access log, and of the record, that could not be written.
    pub(crate) lines_lost: u64,
    pub(crate) now: Instant,
}

/// Most callers that are told of: those with the largest windows.
const MOST_CALLERS: usize = 256;

/// How full the gate is.
#[derive(Clone, Debug)]
pub(crate) struct Level {
    pub(crate) slots: u32,
    pub(crate) running: u32,
    /// Of those, the ones whose clients have left.
    pub(crate) abandoned: usize,
    /// What was found out of what the service does then.
    pub(crate) found: tidegate_core::gate::WhenLeft,
    pub(crate) waiting: usize,
    pub(crate) delay: Span,
    pub(crate) predicted_wait: Span,
    /// Of policies that have one, and why it is that.
    pub(crate) objective: Option<(Span, Because)>,
    pub(crate) policy: &'static str,
    /// The last rank let in, while ranks are cut.
    pub(crate) cursor: Option<Cursor>,
    /// Callers that have credits, or want some.
    pub(crate) callers: Vec<Issued>,
}

impl Level {
    pub(crate) fn of(gate: &Gate, now: Instant) -> Self {
        Self {
            slots: gate.slots(),
            running: gate.running(),
            abandoned: gate.abandoned(),
            found: gate.when_left(),
            waiting: gate.waiting(),
            delay: gate.delay(now),
            predicted_wait: gate.backlog().predicted_wait(),
            objective: gate.objective(),
            policy: gate.admission().name(),
            // A copy, as asking is counted.
            cursor: gate.clone().feedback(now, CallerId::default(), Workflow::NONE).last,
            callers: callers(gate),
        }
    }
}

fn callers(gate: &Gate) -> Vec<Issued> {
    let mut callers = gate.admission().issued();
    callers.retain(|issued| issued.caller != CallerId::default());
    callers.sort_by_key(|issued| (Reverse(issued.window), issued.caller));
    callers.truncate(MOST_CALLERS);
    callers
}

impl Snapshot<'_> {
    /// What the service is taken to do with what its clients have left: as configured, or as found out.
    fn taken_when_left(&self) -> WhenLeft {
        match self.when_left {
            WhenLeft::Learned if self.level.found.stops => WhenLeft::Stops,
            WhenLeft::Learned => WhenLeft::GoesOn,
            told => told,
        }
    }

    /// The Prometheus text format, version 0.0.4.
    pub(crate) fn prometheus(&self) -> String {
        let Self { metrics, counters, level, .. } = self;
        let mut page = Page::default();
        let help = "Requests that came, each counted once.";
        page.head("tidegate_arrived_total", "counter", help);
        for band in Criticality::ALL {
            page.line(&[("band", band.name())], metrics.arrived[band.index()]);
        }
        let help = "Requests let into the queue, those among them that were refused from there.";
        page.head("tidegate_admitted_total", "counter", help);
        for band in Criticality::ALL {
            page.line(&[("band", band.name())], metrics.admitted[band.index()]);
        }
        let help = "Requests turned away, at arrival or while they waited.";
        page.refusals("tidegate_refused_total", help, &metrics.refused);
        let help = "Requests that would have been turned away, and were not (enforce below 100%).";
        page.refusals("tidegate_would_refuse_total", help, &metrics.would_refuse);
        page.head("tidegate_finished_total", "counter", "Requests that ended with a slot.");
        for band in Criticality::ALL {
            for ((_, name), count) in OUTCOMES.iter().zip(metrics.finished[band.index()]) {
                page.line(&[("band", band.name()), ("outcome", name)], count);
            }
        }
        self.rules(&mut page);
        let help = "From arrival to the last byte, of requests served.";
        page.histogram("tidegate_request_seconds", help, &metrics.latency);
        let help = "From arrival to the slot, of requests that got one.";
        page.histogram("tidegate_queue_seconds", help, &metrics.sojourn);
        page.gauge("tidegate_slots", "Requests that may be forwarded at once.", level.slots);
        page.gauge("tidegate_running", "Requests that have a slot.", level.running);
        let help =
            "Requests that have a slot although their clients have left: the service works on.";
        page.gauge("tidegate_abandoned", help, level.abandoned);
        let help = "Whether the service is taken to end what its clients have left: 1 if it does, 0 if it works on.";
        let stops = self.taken_when_left() == WhenLeft::Stops;
        page.gauge("tidegate_stops_when_left", help, u8::from(stops));
        page.gauge("tidegate_waiting", "Requests that wait for a slot.", level.waiting);
        let help = "The delay that policies act on.";
        page.gauge("tidegate_delay_seconds", help, level.delay.as_secs_f64());
        let help = "Wait predicted for a request that arrives now.";
        page.gauge("tidegate_predicted_wait_seconds", help, level.predicted_wait.as_secs_f64());
        if let Some((objective, _)) = level.objective {
            let help = "The latency objective in force.";
            page.gauge("tidegate_objective_seconds", help, objective.as_secs_f64());
        }
        let help = "For how long there has been an overload, in seconds; 0 if there is none.";
        let overload = self.overload.map_or(0.0, Span::as_secs_f64);
        page.gauge("tidegate_overload_seconds", help, overload);
        let help = "1 if nothing is enforced.";
        page.gauge("tidegate_observe", help, u8::from(self.enforce == Percent::NONE));
        let help = "Share of requests for which the gate is enforced, 0 to 1.";
        page.gauge("tidegate_enforce", help, f64::from(self.enforce.get()) / 100.0);
        let help = "1 if the process is about to end.";
        page.gauge("tidegate_draining", help, u8::from(self.draining));
        let help = "Credits that callers have or may get; 0 without such a policy.";
        page.gauge("tidegate_credits", help, self.detail.credits.unwrap_or(0));
        let help = "Ranks let in, from 0 to 64: the business rank, and the part of it by user.";
        page.gauge("tidegate_cursor", help, cursor(level.cursor));
        if let Some(utilization) = self.sample.utilization {
            let help = "How full the machine is, 1 being full: all of [gate.signals] together.";
            page.gauge("tidegate_utilization", help, utilization);
        }
        page.head("tidegate_signal", "gauge", "Each signal of the machine, 1 being full.");
        for (signal, value) in &self.sample.signals {
            page.line(&[("signal", signal)], value);
        }
        page.head("tidegate_build_info", "gauge", "1; which version runs.");
        page.line(&[("version", env!("CARGO_PKG_VERSION"))], 1);
        for (name, kind, help, value) in process::numbers() {
            page.head(name, kind, help);
            page.line(&[], value);
        }
        let help = "Seconds since the process began to serve.";
        page.gauge("tidegate_uptime_seconds", help, self.uptime.as_secs_f64());
        let help = "Client connections open.";
        page.gauge("tidegate_connections", help, counters.connections.get());
        let help = "Connections that have changed their protocol.";
        page.gauge("tidegate_tunnels", help, counters.tunnels.get());
        if let Some(until) = self.certificate_until {
            let help = "When the certificate for clients expires, in seconds since 1970.";
            page.gauge("tidegate_certificate_expires_seconds", help, until);
        }
        let help = "Requests whose bodies are not there.";
        page.gauge("tidegate_unfinished_uploads", help, counters.uploads.taken());
        let help = "Requests that came back while their origin has a slot, and are in the reserve.";
        page.gauge("tidegate_reserved", help, counters.reentry.reserved());
        let help = "Requests that last long and hold no slot.";
        page.gauge("tidegate_long_lived", help, counters.long.taken());
        let help = "Answers that wait for clients that are behind, and hold no slot.";
        page.gauge("tidegate_readers_behind", help, counters.readers.behind());
        for (name, help, count) in plain_counters(counters, metrics) {
            page.head(&format!("tidegate_{name}_total"), "counter", help);
            page.line(&[], count);
        }
        let help = "Lines of the access log or the record that were not written.";
        page.head("tidegate_log_lines_lost_total", "counter", help);
        page.line(&[], self.lines_lost);
        let help = "1 if requests are sent to the upstream, 0 while it is out.";
        page.head("tidegate_upstream_in", "gauge", help);
        for peer in &self.peers {
            let address = peer.address().to_string();
            page.line(&[("upstream", &address)], u8::from(peer.is_in(self.now)));
        }
        let help = "Requests that an upstream has.";
        page.head("tidegate_upstream_in_flight", "gauge", help);
        for peer in &self.peers {
            page.line(&[("upstream", &peer.address().to_string())], peer.in_flight());
        }
        let help = "Requests that got no answer from an upstream.";
        page.head("tidegate_upstream_failures_total", "counter", help);
        for (kind, count) in upstream_failures(counters) {
            page.line(&[("kind", kind)], count);
        }
        self.calls(&mut page);
        if !self.leases.is_empty() {
            self.leased(&mut page);
        }
        page.text
    }

    /// What became of requests by rule; nothing where there are none.
    fn rules(&self, page: &mut Page) {
        let rules = self.detail.rules(&self.counters.rules);
        if rules.is_empty() {
            return;
        }
        let help = "Requests by the rule that gave them their rank, and what became of them; arrived is all of them.";
        page.head("tidegate_rule_requests_total", "counter", help);
        for rule in &rules {
            for (what, count) in rule.counts {
                page.line(&[("rule", &rule.title), ("what", what)], count);
            }
        }
    }

    /// What the guarded service sends out; nothing where that is its own business.
    fn calls(&self, page: &mut Page) {
        if self.egress.is_empty() {
            return;
        }
        let help = "Calls of the guarded service, by what told for which request they are; none: unranked.";
        page.head("tidegate_egress_calls_total", "counter", help);
        for way in &self.egress {
            for (by, count) in way.matched.iter().chain(&[("none", way.unranked)]) {
                page.line(&[("callee", &way.name), ("matched", by)], count);
            }
        }
        let help = "Requests inside the guarded service that its calls can be matched to.";
        page.gauge("tidegate_egress_inside", help, self.inside);
        type Number = fn(&Report) -> u64;
        let numbers: [(&str, &str, Number); 3] = [
            ("rejected", "Calls that were not sent: the throttle did not let them.", |way| {
                way.rejected
            }),
            ("refused", "Calls that were refused, by no replica served after all.", |way| {
                way.refused
            }),
            ("retries", "Calls sent to another replica.", |way| way.retries),
        ];
        for (name, help, number) in numbers {
            page.head(&format!("tidegate_egress_{name}_total"), "counter", help);
            for way in &self.egress {
                page.line(&[("callee", &way.name)], number(way));
            }
        }
        let help = "Calls that got no answer.";
        page.head("tidegate_egress_failures_total", "counter", help);
        for way in &self.egress {
            for (kind, count) in way.failed {
                page.line(&[("callee", &way.name), ("kind", kind)], count);
            }
        }
    }

    /// What this process has of agreements over many.
    fn leased(&self, page: &mut Page) {
        let mut each = |name: &str, help: &str, of: fn(&Lease) -> f64| {
            page.head(name, "gauge", help);
            for lease in &self.leases {
                page.line(&[("agreement", &lease.agreement)], of(lease));
            }
        };
        each("tidegate_lease_rate", "What this process may use now, per second.", Lease::share);
        let help = "What it may use without the daemon, per second.";
        each("tidegate_lease_safe_rate", help, Lease::safe);
        each("tidegate_lease_asked", "What it is asked for, per second.", Lease::asked);
        let help = "1 if the daemon was heard of within a term.";
        each("tidegate_lease_connected", help, |lease| f64::from(u8::from(lease.connected())));
        let help = "Most that may pass above the agreement, all processes together, per second; \
                    inf is no bound, or none that was heard.";
        each("tidegate_over_admission_bound", help, Lease::over);
        let help = "Requests in flight that this process may have now, where it is about these.";
        each("tidegate_lease_places", help, Lease::places);
        each("tidegate_lease_held", "Those that it has.", Lease::held);
        let help = "Requests beyond it that passed, as it is not enforced for them.";
        page.head("tidegate_lease_beyond_total", "counter", help);
        for lease in &self.leases {
            page.line(&[("agreement", &lease.agreement)], lease.beyond());
        }
        let help = "Requests aborted because the lease of their place was over.";
        page.head("tidegate_lease_aborted_total", "counter", help);
        page.line(&[], self.counters.leashes.aborted());
        page.head("tidegate_control_messages_total", "counter", "Messages to the daemon.");
        page.line(&[("outcome", "answered")], self.link.answered);
        page.line(&[("outcome", "failed")], self.link.failed);
    }

    /// The same as JSON.
    pub(crate) fn json(&self) -> Value {
        let Self { metrics, counters, level, .. } = self;
        let by_band = |of: &dyn Fn(usize) -> Value| -> Value {
            Criticality::ALL
                .iter()
                .map(|band| (band.name().to_owned(), of(band.index())))
                .collect::<Map<_, _>>()
                .into()
        };
        let finished = |band: usize| -> Value {
            let counts = OUTCOMES.iter().zip(metrics.finished[band]);
            counts
                .map(|((_, name), n)| ((*name).to_owned(), n.into()))
                .collect::<Map<_, _>>()
                .into()
        };
        let failures: Map<String, Value> = upstream_failures(counters)
            .into_iter()
            .map(|(kind, count)| (kind.to_owned(), count.into()))
            .collect();
        let mut state = json!({
            "slots": level.slots,
            "running": level.running,
            "abandoned": level.abandoned,
            "when_left": self.taken_when_left().to_string(),
            "when_left_trials": (self.when_left == WhenLeft::Learned).then_some(level.found.trials),
            "waiting": level.waiting,
            "delay_seconds": level.delay.as_secs_f64(),
            "predicted_wait_seconds": level.predicted_wait.as_secs_f64(),
            "observe": self.enforce == Percent::NONE,
            "enforce_percent": self.enforce.get(),
            "draining": self.draining,
            "arrived": by_band(&|band| metrics.arrived[band].into()),
            "admitted": by_band(&|band| metrics.admitted[band].into()),
            "refused": by_band(&|band| reasons(&metrics.refused[band])),
            "would_refuse": by_band(&|band| reasons(&metrics.would_refuse[band])),
            "finished": by_band(&finished),
            "request_seconds": histogram(&metrics.latency),
            "queue_seconds": histogram(&metrics.sojourn),
            "connections": counters.connections.get(),
            "tunnels": counters.tunnels.get(),
            "unfinished_uploads": counters.uploads.taken(),
            "reserved": counters.reentry.reserved(),
            "long_lived": counters.long.taken(),
            "readers_behind": counters.readers.behind(),
            "upstream_failures": failures,
            "upstreams": self.peers.iter().map(|peer| self.upstream(peer)).collect::<Vec<_>>(),
        });
        if let Some((objective, because)) = level.objective {
            state["objective_seconds"] = objective.as_secs_f64().into();
            state["objective_because"] = because.to_string().into();
        }
        for (name, _, count) in plain_counters(counters, metrics) {
            state[name] = count.into();
        }
        state["certificate_expires_unix"] = self.certificate_until.into();
        state["overload_seconds"] = self.overload.map(Span::as_secs_f64).into();
        state["log_lines_lost"] = self.lines_lost.into();
        state["policy"] = level.policy.into();
        state["cursor"] = cursor(level.cursor).into();
        let last = level.cursor.and_then(Cursor::last);
        state["last_rank"] = last.map(|rank| json!([rank.business(), rank.user()])).into();
        state["uptime_seconds"] = self.uptime.as_secs_f64().into();
        state["utilization"] = self.sample.utilization.into();
        let signals = self.sample.signals.iter().map(|(name, value)| (name.clone(), json!(value)));
        state["signals"] = signals.collect::<Map<_, _>>().into();
        let callers = level.callers.iter().map(|issued| {
            let Issued { caller, window, in_flight, demand, sheds } = issued;
            let told = json!({
                "credits": window, "in_flight": in_flight, "demand": demand, "sheds": sheds,
            });
            (format!("{:x}", caller.0), told)
        });
        state["callers"] = callers.collect::<Map<_, _>>().into();
        state["heavy_hitters"] = self.heavy.clone();
        if !self.egress.is_empty() {
            state["inside"] = self.inside.into();
            state["egress"] = self.egress.iter().map(Report::json).collect::<Vec<_>>().into();
        }
        if !self.leases.is_empty() {
            state["leases"] = self.leases.iter().map(Lease::json).collect();
            state["control"] = leases::health(&self.link);
        }
        self.detail.tell(&mut state, self.names, &counters.rules);
        state
    }

    fn upstream(&self, peer: &Peer) -> Value {
        let mut report = peer.report(self.now);
        let latency = self.latencies.get(&peer.address().to_string());
        report["latency_seconds"] = latency.map(|latency| latency.as_secs_f64()).into();
        report
    }
}

fn plain_counters(
    counters: &Counters,
    metrics: &Metrics,
) -> [(&'static str, &'static str, u64); 19] {
    [
        ("connections_accepted", "Client connections accepted.", counters.accepted.get()),
        ("accept_failures", "Accepts that failed.", counters.accept_failures.get()),
        ("connections_refused", "Closed: too many client connections.", counters.too_many.get()),
        ("connections_throttled", "Closed: too many new ones at once.", counters.too_fast.get()),
        (
            "connections_reclaimed",
            "Idle client connections that made room for others.",
            counters.reclaimed.get(),
        ),
        (
            "connections_flooded",
            "Client connections closed: too many HTTP/2 frames that ask for nothing.",
            counters.floods.get(),
        ),
        (
            "tunnels_refused",
            "Changes of protocol that were refused: too many tunnels.",
            counters.tunnels_refused.get(),
        ),
        (
            "tunnels_idle",
            "Tunnels that were closed, as nothing moved.",
            counters.tunnels_idle.get(),
        ),
        (
            "exempt_gated",
            "Requests for exempt paths asked at the gate, as too many were on their way.",
            counters.exempt_gated.get(),
        ),
        (
            "ambiguous_paths",
            "Requests whose path servers read in different ways.",
            counters.ambiguous.get(),
        ),
        (
            "proxy_protocol_failures",
            "Client connections that did not begin with a header of the PROXY protocol.",
            counters.unnamed.get(),
        ),
        (
            "slow_clients",
            "Requests that were not sent, and answers that were not taken, in time.",
            counters.slow_clients.get(),
        ),
        (
            "broken_uploads",
            "Requests whose clients broke off, or sent what is no HTTP, within the body.",
            counters.broken_uploads.get(),
        ),
        (
            "without_place",
            "Requests turned away: too many that hold no slot, in all or of one address.",
            counters.too_many_waiting.get(),
        ),
        ("tls_failures", "Client connections without TLS.", counters.tls_failures.get()),
        ("malformed_contexts", "Contexts that could not be read.", counters.malformed.get()),
        ("reloads", "Reloads that took effect.", counters.reloads.get()),
        ("bad_reloads", "Reloads refused because the file was wrong.", counters.bad_reloads.get()),
        ("events_lost", "Events that were not counted.", metrics.lost),
    ]
}

fn upstream_failures(counters: &Counters) -> [(&'static str, u64); 3] {
    [
        ("connect", counters.connect_failures.get()),
        ("broken", counters.broken.get()),
        ("late", counters.late.get()),
    ]
}

/// A cursor as one number: how many of the 64 business ranks it lets in. All if there is none.
fn cursor(cursor: Option<Cursor>) -> f64 {
    cursor.map_or(64.0, |cursor| f64::from(cursor.ranks()) / 65536.0)
}

/// Reasons that occurred.
fn reasons(counts: &[u64; REASONS]) -> Value {
    Reason::ALL
        .iter()
        .zip(counts)
        .filter(|(_, count)| **count > 0)
        .map(|(reason, count)| (reason.token().to_owned(), (*count).into()))
        .collect::<Map<_, _>>()
        .into()
}

fn histogram(histogram: &Histogram) -> Value {
    let buckets: Vec<_> =
        histogram.cumulative().map(|(us, n)| json!([us as f64 / 1e6, n])).collect();
    json!({ "count": histogram.count(), "sum": histogram.sum(), "buckets": buckets })
}

/// A page of metrics.
#[derive(Debug, Default)]
struct Page {
    text: String,
    /// The metric that lines are for.
    name: String,
}

impl Page {
    fn head(&mut self, name: &str, kind: &str, help: &str) {
        name.clone_into(&mut self.name);
        let _ = writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn line(&mut self, labels: &[(&str, &str)], value: impl std::fmt::Display) {
        self.sample("", labels, value);
    }

    fn sample(&mut self, suffix: &str, labels: &[(&str, &str)], value: impl std::fmt::Display) {
        self.text.push_str(&self.name);
        self.text.push_str(suffix);
        for (n, (label, word)) in labels.iter().enumerate() {
            let word = word.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            let _ = write!(self.text, "{}{label}=\"{word}\"", if n == 0 { '{' } else { ',' });
        }
        let end = if labels.is_empty() { "" } else { "}" };
        let _ = writeln!(self.text, "{end} {value}");
    }

    fn gauge(&mut self, name: &str, help: &str, value: impl std::fmt::Display) {
        self.head(name, "gauge", help);
        self.line(&[], value);
    }

    /// Band and reason, reasons that occurred.
    fn refusals(&mut self, name: &str, help: &str, table: &[[u64; REASONS]]) {
        self.head(name, "counter", help);
        for (band, counts) in Criticality::ALL.iter().zip(table) {
            for (reason, count) in Reason::ALL.iter().zip(counts).filter(|(_, count)| **count > 0) {
                self.line(&[("band", band.name()), ("reason", reason.token())], count);
            }
        }
    }

    fn histogram(&mut self, name: &str, help: &str, histogram: &Histogram) {
        self.head(name, "histogram", help);
        for (bound, count) in histogram.cumulative() {
            let bound = (bound as f64 / 1e6).to_string();
            self.sample("_bucket", &[("le", &bound)], count);
        }
        self.sample("_bucket", &[("le", "+Inf")], histogram.count());
        self.sample("_sum", &[], histogram.sum());
        self.sample("_count", &[], histogram.count());
    }
}
