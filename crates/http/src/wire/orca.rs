//! ORCA load reports: `endpoint-load-metrics` in headers as text, `endpoint-load-metrics-bin` in
//! trailers of gRPC as a message. Envoy and gRPC weigh replicas by them.
//!
//! ```text
//! endpoint-load-metrics: TEXT cpu_utilization=0.3,application_utilization=1.2
//! OrcaLoadReport { cpu_utilization = 1: double, mem_utilization = 2: double, …,
//!                  application_utilization = 9: double }
//! ```
//!
//! `application_utilization` is how full the gate is, and may exceed 1; `cpu_utilization` is how full the
//! machine is by the signals read. Who reads takes the first of the two that is there.

use http::{HeaderMap, HeaderName, HeaderValue};

use super::protobuf::{Fields, Value, base64, double, from_base64};

/// The header of HTTP.
pub const LOAD: HeaderName = HeaderName::from_static("endpoint-load-metrics");
/// The header or trailer of gRPC.
pub const LOAD_BIN: HeaderName = HeaderName::from_static("endpoint-load-metrics-bin");

/// Longest report that is read, in bytes.
const LARGEST: usize = 4096;

/// How full a service is, 1 being full.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LoadReport {
    /// The gate: what runs and waits, by slots.
    pub application: f64,
    /// The machine; 0 if nobody has measured it.
    pub cpu: f64,
}

impl LoadReport {
    /// Writes it as text, or for gRPC as a message.
    pub fn write(&self, headers: &mut HeaderMap, grpc: bool) {
        let (application, cpu) = (tidy(self.application), tidy(self.cpu));
        if grpc {
            let message = [double(1, cpu), double(9, application)].concat();
            let value = HeaderValue::try_from(base64(&message)).expect("printable ASCII");
            headers.insert(LOAD_BIN, value);
            return;
        }
        let cpu = if cpu > 0.0 { format!("cpu_utilization={cpu},") } else { String::new() };
        let text = format!("TEXT {cpu}application_utilization={application}");
        headers.insert(LOAD, HeaderValue::try_from(text).expect("printable ASCII"));
    }
}

/// Three digits behind the point, and a number.
fn tidy(utilization: f64) -> f64 {
    if utilization.is_finite() { (utilization.max(0.0) * 1000.0).round() / 1000.0 } else { 0.0 }
}

/// How full the sender is by its report, 1 being full; none if there is none or it cannot be read.
pub fn load_of(headers: &HeaderMap) -> Option<f32> {
    let text = headers.get(LOAD).and_then(|value| text(value.as_bytes()));
    let report = text.or_else(|| headers.get(LOAD_BIN).and_then(|value| message(value.as_bytes())));
    let (application, cpu) = report?;
    let good = |value: &f64| value.is_finite() && *value > 0.0;
    Some(application).filter(good).or(Some(cpu).filter(good)).map(|load| load as f32)
}

/// Application and cpu utilization in the text form.
fn text(value: &[u8]) -> Option<(f64, f64)> {
    let pairs = std::str::from_utf8(value).ok().filter(|text| text.len() <= LARGEST)?;
    let pairs = pairs.strip_prefix("TEXT ")?;
    let of = |name: &str| {
        let value =
            pairs.split(',').find_map(|pair| pair.trim().strip_prefix(name)?.strip_prefix('='));
        value.and_then(|value| value.trim().parse().ok()).unwrap_or(0.0)
    };
    Some((of("application_utilization"), of("cpu_utilization")))
}

/// The same in the form of a message.
fn message(value: &[u8]) -> Option<(f64, f64)> {
    let message = (value.len() <= LARGEST).then(|| from_base64(value))??;
    let of = |field| match Fields(&message).last(field) {
        Some(Value::Double(value)) => value,
        _ => 0.0,
    };
    Some((of(9), of(1)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn headers(name: HeaderName, value: &str) -> HeaderMap {
        HeaderMap::from_iter([(name, HeaderValue::from_str(value).unwrap())])
    }

    #[test]
    fn reports_of_others_are_understood() {
        for (value, load) in [
            ("TEXT cpu_utilization=0.3,mem_utilization=0.8", Some(0.3)),
            (
                "TEXT mem_utilization=0.8, application_utilization=1.5 ,cpu_utilization=0.3",
                Some(1.5),
            ),
            ("TEXT cpu_utilization=NaN", None),
            ("TEXT cpu_utilization=-1", None),
            ("JSON {\"cpu_utilization\": 0.3}", None),
            ("cpu_utilization=0.3", None),
            ("", None),
        ] {
            assert_eq!(load_of(&headers(LOAD, value)), load, "{value}");
        }
        // By protoc: cpu_utilization 0.5, rps_fractional 3.
        assert_eq!(load_of(&headers(LOAD_BIN, "CQAAAAAAAOA/MQAAAAAAAAhA")), Some(0.5));
    }

    proptest! {
        #[test]
        fn what_is_written_reads_back(application in 0.001..50.0f64, cpu in 0.0..2.0f64, grpc in any::<bool>()) {
            let mut headers = HeaderMap::new();
            LoadReport { application, cpu }.write(&mut headers, grpc);
            let read = load_of(&headers).unwrap();
            prop_assert!((f64::from(read) - application).abs() <= 0.001);
        }

        #[test]
        fn any_bytes_are_read_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            let _ = (text(&bytes), message(&bytes), message(base64(&bytes).as_bytes()));
        }
    }
}
