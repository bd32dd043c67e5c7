//! The metrics there are, as a table for the book: made from the page itself, so that it cannot lie.

use std::collections::BTreeMap;
use std::fmt::Write;

use tidegate_control::link::Health;
use tidegate_core::event::Event;
use tidegate_core::gate::GateConfig;
use tidegate_core::limit::{LeasedConfig, LimitConfig};
use tidegate_core::{Instant, Rank, Span, Workflow};
use tidegate_http::wire::Names;

use crate::config::Percent;
use crate::dashboard::detail::Detail;
use crate::health::Peers;
use crate::leases::Lease;
use crate::machine::Sample;
use crate::metrics::{Counters, Metrics};
use crate::outlets::Report;
use crate::report::{Level, Snapshot};

/// One metric.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Metric {
    /// Its name.
    pub name: String,
    /// `counter`, `gauge` or `histogram`.
    pub kind: String,
    /// What its page says about it.
    pub help: String,
    /// Names of its labels.
    pub labels: Vec<String>,
}

/// Every metric of `/metrics`, in its order.
pub fn metrics() -> Vec<Metric> {
    let mut list: Vec<Metric> = Vec::new();
    for line in page().lines() {
        if let Some((name, help)) =
            line.strip_prefix("# HELP ").and_then(|rest| rest.split_once(' '))
        {
            let (name, help) = (name.to_owned(), help.to_owned());
            list.push(Metric { name, kind: String::new(), help, labels: Vec::new() });
        } else if let Some(last) = list.last_mut() {
            match line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' ')) {
                Some((_, kind)) => kind.clone_into(&mut last.kind),
                None => last.labels = labels(line),
            }
        }
    }
    list
}

/// The same as a table in Markdown.
pub fn table() -> String {
    let mut text = "| name | kind | meaning |\n|---|---|---|\n".to_owned();
    for Metric { name, kind, help, labels } in metrics() {
        let labels =
            if labels.is_empty() { labels.join("") } else { format!("{{{}}}", labels.join(",")) };
        let _ = writeln!(text, "| `{name}{labels}` | {kind} | {help} |");
    }
    text
}

/// A page on which everything has happened once.
fn page() -> String {
    let (mut metrics, counters) = (Metrics::default(), Counters::default());
    metrics.refused[0][0] = 1;
    metrics.would_refuse[0][0] = 1;
    let mut detail = Detail::default();
    let (rank, workflow) = (Rank::UNRANKED, Workflow::NONE);
    let label = counters.rules.number("checkout").0;
    detail.count(&Event::Admit { rank, workflow, label });
    let leased = LeasedConfig { agreement: "api".to_owned(), ..LeasedConfig::default() };
    let limits = vec![LimitConfig::Leased(leased)];
    let config = GateConfig { limits, ..crate::config::gate_defaults() };
    let gate = tidegate_core::Gate::new(&config, Instant::ZERO, 0).expect("it is valid");
    let snapshot = Snapshot {
        metrics,
        detail,
        names: &Names::default(),
        latencies: BTreeMap::new(),
        certificate_until: Some(0),
        lines_lost: 0,
        peers: vec![Peers::default().get(&"http://127.0.0.1:1".parse().expect("an address"))],
        inside: 0,
        egress: vec![Report::of_nothing("inventory")],
        sample: Sample { utilization: Some(0.0), signals: vec![("cpu".to_owned(), 0.0)] },
        now: Instant::ZERO,
        uptime: Span::ZERO,
        counters: &counters,
        level: Level::of(&gate, Instant::ZERO),
        heavy: serde_json::Value::Null,
        leases: Lease::all(&gate, Instant::ZERO, &Names::default()),
        link: Health::default(),
        enforce: Percent::ALL,
        draining: false,
        when_left: crate::config::WhenLeft::GoesOn,
    };
    snapshot.prometheus()
}

/// Label names of a sample; a histogram's own is left out.
fn labels(sample: &str) -> Vec<String> {
    let inside = sample.split_once('{').and_then(|(_, rest)| rest.split_once('}'));
    let pairs = inside.map_or("", |(inside, _)| inside).split(',');
    let names = pairs.filter_map(|pair| pair.split_once('=')).map(|(name, _)| name.to_owned());
    names.filter(|name| name != "le").collect()
}
