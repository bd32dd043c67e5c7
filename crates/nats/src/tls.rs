//! TLS on either side, by rustls with ring. Files are read at the start and at every reload.

use std::sync::Arc;

use rustls::crypto::ring;
use rustls::pki_types::ServerName;
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, ServerConfig};
use tidegate_driver::tls::{authorities, certificates, client_verifier, private_key, roots};

use crate::config::{Address, NatsConfig, TlsConfig};

/// Both sides; none where it is spoken in clear.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tls {
    /// Towards clients.
    pub(crate) clients: Option<Arc<ServerConfig>>,
    /// Towards brokers.
    pub(crate) brokers: Option<Arc<ClientConfig>>,
}

impl Tls {
    /// What the configuration asks for, or what is wrong with its files.
    pub(crate) fn new(config: &NatsConfig) -> Result<Self, String> {
        let tls = &config.tls;
        let clients = match (&tls.cert_file, &tls.key_file) {
            (Some(cert), Some(key)) => Some(Arc::new(towards_clients(cert, key, tls)?)),
            _ => None,
        };
        let any = config.brokers.iter().any(Address::is_tls);
        let brokers = if any { Some(Arc::new(towards_brokers(tls)?)) } else { None };
        Ok(Self { clients, brokers })
    }
}

fn towards_clients(cert: &str, key: &str, tls: &TlsConfig) -> Result<ServerConfig, String> {
    let verifier = match &tls.client_ca_file {
        None => WebPkiClientVerifier::no_client_auth(),
        Some(path) => client_verifier(path, false)?,
    };
    let (chain, secret) = (certificates(cert)?, private_key(key)?);
    ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .and_then(|builder| {
            builder.with_client_cert_verifier(verifier).with_single_cert(chain, secret)
        })
        .map_err(|error| format!("{cert} and {key} do not go together: {error}"))
}

fn towards_brokers(tls: &TlsConfig) -> Result<ClientConfig, String> {
    let path = authorities(tls.broker_ca_file.as_deref());
    let path = path.ok_or("no authority for brokers with TLS: set nats.tls.broker_ca_file")?;
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| format!("TLS cannot be set up: {error}"))?
        .with_root_certificates(roots(path)?);
    match (&tls.broker_cert_file, &tls.broker_key_file) {
        (Some(cert), Some(key)) => builder
            .with_client_auth_cert(certificates(cert)?, private_key(key)?)
            .map_err(|error| format!("{cert} and {key} do not go together: {error}")),
        _ => Ok(builder.with_no_client_auth()),
    }
}

/// What a broker's certificate is to be for.
pub(crate) fn name(address: &Address) -> Result<ServerName<'static>, String> {
    let host = address.host().to_owned();
    ServerName::try_from(host).map_err(|error| format!("{address} is no name for TLS: {error}"))
}
