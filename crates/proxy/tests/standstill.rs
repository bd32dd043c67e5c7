//! A service that hangs: whoever waits is told when its time is up, although nothing ends.

#![allow(clippy::disallowed_methods, reason = "real sockets, real threads, real time")]

mod support;

use support::leaks::conserved;
use support::{Client, Sidecar, Upstream};

#[test]
fn who_waits_behind_what_hangs_is_refused_at_the_objective() {
    let (barrier, upstream) = Upstream::held();
    let config = "[gate.admission]\npolicy = 'tide'\nobjective = '100ms'\n\
                  [gate.slots]\nslots = 'fixed'\ncount = 1\n";
    let sidecar = Sidecar::start(config, &[upstream.address]);
    let mut hangs = sidecar.client();
    hangs.send("GET /slow HTTP/1.1\r\nhost: a\r\n\r\n");
    sidecar.wait_for("it hangs", |_| barrier.came() == 1);
    let mut waiting: Vec<Client> = (0..4).map(|_| sidecar.client()).collect();
    for client in &mut waiting {
        client.send("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
    }
    for client in &mut waiting {
        let reply = client.reply();
        assert_eq!(reply.status(), 503, "{}", reply.text());
    }
    let state = sidecar.state();
    assert_eq!((&state["running"], &state["waiting"]), (&1.into(), &0.into()));
    barrier.open();
    assert_eq!(hangs.reply().text(), "served");
    conserved(&sidecar);
}
