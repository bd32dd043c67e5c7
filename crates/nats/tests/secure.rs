//! TLS on either side, and clients that prove who they are by an nkey.

#![allow(clippy::disallowed_methods, reason = "tests wait for real servers")]

mod support;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;

use ring::signature::{Ed25519KeyPair, KeyPair};
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use serde_json::{Value, json};
use support::{Broker, PATIENCE, World};
use tidegate_nats::wire::nkey::UserKey;
use tidegate_nats::{File, Gate};

/// Files that are removed at the end.
struct Files(Vec<PathBuf>);

impl Files {
    fn write(&mut self, name: &str, text: &str) -> String {
        let path = std::env::temp_dir().join(format!("tidegate-{}-{name}", std::process::id()));
        std::fs::write(&path, text).expect("it can be written");
        self.0.push(path.clone());
        path.display().to_string()
    }

    /// A certificate for this machine and its key.
    fn identity(&mut self, name: &str) -> (String, String) {
        let names = ["localhost".to_owned(), "127.0.0.1".to_owned()];
        let made = rcgen::generate_simple_self_signed(names).expect("a certificate");
        let cert = self.write(&format!("{name}.cert"), &made.cert.pem());
        (cert, self.write(&format!("{name}.key"), &made.signing_key.serialize_pem()))
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        self.0.iter().for_each(|path| drop(std::fs::remove_file(path)));
    }
}

/// INFO, and the connection behind it.
fn greeted(at: SocketAddr) -> (Value, TcpStream) {
    let mut stream = TcpStream::connect(at).expect("it listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("a time-out");
    // A byte at a time, so that nothing of what follows is read.
    let (mut line, mut byte) = (Vec::new(), [0]);
    while !line.ends_with(b"\r\n") {
        stream.read_exact(&mut byte).expect("a line");
        line.push(byte[0]);
    }
    let json = line.strip_prefix(b"INFO ").expect("INFO");
    (serde_json::from_slice(json).expect("an object"), stream)
}

/// A connection by TLS, behind INFO in clear.
fn secured(at: SocketAddr, cert: &str) -> BufReader<StreamOwned<ClientConnection, TcpStream>> {
    let (info, stream) = greeted(at);
    assert_eq!(info["tls_required"], true, "{info}");
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(cert).expect("PEM")).expect("usable");
    let config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = ServerName::try_from("localhost").expect("a name");
    let session = ClientConnection::new(Arc::new(config), name).expect("a session");
    BufReader::new(StreamOwned::new(session, stream))
}

/// The next line that is not about keeping the connection.
fn line(from: &mut impl BufRead) -> String {
    let mut line = String::new();
    from.read_line(&mut line).expect("a line");
    if line.starts_with("INFO") || line == "PING\r\n" { self::line(from) } else { line }
}

#[test]
fn clients_and_brokers_speak_tls_and_clear_words_are_not_heard() {
    let mut files = Files(Vec::new());
    let (cert, key) = files.identity("tls");
    let Some(broker) = Broker::start(&["--tls", "--tlscert", &cert, "--tlskey", &key]) else {
        return;
    };
    let more = format!(
        "[nats.tls]\ncert_file = '{cert}'\nkey_file = '{key}'\nbroker_ca_file = '{cert}'\n"
    );
    // As an address in clear it is refused before anything is served.
    let text = format!(
        "[nats]\nlisten = '127.0.0.1:0'\nadmin = '127.0.0.1:0'\nbrokers = ['{}']\n",
        broker.url
    );
    let told = Gate::bind(File::parse(&text).expect("valid"), |_| {}).expect_err("it asks for TLS");
    assert!(told.to_string().contains("give it as tls://"), "{told}");
    let url = broker.url.replace("nats://", "tls://");
    // And whoever does not know its authority does not believe it.
    let other = files.identity("other").0;
    let text =
        text.replace("nats://", "tls://") + &format!("[nats.tls]\nbroker_ca_file = '{other}'\n");
    let told = Gate::bind(File::parse(&text).expect("valid"), |_| {}).expect_err("a stranger");
    assert!(told.to_string().contains("cannot be spoken to by TLS"), "{told}");

    let world = World::at(&[url], vec![broker], &more);
    world.until_all_are_up();
    let mut client = secured(world.listen, &cert);
    // More than a session keeps at once, and more than a record holds.
    let (payload, count) = ("x".repeat(200_000), 10);
    let mut text = "CONNECT {\"verbose\":false}\r\nSUB a 1\r\n".to_owned();
    for _ in 0..count {
        text += &format!("PUB a {}\r\n{payload}\r\n", payload.len());
    }
    client.get_mut().write_all(text.as_bytes()).expect("it reads");
    for _ in 0..count {
        assert_eq!(line(&mut client), "MSG a 1 200000\r\n");
        assert_eq!(line(&mut client).trim_end(), payload);
    }
    // A fault is told, by TLS, before the end.
    client.get_mut().write_all(b"NONSENSE\r\n").expect("it reads");
    assert!(line(&mut client).starts_with("-ERR 'Unknown Protocol"), "it is told");
    assert_eq!(line(&mut client), "");

    let (_, mut clear) = greeted(world.listen);
    clear.write_all(b"CONNECT {\"verbose\":false}\r\nPING\r\n").expect("it reads");
    let mut rest = Vec::new();
    // Reset or not, it hears no PONG.
    let _ = clear.read_to_end(&mut rest);
    assert!(!rest.windows(4).any(|at| at == b"PONG"), "{rest:?}");
    assert_eq!(world.until("their end", |state| state["clients"] == 0)["published"], 10);
}

#[test]
fn a_signature_is_checked_and_brokers_hear_a_user() {
    let mut files = Files(Vec::new());
    let password = files.write("password", "b\n");
    let Some(broker) = Broker::start(&["--user", "a", "--pass", "b"]) else { return };
    let key = Ed25519KeyPair::from_seed_unchecked(&[7; 32]).expect("a key");
    let public: [u8; 32] = key.public_key().as_ref().try_into().expect("32 bytes");
    let nkey = UserKey::from(public).to_string();
    let more =
        format!("[[nats.users]]\nnkey = '{nkey}'\nuser = 'a'\npassword_file = '{password}'\n");
    let world = World::before(vec![broker], &more);
    let connect = |nkey: &str, sign: &dyn Fn(&str) -> String| {
        let (info, stream) = greeted(world.listen);
        assert_eq!(info["auth_required"], true);
        let nonce = info["nonce"].as_str().expect("a nonce").to_owned();
        let told = json!({ "verbose": false, "name": "n", "nkey": nkey, "sig": sign(&nonce) });
        let mut stream = BufReader::new(stream);
        let text = format!("CONNECT {told}\r\nPING\r\n");
        stream.get_mut().write_all(text.as_bytes()).expect("it reads");
        (line(&mut stream), nonce, stream)
    };
    let sign = |nonce: &str| base64(key.sign(nonce.as_bytes()).as_ref());
    let (heard, nonce, _kept) = connect(&nkey, &sign);
    assert_eq!(heard, "PONG\r\n");
    assert_eq!(world.of("n")["user"], "a");
    let violation = "-ERR 'Authorization Violation'\r\n";
    // What was signed for another connection, by another key, or not at all.
    assert_eq!(connect(&nkey, &|_| sign(&nonce)).0, violation);
    let other = Ed25519KeyPair::from_seed_unchecked(&[8; 32]).expect("a key");
    let others = |nonce: &str| base64(other.sign(nonce.as_bytes()).as_ref());
    assert_eq!(connect(&nkey, &others).0, violation);
    let public: [u8; 32] = other.public_key().as_ref().try_into().expect("32 bytes");
    assert_eq!(connect(&UserKey::from(public).to_string(), &others).0, violation);
    assert_eq!(connect(&nkey, &|_| String::new()).0, violation);
    // Other credentials are the brokers' to check.
    let mut wrong = support::Client::raw(world.listen);
    wrong.send("CONNECT {\"verbose\":false,\"user\":\"a\",\"pass\":\"c\"}\r\nPING\r\n");
    let support::Heard::Error(told) = wrong.hear() else { panic!("it passed") };
    assert!(told.contains("Authorization Violation"), "{told}");
    let mut right = support::Client::raw(world.listen);
    right.send("CONNECT {\"verbose\":false,\"user\":\"a\",\"pass\":\"b\"}\r\nPING\r\n");
    assert_eq!(right.hear(), support::Heard::Pong);
}

fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let (mut kept, mut bits, mut text) = (0u32, 0, String::new());
    for byte in bytes.iter().chain(&[0]) {
        (kept, bits) = (kept << 8 | u32::from(*byte), bits + 8);
        while bits >= 6 {
            bits -= 6;
            text.push(char::from(LETTERS[(kept >> bits & 63) as usize]));
        }
    }
    text.truncate((bytes.len() * 8).div_ceil(6));
    text
}
