//! TLS on either side, by rustls with ring.
//!
//! Files are read at the start and at every reload; one that is wrong leaves everything as it was.
//! Connections that are open keep the certificate they began with.

use std::path::Path;
use std::sync::Arc;

use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::server::danger::ClientCertVerifier;
use tokio_rustls::rustls::{ClientConfig, RootCertStore, ServerConfig};

use crate::config::{ClientCertificates, ProxyConfig, Scheme, TlsConfig};

/// What is spoken over TLS (RFC 7301).
pub(crate) const H2: &[u8] = b"h2";
const HTTP1: &[u8] = b"http/1.1";

/// Where the usual systems keep the authorities they trust.
const SYSTEM_AUTHORITIES: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// Both sides; none where it is spoken in clear.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tls {
    /// Towards clients.
    pub(crate) server: Option<Arc<ServerConfig>>,
    /// Towards upstreams.
    pub(crate) client: Option<Arc<ClientConfig>>,
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
        Ok(Self { server, client })
    }
}

fn server(cert_file: &str, key_file: &str, config: &TlsConfig) -> Result<ServerConfig, String> {
    let chain = certificates(cert_file)?;
    let key = PrivateKeyDer::from_pem_file(key_file)
        .map_err(|error| format!("cannot read a private key in {key_file}: {error}"))?;
    let clients = match &config.client_ca_file {
        None => WebPkiClientVerifier::no_client_auth(),
        Some(path) => clients(path, config.client_certificates)?,
    };
    let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .and_then(|builder| builder.with_client_cert_verifier(clients).with_single_cert(chain, key))
        .map_err(|error| format!("{cert_file} and {key_file} do not go together: {error}"))?;
    config.alpn_protocols = vec![H2.to_vec(), HTTP1.to_vec()];
    Ok(config)
}

/// What checks certificates of clients.
fn clients(path: &str, asked: ClientCertificates) -> Result<Arc<dyn ClientCertVerifier>, String> {
    let (roots, provider) = (Arc::new(roots(path)?), Arc::new(ring::default_provider()));
    let mut verifier = WebPkiClientVerifier::builder_with_provider(roots, provider);
    if asked == ClientCertificates::Optional {
        verifier = verifier.allow_unauthenticated();
    }
    verifier.build().map_err(|error| format!("{path} cannot be used to check clients: {error}"))
}

/// The authorities in a file.
fn roots(path: &str) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    let (taken, _) = roots.add_parsable_certificates(certificates(path)?);
    if taken == 0 {
        return Err(format!("{path} has no certificate that can be used"));
    }
    Ok(roots)
}

fn client(authorities: Option<&str>, scheme: Scheme) -> Result<ClientConfig, String> {
    let system = || SYSTEM_AUTHORITIES.into_iter().find(|path| Path::new(path).exists());
    let path = authorities.or_else(system).ok_or_else(|| {
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

fn certificates(path: &str) -> Result<Vec<CertificateDer<'static>>, String> {
    let cannot = |error| format!("cannot read certificates in {path}: {error}");
    let list = CertificateDer::pem_file_iter(path).map_err(cannot)?;
    let list = list.collect::<Result<Vec<_>, _>>().map_err(cannot)?;
    if list.is_empty() { Err(format!("{path} has no certificate")) } else { Ok(list) }
}
