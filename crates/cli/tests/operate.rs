//! `tidegate explain`, `enforce` and `shadow` against a running sidecar.

#![allow(clippy::disallowed_methods, reason = "real processes")]

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::thread;

use serde_json::Value;

const TIDEGATE: &str = env!("CARGO_BIN_EXE_tidegate");
const TOKEN: &str = "a token of more than sixteen characters";

/// A sidecar before nothing, killed when it is dropped.
struct Sidecar {
    child: Child,
    admin: String,
    token: PathBuf,
}

impl Sidecar {
    fn start(name: &str) -> Self {
        let token = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
        fs::write(&token, TOKEN).expect("a folder of our own");
        let mut child = Command::new(TIDEGATE)
            .args(["proxy", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"])
            .args(["--upstream", "http://127.0.0.1:9", "--admin-token-file"])
            .arg(&token)
            .stderr(Stdio::piped())
            .spawn()
            .expect("it starts");
        let mut lines = BufReader::new(child.stderr.take().expect("piped")).lines();
        let admin = lines.by_ref().map_while(Result::ok).find_map(|line| {
            line.split_once("admin on http://").map(|(_, address)| address.trim().to_owned())
        });
        // Keeps the pipe open until the process ends.
        thread::spawn(move || lines.for_each(drop));
        Self { child, admin: admin.expect("it says where"), token }
    }

    fn ask(&self, args: &[&str]) -> Output {
        let mut command = Command::new(TIDEGATE);
        command.args(args).args(["--admin", &self.admin]).output().expect("it runs")
    }

    fn json(&self, args: &[&str]) -> Value {
        let output = self.ask(&[args, &["--format", "json"]].concat());
        assert!(output.status.success(), "{args:?}: {output:?}");
        serde_json::from_slice(&output.stdout).expect("JSON")
    }

    /// A change, with the token.
    fn change(&self, args: &[&str]) -> Value {
        let token = self.token.to_str().expect("a plain path");
        self.json(&[args, &["--token-file", token]].concat())
    }
}

impl Drop for Sidecar {
    fn drop(&mut self) {
        let _ = self.child.kill().and_then(|()| self.child.wait());
    }
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

#[test]
fn explain_tells_what_would_happen_and_why() {
    let sidecar = Sidecar::start("explain");
    let told = sidecar.json(&["explain", "--business", "40", "--user", "7"]);
    assert_eq!((told["verdict"].as_str(), &told["rank"][0]), (Some("start"), &Value::from(40)));
    let output = sidecar.ask(&["explain", "--deadline", "0s"]);
    assert!(text(&output).contains("It would be refused: "), "{output:?}");
    assert!(text(&output).contains("limit"), "{output:?}");
    let wrong = sidecar.ask(&["explain", "--business", "64"]);
    assert_eq!(wrong.status.code(), Some(2));
}

#[test]
fn enforcement_changes_with_the_token_alone() {
    let sidecar = Sidecar::start("enforce");
    assert_eq!(sidecar.json(&["enforce"])["percent"], 100);
    let output = sidecar.ask(&["enforce", "0%"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output).contains("401"), "{output:?}");
    assert_eq!(sidecar.json(&["enforce"])["percent"], 100);
    assert_eq!(sidecar.change(&["enforce", "0%"])["percent"], 0);
    let output = sidecar.ask(&["enforce"]);
    assert_eq!(text(&output), "enforced for 0 % of requests (the file says 100 %)\n");
    assert_eq!(sidecar.change(&["enforce", "file"])["overridden"], false);
    assert_eq!(sidecar.ask(&["enforce", "lots"]).status.code(), Some(2));
}

#[test]
fn a_candidate_is_compared_then_promoted_or_dropped() {
    let sidecar = Sidecar::start("shadow");
    let block = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("candidate.toml");
    fs::write(&block, "[gate.admission]\npolicy = 'codel'\n").expect("a folder of our own");
    let block = block.to_str().expect("a plain path");
    assert!(text(&sidecar.ask(&["shadow", "show"])).contains("no candidate"));
    let told = sidecar.change(&["shadow", "start", block]);
    assert_eq!(told["arrivals"], 0);
    assert!(text(&sidecar.ask(&["shadow", "show"])).contains("0 decided differently"));
    assert_eq!(sidecar.change(&["shadow", "drop"])["candidate"], Value::Null);
    sidecar.change(&["shadow", "start", block]);
    let promoted = sidecar.change(&["shadow", "promote"]);
    assert!(promoted["live"].as_str().expect("TOML").contains("codel"));
    assert_eq!(sidecar.json(&["explain"])["policy"], "codel");
    let nothing = sidecar.ask(&["shadow", "start", "/nowhere.toml"]);
    assert_eq!(nothing.status.code(), Some(2));
}

#[test]
fn nobody_there_is_an_error_of_another_kind() {
    let output = Command::new(TIDEGATE)
        .args(["explain", "--admin", "127.0.0.1:1"])
        .output()
        .expect("it runs");
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output).contains("cannot ask 127.0.0.1"), "{output:?}");
}
