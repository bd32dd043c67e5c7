//! What travels in headers: [`Context`] with a request, feedback with its
//! response, and the conventions of others that say part of the same.
//!
//! Two fields of our own, dictionaries of RFC 9651: `overload-context` and `overload-feedback`.
//! Unknown keys are ignored; a malformed field is ignored whole, and whoever reads it counts it.
//! Durations are relative to the moment of writing, so that no two clocks are compared. The format
//! is described in `docs/wire-http.md`, and `testdata/wire` has vectors for other implementations.

mod carried;
mod context;
mod convention;
mod digits;
mod feedback;
mod names;
mod orca;
mod protobuf;
mod refusal;
mod retry_info;
mod sf;

use http::{HeaderMap, HeaderName, HeaderValue};
use tidegate_core::{Context, Instant};

pub use carried::Carried;
pub(crate) use carried::forget_reports;
pub use context::{read_context, write_context};
pub(crate) use convention::GRPC_TIMEOUT;
pub use convention::{
    attempt_of, grpc_timeout_text, is_grpc, mentions_load, refusal_of, shorten_timeouts, timeout_of,
};
pub use feedback::{Message, read_feedback, write_feedback};
pub use names::Names;
pub use orca::{LOAD, LOAD_BIN, LoadReport, load_of};
pub use refusal::{Refusal, status_of};
pub use sf::Malformed;

/// The request field.
pub const CONTEXT: HeaderName = HeaderName::from_static("overload-context");
/// The response field.
pub const FEEDBACK: HeaderName = HeaderName::from_static("overload-feedback");

/// The request field by which a gate before a service asks for a cheaper answer: `?1`, or it is not there.
pub const DEGRADE: HeaderName = HeaderName::from_static("overload-degrade");
/// What it says.
pub const DEGRADED: HeaderValue = HeaderValue::from_static("?1");

/// Longest field that is read, in bytes, all its lines together. Ours have at most 420: two names
/// of 64 bytes, each byte three characters, and thirty digits here and there.
pub const LARGEST_FIELD: usize = 1024;

/// The context of a request received at `now`; none if it has none.
pub fn context_of(
    headers: &HeaderMap,
    now: Instant,
    names: &Names,
) -> Option<Result<Context, Malformed>> {
    with_field(headers, &CONTEXT, |field| read_context(field, now, names))
}

/// The feedback of a response, or in trailers; none if there is none. A window of 0 is taken for 1: over HTTP
/// nobody can be told of credits between two answers, and whoever sends nothing would not hear of any until the window is old.
pub fn feedback_of(headers: &HeaderMap) -> Option<Result<Message, Malformed>> {
    let message = with_field(headers, &FEEDBACK, read_feedback)?;
    Some(message.map(|mut message| {
        message.feedback.window = message.feedback.window.map(|window| window.max(1));
        message
    }))
}

/// Reads a field that may stand on several lines, which then are one list.
fn with_field<T>(
    headers: &HeaderMap,
    name: &HeaderName,
    read: impl FnOnce(&[u8]) -> Result<T, Malformed>,
) -> Option<Result<T, Malformed>> {
    let mut lines = headers.get_all(name).iter();
    let first = lines.next()?;
    let Some(second) = lines.next() else { return Some(read(first.as_bytes())) };
    let mut field = first.as_bytes().to_vec();
    for line in std::iter::once(second).chain(lines) {
        if field.len() > LARGEST_FIELD {
            return Some(Err(Malformed));
        }
        field.extend_from_slice(b", ");
        field.extend_from_slice(line.as_bytes());
    }
    Some(read(&field))
}

/// What was written, as a header value.
fn value_of(writer: sf::Writer) -> Option<HeaderValue> {
    let text = writer.finish()?;
    Some(HeaderValue::try_from(text).expect("structured fields are printable ASCII"))
}

#[cfg(test)]
mod tests {
    use tidegate_core::Rank;

    use super::*;

    #[test]
    fn a_caller_over_http_may_always_ask_again() {
        for (field, window) in [("n=0", Some(1)), ("n=1", Some(1)), ("n=7", Some(7)), ("v=1", None)]
        {
            let mut headers = HeaderMap::new();
            headers.insert(FEEDBACK, HeaderValue::from_static(field));
            let message = feedback_of(&headers).unwrap().unwrap();
            assert_eq!(message.feedback.window, window, "{field}");
        }
    }

    #[test]
    fn lines_of_one_field_are_one_dictionary() {
        let names = Names::default();
        let mut headers = HeaderMap::new();
        assert!(context_of(&headers, Instant::ZERO, &names).is_none());
        headers.append(CONTEXT, HeaderValue::from_static("r=(1 2), a=1"));
        headers.append(CONTEXT, HeaderValue::from_static("a=2"));
        let context = context_of(&headers, Instant::ZERO, &names).unwrap().unwrap();
        assert_eq!((context.rank, context.attempt), (Rank::new(1, 2), 2));
        for _ in 0..LARGEST_FIELD {
            headers.append(CONTEXT, HeaderValue::from_static("a=2"));
        }
        assert_eq!(context_of(&headers, Instant::ZERO, &names), Some(Err(Malformed)));
    }
}
