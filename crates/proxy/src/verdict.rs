//! [`Verdict`]: what an answer says about the service.
//!
//! Its status does, and of gRPC, whose status is always 200, the field `grpc-status`: in the head if there is nothing else, mostly
//! in the trailers. A service that refuses has not served, however quick it is about it.

use bytes::Bytes;
use http::{HeaderMap, HeaderName, StatusCode};
use http_body::Frame;
use tidegate_core::Outcome;
use tidegate_http::wire;

const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");

/// How an answer is booked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Verdict {
    pub(crate) outcome: Outcome,
    /// Whether it is a refusal of the service's own.
    pub(crate) refused: bool,
    grpc: bool,
}

impl Verdict {
    /// What the head says, which may be `mentioned` to say more than its status.
    pub(crate) fn of_head(status: StatusCode, headers: &HeaderMap, mentioned: bool) -> Self {
        let grpc = wire::is_grpc(headers);
        let refused = status == StatusCode::BAD_GATEWAY
            || (mentioned || grpc || status != StatusCode::OK)
                && wire::refusal_of(status, headers).is_some();
        let failed = status.is_server_error() || refused;
        let outcome = if failed { Outcome::Fail } else { Outcome::Serve };
        let mut verdict = Self { outcome, refused, grpc };
        verdict.read(headers);
        verdict
    }

    /// What a piece of the body says.
    pub(crate) fn hear(&mut self, piece: &Frame<Bytes>) {
        if let Some(trailers) = piece.trailers_ref() {
            self.read(trailers);
        }
    }

    fn read(&mut self, fields: &HeaderMap) {
        let Some(status) = fields.get(GRPC_STATUS).filter(|_| self.grpc) else { return };
        match status.as_bytes() {
            // RESOURCE_EXHAUSTED, UNAVAILABLE.
            b"8" | b"14" => (self.outcome, self.refused) = (Outcome::Fail, true),
            // DEADLINE_EXCEEDED, INTERNAL.
            b"4" | b"13" => self.outcome = Outcome::Fail,
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(list: &[(&'static str, &'static str)]) -> HeaderMap {
        let field = |(name, value): &(&'static str, &'static str)| {
            (HeaderName::from_static(name), http::HeaderValue::from_static(value))
        };
        list.iter().map(field).collect()
    }

    #[test]
    fn the_status_of_grpc_decides_and_that_of_nothing_else() {
        let grpc = ("content-type", "application/grpc+proto");
        let trailers = |status| Frame::trailers(fields(&[("grpc-status", status)]));
        for (status, failed, refused) in [
            ("0", false, false),
            ("5", false, false),
            ("8", true, true),
            ("14", true, true),
            ("4", true, false),
            ("13", true, false),
        ] {
            let outcome = if failed { Outcome::Fail } else { Outcome::Serve };
            let wanted = Verdict { outcome, refused, grpc: true };
            let head = fields(&[grpc, ("grpc-status", status)]);
            assert_eq!(Verdict::of_head(StatusCode::OK, &head, true), wanted, "{status}");
            let mut verdict = Verdict::of_head(StatusCode::OK, &fields(&[grpc]), false);
            verdict.hear(&trailers(status));
            assert_eq!(verdict, wanted, "{status}");
        }
        let mut plain = Verdict::of_head(StatusCode::OK, &HeaderMap::new(), false);
        plain.hear(&trailers("14"));
        assert_eq!((plain.outcome, plain.refused), (Outcome::Serve, false));
        for (status, failed, refused) in
            [(404, false, false), (429, true, true), (500, true, false), (503, true, true)]
        {
            let status = StatusCode::from_u16(status).expect("a status");
            let verdict = Verdict::of_head(status, &HeaderMap::new(), false);
            let outcome = if failed { Outcome::Fail } else { Outcome::Serve };
            assert_eq!((verdict.outcome, verdict.refused), (outcome, refused), "{status}");
        }
    }
}
