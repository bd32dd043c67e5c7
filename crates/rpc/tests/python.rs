//! A client in another language, written from the description of the wire: `examples/kv-service/client.py`,
//! by the interpreter that `PYTHON` names, else `python3`. Where there is none the tests say so.

#![allow(clippy::disallowed_methods, reason = "tests of a driver wait for real sockets")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Mutex;

use tidegate_core::gate::GateConfig;
use tidegate_rpc::{Bytes, Failure, Request, Server, blocking};

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Runs the client; none if there is no Python.
fn client(arguments: &[&str]) -> Option<Output> {
    let python = std::env::var("PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let script = repository().join("examples/kv-service/client.py");
    match Command::new(python).arg("-B").arg(script).args(arguments).output() {
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
