//! Whose a request is: what strangers say of that, what proxies of ours say, and what certificates do.

#![allow(clippy::disallowed_methods, reason = "real sockets, real threads, real time")]

mod support;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use socket2::{Domain, Socket, Type};
use support::{Client, Reply, Sidecar, Upstream, ok};
use tidegate_proxy::{File, Source};
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

/// Refuses by its bounds alone, however slow the machine that runs this is.
const OPEN: &str = "[gate.admission]\npolicy = 'open'\n";

/// Answers with the fields it was sent, a line each.
fn mirror() -> Upstream {
    Upstream::start(|request| {
        let lines = request.headers.iter().chain(&request.trailers);
        ok(&lines.map(|(name, value)| format!("{name}: {value}\n")).collect::<String>())
    })
}

fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
}

/// The rank by which a request was judged, as the service is told.
fn rank(text: &str) -> String {
    let context = field(text, "overload-context").expect("a context");
    context.split(')').next().expect("a rank").to_owned()
}

/// A client that comes from `address`.
fn from(address: [u8; 4], sidecar: &Sidecar) -> Client {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    socket.bind(&SocketAddr::from((address, 0)).into()).expect("all of 127.0.0.0/8 is ours");
    socket.connect(&sidecar.handle.listen().into()).expect("somebody listens");
    Client::of(TcpStream::from(socket))
}

/// Whoever may make up what tells users apart finds a rank that is served.
#[test]
fn made_up_credentials_are_no_lottery() {
    let upstream = mirror();
    let tries =
        ["authorization: Bearer 1", "authorization: Bearer 2", "cookie: sid=1", "x-user: ann"];
    for (config, apart) in [("", 1), ("[proxy.edge]\nverified_credentials = true\n", 4)] {
        let config = format!("{OPEN}[proxy]\nuser_header = 'x-user'\n{config}");
        let sidecar = Sidecar::start(&config, &[upstream.address]);
        let ask = |line: &str| rank(&sidecar.client().get("/", &format!("{line}\r\n")).text());
        let mut ranks: Vec<String> = tries.iter().map(|line| ask(line)).collect();
        ranks.sort();
        ranks.dedup();
        assert_eq!(ranks.len(), apart, "{ranks:?}");
    }
}

/// Behind a balancer everybody would be one user, and anybody could be another by a word.
#[test]
fn addresses_and_users_come_through_trusted_hops_alone() {
    let upstream = mirror();
    let config =
        "[proxy]\nuser_header = 'x-user'\nedge = { trusted = ['127.0.0.1', '10.0.0.0/8'] }\n";
    let sidecar = Sidecar::start(&format!("{OPEN}{config}"), &[upstream.address]);
    let ask = |address, fields: &str| from(address, &sidecar).get("/", fields).text();
    let (hop, stranger) = ([127, 0, 0, 1], [127, 0, 0, 2]);
    let ann = rank(&ask(hop, "x-forwarded-for: 9.9.9.9\r\n"));
    assert_eq!(ann, rank(&ask(hop, "x-forwarded-for: 8.8.8.8, 9.9.9.9, 10.1.1.1\r\n")));
    assert_ne!(ann, rank(&ask(hop, "x-forwarded-for: 9.9.9.8\r\n")));
    assert_ne!(ann, rank(&ask(hop, "x-forwarded-for: 9.9.9.9\r\nx-user: ann\r\n")));
    let nobody = rank(&ask(stranger, ""));
    for claim in ["x-forwarded-for: 9.9.9.9\r\n", "x-user: ann\r\n", "forwarded: for=9.9.9.9\r\n"] {
        assert_eq!(nobody, rank(&ask(stranger, claim)), "{claim}");
    }
    // Nor are such words passed on to a service that would take them.
    let claims = "x-forwarded-proto: https\r\nx-real-ip: 1.1.1.1\r\nx-user: ann\r\n\
                  forwarded: for=1.1.1.1\r\nx-original-url: /expensive\r\n";
    let names = ["x-forwarded-proto", "x-real-ip", "x-user", "forwarded", "x-original-url"];
    let (by_stranger, by_hop) = (ask(stranger, claims), ask(hop, claims));
    assert_eq!(names.map(|name| field(&by_stranger, name).is_some()), [false; 5], "{by_stranger}");
    let passed = names.map(|name| field(&by_hop, name).is_some());
    assert_eq!(passed, [true, true, true, false, true], "{by_hop}");
    assert_eq!(field(&by_stranger, "x-forwarded-for"), Some("127.0.0.2"));
}

/// A good token is the same user from wherever it comes, and a forged one nobody but its address.
#[test]
fn a_user_is_who_a_good_token_says() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/jwt");
    let token = include_str!("../testdata/jwt/rs256.token").trim_end();
    let upstream = mirror();
    let config = format!(
        "{OPEN}[proxy.jwt]\njwks_file = '{folder}/rsa.jwks.json'\nissuer = 'https://login'\naudience = ['shop']\n"
    );
    let sidecar = Sidecar::start(&config, &[upstream.address]);
    let ask =
        |host: u8, fields: &str| rank(&from([127, 0, 0, host], &sidecar).get("/", fields).text());
    let good = format!("authorization: Bearer {token}\r\n");
    let ann = ask(1, &good);
    assert_eq!(ann, ask(2, &good));
    let nobody = ask(1, "");
    assert_ne!(ann, nobody);
    let (head, tail) = token.split_at(token.len() / 2);
    let (_, unsigned) = token.split_once('.').expect("three parts");
    for forged in [
        format!("{head}x{tail}"),
        // {"alg":"none"} and {"alg":"HS256"}
        format!("eyJhbGciOiJub25lIn0.{unsigned}"),
        format!("eyJhbGciOiJIUzI1NiJ9.{unsigned}"),
    ] {
        assert_eq!(nobody, ask(1, &format!("authorization: Bearer {forged}\r\n")), "{forged}");
    }
    // The same user by the word of a proxy is the same user.
    let config =
        format!("{config}[proxy]\nuser_header = 'x-user'\nedge = {{ trusted = ['127.0.0.1'] }}\n");
    let told = File::parse(&config).expect("valid");
    assert_eq!(told.proxy.jwt.map(|jwt| jwt.claim).as_deref(), Some("sub"));
    let wrong =
        File::parse("[proxy.jwt]\nheader = 'a b'\nleeway = '1h'\n").expect_err("wrong").to_string();
    for name in ["jwks_file", "issuer", "audience", "header", "leeway"] {
        assert!(wrong.contains(&format!("proxy.jwt.{name}")), "{name}: {wrong}");
    }
}

/// Issuers change their keys, and so does the file: nobody has to start the sidecar again.
#[test]
fn another_file_of_keys_is_taken_at_a_reload_and_a_broken_one_is_not() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/jwt");
    let token = include_str!("../testdata/jwt/rs256.token").trim_end();
    let own = std::env::temp_dir().join(format!("tidegate-jwks-{}.json", std::process::id()));
    let other = r#"{"keys":[{"kty":"OKP","crv":"Ed25519","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]}"#;
    std::fs::write(&own, other).expect("a folder of our own");
    let upstream = mirror();
    let config = format!(
        "{OPEN}[proxy.jwt]\njwks_file = '{}'\nissuer = 'https://login'\naudience = ['shop']\n",
        own.display()
    );
    let file = support::file(&config, &[upstream.address]);
    let again = file.clone();
    let sidecar = Sidecar::with_source(file, Some(Source::new(move || Ok(again.clone()))));
    let ask = |fields: &str| rank(&sidecar.client().get("/", fields).text());
    let (good, nobody) = (format!("authorization: {token}\r\n"), ask(""));
    assert_eq!(ask(&good), nobody, "not by this key");
    std::fs::copy(format!("{folder}/rsa.jwks.json"), &own).expect("a folder of our own");
    sidecar.handle.reload().expect("good keys");
    assert_ne!(ask(&good), nobody);
    std::fs::write(&own, "{").expect("a folder of our own");
    let error = sidecar.handle.reload().expect_err("no keys").to_string();
    assert!(error.contains("not a JWK Set"), "{error}");
    assert_ne!(ask(&good), nobody, "the old ones stay in force");
    std::fs::remove_file(own).expect("ours");
}

#[test]
fn forwarded_is_read_where_that_is_the_field() {
    let upstream = mirror();
    let config = "[proxy.edge]\ntrusted = ['127.0.0.1']\naddress_field = 'forwarded'\n";
    let sidecar = Sidecar::start(&format!("{OPEN}{config}"), &[upstream.address]);
    let ask = |fields: &str| rank(&sidecar.client().get("/", fields).text());
    let ann = ask("forwarded: for=\"[2001:db8::1]:80\";proto=http\r\n");
    assert_eq!(ann, ask("forwarded: for=1.1.1.1, for=\"[2001:db8::2]\"\r\n"), "the same half");
    assert_ne!(ann, ask("forwarded: for=9.9.9.9\r\n"));
    assert_eq!(ask(""), ask("x-forwarded-for: 9.9.9.9\r\n"), "the other field is not read");
}

#[test]
fn the_proxy_protocol_says_whose_a_connection_is() {
    let upstream = mirror();
    let config = "[proxy.edge]\ntrusted = ['127.0.0.1']\nproxy_protocol = true\n";
    let sidecar = Sidecar::start(&format!("{OPEN}{config}"), &[upstream.address]);
    let ask = |header: &[u8]| {
        let mut client = sidecar.client();
        client.stream.get_mut().write_all(header).expect("it is read");
        let first = client.get("/", "").text();
        let second = client.get("/", "").text();
        assert_eq!(field(&first, "x-forwarded-for"), field(&second, "x-forwarded-for"));
        field(&first, "x-forwarded-for").expect("an address").to_owned()
    };
    assert_eq!(ask(b"PROXY TCP4 9.9.9.9 10.0.0.1 1234 80\r\n"), "9.9.9.9");
    assert_eq!(ask(b"PROXY TCP6 2001:db8::1 ::1 1234 80\r\n"), "2001:db8::1");
    assert_eq!(ask(b"PROXY UNKNOWN\r\n"), "127.0.0.1");
    let signature = b"\r\n\r\n\0\r\nQUIT\n";
    let second = [&signature[..], &[0x21, 0x11, 0, 12, 8, 8, 4, 4, 10, 0, 0, 1, 4, 0, 0, 80]];
    assert_eq!(ask(&second.concat()), "8.8.4.4");
    // Without a header, with one that does not end, and from where nobody speaks it.
    let mut wrong = [sidecar.client(), sidecar.client(), from([127, 0, 0, 2], &sidecar)];
    wrong[0].send("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
    wrong[1].send(&format!("PROXY TCP4 {}", "9".repeat(200)));
    wrong[2].send("PROXY TCP4 9.9.9.9 10.0.0.1 1234 80\r\nGET / HTTP/1.1\r\nhost: a\r\n\r\n");
    for client in &mut wrong {
        assert!(client.head().is_err(), "closed without a word");
    }
    assert_eq!(sidecar.state()["proxy_protocol_failures"], 3);
    let alone = "[proxy.edge]\nproxy_protocol = true\n";
    let error = File::parse(alone).expect_err("nobody is trusted").to_string();
    assert!(error.contains("proxy.edge.proxy_protocol"), "{error}");
}

/// An authority, and files of it that are removed at the end.
struct Authority {
    issuer: Issuer<'static, KeyPair>,
    folder: std::path::PathBuf,
}

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        let folder = std::env::temp_dir().join(format!("tidegate-clients-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let certificate = params.self_signed(&key).expect("signed");
        std::fs::write(folder.join("ca"), certificate.pem()).expect("it can be written");
        Self { issuer: Issuer::new(params, key), folder }
    }

    /// A certificate and its key, for localhost and `name`.
    fn issue(&self, name: &str) -> (String, String) {
        let mut params = CertificateParams::new(vec!["localhost".to_owned()]).expect("a name");
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.issuer).expect("signed");
        (certificate.pem(), key.serialize_pem())
    }

    fn config(&self, asked: &str) -> String {
        let (certificate, key) = self.issue("shop");
        for (name, text) in [("cert", certificate), ("key", key)] {
            std::fs::write(self.folder.join(name), text).expect("it can be written");
        }
        let path = |name| self.folder.join(name).display().to_string();
        format!(
            "[proxy.tls]\ncert_file = '{}'\nkey_file = '{}'\nclient_ca_file = '{}'\n\
             client_certificates = '{asked}'\n",
            path("cert"),
            path("key"),
            path("ca")
        )
    }

    /// What the service is told of a request of somebody who shows `identity`.
    fn ask(
        &self,
        address: SocketAddr,
        identity: Option<(String, String)>,
    ) -> std::io::Result<String> {
        let mut roots = RootCertStore::empty();
        let authority = CertificateDer::from_pem_file(self.folder.join("ca")).expect("PEM");
        roots.add(authority).expect("usable");
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_root_certificates(roots);
        let config = match identity {
            None => builder.with_no_client_auth(),
            Some((certificate, key)) => {
                let chain = vec![CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap()];
                let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
                builder.with_client_auth_cert(chain, key).expect("they belong together")
            }
        };
        let name = ServerName::try_from("localhost").expect("a name");
        let session = ClientConnection::new(Arc::new(config), name).expect("a session");
        let stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(support::PATIENCE))?;
        let mut stream = StreamOwned::new(session, stream);
        stream.write_all(b"GET / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")?;
        let mut text = Vec::new();
        stream.read_to_end(&mut text)?;
        Ok(String::from_utf8_lossy(&text).into_owned())
    }
}

impl Drop for Authority {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

#[test]
fn a_certificate_is_a_user_and_stays_one_when_it_is_renewed() {
    let (upstream, ours) = (mirror(), Authority::new());
    let config = format!("{OPEN}{}", ours.config("required"));
    let sidecar = Sidecar::start(&config, &[upstream.address]);
    let address = sidecar.handle.listen();
    let told = |name: &str| ours.ask(address, Some(ours.issue(name))).expect("an answer");
    let ann = told("ann");
    assert_eq!(field(&ann, "x-forwarded-proto"), Some("https"), "{ann}");
    assert_eq!(rank(&ann), rank(&told("ann")), "renewed");
    assert_ne!(rank(&ann), rank(&told("ben")));
    let without = ours.ask(address, None);
    assert!(without.is_err() || without.is_ok_and(|text| text.is_empty()), "none is required");
    let config = format!("{OPEN}{}", ours.config("optional"));
    let sidecar = Sidecar::start(&config, &[upstream.address]);
    let nobody = ours.ask(sidecar.handle.listen(), None).expect("an answer");
    assert_ne!(rank(&nobody), rank(&ann));
    let alone = "[proxy.tls]\nclient_ca_file = 'ca'\n";
    let error = File::parse(alone).expect_err("no certificate of its own").to_string();
    assert!(error.contains("proxy.tls.client_ca_file"), "{error}");
}

/// CGI and WSGI make the same of a hyphen and an underscore, and what came last won.
#[test]
fn what_reads_like_our_fields_does_not_pass() {
    let upstream = mirror();
    let claims = "overload_context: r=(0 0)\r\nx_forwarded_for: 1.1.1.1\r\nx_api_key: 7\r\n";
    for (policy, own) in [("drop", None), ("pass", Some("7"))] {
        let config = format!("{OPEN}[proxy.edge]\nunderscores = '{policy}'\n");
        let sidecar = Sidecar::start(&config, &[upstream.address]);
        let mut client = sidecar.client();
        client.send(&format!(
            "POST / HTTP/1.1\r\nhost: a\r\n{claims}te: trailers\r\ntransfer-encoding: chunked\r\n\r\n\
             1\r\nx\r\n0\r\noverload-context: r=(0 0)\r\noverload_context: r=(0 0)\r\n\
             x-forwarded-for: 1.1.1.1\r\nx-sum: 1\r\n\r\n"
        ));
        let told = client.reply().text();
        assert!(rank(&told).starts_with("r=(24 "), "{told}");
        assert_eq!(told.matches("overload").count(), 1, "{told}");
        assert!(!told.contains("1.1.1.1"), "{told}");
        assert_eq!(field(&told, "x-sum"), Some("1"), "{told}");
        assert_eq!(field(&told, "x_api_key"), own, "{told}");
    }
    let refuse = format!("{OPEN}[proxy.edge]\nunderscores = 'refuse'\n");
    let sidecar = Sidecar::start(&refuse, &[upstream.address]);
    assert_eq!(sidecar.client().get("/", claims).status(), 400);
    let inside = format!("{OPEN}[proxy]\ntrust = 'inside'\n");
    let sidecar = Sidecar::start(&inside, &[upstream.address]);
    let told = sidecar.client().get("/", "x_api_key: 7\r\n").text();
    assert_eq!(field(&told, "x_api_key"), Some("7"), "services of ours may");
}

#[test]
fn a_host_that_cannot_be_one_is_turned_away() {
    let upstream = Upstream::start(|_| ok("served"));
    let sidecar = Sidecar::start(OPEN, &[upstream.address]);
    for (host, status) in [
        ("shop:80", 200),
        ("[::1]:80", 200),
        ("a b", 400),
        ("a, b", 400),
        ("me@shop", 400),
        ("a/b", 400),
    ] {
        let mut client = sidecar.client();
        client.send(&format!("GET / HTTP/1.1\r\nhost: {host}\r\n\r\n"));
        assert_eq!(client.reply().status(), status, "{host}");
    }
}

/// How full a service is, where it is and why it fails is for operators and services of ours.
#[test]
fn nothing_of_the_inside_is_told_to_strangers() {
    let upstream = Upstream::start(|_| {
        "HTTP/1.1 200 OK\r\nendpoint-load-metrics: TEXT cpu_utilization=0.5\r\n\
         endpoint-load-metrics-bin: AA==\r\ntransfer-encoding: chunked\r\n\
         trailer: endpoint-load-metrics-bin, x-sum\r\n\r\n\
         2\r\nhi\r\n0\r\nendpoint-load-metrics-bin: AA==\r\nx-sum: 1\r\n\r\n"
            .to_owned()
    });
    for (trust, told) in [("edge", false), ("inside", true)] {
        let config = format!("{OPEN}[proxy]\ntrust = '{trust}'\n");
        let sidecar = Sidecar::start(&config, &[upstream.address]);
        let mut client = sidecar.client();
        client.send("GET / HTTP/1.1\r\nhost: a\r\nte: trailers\r\n\r\n");
        let reply = client.reply();
        let names = ["endpoint-load-metrics", "endpoint-load-metrics-bin"];
        assert_eq!(names.map(|name| reply.header(name).is_some()), [told; 2], "{reply:?}");
        let trailers: Vec<&str> = reply.trailers.keys().map(String::as_str).collect();
        assert_eq!(trailers.contains(&names[1]), told, "{trailers:?}");
    }
    let mut gone = Upstream::start(|_| ok(""));
    gone.kill();
    let sidecar = Sidecar::start(OPEN, &[gone.address]);
    let reply = sidecar.client().get("/", "");
    assert_eq!((reply.status(), &*reply.text()), (502, "cannot connect to the upstream\n"));
    let why = sidecar.state()["upstreams"][0]["last_failure"].clone();
    assert!(why.as_str().is_some_and(|why| why.contains("refused")), "{why}");
}

/// A name of a stranger's can point to any address, and a browser lets its page read what it is answered.
#[test]
fn the_admin_port_is_not_asked_by_the_names_of_others() {
    let upstream = Upstream::start(|_| ok(""));
    let ask = |sidecar: &Sidecar, host: &str| -> Reply {
        let mut client = Client::connect(sidecar.handle.admin());
        client.send(&format!("GET /state HTTP/1.1\r\n{host}connection: close\r\n\r\n"));
        client.reply()
    };
    let sidecar =
        Sidecar::start("[proxy]\nadmin_hosts = ['gate.ops.example']\n", &[upstream.address]);
    for (host, status) in [
        ("host: localhost:9901\r\n", 200),
        ("host: gate.localhost\r\n", 200),
        ("host: 127.0.0.1:9901\r\n", 200),
        ("host: [::1]:9901\r\n", 200),
        ("host: tidegate:9901\r\n", 200),
        ("host: Gate.Ops.Example:9901\r\n", 200),
        ("host: evil.example\r\n", 421),
        ("host: evil.example:9901\r\n", 421),
        ("host: 127.0.0.1.evil.example\r\n", 421),
        ("host: 10.0.0.1\r\n", 421),
        ("host: localhost\r\nhost: evil.example\r\n", 421),
    ] {
        assert_eq!(ask(&sidecar, host).status(), status, "{host}");
    }
    assert_eq!(upstream.connections.load(Ordering::SeqCst), 0);
}
