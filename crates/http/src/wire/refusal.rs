//! A refusal as a response, in the words of HTTP, of Envoy and of gRPC, so that clients which never
//! heard of us do the right thing.
//!
//! 503 is our overload, 429 the caller's quota, 504 its deadline: three promises that are never
//! merged. The body says what was measured and what to do.

use std::fmt::Write as _;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use tidegate_core::{Advice, Cursor, Rank, Reason, Rejection, Span};

use super::convention::{
    DEADLINE_EXCEEDED, ENVOY_OVERLOADED, ENVOY_RATELIMITED, GRPC_MESSAGE, GRPC_PUSHBACK,
    GRPC_STATUS, RESOURCE_EXHAUSTED, UNAVAILABLE,
};
use super::digits::{push_float, push_number};
use super::retry_info;

const RATE_LIMIT: HeaderName = HeaderName::from_static("ratelimit");
const RATE_LIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");

/// Longest time in seconds over which those are spread who come back, however long they were to stay away: who waits for the end of a
/// month is not to wait for half of the next.
const MOST_SPREAD: u64 = 30;

/// Everything a refusal says.
#[derive(Clone, Copy, Debug)]
pub struct Refusal<'a> {
    /// Reason, measurement, limit and advice.
    pub rejection: &'a Rejection,
    /// The rank of the request and the cursor of the gate, for callers that may know. Not for
    /// strangers: who learns ranks can look for a user name that has a good one.
    pub rank: Option<(Rank, Option<Cursor>)>,
    /// Whether the request was one of gRPC.
    pub grpc: bool,
    /// A number from 0 to 1, drawn per response: spreads those who come back over half as long again
    /// as they were asked to stay away, half a minute at most.
    pub jitter: f64,
}

impl Refusal<'_> {
    /// Status, headers and body. Those of gRPC are trailers-only: status 200 and no body.
    pub fn response(&self) -> (StatusCode, HeaderMap, Bytes) {
        let mut headers = HeaderMap::with_capacity(8);
        let (status, body) = self.write(&mut headers);
        (status, headers, body)
    }

    /// Status and body; the headers are added to those there are.
    pub fn write(&self, headers: &mut HeaderMap) -> (StatusCode, Bytes) {
        let reason = self.rejection.reason;
        let quota = status_of(reason) == StatusCode::TOO_MANY_REQUESTS;
        let elsewhere = self.rejection.advice == Advice::Elsewhere;
        if quota || !elsewhere {
            // What keeps Envoy from retrying, unless its policy is `envoy-ratelimited`; so it is absent
            // where a retry would help.
            headers.insert(ENVOY_RATELIMITED, HeaderValue::from_static("true"));
        }
        if !quota && !elsewhere {
            // This alone does not: Envoy 1.40 retries all the same.
            headers.insert(ENVOY_OVERLOADED, HeaderValue::from_static("true"));
        }
        if self.grpc {
            self.grpc(headers);
            return (StatusCode::OK, Bytes::new());
        }
        let seconds = self.seconds();
        seconds.into_iter().for_each(|seconds| {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(self.jittered(seconds)));
        });
        if status_of(reason) == StatusCode::TOO_MANY_REQUESTS {
            rate_limit(headers, self.rejection, seconds);
        }
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        (status_of(reason), Bytes::from(self.problem()))
    }

    fn grpc(&self, headers: &mut HeaderMap) {
        let code = match status_of(self.rejection.reason) {
            StatusCode::TOO_MANY_REQUESTS => RESOURCE_EXHAUSTED,
            StatusCode::GATEWAY_TIMEOUT => DEADLINE_EXCEEDED,
            _ => UNAVAILABLE,
        };
        // Never 0: told to come back after no time, grpcio 1.85 waits until its deadline instead.
        let delay = match self.rejection.advice {
            Advice::Elsewhere => Some(Span::from_millis(1)),
            Advice::Later(span) => {
                let spread = span.scale(self.jitter / 2.0).min(Span::from_secs(MOST_SPREAD));
                let millis = (span + spread).as_nanos().div_ceil(1_000_000);
                Some(Span::from_millis(millis.max(1)))
            }
            Advice::Never => None,
        };
        let pushback = match delay {
            Some(delay) => HeaderValue::from(delay.as_nanos() / 1_000_000),
            None => HeaderValue::from(-1),
        };
        let message = self.rejection.to_string();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        headers.insert(GRPC_STATUS, HeaderValue::from(u16::from(code)));
        delay.into_iter().for_each(|delay| {
            headers.insert(retry_info::DETAILS, retry_info::details(code, &message, delay));
        });
        let message = HeaderValue::try_from(message);
        headers.insert(GRPC_MESSAGE, message.expect("a rejection is shown in printable ASCII"));
        headers.insert(GRPC_PUSHBACK, pushback);
    }

    /// Whole seconds until it is worth coming back, none for never. A client that knows no other
    /// replica comes back here: not at once.
    fn seconds(&self) -> Option<u64> {
        match self.rejection.advice {
            Advice::Elsewhere => Some(1),
            Advice::Later(span) => Some(span.as_nanos().div_ceil(1_000_000_000).max(1)),
            Advice::Never => None,
        }
    }

    /// Up to half as long again, and at least one second of spread.
    fn jittered(&self, seconds: u64) -> u64 {
        let most = seconds.div_ceil(2).min(MOST_SPREAD);
        let spread = Span::from_nanos(most + 1).scale(self.jitter);
        seconds.saturating_add(spread.as_nanos().min(most))
    }

    /// RFC 9457, with the types of the IETF RateLimit draft.
    fn problem(&self) -> String {
        let Rejection { reason, measured, limit, advice, .. } = *self.rejection;
        let (kind, title) = match status_of(reason) {
            StatusCode::TOO_MANY_REQUESTS => {
                ("https://iana.org/assignments/http-problem-types#quota-exceeded", "Quota exceeded")
            }
            StatusCode::GATEWAY_TIMEOUT => ("about:blank", "Deadline passed"),
            _ => (
                "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity",
                "Overloaded",
            ),
        };
        let (then, after) = match advice {
            Advice::Elsewhere => ("elsewhere", None),
            Advice::Later(span) => ("later", Some(span.as_nanos().div_ceil(1_000_000))),
            Advice::Never => ("never", None),
        };
        // Only words of ours, which need no escapes, and numbers.
        let mut json = Json(String::with_capacity(400));
        json.word("{\"type", kind);
        json.word(",\"title", title);
        json.number(",\"status", status_of(reason).as_u16().into());
        json.word(",\"detail", reason.describe());
        json.word(",\"reason", reason.token());
        if measured.is_finite() && limit.is_finite() {
            json.number(",\"measured", measured);
            json.number(",\"limit", limit);
            json.word(",\"unit", reason.unit());
        }
        self.rejection.which().into_iter().for_each(|which| json.word(",\"which", &which));
        if let Some((rank, cursor)) = self.rank {
            json.rank(",\"rank", Some(rank));
            cursor.into_iter().for_each(|cursor| json.rank(",\"cursor", cursor.last()));
        }
        json.word(",\"advice", then);
        after.into_iter().for_each(|millis| json.number(",\"retry_after_ms", millis as f64));
        json.0.push_str("}\n");
        json.0
    }
}

/// An object as text. Keys come with all that is before them but a quote.
struct Json(String);

impl Json {
    fn word(&mut self, key: &str, word: &str) {
        [key, "\":\"", word, "\""].into_iter().for_each(|part| self.0.push_str(part));
    }

    fn number(&mut self, key: &str, number: f64) {
        [key, "\":"].into_iter().for_each(|part| self.0.push_str(part));
        push_float(&mut self.0, number);
    }

    /// Both halves of a rank, or none.
    fn rank(&mut self, key: &str, rank: Option<Rank>) {
        [key, "\":["].into_iter().for_each(|part| self.0.push_str(part));
        if let Some(rank) = rank {
            push_number(&mut self.0, rank.business().into());
            self.0.push(',');
            push_number(&mut self.0, rank.user().into());
        }
        self.0.push(']');
    }
}

/// 503 for our overload, 429 for the caller's quota or rate or what it abandoned, 504 for a passed deadline.
pub fn status_of(reason: Reason) -> StatusCode {
    match reason {
        Reason::Quota | Reason::Window | Reason::Rate | Reason::Abandoned => {
            StatusCode::TOO_MANY_REQUESTS
        }
        Reason::Expired => StatusCode::GATEWAY_TIMEOUT,
        Reason::Delay
        | Reason::Rank
        | Reason::Downstream
        | Reason::Wait
        | Reason::Infeasible
        | Reason::Full
        | Reason::PushedOut
        | Reason::Credit
        | Reason::Utilization
        | Reason::Throttle
        | Reason::Chance
        | Reason::Budget
        | Reason::Draining
        | Reason::Broken => StatusCode::SERVICE_UNAVAILABLE,
    }
}

/// The quota as `RateLimit-Policy`, and that nothing of it remains as `RateLimit`. A quota below one
/// per second is one in so many seconds. A window of the calendar has no length that is always the same: it is told when it ends.
fn rate_limit(headers: &mut HeaderMap, rejection: &Rejection, reset: Option<u64>) {
    let (name, limit) = (rejection.reason.token(), rejection.limit);
    if !(limit.is_finite() && limit > 0.0) {
        return;
    }
    let (quota, window) = match rejection.reason {
        Reason::Window => (limit.ceil() as u64, None),
        _ if limit >= 1.0 => (limit as u64, Some(1)),
        _ => (1, Some((1.0 / limit).ceil() as u64)),
    };
    const LARGEST: u64 = 999_999_999_999_999;
    let mut policy = format!("\"{name}\";q={}", quota.min(LARGEST));
    if let Some(window) = window {
        write!(policy, ";w={}", window.min(LARGEST)).expect("a string takes everything");
    }
    let mut left = format!("\"{name}\";r=0");
    if let Some(reset) = reset {
        write!(left, ";t={}", reset.min(LARGEST)).expect("a string takes everything");
    }
    for (field, text) in [(RATE_LIMIT_POLICY, policy), (RATE_LIMIT, left)] {
        headers.insert(field, HeaderValue::try_from(text).expect("printable ASCII"));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::convention::refusal_of;
    use super::*;

    fn rejection(reason: Reason, advice: Advice) -> Rejection {
        Rejection::new(reason, 0.25, 0.1, advice)
    }

    fn of(rejection: &Rejection) -> Refusal<'_> {
        Refusal { rejection, rank: None, grpc: false, jitter: 0.0 }
    }

    fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
        headers.get(name).map(|value| value.to_str().unwrap())
    }

    #[test]
    fn overload_is_503_and_says_when_to_come_back() {
        let later = rejection(Reason::Wait, Advice::Later(Span::from_millis(2_100)));
        let rank = Some((Rank::new(24, 7), Some(Cursor::at(Rank::new(2, 3)))));
        let (status, headers, body) = Refusal { rank, ..of(&later) }.response();
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(text(&headers, "retry-after"), Some("3"));
        assert_eq!(text(&headers, "x-envoy-overloaded"), Some("true"));
        assert_eq!(text(&headers, "content-type"), Some("application/problem+json"));
        assert_eq!(text(&headers, "ratelimit"), None);
        let body = std::str::from_utf8(&body).unwrap();
        for part in [
            "\"status\":503",
            "\"reason\":\"wait\"",
            "\"measured\":0.25,\"limit\":0.1,\"unit\":\"ns\"",
            "\"rank\":[24,7],\"cursor\":[2,3]",
            "\"advice\":\"later\",\"retry_after_ms\":2100}",
        ] {
            assert!(body.contains(part), "{part} in {body}");
        }
    }

    #[test]
    fn a_stranger_learns_no_rank_and_envoy_may_go_elsewhere() {
        let elsewhere = rejection(Reason::Full, Advice::Elsewhere);
        let (_, headers, body) = of(&elsewhere).response();
        assert!(!std::str::from_utf8(&body).unwrap().contains("rank"));
        assert_eq!(text(&headers, "x-envoy-overloaded"), None);
        assert_eq!(text(&headers, "x-envoy-ratelimited"), None);
        let never = rejection(Reason::Full, Advice::Never);
        let (_, headers, _) = of(&never).response();
        assert_eq!(text(&headers, "retry-after"), None);
        assert_eq!(text(&headers, "x-envoy-overloaded"), Some("true"));
        assert_eq!(text(&headers, "x-envoy-ratelimited"), Some("true"));
    }

    #[test]
    fn a_quota_is_429_with_its_fields() {
        let quota = Rejection::new(Reason::Quota, 0.2, 0.1, Advice::Later(Span::from_secs(4)));
        let (status, headers, _) = of(&quota).response();
        assert_eq!(status, StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(text(&headers, "ratelimit-policy"), Some("\"quota\";q=1;w=10"));
        assert_eq!(text(&headers, "ratelimit"), Some("\"quota\";r=0;t=4"));
        assert_eq!(text(&headers, "x-envoy-ratelimited"), Some("true"));
        let twelve_days = Advice::Later(Span::from_secs(12 * 86_400));
        let month = Rejection::new(Reason::Window, 864_001.0, 864_000.0, twelve_days);
        let (_, headers, _) = Refusal { jitter: 1.0, ..of(&month) }.response();
        assert_eq!(text(&headers, "ratelimit-policy"), Some("\"window\";q=864000"));
        assert_eq!(text(&headers, "ratelimit"), Some("\"window\";r=0;t=1036800"));
        assert_eq!(text(&headers, "retry-after"), Some("1036830"), "when it ends, or soon after");
        assert!(month.to_string().contains("864001 in its window, limit 864000 in its window"));
        let expired = rejection(Reason::Expired, Advice::Never);
        assert_eq!(of(&expired).response().0, StatusCode::GATEWAY_TIMEOUT);
    }

    #[test]
    fn grpc_gets_trailers_only() {
        for (reason, advice, code, pushback) in [
            (Reason::Delay, Advice::Elsewhere, "14", "1"),
            (Reason::Delay, Advice::Later(Span::ZERO), "14", "1"),
            (Reason::Delay, Advice::Never, "14", "-1"),
            (Reason::Quota, Advice::Later(Span::from_micros(1_500)), "8", "2"),
            (Reason::Expired, Advice::Never, "4", "-1"),
        ] {
            let rejection = rejection(reason, advice);
            let (status, headers, body) = Refusal { grpc: true, ..of(&rejection) }.response();
            assert_eq!((status, body.len()), (StatusCode::OK, 0));
            assert_eq!(text(&headers, "grpc-status"), Some(code));
            assert_eq!(text(&headers, "grpc-retry-pushback-ms"), Some(pushback));
            let details = text(&headers, "grpc-status-details-bin");
            assert_eq!(details.is_some(), advice != Advice::Never);
            assert!(text(&headers, "grpc-message").unwrap().contains(reason.describe()));
        }
    }

    proptest! {
        /// Nobody is called back early, and everybody within half as long again and a second.
        #[test]
        fn jitter_only_adds(millis in 0..100_000u64, jitter in 0.0..1.0f64) {
            let rejection = rejection(Reason::Delay, Advice::Later(Span::from_millis(millis)));
            let (_, headers, _) = Refusal { jitter, ..of(&rejection) }.response();
            let seconds: u64 = text(&headers, "retry-after").unwrap().parse().unwrap();
            prop_assert!(seconds * 1000 >= millis);
            prop_assert!(seconds * 1000 <= millis + millis / 2 + 2_500);
        }

        /// What a client makes of our words without our field: the same advice, but that a second is
        /// the finest it can be told, and that it is not told of other replicas.
        #[test]
        fn our_refusals_read_as_refusals(at in 0..Reason::ALL.len(), grpc in any::<bool>(), kind in 0..3) {
            let advice = [Advice::Elsewhere, Advice::Later(Span::from_secs(1)), Advice::Never];
            let rejection = rejection(Reason::ALL[at], advice[kind as usize]);
            let (status, headers, _) = Refusal { grpc, ..of(&rejection) }.response();
            let read = refusal_of(status, &headers);
            if grpc && rejection.reason == Reason::Expired {
                prop_assert_eq!(read, None, "the caller knows its own deadline");
            } else {
                let read = read.unwrap();
                prop_assert_eq!(status_of(read.reason), status_of(rejection.reason));
                let soonest = Span::from_millis(if grpc { 1 } else { 1_000 });
                prop_assert_eq!(read.advice, match rejection.advice {
                    _ if rejection.reason == Reason::Expired => Advice::Never,
                    Advice::Elsewhere => Advice::Later(soonest),
                    other => other,
                });
            }
        }
    }
}
