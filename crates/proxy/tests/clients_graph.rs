//! Services in other languages that call each other by sidecars: with `traceparent` alone, as stock tracing copies
//! it, and with our middlewares. A language that is not installed is skipped, by name.

#![allow(clippy::disallowed_methods, reason = "real processes")]

mod support;

use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use support::{Client, Reply, Sidecar, Upstream, ok};

/// A service that tells its port on the first line it prints, and is told on its first line of input
/// what it calls. Ended when it is dropped.
struct Service {
    child: Child,
    port: u16,
}

impl Service {
    /// One line of a program's own follows the setup.
    fn start(program: &str, flag: &str, script: &str) -> Option<Self> {
        let clients = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../clients");
        let started = Command::new(program)
            .args([flag, script])
            .env("CLIENTS", &clients)
            .env("PYTHONPATH", clients.join("python"))
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn();
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

    /// A sidecar before it, by which it calls `next`.
    fn behind_a_sidecar(&mut self, next: SocketAddr) -> Sidecar {
        let config = format!(
            "[proxy]\nthreads = 2\ntrust = 'inside'\n[[proxy.egress]]\nname = 'next'\n\
             listen = '127.0.0.1:0'\nupstreams = ['http://{next}']\n\
             [gate.admission]\npolicy = 'open'\n"
        );
        let sidecar = Sidecar::start(&config, &[([127, 0, 0, 1], self.port).into()]);
        let way = sidecar.handle.egress("next").expect("it is there");
        let input = self.child.stdin.as_mut().expect("piped");
        writeln!(input, "http://{way}").expect("it reads");
        sidecar
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Without anything of ours: what a tracing library does, by hand.
const PYTHON: &str = r#"
import http.server, sys, urllib.request
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'
    def do_GET(self):
        call = urllib.request.Request(NEXT + self.path, headers={'traceparent': self.headers['traceparent']})
        body = b'python ' + urllib.request.urlopen(call).read()
        self.send_response(200)
        self.send_header('content-length', str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *args): pass
server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), Handler)
print(server.server_address[1], flush=True)
NEXT = sys.stdin.readline().strip()
server.serve_forever()
"#;

const NODE: &str = r"
let next;
const server = require('http').createServer(async (request, response) => {
  const { traceparent } = request.headers;
  const answer = await fetch(next + request.url, { headers: { traceparent } });
  response.end('node ' + await answer.text());
});
server.listen(0, '127.0.0.1', () => console.log(server.address().port));
require('readline').createInterface({ input: process.stdin }).once('line', line => { next = line; });
";

/// By our middleware, which no line of the application knows of.
const WSGI: &str = r#"
import sys, urllib.request, wsgiref.simple_server, tidegate
def app(environ, start_response):
    start_response('200 OK', [])
    # The second call is made after the first piece of the answer.
    yield b'wsgi '
    yield urllib.request.urlopen(NEXT + environ['PATH_INFO']).read()
class Quiet(wsgiref.simple_server.WSGIRequestHandler):
    def log_message(self, *args): pass
tidegate.install()
server = wsgiref.simple_server.make_server('127.0.0.1', 0, tidegate.WSGI(app), handler_class=Quiet)
print(server.server_port, flush=True)
NEXT = sys.stdin.readline().strip()
server.serve_forever()
"#;

/// The smallest server of ASGI there can be.
const ASGI: &str = r#"
import asyncio, sys, urllib.request, tidegate
async def app(scope, receive, send):
    def call():
        with urllib.request.urlopen(NEXT + scope['path']) as answer:
            return answer.read()
    # In a task of its own, and there in a thread.
    body = b'asgi ' + await asyncio.create_task(asyncio.to_thread(call))
    await send({'type': 'http.response.start', 'status': 200, 'headers': []})
    await send({'type': 'http.response.body', 'body': body})
async def serve(reader, writer):
    line = await reader.readline()
    headers = []
    while (field := (await reader.readline()).strip()):
        name, _, value = field.partition(b':')
        headers.append((name.lower(), value.strip()))
    async def send(event):
        if event['type'] == 'http.response.start':
            writer.write(b'HTTP/1.1 %d So\r\nconnection: close\r\n\r\n' % event['status'])
        else:
            writer.write(event['body'])
    scope = {'type': 'http', 'path': line.split()[1].decode(), 'headers': headers}
    await wrapped(scope, None, send)
    await writer.drain()
    writer.close()
async def main():
    global NEXT
    server = await asyncio.start_server(serve, '127.0.0.1', 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    NEXT = sys.stdin.readline().strip()
    await server.serve_forever()
wrapped = tidegate.ASGI(app)
tidegate.install()
asyncio.run(main())
"#;

const REQUESTS: &str = r#"
import sys, wsgiref.simple_server, tidegate
try:
    import requests
except ImportError:
    sys.exit('requests is not installed')
def app(environ, start_response):
    start_response('200 OK', [])
    return [b'requests ' + session.get(NEXT + environ['PATH_INFO']).content]
class Quiet(wsgiref.simple_server.WSGIRequestHandler):
    def log_message(self, *args): pass
session = requests.Session()
session.mount('http://', tidegate.adapter())
server = wsgiref.simple_server.make_server('127.0.0.1', 0, tidegate.WSGI(app), handler_class=Quiet)
print(server.server_port, flush=True)
NEXT = sys.stdin.readline().strip()
server.serve_forever()
"#;

const NODE_HTTP: &str = r"
const http = require('http');
const tidegate = require(process.env.CLIENTS + '/node/tidegate.js');
tidegate.install();
let next;
const server = http.createServer(tidegate.wrap((request, response) => {
  setImmediate(() => http.get(next + request.url, answer => {
    response.write('http ');
    answer.pipe(response);
  }));
}));
server.listen(0, '127.0.0.1', () => console.log(server.address().port));
require('readline').createInterface({ input: process.stdin }).once('line', line => { next = line; });
";

const NODE_FETCH: &str = r"
const tidegate = require(process.env.CLIENTS + '/node/tidegate.js');
tidegate.install();
let next;
// As Express calls it.
const server = require('http').createServer((request, response) => {
  tidegate.middleware(request, response, async () => {
    const answer = await fetch(next + request.url, { headers: { accept: 'text/plain' } });
    response.end('fetch ' + await answer.text());
  });
});
server.listen(0, '127.0.0.1', () => console.log(server.address().port));
require('readline').createInterface({ input: process.stdin }).once('line', line => { next = line; });
";

/// The end of a graph: remembers what it was asked.
fn leaf() -> (Arc<Mutex<Vec<Reply>>>, Upstream) {
    let asked = Arc::new(Mutex::new(Vec::new()));
    let list = Arc::clone(&asked);
    let upstream = Upstream::start(move |request| {
        list.lock().unwrap().push(request);
        ok("leaf")
    });
    (asked, upstream)
}

/// Each of many requests has a rank and a workflow of its own, and so have its calls: several at the same time do not get
/// those of others.
fn ranks_arrive(entry: &Sidecar, asked: &Mutex<Vec<Reply>>, text: &str) {
    let clients = (0..4).map(|client| {
        let listen = entry.handle.listen();
        std::thread::spawn(move || {
            let mut texts = Vec::new();
            let mut connection = Client::connect(listen);
            for n in 1..=10 {
                let rank = format!("({} {n})", 10 + client);
                let head = format!("overload-context: r={rank}, w=\"{client}\", d=30000\r\n");
                texts.push(connection.get(&format!("/{client}/{n}"), &head).text());
            }
            texts
        })
    });
    for client in clients.collect::<Vec<_>>() {
        let texts = client.join().expect("no panic");
        assert!(texts.iter().all(|it| it == text), "{texts:?}");
    }
    let asked = asked.lock().unwrap();
    assert_eq!(asked.len(), 40);
    for request in asked.iter() {
        let mut path = request.first.split(' ').nth(1).expect("a path").split('/').skip(1);
        let (client, n): (u8, &str) = (path.next().unwrap().parse().unwrap(), path.next().unwrap());
        let context = request.header("overload-context").expect("a context");
        let rank = format!("r=({} {n}), w=\"{client}\", d=", 10 + client);
        let left = context.strip_prefix(&rank).unwrap_or_else(|| panic!("{rank} {context}"));
        let left: f64 = left.split(',').next().unwrap().parse().expect("milliseconds");
        assert!(left < 30_000.0, "{context}");
    }
}

fn serves(service: Option<Service>, matched: &str, text: &str) {
    let Some(mut service) = service else { return };
    let (asked, leaf) = leaf();
    let sidecar = service.behind_a_sidecar(leaf.address);
    ranks_arrive(&sidecar, &asked, text);
    let egress = sidecar.state()["egress"][0].clone();
    assert_eq!(egress["matched"][matched], 40, "{egress}");
    assert_eq!(egress["unranked"], 0, "{egress}");
}

#[test]
fn calls_of_a_python_service_that_copies_traceparent_keep_their_ranks() {
    serves(Service::start("python3", "-c", PYTHON), "traceparent", "python leaf");
}

#[test]
fn calls_of_a_node_service_that_copies_traceparent_keep_their_ranks() {
    serves(Service::start("node", "-e", NODE), "traceparent", "node leaf");
}

#[test]
fn python_and_node_in_a_row_keep_ranks_over_three_sidecars() {
    let python = Service::start("python3", "-c", PYTHON);
    let node = Service::start("node", "-e", NODE);
    let (Some(mut python), Some(mut node)) = (python, node) else { return };
    let (asked, leaf) = leaf();
    let config = "[proxy]\ntrust = 'inside'\n[gate.admission]\npolicy = 'open'\n";
    let third = Sidecar::start(config, &[leaf.address]);
    let second = node.behind_a_sidecar(third.handle.listen());
    let first = python.behind_a_sidecar(second.handle.listen());
    ranks_arrive(&first, &asked, "python node leaf");
}

#[test]
fn the_python_middleware_serves_wsgi_and_urllib() {
    serves(Service::start("python3", "-c", WSGI), "overload-context", "wsgi leaf");
}

#[test]
fn the_python_middleware_serves_asgi_tasks_and_threads() {
    serves(Service::start("python3", "-c", ASGI), "overload-context", "asgi leaf");
}

#[test]
fn the_python_middleware_serves_requests() {
    let mut asked = Command::new("python3");
    let there = asked.args(["-c", "import requests"]).stderr(Stdio::null()).status();
    if !there.is_ok_and(|status| status.success()) {
        eprintln!("skipped: requests for python3 is not installed");
        return;
    }
    serves(Service::start("python3", "-c", REQUESTS), "overload-context", "requests leaf");
}

#[test]
fn the_node_middleware_serves_http() {
    serves(Service::start("node", "-e", NODE_HTTP), "overload-context", "http leaf");
}

#[test]
fn the_node_middleware_serves_fetch() {
    serves(Service::start("node", "-e", NODE_FETCH), "overload-context", "fetch leaf");
}

/// Runs a line of a program; none if it is not installed.
fn output(program: &str, flag: &str, line: &str) -> Option<String> {
    let clients = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../clients");
    let ran = Command::new(program)
        .args([flag, line])
        .env("CLIENTS", &clients)
        .env("PYTHONPATH", clients.join("python"))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .output();
    let Ok(ran) = ran else {
        eprintln!("skipped: {program} is not installed");
        return None;
    };
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    Some(String::from_utf8(ran.stdout).expect("text"))
}

/// What is the caller's own is left out, the deadline is shortened, and what is no dictionary is nobody's.
#[test]
fn all_middlewares_pass_on_a_context_alike() {
    let python = r#"
import json, os, tidegate
for line in open(os.environ['CLIENTS'] + '/vectors.txt'):
    given, _, passed = line.rstrip('\n').partition(' => ')
    told = tidegate.pass_on(given, 9)
    assert told == passed, (given, told, passed)
print('fine')
"#;
    let node = r"
const fs = require('fs');
const { passOn } = require(process.env.CLIENTS + '/node/tidegate.js');
for (const line of fs.readFileSync(process.env.CLIENTS + '/vectors.txt', 'utf8').replace(/\n$/, '').split('\n')) {
  const [given, passed] = line.split(' => ');
  require('assert').strictEqual(passOn(given, 9), passed, given);
}
console.log('fine');
";
    for (program, flag, line) in [("python3", "-c", python), ("node", "-e", node)] {
        if let Some(said) = output(program, flag, line) {
            assert_eq!(said, "fine\n", "{program}");
        }
    }
}

#[test]
fn the_go_middleware_compiles_and_is_well_formed() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../clients/go/tidegate.go");
    let Ok(vetted) = Command::new("go").arg("vet").arg(&file).output() else {
        eprintln!("skipped: go is not installed");
        return;
    };
    assert!(vetted.status.success(), "{}", String::from_utf8_lossy(&vetted.stderr));
}
