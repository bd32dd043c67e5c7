//! Publishers change their broker, and brokers go: nothing is lost, nothing comes twice, nothing overtakes.

#![allow(clippy::disallowed_methods, reason = "tests wait for real servers")]

mod support;

use std::thread;

use serde_json::Value;
use support::{Broker, Client, Heard, World};

/// Numbers that a subscriber hears, in order.
fn numbers(heard: &[Heard]) -> Vec<u64> {
    heard.iter().map(|heard| heard.text().parse().expect("a number")).collect()
}

#[test]
fn a_publisher_that_moves_all_the_time_loses_repeats_and_reorders_nothing() {
    let Some(world) = World::new(3, "") else { return };
    let mut subscribers: Vec<Client> = (0..3).map(|_| world.client()).collect();
    for subscriber in &mut subscribers {
        subscriber.subscribe("a", "1");
        subscriber.flush();
    }
    let mut publisher = world.named("mover");
    publisher.publish("a", "0");
    publisher.flush();
    let id = world.id("mover");
    const ALL: u64 = 20_000;
    let sends = thread::spawn(move || {
        for chunk in (1..ALL).collect::<Vec<_>>().chunks(50) {
            chunk.iter().for_each(|n| publisher.publish("a", &n.to_string()));
            // With an answer now and then, so that it lasts through many moves.
            publisher.flush();
        }
        publisher
    });
    let mut to = 0;
    while !sends.is_finished() {
        to = (to + 1) % 3;
        // One that is under way already is waited for.
        let _ = world.handle.move_publisher(id, to);
    }
    drop(sends.join().expect("it published"));
    for subscriber in &mut subscribers {
        assert_eq!(numbers(&subscriber.messages(ALL as usize)), (0..ALL).collect::<Vec<_>>());
    }
    let state = world.until("rest", |state| state["moving"] == 0);
    assert!(state["moves"].as_u64() > Some(20), "{state:#}");
    let busy = |at: usize| state["brokers"][at]["published"].as_u64() > Some(0);
    assert!((0..3).all(busy), "{state:#}");
    assert_eq!((&state["in_doubt"], &state["abandoned"]), (&Value::from(0), &Value::from(0)));
}

/// Subscribers that were there before it stand there before anybody publishes there.
#[test]
fn brokers_that_come_up_miss_nobody() {
    for _ in 0..3 {
        let Some(mut late) = Broker::start(&[]) else { return };
        let Some(first) = Broker::start(&[]) else { return };
        let (port, urls) = (late.port(), [first.url.clone(), late.url.clone()]);
        late.kill();
        let mut world = World::at(&urls, vec![first], "");
        let mut subscribers: Vec<Client> = (0..20).map(|_| world.client()).collect();
        for subscriber in &mut subscribers {
            subscriber.subscribe("a", "1");
            subscriber.flush();
        }
        // Somebody new comes all the time, and lives where fewest do.
        let (handle, listen) = (world.handle.clone(), world.listen);
        let publish = thread::spawn(move || {
            let (mut sent, mut after) = (0_u64, 0);
            while after < 20 {
                let options = format!("{{\"verbose\":false,\"name\":\"p{sent}\"}}");
                let mut publisher = Client::connect(listen, &options);
                (0..10).for_each(|n| publisher.publish("a", &(sent + n).to_string()));
                publisher.flush();
                sent += 10;
                let state = handle.state().expect("it runs");
                after += u32::from(state["brokers"][1]["state"] == "up");
            }
            sent
        });
        world.brokers.extend(Broker::start_at(&port, &[]));
        let sent = publish.join().expect("it published");
        for subscriber in &mut subscribers {
            let mut heard = numbers(&subscriber.messages(sent as usize));
            heard.sort_unstable();
            assert_eq!(heard, (0..sent).collect::<Vec<_>>());
        }
        let state = world.state();
        assert!(state["brokers"][1]["published"].as_u64() > Some(0), "{state:#}");
    }
}

#[test]
fn what_waits_for_tokens_moves_along() {
    let topic = "[[nats.topics]]\nsubject = 'a'\nrate = 200\nburst = 2\nqueue = 1000\n";
    let Some(world) = World::new(2, topic) else { return };
    let mut subscriber = world.client();
    subscriber.subscribe("a", "1");
    subscriber.flush();
    let mut publisher = world.named("mover");
    (0..150).for_each(|n| publisher.publish("a", &n.to_string()));
    publisher.flush();
    let id = world.id("mover");
    let mut moves = 0;
    let rests = |state: &Value| state["topics"][0]["waiting"] == 0 && state["moving"] == 0;
    while !rests(&world.state()) {
        moves += 1;
        let _ = world.handle.move_publisher(id, moves % 2);
    }
    assert_eq!(numbers(&subscriber.messages(150)), (0..150).collect::<Vec<_>>());
    let state = world.state();
    let topic = &state["topics"][0];
    let number = |name: &str| topic[name].as_f64().expect(name);
    assert!(number("passed") <= 2.0 + 200.0 * number("between_s") + 1e-3, "{topic:#}");
    assert!(state["moves"].as_u64() > Some(5), "{state:#}");
}

#[test]
fn a_broker_that_dies_costs_what_it_had_not_confirmed_and_no_more() {
    let Some(mut world) = World::new(3, "") else { return };
    let mut subscriber = world.client();
    subscriber.subscribe("a.>", "1");
    subscriber.flush();
    let mut publishers: Vec<Client> = (0..3).map(|n| world.named(&format!("p{n}"))).collect();
    let mut next = 0;
    let mut publish = |publishers: &mut Vec<Client>| {
        for _ in 0..200 {
            for (who, publisher) in publishers.iter_mut().enumerate() {
                publisher.publish(&format!("a.{who}"), &next.to_string());
            }
            next += 1;
        }
    };
    publish(&mut publishers);
    publishers.iter_mut().for_each(|publisher| drop(publisher.flush()));
    let home = world.of("p0")["broker"].as_u64().expect("a broker") as usize;
    world.brokers[home].kill();
    publish(&mut publishers);
    publishers.iter_mut().for_each(|publisher| drop(publisher.flush()));
    publish(&mut publishers);
    publishers.iter_mut().for_each(|publisher| drop(publisher.flush()));
    let state = world.until("rest", |state| state["moving"] == 0);
    assert_eq!(state["brokers"][home]["state"], "down");
    let published = state["published"].as_u64().expect("a number");
    let in_doubt = state["in_doubt"].as_u64().expect("a number");
    assert_eq!((published, &state["abandoned"]), (1_800, &Value::from(0)));
    let delivered = state["delivered"].as_u64().expect("a number");
    assert!(delivered <= published && delivered >= published - in_doubt, "{state:#}");
    let mut last = [-1; 3];
    let mut seen = [0; 3];
    for heard in subscriber.flush() {
        let Heard::Message { subject, payload, .. } = heard else { continue };
        let who: usize = subject.trim_start_matches("a.").parse().expect("a publisher");
        let n: i32 = String::from_utf8_lossy(&payload).parse().expect("a number");
        assert!(n > last[who], "{who}: {n} after {}", last[who]);
        (last[who], seen[who]) = (n, seen[who] + 1);
    }
    assert_eq!(last, [599; 3]);
    // Those that lived elsewhere lost nothing.
    let others = (0..3).filter(|who| world.of(&format!("p{who}"))["broker"] != state["none"]);
    assert!(
        others.count() == 3 && seen.iter().filter(|seen| **seen == 600).count() >= 2,
        "{seen:?}"
    );
}

#[test]
fn a_broker_that_comes_back_is_used_again_once_all_subscriptions_stand() {
    let Some(mut world) = World::new(1, "") else { return };
    let mut subscriber = world.client();
    subscriber.subscribe("a", "1");
    subscriber.flush();
    let mut publisher = world.client();
    publisher.publish("a", "before");
    assert_eq!(subscriber.messages(1)[0].text(), "before");
    publisher.flush();
    let port = world.brokers[0].port();
    world.brokers[0].kill();
    world.until("its end", |state| state["brokers"][0]["state"] == "down");
    publisher.publish("a", "meanwhile");
    let back = Broker::start_at(&port, &[]).expect("it was there before");
    world.brokers.push(back);
    // The client noticed nothing but the time.
    assert_eq!(subscriber.messages(1)[0].text(), "meanwhile");
    publisher.publish("a", "after");
    assert_eq!(subscriber.messages(1)[0].text(), "after");
    assert_eq!(world.state()["in_doubt"], 0);
}

#[test]
fn a_broker_that_hangs_is_left_when_its_time_is_up() {
    let Some(world) = World::new(2, "broker_timeout = '300ms'\n") else { return };
    let mut subscriber = world.client();
    subscriber.subscribe("a", "1");
    subscriber.flush();
    let mut publisher = world.named("p");
    publisher.publish("a", "0");
    assert_eq!(subscriber.messages(1)[0].text(), "0");
    publisher.flush();
    let home = world.of("p")["broker"].as_u64().expect("a broker") as usize;
    world.brokers[home].signal("STOP");
    publisher.publish("a", "1");
    world.until("another home", |state| state["in_doubt"] == 1);
    publisher.publish("a", "2");
    // The one in doubt may come, if the broker read it before it stood still, and must not come after the next.
    let mut next = subscriber.messages(1)[0].text();
    if next == "1" {
        next = subscriber.messages(1)[0].text();
    }
    assert_eq!(next, "2");
    world.brokers[home].signal("CONT");
    world.until("its return", |state| state["brokers"][home]["state"] == "up");
    assert_eq!(subscriber.flush(), []);
}

#[test]
fn a_broker_in_lame_duck_gives_up_its_publishers() {
    let Some(world) = World::new(2, "") else { return };
    let mut subscriber = world.client();
    subscriber.subscribe("a", "1");
    subscriber.flush();
    let mut publisher = world.named("p");
    publisher.publish("a", "0");
    publisher.flush();
    let home = world.of("p")["broker"].as_u64().expect("a broker") as usize;
    world.brokers[home].signal("USR2");
    world.until("the move", |state| state["moves"] == 1);
    (1..100).for_each(|n| publisher.publish("a", &n.to_string()));
    assert_eq!(numbers(&subscriber.messages(100)), (0..100).collect::<Vec<_>>());
    assert_ne!(world.of("p")["broker"].as_u64(), Some(home as u64));
    assert_eq!(world.state()["in_doubt"], 0);
}

#[test]
fn a_gate_that_is_told_to_end_lets_go_what_waits() {
    let topic = "[[nats.topics]]\nsubject = 'a'\nrate = 200\nburst = 2\n";
    let Some(mut world) = World::new(2, topic) else { return };
    let mut subscriber = Client::connect(
        world.brokers[0].url.trim_start_matches("nats://").parse().expect("an address"),
        "{\"verbose\":false}",
    );
    subscriber.subscribe("a", "1");
    subscriber.flush();
    let mut publisher = world.named("p");
    publisher.publish("a", "0");
    publisher.flush();
    let _ = world.handle.move_publisher(world.id("p"), 0);
    world.until("home", |state| state["moving"] == 0);
    assert_eq!(world.of("p")["broker"], 0);
    (1..50).for_each(|n| publisher.publish("a", &n.to_string()));
    publisher.flush();
    world.end();
    assert_eq!(publisher.hear_end(), Heard::End);
    while subscriber.messages(1)[0].text() != "49" {}
}
