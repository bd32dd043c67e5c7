//! Numbers for operators: one object with all of them, and the same as Prometheus reads it.

use std::fmt::Write;

use serde_json::{Value, json};
use tidegate_core::{Instant, Span};

use super::Hub;
use super::broker::State;
use super::topic::Topic;

impl Hub {
    /// All there is to know.
    pub fn state(&self, now: Instant) -> Value {
        let totals = &self.totals;
        json!({
            "draining": self.draining,
            "clients": self.clients.len(),
            "links": self.links.len(),
            "accepted": totals.accepted,
            "published": totals.published,
            "delivered": totals.delivered,
            "in_doubt": totals.in_doubt,
            "abandoned": totals.abandoned,
            "moves": totals.moves,
            "moving": self.moves.count(),
            "slow_consumers": totals.slow,
            "protocol_errors": totals.faults,
            "brokers": self.brokers.iter().map(|broker| json!({
                "address": broker.address,
                "state": name(&broker.state),
                "why": if let State::Down(why) = &broker.state { json!(why) } else { Value::Null },
                "leaving": broker.leaving,
                "publishers": broker.publishers,
                "published": broker.published,
                "in_doubt": broker.in_doubt,
            })).collect::<Vec<_>>(),
            "topics": self.topics.list.iter().map(|topic| self.topic(now, topic)).collect::<Vec<_>>(),
        })
    }

    /// Clients: who they are and where they publish.
    pub fn clients(&self) -> Value {
        let list = self.clients.iter().map(|(id, client)| {
            json!({
                "id": id,
                "name": client.name(),
                "user": client.user(),
                "broker": client.home,
                "publishes": client.publishes,
                "moving": self.moves.has(*id),
            })
        });
        Value::Array(list.collect())
    }

    /// The latest arrivals of a topic by its name; none if there is no such topic, or it records none.
    pub fn trace(&self, topic: &str) -> Option<String> {
        let mut topics = self.topics.list.iter();
        let topic = topics.find(|at| at.config.name() == topic && at.config.record > 0)?;
        Some(topic.recording.text())
    }

    /// For Prometheus.
    pub fn metrics(&self, now: Instant) -> String {
        let mut page = Page::default();
        let totals = &self.totals;
        page.family("connections_accepted_total", "counter", "Clients ever accepted.");
        page.sample("connections_accepted_total", "", totals.accepted);
        page.family("clients", "gauge", "Clients at the moment.");
        page.sample("clients", "", self.clients.len());
        page.family("links", "gauge", "Connections to brokers at the moment.");
        page.sample("links", "", self.links.len());
        page.family("delivered_total", "counter", "Messages handed to subscribers.");
        page.sample("delivered_total", "", totals.delivered);
        page.family(
            "abandoned_total",
            "counter",
            "Messages that lost their broker before they were sent.",
        );
        page.sample("abandoned_total", "", totals.abandoned);
        page.family("moves_total", "counter", "Publishers that were moved to another broker.");
        page.sample("moves_total", "", totals.moves);
        page.family("slow_consumers_total", "counter", "Clients closed because they did not read.");
        page.sample("slow_consumers_total", "", totals.slow);
        page.family("protocol_errors_total", "counter", "Clients closed for what they sent.");
        page.sample("protocol_errors_total", "", totals.faults);
        for (family, kind, help) in [
            ("broker_up", "gauge", "Whether a broker is open for publishers."),
            ("broker_publishers", "gauge", "Publishers that live at a broker."),
            ("broker_published_total", "counter", "Messages sent to a broker."),
            (
                "broker_in_doubt_total",
                "counter",
                "Messages that a broker had not confirmed when it went.",
            ),
        ] {
            page.family(family, kind, help);
            for broker in &self.brokers {
                let value = match family {
                    "broker_up" => u64::from(broker.state == State::Up),
                    "broker_publishers" => broker.publishers as u64,
                    "broker_published_total" => broker.published,
                    _ => broker.in_doubt,
                };
                page.sample(family, &format!("broker=\"{}\"", escaped(&broker.address)), value);
            }
        }
        self.topic_metrics(now, &mut page);
        page.text
    }

    fn topic_metrics(&self, now: Instant, page: &mut Page) {
        type Of = fn(&Hub, &Topic, Instant) -> f64;
        let families: [(&str, &str, &str, Of); 9] = [
            ("topic_passed_total", "counter", "Messages that had a token.", |_, topic, _| {
                topic.stats.passed as f64
            }),
            ("topic_refused_total", "counter", "Messages without room to wait.", |_, topic, _| {
                topic.stats.refused as f64
            }),
            ("topic_waiting", "gauge", "Messages that wait for tokens.", |hub, topic, _| {
                hub.waiting(topic) as f64
            }),
            ("topic_rate", "gauge", "Messages per second that were agreed.", |_, topic, now| {
                topic.agreement(now).rate.as_f64()
            }),
            ("topic_burst", "gauge", "Messages at once that were agreed.", |_, topic, now| {
                topic.agreement(now).burst as f64
            }),
            (
                "topic_share",
                "gauge",
                "Messages per second that brokers have together.",
                |_, topic, now| topic.own(now).rate.as_f64(),
            ),
            (
                "topic_lag_seconds",
                "gauge",
                "Longest time from token to departure.",
                |_, topic, _| topic.stats.lag.as_secs_f64(),
            ),
            (
                "topic_beyond",
                "gauge",
                "Most messages beyond the agreement by departure.",
                |_, topic, _| topic.stats.beyond,
            ),
            ("topic_longest_delay_seconds", "gauge", "Longest access delay.", |_, topic, _| {
                topic.stats.access.most.as_secs_f64()
            }),
        ];
        for (family, kind, help, value) in families {
            page.family(family, kind, help);
            for topic in &self.topics.list {
                page.sample(family, &label(topic), value(self, topic, now));
            }
        }
        page.family(
            "topic_lease_connected",
            "gauge",
            "Whether a shared topic hears of its daemon.",
        );
        for topic in &self.topics.list {
            if let Some(lease) = &topic.lease {
                let connected = u64::from(lease.is_connected(now));
                page.sample("topic_lease_connected", &label(topic), connected);
            }
        }
        page.family("topic_delay_seconds", "summary", "Access delay: from arrival to token.");
        for topic in &self.topics.list {
            let (label, access) = (label(topic), &topic.stats.access);
            for share in [0.5, 0.95, 0.99] {
                let labels = format!("{label},quantile=\"{share}\"");
                page.sample("topic_delay_seconds", &labels, access.quantile(share).as_secs_f64());
            }
            page.sample("topic_delay_seconds_sum", &label, access.sum);
            page.sample("topic_delay_seconds_count", &label, access.count);
        }
    }

    fn topic(&self, now: Instant, topic: &Topic) -> Value {
        let agreement = topic.agreement(now);
        let stats = &topic.stats;
        let millis = |span: Span| span.as_millis_f64();
        let mean = stats.access.sum * 1e3 / stats.access.count.max(1) as f64;
        json!({
            "name": topic.config.name(),
            "subject": topic.config.subject,
            "rate": agreement.rate.as_f64(),
            "burst": agreement.burst,
            "lease": topic.lease.as_ref().map(|lease| {
                let share = lease.share(now);
                json!({
                    "connected": lease.is_connected(now),
                    "rate": share.rate.as_f64(),
                    "burst": share.burst,
                    "problem": lease.complaint(),
                })
            }),
            "passed": stats.passed,
            "refused": stats.refused,
            "waiting": self.waiting(topic),
            "delay_ms": {
                "mean": mean,
                "p50": millis(stats.access.quantile(0.5)),
                "p95": millis(stats.access.quantile(0.95)),
                "p99": millis(stats.access.quantile(0.99)),
                "longest": millis(stats.access.most),
                "sum_s": stats.access.sum,
            },
            "lag_ms": millis(stats.lag),
            "beyond": stats.beyond,
            "between_s": stats.due.map_or(0.0, |(first, last)| last.since(first).as_secs_f64()),
            "brokers": (0..self.brokers.len()).map(|at| {
                let share = topic.share(at);
                json!({ "rate": share.rate.as_f64(), "burst": share.burst, "waiting": topic.waiting(at) })
            }).collect::<Vec<_>>(),
        })
    }

    fn waiting(&self, topic: &Topic) -> usize {
        (0..self.brokers.len()).map(|at| topic.waiting(at)).sum()
    }
}

fn name(state: &State) -> &'static str {
    match state {
        State::Down(_) => "down",
        State::Joining => "joining",
        State::Up => "up",
    }
}

fn label(topic: &Topic) -> String {
    format!("topic=\"{}\"", escaped(topic.config.name()))
}

fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[derive(Default)]
struct Page {
    text: String,
}

impl Page {
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        // Writing to a string does not fail.
        let _ = write!(
            self.text,
            "# HELP tidegate_nats_{name} {help}\n# TYPE tidegate_nats_{name} {kind}\n"
        );
    }

    fn sample(&mut self, name: &str, labels: &str, value: impl std::fmt::Display) {
        let labels = if labels.is_empty() { String::new() } else { format!("{{{labels}}}") };
        let _ = writeln!(self.text, "tidegate_nats_{name}{labels} {value}");
    }
}
