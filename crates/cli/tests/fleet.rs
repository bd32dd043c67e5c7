//! One limit over three sidecars and a daemon: real processes, real sockets, real load. What passes is
//! counted, and held against the bound that is exported.

#![cfg(unix)]
#![allow(clippy::disallowed_methods, reason = "real processes, real sockets")]

#[path = "support/fleet.rs"]
mod fleet;

use std::fs;
use std::process::Command;

use fleet::{Client, Daemon, Fleet, Sidecar, TOKEN, wait};
use serde_json::json;

/// Requests between two looks at how things are.
const BATCH: usize = 40;

/// Sends batches to `sidecars` until `done`, and counts what passed. Whatever happens meanwhile, every
/// request is answered, by the service or by a refusal.
fn load(sidecars: &[&Sidecar], what: &str, mut done: impl FnMut() -> bool) -> f64 {
    let mut clients: Vec<Client> = sidecars.iter().map(|sidecar| sidecar.client()).collect();
    let mut passed = 0;
    wait(what, || {
        for client in &mut clients {
            for _ in 0..BATCH {
                match client.get("") {
                    200 => passed += 1,
                    429 => {}
                    status => panic!("{what}: a request was answered {status}"),
                }
            }
        }
        done()
    });
    f64::from(passed)
}

#[test]
fn one_limit_holds_over_three_sidecars_whatever_happens_to_the_daemon() {
    let mut fleet = Fleet::start("whole", 3);
    let [a, b, c] = &fleet.sidecars[..] else { unreachable!("three were started") };
    let all = [a, b, c];
    // Time by a sidecar's own clock: the first, which has run longest.
    let begun = a.uptime();
    let mut passed = 0.0;

    // From all sides: everybody has a part.
    let shared = || all.iter().all(|sidecar| sidecar.share() > 50.0);
    passed += load(&all, "every sidecar has a part", shared);
    let state = fleet.daemon.state();
    let bound = state["agreements"][0]["keys"][0]["bound"].clone();
    let most = |seconds: f64| {
        bound["burst"].as_f64().expect("bounded")
            + bound["rate"].as_f64().expect("bounded") * seconds
    };
    assert!((300.0..301.0).contains(&bound["rate"].as_f64().expect("bounded")), "{state}");

    // From one side: it has nearly all.
    passed += load(&[a], "the share has followed the load", || a.share() > 250.0);
    passed += load(&[c], "and follows it again", || c.share() > 250.0);
    assert!(passed <= most(a.uptime() - begun), "{passed} in {} s", a.uptime() - begun);

    // The daemon is killed: the lease runs to its end, then there is the safe share.
    fleet.daemon.kill();
    assert!(c.share() > 250.0, "nothing is lost with the daemon");
    passed += load(&all, "all are at their safe shares", || all.iter().all(|at| !at.connected()));
    assert!(all.iter().all(|at| (at.share() - 3.0).abs() < 0.01), "3 % of 300 for three");
    passed += load(&all, "tokens of safe shares pass", {
        let before = a.admitted();
        move || a.admitted() > before
    });
    assert!(passed <= most(a.uptime() - begun), "{passed} in {} s", a.uptime() - begun);

    // It comes back, grants nothing for a term, and then everything.
    fleet.daemon = Daemon::start(&fleet.config);
    let [a, b, c] = &fleet.sidecars[..] else { unreachable!("three were started") };
    let all = [a, b, c];
    passed += load(&all, "shares are leased again", || all.iter().all(|at| at.share() > 50.0));

    // A sidecar stops for longer than its lease, and goes on: what it had has gone to the others.
    passed += load(&[b], "one has nearly all", || b.share() > 250.0);
    b.signal("STOP");
    passed += load(&[a], "its lease is over", || a.share() > 250.0);
    b.signal("CONT");
    passed += load(&all, "and it is one of them again", || b.share() > 50.0);
    assert!(passed <= most(a.uptime() - begun), "{passed} in {} s", a.uptime() - begun);
    assert!(a.refused() > 0 && passed > 300.0, "the limit was reached");
}

/// An edit over the admin port is in force at the sidecars with their next reports, and can be taken back.
#[test]
fn an_agreement_is_changed_explained_and_reverted() {
    let fleet = Fleet::start("edit", 1);
    let sidecar = &fleet.sidecars[0];
    load(&[sidecar], "it has nearly all", || sidecar.share() > 250.0);
    let token = fleet.folder.join("admin.token");
    let limits = |args: &[&str]| {
        let admin = ["--admin", &fleet.daemon.admin, "--token-file", token.to_str().expect("text")];
        let output = Command::new(env!("CARGO_BIN_EXE_tidegate"))
            .arg("limits")
            .args(args)
            .args(admin)
            .output()
            .expect("it runs");
        let text = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8(text).expect("text"))
    };
    let (code, told) = limits(&["set", "api", "--rate", "30"]);
    assert_eq!(code, Some(0), "{told}");
    assert!(told.contains("version 2 is in force"), "{told}");
    wait("the edit is heard of", || sidecar.share() < 31.0);
    let (_, told) = limits(&["explain", "api"]);
    assert!(told.contains("api: 30.0/s, burst 30.0") && told.contains("leases"), "{told}");
    let (code, told) = limits(&["set", "api", "--rate", "-1"]);
    assert!(code == Some(2) && told.contains("agreements.0.rate = -1"), "{told}");
    let (code, told) = limits(&["set", "other", "--rate", "1"]);
    assert!(code == Some(2) && told.contains("no agreement other"), "{told}");
    assert_eq!(limits(&["revert", "1"]).0, Some(0));
    load(&[sidecar], "the old one is back", || sidecar.share() > 250.0);
    let (_, told) = limits(&["show", "--format", "json"]);
    let told: serde_json::Value = serde_json::from_str(&told).expect("JSON");
    assert_eq!(told["agreements"][0]["rate"], json!(300.0));
    assert_eq!(told["changes"][0]["version"], json!(3));
    assert!(told["changes"][0]["who"].as_str().expect("told").ends_with("back to 1"));
}

/// Who has no token, or speaks another language, gets nothing; the daemon goes on.
#[test]
fn strangers_and_garbage_get_nothing() {
    let fleet = Fleet::start("strangers", 1);
    let sidecar = &fleet.sidecars[0];
    let mut client = Client::open(&fleet.daemon.listen);
    let auth = format!("authorization: Bearer {TOKEN}\r\n");
    for (headers, body, status) in [
        ("", "TGLR\x01\0", 401),
        ("authorization: Bearer wrong-wrong-wrong-wrong\r\n", "TGLR\x01\0", 401),
        (auth.as_str(), "TGLR\x01\0", 200),
        (auth.as_str(), "TGLR\x02\0", 400),
        (auth.as_str(), "GET / HTTP/1.1", 400),
        (auth.as_str(), "", 400),
    ] {
        assert_eq!(client.send("POST", "/v1/lease", headers, body), status, "{headers}{body:?}");
    }
    assert_eq!(client.get("v1/agreements"), 404, "operators have another port");
    let mut admin = Client::open(&fleet.daemon.admin);
    assert_eq!(admin.send("PUT", "/v1/agreements", "", ""), 401);
    assert_eq!(
        admin.send("PUT", "/v1/agreements", &auth, ""),
        401,
        "a node's token changes nothing"
    );
    // A node that shows another token is left with its safe share: none, as it was told of none.
    fs::write(fleet.folder.join("node.token"), "another-token-than-the-daemons").expect("writable");
    let stranger = Sidecar::start(&fleet.folder, &fleet.daemon.listen, &fleet.service, 9);
    wait("it is turned away", || {
        let problem = stranger.state()["control"]["problem"].clone();
        problem.as_str().is_some_and(|problem| problem.contains("401"))
    });
    assert_eq!(stranger.client().get(""), 429);
    assert!(!stranger.connected() && sidecar.state()["leases"][0]["agreement"] == "api");
}

/// What cannot be started says why, and leaves the state as it is.
#[test]
fn a_state_that_cannot_be_used_is_named() {
    let fleet = Fleet::start("state", 0);
    let state = fleet.folder.join("state.json");
    let output = |args: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_tidegate"))
            .args(["control", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"])
            .args(args)
            .output()
            .expect("it runs");
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let store = format!("file:{}", state.display());
    let (code, said) = output(&["--store", &store]);
    assert!(code == Some(2) && said.contains("another tidegate control uses"), "{said}");
    drop(fleet.daemon);
    let newer = "{ \"format\": 99 }";
    fs::write(&state, newer).expect("writable");
    let (code, said) = output(&["--store", &store]);
    assert!(code == Some(2) && said.contains("format 99"), "{said}");
    assert_eq!(fs::read_to_string(&state).expect("there"), newer);
    let (code, said) = output(&["--store", "etcd"]);
    assert!(code == Some(2) && said.contains("memory, or file:"), "{said}");
}
