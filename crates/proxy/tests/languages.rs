//! Services in other languages behind the sidecar. A language that is not installed is skipped, by
//! name.

#![allow(clippy::disallowed_methods, reason = "real processes")]

mod support;

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use support::Sidecar;

/// A service that tells its port on the first line it prints, ended when it is dropped.
struct Service {
    child: Child,
    port: u16,
}

impl Service {
    fn start(program: &str, args: &[&str]) -> Option<Self> {
        let started = Command::new(program).args(args).stdout(Stdio::piped()).spawn();
        let Ok(mut child) = started else {
            eprintln!("skipped: {program} is not installed");
            return None;
        };
        let mut line = String::new();
        let mut output = BufReader::new(child.stdout.take().expect("piped"));
        output.read_line(&mut line).expect("it says its port");
        let port = line.trim().parse().unwrap_or_else(|_| panic!("{program} says {line:?}"));
        Some(Self { child, port })
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

const PYTHON: &str = r#"
import http.server, sys
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'
    def answer(self):
        length = int(self.headers.get('content-length') or 0)
        body = self.rfile.read(length) + b' ' + (self.headers.get('overload-context') or '').encode()
        self.send_response(200)
        self.send_header('content-length', str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    do_GET = do_POST = answer
    def log_message(self, *args): pass
server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), Handler)
print(server.server_address[1], flush=True)
server.serve_forever()
"#;

const NODE: &str = r"
const server = require('http').createServer((request, response) => {
  const pieces = [];
  request.on('data', piece => pieces.push(piece));
  request.on('end', () => {
    response.end(Buffer.concat(pieces) + ' ' + (request.headers['overload-context'] || ''));
  });
});
server.listen(0, '127.0.0.1', () => console.log(server.address().port));
";

/// However slow the machine is that runs this, nothing is refused.
const CONFIG: &str = "[proxy]\ntrust = 'inside'\n[gate.admission]\npolicy = 'open'\n";

/// Requests with and without bodies, on one connection, many of them; ranks arrive.
fn serves(service: Option<Service>) {
    let Some(service) = service else { return };
    let address = ([127, 0, 0, 1], service.port).into();
    let sidecar = Sidecar::start(CONFIG, &[address]);
    let mut client = sidecar.client();
    for n in 1..=50 {
        let reply = client.get("/", &format!("overload-context: r=(7 {n})\r\n"));
        let told = format!(" r=(7 {n}), i=(");
        assert!(reply.status() == 200 && reply.text().starts_with(&told), "{reply:?}");
        let body = "z".repeat(n * 1_000);
        let length = body.len();
        client.send(&format!(
            "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: {length}\r\n\
             overload-context: r=(9 1)\r\n\r\n{body}"
        ));
        let reply = client.reply();
        assert!(reply.text().starts_with(&format!("{body} r=(9 1), i=(")), "{}", reply.first);
    }
    sidecar.wait_until_empty();
    assert_eq!(sidecar.state()["finished"]["critical-plus"]["served"], 100);
}

#[test]
fn a_service_in_python_is_protected() {
    serves(Service::start("python3", &["-c", PYTHON]));
}

#[test]
fn a_service_in_node_is_protected() {
    serves(Service::start("node", &["-e", NODE]));
}
