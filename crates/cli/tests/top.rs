//! `tidegate top` through a pseudo-terminal, which `script` of util-linux makes.

#![cfg(all(feature = "tui", target_os = "linux"))]
#![allow(clippy::disallowed_methods, reason = "a real process, a real terminal")]

use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

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

/// What a terminal would show: the few orders that `top` gives are text and movements.
struct Screen {
    cells: Vec<Vec<char>>,
    at: (usize, usize),
    /// The beginning of an order, or of a character, whose rest is still to come.
    rest: Vec<u8>,
}

impl Screen {
    fn new() -> Self {
        Self { cells: vec![vec![' '; 160]; 40], at: (0, 0), rest: Vec::new() }
    }

    fn text(&self) -> String {
        self.cells.iter().map(|line| line.iter().collect::<String>() + "\n").collect()
    }

    fn read(&mut self, bytes: &[u8]) {
        self.rest.extend_from_slice(bytes);
        let text = String::from_utf8_lossy(&self.rest).into_owned();
        let mut left = text.as_str();
        while let Some(first) = left.chars().next() {
            let length = match left.strip_prefix("\u{1b}[") {
                Some(order) => {
                    let Some(end) = order.find(|c: char| c.is_ascii_alphabetic()) else { break };
                    self.obey(&order[..end], order.as_bytes()[end]);
                    end + 3
                }
                None if first == '\u{1b}' && left.len() < 2 => break,
                None if first == '\u{1b}' => 2,
                None => {
                    self.put(first);
                    first.len_utf8()
                }
            };
            left = &left[length.min(left.len())..];
        }
        self.rest = left.as_bytes().to_vec();
    }

    fn obey(&mut self, numbers: &str, order: u8) {
        let mut numbers = numbers.split(';').map(|n| n.parse::<usize>().unwrap_or(1));
        let mut next = || numbers.next().unwrap_or(1).saturating_sub(1);
        if order == b'H' {
            self.at = (next(), next());
        }
    }

    fn put(&mut self, c: char) {
        let (line, column) = self.at;
        if let Some(cell) = self.cells.get_mut(line).and_then(|line| line.get_mut(column)) {
            *cell = c;
        }
        self.at.1 += 1;
    }
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
    let mut seen = Screen::new();
    let wanted = ["tidegate top", "served/s", &one, &two, "tide", "100 %", "no answer"];
    let end = Instant::now() + PATIENCE;
    while !wanted.iter().all(|part| seen.text().contains(part)) {
        let piece = screen.recv_timeout(PATIENCE).unwrap_or_default();
        assert!(!piece.is_empty() && Instant::now() < end, "only:\n{}", seen.text());
        seen.read(&piece);
    }
    terminal.stdin.as_mut().expect("piped").write_all(b"q").expect("it reads keys");
    let ended = terminal.wait().expect("it ends");
    assert!(ended.success(), "{ended}");
    for child in [&mut first, &mut second] {
        child.kill().and_then(|()| child.wait()).expect("it ran until now");
    }
}
