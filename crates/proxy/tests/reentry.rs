//! Services that call themselves through their own gates, with one slot each: nobody waits behind itself.

#![allow(clippy::disallowed_methods, reason = "real sockets, real threads, real time")]

mod support;

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use support::leaks::conserved;
use support::{Client, Reply, Sidecar, Upstream, ok};

/// Nobody who waits is refused: what stands still stands still for ever.
const ONE_SLOT: &str =
    "[gate.admission]\npolicy = 'open'\n[gate.slots]\nslots = 'fixed'\ncount = 1\n";

/// Where the service finds the sidecars, once they run.
type Doors = Arc<Mutex<Vec<SocketAddr>>>;

/// A service that asks for the rest of its path, `/0/1` at door 0 and then at door 1, and passes on what `fields` names.
fn service(doors: &Doors, fields: &'static [&'static str]) -> Upstream {
    let doors = Arc::clone(doors);
    Upstream::start(move |request| ok(&answer(&request, &doors, fields)))
}

fn answer(request: &Reply, doors: &Doors, fields: &[&str]) -> String {
    let path = request.first.split(' ').nth(1).expect("a path");
    let Some((door, rest)) = path.trim_start_matches('/').split_once('/') else {
        return "end".to_owned();
    };
    let door = doors.lock().unwrap()[door.parse::<usize>().expect("a door")];
    let passed = fields.iter().filter_map(|name| Some((name, request.header(name)?)));
    let passed: String = passed.map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    let reply = Client::connect(door).get(&format!("/{rest}"), &passed);
    format!("{} {}", reply.status(), reply.text())
}

/// Of a trace of its own.
fn trace(n: usize) -> String {
    format!("traceparent: 00-0af7651916cd43dd8448eb211c80{n:04x}-b7ad6b7169203331-01\r\n")
}

#[test]
fn a_service_that_calls_itself_is_answered_with_one_slot() {
    for fields in [&["traceparent"][..], &["overload-context"]] {
        let doors = Doors::default();
        let upstream = service(&doors, fields);
        let sidecar = Sidecar::start(ONE_SLOT, &[upstream.address]);
        doors.lock().unwrap().push(sidecar.handle.listen());
        let mut clients: Vec<Client> = (0..6).map(|_| sidecar.client()).collect();
        for (n, client) in clients.iter_mut().enumerate() {
            client.send(&format!("GET /0/end HTTP/1.1\r\nhost: a\r\n{}\r\n", trace(n + 1)));
        }
        for client in &mut clients {
            assert_eq!(client.reply().text(), "200 end", "{fields:?}");
        }
        conserved(&sidecar);
        assert_eq!(sidecar.state()["reserved"], 0);
    }
}

#[test]
fn two_services_that_call_each_other_are_answered_with_one_slot_each() {
    for fields in [&["traceparent"][..], &["overload-context"]] {
        let doors = Doors::default();
        let upstreams = [service(&doors, fields), service(&doors, fields)];
        let config = format!("[proxy]\ntrust = 'inside'\n{ONE_SLOT}");
        let sidecars = upstreams.each_ref().map(|it| Sidecar::start(&config, &[it.address]));
        doors.lock().unwrap().extend(sidecars.iter().map(|sidecar| sidecar.handle.listen()));
        // A → B → A.
        let mut clients: Vec<Client> = (0..4).map(|_| sidecars[0].client()).collect();
        for (n, client) in clients.iter_mut().enumerate() {
            client.send(&format!("GET /1/0/end HTTP/1.1\r\nhost: a\r\n{}\r\n", trace(n + 1)));
        }
        for client in &mut clients {
            assert_eq!(client.reply().text(), "200 200 end", "{fields:?}");
        }
        for sidecar in &sidecars {
            conserved(sidecar);
            assert_eq!(sidecar.state()["malformed_contexts"], 0);
        }
    }
}

/// Whoever names a trace that has a slot gains the reserve, and no more.
#[test]
fn the_reserve_is_small() {
    let (barrier, upstream) = Upstream::held();
    let sidecar = Sidecar::start(ONE_SLOT, &[upstream.address]);
    let mut clients: Vec<Client> = (0..10).map(|_| sidecar.client()).collect();
    for client in &mut clients {
        client.send(&format!("GET /slow HTTP/1.1\r\nhost: a\r\n{}\r\n", trace(1)));
    }
    sidecar.wait_for("all others wait", |state| {
        let full = state["running"] == 1 && state["reserved"] == 1;
        full && state["waiting"] == 8 && barrier.came() == 2
    });
    barrier.open();
    clients.iter_mut().for_each(|client| assert_eq!(client.reply().text(), "served"));
}
