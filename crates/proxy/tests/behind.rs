//! What gates behind a sidecar say: it is heard, and it is handed on.

#![allow(clippy::disallowed_methods, reason = "real sockets, real threads, real time")]

mod support;

use std::sync::atomic::{AtomicU64, Ordering};

use support::{Sidecar, Upstream, ok};

/// The callers of a Breakwater gate, as its page has them.
const CREDIT: &str = "[caller]\nhold_time = '30s'\n[caller.throttle]\nthrottle = 'credit'\n";

fn refusal(feedback: &str) -> String {
    format!(
        "HTTP/1.1 503 Service Unavailable\r\noverload-feedback: {feedback}\r\ncontent-length: 0\r\n\r\n"
    )
}

/// A window of 0 over HTTP once kept a caller silent for ten seconds, after one refusal.
#[test]
fn one_refusal_locks_nobody_out() {
    let asked = AtomicU64::new(0);
    let upstream = Upstream::start(move |_| match asked.fetch_add(1, Ordering::SeqCst) {
        0 => refusal("n=0, x=60000, i=\"2a\", v=1, why=delay"),
        _ => ok("served"),
    });
    let sidecar = Sidecar::start(CREDIT, &[upstream.address]);
    let mut client = sidecar.client();
    assert_eq!(client.get("/", "").status(), 503);
    // Held for a credit that nobody can tell it of, it would get a refusal after `hold_time`.
    assert_eq!(client.get("/", "").text(), "served");
}

/// Both the refusal of a gate behind and that of the throttle before it say why, and what to do.
#[test]
fn a_refusal_from_behind_says_why_and_what_then() {
    let context = "overload-context: r=(24 7)\r\n";
    let inside = format!("[proxy]\ntrust = 'inside'\n{CREDIT}");
    let upstream =
        Upstream::start(|_| refusal("l=(), f=(), x=60000, i=\"2a\", v=1, why=quota, then=never"));
    let sidecar = Sidecar::start(&inside, &[upstream.address]);
    let mut client = sidecar.client();
    for why in ["why=quota", "why=rank"] {
        let reply = client.get("/", context);
        let told = reply.header("overload-feedback").expect("it listens").to_owned();
        assert_eq!(reply.status(), 503, "{told}");
        assert!(told.contains(why) && told.contains("then=never"), "{told}");
        assert!(!told.contains("i=\"2a\""), "it is our own gate's: {told}");
    }
}
