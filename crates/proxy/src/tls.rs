//! TLS on either side, by rustls with ring.
//!
//! Files are read at the start and at every reload; one that is wrong leaves everything as it was.
//! Connections that are open keep the certificate they began with.

use std::sync::Arc;
use std::time::Duration;

use tidegate_driver::tls::{authorities, certificates, client_verifier, private_key, roots};
use tokio::time::sleep;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{ClientConfig, ServerConfig};

use crate::certificate::Certificate;
use crate::config::{ClientCertificates, ProxyConfig, Scheme, TlsConfig};
use crate::log::unix_ms;
use crate::server::Shared;

/// What is spoken over TLS (RFC 7301).
pub(crate) const H2: &[u8] = b"h2";
const HTTP1: &[u8] = b"http/1.1";

/// Both sides; none where it is spoken in clear.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tls {
    /// Towards clients.
    pub(crate) server: Option<Arc<ServerConfig>>,
    /// Towards upstreams.
    pub(crate) client: Option<Arc<ClientConfig>>,
    /// When the certificate that clients are shown is no longer good, in seconds since 1970.
    pub(crate) until: Option<i64>,
}

impl Tls {
    /// What `config` asks for, or what is wrong with its files.
    pub(crate) fn new(config: &ProxyConfig) -> Result<Self, String> {
        let TlsConfig { cert_file, key_file, upstream_ca_file, .. } = &config.tls;
        let server = match (cert_file, key_file) {
            (Some(cert), Some(key)) => Some(Arc::new(server(cert, key, &config.tls)?)),
            _ => None,
        };
        let mut schemes = config.addresses().map(|address| address.scheme);
        let client = match schemes.find(|scheme| scheme.is_secure()) {
            Some(scheme) => Some(Arc::new(client(upstream_ca_file.as_deref(), scheme)?)),
            None => None,
        };
        let until = match cert_file {
            Some(path) => Certificate::read(&certificates(path)?[0]).map(|it| it.until),
            None => None,
        };
        Ok(Self { server, client, until })
    }
}

/// Time between two looks at the certificate.
const LOOK: Duration = Duration::from_secs(1);

/// Tells when the certificate that clients are shown is no longer good, a line for each: at the start, after a reload, and when its
/// time has come.
pub(crate) async fn tell_expiry(shared: Arc<Shared>) {
    let mut told = None;
    loop {
        let until = shared.certificate_until();
        let now = i64::try_from(unix_ms() / 1000).unwrap_or(i64::MAX);
        if until.is_some_and(|until| until < now) && told != until {
            shared.log(&"the certificate in proxy.tls.cert_file has expired: clients turn it down");
            told = until;
        }
        sleep(LOOK).await;
    }
}

fn server(cert_file: &str, key_file: &str, config: &TlsConfig) -> Result<ServerConfig, String> {
    let chain = certificates(cert_file)?;
    let key = private_key(key_file)?;
    let clients = match &config.client_ca_file {
        None => WebPkiClientVerifier::no_client_auth(),
        Some(path) => {
            client_verifier(path, config.client_certificates == ClientCertificates::Optional)?
        }
    };
    let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .and_then(|builder| builder.with_client_cert_verifier(clients).with_single_cert(chain, key))
        .map_err(|error| format!("{cert_file} and {key_file} do not go together: {error}"))?;
    config.alpn_protocols = vec![H2.to_vec(), HTTP1.to_vec()];
    Ok(config)
}

fn client(given: Option<&str>, scheme: Scheme) -> Result<ClientConfig, String> {
    let path = authorities(given).ok_or_else(|| {
        "no authority for upstreams with TLS: set proxy.tls.upstream_ca_file".to_owned()
    })?;
    let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| format!("TLS cannot be set up: {error}"))?
        .with_root_certificates(roots(path)?)
        .with_no_client_auth();
    let protocol = if scheme == Scheme::H2 { H2 } else { HTTP1 };
    config.alpn_protocols = vec![protocol.to_vec()];
    Ok(config)
}
