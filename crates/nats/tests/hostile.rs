//! Clients that are broken or mean harm nobody but themselves.

#![allow(clippy::disallowed_methods, reason = "tests wait for real servers")]

mod support;

use std::io::Write;

use support::{Client, Heard, World};

/// Somebody who publishes and hears itself.
fn is_well(world: &World) {
    let mut client = world.client();
    client.subscribe("well", "1");
    client.publish("well", "yes");
    assert_eq!(client.messages(1)[0].text(), "yes");
}

#[test]
fn whoever_breaks_the_protocol_is_told_and_closed() {
    let Some(world) = World::new(2, "auth_timeout = '200ms'\n") else { return };
    let connect = "CONNECT {\"verbose\":false}\r\nPING\r\n";
    for (text, told) in [
        ("GET / HTTP/1.1\r\n\r\n".to_owned(), "Unknown Protocol Operation"),
        ("PUB a 1\r\nx\r\n".to_owned(), "Authorization Violation"),
        (format!("CONNECT {}", "x".repeat(5_000)), "maximum control line exceeded"),
        (format!("CONNECT {}\r\n", "[".repeat(4_000)), "Unknown Protocol Operation"),
        (format!("{connect}PUB {}", "x".repeat(5_000)), "maximum control line exceeded"),
        (format!("{connect}PUB a 999999999\r\nx"), "Maximum Payload Violation"),
        (format!("{connect}PUB a 3\r\nabcde\r\n"), "Unknown Protocol Operation"),
        (format!("{connect}PUB a\r 15\nx\r\nPUB b 1\r\nyy\r\n"), "Unknown Protocol Operation"),
        (format!("{connect}HPUB a 5 4\r\nxxxx\r\n"), "Unknown Protocol Operation"),
        // Says nothing at all.
        (String::new(), "Authentication Timeout"),
    ] {
        let mut client = Client::raw(world.listen);
        client.send(&text);
        let heard = [client.hear(), client.hear()];
        let heard = if heard[0] == Heard::Pong { [heard[1].clone(), client.hear()] } else { heard };
        assert_eq!(heard, [Heard::Error(format!("'{told}'")), Heard::End], "{text:.40}");
    }
    is_well(&world);
    assert_eq!(world.until("their end", |state| state["clients"] == 0)["clients"], 0);
}

#[test]
fn whoever_promises_a_payload_and_sends_none_waits_alone() {
    let Some(world) = World::new(2, "") else { return };
    let mut idlers: Vec<Client> = (0..20).map(|_| world.client()).collect();
    idlers.iter_mut().for_each(|idler| idler.send("PUB a 1000000\r\nx"));
    is_well(&world);
    drop(idlers);
    world.until("their end", |state| state["clients"] == 0);
}

#[test]
fn whoever_does_not_read_is_closed_and_others_go_on() {
    let Some(world) = World::new(2, "pending = 1000000\n") else { return };
    let (mut slow, mut quick) = (world.client(), world.client());
    for client in [&mut slow, &mut quick] {
        client.subscribe("a", "1");
        client.flush();
    }
    let mut publisher = world.client();
    let payload = "x".repeat(100_000);
    let mut sent = 0;
    while world.state()["slow_consumers"] == 0 {
        publisher.publish("a", &payload);
        assert_eq!(quick.messages(1)[0].text().len(), payload.len());
        sent += 1;
        assert!(sent < 10_000, "a gigabyte for a client that does not read");
    }
    is_well(&world);
}

#[test]
fn whoever_publishes_to_a_broker_that_does_not_read_is_not_read_either() {
    let Some(world) = World::new(1, "") else { return };
    let mut publisher = world.client();
    publisher.publish("a", "x");
    publisher.flush();
    world.brokers[0].signal("STOP");
    publisher.stream.set_nonblocking(true).expect("it can");
    let message = format!("PUB a 100000\r\n{}\r\n", "x".repeat(100_000));
    let mut sent = 0usize;
    let mut at = 0;
    // Until neither the sockets nor the gate take more.
    loop {
        match publisher.stream.write(&message.as_bytes()[at..]) {
            Ok(count) => {
                sent += count;
                at = (at + count) % message.len();
            }
            Err(error) => {
                assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
                let before = world.state()["published"].as_u64();
                let again = publisher.stream.write(&message.as_bytes()[at..]);
                if again.is_err() && world.state()["published"].as_u64() == before {
                    break;
                }
                at = (at + again.unwrap_or(0)) % message.len();
            }
        }
        assert!(sent < 1_000_000_000, "a gigabyte for a broker that does not read");
    }
    world.brokers[0].signal("CONT");
    publisher.stream.set_nonblocking(false).expect("it can");
    publisher.send(&message[at..]);
    publisher.flush();
    is_well(&world);
    assert_eq!(world.state()["in_doubt"], 0);
}

#[test]
fn there_are_only_so_many_clients_and_subscriptions() {
    let Some(world) = World::new(1, "connections = 3\nsubscriptions = 2\n") else { return };
    let mut clients: Vec<Client> = (0..3).map(|_| world.client()).collect();
    let mut more = Client::raw(world.listen);
    assert_eq!(more.hear(), Heard::Error("'maximum connections exceeded'".to_owned()));
    assert_eq!(more.hear(), Heard::End);
    (0..3).for_each(|n| clients[0].subscribe("a", &n.to_string()));
    assert_eq!(clients[0].flush(), [Heard::Error("'maximum subscriptions exceeded'".to_owned())]);
    clients.truncate(1);
    world.until("their end", |state| state["clients"] == 1);
    is_well(&world);
}
