//! A client in another language, written from the description of the wire: `examples/kv-service/client.py`,
//! by the interpreter that `PYTHON` names, else `python3`. Where there is none the tests say so.

#![allow(clippy::disallowed_methods, reason = "tests of a driver wait for real sockets")]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Mutex;

use tidegate_core::gate::GateConfig;
use tidegate_core::{Cursor, Feedback, GateId, Rank, Span};
use tidegate_rpc::wire::{self, Frame, Goodbye, Kind};
use tidegate_rpc::{Bytes, Failure, Limits, Request, Server, blocking};

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Runs the client; none if there is no Python.
fn client(arguments: &[&str]) -> Option<Output> {
    let script = repository().join("examples/kv-service/client.py");
    python(Command::new(interpreter()).arg("-B").arg(script).args(arguments))
}

/// Runs a script that uses the client, here a connection `c` to `address`. What it wrote.
fn script(address: SocketAddr, lines: &str) -> Option<String> {
    let begin =
        "import sys, time\nfrom client import *\nc = Client('127.0.0.1', int(sys.argv[1]))\n";
    let mut command = Command::new(interpreter());
    command.env("PYTHONPATH", repository().join("examples/kv-service"));
    command.args(["-B", "-c", &format!("{begin}{lines}"), &address.port().to_string()]);
    let output = python(&mut command)?;
    assert!(output.status.success(), "{}", text(&output.stderr));
    Some(text(&output.stdout))
}

fn interpreter() -> String {
    std::env::var("PYTHON").unwrap_or_else(|_| "python3".to_owned())
}

fn python(command: &mut Command) -> Option<Output> {
    match command.output() {
        Ok(output) => Some(output),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            eprintln!("skipped: python3 is not installed");
            None
        }
        Err(error) => panic!("python: {error}"),
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).trim().to_owned()
}

#[test]
fn it_reads_the_examples() {
    let vectors = repository().join("testdata/wire/rpc.txt");
    let Some(output) = client(&["--vectors", &vectors.display().to_string()]) else { return };
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(text(&output.stdout).ends_with("examples read as they say"));
}

#[test]
fn it_is_served_refused_and_failed() {
    let value = Mutex::new(Bytes::new());
    let handler = blocking(move |request: Request| {
        let mut value = value.lock().expect("no panic");
        match request.method {
            1 if request.payload == "colour" => Ok(value.clone()),
            1 => Err(Failure::new(404, "there is no such key")),
            _ => {
                *value = request.payload.slice(1 + usize::from(request.payload[0])..);
                Ok(Bytes::new())
            }
        }
    });
    // An objective so long that a busy machine does not count as overload.
    let gate = GateConfig::from_toml(
        "admission = { policy = 'tide', objective = '100s' }\nslots = { slots = 'fixed', count = 1 }",
    );
    let server = Server::builder().gate(gate.expect("valid")).bind("127.0.0.1:0", handler);
    let server = server.expect("binds");
    let address = server.address().to_string();
    let Some(set) = client(&[&address, "set", "colour", "blue"]) else { return };
    assert!(set.status.success(), "{}", text(&set.stderr));
    let get = client(&[&address, "get", "colour"]).expect("there is Python");
    assert_eq!(text(&get.stdout), "blue", "{}", text(&get.stderr));
    let none = client(&[&address, "get", "flavour"]).expect("there is Python");
    assert_eq!(text(&none.stderr), "failed: there is no such key (code 404)");
    let many = client(&[&address, "many", "colour", "500"]).expect("there is Python");
    assert!(text(&many.stdout).starts_with("500 of 500 served"), "{}", text(&many.stdout));
    server.gate().input(|gate, _| gate.drain());
    let refused = client(&[&address, "get", "colour"]).expect("there is Python");
    assert_eq!(text(&refused.stderr), "refused: draining: elsewhere");
}

/// A server of one connection that answers a request by what `says` writes for its number, and ends when that
/// is nothing.
fn scripted(says: impl Fn(u64, &mut Vec<u8>) + Send + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("bound");
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("somebody connects");
        let (mut bytes, mut buffer) = (Vec::new(), [0; 4096]);
        while let Ok(count @ 1..) = stream.read(&mut buffer) {
            bytes.extend_from_slice(&buffer[..count]);
            while let Some((frame, length)) = Frame::read(&bytes, &Limits::default()).expect("good")
            {
                let mut out = Vec::new();
                if frame.kind == Some(Kind::Request) {
                    says(frame.call, &mut out);
                    if out.is_empty() {
                        return;
                    }
                }
                let _ = stream.write_all(&out);
                bytes.drain(..length);
            }
        }
    });
    address
}

/// The most important ranks only, or all.
fn state(sequence: u64, cut: bool, holds: Span) -> Feedback {
    let last = cut.then_some(Cursor::at(Rank::new(20, 0)));
    Feedback { window: Some(8), last, holds, ..Feedback::silent(GateId(1), sequence) }
}

/// A cut holds for as long as was said; then one request asks, and is served.
#[test]
fn it_asks_again_when_a_cut_is_over() {
    let server = scripted(|call, out| {
        let holds = Span::from_millis(50);
        wire::write_answer(out, call, Some(&state(call, call == 1, holds)), b"");
    });
    let lines = "c.call(1)\nend = time.monotonic() + 60\nwhile time.monotonic() < end:\n    \
                 try:\n        print('served', c.call(1))\n        break\n    \
                 except Refused:\n        time.sleep(0.01)\n";
    let Some(said) = script(server, lines) else { return };
    assert_eq!(said, "served b''");
}

/// What was said before is heard before it is decided what to send.
#[test]
fn it_hears_what_it_was_told_unasked() {
    let server = scripted(|call, out| {
        let hour = Span::from_secs(3600);
        wire::write_answer(out, call, Some(&state(2 * call, true, hour)), b"");
        if call == 1 {
            wire::write_feedback(out, &state(3, false, hour));
        }
    });
    let lines = "c.call(1)\nprint(c.call(1))\n\
                 try: c.call(1)\nexcept Refused as refused: print(refused)\n";
    let Some(said) = script(server, lines) else { return };
    assert_eq!(said, "b''\nrank: never");
}

/// An answer that comes too late is not waited for, and not taken for that to another call.
#[test]
fn its_patience_ends() {
    let server = scripted(|call, out| match call {
        1 => wire::write_feedback(out, &state(1, false, Span::MAX)),
        _ => (1..=call).for_each(|call| {
            wire::write_answer(out, call, None, call.to_string().as_bytes());
        }),
    });
    let lines = "try: c.call(1, patience=0.05)\nexcept TimeoutError as late: print(late)\n\
                 print(c.call(1))\n";
    let Some(said) = script(server, lines) else { return };
    assert_eq!(said, "no answer in time; it may have been done\nb'2'");
}

#[test]
fn it_says_what_is_wrong_and_closes_in_any_case() {
    let server = scripted(|call, out| {
        if call == 1 {
            wire::write_answer(out, call, None, b"");
            wire::write_goodbye(out, Goodbye::Idle);
        }
    });
    let lines = "try: c.call(1, bytes(LARGEST + 1))\nexcept ValueError as large: print(large)\n\
                 c.call(1)\n\
                 try: c.call(1)\nexcept ConnectionError as gone: print(gone)\n\
                 c.socket.shutdown(socket.SHUT_WR)\nc.close()\nprint(c.socket.fileno())\n";
    let Some(said) = script(server, lines) else { return };
    let large = "a payload of 1048577 bytes, 1048576 are allowed";
    assert_eq!(said, format!("{large}\nthe server closed the connection and said: idle\n-1"));
}
