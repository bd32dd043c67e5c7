//! What operators change over the admin port.

#![allow(clippy::disallowed_methods, reason = "real sockets, real threads, real time")]

mod support;

use std::path::PathBuf;

use serde_json::{Value, json};
use support::{Barrier, Client, Reply, Sidecar, Upstream, ok};

const TOKEN: &str = "a-token-of-some-length";

/// A file with the token, removed at the end.
struct TokenFile(PathBuf);

impl TokenFile {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("tidegate-{name}-{}", std::process::id()));
        std::fs::write(&path, format!("{TOKEN}\n")).expect("a file can be written");
        Self(path)
    }

    fn config(&self) -> String {
        format!("admin_token_file = '{}'\n", self.0.display())
    }
}

impl Drop for TokenFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn ask(sidecar: &Sidecar, line: &str, headers: &str, body: &str) -> Reply {
    let mut client = Client::connect(sidecar.handle.admin());
    let length = body.len();
    client.send(&format!(
        "{line} HTTP/1.1\r\nhost: admin\r\n{headers}content-length: {length}\r\n\r\n{body}"
    ));
    client.reply()
}

fn change(sidecar: &Sidecar, line: &str, body: &str) -> Reply {
    ask(sidecar, line, &format!("authorization: Bearer {TOKEN}\r\n"), body)
}

fn as_json(reply: &Reply) -> Value {
    serde_json::from_slice(&reply.body).unwrap_or_else(|_| panic!("{}", reply.text()))
}

#[test]
fn changes_need_the_token_and_a_page_of_ours() {
    let upstream = Upstream::start(|_| ok(""));
    let open = Sidecar::start("", &[upstream.address]);
    let reply = change(&open, "POST /enforce?percent=0", "");
    assert_eq!(reply.status(), 403);
    assert!(reply.text().contains("--admin-token-file"), "{}", reply.text());

    let file = TokenFile::new("token");
    let sidecar = Sidecar::start(&format!("[proxy]\n{}", file.config()), &[upstream.address]);
    for (headers, status) in [
        ("", 401),
        ("authorization: Bearer wrong\r\n", 401),
        (&*format!("authorization: {TOKEN}\r\n"), 401),
        (&*format!("authorization: Bearer {TOKEN}\r\norigin: http://evil\r\n"), 403),
        (&*format!("authorization: Bearer {TOKEN}\r\nsec-fetch-site: cross-site\r\n"), 403),
        (&*format!("authorization: Bearer {TOKEN}\r\norigin: http://admin\r\n"), 200),
    ] {
        let reply = ask(&sidecar, "POST /enforce?percent=7", headers, "");
        assert_eq!(reply.status(), status, "{headers}: {}", reply.text());
        let enforced = as_json(&sidecar.admin("/enforce"))["percent"].clone();
        assert_eq!(enforced, if status == 200 { 7 } else { 100 });
    }
    for line in ["POST /enforce", "POST /enforce?percent=101", "POST /enforce?percent=x"] {
        assert_eq!(change(&sidecar, line, "").status(), 400, "{line}");
    }
    let back = as_json(&change(&sidecar, "DELETE /enforce", ""));
    assert_eq!(back, json!({ "percent": 100, "configured": 100, "overridden": false }));
    assert_eq!(change(&sidecar, "POST /state", "").status(), 405);
    let shown = sidecar.admin("/config").text();
    assert!(shown.contains("admin_token_file") && !shown.contains(TOKEN), "{shown}");
}

/// The kill switch lets everything pass at once, and what waits goes on.
#[test]
fn at_zero_nothing_is_held_and_what_waits_is_not_lost() {
    let barrier = Barrier::default();
    let held = barrier.clone();
    let upstream = Upstream::start(move |_| {
        held.pass();
        ok("served")
    });
    let file = TokenFile::new("kill");
    let config = format!(
        "[proxy]\n{}[gate]\nqueue_limit = 2\n[gate.admission]\npolicy = 'open'\n\
         [gate.slots]\nslots = 'fixed'\ncount = 1\n",
        file.config()
    );
    let sidecar = Sidecar::start(&config, &[upstream.address]);
    let mut clients: Vec<Client> = (0..6).map(|_| sidecar.client()).collect();
    for client in &mut clients[..3] {
        client.send("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
    }
    sidecar.wait_for("a full gate", |state| state["running"] == 1 && state["waiting"] == 2);
    assert_eq!(sidecar.client().get("/", "").status(), 503);
    let refusals = as_json(&sidecar.admin("/refusals"));
    assert_eq!((&refusals["total"], &refusals["kept"]), (&json!(1), &json!(1)));
    let refusal = &refusals["refusals"][0];
    assert_eq!((&refusal["reason"], &refusal["enforced"]), (&json!("full"), &json!(true)));
    assert_eq!((&refusal["measured"], &refusal["limit"]), (&json!(2.0), &json!(2.0)));
    assert_eq!((&refusal["band"], &refusal["workflow"]), (&json!("critical"), &Value::Null));

    let reply = as_json(&change(&sidecar, "POST /enforce?percent=0", ""));
    assert_eq!(reply, json!({ "percent": 0, "configured": 100, "overridden": true }));
    for client in &mut clients[3..] {
        client.send("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
    }
    // One had a slot; three are not held any more.
    sidecar.wait_for("all but those that wait", |_| barrier.came() == 4);
    assert_eq!(sidecar.state()["observe"], true);
    // Back while some are inside: the gate keeps those it has.
    change(&sidecar, "POST /enforce?percent=100", "");
    let state = sidecar.state();
    assert_eq!((&state["running"], &state["waiting"]), (&json!(1), &json!(2)));
    barrier.open();
    for client in &mut clients {
        assert_eq!(client.reply().text(), "served");
    }
    sidecar.wait_until_empty();
    assert_eq!(sidecar.state()["finished"]["critical"]["served"], 6, "watched ones count too");
}

/// With a share, users are refused or served as a whole.
#[test]
fn a_share_of_the_users_is_refused() {
    let barrier = Barrier::default();
    let held = barrier.clone();
    let upstream = Upstream::start(move |_| {
        held.pass();
        ok("served")
    });
    let config = "[proxy]\nenforce = '50%'\nuser_header = 'x-user'\n\
                  edge = { trusted = ['127.0.0.1'] }\n[gate]\nqueue_limit = 1\n\
                  [gate.admission]\npolicy = 'open'\n[gate.slots]\nslots = 'fixed'\ncount = 1\n";
    let sidecar = Sidecar::start(config, &[upstream.address]);
    // Nothing has been answered yet, so in the model these two fill the gate for good.
    let mut inside = [sidecar.client(), sidecar.client()];
    for client in &mut inside {
        client.send("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
    }
    sidecar.wait_for("both", |_| barrier.came() == 2);
    let mut users: Vec<[Client; 2]> = (0..40)
        .map(|user| {
            [(); 2].map(|()| {
                let mut client = sidecar.client();
                client.send(&format!("GET / HTTP/1.1\r\nhost: a\r\nx-user: {user}\r\n\r\n"));
                client
            })
        })
        .collect();
    sidecar.wait_for("everybody", |state| {
        let full = |side: &str| state[side]["critical"]["full"].as_u64().unwrap_or(0);
        full("refused") + full("would_refuse") == 80
    });
    barrier.open();
    let mut seen = [0, 0];
    for clients in &mut users {
        let [one, other] = clients.each_mut().map(|client| client.reply().status());
        assert_eq!(one, other, "the same user");
        seen[usize::from(one == 503)] += 1;
    }
    assert!(seen[0] > 5 && seen[1] > 5, "{seen:?}");
    let told = &sidecar.state()["refused"]["critical"]["full"];
    assert_eq!(told.as_u64(), Some(2 * seen[1]), "only what was enforced counts as refused");
    for client in &mut inside {
        assert_eq!(client.reply().status(), 200);
    }
}

#[test]
fn a_candidate_is_compared_promoted_and_dropped() {
    let upstream = Upstream::start(|_| ok("served"));
    let file = TokenFile::new("shadow");
    let config =
        format!("[proxy]\n{}trust = 'inside'\n[gate.admission]\npolicy = 'open'\n", file.config());
    let sidecar = Sidecar::start(&config, &[upstream.address]);
    assert_eq!(as_json(&sidecar.admin("/shadow")), json!({ "candidate": null }));
    for line in ["DELETE /shadow", "POST /shadow/promote"] {
        assert_eq!(change(&sidecar, line, "").status(), 404, "{line}");
    }
    for wrong in ["", "[gate]\nqueue_limit = 0\n", "[proxy]\nthreads = 1\n", "not toml"] {
        let reply = change(&sidecar, "POST /shadow", wrong);
        assert_eq!(reply.status(), 400, "{wrong:?}: {}", reply.text());
    }
    let candidate = "[gate.admission]\npolicy = 'utilization'\n";
    assert_eq!(change(&sidecar, "POST /shadow", candidate).status(), 200);
    let mut client = sidecar.client();
    for business in [5, 40] {
        let reply = client.get("/", &format!("overload-context: r=({business} 0)\r\n"));
        assert_eq!(reply.status(), 200);
    }
    let report = as_json(&sidecar.admin("/shadow"));
    assert_eq!((&report["arrivals"], &report["same"]), (&json!(2), &json!(2)), "{report:#}");
    assert_eq!(report["by_band"]["critical-plus"]["arrivals"], 1);
    assert_eq!(report["model_errs"], 0);
    assert!(report["candidate"].as_str().unwrap().contains("utilization"), "{report:#}");
    assert!(report["since_ms"].is_u64());

    let promoted = change(&sidecar, "POST /shadow/promote", "");
    assert_eq!(promoted.header("content-type"), Some("application/toml"));
    assert!(promoted.text().contains("utilization"));
    assert!(sidecar.admin("/config").text().contains("policy = \"utilization\""));
    assert_eq!(as_json(&sidecar.admin("/shadow")), json!({ "candidate": null }));
    assert_eq!(client.get("/", "").status(), 200);

    assert_eq!(change(&sidecar, "POST /shadow", candidate).status(), 200);
    assert_eq!(change(&sidecar, "DELETE /shadow", "").status(), 200);
}
