//! What upstreams report of their load in their answers (ORCA, `endpoint-load-metrics`).

use http::{HeaderMap, HeaderName};
use serde_json::Value;

/// Name of the field.
pub(crate) static FIELD: HeaderName = HeaderName::from_static("endpoint-load-metrics");

/// How busy the upstream says it is, 1 being full: by what the application says of itself, else by its
/// processor. Whatever cannot be read says nothing.
pub(crate) fn utilization(headers: &HeaderMap) -> Option<f32> {
    let (format, rest) = report(headers)?;
    let told = |name: &str| match format {
        "TEXT" => in_text(rest, name),
        "JSON" => member(&serde_json::from_str(rest).ok()?, name)?.as_f64(),
        _ => None,
    };
    let told = ["application_utilization", "cpu_utilization"].into_iter().find_map(told)?;
    (told.is_finite() && told >= 0.0).then_some(told as f32)
}

/// What the request has cost by the count of this name, in its own unit: a cost of the request, or a named metric.
pub(crate) fn cost(fields: &HeaderMap, name: &str) -> Option<f64> {
    let (format, rest) = report(fields)?;
    let told = |of: &str| match format {
        "TEXT" => in_text(rest, &format!("{of}.{name}")),
        "JSON" => member(&serde_json::from_str(rest).ok()?, of)?.get(name)?.as_f64(),
        _ => None,
    };
    ["request_cost", "named_metrics"].into_iter().find_map(told)
}

/// The report, and the format it is in.
fn report(fields: &HeaderMap) -> Option<(&str, &str)> {
    fields.get(&FIELD)?.to_str().ok()?.trim().split_once(' ')
}

/// `name=value` pairs between commas.
fn in_text(text: &str, name: &str) -> Option<f64> {
    let mut pairs = text.split(',').filter_map(|pair| pair.split_once('='));
    pairs.find(|(key, _)| key.trim() == name).and_then(|(_, value)| value.trim().parse().ok())
}

/// The member of an object, whose names may be written in either of the two ways of protocol buffers.
fn member<'a>(object: &'a Value, name: &str) -> Option<&'a Value> {
    let (first, second) = name.split_once('_')?;
    let camel = format!("{first}{}{}", second[..1].to_uppercase(), &second[1..]);
    object.get(name).or_else(|| object.get(camel))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_formats_are_read_and_nonsense_is_not() {
        for (value, told) in [
            ("TEXT cpu_utilization=0.3", Some(0.3)),
            ("TEXT cpu_utilization=0.3, application_utilization=0.7", Some(0.7)),
            ("TEXT mem_utilization=0.3,named_metrics.x=1", None),
            ("JSON {\"cpu_utilization\": 0.25}", Some(0.25)),
            ("JSON {\"applicationUtilization\": 1.5, \"cpuUtilization\": 0.1}", Some(1.5)),
            ("JSON {", None),
            ("TEXT cpu_utilization=much", None),
            ("TEXT cpu_utilization=-1", None),
            ("TEXT cpu_utilization=NaN", None),
            ("BIN abc", None),
            ("", None),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(&FIELD, value.parse().expect("a value"));
            assert_eq!(utilization(&headers), told, "{value}");
        }
        assert_eq!(utilization(&HeaderMap::new()), None);
    }
}
