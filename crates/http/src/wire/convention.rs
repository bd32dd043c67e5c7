//! What headers of others say: deadlines and attempts of gRPC and Envoy on the way in, refusals of
//! any server on the way back.

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use tidegate_core::{Advice, Reason, Rejection, Span};

use super::retry_info;

pub(crate) const GRPC_TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");
pub(crate) const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
pub(crate) const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
pub(crate) const GRPC_PUSHBACK: HeaderName = HeaderName::from_static("grpc-retry-pushback-ms");
pub(crate) const ENVOY_OVERLOADED: HeaderName = HeaderName::from_static("x-envoy-overloaded");
pub(crate) const ENVOY_RATELIMITED: HeaderName = HeaderName::from_static("x-envoy-ratelimited");
const GRPC_ATTEMPTS: HeaderName = HeaderName::from_static("grpc-previous-rpc-attempts");
const ENVOY_TIMEOUT: HeaderName = HeaderName::from_static("x-envoy-expected-rq-timeout-ms");
const ENVOY_ATTEMPT: HeaderName = HeaderName::from_static("x-envoy-attempt-count");

/// gRPC's codes for an overloaded server, a quota, and a passed deadline.
pub(crate) const UNAVAILABLE: u8 = 14;
pub(crate) const RESOURCE_EXHAUSTED: u8 = 8;
pub(crate) const DEADLINE_EXCEEDED: u8 = 4;

/// How the names begin of all fields that say something of load, deadlines or attempts, but for standard
/// ones: ours, gRPC's, Envoy's and ORCA's.
const PREFIXES: [&str; 4] = ["overload-", "grpc-", "x-envoy-", "endpoint-load-"];

/// Whether a message may say something of load, deadlines or attempts in other than standard fields: if
/// not, there is no [`CONTEXT`](super::CONTEXT), no [`FEEDBACK`](super::FEEDBACK), no [`timeout_of`], no
/// [`attempt_of`], no [`load_of`](super::load_of), and 200 is no [`refusal_of`]. To read all names once is quicker
/// than to look up each of these.
pub fn mentions_load(headers: &HeaderMap) -> bool {
    let known = |name: &str| PREFIXES.iter().any(|prefix| name.starts_with(prefix));
    headers.keys().any(|name| known(name.as_str()))
}

/// How long the client will wait, by `grpc-timeout` or `x-envoy-expected-rq-timeout-ms`: the
/// shorter of the two. What cannot be read says nothing.
pub fn timeout_of(headers: &HeaderMap) -> Option<Span> {
    let grpc = headers.get(&GRPC_TIMEOUT).and_then(|value| grpc_timeout(value.as_bytes()));
    // Envoy writes 0 where there is no timeout.
    let envoy = number(headers, &ENVOY_TIMEOUT).filter(|millis| *millis > 0).map(Span::from_millis);
    grpc.into_iter().chain(envoy).min()
}

/// Which attempt this is, 0 being the first, by `grpc-previous-rpc-attempts` (counts from 0) or
/// `x-envoy-attempt-count` (counts from 1): the larger of the two.
pub fn attempt_of(headers: &HeaderMap) -> Option<u8> {
    let grpc = number(headers, &GRPC_ATTEMPTS);
    let envoy = number(headers, &ENVOY_ATTEMPT).map(|attempt| attempt.saturating_sub(1));
    let attempt = grpc.into_iter().chain(envoy).max()?;
    Some(u8::try_from(attempt).unwrap_or(u8::MAX))
}

/// Whether the request or response is one of gRPC.
pub fn is_grpc(headers: &HeaderMap) -> bool {
    headers.get(header::CONTENT_TYPE).is_some_and(|kind| {
        let rest = kind.as_bytes().strip_prefix(b"application/grpc");
        rest.is_some_and(|rest| matches!(rest.first(), None | Some(b'+' | b';')))
    })
}

/// The refusal that a response is, in words of whoever wrote it; none if it is an answer.
///
/// 503 and `UNAVAILABLE` are the callee's overload, 429 and `RESOURCE_EXHAUSTED` a quota of the
/// caller, 504 a passed deadline, which no retry helps. Pushback, `Retry-After` or `RetryInfo` say when
/// to come back. A negative pushback says never; so do `x-envoy-overloaded` and `x-envoy-ratelimited`
/// without a `Retry-After`.
pub fn refusal_of(status: StatusCode, headers: &HeaderMap) -> Option<Rejection> {
    let reason = match status {
        StatusCode::SERVICE_UNAVAILABLE => Reason::Delay,
        StatusCode::TOO_MANY_REQUESTS => Reason::Quota,
        StatusCode::GATEWAY_TIMEOUT => Reason::Expired,
        StatusCode::OK => match number(headers, &GRPC_STATUS)? {
            code if code == u64::from(UNAVAILABLE) => Reason::Delay,
            code if code == u64::from(RESOURCE_EXHAUSTED) => Reason::Quota,
            _ => return None,
        },
        _ => return None,
    };
    let told_not_to = [ENVOY_OVERLOADED, ENVOY_RATELIMITED].iter().any(|n| headers.contains_key(n));
    let details = || retry_info::delay_in(headers.get(&retry_info::DETAILS)?.as_bytes());
    let after = number(headers, &header::RETRY_AFTER).map(Span::from_secs).or_else(details);
    let advice = match (headers.get(&GRPC_PUSHBACK), after) {
        _ if reason == Reason::Expired => Advice::Never,
        // Whatever is no number means never, as a negative one does (gRFC A6).
        (Some(_), _) => match number(headers, &GRPC_PUSHBACK) {
            Some(millis) => Advice::Later(Span::from_millis(millis)),
            None => Advice::Never,
        },
        (None, Some(after)) => Advice::Later(after),
        (None, None) if told_not_to => Advice::Never,
        (None, None) => Advice::Later(Span::ZERO),
    };
    Some(Rejection::new(reason, 0.0, 0.0, advice))
}

/// `grpc-timeout` for a deadline so far away: the finest unit that takes no more than 8 digits,
/// rounded down, so that the callee does not work longer than the caller waits.
pub fn grpc_timeout_text(left: Span) -> String {
    let nanos = left.as_nanos();
    let (unit, each) =
        UNITS.into_iter().rev().find(|(_, each)| nanos / each < 100_000_000).unwrap_or(UNITS[0]);
    format!("{}{}", (nanos / each).min(99_999_999), char::from(unit))
}

/// Writes how long a sender waits as it is now that only `left` of it is there, in the words in which it has said so: whoever
/// is behind must not work for longer than the sender waits.
pub fn shorten_timeouts(headers: &mut HeaderMap, left: Span) {
    let grpc = headers.get(&GRPC_TIMEOUT).and_then(|value| grpc_timeout(value.as_bytes()));
    if grpc.is_some_and(|told| told > left) {
        let text = grpc_timeout_text(left);
        headers.insert(GRPC_TIMEOUT, HeaderValue::try_from(text).expect("digits and a letter"));
    }
    let envoy = number(headers, &ENVOY_TIMEOUT).filter(|millis| *millis > 0);
    let millis = left.as_nanos() / 1_000_000;
    if envoy.is_some_and(|told| told > millis) {
        // 0 would be no timeout at all.
        headers.insert(ENVOY_TIMEOUT, HeaderValue::from(millis.max(1)));
    }
}

const UNITS: [(u8, u64); 6] = [
    (b'H', 3_600_000_000_000),
    (b'M', 60_000_000_000),
    (b'S', 1_000_000_000),
    (b'm', 1_000_000),
    (b'u', 1_000),
    (b'n', 1),
];

/// At most 8 digits and a unit.
fn grpc_timeout(text: &[u8]) -> Option<Span> {
    let (unit, digits) = text.split_last()?;
    let (_, each) = UNITS.into_iter().find(|(known, _)| known == unit)?;
    if digits.len() > 8 {
        return None;
    }
    Some(Span::from_nanos(whole(digits)?.saturating_mul(each)))
}

fn number(headers: &HeaderMap, name: &HeaderName) -> Option<u64> {
    whole(headers.get(name)?.as_bytes().trim_ascii())
}

/// Digits and nothing else; what is too large counts as the largest.
fn whole(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    Some(digits.iter().fold(0u64, |number, digit| {
        number.saturating_mul(10).saturating_add(u64::from(digit - b'0'))
    }))
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use proptest::prelude::*;

    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        let pair = |(name, value): &(&'static str, &str)| {
            (HeaderName::from_static(name), HeaderValue::from_str(value).unwrap())
        };
        pairs.iter().map(pair).collect()
    }

    #[test]
    fn timeouts_go_on_as_what_is_left_of_them() {
        let left = Span::from_micros(1_500);
        for (name, told, goes_on) in [
            ("grpc-timeout", "5S", "1500000n"),
            ("grpc-timeout", "1m", "1m"),
            ("grpc-timeout", "never", "never"),
            ("x-envoy-expected-rq-timeout-ms", "5000", "1"),
            ("x-envoy-expected-rq-timeout-ms", "1", "1"),
            ("x-envoy-expected-rq-timeout-ms", "0", "0"),
        ] {
            let mut headers = headers(&[(name, told)]);
            shorten_timeouts(&mut headers, left);
            assert_eq!(headers[name], goes_on, "{name}: {told}");
        }
        let mut over = headers(&[("grpc-timeout", "5S"), ("x-envoy-expected-rq-timeout-ms", "5")]);
        shorten_timeouts(&mut over, Span::ZERO);
        assert_eq!(
            (timeout_of(&over), &over["grpc-timeout"]),
            (Some(Span::ZERO), &HeaderValue::from_static("0n"))
        );
        assert_eq!(over["x-envoy-expected-rq-timeout-ms"], "1", "0 would be no timeout");
    }

    #[test]
    fn every_field_that_is_looked_up_is_mentioned() {
        let own = [super::super::CONTEXT, super::super::FEEDBACK, retry_info::DETAILS];
        let load = [super::super::LOAD, super::super::LOAD_BIN];
        let grpc = [GRPC_TIMEOUT, GRPC_STATUS, GRPC_MESSAGE, GRPC_PUSHBACK, GRPC_ATTEMPTS];
        let envoy = [ENVOY_OVERLOADED, ENVOY_RATELIMITED, ENVOY_TIMEOUT, ENVOY_ATTEMPT];
        for name in own.into_iter().chain(load).chain(grpc).chain(envoy) {
            let headers = HeaderMap::from_iter([(name, HeaderValue::from_static("1"))]);
            assert!(mentions_load(&headers), "{headers:?}");
        }
        assert!(!mentions_load(&headers(&[("x-forwarded-for", "a"), ("content-type", "b")])));
    }

    #[test]
    fn timeouts_are_read_and_the_shorter_counts() {
        for (text, span) in [
            ("250m", Some(Span::from_millis(250))),
            ("1S", Some(Span::from_secs(1))),
            ("99999999H", Some(Span::from_nanos(u64::MAX))),
            ("0n", Some(Span::ZERO)),
            ("100000000n", None),
            ("-1S", None),
            ("5", None),
            ("m", None),
            ("", None),
        ] {
            assert_eq!(timeout_of(&headers(&[("grpc-timeout", text)])), span, "{text}");
        }
        let both = [("grpc-timeout", "2S"), ("x-envoy-expected-rq-timeout-ms", "1500")];
        assert_eq!(timeout_of(&headers(&both)), Some(Span::from_millis(1_500)));
        assert_eq!(timeout_of(&headers(&[("x-envoy-expected-rq-timeout-ms", "0")])), None);
    }

    #[test]
    fn attempts_are_read() {
        assert_eq!(attempt_of(&headers(&[("grpc-previous-rpc-attempts", "2")])), Some(2));
        assert_eq!(attempt_of(&headers(&[("x-envoy-attempt-count", "1")])), Some(0));
        assert_eq!(attempt_of(&headers(&[("x-envoy-attempt-count", "9999")])), Some(255));
        assert_eq!(attempt_of(&headers(&[("x-envoy-attempt-count", "two")])), None);
    }

    #[test]
    fn refusals_of_others_are_understood() {
        let advice = |status: u16, pairs: &[(&'static str, &str)]| {
            let status = StatusCode::from_u16(status).unwrap();
            refusal_of(status, &headers(pairs))
                .map(|rejection| (rejection.reason, rejection.advice))
        };
        let later = |millis| Advice::Later(Span::from_millis(millis));
        assert_eq!(advice(200, &[]), None);
        assert_eq!(advice(500, &[]), None);
        assert_eq!(advice(503, &[]), Some((Reason::Delay, later(0))));
        assert_eq!(advice(503, &[("retry-after", "2")]), Some((Reason::Delay, later(2_000))));
        let overloaded = [("x-envoy-overloaded", "true"), ("retry-after", "2")];
        assert_eq!(advice(503, &overloaded), Some((Reason::Delay, later(2_000))));
        assert_eq!(advice(503, &overloaded[..1]), Some((Reason::Delay, Advice::Never)));
        assert_eq!(advice(429, &[("retry-after", "1")]), Some((Reason::Quota, later(1_000))));
        assert_eq!(advice(504, &[]), Some((Reason::Expired, Advice::Never)));
        let grpc = [("grpc-status", "14"), ("grpc-retry-pushback-ms", "40")];
        assert_eq!(advice(200, &grpc), Some((Reason::Delay, later(40))));
        let grpc = [("grpc-status", "8"), ("grpc-retry-pushback-ms", "-1")];
        assert_eq!(advice(200, &grpc), Some((Reason::Quota, Advice::Never)));
        let info = "CA4SBGJ1c3kaNgoodHlwZS5nb29nbGVhcGlzLmNvbS9nb29nbGUucnBjLlJldHJ5SW5mbxIKCggIARCAyrXuAQ";
        let details = [("grpc-status", "14"), ("grpc-status-details-bin", info)];
        assert_eq!(advice(200, &details), Some((Reason::Delay, later(1_500))));
        assert_eq!(advice(200, &[("grpc-status", "0")]), None);
    }

    #[test]
    fn grpc_is_known_by_its_content_type() {
        for (kind, is) in [
            ("application/grpc", true),
            ("application/grpc+proto", true),
            ("application/grpc;x=1", true),
            ("application/grpc-web", false),
            ("text/plain", false),
        ] {
            assert_eq!(is_grpc(&headers(&[("content-type", kind)])), is, "{kind}");
        }
    }

    proptest! {
        #[test]
        fn written_timeouts_are_short_enough_and_read_back(nanos in any::<u64>()) {
            let text = grpc_timeout_text(Span::from_nanos(nanos));
            prop_assert!(text.len() <= 9);
            let read = grpc_timeout(text.as_bytes()).unwrap().as_nanos();
            prop_assert!(read <= nanos && nanos - read <= nanos / 1_000_000 + 1);
        }

        #[test]
        fn any_bytes_are_a_timeout_or_nothing(text in proptest::collection::vec(any::<u8>(), 0..20)) {
            let _ = (grpc_timeout(&text), whole(&text));
        }
    }
}
