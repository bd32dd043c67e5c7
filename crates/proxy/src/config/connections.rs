//! Blocks `[proxy.connections]` and `[proxy.tls]`.

use serde::{Deserialize, Serialize};
use tidegate_core::Span;
use tidegate_core::config::Problems;

/// What client connections may take.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ConnectionsConfig {
    /// Most client connections at once, upgraded ones included; beyond, an idle one makes room for a new one, or that is closed. A bound
    /// on memory and file descriptors. Default 10,000: some 200 MB in use, and what two descriptors
    /// each allow under a limit of 20,480.
    pub most: u64,
    /// Most of one address (of IPv6 of one first half); 0 is no limit. Beyond, an idle one of its own makes room, or the new one is
    /// closed. Addresses in `edge.trusted` have no limit, as they speak for many. Fewer leave more to others; too few cut off
    /// clients behind one address. Default 2,500: a quarter of all.
    pub per_address: u64,
    /// Most connections that have changed their protocol, such as WebSockets; a request for another is answered with 503. Default 5,000:
    /// half of all, so that there is always room for requests.
    pub tunnels: u64,
    /// How long one of them is kept while nothing moves on it. Longer than the pings of those who talk; shorter forgets
    /// sooner those that are gone without a word. Default 5 min, as Envoy.
    pub tunnel_idle_timeout: Span,
    /// Most new client connections per second, beyond a second's worth at once; 0 is no limit. Fewer
    /// spares the processor TLS handshakes. Default 0.
    pub per_second: u32,
    /// How long a client connection is kept without a request on it; then it is told to end. Longer
    /// than what balancers in front of us keep, or they send on a connection that is just closed.
    /// Default 75 s, as nginx: above the 60 s of common balancers.
    pub idle_timeout: Span,
    /// Age at which a client connection is told to end, so that clients spread over new replicas; 0 is
    /// never. Default 0.
    pub max_age: Span,
    /// Most header fields of a request over HTTP/1.1. Default 100 (hyper's).
    pub headers: usize,
    /// Most bytes of a request's head. Default 64 kB: four times what browsers and balancers allow.
    pub header_bytes: usize,
    /// Most requests at once on one HTTP/2 connection. Default 256: above the 100 that RFC 9113 asks
    /// for at least, and a bound on what one client can begin and abandon.
    pub streams: u32,
}

impl Default for ConnectionsConfig {
    fn default() -> Self {
        Self {
            most: 10_000,
            per_address: 2_500,
            tunnels: 5_000,
            tunnel_idle_timeout: Span::from_secs(300),
            per_second: 0,
            idle_timeout: Span::from_secs(75),
            max_age: Span::ZERO,
            headers: 100,
            header_bytes: 64 * 1024,
            streams: 256,
        }
    }
}

impl ConnectionsConfig {
    /// Notes everything that is wrong with the parameters.
    pub fn validate(&self, problems: &mut Problems) {
        problems.check("most", self.most, self.most >= 1, "at least 1");
        let idle = self.idle_timeout;
        problems.check("idle_timeout", idle, idle >= Span::from_millis(1), "at least 1ms");
        let tunnel = self.tunnel_idle_timeout;
        let fine = tunnel >= Span::from_millis(1);
        problems.check("tunnel_idle_timeout", tunnel, fine, "at least 1ms");
        let age = self.max_age;
        let fine = age == Span::ZERO || age >= Span::from_millis(1);
        problems.check("max_age", age, fine, "0s, or at least 1ms");
        let headers = self.headers;
        problems.check("headers", headers, (1..=10_000).contains(&headers), "1 to 10000");
        let bytes = self.header_bytes;
        // hyper reads no less at once.
        problems.check(
            "header_bytes",
            bytes,
            (8_192..=1 << 24).contains(&bytes),
            "8192 to 16777216",
        );
        problems.check("streams", self.streams, self.streams >= 1, "at least 1");
    }
}

/// TLS on either side. Paths of files in PEM; they are read again at a reload.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TlsConfig {
    /// Certificates to show to clients, our own first. Default: none, and clients speak in clear.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cert_file: Option<String>,
    /// The private key that belongs to them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_file: Option<String>,
    /// Authorities that certificates of clients must come from. Whom such a certificate is for is a user, however often it is renewed.
    /// Default: none, and clients are not asked for certificates.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_ca_file: Option<String>,
    /// Whether clients without one are served, too. Default required.
    pub client_certificates: ClientCertificates,
    /// Authorities that certificates of upstreams (`https`, `h2`) must come from. Default: those that
    /// the system trusts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub upstream_ca_file: Option<String>,
}

/// What is asked of clients where there are authorities for them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ClientCertificates {
    /// A certificate, or there is no connection.
    #[default]
    Required,
    /// None, but what is shown has to be good.
    Optional,
}

impl TlsConfig {
    pub(crate) fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// Notes everything that is wrong with the parameters.
    pub fn validate(&self, problems: &mut Problems) {
        let both = self.cert_file.is_some() == self.key_file.is_some();
        let given = self.cert_file.as_ref().or(self.key_file.as_ref());
        let given = given.map_or("", |path| path.as_str());
        problems.check("cert_file", given, both, "cert_file and key_file, or neither");
        let clients = self.client_ca_file.as_deref().unwrap_or_default();
        let fine = clients.is_empty() || self.cert_file.is_some();
        problems.check("client_ca_file", clients, fine, "only with cert_file");
    }
}
