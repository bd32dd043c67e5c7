//! `tidegate top` through a pseudo-terminal, which `script` of util-linux makes.

#![cfg(all(feature = "tui", target_os = "linux"))]
#![allow(clippy::disallowed_methods, reason = "a real process, a real terminal")]

use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

const TIDEGATE: &str = env!("CARGO_BIN_EXE_tidegate");
/// A bound on a test that hangs, not a measurement.
const PATIENCE: Duration = Duration::from_secs(60);

/// A sidecar before nothing, and its admin address.
fn sidecar() -> (Child, String) {
    let mut child = Command::new(TIDEGATE)
        .args(["proxy", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"])
        .args(["--upstream", "http://127.0.0.1:9"])
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut stderr = child.stderr.take().expect("piped");
    let mut said = String::new();
    let address = loop {
        let mut bytes = [0; 256];
        let length = stderr.read(&mut bytes).expect("it speaks");
        assert!(length > 0, "it ended: {said}");
        said += &String::from_utf8_lossy(&bytes[..length]);
        if let Some((_, rest)) = said.split_once("admin on http://")
            && let Some((address, _)) = rest.split_once('\n')
        {
            break address.to_owned();
        }
    };
    // Keeps the pipe open until the process ends.
    thread::spawn(move || std::io::copy(&mut stderr, &mut std::io::sink()));
    (child, address)
}

#[test]
fn it_shows_several_sidecars_and_ends_with_q() {
    let (mut first, one) = sidecar();
    let (mut second, two) = sidecar();
    let command = format!("stty rows 40 cols 160; {TIDEGATE} top {one} {two} 127.0.0.1:1");
    let mut terminal = Command::new("script")
        .args(["-qefc", &command, "/dev/null"])
        .env("TERM", "xterm")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("util-linux is everywhere");
    let mut output = terminal.stdout.take().expect("piped");
    let (pieces, screen) = mpsc::channel();
    thread::spawn(move || {
        let mut bytes = [0; 4096];
        while let Ok(length @ 1..) = output.read(&mut bytes) {
            if pieces.send(bytes[..length].to_vec()).is_err() {
                return;
            }
        }
    });
    let mut seen = String::new();
    let wanted = ["tidegate top", "served/s", &one, &two, "tide", "100 %", "no answer"];
    while !wanted.iter().all(|part| seen.contains(part)) {
        let piece = screen.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("only: {seen:?}"));
        seen += &String::from_utf8_lossy(&piece);
    }
    terminal.stdin.as_mut().expect("piped").write_all(b"q").expect("it reads keys");
    let ended = terminal.wait().expect("it ends");
    assert!(ended.success(), "{ended}");
    for child in [&mut first, &mut second] {
        child.kill().and_then(|()| child.wait()).expect("it ran until now");
    }
}
