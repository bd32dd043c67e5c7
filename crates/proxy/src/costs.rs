//! What requests cost their service, as it says itself.
//!
//! From outside there is only time, and a request that sleeps takes as much of it as one that computes. So whoever limits
//! by cpu time has the service say: in a header or a trailer of its own, in seconds, or as a named cost of a load report
//! (ORCA). An answer that says nothing is charged what others of its workflow were.

use http::{HeaderMap, HeaderName};
use tidegate_core::{Cost, Span};
use tidegate_driver::Charge;

use crate::config::ProxyConfig;
use crate::orca;

/// Where costs are told; nowhere by default.
#[derive(Debug)]
pub(crate) struct Costs {
    header: Option<HeaderName>,
    metric: Option<String>,
}

/// The largest cost that is believed of one request: seconds of more than a day, or bytes of an answer of 10 GB.
const MOST: f64 = 1e10;

impl Costs {
    pub(crate) fn new(config: &ProxyConfig) -> Self {
        Self {
            header: config.cost_header.as_ref().and_then(|name| name.parse().ok()),
            metric: config.cost_metric.clone(),
        }
    }

    /// What is charged if an answer says nothing.
    pub(crate) fn unsaid(&self) -> Charge {
        let told = self.header.is_some() || self.metric.is_some();
        if told { Charge::Estimated } else { Charge::Measured }
    }

    /// What the head of an answer says, or its trailers.
    pub(crate) fn said(&self, fields: &HeaderMap) -> Option<Charge> {
        let number = |name: &HeaderName| fields.get(name)?.to_str().ok()?.trim().parse().ok();
        let by_header = self.header.as_ref().and_then(number);
        let seconds = by_header.or_else(|| orca::cost(fields, self.metric.as_deref()?))?;
        let fine = (0.0..=MOST).contains(&seconds);
        fine.then(|| Charge::Told(Cost::from(Span::from_nanos((seconds * 1e9) as u64))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(config: &str, name: &'static str, value: &str) -> Option<Charge> {
        let file = crate::File::parse(config).unwrap_or_else(|error| panic!("{error}"));
        let mut fields = HeaderMap::new();
        fields.insert(HeaderName::from_static(name), value.parse().expect("a value"));
        Costs::new(&file.proxy).said(&fields)
    }

    #[test]
    fn costs_are_read_where_they_are_told_and_nonsense_is_not() {
        let header = "[proxy]\ncost_header = 'x-cpu-seconds'";
        let metric = "[proxy]\ncost_metric = 'cpu'";
        let millis = |millis| Some(Charge::Told(Cost::from(Span::from_millis(millis))));
        assert_eq!(said(header, "x-cpu-seconds", "0.25"), millis(250));
        for nonsense in ["", "-1", "NaN", "inf", "1e99", "much"] {
            assert_eq!(said(header, "x-cpu-seconds", nonsense), None, "{nonsense}");
        }
        assert_eq!(said("", "x-cpu-seconds", "0.25"), None, "nobody asked");
        for (value, told) in [
            ("TEXT request_cost.cpu=0.003, cpu_utilization=0.5", millis(3)),
            ("TEXT named_metrics.cpu=0.003", millis(3)),
            (r#"JSON {"request_cost": {"cpu": 0.003}}"#, millis(3)),
            (r#"JSON {"requestCost": {"cpu": 0.003}, "cpuUtilization": 1}"#, millis(3)),
            (r#"JSON {"namedMetrics": {"cpu": 0.003}}"#, millis(3)),
            ("TEXT cpu_utilization=0.003", None),
        ] {
            assert_eq!(said(metric, "endpoint-load-metrics", value), told, "{value}");
        }
    }
}
