//! `google.rpc.RetryInfo` in `grpc-status-details-bin`: when to retry, for gRPC clients that read
//! details and not pushback, such as those of OpenTelemetry.
//!
//! The message is small and fixed, so it is written by hand:
//!
//! ```text
//! Status    { code = 1: int32, message = 2: string, details = 3: Any }
//! Any       { type_url = 1: string, value = 2: bytes }
//! RetryInfo { retry_delay = 1: Duration { seconds = 1: int64, nanos = 2: int32 } }
//! ```

use http::{HeaderName, HeaderValue};
use tidegate_core::Span;

pub(super) const DETAILS: HeaderName = HeaderName::from_static("grpc-status-details-bin");

const TYPE: &str = "type.googleapis.com/google.rpc.RetryInfo";
const SECOND: u64 = 1_000_000_000;

/// The details of a refusal with this code and message, to be retried after `delay`.
pub(super) fn details(code: u8, message: &str, delay: Span) -> HeaderValue {
    let (seconds, nanos) = (delay.as_nanos() / SECOND, delay.as_nanos() % SECOND);
    let duration = [number(1, seconds), number(2, nanos)].concat();
    let any = [bytes(1, TYPE.as_bytes()), bytes(2, &bytes(1, &duration))].concat();
    let status = [number(1, code.into()), bytes(2, message.as_bytes()), bytes(3, &any)].concat();
    HeaderValue::try_from(base64(&status)).expect("base64 is printable ASCII")
}

/// A field with a number; zero is not written.
fn number(field: u8, value: u64) -> Vec<u8> {
    if value == 0 {
        return Vec::new();
    }
    let mut out = vec![field << 3];
    varint(&mut out, value);
    out
}

/// A field with bytes, a string or a message.
fn bytes(field: u8, value: &[u8]) -> Vec<u8> {
    let mut out = vec![field << 3 | 2];
    varint(&mut out, value.len() as u64);
    out.extend_from_slice(value);
    out
}

/// Seven bits a byte, the lowest first; the top bit says that more follow.
fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Base64 without padding, as gRPC writes binary headers.
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let mut word = [0; 4];
        word[1..=chunk.len()].copy_from_slice(chunk);
        let word = u32::from_be_bytes(word);
        for digit in 0..=chunk.len() {
            let digit = word >> (18 - 6 * digit) & 0x3f;
            text.push(char::from(DIGITS[digit as usize]));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 4648 §10, without padding.
    #[test]
    fn base64_is_that_of_the_rfc() {
        for (plain, text) in [
            ("", ""),
            ("f", "Zg"),
            ("fo", "Zm8"),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg"),
            ("fooba", "Zm9vYmE"),
            ("foobar", "Zm9vYmFy"),
        ] {
            assert_eq!(base64(plain.as_bytes()), text);
        }
    }

    /// Encoded by hand: `UNAVAILABLE`, "busy", 1.5 s.
    #[test]
    fn details_are_the_bytes_of_the_message() {
        let delay = Span::from_millis(1_500);
        let expected = "CA4SBGJ1c3kaNgoodHlwZS5nb29nbGVhcGlzLmNvbS9nb29nbGUucnBjLlJldHJ5SW5m\
            bxIKCggIARCAyrXuAQ";
        assert_eq!(details(14, "busy", delay), expected);
        assert!(details(14, "busy", Span::ZERO).len() < expected.len());
    }
}
