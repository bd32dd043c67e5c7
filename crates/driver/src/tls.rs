//! Files of certificates and keys, for drivers that speak TLS by rustls with ring.

use std::path::Path;
use std::sync::Arc;

use rustls::RootCertStore;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;

/// Where the usual systems keep the authorities they trust.
const SYSTEM_AUTHORITIES: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// The file with authorities that is given, or else the one that this system trusts, if it is where it usually is.
pub fn authorities(given: Option<&str>) -> Option<&str> {
    given.or_else(|| SYSTEM_AUTHORITIES.into_iter().find(|path| Path::new(path).exists()))
}

/// All certificates in a file; an error if there is none.
pub fn certificates(path: &str) -> Result<Vec<CertificateDer<'static>>, String> {
    let cannot = |error| format!("cannot read certificates in {path}: {error}");
    let list = CertificateDer::pem_file_iter(path).map_err(cannot)?;
    let list = list.collect::<Result<Vec<_>, _>>().map_err(cannot)?;
    if list.is_empty() { Err(format!("{path} has no certificate")) } else { Ok(list) }
}

/// The private key in a file.
pub fn private_key(path: &str) -> Result<PrivateKeyDer<'static>, String> {
    PrivateKeyDer::from_pem_file(path)
        .map_err(|error| format!("cannot read a private key in {path}: {error}"))
}

/// The authorities in a file.
pub fn roots(path: &str) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    let (taken, _) = roots.add_parsable_certificates(certificates(path)?);
    if taken == 0 {
        return Err(format!("{path} has no certificate that can be used"));
    }
    Ok(roots)
}

/// What checks certificates of clients by the authorities in a file; where they are optional, a client may have none.
pub fn client_verifier(path: &str, optional: bool) -> Result<Arc<dyn ClientCertVerifier>, String> {
    let (roots, provider) = (Arc::new(roots(path)?), Arc::new(ring::default_provider()));
    let mut verifier = WebPkiClientVerifier::builder_with_provider(roots, provider);
    if optional {
        verifier = verifier.allow_unauthenticated();
    }
    verifier.build().map_err(|error| format!("{path} cannot be used to check clients: {error}"))
}
