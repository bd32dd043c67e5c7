//! `google.rpc.RetryInfo` in `grpc-status-details-bin`: when to retry, for gRPC clients and servers that
//! speak in details and not in pushback, such as those of OpenTelemetry.
//!
//! ```text
//! Status    { code = 1: int32, message = 2: string, details = 3: Any }
//! Any       { type_url = 1: string, value = 2: bytes }
//! RetryInfo { retry_delay = 1: Duration { seconds = 1: int64, nanos = 2: int32 } }
//! ```

use http::{HeaderName, HeaderValue};
use tidegate_core::Span;

use super::protobuf::{Fields, Value, base64, bytes, from_base64, number};

pub(super) const DETAILS: HeaderName = HeaderName::from_static("grpc-status-details-bin");

const TYPE: &str = "type.googleapis.com/google.rpc.RetryInfo";
const SECOND: u64 = 1_000_000_000;
/// Longest details that are looked through, in bytes of base64.
const LARGEST: usize = 8 * 1024;

/// The details of a refusal with this code and message, to be retried after `delay`.
pub(super) fn details(code: u8, message: &str, delay: Span) -> HeaderValue {
    let (seconds, nanos) = (delay.as_nanos() / SECOND, delay.as_nanos() % SECOND);
    let duration = [number(1, seconds), number(2, nanos)].concat();
    let any = [bytes(1, TYPE.as_bytes()), bytes(2, &bytes(1, &duration))].concat();
    let status = [number(1, code.into()), bytes(2, message.as_bytes()), bytes(3, &any)].concat();
    HeaderValue::try_from(base64(&status)).expect("base64 is printable ASCII")
}

/// When to retry by such details; none if they do not say.
pub(super) fn delay_in(details: &[u8]) -> Option<Span> {
    let status = (details.len() <= LARGEST).then(|| from_base64(details))??;
    let message = |value| match value {
        Value::Bytes(bytes) => Some(Fields(bytes)),
        Value::Number(_) | Value::Double(_) => None,
    };
    let is_retry_info = |any: &Fields<'_>| matches!(any.last(1), Some(Value::Bytes(kind)) if kind.ends_with(b"/google.rpc.RetryInfo"));
    let mut all = Fields(&status).filter(|(field, _)| *field == 3);
    let any = all.find_map(|(_, value)| message(value).filter(is_retry_info))?;
    let duration = message(message(any.last(2)?)?.last(1)?)?;
    let part = |field| match duration.last(field) {
        Some(Value::Number(value)) => value,
        _ => 0,
    };
    // A negative duration is written as a huge number: nothing to wait for.
    let seconds = Some(part(1)).filter(|seconds| *seconds <= i64::MAX as u64)?;
    Some(Span::from_secs(seconds) + Span::from_nanos(part(2).min(SECOND - 1)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Encoded by hand: `UNAVAILABLE`, "busy", 1.5 s.
    #[test]
    fn details_are_the_bytes_of_the_message() {
        let delay = Span::from_millis(1_500);
        let expected = "CA4SBGJ1c3kaNgoodHlwZS5nb29nbGVhcGlzLmNvbS9nb29nbGUucnBjLlJldHJ5SW5m\
            bxIKCggIARCAyrXuAQ";
        assert_eq!(details(14, "busy", delay), expected);
        assert!(details(14, "busy", Span::ZERO).len() < expected.len());
        assert_eq!(delay_in(expected.as_bytes()), Some(delay));
    }

    #[test]
    fn details_of_another_kind_say_nothing() {
        let any = [bytes(1, b"type.googleapis.com/google.rpc.ErrorInfo"), bytes(2, b"x")].concat();
        let other = base64(&[number(1, 14), bytes(3, &any)].concat());
        assert_eq!(delay_in(other.as_bytes()), None);
        for bad in [&b""[..], b"!!", b"CA4", &[b'A'; LARGEST + 1]] {
            assert_eq!(delay_in(bad), None);
        }
    }

    proptest! {
        #[test]
        fn delays_read_back(nanos in any::<u64>(), message in ".{0,40}") {
            let delay = Span::from_nanos(nanos);
            prop_assert_eq!(delay_in(details(14, &message, delay).as_bytes()), Some(delay));
        }

        #[test]
        fn any_bytes_are_read_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = (delay_in(&bytes), delay_in(base64(&bytes).as_bytes()));
        }
    }
}
