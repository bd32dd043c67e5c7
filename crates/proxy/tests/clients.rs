//! Clients that never heard of us, through the sidecar: curl, wrk, h2load, Python's grpcio. Where one is
//! not installed its test says so. A browser does the same in the tests of the command.

#![allow(clippy::disallowed_methods, reason = "real processes, real sockets")]

mod support;

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use support::{Sidecar, Upstream, ok};

/// What `program` prints on both its outputs; none if it is not installed.
fn run(program: &str, arguments: &[&str]) -> Option<(String, String)> {
    match Command::new(program).args(arguments).output() {
        Ok(output) => {
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            let (out, error) = (text(&output.stdout), text(&output.stderr));
            assert!(output.status.success(), "{program}: {out}{error}");
            Some((out, error))
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            eprintln!("skipped: {program} is not installed");
            None
        }
        Err(error) => panic!("{program}: {error}"),
    }
}

/// Says which protocol and method a request came by, and how much.
fn telling() -> Upstream {
    Upstream::start(|request| {
        let method = request.first.split(' ').next().unwrap_or_default();
        ok(&format!("{method} of {} bytes\n", request.body.len()))
    })
}

#[test]
fn curl_speaks_every_version() {
    let upstream = telling();
    let sidecar = Sidecar::start("[gate.admission]\npolicy = 'open'\n", &[upstream.address]);
    let url = format!("http://{}/", sidecar.handle.listen());
    let body = "z".repeat(100_000);
    for version in ["--http1.0", "--http1.1", "--http2", "--http2-prior-knowledge"] {
        let common = ["-sS", "-i", "--max-time", "60", version];
        // Twice, so that connections are used again, which curl 7.88 cannot over HTTP/2, with no server;
        // then a body, announced and asked for first.
        let times = if version == "--http2-prior-knowledge" { 1 } else { 2 };
        let get = [&common[..], &vec![&*url; times]].concat();
        let Some((out, _)) = run("curl", &get) else { return };
        assert_eq!(out.matches("GET of 0 bytes").count(), times, "{version}: {out}");
        let post =
            [&common[..], &["-H", "expect: 100-continue", "--data-binary", &body, &url]].concat();
        let (out, _) = run("curl", &post).expect("it was there before");
        assert!(out.ends_with("POST of 100000 bytes\n"), "{version}: {out}");
        let wanted = match version {
            "--http1.0" => "HTTP/1.0 200",
            "--http2-prior-knowledge" => "HTTP/2 200",
            // Nobody changes to HTTP/2 by an upgrade any more (RFC 9113, 3.1).
            _ => "HTTP/1.1 200",
        };
        assert!(out.contains(wanted), "{version}: {out}");
        let head = [&common[..], &["-I", &url]].concat();
        let (out, _) = run("curl", &head).expect("it was there before");
        assert!(out.contains(" 200") && out.contains("content-length"), "{version}: {out}");
    }
    sidecar.wait_until_empty();
}

/// What follows the change of protocol is passed on as it is.
#[test]
fn curl_changes_the_protocol() {
    let upstream = Upstream::raw(|mut client| {
        let Ok(request) = client.head() else { return };
        assert_eq!(request.header("upgrade"), Some("websocket"));
        client.send("HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\n");
        client.send("upgrade: websocket\r\n\r\nfrom the other side");
    });
    let sidecar = Sidecar::start("", &[upstream.address]);
    let url = format!("http://{}/", sidecar.handle.listen());
    let upgrade = ["-H", "connection: upgrade", "-H", "upgrade: websocket"];
    let all = [&["-sS", "-N", "--http1.1", "--max-time", "60"][..], &upgrade, &[&url]].concat();
    let Some((out, _)) = run("curl", &all) else { return };
    assert_eq!(out, "from the other side");
    sidecar.wait_until_empty();
    sidecar.wait_for("the tunnel is gone", |state| state["tunnels"] == 0);
}

/// Two run, eight wait, and the rest is refused.
const SMALL: &str = "[gate]\nqueue_limit = 8\n[gate.admission]\npolicy = 'open'\n\
                     [gate.slots]\nslots = 'fixed'\ncount = 2\n";

fn slow() -> Upstream {
    Upstream::start(|_| {
        thread::sleep(Duration::from_millis(1));
        ok("served\n")
    })
}

/// The first number in the line that contains `label`, after it or before it.
fn number(text: &str, label: &str) -> u64 {
    let line = text.lines().find(|line| line.contains(label));
    let (before, after) = line.and_then(|line| line.split_once(label)).expect(label);
    let digits = |text: &str| {
        let mut words = text.split(|c: char| !c.is_ascii_digit());
        words.rfind(|word| !word.is_empty()).map(|word| word.parse().expect("digits"))
    };
    digits(before).or_else(|| digits(after.split(',').next()?)).expect(label)
}

/// They keep their connections through thousands of refusals, every answer is counted on both sides,
/// and nothing is left inside.
#[test]
fn wrk_meets_refusals_and_keeps_its_connections() {
    let upstream = slow();
    let sidecar = Sidecar::start(SMALL, &[upstream.address]);
    let url = format!("http://{}/", sidecar.handle.listen());
    let Some((text, _)) = run("wrk", &["-t1", "-c64", "-d1s", &url]) else { return };
    assert!(!text.contains("Socket errors"), "{text}");
    let all = number(&text, " requests in");
    let refused = number(&text, "Non-2xx or 3xx responses:");
    assert!(0 < refused && refused < all, "{text}");
    sidecar.wait_until_empty();
    sidecar.wait_for("no connections", |state| state["connections"] == 0);
    // It tries one before it begins.
    assert_eq!(sidecar.state()["connections_accepted"], 65);
}

#[test]
fn h2load_meets_refusals_and_keeps_its_connections() {
    let upstream = slow();
    let sidecar = Sidecar::start(SMALL, &[upstream.address]);
    let url = format!("http://{}/", sidecar.handle.listen());
    let Some((text, _)) = run("h2load", &["-n2000", "-c4", "-m64", &url]) else { return };
    let (good, refused) = (number(&text, " 2xx"), number(&text, " 5xx"));
    assert_eq!((number(&text, " errored"), number(&text, " timeout")), (0, 0), "{text}");
    assert!(0 < good && 0 < refused && good + refused == 2_000, "{text}");
    sidecar.wait_until_empty();
    let state = sidecar.state();
    assert_eq!(state["finished"]["critical"]["served"], good, "{text}");
    assert_eq!(state["connections_accepted"], 4);
}

/// A process of another language, killed when it is dropped.
struct Service(Child);

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.0.kill().and_then(|()| self.0.wait());
    }
}

fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/clients").join(name)
}

/// Python's own client and server, and the sidecar between them, over HTTP/2 on both sides: unary,
/// streams in either direction, in both at once, and a status with metadata in the trailers.
#[test]
fn grpcio_calls_grpcio_through_the_sidecar() {
    let python = std::env::var("PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let has = Command::new(&python).args(["-c", "import grpc"]).output();
    if !has.is_ok_and(|output| output.status.success()) {
        eprintln!("skipped: {python} has no grpcio");
        return;
    }
    let mut service = Command::new(&python);
    let service = service.arg(script("grpc_service.py")).stdout(Stdio::piped()).spawn();
    let mut service = Service(service.expect("it starts"));
    let mut port = String::new();
    let output = service.0.stdout.take().expect("piped");
    BufReader::new(output).read_line(&mut port).expect("it says its port");
    let config = "[gate.admission]\npolicy = 'open'\n";
    let mut file = support::file(config, &[]);
    file.proxy.upstreams = vec![format!("h2c://127.0.0.1:{}", port.trim()).parse().expect("URL")];
    let sidecar = Sidecar::with_source(file, None);
    let client = Command::new(&python)
        .arg(script("grpc_calls.py"))
        .arg(sidecar.handle.listen().to_string())
        .output()
        .expect("it runs");
    let _ = std::io::stderr().write_all(&client.stderr);
    assert_eq!(String::from_utf8_lossy(&client.stdout), "done\n");
    sidecar.wait_until_empty();
    // A status of gRPC is the application's answer: HTTP's is 200.
    assert_eq!(sidecar.state()["finished"]["critical"]["served"], 404);
}
