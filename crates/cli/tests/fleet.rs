//! One limit over three sidecars and a daemon: real processes, real sockets, real load. What passes is
//! counted, and held against the bound that is exported.

#![cfg(unix)]
#![allow(clippy::disallowed_methods, reason = "real processes, real sockets")]

#[path = "support/fleet.rs"]
mod fleet;

use std::fs;
use std::process::Command;
use std::sync::atomic::Ordering;

use fleet::{Client, Daemon, Fleet, HELD, Lost, MOST_HELD, Networks, Sidecar, TOKEN, wait};
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

    // Ended in order, it leaves what it knows: the next one goes on, and nobody loses a lease.
    wait("the past is over", || {
        let state = fleet.daemon.state();
        state["agreements"][0]["keys"][0]["quiet_seconds"].as_f64() == Some(0.0)
    });
    passed += load(&[a], "one has nearly all", || a.share() > 250.0);
    fleet.daemon.end();
    fleet.daemon = Daemon::start(&fleet.config);
    let [a, b, c] = &fleet.sidecars[..] else { unreachable!("three were started") };
    let all = [a, b, c];
    assert!(a.share() > 250.0, "it has its lease");
    passed += load(&[c], "shares are moved by the next one", || c.share() > 250.0);

    // A sidecar stops for longer than its lease, and goes on: what it had has gone to the others.
    passed += load(&[b], "one has nearly all", || b.share() > 250.0);
    b.signal("STOP");
    passed += load(&[a], "its lease is over", || a.share() > 250.0);
    b.signal("CONT");
    passed += load(&all, "and it is one of them again", || b.share() > 50.0);
    assert!(passed <= most(a.uptime() - begun), "{passed} in {} s", a.uptime() - begun);
    assert!(a.refused() > 0 && passed > 300.0, "the limit was reached");
}

/// Reports arrive and answers do not, or nothing leaves at all, for longer than a lease: the sidecar goes
/// on by itself, the others have what it had, and when the line is mended everything is as it was.
#[test]
fn a_sidecar_that_is_cut_off_goes_on_and_the_bound_holds() {
    if !Networks::enter("a_sidecar_that_is_cut_off_goes_on_and_the_bound_holds") {
        return;
    }
    let (fleet, networks) = Fleet::start_apart("apart", 3);
    let [a, b, c] = &fleet.sidecars[..] else { unreachable!("three were started") };
    let all = [a, b, c];
    let begun = a.uptime();
    let mut passed =
        load(&all, "every sidecar has a part", || all.iter().all(|at| at.share() > 50.0));
    for lost in [Lost::Answers, Lost::Reports] {
        passed += load(&[a], "one has nearly all", || a.share() > 250.0);
        networks.cut(0, lost, true);
        passed += load(&all, "it has its safe share", || !a.connected() && a.share() < 4.0);
        let others = || b.share() + c.share() > 250.0;
        passed += load(&all, "the others have what it had", others);
        networks.cut(0, lost, false);
        passed += load(&all, "it is one of them again", || a.share() > 50.0);
        let seconds = a.uptime() - begun;
        let most = 30.0 + 300.0 * 1.0011 * seconds;
        assert!(passed <= most, "{passed} in {seconds} s");
    }
}

/// A sidecar that ends says so: what it had is for others at once, not a term later.
#[test]
fn a_sidecar_that_ends_leaves_its_share_to_the_others() {
    let mut fleet = Fleet::start("leave", 2);
    let leaver = fleet.sidecars.pop().expect("two were started");
    let stays = &fleet.sidecars[0];
    load(&[&leaver], "one has nearly all", || leaver.share() > 250.0);
    leaver.signal("TERM");
    let leased = |node: &str| {
        let state = fleet.daemon.state();
        let holders = state["agreements"][0]["keys"][0]["holders"].as_array().cloned();
        let all = holders.unwrap_or_default();
        let of = all.iter().filter(|at| at["node"] == node);
        of.map(|at| at["leased"]["rate"].as_f64().expect("told")).sum::<f64>()
    };
    load(&[stays], "it has all, while the one that left is still known", || stays.share() > 250.0);
    assert!(leased("sidecar-1") < 1.0);
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

/// Each tenant has its own over all sidecars together, and one that is named has more; in shadow everything passes
/// and is counted.
#[test]
fn every_tenant_has_its_own_over_all_sidecars() {
    let agreement = "[[agreements]]\nname = 'tenants'\neach = 'header'\nrate = 20.0\nburst = 20.0\nnodes = 2\n\
                     named = [{ key = 'gold', rate = 90.0, burst = 90.0 }]\n";
    let limit = "[[gate.limits]]\nlimit = 'leased'\nagreement = 'tenants'\neach = 'header'\n\
                 control = 'http://{control}'\n";
    let token = "token_file = 'TOKEN'\n";
    let folder = Fleet::folder("tenants");
    let token = token.replace("TOKEN", folder.join("node.token").to_str().expect("text"));
    let fleet = Fleet::start_with("tenants", 2, agreement, &format!("{limit}{token}"));
    let [a, b] = &fleet.sidecars[..] else { unreachable!("two were started") };
    let begun = a.uptime();
    let mut clients = [a.client(), b.client()];
    let mut passed = [0.0, 0.0];
    wait("both tenants are at their limits", || {
        for client in &mut clients {
            for (tenant, passed) in ["silver", "gold"].into_iter().zip(&mut passed) {
                for _ in 0..5 {
                    let header = format!("x-tenant: {tenant}\r\n");
                    *passed += f64::from(client.send("GET", "/", &header, "") == 200);
                }
            }
        }
        passed[0] > 60.0 && passed[1] > 270.0
    });
    let seconds = a.uptime() - begun;
    for (passed, agreed) in passed.into_iter().zip([20.0, 90.0]) {
        assert!(passed <= agreed + agreed * 1.0011 * seconds, "{passed} in {seconds} s");
    }
    let state = fleet.daemon.state();
    let keys = state["agreements"][1]["keys"].as_array().expect("told");
    let keys: Vec<_> = keys.iter().filter_map(|key| key["key"].as_str()).collect();
    assert_eq!(keys, ["", "gold", "silver"]);
    // In shadow.
    let token = fleet.folder.join("admin.token");
    let admin = ["--admin", &fleet.daemon.admin, "--token-file", token.to_str().expect("text")];
    for name in ["tenants", "api"] {
        let output = Command::new(env!("CARGO_BIN_EXE_tidegate"))
            .args(["limits", "set", name, "--percent", "0"])
            .args(admin)
            .output()
            .expect("it runs");
        assert!(output.status.success(), "{output:?}");
    }
    let beyond = |sidecar: &Sidecar| sidecar.state()["leases"][1]["beyond"].as_u64();
    wait("both sidecars let pass what is beyond", || {
        for client in &mut clients {
            client.send("GET", "/", "x-tenant: silver\r\n", "");
        }
        beyond(a) > Some(0) && beyond(b) > Some(0)
    });
    assert_eq!(clients[0].send("GET", "/", "x-tenant: silver\r\n", ""), 200);
    assert!(fleet.sidecars[0].state()["leases"][1]["over_admission_bound"].is_null(), "unbounded");
}

/// Ten places over two sidecars: at no moment does the service have more, whichever of all processes is killed; what
/// a process holds is aborted when its lease is over.
#[test]
fn places_are_never_more_than_there_are() {
    let folder = Fleet::folder("places");
    let agreement = "[[agreements]]\nname = 'jobs'\nplaces = 10\nnodes = 2\nterm = '2s'\n";
    let limit = format!(
        "[[gate.limits]]\nlimit = 'leased'\nagreement = 'jobs'\nplaces = true\n\
         control = 'http://{{control}}'\ntoken_file = '{}'\n",
        folder.join("node.token").display()
    );
    let mut fleet = Fleet::start_with("places", 2, agreement, &limit);
    let held = || HELD.load(Ordering::SeqCst);
    let leases = |sidecar: &Sidecar| sidecar.state()["leases"][1].clone();
    fleet.sidecars[0].hold(15);
    wait("one has all places", || held() == 10);
    let told = leases(&fleet.sidecars[0]);
    assert!(told["held"] == 10.0 && told["share_rate"] == 0.0, "{told}");
    fleet.sidecars[1].hold(15);
    wait("the other is refused", || fleet.sidecars[1].refused() > 20);
    assert_eq!(leases(&fleet.sidecars[1])["held"], 0.0);
    // Killed: its places are the other's when they are free for sure.
    drop(fleet.sidecars.remove(0));
    wait("the other has all places", || held() == 10);
    let other = &fleet.sidecars[0];
    assert_eq!(leases(other)["held"], 10.0);
    // Without the daemon they are its own to the end of the lease.
    fleet.daemon.kill();
    wait("what it held was aborted", || held() == 0 && leases(other)["held"] == 0.0);
    fleet.daemon = Daemon::start(&fleet.config);
    wait("it has them again", || held() == 10);
    let most = MOST_HELD.load(Ordering::SeqCst);
    assert!(most <= 10, "{most} at once");
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
