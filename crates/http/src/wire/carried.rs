//! Which of the fields that a gate reads are there at all: [`Carried`].
//!
//! To look a field up is to hash its name, and most messages have few of those that a gate asks for. One
//! pass over the names says which are worth a look.

use http::{HeaderMap, HeaderValue};

/// Carried of a request, by what they are about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Carried<'a> {
    /// `overload-context`.
    pub context: bool,
    /// How long its sender waits, in the words of gRPC or Envoy.
    pub timeout: bool,
    /// Which attempt it is, likewise.
    pub attempt: bool,
    /// Of what kind its body is.
    pub content_type: bool,
    /// The credentials of whom it is from.
    pub authorization: Option<&'a HeaderValue>,
    /// Cookies.
    pub cookies: bool,
}

impl<'a> Carried<'a> {
    /// Those that `headers` have.
    pub fn of(headers: &'a HeaderMap) -> Self {
        let mut carried = Self::default();
        for (name, value) in headers {
            match name.as_str() {
                "overload-context" => carried.context = true,
                "grpc-timeout" | "x-envoy-expected-rq-timeout-ms" => carried.timeout = true,
                "grpc-previous-rpc-attempts" | "x-envoy-attempt-count" => carried.attempt = true,
                "content-type" => carried.content_type = true,
                "authorization" => carried.authorization = carried.authorization.or(Some(value)),
                "cookie" => carried.cookies = true,
                _ => {}
            }
        }
        carried
    }
}

/// Takes out of a response what a service behind told us: it is not for our callers.
pub(crate) fn forget_reports(headers: &mut HeaderMap) {
    let reports = |name: &str| name.starts_with("overload-") || name.starts_with("endpoint-");
    if headers.keys().any(|name| reports(name.as_str())) {
        for field in [super::FEEDBACK, super::LOAD, super::LOAD_BIN] {
            headers.remove(field);
        }
    }
}

#[cfg(test)]
mod tests {
    use http::{HeaderName, header};
    use tidegate_core::{Instant, Span};

    use super::*;
    use crate::{identity, wire};

    fn headers(names: &[&'static str]) -> HeaderMap {
        let value = HeaderValue::from_static("1");
        names.iter().map(|name| (HeaderName::from_static(name), value.clone())).collect()
    }

    /// Whatever is read of a request is read only if the pass has seen it: the names must be the same.
    #[test]
    fn what_is_read_is_seen() {
        for (name, text) in [
            ("overload-context", "a=1"),
            ("grpc-timeout", "5S"),
            ("x-envoy-expected-rq-timeout-ms", "5"),
            ("grpc-previous-rpc-attempts", "1"),
            ("x-envoy-attempt-count", "2"),
            ("content-type", "application/grpc"),
            ("authorization", "Bearer t"),
            ("cookie", "sid=1"),
        ] {
            let mut headers = headers(&["host", "accept"]);
            assert_eq!(Carried::of(&headers), Carried::default());
            headers.insert(name, HeaderValue::from_static(text));
            let seen = Carried::of(&headers);
            let read = Carried {
                context: wire::context_of(&headers, Instant::ZERO, &Default::default()).is_some(),
                timeout: wire::timeout_of(&headers).is_some_and(|left| left > Span::ZERO),
                attempt: wire::attempt_of(&headers).is_some(),
                content_type: wire::is_grpc(&headers),
                authorization: headers.get(header::AUTHORIZATION),
                cookies: identity::session(&headers).is_some(),
            };
            assert_eq!(seen, read, "{name}");
        }
    }

    #[test]
    fn reports_of_services_behind_are_forgotten() {
        let names = ["overload-feedback", "endpoint-load-metrics", "endpoint-load-metrics-bin"];
        for name in names {
            let mut response = headers(&["content-type", name]);
            forget_reports(&mut response);
            assert_eq!(response, headers(&["content-type"]), "{name}");
        }
        let mut other = headers(&["endpoint-name", "overload-context"]);
        forget_reports(&mut other);
        assert_eq!(other.len(), 2);
    }
}
