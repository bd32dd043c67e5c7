//! The access log and the record, on real files.

#![allow(clippy::disallowed_methods, reason = "real sockets, real threads, real time")]

mod support;

use std::path::PathBuf;
use std::{env, fs, process};

use serde_json::Value;
use support::{Sidecar, Upstream, ok};

/// A file that goes with the test.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        Self(env::temp_dir().join(format!("tidegate-{}-{name}", process::id())))
    }

    fn text(&self) -> String {
        fs::read_to_string(&self.0).unwrap_or_default()
    }

    fn rotated(&self) -> PathBuf {
        PathBuf::from(format!("{}.1", self.0.display()))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
        let _ = fs::remove_file(self.rotated());
    }
}

const RULE: &str = "[[proxy.rules]]\nname = 'orders'\npath = '/orders'\nbusiness = 5\n\
                    [[gate.limits]]\nlimit = 'rate'\nrate = 0.001\nburst = 2.0\n";

#[test]
fn a_line_tells_what_was_decided_and_nothing_of_the_user() {
    let (log, record) = (Scratch::new("access"), Scratch::new("record"));
    let upstream = Upstream::start(|_| ok("served"));
    let config = format!(
        "[proxy]\nrecord_file = '{}'\n[proxy.access_log]\nfile = '{}'\n{RULE}",
        record.0.display(),
        log.0.display()
    );
    let sidecar = Sidecar::start(&config, &[upstream.address]);
    let mut client = sidecar.client();
    let trace = "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\r\n";
    for (path, status) in
        [("/orders/4711?key=secret", 200), ("/healthz", 200), ("/a", 200), ("/orders/ann", 429)]
    {
        assert_eq!(client.get(path, trace).status(), status, "{path}");
    }
    sidecar.handle.stop();
    sidecar.ended();
    let text = log.text();
    let lines: Vec<Value> =
        text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(lines.len(), 4, "{text}");
    let [order, health, _, refused] = &lines[..] else { unreachable!() };
    assert_eq!((&order["path"], &order["rule"]), (&"/orders/{}".into(), &"orders".into()));
    assert_eq!((&order["verdict"], &order["status"]), (&"admit".into(), &200.into()));
    assert_eq!(order["trace"], "0af7651916cd43dd8448eb211c80319c");
    assert!(
        order["wait_ms"].as_f64() >= Some(0.0)
            && order["service_ms"].as_f64() >= order["head_ms"].as_f64()
    );
    assert_eq!((&health["verdict"], &health["rule"]), (&"pass".into(), &Value::Null));
    assert_eq!((&refused["verdict"], &refused["status"]), (&"refuse".into(), &429.into()));
    assert_eq!((&refused["reason"], &refused["which"]), (&"quota".into(), &"limits.0".into()));
    for word in ["secret", "127.0.0.1", "user", "4711"] {
        assert!(!text.contains(word), "{word} is in\n{text}");
    }
    let record = record.text();
    let mut rows = record.lines();
    assert_eq!(rows.next(), Some("timestamp,workflow,business,user,service"));
    let business: Vec<&str> = rows.map(|row| row.split(',').nth(2).expect("five fields")).collect();
    assert_eq!(business, ["5", "63", "63", "5"], "{record}");
}

#[test]
fn what_is_full_makes_room() {
    let log = Scratch::new("full");
    let upstream = Upstream::start(|_| ok("served"));
    let config = format!(
        "[proxy.access_log]\nfile = '{}'\nmost_bytes = 4096\nper_second = 0\n",
        log.0.display()
    );
    let sidecar = Sidecar::start(&config, &[upstream.address]);
    let mut client = sidecar.client();
    (0..60).for_each(|_| assert_eq!(client.get("/", "").status(), 200));
    sidecar.handle.stop();
    sidecar.ended();
    for path in [&log.0, &log.rotated()] {
        let size = fs::metadata(path).expect("it is there").len();
        assert!((1..=4096 + 400).contains(&size), "{size} bytes of {}", path.display());
    }
}

/// A disk that takes nothing costs lines, and no answers.
#[test]
fn a_full_disk_costs_lines_and_no_requests() {
    let upstream = Upstream::start(|_| ok("served"));
    let sidecar = Sidecar::start("[proxy.access_log]\nfile = '/dev/full'\n", &[upstream.address]);
    let mut client = sidecar.client();
    (0..60).for_each(|_| assert_eq!(client.get("/", "").status(), 200));
    sidecar.wait_for("it is told", |state| state["log_lines_lost"].as_u64() > Some(0));
}
