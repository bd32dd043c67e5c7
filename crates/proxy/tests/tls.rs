//! TLS on either side.

#![allow(clippy::disallowed_methods, reason = "real sockets, real threads, real time")]

mod support;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;

use rcgen::{CertificateParams, CertifiedKey, KeyPair, date_time_ymd, generate_simple_self_signed};
use support::{Sidecar, Upstream, file, ok};
use tidegate_proxy::{Address, Source};
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{
    ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection, StreamOwned,
};

/// A certificate for localhost and its key, as files that are removed at the end.
struct Identity {
    cert: PathBuf,
    key: PathBuf,
}

impl Identity {
    fn new(name: &str) -> Self {
        let CertifiedKey { cert, signing_key } =
            generate_simple_self_signed(["localhost".to_owned()]).expect("a certificate");
        let path = |kind| {
            std::env::temp_dir().join(format!("tidegate-{name}-{}.{kind}", std::process::id()))
        };
        let identity = Self { cert: path("cert"), key: path("key") };
        std::fs::write(&identity.cert, cert.pem()).expect("it can be written");
        std::fs::write(&identity.key, signing_key.serialize_pem()).expect("it can be written");
        identity
    }

    fn config(&self) -> String {
        let (cert, key) = (self.cert.display(), self.key.display());
        format!("[proxy.tls]\ncert_file = '{cert}'\nkey_file = '{key}'\n")
    }

    fn roots(&self) -> RootCertStore {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(&self.cert).expect("PEM")).expect("usable");
        roots
    }

    /// Connects as somebody who trusts this identity alone.
    fn connect(
        &self,
        address: SocketAddr,
        protocols: &[&str],
    ) -> std::io::Result<StreamOwned<ClientConnection, TcpStream>> {
        let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_root_certificates(self.roots())
            .with_no_client_auth();
        config.alpn_protocols =
            protocols.iter().map(|protocol| protocol.as_bytes().to_vec()).collect();
        let name = ServerName::try_from("localhost").expect("a name");
        let session = ClientConnection::new(Arc::new(config), name).expect("a session");
        let stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(support::PATIENCE))?;
        let mut stream = StreamOwned::new(session, stream);
        while stream.conn.is_handshaking() {
            stream.conn.complete_io(&mut stream.sock)?;
        }
        Ok(stream)
    }
}

impl Drop for Identity {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.cert);
        let _ = std::fs::remove_file(&self.key);
    }
}

fn get(stream: &mut (impl Read + Write)) -> String {
    let request = "GET / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    stream.write_all(request.as_bytes()).expect("it is read");
    let mut answer = Vec::new();
    // An end without a farewell is an error for rustls, and common.
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

#[test]
fn clients_speak_tls_and_choose_the_version() {
    let identity = Identity::new("listen");
    let upstream = Upstream::start(|_| ok("behind"));
    let sidecar = Sidecar::start(&identity.config(), &[upstream.address]);
    let address = sidecar.handle.listen();
    let mut stream = identity.connect(address, &["http/1.1"]).expect("a connection");
    assert_eq!(stream.conn.alpn_protocol(), Some(&b"http/1.1"[..]));
    let answer = get(&mut stream);
    assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("behind"), "{answer}");
    let both = identity.connect(address, &["http/1.1", "h2"]).expect("a connection");
    assert_eq!(both.conn.alpn_protocol(), Some(&b"h2"[..]));
    // Without a word about versions it is HTTP/1.1; whoever speaks in clear is turned away.
    let mut silent = identity.connect(address, &[]).expect("a connection");
    assert!(get(&mut silent).ends_with("behind"));
    let answer = get(&mut TcpStream::connect(address).expect("it listens"));
    assert!(!answer.contains("200"), "{answer}");
    sidecar.wait_for("a failure", |state| state["tls_failures"] == 1);
}

#[test]
fn a_reload_shows_another_certificate_or_changes_nothing() {
    let (one, two) = (Identity::new("one"), Identity::new("two"));
    let upstream = Upstream::start(|_| ok("behind"));
    let behind = upstream.address;
    let wanted = Arc::new(std::sync::Mutex::new(one.config()));
    let read = Arc::clone(&wanted);
    let source = Source::new(move || Ok(file(&read.lock().unwrap(), &[behind])));
    let sidecar = Sidecar::with_source(file(&one.config(), &[behind]), Some(source));
    let address = sidecar.handle.listen();
    assert!(one.connect(address, &[]).is_ok() && two.connect(address, &[]).is_err());
    *wanted.lock().unwrap() =
        one.config().replace(&*one.key.to_string_lossy(), &two.key.to_string_lossy());
    let error = sidecar.handle.reload().expect_err("a key that does not fit").to_string();
    assert!(error.contains("do not go together"), "{error}");
    assert!(one.connect(address, &[]).is_ok());
    *wanted.lock().unwrap() = two.config();
    sidecar.handle.reload().expect("both are right");
    assert!(one.connect(address, &[]).is_err());
    assert!(get(&mut two.connect(address, &[]).expect("a connection")).ends_with("behind"));
}

/// An HTTPS service on a thread, which answers each connection once.
fn secure_upstream(identity: &Identity) -> u16 {
    let key = PrivateKeyDer::from_pem_file(&identity.key).expect("PEM");
    let cert = CertificateDer::from_pem_file(&identity.cert).expect("PEM");
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(vec![cert], key)
        .expect("they go together");
    let config = Arc::new(config);
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = listener.local_addr().expect("bound").port();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let session = ServerConnection::new(Arc::clone(&config)).expect("a session");
            let mut stream = BufReader::new(StreamOwned::new(session, stream));
            let mut line = String::new();
            while stream.read_line(&mut line).is_ok_and(|length| length > 2) {
                line.clear();
            }
            let answer = "HTTP/1.1 200 OK\r\ncontent-length: 6\r\nconnection: close\r\n\r\nsecret";
            let _ = stream.get_mut().write_all(answer.as_bytes());
            stream.get_mut().conn.send_close_notify();
            let _ = stream.get_mut().flush();
        }
    });
    port
}

#[test]
fn upstreams_speak_tls_and_have_to_be_who_they_are() {
    let (identity, stranger) = (Identity::new("upstream"), Identity::new("stranger"));
    let port = secure_upstream(&identity);
    for (authority, host, status) in [
        (&identity, "localhost", 200),
        (&stranger, "localhost", 502),
        // The certificate is for the name alone.
        (&identity, "127.0.0.1", 502),
    ] {
        let authority = authority.cert.display();
        let mut file = file(&format!("[proxy.tls]\nupstream_ca_file = '{authority}'"), &[]);
        let address: Address = format!("https://{host}:{port}").parse().expect("an address");
        file.proxy.upstreams = vec![address];
        let sidecar = Sidecar::with_source(file, None);
        let reply = sidecar.client().get("/", "");
        assert_eq!(reply.status(), status, "{host}: {}", reply.text());
        assert_eq!(reply.text() == "secret", status == 200);
    }
}

/// An operator learns of it before the clients do.
#[test]
fn an_expired_certificate_is_told_of() {
    let upstream = Upstream::start(|_| ok("served"));
    let identity = Identity::new("expired");
    let expires = |sidecar: &Sidecar| {
        let page = sidecar.admin("/metrics").text();
        let line = page.lines().find_map(|line| {
            line.strip_prefix("tidegate_certificate_expires_seconds ")?.parse::<i64>().ok()
        });
        line.expect("a date")
    };
    let source = {
        let (config, address) = (identity.config(), upstream.address);
        Source::new(move || Ok(file(&config, &[address])))
    };
    let sidecar = Sidecar::with_source(file(&identity.config(), &[upstream.address]), Some(source));
    let long = expires(&sidecar);
    assert!(long > 1_700_000_000, "{long}");
    let mut params = CertificateParams::new(vec!["localhost".to_owned()]).expect("a name");
    params.not_before = date_time_ymd(2001, 1, 1);
    params.not_after = date_time_ymd(2002, 1, 1);
    let key = KeyPair::generate().expect("a key");
    let expired = params.self_signed(&key).expect("signed");
    std::fs::write(&identity.cert, expired.pem()).expect("it can be written");
    std::fs::write(&identity.key, key.serialize_pem()).expect("it can be written");
    sidecar.handle.reload().expect("it can be used, and is told of");
    assert_eq!(expires(&sidecar), 1_009_843_200);
    assert_eq!(sidecar.state()["certificate_expires_unix"], 1_009_843_200);
}
